#include <algorithm>

#include <tapedeck/ops/conv/winograd.h>

namespace tapedeck::cpu {

std::int64_t WinogradPhase::most_taps() const {
  std::int64_t most = 1;
  for (const WinogradSource& s : sources) most = std::max(most, s.count());
  return most;
}

bool is_winograd(const ConvAxis& a) {
  return a.dilation == 1;
}

std::vector<WinogradPhase> winograd_phases(const ConvAxis& a, Direction direction) {
  std::vector<WinogradPhase> phases;
  if (direction == Direction::plain) phases.push_back({0, 1, (a.in + 1) / 2, {}});
  for (std::int64_t p = 0; p < std::min(a.stride, a.out); ++p) {
    const std::int64_t phase = a.phase_of_output(p), first = a.first_tap(phase), taps = a.taps(phase);
    // y[p + q*stride] reads x[top + q - t] through tap first + t*stride.
    const std::int64_t top = taps > 0 ? (p + a.padding) / a.stride - a.delta(first) : 0;
    const bool transposed = direction == Direction::transposed;
    if (transposed) phases.push_back({p, a.stride, ((a.out - p + a.stride - 1) / a.stride + 1) / 2, {}});
    const std::int64_t sources = (taps + kMostTaps - 1) / kMostTaps;
    for (std::int64_t i = 0; i < sources; ++i) {  // taps in the order of what they read
      const std::int64_t begin = (taps * i + sources - 1) / sources,
                         end = (taps * (i + 1) + sources - 1) / sources;
      WinogradSource source = transposed ? WinogradSource{top - taps + 1 + begin, 1, {}}
                                         : WinogradSource{p + (begin - top) * a.stride, a.stride, {}};
      for (std::int64_t t = begin; t < end; ++t) {
        source.taps.push_back(first + (transposed ? taps - 1 - t : t) * a.stride);
      }
      phases.back().sources.push_back(source);
    }
  }
  return phases;
}

namespace {

/// The rows that the tiles read, where nothing is an edge.
RowRange unclamped_reads(const std::vector<WinogradPhase>& phases, std::int64_t row, std::int64_t rows) {
  RowRange range;
  for (const WinogradPhase& p : phases) {
    for (const WinogradSource& s : p.sources) {
      const std::int64_t begin = s.base + 2 * row * s.step;
      const std::int64_t end = s.base + (2 * (row + rows - 1) + s.count()) * s.step + 1;
      range = range.size() == 0 ? RowRange{begin, end}
                                : RowRange{std::min(range.begin, begin), std::max(range.end, end)};
    }
  }
  return range;
}

}  // namespace

RowRange winograd_reads(const std::vector<WinogradPhase>& phases, std::int64_t height, std::int64_t row,
                        std::int64_t rows) {
  const RowRange range = unclamped_reads(phases, row, rows);
  const std::int64_t begin = std::clamp<std::int64_t>(range.begin, 0, height);
  return {begin, std::clamp(range.end, begin, height)};
}

RowRange winograd_writes(const std::vector<WinogradPhase>& phases, std::int64_t height, std::int64_t row,
                         std::int64_t rows) {
  const std::int64_t step = 2 * phases[0].step, begin = std::min(height, row * step);
  return {begin, std::min(height, begin + rows * step)};
}

std::int64_t winograd_most_reads(const std::vector<WinogradPhase>& phases, std::int64_t height,
                                 std::int64_t rows) {
  return std::min(height, unclamped_reads(phases, 0, rows).size());
}

RowRange winograd_inside(std::int64_t base, std::int64_t step, std::int64_t elements, std::int64_t size) {
  const std::int64_t tile_step = 2 * step;
  const std::int64_t last = size - 1 - base - (elements - 1) * step;  // the largest 2*tile*step
  return {base < 0 ? (tile_step - 1 - base) / tile_step : 0, last < 0 ? 0 : last / tile_step + 1};
}

std::int64_t winograd_products(const ConvAxis& a, Direction direction) {
  const auto tiles = [](std::int64_t results) { return (results + 1) / 2; };
  const auto points = [](std::int64_t taps) {  // a source has a point more than taps
    return taps + (taps + kMostTaps - 1) / kMostTaps;
  };
  std::int64_t products = 0;
  for (std::int64_t p = 0; p < std::min(a.stride, a.out); ++p) {
    const std::int64_t results = direction == Direction::plain ? a.in : (a.out - p + a.stride - 1) / a.stride;
    products += tiles(results) * points(a.taps(a.phase_of_output(p)));
  }
  return products;
}

}  // namespace tapedeck::cpu
