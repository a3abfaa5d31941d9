// The forward pass of thin layers over bands (thin_bands.h): a thread block goes through an image, or a part
// of one. Rows of x come by asynchronous copies, some bands ahead, and get their prologue, if there is one;
// each warp multiplies 16 pixels of a band by all weights and puts the products to z; then the outputs whose
// last rows these are add what their taps read, which are constant places of z, from a pixel's own.
//
// Shared memory: stages of x [channel][pixel]; weights in the order of operands; z [product][slot of a row]
// [column].
#include <algorithm>

#include <tapedeck/ops/conv/thin_bands.cuh>

namespace tapedeck::cu::conv_thin {

using conv_gemm::fence_initialised;
using conv_gemm::load_transposed;
using conv_gemm::load_word;

struct BandArguments {
  BandMapPlan plan;
  BandDividers by;
  Divider by_slots, by_products;
  const void *x, *w, *bias;
  void* y;
  float slope;
  bool normalizes;
  ChannelPrologue prologue;
};

/// kPixels: of a band. A warp has 16.
template <class M, class Taps, int kChannels, int kPixels>
struct BandKernel {
  using Math = M;
  using T = typename Math::Element;
  static constexpr int kThreads = band_threads(ThinPass::transposed, kPixels),
                       kStep = 32 / sizeof(T);  // channels of a product
  static constexpr int kProducts = kChannels * Taps::kTaps, kTiles = (kProducts + 15) / 16;
  static constexpr int kPitch = band_pitch(kPixels);
  using Sums = ThinSums<Math, kTiles, 2>;

