// The convolution family in one shape: results, each with a window of taps.
//
// Both directions, conv_transpose2d (from x to y) and conv2d (from y to x), are
//   to[n,t,p] = bias[t] + sum over the group's channels f and the slots s of p's window of
//               from[n, f, first(p) + s*slot_step] * w[f,t,tap(s)]
// on each axis: a phase of the transposed direction sees its taps at unit stride, and the plain one sees all
// taps at their dilation. Slots are the taps in an order that makes the windows consecutive: in increasing
// order of the position that they read.
#pragma once

#include <vector>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::cpu {

/// What one result position reads on one axis: slots [slot, slot + slots), the first of them at `from`.
struct Window {
  std::int64_t from = 0, slot = 0, slots = 0;
};

/// Result positions to + m*to_step, m < count, whose windows have equal slots and begin at
/// from + m*from_step.
struct Segment {
  std::int64_t to, to_step, count;
  std::int64_t from, from_step;
  std::int64_t slot, slots;
};

struct AxisPlan {
  std::int64_t from = 0, to = 0;       // sizes
  std::vector<Window> windows = {};    // of each result position
  std::vector<Segment> segments = {};  // cover each result position once
  std::vector<std::int64_t> slot_of_tap = {};
  std::int64_t slot_step = 1;  // between what neighbouring slots read
  std::int64_t phases = 1;     // with results; windows of different phases share no tap
};

AxisPlan transposed_plan(const ConvAxis& axis);
AxisPlan plain_plan(const ConvAxis& axis);

/// The rows of y that windows read, first, first + step, ..., and the geometry of a y that has no others. No
/// tap reaches what lies between: where stride and dilation have a common factor, and where there is one tap.
/// That does not pay for narrow rows, which share lines of memory, nor for each second one; then it is all
/// rows.
struct ReadRows {
  explicit ReadRows(const ConvTranspose2dGeometry& g);

  std::int64_t first = 0, step = 1;
  ConvTranspose2dGeometry geometry;
};

enum class Direction : std::uint8_t { transposed, plain };

/// A call in neutral names: `from` is read, `to` is written.
struct ConvMap {
  ConvMap(const ConvTranspose2dGeometry& g, Direction d);

  Direction direction;
  std::int64_t n, groups;
  std::int64_t from_channels, to_channels;  // of a group
  AxisPlan h, w;

  std::int64_t taps() const { return static_cast<std::int64_t>(h.slot_of_tap.size() * w.slot_of_tap.size()); }
  /// The place of a weight: channels `from` and `to` of a group, tap kh*kernel_w + kw.
  std::int64_t weight_index(std::int64_t group, std::int64_t from, std::int64_t to, std::int64_t tap) const {
    const std::int64_t channels = direction == Direction::transposed
                                      ? (group * from_channels + from) * to_channels + to
                                      : (group * to_channels + to) * from_channels + from;
    return channels * taps() + tap;
  }
};

}  // namespace tapedeck::cpu
