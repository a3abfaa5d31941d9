// Elements in the type that formulas are computed in.
//
// A loop is written and compiled for float64, float32 and int64 only. Other types, and elements that are
// not neighbours, go through a block that stays in the first-level cache: bfloat16 and float16 are
// computed in float32, uint8 in int64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <tapedeck/core/convert.h>
#include <tapedeck/core/simd.h>

namespace tapedeck::cpu {

template <class T>
using compute_t = std::conditional_t<std::is_same_v<T, std::uint8_t>, std::int64_t, accumulate_t<T>>;

/// The number of elements that are staged at a time.
inline constexpr std::int64_t kStageBlock = 512;

/// out[i] = in[i], converted.
template <class From, class To>
void convert_run(const From* in, To* out, std::int64_t n) {
  const From* __restrict from = in;
  To* __restrict to = out;
  simd([=] {
    for (std::int64_t i = 0; i < n; ++i) to[i] = convert<To>(from[i]);
  });
}

/// The `n` elements in[i * step] in compute type: where they are if they can be used there, else in
/// `buffer`.
template <class T>
const compute_t<T>* stage(const T* in, std::int64_t step, std::int64_t n, compute_t<T>* buffer) {
  if (step == 1) {
    if constexpr (std::is_same_v<T, compute_t<T>>) {
      return in;
    } else {
      convert_run(in, buffer, n);
    }
  } else if (step == 0) {
    std::fill_n(buffer, n, convert<compute_t<T>>(*in));
  } else {
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = convert<compute_t<T>>(in[i * step]);
  }
  return buffer;
}

}  // namespace tapedeck::cpu
