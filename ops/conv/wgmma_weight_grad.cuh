// The weight's gradient on Hopper's tensor cores: (tap, channel of y) times channel of x, summed over pixels.
//
//   gw[ci, co, tap] = C[tap*co' + co, ci],   C[m, n] = sum over k of A[m, k] * B[n, k]
// k: the pixels of all images of x. A is y moved by m's tap: with the channels last, a pixel's channels are
// copied by 16 bytes wherever stride, dilation and padding lead, zeros outside. So a chunk of A in shared
// memory has a row for each pixel; what wgmma takes is its transpose, which ldmatrix.trans makes for 16-bit
// types, and loads of single words for 32-bit ones: the pitch of rows is 8 words more than a multiple of 32,
// so that four pixels times eight channels meet 32 banks. B is x, whose pixels must be neighbours: it is
// packed (wgmma_tile.cuh) by a kernel of its own from either layout, at the memory's speed.
//
// On an H200: 1024 and 512 channels, 2x2 taps: TF32 167 TFLOP/s, bfloat16 330; 64 and 64 channels, 3x3 taps:
// TF32 87, bfloat16 176, bound by the copies of y, which each tap brings again for few channels of x.
// What mattered: the places of 32 pixels computed at once, a thread each, for several chunks (1.2 times as
// fast at 64 channels); parts added by blocks that read and write along rows (dcgan2: 0.084 to 0.041 ms in
// bfloat16).
//
// Blocks share the sum: each of `splits` has a range of chunks and writes its part, and a last kernel adds
// the parts in their order. The number of splits depends on the sizes only, so that the result does, too.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/gemm_choice.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/wgmma_tile.cuh>

namespace tapedeck::cu::conv_gemm {

struct WgmmaWeightGradArguments {
  const void *x, *y;  // x as it is
  uint4* packed;      // x as B
  float* parts;
  ImageStrides x_strides, y_strides;
  int groups, ci, co, kernel_w, taps;  // channels of a group
  int y_channels;                      // the same, padded: co'
  int out_h, out_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  int rows, tiles_m, tiles_n;  // of C
  std::int64_t pixels;
  Divider plane, width;  // by pixels of an image of x, of its rows
  Divider by_inner;      // of columns of w: by taps, or where w has its channels last, by channels of y
  int chunks, split_chunks, splits;
  bool lanes_are_pixels;  // neighbouring elements of x are pixels; otherwise channels
  bool is_last;           // whether w has its channels last
};

/// Loads tiles of A.
template <class Tile>
class MovedPixels {
  using Math = typename Tile::Math;
  using T = typename Math::Element;
  static constexpr int kElements = kVectorBytes / sizeof(T), kWords = sizeof(T) == 4;
  static constexpr int kPitch = Tile::BM * sizeof(T) + (kWords ? 32 : 16);  // of a pixel, in bytes
  static constexpr int kColumns = Tile::BM / kElements, kRows = Tile::kProducers / kColumns;
  static constexpr int kWarpRows = 32 / kColumns;  // of a warp at once

 public:
  static constexpr int kPixels = kChunkBytes / sizeof(T);
  static constexpr int kWarps = Tile::kProducers / 32, kWarpPixels = kPixels / kWarps;
  static_assert(Tile::kABytes == kPixels * kPitch && Tile::kM == 1 && kWarpRows >= 1);

  /// The place of the output that a pixel meets through tap 0, and its image.
  struct alignas(16) Place {
    std::int64_t offset;
    int h, w;
  };
  /// Of the pixels that each warp of the producers copies, of kAhead chunks: a pixel a thread.
  static constexpr int kAhead = 32 / kWarpPixels;
  using Places = Place[kWarps][32];

  __device__ MovedPixels(const WgmmaWeightGradArguments& call, const T* y, Places& places, int first_row,
                         int first_chunk)
      : call_(call), y_(y), places_(places), first_chunk_(first_chunk) {
    const int m = first_row + static_cast<int>(threadIdx.x) % kColumns * kElements;
    const int tap = m / call.y_channels, kh = tap / call.kernel_w;
    h_ = kh * call.dilation_h;
    w_ = (tap - kh * call.kernel_w) * call.dilation_w;
    offset_ = static_cast<std::int64_t>(h_) * call.y_strides.h +
              static_cast<std::int64_t>(w_) * call.y_strides.w + (m - tap * call.y_channels);
    out_h_ = m < call.rows ? call.out_h : 0;
  }

