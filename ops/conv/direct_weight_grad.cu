// The weight's gradient by direct kernels, for few channels of x that meet one of y:
//
//   w[ci, co, tap] = sum over images and pixels of x: x[n, ci, pixel] * y[n, co, what the tap reaches]
//
// A block has one channel of y, a tile of channels of x and a chunk of taps, and a split of all images'
// pixels, which its threads share. A thread has the sums of all pairs of these channels and taps in registers
// (direct_grad_plan.h): an element of y that it reads is multiplied by all of x's channels, and neighbouring
// taps find their cache lines in the first-level cache. Sums of a warp's threads are added by exchanging
// halves of them, so that in the end each thread has few; then those of warps, and of splits, by a second
// kernel, all in a fixed order. Taps outside of y add products with 0: x that is not finite there makes sums
// that are not.
//
// On an H200, of 307 random layers (bench/fit_conv_estimates.py) it is the fastest of 85 in float32, 65 in
// TF32 and 54 in bfloat16: [32,16,7,13] by 528 channels in 16 groups of 1x9, stride 2, takes 14 us in float32
// (strips 36, cuDNN 33); [64,48,28,8] by 1,536 in 16 groups, 4x1, stride (1,5): 145 (boxes 341, cuDNN 363).
// What mattered: that all of a pixel's loads come before its products, and that taps lie in shared memory,
// not in parameters, by whose index each load waited for three others: in float32 0.89 of the time where it
// is the fastest (0.46 to 1.35); and that blocks keep the GPU busy, though they have few pixels then
// ([128,1,13,1] by 96 channels of 7x6: 15 us, 23 with 1,024 pixels at least; cuDNN 17).
#include <algorithm>
#include <iterator>
#include <utility>

#include <tapedeck/ops/conv/direct_grad_plan.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/direct.cuh>
#include <tapedeck/ops/conv/load_if.cuh>
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/thin.cuh>

namespace tapedeck::cu {

namespace {

using conv_direct::GradPlan;
using conv_direct::GradTiles;
using conv_direct::kGradThreads;
using conv_gemm::ImageStrides;

constexpr int kWarps = kGradThreads / 32;

struct DirectWeightGradArguments {
  GradPlan plan;
  const void *x, *y;
  void* parts;
  int split_pixels;
  std::int64_t count;  // of the weight
  GradPlan::Tap taps[conv_direct::kMostGradTaps + conv_direct::kMostOfThread];
};

/// Adds the first kCount sums of all threads of a warp: afterwards, kCount / 32 from `lane` times as many on
/// are in the first of `sums`. Of two threads, kBit apart, one goes on with each half.
template <int kCount, int kBit = 16, int kAll, class V>
__device__ __forceinline__ void add_lanes(V (&sums)[kAll]) {
  if constexpr (kBit > 0) {
    const bool is_second = (threadIdx.x & kBit) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      const V mine = is_second ? sums[i + kCount / 2] : sums[i],
              other = is_second ? sums[i] : sums[i + kCount / 2];
      sums[i] = mine + __shfl_xor_sync(~0u, other, kBit);
    }
    add_lanes<kCount / 2, kBit / 2>(sums);
  }
}

template <class T, int kChannels, int kTaps>
__global__ void __launch_bounds__(kGradThreads)
    direct_weight_grad_kernel(const __grid_constant__ DirectWeightGradArguments a) {
  using V = accumulate_t<T>;
  constexpr int kSums = kChannels * kTaps, kPadded = kSums <= 32 ? 32 : 64;
  static_assert(kSums <= kPadded);
  __shared__ V of_warps[kWarps][kPadded];
  __shared__ GradPlan::Tap taps[kTaps];  // offsets in bytes
  const GradPlan& p = a.plan;
  const GradPlan::Share share = p.share_of(blockIdx.x);
  const int begin = blockIdx.y * a.split_pixels, end = min(p.pixels, begin + a.split_pixels);
  const T* const x = static_cast<const T*>(a.x) + (std::int64_t{share.group} * p.ci + share.x) * p.x.c;
  const T* const y = static_cast<const T*>(a.y) + std::int64_t{share.y} * p.y.c;
  if (threadIdx.x < kTaps) {
    taps[threadIdx.x] = a.taps[share.tap + threadIdx.x];
    taps[threadIdx.x].offset *= sizeof(T);
  }
  __syncthreads();
  await_previous();
  V sums[kPadded] = {};
  for (int from = begin; from < end; from += kGradThreads) {
    const int i = from + static_cast<int>(threadIdx.x);
    const bool exists = i < end;
    GradPlan::Pixel pixel = p.pixel(exists ? i : begin);
    if (!exists) pixel.row = conv_gemm::kOutside;  // all taps are: threads of a warp stay together
    const T* const of_x = x + pixel.x;
    const char* const of_y = reinterpret_cast<const char*>(y + pixel.y);
    V of_channels[kChannels], of_taps[kTaps];
#pragma unroll
    for (int m = 0; m < kChannels; ++m)
      of_channels[m] = load_if(share.x + m < p.ci, of_x + std::int64_t{m} * p.x.c);
#pragma unroll
    for (int k = 0; k < kTaps; ++k) {
      const GradPlan::Tap tap = taps[k];
      of_taps[k] = load_if(p.reaches(pixel, tap), reinterpret_cast<const T*>(of_y + tap.offset));
    }
    // All loads first: the assembler put products, which wait for one, between them.
    __syncwarp();
#pragma unroll
    for (int k = 0; k < kTaps; ++k)
#pragma unroll
      for (int m = 0; m < kChannels; ++m) sums[k * kChannels + m] += of_taps[k] * of_channels[m];
  }
  add_lanes<kPadded>(sums);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kPadded / 32; ++i) of_warps[warp][lane * (kPadded / 32) + i] = sums[i];
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= kSums) return;
  const std::int64_t place = p.place_of(share, threadIdx.x);
  if (place < 0) return;
  V sum = of_warps[0][threadIdx.x];
