// Group and layer normalisation. With N values a group, r = 1/sqrt(var + eps) and xhat = (x - mean) * r:
//
//   y  = xhat * w + b                gb = sum of gy        gw = sum of gy * xhat
//   gx = r * (t - mean(t) - xhat * mean(t * xhat)), t = gy * w, means over the group
//
// Layer normalisation is group normalisation of [rows, values] with one group.
#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/ops/channel_sums.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/norm_formula.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

struct GroupNorm final : Op {
  GroupNorm(const char* name, std::int64_t groups, double eps) : name_(name), groups_(groups), eps_(eps) {}
  const char* name() const override { return name_; }

  Tensors forward(OpContext& context, const Tensors& inputs) override {
    const Tensor& x = inputs[0];
    const Tensor y = Tensor::empty_like(x);
    const DType statistics = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
    const Tensor mean = Tensor::zeros({x.size(0), groups_}, {statistics, x.device()});
    const Tensor var = Tensor::zeros_like(mean);
    if (y.count() > 0) {
      TAPEDECK_KERNEL(x.device(), group_norm)(x, inputs[1], inputs[2], eps_, mean, var, y);
    }
    context.save_input(0);
    has_weight_ = inputs[1].defined();
    if (context.needs_grad(0) && has_weight_) context.save_input(1);
    context.save(mean);
    context.save(var);
    return {y};
  }

  Variables backward(const OpContext& context, const Variables& gy) override {
    return recording() ? composed(context, gy[0]) : fused(context, gy[0].tensor());
  }

 private:
  Variables fused(const OpContext& context, const Tensor& gradient) const {
    const Tensor& x = context.input(0).tensor();
    const TensorOptions vector = {x.dtype(), x.device()};
    const bool weighted = context.needs_grad(0) && has_weight_;
    const Tensor gx = context.needs_grad(0) ? Tensor::empty_like(x) : Tensor();
    const Tensor gw = context.needs_grad(1) ? Tensor::zeros({x.size(1)}, vector) : Tensor();
    const Tensor gb = context.needs_grad(2) ? Tensor::zeros({x.size(1)}, vector) : Tensor();
    if (x.count() > 0) {
      TAPEDECK_KERNEL(x.device(), group_norm_backward)
      (gradient.to(x.layout()), x, weighted ? context.input(1).tensor() : Tensor(), context.saved(0),
       context.saved(1), eps_, gx, gw, gb);
    }
    return {optional(gx), optional(gw), optional(gb)};
  }

  Variables composed(const OpContext& context, const Variable& gy) const {
    const Variable& x = context.input(0);
    Shape row = x.shape();  // [1,c,1,...]
    std::vector<int> others;
    for (int d = 0; d < x.rank(); ++d) {
      if (d == 1) continue;
      row = row.with(d, 1);
      others.push_back(d);
    }
    const Shape grouped = {x.size(0), groups_, x.count() / (x.size(0) * groups_)};
    const Normalized normalized(reshape(x, grouped), {2}, eps_);
    Variable t = gy;
    if (context.needs_grad(0) && has_weight_) t = t * reshape(context.input(1), row);
    const Variable gx = reshape(normalized.gradient(reshape(t, grouped)), x.shape());
    const Variable xhat = reshape(normalized.xhat, x.shape());
    return {to_layout(gx, x.tensor().layout()), context.needs_grad(1) ? sum(gy * xhat, others) : Variable(),
            context.needs_grad(2) ? sum(gy, others) : Variable()};
  }

  const char* name_;
  std::int64_t groups_;
  double eps_;
  bool has_weight_ = false;
};

void check_arguments(const char* op, const Variable& x, const Shape& parameters, const Variable& weight,
                     const Variable& bias, double eps) {
  check(is_floating(x.dtype()), op, ": x is ", x.dtype(), "; legal are the floating types");
  for (const auto& [name, parameter] : {std::pair("weight", &weight), std::pair("bias", &bias)}) {
    if (!parameter->defined()) continue;
    check_parameter_kind(op, x.tensor(), name, parameter->tensor());
    check(parameter->shape() == parameters, op, ": ", name, " has shape ", parameter->shape(),
          "; legal for x ", x.shape(), " is ", parameters);
  }
  check(eps >= 0, op, ": eps ", eps, " is not legal; legal is 0 or more");
}

/// The kernels' parameters have x's dtype.
Variable like(const Variable& x, const Variable& parameter) {
  return parameter.defined() ? cast(parameter, x.dtype()) : parameter;
}

}  // namespace

