// Strips of rows: sizes, and every address, of the kernels for convolutions that memory bounds.
//
// As in gemm_plan.h a call has phases; result (a, b) of phase (i, j) is in row h[i].to + a*h[i].to_step of
// `to` and column w[j].to + b*w[j].to_step. A tile has `rows` x `columns` results of every phase, so a
// rectangle of `to` without gaps, and the rows of `from` that taps bring to it are in shared memory:
//
//   [slot of a row][channel][column], zeros outside the image; channels last:
//   [slot of a row][8 channels][column][channel of these].
//
// Where rows of `from` are not aligned to copies of 16 bytes, they may lie as they do in memory: the first
// column of a row is as far from a multiple of 16 bytes, its shift, as it is there.
//
// Rows that no tap reaches have no slot: (row - low) mod step is one of `residues`. Sums are products of 16
// pixels and 8 channels in steps of 8 of k = (tap, channel). What k is, is a table of offsets in shared
// memory; a pixel's window is its first offset plus the table's, whatever stride, dilation and padding are.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_strip {

using conv_gemm::Divider;
using conv_gemm::ImageStrides;
using conv_gemm::kMaxPhases;
using conv_gemm::PhaseAxes;
using conv_gemm::PhaseAxis;
using conv_gemm::Plan;

inline constexpr int kWarps = 8, kThreads = kWarps * 32;
inline constexpr int kStep = 8;                // of k, of an instruction
inline constexpr int kPixels = 16;             // of an instruction
inline constexpr int kStoreBytes = 16;         // that a thread writes at once
inline constexpr int kMostShared = 227 << 10;  // bytes that a block can have

/// Positions of `from` that taps bring to result 0 of any phase of an axis.
struct Reach {
  Reach() = default;
  explicit Reach(const PhaseAxes& axis) {
    bool any = false;
    for (int i = 0; i < axis.count; ++i) {
      const PhaseAxis& p = axis.phase[i];
      most = std::max(most, p.count);
      for (int j = 0; j < p.taps; ++j) {
        const int at = p.from + j * p.tap_from_step;
        low = any ? std::min(low, at) : at;
        high = any ? std::max(high, at) : at;
        any = true;
      }
    }
    step = axis.phase[0].from_step;
  }
  int low = 0, high = 0, step = 1;
  int most = 0;  // results of a phase
};

/// The rows of `from` that a tile needs: slot s is `low` + the row of result 0 + s / count * step +
/// residue[s % count].
struct Slots {
  Slots() = default;
  Slots(const PhaseAxes& axis, const Reach& reach) : low(reach.low), step(reach.step) {
    bool seen[kMaxPhases] = {};
    for (int i = 0; i < axis.count; ++i) {
      const PhaseAxis& p = axis.phase[i];
      for (int j = 0; j < p.taps; ++j) seen[(p.from + j * p.tap_from_step - low) % step] = true;
    }
    count = 0;
    for (int r = 0; r < step; ++r) {
      rank[r] = count;
      if (seen[r]) residue[count++] = r;
    }
    if (count == 0) residue[count++] = 0;
    groups = (reach.high - reach.low) / step;
  }
  int of_rows(int rows) const { return (rows + groups) * count; }
  TAPEDECK_HD int row(int slot) const {
    const int q = slot / count;
    return low + q * step + residue[slot - q * count];
  }
  /// The slot of a row relative to that of result 0; a result further down it is `count` slots further.
  TAPEDECK_HD int slot(int row) const {
    const int q = (row - low) / step;
    return q * count + rank[row - low - q * step];
  }
  int low = 0, step = 1, count = 1;
  int groups = 0;  // of `count` slots, beyond those of a tile's results
  int residue[kMaxPhases] = {}, rank[kMaxPhases] = {};
};

/// Where the results of a tile begin: image, and (a, b) of its first.
struct Tile {
  int image, a, b;
};

struct Strip {
  Strip() = default;
  Strip(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes, bool channels_last = false)
      : plan(g, transposed, element_bytes),
        bytes(element_bytes),
        pixel(channels_last ? kStep : 1),
        to_h(static_cast<int>(transposed ? g.h.out : g.h.in)),
        to_w(static_cast<int>(transposed ? g.w.out : g.w.in)),
        reach_h(plan.h),
        reach_w(plan.w),
        slot_of(plan.h, reach_h) {}

