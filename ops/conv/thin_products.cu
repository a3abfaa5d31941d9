// Layers whose y has 1 to 4 channels, and x many: the images that decoders make. Products are made on tensor
// cores, with all channels of y and all taps, r = (m, tap), of which there are up to 80:
//
//   transposed   z[r, i] = sum over c: w[c, r] x[c, i]          in shared memory; then each y is the sum of
//                y[m, o] = bias[m] + sum over taps: z[(m, tap), the pixel of o's tap]
//   plain        x[c, i] = bias[c] + sum over r: w[c, r] y[r, i]          y[r, i]: what pixel i meets of y by
//   weight       w[c, r] = sum over pixels i: x[c, i] y[r, i]             m and tap
//
// x is the large side: it is read, or written, once, by vectors of 16 bytes straight between memory and
// registers. What a product takes of k may be in any order, if both operands have the same, and its rows and
// columns stand for any pixels or channels. So a vector of neighbouring channels (channels last) is two
// steps of k; of neighbouring pixels (nchw) it is a column each of several products, of which a step has two
// words of other channels, which __byte_perm() makes of 16-bit vectors. y's part of a tile (thin_products.h)
// and weights are in shared memory, from where words are gathered.
//
// Float32 is rounded to TF32, and its sums are added to float32's every few steps. On an H200, dcgan5 with
// channels last: bfloat16 26.8, 21.3, 26.1 us (products over boxes and gathered ones: 86, 57, 59), TF32 37,
// 28, 54 (48, 38, 70). At float32's accuracy fused multiply-adds are faster (thin.cu), and gradients of
// weights by strips in nchw. What mattered: taps of rows and columns found once a tile, blocks of four warps,
// several of which fit a multiprocessor (forward 52 to 27 us).
#include <tapedeck/ops/conv/thin_products.cuh>

#include <algorithm>
#include <optional>
#include <utility>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/thin_products.h>
#include <tapedeck/ops/rectifier.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/parts.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::allow_shared_memory;
using conv_gemm::Divider;
using conv_gemm::Half;
using conv_gemm::Tf32;
using conv_thin::thin_plan;
using conv_thin::ThinAxis;
using conv_thin::ThinPass;
using conv_thin::ThinPlan;

constexpr int kWarps = conv_thin::kThinWarps, kBlock = kWarps * 32;
constexpr int kSumRows = conv_thin::kSumProducts;

struct ThinArguments {
  explicit ThinArguments(const ThinPlan& of)
      : plan(of),
        by_padded(of.padded_products),
        by_region_w(of.w.region),
        by_columns(of.w.size),
        tiles(static_cast<int>(of.tiles())) {}
  ThinPlan plan;
  const void *from = nullptr, *w = nullptr, *bias = nullptr;  // w: y, of the weight's gradient
  void* to = nullptr;
  float* parts = nullptr;
  Divider by_padded, by_region_w, by_columns;  // by_columns: of tiles
  int tiles;
  double slope = 1;
};

template <class M>
struct Words {
  using T = typename M::Element;
  static constexpr int kWord = 4 / sizeof(T), kVector = 16 / sizeof(T);
  /// Steps until sums are added to others; 0: never.
  static constexpr int kFlush = std::is_same_v<T, float> ? 4 : 0;
};

__device__ __forceinline__ std::uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// An operand of N words: float32 is rounded.
template <class Math, int N>
struct Operand {
  __device__ __forceinline__ explicit Operand(const std::uint32_t (&from)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (std::is_same_v<typename Math::Element, float>) {
        words[i] = __float_as_uint(conv_gemm::round_to_tf32(__uint_as_float(from[i])));
      } else {
        words[i] = from[i];
      }
    }
  }
  std::uint32_t words[N];
};

template <class Math>
__device__ __forceinline__ void multiply(float (&sums)[4], const Operand<Math, 4>& a,
                                         const Operand<Math, 2>& b) {
  Math::multiply(sums, a.words, b.words[0], b.words[1]);
}

