// Depthwise convolutions of common sizes with channels last: rows through a ring in shared memory.
//
//   y[n, o, c] = bias[c] + sum over taps k that meet o: x[n, i(o, k), c] * w[c, k]      its gradients:
//   gx[n, i, c] = sum over taps k: y[n, o(i, k), c] * w[c, k]
//   gw[c, k] = sum over n and the pixels i of x: x[n, i, c] * y[n, o(i, k), c]
//
// The work is to read and write memory once, so what counts are the bytes that are on their way, and few
// instructions. A block has 256 bytes of channels and one or two columns of x for each of its warps, and goes
// down rows of x. Groups of rows come through a ring of stages, zeros outside the image: while one row of x
// is computed, those of the next are on their way. A thread has 8 bytes of channels and their weights in
// registers; gradients of two columns share what they read.
//
//   stage    | rows of group a: column 0: channels 0 1 2 ... | column 1: ... |     stride 2, kernel 4:
//   stage+1  | of a+1                                                        |     x's row a meets groups
//   ...      | of a+2, ... on their way                                      |     a and a+1 of y
//
// On an H200, 256 channels of 56x56 and 112x112 (bench/results/gpu_conv.json), forward, gx and gw: 0.152,
// 0.131 and 0.126 ms (79, 92 and 96% of a copy's bandwidth), in bfloat16 0.092, 0.077 and 0.097 (65, 78 and
// 62%). With 4 bytes of channels a
// thread and one column: 0.17, 0.15 and 0.18, and 0.12, 0.11 and 0.17. Instructions bound it.
#include <algorithm>

#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/depthwise_rows.cuh>
#include <tapedeck/ops/conv/depthwise_tile.cuh>
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::ImageStrides;
using conv_strip::commit_copies;
using conv_strip::copy_or_zero;
using conv_strip::shared_address;
using conv_strip::store;
using conv_strip::wait_for_copies;

constexpr int kMostWarps = 8, kAhead = 3;  // kAhead: groups of rows on their way
template <class T>
inline constexpr int kVector = 8 / static_cast<int>(sizeof(T));  // channels of a thread
template <class T>
inline constexpr int kChannels = 32 * kVector<T>;  // of a block

/// A thread's channels.
template <int V>
struct Vector {
  float values[V] = {};
  __device__ __forceinline__ void add(const Vector& a, const Vector& b) {
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] += a.values[v] * b.values[v];
  }
};
template <class T>
using VectorOf = Vector<kVector<T>>;
template <class T>
__device__ __forceinline__ VectorOf<T> load_vector(unsigned address) {
  std::uint32_t words[2];
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(address));
  if constexpr (sizeof(T) == 4) {
    return {__uint_as_float(words[0]), __uint_as_float(words[1])};
  } else {
    VectorOf<T> x;
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      const std::uint32_t word = words[v / 2];
      if constexpr (std::is_same_v<T, bfloat16>) {
        x.values[v] = __uint_as_float(v % 2 == 0 ? word << 16 : word & 0xffff0000u);
      } else {
        x.values[v] = convert<float>(
            __builtin_bit_cast(T, static_cast<unsigned short>(v % 2 == 0 ? word : word >> 16)));
      }
    }
    return x;
  }
}

struct Arguments {
  const void *x, *y, *w, *bias;  // x or y is written, or neither
  float* parts;
  ImageStrides x_strides, y_strides;
  int channels, in_h, in_w, out_h, out_w;
  int warps, columns, tiles_w, blocks;  // of a block; columns of its steps; tiles of them; blocks of channels
  int rows, strip, strips;              // steps: of all, of an item, items of an image and a tile
  int items, splits;                    // of a block of channels; blocks that share them
};

