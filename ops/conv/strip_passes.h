// Column phases of a strip (strip_plan.h) whose sums are made together, since they see nearly the same of
// `from`.
//
// A pass is some phases of which each sees, relative to a pixel, columns that the one before it sees, too:
// its shifts. Elements of k are in levels, each of whole steps: what all of the pass's phases see, then what
// all but the last see, and so on; within one (tap along h, shift, channel). So phase n has the first
// `steps(i, q, n)` steps, and nothing is multiplied by a weight that does not exist.
//
//   kernel 5, stride 3:   shifts    0    -1
//                         phase 0   w0   w3
//                         phase 1   w1   w4
//                         phase 2   w2
#pragma once

#include <tapedeck/ops/conv/strip_plan.h>

namespace tapedeck::conv_strip {

inline constexpr int kMostShifts = 8;  // of a pass

struct Passes {
  Passes() = default;
  /// Of passes of up to `most_phases`; `count` is negative where a phase has too many taps. set_tile() comes
  /// later.
  Passes(const PhaseAxes& w, int most_phases) : most(most_phases) {
    for (int j = 0; j < w.count; ++j) live += w.phase[j].taps > 0;
    int reached = 0, others = live;
    for (int taps = kMostShifts; taps >= 0; --taps)  // many first
      for (int j = 0; j < w.count; ++j) {
        if (w.phase[j].taps == taps) order[taps > 0 ? reached++ : others++] = j;
      }
    if (reached < live) {
      count = -1;
      return;
    }
    for (int at = 0; at < live; ++at) {
      const PhaseAxis& phase = w.phase[order[at]];
      bool nested = at > 0 && phases[count - 1] < most;
      for (int t = 0; nested && t < phase.taps; ++t)
        nested = tap_of(w.phase[order[at - 1]], phase.from + t * phase.tap_from_step) >= 0;
      if (!nested) first[count++] = at;
      ++phases[count - 1];
    }
    for (int q = 0; q < count; ++q)
      for (int n = most - 1; n >= 0; --n) {
        if (n < phases[q]) {
          const PhaseAxis& phase = w.phase[order[first[q] + n]];
          for (int t = 0; t < phase.taps; ++t) {
            const int at = phase.from + t * phase.tap_from_step;
            if (std::find(shift[q], shift[q] + shifts[q], at) == shift[q] + shifts[q])
              shift[q][shifts[q]++] = at;
          }
        }
        seen[q][n] = shifts[q];
      }
  }
  void set_tile(const Strip& p) {
    int all = 0;
    for (int i = 0; i < p.plan.h.count; ++i)
      for (int q = 0; q < count; ++q) {
        step_begin[i * count + q] = all;
        all += steps(p, i, q, 0);
      }
    step_begin[p.plan.h.count * count] = all;
  }

  /// The phase of a pass whose sums are at a place, or -1: places are columns where the pass is `whole`.
  TAPEDECK_HD int phase_at(const Strip& p, int q, int place) const {
    if (!whole) return place < phases[q] ? place : -1;
    for (int n = 0; n < phases[q]; ++n)
      if (p.plan.w.phase[order[first[q] + n]].to - p.first_to == place) return n;
    return -1;
  }

