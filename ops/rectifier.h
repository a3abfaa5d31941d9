// What fused ops do to negative results: the formula that relu() and leaky_relu() share.
#pragma once

#include <tapedeck/core/host_device.h>

namespace tapedeck {

/// u above 0, else u * negative_slope, and 0 where that slope is 0: nothing with slope 1, relu() with 0, and
/// leaky_relu() between. As there, the gradient at 0 is the slope, and NaN stays.
struct Rectifier {
  double negative_slope = 1;

  bool does_nothing() const { return negative_slope == 1; }
  template <class A>
  TAPEDECK_HD A value(A u) const {
    const A below = negative_slope == 0 ? A(0) : u * static_cast<A>(negative_slope);
    return u <= 0 ? below : u;
  }
  /// g times the derivative at u. Where the slope is not negative, u may be the value as well.
  template <class A>
  TAPEDECK_HD A gradient(A u, A g) const {
    const A below = negative_slope == 0 ? A(0) : g * static_cast<A>(negative_slope);
    return u <= 0 ? below : g;
  }
};

}  // namespace tapedeck