/// Sums of products, of which tensor cores add only kFlush steps.
template <class Math, int M, int N>
struct ThinSums {
  static constexpr bool kFlushes = Words<Math>::kFlush > 0;
  float values[M][N][4] = {}, part[kFlushes ? M : 1][kFlushes ? N : 1][4] = {};

  __device__ __forceinline__ void add(int i, int j, const Operand<Math, 4>& a, const Operand<Math, 2>& b) {
    if constexpr (kFlushes) {
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
          for (int k = 0; k < 4; ++k) values[i][j][k] += part[i][j][k], part[i][j][k] = 0;
    }
  }
};

/// A thread has vectors of neighbours along one axis, as many as two words' elements, which are neighbours
/// along the other: the two words at element e of all.
template <class T>
__device__ __forceinline__ void words_across(const uint4 (&rows)[8 / sizeof(T)], int e,
                                             std::uint32_t (&words)[2]) {
  if constexpr (sizeof(T) == 2) {
    const unsigned selector = e % 2 == 0 ? 0x5410 : 0x7632;
    words[0] = __byte_perm(word_of(rows[0], e / 2), word_of(rows[1], e / 2), selector);
    words[1] = __byte_perm(word_of(rows[2], e / 2), word_of(rows[3], e / 2), selector);
  } else {
    words[0] = word_of(rows[0], e), words[1] = word_of(rows[1], e);
  }
}

