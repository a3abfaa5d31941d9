#include <tapedeck/ops/pool.h>

#include <limits>

#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

namespace {

/// One axis of the windows: window o has its k-th tap at o * stride - padding + k * dilation.
struct Windows {
  std::int64_t in, out, kernel, stride, padding, dilation;
};

template <class V>
void max_pool(const Tensor& x, const Windows& h, const Windows& w, const Tensor& y, const Tensor& index) {
  const Reader<V> in(x);
  const Writer<V> out(y);
  std::int64_t* const where = index.defined() ? index.data<std::int64_t>() : nullptr;
  const std::int64_t inner = x.layout() == Layout::nhwc ? x.size(1) : 1;
  for_each("max_pool2d", x.device(), y.count(), [=] __device__(std::int64_t i) {
    const std::int64_t c = i % inner, ow = i / inner % w.out, oh = i / inner / w.out % h.out;
    const std::int64_t plane = i / inner / w.out / h.out * h.in * w.in;
    V best = -std::numeric_limits<V>::infinity();
    std::int64_t place = -1;
    for (std::int64_t kh = 0; kh < h.kernel; ++kh) {
      const std::int64_t ih = oh * h.stride - h.padding + kh * h.dilation;
      if (ih < 0 || ih >= h.in) continue;
      for (std::int64_t kw = 0; kw < w.kernel; ++kw) {
        const std::int64_t iw = ow * w.stride - w.padding + kw * w.dilation;
        if (iw < 0 || iw >= w.in) continue;
        const V value = in[(plane + ih * w.in + iw) * inner + c];
        // The first of equal ones, also of -infinity; a NaN is taken, and stays.
        if (place < 0 || (!(value <= best) && best == best)) {
          best = value;
          place = ih * w.in + iw;
        }
      }
    }
    out.write(i, best);
    if (where != nullptr) where[i] = place;
  });
}

}  // namespace

void max_pool2d(const Tensor& x, const MaxPool2dOptions& options, const Tensor& y, const Tensor& index) {
  const auto& [kernel, stride, padding, dilation, ceil_mode] = options;
  const Windows h{x.size(2), y.size(2), kernel.h, stride.h, padding.h, dilation.h};
  const Windows w{x.size(3), y.size(3), kernel.w, stride.w, padding.w, dilation.w};
  if (x.dtype() == DType::float64) return max_pool<double>(x, h, w, y, index);
  max_pool<float>(x, h, w, y, index);
}

}  // namespace tapedeck::cu
