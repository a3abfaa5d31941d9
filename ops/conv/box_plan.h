// The convolution family as matrix products over boxes of pixels: sizes, tiles and places, for kernels, their
// host side and tests.
//
// For each group and phase of results (gemm_plan.h has these),
//   to[m, L] = bias[m] + sum over boxes, their taps and channels c of W[m, tap, c] * box[L + shift(tap), c]
// m: a channel of `to`. A box is a range of pixels of all of an image's rows, columns and some images, with
// some channels, as the tensor memory accelerator brings it: zeros outside of the image. Its pixels are
// numbered by rows, of each image `pitch`, and images are side by side: first row 0 of all of them. So are a
// tile's results, by the box's pixel that tap 0 reads. So every tap is a shift of all results' places, and no
// pixel is brought twice to a tile:
//
//   box of 4 rows, pitch 6         results of a tile: 2 rows, 4 columns,   tap (1, 2) reads L + 1*6 + 2
//   0  1  2  3  4  5                0  1  2  3  .  .
//   6  7  8  9 10 11                6  7  8  9  .  .                       . computed, and dropped
//  12 13 14 15 16 17
//  18 19 20 21 22 23
//
// A halo's columns are computed, too, and dropped: with images of 4x4 and 2x2 taps a fifth of all. (A halo's
// rows come last and are not. With images one after another they were: such an image took 25 places.) So
// taps of different columns may have boxes of their own, without a halo along rows, or each tap its own
// (BoxSplit): then pixels are brought several times, and all places have results.
//
// Two phases of columns may share a tile: results at a place are then a column of each, neighbours in the
// image, and both read the box. Or all phases of rows and columns, where there are two of each: results at a
// place are then a square of the image, and those of a tile whole pieces of memory.
//
// Where results step over pixels (conv2d with a stride), the image is split into planes, one for each
// remainder of positions by the stride, and each plane that taps read has boxes of its own.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>

#include <tapedeck/ops/conv/fold.h>
#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_gemm {

inline constexpr int kMaxPlanes = 16;        // of an image that taps read
inline constexpr int kMaxReads = 16;         // boxes along an axis, of all phases
inline constexpr int kMostOfBox = 256;       // pixels along an axis
inline constexpr int kPixelBytes = 128;      // of channels, in a box
inline constexpr double kBroughtBytes = 34;  // to shared memory in a clock of a multiprocessor, an estimate
inline constexpr int kBlockChannels = 64;    // of `to` that a warpgroup has
inline constexpr int kFarOutside = 1 << 29;
inline constexpr int kMostSlices = 2;

/// Taps of one axis that read one box. Tap j of these is the kernel's tap + j*tap_step, and reads `shift`
/// pixels of the plane after tap j - 1. The box of result m begins at pixel m + origin, and tap 0 reads its
/// pixel `first`.
struct BoxTaps {
  int taps = 0, tap = 0, tap_step = 1, origin = 0, shift = 1, first = 0;
  int before = 0;                        // taps of the axis' earlier boxes
  std::int8_t plane = 0, remainder = 0;  // which plane is read: its pixels' remainder by the stride
};

/// What a kernel's block looks at first comes first, together (see BoxArguments).
struct BoxAxis {
  int count[kMaxPhases] = {};             // of results, of a phase
  std::int8_t of_phase[kMaxPhases] = {};  // boxes that a phase has
  int phases = 0, reads = 1;              // reads: boxes of a phase, at most
  int taps = 0;                           // of all boxes
  int planes = 0, step = 1;               // of what is read; one of phases and planes is 1
  int to_step = 1;                        // from a phase's result to the next one
  BoxTaps of[kMaxReads];                  // [phase][read]
  int to[kMaxPhases] = {};                // a phase's first result
  int taps_of[kMaxPhases] = {};           // of a phase's boxes

