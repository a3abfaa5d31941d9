// What the kernels of thin_products.cuh share: operands of tensor cores, threads' own rings of vectors,
// weights and regions of y in shared memory.
//
// What a product takes of k may be in any order, if both operands have the same, and its rows and columns
// stand for any pixels or channels. So a vector of neighbouring channels (channels last) is two steps of k;
// of neighbouring pixels (nchw) it is a column each of several products, of which a step has two words of
// other channels, which __byte_perm() makes of 16-bit vectors.
//
// Each thread reads for itself what it multiplies of x, by asynchronous copies to a ring of its own, some
// steps ahead, from one tile to the next: no thread waits for another, and vectors on their way take no
// registers.
#pragma once

#include <optional>
#include <type_traits>

#include <tapedeck/core/convert.h>
#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/thin_bands.h>
#include <tapedeck/ops/conv/thin_products.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/thin_products.cuh>
#include <tapedeck/ops/prologue.cuh>

namespace tapedeck::cu::conv_thin {

using namespace tapedeck::conv_thin;
using conv_gemm::allow_shared_memory;
using conv_gemm::Half;
using conv_gemm::shared_address;
using conv_gemm::Tf32;
using conv_gemm::Tf32x3;

inline constexpr int kWarps = kThinWarps, kBlock = kWarps * 32;

struct ThinArguments {
  explicit ThinArguments(const ThinPlan& of) : plan(of), tiles(static_cast<int>(of.tiles())) {}
  ThinPlan plan;
  const void *from = nullptr, *w = nullptr, *bias = nullptr;  // w: y, of the weight's gradient
  void* to = nullptr;
  float* sums = nullptr;                    // blocks', of the weight's gradient
  Divider by_row, by_columns, by_region_h;  // see the kernels
  Divider by_taps;
  int tiles;
  bool weight_is_last = false;  // has its channels last
  float slope = 1;              // of negative results
  ChannelPrologue prologue;     // of `from`, where a kernel applies it
};

template <class M>
struct Words {
  using T = typename M::Element;
  static constexpr int kWord = 4 / sizeof(T), kVector = 16 / sizeof(T);
};

// Words of vectors of 8 and 16 bytes.
__device__ __forceinline__ std::uint32_t& word_of(uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ std::uint32_t& word_of(uint2& v, int i) {
  return i == 0 ? v.x : v.y;
}
__device__ __forceinline__ std::uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
__device__ __forceinline__ std::uint32_t word_of(const uint2& v, int i) {
  return i == 0 ? v.x : v.y;
}

/// Elements of type T of a word, or of two where these are 16 bits, by f(x, which).
template <class T, class F>
__device__ __forceinline__ void for_elements(std::uint32_t& word, const F& f) {
  if constexpr (sizeof(T) == 4) {
    word = __float_as_uint(f(__uint_as_float(word), 0));
  } else {
    Pack<T, 2> pair = reinterpret_cast<const Pack<T, 2>&>(word);
#pragma unroll
    for (int i = 0; i < 2; ++i) pair.values[i] = convert<T>(f(convert<float>(pair.values[i]), i));
    word = reinterpret_cast<const std::uint32_t&>(pair);
  }
}

/// Applies a prologue to a thread's N vectors: each has one channel, or, channels last, all have the same
/// neighbouring ones. kKept: their numbers stay in registers.
template <class T, class Vector, int N, bool kLast, bool kKept>
class ThreadPrologue {
 public:
  /// Vector i has channel `first` + i * `step`, or all have those from `first` on.
  __device__ __forceinline__ ThreadPrologue(const ThinArguments& a, int first, int step)
      : a_(a), first_(first), step_(kLast ? 1 : step) {
    if constexpr (kKept)
#pragma unroll
      for (int i = 0; i < kChannels; ++i) kept_[i] = load(i);
  }
  /// Zeros that stand for pixels that do not exist become what zero becomes, of 16 bits perhaps an infinity.
  __device__ __forceinline__ void apply(Vector (&vectors)[N]) const {
    if constexpr (kLast) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        Channel channels[kWord];
#pragma unroll
        for (int e = 0; e < kWord; ++e) channels[e] = channel(k * kWord + e);
#pragma unroll
        for (int i = 0; i < N; ++i)
          for_elements<T>(word_of(vectors[i], k),
                          [&](float x, int e) { return a_.prologue(channels[e], x); });
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const Channel of_vector = channel(i);
#pragma unroll
        for (int k = 0; k < kWords; ++k)
          for_elements<T>(word_of(vectors[i], k), [&](float x, int) { return a_.prologue(of_vector, x); });
      }
    }
  }
  /// The same of two words of vector i.
  __device__ __forceinline__ void apply(int i, std::uint32_t (&words)[2]) const {
    const Channel of_vector = channel(i);
#pragma unroll
    for (int k = 0; k < 2; ++k)
      for_elements<T>(words[k], [&](float x, int) { return a_.prologue(of_vector, x); });
  }