/// Kernel K, stride S, padding P in both axes: which rows a step needs, as groups that come one a step.
template <int K, int S, int P>
struct Gradient {                     // of y's rows; a step is a row of x
  static constexpr int kColumns = 2;  // of x, of a thread
  static constexpr int kRows = S, kGroups = (K + S - 1) / S;
  static constexpr int kFirst = -P;                                                    // row of group 0
  TAPEDECK_HD static constexpr int columns(int steps) { return (steps - 1) * S + K; }  // of y
};
/// Output S*a + r meets tap k, of these with r + P - k a multiple of S, at input a + (r + P - k) / S. The
/// lowest of (r + P - k) / S and the highest:
template <int K, int S, int P>
constexpr int reach(bool high) {
  int most = 0;
  for (int r = 0; r < S; ++r)
    for (int k = 0; k < K; ++k) {
      const int input = (r + P - k) / S;
      if ((r + P - k) % S == 0 && (high ? input > most : input < most)) most = input;
    }
  return most;
}
template <int K, int S, int P>
struct Forward {  // of x's rows; a step is S rows of y
  static constexpr int kColumns = 1;
  static constexpr int kRows = 1, kFirst = reach<K, S, P>(false), kGroups = reach<K, S, P>(true) - kFirst + 1;
  TAPEDECK_HD static constexpr int columns(int steps) { return steps + kGroups - 1; }  // of x
  /// Whether output r meets tap k in group h or column h of a step.
  TAPEDECK_HD static constexpr bool meets(int r, int k, int h) { return r + P - k == (h + kFirst) * S; }
};

/// Rows of pixels of a block's channels to shared memory.
template <class T>
class BlockCopy {
 public:
  __device__ BlockCopy(int channels, int height, int width, const ImageStrides& strides)
      : piece_(static_cast<int>(threadIdx.x) % kPieces * kElements),
        first_(static_cast<int>(threadIdx.x) / kPieces),
        step_(static_cast<int>(blockDim.x) / kPieces),
        height_(piece_ < channels ? height : 0),
        width_(width),
        stride_h_(strides.h),
        stride_w_(strides.w) {}
  /// `from`: of the image and the first channel.
  __device__ __forceinline__ void start(unsigned to, const T* from, int first_row, int rows, int first_column,
                                        int columns) const {
    int row = 0, column = first_;
    while (true) {
      while (column >= columns) column -= columns, ++row;
      if (row >= rows) return;
      const int h = first_row + row, w = first_column + column;
      const bool exists = static_cast<unsigned>(h) < static_cast<unsigned>(height_) &&
                          static_cast<unsigned>(w) < static_cast<unsigned>(width_);
      copy_or_zero<16>(
          to + static_cast<unsigned>((row * columns + column) * kChannels<T> + piece_) * sizeof(T),
          from + static_cast<std::int64_t>(h) * stride_h_ + static_cast<std::int64_t>(w) * stride_w_ + piece_,
          exists);
      column += step_;
    }
  }

 private:
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T)), kPieces = kChannels<T> / kElements;
  int piece_, first_, step_, height_, width_, stride_h_, stride_w_;
};

/// What a block goes down: steps [begin, end) of the columns from `column` on.
struct Item {
  __device__ Item(const Arguments& a, int index) {
    const int rest = index / a.tiles_w;
    column = (index - rest * a.tiles_w) * a.columns;
    image = rest / a.strips;
    begin = (rest - image * a.strips) * a.strip;
    end = min(a.rows, begin + a.strip);
  }
  int image, column, begin, end;
};

/// Stages of groups of rows. Rows: which; kExtra: whether a stage also has the step's row of x.
template <class T, class Rows, bool kExtra>
class Ring {
 public:
  static constexpr int kStages = Rows::kGroups + kAhead;
  TAPEDECK_HD static int stage_bytes(int columns) {
    return (Rows::kRows * Rows::columns(columns) + (kExtra ? columns : 0)) * kChannels<T> *
           static_cast<int>(sizeof(T));
  }

