#include <tapedeck/ops/pool.h>

#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/resample.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

/// The number of windows along one axis.
std::int64_t window_count(const char* op, const char* axis, std::int64_t in, std::int64_t kernel,
                          std::int64_t stride, std::int64_t padding, std::int64_t dilation, bool ceil_mode) {
  check(kernel >= 1, op, ": kernel_size ", kernel, " on axis ", axis, "; legal is 1 or more");
  check(stride >= 1, op, ": stride ", stride, " on axis ", axis, "; legal is 1 or more");
  check(dilation >= 1, op, ": dilation ", dilation, " on axis ", axis, "; legal is 1 or more");
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
      bool any = false;
      for (std::int64_t k = 0; k < kernel; ++k) {
        const std::int64_t i = o * stride - padding + k * dilation;
        any = any || (i >= 0 && i < in);
      }
      check(any, "max_pool2d: window ", o, " on axis ", axis, " contains only padding: x's size is ", in,
            ", kernel_size ", kernel, ", stride ", stride, ", padding ", padding, ", dilation ", dilation);
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

// A task is a row of windows.
void max_pool2d(const Tensor& x, const MaxPool2dOptions& options, const Tensor& y, const Tensor& index) {
  const Size2 kernel = options.kernel_size, stride = options.stride, padding = options.padding;
  const Size2 dilation = options.dilation;
  const std::int64_t c = x.size(1), h = x.size(2), w = x.size(3), oh = y.size(2), ow = y.size(3);
  const auto xs = x.strides(), ys = y.strides();
  const bool nhwc = x.layout() == Layout::nhwc;
  visit_floating("max_pool2d", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const T* in = x.data<T>();
    T* out = y.data<T>();
    std::int64_t* at = index.defined() ? index.data<std::int64_t>() : nullptr;
    const std::int64_t work = ow * kernel.h * kernel.w;
    parallel_for(x.size(0) * c * oh, (1 << 14) / work, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t task = begin; task < end; ++task) {
        // In memory order of y: the channel is innermost in NHWC.
        const std::int64_t channel = nhwc ? task % c : task / oh % c, o = nhwc ? task / c % oh : task % oh;
        const std::int64_t n = task / c / oh, h0 = o * stride.h - padding.h;
        const T* plane = in + n * xs[0] + channel * xs[1];
        const std::int64_t row = n * ys[0] + channel * ys[1] + o * ys[2];
        for (std::int64_t p = 0; p < ow; ++p) {
          const std::int64_t w0 = p * stride.w - padding.w;
          A best = 0;
          std::int64_t where = -1;
          for (std::int64_t i = h0; i < std::min(h, h0 + kernel.h * dilation.h); i += dilation.h) {
            if (i < 0) continue;
            for (std::int64_t j = w0; j < std::min(w, w0 + kernel.w * dilation.w); j += dilation.w) {
              if (j < 0) continue;
              const A value = convert<A>(plane[i * xs[2] + j * xs[3]]);
              if (where < 0 || value > best || (value != value && best == best)) {
                best = value;
                where = i * w + j;
              }
            }
          }
          out[row + p * ys[3]] = convert<T>(best);
          if (at) at[row + p * ys[3]] = where;
        }
      }
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