 private:
  using Channel = NormalizedChannel<float>;
  static constexpr int kWord = 4 / sizeof(T), kWords = sizeof(Vector) / 4,
                       kChannels = kLast ? kWords * kWord : N;
  __device__ __forceinline__ Channel load(int i) const {
    const int channel = first_ + i * step_;
    return channel < a_.plan.ci ? a_.prologue.of(channel) : Channel{};  // then zeros stay zeros
  }
  __device__ __forceinline__ Channel channel(int i) const {
    if constexpr (kKept) return kept_[i];
    return load(i);
  }
  const ThinArguments& a_;
  int first_, step_;
  Channel kept_[kKept ? kChannels : 1];
};
struct NoPrologue {
  __device__ __forceinline__ NoPrologue(const ThinArguments&, int, int) {}
  template <class Vectors>
  __device__ __forceinline__ void apply(const Vectors&) const {}
};

/// A float32 as a sum of two TF32 numbers, rounded. Tensor cores would cut off the smaller one as well.
__device__ __forceinline__ void split(std::uint32_t x, std::uint32_t& large, std::uint32_t& small) {
  large = __float_as_uint(conv_gemm::round_to_tf32(__uint_as_float(x)));
  small = __float_as_uint(conv_gemm::round_to_tf32(__uint_as_float(x) - __uint_as_float(large)));
}

/// N words of an operand: of float32's accuracy, two parts of each; of TF32 rounded.
template <class Math, int N>
struct Operand {
  static constexpr bool kTwo = Math::kParts == 3;
  __device__ __forceinline__ Operand() = default;
  __device__ __forceinline__ explicit Operand(const std::uint32_t (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (kTwo) {
        words[i] = __float_as_uint(conv_gemm::round_to_tf32(__uint_as_float(from[i])));
        small[i] = __float_as_uint(__uint_as_float(from[i]) - __uint_as_float(words[i]));
      } else if constexpr (std::is_same_v<typename Math::Element, float>) {
        words[i] = __float_as_uint(conv_gemm::round_to_tf32(__uint_as_float(from[i])));
      } else {
        words[i] = from[i];
      }
    }
  }
  /// Weights, as bring_weights() left them: words from `first` on of a vector, and of the one of smaller
  /// parts, so many vectors after it.
  __device__ __forceinline__ Operand(const uint4* weights, int to_small, int first = 0) {
    const uint4 v = *weights;
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = word_of(v, first + i);
    if constexpr (kTwo) {
      const uint4 rest = weights[to_small];
#pragma unroll
      for (int i = 0; i < N; ++i) small[i] = word_of(rest, first + i);
    }
  }
  std::uint32_t words[N], small[kTwo ? N : 1];
};

template <class Math>
__device__ __forceinline__ void multiply(float (&sums)[4], const Operand<Math, 4>& a,
                                         const Operand<Math, 2>& b) {
  if constexpr (Math::kParts == 3) {
    Math::multiply(sums, a.small, b.words[0], b.words[1]);
    Math::multiply(sums, a.words, b.small[0], b.small[1]);
  }
  Math::multiply(sums, a.words, b.words[0], b.words[1]);
}

