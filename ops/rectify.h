// Ops that end in a bias and a rectifier (ops/rectifier.h): what their directions share.
//
// With u the result before it, y = u above 0 and u * slope elsewhere. Where the slope is not negative, y
// tells u's sign, so that u is not kept.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/ops/axis.h>

namespace tapedeck {

/// The gradients of u, and of a bias [channels] that was added to it.
struct RectifiedGradients {
  Variable gu, gb;
};

/// In the backward of an op whose output 0 is y (saved, unless the slope is 1) and which has the bias among
/// its inputs, number `bias`: in one pass unless an outer tape records. `dim` is y's dimension of channels.
RectifiedGradients rectified_gradients(const OpContext& context, const Variable& gy, double negative_slope,
                                       int dim, std::size_t bias = 2);

/// Throws Error under an op's name unless the slope is 0 or more.
void check_negative_slope(const char* op, double negative_slope);

// y, gy and gu have one layout, and elements.
namespace cpu {
/// y[i] = y[i] above 0, else y[i] * negative_slope, and 0 with slope 0.
void rectify(const Tensor& y, double negative_slope);
/// gu[i] = gy[i] times the rectifier's derivative, and gb [channels] the sum of gu over all but dimension
/// `dim`, formed in float64 in a fixed order.
void rectified_gradients(const Tensor& gy, const Tensor& y, double negative_slope, int dim, const Tensor& gu,
                         const Tensor& gb);
}  // namespace cpu
namespace cu {
void rectify(const Tensor& y, double negative_slope);
void rectified_gradients(const Tensor& gy, const Tensor& y, double negative_slope, int dim, const Tensor& gu,
                         const Tensor& gb);
}  // namespace cu

}  // namespace tapedeck
