// The weight's gradient of layers whose y has 1 to 4 channels: a thread block adds up a share of all tiles of
// x, by what their pixels meet of y, for some channels of x, 128 bytes of them with channels last, and some
// products. Warps have every fourth step of pixels, and sums of their own, which are added at the end;
// blocks' sums are, in order, by a second kernel.
//
// Shared memory: rings of x, the region of y; then warps' sums [warp][channel][product] in their place.
#include <utility>

#include <tapedeck/ops/conv/thin_products_tile.cuh>

namespace tapedeck::cu::conv_thin {

namespace {

/// Channels of x of a thread block.
template <class T>
constexpr int kSumChannels = 128 / sizeof(T);

/// Brings x to the ring. With channels last a thread has two words' pixels of a step, a vector of channels of
/// each; else a vector of pixels, which are two steps, of channels eight apart.
template <class T, bool kLast, bool kWords>
class PixelFeed {
 public:
  static constexpr int kVector = 16 / sizeof(T), kWord = 4 / sizeof(T);
  static constexpr int kMine = kLast ? 2 * kWord : kVector;  // neighbouring pixels of a thread
  static constexpr int kVectors = kLast ? kMine : kVector;
  static constexpr int kPixels = 4 * kMine;  // of a warp's step
  using Ring = ThinRing<uint4, kVectors>;

  __device__ PixelFeed(const ThinArguments& a, void* ring)
      : a_(a), ring_(ring), index_(static_cast<int>(blockIdx.x)), tile_(a.plan, index_) {
#pragma unroll
    for (int i = 0; i < Ring::kSteps - 1; ++i) bring();
  }
  __device__ __forceinline__ void take(uint4 (&vectors)[kVectors]) {
    bring();
    ring_.take(vectors);
  }
  /// How many of a thread's pixels, from i of a tile on, are in x and in the tile; and where the first is.
  __device__ static int inside(const ThinArguments& a, const ThinTile& tile, int i, int& row, int& column) {
    const ThinPlan& p = a.plan;
    row = a.by_columns.divide(i), column = a.by_columns.modulo(i, row);
    const int left = p.w.x - (tile.w * p.w.size + column);
    return row < p.h.size && tile.h * p.h.size + row < p.h.x && left > 0 ? left : 0;
  }

 private:
  __device__ __forceinline__ void bring() {
    if (index_ < a_.tiles) {
      const ThinPlan& p = a_.plan;
      const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
      int row, column;
      const int many = inside(a_, tile_, pixel_ + t * kMine, row, column);
      const int pixel = (tile_.h * p.h.size + row) * p.w.x + tile_.w * p.w.size + column,
                plane = p.h.x * p.w.x;
      const T* const x =
          static_cast<const T*>(a_.from) + static_cast<std::int64_t>(tile_.image) * p.ci * plane;
      const int first = static_cast<int>(blockIdx.y) * kSumChannels<T>;
#pragma unroll
      for (int n = 0; n < kVectors; ++n) {
        const int channel = first + (kLast ? g * kVector : n * 8 + g);
        const bool exists = (kLast ? n < many : many > 0) && channel < p.ci;
        const int place = kLast ? (pixel + n) * p.ci + channel : channel * plane + pixel;
        if constexpr (kWords) {
          ring_.bring_words(n, exists ? many * static_cast<int>(sizeof(T)) : 0, exists ? x + place : x);
        } else {
          ring_.bring(n, exists, exists ? x + place : x);
        }
      }
      pixel_ += kWarps * kPixels;
      if (pixel_ >= p.h.size * p.w.size) {
        pixel_ = static_cast<int>(threadIdx.x) / 32 * kPixels;
        index_ += static_cast<int>(gridDim.x);
        tile_ = ThinTile(p, index_);
      }
    }
    ring_.end();
  }

