#include "chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "canvas.h"

namespace train_decoder {

namespace {

constexpr Colour kWhite = {1, 1, 1}, kInk = {0.25f, 0.25f, 0.28f}, kGrid = {0.88f, 0.88f, 0.9f};
constexpr Colour kCurves[] = {{0.12f, 0.4f, 0.75f}, {0.8f, 0.36f, 0.1f}, {0.15f, 0.55f, 0.3f}};
constexpr int kWidth = 960, kPanelHeight = 300, kLeft = 110, kRight = 30, kTop = 40, kBottom = 50;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

/// Where values lie on an axis of pixels, and which of them are labelled.
class Axis {
 public:
  Axis(double low, double high, bool logarithmic, double from, double to)
      : logarithmic_(logarithmic), from_(from), to_(to) {
    low_ = map(low);
    high_ = map(high);
    // A flat curve still needs an axis around it.
    const double margin = high_ > low_ ? 0.04 * (high_ - low_) : std::max(0.5, std::abs(low_) * 0.1);
    low_ -= margin;
    high_ += margin;
  }

  double pixel(double value) const { return from_ + (map(value) - low_) / (high_ - low_) * (to_ - from_); }

  std::vector<double> ticks() const {
    std::vector<double> values;
    if (logarithmic_) {
      // 1, 2, 5 of each decade if they are few, else whole decades.
      const bool dense = high_ - low_ < 2.5;
      for (int decade = static_cast<int>(std::floor(low_)); decade <= high_; ++decade) {
        for (const double digit : {1.0, 2.0, 5.0}) {
          const double value = digit * std::pow(10, decade);
          if ((dense || digit == 1) && inside(value)) values.push_back(value);
        }
      }
      if (values.size() >= 2) return values;
      values = linear_ticks(std::pow(10, low_), std::pow(10, high_));
    } else {
      values = linear_ticks(low_, high_);
    }
    std::erase_if(values, [&](double value) { return !inside(value); });
    return values;
  }

 private:
  double map(double value) const { return logarithmic_ ? std::log10(value) : value; }
  bool inside(double value) const { return map(value) >= low_ && map(value) <= high_; }

  /// About five multiples of 1, 2 or 5 times a power of ten.
  static std::vector<double> linear_ticks(double low, double high) {
    const double rough = (high - low) / 5, magnitude = std::pow(10, std::floor(std::log10(rough)));
    const double digit = rough / magnitude;
    const double step = magnitude * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
    std::vector<double> values;
    for (double i = std::ceil(low / step); i <= high / step; ++i) values.push_back(i * step + 0.0);  // not -0
    return values;
  }

  bool logarithmic_;
  double from_, to_;
  double low_, high_;
};

void draw_panel(Canvas& canvas, int top, const std::vector<std::int64_t>& steps, const Series& series,
                Colour colour) {
  const double x0 = kLeft, x1 = kWidth - kRight, y0 = top + kTop, y1 = top + kPanelHeight - kBottom;
  canvas.text({x0, y0 - Canvas::kGlyphHeight - 6}, series.title, kInk);

  std::vector<Point> points;  // of values
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double value = series.values[i];
    if (!std::isfinite(value) || (series.logarithmic && value <= 0)) continue;
    points.push_back({static_cast<double>(steps[i]), value});
  }
  if (!points.empty()) {
    const auto [lowest, highest] =
        std::minmax_element(points.begin(), points.end(), [](Point a, Point b) { return a.y < b.y; });
    const Axis horizontal(points.front().x, points.back().x, false, x0, x1);
    const Axis vertical(lowest->y, highest->y, series.logarithmic, y1, y0);
    for (const double tick : vertical.ticks()) {
      const double y = vertical.pixel(tick);
      canvas.line({x0, y}, {x1, y}, 1, kGrid);
      const std::string label = number(tick);
      canvas.text({x0 - 8 - Canvas::text_width(label), y - 3.5 * Canvas::kScale}, label, kInk);
    }
    for (const double tick : horizontal.ticks()) {
      if (tick != std::floor(tick)) continue;
      const double x = horizontal.pixel(tick);
      canvas.line({x, y0}, {x, y1}, 1, kGrid);
      const std::string label = number(tick);
      canvas.text({x - Canvas::text_width(label) / 2, y1 + 8}, label, kInk);
    }
    Point before{};
    for (std::size_t i = 0; i < points.size(); ++i) {
      const Point at{horizontal.pixel(points[i].x), vertical.pixel(points[i].y)};
      canvas.line(i == 0 ? at : before, at, points.size() == 1 ? 6 : 2, colour);
      before = at;
    }
  }
  canvas.line({x0, y0}, {x0, y1}, 1.5, kInk);
  canvas.line({x0, y1}, {x1, y1}, 1.5, kInk);
  canvas.text({x1 - Canvas::text_width("step"), y1 + 8 + Canvas::kGlyphHeight}, "step", kInk);
}

}  // namespace

tapedeck::Tensor draw_chart(const std::vector<std::int64_t>& steps, const std::vector<Series>& panels) {
  Canvas canvas(kWidth, kPanelHeight * static_cast<int>(panels.size()), kWhite);
  for (std::size_t i = 0; i < panels.size(); ++i) {
    draw_panel(canvas, kPanelHeight * static_cast<int>(i), steps, panels[i], kCurves[i % std::size(kCurves)]);
  }
  return canvas.image();
}

}  // namespace train_decoder
