// Tiles of layers whose y has few channels (thin_products.cu). Host arithmetic, of an H100's sizes: results
// do not depend on the device. Rows of a tile are chosen by what blocks of threads cost, roughly counted in
// instructions, and how many a multiprocessor has in turn.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_thin {

using conv_gemm::Divider;

inline constexpr int kMostChannels = 4;            // of y
inline constexpr int kMostProducts = 80;           // of a pixel of x: channels of y times taps
inline constexpr int kMostRegionBytes = 50 << 10;  // of y, where tiles of one row have no more
inline constexpr int kMultiprocessors = 132;       // that should have work

enum class ThinPass { transposed, plain, weight };

/// The taps that outputs of a phase read: k, and every tap_step-th after it, or none if k is the kernel's
/// size. Of output q * stride + phase - padding the first one's pixel of x is q + i; each next one's is
/// tap_back before it.
struct TapsOfPhase {
  int k, i;
};

/// A line of a region of y: its row, and where in y it begins, from that of the first line.
struct RegionLine {
  int row, offset;
};

/// An axis of a tile, and of the region of the other image that it meets, or of z.
struct ThinAxis {
  int stride, padding, dilation, kernel, x, y;  // as in ConvAxis
  int tap_step, tap_back;                       // see TapsOfPhase
  Divider by_stride;
  int size = 1, tiles = 1, region = 1;  // of a tile, how many, and of its region
  int band = 1;                         // of a tile of x, that is multiplied at once
  int align = 1;                        // of where regions of x begin, and of their sizes: a power of two

  explicit ThinAxis(const ConvAxis& a)
      : stride(static_cast<int>(a.stride)),
        padding(static_cast<int>(a.padding)),
        dilation(static_cast<int>(a.dilation)),
        kernel(static_cast<int>(a.kernel)),
        x(static_cast<int>(a.in)),
        y(static_cast<int>(a.out)),
        tap_step(stride / std::gcd(stride, dilation)),
        tap_back(dilation / std::gcd(stride, dilation)),
        by_stride(stride) {}
  TAPEDECK_HD TapsOfPhase taps_of(int phase) const {
    for (int k = 0; k < kernel; ++k)
      if ((phase - k * dilation) % stride == 0) return {k, (phase - k * dilation) / stride};
    return {kernel, 0};
  }

  /// Tiles of so many outputs; region: the most of x that one reads, from x_begin(its first) on.
  void cut_y(int of_tile) {
    size = of_tile, tiles = (y + size - 1) / size, region = align;
    for (int t = 0; t < tiles; ++t) {
      const int last = std::min(y, (t + 1) * size) - 1,
                read = std::min(x, (last + padding) / stride + 1) - x_begin(t * size);
      region = std::max(region, (read + align - 1) / align * align);
    }
  }
  /// The first position of x that outputs from `first` on read, or 0.
  TAPEDECK_HD int x_begin(int first) const {
    const int at = first + padding - (kernel - 1) * dilation;
    return at <= 0 ? 0 : by_stride.divide(at + stride - 1) & -align;
  }

  /// Parts of so many positions of x, multiplied in bands of so many. A part begins halo() positions early,
  /// as its outputs read those. region: what of x there is at once.
  void cut_bands(int of_part, int of_band) {
    size = of_part, tiles = (x + size - 1) / size, band = of_band, region = std::min(band + halo(), x);
  }
  TAPEDECK_HD int halo() const { return (kernel - 1) * dilation / stride; }
  /// The outputs before this one read no position of x from `end` on.
  TAPEDECK_HD int outputs_before(int end) const {
    const int outputs = end * stride - padding;
    return end >= x ? y : outputs <= 0 ? 0 : outputs < y ? outputs : y;
  }

  /// Tiles of so many positions of x, and what of y they meet, from position t * size * stride - padding on.
  void cut_x(int of_tile) {
    size = of_tile, tiles = (x + size - 1) / size;
    region = (size - 1) * stride + (kernel - 1) * dilation + 1;
  }
};

inline constexpr int kThinWarps = 4;    // of a thread block
inline constexpr int kThinPixels = 32;  // of x, that a warp multiplies at a time
inline constexpr int kMostSharedBytes = 225 << 10;

/// Steps of a thread's own ring of vectors, of so many bytes a step.
TAPEDECK_HD constexpr int ring_steps(int step_bytes) {
  return step_bytes >= 128 ? 2 : 3;
}

/// Thread blocks that a multiprocessor has registers for: of operands of so many parts, and so many steps of
/// products that a plain one gathers (else 0).
TAPEDECK_HD constexpr int blocks_of_registers(ThinPass pass, int operand_parts, int steps) {
  return pass == ThinPass::weight || operand_parts == 2 || steps > 6 ? 3 : 4;
}