  __device__ void issue(char* stage) {
    const int thread = threadIdx.x - Tile::kConsumers, lane = thread % 32, warp = thread / 32;
    const int ahead = issued_ % kAhead;
    if (ahead == 0) {
      __syncwarp();
      const int k = lane % kWarpPixels, chunk = first_chunk_ + issued_ + lane / kWarpPixels;
      const std::int64_t pixel = static_cast<std::int64_t>(chunk) * kPixels + k / kWarpRows * kRows +
                                 warp * kWarpRows + k % kWarpRows;
      Place place{0, kOutside, kOutside};
      if (pixel < call_.pixels) {
        const int p = static_cast<int>(pixel), n = call_.plane.divide(p), at = call_.plane.modulo(p, n);
        const int h = call_.width.divide(at), w = call_.width.modulo(at, h);
        place.h = h * call_.stride_h - call_.padding_h, place.w = w * call_.stride_w - call_.padding_w;
        place.offset = n * call_.y_strides.n + static_cast<std::int64_t>(place.h) * call_.y_strides.h +
                       static_cast<std::int64_t>(place.w) * call_.y_strides.w;
      }
      places_[warp][lane] = place;
      __syncwarp();
    }
    ++issued_;
    const int row = thread / kColumns;
    const unsigned to = shared_address(stage) + row * kPitch + thread % kColumns * kVectorBytes;
#pragma unroll
    for (int n = 0; n < kPixels / kRows; ++n) {
      const Place place = places_[warp][ahead * kWarpPixels + n * kWarpRows + lane / kColumns];
      const bool inside = static_cast<unsigned>(place.h + h_) < static_cast<unsigned>(out_h_) &&
                          static_cast<unsigned>(place.w + w_) < static_cast<unsigned>(call_.out_w);
      copy_async_or_zero<sizeof(T) == 2>(to + n * kRows * kPitch, inside ? y_ + place.offset + offset_ : y_,
                                         inside);
    }
  }
  __device__ static void load(const char* stage, int, std::uint32_t (&a)[kSteps][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if constexpr (kWords) {
      const char* const first = stage + lane % 4 * kPitch + (warp * 16 + lane / 4) * 4;
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          a[s][k] =
              *reinterpret_cast<const std::uint32_t*>(first + (s * 8 + k / 2 * 4) * kPitch + k % 2 * 32);
    } else {
      // Matrices of 8 pixels: channels 0-7 and 8-15 of the first pixels, then of the next.
      const unsigned first =
          shared_address(stage) + (lane % 8 + lane / 16 * 8) * kPitch + (warp * 16 + lane / 8 % 2 * 8) * 2;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) load_transposed(first + s * 16 * kPitch, a[s]);
    }
  }

 private:
  __device__ static void load_transposed(unsigned address, std::uint32_t (&r)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }

  const WgmmaWeightGradArguments& call_;
  const T* y_;
  Places& places_;
  int first_chunk_, issued_ = 0, h_, w_, out_h_;
  std::int64_t offset_;
};

template <class T>
struct WgmmaWeightGrad {
  using Tile = T;
  using Math = typename Tile::Math;
  using Element = typename Math::Element;
  using Loader = MovedPixels<Tile>;
  static constexpr int BM = Tile::BM, BN = Tile::BN, kConsumers = Tile::kConsumers;
  static constexpr int kPitch = BN + 8;  // of sums in shared memory
  static constexpr int kStageBytes = Tile::kStages * Tile::kStage;
  static_assert(kStageBytes >= 4 * BM * kPitch);
  static constexpr int kSharedBytes = kStageBytes + 1024;

  struct Shared {
    typename Tile::Ring ring;
    typename Loader::Places places;
  };

