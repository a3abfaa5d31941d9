// Groups of one channel of x. In nchw planes meet planes (depthwise.cu, depthwise_weight_grad.cu), with
// channels last vectors of channels (depthwise_channels_last.cu, depthwise_channels_last_weight_grad.cu).
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::cu {

/// Whether depthwise() can compute a call, `from` and results of these.
bool depthwise_fits(const ConvTranspose2dGeometry& g, bool transposed, Layout from, DType dtype);
/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h.
void depthwise(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to);

bool depthwise_weight_grad_fits(const ConvTranspose2dGeometry& g, Layout x, Layout y, DType dtype);
void depthwise_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                           const Tensor& w);

/// How many sums of the weight's size that makes before they are added. `has_wgmma`: on a GPU of Hopper's.
std::int64_t depthwise_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, bool has_wgmma);

/// The same with channels last, for any multiplier; not float64.
bool depthwise_channels_last_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout from, Layout to);
void depthwise_channels_last(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from,
                             const Tensor& w, const Tensor& bias, const Tensor& to);

bool depthwise_channels_last_weight_grad_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout x,
                                              Layout y);
void depthwise_channels_last_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                         const Tensor& w);
std::int64_t depthwise_channels_last_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype,
                                                        bool has_wgmma);

}  // namespace tapedeck::cu
