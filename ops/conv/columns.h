// Sizes of the products with all taps (columns.cu). Host arithmetic.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::conv_columns {

/// What is kept of products at once: they should stay in an H200's second-level cache, of 50 MB. An image has
/// at most kMostBytes of them.
inline constexpr std::int64_t kBytes = std::int64_t{24} << 20, kMostBytes = std::int64_t{256} << 20;
inline constexpr std::int64_t kMostImages = 1 << 15;  // of a batch of products

/// Products with the pixels of an image of `from`: (channels of `to`, taps) times pixels, in sets of which
/// each has weights of its own: conv_transpose2d's are one, conv2d has one for each channel of x.
struct Products {
  Products(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes)
      : taps(g.h.kernel * g.w.kernel),
        to_channels(transposed ? g.group_co() : g.group_ci()),
        sets(transposed ? 1 : to_channels),
        groups(g.groups),
        pixels(transposed ? g.h.in * g.w.in : g.h.out * g.w.out),
        of_image(groups * to_channels * taps * pixels),
        images(std::clamp<std::int64_t>(kBytes / element_bytes / of_image, 1,
                                        std::clamp<std::int64_t>(g.n, 1, kMostImages))) {}
  /// Of a set.
  std::int64_t rows() const { return to_channels / sets * taps; }
  /// Calls of matmul() for `images` images: all but one of images, groups and sets are a call each. Channels
  /// last have one for all pixels.
  std::int64_t calls(bool last) const {
    return last ? 1 : images * groups * sets / std::max({images, groups, sets});
  }

  std::int64_t taps, to_channels, sets, groups, pixels, of_image;
  std::int64_t images;  // at once
};

}  // namespace tapedeck::conv_columns
