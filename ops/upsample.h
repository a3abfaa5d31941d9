// Upsampling of images [n,c,h,w] or [c,h,w], as in PyTorch. Floating; results have x's layout.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

/// y[o] = x[floor(o * in / out)] on both axes, to an image of `size`, which may also be smaller than x's. The
/// floor is exact; PyTorch rounds in / out to float32, which at a few sizes (2 to 82) takes the pixel before.
/// Throws Error unless both images have pixels.
Variable upsample_nearest2d(const Variable& x, Size2 size);

/// Linear interpolation on both axes, to an image of `size`, which may also be smaller than x's. With
/// `align_corners` the centres of the corner pixels lie on one another, else the corners of the images do:
/// y[o] is x at o * (in - 1) / (out - 1), or at (o + 1/2) * in / out - 1/2. Throws Error unless both images
/// have pixels.
Variable upsample_bilinear2d(const Variable& x, Size2 size, bool align_corners = false);

/// [n, c*r*r, h, w] to [n, c, h*r, w*r], the reverse below; every dtype. y[c, h*r + i, w*r + j] =
/// x[(c*r + i)*r + j, h, w]. Throws Error unless r*r divides the channels.
Variable pixel_shuffle(const Variable& x, std::int64_t upscale_factor);
/// [n, c, h*r, w*r] to [n, c*r*r, h, w]. Throws Error unless r divides both sizes.
Variable pixel_unshuffle(const Variable& x, std::int64_t downscale_factor);

}  // namespace tapedeck
