// Transposed convolution and the gradient of its weight.
//
// conv_transpose2d, conv2d (ops/conv2d.h) and conv_transpose2d_weight_grad are one family: three bilinear
// maps between x [n,ci,ih,iw], w [ci,co/groups,kh,kw] and y [n,co,oh,ow], each of which is the gradient of
// the other two. ops/conv/kernels.h says which kernel computes them.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>
#include <tapedeck/ops/norm.h>

namespace tapedeck {

/// y[n,co,oh,ow] = bias[co] + the sum of x[n,ci,ih,iw] * weight[ci,co_in_group,kh,kw] over the channels ci of
/// the group and all ih, iw, kh, kw with oh + padding = ih*stride + kh*dilation (and likewise for w).
/// x [n,ci,h,w] or [ci,h,w], weight [ci,co/groups,kh,kw], bias [co] or undefined. Per axis the result has
/// (in - 1)*stride - 2*padding + dilation*(kernel - 1) + output_padding + 1 positions, or what output_size
/// asks for. It has x's layout; the weight's gradient has the weight's. Throws Error before anything is
/// computed when an argument is not legal. As PyTorch's conv_transpose2d. Negative results are multiplied by
/// `negative_slope`, 0 or more: as leaky_relu() behind it would, or relu() where it is 0, in less time.
/// On a GPU, of layers with few channels, an infinity or a NaN may reach some more columns (ops/conv/fold.h).
Variable conv_transpose2d(const Variable& x, const Variable& weight, const Variable& bias = {},
                          const ConvTranspose2dOptions& options = {}, double negative_slope = 1);

/// conv_transpose2d(batch_norm(x), ...), with shapes and errors of both. On a GPU, kernels that copy what
/// they read, or convert it, normalise it on the way, forward and in the weight's gradient: then what
/// batch_norm() makes is neither stored nor kept for the way back. In float32 results may differ from those
/// of both ops by what scaled halves leave out (ops/conv/scaled_half.cuh).
Variable conv_transpose2d(const BatchNormCall& x, const Variable& weight, const Variable& bias = {},
                          const ConvTranspose2dOptions& options = {}, double negative_slope = 1);

/// The gradient of conv_transpose2d for its weight, [ci,co/groups,kh,kw]: the sum of
/// x[n,ci,ih,iw] * gy[n,co,oh,ow] over n and all positions that the tap connects. gy has the shape of
/// conv_transpose2d's result with the same options. The result has `layout`.
Variable conv_transpose2d_weight_grad(const Variable& x, const Variable& gy, Size2 kernel_size,
                                      const ConvTranspose2dOptions& options = {},
                                      Layout layout = Layout::nchw);

namespace detail {
/// conv_transpose2d(batch_norm(x), ...) as one op, also where kernels do not apply a prologue: these get x
/// normalised, in both directions. x is [n,c,h,w]; x and the result have elements.
Variable normalized_conv_transpose2d(const BatchNormCall& x, const Variable& weight, const Variable& bias,
                                     const ConvTranspose2dOptions& options, double negative_slope);
/// The same where that takes less time and memory than two ops, else undefined.
Variable normalized_at_once(const BatchNormCall& x, const Variable& weight, const Variable& bias,
                            const ConvTranspose2dOptions& options, double negative_slope);
}  // namespace detail

namespace cpu {
/// y = bias + x, after its prologue, (transposed-convolved with) w, rectified. Layouts are free; bias may be
/// undefined.
void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y, double negative_slope = 1, const Prologue& prologue = {});
/// w = the sum over images and positions of x, after its prologue, times y.
void conv_transpose2d_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                  const Tensor& w, const Prologue& prologue = {});
/// Whether these two, or without `trains` the first, would apply a prologue as they read x, rather than
/// before. `is_bounded`: a bound of what it makes is known.
bool applies_prologue(const ConvTranspose2dGeometry& g, const Tensor& x, bool is_bounded, bool trains);
}  // namespace cpu
namespace cu {
void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y, double negative_slope = 1, const Prologue& prologue = {});
void conv_transpose2d_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                  const Tensor& w, const Prologue& prologue = {});
bool applies_prologue(const ConvTranspose2dGeometry& g, const Tensor& x, bool is_bounded, bool trains);
}  // namespace cu

}  // namespace tapedeck
