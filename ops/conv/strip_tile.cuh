// What the kernels for strips of rows (strip_plan.h) share on the device: copies to shared memory
// (strip_rows.cuh), and products of 16 pixels by 8 channels on tensor cores (mma.sync).
//
// Shared memory has the elements as they are in memory. 16-bit types are multiplied as they are, and float32
// as TF32. kParts = 3: float32's accuracy, each operand a sum of two TF32 numbers, the first the operand
// rounded, so that the second has either sign and loses at most a bit; sums over four steps are added to the
// result's in float32, since tensor cores truncate what they add.
#pragma once

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/strip_rows.cuh>

namespace tapedeck::cu::conv_strip {

/// Writes neighbours at once: of 16-bit types, the compiler otherwise writes each.
template <class T, int N>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
  using Words = std::conditional_t<sizeof(pack) == 16, uint4,
                                   std::conditional_t<sizeof(pack) == 8, uint2, std::uint32_t>>;
  static_assert(sizeof(Words) == sizeof(pack));
  *reinterpret_cast<Words*>(to) = __builtin_bit_cast(Words, pack);
}

/// The element at an address in shared memory: one addition less than with a pointer and an index.
template <class T>
__device__ __forceinline__ float load(unsigned address) {
  if constexpr (std::is_same_v<T, float>) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
    return x;
  } else {
    unsigned short x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address));
    return convert<float>(__builtin_bit_cast(T, x));
  }
}

/// Two elements of 16 bits in a word.
__device__ __forceinline__ std::uint32_t load_halves(unsigned low, unsigned high) {
  const auto load_half = [](unsigned address) {
    std::uint32_t x;
    asm volatile("{ .reg .u16 h; ld.shared.u16 h, [%1]; cvt.u32.u16 %0, h; }" : "=r"(x) : "r"(address));
    return x;
  };
  return __byte_perm(load_half(low), load_half(high), 0x5410);
}

/// Two neighbours, aligned.
template <class T>
__device__ __forceinline__ float2 load_two(unsigned address) {
  if constexpr (std::is_same_v<T, float>) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
    return x;
  } else {
    std::uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
    if constexpr (std::is_same_v<T, bfloat16>) {
      return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
    } else {
      return {convert<float>(__builtin_bit_cast(T, static_cast<unsigned short>(x))),
              convert<float>(__builtin_bit_cast(T, static_cast<unsigned short>(x >> 16)))};
    }
  }
}

/// A number as kParts TF32 numbers: large + small.
template <class T, int kParts>
__device__ __forceinline__ void split(float x, std::uint32_t& large, std::uint32_t& small) {
  const std::uint32_t bits = __float_as_uint(x);
  if constexpr (kParts == 3) {
    large = (bits + 0x1000u) & 0xffffe000u;
    small = __float_as_uint(x - __uint_as_float(large));
  } else if constexpr (std::is_same_v<T, float>) {
    // Infinities and NaN stay; tensor cores drop the lower bits.
    large = fabsf(x) < __int_as_float(0x7f800000) ? bits + 0x1000u : bits;
  } else {
    large = bits;
  }
}

template <class T, int kParts, int N>
struct Fragment {
  __device__ __forceinline__ void set(int i, float x) {
    split<T, kParts>(x, large[i], small[kParts == 3 ? i : 0]);
  }
  std::uint32_t large[N], small[kParts == 3 ? N : 1];
};

/// The elements of a step of a thread's two pixels, of which the second is `half` bytes further; `at`: of the
/// two elements of k, or of the first of two neighbours. `second`: the pixel's address for the second
/// element.
template <class T, int kParts, bool kLast>
__device__ __forceinline__ Fragment<T, kParts, 4> load_pixels(unsigned pixel, unsigned second, int half,
                                                              const int2& at) {
  Fragment<T, kParts, 4> a;
  if constexpr (kLast) {
    const float2 x = load_two<T>(pixel + at.x), y = load_two<T>(pixel + at.x + half);
    a.set(0, x.x);
    a.set(1, y.x);
    a.set(2, x.y);
    a.set(3, y.y);
  } else {
    const unsigned x = pixel + at.x, y = second + at.y;
    a.set(0, load<T>(x));
    a.set(1, load<T>(x + half));
    a.set(2, load<T>(y));
    a.set(3, load<T>(y + half));
  }
  return a;
}

/// The channel of `to` that column n of 8 channels of a block is. Channels last, of two times 8 a thread's
/// four are neighbours.
template <int kN, bool kLast>
__device__ __forceinline__ int channel_of(int tile, int n) {
  if constexpr (kLast && kN % 2 == 0) {
    return tile / 2 * 16 + n / 2 * 4 + tile % 2 * 2 + n % 2;
  } else {
    return tile * 8 + n;
  }
}

