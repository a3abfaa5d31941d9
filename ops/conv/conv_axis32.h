// An axis in numbers of 32 bits (conv_gemm::positions_fit()), for kernels.
#pragma once

#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

struct ConvAxis32 {
  ConvAxis32() = default;
  explicit ConvAxis32(const ConvAxis& a)
      : in(static_cast<int>(a.in)),
        out(static_cast<int>(a.out)),
        kernel(static_cast<int>(a.kernel)),
        stride(static_cast<int>(a.stride)),
        padding(static_cast<int>(a.padding)),
        dilation(static_cast<int>(a.dilation)) {}
  int in = 1, out = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;
};

}  // namespace tapedeck
