// Thin layers: y has 1 to 4 channels, x many. x is the large side: it is read, or written, once, and in rows.
//
//   transposed   With o + padding = S q + r, a tap k = S j + r takes input q - j to output o: a thread has
//                some neighbouring q of a column, and so S x S outputs for each, of all channels of y. It
//                goes through the channels of x: what it reads of one it multiplies by all taps.
//   plain        x[i] = the sum of y[S i + k - padding] w[k] over taps and channels of y: a thread has some
//                neighbouring i of a row. It reads their windows of y once, and then writes channel after
//                channel of x.
//   weight_grad  w[k] = the sum of x[i] y[S i + k - padding] over images and i: a thread has some channels
//                of x and all taps, and goes through pixels; blocks add up their threads' sums, and a second
//                kernel the blocks', always in one order.
//
// Neighbouring threads have neighbouring columns; what several threads read is in the first-level cache.
// Weights are in shared memory, as they lie; what a thread reads of them serves all its places, as reading
// them takes as long as multiplying. Sums are float32's, by fused multiply-adds: what is left to them are the
// thinnest layers, others take tensor cores (thin_products.cu).
#include <tapedeck/ops/conv/thin.cuh>

#include <algorithm>

#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::Divider;

constexpr int kBlock = 256;
constexpr int kWeightBytes = 48 << 10;  // of shared memory

struct ThinArguments {
  const float *from, *w, *bias;
  float* to;
  int x_channels, x_h, x_w, y_h, y_w;
  int padding_h, padding_w;
  int first_h, first_w;   // the first q
  Divider columns, rows;  // of threads, in an image
  int threads, share;     // of all images; channels of x of a block
};

/// Where a thread works.
struct ThinPlace {
  int image, row, column;

  __device__ ThinPlace(const ThinArguments& a, int thread) {
    const int line = a.columns.divide(thread);
    column = a.columns.modulo(thread, line);
    image = a.rows.divide(line);
    row = a.rows.modulo(line, image);
  }
};

/// The weights of a channel of x, padded to whole vectors.
template <int K, int CO>
inline constexpr int kPadded = (CO * K * K + 3) / 4 * 4;

/// Brings those of `count` channels.
template <int K, int CO>
__device__ void bring_weights(const ThinArguments& a, int first, int count, float* weights) {
  constexpr int kAll = CO * K * K;
  for (int e = threadIdx.x; e < count * kPadded<K, CO>; e += kBlock) {
    const int c = e / kPadded<K, CO>, k = e - c * kPadded<K, CO>;
    weights[e] = k < kAll ? a.w[(first + c) * kAll + k] : 0.0f;
  }
  __syncthreads();
}

template <int K, int CO>
__device__ __forceinline__ void read_weights(const float* weights, float (&w)[kPadded<K, CO>]) {
#pragma unroll
  for (int k = 0; k < kPadded<K, CO>; k += 4) {
    const float4 four = *reinterpret_cast<const float4*>(weights + k);
    w[k] = four.x, w[k + 1] = four.y, w[k + 2] = four.z, w[k + 3] = four.w;
  }
}

/// K: kernel, S: stride, CO: channels of y, R: q of a thread.
template <int K, int S, int CO, int R>
__global__ void __launch_bounds__(kBlock) thin_transposed_kernel(const __grid_constant__ ThinArguments a) {
  constexpr int J = (K + S - 1) / S, kRows = R + J - 1;
  extern __shared__ float4 shared[];
  float* const weights = reinterpret_cast<float*>(shared);
  await_previous<false>();
  bring_weights<K, CO>(a, 0, a.x_channels, weights);
  const int thread = blockIdx.x * kBlock + threadIdx.x;
  if (thread >= a.threads) return;
  const ThinPlace at(a, thread);
  const int q_h = a.first_h + at.row * R, q_w = a.first_w + at.column;
  const int plane = a.x_h * a.x_w;
  // Rows q_h - (J - 1) to q_h + R - 1 and columns q_w - (J - 1) to q_w of x.
  const float* const from = a.from + static_cast<std::int64_t>(at.image) * a.x_channels * plane;
  int place[kRows];
  bool in_h[kRows], in_w[J];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = q_h - (J - 1) + i;
    in_h[i] = row >= 0 && row < a.x_h;
    place[i] = row * a.x_w + q_w - (J - 1);
  }
