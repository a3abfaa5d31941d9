// The weight's gradient of depthwise convolutions of common sizes and 16-bit types, in nchw, a plane at a
// time through shared memory.
//
//   gw[c, k] = sum over n and the pixels i of x: x[n, c, i] * y[n, c, o(i, k)]
//
// The work is to read memory once, in pieces as long as possible: thousands of warps that each go down a
// plane of their own by rows of 224 bytes (depthwise_rows.cu) reach 63% of a copy's bandwidth. A block takes
// one plane of x and of y after another, through a ring, zeros around them that nothing overwrites, two on
// their way while one is multiplied.
//
//   ring     0 0 0 0 0 0     a thread has the pixels of x that belong to 16 bytes of a row of y
//            0 x x x x 0
//            0 x x x x 0
//            0 0 0 0 0 0
//
// Threads' sums are added in a fixed order, and so are the blocks', by a second kernel.
//
// On an H200 (depthwise of bench/compare_gpu.py) in bfloat16: 0.082 ms, 73% of a copy's bandwidth, where rows
// in registers take 0.096. Forward and input gradient by planes, written by bulk copies, took 0.098 and
// 0.085, by rows they take 0.071 and 0.075.
#include <algorithm>

#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/depthwise_rows.cuh>
#include <tapedeck/ops/conv/depthwise_tile.cuh>
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using conv_depthwise::visit_16_bits;
using conv_depthwise::visit_sizes;
using conv_depthwise::write_sums;
using conv_gemm::Divider;
using conv_strip::commit_copies;
using conv_strip::copy_or_zero;
using conv_strip::kMostShared;
using conv_strip::shared_address;
using conv_strip::wait_for_copies;

constexpr int kBlock = 256, kCopiers = kBlock - 32, kRing = 3;
constexpr int kMost = (kMostShared >> 1) - 1024;  // of two blocks a multiprocessor

/// A plane in shared memory: rows [first, first + rows) of it, kPad bytes of zeros on both sides of a row.
struct Tile {
  static constexpr int kPad = 16;
  Tile() = default;
  Tile(int height, int width, int element_bytes, int first_row, int row_count, int columns)
      : first(first_row),
        rows(row_count),
        h(height),
        row_bytes(width * element_bytes),
        pitch((std::max(width, columns) * element_bytes + 15) / 16 * 16 + 2 * kPad),
        by_row(row_bytes / 16) {}
  int bytes() const { return rows * pitch; }

  int first = 0, rows = 0, h = 0, row_bytes = 0, pitch = 0;
  Divider by_row;  // by the vectors of a row
};

struct Arguments {
  const void *x, *y;
  float* parts;
  int n, channels;
  Tile x_tile, y_tile;
  int units, rows;  // of a row; steps of a plane
  Divider by_units;
  int ring_bytes;  // of a plane of each
  int splits;
};

/// Starts to bring a plane to shared memory: a thread has the same columns of some rows. The first warp takes
/// no part (where all do: 0.092 ms instead of 0.082).
__device__ __forceinline__ void copy_plane(const Tile& tile, char* to, const char* from) {
  const int thread = static_cast<int>(threadIdx.x) - 32;
  if (thread < 0) return;
  const int vectors = tile.row_bytes / 16, rows = tile.by_row.divide(kCopiers),
            first = tile.by_row.divide(thread), at = tile.by_row.modulo(thread, first) * 16;
  if (first >= rows) return;
  unsigned shared = shared_address(to + (first - tile.first) * tile.pitch + Tile::kPad + at);
  from += first * vectors * 16 + at;
  const int end = min(tile.h, tile.first + tile.rows);
#pragma unroll 4
  for (int row = first; row < end; row += rows) {
    copy_or_zero<16>(shared, from, true);
    shared += rows * tile.pitch;
    from += rows * vectors * 16;
  }
}
/// N neighbours and `left` and `right` more on their sides, in float32.
template <int N, int kLeft, int kRight, class T>
__device__ __forceinline__ void widen_row(const T* from, float (&row)[kLeft + N + kRight]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
#pragma unroll
  for (int i = 0; i < N; ++i) row[kLeft + i] = convert<float>(pack.values[i]);
#pragma unroll
  for (int i = 0; i < kLeft; ++i) row[i] = convert<float>(from[i - kLeft]);
#pragma unroll
  for (int i = 0; i < kRight; ++i) row[kLeft + N + i] = convert<float>(from[N + i]);
}