  /// Other phases of columns: such as begin before the row, whose results in columns below 0 do not exist.
  void set_columns(const PhaseAxes& w) {
    plan.w = w;
    reach_w = Reach(w);
    first_to = first_of(w);
  }
  /// The same of rows.
  void set_rows(const PhaseAxes& h) {
    plan.h = h;
    reach_h = Reach(h);
    slot_of = Slots(h, reach_h);
    first_row = first_of(h);
  }

  /// Of a tile and of the channels of `from` that are in shared memory at once. `copy_bytes`: of one copy, to
  /// which the rows of `from` are aligned; `modulus`, `remainder`: what the words between channels are.
  /// Channels last copy whole pixels, of a multiple of 8 channels. `may_shift`: rows that are aligned to less
  /// than 16 bytes are shifted, so that their copies have 16. Channels 8 apart have the same shift.
  void set_tile(int tile_rows, int tile_columns, int chunk_channels, int copy_bytes, int modulus,
                int remainder, bool may_shift = false) {
    rows = tile_rows, columns = tile_columns;
    chunk = chunk_channels;
    const bool shifted = may_shift && pixel == 1 && copy_bytes < 16 && chunk_channels % kStep == 0;
    if (shifted) copy_bytes = 16;
    shifts = shifted ? 16 / bytes - 1 : 0;
    chunks = (plan.from_channels + chunk - 1) / chunk;
    by_chunk = Divider(chunk);
    copy = pixel == 1 ? copy_bytes / bytes : 1;
    low_w = shifted ? reach_w.low : static_cast<int>(ConvAxis::floor_div(reach_w.low, copy)) * copy;
    const int need = reach_w.high - low_w + 1 + (columns - 1) * reach_w.step + shifts;
    copies = (need + copy - 1) / copy;
    const int unit = 4 / bytes, least = (copies * copy * pixel + unit - 1) / unit;  // words
    // Channels last: a warp's copies, of 16 bytes of neighbouring 8 channels, meet different banks.
    if (pixel > 1) modulus = 32, remainder = 8 * bytes / 4;
    pitch = (least + (modulus + remainder - least % modulus) % modulus) * unit;
    slots = slot_of.of_rows(rows);
    slot_pitch = (pixel == 1 ? chunk : chunk / pixel) * pitch;
    tiles_w = std::max(1, (reach_w.most + columns - 1) / columns);
    tiles_h = std::max(1, (reach_h.most + rows - 1) / rows);
    // Of instructions: some of each row, and some of each of its copies.
    const int all_rows = (rows == 1 ? slot_of.count : slots) * chunk;
    int least_work = 0;
    for (int lanes = 4; lanes <= 32; lanes *= 2) {
      const int together = kThreads / lanes,
                work = (all_rows + together - 1) / together * (35 + (copies + lanes - 1) / lanes * 15);
      if (least_work > 0 && work >= least_work) continue;
      least_work = work;
      copy_lanes = lanes;
    }
    steps = 0;
    for (int i = 0; i < plan.h.count; ++i)
      for (int j = 0; j < plan.w.count; ++j) {
        step_begin[i * plan.w.count + j] = steps;
        steps += steps_of(plan.taps(i, j) * chunk);
      }
    step_begin[plan.phases()] = steps;
  }

  /// The same tile with 8 channels of a pixel together, in pieces of an even number of columns.
  Strip turned() const {
    Strip p = *this;
    p.pixel = kStep;
    p.pitch = (copies * copy + 1) / 2 * 2 * kStep;
    p.slot_pitch = chunk / kStep * p.pitch;
    return p;
  }

  TAPEDECK_HD int tile_bytes() const { return slots * slot_pitch * bytes; }
  /// Elements of `from` that are read for each of a channel and a result of a phase: once from memory, and
  /// what tiles share once more from the cache.
  double read() const {
    const double row = copies * copy + (pixel == 1 ? 64.0 / bytes : 0);  // rows begin and end in a sector
    const double all = static_cast<double>(slots) / rows * row / columns,
                 once = static_cast<double>(slot_of.count) * reach_w.step;
    return once + 0.7 * (all - once);
  }
  /// The part of the tiles' results that exist.
  double used() const {
    return static_cast<double>(reach_h.most) / (tiles_h * rows) * reach_w.most / (tiles_w * columns);
  }
  int tiles() const { return plan.n * tiles_h * tiles_w; }
  TAPEDECK_HD Tile tile(int t) const {
    const int row = t / tiles_w, image = row / tiles_h;
    return {image, (row - image * tiles_h) * rows, (t - row * tiles_w) * columns};
  }
  /// The first column of `from` in shared memory.
  TAPEDECK_HD int first_column(const Tile& tile) const { return tile.b * reach_w.step + low_w; }
  /// The shift of the row of a channel at `column`, for an image and a channel 0 that begin `base` elements
  /// past a multiple of 16 bytes.
  TAPEDECK_HD int shift(int base, int channel, int row, int column) const {
    return (base + channel * plan.from.c + row * plan.from.h + column) & shifts;
  }
  /// The row of `from` of a slot.
  TAPEDECK_HD int row(const Tile& tile, int slot) const { return tile.a * reach_h.step + slot_of.row(slot); }

