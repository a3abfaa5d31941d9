// Batch normalisation. With N values a channel, r = 1/sqrt(var + eps) and xhat = (x - mean) * r:
//
//   u  = xhat * w + b                y  = u, and u * slope where u <= 0 (Rectifier)
//   gu = gy, and gy * slope there    gb = sum of gu        gw = sum of gu * xhat
//   gx = w * r * (gu - gb/N - xhat * gw/N)                 in training
//   gx = w * r * gu                                        with constant statistics
//
// Of elements only x is saved: backward computes u's sign again, from what is known of channels.
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

const char* const kName = "batch_norm";

Variables fused_gradients(const OpContext& context, const Tensor& gradient, const BatchNormOptions& options,
                          bool is_own) {
  const Tensor& x = context.input(0).tensor();
  const auto wanted = [&](std::size_t i) {
    return context.needs_grad(i) ? Tensor::empty(context.input_shape(i), context.input_options(i)) : Tensor();
  };
  const Tensor gy = gradient.to(x.layout());
  const Tensor gx = is_own && context.needs_grad(0) ? gy : wanted(0), gw = wanted(1), gb = wanted(2);
  if (x.count() > 0) {
    TAPEDECK_KERNEL(x.device(), batch_norm_backward)(gy, x, context.saved(0), options, gx, gw, gb);
  } else {
    for (const Tensor& none : {gw, gb}) {
      if (none.defined()) none.fill_(0);
    }
  }
  return {optional(gx), optional(gw), optional(gb)};
}

Variables composed_gradients(const OpContext& context, const Variable& gy, const BatchNormOptions& options) {
  const Variable& x = context.input(0);
  const bool has_weight = context.input_shape(1).rank() == 1;
  std::vector<int> dims = {0};
  for (int d = 2; d < x.rank(); ++d) dims.push_back(d);
  Shape row = x.shape();  // [1,c,1,...]
  for (int d : dims) row = row.with(d, 1);
  const auto of_row = [&](const Variable& v) { return reshape(cast(v, x.dtype()), row); };
  const auto known = [&](int i) { return of_row(context.saved(0).slice(i, i + 1)); };

  Variable xhat, r;
  std::optional<Normalized> normalized;
  if (options.training) {
    normalized.emplace(x, dims, options.eps);
    xhat = normalized->xhat;
  } else {
    r = pow(known(1) + options.eps, -0.5);
    xhat = (x - known(0)) * r;
  }
  Variable gu = gy;
  if (!Rectifier{options.negative_slope}.does_nothing()) {
    const Variable u = xhat.detach();
    const Variable scaled = has_weight ? u * of_row(context.input(1).detach()) : u;
    gu = where(le(scaled + known(3), 0), gy * options.negative_slope, gy);
  }
  const Variable g = context.needs_grad(0) && has_weight ? gu * of_row(context.input(1)) : gu;
  const Variable gx = normalized ? normalized->gradient(g) : g * r;
  const auto gradient_of = [&](std::size_t i, const Variable& terms) {
    return context.needs_grad(i) ? cast(sum(terms, dims), context.input_options(i).dtype) : Variable();
  };
  return {to_layout(gx, x.tensor().layout()), gradient_of(1, gu * xhat), gradient_of(2, gu)};
}

}  // namespace

void detail::check_batch_norm(const Tensors& in, const BatchNormOptions& options) {
  static constexpr const char* kNames[] = {"x", "weight", "bias", "running_mean", "running_var"};
  const Tensor& x = in[0];
  check_defined(kName, "x", x);
  check_floating(kName, "x", x);
  check(x.rank() >= 2, "batch_norm: x has shape ", x.shape(), "; legal is rank 2 or more, [n,c,...]");
  for (std::size_t i = 1; i < 5; ++i) {
    if (!in[i].defined()) continue;
    check_parameter_kind(kName, x, kNames[i], in[i]);
    check(in[i].shape() == Shape({x.size(1)}), "batch_norm: ", kNames[i], " has shape ", in[i].shape(),
          " but x ", x.shape(), " has ", x.size(1), " channels");
  }
  for (const auto& [given, other] : {std::pair(3, 4), std::pair(4, 3)}) {
    check(!in[given].defined() || in[other].defined(), "batch_norm: ", kNames[given], " is given but ",
          kNames[other], " is undefined; legal is both or neither");
  }
  check(options.training || in[3].defined(),
        "batch_norm: running_mean and running_var are undefined; legal only in training");
  const Tensor& batches = options.batches;
  check(!batches.defined() ||
            (batches.dtype() == DType::int64 && batches.count() == 1 && batches.device() == x.device()),
        "batch_norm: batches is ", batches, "; legal is one int64 on ", x.device());
  check(options.eps >= 0, "batch_norm: eps ", options.eps, " is not legal; legal is 0 or more");
  check(options.momentum >= 0 && options.momentum <= 1, "batch_norm: momentum ", options.momentum,
        " is not legal; legal is 0 to 1");
  check(!options.training || x.count() != x.size(1) || x.count() == 0, "batch_norm: x ", x.shape(),
        " has 1 value a channel; legal in training is 2 or more");
}