#pragma unroll
  for (int j = 0; j < J; ++j) in_w[j] = q_w - (J - 1) + j >= 0 && q_w - (J - 1) + j < a.x_w;

  float sums[R][S][S][CO] = {};
#pragma unroll 2
  for (int c = 0; c < a.x_channels; ++c) {
    const float* const channel = from + c * plane;
    float x[kRows][J];
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < J; ++j) x[i][j] = in_h[i] && in_w[j] ? channel[place[i] + j] : 0.0f;
    float w[kPadded<K, CO>];
    read_weights<K, CO>(weights + c * kPadded<K, CO>, w);
#pragma unroll
    for (int co = 0; co < CO; ++co)
#pragma unroll
      for (int kh = 0; kh < K; ++kh)
#pragma unroll
        for (int kw = 0; kw < K; ++kw)
#pragma unroll
          for (int r = 0; r < R; ++r) {
            float& sum = sums[r][kh % S][kw % S][co];
            sum = fmaf(x[r + J - 1 - kh / S][J - 1 - kw / S], w[(co * K + kh) * K + kw], sum);
          }
  }
#pragma unroll
  for (int co = 0; co < CO; ++co) {
    const float bias = a.bias != nullptr ? a.bias[co] : 0.0f;
    float* const to = a.to + (static_cast<std::int64_t>(at.image) * CO + co) * a.y_h * a.y_w;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int i = 0; i < S; ++i)
#pragma unroll
        for (int j = 0; j < S; ++j) {
          const int h = S * (q_h + r) + i - a.padding_h, w = S * q_w + j - a.padding_w;
          if (h >= 0 && h < a.y_h && w >= 0 && w < a.y_w) to[h * a.y_w + w] = sums[r][i][j][co] + bias;
        }
  }
}

/// A pixel's windows of y, and of the R - 1 below it; zeros outside.
template <int K, int S, int CO, int R>
__device__ __forceinline__ void read_windows(const ThinArguments& a, const float* y, int image, int row,
                                             int column, float (&window)[CO][(R - 1) * S + K][K]) {
#pragma unroll
  for (int co = 0; co < CO; ++co) {
    const float* const from = y + (static_cast<std::int64_t>(image) * CO + co) * a.y_h * a.y_w;
#pragma unroll
    for (int i = 0; i < (R - 1) * S + K; ++i)
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const int h = S * row + i - a.padding_h, w = S * column + j - a.padding_w;
        window[co][i][j] = h >= 0 && h < a.y_h && w >= 0 && w < a.y_w ? from[h * a.y_w + w] : 0.0f;
      }
  }
}

/// C: neighbouring pixels of a row that a thread has, and stores at once. Block (b, s) has share s of the
/// channels of x.
template <int K, int S, int CO, int C>
__global__ void __launch_bounds__(kBlock) thin_plain_kernel(const __grid_constant__ ThinArguments a) {
  constexpr int kColumns = (C - 1) * S + K;
  extern __shared__ float4 shared[];
  float* const weights = reinterpret_cast<float*>(shared);
  const int first = blockIdx.y * a.share, count = min(a.share, a.x_channels - first);
  await_previous<false>();
  bring_weights<K, CO>(a, first, count, weights);
  const int thread = blockIdx.x * kBlock + threadIdx.x;
  if (thread >= a.threads) return;
  const ThinPlace at(a, thread);
  const int column = at.column * C;
  float y[CO][K][kColumns];
#pragma unroll
  for (int co = 0; co < CO; ++co) {
    const float* const from = a.from + (static_cast<std::int64_t>(at.image) * CO + co) * a.y_h * a.y_w;
#pragma unroll
    for (int i = 0; i < K; ++i)
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const int h = S * at.row + i - a.padding_h, w = S * column + j - a.padding_w;
        y[co][i][j] = h >= 0 && h < a.y_h && w >= 0 && w < a.y_w ? from[h * a.y_w + w] : 0.0f;
      }
  }
  const int plane = a.x_h * a.x_w;
  float* to =
      a.to + (static_cast<std::int64_t>(at.image) * a.x_channels + first) * plane + at.row * a.x_w + column;