  int most() const { return *std::max_element(count, count + kMaxPhases); }
  int results() const { return std::accumulate(count, count + phases, 0); }
  /// Pixels that a box has beyond the results.
  int halo() const {
    int most = 0;
    for (const BoxTaps& t : of) most = std::max(most, t.first + (t.taps - 1) * t.shift);
    return most;
  }
  /// Counts what boxes there are.
  void count_reads() {
    taps = 0;
    for (int i = 0; i < phases; ++i) {
      of_phase[i] = 0, taps_of[i] = 0;
      for (int r = 0; r < reads; ++r) {
        BoxTaps& t = of[i * reads + r];
        t.before = taps, taps += t.taps, taps_of[i] += t.taps;
        if (t.taps > 0) ++of_phase[i];
      }
    }
  }
  /// Which box has the kernel's tap k, and as which of its taps.
  struct Place {
    int read = -1, tap = 0;
  };
  TAPEDECK_HD Place place_of(int k) const {
    for (int i = 0; i < phases * reads; ++i) {
      const BoxTaps& t = of[i];
      const int each = t.tap_step < 0 ? -t.tap_step : t.tap_step,
                from = t.tap_step < 0 ? t.tap - k : k - t.tap;
      if (from < 0 || from > (t.taps - 1) * each) continue;
      const int j = each == 1 ? from : from / each;
      if (j * each == from) return {i, j};
    }
    return {};
  }
};

inline BoxAxis transposed_box_axis(const ConvAxis& a) {
  const PhaseAxes all = transposed_phases(a);
  BoxAxis b;
  b.phases = all.count, b.planes = 1;
  for (int i = 0; i < all.count; ++i) {
    const PhaseAxis& p = all.phase[i];
    b.count[i] = p.count, b.to[i] = p.to, b.to_step = p.to_step;
    const int last = p.taps - 1;  // reads the first pixel
    if (p.taps > 0)
      b.of[i] = {.taps = p.taps,
                 .tap = p.tap + last * p.tap_step,
                 .tap_step = -p.tap_step,
                 .origin = p.from + last * p.tap_from_step,
                 .shift = -p.tap_from_step};
  }
  return b;
}

/// Which phases share a tile: none, both of columns, or both of rows, too.
enum class BoxJoin { none, columns, all };

/// Phases that read one box begin it where the first of them does; in the order of their results.
inline void join_phases(BoxAxis& b) {
  if (b.to[0] > b.to[1]) {
    std::swap(b.to[0], b.to[1]);
    std::swap(b.count[0], b.count[1]);
    std::swap(b.of[0], b.of[1]);
  }
  int origin = kFarOutside;
  for (const BoxTaps& t : b.of)
    if (t.taps > 0) origin = std::min(origin, t.origin);
  for (BoxTaps& t : b.of) {
    t.first = t.taps > 0 ? t.origin - origin : 0;
    t.origin = origin;
  }
}

inline BoxAxis plain_box_axis(const ConvAxis& a) {
  BoxAxis b;
  b.phases = 1, b.count[0] = static_cast<int>(a.in);
  b.step = static_cast<int>(a.stride);
  const std::int64_t common = ConvAxis::gcd(a.stride, a.dilation), tap_step = a.stride / common;
  for (std::int64_t k = 0; k < std::min(a.kernel, tap_step); ++k) {
    const std::int64_t at = k * a.dilation - a.padding, pixel = ConvAxis::floor_div(at, a.stride);
    BoxTaps& t = b.of[b.planes];
    t.taps = static_cast<int>((a.kernel - k + tap_step - 1) / tap_step);
    t.tap = static_cast<int>(k), t.tap_step = static_cast<int>(tap_step);
    t.origin = static_cast<int>(pixel), t.shift = static_cast<int>(a.dilation / common);
    t.plane = static_cast<std::int8_t>(b.planes++);
    t.remainder = static_cast<std::int8_t>(at - pixel * a.stride);
    if (t.remainder >= a.out) t.remainder = 0, t.origin = kFarOutside;  // a plane without pixels
  }
  b.reads = b.planes;
  return b;
}

/// Gives each tap a box of its own, if there is room; returns whether that is new.
inline bool split_taps(BoxAxis& b) {
  int reads = 0, most = 0;
  for (int i = 0; i < b.phases; ++i) {
    int taps = 0;
    for (int r = 0; r < b.reads; ++r) {
      taps += b.of[i * b.reads + r].taps;
      most = std::max(most, b.of[i * b.reads + r].taps);
    }
    reads = std::max(reads, taps);
  }
  if (most <= 1 || b.phases * reads > kMaxReads) return false;
  BoxAxis all = b;
  all.reads = reads;
  std::fill(all.of, all.of + kMaxReads, BoxTaps{});
  for (int i = 0; i < b.phases; ++i) {
    BoxTaps* to = all.of + i * reads;
    for (int r = 0; r < b.reads; ++r) {
      const BoxTaps& from = b.of[i * b.reads + r];
      for (int j = 0; j < from.taps; ++j) {
        BoxTaps& t = *to++;
        t = from;
        t.taps = 1, t.tap += j * from.tap_step, t.tap_step = 1;
        if (from.origin != kFarOutside) t.origin += j * from.shift;
        t.shift = 1;
      }
    }
  }
  b = all;
  return true;
}