/// Sums of products. Tensor cores cut off what they add: at float32's accuracy they add two steps only,
/// between add<true>() and flush().
template <class Math, int M, int N>
struct ThinSums {
  static constexpr bool kFlushes = Math::kParts == 3;
  float values[M][N][4] = {}, part[kFlushes ? M : 1][kFlushes ? N : 1][4];

  template <bool kFirst>
  __device__ __forceinline__ void add(int i, int j, const Operand<Math, 4>& a, const Operand<Math, 2>& b) {
    if constexpr (kFlushes) {
      if constexpr (kFirst) {
#pragma unroll
        for (int k = 0; k < 4; ++k) part[i][j][k] = 0;
      }
      multiply(part[i][j], a, b);
    } else {
      multiply(values[i][j], a, b);
    }
  }
  __device__ __forceinline__ void flush() {
    if constexpr (kFlushes) {
#pragma unroll
      for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int k = 0; k < 4; ++k) values[i][j][k] += part[i][j][k];
    }
  }
  /// Adds products of all steps' operands: of 16 channels, from `weights` on, which are in the order of lanes
  /// (smaller parts so many vectors further), by columns of a lane's own.
  template <int kSteps>
  __device__ __forceinline__ void add_steps(const uint4* weights, int to_small,
                                            const Operand<Math, 2> (&columns)[kSteps][N]) {
    static_assert(M == 1);
    const auto add_step = [&]<bool kFirst>(int s) {
      const Operand<Math, 4> of_weights(weights + s * 32, to_small);
#pragma unroll
      for (int j = 0; j < N; ++j) add<kFirst>(0, j, of_weights, columns[s][j]);
    };
#pragma unroll
    for (int s = 0; s < kSteps; s += 2) {
      add_step.template operator()<true>(s);
      if (s + 1 < kSteps) add_step.template operator()<false>(s + 1);
      flush();
    }
  }
  __device__ __forceinline__ void rectify(float slope) {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) values[i][j][k] = rectified(values[i][j][k], slope);
  }
};

/// A thread has vectors of neighbours along one axis, as many as two words' elements, which are neighbours
/// along the other: the two words at element e of all.
template <class T, class Vector>
__device__ __forceinline__ void words_across(const Vector (&rows)[8 / sizeof(T)], int e,
                                             std::uint32_t (&words)[2]) {
  if constexpr (sizeof(T) == 2) {
    const unsigned selector = e % 2 == 0 ? 0x5410 : 0x7632;
    words[0] = __byte_perm(word_of(rows[0], e / 2), word_of(rows[1], e / 2), selector);
    words[1] = __byte_perm(word_of(rows[2], e / 2), word_of(rows[3], e / 2), selector);
  } else {
    words[0] = word_of(rows[0], e), words[1] = word_of(rows[1], e);
  }
}

/// A vector of 16 bytes of results; or by words its first `bytes`, what there is of a row.
template <bool kWords = false, class T, int N>
__device__ __forceinline__ void store_vector(T* to, const float (&values)[N], int bytes = 16) {
  static_assert(N * sizeof(T) == 16);
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  std::uint32_t words[4] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const T value = convert<T>(values[i]);
    words[i * static_cast<int>(sizeof(T)) / 4] |= std::uint32_t{reinterpret_cast<const Bits&>(value)}
                                                  << 8 * (i * static_cast<int>(sizeof(T)) % 4);
  }
  if constexpr (kWords) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i * 4 < bytes) reinterpret_cast<std::uint32_t*>(to)[i] = words[i];
    return;
  }
  // The compiler stores words one by one where it is short of registers.
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

/// A word of elements `step` apart in shared memory.
template <class T>
__device__ __forceinline__ std::uint32_t gather(const T* from, int step) {
  if constexpr (sizeof(T) == 2) {
    const auto* const bits = reinterpret_cast<const std::uint16_t*>(from);
    return bits[0] | static_cast<std::uint32_t>(bits[step]) << 16;
  } else {
    return __float_as_uint(*from);
  }
}

