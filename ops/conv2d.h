// Convolution, which is also the gradient of conv_transpose2d for its input.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

/// y[n,co,oh,ow] = bias[co] + the sum of x[n,ci,oh*stride - padding + kh*dilation, ...] *
/// weight[co,ci_in_group,kh,kw] over the channels ci of the group and all taps inside x.
/// x [n,ci,h,w] or [ci,h,w], weight [co,ci/groups,kh,kw], bias [co] or undefined. Per axis the result has
/// floor((in + 2*padding - dilation*(kernel - 1) - 1)/stride) + 1 positions. It has x's layout. With the
/// weight of a conv_transpose2d it takes that one's gy to its gx. Throws Error before anything is computed
/// when an argument is not legal. As PyTorch's conv2d. `negative_slope`, infinities and NaN
/// as in conv_transpose2d().
Variable conv2d(const Variable& x, const Variable& weight, const Variable& bias = {},
                const Conv2dOptions& options = {}, double negative_slope = 1);

namespace cpu {
/// x = bias + y (convolved with) w, rectified, in the names of the geometry: y is what is read, x what is
/// written, of exactly the geometry's sizes. Layouts are free; bias may be undefined.
void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x, double negative_slope = 1);
}  // namespace cpu
namespace cu {
void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x, double negative_slope = 1);
}  // namespace cu

}  // namespace tapedeck