/// Which taps have boxes of their own: none that can share, those of different columns, or each.
enum class BoxSplit { none, columns, taps };

/// Which positions of an image are a plane's on an axis: `remainder`, remainder + step, ...
struct PlaneAxis {
  int size, step = 1, remainder = 0;
};

/// A tile's results of one phase, and the box that they read: `rows` and `columns` of each of `images`.
struct BoxTile {
  int images = 1, rows = 1, columns = 1;
  int pitch = 1, box_rows = 1;  // of the box, for each image

  /// From a row to the next: images are side by side.
  TAPEDECK_HD int row_pixels() const { return images * pitch; }
  // A box is brought in at most kMostSlices of rows; in one where several images have an odd number of rows:
  // a row of all of them would be brought for nothing.
  TAPEDECK_HD int slice() const {
    return images > 1 && box_rows % kMostSlices != 0 ? box_rows : (box_rows + kMostSlices - 1) / kMostSlices;
  }
  TAPEDECK_HD int slices() const { return (box_rows + slice() - 1) / slice(); }
  TAPEDECK_HD int slice_pixels() const { return slice() * row_pixels(); }
  /// Of all slices; what the last has too much is not used.
  TAPEDECK_HD int pixels() const { return slices() * slice_pixels(); }
  /// One more than the last result's place.
  TAPEDECK_HD int places() const { return (rows - 1) * row_pixels() + (images - 1) * pitch + columns; }
  // Halves of a tile are of its rows, or of one row's images.
  TAPEDECK_HD bool halves_are_of_rows() const { return rows > 1 || images == 1; }
};

/// The result at a place of a tile.
struct BoxPlace {
  /// What places are divided by.
  struct Dividers {
    Dividers() = default;
    explicit Dividers(const BoxTile& t) : row(t.row_pixels()), image(t.pitch) {}
    Divider row, image;
  };
  TAPEDECK_HD BoxPlace(const Dividers& by, int place)
      : row(by.row.divide(place)),
        image(by.image.divide(by.row.modulo(place, row))),
        column(by.image.modulo(by.row.modulo(place, row), image)) {}
  /// `images`, `rows` and `columns`: of the tile that are inside of the result.
  TAPEDECK_HD bool exists(int images, int rows, int columns) const {
    return image < images && row < rows && column < columns;
  }
  int row, image, column;
};

/// A product of either direction, for kernels.
struct BoxPlan {
  BoxPlan() = default;
  /// `join`: where there are as many.
  BoxPlan(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes, BoxJoin join = BoxJoin::none,
          BoxSplit wanted = BoxSplit::none)
      : n(static_cast<int>(g.n)),
        groups(static_cast<int>(g.groups)),
        from_channels(static_cast<int>(transposed ? g.group_ci() : g.group_co())),
        to_channels(static_cast<int>(transposed ? g.group_co() : g.group_ci())),
        elements(kVectorBytes / element_bytes),
        vectors((from_channels + elements - 1) / elements),
        chunks((vectors + kVectors - 1) / kVectors),
        h(transposed ? transposed_box_axis(g.h) : plain_box_axis(g.h)),
        w(transposed ? transposed_box_axis(g.w) : plain_box_axis(g.w)),
        from_h(static_cast<int>(transposed ? g.h.in : g.h.out)),
        from_w(static_cast<int>(transposed ? g.w.in : g.w.out)) {
    if (join == BoxJoin::all && h.phases == 2 && w.phases == 2 && h.to_step == 2 && w.to_step == 2) {
      join_phases(h), join_phases(w);
      joined_h = joined_w = 2;
    } else if (join == BoxJoin::columns && w.phases == 2) {
      join_phases(w);
      joined_w = 2;
    } else if (wanted != BoxSplit::none) {
      const bool columns = split_taps(w), rows = wanted == BoxSplit::taps && split_taps(h);
      if (columns || rows) split = rows ? BoxSplit::taps : BoxSplit::columns;
    }
    h.count_reads(), w.count_reads();
    weights = h.taps * w.taps * chunks;
    by_chunks = Divider(std::max(1, chunks));
    by_phases_w = Divider(std::max(1, phases_w()));
  }

