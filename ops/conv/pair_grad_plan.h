// The weight's gradient of stride 2 along w over nchw images as they lie: sizes, tiles and places, for the
// kernel (wgmma_pairs.cu), its host side and tests.
//
//   gw[ci, co, kh, kw] = sum over images, r, c of x[ci, r, c] * y[co, r*sh - ph + kh*dh, 2*c + s]
//   s = kw - pw
// A tile is of some rows of an image of x: their pixels, of all channels of a block, and the rows of y that
// they meet, one after the other, zeros outside of the image. So where a pixel meets y is the same in each
// tile: row_of(pixel) + s.
//
//   y's rows in shared memory     [y0 y1 y2 y3 y4 y5 ...] [next row ...
//   pixels, at s = -1           ^     ^     ^     ^       ^     ^         what is outside counts as zero
//
// Two neighbouring s are a pair: pixels meet neighbours, which are loaded together. A unit is 16 channels of
// y, a kh and a pair, for a warp.
//
// Tiles are brought by the tensor memory accelerator, y's rows as parts of planes: it takes as long for short
// rows as for long ones. (With zeros around each row no word would have to be left out, and a DCGAN's images
// of 4x4 and 8x8 pixels took 1.9 and 1.05 times as long as over boxes, bfloat16, an H200.) It begins at
// multiples of 16 bytes and knows strides of such only: planes and y's rows must be some.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include <tapedeck/core/host_device.h>
#include <tapedeck/ops/conv/box_plan.h>
#include <tapedeck/ops/conv/question.h>

namespace tapedeck::conv_gemm {

inline constexpr int kPairUnits = 8;  // of a thread block: two warpgroups
/// A warp that waits for a tile has still to release the one before, and the one before that may not have
/// been brought anew.
inline constexpr int kMostPairStages = 8, kLeastPairStages = 3;
inline constexpr int kMostPairSteps = 16;          // of 32 bytes of pixels, of a tile
inline constexpr int kMostPairBytes = 224 * 1024;  // of shared memory, for stages
inline constexpr int kPairUnitChannels = 16;
/// Of a box of y in each channel, as elements of 8 bytes.
inline constexpr int kMostBoxBytes = 8 * kMostOfBox;
/// Bytes behind y's tile, at most, of words that count as zero.
inline constexpr int kReachedBehind = 128;

/// How a pair's elements are loaded: as two words, both at once where these begin at a multiple of 8 bytes;
/// or of 16 bits, which begin in the middle of a word, as three, of which that or the last one is alone.
enum class PairLoad : std::uint8_t { pairs, words, three };

struct PairGradPlan {
  PairGradPlan() = default;
  /// `bytes`: of an element.
  PairGradPlan(const ConvTranspose2dGeometry& g, int bytes)
      : element_bytes(bytes),
        n(narrow(g.n)),
        groups(narrow(g.groups)),
        ci(narrow(g.group_ci())),
        co(narrow(g.group_co())),
        x_h(narrow(g.h.in)),
        x_w(narrow(g.w.in)),
        y_h(narrow(g.h.out)),
        y_w(narrow(g.w.out)),
        kernel_h(narrow(g.h.kernel)),
        kernel_w(narrow(g.w.kernel)),
        stride_h(narrow(g.h.stride)),
        padding_h(narrow(g.h.padding)),
        padding_w(narrow(g.w.padding)),
        dilation_h(narrow(g.h.dilation)) {
    constexpr int kLeastChannels = 16, kMostWidth = 128, kMostPadding = 8, kMostTaps = 14;
    const auto are_whole = [&](std::int64_t elements) { return elements * bytes % 16 == 0; };
    const std::int64_t y_row = g.w.out * bytes, most_reached = g.h.padding + g.h.kernel * g.h.dilation;
    if (y_row > kMostBoxBytes || most_reached > (std::int64_t{1} << 30) / y_row ||
        g.h.out > (std::int64_t{1} << 30) / y_row || g.w.stride != 2 || (g.w.dilation != 1 && kernel_w > 1) ||
        ci < kLeastChannels || co < kLeastChannels || n == 0 || x_h == 0 || y_h == 0 || x_w > kMostWidth ||
        padding_w > kMostPadding || kernel_w > kMostTaps || !are_whole(g.h.in * g.w.in) ||
        !are_whole(g.w.out) || (bytes == 2 && x_w % 2 != 0) || g.h.in * g.w.in >= 1 << 28)
      return;
    x_rows = ci <= 64 ? 64 : 128;
    x_tiles = ceil_div(ci, x_rows);
    set_pairs();
    if (is_odd() && !only_single_words_are_outside()) return;
    PairGradPlan best;
    double least = 0;
    for (kh_of_work = 1; kh_of_work <= std::min(kernel_h, units(1)); ++kh_of_work) {
      blocks = std::min(units(kh_of_work), ceil_div(co, kPairUnitChannels));
      y_rows = blocks * kPairUnitChannels, y_tiles = ceil_div(co, y_rows);
      kh_tiles = ceil_div(kernel_h, kh_of_work);
      for (rows = 1; rows <= x_h && rows * x_w * bytes <= kMostPairSteps * 32; ++rows)
        for (int more = 0; more < 8; ++more) {
          if (!set_tile(more)) continue;
          const double c = clocks();
          if (best.exists() && c >= least) continue;
          least = c, best = *this;
        }
    }
    *this = best;
  }

