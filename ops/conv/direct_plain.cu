// conv2d of nchw images, x's gradient, by direct kernels: for few channels of x that meet many of y, or
// little work a byte. Which thread has what: direct_plain.h.
//
//   x[n, ci, pixel] = bias[ci] + sum over co and taps: w[ci, co, tap] * y[n, co, what the tap reaches]
//
//   some taps of some channels of y (PlainStep) --global, first-level cache--> registers --+
//   weights [channel][tap][tile] --shared memory, the same for all threads of a warp-------+--> sums
//
// Each element that is read is multiplied by the weights of a tile of channels. Taps of a row, one after the
// other, find their cache lines in the first-level cache: all of a channel's taps, or of two channels,
// come before the next ones, since strided rows of all channels would not stay. Which taps are inside of the
// image are bits of a number for each pixel. Where pixels are few, rows of a block's threads share the
// channels of y, so that an input's gradient of 16,000 pixels has enough threads. Rows of y that no tap
// reaches are not read. Taps outside of y add products with 0: weights that are not finite make results that
// are not.
//
// On an H200, of 353 random layers (bench/fit_conv_estimates.py) it is the fastest of 80 in float32, 50 in
// TF32 and 40 in bfloat16; with 1,024 pixels a block and taps before channels it was of 13, 8 and 6, and took
// 2.8 times as long. [32,16,7,13] of 528 channels in 16 groups of 1x9, stride 2: 14 us in float32 (wgmma 40,
// cuDNN 38); [8,17,64,128] of 64, 3x3, stride (4,3): 90 (tensor 112, cuDNN 95). Many channels of x are not
// for it: [64,32,13,100] of 33, 3x5, takes 157 us (tensor 105). What mattered: loads without branches (up
// to 1.8 times in bfloat16); pixels or splits (direct_plain.h); no products with taps that do not exist (3x3
// in fours took 1.2 times as long), and 17 to 20 channels in one tile (1.2 times). What did not: splits until
// there are eight blocks for each multiprocessor (1.09 times as long); more kinds of steps (1.05); eight
// reads at once, 1.0 to 1.1 times as long, though for up to eight channels of x 0.85 to 0.95, or 1.2 where
// threads do little.
#include <tapedeck/ops/conv/direct_plain.h>

#include <iterator>
#include <utility>

#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/direct.cuh>
#include <tapedeck/ops/conv/load_if.cuh>

namespace tapedeck::cu {

namespace {

using conv_direct::kPlainThreads;
using conv_direct::PlainPlan;
using conv_direct::PlainStep;
using conv_direct::PlainTiles;
using conv_gemm::Divider;

struct DirectPlainArguments {
  PlainPlan plan;
  const void *from, *w, *bias;
  void* to;
  std::uint32_t offsets[conv_direct::kMostTaps];  // of taps, in `from`, in bytes
  PlainStep step;
  int padded_taps;
  int splits, lanes, of_split, chunk;
  Divider by_tiles, by_lanes, by_taps, by_chunk;
};

template <class T, int kChannels, int kPixels>
class DirectPlain {
 public:
  __device__ DirectPlain(const DirectPlainArguments& call, float* shared)
      : call_(call),
        shared_(shared),
        // The same for all threads of a warp, as lanes are whole warps.
        split_(__shfl_sync(~0u, call.by_lanes.divide(threadIdx.x), 0)),
        lane_(call.by_lanes.modulo(threadIdx.x, split_)),
        group_(blockIdx.y) {
    const int block = call.by_tiles.divide(blockIdx.x);
    first_channel_ = call.by_tiles.modulo(blockIdx.x, block) * kChannels;
    first_pixel_ = block * call.lanes * kPixels + lane_;
  }

  __device__ void run() {
    const PlainPlan& p = call_.plan;
    std::int64_t offsets[kPixels];
    std::uint64_t taps[kPixels];
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const PlainPlan::Reads reads = p.reads_of(first_pixel_ + i * call_.lanes);
      offsets[i] = reads.offset, taps[i] = reads.taps;
    }
    await_previous();
    float sums[kPixels][kChannels] = {};
    for (int begin = 0; begin < call_.of_split; begin += call_.chunk) {
      if (begin > 0) __syncthreads();
      load_weights(begin);
      __syncthreads();
      const int first = split_ * call_.of_split + begin,
                channels = min(min(call_.chunk, call_.of_split - begin), p.from_channels - first);
      const T* const from =
          static_cast<const T*>(call_.from) + (std::int64_t{group_} * p.from_channels + first) * p.from.c;
      const char* at[kPixels];
#pragma unroll
      for (int i = 0; i < kPixels; ++i) at[i] = reinterpret_cast<const char*>(from + offsets[i]);
      multiply_by(std::make_index_sequence<std::size(conv_direct::kPlainSteps)>(), at, channels, taps, sums);
    }
    if (call_.splits == 1) {
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const std::int64_t to = p.result_of(first_pixel_ + i * call_.lanes);
#pragma unroll
        for (int m = 0; m < kChannels; ++m) write(to, m, sums[i][m]);
      }
    } else {
      add_splits(sums);
    }
  }