/// A thread's ring of steps of kVectors vectors each: bring() a step's, end() it; take() waits for the oldest
/// that was not taken, while kSteps - 1 are on their way at most.
template <class V, int kVectors>
class ThinRing {
 public:
  using Vector = V;
  static constexpr int kSteps = ring_steps(kVectors * static_cast<int>(sizeof(V)));
  static constexpr int kStepBytes = kVectors * static_cast<int>(sizeof(V)) * kBlock;
  static constexpr int kBytes = kSteps * kStepBytes;

  __device__ explicit ThinRing(void* shared)
      : mine_(static_cast<char*>(shared) + threadIdx.x * sizeof(V)), address_(shared_address(mine_)) {}
  /// Zeros, if not `exists`.
  __device__ __forceinline__ void bring(int i, bool exists, const void* from) {
    copy<static_cast<int>(sizeof(V))>(address_of(i), exists, from);
  }
  /// By words what there is of a row: the vector's first `bytes`, and zeros.
  __device__ __forceinline__ void bring_words(int i, int bytes, const void* from) {
#pragma unroll
    for (int at = 0; at < static_cast<int>(sizeof(V)); at += 4)
      copy<4>(address_of(i) + at, at < bytes, static_cast<const char*>(from) + (at < bytes ? at : 0));
  }
  __device__ __forceinline__ void end() {
    asm volatile("cp.async.commit_group;" ::: "memory");
    filled_ = filled_ == kBytes - kStepBytes ? 0 : filled_ + kStepBytes;
  }
  __device__ __forceinline__ void take(V (&vectors)[kVectors]) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kSteps - 1) : "memory");
#pragma unroll
    for (int i = 0; i < kVectors; ++i) vectors[i] = reinterpret_cast<const V*>(mine_ + taken_)[i * kBlock];
    taken_ = taken_ == kBytes - kStepBytes ? 0 : taken_ + kStepBytes;
  }

 private:
  __device__ __forceinline__ unsigned address_of(int i) const {
    return address_ + static_cast<unsigned>(filled_ + i * kBlock * static_cast<int>(sizeof(V)));
  }
  template <int kBytesAtOnce>
  __device__ __forceinline__ static void copy(unsigned to, bool exists, const void* from) {
    const int bytes = exists ? kBytesAtOnce : 0;
    if constexpr (kBytesAtOnce == 16) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                   : "memory");
    } else {
      asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytesAtOnce),
                   "r"(bytes)
                   : "memory");
    }
  }

  const char* mine_;
  unsigned address_;
  int filled_ = 0, taken_ = 0;  // bytes
};

/// A channel of x and a product.
struct WeightPlace {
  int c, r;
};