#pragma unroll
  for (int k = 1; k < kWarps; ++k) sum += of_warps[k][threadIdx.x];
  static_cast<V*>(a.parts)[std::int64_t{blockIdx.y} * a.count + place] = sum;
}

template <class T>
void launch(const GradTiles& tiles, DirectWeightGradArguments& a, const Tensor& w) {
  using V = accumulate_t<T>;
  const Workspace<V> parts(w.device(), tiles.splits * w.count());
  a.parts = parts.data();
  const dim3 grid(grid_size("conv", tiles.blocks), static_cast<unsigned>(tiles.splits));
  const auto of_sums = [&]<int kChannels, int kTaps>() {
    if (tiles.sums.channels == kChannels && tiles.sums.taps == kTaps)
      launch_kernel("conv: direct weight gradient", w.device(),
                    direct_weight_grad_kernel<T, kChannels, kTaps>, grid, dim3(kGradThreads), a);
  };
  [&]<std::size_t... kAt>(std::index_sequence<kAt...>) {
    (of_sums.template operator()<conv_direct::kGradSums[kAt].channels, conv_direct::kGradSums[kAt].taps>(),
     ...);
  }
  (std::make_index_sequence<std::size(conv_direct::kGradSums)>());
  add_parts<T>(parts.data(), tiles.splits, w);
}

}  // namespace

bool direct_weight_grad_fits(const ConvTranspose2dGeometry& g) {
  const std::int64_t taps = g.h.kernel * g.w.kernel;
  return conv_gemm::fits(g) && g.n * g.h.in * g.w.in <= 1 << 30 && taps <= conv_direct::kMostGradTaps &&
         (taps <= 25 || std::min(g.group_ci(), g.group_co()) <= 16);
}

std::int64_t direct_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y) {
  return thin_weight_grad_fits(g, dtype, x, y) ? thin_weight_grad_splits(g) : GradTiles(g).splits;
}

void direct_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  if (thin_weight_grad_fits(g, x.dtype(), x.layout(), y.layout())) return thin_weight_grad(g, x, y, w);
  const DeviceScope scope(w.device());
  const GradTiles tiles(g);
  DirectWeightGradArguments a{};
  a.plan = GradPlan(g, tiles);
  a.plan.x = ImageStrides(x.strides()), a.plan.y = ImageStrides(y.strides());
  a.x = x.raw(), a.y = y.raw();
  a.split_pixels = static_cast<int>(tiles.split_pixels);
  a.count = w.count();
  for (int k = 0; k < tiles.chunks * tiles.sums.taps; ++k) a.taps[k] = a.plan.tap(k);
  visit_floating("conv", w.dtype(), [&]<class T>() { launch<T>(tiles, a, w); });
}

}  // namespace tapedeck::cu
