// Float32 products by float16 ones: Hopper's tensor cores multiply float16 twice as fast as TF32, and a
// float16 number has as many digits (11 bits).
//
// An operand is scaled by a power of two, such that its largest magnitude comes to lie in [2^14, 2^15), or,
// of large ones whose magnitudes are known of a sample, in general in [2^10, 2^15), and each element becomes
// the sum of one or two float16 numbers. One keeps TF32's digits, two keep 22 bits:
//   a*b = (a1 + a2)*(b1 + b2), of which a2*b2 is left out.
// What is left out of an element is at most 2^-11 or 2^-23 of it, or 2^-39 (2^-35 by a sample) of the
// operand's largest magnitude, where float16 has no smaller numbers: errors are small beside an operand's
// largest elements, not beside each element's own size where these differ by more than 2^15
// (2^11 by a sample). What a prologue makes (ops/prologue.h) is scaled for a bound in place of the largest
// magnitude, which may be larger by up to the root of a channel's number of elements. Infinities and NaN stay
// what they are in the first part and do not count as magnitudes: results that see them are not finite, and
// of weight gradients also other taps of the channel may not be.
//
// As much error as of float32's own sums of products: Ootomo and Yokota, "Recovering single precision
// accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance" (2022).
//
// On an H200, nchw with all copies, 512 to 256 channels, kernel 4, stride 2 (bench/results/gpu_conv.json):
// 215 TFLOP/s at float32's accuracy, where three products of TF32 over windows gave 104, and 536 at TF32's,
// where TF32 itself gave 266.
#pragma once

#include <tapedeck/ops/conv/gemm_tile.cuh>
#include <tapedeck/ops/largest.cuh>

namespace tapedeck::cu::conv_gemm {

/// What tensor cores do with float32 operands of `kOf` parts each.
template <int kOf>
struct ScaledHalf : Half<float16> {
  using Value = float;
  static constexpr int kOperandParts = kOf;
  static constexpr bool kScaled = true;
};

/// Of the bits of an operand's largest magnitude: what its scale depends on.
__device__ __forceinline__ unsigned exponent_of(unsigned largest) {
  return max(largest >> 23, 15u);
}

/// A power of two for such an operand.
__device__ __forceinline__ float scale_of(unsigned largest) {
  return __uint_as_float((268 - exponent_of(largest)) << 23);
}

/// Whether an operand with this largest magnitude needs a smaller scale than that of another one.
__device__ __forceinline__ bool is_beyond(unsigned largest, unsigned other) {
  return exponent_of(largest) > exponent_of(other);
}

/// What takes the scales of two operands from sums of products: a factor, `second`, and 1, or where no
/// float32 number is that factor, two of about the same size: nothing on the way is too large or small unless
/// the result is.
struct InverseScales {
  InverseScales() = default;
  /// Of the operands' words (largest.cuh).
  __device__ InverseScales(const unsigned* a, const unsigned* b) {
    const int exponent =
        static_cast<int>(exponent_of(largest_of(a)) + exponent_of(largest_of(b))) - 2 * (127 + 14);
    const int half = exponent < -126 || exponent > 127 ? exponent >> 1 : 0;  // then both -126 to 113
    first = __uint_as_float(static_cast<unsigned>(127 + half) << 23);
    second = __uint_as_float(static_cast<unsigned>(127 + exponent - half) << 23);
  }
  __device__ float operator()(float sum) const { return sum * first * second; }
  float first = 1, second = 1;
};

/// An element's parts.
template <int kOf>
__device__ __forceinline__ void split_half(float x, float scale, float16 (&parts)[kOf]) {
  x *= scale;
  parts[0] = convert<float16>(x);
  if constexpr (kOf == 2) {
    const float rest = x - convert<float>(parts[0]);
    parts[1] = convert<float16>(isfinite(rest) ? rest : 0.0f);
  }
}

/// Two float16 numbers, the first in the lower bits.
__device__ __forceinline__ std::uint32_t pair_of_halves(const float2& x) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(x.y), "f"(x.x));
  return halves;
}
/// The larger magnitudes of two pairs, with any sign; NaN does not count.
__device__ __forceinline__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t larger;
  asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}
__device__ __forceinline__ float2 floats_of_halves(std::uint32_t halves) {
  float2 x;
  asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(x.x), "=f"(x.y)
      : "r"(halves));
  return x;
}

}  // namespace tapedeck::cu::conv_gemm
