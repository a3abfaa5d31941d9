// The weight's gradient by direct kernels (direct_weight_grad.cu): which sums a thread has, how blocks share
// them and the pixels, and what these read. For the kernel, tests and estimates.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tapedeck/ops/conv/conv_axis32.h>
#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_direct {

inline constexpr int kGradThreads = 256;  // of a block, which share pixels
inline constexpr int kMostGradTaps = 128;

/// Sums of a thread: of so many channels of x and taps.
struct GradSums {
  int channels, taps;
};
inline constexpr GradSums kGradSums[] = {{1, 9}, {1, 16}, {1, 32}, {2, 9}, {2, 16}, {4, 4},
                                         {4, 9}, {4, 16}, {8, 4},  {8, 8}, {16, 4}};

/// The most taps of a thread.
inline constexpr int kMostOfThread =
    std::ranges::max(kGradSums, {}, [](const GradSums& s) { return s.taps; }).taps;

struct GradTiles {
  explicit GradTiles(const ConvTranspose2dGeometry& g) {
    using conv_gemm::count;
    const std::int64_t taps = g.h.kernel * g.w.kernel;
    std::int64_t least = 0;
    for (const GradSums& s : kGradSums) {
      // Products, and about what instructions it takes to load a tap, a channel, and to find a pixel.
      const std::int64_t all = count(g.group_ci(), s.channels) * count(taps, s.taps),
                         effort = all * (s.channels * s.taps + 8 * s.taps + 3 * s.channels + 12);
      if (least == 0 || effort < least) sums = s, least = effort;
    }
    tiles = static_cast<int>(count(g.group_ci(), sums.channels));
    chunks = static_cast<int>(count(taps, sums.taps));
    blocks = g.co * tiles * chunks;
    const std::int64_t pixels = std::max<std::int64_t>(1, g.n * g.h.in * g.w.in),
                       of_few = std::min(count(kFewBlocks, blocks), count(pixels, kGradThreads)),
                       of_many = std::min(count(kBusyBlocks, blocks), pixels / kLeastPixels),
                       wanted = std::clamp<std::int64_t>(std::max(of_few, of_many), 1, 65535);
    split_pixels = count(count(pixels, wanted), kGradThreads) * kGradThreads;
    splits = count(pixels, split_pixels);
  }

  // Blocks that keep an H100 busy, of few pixels if need be; and some turns of them, where threads then have
  // more than a few. (More turns of few pixels took up to 1.3 times as long.)
  static constexpr std::int64_t kFewBlocks = 132 * 4, kBusyBlocks = 132 * 8;
  static constexpr std::int64_t kLeastPixels = kGradThreads * 4;
  GradSums sums{};
  int tiles = 0, chunks = 0;  // of a group's channels of x, and of taps
  std::int64_t blocks = 0;    // of a split
  std::int64_t splits = 1, split_pixels = 0;
};

/// What threads compute.
struct GradPlan {
  GradPlan() = default;
  GradPlan(const ConvTranspose2dGeometry& g, const GradTiles& tiles)
      : h(g.h),
        w(g.w),
        pixels(static_cast<int>(g.n * g.h.in * g.w.in)),
        ci(static_cast<int>(g.group_ci())),
        co(static_cast<int>(g.group_co())),
        taps(static_cast<int>(g.h.kernel * g.w.kernel)),
        sums(tiles.sums),
        by_plane(g.h.in * g.w.in),
        by_width(g.w.in),
        by_chunks(tiles.chunks),
        by_tiles(tiles.tiles),
        by_group(g.group_co()) {}

  /// Of a block the channel of y, its group and number in that, and the first channel of x, in the group, and
  /// tap of its sums.
  struct Share {
    int y, group, of_group, x, tap;
  };
  TAPEDECK_HD Share share_of(int block) const {
    const int tile = by_chunks.divide(block), channel = by_tiles.divide(tile),
              group = by_group.divide(channel);
    return {channel, group, by_group.modulo(channel, group), by_tiles.modulo(tile, channel) * sums.channels,
            by_chunks.modulo(block, tile) * sums.taps};
  }
  /// A pixel of x, in the first channel, and what tap 0 reaches, also if that is outside: row, column, and
  /// where these would be.
  struct Pixel {
    std::int64_t x, y;
    int row, column;
  };
  TAPEDECK_HD Pixel pixel(int i) const {
    const int image = by_plane.divide(i), at = by_plane.modulo(i, image), row = by_width.divide(at),
              column = by_width.modulo(at, row), to_row = row * h.stride - h.padding,
              to_column = column * w.stride - w.padding;
    return {image * x.n + std::int64_t{row} * x.h + std::int64_t{column} * x.w,
            image * y.n + std::int64_t{to_row} * y.h + std::int64_t{to_column} * y.w, to_row, to_column};
  }
  /// How far beyond tap 0 a tap reaches; one that does not exist, outside.
  struct alignas(16) Tap {
    int row, column;
    std::int64_t offset;
  };
  Tap tap(int k) const {
    if (k >= taps) return {conv_gemm::kOutside, conv_gemm::kOutside, 0};
    const int row = k / w.kernel * h.dilation, column = k % w.kernel * w.dilation;
    return {row, column, std::int64_t{row} * y.h + std::int64_t{column} * y.w};
  }
  TAPEDECK_HD bool reaches(const Pixel& p, const Tap& t) const {
    const bool row = static_cast<unsigned>(p.row + t.row) < static_cast<unsigned>(h.out),
               column = static_cast<unsigned>(p.column + t.column) < static_cast<unsigned>(w.out);
    return row & column;  // without a branch
  }
  /// Where in the weight's gradient sum k of a block is; -1 if there is none.
  TAPEDECK_HD std::int64_t place_of(const Share& s, int k) const {
    const int t = s.tap + k / sums.channels, channel = s.x + k % sums.channels;
    if (t >= taps || channel >= ci) return -1;
    return ((std::int64_t{s.group} * ci + channel) * co + s.of_group) * taps + t;
  }

  ConvAxis32 h, w;
  int pixels = 0, ci = 0, co = 0, taps = 0;  // of all images; channels of a group
  GradSums sums{};
  conv_gemm::Divider by_plane, by_width, by_chunks, by_tiles, by_group;
  conv_gemm::ImageStrides x, y;
};

}  // namespace tapedeck::conv_direct