struct ThinPlan {
  ThinPlan(const ConvTranspose2dGeometry& g, ThinPass of_pass, Layout layout, int of_element, int of_operand)
      : pass(of_pass),
        last(layout == Layout::nhwc),
        element_bytes(of_element),
        operand_parts(of_operand),
        n(static_cast<int>(g.n)),
        ci(static_cast<int>(g.ci)),
        co(static_cast<int>(g.co)),
        taps(static_cast<int>(g.h.kernel * g.w.kernel)),
        products(co * taps),
        by_words(!last && g.w.in % (of_pass == ThinPass::transposed ? 4 : 16 / of_element) != 0),
        h(g.h),
        w(g.w) {
    const int vector = 16 / element_bytes, word = 4 / element_bytes, sixteens = (products + 15) / 16;
    const auto shares = static_cast<int>((g.w.in + 63) / 64);  // of a row
    if (pass == ThinPass::transposed) {
      at_once = sixteens % 3 == 0 ? 3 : sixteens % 2 == 0 ? 2 : sixteens == 1 ? 1 : 3;
      padded_products = up(sixteens, at_once) * 16;
      channels = up(ci, last ? 4 * vector : 8 * word);
      w.align = last ? 2 : 4;
      w.cut_y(up((w.y + shares - 1) / shares, w.stride));
      cut_bands();
    } else if (pass == ThinPass::plain) {
      const int unit = 2 / word, steps = (products + 8 * word - 1) / (8 * word),
                units = (steps + unit - 1) / unit;
      at_once = (units <= 3 ? units : 5) * unit;
      padded_products = at_once * 8 * word;
      channels = up(ci, last ? 4 * vector : 16);
      w.cut_x(up((w.x + shares - 1) / shares, last ? 4 : vector));
      cut_tiles(kThinPixels);
    } else {
      at_once = sixteens <= 3 ? sixteens : sixteens == 4 ? 2 : 3;
      w.cut_x(up((w.x + shares - 1) / shares, last ? 4 : vector));
      cut_tiles(last ? 8 * word : 4 * vector);
    }
    by_tiles_w = Divider(w.tiles), by_tiles_h = Divider(h.tiles), by_co = Divider(co);
  }
  TAPEDECK_HD int weight_bytes() const { return operand_parts * channels * padded_products * element_bytes; }
  int sum_bytes() const { return products * sum_pitch * 4; }
  /// Outputs' rows that a band completes, at most; and of how many of its rows' taps each is the sum.
  TAPEDECK_HD int rows_at_once() const {
    const int after = h.y + h.padding - h.x * h.stride;
    return h.band * h.stride + (after > 0 ? after : 0);
  }
  TAPEDECK_HD int most_taps() const { return (h.kernel + h.tap_step - 1) / h.tap_step; }
  /// Of a tile's region of y, and of what is known of its lines.
  int region_bytes() const {
    return co * h.region * w.region * element_bytes + lines() * static_cast<int>(sizeof(RegionLine));
  }
  TAPEDECK_HD int lines() const { return h.region * (last ? 1 : co); }
  /// Threads' rings.
  int ring_bytes() const {
    const int of_step = pass == ThinPass::plain        ? 0
                        : pass == ThinPass::transposed ? last ? 64 : 32
                        : last                         ? 128 / element_bytes
                                                       : 256 / element_bytes;
    return kThinWarps * 32 * of_step * ring_steps(of_step);
  }

  std::int64_t tiles() const { return std::int64_t{n} * h.tiles * w.tiles; }
  /// Thread blocks that fit a multiprocessor; and that go through all tiles.
  int fit() const {
    return std::max(
        1, std::min(blocks_of_registers(pass, operand_parts, at_once), (228 << 10) / (shared_bytes + 1024)));
  }
  std::int64_t blocks() const {
    if (pass != ThinPass::weight)
      return std::min<std::int64_t>(tiles(), std::int64_t{kMultiprocessors} * fit());
    // Each has sums of its own; so many have the same tiles, and other channels or products.
    const int others =
        up(ci, 128 / element_bytes) / (128 / element_bytes) * (up(products, at_once * 16) / (at_once * 16));
    return std::clamp<std::int64_t>(kMultiprocessors * fit() / others, 1, tiles());
  }

  /// How long a multiprocessor has its blocks of a tile each, in the time that one takes beside as many
  /// others as keep it busy.
  double waves() const {
    const int most = blocks_of_registers(pass, operand_parts, at_once);
    const auto all = static_cast<int>((tiles() + kMultiprocessors - 1) / kMultiprocessors);
    const int together = std::min(fit(), all), rest = all % together;
    const auto wave = [&](int of) { return of == 0 ? 0 : std::max(1.0, of / static_cast<double>(most)); };
    return all / together * wave(together) + wave(rest);
  }

  ThinPass pass;
  bool last;  // channels
  int element_bytes, operand_parts;
  int n, ci, co, taps, products;
  bool by_words;  // in nchw rows of x are no whole vectors, and 4 bytes are copied, or written, at a time
  ThinAxis h, w;
  Divider by_tiles_w, by_tiles_h, by_co;
  int at_once = 1;                        // times 16 products; plain: steps of products
  int padded_products = 0, channels = 0;  // of weights in shared memory: both padded
  int sum_pitch = 0;                      // from one product's sums to the next's
  int shared_bytes = 0;                   // of a thread block