  /// Weights in the order in which lanes take them, [step][tile][lane][word]; of float32's accuracy the
  /// smaller parts behind all larger ones. A thread loads its first kAtOnce words, what comes between is
  /// queued, and then it stores them.
  template <class F>
  __device__ static void bring_weights(const BandArguments& a, std::uint32_t* weights, const F& between) {
    constexpr int kWord = 4 / sizeof(T), kAtOnce = 4;
    using Word = Pack<T, kWord>;
    const auto* const w = static_cast<const T*>(a.w);
    const int all = a.plan.ci / kStep * kTiles * 128;
    const auto load = [&](int i) {
      const int vector = i / 128, step = vector / kTiles, tile = vector - step * kTiles, lane = i % 128 / 4,
                word = i % 4;
      const int r = tile * 16 + lane / 4 + word % 2 * 8, c = step * kStep + (lane % 4 + word / 2 * 4) * kWord;
      Word values;
#pragma unroll
      for (int e = 0; e < kWord; ++e) values.values[e] = r < kProducts ? w[(c + e) * kProducts + r] : T{};
      return values;
    };
    Word words[kAtOnce];
    for (int begin = threadIdx.x; begin < max(all, kThreads); begin += kAtOnce * kThreads) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
        words[k] = begin + k * kThreads < all ? load(begin + k * kThreads) : Word{};
      if (begin == static_cast<int>(threadIdx.x)) between();
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = begin + k * kThreads;
        if (i >= all) break;
#pragma unroll
        for (T& value : words[k].values) value = Math::prepare(value);
        const auto bits = reinterpret_cast<const std::uint32_t&>(words[k]);
        if constexpr (Math::kParts == 3) {
          split(bits, weights[i], weights[all + i]);
        } else {
          weights[i] = bits;
        }
      }
    }
  }

  /// Multiplies the warp's pixels, from `first` of a stage on, by all weights.
  __device__ static void multiply_band(const BandMapPlan& p, const char* stage, int first,
                                       const uint4* weights, Sums& sums) {
    const int lane = threadIdx.x % 32, steps = p.ci / kStep, to_small = steps * kTiles * 32;
    // Matrices of 8 channels and 8 pixels, or of channel lane % 4 the pixel lane / 4.
    unsigned from = shared_address(stage);
    if constexpr (sizeof(T) == 2) {
      from += lane % 16 * p.channel_bytes + (first + lane / 16 * 8) * 2;
    } else {
      from += lane % 4 * p.channel_bytes + (first + lane / 4) * 4;
    }
    weights += lane;
    const auto multiply_step = [&]<bool kFirst>() {
      Operand<Math, 2> of_x[2];
      if constexpr (sizeof(T) == 2) {
        std::uint32_t words[4];
        load_transposed(from, words);
        of_x[0] = Operand<Math, 2>({words[0], words[1]}), of_x[1] = Operand<Math, 2>({words[2], words[3]});
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j)
          of_x[j] =
              Operand<Math, 2>({load_word(from + j * 32), load_word(from + 4 * p.channel_bytes + j * 32)});
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const Operand<Math, 4> of_weights(weights + i * 32, to_small);
#pragma unroll
        for (int j = 0; j < 2; ++j) sums.template add<kFirst>(i, j, of_weights, of_x[j]);
      }
      from += kStep * p.channel_bytes, weights += kTiles * 32;
    };
    if constexpr (Sums::kFlushes) {
#pragma unroll 1
      for (int s = 0; s < steps; s += 2) {
        multiply_step.template operator()<true>();
        multiply_step.template operator()<false>();
        sums.flush();
      }
    } else {
#pragma unroll 2
      for (int s = 0; s < steps; ++s) multiply_step.template operator()<true>();
    }
  }

  __device__ static void write_products(const BandArguments& a, const BandAt& band, int first, int pixels,
                                        float* z, const Sums& sums) {
    const BandMapPlan& p = a.plan;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int pixel = first + j * 8 + 2 * t;
      if (pixel >= pixels) continue;
      const int of_band = a.by.width.divide(pixel), row = band.row + of_band,
                slot = a.by_slots.modulo(row, a.by_slots.divide(row));
      float* const to = z + p.z_at(slot, a.by.width.modulo(pixel, of_band));
#pragma unroll
      for (int i = 0; i < kTiles; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (i * 16 + half * 8 + 8 <= kProducts || i * 16 + half * 8 + g < kProducts)
            *reinterpret_cast<float2*>(to + (i * 16 + half * 8 + g) * kPitch) =
                make_float2(sums.values[i][j][half * 2], sums.values[i][j][half * 2 + 1]);
    }
  }

  /// As one word, or two.
  template <int S>
  __device__ __forceinline__ static void store_neighbours(T* to, const float (&values)[S]) {
    if constexpr (S == 2 && sizeof(T) == 2) {
      const Pack<T, 2> pair{convert<T>(values[0]), convert<T>(values[1])};
      *reinterpret_cast<std::uint32_t*>(to) = __builtin_bit_cast(std::uint32_t, pair);
    } else if constexpr (S == 2) {
      *reinterpret_cast<float2*>(to) = make_float2(values[0], values[1]);
    } else {
      static_assert(S == 1);
      *to = convert<T>(values[0]);
    }
  }

  /// Outputs of rows [begin, end): a thread has S neighbours of a row, of all channels.
  __device__ static void add_taps(const BandArguments& a, int image, int begin, int end, const float* z,
                                  const float (&bias)[kChannels]) {
    constexpr int K = Taps::kKernel, S = Taps::kStride;
    const BandMapPlan& p = a.plan;
    const int plane = S * p.h * p.w;  // times S
    T* const y = static_cast<T*>(a.y) + static_cast<std::int64_t>(image) * kChannels * S * plane;
#pragma unroll 1
    for (int i = threadIdx.x; i < (end - begin) * p.w; i += kThreads) {
      const int line = a.by.width.divide(i), row = begin + line, column = a.by.width.modulo(i, line);
      const int q = (row + Taps::kPadding) / S, phase = (row + Taps::kPadding) % S;
      float sums[kChannels][S];
#pragma unroll
      for (int m = 0; m < kChannels; ++m)
#pragma unroll
        for (int e = 0; e < S; ++e) sums[m][e] = bias[m];
#pragma unroll
      for (int n = 0; n < Taps::kOfPhase; ++n) {
        const int kh = phase + S * n, x = q - n;
        if (kh >= K || static_cast<unsigned>(x) >= static_cast<unsigned>(p.h)) continue;
        const int slot = a.by_slots.modulo(x, a.by_slots.divide(x));
        const float* const from = z + kh * (K * kPitch) + p.z_at(slot, column);
#pragma unroll
        for (int m = 0; m < kChannels; ++m)
#pragma unroll
          for (int e = 0; e < S; ++e)
#pragma unroll
            for (int k = 0; Taps::tap_of(e, k) < K; ++k)
              sums[m][e] += from[(m * Taps::kTaps + Taps::tap_of(e, k)) * kPitch + Taps::to_tap(e, k)];
      }
      if (a.slope != 1)
#pragma unroll
        for (auto& of_channel : sums)
#pragma unroll
          for (float& sum : of_channel) sum = rectified(sum, a.slope);
      T* const to = y + (row * p.w + column) * S;
#pragma unroll
      for (int m = 0; m < kChannels; ++m) store_neighbours(to + m * (S * plane), sums[m]);
    }
  }

  __device__ static void run(const BandArguments& a, char* memory) {
    __shared__ Barrier full[BandPlan::kMostStages];
    const BandMapPlan& p = a.plan;
    const int warp = threadIdx.x / 32, stage_bytes = p.ci * p.channel_bytes;
    char* const weights = memory + p.stages * stage_bytes;
    float* const z = reinterpret_cast<float*>(weights + p.weight_bytes);
    if (threadIdx.x == 0) {
      for (int s = 0; s < p.stages; ++s) full[s].initialise(kThreads);
      fence_initialised();
    }
    for (int i = threadIdx.x; i < p.products * (p.slots + 1); i += kThreads) {  // borders
      const int slot = a.by_products.divide(i);
      *reinterpret_cast<float4*>(z + a.by_products.modulo(i, slot) * kPitch + p.z_at(slot, -kBandBorder)) =
          float4{};
    }
    __syncthreads();
    await_previous();
    const auto first_band = [&] { return BandAt(p, a.by.parts, Taps::kHalo, blockIdx.x, gridDim.x); };
    BandAt ahead = first_band();
    const auto bring_next = [&](int stage) {
      if (ahead.unit >= p.units) return;
      bring_band<T, kThreads, kPixels>(p, a.x, ahead, 0, p.ci, memory + stage * stage_bytes, full[stage]);
      ahead.next(p, a.by.parts, Taps::kHalo);
    };
    float bias[kChannels] = {};
    if (a.bias != nullptr)
#pragma unroll
      for (int m = 0; m < kChannels; ++m) bias[m] = convert<float>(static_cast<const T*>(a.bias)[m]);
    bring_weights(a, reinterpret_cast<std::uint32_t*>(weights), [&] {
      for (int s = 0; s < p.stages; ++s) bring_next(s);
    });
    __syncthreads();
    int stage = 0, known = 0;  // outputs' rows
    unsigned turn = 0;
#pragma unroll 1
    for (BandAt band = first_band(); band.unit < p.units; band.next(p, a.by.parts, Taps::kHalo)) {
      const int rows = band.rows(p), pixels = rows * p.w, first = warp * 16;
      if (band.row <= band.first) known = Taps::outputs_before(band.first, p.h);  // a part begins
      full[stage].wait(turn);
      if (a.normalizes)
        normalize_band<T, kThreads, kPixels>(p, a.prologue, 0, p.ci, pixels, memory + stage * stage_bytes);
      if (first < pixels) {
        Sums sums;
        multiply_band(p, memory + stage * stage_bytes, first, reinterpret_cast<const uint4*>(weights), sums);
        write_products(a, band, first, pixels, z, sums);
      }
      __syncthreads();
      bring_next(stage);
      const int before = Taps::outputs_before(band.row + rows, p.h);
      add_taps(a, band.image, known, max(before, known), z, bias);
      known = max(before, known);
      __syncthreads();
      if (++stage == p.stages) stage = 0, turn ^= 1;
    }
  }
};

bool launch_bands(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                  const Tensor& y, double negative_slope, const Prologue& prologue) {
  constexpr auto kPass = ThinPass::transposed;
  return visit_bands<kPass>(g, x, y, w, [&]<class Math, class Taps, int kChannels, int kPixels>() {
    using Kernel = BandKernel<Math, Taps, kChannels, kPixels>;
    const BandMapPlan plan(g, Taps::kHalo, Taps::kTaps, kPixels, sizeof(typename Math::Element),
                           Math::kParts == 3 ? 2 : 1);
    const BandArguments a{plan,
                          BandDividers(plan),
                          Divider(plan.slots),
                          Divider(plan.products),
                          x.raw(),
                          w.raw(),
                          bias.defined() ? bias.raw() : nullptr,
                          y.raw(),
                          static_cast<float>(negative_slope),
                          prologue.exists(),
                          prologue.exists() ? ChannelPrologue(prologue) : ChannelPrologue()};
    const int blocks = std::min(plan.units, multiprocessors(y.device()));
    launch_bands_kernel<Kernel>(a, dim3(grid_size("conv", blocks)), y.device());
  });
}

}  // namespace tapedeck::cu::conv_thin
