#include <tapedeck/ops/reduce.h>

#include <cmath>
#include <limits>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/arithmetic_formulas.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/map.h>
#include <tapedeck/ops/reduce_dims.h>
#include <tapedeck/ops/reduce_loop.h>
#include <tapedeck/ops/reduce_policies.h>

namespace tapedeck {

namespace {

/// scale * sum of x over what `dims` drops. Sum and Expand are each other's gradient.
struct Sum final : Op {
  Sum(const char* name, const ReduceDims& dims, double scale) : name_(name), dims_(dims), scale_(scale) {}
  const char* name() const override { return name_; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_defined(name_, "x", x[0]);
    const Tensor out = dims_.empty_result(x[0], is_floating(x[0].dtype()) ? x[0].dtype() : DType::int64);
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), sum)(x[0], scale_, out.reshape(dims_.kept));
    return {out};
  }
  Variables backward(const OpContext& context, const Variables& gy) override;

 private:
  const char* name_;
  ReduceDims dims_;
  double scale_;
};

/// scale * x, which has the elements of `kept`, repeated to `shape`.
struct Expand final : Op {
  Expand(const char* name, const Shape& kept, const Shape& shape, Layout layout, double scale)
      : name_(name), kept_(kept), shape_(shape), layout_(layout), scale_(scale) {}
  const char* name() const override { return name_; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_defined(name_, "x", x[0]);
    const Tensor out = Tensor::empty(shape_, {x[0].dtype(), x[0].device(), layout_});
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), expand)(x[0].reshape(kept_), scale_, out);
    return {out};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    return {call<Sum>({gy[0]}, "sum_to", ReduceDims{kept_, context.input_shape(0)}, scale_)};
  }

 private:
  const char* name_;
  Shape kept_, shape_;
  Layout layout_;
  double scale_;
};

Variables Sum::backward(const OpContext& context, const Variables& gy) {
  return {call<Expand>({gy[0]}, "broadcast_to", dims_.kept, context.input_shape(0),
                       context.input_options(0).layout, scale_)};
}

struct ExtremeOf final : Op {
  ExtremeOf(Extreme kind, const ReduceDims& dims) : kind_(kind), dims_(dims) {}
  const char* name() const override { return kind_ == Extreme::max ? "max" : "min"; }
  Tensors forward(OpContext& context, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    check(x[0].count() > 0 || dims_.result.count() == 0, name(), ": x ", x[0].shape(),
          " has no elements along the reduced dimensions");
    context.save_input(0);
    context.save_output(0);
    const Tensor out = dims_.empty_result(x[0], x[0].dtype());
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), extreme)(kind_, x[0], out.reshape(dims_.kept));
    return {out};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    const Tensor& x = context.input(0).tensor();
    const Tensor share = Tensor::empty_like(x);
    if (x.count() > 0) {
      TAPEDECK_KERNEL(x.device(), extreme_share)
      (x, context.output(0).tensor().reshape(dims_.kept), share);
    }
    return {call<Expand>({gy[0]}, "broadcast_to", dims_.kept, x.shape(), x.layout(), 1.0) * share};
  }

 private:
  Extreme kind_;
  ReduceDims dims_;
};

struct Var final : Op {
  Var(const ReduceDims& dims, double correction) : dims_(dims), correction_(correction) {}
  const char* name() const override { return "var"; }
  Tensors forward(OpContext& context, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    check_floating(name(), "x", x[0]);
    context.save_input(0);
    const Tensor out = dims_.empty_result(x[0], x[0].dtype());
    if (out.count() > 0) {
      TAPEDECK_KERNEL(out.device(), squared_deviation)
      (x[0], scale(x[0].shape()), out.reshape(dims_.kept));
    }
    return {out};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    const Variable& x = context.input(0);
    if (x.count() == 0) return {};
    const double mean_scale = static_cast<double>(dims_.kept.count()) / static_cast<double>(x.count());
    const Variable mean = call<Sum>({x}, "mean", ReduceDims{dims_.kept, dims_.kept}, mean_scale);
    const Variable g = call<Expand>({gy[0]}, "broadcast_to", dims_.kept, x.shape(), x.tensor().layout(),
                                    2 * scale(x.shape()));
    return {g * (x - mean)};
  }

 private:
  double scale(const Shape& x) const {
    const std::int64_t outputs = dims_.kept.count();
    const double n = outputs == 0 ? 0 : static_cast<double>(x.count()) / static_cast<double>(outputs);
    return 1 / std::max(0.0, n - correction_);
  }

  ReduceDims dims_;
  double correction_;
};

}  // namespace

