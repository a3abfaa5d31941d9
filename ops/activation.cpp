#include <tapedeck/ops/activation.h>

#include <cmath>
#include <limits>

#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/scalar_math.h>
#include <tapedeck/ops/unary.h>
#include <tapedeck/ops/unary_formulas.h>

namespace tapedeck {

namespace {

Variable one(const Variable& x) {
  return Tensor::ones({}, {x.dtype(), x.device()});
}

struct Relu final : UnaryOp {
  Relu() : UnaryOp("relu", {Unary::relu}, Saved::output) {}
};

struct LeakyRelu final : UnaryOp {
  explicit LeakyRelu(double slope) : UnaryOp("leaky_relu", {Unary::leaky_relu, slope}, Saved::input) {}
};

struct Elu final : UnaryOp {
  explicit Elu(double alpha) : UnaryOp("elu", {Unary::elu, alpha}, Saved::input) {}
  Variable derivative(const Variable& x) const override {
    const Variable negative = clamp(x, -std::numeric_limits<double>::infinity(), 0);
    return where(gt(x, 0), one(x), a() * exp(negative));
  }
};

struct GeluExact final : UnaryOp {
  GeluExact() : UnaryOp("gelu", {Unary::gelu}, Saved::input) {}
  Variable derivative(const Variable& x) const override {
    const Variable cdf = 0.5 + 0.5 * erf(math::kSqrt1_2 * x);
    return cdf + x * (math::kInvSqrt2Pi * exp(-0.5 * square(x)));
  }
};

struct GeluTanh final : UnaryOp {
  GeluTanh() : UnaryOp("gelu", {Unary::gelu_tanh}, Saved::input) {}
  Variable derivative(const Variable& x) const override {
    constexpr double k = formula::GeluTanh::kTwice, c = formula::GeluTanh::kCube;
    const Variable s = sigmoid(x * (k + k * c * square(x)));
    return s + x * (s * (1 - s)) * (k + 3 * k * c * square(x));
  }
};

struct Silu final : UnaryOp {
  Silu() : UnaryOp("silu", {Unary::silu}, Saved::input) {}
  Variable derivative(const Variable& x) const override {
    const Variable s = sigmoid(x);
    return s * (1 + x * (1 - s));
  }
};

struct Mish final : UnaryOp {
  Mish() : UnaryOp("mish", {Unary::mish}, Saved::input) {}
  Variable derivative(const Variable& x) const override {
    const Variable t = tanh(softplus(x));
    return t + x * ((1 - square(t)) * sigmoid(x));
  }
};

struct Softplus final : UnaryOp {
  Softplus(double beta, double threshold)
      : UnaryOp("softplus", {Unary::softplus, beta, threshold}, Saved::input) {}
  Variable derivative(const Variable& x) const override {
    const Variable z = a() * x;
    return where(gt(z, b()), one(x), sigmoid(z));
  }
};

struct Tanh final : UnaryOp {
  Tanh() : UnaryOp("tanh", {Unary::tanh}, Saved::output) {}
  Variable derivative(const Variable& y) const override { return 1 - square(y); }
};

struct Sigmoid final : UnaryOp {
  Sigmoid() : UnaryOp("sigmoid", {Unary::sigmoid}, Saved::output) {}
  Variable derivative(const Variable& y) const override { return y * (1 - y); }
};

struct Hardtanh final : UnaryOp {
  Hardtanh(double min, double max) : UnaryOp("hardtanh", {Unary::hardtanh, min, max}, Saved::input) {}
};

}  // namespace

Variable relu(const Variable& x) {
  return call<Relu>({x});
}
Variable leaky_relu(const Variable& x, double negative_slope) {
  return call<LeakyRelu>({x}, negative_slope);
}
Variable elu(const Variable& x, double alpha) {
  return call<Elu>({x}, alpha);
}
Variable gelu(const Variable& x, Gelu kind) {
  return kind == Gelu::exact ? call<GeluExact>({x}) : call<GeluTanh>({x});
}
Variable silu(const Variable& x) {
  return call<Silu>({x});
}
Variable mish(const Variable& x) {
  return call<Mish>({x});
}
Variable softplus(const Variable& x, double beta, double threshold) {
  check(std::isfinite(beta) && beta != 0, "softplus: beta is ", beta, "; legal are finite numbers but 0");
  return call<Softplus>({x}, beta, threshold);
}
Variable tanh(const Variable& x) {
  return call<Tanh>({x});
}
Variable sigmoid(const Variable& x) {
  return call<Sigmoid>({x});
}
Variable hardtanh(const Variable& x, double min, double max) {
  check(min <= max, "hardtanh: min ", min, " is above max ", max);
  return call<Hardtanh>({x}, min, max);
}

}  // namespace tapedeck
