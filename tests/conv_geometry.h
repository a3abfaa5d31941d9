// A case as the library sees it, for tests of plans and kernels.
#pragma once

#include <tapedeck/ops/conv_transpose2d_geometry.h>

#include "conv_definition.h"

namespace tapedeck::test {

inline ConvTranspose2dGeometry geometry_of(const ConvCase& c) {
  const auto axis = [&](int a) {
    return ConvAxis{c.in[a], c.out(a), c.kernel[a], c.stride[a], c.padding[a], c.dilation[a]};
  };
  return {.n = c.n, .ci = c.ci, .co = c.co, .groups = c.groups, .h = axis(0), .w = axis(1)};
}

}  // namespace tapedeck::test