/// Of a word of products from r on, those that there are: others are zeros, as their weights are.
template <class T>
__device__ __forceinline__ std::uint32_t of_products(const ThinPlan& p, int r, std::uint32_t word) {
  if (r >= p.products) return 0;
  return sizeof(T) == 2 && r + 1 == p.products ? word & 0xffff : word;
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

__device__ __forceinline__ uint4 load_if(bool does, const void* from) {
  return does ? __ldg(static_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
}

/// The image of a tile, and which tile it is there.
struct ThinTile {
  __device__ ThinTile(const ThinPlan& p, int index) {
    const int line = p.by_tiles_w.divide(index);
    w = p.by_tiles_w.modulo(index, line);
    image = p.by_tiles_h.divide(line);
    h = p.by_tiles_h.modulo(line, image);
  }
  int image, h, w;
};

/// Weights to shared memory: of padded_products rows of channels (`by_products`), or of rows of products for
/// each channel; zeros where there are none.
template <class T, bool by_products>
__device__ void bring_weights(const ThinArguments& a, T* weights) {
  const ThinPlan& p = a.plan;
#pragma unroll 8
  for (int i = threadIdx.x; i < p.channels * p.padded_products; i += kBlock) {
    const int c = a.by_padded.divide(i), r = a.by_padded.modulo(i, c);
    const bool exists = c < p.ci && r < p.products;
    const T value = exists ? static_cast<const T*>(a.w)[c * p.products + r] : T{};
    weights[by_products ? r * p.weight_pitch + c : c * p.weight_pitch + r] = value;
  }
}

/// The taps of an axis that an output reads: k, k + step, ... of pixels i, i - back, ...
struct TapsOfOutput {
  TapsOfOutput() = default;
  __device__ TapsOfOutput(const ThinAxis& axis, int output) {
    // The first tap that brings a multiple of the stride; taps of few are tried.
    const int at = output + axis.padding;
    step = axis.kernel;
    for (k = 0; k < axis.kernel && (at - k * axis.dilation) % axis.stride != 0; ++k) {
    }
    if (k == axis.kernel) return;
    i = (at - k * axis.dilation) / axis.stride;
    for (int next = 1; next < axis.kernel - k; ++next)
      if (next * axis.dilation % axis.stride == 0) {
        step = next, back = next * axis.dilation / axis.stride;
        break;
      }
  }
  int k, step, i = 0, back = 0;
};

/// y's results of a tile. A warp has 8 vectors of pixels of x at a time (channels last: 32 pixels), and kRows
/// times 16 products.
template <class Math, bool kLast, int kRows>
__global__ void __launch_bounds__(kBlock) thin_transposed_kernel(const __grid_constant__ ThinArguments a) {
  using T = typename Math::Element;
  using W = Words<Math>;
  constexpr int kColumns = kLast ? 4 : W::kVector;  // products' tiles of 8 pixels
  constexpr int kPixels = 8 * kColumns, kStep = kLast ? 4 * W::kVector : 8 * W::kWord;  // channels
  const ThinPlan& p = a.plan;
  extern __shared__ uint4 memory[];
  T* const weights = reinterpret_cast<T*>(memory);
  float* const z = reinterpret_cast<float*>(weights + p.padded_products * p.weight_pitch);
  TapsOfOutput* const rows = reinterpret_cast<TapsOfOutput*>(z + p.products * p.sum_pitch());
  TapsOfOutput* const columns = rows + p.h.size;
  const ThinTile tile(p, blockIdx.x);
  const int first_h = tile.h * p.h.size, first_w = tile.w * p.w.size;  // of y
  for (int i = threadIdx.x; i < p.h.size + p.w.size; i += kBlock)
    rows[i] = i < p.h.size ? TapsOfOutput(p.h, first_h + i) : TapsOfOutput(p.w, first_w + i - p.h.size);
  await_previous();
  bring_weights<T, true>(a, weights);
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int x_h = p.h.x_begin(first_h), x_w = p.w.x_begin(first_w);
  const int plane = p.h.x * p.w.x, pitch = p.sum_pitch();
  const T* const x = static_cast<const T*>(a.from) + static_cast<std::int64_t>(tile.image) * p.ci * plane;
#pragma unroll 1
  for (int block = warp; block < p.pixels() / kPixels; block += kWarps) {
    // Where this thread's pixels are in x: a vector of them, or one of each tile of 8; -1: outside.
    int offsets[kLast ? kColumns : 1];
#pragma unroll
    for (int j = 0; j < (kLast ? kColumns : 1); ++j) {
      const int i = kLast ? block * kPixels + j * 8 + g : (block * 8 + g) * W::kVector;
      const int row = a.by_region_w.divide(i), column = a.by_region_w.modulo(i, row);
      const bool inside = row < p.h.region && x_h + row < p.h.x && x_w + column < p.w.x;
      offsets[j] = inside ? ((x_h + row) * p.w.x + x_w + column) * (kLast ? p.ci : 1) : -1;
    }
#pragma unroll 1
    for (int first = 0; first < p.padded_products; first += 16 * kRows) {
      ThinSums<Math, kRows, kColumns> sums;
      const T* const of_rows = weights + (first + g) * p.weight_pitch;
      int steps = 0;
#pragma unroll 1
      for (int c = 0; c < p.ci; c += kStep) {
        if constexpr (kLast) {
          uint4 vectors[kColumns];
          const int channel = c + t * W::kVector;
#pragma unroll
          for (int j = 0; j < kColumns; ++j)
            vectors[j] = load_if(offsets[j] >= 0 && channel < p.ci, x + offsets[j] + channel);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            const T* const at = of_rows + i * 16 * p.weight_pitch + channel;
            const uint4 above = *reinterpret_cast<const uint4*>(at),
                        below = *reinterpret_cast<const uint4*>(at + 8 * p.weight_pitch);
#pragma unroll
            for (int s = 0; s < 2; ++s) {
              const Operand<Math, 4> of_weights({word_of(above, 2 * s), word_of(below, 2 * s),
                                                 word_of(above, 2 * s + 1), word_of(below, 2 * s + 1)});
#pragma unroll
              for (int j = 0; j < kColumns; ++j)
                sums.add(i, j, of_weights,
                         Operand<Math, 2>({word_of(vectors[j], 2 * s), word_of(vectors[j], 2 * s + 1)}));
            }
          }
          steps += 2;
        } else {
          uint4 vectors[2 * W::kWord];
          const int channel = c + t * 2 * W::kWord;
#pragma unroll
          for (int i = 0; i < 2 * W::kWord; ++i)
            vectors[i] = load_if(offsets[0] >= 0 && channel + i < p.ci,
                                 x + static_cast<std::int64_t>(channel + i) * plane + offsets[0]);
#pragma unroll
          for (int i = 0; i < kRows; ++i) {
            const T* const at = of_rows + i * 16 * p.weight_pitch + channel;
            const uint2 above = *reinterpret_cast<const uint2*>(at),
                        below = *reinterpret_cast<const uint2*>(at + 8 * p.weight_pitch);
            const Operand<Math, 4> of_weights({above.x, below.x, above.y, below.y});
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
              std::uint32_t words[2];
              words_across<T>(vectors, j, words);
              sums.add(i, j, of_weights, Operand<Math, 2>(words));
            }
          }
          ++steps;
        }
        if (W::kFlush > 0 && steps >= W::kFlush) sums.flush(), steps = 0;
      }
      sums.flush();
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int r = first + i * 16 + g + half * 8;
            if (r >= p.products) continue;
            float* const to = z + r * pitch + block * kPixels;
            const float left = sums.values[i][j][half * 2], right = sums.values[i][j][half * 2 + 1];
            if constexpr (kLast) {
              *reinterpret_cast<float2*>(to + j * 8 + t * 2) = make_float2(left, right);
            } else {
              to[t * 2 * W::kVector + j] = left;
              to[(t * 2 + 1) * W::kVector + j] = right;
            }
          }
    }
  }
  __syncthreads();

  T* const y = static_cast<T*>(a.to) + static_cast<std::int64_t>(tile.image) * p.co * p.h.y * p.w.y;
  const Rectifier rectifier{a.slope};
  for (int i = threadIdx.x; i < p.h.size * p.w.size; i += kBlock) {
    const int row = a.by_columns.divide(i), column = a.by_columns.modulo(i, row), oh = first_h + row,
              ow = first_w + column;
    if (oh >= p.h.y || ow >= p.w.y) continue;
    const TapsOfOutput h = rows[row], w = columns[column];
    for (int m = 0; m < p.co; ++m) {
      float sum = a.bias == nullptr ? 0.0f : convert<float>(static_cast<const T*>(a.bias)[m]);
      const float* const of_channel = z + m * p.taps * pitch;
      for (int kh = h.k, ih = h.i; kh < p.h.kernel; kh += h.step, ih -= h.back) {
        if (static_cast<unsigned>(ih) >= static_cast<unsigned>(p.h.x)) continue;
        for (int kw = w.k, iw = w.i; kw < p.w.kernel; kw += w.step, iw -= w.back) {
          if (static_cast<unsigned>(iw) >= static_cast<unsigned>(p.w.x)) continue;
          sum += of_channel[(kh * p.w.kernel + kw) * pitch + (ih - x_h) * p.w.region + iw - x_w];
        }
      }
      y[kLast ? (oh * p.w.y + ow) * p.co + m : (m * p.h.y + oh) * p.w.y + ow] =
          convert<T>(rectifier.value(sum));
    }
  }
}

