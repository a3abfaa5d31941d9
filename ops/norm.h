// Normalisation: y = (x - mean) / sqrt(var + eps) * weight + bias, with the mean and the biased variance of
// some of x's elements, as in PyTorch.
//
// x is floating; weight and bias have its dtype, or are float32 for an x of a half type, and may be undefined
// (1 and 0). Results have x's dtype and layout.
// Statistics and sums are formed in float64, in a fixed order.
#pragma once

#include <tapedeck/core/op.h>

namespace tapedeck {

struct BatchNormOptions {
  bool training = false;  ///< use the batch's statistics and move the running ones towards them
  double momentum = 0.1;  ///< running = (1 - momentum) * running + momentum * the batch's
  double eps = 1e-5;
  /// Negative results are multiplied by it: as leaky_relu() behind it would, or relu() where it is 0.
  double negative_slope = 1;
  Tensor batches = {};  ///< or none: int64, one element on x's device, which counts the batches of training
};

/// Over all dimensions but the channels, of x [n, c, ...]; weight, bias and the running statistics are [c].
/// In training, statistics are the batch's and the running ones, unless undefined, are updated in place
/// (running_var with the unbiased variance); else they are the running ones, and constants. Throws Error
/// in training with one value a channel. An empty batch changes nothing.
Variable batch_norm(const Variable& x, const Variable& weight, const Variable& bias,
                    const Variable& running_mean, const Variable& running_var,
                    const BatchNormOptions& options = {});

/// Over each sample's groups of c / groups channels, of x [n, c, ...]; weight and bias are [c].
Variable group_norm(const Variable& x, std::int64_t groups, const Variable& weight = {},
                    const Variable& bias = {}, double eps = 1e-5);

/// Over x's last dimensions, which must be `normalized_shape`; weight and bias have that shape.
Variable layer_norm(const Variable& x, const Shape& normalized_shape, const Variable& weight = {},
                    const Variable& bias = {}, double eps = 1e-5);

// In these, tensors marked "or none" may be undefined, and x has elements. Statistics are float64 for a
// float64 x, else float32; y, gy and gx have x's dtype and layout. What belongs to channels (weight, bias,
// the running statistics and gradients of them) has x's dtype or, for a half x, may be float32.
namespace cpu {
/// statistics [3, c] = mean and var, which are the batch's in training, and weight / sqrt(var + eps);
/// y = x normalised with them, and rectified. The running statistics (or none) move as options say.
void batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                const Tensor& running_var, const BatchNormOptions& options, const Tensor& statistics,
                const Tensor& y);
/// The gradients (or none) of x, weight and bias. In training, the statistics are functions of x.
void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& bias, const Tensor& statistics,
                         const BatchNormOptions& options, const Tensor& gx, const Tensor& gw,
                         const Tensor& gb);

/// mean and var [n, groups], and y = normalised x.
void group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& mean,
                const Tensor& var, const Tensor& y);
/// The gradients (or none) of x, weight and bias.
void group_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& var, double eps, const Tensor& gx, const Tensor& gw, const Tensor& gb);
}  // namespace cpu
namespace cu {
void batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                const Tensor& running_var, const BatchNormOptions& options, const Tensor& statistics,
                const Tensor& y);
void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& bias, const Tensor& statistics,
                         const BatchNormOptions& options, const Tensor& gx, const Tensor& gw,
                         const Tensor& gb);
void group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& mean,
                const Tensor& var, const Tensor& y);
void group_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& var, double eps, const Tensor& gx, const Tensor& gw, const Tensor& gb);
}  // namespace cu

}  // namespace tapedeck
