// Gradient checks: what the tape computes against central differences.
#pragma once

#include <cstdint>
#include <functional>

#include <tapedeck/core/op.h>

namespace tapedeck {

struct GradcheckOptions {
  double step = 1e-5;           ///< elements are moved by this to both sides
  double rtol = 1e-5;           ///< allowed: |analytic - numeric| <= atol + rtol * |numeric|
  double atol = 1e-6;           ///< absolute part of it
  std::uint64_t seed = 0x9c0d;  ///< of the random cotangent
  std::int64_t elements = 0;    ///< of each input only so many, at random, are moved; 0: all of them
};

/// Checks the gradient of <f(inputs), v>, v a random cotangent, for every element of every input that
/// requires a gradient; these must be float64, and so must f's result. Throws Error with the input, the
/// element, the analytic and the numeric value at the first difference; also when two runs of f or of its
/// gradient differ in a bit, when recording changes f's result, and when the gradient of an input differs
/// while the others are constants.
/// The inputs' tensors are changed in place while it runs, so f may also reach them by captured handles.
void gradcheck(const std::function<Variable(const Variables&)>& f, const Variables& inputs,
               const GradcheckOptions& options = {});

/// The same for the gradient itself: checks the gradient of sum_k <df/dinput_k, u_k>, u random, for every
/// input that requires a gradient and for the cotangent v, which counts as one more input.
void gradgradcheck(const std::function<Variable(const Variables&)>& f, const Variables& inputs,
                   const GradcheckOptions& options = {});

}  // namespace tapedeck