/// The weights of two elements of k in shared memory, as they are or in their parts.
template <class T, int kParts, bool kSplit>
struct Weights {
  using Stored = std::conditional_t<kSplit, float4, float2>;
  __device__ __forceinline__ static Fragment<T, kParts, 2> read(const Stored& w) {
    Fragment<T, kParts, 2> b;
    if constexpr (kSplit) {
      b.large[0] = __float_as_uint(w.x), b.large[1] = __float_as_uint(w.y);
      b.small[0] = __float_as_uint(w.z), b.small[1] = __float_as_uint(w.w);
    } else {
      b.set(0, w.x);
      b.set(1, w.y);
    }
    return b;
  }
  __device__ __forceinline__ static Stored make(float x, float y) {
    if constexpr (kSplit) {
      Fragment<T, kParts, 2> b;
      b.set(0, x);
      b.set(1, y);
      return {__uint_as_float(b.large[0]), __uint_as_float(b.large[1]), __uint_as_float(b.small[0]),
              __uint_as_float(b.small[1])};
    } else {
      return {x, y};
    }
  }
};

/// c += a * b.
template <class T, int kParts>
__device__ __forceinline__ void multiply(float (&c)[4], const Fragment<T, kParts, 4>& a,
                                         const Fragment<T, kParts, 2>& b) {
  if constexpr (kParts == 3) {
    conv_gemm::Tf32::multiply(c, a.small, b.large[0], b.large[1]);
    conv_gemm::Tf32::multiply(c, a.large, b.small[0], b.small[1]);
  }
  conv_gemm::Tf32::multiply(c, a.large, b.large[0], b.large[1]);
}

/// How a product is made of what is in shared memory. Of a step as TF32:
template <class T, int kParts, bool kLast, bool kSplit>
struct WideProduct {
  static constexpr int kSteps = 1;
  using A = Fragment<T, kParts, 4>;
  using B = Fragment<T, kParts, 2>;
  using W = Weights<T, kParts, kSplit>;
  using Stored = typename W::Stored;
  /// `table`: the thread's row of offsets.
  __device__ __forceinline__ static A load(unsigned pixel, unsigned second, int half, const int2* table) {
    return load_pixels<T, kParts, kLast>(pixel, second, half, *table);
  }
  __device__ __forceinline__ static B read(const Stored& w) { return W::read(w); }
  /// read(s, i): the weight of the i-th of the two elements of k of step s.
  template <class Read>
  __device__ __forceinline__ static Stored make(Read read) {
    return W::make(read(0, 0), read(0, 1));
  }
  /// Makes one of these elements x, of weights as they are.
  __device__ __forceinline__ static void set(Stored& to, int, int i, T x) {
    static_assert(!kSplit);
    reinterpret_cast<float*>(&to)[i] = convert<float>(x);
  }
  __device__ __forceinline__ static void multiply(float (&c)[4], const A& a, const B& b) {
    conv_strip::multiply<T, kParts>(c, a, b);
  }
};
/// Of two steps as they are, 16 bits each, two elements of k in a word: channels last neighbours, else put
/// together.
template <class T, bool kLast>
struct HalfProduct {
  static constexpr int kSteps = 2;
  struct A {
    std::uint32_t words[4];
  };
  using B = uint2;
  using Stored = uint2;
  __device__ __forceinline__ static A load(unsigned pixel, unsigned second, int half, const int2* table) {
    const int2 x = table[0], y = table[4];
    const auto word = [&](const int2& at, int more) {
      return kLast ? load_word(pixel + at.x + more) : load_halves(pixel + at.x + more, second + at.y + more);
    };
    return {word(x, 0), word(x, half), word(y, 0), word(y, half)};
  }
  __device__ __forceinline__ static B read(const Stored& w) { return w; }
  template <class Read>
  __device__ __forceinline__ static Stored make(Read read) {
    return {two(read(0, 0), read(0, 1)), two(read(1, 0), read(1, 1))};
  }
  __device__ __forceinline__ static void set(Stored& to, int s, int i, T x) {
    reinterpret_cast<T*>(&to)[s * 2 + i] = x;
  }
  __device__ __forceinline__ static void multiply(float (&c)[4], const A& a, const B& b) {
    conv_gemm::Half<T>::multiply(c, a.words, b.x, b.y);
  }

