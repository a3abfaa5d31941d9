// Layers whose y has few channels, on tensor cores: thin_products.cu.
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>
#include <tapedeck/ops/prologue.h>

namespace tapedeck::cu {

/// Whether these can compute a call on tensors of this type, x and y of one layout: not float64.
bool thin_products_fit(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout layout);
bool thin_products_weight_grad_fit(const ConvTranspose2dGeometry& g, DType dtype, Layout layout);
/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h. Prologues are x's.
void thin_products(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
                   const Tensor& bias, const Tensor& to, double negative_slope,
                   const Prologue& prologue = {});

void thin_products_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                               const Tensor& w, const Prologue& prologue = {});
/// How many sums of the weight's size that makes before they are added.
std::int64_t thin_products_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout);

}  // namespace tapedeck::cu