  bool exists() const { return stages > 0; }

  // x's tile: boxes of 128 bytes of pixels for each channel of a block, swizzled. Behind it y's, as it lies:
  // [channel][element].
  TAPEDECK_HD int box_pixels() const { return 128 / element_bytes; }
  TAPEDECK_HD int box_bytes() const { return x_rows * 128; }
  TAPEDECK_HD int boxes() const { return x_bytes / box_bytes(); }
  TAPEDECK_HD int stage_bytes() const { return x_bytes + y_bytes; }
  int shared_bytes() const { return stages * stage_bytes(); }
  /// Steps of a tile, of 32 bytes of pixels: an even number.
  TAPEDECK_HD int steps() const { return rows * x_w * element_bytes / 32; }
  /// Of y's: brought, without what is read behind it.
  TAPEDECK_HD int y_brought() const { return y_rows * y_channel_bytes; }

  /// Bytes from where a channel of y's tile begins to what pixel k of a tile meets through the first of a
  /// work's kh at s = 0. Below 2^16.
  TAPEDECK_HD int row_of(int k) const {
    const int row = k / x_w;
    return (row * stride_h * y_w + 2 * (k - row * x_w)) * element_bytes;
  }
  /// Bytes to add for the i-th kh of a work, and for a pair's first element.
  TAPEDECK_HD int to_kh(int i) const { return i * dilation_h * y_w * element_bytes; }
  TAPEDECK_HD int to_pair(int pair) const { return (first_shift + 2 * pair) * element_bytes; }
  /// The first tap of columns of a pair, which may not exist.
  TAPEDECK_HD int kw_of(int pair) const { return first_shift + 2 * pair + padding_w; }
  /// Whether pairs begin in the middle of words.
  TAPEDECK_HD bool is_odd() const { return element_bytes == 2 && first_shift % 2 != 0; }

