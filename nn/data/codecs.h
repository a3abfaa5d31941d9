// The image decoders behind decode_image(); internal.
#pragma once

#include <cstdint>
#include <vector>

#include <tapedeck/nn/data/image.h>

namespace tapedeck::data::detail {

/// Pixels as a decoder leaves them: rows of interleaved samples of 8 or 16 bits.
struct Pixels {
  std::int64_t h = 0, w = 0, c = 0;
  int bits = 8;
  std::vector<std::uint8_t> samples;  // h*w*c, of two bytes each (in the machine's order) if bits is 16

  /// Makes room. Throws Error when that is more than `max_pixels`.
  void allocate(std::int64_t max_pixels);
};

/// Both throw Error for broken data. libpng and libjpeg report errors by longjmp, which must not pass
/// objects with destructors: each stage of theirs is a function of plain values that returns false.
Pixels decode_png(Bytes bytes, const ImageOptions& options);
Pixels decode_jpeg(Bytes bytes, const ImageOptions& options);

}  // namespace tapedeck::data::detail
