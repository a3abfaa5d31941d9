#include <tapedeck/ops/pool.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/resample.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

/// The number of windows along one axis.
std::int64_t window_count(const char* op, const char* axis, std::int64_t in, std::int64_t kernel,
                          std::int64_t stride, std::int64_t padding, std::int64_t dilation, bool ceil_mode) {
  const auto check_range = [&](const char* name, std::int64_t value) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // no sum below can overflow
    check(value >= 1 && value <= kMost, op, ": ", name, " ", value, " on axis ", axis, "; legal is 1 to ",
          kMost);
  };
  check_range("kernel_size", kernel);
  check_range("stride", stride);
  check_range("dilation", dilation);
  const std::int64_t window = dilation * (kernel - 1) + 1;
  check(padding >= 0 && padding <= window / 2, op, ": padding ", padding, " on axis ", axis,
        "; legal for a window of ", window, " is 0 to ", window / 2);
  const std::int64_t room = in + 2 * padding - window;
  check(room >= 0, op, ": a window of ", window, " on axis ", axis, " does not fit x's size ", in,
        " with padding ", padding);
  if (!ceil_mode) return room / stride + 1;
  const std::int64_t count = (room + stride - 1) / stride + 1;
  return (count - 1) * stride >= in + padding ? count - 1 : count;
}

struct MaxPool2d final : Op {
  explicit MaxPool2d(const MaxPool2dOptions& options) : options_(options) {}
  const char* name() const override { return "max_pool2d"; }
  Tensors forward(OpContext& context, const Tensors& inputs) override {
    const Tensor& x = inputs[0];
    const auto& [kernel, stride, padding, dilation, ceil_mode] = options_;
    const std::int64_t oh =
        window_count(name(), "h", x.size(2), kernel.h, stride.h, padding.h, dilation.h, ceil_mode);
    const std::int64_t ow =
        window_count(name(), "w", x.size(3), kernel.w, stride.w, padding.w, dilation.w, ceil_mode);
    check_windows("h", x.size(2), oh, kernel.h, stride.h, padding.h, dilation.h);
    check_windows("w", x.size(3), ow, kernel.w, stride.w, padding.w, dilation.w);
    const Tensor y = Tensor::empty({x.size(0), x.size(1), oh, ow}, x.options());
    Tensor index;
    if (context.needs_grad(0)) {
      index = Tensor::empty(y.shape(), {DType::int64, y.device(), y.layout()});
      context.save(index);
    }
    if (y.count() > 0) TAPEDECK_KERNEL(y.device(), max_pool2d)(x, options_, y, index);
    return {y};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    const Shape& x = context.input_shape(0);
    const Variable gx =
        scatter_add(flatten(gy[0], 2), 2, flatten(context.saved(0), 2), {x[0], x[1], x[2] * x[3]});
    return {to_layout(reshape(gx, x), context.input_options(0).layout)};
  }

 private:
  /// Throws Error if a window sees padding only, which dilation makes possible.
  void check_windows(const char* axis, std::int64_t in, std::int64_t out, std::int64_t kernel,
                     std::int64_t stride, std::int64_t padding, std::int64_t dilation) const {
    for (std::int64_t o = 0; o < out; ++o) {
      const std::int64_t start = o * stride - padding;
      const std::int64_t k = start < 0 ? (-start + dilation - 1) / dilation : 0;  // the first tap from 0 on
      check(k < kernel && start + k * dilation < in, "max_pool2d: window ", o, " on axis ", axis,
            " contains only padding: x's size is ", in, ", kernel_size ", kernel, ", stride ", stride,
            ", padding ", padding, ", dilation ", dilation);
    }
  }

  MaxPool2dOptions options_;
};

Size2 stride_or_kernel(Size2 stride, Size2 kernel) {
  return stride == Size2(0) ? kernel : stride;
}

}  // namespace