  /// Starts the first groups of steps [begin, end); copy(shared, group) starts one.
  template <class Copy>
  __device__ Ring(unsigned shared, int columns, int begin, int end, Copy copy)
      : shared_(shared), bytes_(stage_bytes(columns)), next_(begin), end_(end + Rows::kGroups - 1) {
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) copy_next(copy);
  }
  /// Waits for the groups of the next step, and starts another.
  template <class Copy>
  __device__ __forceinline__ void advance(Copy copy) {
    wait_for_copies<kAhead - 1>();
    __syncthreads();
    copy_next(copy);
    now_ = now_ + 1 == kStages ? 0 : now_ + 1;
  }
  /// Where group j of the step is.
  __device__ __forceinline__ unsigned stage(int j) const {
    const int at = now_ + j;
    return shared_ + (at >= kStages ? at - kStages : at) * bytes_;
  }

 private:
  template <class Copy>
  __device__ __forceinline__ void copy_next(Copy copy) {
    if (next_ < end_) copy(shared_ + to_ * bytes_, next_);
    ++next_;
    to_ = to_ + 1 == kStages ? 0 : to_ + 1;
    commit_copies();
  }
  unsigned shared_;
  int bytes_, next_, end_, to_ = 0, now_ = -1;
};

/// This thread's channels, from the block's on, and its warp.
template <class T>
struct Place {
  __device__ explicit Place(const Arguments& a)
      : block(static_cast<int>(blockIdx.x) % a.blocks * kChannels<T>),
        first(static_cast<int>(threadIdx.x) % 32 * kVector<T>),
        warp(static_cast<int>(threadIdx.x) / 32),
        exists(block + first < a.channels) {}
  /// Of [channel][N] numbers.
  template <int N>
  __device__ __forceinline__ void read(const void* from, VectorOf<T> (&to)[N]) const {
    if (from == nullptr || !exists) return;
    if (reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {  // as 8 bytes of channels are
      const uint2* const pairs =
          reinterpret_cast<const uint2*>(static_cast<const T*>(from) + (block + first) * N);
      struct Words {
        uint2 of_tap[N];
      } words;
      struct Elements {
        T values[kVector<T> * N];
      };
#pragma unroll
      for (int i = 0; i < N; ++i) words.of_tap[i] = pairs[i];
      const auto elements = __builtin_bit_cast(Elements, words);
#pragma unroll
      for (int e = 0; e < kVector<T> * N; ++e) to[e % N].values[e / N] = convert<float>(elements.values[e]);
      return;
    }
#pragma unroll
    for (int k = 0; k < N; ++k)
#pragma unroll
      for (int v = 0; v < kVector<T>; ++v)
        to[k].values[v] = convert<float>(static_cast<const T*>(from)[(block + first + v) * N + k]);
  }
  int block, first, warp;
  bool exists;
};

/// kBackward: gx from y, else y from x.
template <class T, int K, int S, int P, bool kBackward>
__global__ void __launch_bounds__(kMostWarps * 32, 2)
    depthwise_ring_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ uint4 shared[];
  await_previous<false>();
  using Rows = std::conditional_t<kBackward, Gradient<K, S, P>, Forward<K, S, P>>;
  constexpr int kColumns = Rows::kColumns;
  constexpr int kOut = kBackward ? 1 : S, kIn = kBackward ? S : 1;  // results and inputs of a step, squared
  constexpr int kWindow = Rows::columns(kColumns);
  const Place<T> place(a);
  const ImageStrides &from_strides = kBackward ? a.y_strides : a.x_strides,
                     &to_strides = kBackward ? a.x_strides : a.y_strides;
  const int to_h = kBackward ? a.in_h : a.out_h, to_w = kBackward ? a.in_w : a.out_w;
  const BlockCopy<T> copy(a.channels - place.block, kBackward ? a.out_h : a.in_h,
                          kBackward ? a.out_w : a.in_w, from_strides);
  const Item item(a, static_cast<int>(blockIdx.x) / a.blocks);
  const int columns = Rows::columns(a.columns);
  const T* const from =
      static_cast<const T*>(kBackward ? a.y : a.x) + item.image * from_strides.n + place.block;
  const auto copy_group = [&](unsigned to, int group) {
    copy.start(to, from, group * Rows::kRows + Rows::kFirst, Rows::kRows, item.column * kIn + Rows::kFirst,
               columns);
  };
  const int x = item.column + place.warp * kColumns;
  T* const to = static_cast<T*>(const_cast<void*>(kBackward ? a.x : a.y)) + item.image * to_strides.n +
                static_cast<std::int64_t>(x) * kOut * to_strides.w + place.block + place.first;
  constexpr unsigned kPixel = kChannels<T> * sizeof(T);
  const unsigned mine = static_cast<unsigned>(place.warp * kColumns * kIn) * kPixel +
                        static_cast<unsigned>(place.first) * sizeof(T);

