// The input's gradient of thin layers over bands (thin_bands.h), and the plain convolution of such images:
// what a band meets of y is in shared memory, from where a warp gathers what some pixels meet of it to
// registers, and then it goes through the channels of x, of which it writes whole vectors. Of y the next
// band's is loaded while one is multiplied.
//
// Shared memory: weights in the order of operands; two buffers of y (BandPlainPlan).
#include <algorithm>

#include <tapedeck/ops/conv/thin_bands.cuh>

namespace tapedeck::cu::conv_thin {

using conv_gemm::load_word;

template <class Region>
struct BandPlainArguments {
  BandPlainPlan plan;
  BandDividers by;
  typename Region::Dividers by_region;
  const void *y, *w, *bias;
  void* x;
  float slope;
};

template <class M, class Taps, int kOfY, int kPixels>
struct BandPlainKernel {
  using Math = M;
  using T = typename Math::Element;
  using Region = BandRegion<T, Taps, kOfY, ThinPass::plain, kPixels>;
  using Arguments = BandPlainArguments<Region>;
  static constexpr int K = Taps::kKernel, S = Taps::kStride;
  static constexpr int kThreads = Region::kThreads, kWord = 4 / sizeof(T), kVector = 16 / sizeof(T);
  static constexpr int kOfRow = BandPlainPlan::products_of_row(K, sizeof(T)), kProducts = kOfY * K * kOfRow,
                       kStep = 8 * kWord, kSteps = BandPlainPlan::steps(kOfY, K, sizeof(T));
  // Times 8 pixels, of a warp at once; of a lane's columns so many are a vector of results.
  static constexpr int kColumns = Math::kParts == 3 ? 2 : 4, kOfVector = kVector / 2,
                       kVectors = kColumns / kOfVector;
  static constexpr int kAtOnce = 8 * kColumns, kTurns = 32 / kAtOnce;
  static constexpr bool kHasCopy = kWord == 2 && S % 2 == 1;  // y twice (BandPlainPlan)
  using Sums = ThinSums<Math, 1, kColumns>;

  /// Columns outside of y are zeros from the beginning on.
  __device__ static void store_region(const Arguments& a, const Region& region, T* to) {
    const BandPlainPlan& p = a.plan;
    region.for_each(a.by_region, [&](const auto& vector, int m, int row, int column) {
      T* const at = to + p.template of_y<Taps>(m, row, column);
#pragma unroll
      for (int e = 0; e < kVector; ++e) at[e] = vector.values[e];
      if constexpr (kHasCopy) {
#pragma unroll
        for (int e = 0; e < kVector; ++e)
          if (column + e + Taps::kPadding > 0) at[p.to_copy() + e] = vector.values[e];
      }
    });
  }

  /// Weights in the order in which lanes take them, [tile of channels][step][lane][word]; of float32's
  /// accuracy the smaller parts behind all larger ones.
  __device__ static void bring_weights(const Arguments& a, std::uint32_t* weights) {
    const auto* const w = static_cast<const T*>(a.w);
    const int all = a.plan.ci / 16 * kSteps * 128;
#pragma unroll 4
    for (int i = threadIdx.x; i < all; i += kThreads) {
      const int vector = i / 128, tile = vector / kSteps, step = vector - tile * kSteps, lane = i % 128 / 4,
                word = i % 4;
      const int c = tile * 16 + lane / 4 + word % 2 * 8, r = step * kStep + (lane % 4 + word / 2 * 4) * kWord,
                row = r / kOfRow, kw = r - row * kOfRow;
      Pack<T, kWord> values;
#pragma unroll
      for (int e = 0; e < kWord; ++e)
        values.values[e] =
            row < kOfY * K && kw + e < K ? Math::prepare(w[(c * kOfY * K + row) * K + kw + e]) : T{};
      const auto bits = reinterpret_cast<const std::uint32_t&>(values);
      if constexpr (Math::kParts == 3) {
        split(bits, weights[i], weights[all + i]);
      } else {
        weights[i] = bits;
      }
    }
  }

  /// Where a thread's words of a step are in a region, in elements, from a pixel's first; -1: nowhere.
  struct Places {
    __device__ explicit Places(const BandPlainPlan& p) {
      const int t = threadIdx.x % 4;
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int r = s * kStep + (t + half * 4) * kWord;
          of[s][half] = r < kProducts ? p.template of_product<Taps>(r, kOfRow) : -1;
        }
    }
    int of[kSteps][2];
  };

  /// A word of y; of 16 bits the element beyond the kernel's row becomes zero.
  __device__ __forceinline__ static std::uint32_t word_at(const BandPlainPlan& p, unsigned region, int place,
                                                          int from_pixel, int step, int half) {
    constexpr bool kAll = kProducts % kStep == 0;
    if (!kAll && (step + 1) * kStep > kProducts && place < 0) return 0;
    std::uint32_t word =
        load_word(region + p.of_word(from_pixel + place, kHasCopy) * static_cast<int>(sizeof(T)));
    if constexpr (kOfRow > K) {
      const int r = step * kStep + (static_cast<int>(threadIdx.x) % 4 + half * 4) * kWord;
      if (r % kOfRow + kWord > K) word &= 0xffff;
    }
    return word;
  }

