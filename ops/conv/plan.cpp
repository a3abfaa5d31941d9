#include <tapedeck/ops/conv/plan.h>

#include <algorithm>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kNarrow = 16;    // pixels of a row
constexpr std::int64_t kLeastStep = 3;  // between rows

/// Collects positions first, first + step, ... below `to` into segments.
void add_segments(AxisPlan& plan, std::int64_t first, std::int64_t step) {
  for (std::int64_t o = first; o < plan.to; o += step) {
    const Window& w = plan.windows[static_cast<std::size_t>(o)];
    if (o > first) {
      Segment& last = plan.segments.back();
      const std::int64_t from_step = w.from - plan.windows[static_cast<std::size_t>(o - step)].from;
      const bool same = w.slot == last.slot && w.slots == last.slots;
      if (same && (last.count == 1 || from_step == last.from_step)) {
        last.from_step = from_step;
        ++last.count;
        continue;
      }
    }
    plan.segments.push_back({o, step, 1, w.from, 0, w.slot, w.slots});
  }
}

}  // namespace

AxisPlan transposed_plan(const ConvAxis& a) {
  AxisPlan plan{.from = a.in, .to = a.out, .slot_step = a.input_step(), .phases = std::min(a.stride, a.out)};
  const std::int64_t step = a.tap_step(), classes = std::min(step, a.kernel);
  // Taps k, k + step, ... are one phase and read ever smaller positions: slots take them backwards.
  std::vector<std::int64_t> base(static_cast<std::size_t>(classes));
  plan.slot_of_tap.resize(static_cast<std::size_t>(a.kernel));
  std::int64_t slot = 0;
  for (std::int64_t k = 0; k < classes; ++k) {
    base[static_cast<std::size_t>(k)] = slot;
    for (std::int64_t j = (a.kernel - 1 - k) / step; j >= 0; --j) {
      plan.slot_of_tap[static_cast<std::size_t>(k + j * step)] = slot++;
    }
  }
  plan.windows.resize(static_cast<std::size_t>(a.out));
  for (std::int64_t o = 0; o < a.out; ++o) {
    const std::int64_t phase = a.phase_of_output(o), k = a.first_tap(phase), taps = a.taps(phase);
    if (taps == 0) continue;
    // Tap k + j*step reads input `top` - j*slot_step.
    const std::int64_t top = (o + a.padding) / a.stride - a.delta(k);
    const std::int64_t begin = std::max<std::int64_t>(0, ConvAxis::ceil_div(top - a.in + 1, plan.slot_step));
    const std::int64_t end = std::min(taps, ConvAxis::floor_div(top, plan.slot_step) + 1);
    if (begin >= end) continue;
    plan.windows[static_cast<std::size_t>(o)] = {top - (end - 1) * plan.slot_step,
                                                 base[static_cast<std::size_t>(k)] + taps - end, end - begin};
  }
  for (std::int64_t o = 0; o < plan.phases; ++o) add_segments(plan, o, a.stride);
  return plan;
}

AxisPlan plain_plan(const ConvAxis& a) {
  AxisPlan plan{.from = a.out, .to = a.in, .slot_step = a.dilation};
  for (std::int64_t k = 0; k < a.kernel; ++k) plan.slot_of_tap.push_back(k);
  for (std::int64_t i = 0; i < a.in; ++i) {
    const std::int64_t begin = a.tap_begin(i), end = a.tap_end(i);
    plan.windows.push_back(begin < end ? Window{a.output(i, begin), begin, end - begin} : Window{});
  }
  add_segments(plan, 0, 1);
  return plan;
}

ReadRows::ReadRows(const ConvTranspose2dGeometry& g) : geometry(g) {
  ConvAxis& h = geometry.h;
  const std::int64_t common = h.kernel == 1 ? h.stride : h.common();
  const std::int64_t begin = (common - h.padding % common) % common;
  if (common < kLeastStep || g.w.out < kNarrow || begin >= h.out) return;
  first = begin;
  step = common;
  h.out = ConvAxis::ceil_div(h.out - first, step);
  h.padding = (h.padding + first) / step;
  h.stride /= step;
  h.dilation = h.kernel == 1 ? 1 : h.dilation / step;
}

ConvMap::ConvMap(const ConvTranspose2dGeometry& g, Direction d)
    : direction(d),
      n(g.n),
      groups(g.groups),
      from_channels(d == Direction::transposed ? g.group_ci() : g.group_co()),
      to_channels(d == Direction::transposed ? g.group_co() : g.group_ci()),
      h(d == Direction::transposed ? transposed_plan(g.h) : plain_plan(g.h)),
      w(d == Direction::transposed ? transposed_plan(g.w) : plain_plan(g.w)) {}

}  // namespace tapedeck::cpu
