// conv_transpose2d and conv2d as matrix products (gemm_plan.h) on Hopper's tensor cores.
//
// A block has BM results of one phase and BN channels; rows of A are the results' windows, gathered from
// images with the channels last: a chunk of a row is 128 bytes of channels, of one tap or several, that
// cp.async copies by 16 bytes, zeros where a tap is outside. They lie as B does (wgmma.cuh), so that the
// eight rows of an 8x8 matrix meet different banks. Nchw images are transposed first (channels_last.cu): a
// copy at the memory's speed, where every tap would else pay for narrow loads.
//
// Few results with long sums, as a gradient of 4x4 maps has, leave most multiprocessors idle: then blocks
// have ranges of the chunks, and a second kernel adds their parts in order.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/wgmma_tile.cuh>

namespace tapedeck::cu::conv_gemm {

struct WgmmaMapArguments {
  Plan plan;
  const void *from, *packed, *bias;
  void* to;
  float* parts;  // of splits, if there are several
  int group_channels, tiles_n, splits;
  bool to_pixels;  // neighbouring results of `to` are pixels, not channels
};

/// Where a result's window begins in `from`.
struct alignas(16) Window {
  std::int64_t from;
  int h, w;
};

/// Loads tiles of A.
template <class Tile>
class GatheredWindows {
  using Math = typename Tile::Math;
  using T = typename Math::Element;
  static constexpr int kElements = kVectorBytes / sizeof(T), kRows = Tile::kProducers / kVectors;

 public:
  __device__ GatheredWindows(const Plan& plan, const T* from, const Window* windows, int i, int j,
                             int first_chunk)
      : plan_(plan),
        from_(from),
        windows_(windows),
        i_(i),
        j_(j),
        first_(first_chunk * kVectors + static_cast<int>(threadIdx.x) % kVectors) {}

  __device__ void issue(int chunk, char* stage) const {
    const PhaseAxis &h = plan_.h.phase[i_], &w = plan_.w.phase[j_];
    const int at = first_ + chunk * kVectors;
    const int tap = plan_.tap_vectors.divide(at), jh = plan_.taps_w[j_].divide(tap);
    const int v = plan_.tap_vectors.modulo(at, tap), jw = plan_.taps_w[j_].modulo(tap, jh);
    const int dh = jh * h.tap_from_step, dw = jw * w.tap_from_step;
    const int height = jh < h.taps ? plan_.from_h : 0;
    const T* const from = from_ + (static_cast<std::int64_t>(dh) * plan_.from.h +
                                   static_cast<std::int64_t>(dw) * plan_.from.w + v * kElements);
    const int row = (threadIdx.x - Tile::kConsumers) / kVectors;
    const unsigned to = shared_address(stage) + row * kChunkBytes +
                        (static_cast<int>(threadIdx.x) % kVectors ^ (row & 7)) * kVectorBytes;
#pragma unroll
    for (int n = 0; n < Tile::BM / kRows; ++n) {
      const Window window = windows_[row + n * kRows];
      const bool inside = static_cast<unsigned>(window.h + dh) < static_cast<unsigned>(height) &&
                          static_cast<unsigned>(window.w + dw) < static_cast<unsigned>(plan_.from_w);
      copy_async_or_zero(to + n * kRows * kChunkBytes, inside ? from + window.from : from_, inside);
    }
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
  const Plan& plan_;
  const T* from_;
  const Window* windows_;
  int i_, j_, first_;
};

template <class T>
struct WgmmaMap {
  using Tile = T;
  using Math = typename Tile::Math;
  using Element = typename Math::Element;
  using Loader = GatheredWindows<Tile>;
  static constexpr int BM = Tile::BM, BN = Tile::BN, kConsumers = Tile::kConsumers;
  static constexpr int kPixelPitch = BM + 4, kChannelPitch = BN + 8;  // of sums in shared memory
  static constexpr int kSumBytes =
      4 * (BN * kPixelPitch > BM * kChannelPitch ? BN * kPixelPitch : BM * kChannelPitch);
  static constexpr int kStageBytes = Tile::kStages * Tile::kStage;
  static constexpr int kSharedBytes = (kStageBytes > kSumBytes ? kStageBytes : kSumBytes) + 1024;

  struct Shared {
    typename Tile::Ring ring;
    Window windows[BM];
    std::int64_t to[BM];
  };