Variable sum(const Variable& x) {
  return sum(x, {});
}
Variable sum(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  return call<Sum>({detail::widened(x)}, "sum", ReduceDims::of("sum", x.shape(), dims, keepdim), 1.0);
}
Variable mean(const Variable& x) {
  return mean(x, {});
}
Variable mean(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  check_defined("mean", "x", x.tensor());
  check_floating("mean", "x", x.tensor());
  const ReduceDims to = ReduceDims::of("mean", x.shape(), dims, keepdim);
  return call<Sum>({detail::widened(x)}, "mean", to,
                   static_cast<double>(to.kept.count()) / static_cast<double>(x.count()));
}
Variable max(const Variable& x) {
  return max(x, {});
}
Variable max(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  return call<ExtremeOf>({x}, Extreme::max, ReduceDims::of("max", x.shape(), dims, keepdim));
}
Variable min(const Variable& x) {
  return min(x, {});
}
Variable min(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  return call<ExtremeOf>({x}, Extreme::min, ReduceDims::of("min", x.shape(), dims, keepdim));
}
Variable var(const Variable& x, const std::vector<int>& dims, const VarOptions& options) {
  return call<Var>({detail::widened(x)}, ReduceDims::of("var", x.shape(), dims, options.keepdim),
                   options.correction);
}

Variable broadcast_to(const Variable& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  check(broadcast("broadcast_to", x.shape(), shape) == shape, "broadcast_to: ", x.shape(),
        " does not broadcast to ", shape);
  const Layout layout = x.rank() == shape.rank() ? x.tensor().layout() : Layout::nchw;
  return call<Expand>({x}, "broadcast_to", ReduceDims::to(x.shape(), shape.rank()).kept, shape, layout, 1.0);
}

Variable sum_to(const Variable& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  check(broadcast("sum_to", x.shape(), shape) == x.shape(), "sum_to: ", shape, " does not broadcast to ",
        x.shape());
  return call<Sum>({x}, "sum_to", ReduceDims::to(shape, x.rank()), 1.0);
}

namespace cpu {

namespace {

/// The elements of x in memory order.
std::vector<double> values(const Tensor& x) {
  std::vector<double> result(x.count());
  visit(x.dtype(), [&]<class T>() { convert_run(x.data<T>(), result.data(), x.count()); });
  return result;
}

template <class Policy>
std::vector<double> reduce_floating(const Tensor& x, const Tensor& out, const Policy& policy,
                                    const double* centers = nullptr) {
  return x.dtype() == DType::float64 ? reduce_loop<double>(x, out, policy, centers)
                                     : reduce_loop<float>(x, out, policy, centers);
}

}  // namespace

void sum(const Tensor& x, double scale, const Tensor& out) {
  if (is_floating(x.dtype())) return store_totals(reduce_floating(x, out, policy::Sum{}), scale, out);
  const auto totals = reduce_loop<std::int64_t>(x, out, policy::IntegerSum{});
  std::copy(totals.begin(), totals.end(), out.data<std::int64_t>());
}

void extreme(Extreme kind, const Tensor& x, const Tensor& out) {
  visit_compute(x.dtype(), [&]<class V>() {
    const auto totals = kind == Extreme::max ? reduce_loop<V>(x, out, policy::Extreme<V, Extreme::max>{})
                                             : reduce_loop<V>(x, out, policy::Extreme<V, Extreme::min>{});
    visit(out.dtype(), [&]<class T>() {
      if constexpr (std::is_same_v<compute_t<T>, V>) convert_run(totals.data(), out.data<T>(), out.count());
    });
  });
}

void extreme_share(const Tensor& x, const Tensor& y, const Tensor& share) {
  const std::vector<double> extremes = values(y);
  const std::vector<double> ties = reduce_floating(x, y, policy::Ties{}, extremes.data());
  const auto loop = StridedLoop<2>::over(x.shape(), {&share, &y});  // x and share have one order
  const std::int64_t step = loop.strides[1][loop.rank - 1];
  visit_floating("extreme_share", x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* to = share.data<T>();
    loop.for_each_run([&](const auto& at, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t k = at[1] + i * step;
        const double value = convert<double>(in[at[0] + i]);
        to[at[0] + i] = convert<T>(policy::Ties{}.add(0, value, extremes[k]) / ties[k]);
      }
    });
  });
}

void squared_deviation(const Tensor& x, double scale, const Tensor& out) {
  std::vector<double> means = reduce_floating(x, out, policy::Sum{});
  const double n = static_cast<double>(x.count()) / static_cast<double>(out.count());
  for (double& mean : means) mean /= n;
  store_totals(reduce_floating(x, out, policy::Squares{}, means.data()), scale, out);
}

void expand(const Tensor& x, double scale, const Tensor& out) {
  map_any(formula::Scaled{scale}, out, x);
}

}  // namespace cpu
}  // namespace tapedeck
