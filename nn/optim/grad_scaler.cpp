#include <tapedeck/nn/optim/grad_scaler.h>

#include <cmath>
#include <map>

#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/elementwise.h>

namespace tapedeck::optim {

GradScaler::GradScaler(Device device, const Options& options)
    : options_(options),
      loss_{Tensor::full({}, options.init_scale, {.device = device}),
            Tensor::zeros({}, {.dtype = DType::int64, .device = device}),
            Tensor::zeros({}, {.dtype = DType::uint8, .device = device})} {
  check(options.init_scale > 0 && std::isfinite(options.init_scale), "GradScaler: init_scale ",
        options.init_scale, " is not legal; legal are numbers above 0");
  check(options.growth_factor >= 1, "GradScaler: growth_factor ", options.growth_factor,
        " is not legal; legal is 1 or more");
  check(options.backoff_factor > 0 && options.backoff_factor <= 1, "GradScaler: backoff_factor ",
        options.backoff_factor, " is not legal; legal is above 0, to 1");
  check(options.growth_interval >= 1, "GradScaler: growth_interval ", options.growth_interval,
        " is not legal; legal is 1 or more");
}

Variable GradScaler::scale(const Variable& loss) const {
  return loss * cast(loss_.scale, loss.dtype());
}

// Gradients may share their bytes, so unscaled ones are new tensors.
void GradScaler::unscale(const Variables& parameters) {
  std::map<DType, Variables> with_gradient;
  for (const Variable& parameter : parameters) {
    if (parameter.grad().defined()) with_gradient[parameter.grad().dtype()].push_back(parameter);
  }
  for (const auto& [dtype, same] : with_gradient) {
    Tensors gradients;
    for (const Variable& parameter : same) gradients.push_back(parameter.grad().tensor());
    const Tensors unscaled = tapedeck::unscale(gradients, loss_);
    for (std::size_t i = 0; i < same.size(); ++i) same[i].set_grad(unscaled[i]);
  }
}

void GradScaler::step(Optimizer& optimizer) {
  optimizer.step(loss_.overflow);
}

void GradScaler::update() {
  update_scale(loss_, options_.growth_factor, options_.backoff_factor, options_.growth_interval);
}

nn::StateDict GradScaler::state_dict() const {
  return {{"scale", loss_.scale}, {"growth_tracker", loss_.growth}};
}

void GradScaler::load_state_dict(const nn::StateDict& state) {
  const std::map<std::string, Tensor> given(state.begin(), state.end());
  const nn::StateDict own = state_dict();
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    check(found != given.end() && found->second.defined() && found->second.count() == 1,
          "GradScaler: the state has no number ", name);
  }
  check(given.size() == own.size(), "GradScaler: the state has ", given.size(), " entries; legal is ",
        own.size());
  for (const auto& [name, tensor] : own) tensor.copy_(given.at(name).reshape(Shape{}));
}

}  // namespace tapedeck::optim
