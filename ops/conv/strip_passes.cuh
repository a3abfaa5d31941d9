// Column phases together (strip_passes.h) on the device: tables and weights in shared memory, and the sums of
// a pass. kP: phases of a pass, kC: times 8 channels of `to`.
#pragma once

#include <tapedeck/ops/conv/strip_passes.h>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu::conv_strip {

/// A pass of a row phase: what warps look up.
template <int kP>
struct PassEntry {
  int begin, steps[kP];  // of its phases
  int column[kP];        // from a pixel's first column on, or -1
};

/// Calls f(i, q, step of the pass) for the row phase and the pass that have a step.
template <class F>
__device__ __forceinline__ auto of_step(const Passes& passes, int step, F f) {
  int at = 0;
  while (passes.step_begin[at + 1] <= step) ++at;
  const int i = at / passes.count;
  return f(i, at - i * passes.count, step - passes.step_begin[at]);
}

/// Fills the table of offsets, in bytes: two ints for each step and l%4.
__device__ __forceinline__ void make_offsets(const Strip& p, const Passes& passes, int* offsets) {
  const int count = passes.all_steps(p) * kStep;
  for (int e = threadIdx.x; e < count; e += kThreads) {
    offsets[e] = of_step(passes, e / kStep, [&](int i, int q, int step) {
      return passes.offset(p, i, passes.element(p, i, q, p.element_of(step, e % kStep / 2, e % 2))) * p.bytes;
    });
  }
}

/// Fills the weights of a group and kC * 8 channels of `to` from `first` on: [product][phase][8
/// channels][thread].
template <class T, int kParts, int kP, int kC, bool kLast, bool kSplit>
__device__ __forceinline__ void make_weights(const Strip& p, const Passes& passes, const T* w, int group,
                                             int first,
                                             typename Product<T, kParts, kLast, kSplit>::Stored* weights) {
  using P = Product<T, kParts, kLast, kSplit>;
  constexpr int kTiles = kP * kC;
  const int count = passes.all_steps(p) / P::kSteps * kTiles * 32;
  for (int e = threadIdx.x; e < count; e += kThreads) {
    const int lane = e % 32, rest = e / 32, tile = rest % kTiles, n = tile / kC,
              m = first + channel_of<kC, kLast>(tile % kC, lane / 4);
    of_step(passes, rest / kTiles * P::kSteps, [&](int i, int q, int step) {
      weights[e] = P::make([&](int s, int half) {
        const auto element = passes.element(p, i, q, p.element_of(step + s, lane % 4, half));
        const std::int64_t at = passes.weight(p, group, i, q, n, element, m);
        return at < 0 ? 0.0f : convert<float>(w[at]);
      });
    });
  }
}

template <int kP>
__device__ __forceinline__ void make_entries(const Strip& p, const Passes& passes, PassEntry<kP>* entries) {
  for (int e = threadIdx.x; e < p.plan.h.count * passes.count; e += kThreads) {
    const int i = e / passes.count, q = e - i * passes.count;
    PassEntry<kP>& pass = entries[e];
    pass.begin = passes.step_begin[e];
    for (int n = 0; n < kP; ++n) {
      const bool exists = n < passes.phases[q];
      pass.steps[n] = passes.steps(p, i, q, n);
      pass.column[n] = exists ? p.plan.w.phase[passes.order[passes.first[q] + n]].to - p.first_to : -1;
    }
  }
}

/// Adds a pass's products for 16 pixels to sums, [phase][8 channels]. `pixel`: the address of this thread's
/// first pixel, the other being `half` bytes further; `offsets`, `weights`: this thread's of the first step.
/// Tensor cores add no more than four steps where float32's accuracy is wanted.
template <class T, int kParts, int kP, int kC, bool kLast, bool kSplit>
__device__ __forceinline__ void add_pass(Sums<kP, kC>& sums, unsigned pixel, int half, const int2* offsets,
                                         const typename Product<T, kParts, kLast, kSplit>::Stored* weights,
                                         const PassEntry<kP>& pass) {
  using P = Product<T, kParts, kLast, kSplit>;
  constexpr int kFlush = 4, kTiles = kP * kC;
  const int steps = pass.steps[0];
  const auto add = [&](Sums<kP, kC>& to, int s) {
    const auto a = P::load(pixel, pixel, half, offsets + s * 4);
#pragma unroll
    for (int n = 0; n < kP; ++n) {
      if (n > 0 && s >= pass.steps[n]) continue;
#pragma unroll
      for (int c = 0; c < kC; ++c)
        P::multiply(to.values[n][c], a, P::read(weights[(s / P::kSteps * kTiles + n * kC + c) * 32]));
    }
  };
  for (int begin = 0; begin < steps; begin += kFlush) {
    Sums<kP, kC> part = {};
    Sums<kP, kC>& to = kParts == 3 ? part : sums;
    if (steps - begin >= kFlush) {
#pragma unroll
      for (int s = 0; s < kFlush; s += P::kSteps) add(to, begin + s);
    } else if (steps - begin >= 2) {
#pragma unroll
      for (int s = 0; s < 2; s += P::kSteps) add(to, begin + s);
      if (steps - begin == 3) add(to, begin + 2);
    } else {
      add(to, begin);
    }
    if constexpr (kParts == 3) add_sums(sums, part);
  }
}

}  // namespace tapedeck::cu::conv_strip
