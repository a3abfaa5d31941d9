// The weight's gradient where groups have few channels: each block sums the products of one channel of x and
// one of y over some of the images, all taps at once.
//
// Threads share the pixels of an image of x; their sums are added in a fixed order, and so are the blocks',
// by a second kernel.
#include <algorithm>

#include <tapedeck/ops/conv/direct_choice.h>
#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/ops/conv/direct.cuh>
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/thin.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::Divider;
using conv_gemm::ImageStrides;

constexpr int kBlock = conv_direct::kGradThreads, kWarps = kBlock / 32;

struct DirectWeightGradArguments {
  const void *x, *y;
  void* parts;
  ImageStrides x_strides, y_strides;
  int n, ci, co, kernel_h, kernel_w;  // channels of a group
  int in_h, in_w, out_h, out_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  int pairs, split_images;
  Divider width;  // by in_w
};

template <class T, int kTaps>
__global__ void __launch_bounds__(kBlock)
    direct_weight_grad_kernel(const __grid_constant__ DirectWeightGradArguments a) {
  using V = accumulate_t<T>;
  __shared__ V warps[kWarps][kTaps];
  const int pair = blockIdx.x, ci = pair / a.co, co = ci / a.ci * a.co + pair % a.co;
  const int begin = blockIdx.y * a.split_images, end = min(a.n, begin + a.split_images),
            taps = a.kernel_h * a.kernel_w;
  V sums[kTaps] = {};
  for (int image = begin; image < end; ++image) {
    const T* const x = static_cast<const T*>(a.x) + image * a.x_strides.n + ci * a.x_strides.c;
    const T* const y = static_cast<const T*>(a.y) + image * a.y_strides.n + co * a.y_strides.c;
    for (int i = threadIdx.x; i < a.in_h * a.in_w; i += kBlock) {
      const int ih = a.width.divide(i), iw = a.width.modulo(i, ih);
      const V value = convert<V>(x[ih * a.x_strides.h + iw * a.x_strides.w]);
      const int oh = ih * a.stride_h - a.padding_h, ow = iw * a.stride_w - a.padding_w;
      int kh = 0, kw = 0;
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        if (k < taps) {
          const int h = oh + kh * a.dilation_h, w = ow + kw * a.dilation_w;
          if (h >= 0 && h < a.out_h && w >= 0 && w < a.out_w) {
            sums[k] += value * convert<V>(y[h * a.y_strides.h + w * a.y_strides.w]);
          }
          if (++kw == a.kernel_w) kw = 0, ++kh;
        }
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
  static_cast<V*>(a.parts)[(static_cast<std::int64_t>(blockIdx.y) * a.pairs + pair) * taps + threadIdx.x] =
      sum;
}

template <class T, int kTaps>
void launch(DirectWeightGradArguments& a, const Tensor& w) {
  using V = accumulate_t<T>;
  const std::int64_t splits = ceil_div(a.n, a.split_images);
  const Workspace<V> parts(w.device(), splits * w.count());
  a.parts = parts.data();
  const dim3 grid(static_cast<unsigned>(a.pairs), static_cast<unsigned>(splits));
  direct_weight_grad_kernel<T, kTaps><<<grid, kBlock, 0, stream_of(w.device())>>>(a);
  check_launch("conv: direct weight gradient");
  add_parts<T>(parts.data(), splits, w);
}

}  // namespace

bool direct_weight_grad_fits(const ConvTranspose2dGeometry& g) {
  return conv_gemm::fits(g) && g.h.kernel * g.w.kernel <= 25;
}

std::int64_t direct_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y) {
  return thin_weight_grad_fits(g, dtype, x, y) ? thin_weight_grad_splits(g)
                                               : ceil_div(g.n, conv_direct::grad_images(g));
}

void direct_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  if (thin_weight_grad_fits(g, x.dtype(), x.layout(), y.layout())) return thin_weight_grad(g, x, y, w);
  const DeviceScope scope(w.device());
  const auto narrow = [](std::int64_t i) { return static_cast<int>(i); };
  DirectWeightGradArguments a{};
  a.x = x.raw();
  a.y = y.raw();
  a.x_strides = conv_gemm::ImageStrides(x.strides());
  a.y_strides = conv_gemm::ImageStrides(y.strides());
  a.n = narrow(g.n), a.ci = narrow(g.group_ci()), a.co = narrow(g.group_co());
  a.kernel_h = narrow(g.h.kernel), a.kernel_w = narrow(g.w.kernel);
  a.in_h = narrow(g.h.in), a.in_w = narrow(g.w.in), a.out_h = narrow(g.h.out), a.out_w = narrow(g.w.out);
  a.stride_h = narrow(g.h.stride), a.stride_w = narrow(g.w.stride);
  a.padding_h = narrow(g.h.padding), a.padding_w = narrow(g.w.padding);
  a.dilation_h = narrow(g.h.dilation), a.dilation_w = narrow(g.w.dilation);
  a.pairs = narrow(g.ci * g.group_co());
  a.width = Divider(g.w.in);
  a.split_images = narrow(conv_direct::grad_images(g));
  visit_floating("conv", w.dtype(), [&]<class T>() {
    const std::int64_t taps = g.h.kernel * g.w.kernel;
    if (taps <= 9) return launch<T, 9>(a, w);
    if (taps <= 16) return launch<T, 16>(a, w);
    launch<T, 25>(a, w);
  });
}

}  // namespace tapedeck::cu
