// conv2d by direct kernels (direct_plain.cu): which thread has which results, and what these read. Host
// arithmetic, for the kernel, tests and estimates.
//
// A block's threads are `splits` rows of `lanes`. A lane has some results, `lanes` apart in the
// order of images, rows and columns, and of each a tile of channels of `to`. A row of threads reads its share
// of the channels of `from`, and the rows' sums are added in their order.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tapedeck/ops/conv/conv_axis32.h>
#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_direct {

using conv_gemm::count;

inline constexpr int kPlainThreads = 256, kMostSplits = 8;
inline constexpr int kMostTaps = 64;  // bits of PlainPlan::Reads
inline constexpr int kChannelTiles[] = {1, 2, 4, 8, 12, 16, 20};
inline constexpr int kMostOfFew = 16;  // the most channels of a thread where pixels do not keep the GPU busy
inline constexpr int kMostOfFour = 8;  // channels of which a thread may have those of four pixels

/// What a thread reads at once of each of its pixels: so many taps of so many channels. (By more, or more
/// kinds of steps, most layers took up to 1.1 times as long: more instructions to bring.)
struct PlainStep {
  int taps, channels;
  constexpr int reads() const { return taps * channels; }
};
inline constexpr PlainStep kPlainSteps[] = {{4, 1}, {3, 2}, {2, 2}, {1, 4}};
/// There are registers for as many.
constexpr bool can_read(const PlainStep& step, int pixels) {
  return step.reads() * pixels <= 16;
}

/// How threads share the results of so many images.
struct PlainTiles {
  PlainTiles(const ConvTranspose2dGeometry& g, std::int64_t images) {
    const std::int64_t to = g.group_ci(), from = g.group_co(), taps = g.h.kernel * g.w.kernel,
                       all = images * g.h.in * g.w.in;
    const auto is_busy = [&](std::int64_t of_block, std::int64_t of_tiles) {
      return count(all, of_block) * of_tiles * g.groups >= kBusyBlocks;
    };
    // Splits are powers of two: of three channels of `from` there may be four, of which one has none.
    const int most_splits = static_cast<int>(std::min<std::int64_t>(kMostSplits, from));
    std::int64_t least = 0;
    for (const int size : kChannelTiles) {
      // Products with a read, and about what it takes beside them.
      const std::int64_t of_size = count(to, size), effort = of_size * (size + 4);
      if (size > kMostOfFew && !is_busy(kPlainThreads / most_splits * pixels, of_size)) continue;
      if (channels == 0 || effort < least) channels = size, tiles = static_cast<int>(of_size), least = effort;
    }
    // Of one channel to four splits are better than fewer pixels, of more they are not.
    if (channels <= kMostOfFour && is_busy(kPlainThreads / (channels <= 4 ? most_splits : 1) * 4, tiles))
      pixels = 4;
    while (splits < most_splits && !is_busy(kPlainThreads / splits * pixels, tiles)) splits *= 2;
    lanes = kPlainThreads / splits;
    blocks = count(all, std::int64_t{lanes} * pixels) * tiles;
    of_split = static_cast<int>(count(from, splits));
    choose_step(static_cast<int>(taps));
    chunk = std::clamp(kMostWeights / (splits * weights_of_channel()), 1, whole(of_split));
    chunk = whole(chunk);
  }
  /// So many channels in whole steps.
  int whole(int of) const { return static_cast<int>(count(of, step.channels)) * step.channels; }
  int weights_of_channel() const { return padded_taps * channels; }
  /// In shared memory: weights, and then sums of splits.
  int shared_elements() const {
    const int sums = splits > 1 ? kPlainThreads * channels * pixels : 0;
    return std::max(splits * chunk * weights_of_channel(), sums);
  }

  // An H100 runs as many at once; of many sums two thirds.
  static constexpr std::int64_t kBusyBlocks = 132 * 3;
  static constexpr int kMostWeights = 6144, kMostShared = (48 << 10) / 4;
  int channels = 0, tiles = 0;  // of `to`: of a thread, and how many such tiles there are
  int pixels = 2;               // of a thread
  PlainStep step = kPlainSteps[0];
  int padded_taps = 1;
  int splits = 1, lanes = kPlainThreads;
  std::int64_t blocks = 0;  // of a group
  int of_split = 1;         // channels of `from`, of which the last split may have fewer
  int chunk = 1;            // of these, whose weights are in shared memory at once

