// Products of all pixels with all taps, which are added up behind: columns.cu.
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::cu {

/// Whether this can compute a call on tensors of this type, the one that is read of a layout.
bool columns_fits(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from);
/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h.
void columns(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
             const Tensor& bias, const Tensor& to, double negative_slope);
/// The bytes that it takes beside its tensors.
std::int64_t columns_workspace(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from,
                               Device device);

}  // namespace tapedeck::cu
