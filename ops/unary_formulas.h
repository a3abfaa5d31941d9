// All elementwise functions of one number and their derivatives, side by side, for every device.
//
// `value(x)` is f(x). `gradient(s, g)` is g * f', where s is x, or y where that is shorter. A choice
// computes both sides first, as vectorising needs.
#pragma once

#include <cmath>

#include <tapedeck/core/error.h>
#include <tapedeck/ops/scalar_math.h>
#include <tapedeck/ops/unary.h>

namespace tapedeck::formula {

struct Abs {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return x < 0 ? -x : x;
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    return x > 0 ? g : (x < 0 ? -g : x * 0);  // 0 at 0, NaN at NaN
  }
};

struct Clamp {
  double low, high;
  template <class A>
  TAPEDECK_HD A value(A x) const {
    const A a = static_cast<A>(low), b = static_cast<A>(high);
    const A raised = x < a ? a : x;
    return raised > b ? b : raised;  // NaN stays
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    return x >= static_cast<A>(low) && x <= static_cast<A>(high) ? g : A(0);
  }
};

struct Cos {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return std::cos(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    return -g * std::sin(x);
  }
};

struct Elu {
  double alpha;
  template <class A>
  TAPEDECK_HD A value(A x) const {
    const A below = static_cast<A>(alpha) * math::expm1_of_negative(x > 0 ? A(0) : x);
    return x > 0 ? x : below;
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    const A below = g * (static_cast<A>(alpha) * math::exp(x > 0 ? A(0) : x));
    return x > 0 ? g : below;
  }
};

struct Erf {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return math::erf(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    return g * (A(2 / std::sqrt(M_PI)) * math::exp(-x * x));
  }
};

struct Exp {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return math::exp(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A y, A g) const {
    return g * y;
  }
};

/// x * (the probability that a standard normal number is below x).
struct Gelu {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return x * math::normal(x).cdf;
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    const math::Normal<A> normal = math::normal(x);
    return g * (normal.cdf + x * normal.density);
  }
};

/// x * (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), which is x * sigmoid(2 u).
struct GeluTanh {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return x * math::sigmoid(x * (A(kTwice) + A(kTwice * kCube) * x * x));
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    const A s = math::sigmoid(x * (A(kTwice) + A(kTwice * kCube) * x * x));
    return g * (s + x * (s * (1 - s)) * (A(kTwice) + A(3 * kTwice * kCube) * x * x));
  }
  static constexpr double kTwice = 1.59576912160573071176;  // 2 sqrt(2/pi)
  static constexpr double kCube = 0.044715;
};

/// Differs from Clamp on the bounds, where no gradient passes.
struct Hardtanh : Clamp {
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    return x <= static_cast<A>(low) || x >= static_cast<A>(high) ? A(0) : g;
  }
};

struct LeakyRelu {
  double slope;
  template <class A>
  TAPEDECK_HD A value(A x) const {
    const A below = x * static_cast<A>(slope);
    return x > 0 ? x : below;
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    const A below = g * static_cast<A>(slope);
    return x > 0 ? g : below;
  }
};

struct Log {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return math::log(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    return g / x;
  }
};

/// x * tanh(softplus(x)). With e = exp(-|x|) the tanh is n / (n + 2 e^2) on the right, where n = 1 + 2 e,
/// and n / (n + 2) on the left, where n = e (e + 2).
struct Mish {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    const A e = math::exp(-std::fabs(x));
    const A n = x < 0 ? e * (e + 2) : 1 + 2 * e;
    return x * (n / (n + 2 * (x < 0 ? A(1) : e * e)));
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    const A e = math::exp(-std::fabs(x));
    const A n = x < 0 ? e * (e + 2) : 1 + 2 * e;
    const A d = 1 / (n + 2 * (x < 0 ? A(1) : e * e));
    // (1 - tanh^2) sigmoid(x)
    const A slope = 4 * e * (1 + e) * (x < 0 ? A(1) : e) * d * d;
    return g * (n * d + x * slope);
  }
};