  Ring<T, Rows, false> ring(shared_address(shared), a.columns, item.begin, item.end, copy_group);
  VectorOf<T> weights[K * K], bias[1];  // read while the first rows are on their way
  place.read(a.w, weights);
  place.read(a.bias, bias);
  for (int row = item.begin; row < item.end; ++row) {
    ring.advance(copy_group);
    VectorOf<T> sums[kColumns][kOut][kOut];
#pragma unroll
    for (int i = 0; i < kColumns * kOut * kOut; ++i)
      sums[i / (kOut * kOut)][i / kOut % kOut][i % kOut] = bias[0];
    if constexpr (kBackward) {
#pragma unroll
      for (int kh = 0; kh < K; ++kh) {
        const unsigned at = ring.stage(kh / S) + mine + kh % S * columns * kPixel;
#pragma unroll
        for (int w = 0; w < kWindow; ++w) {
          const VectorOf<T> value = load_vector<T>(at + w * kPixel);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const int kw = w - c * S;
            if (kw >= 0 && kw < K) sums[c][0][0].add(value, weights[kh * K + kw]);
          }
        }
      }
    } else {
#pragma unroll
      for (int h = 0; h < Rows::kGroups; ++h) {
        const unsigned at = ring.stage(h) + mine;
#pragma unroll
        for (int w = 0; w < kWindow; ++w) {
          const VectorOf<T> value = load_vector<T>(at + w * kPixel);
#pragma unroll
          for (int k = 0; k < K * K; ++k)
#pragma unroll
            for (int r = 0; r < S * S; ++r) {
              if (Rows::meets(r / S, k / K, h) && Rows::meets(r % S, k % K, w))
                sums[0][r / S][r % S].add(value, weights[k]);
            }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns * kOut * kOut; ++i) {
      const int c = i / (kOut * kOut), h = i / kOut % kOut, w = i % kOut;
      if (!place.exists || row * kOut + h >= to_h || (x + c) * kOut + w >= to_w) continue;
      Pack<T, kVector<T>> pack;
#pragma unroll
      for (int v = 0; v < kVector<T>; ++v) pack.values[v] = convert<T>(sums[c][h][w].values[v]);
      store(to + static_cast<std::int64_t>(row * kOut + h) * to_strides.h + (c * kOut + w) * to_strides.w,
            pack);
    }
  }
}

template <class T, int K, int S, int P>
__global__ void __launch_bounds__(kMostWarps * 32, 2)
    depthwise_ring_weight_grad_kernel(const __grid_constant__ Arguments a) {
  extern __shared__ uint4 shared[];
  await_previous<false>();
  using Rows = Gradient<K, S, P>;
  constexpr int kColumns = Rows::kColumns, kWindow = Rows::columns(kColumns);
  const Place<T> place(a);
  const BlockCopy<T> copy_y(a.channels - place.block, a.out_h, a.out_w, a.y_strides),
      copy_x(a.channels - place.block, a.in_h, a.in_w, a.x_strides);
  const int columns = Rows::columns(a.columns), split = static_cast<int>(blockIdx.x) / a.blocks;
  constexpr unsigned kPixel = kChannels<T> * sizeof(T);
  const unsigned x_at = S * columns * kPixel, first = static_cast<unsigned>(place.first) * sizeof(T),
                 mine = static_cast<unsigned>(place.warp * kColumns * S) * kPixel + first,
                 mine_of_x = x_at + static_cast<unsigned>(place.warp * kColumns) * kPixel + first;
  VectorOf<T> sums[K * K];
  for (int index = split; index < a.items; index += a.splits) {
    const Item item(a, index);
    const T* const x = static_cast<const T*>(a.x) + item.image * a.x_strides.n + place.block;
    const T* const y = static_cast<const T*>(a.y) + item.image * a.y_strides.n + place.block;
    // Past an item's last row of x comes what the next item has, and past the image zeros; neither is read.
    const auto copy_group = [&](unsigned to, int group) {
      copy_y.start(to, y, group * S - P, S, item.column * S - P, columns);
      copy_x.start(to + x_at, x, group, 1, item.column, a.columns);
    };
    __syncthreads();
    Ring<T, Rows, true> ring(shared_address(shared), a.columns, item.begin, item.end, copy_group);
    for (int row = item.begin; row < item.end; ++row) {
      ring.advance(copy_group);
      VectorOf<T> values[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) values[c] = load_vector<T>(ring.stage(0) + mine_of_x + c * kPixel);
#pragma unroll
      for (int kh = 0; kh < K; ++kh) {
        const unsigned at = ring.stage(kh / S) + mine + kh % S * columns * kPixel;
#pragma unroll
        for (int w = 0; w < kWindow; ++w) {
          const VectorOf<T> value = load_vector<T>(at + w * kPixel);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            const int kw = w - c * S;
            if (kw >= 0 && kw < K) sums[kh * K + kw].add(value, values[c]);
          }
        }
      }
    }
    wait_for_copies<0>();
  }

