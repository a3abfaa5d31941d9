// Layers of few channels as layers of more: neighbouring columns of an image are taken for one, which has the
// channels of all of them.
//
// Tensor cores multiply blocks of 64 channels, of which a layer with 32 uses half, and its weight's gradient
// a quarter. With two columns of each image as one, and weights that are zero where a column of the pair does
// not see the other one's, blocks are full:
//
//   x, 3 taps:    a b c d e f           columns of pairs, 2 taps:   ab cd ef
//   y[2j]     sees x[2j-2 .. 2j]        y[2j, 2j+1] sees x of pairs j - 1 and j
//   y[2j + 1] sees x[2j-1 .. 2j+1]
//
// so 32 to 32 channels and 3 taps are 64 x 64 x 2 products for two columns, of which a quarter is with zeros;
// unfolded they are 2 x 64 x 32 x 3, of the weight's gradient 2 x 64 x 64 x 3. Where y steps over its columns
// (stride 2), its two phases are such a pair, and x has its own columns. Channels last, a folded image is
// what lies in memory. (Space to depth, of columns only.)
//
// Products with zeros change nothing but where there are infinities or NaN: columns that are one with those
// that see them become NaN, too, and with dilation those between. (Weights' gradients have no such products.)
//
// On an H200, against the same kernels unfolded, in bfloat16 with the channels last: 32 to 32 channels, 3x3
// (kb71), forward 0.7 to 0.8 of the time, the weight's gradient 0.45; 3x7 (kb78) 0.56 and 0.45; 16 to 16
// channels, 5x5, 0.41 and 0.25. In nchw copies remain: 0.73 and 0.73, 0.73 and 0.60, 0.66 and 0.55.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::conv_gemm {

/// How many columns of x and of y are one, and which of the kernel's taps meet.
struct Fold {
  Fold() = default;
  /// Of y so many times as many as of x as y has columns.
  Fold(const ConvAxis& w, int of_x)
      : x(of_x),
        y(of_x * static_cast<int>(w.stride)),
        stride(static_cast<int>(w.stride)),
        dilation(static_cast<int>(w.dilation)),
        padding(static_cast<int>(w.padding)),
        kernel(static_cast<int>(w.kernel)) {
    int least = std::numeric_limits<int>::max(), most = std::numeric_limits<int>::min();
    for (int k = 0; k < kernel; ++k)
      for (int e = 0; e < y; ++e)
        for (int f = 0; f < x; ++f) {
          const int from = k * dilation - padding - e + stride * f;
          if (from % y == 0) least = std::min(least, from / y), most = std::max(most, from / y);
        }
    before = -least, taps = most - least + 1;
  }

  bool exists() const { return y > 1; }
  /// Which of the kernel's taps takes column f of x's to column e of y's at a folded tap; -1 if none does.
  TAPEDECK_HD int tap_of(int folded, int e, int f) const {
    const int at = y * (folded - before) + e - stride * f + padding;
    if (at < 0 || at % dilation != 0) return -1;
    return at / dilation < kernel ? at / dilation : -1;
  }
  /// The folded tap at which the kernel's tap k does; -1 if there is none.
  TAPEDECK_HD int folded_tap(int k, int e, int f) const {
    const int from = k * dilation - padding - e + stride * f + before * y;
    return from % y == 0 ? from / y : -1;
  }
  /// Of the columns of x (of y if not `transposed`) that are one, those from `first` to before `second` are
  /// seen at a folded tap, all others are not; {all, 0}: none is.
  std::pair<int, int> seen(int folded, bool transposed) const {
    const int all = transposed ? x : y;
    std::pair<int, int> range{all, 0};
    for (int e = 0; e < y; ++e)
      for (int f = 0; f < x; ++f) {
        if (tap_of(folded, e, f) < 0) continue;
        const int column = transposed ? f : e;
        range = {std::min(range.first, column), std::max(range.second, column + 1)};
      }
    return range;
  }
  /// The layer of folded images.
  ConvTranspose2dGeometry of(ConvTranspose2dGeometry g) const {
    if (!exists()) return g;
    g.ci *= x, g.co *= y;
    g.w = {g.w.in / x, g.w.out / y, taps, 1, before, 1};
    return g;
  }

  int x = 1, y = 1;
  int stride = 1, dilation = 1, padding = 0, kernel = 1;
  int before = 0, taps = 1;  // of the folded axis: its padding and its kernel
};

/// Calls f with the folds that a layer's columns allow, of elements of so many bytes.
template <class F>
void for_folds(const ConvTranspose2dGeometry& g, int element_bytes, const F& f) {
  constexpr int kMostChannels = 128, kMostColumns = 4;
  const std::int64_t vector = 16 / element_bytes;
  if (g.groups != 1 || g.ci % vector != 0 || g.co % vector != 0 || g.w.stride > kMostColumns) return;
  if (g.w.kernel > 64 || g.w.dilation > 8 || g.w.padding > 512) return;
  for (int x = 1; x * g.w.stride <= kMostColumns; x *= 2) {
    const std::int64_t y = x * g.w.stride;
    if ((y != 2 && y != 4) || g.w.in % x != 0 || g.w.out % y != 0) continue;
    if (g.ci * x > kMostChannels || g.co * y > kMostChannels) continue;
    f(Fold(g.w, x));
  }
}

}  // namespace tapedeck::conv_gemm
