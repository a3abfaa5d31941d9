// The weight's gradient as a matrix product: channels of x times (channel of y, tap), summed over pixels.
//
//   gw[ci, column] = sum over k of x[ci, k] * y[column's channel, k moved by column's tap]
// k: the pixels of all images of x; those that a tap takes outside y count as zero. Blocks share the sum:
// each of `splits` has a range of k and writes its part, and a second kernel adds the parts in a fixed order.
// The number of splits depends on the sizes only, so that the result does, too.
#pragma once

#include <tapedeck/ops/conv/gemm_choice.h>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/parts.cuh>

namespace tapedeck::cu::conv_gemm {

struct WeightGradArguments {
  const void *x, *y;
  void* parts;
  ImageStrides x_strides, y_strides;
  int groups, ci, co, kernel_h, kernel_w, taps;  // channels of a group
  int out_h, out_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  int columns, tiles_n;
  std::int64_t pixels;
  Divider plane, width;  // by pixels of an image of x, of its rows
  int chunks, split_chunks;
  bool lanes_are_pixels;  // neighbouring elements of x and y are pixels; otherwise channels, and so columns
};

/// What a column, or a channel of x, adds to the place of a pixel; h and w are kOutside for none.
struct ColumnPlace {
  int offset, h, w;
};
struct PixelPlace {
  std::int64_t offset;
  int h, w;
};

struct Column {
  int channel, kh, kw;
};
TAPEDECK_HD inline Column column_of(const WeightGradArguments& a, int n) {
  const int tap = a.lanes_are_pixels ? n % a.taps : n / a.co;
  return {a.lanes_are_pixels ? n / a.taps : n % a.co, tap / a.kernel_w, tap % a.kernel_w};
}

/// Loads tiles of `kRows` channels or columns times the pixels of a chunk.
template <class Math, int kRows, int kThreads, bool kMoved>
class PixelSums {
  using T = typename Math::Element;
  static constexpr int kPixels = kChunkBytes / sizeof(T), kVector = kVectorBytes / sizeof(T);
  static constexpr int kCount = kRows * kPixels / kThreads;
  // Where lanes are pixels, a thread has kPair neighbours of kRows / kStep rows.
  static constexpr int kPair = sizeof(T) == 2 ? 2 : 1, kLanes = kPixels / kPair, kStep = kThreads / kLanes;
  static_assert(kThreads % kRows == 0 && kRows % kStep == 0 && kCount % kVector == 0);

 public:
  __device__ PixelSums(const WeightGradArguments& call, const T* data, const ColumnPlace* rows,
                       const PixelPlace (*pixels)[kPixels])
      : call_(call), data_(data), rows_(rows), pixels_(pixels) {}

  __device__ void issue(int chunk, char*) {
    const PixelPlace* const pixels = pixels_[chunk % 2];
    if (call_.lanes_are_pixels) {
      PixelPlace pixel[kPair];
#pragma unroll
      for (int k = 0; k < kPair; ++k) pixel[k] = pixels[threadIdx.x % kLanes * kPair + k];
#pragma unroll
      for (int i = 0; i < kCount / kPair; ++i) {
        const ColumnPlace row = rows_[threadIdx.x / kLanes + i * kStep];
#pragma unroll
        for (int k = 0; k < kPair; ++k) values_[i * kPair + k] = load(pixel[k], row);
      }
    } else {
      const ColumnPlace row = rows_[threadIdx.x % kRows];
#pragma unroll
      for (int i = 0; i < kCount / kVector; ++i) {
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
          values_[i * kVector + k] =
              load(pixels[(threadIdx.x / kRows + i * (kThreads / kRows)) * kVector + k], row);
        }
      }
    }
  }
  __device__ void commit(char* stage) {
#pragma unroll
    for (T& x : values_) x = Math::prepare(x);
    if (call_.lanes_are_pixels) {
      char* const first =
          stage + threadIdx.x / kLanes * kRowBytes + threadIdx.x % kLanes * (kPair * sizeof(T));
      store<kPair>(first, kStep * kRowBytes);
    } else {
      char* const first = stage + threadIdx.x % kRows * kRowBytes + threadIdx.x / kRows * kVectorBytes;
      store<kVector>(first, kThreads / kRows * kVectorBytes);
    }
  }