  /// Makes it one of folded images, and leaves out steps of channels that no result sees.
  void narrow(const Fold& fold, bool transposed) {
    if (!fold.exists()) return;
    folded = static_cast<std::uint8_t>(transposed ? fold.y : fold.x);
    folded_from = static_cast<std::uint8_t>(transposed ? fold.x : fold.y);
    const int columns = transposed ? fold.x : fold.y, step = 32 * elements / kVectorBytes,
              each = from_channels / columns, all = all_steps();
    for (int j = 0; j < kMaxReads; ++j) {
      const BoxTaps& t = w.of[j];
      if (t.taps == 0) continue;
      const int first = fold.seen(t.tap, transposed).first,
                last = fold.seen(t.tap + (t.taps - 1) * t.tap_step, transposed).second;
      steps_from[j] = static_cast<std::uint8_t>(first * each / step);
      steps_to[j] = static_cast<std::uint8_t>((last * each + step - 1) / step);
      is_narrow = is_narrow || steps_from[j] > 0 || steps_to[j] < all;
    }
  }
  /// The part of all steps that products take.
  double taken() const {
    if (!is_narrow) return 1;
    const int all = all_steps();
    int taken = 0, taps = 0;
    for (int j = 0; j < kMaxReads; ++j) {
      if (w.of[j].taps == 0) continue;
      const int of_box = w.of[j].taps;  // each takes a step at least
      taps += of_box, taken += std::max(of_box, of_box * all - steps_from[j] - (all - steps_to[j]));
    }
    return static_cast<double>(taken) / (taps * all);
  }
  TAPEDECK_HD int all_steps() const {
    return chunks == 0 ? 0 : (chunks - 1) * kVectors / 2 + steps(chunks - 1);
  }

  // Of tiles.
  /// Phases in a tile.
  TAPEDECK_HD int joined() const { return joined_h * joined_w; }
  TAPEDECK_HD int phases() const { return h.phases / joined_h * phases_w(); }
  TAPEDECK_HD int phases_w() const { return w.phases / joined_w; }
  /// Whether there are two phases of columns, next to each other, of as many columns and as much to multiply.
  bool has_twin_columns() const {
    return joined() == 1 && folded == 1 && folded_from == 1 && w.phases == 2 && w.to_step == 2 &&
           w.to[0] + w.to[1] == 1 && w.count[0] == w.count[1] && w.taps_of[0] == w.taps_of[1] &&
           w.of_phase[0] == w.of_phase[1];
  }
  TAPEDECK_HD int planes() const { return h.planes * w.planes; }
  TAPEDECK_HD int taps(int i, int j) const { return h.of[i].taps * w.of[j].taps; }

