// Elementwise functions of one tensor: which there are, and what their ops share.
#pragma once

#include <tapedeck/core/op.h>

namespace tapedeck {

enum class Unary : std::uint8_t {
  abs,
  clamp,  // to [a, b]
  cos,
  elu,  // alpha = a
  erf,
  exp,
  gelu,
  gelu_tanh,
  hardtanh,    // to [a, b]
  leaky_relu,  // slope a
  log,
  mish,
  pow,  // exponent a
  relu,
  sigmoid,
  silu,
  sin,
  softplus,  // beta = a, threshold = b
  sqrt,
  square,
  tanh,
};

/// A function and its numbers.
struct UnaryCall {
  Unary kind;
  double a = 0, b = 0;
};

/// An op that applies a function f elementwise. What is left to an op of its own is f'.
class UnaryOp : public Op {
 public:
  /// Of what derivative() is computed.
  enum class Saved : std::uint8_t { input, output };

  UnaryOp(const char* name, const UnaryCall& call, Saved saved) : name_(name), call_(call), saved_(saved) {}
  const char* name() const override { return name_; }
  Tensors forward(OpContext& context, const Tensors& x) override;
  /// gy * f', in one kernel unless an outer tape records.
  Variables backward(const OpContext& context, const Variables& gy) override;

 protected:
  /// f' as a function of what was saved, written with differentiable functions. As it is, it suits a
  /// function made of straight lines: to outer tapes f' is a constant.
  virtual Variable derivative(const Variable& saved) const;

  double a() const { return call_.a; }
  double b() const { return call_.b; }

 private:
  Tensor gradient(const Tensor& saved, const Tensor& gy) const;

  const char* name_;
  UnaryCall call_;
  Saved saved_;
};

namespace cpu {
/// out[i] = f(x[i]). Integer types: abs, clamp, relu and square only; throws Error for others.
void unary(const UnaryCall& call, const Tensor& x, const Tensor& out);
/// gx[i] = gy[i] * f'(saved[i]), where `saved` is f's output for exp, relu, sigmoid, sqrt and tanh, and its
/// input for the others.
void unary_gradient(const UnaryCall& call, const Tensor& saved, const Tensor& gy, const Tensor& gx);
}  // namespace cpu
namespace cu {
void unary(const UnaryCall& call, const Tensor& x, const Tensor& out);
void unary_gradient(const UnaryCall& call, const Tensor& saved, const Tensor& gy, const Tensor& gx);
}  // namespace cu

}  // namespace tapedeck