  /// Blocks of channels, the first tap of rows, and how many there are.
  struct Work {
    int x_channel, y_channel, group, kh, taps;
  };
  std::int64_t works() const { return std::int64_t{x_tiles} * y_tiles * groups * kh_tiles; }
  TAPEDECK_HD Work work(int index) const {
    Work w{};
    w.x_channel = index % x_tiles * x_rows, index /= x_tiles;
    w.y_channel = index % y_tiles * y_rows, index /= y_tiles;
    w.group = index % groups, index /= groups;
    w.kh = index * kh_of_work;
    w.taps = kernel_h - w.kh < kh_of_work ? kernel_h - w.kh : kh_of_work;
    return w;
  }
  /// What a warp of a thread block multiplies: the first of 16 channels of y's tile, which kh of the work,
  /// and a pair. A warpgroup has every second pair, if there are several: so all of it loads alike.
  struct Unit {
    int channel, tap, pair;
    bool exists;
  };
  TAPEDECK_HD Unit unit(const Work& w, int warp) const {
    Unit u{};
    const int of_warpgroup = (pairs + 1) / 2;  // pairs
    int i = pairs == 1 ? warp : warp % 4;
    u.pair = pairs == 1 ? 0 : i % of_warpgroup * 2 + warp / 4;
    i /= of_warpgroup;
    u.tap = i % kh_of_work, i /= kh_of_work;
    u.exists = u.pair < pairs && i < blocks && u.tap < w.taps && w.y_channel + i * kPairUnitChannels < co;
    if (u.pair >= pairs) u.pair -= 2;
    u.channel = i < blocks ? i * kPairUnitChannels : 0;
    return u;
  }
  /// Blocks of 16 channels of a thread block, of so many kh.
  int units(int taps) const { return (pairs == 1 ? kPairUnits : 4 / ((pairs + 1) / 2)) / taps; }
  /// Bytes from row_of() to the first word that a unit loads, and how it loads: words of 4 bytes, the next
  /// ones behind it.
  TAPEDECK_HD int first_byte(const Unit& u) const {
    return to_kh(u.tap) + to_pair(u.pair) - (is_odd() ? element_bytes : 0);
  }
  TAPEDECK_HD PairLoad load_of(const Unit& u) const {
    if (is_odd()) return PairLoad::three;
    return to_pair(u.pair) % 8 == 0 ? PairLoad::pairs : PairLoad::words;
  }
  /// Of three words, whether the first is alone, or the last; the others begin at a multiple of 8 bytes.
  TAPEDECK_HD bool first_is_single(const Unit& u) const { return first_byte(u) % 8 != 0; }
  /// Whether the i-th word that a unit loads for pixel k is of y's row.
  TAPEDECK_HD bool is_inside(const Unit& u, int k, int i) const {
    const int of_word = 4 / element_bytes,
              first = 2 * (k % x_w) + first_shift + 2 * u.pair - (is_odd() ? 1 : 0) + i * of_word;
    return first >= 0 && first + of_word <= y_w;
  }

  /// Tiles of all images, of which a thread block has every splits-th one.
  struct Tile {
    int image, row;  // the first
  };
  TAPEDECK_HD int tiles() const { return row_tiles * n; }
  TAPEDECK_HD Tile tile(int index) const {
    const int image = index / row_tiles;
    return {image, (index - image * row_tiles) * rows};
  }
  /// The first row of y of a work's tile.
  TAPEDECK_HD int first_row(const Work& w, const Tile& t) const {
    return t.row * stride_h - padding_h + w.kh * dilation_h;
  }

  /// About how many clocks the layer takes: an H200 took 0.9 to 1.2 times as long for the layers of
  /// bench/conv_shapes.h. Its time is estimated by what was fitted to rows of stride 1.
  double clocks() const {
    constexpr double kStart = 4000, kEnd = 4000, kBytesOfSums = 2600;  // of a block, a layer, and in a clock
    const double turns = std::ceil(static_cast<double>(works()) * splits / 132),
                 of_turn = ceil_div(tiles(), splits),
                 sums = 8.0 * splits * groups * ci * co * kernel_h * kernel_w;  // written and read
    return turns * (of_turn * tile_clocks() + brought_clocks() + kStart) + sums / kBytesOfSums + kEnd;
  }

  int element_bytes = 2;
  int n = 0, groups = 1, ci = 0, co = 0;  // channels of a group
  int x_h = 0, x_w = 0, y_h = 0, y_w = 0;
  int kernel_h = 1, kernel_w = 1, stride_h = 1, padding_h = 0, padding_w = 0, dilation_h = 1;
  int pairs = 1, first_shift = 0;  // s of the first pair
  int kh_of_work = 1, kh_tiles = 1;
  int x_rows = 64, x_tiles = 1, blocks = 1, y_rows = 16, y_tiles = 1;  // channels of a work
  int rows = 1, row_tiles = 1;                                         // of a tile
  int x_bytes = 0, y_channel_bytes = 0, y_bytes = 0;  // of a tile, y's with what is read behind it
  int stages = 0, splits = 1;

