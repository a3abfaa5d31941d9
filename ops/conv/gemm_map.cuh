// conv_transpose2d and conv2d as matrix products (gemm_plan.h): pixels times channels, phase by phase.
//
// A block has BM results of one phase and BN channels. Rows of A are gathered: a vector of k is channels of
// one tap at one place of `from`. Sums go through shared memory, so that neighbouring threads write
// neighbouring elements of either layout.
#pragma once

#include <tapedeck/ops/conv/gemm_choice.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>

namespace tapedeck::cu::conv_gemm {

/// How vectors of k are read: one load each where channels are neighbours, or element by element. 32-bit
/// types decide when they run; for 16-bit ones it would cost registers.
enum class Access : std::uint8_t { either, vectors, elements };

struct MapArguments {
  Plan plan;
  const void *from, *packed, *bias;
  void* to;
  int tiles_n, padded_n;
  bool vectors;    // channels of `from` are neighbours, aligned and a multiple of a vector
  bool to_pixels;  // neighbouring results of `to` are pixels, not channels
};

/// Loads tiles of A.
template <class Math, int BM, int kThreads, Access kAccess>
class GatheredRows {
  using T = typename Math::Element;
  static constexpr int kElements = kVectorBytes / sizeof(T), kCount = BM * kVectors / kThreads;
  static_assert(kThreads % BM == 0 && kThreads % kVectors == 0);

 public:
  __device__ GatheredRows(const MapArguments& call, const T* from, const Row* rows, int i, int j)
      : call_(call), from_(from), rows_(rows), i_(i), j_(j) {}

  __device__ void issue(int chunk, char*) {
    const Plan& p = call_.plan;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const Row& row = rows_[row_at(n)];
      const Source s = source_of(p, i_, j_, row.h, row.w, chunk * kVectors + vector_at(n));
      const T* const first = from_ + row.from + s.offset;
      Pack<T, kElements>& v = values_[n];
      v = {};
      if (s.offset < 0) continue;
      if (by_vectors()) {
        v = *reinterpret_cast<const Pack<T, kElements>*>(first);
      } else {
#pragma unroll
        for (int k = 0; k < kElements; ++k) {
          if (s.channel + k < p.from_channels) v.values[k] = first[k * p.from.c];
        }
      }
    }
  }
  __device__ void commit(char* stage) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
#pragma unroll
      for (T& x : values_[n].values) x = Math::prepare(x);
      *reinterpret_cast<Pack<T, kElements>*>(stage + row_at(n) * kRowBytes + vector_at(n) * kVectorBytes) =
          values_[n];
    }
  }

 private:
  __device__ bool by_vectors() const {
    return kAccess == Access::either ? call_.vectors : kAccess == Access::vectors;
  }
  // Neighbouring threads read neighbours: vectors of a pixel, or pixels.
  __device__ int row_at(int n) const {
    return by_vectors() ? threadIdx.x / kVectors + n * (kThreads / kVectors) : threadIdx.x % BM;
  }
  __device__ int vector_at(int n) const {
    return by_vectors() ? threadIdx.x % kVectors : threadIdx.x / BM + n * (kThreads / BM);
  }

  const MapArguments& call_;
  const T* from_;
  const Row* rows_;
  int i_, j_;
  Pack<T, kElements> values_[kCount];
};

/// Loads tiles of B as they were packed.
template <int BN, int kThreads>
class PackedColumns {
 public:
  __device__ PackedColumns(const uint4* packed, int padded_n)
      : packed_(packed + threadIdx.x), step_(static_cast<std::int64_t>(padded_n) * kVectors) {}

  __device__ void issue(int chunk, char* stage) {
    const uint4* const tile = packed_ + chunk * step_;
#pragma unroll
    for (int n = 0; n < BN * kVectors / kThreads; ++n) {
      const int i = threadIdx.x + n * kThreads;
      copy_async(stage + i / kVectors * kRowBytes + i % kVectors * kVectorBytes, tile + n * kThreads);
    }
  }
  __device__ void commit(char*) {}

 private:
  const uint4* packed_;
  std::int64_t step_;
};