 private:
  static int up(int size, int unit) { return (size + unit - 1) / unit * unit; }

  /// Rows of a part and of a band, such that it takes the least time.
  void cut_bands() {
    constexpr int kTurn = kThinWarps * kThinPixels;
    double least = 0;
    int of_part = h.x, of_band = 1;
    const auto cut = [&](int part, int band) {
      h.cut_bands(part, band);
      // Stores of four pixels, or channels last of two, of eight products meet all banks.
      const int pixels = h.region * w.region;
      sum_pitch = last ? up(pixels - 8, 32) + 8 : up(pixels - 4, 8) + 4;
      shared_bytes = ring_bytes() + weight_bytes() + sum_bytes() +
                     (h.stride + w.size) * static_cast<int>(sizeof(TapsOfPhase)) +
                     rows_at_once() * (most_taps() + 1) * static_cast<int>(sizeof(int));
    };
    for (int number = 1; number <= std::min(h.x, 256); ++number) {
      const int part = (h.x + number - 1) / number, rows = part + (number > 1 ? h.halo() : 0);
      for (int band = 1; band <= rows && (band == 1 || band * w.region <= 2 * kTurn); ++band) {
        cut(part, band);
        if (shared_bytes > kMostSharedBytes) break;
        const int bands = (rows + band - 1) / band, turns = (band * w.region + kTurn - 1) / kTurn;
        // What turns, bands and parts cost a block, and its warps' 32 results at a time.
        const double of_turn = operand_parts == 2   ? 1.0
                               : element_bytes == 4 ? 0.55
                                                    : 0.3,
                     results = 0.02 * part * h.stride * up(w.size, 32) / 32,
                     time = (bands * (turns * of_turn + 0.2) + results + 0.6) * waves();
        if (least == 0 || time < least) least = time, of_part = part, of_band = band;
      }
    }
    cut(of_part, of_band);
  }
  /// Rows of a tile of x, of which a warp has so many pixels at a time.
  void cut_tiles(int of_warp) {
    double least = 0;
    int best = 1;
    const auto cut = [&](int rows) {
      h.cut_x(rows);
      const int sums = pass == ThinPass::weight ? kThinWarps * (128 / element_bytes) * (at_once * 16 + 1) *
                                                      static_cast<int>(sizeof(float))
                                                : 0;
      shared_bytes = std::max(ring_bytes() + weight_bytes() + region_bytes(), sums);
    };
    for (int rows = 1; rows <= h.x; ++rows) {
      cut(rows);
      if (rows > 1 && (rows * w.size > 1024 || region_bytes() > kMostRegionBytes)) break;
      // What turns cost a block, and lines, which tiles of few rows have in common with their neighbours.
      const double cost = up(rows * w.size, kThinWarps * of_warp) / 128.0 + 0.3 + 0.02 * lines();
      const std::int64_t each = (tiles() + blocks() - 1) / blocks();
      const double time = cost * (pass == ThinPass::weight ? static_cast<double>(each) : waves());
      if (least == 0 || time < least) least = time, best = rows;
    }
    cut(best);
  }
};

/// The plan, if thin kernels can compute a call on tensors of this layout. Layers for which others were found
/// faster (H200) are left to these: much weight, which each thread block loads.
inline std::optional<ThinPlan> thin_plan(const ConvTranspose2dGeometry& g, ThinPass pass, Layout layout,
                                         int element_bytes, int operand_parts) {
  const bool last = layout == Layout::nhwc;
  if (g.groups != 1 || g.co > kMostChannels || g.ci < 16 || g.n == 0 || !conv_gemm::fits(g)) return {};
  if (g.h.in * g.w.in == 0 || g.h.out * g.w.out == 0) return {};
  if (last && g.ci * element_bytes % 16 != 0) return {};
  // By words float32's forward and input gradient mostly take longer than others.
  if (!last && g.w.in * element_bytes % (element_bytes == 4 && pass != ThinPass::weight ? 16 : 4) != 0)
    return {};
  const std::int64_t products = g.co * g.h.kernel * g.w.kernel, bytes = g.ci * products * element_bytes;
  if (products > kMostProducts || bytes > (pass == ThinPass::weight ? 32 : 24) << 10) return {};
  // What a pixel meets of y; sizes of tiles are then far from overflowing.
  const auto reach = [](const ConvAxis& a) { return (a.kernel - 1) * a.dilation + 1; };
  if (reach(g.h) > kMostRegionBytes || reach(g.w) > kMostRegionBytes ||
      reach(g.h) * reach(g.w) > kMostRegionBytes)
    return {};
  const ThinPlan plan(g, pass, layout, element_bytes, operand_parts);
  const bool fits = plan.shared_bytes <= kMostSharedBytes;
  return fits && plan.tiles() < (std::int64_t{1} << 30) ? std::optional(plan) : std::nullopt;
}

}  // namespace tapedeck::conv_thin
