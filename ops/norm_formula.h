// What the normalisations share: above all their differentiable formula, for gradients of gradients.
#pragma once

#include <vector>

#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/reduce.h>

namespace tapedeck {

/// A gradient that may be unwanted, and then is undefined.
inline Variable optional(const Tensor& gradient) {
  return gradient.defined() ? Variable(gradient) : Variable();
}

/// xhat = (x - mean) * r with r = 1 / sqrt(var + eps), over the dimensions `dims`.
struct Normalized {
  Variable xhat, r;
  std::vector<int> dims;

  Normalized(const Variable& x, const std::vector<int>& over, double eps) : dims(over) {
    const Variable centered = x - mean(x, dims, true);
    r = pow(mean(centered * centered, dims, true) + eps, -0.5);
    xhat = centered * r;
  }

  /// The gradient of x, given that of xhat.
  Variable gradient(const Variable& g) const {
    return r * (g - mean(g, dims, true) - xhat * mean(g * xhat, dims, true));
  }
};

}  // namespace tapedeck
