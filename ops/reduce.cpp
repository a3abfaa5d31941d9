#include <tapedeck/ops/reduce.h>

#include <cmath>
#include <limits>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/axis.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/map.h>
#include <tapedeck/ops/reduce_loop.h>

namespace tapedeck {

namespace {

/// What a reduction leaves: `kept` is x's shape with size 1 where reduced, `result` the same elements in
/// the shape that the caller sees.
struct Target {
  Shape kept, result;
};

Shape from_sizes(const std::vector<std::int64_t>& sizes) {
  return Shape(std::span<const std::int64_t>(sizes));
}

Target target(const char* op, const Shape& x, const std::vector<int>& dims, bool keepdim) {
  std::vector<bool> reduced(x.rank(), dims.empty());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    check(dims[i] >= -x.rank() && dims[i] < x.rank(), op, ": dims[", i, "] is ", dims[i], "; legal for x ", x,
          " is ", -x.rank(), " to ", x.rank() - 1);
    auto at = reduced[x.dim(dims[i])];
    check(!at, op, ": dims[", i, "] names dimension ", x.dim(dims[i]), " a second time");
    at = true;
  }
  std::vector<std::int64_t> kept, result;
  for (int d = 0; d < x.rank(); ++d) {
    const bool gone = reduced[d];
    kept.push_back(gone ? 1 : x[d]);
    if (!gone || keepdim) result.push_back(kept.back());
  }
  return {from_sizes(kept), from_sizes(result)};
}

/// The target of sum_to: what `shape` leaves out in front has size 1.
Target target_of(const Shape& shape, int rank) {
  std::vector<std::int64_t> kept(rank - shape.rank(), 1);
  kept.insert(kept.end(), shape.begin(), shape.end());
  return {from_sizes(kept), shape};
}

/// A new tensor for the result of reducing x, nhwc if x is and the rank stays.
Tensor empty_result(const Tensor& x, const Target& target, DType dtype) {
  const Layout layout = target.kept == target.result ? x.layout() : Layout::nchw;
  return Tensor::empty(target.result, {dtype, x.device(), layout});
}

void check_floating(const char* op, const Tensor& x) {
  check(is_floating(x.dtype()), op, ": x is ", x.dtype(), "; legal are the floating types");
}

/// scale * sum of x over what `target` drops. Sum and Expand are each other's gradient.
struct Sum final : Op {
  Sum(const char* name, const Target& target, double scale) : name_(name), target_(target), scale_(scale) {}
  const char* name() const override { return name_; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_defined(name_, "x", x[0]);
    const Tensor out = empty_result(x[0], target_, is_floating(x[0].dtype()) ? x[0].dtype() : DType::int64);
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), sum)(x[0], scale_, out.reshape(target_.kept));
    return {out};
  }
  Variables backward(const OpContext& context, const Variables& gy) override;

 private:
  const char* name_;
  Target target_;
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
    return {call<Sum>({gy[0]}, "sum_to", Target{kept_, context.input_shape(0)}, scale_)};
  }

 private:
  const char* name_;
  Shape kept_, shape_;
  Layout layout_;
  double scale_;
};

Variables Sum::backward(const OpContext& context, const Variables& gy) {
  return {call<Expand>({gy[0]}, "broadcast_to", target_.kept, context.input_shape(0),
                       context.input_options(0).layout, scale_)};
}

struct ExtremeOf final : Op {
  ExtremeOf(Extreme kind, const Target& target) : kind_(kind), target_(target) {}
  const char* name() const override { return kind_ == Extreme::max ? "max" : "min"; }
  Tensors forward(OpContext& context, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    check(x[0].count() > 0 || target_.result.count() == 0, name(), ": x ", x[0].shape(),
          " has no elements along the reduced dimensions");
    context.save_input(0);
    context.save_output(0);
    const Tensor out = empty_result(x[0], target_, x[0].dtype());
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), extreme)(kind_, x[0], out.reshape(target_.kept));
    return {out};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    const Tensor& x = context.input(0).tensor();
    const Tensor share = Tensor::empty_like(x);
    if (x.count() > 0) {
      TAPEDECK_KERNEL(x.device(), extreme_share)
      (x, context.output(0).tensor().reshape(target_.kept), share);
    }
    return {call<Expand>({gy[0]}, "broadcast_to", target_.kept, x.shape(), x.layout(), 1.0) * share};
  }

 private:
  Extreme kind_;
  Target target_;
};

