// Element types.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <tapedeck/core/error.h>
#include <tapedeck/core/host_device.h>

namespace tapedeck {

enum class DType : std::uint8_t { float64, float32, bfloat16, float16, int64, uint8 };

// Kernels convert half types by the GPU's own instructions, to the same bits (but for those of a NaN).

/// The upper half of a float32: 8 exponent and 7 mantissa bits. Converts with round to nearest even.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  TAPEDECK_HD explicit bfloat16(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t quiet = (u >> 16) | 0x40u, rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(nan ? quiet : rounded);
#endif
  }
  TAPEDECK_HD explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};

// A build for size calls float16's conversions: in line, the static train_decoder had 135 kB more.
#if defined(TAPEDECK_SMALL) && !defined(__CUDACC__)
#define TAPEDECK_CALLED [[gnu::noinline]]
#else
#define TAPEDECK_CALLED
#endif

/// IEEE 754 binary16: 5 exponent and 10 mantissa bits. Converts with round to nearest even.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;
  TAPEDECK_CALLED TAPEDECK_HD explicit float16(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (u >> 16) & 0x8000u;
    const std::uint32_t magnitude = u & 0x7fffffffu;
    // All of them first, then a choice: loops of that are vectorised (core/simd.h).
    const std::uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 aligns the mantissa so that its low bits are the result.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const std::uint32_t finite = magnitude >= 0x38800000u ? normal : subnormal;
    const std::uint32_t special = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;  // a NaN, or infinity
    const std::uint32_t h = magnitude >= 0x477ff000u ? special : finite;        // 65520 rounds to infinity
    bits = static_cast<std::uint16_t>(sign | h);
#endif
  }
  TAPEDECK_CALLED TAPEDECK_HD explicit operator float() const {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    const std::uint32_t normal = (magnitude << 13) + 0x38000000u, special = 0x7f800000u | (magnitude << 13);
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
    const std::uint32_t finite = magnitude >= 0x0400u ? normal : subnormal;
    const std::uint32_t u = magnitude >= 0x7c00u ? special : finite;
    return std::bit_cast<float>(sign | u);
#endif
  }
};
#undef TAPEDECK_CALLED

namespace detail {
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::float16;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::uint8;
};
}  // namespace detail

template <class T>
inline constexpr DType dtype_of = detail::DTypeOf<T>::value;

/// The type that sums of T are formed in: half types accumulate in float32, the rest in themselves.
template <class T>
using accumulate_t = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::int64:
      return 8;
    case DType::float32:
      return 4;
    case DType::bfloat16:
    case DType::float16:
      return 2;
    case DType::uint8:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype != DType::int64 && dtype != DType::uint8;
}

/// "float32" and so on.
std::string to_string(DType dtype);

/// The type of a name such as "float32". Throws Error for an unknown one.
DType parse_dtype(std::string_view name);

/// Calls `f.template operator()<T>()` with the C++ type of `dtype`.
template <class F>
decltype(auto) visit(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float64:
      return f.template operator()<double>();
    case DType::float32:
      return f.template operator()<float>();
    case DType::bfloat16:
      return f.template operator()<bfloat16>();
    case DType::float16:
      return f.template operator()<float16>();
    case DType::int64:
      return f.template operator()<std::int64_t>();
    case DType::uint8:
      break;
  }
  return f.template operator()<std::uint8_t>();
}

/// The same for the floating types only. Throws Error, naming `op`, for an integer type.
template <class F>
decltype(auto) visit_floating(std::string_view op, DType dtype, F&& f) {
  switch (dtype) {
    case DType::float64:
      return f.template operator()<double>();
    case DType::float32:
      return f.template operator()<float>();
    case DType::bfloat16:
      return f.template operator()<bfloat16>();
    case DType::float16:
      return f.template operator()<float16>();
    default:
      throw Error(concat(op, ": dtype ", dtype, " is not supported; legal are float64, float32, ",
                         "bfloat16 and float16"));
  }
}

}  // namespace tapedeck