 private:
  /// As few as possible, and if so such that they begin at even elements.
  void set_pairs() {
    first_shift = -padding_w, pairs = ceil_div(kernel_w, 2);
    if (padding_w % 2 != 0 && ceil_div(kernel_w + 1, 2) == pairs) --first_shift;
  }
  /// Of three words.
  bool only_single_words_are_outside() const {
    const Work any{};
    for (int warp = 0; warp < kPairUnits; ++warp) {
      const Unit u = unit(any, warp);
      const int single = first_is_single(u) ? 0 : 2;
      for (int c = 0; c < x_w; c += 2)
        for (int i = 0; i < 3; ++i)
          if (i != single && !is_inside(u, c, i)) return false;
    }
    return true;
  }
  /// Whether a tile is whole steps, and there is room for stages. y's boxes have so many vectors more than
  /// are needed, such that channels' words meet different banks.
  bool set_tile(int more_vectors) {
    row_tiles = ceil_div(x_h, rows);
    const int of_rows = rows * x_w * element_bytes;  // bytes
    if (of_rows % 64 != 0) return false;
    x_bytes = ceil_div(of_rows, 128) * box_bytes();
    const std::int64_t y_rows_of_tile =
        std::int64_t{rows - 1} * stride_h + std::int64_t{kh_of_work - 1} * dilation_h + 1;
    if (y_rows_of_tile > kMostBoxBytes) return false;
    y_channel_bytes = narrow(y_rows_of_tile) * y_w * element_bytes + more_vectors * 16;
    if (y_channel_bytes > kMostBoxBytes) return false;
    y_bytes = ceil_div(y_brought() + kReachedBehind, 1024) * 1024;
    stages = std::min(kMostPairStages, kMostPairBytes / stage_bytes());
    if (stages < kLeastPairStages) return stages = 0, false;
    // Tensor cores truncate what they add: of long sums blocks have parts.
    const int most_tiles = (element_bytes == 2 ? 2048 : 1024) / steps();
    splits = narrow(std::clamp<std::int64_t>(132 / works(), 1, tiles()));
    splits = std::max(splits, ceil_div(tiles(), most_tiles));
    if (splits > 65535) return stages = 0, false;  // blocks along an axis of a grid
    return true;
  }
  /// That half a warp's pairs of words meet.
  int banks() const {
    const int of_lane = element_bytes == 2 ? 2 : 1;  // pixels
    std::uint32_t met = 0;
    for (int lane = 0; lane < 16; ++lane)
      met |= 3u << (lane / 4 * y_channel_bytes + row_of(lane % 4 * of_lane)) / 4 % 32;
    return std::popcount(met);
  }
  /// To bring a tile, of lines of up to 128 bytes (an H200, by what 4x4 images took), from the cache.
  double brought_clocks() const {
    constexpr double kLine = 4, kBytes = 22;
    const double lines = boxes() * x_rows + y_rows * (y_channel_bytes / 128.0 + 1);
    return std::max(kLine * lines, (x_bytes + y_brought()) / kBytes);
  }
  /// What takes longest: tensor cores; shared memory, which x's pixels, words, and what comes keep busy; or
  /// to bring it.
  double tile_clocks() const {
    const double tensor = 2.0 * x_rows * steps(),
                 shared = (x_rows + 128.0 * 32 / banks()) * steps() + (x_bytes + y_brought()) / 128.0;
    return std::max({1.1 * tensor, 1.1 * shared, brought_clocks()}) + 40;
  }
  static int narrow(std::int64_t i) { return static_cast<int>(i); }
  static int ceil_div(int a, int b) { return (a + b - 1) / b; }
};

inline PairGradPlan best_pair_plan(const ConvTranspose2dGeometry& g, int element_bytes) {
  return fits(g) && (element_bytes == 2 || element_bytes == 4) ? PairGradPlan(g, element_bytes)
                                                               : PairGradPlan();
}
/// The plan of a layer, without stages if there is none.
inline const PairGradPlan& pair_grad_plan(const ConvTranspose2dGeometry& g, int element_bytes) {
  return remembered(ConvQuestion(g, element_bytes), [&] { return best_pair_plan(g, element_bytes); });
}

}  // namespace tapedeck::conv_gemm