/// What a tile's pixels meet of y to shared memory, [channel][row][column], zeros outside.
template <class T, bool kLast>
__device__ void bring_region(const ThinPlan& p, const ThinTile& tile, const T* all, T* region) {
  const int first_h = tile.h * p.h.size * p.h.stride - p.h.padding,
            first_w = tile.w * p.w.size * p.w.stride - p.w.padding, pitch = p.w.region;
  const T* const y = all + static_cast<std::int64_t>(tile.image) * p.co * p.h.y * p.w.y;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int line = warp; line < p.h.region * (kLast ? 1 : p.co); line += kWarps) {
    const int m = kLast ? 0 : line / p.h.region, row = line - m * p.h.region, oh = first_h + row;
    const bool inside = static_cast<unsigned>(oh) < static_cast<unsigned>(p.h.y);
#pragma unroll 4
    for (int i = lane; i < p.w.region * (kLast ? p.co : 1); i += 32) {
      const int column = kLast ? p.by_co.divide(i) : i, channel = kLast ? p.by_co.modulo(i, column) : m,
                ow = first_w + column;
      T value{};
      if (inside && static_cast<unsigned>(ow) < static_cast<unsigned>(p.w.y))
        value = y[kLast ? (oh * p.w.y + ow) * p.co + channel : (m * p.h.y + oh) * p.w.y + ow];
      region[(channel * p.h.region + row) * pitch + column] = value;
    }
  }
}
/// Where a product's element of y is, from that of a pixel's first.
__device__ __forceinline__ int offset_of_product(const ThinPlan& p, int r) {
  if (r >= p.products) return 0;
  const int m = r / p.taps, tap = r - m * p.taps, kh = tap / p.w.kernel, kw = tap - kh * p.w.kernel;
  return (m * p.h.region + kh * p.h.dilation) * p.w.region + kw * p.w.dilation;
}