struct Pow {
  double exponent;
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return std::pow(x, static_cast<A>(exponent));
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    const A p = static_cast<A>(exponent);
    return p == 0 ? A(0) : g * (p * std::pow(x, p - 1));
  }
};

struct Relu {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return x < 0 ? A(0) : x;  // NaN stays
  }
  template <class A>
  TAPEDECK_HD A gradient(A y, A g) const {
    return y <= 0 ? A(0) : g;
  }
};

struct Sigmoid {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return math::sigmoid(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A y, A g) const {
    return g * (y * (1 - y));
  }
};

struct Silu {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return x * math::sigmoid(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    const A s = math::sigmoid(x);
    return g * (s * (1 + x * (1 - s)));
  }
};

struct Sin {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return std::sin(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    return g * std::cos(x);
  }
};

/// log(1 + exp(beta x)) / beta, and x itself where beta x is above the threshold.
struct Softplus {
  double beta, threshold;
  template <class A>
  TAPEDECK_HD A value(A x) const {
    const A z = x * static_cast<A>(beta);
    const A y = math::softplus(z) / static_cast<A>(beta);
    return z > static_cast<A>(threshold) ? x : y;
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    const A z = x * static_cast<A>(beta);
    const A gx = g * math::sigmoid(z);
    return z > static_cast<A>(threshold) ? g : gx;
  }
};

struct Sqrt {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return std::sqrt(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A y, A g) const {
    return g / (2 * y);
  }
};

struct Square {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return x * x;
  }
  template <class A>
  TAPEDECK_HD A gradient(A x, A g) const {
    return g * (2 * x);
  }
};

struct Tanh {
  template <class A>
  TAPEDECK_HD A value(A x) const {
    return math::tanh(x);
  }
  template <class A>
  TAPEDECK_HD A gradient(A y, A g) const {
    return g * (1 - y * y);
  }
};

/// Whether F::value works on integers.
template <class F>
inline constexpr bool takes_integers = std::is_same_v<F, Abs> || std::is_same_v<F, Clamp> ||
                                       std::is_same_v<F, Relu> || std::is_same_v<F, Square>;

// What elementwise loops take.
template <class F>
struct Value {
  F f;
  template <class A>
  TAPEDECK_HD A operator()(A x) const {
    return f.value(x);
  }
};

template <class F>
struct Gradient {
  F f;
  template <class A>
  TAPEDECK_HD A operator()(A saved, A gy) const {
    return f.gradient(saved, gy);
  }
};

/// Calls `f(formula)` with the formula of a call.
template <class F>
decltype(auto) visit(const UnaryCall& call, F&& f) {
  switch (call.kind) {
    case Unary::abs:
      return f(Abs{});
    case Unary::clamp:
      return f(Clamp{call.a, call.b});
    case Unary::cos:
      return f(Cos{});
    case Unary::elu:
      return f(Elu{call.a});
    case Unary::erf:
      return f(Erf{});
    case Unary::exp:
      return f(Exp{});
    case Unary::gelu:
      return f(Gelu{});
    case Unary::gelu_tanh:
      return f(GeluTanh{});
    case Unary::hardtanh:
      return f(Hardtanh{{call.a, call.b}});
    case Unary::leaky_relu:
      return f(LeakyRelu{call.a});
    case Unary::log:
      return f(Log{});
    case Unary::mish:
      return f(Mish{});
    case Unary::pow:
      return f(Pow{call.a});
    case Unary::relu:
      return f(Relu{});
    case Unary::sigmoid:
      return f(Sigmoid{});
    case Unary::silu:
      return f(Silu{});
    case Unary::sin:
      return f(Sin{});
    case Unary::softplus:
      return f(Softplus{call.a, call.b});
    case Unary::sqrt:
      return f(Sqrt{});
    case Unary::square:
      return f(Square{});
    case Unary::tanh:
      break;
  }
  return f(Tanh{});
}

}  // namespace tapedeck::formula
