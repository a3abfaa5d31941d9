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

struct ThinPlan {
  /// Of products with x, which conv_transpose2d makes (`transposed`), or of those with y. `vector`: elements
  /// of 16 bytes.
  ThinPlan(const ConvTranspose2dGeometry& g, bool transposed, Layout layout, int vector)
      : n(static_cast<int>(g.n)),
        ci(static_cast<int>(g.ci)),
        co(static_cast<int>(g.co)),
        taps(static_cast<int>(g.h.kernel * g.w.kernel)),
        products(co * taps),
        h(g.h),
        w(g.w) {
    const bool last = layout == Layout::nhwc;
    const auto up = [](std::int64_t size, int unit) {
      return static_cast<int>((size + unit - 1) / unit * unit);
    };
    const auto shares = static_cast<int>((g.w.in + 63) / 64);  // of a row
    const auto enough = [&](int blocks) { return std::int64_t{n} * h.tiles * w.tiles >= blocks; };
    if (transposed) {
      if (!last) w.align = vector;
      w.cut_y(up((g.w.out + shares - 1) / shares, w.stride));
      h.cut_y(1);
      for (int rows = 32; rows > 0; rows = rows * 3 / 4) {
        h.cut_y(std::min(h.y, rows * h.stride));
        const bool fits = tile_bytes() <= kMostTileBytes;
        if (fits && (rows <= 3 || (tile_bytes() <= kGoodTileBytes && enough(kBlocks)))) break;
      }
    } else {
      w.cut_x(up((g.w.in + shares - 1) / shares, last ? 4 : vector));
      for (int rows = 32; rows > 0; rows = rows * 3 / 4) {
        h.cut_x(std::min(h.x, rows));
        if (h.size * w.size <= 1024 && region_bytes(16 / vector) <= kMostTileBytes / 2 &&
            (rows <= 3 || enough(3 * kBlocks)))
          break;
      }
    }
    by_tiles_w = Divider(w.tiles), by_tiles_h = Divider(h.tiles), by_co = Divider(co);
  }
  /// Pixels of x that a tile multiplies, in blocks of 64; and from one product's sums to the next's.
  TAPEDECK_HD int pixels() const { return (h.region * w.region + 63) / 64 * 64; }
  TAPEDECK_HD int sum_pitch() const { return pixels() + 8; }
  int tile_bytes() const { return products * sum_pitch() * 4; }
  /// Of a tile's region of y.
  TAPEDECK_HD int region_pitch() const { return w.region; }
  TAPEDECK_HD int region_count() const { return co * h.region * region_pitch(); }
  int region_bytes(int element_bytes) const { return region_count() * element_bytes; }
  std::int64_t tiles() const { return std::int64_t{n} * h.tiles * w.tiles; }

  int n, ci, co, taps, products;
  ThinAxis h, w;
  Divider by_tiles_w, by_tiles_h, by_co;
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
  const ThinPlan plan(g, transposed, layout, vector);
  const bool fits =
      transposed ? plan.tile_bytes() <= kMostTileBytes : plan.region_bytes(element_bytes) <= kMostTileBytes;
  return fits && plan.tiles() < (std::int64_t{1} << 31) ? std::optional(plan) : std::nullopt;
}

}  // namespace tapedeck::conv_thin
