// The definition, gathered: formulas and contract as in reference.cpp. A thread has a result of a map, a
// block one of a weight gradient, which are few and have as many terms as there are pixels.
#include <algorithm>

#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu::reference {

namespace {

/// Where the elements of a tensor [n,c,h,w] of either layout are.
struct Places {
  explicit Places(const Tensor& x) : channels_last(x.layout() == Layout::nhwc) {
    for (int i = 0; i < 4; ++i) sizes[i] = x.size(i), strides[i] = x.strides()[static_cast<std::size_t>(i)];
  }
  TAPEDECK_HD std::int64_t at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3];
  }
  /// The position {n, c, h, w} of element i in memory.
  TAPEDECK_HD void position(std::int64_t i, std::int64_t (&p)[4]) const {
    const int inner = channels_last ? 1 : 3, middle = channels_last ? 3 : 2, outer = channels_last ? 2 : 1;
    p[inner] = i % sizes[inner], i /= sizes[inner];
    p[middle] = i % sizes[middle], i /= sizes[middle];
    p[outer] = i % sizes[outer], p[0] = i / sizes[outer];
  }
  std::int64_t sizes[4], strides[4];
  bool channels_last;
};

template <class V>
void transposed(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                const Tensor& y) {
  const Places in(x), weight(w), out(y);
  const Reader<V> from(x), taps(w), start = bias.defined() ? Reader<V>(bias) : Reader<V>();
  const Writer<V> to(y);
  for_each("conv_transpose2d", y.device(), y.count(), [=] __device__(std::int64_t i) {
    std::int64_t p[4];
    out.position(i, p);
    const std::int64_t first = p[1] / g.group_co() * g.group_ci(), co = p[1] % g.group_co();
    V sum = start.data != nullptr ? start[p[1]] : V(0);
    for (std::int64_t kh = 0; kh < g.h.kernel; ++kh) {
      const std::int64_t ih = g.h.input(p[2], kh);
      if (ih < 0) continue;
      for (std::int64_t kw = 0; kw < g.w.kernel; ++kw) {
        const std::int64_t iw = g.w.input(p[3], kw);
        if (iw < 0) continue;
        for (std::int64_t ci = first; ci < first + g.group_ci(); ++ci) {
          sum += from[in.at(p[0], ci, ih, iw)] * taps[weight.at(ci, co, kh, kw)];
        }
      }
    }
    to.write(i, sum);
  });
}

template <class V>
void plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
           const Tensor& x) {
  const Places in(y), weight(w), out(x);
  const Reader<V> from(y), taps(w), start = bias.defined() ? Reader<V>(bias) : Reader<V>();
  const Writer<V> to(x);
  for_each("conv2d", x.device(), x.count(), [=] __device__(std::int64_t i) {
    std::int64_t p[4];
    out.position(i, p);
    const std::int64_t first = p[1] / g.group_ci() * g.group_co();
    V sum = start.data != nullptr ? start[p[1]] : V(0);
    for (std::int64_t kh = g.h.tap_begin(p[2]); kh < g.h.tap_end(p[2]); ++kh) {
      for (std::int64_t kw = g.w.tap_begin(p[3]); kw < g.w.tap_end(p[3]); ++kw) {
        for (std::int64_t co = 0; co < g.group_co(); ++co) {
          sum += from[in.at(p[0], first + co, g.h.output(p[2], kh), g.w.output(p[3], kw))] *
                 taps[weight.at(p[1], co, kh, kw)];
        }
      }
    }
    to.write(i, sum);
  });
}

constexpr std::int64_t kMostBlocks = 1 << 16;

/// A block has one result at a time: thread t the sums of rows t, t + kThreads, ... of x, of all images; the
/// threads' sums are added pairwise.
template <class V>
__global__ void __launch_bounds__(kThreads)
    correlation_kernel(ConvTranspose2dGeometry g, Places a, Places b, Places out, Reader<V> left,
                       Reader<V> right, Writer<V> to, std::int64_t results) {
  __shared__ V sums[kThreads];
  for (std::int64_t i = blockIdx.x; i < results; i += gridDim.x) {
    std::int64_t p[4];  // ci, co, kh, kw
    out.position(i, p);
    const std::int64_t channel = p[0] / g.group_ci() * g.group_co() + p[1];
    const std::int64_t h_begin = g.h.input_begin(p[2]), h_end = g.h.input_end(p[2]);
    const std::int64_t w_begin = g.w.input_begin(p[3]), w_end = g.w.input_end(p[3]);
    V sum = 0;
    const std::int64_t rows = h_end > h_begin ? h_end - h_begin : 0;
    for (std::int64_t row = threadIdx.x; row < g.n * rows; row += kThreads) {
      const std::int64_t n = row / rows, ih = h_begin + row % rows;
      for (std::int64_t iw = w_begin; iw < w_end; ++iw) {
        sum +=
            left[a.at(n, p[0], ih, iw)] * right[b.at(n, channel, g.h.output(ih, p[2]), g.w.output(iw, p[3]))];
      }
    }
    sums[threadIdx.x] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) to.write(i, sums[0]);
    __syncthreads();
  }
}

template <class V>
void correlation(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  if (w.count() == 0) return;
  const DeviceScope scope(w.device());
  const char* const op = "conv_transpose2d_weight_grad";
  const std::int64_t blocks = std::min(w.count(), kMostBlocks);
  correlation_kernel<V><<<grid_size(op, blocks), kThreads, 0, stream_of(w.device())>>>(
      g, Places(x), Places(y), Places(w), Reader<V>(x), Reader<V>(y), Writer<V>(w), w.count());
  check_launch(op);
}

}  // namespace

void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y) {
  if (y.dtype() == DType::float64) return transposed<double>(g, x, w, bias, y);
  transposed<float>(g, x, w, bias, y);
}

void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x) {
  if (x.dtype() == DType::float64) return plain<double>(g, y, w, bias, x);
  plain<float>(g, y, w, bias, x);
}

void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  if (w.dtype() == DType::float64) return correlation<double>(g, x, y, w);
  correlation<float>(g, x, y, w);
}

}  // namespace tapedeck::cu::reference
