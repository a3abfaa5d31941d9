// The weight's gradient of depthwise convolutions: each block sums one channel of y over some of the images.
//
//   gw[c, k] = sum over n and the pixels i of x: x[n, c / multiplier, i] * y[n, c, o(i, k)]
//
// The work is to read x and y once. Rows of y that a strip of x meets are brought into shared memory, with
// zeros around, so that no tap asks whether it is inside. A thread has pixels of the strip and a sum for each
// tap; a pixel of x stays in a register for all of them. Threads' sums are added in a fixed order, and so are
// the blocks', by a second kernel.
//
// On an H200, 256 channels of 56x56, kernel 4, stride 2: 0.26 ms, 46% of a copy's bandwidth (0.13
// in depthwise_rows.cu; that and depthwise_planes.cu are asked first). What failed is as in depthwise.cu
// (0.52 and 0.32 ms).
#include <algorithm>

#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/depthwise.cuh>
#include <tapedeck/ops/conv/depthwise_rows.cuh>
#include <tapedeck/ops/conv/parts.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::Divider;
using conv_gemm::ImageStrides;

constexpr int kBlock = 256, kWarps = kBlock / 32, kMostBytes = 64 << 10;

struct Arguments {
  const void *x, *y;
  void* parts;
  ImageStrides x_strides, y_strides;
  int n, channels, multiplier, kernel_h, kernel_w;  // channels of y
  int in_h, in_w, out_h, out_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  int strip, pitch, rows;  // rows of x at once; y in shared memory
  int split_images;
  Divider by_width, by_pitch;
};

template <class T, int kTaps>
__global__ void __launch_bounds__(kBlock) depthwise_weight_grad_kernel(const __grid_constant__ Arguments a) {
  using V = accumulate_t<T>;
  extern __shared__ uint4 shared[];
  await_previous<false>();
  __shared__ V warps[kWarps][kTaps];
  V* const plane = reinterpret_cast<V*>(shared);
  const int channel = blockIdx.x, taps = a.kernel_h * a.kernel_w;
  const int begin = blockIdx.y * a.split_images, end = min(a.n, begin + a.split_images);
  int offsets[kTaps];
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
    const int tap = min(k, taps - 1), kh = tap / a.kernel_w;
    offsets[k] = kh * a.dilation_h * a.pitch + (tap - kh * a.kernel_w) * a.dilation_w;
  }
  V sums[kTaps] = {};
  for (int image = begin; image < end; ++image) {
    const T* const x = static_cast<const T*>(a.x) + image * a.x_strides.n +
                       static_cast<std::int64_t>(channel / a.multiplier) * a.x_strides.c;
    const T* const y = static_cast<const T*>(a.y) + image * a.y_strides.n +
                       static_cast<std::int64_t>(channel) * a.y_strides.c;
    for (int first = 0; first < a.in_h; first += a.strip) {
      __syncthreads();
      const int first_h = first * a.stride_h - a.padding_h;
#pragma unroll 8
      for (int i = threadIdx.x; i < a.rows * a.pitch; i += kBlock) {
        const int row = a.by_pitch.divide(i), h = first_h + row, w = a.by_pitch.modulo(i, row) - a.padding_w;
        const bool inside = static_cast<unsigned>(h) < static_cast<unsigned>(a.out_h) &&
                            static_cast<unsigned>(w) < static_cast<unsigned>(a.out_w);
        plane[i] = inside ? convert<V>(y[h * a.y_strides.h + w]) : V(0);
      }
      __syncthreads();
      const int pixels = min(a.strip, a.in_h - first) * a.in_w;
      for (int i = threadIdx.x; i < pixels; i += kBlock) {
        const int row = a.by_width.divide(i), column = a.by_width.modulo(i, row);
        const V value = convert<V>(x[(first + row) * a.x_strides.h + column]);
        const V* const source = plane + row * a.stride_h * a.pitch + column * a.stride_w;
#pragma unroll
        for (int k = 0; k < kTaps; ++k) sums[k] += value * source[offsets[k]];
      }
    }
  }
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sums[k] += __shfl_down_sync(0xffffffffu, sums[k], lanes);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32][k] = sums[k];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= taps) return;
  V sum = warps[0][threadIdx.x];
#pragma unroll
  for (int k = 1; k < kWarps; ++k) sum += warps[k][threadIdx.x];
  static_cast<V*>(
      a.parts)[(static_cast<std::int64_t>(blockIdx.y) * a.channels + channel) * taps + threadIdx.x] = sum;
}

