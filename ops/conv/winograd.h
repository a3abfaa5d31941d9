// Minimal filtering: two neighbouring results of a correlation with r taps by r + 1 products instead of 2r.
//
//   y[a] = sum over u < r of x[a + u] * w[u] for a < 2   is   y = output(input(x) * weight(w)),
//
// the product taken point by point, with linear maps that only add, subtract and halve:
//
//   r   points of x                             points of w                              y
//   1   x0, x1                                  w0, w0                                   m0, m1
//   2   x0-x1, x1, x2-x1                        w0, w0+w1, w1                            m0+m1, m1+m2
//   3   x0-x2, x1+x2, x2-x1, x3-x1              w0, (w0+w1+w2)/2, (w0-w1+w2)/2, w2       m0+m1+m2, m1-m2+m3
//
// (S. Winograd, Arithmetic Complexity of Computations, 1980; for convolutional layers A. Lavin and S. Gray,
// arXiv:1509.09308.) On two axes the maps are applied along each, so that 16 products of a 2x2 tile with 2x2
// taps become 9. The adjoint maps give the gradient of w: weight_adjoint(input(x) * output_adjoint(y)),
// summed over tiles before the last map.
//
// A phase of a transposed convolution is such a correlation, and the plain direction is a sum of one for each
// phase of what it reads; more than 3 taps are split into such sums, too. Where these have unlike numbers of
// taps, the points of the fewer (0, 1, -1 and infinity, from which they come) are among those of the more, so
// that all are summed before `output`.
// Since points are differences, an infinity or a NaN may spoil the results of its whole tile, and numbers
// near the largest of the type may overflow sooner.
//
// The channels of a pixel are the lanes of vectors. For each point the products are a matrix product: tiles
// times channels.
#pragma once

#include <algorithm>
#include <vector>

#include <tapedeck/ops/conv/pixels.h>
#include <tapedeck/ops/conv/plan.h>

namespace tapedeck::cpu {

constexpr std::int64_t kMostTaps = 3;     // of a source on an axis
constexpr std::int64_t kMostPoints = 16;  // of a tile and a source on both axes

/// A correlation on one axis: element v of tile j is at position base + (2*j + v)*step of what is read, and
/// meets tap taps[v - a] of the kernel for result a of the tile.
struct WinogradSource {
  std::int64_t base, step;
  std::vector<std::int64_t> taps;

  std::int64_t count() const { return static_cast<std::int64_t>(taps.size()); }
  std::int64_t points() const { return count() + 1; }
};

/// Results that are summed from the same sources: result a of tile j is at base + (2*j + a)*step, for as many
/// as lie below `end`.
struct WinogradPhase {
  std::int64_t base, step, tiles;
  std::vector<WinogradSource> sources;  // none, if no tap reaches the phase

  /// Taps of the source with the most.
  std::int64_t most_taps() const;
};

/// Whether an axis has such phases: if its dilation is 1.
bool is_winograd(const ConvAxis& axis);
std::vector<WinogradPhase> winograd_phases(const ConvAxis& axis, Direction direction);

/// Of a tile's points with `most` taps, the one that is point i of a source with `taps` taps.
constexpr std::int64_t winograd_point(std::int64_t i, std::int64_t taps, std::int64_t most) {
  return i == taps ? most : i;
}

/// The rows, of `height`, that tiles [row, row + rows) of all phases of an axis read and write.
RowRange winograd_reads(const std::vector<WinogradPhase>& phases, std::int64_t height, std::int64_t row,
                        std::int64_t rows);
RowRange winograd_writes(const std::vector<WinogradPhase>& phases, std::int64_t height, std::int64_t row,
                         std::int64_t rows);
/// The most rows that any `rows` rows of tiles read.
std::int64_t winograd_most_reads(const std::vector<WinogradPhase>& phases, std::int64_t height,
                                 std::int64_t rows);

/// Of rows [row, row + rows) of tiles of images, `wide` tiles each, those [first, first + count).
struct WinogradTileRange {
  std::int64_t first, count, row, rows, wide;
};

/// The tiles [begin, end) of an axis, none if begin >= end, whose `elements` from base + 2*tile*step on,
/// `step` apart, are all in [0, size).
RowRange winograd_inside(std::int64_t base, std::int64_t step, std::int64_t elements, std::int64_t size);

/// Calls f(i, image, row, column, tiles) for tile i of those and the ones after it, `tiles` in all, which
/// follow each other in a row and are inside on both axes; for others one by one.
template <class F>
void for_each_stretch(const WinogradTileRange& range, const RowRange& inside_h, const RowRange& inside_w,
                      F f) {
  std::int64_t column = range.first % range.wide, row = range.first / range.wide % range.rows,
               image = range.first / range.wide / range.rows;
  for (std::int64_t i = 0; i < range.count;) {
    const std::int64_t h = range.row + row;
    const bool is_inside =
        h >= inside_h.begin && h < inside_h.end && column >= inside_w.begin && column < inside_w.end;
    const std::int64_t tiles =
        is_inside ? std::min({range.count - i, range.wide - column, inside_w.end - column}) : 1;
    f(i, image, h, column, tiles);
    i += tiles;
    if ((column += tiles) < range.wide) continue;
    column = 0;
    if (++row < range.rows) continue;
    row = 0;
    ++image;
  }
}

/// The products on an axis: of all phases the tiles times points.
std::int64_t winograd_products(const ConvAxis& axis, Direction direction);

}  // namespace tapedeck::cpu
