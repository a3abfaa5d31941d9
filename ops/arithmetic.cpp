#include <tapedeck/ops/arithmetic.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/strided.h>

namespace tapedeck {

namespace {

/// nhwc if an operand of the full shape is.
Layout result_layout(const Shape& shape, const Tensor& a, const Tensor& b) {
  for (const Tensor* x : {&a, &b}) {
    if (x->shape() == shape && x->layout() == Layout::nhwc) return Layout::nhwc;
  }
  return Layout::nchw;
}

Tensor binary(const char* name, Arithmetic kind, const Tensors& x) {
  check_same_kind(name, "a", x[0], "b", x[1]);
  const Shape shape = broadcast(name, x[0].shape(), x[1].shape());
  Tensor out = Tensor::empty(shape, {x[0].dtype(), x[0].device(), result_layout(shape, x[0], x[1])});
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
            c.needs_grad(1) ? sum_to(-gy[0], c.input_shape(1)) : Variable()};
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
    if (c.needs_grad(1)) c.save_input(0);
    c.save_input(1);
    return {binary(name(), Arithmetic::div, x)};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    const Variable ga = gy[0] / c.input(1);
    return {c.needs_grad(0) ? sum_to(ga, c.input_shape(0)) : Variable(),
            c.needs_grad(1) ? sum_to(-(ga * c.input(0) / c.input(1)), c.input_shape(1)) : Variable()};
  }
};

struct Affine final : Op {
  Affine(double scale, double shift) : scale_(scale), shift_(shift) {}
  const char* name() const override { return "affine"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
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

}  // namespace

Variable add(const Variable& a, const Variable& b) {
  return call<Add>({a, b});
}
Variable sub(const Variable& a, const Variable& b) {
  return call<Sub>({a, b});
}
Variable mul(const Variable& a, const Variable& b) {
  return call<Mul>({a, b});
}
Variable div(const Variable& a, const Variable& b) {
  return call<Div>({a, b});
}
Variable affine(const Variable& x, double scale, double shift) {
  return call<Affine>({x}, scale, shift);
}

namespace cpu {

namespace {

template <class T, class F>
void binary(const Tensor& a, const Tensor& b, const Tensor& out, F f) {
  using A = accumulate_t<T>;
  const T* pa = a.data<T>();
  const T* pb = b.data<T>();
  T* po = out.data<T>();
  const auto loop = StridedLoop<3>::over(out.shape(), {&out, &a, &b});
  const std::int64_t sa = loop.strides[1][loop.rank - 1], sb = loop.strides[2][loop.rank - 1];
  loop.for_each_run([&](const auto& at, std::int64_t n) {
    T* o = po + at[0];
    const T* x = pa + at[1];
    const T* y = pb + at[2];
    const auto run = [&](auto step_a, auto step_b) {
      for (std::int64_t i = 0; i < n; ++i) {
        o[i] = convert<T>(f(convert<A>(x[i * step_a]), convert<A>(y[i * step_b])));
      }
    };
    using One = std::integral_constant<std::int64_t, 1>;
    using Zero = std::integral_constant<std::int64_t, 0>;
    if (sa == 1 && sb == 1) {
      run(One{}, One{});
    } else if (sa == 1 && sb == 0) {
      run(One{}, Zero{});
    } else if (sa == 0 && sb == 1) {
      run(Zero{}, One{});
    } else {
      run(sa, sb);
    }
  });
}

}  // namespace

void arithmetic(Arithmetic kind, const Tensor& a, const Tensor& b, const Tensor& out) {
  visit(out.dtype(), [&]<class T>() {
    switch (kind) {
      case Arithmetic::add:
        return binary<T>(a, b, out, [](auto x, auto y) { return x + y; });
      case Arithmetic::sub:
        return binary<T>(a, b, out, [](auto x, auto y) { return x - y; });
      case Arithmetic::mul:
        return binary<T>(a, b, out, [](auto x, auto y) { return x * y; });
      case Arithmetic::div:
        if constexpr (std::is_integral_v<T>) {
          throw Error(concat("div: dtype ", out.dtype(), " is not supported; legal are the floating types"));
        } else {
          return binary<T>(a, b, out, [](auto x, auto y) { return x / y; });
        }
    }
  });
}

void affine(const Tensor& x, double scale, double shift, const Tensor& out) {
  visit(out.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const T* in = x.data<T>();
    T* to = out.data<T>();
    const A a = convert<A>(scale), b = convert<A>(shift);
    parallel_for(out.count(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = convert<T>(convert<A>(in[i]) * a + b);
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