Variable max_pool2d(const Variable& x, const MaxPool2dOptions& options) {
  check_images("max_pool2d", x);
  if (x.rank() == 3) return squeeze(max_pool2d(unsqueeze(x, 0), options), 0);
  MaxPool2dOptions resolved = options;
  resolved.stride = stride_or_kernel(options.stride, options.kernel_size);
  return call<MaxPool2d>({x}, resolved);
}

Variable avg_pool2d(const Variable& x, const AvgPool2dOptions& options) {
  constexpr const char* kName = "avg_pool2d";
  check_images(kName, x);
  const Size2 stride = stride_or_kernel(options.stride, options.kernel_size);
  const auto axis = [&](const char* axis_name, std::int64_t in, std::int64_t kernel, std::int64_t step,
                        std::int64_t padding) {
    const std::int64_t out = window_count(kName, axis_name, in, kernel, step, padding, 1, options.ceil_mode);
    return ResampleAxis{Resampling::window, in, out, kernel, step, padding, options.count_include_pad};
  };
  const ResampleAxis h = axis("h", x.size(-2), options.kernel_size.h, stride.h, options.padding.h);
  const ResampleAxis w = axis("w", x.size(-1), options.kernel_size.w, stride.w, options.padding.w);
  return resample(kName, x, h, w);
}

Variable adaptive_avg_pool2d(const Variable& x, Size2 output_size) {
  check_images("adaptive_avg_pool2d", x);
  check(output_size.h >= 1 && output_size.w >= 1, "adaptive_avg_pool2d: output_size {", output_size.h, ",",
        output_size.w, "}; legal is 1 or more");
  return resample("adaptive_avg_pool2d", x, {Resampling::adaptive, x.size(-2), output_size.h},
                  {Resampling::adaptive, x.size(-1), output_size.w});
}

namespace cpu {

namespace {

/// One axis of the windows: window o has its k-th tap at o * stride - padding + k * dilation. The windows
/// whose k-th tap is in the image are begin[k] to before end[k]; first[o] is the first such tap of window o.
/// The first and last taps are left out while they are in the padding for every window.
struct Windows {
  std::int64_t in, out, kernel, stride, padding, dilation;
  std::vector<std::int64_t> begin, end, first;

