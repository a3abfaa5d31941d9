// Sizes of images: [c,h,w], float32.
#pragma once

#include <tapedeck/core/shape.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck::data {

/// `image` in another size. Each output pixel is the mean of the input under a triangle around its
/// centre, as wide as two output pixels, or two input pixels when enlarging: what Pillow calls
/// BILINEAR and PyTorch bilinear with antialias. Throws Error for empty sizes.
Tensor resize(const Tensor& image, Size2 size);

/// The middle of `image`; where it cannot be in the middle, half a pixel up or left. Throws Error when
/// `size` is larger than the image.
Tensor center_crop(const Tensor& image, Size2 size);

/// `image` resized, in its proportions, until it just covers `size`, and cropped to that.
Tensor resize_and_crop(const Tensor& image, Size2 size);

}  // namespace tapedeck::data
