// Results of tiles that have all phases of a layer (BoxJoin::all), written to nchw as runs of memory by
// wgmma_box.cuh: how they lie in shared memory, and where they pay. Host arithmetic, too, for tests.
#pragma once

#include <tapedeck/ops/conv/box_plan.h>

namespace tapedeck::conv_gemm {

inline constexpr int kSectorBytes = 32;  // of memory
/// What the second-level cache holds: results until other tiles have written the rest of their sectors.
inline constexpr double kCachedBytes = 5e7;

/// Results of tiles that have all phases and whole rows: of an image's channel a warpgroup has a run of
/// memory. In shared memory a warp has a run of each of its channels, or of copies of these every second
/// one's, [channel][image], `pitch` elements each, the first of which is where the run's vector begins in
/// memory.
struct ResultRuns {
  /// Whether a plan's are: a tile has the image's first two rows and columns.
  static bool exist(const BoxPlan& p) {
    return p.joined() == 4 && p.h.to[0] == 0 && p.h.to[1] == 1 && p.w.to[0] == 0 && p.w.to[1] == 1;
  }
  ResultRuns() = default;
  ResultRuns(const BoxPlan& p, const ResultBox& box, int value_bytes)
      : width(p.w.results()),
        height(p.h.results()),
        rows(2 * box.rows),
        images(box.images),
        vector(kVectorBytes / value_bytes),
        channels(channel_copies(p.to_channels) == 1 ? 16 : 8),
        by_images(box.images) {
    // Channels that lanes write to at once begin half of all banks apart, where that can be.
    const int vectors = (rows * width + vector - 1) / vector + 1, apart = (channels == 16 ? 2 : 1) * images;
    int more = 0;
    while (more < 8 && apart * (vectors + more) % 8 != 4) ++more;
    pitch = (vectors + more % 8) * vector;
  }
  TAPEDECK_HD int all() const { return channels * images; }
  /// Elements of a warp.
  TAPEDECK_HD int staged() const { return all() * pitch; }
  /// Of a run that begins with `row` of each phase, in a tile or its half.
  TAPEDECK_HD int count(int row) const {
    const int left = height - 2 * row;
    return (rows < left ? rows : left) * width;
  }
  /// Where a run's first of four results at a row and column of the tile is: the next row is `width` further.
  TAPEDECK_HD int result(int row, int column) const { return 2 * (row * width + column); }
  /// Of `count` elements that begin `at` elements into a vector: whole vectors are from `begin` to `end`.
  struct Whole {
    int begin, end;
  };
  TAPEDECK_HD Whole whole(int count, int at) const {
    const int begin = at == 0 ? 0 : vector - at, end = (at + count) / vector * vector - at;
    return {begin < count ? begin : count, end > begin ? end : begin < count ? begin : count};
  }

  int width = 0, height = 0, rows = 0, images = 1, vector = 1;
  int channels = 16, pitch = 0;
  Divider by_images;
};

/// Whether rows of phases of rows begin or end within sectors, and the second-level cache does not hold all
/// results until the others' rows are written: memory then seems to write these sectors in parts.
inline bool have_cut_rows(const BoxPlan& p, int value_bytes) {
  const double bytes =
      static_cast<double>(p.n) * p.groups * p.to_channels * p.h.results() * p.w.results() * value_bytes;
  return p.h.phases > 1 && p.w.results() * p.folded * value_bytes % kSectorBytes != 0 && bytes > kCachedBytes;
}
/// Whether runs may be faster than all else. (Of 4096 images on an H200, 64 to 64 channels of 14x14 and 64 to
/// 32 of 28x28, forward takes 0.52 and 0.89 of the time in TF32, 0.58 and 0.89 in float32; of the former in
/// bfloat16 0.82. Elsewhere products of few places, and results that are not pairs, take longer: of 126 pairs
/// of other layers and precisions half take 1.11 to 1.67 times as long, a VAE's of 128 images 1.05 to 1.4.)
inline bool runs_pay(const BoxPlan& p, int value_bytes) {
  return have_cut_rows(p, value_bytes) && p.w.results() % 2 == 0 && p.to_channels >= 32;
}

}  // namespace tapedeck::conv_gemm