  __device__ static void run(const WgmmaWeightGradArguments& call, char* stages, Shared& shared) {
    const int tile_n = blockIdx.x % call.tiles_n, tile_m = blockIdx.x / call.tiles_n;
    const int split = blockIdx.y, group = blockIdx.z;
    const int first_chunk = split * call.split_chunks,
              chunks = min(call.split_chunks, call.chunks - first_chunk);
    const char* const packed =
        reinterpret_cast<const char*>(call.packed) +
        ((static_cast<std::int64_t>(group) * call.chunks + first_chunk) * call.tiles_n + tile_n) *
            Tile::kBBytes;
    if (threadIdx.x == 0) initialise<Tile>(shared.ring);
    RingPosition<Tile> at;
    __syncthreads();
    await_previous<false>();
    if (threadIdx.x >= kConsumers) {
      leave_registers<Tile::kProducerRegisters>();
      Loader a(call, static_cast<const Element*>(call.y) + static_cast<std::int64_t>(group) * call.y_channels,
               shared.places, tile_m * BM, first_chunk);
      return produce<Tile>(a, packed, static_cast<std::int64_t>(call.tiles_n) * Tile::kBBytes, chunks, stages,
                           shared.ring, at);
    }
    take_registers<Tile::kConsumerRegisters>();
    WarpgroupSums<Tile> sums;
    consume<Loader>(sums, chunks, stages, shared.ring, at);

    synchronise_consumers<Tile>();
    float* const staged = reinterpret_cast<float*>(stages);
    sums.for_each([&](int row, int column, float sum) { staged[row * kPitch + column] = sum; });
    synchronise_consumers<Tile>();
    float* const part =
        call.parts + (static_cast<std::int64_t>(split) * call.groups + group) * call.rows * call.ci;
    for (int i = threadIdx.x; i < BM * BN; i += kConsumers) {
      const int row = tile_m * BM + i / BN, column = tile_n * BN + i % BN;
      if (row < call.rows && column < call.ci)
        part[static_cast<std::int64_t>(row) * call.ci + column] = staged[i / BN * kPitch + i % BN];
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::Tile::kThreads, 1)
    wgmma_weight_grad_kernel(const __grid_constant__ WgmmaWeightGradArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ typename K::Shared shared;
  K::run(call, reinterpret_cast<char*>(memory) + to_stages(memory), shared);
#endif
}

/// Fills B's tiles: [group][chunk][tile of n][part][n][vector of pixels, swizzled], zeros where there is no
/// pixel or channel. A thread makes a vector: neighbours along pixels, or two along pixels and 16 channels.
template <class Tile>
__global__ void __launch_bounds__(kThreads)
    pack_pixels_kernel(const __grid_constant__ WgmmaWeightGradArguments call) {
  using Math = typename Tile::Math;
  using T = typename Math::Element;
  constexpr int kElements = kVectorBytes / sizeof(T);
  begin_preparation(false);  // always the first
  int v, n;
  if (call.lanes_are_pixels) {
    v = threadIdx.x % kVectors, n = threadIdx.x / kVectors;
  } else {
    v = threadIdx.x % 2 + threadIdx.x / 64 * 2, n = threadIdx.x / 2 % 32;
  }
  static_assert(kThreads == 32 * kVectors && Tile::BN % 32 == 0);
  const int chunk = blockIdx.x, column = blockIdx.y * 32 + n, group = blockIdx.z;
  const bool inside = column < call.ci;
  const T* const x = static_cast<const T*>(call.x) +
                     (static_cast<std::int64_t>(group) * call.ci + column) * call.x_strides.c;
  Pack<T, kElements> parts[Tile::kBParts] = {};
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const std::int64_t pixel = (static_cast<std::int64_t>(chunk) * kVectors + v) * kElements + k;
    if (!inside || pixel >= call.pixels) break;
    const int p = static_cast<int>(pixel), image = call.plane.divide(p), at = call.plane.modulo(p, image);
    // Pixels of an image are evenly spaced in both layouts.
    T value = x[image * call.x_strides.n + static_cast<std::int64_t>(at) * call.x_strides.w];
#pragma unroll
    for (int part = 0; part < Tile::kBParts; ++part) parts[part].values[k] = next_part<Math>(value);
  }
  uint4* const tile = call.packed + ((static_cast<std::int64_t>(group) * call.chunks + chunk) * call.tiles_n +
                                     column / Tile::BN) *
                                        (Tile::kBBytes / kVectorBytes);
#pragma unroll
  for (int part = 0; part < Tile::kBParts; ++part) {
    *reinterpret_cast<Pack<T, kElements>*>(tile + Tile::b_vector(part, column % Tile::BN, v)) = parts[part];
  }
}

inline constexpr int kSumChannels = 32, kSumThreads = 256;

/// w = the sum of the parts. A block has 32 channels of x and kColumns neighbours of w's (channel of y, tap),
/// or where w has its channels last, (tap, channel of y): it reads along the former, four at once, and writes
/// along the latter. Each of kShares threads adds every kShares-th part of four results, and one adds the
/// shares, in a fixed order.
template <class T, int kShares>
__global__ void __launch_bounds__(kSumThreads)
    sum_weight_grads_kernel(const __grid_constant__ WgmmaWeightGradArguments call, T* w) {
  constexpr int kFours = kSumChannels / 4, kAtOnce = kSumThreads / kFours / kShares;  // columns
  constexpr int kPasses = kShares == 1 ? 2 : 1, kColumns = kPasses * kAtOnce;
  constexpr int kWritten = kShares == 1 ? 2 : 1;  // neighbours that a thread writes
  await_previous();
  __shared__ float sums[kShares][kColumns][kSumChannels + 1];
  const int first_ci = blockIdx.y * kSumChannels, first = blockIdx.x * kColumns, group = blockIdx.z;
  const int columns = call.co * call.taps;
  const std::int64_t matrix = static_cast<std::int64_t>(call.rows) * call.ci, count = matrix * call.groups;
  {
    const int of_block = threadIdx.x % kFours * 4, ci = first_ci + of_block,
              share = threadIdx.x / kFours / kAtOnce, left = call.ci - ci;
    const bool whole = call.ci % 4 == 0;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int column = pass * kAtOnce + threadIdx.x / kFours % kAtOnce, at = first + column,
                quotient = call.by_inner.divide(at), rest = call.by_inner.modulo(at, quotient),
                co = call.is_last ? rest : quotient, tap = call.is_last ? quotient : rest;
      float4 sum = make_float4(0, 0, 0, 0);
      if (at < columns && left > 0) {
        const float* from = call.parts + group * matrix + share * count +
                            static_cast<std::int64_t>(tap * call.y_channels + co) * call.ci + ci;
#pragma unroll 4
        for (int s = share; s < call.splits; s += kShares, from += kShares * count) {
          float4 part = make_float4(0, 0, 0, 0);
          if (whole) {
            part = *reinterpret_cast<const float4*>(from);
          } else {
            part.x = from[0];
            if (left > 1) part.y = from[1];
            if (left > 2) part.z = from[2];
            if (left > 3) part.w = from[3];
          }
          sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        }
      }
      float* const to = &sums[share][column][of_block];
      to[0] = sum.x, to[1] = sum.y, to[2] = sum.z, to[3] = sum.w;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < kSumChannels * kColumns / kWritten; i += kSumThreads) {
    const int column = i % (kColumns / kWritten) * kWritten, of_block = i / (kColumns / kWritten),
              ci = first_ci + of_block, at = first + column;
    if (ci >= call.ci || at >= columns) continue;
    Pack<T, kWritten> results;
#pragma unroll
    for (int k = 0; k < kWritten; ++k) {
      float sum = sums[0][column + k][of_block];
#pragma unroll
      for (int share = 1; share < kShares; ++share) sum += sums[share][column + k][of_block];
      results.values[k] = convert<T>(sum);
    }
    T* const to = w + (static_cast<std::int64_t>(group) * call.ci + ci) * columns + at;
    if (kWritten == 1 || columns % kWritten == 0) {
      *reinterpret_cast<Pack<T, kWritten>*>(to) = results;
    } else {
#pragma unroll
      for (int k = 0; k < kWritten; ++k)
        if (at + k < columns) to[k] = results.values[k];
    }
  }
}

/// Whether kernels over rows as they lie can read images: the tensor memory accelerator takes vectors.
inline bool has_rows(const Tensor& images) {
  return images.layout() == Layout::nchw && reinterpret_cast<std::uintptr_t>(images.read()) % 16 == 0;
}

template <class T>
void sum_weight_grads(WgmmaWeightGradArguments& call, const Tensor& w) {
  call.is_last = w.layout() == Layout::nhwc;
  call.by_inner = Divider(call.is_last ? call.co : call.taps);
  const auto sum = [&]<int kShares>() {
    constexpr int kColumns = kShares == 1 ? 64 : kSumThreads / (kSumChannels / 4) / kShares;
    const dim3 blocks(grid_size("conv", ceil_div(std::int64_t{call.co} * call.taps, kColumns)),
                      static_cast<unsigned>(ceil_div(call.ci, kSumChannels)),
                      static_cast<unsigned>(call.groups));
    launch_kernel("conv: sum of parts", w.device(), sum_weight_grads_kernel<T, kShares>, blocks, kSumThreads,
                  call, static_cast<T*>(w.raw()));
  };
  if (call.splits < 8) {
    sum.template operator()<1>();
  } else if (call.splits < 16) {
    sum.template operator()<2>();
  } else {
    sum.template operator()<8>();
  }
}

template <class Tile>
void launch_wgmma_weight_grad(WgmmaWeightGradArguments& call, const ChannelsLast& images, const Tensor& w) {
  using K = WgmmaWeightGrad<Tile>;
  using T = typename Tile::Math::Element;
  call.tiles_m = static_cast<int>(ceil_div(call.rows, K::BM));
  call.tiles_n = static_cast<int>(ceil_div(call.ci, K::BN));
  const std::int64_t tiles = std::int64_t{call.tiles_m} * call.tiles_n;
  const PixelSplits share(call.pixels, tiles * call.groups, 132, K::Loader::kPixels, 8);
  call.chunks = share.chunks, call.split_chunks = share.split_chunks, call.splits = share.splits;
  const Workspace<uint4> packed(
      w.device(), std::int64_t{call.groups} * call.chunks * call.tiles_n * (Tile::kBBytes / kVectorBytes));
  call.packed = packed.data();
  launch_kernel("conv: pack pixels", w.device(), pack_pixels_kernel<Tile>,
                dim3(grid_size("conv", call.chunks), static_cast<unsigned>(call.tiles_n * (K::BN / 32)),
                     static_cast<unsigned>(call.groups)),
                kThreads, call);
  Preparations preparations(true);
  images.make(preparations);
  const std::int64_t count = std::int64_t{call.groups} * call.rows * call.ci;
  const Workspace<float> parts(w.device(), call.splits * count);
  call.parts = parts.data();
  allow_shared_memory(wgmma_weight_grad_kernel<K>, K::kSharedBytes);
  launch_kernel_with_shared(
      "conv: weight gradient", w.device(), wgmma_weight_grad_kernel<K>,
      dim3(grid_size("conv", tiles), static_cast<unsigned>(call.splits), static_cast<unsigned>(call.groups)),
      Tile::kThreads, K::kSharedBytes, call);
  sum_weight_grads<T>(call, w);
}

/// wgmma_weight_grad() with pixels gathered for each tap.
template <class Math>
void gathered_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                          const Tensor& w) {
  const DeviceScope scope(w.device());
  const auto narrow = [](std::int64_t i) { return static_cast<int>(i); };
  const ChannelsLast images(y, narrow(g.groups), &g.h);
  WgmmaWeightGradArguments call{};
  call.x = x.raw();
  call.y = images.data;
  call.x_strides = ImageStrides(x.strides());
  call.y_strides = images.strides;
  call.groups = narrow(g.groups), call.ci = narrow(g.group_ci()), call.co = narrow(g.group_co());
  call.y_channels = images.group_channels;
  call.kernel_w = narrow(g.w.kernel);
  call.taps = narrow(g.h.kernel) * call.kernel_w;
  call.rows = call.taps * call.y_channels;
  call.out_h = narrow(g.h.out), call.out_w = narrow(g.w.out);
  call.stride_h = narrow(g.h.stride), call.stride_w = narrow(g.w.stride);
  call.padding_h = narrow(g.h.padding), call.padding_w = narrow(g.w.padding);
  call.dilation_h = narrow(g.h.dilation), call.dilation_w = narrow(g.w.dilation);
  call.pixels = g.n * g.h.in * g.w.in;
  call.plane = Divider(g.h.in * g.w.in);
  call.width = Divider(g.w.in);
  call.lanes_are_pixels = x.layout() == Layout::nchw && g.h.in * g.w.in > 1;
  if (g.h.in * g.w.in == 1) call.x_strides.w = 0;
  using T = typename Math::Element;
  constexpr int kFlush = Math::kParts == 3 ? 1 : 16;
  constexpr int kABytes = kChunkBytes * 128 + kChunkBytes / sizeof(T) * (sizeof(T) == 4 ? 32 : 16);
  const auto launch = [&]<int kN>() {
    launch_wgmma_weight_grad<WarpgroupTile<Math, 1, kN, kFlush, kABytes>>(call, images, w);
  };
  const int n = gathered_channels(call.ci);
  if (n == 32) return launch.template operator()<32>();
  if (n == 64) return launch.template operator()<64>();
  launch.template operator()<128>();
}

}  // namespace tapedeck::cu::conv_gemm