/// x's results of a tile. A warp has four vectors of pixels at a time (channels last: 32 pixels), and goes
/// through channels; kSteps of products.
template <class Math, bool kLast, int kSteps>
__global__ void __launch_bounds__(kBlock) thin_plain_kernel(const __grid_constant__ ThinArguments a) {
  using T = typename Math::Element;
  using W = Words<Math>;
  constexpr int kTiles = W::kVector / 2;  // of 8 columns, of which a thread has a vector
  constexpr int kPixels = kLast ? 32 : 8 * kTiles, kOfStep = 8 * W::kWord;
  constexpr int kGroups = kLast ? kPixels / 16 : kTiles;  // of gathered operands
  const ThinPlan& p = a.plan;
  extern __shared__ uint4 memory[];
  T* const weights = reinterpret_cast<T*>(memory);
  __shared__ int offsets[kSteps * kOfStep];
  T* const region = weights + p.channels * p.weight_pitch;
  await_previous();
  const ThinTile tile(p, blockIdx.x);
  bring_weights<T, false>(a, weights);
  bring_region<T, kLast>(p, tile, static_cast<const T*>(a.from), region);
  for (int r = threadIdx.x; r < kSteps * kOfStep; r += kBlock) offsets[r] = offset_of_product(p, r);
  __syncthreads();

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int plane = p.h.x * p.w.x, all = p.h.size * p.w.size;
  T* const x = static_cast<T*>(a.to) + static_cast<std::int64_t>(tile.image) * p.ci * plane;
  const T* const bias = static_cast<const T*>(a.bias);
  const Rectifier rectifier{a.slope};
  // A pixel's first element of y, and its place in x or -1.
  const auto place_of = [&](int i, int& first) {
    const int row = a.by_columns.divide(i), column = a.by_columns.modulo(i, row);
    const bool inside = i < all;
    first = inside ? row * p.h.stride * p.w.region + column * p.w.stride : 0;
    const int ih = tile.h * p.h.size + row, iw = tile.w * p.w.size + column;
    return inside && ih < p.h.x && iw < p.w.x ? ih * p.w.x + iw : -1;
  };
#pragma unroll 1
  for (int block = warp; block * kPixels < all; block += kWarps) {
    std::uint32_t words[kSteps][kGroups][kLast ? 4 : 2];
    int to[kLast ? 2 * kGroups : 1];
    if constexpr (kLast) {
#pragma unroll
      for (int i = 0; i < kGroups; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          int first;
          to[i * 2 + half] = place_of(block * kPixels + i * 16 + half * 8 + g, first);
#pragma unroll
          for (int s = 0; s < kSteps; ++s)
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const int r = s * kOfStep + (t * 2 + k) * W::kWord;
              const int* const at = offsets + r;
              words[s][i][half + 2 * k] =
                  of_products<T>(p, r, gather(region + first + at[0], at[W::kWord - 1] - at[0]));
            }
        }
    } else {
      int first;
      (void)place_of((block * 4 + g / 2) * W::kVector, first);
      int unused;
      to[0] = place_of((block * 4 + t) * W::kVector, unused);
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int r = s * kOfStep + (t * 2 + k) * W::kWord;
          const int* const at = offsets + r;
          const T* const from = region + first + at[0];
          const int step = at[W::kWord - 1] - at[0];
#pragma unroll
          for (int j = 0; j < kGroups; ++j)
            words[s][j][k] = of_products<T>(p, r, gather(from + (2 * j + g % 2) * p.w.stride, step));
        }
    }
    if constexpr (kLast) {
      // Column c of tile j is channel (c/2)*kVector + 2*j + c%2 of so many: a thread has a vector of them.
#pragma unroll 1
      for (int c = 0; c < p.ci; c += 4 * W::kVector) {
        float sums[kGroups][kTiles][4] = {};
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          const T* const of_channel = weights + (c + g / 2 * W::kVector + 2 * j + g % 2) * p.weight_pitch;
#pragma unroll
          for (int s = 0; s < kSteps; ++s) {
            const uint2 two = *reinterpret_cast<const uint2*>(of_channel + s * kOfStep + t * 2 * W::kWord);
            const Operand<Math, 2> of_weights({two.x, two.y});
#pragma unroll
            for (int i = 0; i < kGroups; ++i) multiply(sums[i][j], Operand<Math, 4>(words[s][i]), of_weights);
          }
        }
        const int channel = c + t * W::kVector;
        if (channel >= p.ci) continue;
#pragma unroll
        for (int i = 0; i < kGroups; ++i)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (to[i * 2 + half] < 0) continue;
            Pack<T, W::kVector> results;
#pragma unroll
            for (int k = 0; k < W::kVector; ++k) {
              const float start = bias == nullptr ? 0.0f : convert<float>(bias[channel + k]);
              results.values[k] = convert<T>(rectifier.value(sums[i][k / 2][half * 2 + k % 2] + start));
            }
            *reinterpret_cast<Pack<T, W::kVector>*>(x + static_cast<std::int64_t>(to[i * 2 + half]) * p.ci +
                                                    channel) = results;
          }
      }
    } else {
      // Column c of tile j is pixel 2*j + c%2 of vector c/2.
#pragma unroll 1
      for (int c = 0; c < p.ci; c += 16) {
        float sums[kTiles][4] = {};
        const T* const above = weights + (c + g) * p.weight_pitch + t * 2 * W::kWord;
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const uint2 first = *reinterpret_cast<const uint2*>(above + s * kOfStep),
                      second = *reinterpret_cast<const uint2*>(above + s * kOfStep + 8 * p.weight_pitch);
          const Operand<Math, 4> of_weights({first.x, second.x, first.y, second.y});
#pragma unroll
          for (int j = 0; j < kTiles; ++j) multiply(sums[j], of_weights, Operand<Math, 2>(words[s][j]));
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int channel = c + g + half * 8;
          if (to[0] < 0 || channel >= p.ci) continue;
          const float start = bias == nullptr ? 0.0f : convert<float>(bias[channel]);
          Pack<T, W::kVector> results;
#pragma unroll
          for (int k = 0; k < W::kVector; ++k)
            results.values[k] = convert<T>(rectifier.value(sums[k / 2][half * 2 + k % 2] + start));
          *reinterpret_cast<Pack<T, W::kVector>*>(x + static_cast<std::int64_t>(channel) * plane + to[0]) =
              results;
        }
      }
    }
  }
}

