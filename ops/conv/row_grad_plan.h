// The weight's gradient over rows of nchw images, of 16-bit types or float32, as they lie: sizes, tiles and
// places, for the kernel, its host side and tests.
//
//   gw[ci, co, kh, kw] = sum over images, r, c of x[ci, r, c] * y[co, r*sh - ph + kh*dh, c - pw + kw*dw]
// In nchw a row's pixels, which the sum is over, are neighbours. A tile is kRowPixels pixels of a row of all
// channels of a block. A step multiplies y's tile of one row, shifted for kw, with x's tiles of the `taps`
// rows that it meets through different kh: rows go by in steps of x_step of x's, of one phase, so that a step
// on in y is a step on in x,
//   row q of x is r = phase + x_step*q; row q of y is r*sh - ph + kh0*dh; (y's q, x's q - t) is tap
//   kh0 + t*kh_step.
// So a step brings one row of x and one of y. A warp has 16 channels of y and a kw (a unit), and of x a block
// of channels times `taps`; warpgroups share what a thread block brings.
//
// Tiles are brought by the tensor memory accelerator, which begins at multiples of 16 bytes and knows strides
// of such only (else it is an illegal instruction): x's rows must be some, and a tile of y begins up to seven
// pixels early. y's rows of other lengths are parts of long ones, of whole planes of one to eight
// channels. What then comes from neighbouring rows must be left out: pixels of [first_pixel(), past_pixel())
// count.
//
// Images of float32 come as they are to slots of their own, of which other warps make scaled halves in the
// rings of tiles.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>

#include <tapedeck/core/host_device.h>
#include <tapedeck/ops/conv/box_plan.h>
#include <tapedeck/ops/conv/question.h>

namespace tapedeck::conv_gemm {

inline constexpr int kRowPixels = 64;             // of a tile: 128 bytes
inline constexpr int kMostRowBytes = 225 * 1024;  // of shared memory
inline constexpr int kMostRowTaps = 3;            // of a step
inline constexpr int kUnitChannels = 16;          // of y, of a warp
inline constexpr int kMostRowStages = 16, kMostFloatSlots = 3;

/// Warpgroups of a thread block that have so many columns of sums: what registers allow, of which those that
/// make halves need some.
constexpr int row_grad_warpgroups(int columns, bool are_float) {
  return columns > 128 || are_float ? 3 : 4;
}

/// How rows of images are brought: a box for each of `apart` channels, of every apart-th channel.
struct RowBoxes {
  RowBoxes() = default;
  RowBoxes(std::int64_t h, std::int64_t w)
      : height(static_cast<int>(h)),
        width(static_cast<int>(w)),
        apart(static_cast<int>(8 / std::gcd(h * w, std::int64_t{8}))),
        flat(w % 8 != 0) {}

  int height = 0, width = 0, apart = 1;
  bool flat = false;  // rows are parts of `apart` planes

