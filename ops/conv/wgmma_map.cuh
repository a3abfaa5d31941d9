// conv_transpose2d and conv2d as matrix products of windows (gemm_plan.h) on Hopper's tensor cores.
//
// A tile has BM results of one phase and BN channels; rows of A are the results' windows, gathered from
// images with the channels last: a chunk of a row is 128 bytes of channels, of one tap or several, that
// cp.async copies by 16 bytes, zeros where a tap is outside. They lie as B does (wgmma.cuh), so that the
// eight rows of an 8x8 matrix meet different banks. Nchw images are transposed first (channels_last.cu): a
// copy at the memory's speed, where every tap would else pay for narrow loads.
//
// There is a block for each multiprocessor, and each takes every so many tiles: while consumers write the
// sums of one, from registers, producers bring the next. (With a block a tile and sums written through shared
// memory, the writing took most of the time where sums are short: 64 channels and 3x3 taps reached 148
// TFLOP/s in bfloat16.) Producers have their rows' places in registers, so that nothing but a copy's own
// address is between two copies.
//
// On an H200: 1024 to 512 channels, kernel 2, stride 2 (unet_up), channels last: TF32 230 TFLOP/s (65% of
// cuBLAS's 353), bfloat16 375; 512 to 256, kernel 4, stride 2: TF32 260, bfloat16 470, float32 accuracy 110
// (cuBLAS's float32: 51). 64 to 64 channels, 3x3: TF32 136, bfloat16 270, bound by the copies of windows:
// each tap brings its pixels again. Float32 takes halves over boxes where these are faster
// (wgmma_choice.cuh).
//
// Few results with long sums, as a gradient of 4x4 maps has, leave most multiprocessors idle: then a tile's
// chunks are split into ranges, and a second kernel adds their parts in order.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/windows_choice.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/wgmma_tile.cuh>

namespace tapedeck::cu::conv_gemm {

struct WgmmaMapArguments {
  Plan plan;
  const void *from, *packed, *bias;
  void* to;
  float* parts;                                         // of splits, if there are several
  Divider h_count[kMaxPhases], w_count[kMaxPhases];     // by the results of phases
  int group_channels, tiles_m, tiles_n, tiles, splits;  // tiles of all groups, phases and n
  bool pairs;  // whether two channels of `to` are neighbours, and can be written at once
};

/// A tile, and where its range of chunks begins and ends.
struct MapTile {
  __device__ MapTile(const WgmmaMapArguments& call, int bm, int index) {
    const Plan& p = call.plan;
    const auto next = [&index](int count) {
      const int quotient = index / count, rest = index - quotient * count;
      index = quotient;
      return rest;
    };
    tile_n = next(call.tiles_n);
    phase = next(p.phases());
    first = static_cast<std::int64_t>(next(call.tiles_m)) * bm;
    group = next(p.groups);
    i = phase / p.w.count, j = phase - i * p.w.count;
    const int all = first < p.rows(i, j) ? p.phase_chunks(i, j) : 0;
    const int each = (all + call.splits - 1) / call.splits;
    begin = min(all, index * each), end = min(all, begin + each);
  }
  int tile_n, phase, i, j, group, begin, end;
  std::int64_t first;
};

/// Result m of a phase: row_of() by Dividers.
struct Result {
  __device__ __forceinline__ Result(const WgmmaMapArguments& call, int i, int j, std::int64_t m) {
    const Plan& p = call.plan;
    exists = m < p.rows(i, j);
    const int at = exists ? static_cast<int>(m) : 0;
    const int line = call.w_count[j].divide(at);
    b = call.w_count[j].modulo(at, line);
    image = call.h_count[i].divide(line);
    a = call.h_count[i].modulo(line, image);
  }
  __device__ __forceinline__ std::int64_t to(const Plan& p, int i, int j) const {
    const PhaseAxis &h = p.h.phase[i], &w = p.w.phase[j];
    return image * p.to.n + static_cast<std::int64_t>(h.to + a * h.to_step) * p.to.h +
           static_cast<std::int64_t>(w.to + b * w.to_step) * p.to.w;
  }
  bool exists;
  int image, a, b;
};

/// Loads tiles of A.
template <class Tile>
class GatheredWindows {
  using Math = typename Tile::Math;
  using T = typename Math::Element;
  static constexpr int kElements = kVectorBytes / sizeof(T), kRows = Tile::kProducers / kVectors;

