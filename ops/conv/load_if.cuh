// Loads without branches, of which many are under way at once.
#pragma once

#include <bit>
#include <cstdint>

#include <tapedeck/core/convert.h>

namespace tapedeck::cu {

/// The element at `from` if it `exists`, else 0. From a branch the compiler makes one, after which a load is
/// waited for.
__device__ __forceinline__ double load_if(bool exists, const double* from) {
  double value;
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.f64 %0, 0d0000000000000000; @p ld.global.f64 %0, [%1]; }"
      : "=d"(value)
      : "l"(from), "r"(static_cast<int>(exists)));
  return value;
}
__device__ __forceinline__ float load_if(bool exists, const float* from) {
  float value;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.f32 %0, 0f00000000; @p ld.global.f32 %0, [%1]; }"
               : "=f"(value)
               : "l"(from), "r"(static_cast<int>(exists)));
  return value;
}
template <class T>
__device__ __forceinline__ float load_if(bool exists, const T* from) {
  std::uint16_t bits;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b16 %0, 0; @p ld.global.b16 %0, [%1]; }"
               : "=h"(bits)
               : "l"(from), "r"(static_cast<int>(exists)));
  return convert<float>(std::bit_cast<T>(bits));
}

}  // namespace tapedeck::cu
