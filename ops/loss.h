// Losses that compare tensors element by element: value, sum and gradient each in one pass.
#pragma once

#include <tapedeck/core/op.h>

namespace tapedeck {

/// f(x, t) of a prediction x and a target t, with d = x - t.
enum class PointwiseLoss : std::uint8_t {
  squared,   ///< d^2
  absolute,  ///< |d|
  huber,     ///< d^2/2 where |d| < delta, else delta (|d| - delta/2)
  logistic,  ///< -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) = softplus(x) - t x
};

struct PointwiseLossCall {
  PointwiseLoss kind = PointwiseLoss::squared;
  double delta = 1;
};

/// f(x, t) elementwise, in x's layout. x and t are floating and of one shape and dtype; gradients flow to
/// both. Throws Error otherwise, under the loss's own name, e.g. "mse_loss".
Variable pointwise_loss(const PointwiseLossCall& call, const Variable& x, const Variable& t);
/// `scale` times the sum of f(x, t), formed in float64 in a fixed order.
Variable pointwise_loss_sum(const PointwiseLossCall& call, double scale, const Variable& x,
                            const Variable& t);

// Tensors have one layout; y and gy are elementwise or, for the sum, scalars.
namespace cpu {
void pointwise_loss(const PointwiseLossCall& call, const Tensor& x, const Tensor& t, const Tensor& y);
void pointwise_loss_sum(const PointwiseLossCall& call, double scale, const Tensor& x, const Tensor& t,
                        const Tensor& y);
/// gx = scale gy df/dx and gt = scale gy df/dt; either may be undefined and is left out then.
void pointwise_loss_gradient(const PointwiseLossCall& call, double scale, const Tensor& x, const Tensor& t,
                             const Tensor& gy, const Tensor& gx, const Tensor& gt);
}  // namespace cpu
namespace cu {
void pointwise_loss(const PointwiseLossCall& call, const Tensor& x, const Tensor& t, const Tensor& y);
void pointwise_loss_sum(const PointwiseLossCall& call, double scale, const Tensor& x, const Tensor& t,
                        const Tensor& y);
void pointwise_loss_gradient(const PointwiseLossCall& call, double scale, const Tensor& x, const Tensor& t,
                             const Tensor& gy, const Tensor& gx, const Tensor& gt);
}  // namespace cu

}  // namespace tapedeck
