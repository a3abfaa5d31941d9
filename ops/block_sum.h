// Sums in a fixed order, for reductions to one number.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <tapedeck/core/parallel.h>

namespace tapedeck {

/// The sum of f(i) over [begin, end), in eight interleaved lanes that are then added in order.
template <class F>
double lane_sum(std::int64_t begin, std::int64_t end, const F& f) {
  constexpr int kLanes = 8;
  double lanes[kLanes] = {};
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (int k = 0; k < kLanes; ++k) lanes[k] += f(i + k);
  }
  for (int k = 0; i < end; ++i, ++k) lanes[k] += f(i);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

/// The sum of f(begin, end) over blocks of a fixed size that cover [0, count): blocks in parallel, then
/// their sums in order. The same bits for every number of threads.
template <class F>
double block_sum(std::int64_t count, const F& f) {
  constexpr std::int64_t kBlock = 4096;
  const std::int64_t blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> sums(static_cast<std::size_t>(blocks));
  parallel_for(blocks, 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      sums[static_cast<std::size_t>(b)] = f(b * kBlock, std::min(count, (b + 1) * kBlock));
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace tapedeck