Prologue detail::batch_norm_prologue(const Tensors& in, const BatchNormOptions& options, bool bounds) {
  check_batch_norm(in, options);
  const Tensor &x = in[0], &batches = options.batches;
  const DType dtype = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
  Prologue known{Tensor::empty({4, x.size(1)}, {dtype, x.device()}), options.negative_slope};
  if (options.training) {
    for (const Tensor& moved : {in[3], in[4], batches}) moved.bump_version();
  }
  if (x.count() > 0) {
    TAPEDECK_KERNEL(x.device(), batch_norm_statistics)
    (x, in[1], in[2], in[3], in[4], options, known.statistics, bounds);
  } else {
    known.statistics.fill_(1);
    if (options.training && batches.defined()) batches.copy_((Variable(batches) + 1).tensor());
  }
  return known;
}

Tensor detail::applied(const Prologue& prologue, const Tensor& x) {
  if (!prologue.exists()) return x;
  const Tensor y = Tensor::empty_like(x);
  if (y.count() > 0) TAPEDECK_KERNEL(x.device(), normalize)(x, prologue, y);
  return y;
}

Variables detail::batch_norm_gradients(const OpContext& context, const Variable& gy,
                                       const BatchNormOptions& options, bool is_own) {
  return recording() ? composed_gradients(context, gy, options)
                     : fused_gradients(context, gy.tensor(), options, is_own);
}

namespace {

struct BatchNorm final : Op {
  explicit BatchNorm(const BatchNormOptions& options) : options_(options) {}
  const char* name() const override { return kName; }

  Tensors forward(OpContext& context, const Tensors& inputs) override {
    const Prologue known = detail::batch_norm_prologue(inputs, options_);
    context.save_input(0);
    const bool rectifies = !Rectifier{options_.negative_slope}.does_nothing();
    if (inputs[1].defined() && (rectifies || context.needs_grad(0))) context.save_input(1);
    context.save(known.statistics);
    return {detail::applied(known, inputs[0])};
  }

  Variables backward(const OpContext& context, const Variables& gy) override {
    return detail::batch_norm_gradients(context, gy[0], options_);
  }

 private:
  BatchNormOptions options_;
};

}  // namespace

Variable batch_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    const Variable& running_mean, const Variable& running_var,
                    const BatchNormOptions& options) {
  return call<BatchNorm>({x, weight, bias, running_mean, running_var}, options);
}

Variable batch_norm(const BatchNormCall& c) {
  return batch_norm(c.x, c.weight, c.bias, c.running_mean, c.running_var, c.options);
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
  A *mean, *var, *scale, *bias;

  explicit Channels(const Tensor& statistics)
      : mean(statistics.data<A>()),
        var(mean + statistics.size(1)),
        scale(var + statistics.size(1)),
        bias(scale + statistics.size(1)) {}
};

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

void batch_norm_statistics(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var,
                           const BatchNormOptions& options, const Tensor& statistics, bool) {
  visit_floating("batch_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const Channels<A> channels(statistics);
    if (options.training) {
      batch_statistics<T>(x, options, running_mean, running_var, channels);
      if (options.batches.defined()) ++*options.batches.data<std::int64_t>();
    }
    for (std::int64_t c = 0; c < x.size(1); ++c) {
      if (!options.training) {
        channels.mean[c] = static_cast<A>(load(running_mean, c));
        channels.var[c] = static_cast<A>(load(running_var, c));
      }
      const double w = weight.defined() ? load(weight, c) : 1;
      channels.scale[c] = static_cast<A>(w / std::sqrt(channels.var[c] + options.eps));
      channels.bias[c] = static_cast<A>(bias.defined() ? load(bias, c) : 0);
    }
  });
}

void normalize(const Tensor& x, const Prologue& known, const Tensor& y) {
  visit_floating("batch_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    for_each_element(Axis::of(x, 1),
                     [in = x.data<T>(), out = y.data<T>(), channels = Channels<A>(known.statistics),
                      rectifier = Rectifier{known.negative_slope}](std::int64_t c) {
                       return [in, out, rectifier, m = channels.mean[c], scale = channels.scale[c],
                               shift = channels.bias[c]](std::int64_t i) {
                         out[i] = convert<T>(rectifier.value((convert<A>(in[i]) - m) * scale + shift));
                       };
                     });
  });
}

void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& statistics,
                         const BatchNormOptions& options, const Tensor& gx, const Tensor& gw,
                         const Tensor& gb) {
  const Axis axis = Axis::of(x, 1);
  const double n = static_cast<double>(x.count() / axis.size);
  visit_floating("batch_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const Channels<A> channels(statistics);
    // x - mean and gu of element i of channel c.
    const auto terms_of = [in = x.data<T>(), g = gy.data<T>(), channels,
                           rectifier = Rectifier{options.negative_slope}](std::int64_t c) {
      return [in, g, rectifier, m = channels.mean[c], scale = channels.scale[c],
              shift = channels.bias[c]](std::int64_t i) {
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
