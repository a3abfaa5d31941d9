// A map of one pixel that becomes a map as large as the kernel: matrix products with the weight as it stands.
//
// With x [n,ci], w [ci,m] and y [n,m], m = co*kh*kw: y = x w + bias, x = y w^T + bias, w = x^T y. In nchw no
// layout is changed, and no weight is packed. matrix.cpp, matrix.cu.
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

/// Whether this is so: each tap makes one element of y, and y ends where the kernel does. y is row-major.
inline bool is_matrix(const ConvTranspose2dGeometry& g, Layout y) {
  const auto covers = [](const ConvAxis& a) {
    return a.in == 1 && a.padding == 0 && a.out == a.kernel && (a.dilation == 1 || a.kernel == 1);
  };
  return g.groups == 1 && covers(g.h) && covers(g.w) && (y == Layout::nchw || g.h.out * g.w.out == 1);
}

}  // namespace tapedeck