struct Var final : Op {
  Var(const Target& target, double correction) : target_(target), correction_(correction) {}
  const char* name() const override { return "var"; }
  Tensors forward(OpContext& context, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    check_floating(name(), x[0]);
    context.save_input(0);
    const Tensor out = empty_result(x[0], target_, x[0].dtype());
    if (out.count() > 0) {
      TAPEDECK_KERNEL(out.device(), squared_deviation)
      (x[0], scale(x[0].shape()), out.reshape(target_.kept));
    }
    return {out};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    const Variable& x = context.input(0);
    if (x.count() == 0) return {};
    const double mean_scale = static_cast<double>(target_.kept.count()) / static_cast<double>(x.count());
    const Variable mean = call<Sum>({x}, "mean", Target{target_.kept, target_.kept}, mean_scale);
    const Variable g = call<Expand>({gy[0]}, "broadcast_to", target_.kept, x.shape(), x.tensor().layout(),
                                    2 * scale(x.shape()));
    return {g * (x - mean)};
  }

 private:
  double scale(const Shape& x) const {
    const std::int64_t outputs = target_.kept.count();
    const double n = outputs == 0 ? 0 : static_cast<double>(x.count()) / static_cast<double>(outputs);
    return 1 / std::max(0.0, n - correction_);
  }

  Target target_;
  double correction_;
};

struct ArgMax final : Op {
  ArgMax(int dim, bool keepdim) : dim_(dim), keepdim_(keepdim) {}
  const char* name() const override { return "argmax"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    const int rank = x[0].rank();
    check(dim_ >= -rank && dim_ < rank, "argmax: dim ", dim_, " is out of range for x ", x[0].shape(),
          "; legal is ", -rank, " to ", rank - 1);
    const int dim = x[0].shape().dim(dim_);
    check(x[0].size(dim) > 0, "argmax: x ", x[0].shape(), " has no elements along dimension ", dim);
    const Tensor out = Tensor::empty(x[0].shape().with(dim, 1), {DType::int64, x[0].device(), x[0].layout()});
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), argmax)(x[0], dim, out);
    return {keepdim_ ? out : out.reshape(x[0].shape().without(dim))};
  }
  Variables backward(const OpContext&, const Variables&) override { return {}; }

 private:
  int dim_;
  bool keepdim_;
};

Variable mean(const Variable& x, const std::vector<int>& dims, bool keepdim, const char* op) {
  check_defined(op, "x", x.tensor());
  check_floating(op, x.tensor());
  const Target to = target(op, x.shape(), dims, keepdim);
  return call<Sum>({x}, op, to, static_cast<double>(to.kept.count()) / static_cast<double>(x.count()));
}

}  // namespace

Variable sum(const Variable& x) {
  return sum(x, {});
}
Variable sum(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  return call<Sum>({x}, "sum", target("sum", x.shape(), dims, keepdim), 1.0);
}
Variable mean(const Variable& x) {
  return mean(x, {});
}
Variable mean(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  return mean(x, dims, keepdim, "mean");
}
Variable max(const Variable& x) {
  return max(x, {});
}
Variable max(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  return call<ExtremeOf>({x}, Extreme::max, target("max", x.shape(), dims, keepdim));
}
Variable min(const Variable& x) {
  return min(x, {});
}
Variable min(const Variable& x, const std::vector<int>& dims, bool keepdim) {
  return call<ExtremeOf>({x}, Extreme::min, target("min", x.shape(), dims, keepdim));
}
Variable var(const Variable& x, const std::vector<int>& dims, const VarOptions& options) {
  return call<Var>({x}, target("var", x.shape(), dims, options.keepdim), options.correction);
}
Variable argmax(const Variable& x) {
  return argmax(x.tensor().reshape({-1}), 0);
}
Variable argmax(const Variable& x, int dim, bool keepdim) {
  return call<ArgMax>({x}, dim, keepdim);
}

Variable broadcast_to(const Variable& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  check(broadcast("broadcast_to", x.shape(), shape) == shape, "broadcast_to: ", x.shape(),
        " does not broadcast to ", shape);
  return call<Expand>({x}, "broadcast_to", target_of(x.shape(), shape.rank()).kept, shape, Layout::nchw, 1.0);
}

Variable sum_to(const Variable& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  check(broadcast("sum_to", x.shape(), shape) == x.shape(), "sum_to: ", shape, " does not broadcast to ",
        x.shape());
  return call<Sum>({x}, "sum_to", target_of(shape, x.rank()), 1.0);
}