  /// A block's place.
  struct Place {
    __device__ explicit Place(const WgmmaMapArguments& call) {
      const Plan& p = call.plan;
      tile_n = blockIdx.x % call.tiles_n;
      const int rest = blockIdx.x / call.tiles_n;
      phase = rest % p.phases();
      i = phase / p.w.count, j = phase % p.w.count;
      group = blockIdx.y;
      first = static_cast<std::int64_t>(rest / p.phases()) * BM;
    }
    int tile_n, phase, i, j, group;
    std::int64_t first;
  };
  __device__ static float* part(const WgmmaMapArguments& call, int split) {
    return call.parts +
           ((static_cast<std::int64_t>(split) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) *
               (Tile::kSums * kConsumers) +
           threadIdx.x;
  }

  __device__ static void run(const WgmmaMapArguments& call, char* stages, Shared& shared) {
    const Plan& p = call.plan;
    const Place place(call);
    if (place.first >= p.rows(place.i, place.j)) return;
    for (int r = threadIdx.x; r < BM; r += Tile::kThreads) {
      const Row row = row_of(p, place.i, place.j, place.first + r);
      shared.windows[r] = {row.from + static_cast<std::int64_t>(row.h) * p.from.h +
                               static_cast<std::int64_t>(row.w) * p.from.w,
                           row.h, row.w};
      shared.to[r] = row.to;
    }
    const int all = p.phase_chunks(place.i, place.j), each = (all + call.splits - 1) / call.splits;
    const int first_chunk = min(all, static_cast<int>(blockIdx.z) * each),
              chunks = min(each, all - first_chunk);
    const char* const packed =
        static_cast<const char*>(call.packed) +
        ((static_cast<std::int64_t>(place.group) * p.chunks + p.chunk_begin[place.phase] + first_chunk) *
             call.tiles_n +
         place.tile_n) *
            Tile::kBBytes;
    if (threadIdx.x == 0) initialise<Tile>(shared.ring);
    __syncthreads();
    if (threadIdx.x >= kConsumers) {
      leave_registers<Tile::kProducerRegisters>();
      Loader a(p,
               static_cast<const Element*>(call.from) +
                   static_cast<std::int64_t>(place.group) * call.group_channels,
               shared.windows, place.i, place.j, first_chunk);
      return produce<Tile>(a, packed, static_cast<std::int64_t>(call.tiles_n) * Tile::kBBytes, chunks, stages,
                           shared.ring);
    }
    take_registers<Tile::kConsumerRegisters>();
    WarpgroupSums<Tile> sums;
    consume<Loader>(sums, chunks, stages, shared.ring);
    if (call.splits > 1) {
      float* const to = part(call, blockIdx.z);
#pragma unroll
      for (int i = 0; i < Tile::kM; ++i)
#pragma unroll
        for (int k = 0; k < BN / 2; ++k) to[(i * (BN / 2) + k) * kConsumers] = sums.values[i][k];
      return;
    }

    synchronise_consumers<Tile>();
    float* const staged = reinterpret_cast<float*>(stages);
    const int pitch_row = call.to_pixels ? 1 : kChannelPitch, pitch_column = call.to_pixels ? kPixelPitch : 1;
    sums.for_each(
        [&](int row, int column, float sum) { staged[row * pitch_row + column * pitch_column] = sum; });
    synchronise_consumers<Tile>();
    const int channel = place.group * p.to_channels + place.tile_n * BN,
              channels = min(BN, p.to_channels - place.tile_n * BN);
    const Element* const bias =
        call.bias == nullptr ? nullptr : static_cast<const Element*>(call.bias) + channel;
    Element* const to = static_cast<Element*>(call.to) + static_cast<std::int64_t>(channel) * p.to.c;
    const auto write = [&](int row, int column) {
      const std::int64_t at = shared.to[row];
      if (at < 0 || column >= channels) return;
      const float sum = staged[row * pitch_row + column * pitch_column];
      to[at + static_cast<std::int64_t>(column) * p.to.c] =
          convert<Element>(bias == nullptr ? sum : sum + convert<float>(bias[column]));
    };
    if (call.to_pixels) {
      for (int n = threadIdx.x / 128; n < channels; n += kConsumers / 128) {
#pragma unroll
        for (int k = 0; k < BM / 128; ++k) write(threadIdx.x % 128 + k * 128, n);
      }
    } else {
      for (int k = threadIdx.x; k < BM * BN; k += kConsumers) write(k / BN, k % BN);
    }
  }

  /// Adds the parts of four sums of a thread, blockIdx.z being which.
  __device__ static void add_parts(const WgmmaMapArguments& call) {
    const Plan& p = call.plan;
    const Place place(call);
    if (place.first >= p.rows(place.i, place.j)) return;
    float sums[4] = {};
    for (int s = 0; s < call.splits; ++s) {
      const float* const from = part(call, s) + static_cast<int>(blockIdx.z) * 4 * kConsumers;
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] += from[k * kConsumers];
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int at = static_cast<int>(blockIdx.z) * 4 + k;
      const int row = WarpgroupSums<Tile>::row(at / (BN / 2), at % (BN / 2));
      const int channel = place.tile_n * BN + WarpgroupSums<Tile>::column(at % (BN / 2));
      const std::int64_t to = row_of(p, place.i, place.j, place.first + row).to;
      if (to < 0 || channel >= p.to_channels) continue;
      const std::int64_t of_all = static_cast<std::int64_t>(place.group) * p.to_channels + channel;
      const float start =
          call.bias == nullptr ? 0.0f : convert<float>(static_cast<const Element*>(call.bias)[of_all]);
      static_cast<Element*>(call.to)[to + of_all * p.to.c] = convert<Element>(sums[k] + start);
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::Tile::kThreads, 1)
    wgmma_map_kernel(const __grid_constant__ WgmmaMapArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ typename K::Shared shared;
  const unsigned past = shared_address(memory) % 1024;
  K::run(call, reinterpret_cast<char*>(memory) + (1024 - past) % 1024, shared);
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

/// An estimate of the time in clocks with tiles of bm x bn on 132 multiprocessors: of a chunk, its products
/// on tensor cores or the copies of its operands, and what it costs besides.
inline double wgmma_map_cost(const Plan& p, int bm, int bn, int parts) {
  std::int64_t blocks = 0;
  for (int i = 0; i < p.phases(); ++i) blocks += ceil_div(p.rows(i / p.w.count, i % p.w.count), bm);
  blocks *= ceil_div(p.to_channels, bn) * p.groups;
  const double chunk =
      std::max(bm / 32.0 * bn * parts, (bm + bn * (parts == 3 ? 2 : 1)) * kChunkBytes / 50.0) + 100;
  const double waves = blocks > 132
                           ? static_cast<double>(ceil_div(blocks, 132))
                           : std::max(static_cast<double>(blocks) / 132, 8.0 / std::max(8, p.most_chunks()));
  return waves * chunk;
}

template <class Tile>
void launch_wgmma_map(WgmmaMapArguments& call, const Tensor& w, const Tensor& to) {
  using K = WgmmaMap<Tile>;
  const Plan& p = call.plan;
  const cudaStream_t stream = stream_of(to.device());
  call.tiles_n = static_cast<int>(ceil_div(p.to_channels, Tile::BN));
  const std::int64_t bytes = static_cast<std::int64_t>(p.groups) * p.chunks * call.tiles_n * Tile::kBBytes;
  const Workspace<uint4> packed(to.device(), std::max<std::int64_t>(1, bytes / kVectorBytes));
  call.packed = packed.data();
  if (bytes > 0) {
    if (p.packed_has_holes(call.tiles_n * Tile::BN)) {
      check_cuda(cudaMemsetAsync(packed.data(), 0, static_cast<std::size_t>(bytes), stream),
                 "cudaMemsetAsync");
    }
    const std::int64_t vectors = packed_weights(p);
    wgmma_pack_kernel<Tile><<<grid_size("conv", ceil_div(vectors, kThreads)), kThreads, 0, stream>>>(
        p, vectors, static_cast<const typename Tile::Math::Element*>(w.raw()), call.tiles_n, packed.data());
    check_launch("conv: pack");
  }
  allow_shared_memory(wgmma_map_kernel<K>, K::kSharedBytes);
  const std::int64_t blocks = ceil_div(p.most_rows(), K::BM) * p.phases() * call.tiles_n;
  // Splits as far as there are multiprocessors of an H100 without work, at least eight chunks each.
  call.splits = static_cast<int>(std::clamp<std::int64_t>(132 / std::max<std::int64_t>(1, blocks * p.groups),
                                                          1, std::max(1, p.most_chunks() / 8)));
  const dim3 grid(grid_size("conv", blocks), static_cast<unsigned>(p.groups),
                  static_cast<unsigned>(call.splits));
  const Workspace<float> parts(
      to.device(),
      call.splits > 1 ? std::int64_t{call.splits} * p.groups * blocks * Tile::kSums * Tile::kConsumers : 1);
  call.parts = parts.data();
  wgmma_map_kernel<K><<<grid, Tile::kThreads, K::kSharedBytes, stream>>>(call);
  check_launch("conv: map");
  if (call.splits > 1) {
    add_parts_kernel<K><<<dim3(grid.x, grid.y, Tile::kSums / 4), Tile::kConsumers, 0, stream>>>(call);
    check_launch("conv: sum of parts");
  }
}

template <class Math>
void wgmma_map(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to) {
  using T = typename Math::Element;
  const DeviceScope scope(to.device());
  const ChannelsLast images(from, static_cast<int>(g.groups));
  WgmmaMapArguments call{};
  call.plan = Plan(g, transposed, sizeof(T));
  Plan& p = call.plan;
  p.from = images.strides;
  p.to = ImageStrides(to.strides());
  call.from = images.data;
  call.group_channels = images.group_channels;
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.to = to.raw();
  call.to_pixels = to.layout() == Layout::nchw && to.size(2) * to.size(3) > 1;
  constexpr bool kThree = Math::kParts == 3;
  double least = 0;
  void (*launch)(WgmmaMapArguments&, const Tensor&, const Tensor&) = nullptr;
  const auto offer = [&]<int kM, int kN>() {
    const double cost = wgmma_map_cost(p, 128 * kM, kN, Math::kParts);
    if (launch != nullptr && cost >= least) return;
    least = cost;
    launch = launch_wgmma_map<WarpgroupTile<Math, kM, kN, kThree ? 1 : 0, 128 * kM * kChunkBytes>>;
  };
  offer.template operator()<1, 128>();
  offer.template operator()<1, 64>();
  offer.template operator()<1, 32>();
  if constexpr (!kThree) {
    offer.template operator()<2, 128>();
    offer.template operator()<2, 64>();
    offer.template operator()<2, 32>();
  }
  launch(call, w, to);
}

}  // namespace tapedeck::cu::conv_gemm
