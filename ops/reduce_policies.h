// What reductions do with each element, on every device. A policy has
//   Total                        the type of a total
//   start()                      the total of nothing
//   add(total, value, center)    with a number that belongs to the result that the element goes into
//   merge(total, total)
//   kCentered                    whether add() uses center
#pragma once

#include <cstdint>
#include <limits>

#include <tapedeck/core/host_device.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/scalar_math.h>

namespace tapedeck::policy {

struct Sum {
  using Total = double;
  static constexpr bool kCentered = false;
  TAPEDECK_HD double start() const { return 0; }
  template <class V>
  TAPEDECK_HD double add(double total, V value, double) const {
    return total + static_cast<double>(value);
  }
  TAPEDECK_HD double merge(double a, double b) const { return a + b; }
};

struct IntegerSum {
  using Total = std::int64_t;
  static constexpr bool kCentered = false;
  TAPEDECK_HD std::int64_t start() const { return 0; }
  TAPEDECK_HD std::int64_t add(std::int64_t total, std::int64_t value, double) const { return total + value; }
  TAPEDECK_HD std::int64_t merge(std::int64_t a, std::int64_t b) const { return a + b; }
};

/// Sums of (x - center)^2.
struct Squares : Sum {
  static constexpr bool kCentered = true;
  template <class V>
  TAPEDECK_HD double add(double total, V value, double center) const {
    const double d = static_cast<double>(value) - center;
    return total + d * d;
  }
};

/// Sums of exp(x - center).
struct Exponentials : Sum {
  static constexpr bool kCentered = true;
  template <class V>
  TAPEDECK_HD double add(double total, V value, double center) const {
    return total + static_cast<double>(math::exp(value - static_cast<V>(center)));
  }
};

/// How many values are equal to the center, or NaN like it.
struct Ties : Sum {
  static constexpr bool kCentered = true;
  template <class V>
  TAPEDECK_HD double add(double total, V value, double center) const {
    const double v = static_cast<double>(value);
    return total + static_cast<double>(v == center || (v != v && center != center));
  }
};

template <class V, tapedeck::Extreme kind>
struct Extreme {
  using Total = V;
  static constexpr bool kCentered = false;
  using Limits = std::numeric_limits<V>;
  TAPEDECK_HD V start() const {
    const V worst = Limits::has_infinity ? Limits::infinity() : Limits::max();
    if (kind == tapedeck::Extreme::min) return worst;
    return Limits::has_infinity ? -worst : Limits::lowest();
  }
  TAPEDECK_HD V add(V total, V value, double) const { return merge(total, value); }
  TAPEDECK_HD V merge(V a, V b) const {  // a NaN on either side stays
    const bool better = kind == tapedeck::Extreme::max ? b > a : b < a;
    return better || b != b ? b : a;
  }
};

}  // namespace tapedeck::policy