 private:
  __device__ T load(const PixelPlace& pixel, const ColumnPlace& row) const {
    bool inside;
    if constexpr (kMoved) {
      inside = static_cast<unsigned>(pixel.h + row.h) < static_cast<unsigned>(call_.out_h) &&
               static_cast<unsigned>(pixel.w + row.w) < static_cast<unsigned>(call_.out_w);
    } else {
      inside = pixel.h >= 0 && row.h >= 0;
    }
    return inside ? data_[pixel.offset + row.offset] : T{};
  }
  template <int N>
  __device__ void store(char* first, int step) const {
#pragma unroll
    for (int i = 0; i < kCount / N; ++i) {
      Pack<T, N> pack;
#pragma unroll
      for (int k = 0; k < N; ++k) pack.values[k] = values_[i * N + k];
      *reinterpret_cast<Pack<T, N>*>(first + i * step) = pack;
    }
  }

  const WeightGradArguments& call_;
  const T* data_;
  const ColumnPlace* rows_;
  const PixelPlace (*pixels_)[kPixels];
  T values_[kCount];
};

template <class Math, int kBM, int kBN, int WM, int WN>
struct WeightGradKernel {
  static constexpr int BM = kBM, BN = kBN;
  using T = typename Math::Element;
  using TileSums = Sums<Math, BM, BN, WM, WN, true>;
  using Result = typename TileSums::Result;
  static constexpr int kThreads = TileSums::kThreads, kPixels = kChunkBytes / sizeof(T);
  static constexpr int kPitch = BN + 8;  // of sums in shared memory
  static constexpr int kSumBytes = static_cast<int>(sizeof(Result)) * BM * kPitch;
  static constexpr int kSharedBytes =
      2 * kStageBytes<BM, BN> > kSumBytes ? 2 * kStageBytes<BM, BN> : kSumBytes;
  static constexpr int kBlocks = weight_grad_blocks({BM, BN});

  struct Places {
    PixelPlace x[2][kPixels], y[2][kPixels];
    ColumnPlace rows[BM], columns[BN];
  };