  static constexpr int kCount = Tile::BM / kRows;  // rows of a thread
  // What the ring leaves of that cache holds 16-bit windows, but not those of TF32: 64 channels and 3x3 taps
  // are a quarter faster without.
  static constexpr bool kNearCache = !std::is_same_v<Math, Tf32>;

 public:
  __device__ explicit GatheredWindows(const WgmmaMapArguments& call) : call_(call) {}

  __device__ void start(const MapTile& tile) {
    const Plan& p = call_.plan;
    i_ = tile.i, j_ = tile.j;
    at_ = tile.begin * kVectors + static_cast<int>(threadIdx.x) % kVectors;
    from_ = static_cast<const T*>(call_.from) + static_cast<std::int64_t>(tile.group) * call_.group_channels;
    const PhaseAxis &h = p.h.phase[i_], &w = p.w.phase[j_];
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const Result r(call_, i_, j_, tile.first + (threadIdx.x - Tile::kConsumers) / kVectors + n * kRows);
      h_[n] = r.exists ? h.from + r.a * h.from_step : kOutside;
      w_[n] = w.from + r.b * w.from_step;
      rows_[n] = from_ + r.image * p.from.n + static_cast<std::int64_t>(h_[n]) * p.from.h +
                 static_cast<std::int64_t>(w_[n]) * p.from.w;
    }
  }
  /// Starts to copy the next chunk.
  __device__ void issue(char* stage) {
    const Plan& p = call_.plan;
    const PhaseAxis &h = p.h.phase[i_], &w = p.w.phase[j_];
    const int tap = p.tap_vectors.divide(at_), jh = p.taps_w[j_].divide(tap);
    const int v = p.tap_vectors.modulo(at_, tap), jw = p.taps_w[j_].modulo(tap, jh);
    const int dh = jh * h.tap_from_step, dw = jw * w.tap_from_step;
    const int height = jh < h.taps ? p.from_h : 0;
    const std::int64_t offset =
        static_cast<std::int64_t>(dh) * p.from.h + static_cast<std::int64_t>(dw) * p.from.w + v * kElements;
    const int row = (threadIdx.x - Tile::kConsumers) / kVectors;
    const unsigned to = shared_address(stage) + row * kChunkBytes +
                        (static_cast<int>(threadIdx.x) % kVectors ^ (row & 7)) * kVectorBytes;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const bool inside = static_cast<unsigned>(h_[n] + dh) < static_cast<unsigned>(height) &&
                          static_cast<unsigned>(w_[n] + dw) < static_cast<unsigned>(p.from_w);
      copy_async_or_zero<kNearCache>(to + n * kRows * kChunkBytes, inside ? rows_[n] + offset : from_,
                                     inside);
    }
    at_ += kVectors;
  }
  __device__ static void load(const char* stage, int i, std::uint32_t (&a)[kSteps][4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, warpgroup = threadIdx.x / 128;
    const unsigned row =
        shared_address(stage) + ((warpgroup * Tile::kM + i) * 64 + warp * 16 + lane % 16) * kChunkBytes;
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
      load_matrices(row + ((2 * s + lane / 16) ^ (lane & 7)) * kVectorBytes, a[s]);
  }

 private:
  const WgmmaMapArguments& call_;
  const T *from_, *rows_[kCount];
  int i_, j_, at_, h_[kCount], w_[kCount];
};

