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

/// sum + a[0] * b[0] + a[a_step] * b[b_step] + ..., `count` products in this order.
template <class A, class T>
A add_products(A sum, std::int64_t count, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step) {
  for (std::int64_t i = 0; i < count; ++i) sum += convert<A>(a[i * a_step]) * convert<A>(b[i * b_step]);
  return sum;
}

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
          sum = add_products(sum, g.group_ci(), &in.at(n, first, ih, iw), in.strides[1],
                             &weight.at(first, co_in_group, kh, kw), weight.strides[0]);
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
          sum = add_products(sum, g.group_co(), &in.at(n, first, g.h.output(ih, kh), g.w.output(iw, kw)),
                             in.strides[1], &weight.at(ci, 0, kh, kw), weight.strides[1]);
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
      const std::int64_t left = g.w.input_begin(kw), columns = g.w.input_end(kw) - left;
      A sum = 0;
      if (columns <= 0) return sum;
      for (std::int64_t n = 0; n < g.n; ++n) {
        for (std::int64_t ih = g.h.input_begin(kh); ih < g.h.input_end(kh); ++ih) {
          sum = add_products(sum, columns, &a.at(n, ci, ih, left), a.strides[3],
                             &b.at(n, channel, g.h.output(ih, kh), g.w.output(left, kw)),
                             b.strides[3] * g.w.stride);
        }
      }
      return sum;
    });
  });
}

}  // namespace tapedeck::cpu::reference
