// Kernels for few channels a group, or little work a byte. direct.cu, direct_plain.cu, direct_weight_grad.cu.
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::cu {

/// Whether direct() can compute a call.
bool direct_fits(const ConvTranspose2dGeometry& g);
/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h. Any layouts; fast for nchw.
void direct(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
            const Tensor& bias, const Tensor& to);

/// Whether direct_plain() can compute a call that direct() can.
bool direct_plain_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout from);
/// The same for conv2d from y to x, whose y is nchw and not float64. direct_plain.cu.
void direct_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                  const Tensor& x);

/// Whether direct_weight_grad() can compute a call.
bool direct_weight_grad_fits(const ConvTranspose2dGeometry& g);
void direct_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);
/// How many sums of the weight's size that makes before they are added.
std::int64_t direct_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y);

}  // namespace tapedeck::cu
