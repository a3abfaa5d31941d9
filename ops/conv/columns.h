// Sizes of the products with all taps (columns.cu). Host arithmetic.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::conv_columns {

/// What is kept of products at once: they should stay in an H200's second-level cache, of 50 MB.
inline constexpr std::int64_t kBytes = std::int64_t{24} << 20;

/// Products with the pixels of an image of `from`: (channels of `to`, taps) times pixels.
struct Products {
  Products(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes)
      : taps(g.h.kernel * g.w.kernel),
        to_channels(transposed ? g.group_co() : g.group_ci()),
        pixels(transposed ? g.h.in * g.w.in : g.h.out * g.w.out),
        of_image(g.groups * to_channels * taps * pixels),
        images(std::clamp<std::int64_t>(kBytes / std::max<std::int64_t>(1, of_image * element_bytes), 1,
                                        std::max<std::int64_t>(1, g.n))) {}
  std::int64_t taps, to_channels, pixels, of_image;
  std::int64_t images;  // at once
};

}  // namespace tapedeck::conv_columns
