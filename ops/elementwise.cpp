#include <tapedeck/ops/elementwise.h>

#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/arithmetic_formulas.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/map.h>
#include <tapedeck/ops/unary.h>

namespace tapedeck {

namespace {

/// A number that broadcasts against x.
Variable number(double value, const Variable& x) {
  return Tensor::full({}, value, {x.dtype(), x.device()});
}

struct Exp final : UnaryOp {
  Exp() : UnaryOp("exp", {Unary::exp}, Saved::output) {}
  Variable derivative(const Variable& y) const override { return y; }
};

struct Log final : UnaryOp {
  Log() : UnaryOp("log", {Unary::log}, Saved::input) {}
  Variable derivative(const Variable& x) const override { return number(1, x) / x; }
};

struct Sqrt final : UnaryOp {
  Sqrt() : UnaryOp("sqrt", {Unary::sqrt}, Saved::output) {}
  Variable derivative(const Variable& y) const override { return number(0.5, y) / y; }
};

struct Square final : UnaryOp {
  Square() : UnaryOp("square", {Unary::square}, Saved::input) {}
  Variable derivative(const Variable& x) const override { return 2 * x; }
};

struct Abs final : UnaryOp {
  Abs() : UnaryOp("abs", {Unary::abs}, Saved::input) {}
};

struct Sin final : UnaryOp {
  Sin() : UnaryOp("sin", {Unary::sin}, Saved::input) {}
  Variable derivative(const Variable& x) const override { return cos(x); }
};

struct Cos final : UnaryOp {
  Cos() : UnaryOp("cos", {Unary::cos}, Saved::input) {}
  Variable derivative(const Variable& x) const override { return -sin(x); }
};

struct Erf final : UnaryOp {
  Erf() : UnaryOp("erf", {Unary::erf}, Saved::input) {}
  Variable derivative(const Variable& x) const override { return 2 / std::sqrt(M_PI) * exp(-square(x)); }
};

struct PowOfNumber final : UnaryOp {
  explicit PowOfNumber(double exponent) : UnaryOp("pow", {Unary::pow, exponent}, Saved::input) {}
  Variable derivative(const Variable& x) const override { return a() == 0 ? 0 * x : a() * pow(x, a() - 1); }
};

struct Clamp final : UnaryOp {
  Clamp(double min, double max) : UnaryOp("clamp", {Unary::clamp, min, max}, Saved::input) {}
};

struct Compare final : Op {
  Compare(const char* name, Comparison kind) : name_(name), kind_(kind) {}
  const char* name() const override { return name_; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_same_kind(name_, "a", x[0], "b", x[1]);
    const Shape shape = broadcast(name_, x[0].shape(), x[1].shape());
    Tensor out = Tensor::empty(shape, {DType::uint8, x[0].device(), broadcast_layout(shape, x)});
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), compare)(kind_, x[0], x[1], out);
    return {out};
  }
  Variables backward(const OpContext&, const Variables&) override { return {}; }

 private:
  const char* name_;
  Comparison kind_;
};

struct Where final : Op {
  const char* name() const override { return "where"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    check_defined(name(), "condition", x[0]);
    check(x[0].dtype() == DType::uint8, "where: condition is ", x[0].dtype(), "; legal is uint8");
    check_same_kind(name(), "a", x[1], "b", x[2]);
    check(x[0].device() == x[1].device(), "where: condition is on ", x[0].device(), " but a is on ",
          x[1].device());
    c.save_input(0);
    const Shape shape = broadcast(name(), x[0].shape(), broadcast(name(), x[1].shape(), x[2].shape()));
    Tensor out = Tensor::empty(shape, {x[1].dtype(), x[1].device(), broadcast_layout(shape, x)});
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), where)(x[0], x[1], x[2], out);
    return {out};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    const Variable& condition = c.input(0);
    const Variable zero = number(0, gy[0]);
    return {{},
            c.needs_grad(1) ? sum_to(where(condition, gy[0], zero), c.input_shape(1)) : Variable(),
            c.needs_grad(2) ? sum_to(where(condition, zero, gy[0]), c.input_shape(2)) : Variable()};
  }
};

struct Cast final : Op {
  explicit Cast(DType dtype) : dtype_(dtype) {}
  const char* name() const override { return "cast"; }
  Tensors forward(OpContext&, const Tensors& x) override { return {x[0].to(dtype_)}; }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {cast(gy[0], c.input_options(0).dtype)};
  }

 private:
  DType dtype_;
};

Variable compare(const char* name, Comparison kind, const Variable& x, double value) {
  if (is_floating(x.dtype())) return call<Compare>({x, number(value, x)}, name, kind);
  // Integers are compared as integers, since float64 does not hold them all: with the number, if it is one
  // of them, or with the one below it. If there is none, all have one answer.
  const bool less = kind == Comparison::lt || kind == Comparison::le;
  const bool equality = kind == Comparison::eq || kind == Comparison::ne;
  const double below = std::floor(value);
  const bool in_range = below >= -0x1p63 && below < 0x1p63;  // false for NaN
  if (!in_range || (equality && below != value)) {
    const bool answer = equality ? kind == Comparison::ne : less ? value > 0 : value < 0;
    return Tensor::full(x.shape(), answer, {DType::uint8, x.device(), x.tensor().layout()});
  }
  if (below != value) kind = less ? Comparison::le : Comparison::gt;
  const Tensor whole = Tensor::full({}, below, {DType::int64, x.device()});  // a captured step copies nothing
  return call<Compare>({x.tensor().to(DType::int64), whole}, name, kind);
}

}  // namespace

