// Sizes and addresses of strip_ahead.cu and strip_ahead_weight_grad.cu, whose rows of y meet one row of x
// each.
#pragma once

#include <tapedeck/ops/conv/strip_plan.h>

namespace tapedeck::conv_strip {

/// Copies of 16 bytes, `vector` elements, of a row whose first one begins in column `first`: those in [low,
/// high) lie in the tensor's row and are one bulk copy; the others, the row's ends, are copied by words.
struct RowEnds {
  TAPEDECK_HD RowEnds(int first, int width, int copies_of_row, int vector)
      : low(((first < 0 ? -first : 0) + vector - 1) / vector),
        high((width > first ? width - first : 0) / vector),
        copies(copies_of_row) {
    if (low > copies) low = copies;
    if (high > copies) high = copies;
    if (high < low) high = low;
  }
  TAPEDECK_HD int count() const { return low + copies - high; }
  TAPEDECK_HD int at(int end) const { return end < low ? end : end - low + high; }
  int low, high, copies;
};

/// The fewest copies of 16 bytes of a row for which bulk copies pay.
inline constexpr int kLeastOfBulk = 64;

/// A tile of columns of a row of x. Neighbours are those that share a row, then rows of an image: at the same
/// time they are read by different blocks.
struct Unit {
  TAPEDECK_HD Unit(const Strip& p, int index) {
    const int rest = index / p.tiles_w;
    column = (index - rest * p.tiles_w) * p.columns;
    image = rest / p.to_h;
    row = rest - image * p.to_h;
  }
  int image, row, column;
};

/// A block has teams, of kCopying warps that copy in turn and kWarps that multiply, which share the weights
/// of a group. A team's stage is the row of y that a tap along h brings to it, of a chunk of channels.
struct Ahead {
  static constexpr int kTeams = 2, kCopying = 2, kMostStages = 8;
  static constexpr int kMultiplying = kTeams * kThreads;  // threads, before those that copy
  static constexpr int kAllThreads = kMultiplying + kTeams * kCopying * 32;

  /// `copy`: bytes to which rows of y are aligned. Nothing fits where there are no stages.
  Ahead(const ConvTranspose2dGeometry& g, int bytes, int copy) {
    const Strip start(g, false, bytes);
    const int channels = start.plan.to_channels, taps = start.plan.kernel_h;
    if (start.slot_of.groups > 0) return;
    n = channels <= 8 ? 1 : channels <= 16 ? 2 : 4;
    side = 1;
    while (side < 4 && side * n * 8 < channels) side *= 2;
    if (side * n * 8 < channels) return;
    // Chunks of no less than kLeastStage, and of whole steps, if there are.
    for (int chunk = kStep; chunk <= 4 * kStep && start.plan.from_channels % chunk == 0; chunk *= 2) {
      Ahead a;
      a.n = n, a.side = side;
      a.strip = start;
      Strip& p = a.strip;
      p.set_tile(1, kPixels * kWarps / side, chunk, copy, 16, 8, true);
      if (std::min(p.copies, p.plan.from_w * bytes / 16) < kLeastOfBulk) return;
      a.steps = p.row_steps();
      a.stage_bytes = p.slot_pitch * bytes;
      a.weights = align(a.steps * kStep * 4);
      const std::int64_t bias = a.weights + std::int64_t{p.chunks} * taps * a.of_row() * 2 * bytes;
      if (bias > kMostShared) return;
      a.bias_at = static_cast<int>(bias);
      a.ring = align(a.bias_at + side * n * 8 * 4);
      a.stages = std::min(kMostStages, (kMostShared - 1024 - a.ring) / (kTeams * a.stage_bytes));
      if (a.stages < kCopying) return;
      a.units = p.plan.n * p.to_h * p.tiles_w;
      *this = a;
      if (stage_bytes >= kLeastStage && steps * kStep == p.row_elements()) return;
    }
  }

  bool fits() const { return stages > 0; }
  int shared_bytes() const { return ring + kTeams * stages * stage_bytes; }

