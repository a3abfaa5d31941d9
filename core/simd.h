// Hot loops compiled for several instruction sets; the widest that the CPU has is chosen when they run.
//
//   simd([&] {
//     for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] * a;
//   });
//
// The library is built for baseline x86-64, and the compiler vectorises the loop once for it, once for
// AVX2 and once for AVX-512. All three give the same bits: vector instructions round as scalar ones do,
// multiply and add are never fused (-ffp-contract=off), and the order of a sum is what the source says,
// so a sum that is to be fast has explicit lanes. g++ vectorises a choice only when both sides are
// computed first: `const float e = f(x); return x > 0 ? x : e;`.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

namespace tapedeck {

enum class InstructionSet : std::uint8_t { baseline, avx2, avx512 };

std::string to_string(InstructionSet set);

/// What simd() uses: the CPU's widest, unless limited; `baseline` of a portable build.
InstructionSet instruction_set();
/// Limits simd() to `widest`, for tests and measurements.
void limit_instruction_set(InstructionSet widest);

namespace detail {
#if defined(__x86_64__) && !defined(TAPEDECK_PORTABLE)
template <class F>
[[gnu::flatten, gnu::target("avx2")]] void run_avx2(F& loop) {
  loop();
}
template <class F>
[[gnu::flatten, gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] void run_avx512(F& loop) {
  loop();
}
#endif
}  // namespace detail

/// Calls `loop()`, compiled for instruction_set(). Everything in it should be inline. A build for size can
/// compile those of other types than float for any CPU only, where their type T is given.
template <class T = float, class F>
void simd(F&& loop) {
#if defined(__x86_64__) && !defined(TAPEDECK_PORTABLE)
#if defined(TAPEDECK_SMALL)
  if constexpr (!std::is_same_v<T, float>) return loop();
#endif
  switch (instruction_set()) {
    case InstructionSet::avx512:
#if !defined(TAPEDECK_SMALL)  // a build for size does without: most of these loops wait for memory
      return detail::run_avx512(loop);
#endif
    case InstructionSet::avx2:
      return detail::run_avx2(loop);
    case InstructionSet::baseline:
      break;
  }
#endif
  loop();
}

}  // namespace tapedeck
