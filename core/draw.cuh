// Which random numbers a kernel draws: in a captured step, those that each replay gets from the host.
#pragma once

#include <tapedeck/core/captured_step.h>

namespace tapedeck::cu {

/// A seed and a draw. `at`, if not null, is where a replay finds the seed and the draw that it adds.
struct Draw {
  std::uint64_t fixed_seed, fixed_draw;
  const double* at;

  Draw(std::uint64_t seed, std::uint64_t draw) : fixed_seed(seed), fixed_draw(draw), at(nullptr) {
    const double* const numbers = detail::captured_numbers();
    if (numbers == nullptr || (draw & detail::kCapturedDraw) == 0) return;
    at = numbers + ((draw & ~detail::kCapturedDraw) >> detail::kDrawBits);
    fixed_draw = draw & ((std::uint64_t{1} << detail::kDrawBits) - 1);
  }

  __device__ std::uint64_t seed() const {
    return at != nullptr ? static_cast<std::uint64_t>(__double_as_longlong(at[0])) : fixed_seed;
  }
  __device__ std::uint64_t draw() const {
    return at != nullptr ? static_cast<std::uint64_t>(__double_as_longlong(at[1])) + fixed_draw : fixed_draw;
  }
};

}  // namespace tapedeck::cu