template <class Math, int kBM, int kBN, int WM, int WN, Access kAccess>
struct MapKernel {
  static constexpr int BM = kBM, BN = kBN;
  using T = typename Math::Element;
  using TileSums = Sums<Math, BM, BN, WM, WN, Math::kParts == 3>;
  using Result = typename TileSums::Result;
  static constexpr int kThreads = TileSums::kThreads;
  static constexpr int kPixelPitch = BM + 4, kChannelPitch = BN + 8;  // of sums in shared memory
  static constexpr int kSumBytes =
      static_cast<int>(sizeof(Result)) *
      (BN * kPixelPitch > BM * kChannelPitch ? BN * kPixelPitch : BM * kChannelPitch);
  static constexpr int kSharedBytes =
      2 * kStageBytes<BM, BN> > kSumBytes ? 2 * kStageBytes<BM, BN> : kSumBytes;
  // Blocks of a multiprocessor, at least: as many as there are registers for.
  static constexpr int kBlocks = BM * BN >= 128 * 128 ? 1 : (Math::kParts == 0 ? 384 : 512) / kThreads;

  __device__ static void run(const MapArguments& call, char* shared, Row* rows) {
    const Plan& p = call.plan;
    const int tile_n = blockIdx.x % call.tiles_n, rest = blockIdx.x / call.tiles_n;
    const int phase = rest % p.phases(), tile_m = rest / p.phases();
    const int i = phase / p.w.count, j = phase % p.w.count, group = blockIdx.y;
    const std::int64_t first = static_cast<std::int64_t>(tile_m) * BM;
    if (first >= p.rows(i, j)) return;
    for (int r = threadIdx.x; r < BM; r += kThreads) rows[r] = row_of(p, i, j, first + r);
    __syncthreads();

    const T* const from =
        static_cast<const T*>(call.from) + static_cast<std::int64_t>(group) * p.from_channels * p.from.c;
    const uint4* const packed =
        static_cast<const uint4*>(call.packed) + group * p.packed_vectors(call.padded_n) +
        (static_cast<std::int64_t>(p.chunk_begin[phase]) * call.padded_n + tile_n * BN) * kVectors;
    GatheredRows<Math, BM, kThreads, kAccess> a(call, from, rows, i, j);
    PackedColumns<BN, kThreads> b(packed, call.padded_n);
    TileSums sums;
    multiply_chunks<BM, BN>(sums, a, b, p.phase_chunks(i, j), shared, [](int) {});

    Result* const staged = reinterpret_cast<Result*>(shared);
    const int pitch_row = call.to_pixels ? 1 : kChannelPitch, pitch_column = call.to_pixels ? kPixelPitch : 1;
    sums.for_each(
        [&](int row, int column, Result sum) { staged[row * pitch_row + column * pitch_column] = sum; });
    __syncthreads();
    const int channel = group * p.to_channels + tile_n * BN, channels = min(BN, p.to_channels - tile_n * BN);
    const T* const bias = call.bias == nullptr ? nullptr : static_cast<const T*>(call.bias) + channel;
    T* const to = static_cast<T*>(call.to) + static_cast<std::int64_t>(channel) * p.to.c;
    const auto write = [&](int row, int column) {
      const std::int64_t at = rows[row].to;
      if (at < 0 || column >= channels) return;
      const Result sum = staged[row * pitch_row + column * pitch_column];
      to[at + column * p.to.c] = convert<T>(bias == nullptr ? sum : sum + convert<Result>(bias[column]));
    };
    if (call.to_pixels) {
      for (int n = threadIdx.x / BM; n < channels; n += kThreads / BM) write(threadIdx.x % BM, n);
    } else {
      for (int k = threadIdx.x; k < BM * BN; k += kThreads) write(k / BN, k % BN);
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kBlocks)
    map_kernel(const __grid_constant__ MapArguments call) {
  extern __shared__ uint4 shared[];
  __shared__ Row rows[K::BM];
  await_previous<false>();
  K::run(call, reinterpret_cast<char*>(shared), rows);
}

/// Fills `packed` (gemm_plan.h), but for its holes.
template <class Math>
__global__ void __launch_bounds__(kThreads)
    pack_kernel(const __grid_constant__ Plan p, std::int64_t count, const typename Math::Element* w,
                int padded_n, uint4* packed) {
  using T = typename Math::Element;
  constexpr int kElements = kVectorBytes / sizeof(T);
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  await_previous<false>();  // map_kernel's blocks would crowd where this one's are not
  if (i >= count) return;
  const auto [group, m, v, kh, kw] = packed_weight(p, i);
  const std::int64_t place = p.packed_vector(kh, kw, v, m, padded_n);
  if (place < 0) return;
  Pack<T, kElements> pack{};
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int c = v * kElements + k;
    if (c < p.from_channels) pack.values[k] = Math::prepare(w[p.weight_index(group, c, m, kh, kw)]);
  }
  *reinterpret_cast<Pack<T, kElements>*>(packed + group * p.packed_vectors(padded_n) + place) = pack;
}

template <class Math, class K>
void launch_map(MapArguments& call, const Tensor& w, const Tensor& to) {
  const Plan& p = call.plan;
  const cudaStream_t stream = stream_of(to.device());
  call.tiles_n = static_cast<int>(ceil_div(p.to_channels, K::BN));
  call.padded_n = call.tiles_n * K::BN;
  const std::int64_t packed_count = packed_vectors(p, K::BN);
  const Workspace<uint4> packed(to.device(), packed_count);
  call.packed = packed.data();
  if (p.packed_has_holes(call.padded_n)) {
    check_cuda(
        cudaMemsetAsync(packed.data(), 0, static_cast<std::size_t>(packed_count) * sizeof(uint4), stream),
        "cudaMemsetAsync");
  }
  const std::int64_t vectors = packed_weights(p);
  launch_kernel("conv: pack", w.device(), pack_kernel<Math>, grid_size("conv", ceil_div(vectors, kThreads)),
                kThreads, p, vectors, static_cast<const typename Math::Element*>(w.raw()), call.padded_n,
                packed.data());
  allow_shared_memory(map_kernel<K>, K::kSharedBytes);
  const std::int64_t blocks = ceil_div(p.most_rows(), K::BM) * p.phases() * call.tiles_n;
  launch_kernel_with_shared("conv: map", to.device(), map_kernel<K>,
                            dim3(grid_size("conv", blocks), static_cast<unsigned>(p.groups)), K::kThreads,
                            K::kSharedBytes, call);
}

template <class Math, Access kAccess>
void choose_map(MapArguments& call, const Tensor& w, const Tensor& to) {
  const GemmTile tile = map_tile(call.plan, Math::kParts > 0);
  const auto offer = [&]<int kM, int kN, int kOfWarpM, int kOfWarpN>() {
    if (tile.m == kM && tile.n == kN)
      launch_map<Math, MapKernel<Math, kM, kN, kOfWarpM, kOfWarpN, kAccess>>(call, w, to);
  };
  if constexpr (Math::kParts > 0) {
    offer.template operator()<128, 128, 64, 32>();
    offer.template operator()<128, 64, 32, 32>();
    offer.template operator()<64, 64, 32, 32>();
    offer.template operator()<128, 32, 32, 32>();
  } else if constexpr (sizeof(typename Math::Element) == 8) {
    offer.template operator()<64, 64, 4, 4>();
  } else {
    offer.template operator()<128, 64, 8, 8>();
  }
}

template <class Math>
void map(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
         const Tensor& bias, const Tensor& to) {
  using T = typename Math::Element;
  const DeviceScope scope(to.device());
  MapArguments call{};
  call.plan = Plan(g, transposed, sizeof(T));
  Plan& p = call.plan;
  p.from = ImageStrides(from.strides());
  p.to = ImageStrides(to.strides());
  p.weight_is_last = w.layout() == Layout::nhwc;
  call.from = from.raw();
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.to = to.raw();
  call.vectors = from.layout() == Layout::nhwc && p.from_channels % p.vector == 0 &&
                 reinterpret_cast<std::uintptr_t>(from.raw()) % kVectorBytes == 0;
  call.to_pixels = to.layout() == Layout::nchw && to.size(2) * to.size(3) > 1;
  if constexpr (sizeof(T) != 2) {
    choose_map<Math, Access::either>(call, w, to);
  } else if (call.vectors) {
    choose_map<Math, Access::vectors>(call, w, to);
  } else {
    choose_map<Math, Access::elements>(call, w, to);
  }
}

}  // namespace tapedeck::cu::conv_gemm
