// Depthwise convolutions of common sizes: in nchw with rows in registers (depthwise_rows.cu), the weight's
// gradient of 16-bit types with planes in shared memory (depthwise_planes.cu); with channels last with rows
// in a ring in shared memory (depthwise_ring.cu).
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::cu {

/// Whether the next one computes tensors of a type that start at multiples of 16 bytes; where not
/// `transposed`, also whether the one after it does.
bool depthwise_rows_fits(const ConvTranspose2dGeometry& g, bool transposed, DType dtype);
/// Computes what depthwise() does, where it can: the result is whether it did.
bool depthwise_rows(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
                    const Tensor& bias, const Tensor& to);
/// The same for depthwise_weight_grad().
bool depthwise_rows_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                const Tensor& w);
/// How many sums of the weight's size that makes before they are added; 0 where it does not fit.
std::int64_t depthwise_rows_splits(const ConvTranspose2dGeometry& g, DType dtype);

/// The latter of 16-bit types and many large planes, on GPUs that have Hopper's shared memory; it is asked
/// first.
bool depthwise_planes_fits(const ConvTranspose2dGeometry& g, DType dtype);
bool depthwise_planes_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                  const Tensor& w);
std::int64_t depthwise_planes_splits(const ConvTranspose2dGeometry& g, DType dtype);

/// The same for depthwise_channels_last() and depthwise_channels_last_weight_grad(), on GPUs that have
/// Hopper's shared memory.
bool depthwise_ring_fits(const ConvTranspose2dGeometry& g, DType dtype);
bool depthwise_ring(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
                    const Tensor& bias, const Tensor& to);
bool depthwise_ring_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                const Tensor& w);
std::int64_t depthwise_ring_splits(const ConvTranspose2dGeometry& g, DType dtype);

}  // namespace tapedeck::cu
