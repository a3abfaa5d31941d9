// Batch normalisation. With N values a channel, r = 1/sqrt(var + eps) and xhat = (x - mean) * r:
//
//   y  = xhat * w + b                gb = sum of gy        gw = sum of gy * xhat
//   gx = w * r * (gy - gb/N - xhat * gw/N)                 in training
//   gx = w * r * gy                                        with constant statistics
#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/channel_sums.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/norm_formula.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

struct BatchNorm final : Op {
  explicit BatchNorm(const BatchNormOptions& options) : options_(options) {}
  const char* name() const override { return "batch_norm"; }

  Tensors forward(OpContext& context, const Tensors& inputs) override {
    check_arguments(inputs);
    const Tensor &x = inputs[0], &weight = inputs[1], &bias = inputs[2];
    const Tensor y = Tensor::empty_like(x);
    const DType statistics = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
    const Tensor mean = Tensor::empty({x.size(1)}, {statistics, x.device()}), var = Tensor::empty_like(mean);
    if (y.count() == 0) {
      mean.fill_(0);
      var.fill_(1);
    } else if (options_.training) {
      for (const std::size_t running : {3, 4}) inputs[running].bump_version();
      TAPEDECK_KERNEL(x.device(), batch_norm_statistics)(x, options_, inputs[3], inputs[4], mean, var);
    } else {
      mean.copy_(inputs[3]);
      var.copy_(inputs[4]);
    }
    if (y.count() > 0) {
      TAPEDECK_KERNEL(x.device(), batch_norm_apply)(x, weight, bias, mean, var, options_.eps, y);
    }
    context.save_input(0);
    has_weight_ = weight.defined();
    if (context.needs_grad(0) && has_weight_) context.save_input(1);
    context.save(mean);
    context.save(var);
    return {y};
  }

  Variables backward(const OpContext& context, const Variables& gy) override {
    return recording() ? composed(context, gy[0]) : fused(context, gy[0].tensor());
  }

 private:
  void check_arguments(const Tensors& in) const {
    static constexpr const char* kNames[] = {"x", "weight", "bias", "running_mean", "running_var"};
    const Tensor& x = in[0];
    check_defined(name(), "x", x);
    check(is_floating(x.dtype()), "batch_norm: x is ", x.dtype(), "; legal are the floating types");
    check(x.rank() >= 2, "batch_norm: x has shape ", x.shape(), "; legal is rank 2 or more, [n,c,...]");
    for (std::size_t i = 1; i < 5; ++i) {
      if (!in[i].defined()) continue;
      check_parameter_kind(name(), x, kNames[i], in[i]);
      check(in[i].shape() == Shape({x.size(1)}), "batch_norm: ", kNames[i], " has shape ", in[i].shape(),
            " but x ", x.shape(), " has ", x.size(1), " channels");
    }
    for (const auto& [given, other] : {std::pair(3, 4), std::pair(4, 3)}) {
      check(!in[given].defined() || in[other].defined(), "batch_norm: ", kNames[given], " is given but ",
            kNames[other], " is undefined; legal is both or neither");
    }
    check(options_.training || in[3].defined(),
          "batch_norm: running_mean and running_var are undefined; legal only in training");
    check(options_.eps >= 0, "batch_norm: eps ", options_.eps, " is not legal; legal is 0 or more");
    check(options_.momentum >= 0 && options_.momentum <= 1, "batch_norm: momentum ", options_.momentum,
          " is not legal; legal is 0 to 1");
    check(!options_.training || x.count() != x.size(1) || x.count() == 0, "batch_norm: x ", x.shape(),
          " has 1 value a channel; legal in training is 2 or more");
  }

  Variables fused(const OpContext& context, const Tensor& gradient) const {
    const Tensor& x = context.input(0).tensor();
    const bool weighted = context.needs_grad(0) && has_weight_;
    const Tensor gx = context.needs_grad(0) ? Tensor::empty_like(x) : Tensor();
    const Tensor gw = context.needs_grad(1) ? Tensor::zeros({x.size(1)}, context.input_options(1)) : Tensor();
    const Tensor gb = context.needs_grad(2) ? Tensor::zeros({x.size(1)}, context.input_options(2)) : Tensor();
    if (x.count() > 0) {
      TAPEDECK_KERNEL(x.device(), batch_norm_backward)
      (gradient.to(x.layout()), x, weighted ? context.input(1).tensor() : Tensor(), context.saved(0),
       context.saved(1), options_, gx, gw, gb);
    }
    return {optional(gx), optional(gw), optional(gb)};
  }

  Variables composed(const OpContext& context, const Variable& gy) const {
    const Variable& x = context.input(0);
    std::vector<int> dims = {0};
    for (int d = 2; d < x.rank(); ++d) dims.push_back(d);
    Shape row = x.shape();  // [1,c,1,...]
    for (int d : dims) row = row.with(d, 1);

    Variable g = gy;
    if (context.needs_grad(0) && has_weight_) g = g * reshape(cast(context.input(1), x.dtype()), row);
    Variable gx, xhat;
    if (options_.training) {
      const Normalized normalized(x, dims, options_.eps);
      xhat = normalized.xhat;
      gx = normalized.gradient(g);
    } else {
      const Variable mean = context.saved(0).to(x.dtype()), var = context.saved(1).to(x.dtype());
      const Variable r = reshape(pow(var + options_.eps, -0.5), row);
      xhat = (x - reshape(mean, row)) * r;
      gx = g * r;
    }
    const auto gradient_of = [&](std::size_t i, const Variable& terms) {
      return context.needs_grad(i) ? cast(sum(terms, dims), context.input_options(i).dtype) : Variable();
    };
    return {to_layout(gx, x.tensor().layout()), gradient_of(1, gy * xhat), gradient_of(2, gy)};
  }