#pragma unroll 2
  for (int c = 0; c < count; ++c, to += plane) {
    float w[kPadded<K, CO>];
    read_weights<K, CO>(weights + c * kPadded<K, CO>, w);
    const float bias = a.bias != nullptr ? a.bias[first + c] : 0.0f;
    Pack<float, C> sums;
#pragma unroll
    for (int p = 0; p < C; ++p) sums.values[p] = bias;
#pragma unroll
    for (int co = 0; co < CO; ++co)
#pragma unroll
      for (int kh = 0; kh < K; ++kh)
#pragma unroll
        for (int kw = 0; kw < K; ++kw)
#pragma unroll
          for (int p = 0; p < C; ++p)
            sums.values[p] = fmaf(y[co][kh][p * S + kw], w[(co * K + kh) * K + kw], sums.values[p]);
    *reinterpret_cast<Pack<float, C>*>(to) = sums;
  }
}

constexpr int kChannels = 4;  // of x, of a thread

/// Block (b, s) has `share` of all threads' places, of channels kChannels s on; `from` is x, `w` is y, and
/// `to` receives the sums [b][channel of x][tap].
template <int K, int S, int CO, int R>
__global__ void __launch_bounds__(kBlock) thin_weight_grad_kernel(const __grid_constant__ ThinArguments a) {
  constexpr int kTaps = CO * K * K;
  __shared__ float of_warps[kBlock / 32][kChannels * kTaps];
  const int first = blockIdx.y * kChannels, count = min(kChannels, a.x_channels - first);
  const int plane = a.x_h * a.x_w;
  float sums[kChannels][kTaps] = {};
  await_previous<false>();
  const int begin = blockIdx.x * a.share, end = min(a.threads, begin + a.share);
  for (int thread = begin + threadIdx.x; thread < end; thread += kBlock) {
    const ThinPlace at(a, thread);
    const int row = at.row * R;
    const float* const from = a.from + (static_cast<std::int64_t>(at.image) * a.x_channels + first) * plane +
                              row * a.x_w + at.column;
    float x[kChannels][R];
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
#pragma unroll
      for (int r = 0; r < R; ++r) x[c][r] = c < count && row + r < a.x_h ? from[c * plane + r * a.x_w] : 0.0f;
    float y[CO][(R - 1) * S + K][K];
    read_windows<K, S, CO, R>(a, a.w, at.image, row, at.column, y);
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
#pragma unroll
      for (int co = 0; co < CO; ++co)
#pragma unroll
        for (int kh = 0; kh < K; ++kh)
#pragma unroll
          for (int kw = 0; kw < K; ++kw)
#pragma unroll
            for (int r = 0; r < R; ++r) {
              float& sum = sums[c][(co * K + kh) * K + kw];
              sum = fmaf(x[c][r], y[co][r * S + kh][kw], sum);
            }
  }
#pragma unroll
  for (int e = 0; e < kChannels * kTaps; ++e) {
    float sum = sums[e / kTaps][e % kTaps];
#pragma unroll
    for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][e] = sum;
  }
  __syncthreads();
  const int e = threadIdx.x;
  if (e >= count * kTaps) return;
  float sum = 0;
#pragma unroll
  for (int warp = 0; warp < kBlock / 32; ++warp) sum += of_warps[warp][e];
  a.to[(static_cast<std::int64_t>(blockIdx.x) * a.x_channels + first) * kTaps + e] = sum;
}

