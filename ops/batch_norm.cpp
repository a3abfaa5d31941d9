// Batch normalisation. With N values a channel, r = 1/sqrt(var + eps) and xhat = (x - mean) * r:
//
//   u  = xhat * w + b                y  = u, and u * slope where u <= 0 (Rectifier)
//   gu = gy, and gy * slope there    gb = sum of gu        gw = sum of gu * xhat
//   gx = w * r * (gu - gb/N - xhat * gw/N)                 in training
//   gx = w * r * gu                                        with constant statistics
//
// Only x is saved: backward computes u's sign again.
#include <cmath>
#include <optional>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/activation.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/channel_sums.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/norm_formula.h>
#include <tapedeck/ops/rectifier.h>
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
    const DType dtype = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
    const Tensor statistics = Tensor::empty({3, x.size(1)}, {dtype, x.device()});
    if (options_.training) {
      for (const Tensor& moved : {inputs[3], inputs[4], options_.batches}) moved.bump_version();
    }
    if (y.count() > 0) {
      TAPEDECK_KERNEL(x.device(), batch_norm)
      (x, weight, bias, inputs[3], inputs[4], options_, statistics, y);
    } else {
      statistics.fill_(1);
      const Tensor& batches = options_.batches;
      if (options_.training && batches.defined()) batches.copy_((Variable(batches) + 1).tensor());
    }
    context.save_input(0);
    has_weight_ = weight.defined(), has_bias_ = bias.defined();
    rectifies_ = !Rectifier{options_.negative_slope}.does_nothing();
    if (has_weight_ && (rectifies_ || context.needs_grad(0))) context.save_input(1);
    if (has_bias_ && rectifies_) context.save_input(2);
    context.save(statistics);
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
    const Tensor& batches = options_.batches;
    check(!batches.defined() ||
              (batches.dtype() == DType::int64 && batches.count() == 1 && batches.device() == x.device()),
          "batch_norm: batches is ", batches, "; legal is one int64 on ", x.device());
    check(options_.eps >= 0, "batch_norm: eps ", options_.eps, " is not legal; legal is 0 or more");
    check(options_.momentum >= 0 && options_.momentum <= 1, "batch_norm: momentum ", options_.momentum,
          " is not legal; legal is 0 to 1");
    check(!options_.training || x.count() != x.size(1) || x.count() == 0, "batch_norm: x ", x.shape(),
          " has 1 value a channel; legal in training is 2 or more");
  }

  Variables fused(const OpContext& context, const Tensor& gradient) const {
    const Tensor& x = context.input(0).tensor();
    const auto wanted = [&](std::size_t i) {
      return context.needs_grad(i) ? Tensor::empty(context.input_shape(i), context.input_options(i))
                                   : Tensor();
    };
    const Tensor gx = wanted(0), gw = wanted(1), gb = wanted(2);
    if (x.count() > 0) {
      TAPEDECK_KERNEL(x.device(), batch_norm_backward)
      (gradient.to(x.layout()), x, bias(context).defined() ? bias(context).tensor() : Tensor(),
       context.saved(0), options_, gx, gw, gb);
    } else {
      for (const Tensor& none : {gw, gb}) {
        if (none.defined()) none.fill_(0);
      }
    }
    return {optional(gx), optional(gw), optional(gb)};
  }

  /// What forward saved of the bias, to know signs.
  Variable bias(const OpContext& context) const {
    return rectifies_ && has_bias_ ? context.input(2) : Variable();
  }

  Variables composed(const OpContext& context, const Variable& gy) const {
    const Variable& x = context.input(0);
    std::vector<int> dims = {0};
    for (int d = 2; d < x.rank(); ++d) dims.push_back(d);
    Shape row = x.shape();  // [1,c,1,...]
    for (int d : dims) row = row.with(d, 1);
    const auto of_row = [&](const Variable& v) { return reshape(cast(v, x.dtype()), row); };

    Variable xhat, r;
    std::optional<Normalized> normalized;
    if (options_.training) {
      normalized.emplace(x, dims, options_.eps);
      xhat = normalized->xhat;
    } else {
      const Tensor &mean = context.saved(0).slice(0, 1), &var = context.saved(0).slice(1, 2);
      r = pow(of_row(var) + options_.eps, -0.5);
      xhat = (x - of_row(mean)) * r;
    }
    Variable gu = gy;
    if (rectifies_) {
      Variable u = xhat.detach();
      if (has_weight_) u = u * of_row(context.input(1).detach());
      if (has_bias_) u = u + of_row(context.input(2).detach());
      gu = where(le(u, 0), gy * options_.negative_slope, gy);
    }
    const Variable g = context.needs_grad(0) && has_weight_ ? gu * of_row(context.input(1)) : gu;
    const Variable gx = normalized ? normalized->gradient(g) : g * r;
    const auto gradient_of = [&](std::size_t i, const Variable& terms) {
      return context.needs_grad(i) ? cast(sum(terms, dims), context.input_options(i).dtype) : Variable();
    };
    return {to_layout(gx, x.tensor().layout()), gradient_of(1, gu * xhat), gradient_of(2, gu)};
  }

  BatchNormOptions options_;
  bool has_weight_ = false, has_bias_ = false, rectifies_ = false;
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

