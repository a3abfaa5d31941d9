// Matrix products with one-pixel maps (matrix.h), by cuBLASLt. matrix.cu.
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::cu {

/// Whether these can compute a call, on tensors of any layout.
bool matrix_fits(const ConvTranspose2dGeometry& g);
/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h.
void matrix(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
            const Tensor& bias, const Tensor& to, double negative_slope);
void matrix_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);

/// The bytes that these take beside their tensors of this type, where only y has a bias.
std::int64_t matrix_workspace(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout layout,
                              Device device);
std::int64_t matrix_weight_grad_workspace(const ConvTranspose2dGeometry& g, DType dtype, Layout layout,
                                          Device device);

}  // namespace tapedeck::cu
