// A small canvas: anti-aliased lines and a bitmap font, enough for a chart in a PNG.
#pragma once

#include <string_view>
#include <vector>

#include <tapedeck/core/tensor.h>

namespace train_decoder {

struct Colour {
  float r, g, b;  // in [0, 1]
};

struct Point {
  double x, y;  // pixels from the top left; pixel centres lie at halves
};

class Canvas {
 public:
  Canvas(int width, int height, Colour background);

  int width() const { return width_; }
  int height() const { return height_; }

  /// A line with round ends, blended over what is there.
  void line(Point from, Point to, double thickness, Colour colour);
  /// One line of text with its top left corner at `at`, in cells of kGlyphWidth x kGlyphHeight pixels.
  /// Characters without a glyph leave an empty cell.
  void text(Point at, std::string_view text, Colour colour);
  static double text_width(std::string_view text) { return kGlyphWidth * static_cast<double>(text.size()); }

  static constexpr int kScale = 2;  // canvas pixels of one font pixel
  static constexpr int kGlyphWidth = 6 * kScale, kGlyphHeight = 9 * kScale;

  /// float32 [3, height, width] in [0, 1].
  tapedeck::Tensor image() const;

 private:
  void blend(int x, int y, Colour colour, double opacity);

  int width_, height_;
  std::vector<Colour> pixels_;
};

}  // namespace train_decoder