/// Vectors of 16 bytes of weights, in the order in which lanes take them, those of float32's accuracy as
/// two parts each, the smaller parts after all larger ones. Word i of 0 to 3 of lane (g, t) of vector
/// `inner` of `outer`, of which each has `inners`, begins with the sum of `mine(g, t, i)` and
/// `place(outer, inner)`, and its other elements are neighbours in one of the two. Weights that do not exist
/// are zeros.
template <class Math, bool by_channels, class Mine, class Place>
__device__ void bring_weights(const ThinArguments& a, uint4* weights, int inners, const Mine& mine,
                              const Place& place) {
  using T = typename Math::Element;
  using Bits = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;
  const ThinPlan& p = a.plan;
  const int vectors = p.channels * p.padded_products * static_cast<int>(sizeof(T)) / 512;
  const int lane = static_cast<int>(threadIdx.x) / 4;
  const WeightPlace first = mine(lane / 4, lane % 4, static_cast<int>(threadIdx.x) % 4);
  static_assert(kBlock == 128);
  auto* const to = reinterpret_cast<std::uint32_t*>(weights) + threadIdx.x;
  // `place_of`: of a product's weight among those of a channel of x.
  const auto bring = [&](const auto& place_of) {
    const T* const w = static_cast<const T*>(a.w) + first.c * p.products;
    int outer = 0, inner = 0;
#pragma unroll 6
    for (int v = 0; v < vectors; ++v) {
      const WeightPlace more = place(outer, inner);
      if (++inner == inners) inner = 0, ++outer;
      const T* const from = w + more.c * p.products;
      const int r = first.r + more.r;
      std::uint32_t word = 0;
#pragma unroll
      for (int e = 0; e < Words<Math>::kWord; ++e) {
        const bool exists =
            first.c + more.c + (by_channels ? e : 0) < p.ci && r + (by_channels ? 0 : e) < p.products;
        const T value =
            exists ? Math::prepare(from[by_channels ? e * p.products + place_of(r) : place_of(r + e)]) : T{};
        word |= std::uint32_t{reinterpret_cast<const Bits&>(value)} << 16 * e;
      }
      if constexpr (Math::kParts == 3) {
        split(word, to[v * kBlock], to[(vectors + v) * kBlock]);
      } else {
        to[v * kBlock] = word;
      }
    }
  };
  if (!a.weight_is_last) return bring([](int r) { return r; });
  bring([&](int r) {
    const int m = a.by_taps.divide(r);
    return a.by_taps.modulo(r, m) * p.co + m;
  });
}

/// The image of a tile of x, and which tile it is there.
struct ThinTile {
  __device__ ThinTile(const ThinPlan& p, int index) {
    const int line = p.by_tiles_w.divide(index);
    w = p.by_tiles_w.modulo(index, line);
    image = p.by_tiles_h.divide(line);
    h = p.by_tiles_h.modulo(line, image);
  }
  int image, h, w;
};

/// The lines of all regions, of a row of y, of one channel or, channels last, of all. by_region_h divides by
/// a region's rows.
template <bool kLast>
__device__ void find_lines(const ThinArguments& a, RegionLine* lines) {
  const ThinPlan& p = a.plan;
  for (int i = static_cast<int>(threadIdx.x); i < p.lines(); i += kBlock) {
    const int m = kLast ? 0 : a.by_region_h.divide(i), row = i - m * p.h.region;
    lines[i] = {row, (m * p.h.y + row) * p.w.y * (kLast ? p.co : 1)};
  }
}

/// What a tile's pixels meet of y to shared memory, [channel][row][column], zeros outside. Warps bring four
/// lines at a time.
template <class T, bool kLast>
__device__ void bring_region(const ThinArguments& a, const ThinTile& tile, const void* all,
                             const RegionLine* lines, T* region) {
  constexpr int kLines = 4;
  const ThinPlan& p = a.plan;
  const int first_h = tile.h * p.h.size * p.h.stride - p.h.padding,
            first_w = tile.w * p.w.size * p.w.stride - p.w.padding, of_pixel = kLast ? p.co : 1;
  const int count = p.lines(), elements = p.w.region * of_pixel;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  // The first line's first element, which may be outside.
  const T* const y = static_cast<const T*>(all) +
                     static_cast<std::int64_t>(tile.image) * p.co * p.h.y * p.w.y +
                     (static_cast<std::int64_t>(first_h) * p.w.y + first_w) * of_pixel;
#pragma unroll 1
  for (int first = warp * kLines; first < count; first += kWarps * kLines) {
    int offsets[kLines];
    bool inside[kLines];
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      const RegionLine line = lines[min(first + l, count - 1)];
      inside[l] = static_cast<unsigned>(first_h + line.row) < static_cast<unsigned>(p.h.y);
      offsets[l] = line.offset;
    }
#pragma unroll 3
    for (int e = lane; e < elements; e += 32) {
      const int column = kLast ? p.by_co.divide(e) : e, m = kLast ? p.by_co.modulo(e, column) : 0;
      const bool exists = static_cast<unsigned>(first_w + column) < static_cast<unsigned>(p.w.y);
      T* const to = region + (m * p.h.region + first) * p.w.region + column;
      T values[kLines];
#pragma unroll
      for (int l = 0; l < kLines; ++l) values[l] = exists && inside[l] ? y[offsets[l] + e] : T{};
#pragma unroll
      for (int l = 0; l < kLines; ++l)
        if (first + l < count) to[l * p.w.region] = values[l];
    }
  }
}