  /// Whether there is a map of so many channels of each of some groups.
  bool exists(std::int64_t channels) const {
    return channels % apart == 0 && std::int64_t{apart} * height * width < std::int64_t{1} << 30;
  }
  /// Where box b of a row begins: the map's first two axes, the first of which is brought from a multiple of
  /// kAligned on.
  TAPEDECK_HD int first(int b, int row, int column) const {
    return flat ? (b * height + row) * width + column : column;
  }
  static constexpr int kAligned = 8;
  TAPEDECK_HD static int aligned(int first) { return first & -kAligned; }
  TAPEDECK_HD static int beyond(int first) { return first & (kAligned - 1); }
  TAPEDECK_HD int second(int row) const { return flat ? 0 : row; }
  /// The channel of a block of `rows` that is in row i of its boxes.
  TAPEDECK_HD int channel(int i, int rows) const {
    const int of_box = rows / apart;
    return i % of_box * apart + i / of_box;
  }
};

struct RowGradPlan {
  RowGradPlan() = default;
  explicit RowGradPlan(const ConvTranspose2dGeometry& g, bool of_float = false)
      : are_float(of_float),
        n(narrow(g.n)),
        groups(narrow(g.groups)),
        ci(narrow(g.group_ci())),
        co(narrow(g.group_co())),
        x(g.h.in, g.w.in),
        y(g.h.out, g.w.out),
        kernel_h(narrow(g.h.kernel)),
        kernel_w(narrow(g.w.kernel)),
        stride_h(narrow(g.h.stride)),
        padding_h(narrow(g.h.padding)),
        padding_w(narrow(g.w.padding)),
        dilation_h(narrow(g.h.dilation)),
        dilation_w(narrow(g.w.dilation)) {
    constexpr int kLeastChannels = 16, kLeastWidth = 32;
    if (g.w.stride != 1 || ci < kLeastChannels || co < kLeastChannels || x.width < kLeastWidth ||
        x.height == 0 || n == 0 || y.height == 0 || y.width == 0 || x.width % RowBoxes::kAligned != 0 ||
        !x.exists(ci) || !y.exists(co))
      return;
    const int common = std::gcd(stride_h, dilation_h);
    x_step = dilation_h / common, kh_step = stride_h / common;
    phases = std::min(x_step, x.height);
    const int of_phase = ceil_div(kernel_h, kh_step);  // taps, at most
    taps = ceil_div(of_phase, ceil_div(of_phase, kMostRowTaps));
    for (int phase = 0; phase < std::min(kh_step, kernel_h); ++phase)
      kh_tiles += ceil_div(ceil_div(kernel_h - phase, kh_step), taps);

    x_rows = ci <= 32 ? 32 : 64;
    x_tiles = ceil_div(ci, x_rows);
    y_columns = (kRowPixels + (kernel_w - 1) * dilation_w + RowBoxes::kAligned - 1 + 7) / 8;
    y_columns = (y_columns | 1) * 8;  // or all rows are in the same banks
    if (y_columns > kMostOfBox) return;
    strips = ceil_div(x.width, kRowPixels);
    rows = ceil_div(x.height, x_step) + taps - 1;

    // Channels of y and warpgroups of a part of a thread block, such that all units take little time.
    const int most = row_grad_warpgroups(columns(), are_float);
    RowGradPlan best;
    double least = 0;
    for (const int y_most : {64, 128}) {
      y_tiles = ceil_div(co, y_most);
      const int unit = kUnitChannels * y.apart;  // a unit's rows are of one box, and begin alike
      y_rows = ceil_div(ceil_div(co, y_tiles), unit) * unit;
      y_box_bytes = y_rows / y.apart * y_columns * 2;
      y_box_step = (y_box_bytes + 127) / 128 * 128;
      y_bytes = y.apart * y_box_step;
      units = kernel_w * (y_rows / kUnitChannels);
      for (warpgroups = most; warpgroups > 0; --warpgroups) {
        parts = most / warpgroups >= 4 ? 4 : most / warpgroups >= 2 ? 2 : 1;
        unit_tiles = ceil_div(units, 4 * warpgroups);
        const double clocks = y_tiles * unit_tiles * step_clocks();
        if (!set_stages() || (best.exists() && clocks >= least)) continue;
        least = clocks, best = *this;
      }
    }
    *this = best;
    if (!exists()) return;

    const int items_at_once = narrow(std::clamp<std::int64_t>(132 / works(), 1, 132));
    double shortest = 0;
    for (int some = 1; some <= std::min(rows, 128); ++some) {
      const int of_band = ceil_div(rows, some);
      if (ceil_div(rows, of_band) != some) continue;
      const double steps = static_cast<double>(count(std::int64_t{columns_of_rows()} * some, items_at_once)) *
                           (of_band + 0.5 * (taps - 1) + 1);
      if (bands > 0 && steps >= shortest) continue;
      shortest = steps, bands = some, band_rows = of_band;
    }
    splits = narrow(std::min<std::int64_t>(items_at_once, items()));
  }

  bool exists() const { return stages > 0; }

  // Shared memory: a ring of x's rows, one of y's. x's has the rows that a stage of y meets beyond, and its
  // first ones twice, at its end as well: so `taps` rows always follow each other.
  TAPEDECK_HD int columns() const { return taps * x_rows; }
  TAPEDECK_HD int x_bytes() const { return x_rows * 2 * kRowPixels; }
  TAPEDECK_HD int x_slots() const { return stages + taps - 1; }
  TAPEDECK_HD int y_begin() const { return (x_slots() + taps - 1) * x_bytes(); }
  /// Slots of float32, with a row of x, then y's tile in the same order as a tile of halves.
  TAPEDECK_HD int floats_begin() const { return y_begin() + stages * y_bytes; }
  TAPEDECK_HD int floats_bytes() const { return 2 * (x_bytes() + y_bytes); }
  TAPEDECK_HD int shared_bytes() const { return floats_begin() + float_slots * floats_bytes(); }
  TAPEDECK_HD bool is_twice(int slot) const { return slot < taps - 1; }
  /// The first of x's slots that step `i` of a thread block reads; i >= taps - 1.
  TAPEDECK_HD int x_window(int i) const { return (i - (taps - 1)) % x_slots(); }
  /// Row i of y's tile.
  TAPEDECK_HD int y_place(int i) const {
    const int of_box = y_rows / y.apart;
    return i / of_box * y_box_step + i % of_box * y_columns * 2;
  }