  __device__ static void run(const WeightGradArguments& call, char* shared, Places& places) {
    const int tile_n = blockIdx.x % call.tiles_n, tile_m = blockIdx.x / call.tiles_n;
    const int split = blockIdx.y, group = blockIdx.z;
    for (int i = threadIdx.x; i < BM; i += kThreads) {
      const int channel = tile_m * BM + i;
      places.rows[i] =
          channel < call.ci ? ColumnPlace{channel * call.x_strides.c, 0, 0} : ColumnPlace{0, kOutside, 0};
    }
    for (int i = threadIdx.x; i < BN; i += kThreads) {
      const int n = tile_n * BN + i;
      if (n < call.columns) {
        const Column c = column_of(call, n);
        const int h = c.kh * call.dilation_h, w = c.kw * call.dilation_w;
        places.columns[i] = {c.channel * call.y_strides.c + h * call.y_strides.h + w * call.y_strides.w, h,
                             w};
      } else {
        places.columns[i] = {0, kOutside, kOutside};
      }
    }
    const int first_chunk = split * call.split_chunks;
    const int chunks = min(call.split_chunks, call.chunks - first_chunk);
    const auto prepare = [&](int chunk) {
      if (threadIdx.x >= kPixels) return;
      const std::int64_t pixel = static_cast<std::int64_t>(first_chunk + chunk) * kPixels + threadIdx.x;
      PixelPlace x{0, kOutside, kOutside}, y{0, kOutside, kOutside};
      if (pixel < call.pixels) {
        const int p = static_cast<int>(pixel), n = call.plane.divide(p), at = call.plane.modulo(p, n);
        const int h = call.width.divide(at), w = call.width.modulo(at, h);
        x = {n * call.x_strides.n + h * call.x_strides.h + w * call.x_strides.w, h, w};
        const int out_h = h * call.stride_h - call.padding_h, out_w = w * call.stride_w - call.padding_w;
        y = {n * call.y_strides.n + static_cast<std::int64_t>(out_h) * call.y_strides.h +
                 static_cast<std::int64_t>(out_w) * call.y_strides.w,
             out_h, out_w};
      }
      places.x[chunk % 2][threadIdx.x] = x;
      places.y[chunk % 2][threadIdx.x] = y;
    };
    PixelSums<Math, BM, kThreads, false> a(
        call, static_cast<const T*>(call.x) + static_cast<std::int64_t>(group) * call.ci * call.x_strides.c,
        places.rows, places.x);
    PixelSums<Math, BN, kThreads, true> b(
        call, static_cast<const T*>(call.y) + static_cast<std::int64_t>(group) * call.co * call.y_strides.c,
        places.columns, places.y);
    TileSums sums;
    multiply_chunks<BM, BN>(sums, a, b, chunks, shared, prepare);

    Result* const staged = reinterpret_cast<Result*>(shared);
    sums.for_each([&](int row, int column, Result sum) { staged[row * kPitch + column] = sum; });
    __syncthreads();
    Result* const part = static_cast<Result*>(call.parts) +
                         (static_cast<std::int64_t>(split) * call.groups + group) * call.ci * call.columns;
    for (int i = threadIdx.x; i < BM * BN; i += kThreads) {
      const int row = tile_m * BM + i / BN, column = tile_n * BN + i % BN;
      if (row < call.ci && column < call.columns) {
        part[static_cast<std::int64_t>(row) * call.columns + column] = staged[i / BN * kPitch + i % BN];
      }
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::kBlocks)
    weight_grad_kernel(const __grid_constant__ WeightGradArguments call) {
  extern __shared__ uint4 shared[];
  __shared__ typename K::Places places;
  K::run(call, reinterpret_cast<char*>(shared), places);
}

/// Where elements of sums are in w: their columns may be by taps, then channels.
struct GradPlaces {
  __device__ std::int64_t of(std::int64_t i) const {
    if (are_by_channels) return i;
    const std::int64_t row = i / columns, column = i - row * columns, tap = column / channels;
    return row * columns + (column - tap * channels) * taps + tap;
  }
  std::int64_t columns, channels, taps;
  bool are_by_channels;
};

template <class Math, class K>
void launch_weight_grad(WeightGradArguments& call, const PixelSplits& share, const Tensor& w) {
  using T = typename Math::Element;
  using Result = typename K::Result;
  call.tiles_n = static_cast<int>(ceil_div(call.columns, K::BN));
  const std::int64_t tiles = ceil_div(call.ci, K::BM) * call.tiles_n;
  call.chunks = share.chunks, call.split_chunks = share.split_chunks;
  const int splits = share.splits;
  const Workspace<Result> parts(w.device(), splits * w.count());
  call.parts = parts.data();
  allow_shared_memory(weight_grad_kernel<K>, K::kSharedBytes);
  weight_grad_kernel<K>
      <<<dim3(grid_size("conv", tiles), static_cast<unsigned>(splits), static_cast<unsigned>(call.groups)),
         K::kThreads, K::kSharedBytes, stream_of(w.device())>>>(call);
  check_launch("conv: weight gradient");
  add_parts<T>(parts.data(), splits, w, GradPlaces{call.columns, call.co, call.taps, call.lanes_are_pixels});
}

template <class Math>
void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  using T = typename Math::Element;
  const DeviceScope scope(w.device());
  const auto narrow = [](std::int64_t i) { return static_cast<int>(i); };
  WeightGradArguments call{};
  call.x = x.raw();
  call.y = y.raw();
  call.x_strides = ImageStrides(x.strides());
  call.y_strides = ImageStrides(y.strides());
  call.groups = narrow(g.groups), call.ci = narrow(g.group_ci()), call.co = narrow(g.group_co());
  call.kernel_h = narrow(g.h.kernel), call.kernel_w = narrow(g.w.kernel);
  call.taps = call.kernel_h * call.kernel_w;
  call.out_h = narrow(g.h.out), call.out_w = narrow(g.w.out);
  call.stride_h = narrow(g.h.stride), call.stride_w = narrow(g.w.stride);
  call.padding_h = narrow(g.h.padding), call.padding_w = narrow(g.w.padding);
  call.dilation_h = narrow(g.h.dilation), call.dilation_w = narrow(g.w.dilation);
  call.columns = call.co * call.taps;
  call.pixels = g.n * g.h.in * g.w.in;
  call.plane = Divider(g.h.in * g.w.in);
  call.width = Divider(g.w.in);
  call.lanes_are_pixels = x.layout() == Layout::nchw;
  const GemmTile tile = weight_grad_tile(g, sizeof(T), Math::kParts > 0);
  const PixelSplits share = weight_grad_splits(g, tile, sizeof(T));
  const auto offer = [&]<int kM, int kN, int kOfWarpM, int kOfWarpN>() {
    if (tile.m == kM && tile.n == kN)
      launch_weight_grad<Math, WeightGradKernel<Math, kM, kN, kOfWarpM, kOfWarpN>>(call, share, w);
  };
  if constexpr (Math::kParts == 0) {
    offer.template operator()<64, 64, sizeof(T) == 8 ? 4 : 8, 4>();
  } else {
    offer.template operator()<32, 128, 32, 32>();
    offer.template operator()<64, 128, 32, 32>();
    if constexpr (sizeof(T) == 4) offer.template operator()<128, 128, 64, 32>();
  }
}

}  // namespace tapedeck::cu::conv_gemm
