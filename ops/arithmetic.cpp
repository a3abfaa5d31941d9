#include <tapedeck/ops/arithmetic.h>

#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/arithmetic_formulas.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/map.h>

namespace tapedeck {

namespace {

Tensor binary(const char* name, Arithmetic kind, const Tensors& x) {
  check_same_kind(name, "a", x[0], "b", x[1]);
  const Shape shape = broadcast(name, x[0].shape(), x[1].shape());
  Tensor out = Tensor::empty(shape, {x[0].dtype(), x[0].device(), broadcast_layout(shape, x)});
  if (out.count() > 0) TAPEDECK_KERNEL(out.device(), arithmetic)(kind, x[0], x[1], out);
  return out;
}

struct Add final : Op {
  const char* name() const override { return "add"; }
  Tensors forward(OpContext&, const Tensors& x) override { return {binary(name(), Arithmetic::add, x)}; }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {c.needs_grad(0) ? sum_to(gy[0], c.input_shape(0)) : Variable(),
            c.needs_grad(1) ? sum_to(gy[0], c.input_shape(1)) : Variable()};
  }
};

struct Sub final : Op {
  const char* name() const override { return "sub"; }
  Tensors forward(OpContext&, const Tensors& x) override { return {binary(name(), Arithmetic::sub, x)}; }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {c.needs_grad(0) ? sum_to(gy[0], c.input_shape(0)) : Variable(),
            c.needs_grad(1) ? -sum_to(gy[0], c.input_shape(1)) : Variable()};
  }
};

struct Mul final : Op {
  const char* name() const override { return "mul"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    if (c.needs_grad(1)) c.save_input(0);
    if (c.needs_grad(0)) c.save_input(1);
    return {binary(name(), Arithmetic::mul, x)};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {c.needs_grad(0) ? sum_to(gy[0] * c.input(1), c.input_shape(0)) : Variable(),
            c.needs_grad(1) ? sum_to(gy[0] * c.input(0), c.input_shape(1)) : Variable()};
  }
};

struct Div final : Op {
  const char* name() const override { return "div"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    check_defined(name(), "a", x[0]);
    check_floating(name(), "a", x[0]);
    c.save_input(1);
    if (c.needs_grad(1)) c.save_output(0);
    return {binary(name(), Arithmetic::div, x)};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    const Variable ga = gy[0] / c.input(1);
    return {c.needs_grad(0) ? sum_to(ga, c.input_shape(0)) : Variable(),
            c.needs_grad(1) ? -sum_to(ga * c.output(0), c.input_shape(1)) : Variable()};
  }
};

/// The larger or the smaller of two.
struct Extremum final : Op {
  explicit Extremum(Arithmetic kind) : kind_(kind) {}
  const char* name() const override { return kind_ == Arithmetic::maximum ? "maximum" : "minimum"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    c.save_input(0);
    c.save_input(1);
    return {binary(name(), kind_, x)};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    Tensors x = {c.input(0).tensor(), c.input(1).tensor()};
    if (kind_ == Arithmetic::minimum) std::swap(x[0], x[1]);
    const Variable first = binary(name(), Arithmetic::above, x);
    return {c.needs_grad(0) ? sum_to(gy[0] * first, c.input_shape(0)) : Variable(),
            c.needs_grad(1) ? sum_to(gy[0] * (1 - first), c.input_shape(1)) : Variable()};
  }

 private:
  Arithmetic kind_;
};

struct Pow final : Op {
  const char* name() const override { return "pow"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    check_defined(name(), "a", x[0]);
    check_floating(name(), "a", x[0]);
    c.save_input(0);
    c.save_input(1);
    if (c.needs_grad(1)) c.save_output(0);
    return {binary(name(), Arithmetic::pow, x)};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    const Variable &x = c.input(0), &y = c.input(1);
    const Variable one = Tensor::ones({}, {x.dtype(), x.device()});
    const Variable at_zero = eq(x, 0);
    Variable gx, g_exponent;
    if (c.needs_grad(0)) {  // y x^(y - 1), and 0 where both are 0
      const Variable exponent = where(mul(at_zero, eq(y, 0)), one, y - 1);
      gx = sum_to(gy[0] * (y * pow(x, exponent)), x.shape());
    }
    if (c.needs_grad(1)) {  // x^y log x, and 0 where x is 0 and y is not negative
      const Variable base = where(mul(at_zero, ge(y, 0)), one, x);
      g_exponent = sum_to(gy[0] * (c.output(0) * log(base)), y.shape());
    }
    return {gx, g_exponent};
  }
};

struct Affine final : Op {
  Affine(double scale, double shift) : scale_(scale), shift_(shift) {}
  const char* name() const override { return "affine"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    for (double value : {scale_, shift_}) {
      check(is_floating(x[0].dtype()) || value == std::trunc(value), "affine: x is ", x[0].dtype(), " but ",
            value, " is not a whole number");
    }
    Tensor out = Tensor::empty_like(x[0]);
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), affine)(x[0], scale_, shift_, out);
    return {out};
  }
  Variables backward(const OpContext&, const Variables& gy) override {
    return {tapedeck::affine(gy[0], scale_, 0)};
  }

 private:
  double scale_, shift_;
};

template <class O, class... Args>
Variable promoted(const Variable& a, const Variable& b, Args... arguments) {
  const auto [left, right] = detail::promoted(a, b);
  return call<O>({left, right}, arguments...);
}

}  // namespace

Variable add(const Variable& a, const Variable& b) {
  return promoted<Add>(a, b);
}
Variable sub(const Variable& a, const Variable& b) {
  return promoted<Sub>(a, b);
}
Variable mul(const Variable& a, const Variable& b) {
  return promoted<Mul>(a, b);
}
Variable div(const Variable& a, const Variable& b) {
  return promoted<Div>(a, b);
}
Variable minimum(const Variable& a, const Variable& b) {
  return promoted<Extremum>(a, b, Arithmetic::minimum);
}
Variable maximum(const Variable& a, const Variable& b) {
  return promoted<Extremum>(a, b, Arithmetic::maximum);
}
Variable pow(const Variable& x, const Variable& y) {
  return promoted<Pow>(x, y);
}
Variable affine(const Variable& x, double scale, double shift) {
  return call<Affine>({x}, scale, shift);
}

namespace cpu {

using namespace formula;

void arithmetic(Arithmetic kind, const Tensor& a, const Tensor& b, const Tensor& out) {
  switch (kind) {
    case Arithmetic::add:
      return map_any(Plus{}, out, a, b);
    case Arithmetic::sub:
      return map_any(Minus{}, out, a, b);
    case Arithmetic::mul:
      return map_any(Times{}, out, a, b);
    case Arithmetic::div:
      return map_floating(Over{}, out, a, b);
    case Arithmetic::minimum:
      return map_any(Smaller{}, out, a, b);
    case Arithmetic::maximum:
      return map_any(Larger{}, out, a, b);
    case Arithmetic::above:
      return map_floating(Above{}, out, a, b);
    case Arithmetic::pow:
      return map_floating(Power{}, out, a, b);
  }
}

void affine(const Tensor& x, double scale, double shift, const Tensor& out) {
  map_any(ScaleShift{scale, shift}, out, x);
}

}  // namespace cpu
}  // namespace tapedeck
