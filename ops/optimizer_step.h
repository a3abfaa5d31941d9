// What optimizers do to parameters: one call for many tensors, without a tape.
//
// The formulas are those of torch.optim. With p a parameter, g its gradient, t the number of its updates,
// this one included, and all else a state ("slot") that starts at zero:
//
//   sgd      g += weight_decay p
//            b = t > 1 ? momentum b + (1 - dampening) g : g;   g = nesterov ? g + momentum b : b
//            p -= lr g
//   adam     decoupled ? p *= 1 - lr weight_decay : g += weight_decay p
//            m = beta1 m + (1 - beta1) g;   v = beta2 v + (1 - beta2) g^2;   amsgrad: v' = max(v', v)
//            p -= lr / (1 - beta1^t) m / (sqrt(v') / sqrt(1 - beta2^t) + eps)
//   rmsprop  g += weight_decay p
//            v = alpha v + (1 - alpha) g^2;   centered: a = alpha a + (1 - alpha) g, v' = max(v - a^2, 0)
//            d = g / (sqrt(v') + eps);   momentum: d = b = momentum b + d
//            p -= lr d
//
// The counters t are tensors, so that they live on the device. Half parameters are updated in float32 and
// keep float32 slots.
#pragma once

#include <cstdint>
#include <vector>

#include <tapedeck/core/op.h>

namespace tapedeck {

/// The parameters of one call, all of one dtype on one device, and what belongs to each: entry i of every
/// list is of parameters[i]'s shape and layout, but for its counter.
struct OptimizerBatch {
  Tensors parameters, gradients;
  Tensors steps;               ///< int64, one element each: updates so far; the call counts on
  std::vector<Tensors> slots;  ///< what the optimizer remembers, in the order that the call states
  Tensor live =
      {};  ///< or none: float64 {lr, momentum (beta1), weight_decay} on the device, for the settings'
  Tensor skip = {};  ///< or none: one uint8 on the device; nothing happens where it is not 0
};

struct SgdSettings {
  double lr, momentum, dampening, weight_decay;
  bool nesterov;
};
struct AdamSettings {
  double lr, beta1, beta2, eps, weight_decay;
  bool decoupled_weight_decay;
};
struct RmspropSettings {
  double lr, alpha, eps, weight_decay, momentum;
  bool centered;
};

/// Throws Error, under the name of `op`, unless what is in the batch fits together.
void check_optimizer_batch(const char* op, const OptimizerBatch& batch);

/// Each overwrites parameters, counters and slots. Throws Error when the batch does not fit together.
/// Slots: {b} with momentum, else none.
void sgd_step(const OptimizerBatch& batch, const SgdSettings& settings);
/// Slots: {m, v}, or {m, v, v'} for amsgrad.
void adam_step(const OptimizerBatch& batch, const AdamSettings& settings);
/// Slots: {v}, then {a} if centered, then {b} with momentum.
void rmsprop_step(const OptimizerBatch& batch, const RmspropSettings& settings);

/// The Euclidean norm of all elements of `xs` together: a float64 scalar on their device.
Tensor global_norm(const Tensors& xs);
/// Copies of `xs`, times min(1, max_norm / (norm + 1e-6)) for a float64 scalar `norm`.
Tensors scale_to_norm(const Tensors& xs, const Tensor& norm, double max_norm);
/// averages[i] = decay averages[i] + (1 - decay) values[i]; the averages of half values are float32.
/// `live_decay`, one float64 on their device, takes the place of `decay` if it is defined.
void update_averages(const Tensors& averages, const Tensors& values, double decay,
                     const Tensor& live_decay = {});

/// What a gradient scaler (nn/optim/grad_scaler.h) holds on the device.
struct LossScale {
  Tensor scale;     ///< float32, one element
  Tensor growth;    ///< int64: updates without an overflow since the scale changed
  Tensor overflow;  ///< uint8: whether a gradient since the last update was not finite
};

/// Copies of `gradients`, of one dtype, times 1 / scale; sets `overflow` where an element is not finite.
Tensors unscale(const Tensors& gradients, const LossScale& loss);
/// scale *= backoff after an overflow, scale *= growth (while it stays finite) after `interval` updates
/// without one; then there is no overflow.
void update_scale(const LossScale& loss, double growth, double backoff, std::int64_t interval);

namespace cpu {
void sgd(const OptimizerBatch& batch, const SgdSettings& settings);
void adam(const OptimizerBatch& batch, const AdamSettings& settings);
void rmsprop(const OptimizerBatch& batch, const RmspropSettings& settings);
void global_norm(const Tensors& xs, const Tensor& out);
void scale_to_norm(const Tensors& xs, const Tensor& norm, double max_norm, const Tensors& out);
void update_averages(const Tensors& averages, const Tensors& values, double decay, const Tensor& live_decay);
void unscale(const Tensors& gradients, const LossScale& loss, const Tensors& out);
void update_scale(const LossScale& loss, double growth, double backoff, std::int64_t interval);
}  // namespace cpu
namespace cu {
void sgd(const OptimizerBatch& batch, const SgdSettings& settings);
void adam(const OptimizerBatch& batch, const AdamSettings& settings);
void rmsprop(const OptimizerBatch& batch, const RmspropSettings& settings);
void global_norm(const Tensors& xs, const Tensor& out);
void scale_to_norm(const Tensors& xs, const Tensor& norm, double max_norm, const Tensors& out);
void update_averages(const Tensors& averages, const Tensors& values, double decay, const Tensor& live_decay);
void unscale(const Tensors& gradients, const LossScale& loss, const Tensors& out);
void update_scale(const LossScale& loss, double growth, double backoff, std::int64_t interval);
}  // namespace cu

}  // namespace tapedeck