namespace cpu {

namespace {

struct SumPolicy {
  using Total = double;
  static constexpr bool kCentered = false;
  double start() const { return 0; }
  template <class V>
  double add(double total, V value, double) const {
    return total + static_cast<double>(value);
  }
  double merge(double a, double b) const { return a + b; }
};

struct IntegerSumPolicy {
  using Total = std::int64_t;
  static constexpr bool kCentered = false;
  std::int64_t start() const { return 0; }
  std::int64_t add(std::int64_t total, std::int64_t value, double) const { return total + value; }
  std::int64_t merge(std::int64_t a, std::int64_t b) const { return a + b; }
};

struct SquaresPolicy : SumPolicy {
  static constexpr bool kCentered = true;
  template <class V>
  double add(double total, V value, double center) const {
    const double d = static_cast<double>(value) - center;
    return total + d * d;
  }
};

template <class V, Extreme kind>
struct ExtremePolicy {
  using Total = V;
  static constexpr bool kCentered = false;
  using Limits = std::numeric_limits<V>;
  static constexpr V kWorst = Limits::has_infinity ? Limits::infinity() : Limits::max();
  V start() const {
    if constexpr (kind == Extreme::min) return kWorst;
    return Limits::has_infinity ? -kWorst : Limits::lowest();
  }
  V add(V total, V value, double) const { return merge(total, value); }
  V merge(V a, V b) const {  // a NaN on either side stays
    const bool better = kind == Extreme::max ? b > a : b < a;
    return better || b != b ? b : a;
  }
};

/// How many values are equal to the center, or NaN like it.
struct TiesPolicy : SumPolicy {
  static constexpr bool kCentered = true;
  template <class V>
  double add(double total, V value, double center) const {
    const double v = static_cast<double>(value);
    return total + static_cast<double>(v == center || (v != v && center != center));
  }
};

}  // namespace

namespace {

/// out[i] = totals[i] * scale.
void store(const std::vector<double>& totals, double scale, const Tensor& out) {
  visit_floating("reduce", out.dtype(), [&]<class T>() {
    T* to = out.data<T>();
    parallel_for(out.count(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = convert<T>(totals[i] * scale);
    });
  });
}

struct Scaled {
  double scale;
  template <class V>
  V operator()(V x) const {
    return x * static_cast<V>(scale);
  }
};

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
  if (is_floating(x.dtype())) return store(reduce_floating(x, out, SumPolicy{}), scale, out);
  const auto totals = reduce_loop<std::int64_t>(x, out, IntegerSumPolicy{});
  std::copy(totals.begin(), totals.end(), out.data<std::int64_t>());
}

void extreme(Extreme kind, const Tensor& x, const Tensor& out) {
  visit_compute(x.dtype(), [&]<class V>() {
    const auto totals = kind == Extreme::max ? reduce_loop<V>(x, out, ExtremePolicy<V, Extreme::max>{})
                                             : reduce_loop<V>(x, out, ExtremePolicy<V, Extreme::min>{});
    visit(out.dtype(), [&]<class T>() {
      if constexpr (std::is_same_v<compute_t<T>, V>) convert_run(totals.data(), out.data<T>(), out.count());
    });
  });
}

void extreme_share(const Tensor& x, const Tensor& y, const Tensor& share) {
  const std::vector<double> extremes = values(y);
  const std::vector<double> ties = reduce_floating(x, y, TiesPolicy{}, extremes.data());
  const auto loop = StridedLoop<2>::over(x.shape(), {&share, &y});  // x and share have one order
  const std::int64_t step = loop.strides[1][loop.rank - 1];
  visit_floating("extreme_share", x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* to = share.data<T>();
    loop.for_each_run([&](const auto& at, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t k = at[1] + i * step;
        const double value = convert<double>(in[at[0] + i]);
        to[at[0] + i] = convert<T>(TiesPolicy{}.add(0, value, extremes[k]) / ties[k]);
      }
    });
  });
}

void squared_deviation(const Tensor& x, double scale, const Tensor& out) {
  std::vector<double> means = reduce_floating(x, out, SumPolicy{});
  const double n = static_cast<double>(x.count()) / static_cast<double>(out.count());
  for (double& mean : means) mean /= n;
  store(reduce_floating(x, out, SquaresPolicy{}, means.data()), scale, out);
}

void argmax(const Tensor& x, int dim, const Tensor& out) {
  const Axis axis = Axis::of(x, dim);
  visit(x.dtype(), [&]<class T>() {
    using V = compute_t<T>;
    const T* in = x.data<T>();
    std::int64_t* to = out.data<std::int64_t>();
    const std::int64_t grain = std::max<std::int64_t>(1, (1 << 14) / axis.size);
    parallel_for(axis.outer * axis.inner, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* line = in + i / axis.inner * axis.size * axis.inner + i % axis.inner;
        V best = convert<V>(line[0]);
        std::int64_t position = 0;
        for (std::int64_t k = 1; k < axis.size && best == best; ++k) {
          const V value = convert<V>(line[k * axis.inner]);
          if (value > best || value != value) {
            best = value;
            position = k;
          }
        }
        to[i] = position;
      }
    });
  });
}

void expand(const Tensor& x, double scale, const Tensor& out) {
  map_any(Scaled{scale}, out, x);
}

}  // namespace cpu
}  // namespace tapedeck
