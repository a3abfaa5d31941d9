// Functions of one number that loops can be vectorised over.
//
// For float32 these are short polynomials without branches, tables or calls. Their error, measured over
// all of float32, stays below 1 unit in the last place for exp and log, 2.5 for the rest and 4.5 for the
// normal distribution; NaN, infinities and denormals come out as from libm. The polynomials are minimax
// fits with float32 coefficients. For float64 they are libm's functions.
//
// A value is limited once, by one comparison: of two in a row g++ makes three copies of what follows, and
// a vector pays for all of them.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <tapedeck/core/host_device.h>

namespace tapedeck::math {

inline constexpr double kSqrt1_2 = 0.70710678118654752440;
inline constexpr double kInvSqrt2Pi = 0.39894228040143267794;  // the normal density at 0

namespace detail {

/// 2^n for -126 <= n <= 127.
TAPEDECK_HD inline float power_of_two(std::int32_t n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

/// x = n ln 2 + r with |r| <= ln(2)/2.
struct ExpParts {
  std::int32_t n;
  float r;
};

/// For |x| < 2^21. A NaN goes into r.
TAPEDECK_HD inline ExpParts exp_parts(float x) {
  constexpr float kShift = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504f + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts; the first is short
  return {std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kShift), r};
}

/// exp(r) - 1 for |r| <= ln(2)/2.
TAPEDECK_HD inline float expm1_short(float r) {
  float p = 1.393743441e-3f;
  p = p * r + 8.370229974e-3f;
  p = p * r + 4.166644067e-2f;
  p = p * r + 1.666650772e-1f;
  p = p * r + 0.5f;
  return r + r * r * p;
}

/// exp(x + tail) for |x| < 106 and a small tail, which keeps what rounding took from x.
TAPEDECK_HD inline float exp_with_tail(float x, float tail) {
  const ExpParts parts = exp_parts(x);
  const float p = 1 + expm1_short(parts.r + tail);
  const std::int32_t half = parts.n >> 1;  // two factors, for results that are denormal or infinite
  return p * power_of_two(half) * power_of_two(parts.n - half);
}

}  // namespace detail

TAPEDECK_HD inline double exp(double x) {
  return std::exp(x);
}
TAPEDECK_HD inline float exp(float x) {
  const float a = std::fabs(x);
  return detail::exp_with_tail(std::copysign(a > 105 ? 105 : a, x), 0);  // beyond: 0 or infinity
}

/// exp(x) - 1 for x <= 0.
TAPEDECK_HD inline double expm1_of_negative(double x) {
  return std::expm1(x);
}
TAPEDECK_HD inline float expm1_of_negative(float x) {
  const detail::ExpParts parts = detail::exp_parts(x < -80.f ? -80.f : x);
  const float scale = detail::power_of_two(parts.n);
  return detail::expm1_short(parts.r) * scale + (scale - 1);
}

TAPEDECK_HD inline double log(double x) {
  return std::log(x);
}
TAPEDECK_HD inline float log(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr std::uint32_t kSqrtHalf = 0x3f3504f3;
  const bool denormal = x < std::numeric_limits<float>::min();
  const float scaled = denormal ? x * 0x1p25f : x;
  // x = 2^e (1 + f) with 1 + f between sqrt(1/2) and sqrt(2)
  const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(scaled) - kSqrtHalf);  // may wrap
  const float e = static_cast<float>((bits >> 23) - (denormal ? 25 : 0));
  const float f = std::bit_cast<float>((static_cast<std::uint32_t>(bits) & 0x7fffffu) + kSqrtHalf) - 1;
  float p = -7.547603548e-2f;
  p = p * f + 1.271247566e-1f;
  p = p * f - 1.316809356e-1f;
  p = p * f + 1.420860440e-1f;
  p = p * f - 1.662341207e-1f;
  p = p * f + 2.000100166e-1f;
  p = p * f - 2.500081062e-1f;
  p = p * f + 3.333333135e-1f;
  const float log1p = f - (0.5f * f * f - f * f * f * p);
  const float y = e * 0.693359375f + (log1p + e * -2.12194440e-4f);
  const float special = x == 0 ? -kInfinity : std::numeric_limits<float>::quiet_NaN();
  return x > 0 ? (x == kInfinity ? x : y) : special;
}