  // Warps' sums are added in order: [tap][channel].
  float* const of_block = reinterpret_cast<float*>(shared);
  for (int turn = 0; turn < a.warps; ++turn) {
    __syncthreads();
    if (turn != place.warp) continue;
#pragma unroll
    for (int k = 0; k < K * K; ++k)
#pragma unroll
      for (int v = 0; v < kVector<T>; ++v) {
        float& to = of_block[k * kChannels<T> + place.first + v];
        to = turn == 0 ? sums[k].values[v] : to + sums[k].values[v];
      }
  }
  __syncthreads();
  float* const parts = a.parts + (static_cast<std::int64_t>(split) * a.channels + place.block) * (K * K);
  const int count = min(kChannels<T>, a.channels - place.block) * (K * K);
  for (int e = threadIdx.x; e < count; e += blockDim.x)
    parts[e] = of_block[e % (K * K) * kChannels<T> + e / (K * K)];
}

/// Calls f with K, S and P of a geometry and a type, if there are kernels for them.
template <class F>
bool visit(const ConvTranspose2dGeometry& g, DType dtype, F f) {
  if (g.group_ci() != 1 || g.group_co() != 1 || g.co * static_cast<std::int64_t>(size_of(dtype)) % 16 != 0)
    return false;
  return conv_depthwise::visit_type(dtype, [&]<class T>() {
    return conv_depthwise::visit_sizes(
        g, [&]<int K, int S, int P>() { return f.template operator()<T, K, S, P>(), true; });
  });
}

bool is_aligned(const Tensor& t) {
  return t.layout() == Layout::nhwc && reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0;
}

/// `rows` and `columns` of steps.
template <class T, class Rows>
Arguments arguments_of(const ConvTranspose2dGeometry& g, std::int64_t rows, std::int64_t columns) {
  const auto narrow = [](std::int64_t i) { return static_cast<int>(i); };
  Arguments a{};
  a.channels = narrow(g.co);
  a.in_h = narrow(g.h.in), a.in_w = narrow(g.w.in), a.out_h = narrow(g.h.out), a.out_w = narrow(g.w.out);
  const std::int64_t warps = ceil_div(columns, Rows::kColumns);
  a.tiles_w = narrow(ceil_div(warps, kMostWarps));
  a.warps = narrow(ceil_div(warps, a.tiles_w));
  a.columns = a.warps * Rows::kColumns;
  a.tiles_w = narrow(ceil_div(columns, a.columns));
  a.blocks = narrow(ceil_div(g.co, kChannels<T>));
  a.rows = narrow(rows);
  // Strips that give an H100's multiprocessors equal work, with two blocks each: the fewest rows that one of
  // them goes down, and some more for its first to come.
  std::int64_t fewest = 0;
  for (std::int64_t strips = 1; strips <= rows; ++strips) {
    const std::int64_t strip = ceil_div(rows, strips),
                       all = ceil_div(g.n * a.tiles_w * a.blocks * strips, 264) * (strip + Rows::kGroups + 3);
    if (fewest > 0 && all >= fewest) continue;
    fewest = all;
    a.strip = narrow(strip);
  }
  a.strips = narrow(ceil_div(rows, a.strip));
  a.items = narrow(g.n * a.strips * a.tiles_w);
  return a;
}