template <class T>
struct WgmmaMap {
  using Tile = T;
  using Math = typename Tile::Math;
  using Element = typename Math::Element;
  using Loader = GatheredWindows<Tile>;
  static constexpr int BM = Tile::BM, BN = Tile::BN, kConsumers = Tile::kConsumers;
  static constexpr int kSharedBytes = Tile::kStages * Tile::kStage + 1024;

  struct Shared {
    typename Tile::Ring ring;
  };

  __device__ static void run(const WgmmaMapArguments& call, char* stages, Shared& shared) {
    const Plan& p = call.plan;
    if (threadIdx.x == 0) initialise<Tile>(shared.ring);
    __syncthreads();
    await_previous<false>();
    const int tiles = call.tiles * call.splits;
    RingPosition<Tile> at;
    if (threadIdx.x >= kConsumers) {
      leave_registers<Tile::kProducerRegisters>();
      Loader a(call);
      for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        const MapTile tile(call, BM, t);
        if (tile.begin == tile.end) continue;
        a.start(tile);
        const char* const packed =
            static_cast<const char*>(call.packed) +
            ((static_cast<std::int64_t>(tile.group) * p.chunks + p.chunk_begin[tile.phase] + tile.begin) *
                 call.tiles_n +
             tile.tile_n) *
                Tile::kBBytes;
        produce<Tile>(a, packed, static_cast<std::int64_t>(call.tiles_n) * Tile::kBBytes,
                      tile.end - tile.begin, stages, shared.ring, at);
      }
      return;
    }
    take_registers<Tile::kConsumerRegisters>();
    for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
      const MapTile tile(call, BM, t);
      if (tile.first >= p.rows(tile.i, tile.j)) continue;
      WarpgroupSums<Tile> sums;
      consume<Loader>(sums, tile.end - tile.begin, stages, shared.ring, at);
      if (call.splits > 1) {
        float* const to =
            call.parts + static_cast<std::int64_t>(t) * (Tile::kSums * kConsumers) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < Tile::kM; ++i)
#pragma unroll
          for (int k = 0; k < BN / 2; ++k) to[(i * (BN / 2) + k) * kConsumers] = sums.values[i][k];
      } else {
        write(call, tile, sums);
      }
    }
  }

  /// Adds the bias and writes results. A quarter of a warp has 8 neighbouring channels of a row, or a channel
  /// of 8 neighbouring rows: sectors of 32 bytes in float32, either way.
  __device__ static void write(const WgmmaMapArguments& call, const MapTile& tile,
                               const WarpgroupSums<Tile>& sums) {
    const Plan& p = call.plan;
    const int first = tile.tile_n * BN + static_cast<int>(threadIdx.x) % 4 * 2;
    const std::int64_t of_all = static_cast<std::int64_t>(tile.group) * p.to_channels + first;
    const Element* const bias =
        call.bias == nullptr ? nullptr : static_cast<const Element*>(call.bias) + of_all;
#pragma unroll
    for (int i = 0; i < Tile::kM; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Result r(call, tile.i, tile.j, tile.first + WarpgroupSums<Tile>::row(i, half * 2));
        if (!r.exists) continue;
        Element* to = static_cast<Element*>(call.to) + r.to(p, tile.i, tile.j) + of_all * p.to.c;
        const std::int64_t step = 8 * static_cast<std::int64_t>(p.to.c);
#pragma unroll
        for (int k = 0; k < BN / 8; ++k, to += step) {
          const int channel = first + k * 8;
          if (channel >= p.to_channels) break;
          const bool two = channel + 1 < p.to_channels;
          float x = sums.values[i][k * 4 + half * 2], y = sums.values[i][k * 4 + half * 2 + 1];
          if (bias != nullptr) {
            x += convert<float>(bias[k * 8]);
            if (two) y += convert<float>(bias[k * 8 + 1]);
          }
          if (call.pairs) {
            *reinterpret_cast<Pack<Element, 2>*>(to) = {convert<Element>(x), convert<Element>(y)};
          } else {
            *to = convert<Element>(x);
            if (two) to[p.to.c] = convert<Element>(y);
          }
        }
      }
  }

  /// Adds the parts of four sums of each thread of a tile.
  __device__ static void add_parts(const WgmmaMapArguments& call) {
    await_previous();
    const Plan& p = call.plan;
    const MapTile tile(call, BM, blockIdx.x);
    const float* from = call.parts + static_cast<std::int64_t>(blockIdx.x) * (Tile::kSums * kConsumers) +
                        static_cast<int>(blockIdx.y) * 4 * kConsumers + threadIdx.x;
    float sums[4] = {};
    for (int s = 0; s < call.splits; ++s) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] += from[k * kConsumers];
      from += static_cast<std::int64_t>(call.tiles) * (Tile::kSums * kConsumers);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int at = static_cast<int>(blockIdx.y) * 4 + k;
      const Result r(call, tile.i, tile.j,
                     tile.first + WarpgroupSums<Tile>::row(at / (BN / 2), at % (BN / 2)));
      const int channel = tile.tile_n * BN + WarpgroupSums<Tile>::column(at % (BN / 2));
      if (!r.exists || channel >= p.to_channels) continue;
      const std::int64_t of_all = static_cast<std::int64_t>(tile.group) * p.to_channels + channel;
      const float start =
          call.bias == nullptr ? 0.0f : convert<float>(static_cast<const Element*>(call.bias)[of_all]);
      static_cast<Element*>(call.to)[r.to(p, tile.i, tile.j) + of_all * p.to.c] =
          convert<Element>(sums[k] + start);
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::Tile::kThreads, 1)
    wgmma_map_kernel(const __grid_constant__ WgmmaMapArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ typename K::Shared shared;
  K::run(call, reinterpret_cast<char*>(memory) + to_stages(memory), shared);
#endif
}