/// Where a product's element of y is, from that of a pixel's first.
__device__ __forceinline__ int offset_of_product(const ThinPlan& p, int r) {
  const int m = r / p.taps, tap = r - m * p.taps, kh = tap / p.w.kernel, kw = tap - kh * p.w.kernel;
  return (m * p.h.region + kh * p.h.dilation) * p.w.region + kw * p.w.dilation;
}

/// Calls f with the Math of a tensor's type, and whether its channels are last.
template <class F>
void visit_thin(const Tensor& tensor, const F& f) {
  const auto visit = [&]<class Math>() {
    tensor.layout() == Layout::nhwc ? f.template operator()<Math, true>()
                                    : f.template operator()<Math, false>();
  };
  if (tensor.dtype() == DType::bfloat16) return visit.template operator()<Half<bfloat16>>();
  if (tensor.dtype() == DType::float16) return visit.template operator()<Half<float16>>();
  if (float32_precision() == Precision::highest) return visit.template operator()<Tf32x3>();
  visit.template operator()<Tf32>();
}

/// Calls f with whether rows come by words (ThinPlan::by_words), which are kernels of their own: one more
/// branch made those of dcgan5 1 to 9% slower, and one layer's 2.4 times.
template <bool kCanBe, class F>
void visit_rows(const ThinPlan& plan, const F& f) {
  if constexpr (kCanBe)
    if (plan.by_words) return f.template operator()<true>();
  f.template operator()<false>();
}

template <class... P>
void launch_thin(void (*kernel)(P...), dim3 grid, const ThinArguments& a, const Tensor& to) {
  allow_shared_memory(kernel, a.plan.shared_bytes);
  launch_kernel_with_shared("conv: thin", to.device(), kernel, grid, kBlock, a.plan.shared_bytes, a);
}

/// Of float32's accuracy.
inline int operand_parts_of(DType dtype) {
  return dtype == DType::float32 && float32_precision() == Precision::highest ? 2 : 1;
}

/// The plan of a call, or nothing.
inline const std::optional<ThinPlan>& plan_of(const ConvTranspose2dGeometry& g, ThinPass pass, DType dtype,
                                              Layout layout) {
  static const std::optional<ThinPlan> none;
  if (dtype == DType::float64) return none;
  const int bytes = static_cast<int>(size_of(dtype));
  const int operand_parts = operand_parts_of(dtype);
  return remembered(ConvQuestion(g, pass, layout, bytes, operand_parts),
                    [&] { return thin_plan(g, pass, layout, bytes, operand_parts); });
}

/// w = the sum of so many sums of its size.
inline void add_sums(const float* sums, std::int64_t count, const Tensor& w) {
  if (w.dtype() == DType::bfloat16) return add_parts<bfloat16>(sums, count, w);
  if (w.dtype() == DType::float16) return add_parts<float16>(sums, count, w);
  add_parts<float>(sums, count, w);
}

// Kernels over bands (thin_bands.h), each in a file of its own; false, if there is none for such a call.
bool launch_bands(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Tensor& y, double negative_slope, const Prologue& prologue);
bool launch_bands_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w,
                        const Tensor& bias, const Tensor& x, double negative_slope);
bool launch_bands_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                              const Tensor& w, const Prologue& prologue);

// And of tiles.
void launch_transposed(const ThinArguments& a, const Tensor& to, bool has_prologue);
void launch_plain(const ThinArguments& a, const Tensor& to);
void launch_weight_grad(const ThinArguments& a, const Tensor& x, const Tensor& w, bool has_prologue);

}  // namespace tapedeck::cu::conv_thin
