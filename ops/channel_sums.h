// Walks over all elements of a tensor with per-channel coefficients, and sums over each channel in float64.
//
// Both go through memory in its order. Where each element's channel is constant along a run (NCHW), what
// belongs to the channel is computed once a run; where the channels of a pixel are neighbours (NHWC, [n,c]),
// a run goes through the channels.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/axis.h>

namespace tapedeck::cpu {

/// M sums over a run of elements, in lanes: lane l takes the elements l, l + kLanes, ...
template <int M>
struct LaneSums {
  static constexpr std::int64_t kLanes = 8;
  double lanes[M][kLanes] = {};

  /// Adds the M numbers f(i) for i < n. To be called in simd().
  template <class F>
  void add(std::int64_t n, F f) {
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 1  // g++ vectorises a loop over the lanes, but not its unrolled copies
      for (std::int64_t l = 0; l < kLanes; ++l) {
        const std::array<double, M> terms = f(i + l);
        for (int m = 0; m < M; ++m) lanes[m][l] += terms[m];
      }
    }
    for (std::int64_t l = 0; i < n; ++i, ++l) {
      const std::array<double, M> terms = f(i);
      for (int m = 0; m < M; ++m) lanes[m][l] += terms[m];
    }
  }

  double total(int m) const {
    const double* s = lanes[m];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  }
};

/// A variance that rounding may have made negative; NaN stays.
inline double not_negative(double variance) {
  return variance < 0 ? 0 : variance;
}

/// Calls f(c)(i) for each element: i is where it is in memory, c its channel.
template <class F>
void for_each_element(const Axis& axis, F f) {
  constexpr std::int64_t kGrain = 1 << 14;
  const std::int64_t channels = axis.size, inner = axis.inner;
  if (inner > 1) {
    parallel_for(axis.outer * channels, kGrain / inner, [=](std::int64_t begin, std::int64_t end) {
      simd([=] {
        for (std::int64_t run = begin; run < end; ++run) {
          const auto step = f(run % channels);
          for (std::int64_t i = run * inner; i < (run + 1) * inner; ++i) step(i);
        }
      });
    });
  } else {
    parallel_for(axis.outer, kGrain / channels, [=](std::int64_t begin, std::int64_t end) {
      simd([=] {
        for (std::int64_t o = begin; o < end; ++o) {
          for (std::int64_t c = 0; c < channels; ++c) f(c)(o * channels + c);
        }
      });
    });
  }
}

/// sums[m][c] = the sum of the m-th of the M numbers f(o, c)(i) over the elements of channel c: i is where
/// the element is in memory, o its outer index.
template <int M, class F>
std::array<std::vector<double>, M> channel_sums(const Axis& axis, F f) {
  const std::int64_t channels = axis.size, inner = axis.inner;
  // Each part sums some elements of every channel; parts are added in their order.
  constexpr std::int64_t kPart = 1 << 15;
  const std::int64_t rows =
      inner > 1 ? 1 : std::max<std::int64_t>(1, kPart / channels);  // outer indices of a part
  const std::int64_t parts = (axis.outer + rows - 1) / rows;
  std::vector<double> partial(static_cast<std::size_t>(parts * M * channels));
  double* const all = partial.data();
  if (inner > 1) {
    parallel_for(parts * channels, kPart / inner, [=](std::int64_t begin, std::int64_t end) {
      simd([=] {
        for (std::int64_t run = begin; run < end; ++run) {
          const std::int64_t o = run / channels, c = run % channels;
          const auto terms = f(o, c);
          LaneSums<M> sums;
          sums.add(inner, [&](std::int64_t i) { return terms(run * inner + i); });
          for (int m = 0; m < M; ++m) all[(o * M + m) * channels + c] = sums.total(m);
        }
      });
    });
  } else {
    parallel_for(parts, 1, [=](std::int64_t begin, std::int64_t end) {
      simd([=, outer = axis.outer] {
        for (std::int64_t part = begin; part < end; ++part) {
          double* sums = all + part * M * channels;
          for (std::int64_t o = part * rows; o < std::min(outer, (part + 1) * rows); ++o) {
            for (std::int64_t c = 0; c < channels; ++c) {
              const std::array<double, M> terms = f(o, c)(o * channels + c);
              for (int m = 0; m < M; ++m) sums[m * channels + c] += terms[m];
            }
          }
        }
      });
    });
  }
  std::array<std::vector<double>, M> result;
  for (int m = 0; m < M; ++m) {
    result[m].resize(static_cast<std::size_t>(channels));
    for (std::int64_t part = 0; part < parts; ++part) {
      const double* from = all + (part * M + m) * channels;
      for (std::int64_t c = 0; c < channels; ++c) result[m][c] += from[c];
    }
  }
  return result;
}

}  // namespace tapedeck::cpu