/// Channels of x of a thread block that sums the weight's gradient.
template <class T>
constexpr int kSumChannels = 128 / sizeof(T);

/// With channels last, sums of products kSumRows * blockIdx.z and channels kSumChannels * blockIdx.y on, over
/// every so many tiles.
template <class Math>
__global__ void __launch_bounds__(kBlock) thin_weight_grad_kernel(const __grid_constant__ ThinArguments a) {
  using T = typename Math::Element;
  using W = Words<Math>;
  constexpr int kChannels = kSumChannels<T>, kOfStep = 8 * W::kWord, kMine = 2 * W::kWord;  // pixels
  constexpr int kRows = kSumRows / 16, kColumns = kChannels / 8;
  static_assert(kColumns == W::kVector);
  const ThinPlan& p = a.plan;
  extern __shared__ uint4 memory[];
  T* const region = reinterpret_cast<T*>(memory);
  await_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first_channel = blockIdx.y * kChannels, first_product = blockIdx.z * kSumRows;
  const int plane = p.h.x * p.w.x, all = p.h.size * p.w.size, pitch = p.w.region;
  const int channel = first_channel + g * W::kVector;
  int offsets[2 * kRows];
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i) offsets[i] = offset_of_product(p, first_product + i * 8 + g);
  ThinSums<Math, kRows, kColumns> sums;
