// The functions of two numbers, for every device.
#pragma once

#include <cmath>
#include <cstdint>

#include <tapedeck/core/host_device.h>
#include <tapedeck/ops/elementwise.h>

namespace tapedeck::formula {

struct Plus {
  template <class V>
  TAPEDECK_HD V operator()(V a, V b) const {
    return a + b;
  }
};
struct Minus {
  template <class V>
  TAPEDECK_HD V operator()(V a, V b) const {
    return a - b;
  }
};
struct Times {
  template <class V>
  TAPEDECK_HD V operator()(V a, V b) const {
    return a * b;
  }
};
struct Over {
  template <class V>
  TAPEDECK_HD V operator()(V a, V b) const {
    return a / b;
  }
};
struct Smaller {  // a NaN on either side stays
  template <class V>
  TAPEDECK_HD V operator()(V a, V b) const {
    return a < b || a != a ? a : b;
  }
};
struct Larger {
  template <class V>
  TAPEDECK_HD V operator()(V a, V b) const {
    return a > b || a != a ? a : b;
  }
};
struct Above {
  template <class V>
  TAPEDECK_HD V operator()(V a, V b) const {
    const V tied = a == b ? V(0.5) : V(1);
    return a < b ? V(0) : tied;
  }
};
struct Power {
  template <class V>
  TAPEDECK_HD V operator()(V a, V b) const {
    return std::pow(a, b);
  }
};

struct Scaled {
  double scale;
  template <class V>
  TAPEDECK_HD V operator()(V x) const {
    return x * static_cast<V>(scale);
  }
};
struct ScaleShift {
  double scale, shift;
  template <class V>
  TAPEDECK_HD V operator()(V x) const {
    return x * static_cast<V>(scale) + static_cast<V>(shift);
  }
};

/// a > b and a >= b are lt and le of b and a.
template <Comparison kind>
struct Compared {
  template <class V>
  TAPEDECK_HD std::uint8_t operator()(V a, V b) const {
    if constexpr (kind == Comparison::eq) {
      return a == b;
    } else if constexpr (kind == Comparison::ne) {
      return a != b;
    } else if constexpr (kind == Comparison::lt) {
      return a < b;
    } else {
      return a <= b;
    }
  }
};

}  // namespace tapedeck::formula