/// log(1 + x) for 0 <= x <= 1.
TAPEDECK_HD inline double log1p_of_unit(double x) {
  return std::log1p(x);
}
TAPEDECK_HD inline float log1p_of_unit(float x) {
  float p = -3.280348610e-3f;
  p = p * x + 2.004085295e-2f;
  p = p * x - 5.737598613e-2f;
  p = p * x + 1.065381542e-1f;
  p = p * x - 1.534154415e-1f;
  p = p * x + 1.969151646e-1f;
  p = p * x - 2.495808750e-1f;
  p = p * x + 3.333050013e-1f;
  p = p * x - 4.999993443e-1f;
  return x + x * x * p;
}

TAPEDECK_HD inline double tanh(double x) {
  return std::tanh(x);
}
TAPEDECK_HD inline float tanh(float x) {
  const float t = expm1_of_negative(-2 * std::fabs(x));
  return std::copysign(t / (t + 2), x);
}

/// 1 / (1 + exp(-x)), without loss on the far left.
template <class A>
TAPEDECK_HD inline A sigmoid(A x) {
  const A e = math::exp(-std::fabs(x));
  return (x < 0 ? e : A(1)) / (1 + e);
}

/// log(1 + exp(x)), without overflow.
template <class A>
TAPEDECK_HD inline A softplus(A x) {
  return (x < 0 ? A(0) : x) + log1p_of_unit(math::exp(-std::fabs(x)));
}

namespace detail {

/// erf(x) for |x| <= 1.
TAPEDECK_HD inline float erf_short(float x) {
  const float s = x * x;
  float p = 7.842288323e-5f;
  p = p * s - 8.006793214e-4f;
  p = p * s + 5.187962670e-3f;
  p = p * s - 2.685364336e-2f;
  p = p * s + 1.128358245e-1f;
  p = p * s - 3.761262596e-1f;
  p = p * s + 1.283791661e-1f;
  return x + x * p;
}

}  // namespace detail

/// The standard normal distribution: the probability of a value below x, and the density at x. Of small
/// relative error on the left, where it counts.
template <class A>
struct Normal {
  A cdf, density;
};

TAPEDECK_HD inline Normal<double> normal(double x) {
  return {0.5 * std::erfc(-x * kSqrt1_2), kInvSqrt2Pi * std::exp(-0.5 * x * x)};
}
TAPEDECK_HD inline Normal<float> normal(float x) {
  const float distance = std::fabs(x);
  const float a = distance > 14.5f ? 14.5f : distance;  // 0 from here on
  // exp(-a^2/2), with a^2 in two parts of which the first is exact
  const float high = std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) & 0xfffff000u);
  const float e = detail::exp_with_tail(-0.5f * high * high, -0.5f * (a - high) * (a + high));
  // the lower tail is exp(-a^2/2) p(t) / (a + 4)
  const float reciprocal = 1 / (a + 4);
  const float t = (a - 4) * reciprocal;
  float p = -1.307693747e-4f;
  p = p * t + 1.796435536e-4f;
  p = p * t + 1.566339983e-3f;
  p = p * t - 3.514679149e-3f;
  p = p * t - 7.523380220e-3f;
  p = p * t + 6.040503830e-2f;
  p = p * t - 1.865237951e-1f;
  p = p * t + 3.871366978e-1f;
  p = p * t - 6.078965664e-1f;
  p = p * t + 7.552851439e-1f;
  const float tail = e * (p * reciprocal);
  const float near = 0.5f + 0.5f * detail::erf_short(x * static_cast<float>(kSqrt1_2));
  const float far = x < 0 ? tail : 1 - tail;
  return {distance < 0.8f ? near : far, static_cast<float>(kInvSqrt2Pi) * e};
}

TAPEDECK_HD inline double erf(double x) {
  return std::erf(x);
}
TAPEDECK_HD inline float erf(float x) {
  const float near = detail::erf_short(x);
  const float far = std::copysign(2 * normal(std::fabs(x) * 1.41421356f).cdf - 1, x);
  return std::fabs(x) < 1 ? near : far;
}

}  // namespace tapedeck::math
