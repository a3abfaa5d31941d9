// Tiles of layers whose y has few channels (thin_products.cu). Host arithmetic, of an H100's sizes: results
// do not depend on the device.
#pragma once

#include <algorithm>
#include <optional>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_thin {

using conv_gemm::Divider;

inline constexpr int kMostChannels = 4;           // of y
inline constexpr int kMostProducts = 80;          // of a pixel of x: channels of y times taps
inline constexpr int kMostTileBytes = 100 << 10;  // of shared memory
inline constexpr int kGoodTileBytes = 52 << 10;   // such that several blocks fit a multiprocessor
inline constexpr int kBlocks = 264;               // of threads, that should have work

enum class ThinPass { transposed, plain, weight };

/// An axis of a tile of results, and of the region of the other image that it meets, which begins at
/// begin_of().
struct ThinAxis {
  int stride, padding, dilation, kernel, x, y;  // as in ConvAxis
  int size = 1, tiles = 1, region = 1;          // of a tile, how many, and of its region
  int align = 1;                                // of where regions of x begin

  explicit ThinAxis(const ConvAxis& a)
      : stride(static_cast<int>(a.stride)),
        padding(static_cast<int>(a.padding)),
        dilation(static_cast<int>(a.dilation)),
        kernel(static_cast<int>(a.kernel)),
        x(static_cast<int>(a.in)),
        y(static_cast<int>(a.out)) {}
  ThinAxis() = default;

  /// The first position of x that outputs from `first` on read, or 0.
  TAPEDECK_HD int x_begin(int first) const {
    const int at = first + padding - (kernel - 1) * dilation;
    return at <= 0 ? 0 : (at + stride - 1) / stride / align * align;
  }
  /// One after the last one that outputs to `last` read.
  TAPEDECK_HD int x_end(int last) const {
    const int at = (last + padding) / stride + 1;
    return at < x ? at : x;
  }
  /// Tiles of so many outputs, and the most of x that one reads.
  void cut_y(int of_tile) {
    size = of_tile, tiles = (y + size - 1) / size, region = align;
    for (int t = 0; t < tiles; ++t) {
      const int read = x_end(std::min(y, (t + 1) * size) - 1) - x_begin(t * size);
      region = std::max(region, (read + align - 1) / align * align);
    }
  }
  /// Tiles of so many positions of x, and what of y they meet, from position t * size * stride - padding on.
  void cut_x(int of_tile) {
    size = of_tile, tiles = (x + size - 1) / size;
    region = (size - 1) * stride + (kernel - 1) * dilation + 1;
  }
};

inline constexpr int kThinWarps = 4;     // of a thread block
inline constexpr int kSumProducts = 48;  // of a thread block that sums the weight's gradient
inline constexpr int kTapsBytes = 16;    // of what is known of an output's taps
inline constexpr int kMostSharedBytes = 225 << 10;

