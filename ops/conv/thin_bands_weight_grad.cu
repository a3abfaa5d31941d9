// The weight's gradient of thin layers over bands (thin_bands.h): a thread block goes through images, or
// parts of these, and adds up their pixels' products of 64 channels of x with what they meet of y. Rows of x
// come by asynchronous copies, some bands ahead; of y the next band's are loaded while one is multiplied. Two
// warps share 32 pixels of a band and have half of the products each. In the end a block adds its warps'
// sums, in order, and another kernel blocks'.
//
// Shared memory: stages of x [channel][pixel]; two buffers of y (BandGradPlan); then warps' sums
// [two warps][channel][product].
#include <algorithm>

#include <tapedeck/ops/conv/thin_bands.cuh>

namespace tapedeck::cu::conv_thin {

using conv_gemm::fence_initialised;
using conv_gemm::load_matrices;
using conv_gemm::load_word;

template <class Region>
struct BandGradArguments {
  BandGradPlan plan;
  BandDividers by;
  typename Region::Dividers by_region;
  const void *x, *y;
  float* sums;
  bool normalizes;
  ChannelPrologue prologue;
};

template <class M, class Taps, int kOfY, int kPixels>
struct BandGradKernel {
  using Math = M;
  using T = typename Math::Element;
  static constexpr int kThreads = band_threads(ThinPass::weight, kPixels), kGroups = kPixels / 32;
  static constexpr int kGroup = 16 / sizeof(T), kStep = 2 * kGroup;  // pixels of a product
  static constexpr int kProducts = kOfY * Taps::kTaps, kMine = BandGradPlan::tiles_of_warp(kProducts);
  static constexpr int kTiles = BandGradPlan::kChannels / 16;
  static constexpr bool kHasCopy = sizeof(T) == 2;
  static constexpr int kPitch = BandGradPlan::sum_pitch(kProducts);
  using Sums = ThinSums<Math, kTiles, kMine>;
  using Region = BandRegion<T, Taps, kOfY, ThinPass::weight, kPixels>;
  using Arguments = BandGradArguments<Region>;

  /// Columns outside of y are zeros from the beginning on.
  __device__ static void store_region(const BandGradPlan& p, const typename Region::Dividers& by,
                                      const Region& region, T* to) {
    region.for_each(by, [&](const auto& vector, int m, int row, int column) {
#pragma unroll
      for (int e = 0; e < Region::kVector; ++e) {
        T* const place = to + p.template of_y<Taps>(m, row, column, e);
        *place = vector.values[e];
        if (kHasCopy && BandGradPlan::is_in_copy<Taps>(column, e)) place[p.to_copy()] = vector.values[e];
      }
    });
  }

  /// Adds the products of a warp's pixels of a band. (Channels and products that do not exist have sums of
  /// their own, which nobody reads.)
  __device__ static void multiply_band(const Arguments& a, const char* stage, const T* region, int pixels,
                                       const int (&places)[kMine], Sums& sums) {
    const BandGradPlan& p = a.plan;
    const int lane = threadIdx.x % 32, t = lane % 4, first = static_cast<int>(threadIdx.x) / 64 * 32,
              of_tile = 16 * p.channel_bytes;
    unsigned from = shared_address(stage) + first * static_cast<int>(sizeof(T));
    if constexpr (sizeof(T) == 2) {
      from += lane % 16 * p.channel_bytes + lane / 16 * 16;
    } else {
      from += lane / 4 * p.channel_bytes + t * 4;
    }
    const unsigned mine = shared_address(region) + t * 4;
    const int of_row = p.template of_row<Taps>() - p.w;  // beyond the row's pixels
    const auto multiply_step = [&]<bool kFirst>(int pixel) {
      const bool has_second = pixel + kGroup < pixels;
      const auto place = [&](int of_pixel) {
        return mine + (a.by.width.divide(of_pixel) * of_row + of_pixel) * static_cast<int>(sizeof(T));
      };
      const unsigned one = place(pixel), other = place(has_second ? pixel + kGroup : pixel);
      Operand<Math, 2> of_y[kMine];
#pragma unroll
      for (int n = 0; n < kMine; ++n) {
        const std::uint32_t word = load_word(other + places[n]);
        of_y[n] = Operand<Math, 2>({load_word(one + places[n]), has_second ? word : 0});
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        std::uint32_t words[4];
        if constexpr (sizeof(T) == 2) {
          load_matrices(from + m * of_tile, words);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            words[i] = load_word(from + m * of_tile + i % 2 * 8 * p.channel_bytes + i / 2 * (kGroup * 4));
        }
        const Operand<Math, 4> of_x(words);
#pragma unroll
        for (int n = 0; n < kMine; ++n) sums.template add<kFirst>(m, n, of_x, of_y[n]);
      }
      from += kStep * static_cast<int>(sizeof(T));
    };
#pragma unroll 1
    for (int pixel = first; pixel < min(first + 32, pixels);) {
      multiply_step.template operator()<true>(pixel);
      pixel += kStep;
      if (Sums::kFlushes && pixel < min(first + 32, pixels)) {
        multiply_step.template operator()<false>(pixel);
        pixel += kStep;
      }
      sums.flush();
    }
  }