  TAPEDECK_HD int all_steps(const Strip& p) const { return step_begin[p.plan.h.count * count]; }
  /// Of phase n of a pass; 0 where it has none such.
  TAPEDECK_HD int steps(const Strip& p, int i, int q, int n) const {
    int sum = 0, before = 0;
    for (int level = most - 1; level >= n; --level) {
      sum += p.steps_of(p.plan.h.phase[i].taps * (seen[q][level] - before) * p.chunk);
      before = seen[q][level];
    }
    return n < phases[q] ? sum : 0;
  }
  /// An element of k: the row's tap of its phase, a column relative to the pixel, a channel of `from`; jh is
  /// -1 past a level's last.
  struct Element {
    int jh, shift, channel;
  };
  /// `e`: of the pass's elements, of which a step has kStep.
  TAPEDECK_HD Element element(const Strip& p, int i, int q, int e) const {
    const int taps = p.plan.h.phase[i].taps;
    int before = 0;
    for (int level = most - 1; level >= 0; --level) {
      const int some = seen[q][level] - before, count_here = taps * some * p.chunk,
                padded = p.steps_of(count_here) * kStep;
      if (e < count_here) {
        const int tap = e / p.chunk, jh = tap / some;
        return {jh, shift[q][before + tap - jh * some], e - tap * p.chunk};
      }
      if (e < padded) break;
      e -= padded;
      before = seen[q][level];
    }
    return {-1, shift[q][0], 0};
  }
  /// Where it is in shared memory for result (0, 0) of a tile; past a level's last what all phases see.
  TAPEDECK_HD int offset(const Strip& p, int i, const Element& e) const {
    const PhaseAxis& h = p.plan.h.phase[i];
    return p.slot_of.slot(h.from + (e.jh < 0 ? 0 : e.jh) * h.tap_from_step) * p.slot_pitch +
           p.channel_offset(e.channel) + (e.shift - p.low_w) * p.pixel;
  }
  /// Its weight for phase n of the pass and channel m of `to` of a group, or -1 where there is none.
  TAPEDECK_HD std::int64_t weight(const Strip& p, int group, int i, int q, int n, const Element& e,
                                  int m) const {
    if (n >= phases[q] || e.jh < 0 || m >= p.plan.to_channels || e.channel >= p.plan.from_channels) return -1;
    const int j = order[first[q] + n];
    const PhaseAxis &h = p.plan.h.phase[i], &w = p.plan.w.phase[j];
    const int tap = tap_of(w, e.shift);
    if (tap < 0) return -1;
    return p.plan.weight_index(group, e.channel, m, h.tap + e.jh * h.tap_step, w.tap + tap * w.tap_step);
  }
  int most = 1;                                         // phases, or places, of a pass
  bool whole = false;                                   // one pass, of a place for each column of a step
  int count = 0;                                        // of passes
  int live = 0;                                         // phases that taps reach, which come first in `order`
  int order[kMaxPhases] = {};                           // of column phases
  int first[kMaxPhases] = {}, phases[kMaxPhases] = {};  // of a pass, in `order`
  int shifts[kMaxPhases] = {};                          // of a pass
  int seen[kMaxPhases][kMaxPhases] = {};                // shifts of its phases
  int shift[kMaxPhases][kMostShifts] = {};
  int step_begin[kMaxPhases * kMaxPhases + 1] = {};  // of row phase i and pass q: i * count + q

 private:
  /// The phase's tap that brings a column, relative to the pixel, or -1.
  TAPEDECK_HD static int tap_of(const PhaseAxis& w, int column) {
    const int way = column - w.from, tap = way / w.tap_from_step;
    return tap * w.tap_from_step == way && tap >= 0 && tap < w.taps ? tap : -1;
  }
};

/// The passes of a strip that need the fewest sums, of up to `most` phases, or as many as suit it. The
/// strip's rows then begin where phases see the fewest columns, up to a stride before the tensor's.
inline Passes choose_passes(Strip& p, int most) {
  const PhaseAxes& w = p.plan.w;
  const auto sums = [&](const Passes& passes) {
    int all = 0;
    for (int q = 0; q < passes.count; ++q) all += passes.shifts[q] * 4 + most;
    return passes.count < 0 ? 1 << 30 : all;
  };
  Passes best(w, most);
  PhaseAxes best_axes = w;
  for (int j = 0; j < w.count; ++j) {
    const PhaseAxes axes = begin_earlier(w, j);
    const Passes passes(axes, most);
    if (sums(passes) >= sums(best)) continue;
    best = passes;
    best_axes = axes;
  }
  p.set_columns(best_axes);
  return best;
}

/// The same of as many phases as suit it.
inline Passes choose_passes(Strip& p) {
  int live = 0;
  for (int j = 0; j < p.plan.w.count; ++j) live += p.plan.w.phase[j].taps > 0;
  return choose_passes(p, live == 4 || live > 6 ? 2 : std::clamp(live, 1, 3));
}

inline constexpr int kMostPlaces = 5;

/// The same where one pass can be of all columns of a step, those without taps, too.
inline Passes choose_whole_passes(Strip& p) {
  const int step = p.plan.w.phase[0].to_step;
  int live = 0;
  for (int j = 0; j < p.plan.w.count; ++j) live += p.plan.w.phase[j].taps > 0;
  if (step <= kMostPlaces && live > 0) {
    Strip whole = p;
    Passes passes = choose_passes(whole, live);
    if (passes.count == 1) {
      passes.most = step;
      passes.whole = true;
      p = whole;
      return passes;
    }
  }
  return choose_passes(p);
}

}  // namespace tapedeck::conv_strip
