// Clipping of gradients.
#pragma once

#include <tapedeck/core/op.h>

namespace tapedeck::optim {

/// Scales the gradients of `parameters` so that their Euclidean norm, all together, is at most `max_norm`.
/// Returns the norm before: a float64 scalar on the parameters' device. Parameters without a gradient do
/// not count. Throws Error when `max_norm` is negative.
Tensor clip_grad_norm(const Variables& parameters, double max_norm);

/// Clamps every element of the gradients of `parameters` to [-limit, limit]. Throws Error when `limit` is
/// negative.
void clip_grad_value(const Variables& parameters, double limit);

}  // namespace tapedeck::optim