/// The rows of a statistics tensor: what is known of each channel.
template <class A>
struct Channels {
  A *mean, *var, *scale;

  explicit Channels(const Tensor& statistics)
      : mean(statistics.data<A>()), var(mean + statistics.size(1)), scale(var + statistics.size(1)) {}
};

/// A bias as the accumulating type, zeros where there is none.
template <class A>
std::vector<A> shifts_of(const Tensor& bias, std::int64_t channels) {
  std::vector<A> shifts(static_cast<std::size_t>(channels));
  for (std::int64_t c = 0; bias.defined() && c < channels; ++c) shifts[c] = static_cast<A>(load(bias, c));
  return shifts;
}

/// mean and var of each channel, and the running ones moved.
template <class T>
void batch_statistics(const Tensor& x, const BatchNormOptions& options, const Tensor& running_mean,
                      const Tensor& running_var, const Channels<accumulate_t<T>>& channels) {
  using A = accumulate_t<T>;
  const Axis axis = Axis::of(x, 1);
  const double n = static_cast<double>(x.count() / axis.size);
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
    channels.mean[c] = static_cast<A>(first[c] + shift);
    channels.var[c] = static_cast<A>(variance);
    if (!running_mean.defined()) continue;
    move(running_mean, c, first[c] + shift);
    move(running_var, c, variance * n / (n - 1));
  }
}

}  // namespace

void batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                const Tensor& running_var, const BatchNormOptions& options, const Tensor& statistics,
                const Tensor& y) {
  visit_floating("batch_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const Axis axis = Axis::of(x, 1);
    const Channels<A> channels(statistics);
    if (options.training) {
      batch_statistics<T>(x, options, running_mean, running_var, channels);
      if (options.batches.defined()) ++*options.batches.data<std::int64_t>();
    }
    for (std::int64_t c = 0; c < axis.size; ++c) {
      if (!options.training) {
        channels.mean[c] = static_cast<A>(load(running_mean, c));
        channels.var[c] = static_cast<A>(load(running_var, c));
      }
      const double w = weight.defined() ? load(weight, c) : 1;
      channels.scale[c] = static_cast<A>(w / std::sqrt(channels.var[c] + options.eps));
    }
    const auto shifts = shifts_of<A>(bias, axis.size);
    for_each_element(axis, [in = x.data<T>(), out = y.data<T>(), channels, shifts = shifts.data(),
                            rectifier = Rectifier{options.negative_slope}](std::int64_t c) {
      return [in, out, rectifier, m = channels.mean[c], scale = channels.scale[c],
              shift = shifts[c]](std::int64_t i) {
        out[i] = convert<T>(rectifier.value((convert<A>(in[i]) - m) * scale + shift));
      };
    });
  });
}

void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& bias, const Tensor& statistics,
                         const BatchNormOptions& options, const Tensor& gx, const Tensor& gw,
                         const Tensor& gb) {
  const Axis axis = Axis::of(x, 1);
  const double n = static_cast<double>(x.count() / axis.size);
  visit_floating("batch_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const Channels<A> channels(statistics);
    const auto shifts = shifts_of<A>(bias, axis.size);
    // x - mean and gu of element i of channel c.
    const auto terms_of = [in = x.data<T>(), g = gy.data<T>(), channels, shifts = shifts.data(),
                           rectifier = Rectifier{options.negative_slope}](std::int64_t c) {
      return [in, g, rectifier, m = channels.mean[c], scale = channels.scale[c],
              shift = shifts[c]](std::int64_t i) {
        const A centered = convert<A>(in[i]) - m;
        return std::pair(centered, rectifier.gradient(centered * scale + shift, convert<A>(g[i])));
      };
    };
    std::vector<A> mean_g(static_cast<std::size_t>(axis.size)), slope(mean_g.size());
    if (options.training || gw.defined() || gb.defined()) {
      const auto sums = channel_sums<2>(axis, [terms_of](std::int64_t, std::int64_t c) {
        return [terms = terms_of(c)](std::int64_t i) {
          const auto [centered, gradient] = terms(i);
          const double wide = gradient;
          return std::array{wide, wide * centered};
        };
      });
      for (std::int64_t c = 0; c < axis.size; ++c) {
        const double v = channels.var[c] + options.eps;
        if (gb.defined()) store(gb, c, sums[0][c]);
        if (gw.defined()) store(gw, c, sums[1][c] / std::sqrt(v));
        if (!options.training) continue;
        mean_g[c] = static_cast<A>(sums[0][c] / n);
        slope[c] = static_cast<A>(sums[1][c] / (n * v));
      }
    }
    if (!gx.defined()) return;
    for_each_element(axis, [terms_of, out = gx.data<T>(), scales = channels.scale, mean_g = mean_g.data(),
                            slopes = slope.data()](std::int64_t c) {
      return [terms = terms_of(c), out, scale = scales[c], shift = mean_g[c],
              slope = slopes[c]](std::int64_t i) {
        const auto [centered, gradient] = terms(i);
        out[i] = convert<T>((gradient - shift - centered * slope) * scale);
      };
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