Variable exp(const Variable& x) {
  return call<Exp>({x});
}
Variable log(const Variable& x) {
  return call<Log>({x});
}
Variable sqrt(const Variable& x) {
  return call<Sqrt>({x});
}
Variable square(const Variable& x) {
  return call<Square>({x});
}
Variable abs(const Variable& x) {
  return call<Abs>({x});
}
Variable sin(const Variable& x) {
  return call<Sin>({x});
}
Variable cos(const Variable& x) {
  return call<Cos>({x});
}
Variable erf(const Variable& x) {
  return call<Erf>({x});
}
Variable pow(const Variable& x, double exponent) {
  if (exponent == 2 && is_floating(x.dtype())) return square(x);
  if (exponent == 0.5) return sqrt(x);
  return call<PowOfNumber>({x}, exponent);
}
Variable clamp(const Variable& x, double min, double max) {
  check(min <= max, "clamp: min ", min, " is above max ", max);
  return call<Clamp>({x}, min, max);
}

Variable eq(const Variable& a, const Variable& b) {
  return call<Compare>({a, b}, "eq", Comparison::eq);
}
Variable ne(const Variable& a, const Variable& b) {
  return call<Compare>({a, b}, "ne", Comparison::ne);
}
Variable lt(const Variable& a, const Variable& b) {
  return call<Compare>({a, b}, "lt", Comparison::lt);
}
Variable le(const Variable& a, const Variable& b) {
  return call<Compare>({a, b}, "le", Comparison::le);
}
Variable gt(const Variable& a, const Variable& b) {
  return call<Compare>({a, b}, "gt", Comparison::gt);
}
Variable ge(const Variable& a, const Variable& b) {
  return call<Compare>({a, b}, "ge", Comparison::ge);
}
Variable eq(const Variable& x, double value) {
  return compare("eq", Comparison::eq, x, value);
}
Variable ne(const Variable& x, double value) {
  return compare("ne", Comparison::ne, x, value);
}
Variable lt(const Variable& x, double value) {
  return compare("lt", Comparison::lt, x, value);
}
Variable le(const Variable& x, double value) {
  return compare("le", Comparison::le, x, value);
}
Variable gt(const Variable& x, double value) {
  return compare("gt", Comparison::gt, x, value);
}
Variable ge(const Variable& x, double value) {
  return compare("ge", Comparison::ge, x, value);
}

Variable where(const Variable& condition, const Variable& a, const Variable& b) {
  return call<Where>({condition, a, b});
}

Variable cast(const Variable& x, DType dtype) {
  return x.dtype() == dtype ? x : call<Cast>({x}, dtype);
}

namespace cpu {

using formula::Compared;

namespace {

/// Elements are only moved, so that any type of their size will do.
template <class Bits>
void where_bits(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  const auto* pc = condition.data<std::uint8_t>();
  const auto *pa = static_cast<const Bits*>(a.raw()), *pb = static_cast<const Bits*>(b.raw());
  auto* to = static_cast<Bits*>(out.raw());
  const auto nest = StridedLoop<4>::over(out.shape(), {&out, &condition, &a, &b});
  const auto step = [&](int k) { return nest.strides[k][nest.rank - 1]; };
  const std::int64_t sc = step(1), sa = step(2), sb = step(3);
  nest.for_each_run([&](const auto& at, std::int64_t n) {
    const std::uint8_t* __restrict c = pc + at[1];
    const Bits* __restrict x = pa + at[2], * __restrict y = pb + at[3];
    Bits* __restrict o = to + at[0];
    const auto run = [=](std::int64_t i, std::int64_t j, std::int64_t k) {
      for (std::int64_t e = 0; e < n; ++e) {
        const Bits left = x[e * j], right = y[e * k];
        o[e] = c[e * i] ? left : right;
      }
    };
    if (sc == 1 && sa == 1 && sb == 1) return run(1, 1, 1);
    if (sc == 1 && sa == 1 && sb == 0) return run(1, 1, 0);
    if (sc == 1 && sa == 0 && sb == 1) return run(1, 0, 1);
    run(sc, sa, sb);
  });
}

}  // namespace

void compare(Comparison kind, const Tensor& a, const Tensor& b, const Tensor& out) {
  switch (kind) {
    case Comparison::eq:
      return map_any(Compared<Comparison::eq>{}, out, a, b);
    case Comparison::ne:
      return map_any(Compared<Comparison::ne>{}, out, a, b);
    case Comparison::lt:
      return map_any(Compared<Comparison::lt>{}, out, a, b);
    case Comparison::le:
      return map_any(Compared<Comparison::le>{}, out, a, b);
    case Comparison::gt:
      return map_any(Compared<Comparison::lt>{}, out, b, a);
    case Comparison::ge:
      return map_any(Compared<Comparison::le>{}, out, b, a);
  }
}

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  switch (size_of(out.dtype())) {
    case 8:
      return where_bits<std::uint64_t>(condition, a, b, out);
    case 4:
      return where_bits<std::uint32_t>(condition, a, b, out);
    case 2:
      return where_bits<std::uint16_t>(condition, a, b, out);
    default:
      return where_bits<std::uint8_t>(condition, a, b, out);
  }
}

}  // namespace cpu
}  // namespace tapedeck