Variable group_norm(const Variable& x, std::int64_t groups, const Variable& weight, const Variable& bias,
                    double eps) {
  check(x.rank() >= 2, "group_norm: x has shape ", x.shape(), "; legal is rank 2 or more, [n,c,...]");
  check(groups >= 1 && x.size(1) % groups == 0, "group_norm: groups ", groups, " for the ", x.size(1),
        " channels of x ", x.shape(), "; legal is a divisor of the channels");
  check_arguments("group_norm", x, {x.size(1)}, weight, bias, eps);
  return call<GroupNorm>({x, like(x, weight), like(x, bias)}, "group_norm", groups, eps);
}

Variable layer_norm(const Variable& x, const Shape& normalized_shape, const Variable& weight,
                    const Variable& bias, double eps) {
  const int outer = x.rank() - normalized_shape.rank();
  check(normalized_shape.rank() >= 1 && outer >= 0 &&
            std::equal(normalized_shape.begin(), normalized_shape.end(), x.shape().begin() + outer),
        "layer_norm: normalized_shape ", normalized_shape, " is not what x ", x.shape(), " ends with");
  check_arguments("layer_norm", x, normalized_shape, weight, bias, eps);
  std::int64_t rows = 1;
  for (int d = 0; d < outer; ++d) rows *= x.size(d);
  const std::int64_t values = normalized_shape.count();
  const auto flat = [&](const Variable& v) { return v.defined() ? reshape(like(x, v), {values}) : v; };
  const Variable y = call<GroupNorm>({reshape(x, {rows, values}), flat(weight), flat(bias)}, "layer_norm",
                                     std::int64_t{1}, eps);
  return to_layout(reshape(y, x.shape()), x.tensor().layout());
}

namespace cpu {

namespace {

/// Where the elements of a group lie: in runs of one channel (NCHW) or across the group's channels
/// (NHWC, [n,c]).
struct Groups {
  std::int64_t samples, groups, width;  // width: channels of a group
  std::int64_t inner, pixels;           // elements of a channel's run; runs of channels in a sample

  Groups(const Tensor& x, std::int64_t count) : samples(x.size(0)), groups(count), width(x.size(1) / count) {
    const Axis axis = Axis::of(x, 1);
    inner = axis.inner;
    pixels = axis.outer / samples;
  }

  double size() const { return static_cast<double>(width * inner * pixels); }
  std::int64_t sample_size() const { return groups * width * inner * pixels; }
  /// The first element of group i, where i counts the groups of all samples.
  std::int64_t first(std::int64_t i) const {
    return inner > 1 ? i * width * inner : i / groups * sample_size() + i % groups * width;
  }

  /// Calls f(begin, n, c, step) for the runs of group i: n elements from `begin` on in memory, where
  /// begin + j is of channel c + step * j. `step` is a constant, 0 or 1.
  template <class F>
  void for_each_run(std::int64_t i, F f) const {
    const std::int64_t begin = first(i), c = i % groups * width;
    if (inner > 1) {
      for (std::int64_t j = 0; j < width; ++j) {
        f(begin + j * inner, inner, c + j, std::integral_constant<std::int64_t, 0>{});
      }
    } else {
      for (std::int64_t s = 0; s < pixels; ++s) {
        f(begin + s * groups * width, width, c, std::integral_constant<std::int64_t, 1>{});
      }
    }
  }
};

/// A weight or bias in the type that is computed in; `none` where there is no tensor.
template <class T>
std::vector<accumulate_t<T>> parameters(const Tensor& tensor, std::int64_t channels, double none) {
  using A = accumulate_t<T>;
  std::vector<A> values(static_cast<std::size_t>(channels), static_cast<A>(none));
  for (std::int64_t c = 0; tensor.defined() && c < channels; ++c) values[c] = convert<A>(tensor.data<T>()[c]);
  return values;
}

}  // namespace

// The variance is formed as in batch_norm_statistics().
void group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& mean,
                const Tensor& var, const Tensor& y) {
  const Groups groups(x, mean.size(1));
  visit_floating("group_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const auto weights = parameters<T>(weight, x.size(1), 1), biases = parameters<T>(bias, x.size(1), 0);
    const A *w = weights.data(), *b = biases.data();
    const T* in = x.data<T>();
    T* out = y.data<T>();
    A *means = mean.data<A>(), *vars = var.data<A>();
    const auto grain = (1 << 14) / static_cast<std::int64_t>(groups.size());
    parallel_for(mean.count(), grain, [=](std::int64_t begin, std::int64_t end) {
      simd<T>([=] {
        for (std::int64_t i = begin; i < end; ++i) {
          const double first = convert<double>(in[groups.first(i)]);
          LaneSums<2> sums;
          groups.for_each_run(i, [&](std::int64_t at, std::int64_t n, std::int64_t, auto) {
            sums.add(n, [=](std::int64_t j) {
              const double d = convert<double>(in[at + j]) - first;
              return std::array{d, d * d};
            });
          });
          const double shift = sums.total(0) / groups.size();
          const A m = means[i] = static_cast<A>(first + shift);
          vars[i] = static_cast<A>(not_negative(sums.total(1) / groups.size() - shift * shift));
          const A r = static_cast<A>(1 / std::sqrt(vars[i] + eps));
          groups.for_each_run(i, [=](std::int64_t at, std::int64_t n, std::int64_t c, auto step) {
            for (std::int64_t j = 0; j < n; ++j) {
              out[at + j] =
                  convert<T>((convert<A>(in[at + j]) - m) * (r * w[c + step * j]) + b[c + step * j]);
            }
          });
        }
      });
    });
  });
}

