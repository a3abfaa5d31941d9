// The input's gradient of layers whose y has 1 to 4 channels, and the plain convolution of such images: a
// thread block brings what a tile of x meets of y to shared memory, its warps gather what their pixels meet
// of it to registers, all products' words, and then go through the channels of x, of which they write whole
// vectors, or words. Blocks go from tile to tile, three or more of a multiprocessor: while one gathers others
// multiply.
#include <utility>

#include <tapedeck/ops/conv/thin_products_tile.cuh>

namespace tapedeck::cu::conv_thin {

namespace {

/// Products' columns, times 8 pixels, of a warp with nchw, and rows, times 16, with channels last: as many
/// as there are registers for.
template <class Math, int kSteps>
constexpr int kTilesOfTurn = Math::kParts == 3 && kSteps > 6 ? 2 : 4;

/// Thread blocks that a multiprocessor has registers for.
template <class Math, int kSteps>
constexpr int kBlocks = blocks_of_registers(ThinPass::plain, Math::kParts == 3 ? 2 : 1, kSteps);

/// kSteps of tensor cores have all products.
template <class Math, bool kLast, bool kWords, int kSteps>
__global__ void __launch_bounds__(kBlock, kBlocks<Math, kSteps>)
    thin_plain_kernel(const __grid_constant__ ThinArguments a) {
  using T = typename Math::Element;
  using W = Words<Math>;
  constexpr int kOfStep = 8 * W::kWord, kPairs = W::kVector / 2;  // of a vector
  constexpr int kColumns = kTilesOfTurn<Math, kSteps>, kPixels = 8 * kColumns;
  constexpr int kGroups = kLast ? kColumns / 2 : kColumns;           // of gathered operands
  constexpr int kVectors = kLast ? kPixels / 8 : kColumns / kPairs;  // of results: a thread's at once
  static_assert(kVectors > 0);
  const ThinPlan& p = a.plan;
  extern __shared__ uint4 memory[];
  uint4* const weights = memory;
  auto* const lines = reinterpret_cast<RegionLine*>(weights + p.weight_bytes() / 16);
  T* const region = reinterpret_cast<T*>(lines + p.lines());
  find_lines<kLast>(a, lines);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const std::int64_t plane = p.h.x * p.w.x;
  const int all = p.h.size * p.w.size;
  // Where the elements of a thread's words are, from a pixel's first.
  __shared__ int of_products[kSteps * kOfStep];
  for (int r = threadIdx.x; r < kSteps * kOfStep; r += kBlock)
    of_products[r] = r < p.products ? offset_of_product(p, r) : 0;
  __syncthreads();
  int offsets[kSteps][2][W::kWord];
  const auto product_of = [&](int s, int k, int e) { return s * kOfStep + (t * 2 + k) * W::kWord + e; };
#pragma unroll
  for (int s = 0; s < kSteps; ++s)
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int e = 0; e < W::kWord; ++e) offsets[s][k][e] = of_products[product_of(s, k, e)];
  const auto word_at = [&](const T* first, int s, int k) {
    using Bits = std::conditional_t<W::kWord == 2, std::uint16_t, std::uint32_t>;
    std::uint32_t word = reinterpret_cast<const Bits*>(first)[offsets[s][k][0]];
    if constexpr (W::kWord == 2)
      word = __byte_perm(word, reinterpret_cast<const Bits*>(first)[offsets[s][k][1]], 0x5410);
    // The weights of no product are zeros, which do not make zeros of infinities.
    if ((s + 1) * kOfStep > p.products) {
      if (product_of(s, k, 0) >= p.products) word = 0;
      if (W::kWord == 2 && product_of(s, k, 1) >= p.products) word &= 0xffff;
    }
    return word;
  };
  await_previous();
  const int to_small = p.channels * p.padded_products / W::kVector;
  if constexpr (kLast) {
    // Of two products' columns each.
    constexpr int kTwos = kPairs / 2;
    bring_weights<Math, false>(
        a, weights, kSteps * kTwos,
        [](int of_g, int of_t, int i) {
          return WeightPlace{of_g / 2 * W::kVector + i / 2 * 2 + of_g % 2, (of_t * 2 + i % 2) * W::kWord};
        },
        [](int channels, int v) {
          return WeightPlace{channels * 4 * W::kVector + v % kTwos * 4, v / kTwos * kOfStep};
        });
  } else {
    bring_weights<Math, false>(
        a, weights, kSteps,
        [](int of_g, int of_t, int i) {
          return WeightPlace{of_g + i % 2 * 8, (of_t * 2 + i / 2) * W::kWord};
        },
        [](int channels, int s) {
          return WeightPlace{channels * 16, s * kOfStep};
        });
  }
  const int up_to = (p.ci + 15) / 16 * 16;  // all lanes multiply
  const T* const bias = static_cast<const T*>(a.bias);
  const auto bias_of = [&](int channel) {
    return bias == nullptr || channel >= p.ci ? 0.0f : convert<float>(bias[channel]);
  };
#pragma unroll 1
  for (int index = blockIdx.x; index < a.tiles; index += static_cast<int>(gridDim.x)) {
    const ThinTile tile(p, index);
    __syncthreads();
    bring_region<T, kLast>(a, tile, a.from, lines, region);
    __syncthreads();
    T* const x = static_cast<T*>(a.to) + static_cast<std::int64_t>(tile.image) * p.ci * plane;
    // A pixel's first element of y.
    const auto first_of = [&](int i) {
      const int row = a.by_columns.divide(i), column = a.by_columns.modulo(i, row);
      return region + (i < all ? row * p.h.stride * p.w.region + column * p.w.stride : 0);
    };
    // Its place in x, or -1.
    const auto place_of = [&](int i) {
      const int row = a.by_columns.divide(i), column = a.by_columns.modulo(i, row);
      const int ih = tile.h * p.h.size + row, iw = tile.w * p.w.size + column;
      return i < all && ih < p.h.x && iw < p.w.x ? ih * p.w.x + iw : -1;
    };
    const auto bytes_from = [&](int i) {
      const int column = tile.w * p.w.size + a.by_columns.modulo(i, a.by_columns.divide(i));
      return (p.w.x - column) * static_cast<int>(sizeof(T));
    };
#pragma unroll 1
    for (int first = warp * kPixels; first < all; first += kWarps * kPixels) {
      Operand<Math, kLast ? 4 : 2> of_y[kSteps][kGroups];
      int to[kVectors], bytes[kVectors];  // bytes: by words, from a vector to its row's end
      if constexpr (kLast) {
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          const T* const above = first_of(first + i * 16 + g);
          const T* const below = first_of(first + i * 16 + 8 + g);
          to[2 * i] = place_of(first + i * 16 + g), to[2 * i + 1] = place_of(first + i * 16 + 8 + g);
#pragma unroll
          for (int s = 0; s < kSteps; ++s)
            of_y[s][i] = Operand<Math, 4>(
                {word_at(above, s, 0), word_at(below, s, 0), word_at(above, s, 1), word_at(below, s, 1)});
        }
      } else {
        // Column c of tile j is pixel (j % kPairs)*2 + c%2 of vector j / kPairs * 4 + c/2.
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const T* const of_vector = first_of(first + (v * 4 + g / 2) * W::kVector) + g % 2 * p.w.stride;
          to[v] = place_of(first + (v * 4 + t) * W::kVector);
          if constexpr (kWords) bytes[v] = bytes_from(first + (v * 4 + t) * W::kVector);
#pragma unroll
          for (int j = 0; j < kPairs; ++j)
#pragma unroll
            for (int s = 0; s < kSteps; ++s)
              of_y[s][v * kPairs + j] = Operand<Math, 2>({word_at(of_vector + 2 * j * p.w.stride, s, 0),
                                                          word_at(of_vector + 2 * j * p.w.stride, s, 1)});
        }
      }
      const uint4* of_channels = weights + lane;
      if constexpr (kLast) {
        // Column c of tile j is channel (c/2)*kVector + 2*j + c%2 of so many: a thread has a vector of them.
#pragma unroll 1
        for (int c = 0; c < p.ci; c += 4 * W::kVector, of_channels += kSteps * kPairs * 16) {
          const int channel = c + t * W::kVector;
          ThinSums<Math, kGroups, kPairs> sums;
          if (bias != nullptr)
#pragma unroll
            for (int k = 0; k < W::kVector; ++k) {
              const float start = bias_of(channel + k);
#pragma unroll
              for (int i = 0; i < kGroups; ++i)
                sums.values[i][k / 2][k % 2] = sums.values[i][k / 2][2 + k % 2] = start;
            }
          const auto multiply_step = [&]<bool kFirst>(int s) {
#pragma unroll
            for (int j = 0; j < kPairs; j += 2) {
              const uint4* const at = of_channels + (s * kPairs + j) * 16;
              const Operand<Math, 2> one(at, to_small), other(at, to_small, 2);
#pragma unroll
              for (int i = 0; i < kGroups; ++i) {
                sums.template add<kFirst>(i, j, of_y[s][i], one);
                sums.template add<kFirst>(i, j + 1, of_y[s][i], other);
              }
            }
          };
#pragma unroll
          for (int s = 0; s < kSteps; s += 2) {
            multiply_step.template operator()<true>(s);
            if (s + 1 < kSteps) multiply_step.template operator()<false>(s + 1);
            sums.flush();
          }
          if (a.slope != 1) sums.rectify(a.slope);
          if (channel >= p.ci) continue;
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            if (to[v] < 0) continue;
            float results[W::kVector];
#pragma unroll
            for (int k = 0; k < W::kVector; ++k) results[k] = sums.values[v / 2][k / 2][v % 2 * 2 + k % 2];
            store_vector(x + static_cast<std::int64_t>(to[v]) * p.ci + channel, results);
          }
        }
      } else {
        T* above = x + g * plane;
#pragma unroll 1
        for (int c = g; c < up_to; c += 16, of_channels += kSteps * 32, above += 16 * plane) {
          ThinSums<Math, 1, kColumns> sums;
          if (bias != nullptr) {
            const float one = bias_of(c), other = bias_of(c + 8);
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
#pragma unroll
              for (int k = 0; k < 4; ++k) sums.values[0][j][k] = k < 2 ? one : other;
          }
          sums.add_steps(of_channels, to_small, of_y);
          if (a.slope != 1) sums.rectify(a.slope);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            if (c + half * 8 >= p.ci) continue;
            T* const of_channel = above + half * 8 * plane;
#pragma unroll
            for (int v = 0; v < kVectors; ++v) {
              if (to[v] < 0) continue;
              float results[W::kVector];
#pragma unroll
              for (int k = 0; k < W::kVector; ++k)
                results[k] = sums.values[0][v * kPairs + k / 2][half * 2 + k % 2];
              store_vector<kWords>(of_channel + to[v], results, kWords ? bytes[v] : 16);
            }
          }
        }
      }
    }
  }
}

}  // namespace

void launch_plain(const ThinArguments& arguments, const Tensor& to) {
  ThinArguments a = arguments;
  const ThinPlan& p = a.plan;
  a.by_region_h = Divider(p.h.region), a.by_columns = Divider(p.w.size);
  visit_thin(to, [&]<class Math, bool kLast>() {
    constexpr int kUnit = 2 / Words<Math>::kWord;
    const dim3 grid(grid_size("conv", p.blocks()));
    visit_rows<!kLast && sizeof(typename Math::Element) == 2>(p, [&]<bool kWords>() {
      const auto launch = [&]<int... kUnits>(std::integer_sequence<int, kUnits...>) {
        ((p.at_once == kUnits * kUnit
              ? launch_thin(thin_plain_kernel<Math, kLast, kWords, kUnits * kUnit>, grid, a, to)
              : void()),
         ...);
      };
      launch(std::integer_sequence<int, 1, 2, 3, 5>());
    });
  });
}

}  // namespace tapedeck::cu::conv_thin
