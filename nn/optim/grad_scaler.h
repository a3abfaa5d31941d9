// Scaling of losses, so that gradients in float16 do not vanish.
#pragma once

#include <tapedeck/nn/optim/optimizer.h>

namespace tapedeck::optim {

/// float16 rounds numbers below 6e-8 to 0, and gradients are often smaller. So the loss is multiplied by a
/// scale and gradients are divided by it; where one overflows the step is left out and the scale made
/// smaller.
///
///   GradScaler scaler(device);
///   for (...) {
///     optimizer.zero_grad();
///     Tape tape;
///     tape.backward(scaler.scale(loss()));        // loss() under Autocast(DType::float16)
///     scaler.unscale(model.parameters());
///     clip_grad_norm(model.parameters(), 1);      // or nothing
///     scaler.step(optimizer);
///     scaler.update();
///   }
///
/// All of it happens on the device: nothing waits, and a CapturedStep can hold it.
class GradScaler {
 public:
  struct Options {
    double init_scale = 65536;
    double growth_factor = 2, backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;  ///< updates without an overflow, after which the scale grows
  };

  explicit GradScaler(Device device) : GradScaler(device, Options{}) {}
  /// Throws Error when an option is out of range.
  GradScaler(Device device, const Options& options);

  /// loss times the scale.
  Variable scale(const Variable& loss) const;
  /// Divides the gradients of `parameters` by the scale, once before each update().
  void unscale(const Variables& parameters);
  /// optimizer.step(), unless a gradient that unscale() saw since the last update() was not finite.
  void step(Optimizer& optimizer);
  void update();

  /// Waits for the device.
  double current_scale() const { return loss_.scale.item(); }

  /// "scale" and "growth_tracker". The tensors are its own, not copies.
  nn::StateDict state_dict() const;
  /// Throws Error, before anything changes, when `state` does not fit.
  void load_state_dict(const nn::StateDict& state);

 private:
  Options options_;
  LossScale loss_;
};

}  // namespace tapedeck::optim