  BatchNormOptions options_;
  bool has_weight_ = false;
};

}  // namespace

Variable batch_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    const Variable& running_mean, const Variable& running_var,
                    const BatchNormOptions& options) {
  return call<BatchNorm>({x, weight, bias, running_mean, running_var}, options);
}

namespace cpu {

namespace {

/// Element c of what belongs to the channels.
double load(const Tensor& x, std::int64_t c) {
  double value = 0;
  visit_floating("batch_norm", x.dtype(), [&]<class T>() { value = convert<double>(x.data<T>()[c]); });
  return value;
}

void store(const Tensor& x, std::int64_t c, double value) {
  visit_floating("batch_norm", x.dtype(), [&]<class T>() { x.data<T>()[c] = convert<T>(value); });
}

/// y = (x - mean) * scale + shift with scale = weight / sqrt(var + eps), per channel.
template <class T>
struct Coefficients {
  using A = accumulate_t<T>;
  std::vector<A> scale, shift;

  Coefficients(const Tensor& var, double eps, const Tensor& weight, const Tensor& bias) {
    const A* v = var.data<A>();
    for (std::int64_t c = 0; c < var.count(); ++c) {
      const double w = weight.defined() ? load(weight, c) : 1;
      scale.push_back(static_cast<A>(w / std::sqrt(v[c] + eps)));
      shift.push_back(bias.defined() ? static_cast<A>(load(bias, c)) : A(0));
    }
  }
};

}  // namespace

void batch_norm_statistics(const Tensor& x, const BatchNormOptions& options, const Tensor& running_mean,
                           const Tensor& running_var, const Tensor& mean, const Tensor& var) {
  const Axis axis = Axis::of(x, 1);
  const double n = static_cast<double>(x.count() / axis.size);
  visit_floating("batch_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const T* in = x.data<T>();
    // The variance is E[(x - k)^2] - E[x - k]^2 with k the channel's first element. As k is one of the n
    // values, it is at most sqrt(n * var) away from the mean, so that the difference loses no more than a
    // factor n of float64's precision.
    std::vector<double> first(static_cast<std::size_t>(axis.size));
    for (std::int64_t c = 0; c < axis.size; ++c) first[c] = convert<double>(in[c * axis.inner]);
    const auto sums = channel_sums<2>(axis, [in, first = first.data()](std::int64_t, std::int64_t c) {
      return [in, k = first[c]](std::int64_t i) {
        const double d = convert<double>(in[i]) - k;
        return std::array{d, d * d};
      };
    });
    const auto move = [&](const Tensor& running, std::int64_t c, double value) {
      store(running, c, (1 - options.momentum) * load(running, c) + options.momentum * value);
    };
    for (std::int64_t c = 0; c < axis.size; ++c) {
      const double shift = sums[0][c] / n, variance = not_negative(sums[1][c] / n - shift * shift);
      mean.data<A>()[c] = static_cast<A>(first[c] + shift);
      var.data<A>()[c] = static_cast<A>(variance);
      if (!running_mean.defined()) continue;
      move(running_mean, c, first[c] + shift);
      move(running_var, c, variance * n / (n - 1));
    }
  });
}

void batch_norm_apply(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                      const Tensor& var, double eps, const Tensor& y) {
  visit_floating("batch_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const Coefficients<T> coefficients(var, eps, weight, bias);
    for_each_element(Axis::of(x, 1), [in = x.data<T>(), out = y.data<T>(), means = mean.data<A>(),
                                      scales = coefficients.scale.data(),
                                      shifts = coefficients.shift.data()](std::int64_t c) {
      return [in, out, m = means[c], scale = scales[c], shift = shifts[c]](std::int64_t i) {
        out[i] = convert<T>((convert<A>(in[i]) - m) * scale + shift);
      };
    });
  });
}

void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& var, const BatchNormOptions& options, const Tensor& gx,
                         const Tensor& gw, const Tensor& gb) {
  const Axis axis = Axis::of(x, 1);
  const double n = static_cast<double>(x.count() / axis.size);
  visit_floating("batch_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const T *in = x.data<T>(), *g = gy.data<T>();
    const A *means = mean.data<A>(), *vars = var.data<A>();
    const Coefficients<T> coefficients(var, options.eps, weight, {});
    std::vector<A> mean_g(coefficients.scale.size()), slope(mean_g.size());
    if (options.training || gw.defined() || gb.defined()) {
      const auto sums = channel_sums<2>(axis, [in, g, means](std::int64_t, std::int64_t c) {
        return [in, g, m = means[c]](std::int64_t i) {
          const double gradient = convert<double>(g[i]);
          return std::array{gradient, gradient * (convert<A>(in[i]) - m)};
        };
      });
      for (std::int64_t c = 0; c < axis.size; ++c) {
        const double v = vars[c] + options.eps;
        if (gb.defined()) store(gb, c, sums[0][c]);
        if (gw.defined()) store(gw, c, sums[1][c] / std::sqrt(v));
        if (!options.training) continue;
        mean_g[c] = static_cast<A>(sums[0][c] / n);
        slope[c] = static_cast<A>(sums[1][c] / (n * v));
      }
    }
    if (!gx.defined()) return;
    for_each_element(axis, [in, g, out = gx.data<T>(), means, scales = coefficients.scale.data(),
                            mean_g = mean_g.data(), slopes = slope.data()](std::int64_t c) {
      return [in, g, out, m = means[c], scale = scales[c], shift = mean_g[c],
              slope = slopes[c]](std::int64_t i) {
        out[i] = convert<T>((convert<A>(g[i]) - shift - (convert<A>(in[i]) - m) * slope) * scale);
      };
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
