// One dimension of a tensor as three loops.
#pragma once

#include <array>

#include <tapedeck/core/tensor.h>

namespace tapedeck {

/// A dense tensor seen along one dimension: element (o, i, j) with i along it is at
/// (o * size + i) * inner + j, for either layout.
struct Axis {
  std::int64_t outer = 1, size = 1, inner = 1;

  /// `dim` is not negative.
  static Axis of(const Tensor& x, int dim) {
    constexpr std::array<int, 4> kNhwc = {0, 2, 3, 1};
    Axis axis{1, x.size(dim), 1};
    bool before = true;
    for (int i = 0; i < x.rank(); ++i) {
      const int d = x.layout() == Layout::nhwc ? kNhwc[static_cast<std::size_t>(i)] : i;
      if (d == dim) {
        before = false;
      } else {
        (before ? axis.outer : axis.inner) *= x.size(d);
      }
    }
    return axis;
  }
};

}  // namespace tapedeck
