// Activation functions. All are elementwise, of floating tensors (relu also of integers), and NaN stays.
#pragma once

#include <tapedeck/core/op.h>

namespace tapedeck {

/// max(x, 0). The gradient at 0 is 0.
Variable relu(const Variable& x);
/// x above 0, else x * negative_slope; at 0 the gradient is negative_slope.
Variable leaky_relu(const Variable& x, double negative_slope = 0.01);
/// x above 0, else alpha * (exp(x) - 1).
Variable elu(const Variable& x, double alpha = 1);

enum class Gelu : std::uint8_t {
  exact,  ///< x times the probability that a standard normal number is below x
  tanh,   ///< x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2
};
Variable gelu(const Variable& x, Gelu kind = Gelu::exact);

/// x * sigmoid(x).
Variable silu(const Variable& x);
/// x * tanh(softplus(x)).
Variable mish(const Variable& x);
/// log(1 + exp(beta * x)) / beta, and x itself where beta * x > threshold. Throws Error unless beta is
/// finite and not 0.
Variable softplus(const Variable& x, double beta = 1, double threshold = 20);
Variable tanh(const Variable& x);
/// 1 / (1 + exp(-x)).
Variable sigmoid(const Variable& x);
/// x limited to [min, max]. The gradient is 1 inside, 0 outside and on the bounds. Throws Error unless
/// min <= max.
Variable hardtanh(const Variable& x, double min = -1, double max = 1);

}  // namespace tapedeck