template <class K>
__global__ void __launch_bounds__(K::kConsumers)
    add_parts_kernel(const __grid_constant__ WgmmaMapArguments call) {
  K::add_parts(call);
}

/// Fills `packed` but for its holes: tiles of [chunk][tile of n][part][n][vector, swizzled] for each group.
template <class Tile>
__global__ void __launch_bounds__(kThreads)
    wgmma_pack_kernel(const __grid_constant__ Plan p, std::int64_t count,
                      const typename Tile::Math::Element* w, int tiles_n, uint4* packed) {
  using Math = typename Tile::Math;
  using T = typename Math::Element;
  constexpr int kElements = kVectorBytes / sizeof(T);
  begin_preparation(false);  // always the first: threads may return early
  std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const PackedWeight at = packed_weight(p, i);
  const auto [chunk, v] = p.place_of(at.kh, at.kw, at.v);
  if (chunk < 0) return;
  Pack<T, kElements> parts[Tile::kBParts] = {};
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int c = at.v * kElements + k;
    if (c >= p.from_channels) break;
    T x = w[p.weight_index(at.group, c, at.m, at.kh, at.kw)];
#pragma unroll
    for (int part = 0; part < Tile::kBParts; ++part) parts[part].values[k] = next_part<Math>(x);
  }
  uint4* const tile =
      packed + ((static_cast<std::int64_t>(at.group) * p.chunks + chunk) * tiles_n + at.m / Tile::BN) *
                   (Tile::kBBytes / kVectorBytes);
#pragma unroll
  for (int part = 0; part < Tile::kBParts; ++part) {
    *reinterpret_cast<Pack<T, kElements>*>(tile + Tile::b_vector(part, at.m % Tile::BN, v)) = parts[part];
  }
}