  /// Boxes that tiles of a phase read: [row of these][column][chunk of channels].
  TAPEDECK_HD int boxes(int phase) const {
    const int i = by_phases_w.divide(phase), j = by_phases_w.modulo(phase, i);
    return rows_of_boxes(i) * columns_of_boxes(j) * chunks;
  }
  /// Of joined phases, by rows: from the first one's row and column of taps.
  TAPEDECK_HD static constexpr int row_of_joined(int k) { return k / 2; }
  TAPEDECK_HD static constexpr int column_of_joined(int k) { return k % 2; }
  /// A phase's box: its taps are h.of[i] and w.of[j], of joined phase k also h.of[i + row_of_joined(k)] and
  /// w.of[j + column_of_joined(k)]. Of a row of these j goes from `first` to `end`.
  struct Box {
    int i, j, chunk, first, end;
  };
  TAPEDECK_HD Box box_of(int phase, int index) const {
    const int of_h = by_phases_w.divide(phase), of_w = by_phases_w.modulo(phase, of_h),
              first = of_w * joined_w * w.reads, columns = columns_of_boxes(of_w);
    Box box{of_h * joined_h * h.reads, first, 0, first, first + columns};
    if (index == 0) [[likely]]
      return box;  // where no tile is split: a division is slow between tiles
    const int pair = by_chunks.divide(index), row = pair / columns;
    box.i += row, box.j += pair - row * columns, box.chunk = by_chunks.modulo(index, pair);
    return box;
  }
  /// Makes it the phase's next one, after which there may be none.
  TAPEDECK_HD void advance(Box& box) const {
    if (++box.chunk < chunks) return;
    box.chunk = 0;
    if (++box.j < box.end) return;
    box.j = box.first, ++box.i;
  }
  /// Of all of a phase's boxes, and of all joined phases.
  TAPEDECK_HD int taps_of(int phase) const {
    const int of_h = by_phases_w.divide(phase), i = of_h * joined_h,
              j = by_phases_w.modulo(phase, of_h) * joined_w;
    return (h.taps_of[i] + (joined_h == 2 ? h.taps_of[i + 1] : 0)) *
           (w.taps_of[j] + (joined_w == 2 ? w.taps_of[j + 1] : 0)) * chunks;
  }
  /// Of a box, and of all joined phases.
  TAPEDECK_HD int taps_of_box(const Box& box) const {
    int all = 0;
    for (int k = 0; k < joined(); ++k) all += taps(box.i + row_of_joined(k), box.j + column_of_joined(k));
    return all;
  }
  /// Which of `weights` a chunk of channels meets at the first of taps (i, j); others follow, by rows.
  TAPEDECK_HD int weight_of_taps(int i, int j, int chunk) const {
    return (h.of[i].before * w.taps + h.of[i].taps * w.of[j].before) * chunks + chunk * taps(i, j);
  }
  /// Which of `weights` holds vector v of channels at a tap; -1 if no result sees it.
  TAPEDECK_HD int weight_of(int kh, int kw, int v) const {
    const BoxAxis::Place a = h.place_of(kh), b = w.place_of(kw);
    if (a.read < 0 || b.read < 0) return -1;
    return weight_of_taps(a.read, b.read, v / kVectors) + a.tap * w.of[b.read].taps + b.tap;
  }
  /// The kernel's tap, by rows of kernel_w, that is tap (y, x) of taps (i, j).
  TAPEDECK_HD int tap_of(int i, int j, int y, int x, int kernel_w) const {
    const BoxTaps &a = h.of[i], &b = w.of[j];
    return (a.tap + y * a.tap_step) * kernel_w + b.tap + x * b.tap_step;
  }
  PlaneAxis plane_h(int i) const { return {from_h, h.step, remainder_of(h, i)}; }
  PlaneAxis plane_w(int j) const { return {from_w, w.step, remainder_of(w, j)}; }
  /// Steps of 32 bytes that have channels, of a chunk.
  TAPEDECK_HD int steps(int chunk) const {
    const int left = vectors - chunk * kVectors;
    return left >= kVectors ? kVectors / 2 : (left + 1) / 2;
  }

  int n = 0, groups = 1, from_channels = 0, to_channels = 0;  // channels of a group
  int elements = 4;                                           // of a vector
  int vectors = 0, chunks = 0;                                // of a group's channels; chunks of kPixelBytes
  int weights = 0;                                            // of a group: blocks of a tap and a chunk
  std::int8_t joined_h = 1, joined_w = 1;                     // phases of rows, and of columns, in a tile
  Divider by_chunks, by_phases_w;
  BoxSplit split = BoxSplit::none;
  BoxAxis h, w;
  int from_h = 0, from_w = 0;
  // Of folded columns (fold.h): of a pixel's channels, the steps before steps_from[j] meet nothing at tap 0
  // of w.of[j], nor do those from steps_to[j] on at the last tap; if that is so anywhere.
  bool is_narrow = false;
  std::uint8_t folded = 1, folded_from = 1;  // neighbouring columns of results, and read ones, that are one
  std::uint8_t steps_from[kMaxReads] = {}, steps_to[kMaxReads] = {};

 private:
  /// Boxes along columns and along rows that tiles of a phase, or of joined phases, read.
  TAPEDECK_HD int rows_of_boxes(int i) const {
    const int a = h.of_phase[joined_h * i], b = h.of_phase[joined_h * i + joined_h - 1];
    return a > b ? a : b;
  }
  TAPEDECK_HD int columns_of_boxes(int j) const {
    const int a = w.of_phase[joined_w * j], b = w.of_phase[joined_w * j + joined_w - 1];
    return a > b ? a : b;
  }
  static int remainder_of(const BoxAxis& axis, int plane) {
    for (const BoxTaps& t : axis.of)
      if (t.taps > 0 && t.plane == plane) return t.remainder;
    return 0;
  }
};

/// Few channels fill their block of 64 with copies: the warps of each copy have the same sums, and write a
/// share of the places.
TAPEDECK_HD constexpr int log_channel_copies(int channels) {
  return channels <= 16 ? 2 : channels <= 32 ? 1 : 0;
}
TAPEDECK_HD constexpr int channel_copies(int channels) {
  return 1 << log_channel_copies(channels);
}