  __device__ static void run(const Arguments& a, char* memory) {
    __shared__ Barrier full[BandPlan::kMostStages];
    const BandGradPlan& p = a.plan;
    const int stage_bytes = p.channels * p.channel_bytes, channel = blockIdx.y * BandGradPlan::kChannels,
              count = min(p.ci - channel, BandGradPlan::kChannels);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, half = threadIdx.x / 32 % 2;
    char* const regions = memory + p.stages * stage_bytes;
    if (threadIdx.x == 0) {
      for (int s = 0; s < p.stages; ++s) full[s].initialise(kThreads);
      fence_initialised();
    }
    for (int i = threadIdx.x; i < p.region_bytes / 8; i += kThreads)  // of two buffers
      reinterpret_cast<uint4*>(regions)[i] = uint4{};
    int places[kMine];
#pragma unroll
    for (int n = 0; n < kMine; ++n)
      places[n] = p.template of_product<Taps>(min((half * kMine + n) * 8 + g, kProducts - 1), kHasCopy) *
                  static_cast<int>(sizeof(T));
    __syncthreads();
    await_previous();
    const auto first_band = [&] { return BandAt(p, a.by.parts, 0, blockIdx.x, gridDim.x); };
    BandAt ahead = first_band(), band = first_band();
    Region region;
    region.load(p, a.by_region, a.y, band);
    const auto bring_next = [&](int stage) {
      if (ahead.unit >= p.units) return;
      bring_band<T, kThreads, kPixels>(p, a.x, ahead, channel, count, memory + stage * stage_bytes,
                                       full[stage]);
      ahead.next(p, a.by.parts, 0);
    };
    for (int s = 0; s < p.stages; ++s) bring_next(s);
    const auto buffer = [&](int i) { return reinterpret_cast<T*>(regions + i * p.region_bytes); };
    store_region(p, a.by_region, region, buffer(0));
    __syncthreads();
    Sums sums;
    int stage = 0, now = 0;
    unsigned turn = 0;
#pragma unroll 1
    while (band.unit < p.units) {
      const int pixels = band.rows(p) * p.w;
      band.next(p, a.by.parts, 0);
      const bool has_next = band.unit < p.units;
      if (has_next) region.load(p, a.by_region, a.y, band);
      full[stage].wait(turn);
      if (a.normalizes)
        normalize_band<T, kThreads, kPixels>(p, a.prologue, channel, count, pixels,
                                             memory + stage * stage_bytes);
      multiply_band(a, memory + stage * stage_bytes, buffer(now), pixels, places, sums);
      if (has_next) store_region(p, a.by_region, region, buffer(now ^= 1));
      __syncthreads();
      bring_next(stage);
      if (++stage == p.stages) stage = 0, turn ^= 1;
    }
    float* const totals = reinterpret_cast<float*>(memory);
    const int group = threadIdx.x / 64;
#pragma unroll
    for (int m = 0; m < kTiles; ++m)
#pragma unroll
      for (int n = 0; n < kMine; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          *reinterpret_cast<float2*>(totals +
                                     (group * BandGradPlan::kChannels + m * 16 + g + e * 8) * kPitch +
                                     (half * kMine + n) * 8 + 2 * t) =
              make_float2(sums.values[m][n][2 * e], sums.values[m][n][2 * e + 1]);
    __syncthreads();
    float* const part = a.sums + (static_cast<std::int64_t>(blockIdx.x) * p.ci + channel) * kProducts;
    for (int i = threadIdx.x; i < count * kProducts; i += kThreads) {
      const int c = i / kProducts, r = i - c * kProducts;
      float sum = totals[c * kPitch + r];
#pragma unroll
      for (int k = 1; k < kGroups; ++k) sum += totals[(k * BandGradPlan::kChannels + c) * kPitch + r];
      part[i] = sum;
    }
  }
};

bool launch_bands_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                              const Tensor& w, const Prologue& prologue) {
  return visit_bands<ThinPass::weight>(g, x, y, w, [&]<class Math, class Taps, int kChannels, int kPixels>() {
    using Kernel = BandGradKernel<Math, Taps, kChannels, kPixels>;
    const BandGradPlan plan(g, Taps::kKernel, Taps::kStride, kPixels, sizeof(typename Math::Element));
    const Workspace<float> parts(w.device(), std::int64_t{band_blocks(plan)} * w.count());
    const typename Kernel::Arguments a{plan,
                                       BandDividers(plan),
                                       {plan, plan.region_rows},
                                       x.raw(),
                                       y.raw(),
                                       parts.data(),
                                       prologue.exists(),
                                       prologue.exists() ? ChannelPrologue(prologue) : ChannelPrologue()};
    launch_bands_kernel<Kernel>(
        a,
        dim3(static_cast<unsigned>(band_blocks(plan)),
             static_cast<unsigned>((plan.ci + BandGradPlan::kChannels - 1) / BandGradPlan::kChannels)),
        x.device());
    add_sums(parts.data(), band_blocks(plan), w);
  });
}

}  // namespace tapedeck::cu::conv_thin