  /// Element k of phase (i, j) of a chunk, of which there are count(i, j).
  struct Element {
    int jh, jw, channel;
  };
  TAPEDECK_HD int count(int i, int j) const { return plan.taps(i, j) * chunk; }
  /// Steps for elements of k: of 16-bit types two at once.
  TAPEDECK_HD int steps_of(int elements) const {
    const int together = bytes == 2 ? 2 : 1;
    return (elements + kStep * together - 1) / (kStep * together) * together;
  }
  /// Where a channel begins in a slot.
  TAPEDECK_HD int channel_offset(int c) const {
    return pixel == 1 ? c * pitch : c / kStep * pitch + c % kStep;
  }
  /// The element of k that thread t of 4 multiplies as the first and second half of a step: channels last,
  /// neighbours.
  TAPEDECK_HD int element_of(int step, int t, int half) const {
    return step * kStep + (pixel == 1 ? t + half * (kStep / 2) : t * 2 + half);
  }
  TAPEDECK_HD Element element(int j, int k) const {
    const int tap = by_chunk.divide(k), jh = plan.taps_w[j].divide(tap);
    return {jh, plan.taps_w[j].modulo(tap, jh), by_chunk.modulo(k, tap)};
  }
  /// Its place in shared memory for result (0, 0) of the tile; past the last k one that the result has
  /// anyway.
  TAPEDECK_HD int offset(int i, int j, int k) const {
    const PhaseAxis &h = plan.h.phase[i], &w = plan.w.phase[j];
    const Element e = element(j, k < count(i, j) ? k : 0);
    return slot_of.slot(h.from + e.jh * h.tap_from_step) * slot_pitch + channel_offset(e.channel) +
           (w.from + e.jw * w.tap_from_step - low_w) * pixel;
  }
  /// And how far its row is shifted there, by how far that of channel 0 in slot 0 is.
  TAPEDECK_HD int shift_of_element(int k, int first_shift) const {
    const Element e = element(0, k < count(0, 0) ? k : 0);
    const PhaseAxis& h = plan.h.phase[0];
    const int row = h.from + e.jh * h.tap_from_step - slot_of.row(0);
    return (first_shift + e.channel * plan.from.c + row * plan.from.h) & shifts;
  }
  // Of tiles that go down rows group by group (strip_plain.cu), `slot_of.count` rows at once: element k of a
  // row is (tap along w, channel), and tap kh of result a meets row `slot % count` of group a + slot / count.
  TAPEDECK_HD int row_elements() const { return plan.w.phase[0].taps * chunk; }
  TAPEDECK_HD int row_steps() const { return steps_of(row_elements()); }
  /// Past the last k that of tap 0, of a channel whose shift is that of the thread's others.
  TAPEDECK_HD int row_offset(int k) const {
    const int tap = by_chunk.divide(k), jw = k < row_elements() ? tap : 0, c = by_chunk.modulo(k, tap);
    const PhaseAxis& w = plan.w.phase[0];
    return channel_offset(c) + (w.from + jw * w.tap_from_step - low_w) * pixel;
  }
  TAPEDECK_HD std::int64_t row_weight(int group, int chunk_index, int kh, int k, int m) const {
    return k < row_elements() ? weight(group, chunk_index, 0, 0, kh * row_elements() + k, m) : -1;
  }
  TAPEDECK_HD int tap_slot(int kh) const {
    return slot_of.slot(plan.h.phase[0].from + kh * plan.h.phase[0].tap_from_step);
  }
  TAPEDECK_HD int group_row(int q, int slot) const { return q * reach_h.step + slot_of.row(slot); }

  /// What result (a, b) of a tile adds to it.
  TAPEDECK_HD int result_offset(int a, int b) const {
    return a * slot_of.count * slot_pitch + b * reach_w.step * pixel;
  }
  /// Its weight for channel m of `to` of the group, or -1 where there is none.
  TAPEDECK_HD std::int64_t weight(int group, int chunk_index, int i, int j, int k, int m) const {
    if (k >= count(i, j) || m >= plan.to_channels) return -1;
    const Element e = element(j, k);
    const int c = chunk_index * chunk + e.channel;
    if (c >= plan.from_channels) return -1;
    const PhaseAxis &h = plan.h.phase[i], &w = plan.w.phase[j];
    return plan.weight_index(group, c, m, h.tap + e.jh * h.tap_step, w.tap + e.jw * w.tap_step);
  }