void set_images(Arguments& a, const Tensor& x, const Tensor& y) {
  a.x = x.raw(), a.y = y.raw();
  a.x_strides = ImageStrides(x.strides());
  a.y_strides = ImageStrides(y.strides());
}

/// Arguments of gw but for tensors.
template <class T, class Rows>
Arguments weight_grad_arguments_of(const ConvTranspose2dGeometry& g) {
  Arguments a = arguments_of<T, Rows>(g, g.h.in, g.w.in);
  a.splits = static_cast<int>(std::min<std::int64_t>(a.items, std::max(1, 264 / a.blocks)));
  return a;
}

/// Blocks take up to 108 KB of shared memory: Hopper's have them, some others' not.
bool has_room(Device device) {
  return conv_gemm::has_wgmma(device);
}

template <class Kernel>
void launch(Kernel* kernel, const Arguments& a, std::int64_t blocks, int bytes, Device device) {
  conv_gemm::allow_shared_memory(kernel, bytes);
  launch_kernel_with_shared("conv: depthwise", device, kernel, grid_size("conv", blocks * a.blocks),
                            static_cast<unsigned>(a.warps * 32), bytes, a);
}

}  // namespace

bool depthwise_ring_fits(const ConvTranspose2dGeometry& g, DType dtype) {
  return visit(g, dtype, [&]<class T, int K, int S, int P>() {});
}

bool depthwise_ring(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
                    const Tensor& bias, const Tensor& to) {
  const Tensor &x = transposed ? from : to, &y = transposed ? to : from;
  if (!has_room(to.device()) || !is_aligned(x) || !is_aligned(y)) return false;
  return visit(g, to.dtype(), [&]<class T, int K, int S, int P>() {
    const auto run = [&]<class Rows, bool kBackward>(std::int64_t rows, std::int64_t columns) {
      Arguments a = arguments_of<T, Rows>(g, rows, columns);
      set_images(a, x, y);
      a.w = w.raw();
      a.bias = bias.defined() ? bias.raw() : nullptr;
      using R = Ring<T, Rows, false>;
      launch(depthwise_ring_kernel<T, K, S, P, kBackward>, a, a.items, R::kStages * R::stage_bytes(a.columns),
             to.device());
    };
    if (transposed) {
      run.template operator()<Forward<K, S, P>, false>(ceil_div(g.h.out, S), ceil_div(g.w.out, S));
    } else {
      run.template operator()<Gradient<K, S, P>, true>(g.h.in, g.w.in);
    }
  });
}

std::int64_t depthwise_ring_splits(const ConvTranspose2dGeometry& g, DType dtype) {
  std::int64_t splits = 0;
  visit(g, dtype, [&]<class T, int K, int S, int P>() {
    splits = weight_grad_arguments_of<T, Gradient<K, S, P>>(g).splits;
  });
  return splits;
}

bool depthwise_ring_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                const Tensor& w) {
  if (!has_room(w.device()) || !is_aligned(x) || !is_aligned(y)) return false;
  return visit(g, w.dtype(), [&]<class T, int K, int S, int P>() {
    using Rows = Gradient<K, S, P>;
    Arguments a = weight_grad_arguments_of<T, Rows>(g);
    set_images(a, x, y);
    const Workspace<float> parts(w.device(), a.splits * w.count());
    a.parts = parts.data();
    using R = Ring<T, Rows, true>;
    launch(depthwise_ring_weight_grad_kernel<T, K, S, P>, a, a.splits,
           std::max(R::kStages * R::stage_bytes(a.columns), kChannels<T> * K * K * 4), w.device());
    add_parts<T>(a.parts, a.splits, w);
  });
}

}  // namespace tapedeck::cu
