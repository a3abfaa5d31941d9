// Image files: PNG and JPEG to tensors, tensors to PNG.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tapedeck/core/file.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck::data {

struct ImageOptions {
  /// 0: as in the file, which is 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGB and alpha).
  /// 1: grey, 0.299 R + 0.587 G + 0.114 B. 3: RGB. Both show what is transparent on white.
  std::int64_t channels = 0;
  std::int64_t max_pixels = std::int64_t{1} << 27;  ///< larger images are an Error
  /// A JPEG whose shorter side is at least 4 times this may come at a half, a quarter or an eighth of
  /// its size, which is much quicker. 0: all images come in full size.
  std::int64_t needed_side = 0;
};

/// Reads a PNG or JPEG file (told by its content) as float32 [c,h,w] with the stored values divided
/// by 255, or by 65535 when they have 16 bits; palettes are resolved, CMYK becomes RGB; gamma, colour
/// profiles and orientation tags are not applied. Throws Error, naming the file, when it is not an
/// image, or is truncated or corrupt.
Tensor load_image(const std::string& path, const ImageOptions& options = {});
/// The same from memory; `name` stands for the file in messages.
Tensor decode_image(Bytes bytes, std::string_view name = "memory", const ImageOptions& options = {});

/// Writes `image` [c,h,w] with 1 (grey), 2, 3 (RGB) or 4 channels, floating or uint8, as an 8-bit PNG
/// that appears whole or not at all. Floating values are clamped to [0,1] and rounded; NaN is an
/// Error, for a picture must not hide it.
void save_png(const std::string& path, const Tensor& image);
std::vector<std::byte> encode_png(const Tensor& image);

struct GridOptions {
  std::int64_t columns = 8;
  std::int64_t padding = 2;  ///< pixels around each image
  double value = 0;          ///< of the padding
};

/// One picture [c,H,W], float32, of `images` [n,c,h,w], row by row. Throws Error for other ranks, no
/// images, and options out of range.
Tensor make_grid(const Tensor& images, const GridOptions& options = {});

}  // namespace tapedeck::data