 private:
  /// The step of least reads, those of taps and channels that do not exist among them, whose weights fit.
  /// Cache lines of more than two channels would not stay until their next taps.
  void choose_step(int taps) {
    std::int64_t least = 0;
    for (const PlainStep& s : kPlainSteps) {
      const std::int64_t of_taps = count(taps, s.taps),
                         reads = of_taps * count(of_split, s.channels) * s.reads();
      const bool fits = can_read(s, pixels) && of_taps * s.reads() * channels * splits <= kMostShared,
                 stays = of_taps == 1 || s.channels <= 2;
      if (!fits || !stays || (least > 0 && reads >= least)) continue;
      step = s, padded_taps = static_cast<int>(of_taps) * s.taps, least = reads;
    }
  }
};

/// What threads compute: conv2d from y to x, of some images.
struct PlainPlan {
  PlainPlan() = default;
  explicit PlainPlan(const ConvTranspose2dGeometry& g, std::int64_t images)
      : h(g.h),
        w(g.w),
        pixels(static_cast<int>(images * g.h.in * g.w.in)),
        taps(static_cast<int>(g.h.kernel * g.w.kernel)),
        from_channels(static_cast<int>(g.group_co())),
        to_channels(static_cast<int>(g.group_ci())),
        by_plane(g.h.in * g.w.in),
        by_width(g.w.in) {}

  /// What result `at` reads: taps that are inside of the image, bits by the kernel's rows, each from
  /// `offset` + offset_of(tap) in the first channel.
  struct Reads {
    std::int64_t offset = 0;
    std::uint64_t taps = 0;
  };
  TAPEDECK_HD Reads reads_of(int at) const {
    Reads reads;
    if (at >= pixels) return reads;
    const Place p = place_of(at);
    reads.offset = p.image * from.n + std::int64_t{p.row * h.stride - h.padding} * from.h +
                   std::int64_t{p.column * w.stride - w.padding} * from.w;
    std::uint64_t of_row = 0;
    for (int k = 0; k < w.kernel; ++k) of_row |= std::uint64_t{is_inside(w, p.column, k)} << k;
    for (int k = 0; k < h.kernel; ++k)
      if (is_inside(h, p.row, k)) reads.taps |= of_row << (k * w.kernel);
    return reads;
  }
  std::uint32_t offset_of(int tap) const {
    const int kh = tap / w.kernel, kw = tap - kh * w.kernel;
    return static_cast<std::uint32_t>(std::int64_t{kh * h.dilation} * from.h +
                                      std::int64_t{kw * w.dilation} * from.w);
  }
  /// Where result `at` is written, of the first channel; -1 for none.
  TAPEDECK_HD std::int64_t result_of(int at) const {
    if (at >= pixels) return -1;
    const Place p = place_of(at);
    return p.image * to.n + std::int64_t{p.row} * to.h + std::int64_t{p.column} * to.w;
  }
  /// How many images can be computed at once, of which results are numbers of 32 bits.
  static std::int64_t images_at_once(const ConvTranspose2dGeometry& g) {
    return std::min(g.n, (std::int64_t{1} << 30) / (g.h.in * g.w.in));
  }
  ConvAxis32 h, w;
  int pixels = 0, taps = 0, from_channels = 0, to_channels = 0;  // channels of a group
  conv_gemm::Divider by_plane, by_width;
  conv_gemm::ImageStrides from, to;

 private:
  struct Place {
    std::int64_t image;
    int row, column;
  };
  TAPEDECK_HD Place place_of(int at) const {
    const int image = by_plane.divide(at), pixel = by_plane.modulo(at, image), row = by_width.divide(pixel);
    return {image, row, by_width.modulo(pixel, row)};
  }
  TAPEDECK_HD static bool is_inside(const ConvAxis32& a, int result, int tap) {
    const int at = result * a.stride - a.padding + tap * a.dilation;
    return at >= 0 && at < a.out;
  }
};

}  // namespace tapedeck::conv_direct