  Plan plan;
  int bytes = 4;  // of an element
  int pixel = 1;  // elements between neighbouring columns in shared memory
  int to_h = 0, to_w = 0;
  int first_to = 0;   // the column of `to` that rows begin at, 0 or a little before it
  int first_row = 0;  // and the row that columns begin at
  Reach reach_h, reach_w;
  Slots slot_of;
  int rows = 0, columns = 0;  // results of each phase of a tile
  int chunk = 0, chunks = 0;  // channels of `from` at once, and how often
  int copy = 1, copies = 0;   // elements of one copy; copies of a row
  int copy_lanes = 32;        // threads that share a row's
  int low_w = 0, pitch = 0;   // of a row of shared memory
  int shifts = 0;             // the most that a row is shifted, a power of two less one, or none
  int slots = 0, slot_pitch = 0;
  int tiles_h = 0, tiles_w = 0;
  int steps = 0, step_begin[kMaxPhases * kMaxPhases + 1] = {};
  Divider by_chunk;

 private:
  static int first_of(const PhaseAxes& axis) {
    int first = 0;
    for (int i = 0; i < axis.count; ++i) first = std::min(first, axis.phase[i].to);
    return first;
  }
};

/// The phases of an axis, those that begin at phase j's first result or behind it a step earlier: before the
/// tensor.
inline PhaseAxes begin_earlier(PhaseAxes axis, int j) {
  const int least = axis.phase[j].to;
  for (int i = 0; i < axis.count; ++i) {
    PhaseAxis& phase = axis.phase[i];
    if (phase.to < least) continue;
    phase.to -= phase.to_step;
    phase.from -= phase.from_step;
    ++phase.count;
  }
  return axis;
}

/// Lets a strip's rows begin where the results of a step see the fewest rows, up to a step before the tensor.
inline void choose_rows(Strip& p) {
  const PhaseAxes h = p.plan.h;
  for (int i = 0; i < h.count; ++i) {
    const PhaseAxes axis = begin_earlier(h, i);
    const Reach reach(axis);
    if (reach.high - reach.low < p.reach_h.high - p.reach_h.low) p.set_rows(axis);
  }
}

/// How much longer than its copying a tile of `bytes` takes, where `on_way` tiles of a multiprocessor are on
/// their way at once: memory brings 16 KB in the time until a copy's first bytes come.
inline double waiting(int bytes, int on_way) {
  return std::max(1.0, (1 + (16 << 10) / static_cast<double>(bytes)) / on_way);
}

/// What the busiest multiprocessor does for a call, from which gpu_estimate.h estimates its time.
struct StripEffort {
  double bytes = 0;     // that it reads, and in conv_transpose2d writes
  double products = 0;  // about the instructions of a warp's products
  double stages = 0;    // that a block waits for
  double copies = 0;    // to shared memory, of a thread each
  double weights = 0;   // of conv_transpose2d: that a block finds before it begins
};
/// Of so many rows (of a slot and a channel) that are copied to shared memory: bytes, where rows begin and
/// end in a sector, and copies; channels last 16 bytes of a pixel each.
inline double bytes_of_rows(const Strip& p, double rows) {
  return rows * (static_cast<double>(p.copies) * p.copy * p.bytes + (p.pixel == 1 ? 64 : 0));
}
inline double copies_of_rows(const Strip& p, double rows) {
  return rows * p.copies * (p.pixel == 1 ? 1 : p.bytes / 16.0);
}

/// Whether channels last have whole steps of channels.
inline bool channels_last_fits(const ConvTranspose2dGeometry& g) {
  return g.group_ci() % kStep == 0 && g.group_co() % kStep == 0;
}

/// The largest of 16, 8, 4, ... bytes that rows and planes of a row-major tensor of images are aligned to.
inline int copy_bytes(const void* data, std::int64_t width, int element_bytes) {
  int b = 16;
  while (b > element_bytes && (reinterpret_cast<std::uintptr_t>(data) % static_cast<unsigned>(b) != 0 ||
                               width * element_bytes % b != 0)) {
    b /= 2;
  }
  return b;
}

}  // namespace tapedeck::conv_strip
