// Conversion of one element between types.
#pragma once

#include <cstdint>
#include <type_traits>

#include <tapedeck/core/dtype.h>
#include <tapedeck/core/host_device.h>

namespace tapedeck {

template <class T>
inline constexpr bool is_half = std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

/// `value` as a To. Half types go through float32; floating to integer truncates, as in C++ and PyTorch.
template <class To, class From>
TAPEDECK_HD inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_half<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (is_half<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, std::uint8_t> && std::is_floating_point_v<From>) {
    return static_cast<To>(static_cast<std::int64_t>(value));  // wraps, where a direct cast is undefined
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace tapedeck
