#include "canvas.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace train_decoder {

namespace {

// Glyphs of 5 x 9 pixels, rows from the top; '#' is ink. Rows 7 and 8 are for descenders. Only what the
// chart writes.
struct Glyph {
  char character;
  std::array<const char*, 9> rows;
};

constexpr Glyph kGlyphs[] = {
    {'0', {" ### ", "#   #", "#   #", "# # #", "#   #", "#   #", " ### ", "", ""}},
    {'1', {"  #  ", " ##  ", "  #  ", "  #  ", "  #  ", "  #  ", " ### ", "", ""}},
    {'2', {" ### ", "#   #", "    #", "   # ", "  #  ", " #   ", "#####", "", ""}},
    {'3', {" ### ", "#   #", "    #", "  ## ", "    #", "#   #", " ### ", "", ""}},
    {'4', {"   # ", "  ## ", " # # ", "#  # ", "#####", "   # ", "   # ", "", ""}},
    {'5', {"#####", "#    ", "#### ", "    #", "    #", "#   #", " ### ", "", ""}},
    {'6', {" ### ", "#    ", "#    ", "#### ", "#   #", "#   #", " ### ", "", ""}},
    {'7', {"#####", "    #", "   # ", "   # ", "  #  ", "  #  ", "  #  ", "", ""}},
    {'8', {" ### ", "#   #", "#   #", " ### ", "#   #", "#   #", " ### ", "", ""}},
    {'9', {" ### ", "#   #", "#   #", " ####", "    #", "    #", " ### ", "", ""}},
    {'.', {"", "", "", "", "", " ##  ", " ##  ", "", ""}},
    {'-', {"", "", "", "#####", "", "", "", "", ""}},
    {'P', {"#### ", "#   #", "#   #", "#### ", "#    ", "#    ", "#    ", "", ""}},
    {'S', {" ####", "#    ", "#    ", " ### ", "    #", "    #", "#### ", "", ""}},
    {'N', {"#   #", "##  #", "# # #", "#  ##", "#   #", "#   #", "#   #", "", ""}},
    {'R', {"#### ", "#   #", "#   #", "#### ", "# #  ", "#  # ", "#   #", "", ""}},
    {'B', {"#### ", "#   #", "#   #", "#### ", "#   #", "#   #", "#### ", "", ""}},
    {'a', {"", "", " ### ", "    #", " ####", "#   #", " ####", "", ""}},
    {'b', {"#    ", "#    ", "#### ", "#   #", "#   #", "#   #", "#### ", "", ""}},
    {'c', {"", "", " ####", "#    ", "#    ", "#    ", " ####", "", ""}},
    {'d', {"    #", "    #", " ####", "#   #", "#   #", "#   #", " ####", "", ""}},
    {'e', {"", "", " ### ", "#   #", "#####", "#    ", " ### ", "", ""}},
    {'g', {"", "", " ####", "#   #", "#   #", "#   #", " ####", "    #", " ### "}},
    {'i', {"  #  ", "", " ##  ", "  #  ", "  #  ", "  #  ", " ### ", "", ""}},
    {'l', {" ##  ", "  #  ", "  #  ", "  #  ", "  #  ", "  #  ", " ### ", "", ""}},
    {'n', {"", "", "#### ", "#   #", "#   #", "#   #", "#   #", "", ""}},
    {'o', {"", "", " ### ", "#   #", "#   #", "#   #", " ### ", "", ""}},
    {'p', {"", "", "#### ", "#   #", "#   #", "#   #", "#### ", "#    ", "#    "}},
    {'r', {"", "", "# ## ", "##   ", "#    ", "#    ", "#    ", "", ""}},
    {'s', {"", "", " ####", "#    ", " ### ", "    #", "#### ", "", ""}},
    {'t', {" #   ", " #   ", "#### ", " #   ", " #   ", " #   ", "  ## ", "", ""}},
};

}  // namespace

Canvas::Canvas(int width, int height, Colour background)
    : width_(width),
      height_(height),
      pixels_(static_cast<std::size_t>(width) * static_cast<std::size_t>(height), background) {}

void Canvas::blend(int x, int y, Colour colour, double opacity) {
  if (x < 0 || x >= width_ || y < 0 || y >= height_) return;
  Colour& pixel =
      pixels_[static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x)];
  const auto mix = [&](float under, float over) {
    return under + (over - under) * static_cast<float>(opacity);
  };
  pixel = {mix(pixel.r, colour.r), mix(pixel.g, colour.g), mix(pixel.b, colour.b)};
}

void Canvas::line(Point from, Point to, double thickness, Colour colour) {
  // A pixel is covered as far as its centre is nearer to the segment than half the thickness.
  const double reach = thickness / 2 + 0.5;
  const double dx = to.x - from.x, dy = to.y - from.y, length2 = dx * dx + dy * dy;
  const int x0 = static_cast<int>(std::max(0.0, std::floor(std::min(from.x, to.x) - reach)));
  const int x1 = static_cast<int>(std::min(width_ - 1.0, std::ceil(std::max(from.x, to.x) + reach)));
  const int y0 = static_cast<int>(std::max(0.0, std::floor(std::min(from.y, to.y) - reach)));
  const int y1 = static_cast<int>(std::min(height_ - 1.0, std::ceil(std::max(from.y, to.y) + reach)));
  for (int y = y0; y <= y1; ++y) {
    for (int x = x0; x <= x1; ++x) {
      const double px = x + 0.5 - from.x, py = y + 0.5 - from.y;
      const double along = length2 > 0 ? std::clamp((px * dx + py * dy) / length2, 0.0, 1.0) : 0.0;
      const double distance = std::hypot(px - along * dx, py - along * dy);
      if (distance < reach) blend(x, y, colour, std::min(1.0, reach - distance));
    }
  }
}

void Canvas::text(Point at, std::string_view text, Colour colour) {
  const int left = static_cast<int>(std::lround(at.x)), top = static_cast<int>(std::lround(at.y));
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto glyph = std::find_if(std::begin(kGlyphs), std::end(kGlyphs),
                                    [&](const Glyph& g) { return g.character == text[i]; });
    if (glyph == std::end(kGlyphs)) continue;
    for (int row = 0; row < 9; ++row) {
      const std::string_view ink = glyph->rows[static_cast<std::size_t>(row)];
      for (int column = 0; column < static_cast<int>(ink.size()); ++column) {
        if (ink[static_cast<std::size_t>(column)] != '#') continue;
        const int x = left + static_cast<int>(i) * kGlyphWidth + column * kScale, y = top + row * kScale;
        for (int k = 0; k < kScale * kScale; ++k) blend(x + k % kScale, y + k / kScale, colour, 1);
      }
    }
  }
}

tapedeck::Tensor Canvas::image() const {
  tapedeck::Tensor image = tapedeck::Tensor::empty({3, height_, width_});
  float* out = image.data<float>();
  for (std::size_t i = 0; i < pixels_.size(); ++i) {
    out[i] = pixels_[i].r;
    out[i + pixels_.size()] = pixels_[i].g;
    out[i + 2 * pixels_.size()] = pixels_[i].b;
  }
  return image;
}

}  // namespace train_decoder