#pragma unroll 1
  for (int index = blockIdx.x; index < a.tiles; index += gridDim.x) {
    const ThinTile tile(p, index);
    __syncthreads();
    bring_region<T, true>(p, tile, static_cast<const T*>(a.w), region);
    __syncthreads();
    const T* const x = static_cast<const T*>(a.from) + static_cast<std::int64_t>(tile.image) * p.ci * plane;
    int steps = 0;
#pragma unroll 1
    for (int k = warp * kOfStep; k < all; k += kWarps * kOfStep) {
      // Of this thread's neighbouring pixels those that are in x.
      const int i = k + t * kMine, row = a.by_columns.divide(i), column = a.by_columns.modulo(i, row);
      const int ih = tile.h * p.h.size + row, iw = tile.w * p.w.size + column;
      const int inside = i < all && ih < p.h.x ? p.w.x - iw : 0;
      const T* const of_y = region + (inside > 0 ? row * p.h.stride * pitch + column * p.w.stride : 0);
      uint4 vectors[kMine];
#pragma unroll
      for (int n = 0; n < kMine; ++n)
        vectors[n] = load_if(n < inside && channel < p.ci,
                             x + static_cast<std::int64_t>(ih * p.w.x + iw + n) * p.ci + channel);
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        std::uint32_t words[4];
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            std::uint32_t word = gather(of_y + offsets[2 * m + half] + n * W::kWord * p.w.stride, p.w.stride);
            if (n * W::kWord >= inside) word = 0;
            if (W::kWord == 2 && n * 2 + 1 >= inside) word &= 0xffff;
            words[half + 2 * n] = word;
          }
        const Operand<Math, 4> of_products(words);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          std::uint32_t of_channel[2];
          words_across<T>(vectors, j, of_channel);
          sums.add(m, j, of_products, Operand<Math, 2>(of_channel));
        }
      }
      if (W::kFlush > 0 && ++steps == W::kFlush) sums.flush(), steps = 0;
    }
    sums.flush();
  }
  // Warps' sums, [warp][channel][product], in the region's place; their sums in order.
  using Total = float[kChannels][kSumRows + 1];
  Total* const totals = reinterpret_cast<Total*>(memory);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        totals[warp][(t * 2 + k % 2) * W::kVector + j][i * 16 + g + k / 2 * 8] = sums.values[i][j][k];
  __syncthreads();
  float* const part = a.parts + static_cast<std::int64_t>(blockIdx.x) * p.ci * p.products;
  for (int i = threadIdx.x; i < kChannels * kSumRows; i += kBlock) {
    const int c = i / kSumRows, r = i - c * kSumRows;
    if (first_channel + c >= p.ci || first_product + r >= p.products) continue;
    float sum = totals[0][c][r];
#pragma unroll
    for (int k = 1; k < kWarps; ++k) sum += totals[k][c][r];
    part[(first_channel + c) * p.products + first_product + r] = sum;
  }
}

/// Calls f with the Math of a tensor's type, and whether its channels are last: kernels that there are.
template <class F>
void visit_thin(const Tensor& tensor, const F& f) {
  const auto visit = [&]<class Math>() {
    tensor.layout() == Layout::nhwc ? f.template operator()<Math, true>()
                                    : f.template operator()<Math, false>();
  };
  if (tensor.dtype() == DType::bfloat16) return visit.template operator()<Half<bfloat16>>();
  if (tensor.dtype() == DType::float16) return visit.template operator()<Half<float16>>();
  f.template operator()<Tf32, true>();
}

template <class... P>
void launch_thin(void (*kernel)(P...), dim3 grid, const ThinArguments& a, const Tensor& to) {
  allow_shared_memory(kernel, a.plan.shared_bytes);
  launch_kernel_with_shared("conv: thin", to.device(), kernel, grid, kBlock, a.plan.shared_bytes, a);
}

