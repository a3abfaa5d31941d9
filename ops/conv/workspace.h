// The bytes that products of tiles take beside their tensors: copies of images, packed operands, and parts of
// sums that several blocks have made. Host arithmetic, for explain(); tensors start where tensors of their
// own do.
#pragma once

#include <algorithm>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/gemm_choice.h>
#include <tapedeck/ops/conv/wgmma_choice.h>

namespace tapedeck::conv_gemm {

/// One side of a geometry.
struct Images {
  Images(const ConvTranspose2dGeometry& g, bool are_x)
      : pixels(are_x ? g.n * g.h.in * g.w.in : g.n * g.h.out * g.w.out),
        group_channels(are_x ? g.group_ci() : g.group_co()),
        groups(g.groups),
        has_one_pixel(are_x ? g.h.in * g.w.in == 1 : g.h.out * g.w.out == 1) {}
  std::int64_t pixels, group_channels, groups;
  bool has_one_pixel;
};

/// Channels of a group in whole vectors.
inline std::int64_t padded_channels(const Images& images, int element_bytes) {
  const int vector = kVectorBytes / element_bytes;
  return count(images.group_channels, vector) * vector;
}
/// Of the copy that wgmma kernels read, if they need one (channels_last.cuh), or of halves.
inline std::int64_t channels_last_bytes(const Images& images, Layout layout, int element_bytes) {
  const std::int64_t padded = padded_channels(images, element_bytes);
  const bool is_there = (layout == Layout::nhwc || images.has_one_pixel) && padded == images.group_channels;
  return is_there ? 0 : images.pixels * images.groups * padded * element_bytes;
}
inline std::int64_t halves_bytes(const Images& images, int parts) {
  return images.pixels * images.groups * padded_channels(images, 2) * 2 * parts;
}

/// Of simt and tensor kernels.
inline std::int64_t map_workspace(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes,
                                  bool has_tensor_cores) {
  const Plan p(g, transposed, element_bytes);
  return packed_vectors(p, map_tile(p, has_tensor_cores).n) * kVectorBytes;
}
inline std::int64_t weight_grad_workspace(const ConvTranspose2dGeometry& g, int element_bytes,
                                          bool has_tensor_cores) {
  const GemmTile tile = weight_grad_tile(g, element_bytes, has_tensor_cores);
  return weight_grad_splits(g, tile, element_bytes).splits * g.weight_shape().count() *
         std::max(element_bytes, 4);
}

/// Of the weight of folded images.
inline std::int64_t folded_weight_bytes(const ConvTranspose2dGeometry& g, const Fold& fold,
                                        const Factors& f) {
  if (!fold.exists()) return 0;
  return fold.of(g).weight_shape().count() * f.element_bytes;
}

/// Of wgmma kernels.
inline std::int64_t wgmma_map_workspace(const ConvTranspose2dGeometry& g, bool transposed, const MapWay& way,
                                        Layout layout, const Factors& f) {
  const Images images(g, transposed);
  if (way.kind == MapKind::windows) {
    const Plan& p = way.plan;
    const std::int64_t tiles_n = count(p.to_channels, way.windows.n),
                       packed = tiles_n * way.windows.n * kVectors * kVectorBytes * (f.parts == 3 ? 2 : 1),
                       tiles = count(p.most_rows(), 128 * way.windows.m) * p.phases() * tiles_n * p.groups;
    const int splits = map_splits(p, tiles);
    return channels_last_bytes(images, layout, f.element_bytes) + packed * p.groups * p.chunks +
           (splits > 1 ? splits * tiles * 128 * way.windows.m * way.windows.n * 4 : 0);
  }
  const bool halves = way.kind == MapKind::halves;
  const int parts = halves ? f.halves() : 1;
  const BoxPlan& p = way.boxes.plan;
  const BoxChoice& c = way.boxes.choice;
  const std::int64_t sums = c.tiles * p.joined() * c.places / 2 * kConsumerThreads * 4;
  // Weights of folded images have their channels last.
  const bool lie =
      !halves && way.boxes.fold.exists() && box_weights(p, transposed, c.results, 0) != BoxWeights::packed;
  const std::int64_t copy = way.gathers() ? 0
                            : halves      ? halves_bytes(images, parts)
                                          : channels_last_bytes(images, layout, f.element_bytes);
  return copy + (lie ? 0 : static_cast<std::int64_t>(packed_box_bytes(p, c.blocks, parts))) +
         (c.splits > 1 ? c.splits * sums : 0) + folded_weight_bytes(g, way.boxes.fold, f);
}
inline std::int64_t wgmma_weight_grad_workspace(const ConvTranspose2dGeometry& g, Layout layout,
                                                const Factors& f) {
  const Images x(g, true), y(g, false);
  const std::int64_t taps = g.h.kernel * g.w.kernel;
  const WeightGradWay& taken = weight_grad_way(g, layout, layout, f);
  if (taken.kind == GradKind::rows) return written_sums(g, f) * g.weight_shape().count() * 4;
  if (taken.kind == GradKind::boxes) {
    const BoxGradWay& way = taken.boxes;
    const std::int64_t sums = way.fold.exists() ? way.fold.of(g).weight_shape().count() * 4
                                                : g.ci * taps * padded_channels(y, 2) * 4,
                       images = f.are_float()
                                    ? halves_bytes(x, f.halves()) + halves_bytes(y, f.halves())
                                    : channels_last_bytes(x, layout, 2) + channels_last_bytes(y, layout, 2);
    return images + (way.written_sums(false) + (way.fold.exists() ? 1 : 0)) * sums;
  }
  const std::int64_t rows = taps * padded_channels(y, f.element_bytes);
  const int n = gathered_channels(g.group_ci());
  const std::int64_t tiles_n = count(g.group_ci(), n);
  const PixelSplits share(x.pixels, count(rows, 128) * tiles_n * g.groups, 132,
                          kVectors * kVectorBytes / f.element_bytes, 8);
  return channels_last_bytes(y, layout, f.element_bytes) +
         g.groups * share.chunks * tiles_n * n * kVectors * kVectorBytes * (f.parts == 3 ? 2 : 1) +
         share.splits * rows * g.ci * 4;
}

}  // namespace tapedeck::conv_gemm