/// Row of a block of kBlockChannels in shared memory that has channel m, where channels are not in order: of
/// each 16 the even ones come first, so a thread of a warpgroup has two neighbouring channels.
TAPEDECK_HD inline int block_row(int m) {
  return m / 16 * 16 + m % 2 * 8 + m % 16 / 2;
}

/// What a part of a row takes that is written at once, beside its places: one of a multiple of `whole`
/// columns, or any other. Rows are parted by tiles, and where they begin anywhere in memory, it counts that
/// warps part them again, after each `at_once` of a warpgroup's places, if that is not 0. (kb57 padded in
/// height only, 1026 wide, in bfloat16 on an H100: 1.76 ms with a pitch of 82, 1.43 with 64.)
struct PartsOfRows {
  /// Of a tile's rows, in images `width` wide.
  double of(const BoxTile& t, int width) const {
    if (t.columns >= width) return t.rows * t.images * of_row;
    if (t.columns % whole == 0) return t.rows * t.images * of_whole;
    int parts = t.rows * t.images;
    for (int i = 0; at_once > 0 && i < t.rows * t.images; ++i) {
      const int first = i * t.pitch, last = first + t.columns - 1;
      parts += part_of(last) - part_of(first);
    }
    return parts * of_other;
  }
  int whole = 1;
  double of_whole = 0, of_other = 0;
  int at_once = 0, places = 1;  // places: of a warpgroup
  double of_row = 0;            // of a whole row

 private:
  int part_of(int place) const {
    return place / places * ((places + at_once - 1) / at_once) + place % places / at_once;
  }
};

/// The tile of at most `places` that wastes least, with boxes of at most `most_pixels`; no rows if there is
/// none. `even`: results of even columns, of an even number, are at even places. `halves`: of rows, or of
/// one row's images, that have so many places each (first_half()). `unit` divides pitches. `of_place`: what a
/// place takes, where parts of rows take something.
inline BoxTile box_tile(const BoxPlan& p, int places, int most_pixels, bool even = false, int halves = 1,
                        int unit = 1, const PartsOfRows& parts = {}, double of_place = 1) {
  const int height = p.h.most(), width = p.w.most(), halo_h = p.h.halo(), halo_w = p.w.halo();
  BoxTile best;
  best.rows = 0;
  if (p.n == 0 || height == 0 || width == 0) return best;
  double least = 0;
  const auto offer = [&](const BoxTile& t) {
    const double tiles = static_cast<double>((p.n + t.images - 1) / t.images) *
                         ((height + t.rows - 1) / t.rows) * ((width + t.columns - 1) / t.columns);
    // What is computed, and a little for what is brought.
    const double cost = tiles * (places * halves + 0.1 * t.pixels() + parts.of(t, width) / of_place);
    if (best.rows > 0 && cost >= least) return;
    best = t, least = cost;
  };
  const int most_columns = std::min(places, kMostOfBox - halo_w);
  if (most_columns < 1) return best;
  const auto offer_columns = [&](int columns) {
    BoxTile t;
    t.columns = columns, t.pitch = (columns + halo_w + unit - 1) / unit * unit;
    if (even) t.columns += t.columns % 2, t.pitch = (t.columns + halo_w + 1) / 2 * 2;
    const int most_rows = std::min(kMostOfBox, most_pixels / t.pitch) - halo_h;
    if (t.pitch > kMostOfBox || t.columns > places || most_rows < 1) return;
    const int rows = std::min({height, most_rows, halves * (1 + (places - t.columns) / t.pitch)});
    const int bands = (height + rows - 1) / rows;
    t.rows = (height + bands - 1) / bands, t.box_rows = t.rows + halo_h;
    while (t.rows > 0 && t.pixels() > most_pixels) --t.rows, --t.box_rows;
    if (t.rows == 0) return;
    offer(t);
    if (t.rows == height) {
      // Of a half: of its rows, or of one row's images.
      const int rows_of_half = (height + halves - 1) / halves,
                fit = (places + t.pitch - t.columns) / (rows_of_half * t.pitch);
      t.images = std::min({p.n, kMostOfBox, height > 1 ? fit : halves * fit});
      while (t.images > 1 && t.pixels() > most_pixels) --t.images;
      if (t.images > 1) offer(t);
    }
  };
  for (int strips = (width + most_columns - 1) / most_columns; strips <= width; ++strips) {
    const int columns = (width + strips - 1) / strips,
              whole = (columns + parts.whole - 1) / parts.whole * parts.whole;
    offer_columns(columns);
    if (whole != columns && whole < width) offer_columns(whole);
    if (columns <= 16) break;
  }
  return best;
}

