// With m the largest x and s = sum of exp(x - m):
//   softmax = exp(x - m) / s,  log_softmax = (x - m) - log s,  logsumexp = m + log s.
#include <tapedeck/ops/softmax.h>

#include <cmath>
#include <limits>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/map.h>
#include <tapedeck/ops/reduce_dims.h>
#include <tapedeck/ops/reduce_loop.h>
#include <tapedeck/ops/reduce_policies.h>
#include <tapedeck/ops/scalar_math.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What softmax is computed in.
DType widened(DType dtype) {
  return dtype == DType::float64 ? DType::float64 : DType::float32;
}

struct Softmax final : Op {
  Softmax(int dim, bool logarithm) : dim_(dim), logarithm_(logarithm) {}
  const char* name() const override { return logarithm_ ? "log_softmax" : "softmax"; }
  Tensors forward(OpContext& context, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    check_floating(name(), "x", x[0]);
    dim_ = checked_dim(name(), x[0].shape(), dim_);
    context.save_output(0);
    Tensor out = Tensor::empty_like(x[0]);
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), softmax)(x[0], dim_, logarithm_, out);
    return {out};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    const Variable& y = context.output(0);
    if (logarithm_) return {gy[0] - exp(y) * sum(gy[0], {dim_}, true)};
    return {y * (gy[0] - sum(gy[0] * y, {dim_}, true))};
  }

 private:
  int dim_;
  bool logarithm_;
};

struct LogSumExp final : Op {
  explicit LogSumExp(const ReduceDims& dims) : dims_(dims) {}
  const char* name() const override { return "logsumexp"; }
  Tensors forward(OpContext& context, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    check_floating(name(), "x", x[0]);
    context.save_input(0);
    Tensor out = dims_.empty_result(x[0], x[0].dtype());
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), logsumexp)(x[0], out.reshape(dims_.kept));
    return {out};
  }
  // gx = gy exp(x - m) / s, the softmax of x, where m is a constant: its choice does not matter. y, which is
  // m + log s, is not used: where m is large, rounding it loses log s.
  Variables backward(const OpContext& context, const Variables& gy) override {
    const DType dtype = context.input_options(0).dtype, wide = widened(dtype);
    const Variable x = cast(context.input(0), wide);
    if (x.count() == 0) return {Tensor::empty_like(context.input(0).tensor())};
    const Tensor m = Tensor::empty(dims_.kept, x.tensor().options());
    TAPEDECK_KERNEL(m.device(), extreme)(Extreme::max, x.tensor(), m);
    const Variable zero = Tensor::zeros({}, {wide, m.device()}), one = zero + 1.0;
    const Variable e = exp(x - where(eq(abs(m), kInfinity), zero, m));  // infinity - infinity would be NaN
    const Variable s = sum_to(e, dims_.kept), total = where(eq(s, 0), one, s);
    return {cast(cast(reshape(gy[0], dims_.kept), wide) * (e / total), dtype)};
  }

 private:
  ReduceDims dims_;
};

}  // namespace

Variable softmax(const Variable& x, int dim) {
  return call<Softmax>({detail::widened(x)}, dim, false);
}
Variable log_softmax(const Variable& x, int dim) {
  return call<Softmax>({detail::widened(x)}, dim, true);
}
Variable logsumexp(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  return call<LogSumExp>({detail::widened(x)}, ReduceDims::of("logsumexp", x.shape(), dims, keepdim));
}

namespace cpu {

namespace {

struct Probability {
  template <class V>
  V operator()(V x, V largest, V total) const {
    return math::exp(x - largest) / total;
  }
};

struct LogProbability {
  template <class V>
  V operator()(V x, V largest, V log_total) const {
    return (x - largest) - log_total;
  }
};

struct Statistics {
  std::vector<double> largest, total;  // m and s, for each element of a reduced tensor
};

Statistics statistics(const Tensor& x, const Tensor& reduced) {
  return visit_compute(x.dtype(), [&]<class V>() -> Statistics {
    if constexpr (std::is_integral_v<V>) {
      return {};
    } else {
      const auto maxima = reduce_loop<V>(x, reduced, policy::Extreme<V, Extreme::max>{});
      std::vector<double> largest(maxima.begin(), maxima.end());
      for (double& m : largest) m = std::isinf(m) ? 0 : m;  // infinity - infinity would be NaN
      auto total = reduce_loop<V>(x, reduced, policy::Exponentials{}, largest.data());
      return {std::move(largest), std::move(total)};
    }
  });
}

}  // namespace

void softmax(const Tensor& x, int dim, bool logarithm, const Tensor& out) {
  // m and s in the compute type, so that they can be broadcast against x.
  const DType dtype = widened(x.dtype());
  const Tensor largest = Tensor::empty(x.shape().with(dim, 1), {dtype, {}, x.layout()});
  const Tensor total = Tensor::empty_like(largest);
  Statistics stats = statistics(x, largest);
  if (logarithm) {
    for (double& s : stats.total) s = std::log(s);
  }
  visit_compute(dtype, [&]<class V>() {
    std::copy(stats.largest.begin(), stats.largest.end(), largest.data<V>());
    std::copy(stats.total.begin(), stats.total.end(), total.data<V>());
  });
  if (logarithm) {
    map_floating(LogProbability{}, out, x, largest, total);
  } else {
    map_floating(Probability{}, out, x, largest, total);
  }
}

void logsumexp(const Tensor& x, const Tensor& out) {
  Statistics stats = statistics(x, out);
  for (std::size_t i = 0; i < stats.total.size(); ++i)
    stats.total[i] = stats.largest[i] + std::log(stats.total[i]);
  store_totals(stats.total, 1, out);
}

}  // namespace cpu
}  // namespace tapedeck