/// Weights in shared memory have rows of products' channels, or of channels' products, a pitch apart that is
/// so many words more than a multiple of 32: eight rows of four threads' words meet all banks.
struct ThinPlan {
  ThinPlan(const ConvTranspose2dGeometry& g, ThinPass pass, Layout layout, int element_bytes)
      : n(static_cast<int>(g.n)),
        ci(static_cast<int>(g.ci)),
        co(static_cast<int>(g.co)),
        taps(static_cast<int>(g.h.kernel * g.w.kernel)),
        products(co * taps),
        h(g.h),
        w(g.w) {
    const bool last = layout == Layout::nhwc;
    const int vector = 16 / element_bytes, word = 4 / element_bytes;
    const auto shares = static_cast<int>((g.w.in + 63) / 64);  // of a row
    // Tiles of few rows read their neighbours' rows, too.
    const auto enough = [&](int blocks) { return tiles() >= blocks; };
    if (pass == ThinPass::transposed) {
      if (!last) w.align = vector;
      w.cut_y(up((w.y + shares - 1) / shares, w.stride));
      for (int rows = 32; rows > 0; rows = rows * 3 / 4) {
        h.cut_y(std::min(h.y, rows * h.stride));
        const bool fits = tile_bytes() <= kMostTileBytes;
        if (fits && (rows <= 3 || (tile_bytes() <= kGoodTileBytes && enough(kBlocks)))) break;
      }
      const int tiles = (products + 15) / 16;
      at_once = tiles % 3 == 0 ? 3 : tiles % 2 == 0 ? 2 : tiles == 1 ? 1 : 3;
      padded_products = up(tiles, at_once) * 16;
      channels = up(ci, last ? 4 * vector : 8 * word);
      weight_pitch = pitch_of(channels, last ? 16 : 8, word);
      shared_bytes =
          padded_products * weight_pitch * element_bytes + tile_bytes() + (h.size + w.size) * kTapsBytes;
    } else {
      w.cut_x(up((w.x + shares - 1) / shares, last ? 4 : vector));
      for (int rows = 32; rows > 0; rows = rows * 3 / 4) {
        h.cut_x(std::min(h.x, rows));
        if (h.size * w.size <= 1024 && region_bytes(element_bytes) <= kMostTileBytes / 2 &&
            (rows <= 3 || enough(3 * kBlocks)))
          break;
      }
      const int unit = 2 / word, steps = (products + 8 * word - 1) / (8 * word),
                units = (steps + unit - 1) / unit;
      at_once = (units <= 3 ? units : 5) * unit;
      padded_products = at_once * 8 * word;
      channels = up(ci, 32);
      weight_pitch = pitch_of(padded_products, 8, word);
      shared_bytes = pass == ThinPass::plain
                         ? channels * weight_pitch * element_bytes + region_bytes(element_bytes)
                         : std::max(region_bytes(element_bytes),
                                    kThinWarps * (128 / element_bytes) * (kSumProducts + 1) * 4);
    }
    by_tiles_w = Divider(w.tiles), by_tiles_h = Divider(h.tiles), by_co = Divider(co);
  }
  /// Pixels of x that a tile multiplies, in blocks of 64; and from one product's sums to the next's.
  TAPEDECK_HD int pixels() const { return (h.region * w.region + 63) / 64 * 64; }
  TAPEDECK_HD int sum_pitch() const { return pixels() + 8; }
  int tile_bytes() const { return products * sum_pitch() * 4; }
  /// Of a tile's region of y.
  int region_bytes(int element_bytes) const { return co * h.region * w.region * element_bytes; }
  std::int64_t tiles() const { return std::int64_t{n} * h.tiles * w.tiles; }

  int n, ci, co, taps, products;
  ThinAxis h, w;
  Divider by_tiles_w, by_tiles_h, by_co;
  int at_once = 1;                         // transposed: times 16 products; plain: steps of products
  int padded_products = 0, channels = 0;   // of weights in shared memory: both padded
  int weight_pitch = 0, shared_bytes = 0;  // in elements; of a thread block

 private:
  static int up(int size, int unit) { return (size + unit - 1) / unit * unit; }
  static int pitch_of(int least, int rest, int of_word) {
    const int words = (least + of_word - 1) / of_word;
    return (up(words - rest, 32) + rest) * of_word;
  }
};

/// The plan, if thin kernels can compute a call on tensors of this layout. Layers for which others were found
/// faster (H200) are left to these: much weight, which each thread block loads; wide rows of nchw, of whose
/// tiles each reads its neighbours' vectors.
inline std::optional<ThinPlan> thin_plan(const ConvTranspose2dGeometry& g, ThinPass pass, Layout layout,
                                         int element_bytes) {
  const bool last = layout == Layout::nhwc, transposed = pass == ThinPass::transposed,
             weight = pass == ThinPass::weight;
  const int vector = 16 / element_bytes;
  if (g.groups != 1 || g.co > kMostChannels || g.ci < 16 || g.n == 0 || !conv_gemm::fits(g)) return {};
  if (g.h.in * g.w.in == 0 || g.h.out * g.w.out == 0 || (last ? g.ci : g.w.in) % vector != 0) return {};
  const std::int64_t products = g.co * g.h.kernel * g.w.kernel, bytes = g.ci * products * element_bytes;
  if (products > kMostProducts || bytes > (weight ? 32 : 24) << 10) return {};
  if (element_bytes == 4) {
    if (!last || (weight && products > 48) || (transposed && (products > 48 || g.ci > 64))) return {};
  } else if (!last && (weight || (transposed && g.w.in > 256))) {
    return {};
  }
  const ThinPlan plan(g, pass, layout, element_bytes);
  const bool fits = plan.shared_bytes <= kMostSharedBytes &&
                    (transposed ? plan.tile_bytes() : plan.region_bytes(element_bytes)) <= kMostTileBytes;
  return fits && plan.tiles() < (std::int64_t{1} << 31) ? std::optional(plan) : std::nullopt;
}

}  // namespace tapedeck::conv_thin