template <class Math, bool kLast>
void launch_transposed(const ThinArguments& a, const Tensor& to) {
  static_assert(sizeof(TapsOfOutput) == conv_thin::kTapsBytes);
  const dim3 grid(grid_size("conv", a.plan.tiles()));
  const auto launch = [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
    ((a.plan.at_once == kRows ? launch_thin(thin_transposed_kernel<Math, kLast, kRows>, grid, a, to)
                              : void()),
     ...);
  };
  launch(std::integer_sequence<int, 1, 2, 3>());
}

template <class Math, bool kLast>
void launch_plain(const ThinArguments& a, const Tensor& to) {
  constexpr int kUnit = 2 / Words<Math>::kWord;
  const dim3 grid(grid_size("conv", a.plan.tiles()));
  const auto launch = [&]<int... kUnits>(std::integer_sequence<int, kUnits...>) {
    ((a.plan.at_once == kUnits * kUnit
          ? launch_thin(thin_plain_kernel<Math, kLast, kUnits * kUnit>, grid, a, to)
          : void()),
     ...);
  };
  launch(std::integer_sequence<int, 1, 2, 3, 5>());
}

/// Thread blocks along tiles.
std::int64_t weight_grad_blocks(const ThinPlan& p, int element_bytes) {
  const std::int64_t others = ceil_div(p.ci, 128 / element_bytes) * ceil_div(p.products, kSumRows);
  return std::clamp<std::int64_t>(conv_thin::kBlocks / others, 1, p.tiles());
}

const std::optional<ThinPlan>& plan_of(const ConvTranspose2dGeometry& g, ThinPass pass, DType dtype,
                                       Layout layout) {
  static const std::optional<ThinPlan> none;
  if (dtype == DType::float64) return none;
  if (dtype == DType::float32 && float32_precision() == Precision::highest) return none;
  const int bytes = static_cast<int>(size_of(dtype));
  return remembered(ConvQuestion(g, pass, layout, bytes), [&] { return thin_plan(g, pass, layout, bytes); });
}

}  // namespace

bool thin_products_fit(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout layout) {
  return plan_of(g, transposed ? ThinPass::transposed : ThinPass::plain, dtype, layout).has_value();
}
bool thin_products_weight_grad_fit(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  return plan_of(g, ThinPass::weight, dtype, layout).has_value();
}

void thin_products(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
                   const Tensor& bias, const Tensor& to, double negative_slope) {
  ThinArguments a(*plan_of(g, transposed ? ThinPass::transposed : ThinPass::plain, to.dtype(), to.layout()));
  a.from = from.raw(), a.w = w.raw(), a.to = to.raw();
  a.bias = bias.defined() ? bias.raw() : nullptr;
  a.slope = negative_slope;
  const DeviceScope scope(to.device());
  visit_thin(to, [&]<class Math, bool kLast>() {
    transposed ? launch_transposed<Math, kLast>(a, to) : launch_plain<Math, kLast>(a, to);
  });
}

std::int64_t thin_products_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  return weight_grad_blocks(*plan_of(g, ThinPass::weight, dtype, layout), static_cast<int>(size_of(dtype)));
}

void thin_products_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                               const Tensor& w) {
  const int bytes = static_cast<int>(size_of(w.dtype()));
  ThinArguments a(*plan_of(g, ThinPass::weight, w.dtype(), x.layout()));
  const ThinPlan& p = a.plan;
  const std::int64_t blocks = weight_grad_blocks(p, bytes);
  const Workspace<float> parts(w.device(), blocks * w.count());
  a.from = x.raw(), a.w = y.raw(), a.parts = parts.data();
  const DeviceScope scope(w.device());
  visit_thin(x, [&]<class Math, bool kLast>() {
    if constexpr (kLast) {
      using T = typename Math::Element;
      const dim3 grid(grid_size("conv", blocks), static_cast<unsigned>(ceil_div(p.ci, kSumChannels<T>)),
                      static_cast<unsigned>(ceil_div(p.products, kSumRows)));
      launch_thin(thin_weight_grad_kernel<Math>, grid, a, w);
      add_parts<T>(parts.data(), blocks, w);
    }
  });
}

}  // namespace tapedeck::cu