/// A warp adds up the blocks' sums of a weight.
__global__ void __launch_bounds__(kBlock)
    add_blocks_kernel(const float* sums, int blocks, int weights, float* to) {
  const int weight = (blockIdx.x * kBlock + threadIdx.x) / 32, lane = threadIdx.x % 32;
  await_previous();
  if (weight >= weights) return;
  float sum = 0;
  for (int b = lane; b < blocks; b += 32) sum += sums[static_cast<std::int64_t>(b) * weights + weight];
#pragma unroll
  for (int half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
  if (lane == 0) to[weight] = sum;
}

using ThinKernel = void (*)(ThinArguments);

/// A kernel, and how many q below each other, or pixels side by side, its threads have.
struct ThinChoice {
  ThinKernel kernel;
  int places;
};

/// `most`: 1, 2 or 4: how many places there are enough for, and which divide what is written.
template <int K, int S, int CO>
ThinChoice choose(bool transposed, int most) {
  // What is read for them has to fit the registers.
  constexpr int kTransposed = S == 1 ? 4 : 2, kPlain = CO * K * K <= 48 ? 4 : 2;
  const auto pick = [&]<int kPlaces>() {
    return transposed ? ThinChoice{thin_transposed_kernel<K, S, CO, std::min(kPlaces, kTransposed)>,
                                   std::min(kPlaces, kTransposed)}
                      : ThinChoice{thin_plain_kernel<K, S, CO, std::min(kPlaces, kPlain)>,
                                   std::min(kPlaces, kPlain)};
  };
  return most == 4   ? pick.template operator()<4>()
         : most == 2 ? pick.template operator()<2>()
                     : pick.template operator()<1>();
}

template <int CO>
ThinChoice choose(int kernel, int stride, bool transposed, int most) {
  if (kernel == 4) return choose<4, 2, CO>(transposed, most);
  return stride == 1 ? choose<3, 1, CO>(transposed, most) : choose<3, 2, CO>(transposed, most);
}

ThinChoice choose(int channels, int kernel, int stride, bool transposed, int most) {
  switch (channels) {
    case 1:
      return choose<1>(kernel, stride, transposed, most);
    case 2:
      return choose<2>(kernel, stride, transposed, most);
    case 3:
      return choose<3>(kernel, stride, transposed, most);
    default:
      return choose<4>(kernel, stride, transposed, most);
  }
}

/// Bytes of shared memory for the weights of a channel of x.
std::int64_t weight_bytes(const ConvTranspose2dGeometry& g) {
  return (g.co * g.h.kernel * g.w.kernel + 3) / 4 * 16;
}

/// Sizes of all but threads.
ThinArguments sizes_of(const ConvTranspose2dGeometry& g) {
  ThinArguments a{};
  a.x_channels = static_cast<int>(g.ci);
  a.x_h = static_cast<int>(g.h.in), a.x_w = static_cast<int>(g.w.in);
  a.y_h = static_cast<int>(g.h.out), a.y_w = static_cast<int>(g.w.out);
  a.padding_h = static_cast<int>(g.h.padding), a.padding_w = static_cast<int>(g.w.padding);
  return a;
}

}  // namespace

bool thin_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout from, Layout to) {
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  const bool known = (g.h.kernel == 3 && g.h.stride <= 2) || (g.h.kernel == 4 && g.h.stride == 2);
  return dtype == DType::float32 && from == Layout::nchw && to == Layout::nchw && g.groups == 1 &&
         g.co <= 4 && g.h.kernel == g.w.kernel && g.h.stride == g.w.stride && g.h.dilation == 1 &&
         g.w.dilation == 1 && known && g.h.padding < g.h.kernel && g.w.padding < g.w.kernel &&
         g.ci * weight_bytes(g) <= kWeightBytes && g.x_shape().count() < kMost &&
         g.n * (g.h.out + 2 * g.h.padding) * (g.w.out + 2 * g.w.padding) < kMost &&
         g.n * g.co * g.h.out * g.w.out < kMost;
}