template <class Tile>
void launch_wgmma_map(WgmmaMapArguments& call, const ChannelsLast& images, const Tensor& w,
                      const Tensor& to) {
  using K = WgmmaMap<Tile>;
  const Plan& p = call.plan;
  call.tiles_n = static_cast<int>(ceil_div(p.to_channels, Tile::BN));
  const std::int64_t bytes = static_cast<std::int64_t>(p.groups) * p.chunks * call.tiles_n * Tile::kBBytes;
  const Workspace<uint4> packed(to.device(), std::max<std::int64_t>(1, bytes / kVectorBytes));
  call.packed = packed.data();
  if (bytes > 0) {
    if (p.packed_has_holes(call.tiles_n * Tile::BN)) {
      check_cuda(cudaMemsetAsync(packed.data(), 0, static_cast<std::size_t>(bytes), stream_of(to.device())),
                 "cudaMemsetAsync");
    }
    const std::int64_t vectors = packed_weights(p);
    launch_kernel("conv: pack", to.device(), wgmma_pack_kernel<Tile>,
                  grid_size("conv", ceil_div(vectors, kThreads)), kThreads, p, vectors,
                  static_cast<const typename Tile::Math::Element*>(w.read()), call.tiles_n, packed.data());
  }
  Preparations preparations(bytes > 0);
  images.make(preparations);
  allow_shared_memory(wgmma_map_kernel<K>, K::kSharedBytes);
  call.tiles_m = static_cast<int>(ceil_div(p.most_rows(), K::BM));
  const std::int64_t tiles = std::int64_t{call.tiles_m} * p.phases() * call.tiles_n * p.groups;
  call.splits = map_splits(p, tiles);
  call.tiles = static_cast<int>(grid_size("conv", tiles));
  const Workspace<float> parts(to.device(),
                               call.splits > 1 ? call.splits * tiles * Tile::kSums * Tile::kConsumers : 1);
  call.parts = parts.data();
  const std::int64_t blocks = std::min<std::int64_t>(multiprocessors(to.device()), tiles * call.splits);
  launch_kernel_with_shared("conv: map", to.device(), wgmma_map_kernel<K>, grid_size("conv", blocks),
                            Tile::kThreads, K::kSharedBytes, call);
  if (call.splits > 1) {
    launch_kernel("conv: sum of parts", to.device(), add_parts_kernel<K>,
                  dim3(grid_size("conv", tiles), Tile::kSums / 4), Tile::kConsumers, call);
  }
}

/// wgmma_map() by windows.
template <class Math>
void windows_map(const ConvTranspose2dGeometry& g, bool transposed, const Plan& plan, const WindowsTile& tile,
                 const Tensor& from, const Tensor& w, const Tensor& bias, const Tensor& to) {
  using T = typename Math::Element;
  const DeviceScope scope(to.device());
  const ChannelsLast images(from, static_cast<int>(g.groups), transposed ? nullptr : &g.h);
  WgmmaMapArguments call{};
  call.plan = plan;
  Plan& p = call.plan;
  p.from = images.strides;
  p.to = ImageStrides(to.strides());
  p.weight_is_last = w.layout() == Layout::nhwc;
  call.from = images.data;
  call.group_channels = images.group_channels;
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.to = to.raw();
  call.pairs = p.to.c == 1 && p.to_channels % 2 == 0 &&
               reinterpret_cast<std::uintptr_t>(to.raw()) % (2 * sizeof(T)) == 0;
  for (int i = 0; i < p.h.count; ++i) call.h_count[i] = Divider(p.h.phase[i].count);
  for (int j = 0; j < p.w.count; ++j) call.w_count[j] = Divider(p.w.phase[j].count);
  const auto offer = [&]<int kM, int kN>() {
    using Tile = WarpgroupTile<Math, kM, kN, Math::kParts == 3 ? 1 : 0, 128 * kM * kChunkBytes>;
    if (tile.m == kM && tile.n == kN) launch_wgmma_map<Tile>(call, images, w, to);
  };
  offer.template operator()<1, 128>();
  offer.template operator()<1, 64>();
  offer.template operator()<1, 32>();
  if constexpr (Math::kParts == 1) {
    offer.template operator()<2, 128>();
    offer.template operator()<2, 64>();
    offer.template operator()<2, 32>();
  }
}

}  // namespace tapedeck::cu::conv_gemm
