// The definition, gathered: each result is one sum over the positions that reach it.
//
//   y[n,co,oh,ow] = b[co] + sum over ci, kh, kw of x[n,ci,ih,iw] * w[ci,co,kh,kw]
//   x[n,ci,ih,iw] = b[ci] + sum over co, kh, kw of y[n,co,oh,ow] * w[ci,co,kh,kw]
//   w[ci,co,kh,kw] = sum over n, ih, iw of x[n,ci,ih,iw] * y[n,co,oh,ow]
//
// with oh + padding = ih*stride + kh*dilation, likewise ow, and ci, co of one group. Any dtype, any layouts
// of x and y; w and b row-major. Half types are summed in float32. Outputs are independent of each other.
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck::cpu::reference {

namespace {

/// A tensor [n,c,h,w] of either layout, read and written by position.
template <class T>
struct Images {
  explicit Images(const Tensor& tensor) : data(tensor.data<T>()) {
    const auto s = tensor.strides();
    for (int i = 0; i < 4; ++i) strides[i] = s[static_cast<std::size_t>(i)];
  }
  T& at(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) const {
    return data[n * strides[0] + c * strides[1] + h * strides[2] + w * strides[3]];
  }
  T* data;
  std::int64_t strides[4];
};

/// Sets out.at(n, c, h, w) = value(n, c, h, w) for every position, in parallel.
template <class T, class F>
void for_each_output(const Images<T>& out, const Shape& shape, F value) {
  const std::int64_t height = shape[2], width = shape[3], channels = shape[1];
  parallel_for(shape[0] * channels * height, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t h = row % height, c = row / height % channels, n = row / height / channels;
      for (std::int64_t w = 0; w < width; ++w) out.at(n, c, h, w) = convert<T>(value(n, c, h, w));
    }
  });
}

}  // namespace

void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y) {
  visit_floating("conv_transpose2d", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const Images<T> in(x), weight(w), out(y);
    const T* b = bias.defined() ? bias.data<T>() : nullptr;
    for_each_output(out, y.shape(), [&](std::int64_t n, std::int64_t co, std::int64_t oh, std::int64_t ow) {
      const std::int64_t first = co / g.group_co() * g.group_ci(), co_in_group = co % g.group_co();
      A sum = b != nullptr ? convert<A>(b[co]) : A(0);
      for (std::int64_t kh = 0; kh < g.h.kernel; ++kh) {
        const std::int64_t ih = g.h.input(oh, kh);
        if (ih < 0) continue;
        for (std::int64_t kw = 0; kw < g.w.kernel; ++kw) {
          const std::int64_t iw = g.w.input(ow, kw);
          if (iw < 0) continue;
          for (std::int64_t ci = first; ci < first + g.group_ci(); ++ci) {
            sum += convert<A>(in.at(n, ci, ih, iw)) * convert<A>(weight.at(ci, co_in_group, kh, kw));
          }
        }
      }
      return sum;
    });
  });
}

void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x) {
  visit_floating("conv2d", y.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const Images<T> in(y), weight(w), out(x);
    const T* b = bias.defined() ? bias.data<T>() : nullptr;
    for_each_output(out, x.shape(), [&](std::int64_t n, std::int64_t ci, std::int64_t ih, std::int64_t iw) {
      const std::int64_t first = ci / g.group_ci() * g.group_co();
      A sum = b != nullptr ? convert<A>(b[ci]) : A(0);
      for (std::int64_t kh = g.h.tap_begin(ih); kh < g.h.tap_end(ih); ++kh) {
        for (std::int64_t kw = g.w.tap_begin(iw); kw < g.w.tap_end(iw); ++kw) {
          for (std::int64_t co = 0; co < g.group_co(); ++co) {
            sum += convert<A>(in.at(n, first + co, g.h.output(ih, kh), g.w.output(iw, kw))) *
                   convert<A>(weight.at(ci, co, kh, kw));
          }
        }
      }
      return sum;
    });
  });
}

void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  visit_floating("conv_transpose2d_weight_grad", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const Images<T> a(x), b(y), out(w);
    for_each_output(out, w.shape(), [&](std::int64_t ci, std::int64_t co, std::int64_t kh, std::int64_t kw) {
      const std::int64_t channel = ci / g.group_ci() * g.group_co() + co;
      A sum = 0;
      for (std::int64_t n = 0; n < g.n; ++n) {
        for (std::int64_t ih = g.h.input_begin(kh); ih < g.h.input_end(kh); ++ih) {
          for (std::int64_t iw = g.w.input_begin(kw); iw < g.w.input_end(kw); ++iw) {
            sum += convert<A>(a.at(n, ci, ih, iw)) *
                   convert<A>(b.at(n, channel, g.h.output(ih, kh), g.w.output(iw, kw)));
          }
        }
      }
      return sum;
    });
  });
}

}  // namespace tapedeck::cpu::reference