  /// Blocks of channels, the first tap of rows and how many, and the first unit.
  struct Work {
    int x_channel, y_channel, group, kh, taps, unit;
  };
  std::int64_t works() const { return std::int64_t{x_tiles} * y_tiles * groups * unit_tiles * kh_tiles; }
  TAPEDECK_HD Work work(int index) const {
    Work w{};
    w.unit = index % unit_tiles * 4 * warpgroups, index /= unit_tiles;
    w.x_channel = index % x_tiles * x_rows, index /= x_tiles;
    w.y_channel = index % y_tiles * y_rows, index /= y_tiles;
    w.group = index % groups, index /= groups;
    for (w.kh = 0;; ++w.kh) {
      const int of_phase = (kernel_h - w.kh + kh_step - 1) / kh_step, tiles = (of_phase + taps - 1) / taps;
      if (index < tiles) {
        w.kh += index * taps * kh_step;
        w.taps = of_phase - index * taps < taps ? of_phase - index * taps : taps;
        return w;
      }
      index -= tiles;
    }
  }
  /// A tap of columns, the first of 16 rows of y's tile, and these rows' box.
  struct Unit {
    int kw, row, box;
    bool exists;
  };
  TAPEDECK_HD Unit unit(int index) const {
    const int of_tap = y_rows / kUnitChannels;
    const bool exists = index < units;
    if (!exists) index = 0;
    const int row = index % of_tap * kUnitChannels;
    return {index / of_tap, row, row / (y_rows / y.apart), exists};
  }
  /// The tap of rows of block j of columns of sums.
  TAPEDECK_HD int row_tap(int j) const { return taps - 1 - j; }

  /// The steps of a thread block: items split, split + splits, ...; each is a strip and a band of rows of y,
  /// neighbours being neighbouring strips, which share cache lines. Before come the rows of x that the first
  /// row of y meets, without a row of y.
  int columns_of_rows() const { return n * phases * strips; }
  std::int64_t items() const { return std::int64_t{columns_of_rows()} * bands; }
  class Steps {
   public:
    TAPEDECK_HD Steps(const RowGradPlan& plan, int kh, int split)
        : plan_(plan), first_(kh * plan.dilation_h - plan.padding_h), item_(split) {
      begin();
    }
    TAPEDECK_HD bool exist() const { return image < plan_.n; }
    TAPEDECK_HD void next() {
      if (++q_ < end_) return;
      item_ += plan_.splits;
      begin();
    }
    /// Of x; one outside of [0, height) is of zeros.
    TAPEDECK_HD int x_row() const { return phase_ + plan_.x_step * q_; }
    TAPEDECK_HD bool x_exists() const { return q_ >= 0 && x_row() < plan_.x.height; }
    /// Whether the step multiplies, and y's row.
    TAPEDECK_HD int y_row() const { return x_row() * plan_.stride_h + first_; }
    TAPEDECK_HD bool y_exists() const { return q_ >= begin_ && y_row() >= 0 && y_row() < plan_.y.height; }

    int image, column;  // of x, the strip's first

   private:
    TAPEDECK_HD void begin() {
      int i = item_;
      column = i % plan_.strips * kRowPixels, i /= plan_.strips;
      begin_ = i % plan_.bands * plan_.band_rows, i /= plan_.bands;
      phase_ = i % plan_.phases, image = i / plan_.phases;
      end_ = begin_ + plan_.band_rows < plan_.rows ? begin_ + plan_.band_rows : plan_.rows;
      q_ = begin_ - (plan_.taps - 1);
    }

    const RowGradPlan& plan_;
    int first_, item_, q_, begin_, end_, phase_;
  };

