// What may be done to the elements of images on the way into a convolution: the end of the layer before it.
#pragma once

#include <tapedeck/core/tensor.h>

namespace tapedeck {

/// An element x of channel c becomes u = (x - mean[c]) * scale[c] + bias[c], and that u * negative_slope
/// where it is not above 0 (Rectifier): batch_norm() with statistics that are known. Nothing, by default.
struct Prologue {
  /// [4, c]: mean, variance, scale and bias; float64 for a float64 x, else float32. On a GPU their tensor may
  /// remember, as its largest(), that no result has a larger magnitude: of the x and the negative_slope that
  /// they were made for.
  Tensor statistics = {};
  double negative_slope = 1;

  bool exists() const { return statistics.defined(); }
};

}  // namespace tapedeck