void group_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& var, double eps, const Tensor& gx, const Tensor& gw,
                         const Tensor& gb) {
  const Groups groups(x, mean.size(1));
  const std::int64_t channels = x.size(1), samples = groups.samples;
  // A part sums gw and gb over some samples; parts are added in their order.
  const std::int64_t each = std::max<std::int64_t>(1, (1 << 15) / groups.sample_size());
  const std::int64_t parts = (samples + each - 1) / each;
  std::vector<double> partial(static_cast<std::size_t>(parts * 2 * channels));
  visit_floating("group_norm", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const auto weights = parameters<T>(weight, channels, 1);
    const A* w = weights.data();
    const T *in = x.data<T>(), *g = gy.data<T>();
    const A *means = mean.data<A>(), *vars = var.data<A>();
    T* to = gx.defined() ? gx.data<T>() : nullptr;
    double* all = partial.data();
    parallel_for(parts, 1, [=](std::int64_t begin, std::int64_t end) {
      simd<T>([=] {
        const std::int64_t first = begin * each * groups.groups;
        const std::int64_t last = std::min(samples, end * each) * groups.groups;
        for (std::int64_t i = first; i < last; ++i) {
          double* sum_g = all + i / groups.groups / each * 2 * channels;
          double* sum_gx = sum_g + channels;
          const A m = means[i];
          const double r = 1 / std::sqrt(vars[i] + eps);
          double sum_t = 0, sum_tx = 0;  // of t and of t * (x - mean)
          groups.for_each_run(i, [&](std::int64_t at, std::int64_t n, std::int64_t c, auto step) {
            LaneSums<2> sums;
            if constexpr (step == 0) {
              sums.add(n, [=](std::int64_t j) {
                const double gradient = convert<double>(g[at + j]);
                return std::array{gradient, gradient * (convert<A>(in[at + j]) - m)};
              });
              sum_t += sums.total(0) * w[c];
              sum_tx += sums.total(1) * w[c];
              sum_g[c] += sums.total(0);
              sum_gx[c] += sums.total(1) * r;
            } else {
              sums.add(n, [=](std::int64_t j) {
                const double t = convert<double>(g[at + j]) * w[c + j];
                return std::array{t, t * (convert<A>(in[at + j]) - m)};
              });
              sum_t += sums.total(0);
              sum_tx += sums.total(1);
              for (std::int64_t j = 0; j < n; ++j) {
                const double gradient = convert<double>(g[at + j]);
                sum_g[c + j] += gradient;
                sum_gx[c + j] += gradient * (convert<A>(in[at + j]) - m) * r;
              }
            }
          });
          if (!to) continue;
          const A scale = static_cast<A>(r), mean_t = static_cast<A>(sum_t / groups.size());
          const A slope = static_cast<A>(sum_tx / groups.size() * r * r);
          groups.for_each_run(i, [=](std::int64_t at, std::int64_t n, std::int64_t c, auto step) {
            for (std::int64_t j = 0; j < n; ++j) {
              const A t = convert<A>(g[at + j]) * w[c + step * j];
              to[at + j] = convert<T>((t - mean_t - (convert<A>(in[at + j]) - m) * slope) * scale);
            }
          });
        }
      });
    });
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum_g = 0, sum_gx = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        sum_g += all[part * 2 * channels + c];
        sum_gx += all[(part * 2 + 1) * channels + c];
      }
      if (gb.defined()) gb.data<T>()[c] = convert<T>(sum_g);
      if (gw.defined()) gw.data<T>()[c] = convert<T>(sum_gx);
    }
  });
}

}  // namespace cpu
}  // namespace tapedeck
