// Layers with 1 to 4 channels on the side of y: the images that decoders make. thin.cu.
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::cu {

/// Whether thin() can compute a call: float32 in nchw, kernels 3x3 with strides 1 and 2 and 4x4 with
/// stride 2.
bool thin_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout from, Layout to);
/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h.
void thin(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
          const Tensor& bias, const Tensor& to);

/// Whether thin_weight_grad() can compute a call: as above, with one channel of y.
bool thin_weight_grad_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y);
void thin_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);
/// How many sums of the weight's size that makes before they are added.
std::int64_t thin_weight_grad_splits(const ConvTranspose2dGeometry& g);

}  // namespace tapedeck::cu
