#include <tapedeck/nn/optim/clip.h>

#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/optimizer_step.h>

namespace tapedeck::optim {

// Gradients may share their bytes, so clipped ones are new tensors.

Tensor clip_grad_norm(const Variables& parameters, double max_norm) {
  check(max_norm >= 0, "clip_grad_norm: max_norm ", max_norm, " is not legal; legal is 0 or more");
  Variables with_gradient;
  Tensors gradients;
  for (const Variable& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    with_gradient.push_back(parameter);
    gradients.push_back(parameter.grad().tensor());
  }
  Tensor norm = global_norm(gradients);
  const Tensors scaled = scale_to_norm(gradients, norm, max_norm);
  for (std::size_t i = 0; i < scaled.size(); ++i) with_gradient[i].set_grad(scaled[i]);
  return norm;
}

void clip_grad_value(const Variables& parameters, double limit) {
  check(limit >= 0, "clip_grad_value: limit ", limit, " is not legal; legal is 0 or more");
  const NoTape no_tape;
  for (const Variable& parameter : parameters) {
    if (const Variable g = parameter.grad(); g.defined()) parameter.set_grad(clamp(g, -limit, limit));
  }
}

}  // namespace tapedeck::optim