/// Kernel K, stride S, padding P in both axes: input a meets outputs S*a - P to S*a - P + K - 1.
template <class T, int K, int S, int P>
struct Window {
  static constexpr int kKernel = K, kPadding = P;
  static constexpr int kOwn = 16 / static_cast<int>(sizeof(T)), kPixels = kOwn / S;  // of a unit: of y, of x
  static constexpr int kRight = K - P - S > 0 ? K - P - S : 0;  // columns of y right of a unit's
  static_assert(P <= kOwn && kRight <= kOwn && K >= S);
};

/// Sums of gw of a channel over some images.
template <class T, int K, int S, int P>
__global__ void __launch_bounds__(kBlock, 2)
    depthwise_planes_weight_grad_kernel(const __grid_constant__ Arguments a) {
  using W = Window<T, K, S, P>;
  constexpr int kPixels = W::kPixels, kOwn = W::kOwn;
  extern __shared__ uint4 shared[];
  await_previous<false>();
  char* const memory = reinterpret_cast<char*>(shared);
  const int channel = static_cast<int>(blockIdx.x) % a.channels,
            split = static_cast<int>(blockIdx.x) / a.channels;
  const std::int64_t x_bytes = static_cast<std::int64_t>(a.x_tile.h) * a.x_tile.row_bytes,
                     y_bytes = static_cast<std::int64_t>(a.y_tile.h) * a.y_tile.row_bytes;
  const int y_at = a.x_tile.rows * a.x_tile.pitch;  // in a place of the ring
  const auto copy = [&](int image, int turn) {
    if (image < a.n) {
      char* const place = memory + turn * a.ring_bytes;
      const std::int64_t plane = static_cast<std::int64_t>(image) * a.channels + channel;
      copy_plane(a.x_tile, place, static_cast<const char*>(a.x) + plane * x_bytes);
      copy_plane(a.y_tile, place + y_at, static_cast<const char*>(a.y) + plane * y_bytes);
    }
    commit_copies();
  };
  for (int i = threadIdx.x; i < kRing * a.ring_bytes / 16; i += kBlock) shared[i] = uint4{};
  __syncthreads();
  for (int i = 0; i + 1 < kRing; ++i) copy(split + i * a.splits, i);

  float sums[K * K] = {};
  int turn = 0, ahead = kRing - 1;
  for (int image = split; image < a.n; image += a.splits) {
    wait_for_copies<kRing - 2>();
    __syncthreads();
    copy(image + (kRing - 1) * a.splits, ahead);
    if (++ahead == kRing) ahead = 0;
    const char* const x = memory + turn * a.ring_bytes + Tile::kPad;
    const char* const y = x + y_at;
    for (int unit = threadIdx.x; unit < a.units * a.rows; unit += kBlock) {
      const int row = a.by_units.divide(unit), column = a.by_units.modulo(unit, row);
      float pixels[kPixels], rows[K][P + kOwn + W::kRight];
      widen_row<kPixels, 0, 0>(reinterpret_cast<const T*>(x + row * a.x_tile.pitch) + column * kPixels,
                               pixels);
#pragma unroll
      for (int i = 0; i < K; ++i)
        widen_row<kOwn, P, W::kRight>(
            reinterpret_cast<const T*>(y + (row * S + i) * a.y_tile.pitch) + column * kOwn, rows[i]);
#pragma unroll
      for (int p = 0; p < kPixels; ++p)
#pragma unroll
        for (int k = 0; k < K * K; ++k) sums[k] += pixels[p] * rows[k / K][p * S + k % K];
    }
    if (++turn == kRing) turn = 0;
  }
  write_sums<kBlock / 32>(sums,
                          a.parts + (static_cast<std::int64_t>(split) * a.channels + channel) * (K * K));
}

