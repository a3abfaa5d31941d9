// Tiles and splits of the products that gemm_map.cuh, gemm_weight_grad.cuh and wgmma_weight_grad.cuh compute,
// and what these take beside their tensors. Host arithmetic, of an H100's sizes: results do not depend on the
// device.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_gemm {

struct GemmTile {
  int m, n;
};

/// An estimate of a map's time with a tile on 132 multiprocessors; `speed` is what the tile reaches where
/// there are plenty.
inline double map_cost(const Plan& p, const GemmTile& tile, double speed) {
  std::int64_t blocks = 0;
  for (int i = 0; i < p.phases(); ++i) blocks += count(p.rows(i / p.w.count, i % p.w.count), tile.m);
  blocks *= count(p.to_channels, tile.n) * p.groups;
  return static_cast<double>(count(blocks, 132)) * tile.m * tile.n / speed;
}

/// Of a map: results of a phase times channels.
inline GemmTile map_tile(const Plan& p, bool has_tensor_cores) {
  if (!has_tensor_cores) return {p.vector == 2 ? 64 : 128, 64};
  GemmTile best{};
  double least = 0;
  for (const auto& [tile, speed] :
       {std::pair<GemmTile, double>({128, 128}, 1), {{128, 64}, 0.9}, {{64, 64}, 0.75}, {{128, 32}, 0.7}}) {
    const double cost = map_cost(p, tile, speed);
    if (best.m == 0 || cost < least) best = tile, least = cost;
  }
  return best;
}

/// Of packed weights, where tiles have n channels.
inline std::int64_t packed_vectors(const Plan& p, int n) {
  return p.groups * p.packed_vectors(static_cast<int>(count(p.to_channels, n)) * n);
}

/// Blocks of a multiprocessor, at least, with such tiles of a weight's gradient.
constexpr int weight_grad_blocks(const GemmTile& tile) {
  return tile.m * tile.n >= 128 * 128 ? 1 : 2;
}
/// Of a weight's gradient: channels of x times columns.
inline GemmTile weight_grad_tile(const ConvTranspose2dGeometry& g, int element_bytes, bool has_tensor_cores) {
  if (!has_tensor_cores) return {64, 64};
  if (g.group_ci() <= 32) return {32, 128};
  return {g.group_ci() <= 64 || element_bytes == 2 ? 64 : 128, 128};
}

/// How blocks share a sum over pixels: as many of them as an H100 runs at once, but some work for each.
struct PixelSplits {
  /// Of `tiles` tiles, `blocks` of which run at once. Chunks have so many pixels, blocks some chunks at
  /// least.
  PixelSplits(std::int64_t pixels, std::int64_t tiles, int blocks, int chunk_pixels, int least_chunks)
      : chunks(static_cast<int>(count(pixels, chunk_pixels))) {
    const std::int64_t wanted = std::clamp<std::int64_t>(blocks / tiles, 1, count(chunks, least_chunks));
    split_chunks = static_cast<int>(count(chunks, wanted));
    splits = static_cast<int>(count(chunks, split_chunks));
  }
  int chunks, split_chunks, splits;
};

inline PixelSplits weight_grad_splits(const ConvTranspose2dGeometry& g, const GemmTile& tile,
                                      int element_bytes) {
  const std::int64_t columns = g.group_co() * g.h.kernel * g.w.kernel;
  return {g.n * g.h.in * g.w.in, count(g.group_ci(), tile.m) * count(columns, tile.n) * g.groups,
          132 * weight_grad_blocks(tile), kVectors * kVectorBytes / element_bytes, 4};
}

/// Channels of x of a warpgroup's tile.
constexpr int gathered_channels(std::int64_t ci) {
  return ci <= 32 ? 32 : ci <= 64 ? 64 : 128;
}

}  // namespace tapedeck::conv_gemm