 private:
  // Weights that one instruction reads. When they are brought, threads beside each other have so many of a
  // tap: few meet in a bank, and few sectors are read in parts.
  static constexpr int kNear = kChannels < 4 ? kChannels : 4;
  using Near = Pack<float, kNear>;

  /// The weights of all splits' channels from `begin` on: [split][channel][tap][channel of the tile], zeros
  /// where there are none.
  __device__ void load_weights(int begin) const {
    const PlainPlan& p = call_.plan;
    const int all = call_.splits * call_.chunk * call_.padded_taps * kChannels;
    for (int i = threadIdx.x; i < all; i += kPlainThreads) {
      const int of_tap = i / kNear, row = call_.by_taps.divide(of_tap),
                tap = call_.by_taps.modulo(of_tap, row), of_channel = call_.by_chunk.divide(row),
                c = call_.by_chunk.modulo(row, of_channel), far = of_channel / call_.splits,
                split = of_channel - far * call_.splits, m = far * kNear + i % kNear;
      const int channel = split * call_.of_split + begin + c, to = first_channel_ + m;
      const bool exists =
          begin + c < call_.of_split && channel < p.from_channels && to < p.to_channels && tap < p.taps;
      const int at = ((group_ * p.to_channels + to) * p.from_channels + channel) * p.taps + tap;
      shared_[((split * call_.chunk + c) * call_.padded_taps + tap) * kChannels + m] =
          exists ? convert<float>(static_cast<const T*>(call_.w)[at]) : 0.0f;
    }
  }

  template <std::size_t... kAt>
  __device__ __forceinline__ void multiply_by(std::index_sequence<kAt...>, const char* (&at)[kPixels],
                                              int channels, const std::uint64_t (&taps)[kPixels],
                                              float (&sums)[kPixels][kChannels]) const {
    const auto if_of = [&]<std::size_t kStep>() {
      constexpr PlainStep kOf = conv_direct::kPlainSteps[kStep];
      if constexpr (conv_direct::can_read(kOf, kPixels)) {
        if (call_.step.taps == kOf.taps && call_.step.channels == kOf.channels)
          multiply<kOf.taps, kOf.channels>(at, channels, taps, sums);
      }
    };
    (if_of.template operator()<kAt>(), ...);
  }

  /// Adds the products of so many channels, of which the first one's tap 0 is `at`; kTaps of kOfChannels
  /// channels at once.
  template <int kTaps, int kOfChannels>
  __device__ __forceinline__ void multiply(const char* (&at)[kPixels], int channels,
                                           const std::uint64_t (&taps)[kPixels],
                                           float (&sums)[kPixels][kChannels]) const {
    constexpr int kAtOnce = kTaps * kOfChannels;
    const std::int64_t plane = call_.plan.from.c * std::int64_t{sizeof(T)};
    const Near* weights = reinterpret_cast<const Near*>(shared_) +
                          split_ * call_.chunk * call_.padded_taps * (kChannels / kNear);
#pragma unroll 1
    for (int c = 0; c < channels; c += kOfChannels) {
      std::uint64_t left[kPixels];
#pragma unroll
      for (int i = 0; i < kPixels; ++i) left[i] = taps[i];
#pragma unroll 1
      for (int tap = 0; tap < call_.padded_taps; tap += kTaps) {
        float values[kAtOnce][kPixels];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int of_channel = j / kTaps, of_tap = j % kTaps;
          const std::uint32_t offset = call_.offsets[tap + of_tap];
          const bool exists = kOfChannels == 1 || c + of_channel < channels;
#pragma unroll
          for (int i = 0; i < kPixels; ++i)
            values[j][i] = load_if(exists && (left[i] >> of_tap & 1) != 0,
                                   reinterpret_cast<const T*>(at[i] + of_channel * plane + offset));
        }
#pragma unroll
        for (int i = 0; i < kPixels; ++i) left[i] >>= kTaps;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const Near* const of_tap =
              weights + ((j / kTaps) * call_.padded_taps + tap + j % kTaps) * (kChannels / kNear);
#pragma unroll
          for (int far = 0; far < kChannels / kNear; ++far) {
            const Near weight = of_tap[far];
#pragma unroll
            for (int i = 0; i < kPixels; ++i)
#pragma unroll
              for (int m = 0; m < kNear; ++m) sums[i][far * kNear + m] += values[j][i] * weight.values[m];
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kPixels; ++i) at[i] += kOfChannels * plane;
      weights += kOfChannels * call_.padded_taps * (kChannels / kNear);
    }
  }

