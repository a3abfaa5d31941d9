// How a product of gathered operands (gemm_plan.h) is computed by wgmma_map.cuh: tiles and splits, and about
// how long it takes. Host arithmetic, of an H100's sizes: results do not depend on the device.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_gemm {

/// A warpgroup's tile, of 128 * m results by n channels.
struct WindowsTile {
  int m = 0, n = 0;
  double clocks = 0;  // an estimate of the time
};

/// How often chunks are split: as far as there are multiprocessors without work, at least eight chunks each.
inline int map_splits(const Plan& p, std::int64_t tiles) {
  return static_cast<int>(
      std::clamp<std::int64_t>(132 / std::max<std::int64_t>(1, tiles), 1, std::max(1, p.most_chunks() / 8)));
}

/// An estimate of the time in clocks with tiles of bm x bn on 132 multiprocessors: of a chunk, its products
/// on tensor cores or the copies of its operands, and what it costs besides; then results are written.
inline double windows_clocks(const Plan& p, int bm, int bn, int parts) {
  constexpr int kChunk = kVectors * kVectorBytes;  // of a row of a tile
  const std::int64_t tiles = count(p.most_rows(), bm) * p.phases() * count(p.to_channels, bn) * p.groups;
  const double chunk =
      std::max(bm / 32.0 * bn * parts, (bm + bn * (parts == 3 ? 2 : 1)) * kChunk / 24.0) + 100;
  const int splits = map_splits(p, tiles);
  const double tile = chunk * p.chunks / p.phases() / splits + 800 + bm * bn / 6.0;
  const double packed = static_cast<double>(count(p.to_channels, bn)) * p.groups * p.chunks * bn * kChunk;
  return static_cast<double>(count(tiles * splits, 132)) * tile + (splits > 1 ? 20000 : 0) + 4000 +
         packed / 280;
}

/// The tile of least clocks. Products of three parts have registers for one of 128.
inline WindowsTile windows_tile(const Plan& p, int parts) {
  WindowsTile best;
  for (int m = 1; m <= (parts == 1 ? 2 : 1); ++m) {
    for (int n : {128, 64, 32}) {
      const double clocks = windows_clocks(p, 128 * m, n, parts);
      if (best.m == 0 || clocks < best.clocks) best = {m, n, clocks};
    }
  }
  return best;
}

}  // namespace tapedeck::conv_gemm
