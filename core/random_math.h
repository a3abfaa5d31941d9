// From random bits to random numbers, with the same bits on every device.
//
// Only + - * / and sqrt are used, which IEEE 754 rounds exactly; no library function, whose last bit
// differs between machines, and no fused multiply-add: compile with -ffp-contract=off, and -fmad=false
// in CUDA.
//
// Element i of a draw is made from bits[i % 4] of RandomBlock::at(seed, draw, i / 4). Its upper 32 bits
// serve every dtype. float64 and int64 add 32 lower bits of their own; the floating types of fewer
// bits put the middle, 0x80000000, there. So a float32 tensor holds the numbers of the float64 tensor of
// the same draw with fewer bits behind them, and a bfloat16 or float16 tensor those of float32, rounded.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include <tapedeck/core/convert.h>
#include <tapedeck/core/host_device.h>
#include <tapedeck/core/random.h>

namespace tapedeck {

/// The random bits of four neighbouring elements.
struct RandomBlock {
  std::uint64_t bits[4];

  /// Those of elements 4*block .. 4*block+3; `wide` with 64 random bits each, else with 32.
  TAPEDECK_HD static RandomBlock at(std::uint64_t seed, std::uint64_t draw, std::int64_t block, bool wide) {
    const std::uint64_t counter = static_cast<std::uint64_t>(block);
    const Philox upper = Philox::at(seed, counter, draw);
    const std::uint32_t middle = 0x80000000u;
    const Philox lower = wide ? Philox::at(seed, counter | (std::uint64_t{1} << 63), draw)
                              : Philox{{middle, middle, middle, middle}};
    RandomBlock made;
    for (int i = 0; i < 4; ++i) made.bits[i] = std::uint64_t{upper.words[i]} << 32 | lower.words[i];
    return made;
  }
};

/// Whether elements of type T take 64 random bits.
template <class T>
inline constexpr bool takes_wide_bits = sizeof(T) == 8;

/// Uniform in [0, 1), a multiple of 2^-53.
TAPEDECK_HD inline double uniform_from_bits(std::uint64_t bits) {
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// Uniform in [low, high), or low where the two are equal: low + (high - low) * u in float64, rounded to
/// T, and the number below `high` where that rounds up to it.
template <class T>
TAPEDECK_HD inline T uniform_between(double low, double high, std::uint64_t bits) {
  const T value = convert<T>(low + (high - low) * uniform_from_bits(bits));
  if (convert<double>(value) < high || low == high) return value;
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;
  const Bits top = std::bit_cast<Bits>(convert<T>(high));
  if (high > 0) return std::bit_cast<T>(static_cast<Bits>(top - 1));
  if (high < 0) return std::bit_cast<T>(static_cast<Bits>(top + 1));
  return std::bit_cast<T>(static_cast<Bits>((Bits{1} << (8 * sizeof(T) - 1)) + 1));  // the largest below 0
}

/// The upper 64 of the 128 bits of a * b.
TAPEDECK_HD inline std::uint64_t multiply_high(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t mask = 0xffffffffu;
  const std::uint64_t low = (a & mask) * (b & mask);
  const std::uint64_t mid = (a >> 32) * (b & mask) + (low >> 32);
  const std::uint64_t carry = (a & mask) * (b >> 32) + (mid & mask);
  return (a >> 32) * (b >> 32) + (mid >> 32) + (carry >> 32);
}

/// Uniform in 0 .. range-1; the probability of each is within 2^-64 of 1/range.
TAPEDECK_HD inline std::uint64_t integer_below(std::uint64_t range, std::uint64_t bits) {
  return multiply_high(range, bits);
}

/// The natural logarithm of a normal positive number, to about one unit in the last place.
/// x = m * 2^e with m in [sqrt(1/2), sqrt(2)), and log m = 2 atanh s with s = (m - 1) / (m + 1).
TAPEDECK_HD inline double portable_log(double x) {
  const std::uint64_t sqrt_half = 0x3fe6a09e667f3bcdu;
  const std::uint64_t shifted = std::bit_cast<std::uint64_t>(x) - sqrt_half;
  const std::int64_t exponent = static_cast<std::int64_t>(shifted) >> 52;
  const double m = std::bit_cast<double>((shifted & 0xfffffffffffffu) + sqrt_half);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;  // z <= 0.0295
  constexpr double kOneOver[] = {1. / 3, 1. / 5, 1. / 7, 1. / 9, 1. / 11, 1. / 13, 1. / 15, 1. / 17, 1. / 19};
  double series = 1. / 21;
  for (int k = 8; k >= 0; --k) series = kOneOver[k] + z * series;
  return static_cast<double>(exponent) * 0x1.62e42fefa39efp-1 + (2.0 * s + 2.0 * s * z * series);
}

/// The cosine and sine of 2 pi t, t = bits / 2^64. The angle is turned by quarters into [-pi/4, pi/4),
/// where the power series converge fast.
TAPEDECK_HD inline void portable_cos_sin(std::uint64_t bits, double& cosine, double& sine) {
  const std::uint64_t quarter = (bits + (std::uint64_t{1} << 61)) >> 62;  // modulo 4, 0 after the wrap
  const std::int64_t rest = static_cast<std::int64_t>(bits - (quarter << 62));
  const double x = static_cast<double>(rest) * 0x1.921fb54442d18p-62;  // 2 pi / 2^64
  const double z = x * x;
  constexpr double kCos[] = {-1. / 2,       1. / 24,        -1. / 720,          1. / 40320,
                             -1. / 3628800, 1. / 479001600, -1. / 87178291200., 1. / 20922789888000.};
  constexpr double kSin[] = {-1. / 6,        1. / 120,        -1. / 5040,           1. / 362880,
                             -1. / 39916800, 1. / 6227020800, -1. / 1307674368000., 1. / 355687428096000.};
  double c = kCos[7], s = kSin[7];
  for (int k = 6; k >= 0; --k) {
    c = kCos[k] + z * c;
    s = kSin[k] + z * s;
  }
  c = 1.0 + z * c;
  s = x + x * z * s;
  cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
  sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
}

/// Two independent normal numbers of mean 0 and deviation 1 (Box and Muller, 1958).
TAPEDECK_HD inline void normal_pair(std::uint64_t radius_bits, std::uint64_t angle_bits, double& even,
                                    double& odd) {
  const double u = (static_cast<double>(radius_bits >> 11) + 0.5) * 0x1p-53;  // in (0, 1]
  const double radius = std::sqrt(-2.0 * portable_log(u));
  double cosine, sine;
  portable_cos_sin(angle_bits, cosine, sine);
  even = radius * cosine;
  odd = radius * sine;
}

}  // namespace tapedeck
