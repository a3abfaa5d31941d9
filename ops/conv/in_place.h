// nchw tensors whose y is read where it lies: how channels and columns of x are the lanes of vectors.
//
// An element of y meets a vector of x's channels of a pixel (or of their weights) at once: it is broadcast,
// so nothing of y is copied, split into phases or transposed, whatever the stride. That is for layers whose y
// is much larger than their x.
//
// Groups of few channels do not fill a vector. Where taps overlap along w (kernel > stride) and have dilation
// 1, `columns` neighbouring pixels of x do: with ow = i*stride - padding + k, an element of y that pixel i
// meets by tap k is met by pixel i - 1 by tap k + stride. So place m, of the pixels m - columns + 1 to m, has
// `taps` taps r, and there pixel m - columns + 1 + j takes tap r + (columns - 1 - j)*stride, if the kernel
// has it.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv_transpose2d_geometry.h>
#include <tapedeck/ops/micro/kernels.h>

namespace tapedeck::cpu {

struct FoldedAxis {
  /// For groups of so many channels of x.
  FoldedAxis(const ConvAxis& w, std::int64_t channels, std::int64_t lanes) : of(w), axis(w) {
    width = (channels + lanes - 1) / lanes * lanes;
    if (w.dilation > 1 || w.kernel <= w.stride) return;
    for (std::int64_t q = 2; q * channels <= lanes; ++q) {  // what saves taps; all take one vector
      const std::int64_t taps = std::max(w.stride, w.kernel - (q - 1) * w.stride);
      if (taps >= axis.kernel) continue;
      columns = q;
      axis.kernel = taps;
    }
    axis.in = w.in + columns - 1;
  }

  /// The tap of the place's pixel j at place tap r, or -1.
  std::int64_t tap(std::int64_t r, std::int64_t j) const {
    const std::int64_t k = r + (columns - 1 - j) * of.stride;
    // Taps beyond the stride are the first pixel's, or others would take them twice.
    return k < of.kernel && (columns == 1 || j == 0 || r < of.stride) ? k : -1;
  }

  ConvAxis of, axis;         // axis: of places
  std::int64_t columns = 1;  // of x, whose channels are side by side
  std::int64_t width;        // elements of a place, in whole vectors
};

/// Channels of y that the input gradient takes at a time. For each of these blocks the sums are loaded and
/// stored and kernels are called, but rows of a block stay in a second cache, beside those that are read
/// next, where all of them share its sets, too.
template <class T>
std::int64_t in_place_channels(const ConvTranspose2dGeometry& g) {
  constexpr std::int64_t kFewest = 24, kMost = 48, kBytes = 48 << 10;
  return std::clamp<std::int64_t>(kBytes / (g.w.out * static_cast<std::int64_t>(sizeof(T))), kFewest, kMost);
}

/// Parts of so many sums of the weight gradient, where there are so many bands.
template <class T>
std::int64_t in_place_parts(std::int64_t sums, std::int64_t bands) {
  constexpr std::int64_t kMost = 16, kBytes = 16 << 20;  // of all parts
  const std::int64_t fit = kBytes / (sums * static_cast<std::int64_t>(sizeof(T)));
  return std::clamp<std::int64_t>(std::min(bands, fit), 1, kMost);
}

/// Rows of x in a band of the weight gradient, which takes `channels` channels of y at a time: a second cache
/// holds their rows beside those of the next band.
template <class T>
std::int64_t in_place_band(const ConvTranspose2dGeometry& g, std::int64_t channels) {
  constexpr std::int64_t kBytes = 128 << 10;
  const std::int64_t rows = std::min(g.h.tap_step(), g.h.kernel);  // of y, for each of x
  const std::int64_t bytes = rows * channels * g.w.out * static_cast<std::int64_t>(sizeof(T));
  return std::clamp<std::int64_t>(kBytes / bytes, 1, g.h.in);
}

}  // namespace tapedeck::cpu