/// Calls f with a type, K, S and P that have kernels.
template <class F>
bool visit(const ConvTranspose2dGeometry& g, DType dtype, F f) {
  return visit_16_bits(dtype, [&]<class T>() {
    return visit_sizes(g, [&]<int K, int S, int P>() { return f.template operator()<T, K, S, P>(); });
  });
}

/// The arguments but for tensors; `units` is 0 where planes do not fit, or are few or small.
template <class T, class W>
Arguments arguments_of(const ConvTranspose2dGeometry& g) {
  const auto narrow = [](std::int64_t i) { return static_cast<int>(i); };
  constexpr int kBytes = sizeof(T), kStride = W::kOwn / W::kPixels;
  Arguments a{};
  for (std::int64_t width : {g.w.in, g.w.out}) {
    if (width * kBytes % 16 != 0 || width * kBytes / 16 > kCopiers) return a;
  }
  const std::int64_t most = kMost, least = 8 << 10;
  if (g.n * g.co < 132 * 8 || g.h.out * g.w.out * kBytes < least) return a;
  if (g.group_ci() != 1 || g.group_co() != 1 || g.h.in * g.w.in * kBytes > most ||
      g.h.out * g.w.out * kBytes > most)
    return a;
  a.n = narrow(g.n), a.channels = narrow(g.co);
  a.rows = narrow(g.h.in);
  const int units = narrow(ceil_div(g.w.in, W::kPixels));
  a.by_units = Divider(units);
  a.x_tile = Tile(narrow(g.h.in), narrow(g.w.in), kBytes, 0, a.rows, units * W::kPixels);
  a.y_tile = Tile(narrow(g.h.out), narrow(g.w.out), kBytes, -W::kPadding, (a.rows - 1) * kStride + W::kKernel,
                  units * W::kOwn);
  a.ring_bytes = a.x_tile.bytes() + a.y_tile.bytes();
  if (kRing * a.ring_bytes > kMost) return a;
  a.units = units;
  // Two blocks for each of an H100's multiprocessors: the result does not depend on the device.
  a.splits = narrow(std::clamp<std::int64_t>(132 * 2 / a.channels, 1, a.n));
  return a;
}

}  // namespace

bool depthwise_planes_fits(const ConvTranspose2dGeometry& g, DType dtype) {
  return visit(g, dtype, [&]<class T, int K, int S, int P>() {
    return arguments_of<T, Window<T, K, S, P>>(g).units > 0;
  });
}

std::int64_t depthwise_planes_splits(const ConvTranspose2dGeometry& g, DType dtype) {
  std::int64_t splits = 0;
  visit(g, dtype, [&]<class T, int K, int S, int P>() {
    splits = arguments_of<T, Window<T, K, S, P>>(g).splits;
    return true;
  });
  return splits;
}

bool depthwise_planes_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                  const Tensor& w) {
  // Blocks take up to 112 KB of shared memory: Hopper's have them, some others' not.
  for (const Tensor* t : {&x, &y}) {
    if (t->layout() != Layout::nchw || reinterpret_cast<std::uintptr_t>(t->raw()) % 16 != 0) return false;
  }
  if (!conv_gemm::has_wgmma(x.device())) return false;
  return visit(g, w.dtype(), [&]<class T, int K, int S, int P>() {
    Arguments a = arguments_of<T, Window<T, K, S, P>>(g);
    if (a.units == 0) return false;
    a.x = x.raw(), a.y = y.raw();
    const Workspace<float> parts(w.device(), a.splits * w.count());
    a.parts = parts.data();
    const int bytes = kRing * a.ring_bytes;
    const auto kernel = depthwise_planes_weight_grad_kernel<T, K, S, P>;
    conv_gemm::allow_shared_memory(kernel, bytes);
    const unsigned blocks = grid_size("conv", std::int64_t{a.splits} * a.channels);
    launch_kernel_with_shared("conv: depthwise weight gradient", w.device(), kernel, blocks, kBlock, bytes,
                              a);
    add_parts<T>(a.parts, a.splits, w);
    return true;
  });
}

}  // namespace tapedeck::cu