/// The place at which the second of two halves of a tile begins.
TAPEDECK_HD inline int first_half(const BoxTile& t) {
  return t.halves_are_of_rows() ? (t.rows + 1) / 2 * t.row_pixels() : (t.images + 1) / 2 * t.pitch;
}

/// The rows of a tile, or of one of its two halves, whose results are stored row by row: `rows` from
/// `first_row` on of each of `images` from `first_image` on.
struct StoredRows {
  TAPEDECK_HD StoredRows(const BoxTile& t, bool in_halves, int half) {
    const bool by_rows = in_halves && t.halves_are_of_rows(), by_images = in_halves && !by_rows;
    images = by_images ? (t.images + 1) / 2 : t.images;
    rows = by_rows ? (t.rows + 1) / 2 : t.rows;
    first_image = by_images ? half * images : 0;
    first_row = by_rows ? half * rows : 0;
  }
  /// Whether all are neighbours and can be stored as one box. `height`: of the image, outside of which a box
  /// may have rows: the second half of an odd number.
  static bool are_one_box(const BoxTile& t, bool in_halves, int height) {
    const StoredRows first(t, in_halves, 0);
    return t.pitch == t.columns && (t.rows % first.rows == 0 || t.rows >= height) &&
           t.images % first.images == 0;
  }
  int images, rows, first_image, first_row;
};

/// Results of a warpgroup that are written as one box, by the tensor memory accelerator: `rows` of each of
/// `images`, with the box's pitch, `places` in all. Its map leaves out what is outside of the image. A tile
/// has `halves` of these: of its rows, or of one row's images.
struct ResultBox {
  ResultBox() = default;
  ResultBox(const BoxTile& t, int halves)
      : images(t.halves_are_of_rows() ? t.images : t.images / halves),
        rows(t.halves_are_of_rows() ? t.rows / halves : 1),
        places(images * rows * t.pitch) {}
  int images = 1, rows = 1, places = 1;
};

/// box_tile() for results that are written as boxes: tiles have whole rows, of pitches that `unit` divides,
/// and a half's results are at its first `places`. `most_images`: of a tile.
inline BoxTile box_tile_of_halves(const BoxPlan& p, int places, int halves, int most_pixels, int unit,
                                  int most_images = kMostOfBox) {
  const int height = p.h.most(), columns = p.w.most(), halo = p.h.halo();
  const int pitch = (columns + p.w.halo() + unit - 1) / unit * unit;
  BoxTile best;
  best.rows = 0;
  if (p.n == 0 || height == 0 || columns == 0 || columns > places || pitch * p.joined_w > kMostOfBox)
    return best;
  double least = 0;
  const auto offer = [&](const BoxTile& t) {
    const double tiles =
        static_cast<double>((p.n + t.images - 1) / t.images) * ((height + t.rows - 1) / t.rows);
    const double cost = tiles * (places * halves + 0.1 * t.pixels());
    if (t.box_rows > kMostOfBox || t.pixels() > most_pixels || (best.rows > 0 && cost >= least)) return;
    best = t, least = cost;
  };
  for (int rows = 1 + (places - columns) / pitch; rows > 0; --rows) {
    const int bands = (height + halves * rows - 1) / (halves * rows);
    const int all = (height + bands * halves - 1) / (bands * halves) * halves;
    offer({1, all, columns, pitch, all + halo});
    if (best.rows > 0) break;
  }
  // Of images' rows there may be one more than images have; one row is of two halves' images.
  const int of_half = (height + halves - 1) / halves, rows = height > 1 ? of_half * halves : 1;
  for (int images = (places + pitch - columns) / (of_half * pitch); images > 0; --images) {
    const int all =
        height > 1 ? std::min(images, p.n) : halves * std::min(images, (p.n + halves - 1) / halves);
    if (all < 2 || all > most_images) continue;
    offer({all, rows, columns, pitch, rows + halo});
    if (best.images > 1) break;
  }
  return best;
}

}  // namespace tapedeck::conv_gemm
