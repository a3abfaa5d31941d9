// What the CPU's reductions do with each element, where more than one op needs it.
#pragma once

#include <limits>
#include <vector>

#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/reduce_loop.h>

namespace tapedeck::cpu {

struct SumPolicy {
  using Total = double;
  static constexpr bool kCentered = false;
  double start() const { return 0; }
  template <class V>
  double add(double total, V value, double) const {
    return total + static_cast<double>(value);
  }
  double merge(double a, double b) const { return a + b; }
};

template <class V, Extreme kind>
struct ExtremePolicy {
  using Total = V;
  static constexpr bool kCentered = false;
  using Limits = std::numeric_limits<V>;
  static constexpr V kWorst = Limits::has_infinity ? Limits::infinity() : Limits::max();
  V start() const {
    if constexpr (kind == Extreme::min) return kWorst;
    return Limits::has_infinity ? -kWorst : Limits::lowest();
  }
  V add(V total, V value, double) const { return merge(total, value); }
  V merge(V a, V b) const {  // a NaN on either side stays
    const bool better = kind == Extreme::max ? b > a : b < a;
    return better || b != b ? b : a;
  }
};

/// out[i] = totals[i] * scale.
inline void store_totals(const std::vector<double>& totals, double scale, const Tensor& out) {
  visit_floating("reduce", out.dtype(), [&]<class T>() {
    T* to = out.data<T>();
    parallel_for(out.count(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = convert<T>(totals[i] * scale);
    });
  });
}

}  // namespace tapedeck::cpu
