// Normalisation: y = (x - mean) / sqrt(var + eps) * weight + bias, with the mean and the biased variance of
// some of x's elements, as in PyTorch.
//
// x is floating; weight and bias have its dtype, or are float32 for an x of a half type, and may be undefined
// (1 and 0). Results have x's dtype and layout.
// Statistics and sums are formed in float64, in a fixed order.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/ops/prologue.h>

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

/// A call of batch_norm() that is not made yet: what reads the result may compute it on the way
/// (conv_transpose2d()).
struct BatchNormCall {
  Variable x = {}, weight = {}, bias = {}, running_mean = {}, running_var = {};
  BatchNormOptions options = {};
};
/// The call, made: [n, c, ...] as x.
Variable batch_norm(const BatchNormCall& call);

/// Over each sample's groups of c / groups channels, of x [n, c, ...]; weight and bias are [c].
Variable group_norm(const Variable& x, std::int64_t groups, const Variable& weight = {},
                    const Variable& bias = {}, double eps = 1e-5);

/// Over x's last dimensions, which must be `normalized_shape`; weight and bias have that shape.
Variable layer_norm(const Variable& x, const Shape& normalized_shape, const Variable& weight = {},
                    const Variable& bias = {}, double eps = 1e-5);

namespace detail {
/// For ops whose first inputs are batch_norm()'s: throws Error unless these are legal.
void check_batch_norm(const Tensors& inputs, const BatchNormOptions& options);
/// The same, and moves the running statistics. What is left to do to x; `bounds`: with a bound of what that
/// makes, if it can be known.
Prologue batch_norm_prologue(const Tensors& inputs, const BatchNormOptions& options, bool bounds = false);
/// x after its prologue, if there is one: for kernels that do not apply it.
Tensor applied(const Prologue& prologue, const Tensor& x);
/// For their backward: the gradients of x, weight and bias, given that of the normalised x, which may become
/// that of x where it `is_own`. The context has x, the weight if there is one and x's gradient or signs are
/// wanted, and first of what is neither input nor output the prologue's statistics.
Variables batch_norm_gradients(const OpContext& context, const Variable& gy, const BatchNormOptions& options,
                               bool is_own = false);
}  // namespace detail

// In these, tensors marked "or none" may be undefined, and x has elements. Statistics are float64 for a
// float64 x, else float32; y, gy and gx have x's dtype and layout. What belongs to channels (weight, bias,
// the running statistics and gradients of them) has x's dtype or, for a half x, may be float32.
namespace cpu {
/// statistics [4, c] = mean and var, which are the batch's in training, weight / sqrt(var + eps), and bias.
/// The running statistics (or none) move as options say. `bounds`: as batch_norm_prologue() has it.
void batch_norm_statistics(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var,
                           const BatchNormOptions& options, const Tensor& statistics, bool bounds);
/// y [n, c, ...] = x after its prologue, by the formula there.
void normalize(const Tensor& x, const Prologue& known, const Tensor& y);
/// The gradients (or none) of x, weight and bias; gx may be gy. In training, the statistics are functions of
/// x.
void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& statistics,
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
void batch_norm_statistics(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var,
                           const BatchNormOptions& options, const Tensor& statistics, bool bounds);
void normalize(const Tensor& x, const Prologue& known, const Tensor& y);
void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& statistics,
                         const BatchNormOptions& options, const Tensor& gx, const Tensor& gw,
                         const Tensor& gb);
void group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& mean,
                const Tensor& var, const Tensor& y);
void group_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& var, double eps, const Tensor& gx, const Tensor& gw, const Tensor& gb);
}  // namespace cu

}  // namespace tapedeck