/// The arguments but for tensors and strides, or `strip` 0 where shared memory is too small.
Arguments arguments_of(const ConvTranspose2dGeometry& g, DType dtype) {
  const auto narrow = [](std::int64_t i) { return static_cast<int>(i); };
  Arguments a{};
  a.n = narrow(g.n), a.channels = narrow(g.co), a.multiplier = narrow(g.group_co());
  a.kernel_h = narrow(g.h.kernel), a.kernel_w = narrow(g.w.kernel);
  a.in_h = narrow(g.h.in), a.in_w = narrow(g.w.in), a.out_h = narrow(g.h.out), a.out_w = narrow(g.w.out);
  a.stride_h = narrow(g.h.stride), a.stride_w = narrow(g.w.stride);
  a.padding_h = narrow(g.h.padding), a.padding_w = narrow(g.w.padding);
  a.dilation_h = narrow(g.h.dilation), a.dilation_w = narrow(g.w.dilation);
  a.by_width = Divider(g.w.in);
  const auto size = [](const ConvAxis& axis, std::int64_t in) {
    return (in - 1) * axis.stride + (axis.kernel - 1) * axis.dilation + 1;
  };
  const std::int64_t bytes = dtype == DType::float64 ? 8 : 4, pitch = size(g.w, g.w.in);
  std::int64_t strip = g.h.in;
  while (strip > 0 && size(g.h, strip) * pitch * bytes > kMostBytes) strip /= 2;
  if (strip == 0) return a;
  a.strip = narrow(strip);
  a.pitch = narrow(pitch);
  a.rows = narrow(size(g.h, strip));
  a.by_pitch = Divider(pitch);
  // Eight blocks for each multiprocessor of an H100.
  const std::int64_t wanted = std::clamp<std::int64_t>(132 * 8 / a.channels, 1, std::min(a.n, 65535));
  a.split_images = narrow(ceil_div(a.n, wanted));
  return a;
}

template <class T, int kTaps>
void launch(Arguments& a, const Tensor& w) {
  using V = accumulate_t<T>;
  const std::int64_t splits = ceil_div(a.n, a.split_images);
  const Workspace<V> parts(w.device(), splits * w.count());
  a.parts = parts.data();
  const dim3 grid(static_cast<unsigned>(a.channels), static_cast<unsigned>(splits));
  check_cuda(cudaFuncSetAttribute(depthwise_weight_grad_kernel<T, kTaps>,
                                  cudaFuncAttributeMaxDynamicSharedMemorySize, kMostBytes),
             "cudaFuncSetAttribute");
  launch_kernel_with_shared("conv: depthwise weight gradient", w.device(),
                            depthwise_weight_grad_kernel<T, kTaps>, grid, kBlock,
                            static_cast<int>(sizeof(V)) * a.rows * a.pitch, a);
  add_parts<T>(parts.data(), splits, w);
}

}  // namespace

bool depthwise_weight_grad_fits(const ConvTranspose2dGeometry& g, Layout x, Layout y, DType dtype) {
  return conv_gemm::positions_fit(g) && g.group_ci() == 1 && g.h.kernel * g.w.kernel <= 25 &&
         x == Layout::nchw && y == Layout::nchw && g.n > 0 && arguments_of(g, dtype).strip > 0;
}

std::int64_t depthwise_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, bool has_wgmma) {
  if (has_wgmma && depthwise_planes_fits(g, dtype)) return depthwise_planes_splits(g, dtype);
  const std::int64_t of_rows = depthwise_rows_splits(g, dtype);
  return of_rows > 0 ? of_rows : ceil_div(g.n, arguments_of(g, dtype).split_images);
}

void depthwise_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                           const Tensor& w) {
  const DeviceScope scope(w.device());
  if (depthwise_planes_weight_grad(g, x, y, w) || depthwise_rows_weight_grad(g, x, y, w)) return;
  Arguments a = arguments_of(g, w.dtype());
  a.x = x.raw();
  a.y = y.raw();
  a.x_strides = ImageStrides(x.strides());
  a.y_strides = ImageStrides(y.strides());
  visit_floating("conv", w.dtype(), [&]<class T>() {
    const std::int64_t taps = g.h.kernel * g.w.kernel;
    if (taps <= 9) return launch<T, 9>(a, w);
    if (taps <= 16) return launch<T, 16>(a, w);
    launch<T, 25>(a, w);
  });
}

}  // namespace tapedeck::cu