  /// From a box's row of y's tile to the pixel that meets the strip's first through a kw: beyond its first.
  TAPEDECK_HD int shift(const Steps& at, const Unit& unit) const {
    return RowBoxes::beyond(y.first(unit.box, at.y_row(), at.column - padding_w)) + unit.kw * dilation_w;
  }
  /// Pixels of a strip whose products count, for a kw.
  TAPEDECK_HD int first_pixel(int column, int kw) const {
    const int outside = padding_w - kw * dilation_w - column;
    return outside > 0 ? outside : 0;
  }
  TAPEDECK_HD int past_pixel(int column, int kw) const {
    const int of_x = x.width - column, of_y = y.width + padding_w - kw * dilation_w - column;
    const int most = of_x < of_y ? of_x : of_y;
    return most < kRowPixels ? most : kRowPixels;
  }

  /// Parts of sums.
  int sums() const { return splits * parts; }

  /// About how many clocks the layer takes: an H200 took 1.2 to 1.8 times what is counted (26 layers in
  /// bfloat16).
  double clocks() const {
    constexpr double kTaken = 1.45;
    const double steps = static_cast<double>(count(items(), splits)) * (band_rows + 0.5 * (taps - 1) + 1),
                 turns = static_cast<double>(count(works() * splits, 132));
    const double sum_bytes = 8.0 * static_cast<double>(sums()) * groups * ci * co * kernel_h * kernel_w;
    return kTaken * (turns * steps * step_clocks() + sum_bytes / 1700 + 6000);
  }

  bool are_float = false;
  int n = 0, groups = 1, ci = 0, co = 0;  // channels of a group
  RowBoxes x, y;  // x's rows are multiples of 16 bytes: its boxes are of all channels, not flat
  int kernel_h = 1, kernel_w = 1, stride_h = 1, padding_h = 0, padding_w = 0, dilation_h = 1, dilation_w = 1;
  int x_step = 1, phases = 1, kh_step = 1, taps = 1, kh_tiles = 0;  // phases of x's rows that have some
  int x_rows = 64, x_tiles = 1, y_rows = 64, y_tiles = 1, y_columns = 72;  // of a tile: channels; of y's box
  int y_box_bytes = 0, y_box_step = 0, y_bytes = 0;  // of a box, from one to the next, of all
  int units = 0, unit_tiles = 1;
  int warpgroups = 0, parts = 1;  // a power of two: parts of a thread block take turns at steps
  int strips = 1, rows = 0, bands = 0, band_rows = 0, splits = 1;
  int stages = 0, float_slots = 0;

 private:
  /// Of a step: what takes longest of tensor cores, shared memory, and what is brought, of which the second
  /// work is in the cache; of float32 also its three warps that make halves (an H200's kb57 and kb71).
  double step_clocks() const {
    const double halves = x_bytes() + y_bytes, brought = are_float ? 2 * halves : halves,
                 tensor = warpgroups * 2.0 * columns(),
                 shared = warpgroups * (columns() + 100.0) + (are_float ? 2.5 : 1) * brought / 128,
                 memory = brought / (unit_tiles * x_tiles * y_tiles * kh_tiles > 1 ? 22 : 18),
                 converted = are_float ? 470 + 0.085 * halves : 0;
    return std::max({tensor * 1.1, shared * 1.1, memory, converted}) + 20;
  }
  /// Whether rings of tiles fit. A part holds back one stage for each part.
  bool set_stages() {
    const int twice = 2 * (taps - 1);  // rows of x beyond
    for (float_slots = are_float ? kMostFloatSlots : 0;; --float_slots) {
      const int left = kMostRowBytes - twice * x_bytes() - float_slots * floats_bytes();
      stages = std::min(kMostRowStages, left / (x_bytes() + y_bytes));
      if (stages >= parts + 3) return true;
      stages = 0;
      if (float_slots <= 2) return false;
    }
  }
  static int narrow(std::int64_t i) { return static_cast<int>(i); }
  static int ceil_div(int a, int b) { return (a + b - 1) / b; }
};

inline RowGradPlan best_row_plan(const ConvTranspose2dGeometry& g, bool are_float = false) {
  return fits(g) ? RowGradPlan(g, are_float) : RowGradPlan();
}
/// The plan of a layer, without stages if there is none.
inline const RowGradPlan& row_grad_plan(const ConvTranspose2dGeometry& g, bool are_float = false) {
  return remembered(ConvQuestion(g, are_float), [&] { return best_row_plan(g, are_float); });
}

}  // namespace tapedeck::conv_gemm
