// What the tensor memory accelerator has to know of images, weights and results.
#pragma once

#include <cuda.h>

#include <tapedeck/ops/conv/box_gather.h>
#include <tapedeck/ops/conv/box_plan.h>
#include <tapedeck/ops/conv/pair_grad_plan.h>
#include <tapedeck/ops/conv/row_grad_plan.h>
#include <tapedeck/ops/conv/channels_last.cuh>

namespace tapedeck::cu::conv_gemm {

using tapedeck::conv_gemm::BoxTile;
using tapedeck::conv_gemm::GatheredPieces;
using tapedeck::conv_gemm::PairGradPlan;
using tapedeck::conv_gemm::PlaneAxis;
using tapedeck::conv_gemm::ResultBox;
using tapedeck::conv_gemm::RowBoxes;

/// A plane of images as five axes, (channel of a group, column, image, row, group), of which a copy brings
/// kPixelBytes of channels of each pixel of a slice of a box; bytes as wgmma.cuh wants them, zeros outside.
/// Float32 is rounded to TF32 on the way. Throws Error if the driver refuses.
CUtensorMap image_map(const ChannelsLast& images, DType dtype, int n, int groups, const PlaneAxis& h,
                      const PlaneAxis& w, const BoxTile& box);

/// Images in nchw as five axes, (column, row, channel of a group, group, image), of which a copy brings a
/// piece of a row in all channels of a box (box_gather.h).
CUtensorMap piece_map(const Tensor& images, int groups, const GatheredPieces& pieces);

/// Weights [groups * far][taps][near], their channels last, as five axes, (near, tap, far, group, 1), of
/// which a copy brings kPixelBytes of `rows` channels `far` at a tap. Else as image_map().
CUtensorMap weight_map(const Tensor& w, int groups, int rows);

/// One phase of results with the channels last as five axes, (channel of a group, column, image, row, group),
/// of which a store takes `columns` of so many images and rows, of 16-bit channels of so many bytes; `h`,
/// `w`: where they are in the image, of which `fold` columns are one (fold.h). Bytes lie as image_map()
/// brings them.
struct ResultAxis {
  int count, first, step;
};
CUtensorMap pixel_map(const Tensor& to, int groups, int fold, const ResultAxis& h, const ResultAxis& w,
                      int bytes, int columns, int images, int rows);

/// One phase of rows of results `to` in nchw as five axes: (column, image, row, even or odd channel, pair of
/// channels). A store takes so many rows of so many images, of `parities` channels of each of eight pairs.
CUtensorMap result_map(const Tensor& to, int first_row, int row_step, int rows, int pitch,
                       const ResultBox& box, int parities);

/// Rows of 16-bit images in nchw as five axes, (RowBoxes::first(), second(), channel / boxes.apart, image,
/// 1): a copy brings `columns` pixels of `channels` channels; swizzled as wgmma.cuh wants bytes, or as they
/// are.
CUtensorMap row_map(const Tensor& images, const RowBoxes& boxes, int columns, int channels, bool swizzled);

/// Images in nchw as five axes, (pixel of an image, channel of a group, group, image, 1), of which a copy
/// brings a box of x's tile (pair_grad_plan.h), swizzled, float32 rounded to TF32 on the way; or y's box as
/// it lies, of which 8 bytes count as a pixel.
CUtensorMap pair_map_of_x(const Tensor& x, const PairGradPlan& p);
CUtensorMap pair_map_of_y(const Tensor& y, const PairGradPlan& p);

}  // namespace tapedeck::cu::conv_gemm