  /// Bytes from the start of shared memory.
  TAPEDECK_HD int stage(int team, int i) const { return ring + (team * stages + i) * stage_bytes; }
  /// Weights are [chunk][tap along h][step][8 channels of x][thread][2]; pairs of a chunk's tap.
  TAPEDECK_HD int of_row() const { return steps * side * n * 32; }

  Strip strip;
  int n = 0, side = 0;  // 8 channels of x of a warp; warps side by side
  int steps = 0, units = 0, stages = 0, stage_bytes = 0;
  int weights = 0, bias_at = 0, ring = 0;  // bytes from the start of shared memory, where the table is

 private:
  static constexpr int kLeastStage = 12 << 10;  // bytes
  Ahead() = default;
  static int align(int n) { return (n + 127) / 128 * 128; }
};

/// The weight's gradient: a block has kChannels of y of a group, all of x of it, and some units, which are
/// those of Ahead. To a unit come stages of the row of x, and of each row of y that taps along h bring to it.
/// A warp has kWarpPixels of a unit.
struct AheadWeightGrad {
  static constexpr int kChannels = 2 * kStep, kMostStages = 10, kWarpPixels = 2 * kStep;
  static constexpr int kCopying = 4;  // warps that copy in turn, a warpgroup
  static constexpr int kAllThreads = kThreads + kCopying * 32;

  /// `y_copy`, `x_copy`: bytes to which rows are aligned. Nothing fits where there are no stages.
  AheadWeightGrad(const ConvTranspose2dGeometry& g, int bytes, int y_copy, int x_copy) {
    Strip p(g, false, bytes);
    const int channels = p.plan.to_channels;
    if (p.slot_of.groups > 0 || channels > 2 * kPixels || p.plan.from_channels % kChannels != 0) return;
    if (p.plan.kernel_h != p.plan.kernel_w || p.plan.kernel_h < 2 || p.plan.kernel_h > 3) return;
    // A fragment of y has 8 channels, one of x 16, of 4 pixels.
    p.set_tile(1, kWarpPixels * kWarps, kChannels, y_copy, 8, 4, true);
    if (std::min(p.copies, p.plan.from_w * bytes / 16) < kLeastOfBulk) return;
    x_shifts = x_copy < 16 ? 16 / bytes - 1 : 0;
    const int vector = 16 / bytes;
    x_copies = (p.columns + x_shifts + vector - 1) / vector;
    x_pitch = (x_copies + 1 - x_copies % 2) * vector;
    m = channels <= kPixels ? 1 : 2;
    x_channels = m * kPixels;
    by_x_channels = Divider(x_channels);
    stage_bytes = std::max(p.slot_pitch, x_channels * x_pitch) * bytes;
    stages = std::min(kMostStages, (kMostShared - 1024) / stage_bytes);
    // Bytes of all warps' sums, which are put where stages were.
    const int sums = kWarps * p.plan.kernel_h * p.plan.kernel_w * 2 * m * 4 * 32 * 4;
    if (stages < 2 || stages * stage_bytes < sums) {
      stages = 0;
      return;
    }
    strip = p;
    copying = std::min(kCopying, stages);
    y_blocks = p.plan.from_channels / kChannels;
    units = p.plan.n * p.to_h * p.tiles_w;
    // Blocks of an H100's multiprocessors: the result does not depend on the device.
    const int most = std::clamp(132 / (y_blocks * p.plan.groups), 1, units),
              turns = (units + most - 1) / most;
    splits = (units + turns - 1) / turns;
  }

  bool fits() const { return stages > 0; }

  Strip strip;
  int x_shifts = 0, x_copies = 0, x_pitch = 0, x_channels = 0;
  Divider by_x_channels;
  int m = 0;  // 16 channels of x
  int y_blocks = 0, units = 0, splits = 0, stages = 0, stage_bytes = 0;
  int copying = 0;  // warps that copy, no more than there are stages
};

}  // namespace tapedeck::conv_strip