  Windows(std::int64_t size, std::int64_t count, std::int64_t taps, std::int64_t step, std::int64_t before,
          std::int64_t spread)
      : in(size), out(count), stride(step), dilation(spread) {
    const std::int64_t left_out =
        std::max<std::int64_t>(0, before - (count - 1) * step + spread - 1) / spread;
    kernel = std::min(taps, (size - 1 + before) / spread + 1) - left_out;
    padding = before - left_out * spread;
    for (std::int64_t o = 0; o < out; ++o)
      first.push_back(std::max<std::int64_t>(0, -at(o, 0) + dilation - 1) / dilation);
    for (std::int64_t k = 0; k < kernel; ++k) {
      begin.push_back(std::min(out, std::max<std::int64_t>(0, -at(0, k) + stride - 1) / stride));
      end.push_back(std::min(out, std::max<std::int64_t>(0, in - at(0, k) + stride - 1) / stride));
    }
  }
  std::int64_t at(std::int64_t o, std::int64_t k) const { return o * stride - padding + k * dilation; }
};

/// Rows o0 to before o1 of windows on a plane of pixels with `inner` channels each: the largest value of each
/// window and channel, and the tap that it is at, i * w.kernel + j. The tap is an A too, so that both are
/// chosen in one vector; A holds all taps exactly. `candidate` is scratch of the same size.
template <class T, class A>
void max_pool_rows(const T* plane, const Windows& h, const Windows& w, std::int64_t o0, std::int64_t o1,
                   std::int64_t inner, A* best, A* tap, A* candidate) {
  constexpr A kNone = -std::numeric_limits<A>::infinity();  // never chosen
  const std::int64_t row = w.out * inner, n = (o1 - o0) * row;
  std::fill_n(best, n, kNone);
  for (std::int64_t o = o0; o < o1; ++o) {
    for (std::int64_t p = 0; p < w.out; ++p) {
      const A first = static_cast<A>(h.first[o] * w.kernel + w.first[p]);
      for (std::int64_t c = 0; c < inner; ++c) tap[(o - o0) * row + p * inner + c] = first;
    }
  }
  for (std::int64_t i = 0; i < h.kernel; ++i) {
    for (std::int64_t j = 0; j < w.kernel; ++j) {
      // What the windows have at this tap, side by side, so that the choice runs in lanes.
      for (std::int64_t o = o0; o < o1; ++o) {
        A* to = candidate + (o - o0) * row;
        const bool inside = o >= h.begin[i] && o < h.end[i];
        const std::int64_t begin = inside ? w.begin[j] : w.out, end = inside ? w.end[j] : w.out;
        const std::int64_t from = (h.at(o, i) * w.in + w.at(0, j)) * inner;
        std::fill_n(to, begin * inner, kNone);
        for (std::int64_t p = begin; p < end; ++p) {
          for (std::int64_t c = 0; c < inner; ++c)
            to[p * inner + c] = convert<A>(plane[from + p * w.stride * inner + c]);
        }
        std::fill_n(to + end * inner, (w.out - end) * inner, kNone);
      }
      const A number = static_cast<A>(i * w.kernel + j);
      for (std::int64_t at = 0; at < n; ++at) {
        const A value = candidate[at], old = best[at], old_tap = tap[at];
        const bool taken = !(value <= old) && old == old;  // a NaN is taken, and stays
        best[at] = taken ? value : old;
        tap[at] = taken ? number : old_tap;
      }
    }
  }
}

}  // namespace

// A task is some rows of windows, which are chosen from tap by tap.
void max_pool2d(const Tensor& x, const MaxPool2dOptions& options, const Tensor& y, const Tensor& index) {
  const auto& [kernel, stride, padding, dilation, ceil_mode] = options;
  const Windows h(x.size(2), y.size(2), kernel.h, stride.h, padding.h, dilation.h);
  const Windows w(x.size(3), y.size(3), kernel.w, stride.w, padding.w, dilation.w);
  const std::int64_t inner = x.layout() == Layout::nhwc ? x.size(1) : 1, row = w.out * inner;
  const std::int64_t planes = x.count() / (h.in * w.in * inner);
  const std::int64_t rows = std::clamp<std::int64_t>(512 / row, 1, h.out), blocks = (h.out + rows - 1) / rows;
  const std::int64_t work = rows * row * h.kernel * w.kernel;
  const auto run = [&]<class T, class A>() {
    const T* in = x.data<T>();
    T* out = y.data<T>();
    std::int64_t* where = index.defined() ? index.data<std::int64_t>() : nullptr;
    parallel_for(planes * blocks, (1 << 14) / work, [&](std::int64_t begin, std::int64_t end) {
      std::vector<A> values(static_cast<std::size_t>(rows * row)), taps(values.size()),
          scratch(values.size());
      A *best = values.data(), *tap = taps.data(), *candidate = scratch.data();
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t plane = task / blocks, o0 = task % blocks * rows, o1 = std::min(h.out, o0 + rows);
        const std::int64_t first = (plane * h.out + o0) * row;
        simd<T>([=, &h, &w] {
          max_pool_rows(in + plane * h.in * w.in * inner, h, w, o0, o1, inner, best, tap, candidate);
          for (std::int64_t i = 0; i < (o1 - o0) * row; ++i) out[first + i] = convert<T>(best[i]);
        });
        if (where == nullptr) continue;
        for (std::int64_t i = 0; i < (o1 - o0) * row; ++i) {
          const auto number = static_cast<std::int64_t>(tap[i]);
          where[first + i] =
              h.at(o0 + i / row, number / w.kernel) * w.in + w.at(i % row / inner, number % w.kernel);
        }
      }
    });
  };
  visit_floating("max_pool2d", x.dtype(), [&]<class T>() {
    constexpr std::int64_t kExactInFloat = 1 << 24;
    if (h.kernel * w.kernel > kExactInFloat) return run.template operator()<T, double>();
    run.template operator()<T, accumulate_t<T>>();
  });
}

}  // namespace cpu
}  // namespace tapedeck