  const ThinArguments& a_;
  Ring ring_;
  int index_;
  ThinTile tile_;
  int pixel_ = static_cast<int>(threadIdx.x) / 32 * kPixels;
};

/// Sums of kRows times 16 products blockIdx.z, and of channels kSumChannels * blockIdx.y on.
template <class Math, bool kLast, bool kWords, int kRows, bool kPrologue>
__global__ void __launch_bounds__(kBlock, 3)
    thin_weight_grad_kernel(const __grid_constant__ ThinArguments a) {
  using T = typename Math::Element;
  using W = Words<Math>;
  using XFeed = PixelFeed<T, kLast, kWords>;
  constexpr int kChannels = kSumChannels<T>, kProducts = kRows * 16, kColumns = kChannels / 8;
  static_assert(kColumns == W::kVector);
  const ThinPlan& p = a.plan;
  extern __shared__ uint4 memory[];
  auto* const lines = reinterpret_cast<RegionLine*>(memory + XFeed::Ring::kBytes / 16);
  T* const region = reinterpret_cast<T*>(lines + p.lines());
  find_lines<kLast>(a, lines);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first_channel = blockIdx.y * kChannels, first_product = blockIdx.z * kProducts;
  const int all = p.h.size * p.w.size;
  int offsets[2 * kRows];
#pragma unroll
  for (int i = 0; i < 2 * kRows; ++i)
    offsets[i] = offset_of_product(p, min(first_product + i * 8 + g, p.products - 1));
  await_previous();
  XFeed feed(a, memory);
  constexpr bool kKept = (sizeof(T) == 4) && (kRows <= 2);
  using XPrologue =
      std::conditional_t<kPrologue, ThreadPrologue<T, uint4, XFeed::kVectors, kLast, kKept>, NoPrologue>;
  const XPrologue prologue(a, first_channel + g * (kLast ? W::kVector : 1), 8);
  ThinSums<Math, kRows, kColumns> sums;
#pragma unroll 1
  for (int index = blockIdx.x; index < a.tiles; index += static_cast<int>(gridDim.x)) {
    const ThinTile tile(p, index);
    __syncthreads();
    bring_region<T, kLast>(a, tile, a.w, lines, region);
    __syncthreads();
    uint4 vectors[XFeed::kVectors];
    // A step of tensor cores, of the vectors' words from 2 * s on.
    const auto multiply_step = [&]<bool kFirst>(const T* of_y, int inside, int s) {
      Operand<Math, 2> of_x[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        std::uint32_t words[2];
        if constexpr (kLast) {
          words_across<T>(vectors, j, words);
        } else {
          words[0] = word_of(vectors[j], 2 * s), words[1] = word_of(vectors[j], 2 * s + 1);
          if constexpr (kPrologue) {
            prologue.apply(j, words);
            if (inside <= (kWords ? 2 * s * W::kWord : 0)) words[0] = words[1] = 0;
            if (kWords && inside <= (2 * s + 1) * W::kWord) words[1] = 0;
          }
        }
        of_x[j] = Operand<Math, 2>(words);
      }
#pragma unroll
      for (int m = 0; m < kRows; ++m) {
        std::uint32_t words[4];
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const int pixel = (2 * s + n) * W::kWord;
            // x's zeros do not make zeros of infinities. In nchw words exist or do not: rows have whole ones.
            std::uint32_t word = 0;
            if (kLast || kWords ? pixel < inside : inside > 0)
              word = gather(of_y + offsets[2 * m + half] + pixel * p.w.stride, p.w.stride);
            if (kLast && W::kWord == 2 && pixel + 1 >= inside) word &= 0xffff;
            words[half + 2 * n] = word;
          }
        const Operand<Math, 4> of_products(words);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) sums.template add<kFirst>(m, j, of_products, of_x[j]);
      }
    };
    // One step, or two: until sums are flushed.
    const auto multiply_turn = [&]<bool kFirst>(int k) {
      feed.take(vectors);
      int row, column;
      const int inside = XFeed::inside(a, tile, k + t * XFeed::kMine, row, column);
      if constexpr (kLast && kPrologue) {
        prologue.apply(vectors);
#pragma unroll
        for (int n = 0; n < XFeed::kVectors; ++n)
          if (n >= inside) vectors[n] = uint4{};
      }
      const T* const of_y = region + (inside > 0 ? row * p.h.stride * p.w.region + column * p.w.stride : 0);
      multiply_step.template operator()<kFirst>(of_y, inside, 0);
      if constexpr (!kLast) multiply_step.template operator()<false>(of_y, inside, 1);
    };
    constexpr int kTurn = kWarps * XFeed::kPixels;
#pragma unroll 1
    for (int k = warp * XFeed::kPixels; k < all; k += kTurn) {
      multiply_turn.template operator()<true>(k);
      if (kLast && sums.kFlushes && k + kTurn < all) multiply_turn.template operator()<false>(k += kTurn);
      sums.flush();
    }
  }
  using Total = float[kChannels][kProducts + 1];
  Total* const totals = reinterpret_cast<Total*>(memory);
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRows; ++i)
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int c = t * 2 + k % 2;
        totals[warp][kLast ? c * W::kVector + j : j * 8 + c][i * 16 + g + k / 2 * 8] = sums.values[i][j][k];
      }
  __syncthreads();
  float* const part = a.sums + static_cast<std::int64_t>(blockIdx.x) * p.ci * p.products;
  for (int i = threadIdx.x; i < kChannels * kProducts; i += kBlock) {
    const int c = i / kProducts, r = i - c * kProducts;
    if (first_channel + c >= p.ci || first_product + r >= p.products) continue;
    float sum = totals[0][c][r];
#pragma unroll
    for (int k = 1; k < kWarps; ++k) sum += totals[k][c][r];
    part[(first_channel + c) * p.products + first_product + r] = sum;
  }
}

}  // namespace

void launch_weight_grad(const ThinArguments& arguments, const Tensor& x, const Tensor& w, bool has_prologue) {
  ThinArguments a = arguments;
  const ThinPlan& p = a.plan;
  a.by_region_h = Divider(p.h.region), a.by_columns = Divider(p.w.size);
  visit_thin(x, [&]<class Math, bool kLast>() {
    using T = typename Math::Element;
    const dim3 grid(grid_size("conv", p.blocks()), static_cast<unsigned>(ceil_div(p.ci, kSumChannels<T>)),
                    static_cast<unsigned>(ceil_div(p.products, 16 * p.at_once)));
    visit_rows<!kLast>(p, [&]<bool kWords>() {
      const auto launch = [&]<int... kRows>(std::integer_sequence<int, kRows...>) {
        ((p.at_once == kRows
              ? launch_thin(has_prologue ? thin_weight_grad_kernel<Math, kLast, kWords, kRows, true>
                                         : thin_weight_grad_kernel<Math, kLast, kWords, kRows, false>,
                            grid, a, w)
              : void()),
         ...);
      };
      launch(std::integer_sequence<int, 1, 2, 3>());
    });
  });
}

}  // namespace tapedeck::cu::conv_thin
