// What the tensor memory accelerator has to know of images.
#pragma once

#include <cuda.h>

#include <tapedeck/ops/conv/box_plan.h>
#include <tapedeck/ops/conv/channels_last.cuh>

namespace tapedeck::cu::conv_gemm {

using tapedeck::conv_gemm::BoxTile;
using tapedeck::conv_gemm::PlaneAxis;

/// A plane of images as five axes, (channel of a group, column, row, image, group), of which a copy brings
/// kPixelBytes of channels of each pixel of a slice of a box; bytes as wgmma.cuh wants them, zeros outside.
/// Float32 is rounded to TF32 on the way. Throws Error if the driver refuses.
CUtensorMap image_map(const ChannelsLast& images, DType dtype, int n, int groups, const PlaneAxis& h,
                      const PlaneAxis& w, const BoxTile& box);

}  // namespace tapedeck::cu::conv_gemm
