// The three maps of the family with a geometry that is made already, for each other's gradients.
//
// Given a geometry g and a layout, let x, w and y be tensors of g's three shapes. Then
//   transposed(x, w) -> y,   plain(y, w) -> x,   correlation(x, y) -> w
// are bilinear with <y', transposed(x, w)> = <plain(y', w), x> = <correlation(x, y'), w>, so each gradient
// is another of the three with the same geometry. x and y are computed and returned in the layout, gradients
// of w in the weight's.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::detail {

struct ConvCall {
  ConvTranspose2dGeometry geometry;
  Layout layout = Layout::nchw, weight_layout = Layout::nchw;
  std::optional<ConvAlgorithm> algorithm = ConvAlgorithmScope::current();  // of the map's gradients, too

  ConvCall with(Layout of_weight) const {
    ConvCall call = *this;
    call.weight_layout = of_weight;
    return call;
  }
};

/// conv_transpose2d; bias may be undefined.
Variable transposed(const ConvCall& call, const Variable& x, const Variable& w, const Variable& bias = {});
/// conv2d; bias may be undefined.
Variable plain(const ConvCall& call, const Variable& y, const Variable& w, const Variable& bias = {});
/// conv_transpose2d_weight_grad.
Variable correlation(const ConvCall& call, const Variable& x, const Variable& y);

/// A bias or another input that may be undefined.
inline Tensor tensor_of(const Variable& x) {
  return x.defined() ? x.tensor() : Tensor();
}

/// The dimension of the channels of images [n,c,h,w] or [c,h,w].
inline int channel_dim(const Variable& x) {
  return x.rank() - 3;
}

/// x as images [n,c,h,w] in the layout.
inline Tensor images(const Tensor& x, Layout layout) {
  return x.rank() == 4 ? x.to(layout) : x.reshape({1, x.size(0), x.size(1), x.size(2)});
}

}  // namespace tapedeck::detail
