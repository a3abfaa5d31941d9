// The rows of y that taps reach, where a kernel is smaller than its stride: all that gradients read of it.
#pragma once

#include <cstdint>

#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_gemm {

/// Rows h of an axis' outputs of which some tap has the phase, (h + padding) % stride.
struct ReachedRows {
  ReachedRows() = default;
  /// An axis of at most kMaxPhases phases.
  explicit ReachedRows(const ConvAxis& axis)
      : stride(static_cast<int>(axis.stride)), shift(static_cast<int>(axis.padding % axis.stride)) {
    const auto turns = static_cast<int>((axis.out + shift) / stride),
               rest = static_cast<int>((axis.out + shift) % stride);
    int phases = 0;
    mask = 0;
    for (int r = 0; r < stride; ++r) {
      if (axis.taps(r) == 0) continue;
      before += r < shift ? 1 : 0;
      count += turns + (r < rest ? 1 : 0);
      mask |= 1U << r;
      phase[phases++] = static_cast<std::int8_t>(r);
    }
    count -= before;
    by_phases = Divider(phases);
  }

  TAPEDECK_HD bool are_all() const { return static_cast<int>(by_phases.divisor) == stride; }
  TAPEDECK_HD bool has(int h) const { return (mask >> (h + shift) % stride & 1) != 0; }
  /// The i-th.
  TAPEDECK_HD int row(int i) const {
    const int at = i + before, turn = by_phases.divide(at);
    return turn * stride + phase[by_phases.modulo(at, turn)] - shift;
  }

  int stride = 1, shift = 0, count = 0;
  int before = 0;                      // of the first turn of phases, above the first row
  unsigned mask = 1;                   // a bit for each phase that has taps,
  std::int8_t phase[kMaxPhases] = {};  // and these phases,
  Divider by_phases;                   // by whose number is divided
};

}  // namespace tapedeck::conv_gemm