  /// Adds the sums of a lane's splits, in their order; each of these does it for some channels.
  __device__ __forceinline__ void add_splits(const float (&sums)[kPixels][kChannels]) const {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPixels; ++i)
#pragma unroll
      for (int m = 0; m < kChannels; ++m)
        shared_[(m * kPixels + i) * kPlainThreads + threadIdx.x] = sums[i][m];
    __syncthreads();
    for (int r = split_; r < kChannels * kPixels; r += call_.splits) {
      const int m = r / kPixels, i = r % kPixels;
      float sum = 0;
      for (int s = 0; s < call_.splits; ++s) sum += shared_[r * kPlainThreads + s * call_.lanes + lane_];
      write(call_.plan.result_of(first_pixel_ + i * call_.lanes), m, sum);
    }
  }

  __device__ __forceinline__ void write(std::int64_t to, int m, float sum) const {
    const PlainPlan& p = call_.plan;
    if (to < 0 || first_channel_ + m >= p.to_channels) return;
    const std::int64_t channel = std::int64_t{group_} * p.to_channels + first_channel_ + m;
    if (call_.bias != nullptr) sum += convert<float>(static_cast<const T*>(call_.bias)[channel]);
    static_cast<T*>(call_.to)[to + channel * p.to.c] = convert<T>(sum);
  }

  const DirectPlainArguments& call_;
  float* const shared_;
  const int split_, lane_, group_;
  int first_channel_, first_pixel_;
};

template <class T, int kChannels, int kPixels>
__global__ void __launch_bounds__(kPlainThreads, kChannels* kPixels <= 8 ? 3 : 2)
    direct_plain_kernel(const __grid_constant__ DirectPlainArguments call) {
  extern __shared__ uint4 shared[];
  DirectPlain<T, kChannels, kPixels>(call, reinterpret_cast<float*>(shared)).run();
}

template <class T>
void launch(const PlainTiles& tiles, std::int64_t groups, Device device, const DirectPlainArguments& call) {
  const dim3 grid(grid_size("conv", tiles.blocks), static_cast<unsigned>(groups));
  const int shared = tiles.shared_elements() * static_cast<int>(sizeof(float));
  const auto of_tile = [&]<int kChannels>() {
    const auto of_pixels = [&]<int kPixels>() {
      launch_kernel_with_shared("conv: direct", device, direct_plain_kernel<T, kChannels, kPixels>, grid,
                                dim3(kPlainThreads), shared, call);
    };
    if constexpr (kChannels <= conv_direct::kMostOfFour) {
      if (tiles.pixels == 4) return of_pixels.template operator()<4>();
    }
    of_pixels.template operator()<2>();
  };
  [&]<std::size_t... kAt>(std::index_sequence<kAt...>) {
    const auto if_of = [&]<int kChannels>() {
      if (tiles.channels == kChannels) of_tile.template operator()<kChannels>();
    };
    (if_of.template operator()<conv_direct::kChannelTiles[kAt]>(), ...);
  }
  (std::make_index_sequence<std::size(conv_direct::kChannelTiles)>());
}

}  // namespace

bool direct_plain_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout from) {
  const std::int64_t farthest = g.h.dilation * (g.h.kernel - 1) * g.w.out + g.w.dilation * (g.w.kernel - 1);
  return dtype != DType::float64 && from == Layout::nchw && PlainPlan::images_at_once(g) > 0 &&
         farthest < std::int64_t{1} << 30;
}

void direct_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                  const Tensor& x) {
  const std::int64_t most = PlainPlan::images_at_once(g);
  for (std::int64_t image = 0; image < g.n; image += most) {
    const std::int64_t images = std::min(most, g.n - image);
    const PlainTiles tiles(g, images);
    DirectPlainArguments call{};
    call.plan = PlainPlan(g, images);
    call.plan.from = conv_gemm::ImageStrides(y.strides());
    call.plan.to = conv_gemm::ImageStrides(x.strides());
    const auto at = [&](const Tensor& t) {
      return static_cast<char*>(t.raw()) +
             image * t.strides()[0] * static_cast<std::int64_t>(size_of(t.dtype()));
    };
    call.from = at(y), call.to = at(x), call.w = w.raw();
    call.bias = bias.defined() ? bias.raw() : nullptr;
    for (int tap = 0; tap < call.plan.taps; ++tap)
      call.offsets[tap] = call.plan.offset_of(tap) * static_cast<std::uint32_t>(size_of(x.dtype()));
    call.step = tiles.step, call.padded_taps = tiles.padded_taps;
    call.splits = tiles.splits, call.lanes = tiles.lanes;
    call.of_split = tiles.of_split, call.chunk = tiles.chunk;
    call.by_tiles = Divider(tiles.tiles), call.by_lanes = Divider(tiles.lanes);
    call.by_taps = Divider(tiles.padded_taps), call.by_chunk = Divider(tiles.chunk);
    switch (x.dtype()) {
      case DType::float32:
        launch<float>(tiles, g.groups, x.device(), call);
        break;
      case DType::bfloat16:
        launch<bfloat16>(tiles, g.groups, x.device(), call);
        break;
      default:
        launch<float16>(tiles, g.groups, x.device(), call);
    }
  }
}

}  // namespace tapedeck::cu