 private:
  __device__ __forceinline__ static std::uint32_t load_word(unsigned address) {
    std::uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
    return x;
  }
  __device__ __forceinline__ static std::uint32_t two(float low, float high) {
    Pack<T, 2> pack;
    pack.values[0] = convert<T>(low), pack.values[1] = convert<T>(high);
    return __builtin_bit_cast(std::uint32_t, pack);
  }
};
template <class T, int kParts, bool kLast, bool kSplit>
using Product =
    std::conditional_t<sizeof(T) == 2, HalfProduct<T, kLast>, WideProduct<T, kParts, kLast, kSplit>>;

/// A product over 16 pixels, of two times 8: rows (tap, channel) of one image by 8 channels of another. As
/// TF32:
template <class T, int kParts>
struct WidePixels {
  struct A {
    Fragment<T, kParts, 4> steps[2];
  };
  struct B {
    Fragment<T, kParts, 2> steps[2];
  };
  /// Addresses of this thread's pixel of each 8, for its two rows; 4 pixels are `four` bytes.
  __device__ __forceinline__ static A load_rows(const unsigned (&upper)[2], const unsigned (&lower)[2],
                                                int four) {
    A a;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      a.steps[s].set(0, load<T>(upper[s]));
      a.steps[s].set(1, load<T>(lower[s]));
      a.steps[s].set(2, load<T>(upper[s] + four));
      a.steps[s].set(3, load<T>(lower[s] + four));
    }
    return a;
  }
  __device__ __forceinline__ static B load_columns(const unsigned (&at)[2], int four) {
    B b;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      b.steps[s].set(0, load<T>(at[s]));
      b.steps[s].set(1, load<T>(at[s] + four));
    }
    return b;
  }
  __device__ __forceinline__ static B zeros() {
    B b;
#pragma unroll
    for (int e = 0; e < 4; ++e) b.steps[e / 2].set(e % 2, 0.0f);
    return b;
  }
  /// sums += a * b. At float32's accuracy the product is added in float32: tensor cores truncate what they
  /// add.
  __device__ __forceinline__ static void add_product(float (&sums)[4], const A& a, const B& b) {
    float part[4] = {};
    float(&c)[4] = kParts == 3 ? part : sums;
#pragma unroll
    for (int s = 0; s < 2; ++s) multiply<T, kParts>(c, a.steps[s], b.steps[s]);
    if constexpr (kParts == 3) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] += part[k];
    }
  }
};
/// 16-bit types as they are.
template <class T>
struct HalfPixels {
  struct A {
    std::uint32_t words[4];
  };
  struct B {
    std::uint32_t words[2];
  };
  __device__ __forceinline__ static A load_rows(const unsigned (&upper)[2], const unsigned (&lower)[2],
                                                int four) {
    return {load_halves(upper[0], upper[0] + four), load_halves(lower[0], lower[0] + four),
            load_halves(upper[1], upper[1] + four), load_halves(lower[1], lower[1] + four)};
  }
  __device__ __forceinline__ static B load_columns(const unsigned (&at)[2], int four) {
    return {load_halves(at[0], at[0] + four), load_halves(at[1], at[1] + four)};
  }
  __device__ __forceinline__ static B zeros() { return {0, 0}; }
  __device__ __forceinline__ static void add_product(float (&sums)[4], const A& a, const B& b) {
    conv_gemm::Half<T>::multiply(sums, a.words, b.words[0], b.words[1]);
  }
};
template <class T, int kParts>
using PixelProduct = std::conditional_t<sizeof(T) == 2, HalfPixels<T>, WidePixels<T, kParts>>;

/// Sums of kM * 16 pixels and kN * 8 channels of a warp: thread l has of pixels l/4 and l/4 + 8 the channels
/// l%4*2 and l%4*2 + 1.
template <int kM, int kN>
struct Sums {
  float values[kM][kN][4];
};

template <int kM, int kN>
__device__ __forceinline__ void add_sums(Sums<kM, kN>& to, const Sums<kM, kN>& from) {
#pragma unroll
  for (int i = 0; i < kM * kN * 4; ++i)
    to.values[i / (kN * 4)][i / 4 % kN][i % 4] += from.values[i / (kN * 4)][i / 4 % kN][i % 4];
}

/// Calls f<T, kParts>() for a tensor's type, and the precision that is wanted of float32.
template <class F>
void visit_strip(DType dtype, const F& f) {
  if (dtype == DType::bfloat16) return f.template operator()<bfloat16, 1>();
  if (dtype == DType::float16) return f.template operator()<float16, 1>();
  if (float32_precision() != Precision::highest) return f.template operator()<float, 1>();
  f.template operator()<float, 3>();
}

}  // namespace tapedeck::cu::conv_strip