  __device__ static void run(const Arguments& a, char* memory) {
    const BandPlainPlan& p = a.plan;
    auto* const weights = reinterpret_cast<const uint4*>(memory);
    char* const regions = memory + p.weight_bytes;
    for (int i = threadIdx.x; i < p.region_bytes / 8; i += kThreads)  // of two buffers
      reinterpret_cast<uint4*>(regions)[i] = uint4{};
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, plane = p.h * p.w,
              tiles = p.ci / 16, to_small = tiles * kSteps * 32;
    const Places places(p);
    __syncthreads();
    await_previous();
    BandAt band(p, a.by.parts, 0, blockIdx.x, gridDim.x);
    Region region;
    region.load(p, a.by_region, a.y, band);
    bring_weights(a, reinterpret_cast<std::uint32_t*>(memory));
    __shared__ float starts[kMostBandChannels];
    for (int c = threadIdx.x; c < p.ci; c += kThreads)
      starts[c] = a.bias == nullptr ? 0.0f : convert<float>(static_cast<const T*>(a.bias)[c]);
    const auto buffer = [&](int i) { return reinterpret_cast<T*>(regions + i * p.region_bytes); };
    store_region(a, region, buffer(0));
    __syncthreads();
    int now = 0;
#pragma unroll 1
    while (band.unit < p.units) {
      const int pixels = band.rows(p) * p.w;
      T* const x =
          static_cast<T*>(a.x) + static_cast<std::int64_t>(band.image) * p.ci * plane + band.row * p.w;
      band.next(p, a.by.parts, 0);
      const bool has_next = band.unit < p.units;
      if (has_next) region.load(p, a.by_region, a.y, band);
      const unsigned from = shared_address(buffer(now));
#pragma unroll 1
      for (int turn = 0; turn < kTurns; ++turn) {
        const int first = warp * 32 + turn * kAtOnce;
        if (first >= pixels) break;
        // Column 2*u + e of tile v*kOfVector + j is pixel 2*j + e of vector v*4 + u, whose pixels are of one
        // row.
        Operand<Math, 2> of_y[kSteps][kColumns];
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const int of_vector = min(first + (v * 4 + g / 2) * kVector, pixels - kVector),
                    row = a.by.width.divide(of_vector),
                    from_pixel = p.template of_pixel<Taps>(row, a.by.width.modulo(of_vector, row) + g % 2);
#pragma unroll
          for (int s = 0; s < kSteps; ++s)
#pragma unroll
            for (int j = 0; j < kOfVector; ++j)
              of_y[s][v * kOfVector + j] =
                  Operand<Math, 2>({word_at(p, from, places.of[s][0], from_pixel + 2 * j * S, s, 0),
                                    word_at(p, from, places.of[s][1], from_pixel + 2 * j * S, s, 1)});
        }
        const int mine = first + t * kVector;
        T* to = x + g * plane + mine;
        const uint4* of_tile = weights + lane;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, of_tile += kSteps * 32, to += 16 * plane) {
          Sums sums;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float start = starts[tile * 16 + g + half * 8];
#pragma unroll
            for (int j = 0; j < kColumns; ++j)
              sums.values[0][j][half * 2] = sums.values[0][j][half * 2 + 1] = start;
          }
          sums.add_steps(of_tile, to_small, of_y);
          if (a.slope != 1) sums.rectify(a.slope);
#pragma unroll
          for (int v = 0; v < kVectors; ++v) {
            if (mine + v * 4 * kVector >= pixels) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float results[kVector];
#pragma unroll
              for (int k = 0; k < kVector; ++k)
                results[k] = sums.values[0][v * kOfVector + k / 2][half * 2 + k % 2];
              store_vector(to + half * 8 * plane + v * 4 * kVector, results);
            }
          }
        }
      }
      if (has_next) store_region(a, region, buffer(now ^= 1));
      __syncthreads();
    }
  }
};

bool launch_bands_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w,
                        const Tensor& bias, const Tensor& x, double negative_slope) {
  return visit_bands<ThinPass::plain>(g, x, y, w, [&]<class Math, class Taps, int kChannels, int kPixels>() {
    using Kernel = BandPlainKernel<Math, Taps, kChannels, kPixels>;
    const BandPlainPlan plan(g, Taps::kKernel, Taps::kStride, kPixels, sizeof(typename Math::Element),
                             Math::kParts == 3 ? 2 : 1);
    const typename Kernel::Arguments a{plan,
                                       BandDividers(plan),
                                       {plan, plan.region_rows},
                                       y.raw(),
                                       w.raw(),
                                       bias.defined() ? bias.raw() : nullptr,
                                       x.raw(),
                                       static_cast<float>(negative_slope)};
    const int blocks = std::min(plan.units, 2 * multiprocessors(x.device()));
    launch_bands_kernel<Kernel>(a, dim3(grid_size("conv", blocks)), x.device());
  });
}

}  // namespace tapedeck::cu::conv_thin