void thin(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
          const Tensor& bias, const Tensor& to) {
  ThinArguments a = sizes_of(g);
  a.from = from.data<float>();
  a.w = w.data<float>();
  a.bias = bias.defined() ? bias.data<float>() : nullptr;
  a.to = to.data<float>();
  const auto first = [](const ConvAxis& axis) { return axis.padding / axis.stride; };
  const auto count = [&](const ConvAxis& axis) {
    return transposed ? (axis.padding + axis.out - 1) / axis.stride - first(axis) + 1 : axis.in;
  };
  a.first_h = static_cast<int>(first(g.h)), a.first_w = static_cast<int>(first(g.w));
  // Threads with many places read less for each, and fill a GPU later.
  constexpr std::int64_t kEnough = 264 * kBlock;
  const int kernel = static_cast<int>(g.h.kernel), stride = static_cast<int>(g.h.stride);
  const std::int64_t places = g.n * count(g.h) * count(g.w);
  int most = places >= 4 * kEnough ? 4 : places >= 2 * kEnough ? 2 : 1;
  const auto address = reinterpret_cast<std::uintptr_t>(a.to);
  while (!transposed && (g.w.in % most != 0 || address % (most * sizeof(float)) != 0)) most /= 2;
  const ThinChoice choice = choose(static_cast<int>(g.co), kernel, stride, transposed, most);
  const std::int64_t rows = transposed ? ceil_div(count(g.h), choice.places) : g.h.in,
                     columns = transposed ? count(g.w) : g.w.in / choice.places;
  a.rows = Divider(rows), a.columns = Divider(columns);
  a.threads = static_cast<int>(g.n * rows * columns);
  const std::int64_t blocks = ceil_div(a.threads, kBlock);
  const std::int64_t shares =
      transposed ? 1 : std::clamp<std::int64_t>(264 / blocks, 1, std::min<std::int64_t>(4, g.ci));
  a.share = static_cast<int>(ceil_div(g.ci, shares));
  const dim3 grid(grid_size("conv", blocks), static_cast<unsigned>(ceil_div(g.ci, a.share)));
  launch_kernel_with_shared("conv: thin", to.device(), choice.kernel, transposed ? dim3(grid.x) : grid,
                            kBlock, static_cast<int>(a.share * weight_bytes(g)), a);
}

bool thin_weight_grad_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y) {
  return thin_fits(g, dtype, x, y) && g.co == 1;
}

namespace {

constexpr int kFew = 2, kMany = 4;  // rows of a thread at strides of 2 and 1

std::int64_t weight_grad_rows(const ConvTranspose2dGeometry& g) {
  return ceil_div(g.h.in, g.h.stride == 1 ? kMany : kFew);
}

}  // namespace

// Two blocks for each multiprocessor of an H100, as far as each thread has a place.
std::int64_t thin_weight_grad_splits(const ConvTranspose2dGeometry& g) {
  return std::clamp<std::int64_t>(
      2 * 264 / ceil_div(g.ci, kChannels), 1,
      std::max<std::int64_t>(1, ceil_div(g.n * weight_grad_rows(g) * g.w.in, kBlock)));
}

void thin_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  ThinArguments a = sizes_of(g);
  a.from = x.data<float>();
  a.w = y.data<float>();
  const int kernel = static_cast<int>(g.h.kernel), stride = static_cast<int>(g.h.stride);
  const std::int64_t rows = weight_grad_rows(g), columns = g.w.in;
  a.rows = Divider(rows), a.columns = Divider(columns);
  a.threads = static_cast<int>(g.n * rows * columns);
  const std::int64_t groups = ceil_div(g.ci, kChannels), blocks = thin_weight_grad_splits(g);
  a.share = static_cast<int>(ceil_div(a.threads, blocks));
  const int weights = static_cast<int>(w.count());
  const Workspace<float> sums(w.device(), blocks * weights);
  a.to = sums.data();
  const ThinKernel run = kernel == 4   ? thin_weight_grad_kernel<4, 2, 1, kFew>
                         : stride == 2 ? thin_weight_grad_kernel<3, 2, 1, kFew>
                                       : thin_weight_grad_kernel<3, 1, 1, kMany>;
  launch_kernel("conv: thin", w.device(), run, dim3(grid_size("conv", blocks), static_cast<unsigned>(groups)),
                kBlock, a);
  launch_kernel("conv: thin", w.device(), add_blocks_kernel,
                grid_size("conv", ceil_div(std::int64_t{weights} * 32, kBlock)), kBlock, sums.data(),
                static_cast<int>(blocks), weights, w.data<float>());
}

}  // namespace tapedeck::cu
