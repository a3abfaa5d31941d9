// Which plan and tile products over boxes have, without a GPU: that kernels can take each, and that it is
// found again.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include <tapedeck/core/error.h>
#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/box_choice.h>

#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

// Each way has a name of its own, by which it is found, and the best of all is the one that is chosen.
TEST(ConvBoxChoice, WaysHaveNames) {
  int ways = 0;
  for (const int channels : {8, 32, 64, 144})
    for (const std::int64_t stride : {1, 2})
      for (const bool transposed : {false, true})
        for (const BoxResults results : {BoxResults::pixels, BoxResults::rows, BoxResults::boxes}) {
          const ConvAxis axis{40, 40 * stride, 2 + stride, stride, 1, 1};
          const ConvTranspose2dGeometry g{.n = 32, .ci = channels, .co = 64, .h = axis, .w = axis};
          for (const bool gathers : {false, true}) {
            if (gathers && have_channels_last(results)) continue;
            SCOPED_TRACE(concat(channels, " channels, stride ", stride, ", transposed ", transposed,
                                ", results ", static_cast<int>(results), ", gathers ", gathers));
            std::set<std::string> names;
            double least = 1e30;
            for (const BoxWay& way : box_ways(g, transposed, 2, 1, results, 2, gathers)) {
              ASSERT_TRUE(names.insert(way.tiling().to_string()).second) << way.tiling().to_string();
              const BoxWay known = known_box_way(g, transposed, 2, 1, results, 2, gathers, way.tiling());
              ASSERT_EQ(known.tiling(), way.tiling());
              ASSERT_EQ(known.choice.tile.rows, way.choice.tile.rows);
              ASSERT_EQ(known.choice.shared_bytes, way.choice.shared_bytes);
              least = std::min(least, way.choice.clocks);
              ++ways;
            }
            const BoxWay best = known_box_way(g, transposed, 2, 1, results, 2, gathers);
            ASSERT_EQ(best.choice.places > 0, !names.empty());
            if (best.choice.places == 0) continue;
            EXPECT_EQ(names.count(best.tiling().to_string()), 1u);
            if (results != BoxResults::pixels) {
              EXPECT_EQ(best.choice.clocks, least);
            }
            EXPECT_EQ(known_box_way(g, transposed, 2, 1, results, 2, gathers, {1, 2, 3}).choice.places, 0);
          }
        }
  EXPECT_GT(ways, 2000);
}

// Phases of columns that are swapped are next to each other, in either order, and of as much work.
TEST(ConvBoxChoice, SwapsPhasesThatAreTwins) {
  const auto plan = [](Size2 kernel, std::int64_t padding, std::int64_t output_padding, std::int64_t stride,
                       std::int64_t co = 64, std::int64_t groups = 1, bool transposed = true) {
    const ConvTranspose2dOptions options{
        .stride = stride, .padding = padding, .output_padding = output_padding, .groups = groups};
    return BoxPlan(
        conv_transpose2d_geometry(Tensor::empty({4, 64, 8, 8}),
                                  Tensor::empty({64, co / groups, kernel.h, kernel.w}), {}, options),
        transposed, 2);
  };
  for (const auto& [kernel, padding] : {std::pair(2, 0), {4, 0}, {4, 1}, {6, 2}}) {
    const BoxPlan p = plan({kernel, kernel}, padding, 0, 2);
    EXPECT_TRUE(can_swap(p)) << kernel << " padding " << padding;
    EXPECT_EQ(p.w.to[0], padding % 2) << kernel << " padding " << padding;
  }
  EXPECT_TRUE(can_swap(plan({3, 4}, 1, 0, 2)));
  EXPECT_FALSE(can_swap(plan({4, 3}, 1, 1, 2))) << "taps differ";
  EXPECT_FALSE(can_swap(plan({4, 4}, 1, 1, 2))) << "columns differ";
  EXPECT_FALSE(can_swap(plan({4, 4}, 1, 0, 1))) << "one phase";
  EXPECT_FALSE(can_swap(plan({4, 4}, 0, 0, 4))) << "four phases";
  EXPECT_FALSE(can_swap(plan({4, 4}, 1, 0, 2, 32))) << "copies of channels";
  EXPECT_FALSE(can_swap(plan({4, 4}, 1, 0, 2, 67))) << "half a pair";
  EXPECT_FALSE(can_swap(plan({4, 4}, 1, 0, 2, 72 * 2, 2))) << "a warp has channels of two groups";
  EXPECT_FALSE(can_swap(plan({4, 4}, 1, 0, 2, 64, 1, false))) << "x, which has no phases";
}

// What the kernel relies on, for plans of all sizes.
TEST(ConvBoxChoice, ChoicesFitAMultiprocessor) {
  ConvRandom random(45);
  int chosen = 0, turns = 0, splits = 0, swapped = 0, runs = 0;
  for (int i = 0; i < 3000; ++i) {
    const ConvCase c = random.conv_case(i % 4 == 0 ? 300 : i % 4 == 1 ? 70 : 12, i % 2 == 0 ? 20 : 300);
    const ConvTranspose2dGeometry g = geometry_of(c);
    if (!fits(g)) continue;
    for (bool transposed : {true, false}) {
      SCOPED_TRACE("case " + std::to_string(i) + (transposed ? " transposed: " : " plain: ") + c.text());
      const auto split = static_cast<BoxSplit>(i % 11 % 3);
      const BoxJoin join = split != BoxSplit::none || i % 5 > 3 ? BoxJoin::none
                           : i % 5 >= 2                         ? BoxJoin::all
                                                                : BoxJoin::columns;
      const BoxPlan p(g, transposed, i % 2 == 0 ? 2 : 4, join, split);
      if (p.planes() > kMaxPlanes) continue;
      const bool are_runs = ResultRuns::exist(p);
      if (p.joined() == 4 && !are_runs) continue;
      for (int places : {64, 80, 96, 112, 128, 144, 160, 192, 208, 224, 240, 256})
        for (const auto& [blocks, in_turns] : {std::pair(1, false), {2, false}, {1, true}}) {
          const int parts = i % 3 == 0 && i % 2 == 0 ? 2 : 1;
          const bool swaps = can_swap(p) && i % 3 > 0 && places_can_swap(places, i % 2 == 0 ? 2 : 4);
          const auto results = are_runs ? BoxResults::runs
                               : swaps  ? BoxResults::swapped
                                        : static_cast<BoxResults>(i % 7);
          if (are_folds(results) && (p.joined() != 1 || p.w.to_step != 1)) continue;
          if (places > most_places(parts, p.joined())) continue;
          if (in_turns && !can_take_turns(p, parts, results)) continue;
          const int slots = i % 2 == 0 && i % 7 > 1 && i % 13 < 6 && can_gather(p, 1, 2) ? kSlots[i % 3] : 0;
          const BoxChoice choice =
              box_choice(p, places, blocks, parts, results, i % 2 == 0 ? 2 : 4, in_turns, slots);
          if (choice.places == 0) continue;
          turns += in_turns ? 1 : 0;
          swapped += swaps ? 1 : 0;
          runs += are_runs ? 1 : 0;
          ++chosen;
          ASSERT_GE(choice.box_stages, 2);
          ASSERT_GE(choice.weight_stages, 2);
          ASSERT_LE(choice.weight_stages, kMostStages);
          const BoxTile& t = choice.tile;
          ASSERT_LE(t.places(), (choice.halves() - 1) * choice.half + places);
          ASSERT_LE(t.pitch, kMostOfBox);
          ASSERT_LE(t.box_rows, kMostOfBox);
          ASSERT_LE(t.images, kMostOfBox);
          ASSERT_GE(choice.box_bytes, t.pixels() * kPixelBytes);
          ASSERT_EQ(choice.box_bytes % 1024, 0);
          ASSERT_LE(choice.shared_bytes, kMostSharedBytes);
          ASSERT_LE(
              parts * (choice.box_stages * choice.box_bytes + choice.weight_stages * blocks * kBlockBytes) +
                  choice.staged_bytes + places_bytes(choice.results, places) + gather_bytes(slots),
              kMostSharedBytes);
          // A warpgroup that leads needs no stage that the other one has to give back. One that has its turn
          // needs none, and does not split sums.
          ASSERT_EQ(choice.lead == 0, in_turns);
          if (in_turns) {
            ASSERT_EQ(choice.splits, 1);
          }
          ASSERT_LE(choice.lead, choice.weight_stages);
          if (choice.tiles <= 132) {
            ASSERT_LE(choice.lead, 1);
          }
          for (int a = 0; a < p.h.phases * p.h.reads; a += p.joined_h)
            for (int b = 0; b < p.w.phases * p.w.reads; b += p.joined_w) {
              const int of_box = p.taps_of_box({a, b, 0, 0, 0});
              if (of_box > 0) {
                ASSERT_LE(count(choice.lead, of_box), choice.box_stages);
              }
            }
          ASSERT_GE(choice.splits, 1);
          int most_boxes = 1;
          for (int phase = 0; phase < p.phases(); ++phase) most_boxes = std::max(most_boxes, p.boxes(phase));
          ASSERT_LE(choice.splits, most_boxes);
          ASSERT_GT(choice.tiles, 0);
          ASSERT_TRUE(std::isfinite(choice.clocks));
          if (swaps) {
            // Blocks in pairs; what a warp is sent is no more than the box that comes there.
            ASSERT_EQ(choice.tiles % 2, 0);
            ASSERT_EQ(choice.splits, 1);
            ASSERT_GE(choice.staged_bytes / 8, 32 * places / 8 * (i % 2 == 0 ? 4 : 8));
            ASSERT_EQ(choice.staged_bytes / 8 % 128, 0);
            ASSERT_LE(2 * t.pitch, kMostOfBox);
          }
          if (are_runs) {
            // Runs of all of a warp's channels: all results of its places.
            ASSERT_EQ(choice.splits, 1);
            ASSERT_GE(t.columns, p.w.most());
            const int rows = t.halves_are_of_rows() ? t.rows / choice.halves() : 1,
                      images = t.halves_are_of_rows() ? t.images : t.images / choice.halves();
            const int of_warp = channel_copies(p.to_channels) == 1 ? 16 : 8;
            ASSERT_GE(choice.staged_bytes / 8, of_warp * images * 2 * rows * g.w.out * (i % 2 == 0 ? 2 : 4));
            ASSERT_EQ(choice.staged_bytes / 8 % 16, 0);
          }
          if (choice.splits > 1) {
            ++splits;
            ASSERT_LE(choice.tiles * choice.splits, 132);
          }
        }
    }
  }
  EXPECT_GT(chosen, 1000);
  EXPECT_GT(turns, 1000);
  EXPECT_GT(splits, 100);
  EXPECT_GT(swapped, 50);
  EXPECT_GT(runs, 20);
}

/// A way in numbers: what differs where its plan or its choice does (of tiles in turns, the lead).
std::vector<double> numbers_of(const BoxWay& way) {
  const BoxPlan& p = way.plan;
  const BoxChoice& c = way.choice;
  const BoxTile& t = c.tile;
  std::vector<double> numbers = {c.clocks, static_cast<double>(c.tiles)};
  for (const int n : {c.places,       c.blocks,
                      c.box_stages,   c.weight_stages,
                      c.lead,         c.splits,
                      c.box_bytes,    c.shared_bytes,
                      c.staged_bytes, c.half,
                      t.images,       t.rows,
                      t.columns,      t.pitch,
                      t.box_rows,     p.n,
                      p.groups,       p.from_channels,
                      p.from_h,       p.to_channels,
                      p.from_w,       p.elements,
                      p.vectors,      p.chunks,
                      p.joined(),     static_cast<int>(p.split),
                      p.weights,      static_cast<int>(c.results),
                      way.fold.x,     way.fold.y,
                      int{p.folded},  p.is_narrow ? 1 : 0,
                      c.slots})
    numbers.push_back(n);
  for (int i = 0; i < kMaxReads; ++i)
    for (const int n : {int{p.steps_from[i]}, int{p.steps_to[i]}}) numbers.push_back(n);
  for (const BoxAxis* a : {&p.h, &p.w}) {
    for (const int n : {a->phases, a->planes, a->to_step, a->step, a->reads, a->taps}) numbers.push_back(n);
    for (int i = 0; i < kMaxPhases; ++i)
      for (const int n : {a->count[i], a->to[i], int{a->of_phase[i]}, a->taps_of[i]}) numbers.push_back(n);
    for (const BoxTaps& taps : a->of)
      for (const int n : {taps.taps, taps.tap, taps.tap_step, taps.origin, taps.shift, taps.first,
                          int{taps.plane}, int{taps.remainder}, taps.before})
        numbers.push_back(n);
  }
  return numbers;
}

// Questions that differ from one asked before in one number only, more than are remembered.
TEST(ConvBoxChoice, WaysAreRememberedAsTheyWere) {
  struct Question {
    ConvTranspose2dGeometry g;
    bool transposed;
    int bytes, parts;
    BoxResults results;
    int value_bytes;
    bool gathers;
  };
  ConvRandom random(46);
  std::vector<Question> asked;
  int ways = 0;
  for (int i = 0; i < 12000 / kFewer; ++i) {
    Question q{geometry_of(random.conv_case(i % 3 == 0 ? 60 : 12, i % 2 == 0 ? 8 : 200)),
               i % 2 == 0,
               2,
               1,
               static_cast<BoxResults>(i % 4),
               4,
               i % 8 < 4};
    if (i % 4 != 0 && !asked.empty()) q = asked[static_cast<std::size_t>(random.in(0, 80)) % asked.size()];
    std::int64_t* const numbers[] = {&q.g.n,         &q.g.ci,         &q.g.co,        &q.g.groups,
                                     &q.g.h.in,      &q.g.h.out,      &q.g.h.kernel,  &q.g.h.stride,
                                     &q.g.h.padding, &q.g.h.dilation, &q.g.w.in,      &q.g.w.out,
                                     &q.g.w.kernel,  &q.g.w.stride,   &q.g.w.padding, &q.g.w.dilation};
    const int change = i % 4 == 0 ? 0 : static_cast<int>(random.in(0, 23));
    if (change == 1) q.transposed = !q.transposed;
    if (change == 2) q.bytes = 6 - q.bytes;
    if (change == 3) q.parts = 3 - q.parts;
    if (change == 4) q.results = static_cast<BoxResults>((static_cast<int>(q.results) + 1) % 4);
    if (change == 5) q.value_bytes = 6 - q.value_bytes;
    if (change == 6) q.gathers = !q.gathers;
    if (change >= 8) *numbers[change - 8] += change == 11 ? q.g.groups : 1;
    if (q.g.ci % q.g.groups != 0 || q.g.co % q.g.groups != 0 || !fits(q.g)) continue;
    SCOPED_TRACE("question " + std::to_string(i) + ", change " + std::to_string(change));
    for (int again = 0; again < 2; ++again) {
      const BoxWay known = known_box_way(q.g, q.transposed, q.bytes, q.parts, q.results, q.value_bytes,
                                         q.gathers),
                   computed = best_folded_box_way(q.g, q.transposed, q.bytes, q.parts, q.results,
                                                  q.value_bytes, q.gathers);
      ASSERT_EQ(numbers_of(known), numbers_of(computed));
      ways += known.choice.places > 0 ? 1 : 0;
    }
    if (asked.size() < 81) {
      asked.push_back(q);
    } else {
      asked[static_cast<std::size_t>(i) % asked.size()] = q;
    }
  }
  EXPECT_GT(ways, 1000 / kFewer);
}

// Tiles of nchw end where sectors of memory do, if rows begin at some, or are wide; else parts of rows are
// long.
TEST(ConvBoxChoice, CutsRowsAtSectors) {
  int parts_of_rows = 0, cut = 0;
  for (std::int64_t width = 200; width <= 1100; width += 6)
    for (const std::int64_t stride : {1, 2})
      for (const int parts : {1, 2})
        for (const int bytes : {2, 4}) {
          if (parts == 2 && bytes == 2) continue;
          const ConvAxis axis{width / stride, width / stride * stride, 2 + stride, stride, 1, 1};
          const ConvTranspose2dGeometry g{.n = 16, .ci = 64, .co = 64, .h = axis, .w = axis};
          const BoxWay way = best_box_way(g, true, 2, parts, BoxResults::pairs, bytes);
          ASSERT_GT(way.choice.places, 0);
          const BoxPlan& p = way.plan;
          const int of_column = bytes * p.joined(), part = way.choice.tile.columns * of_column;
          SCOPED_TRACE(concat(width, " stride ", stride, " parts ", parts, " bytes ", bytes, ": ", part));
          EXPECT_EQ(p.w.to_step, p.joined());
          if (way.choice.tile.columns >= p.w.most()) continue;
          ++parts_of_rows;
          if (g.w.out * bytes % kSectorBytes == 0) {
            EXPECT_TRUE(part % kSectorBytes == 0 || part > 8 * kSectorBytes);
            cut += part % kSectorBytes == 0 ? 0 : 1;
          } else {
            EXPECT_GE(part, 3 * kSectorBytes);
          }
        }
  EXPECT_GT(parts_of_rows, 500);
  EXPECT_LT(cut, 10);
}

// What writes results of folded columns, and what estimates that, goes by the plan's.
TEST(ConvBoxChoice, PlansOfFoldsSayHowManyColumnsAreOne) {
  int folded = 0, unfolded = 0;
  for (const int channels : {8, 16, 32, 64})
    for (const std::int64_t stride : {1, 2})
      for (const bool transposed : {false, true})
        for (const BoxResults results : {BoxResults::channels, BoxResults::pairs, BoxResults::boxes})
          for (const int bytes : {2, 4}) {
            const ConvAxis axis{64, 64 * stride, 2 + stride, stride, 1, 1};
            const ConvTranspose2dGeometry g{.n = 32, .ci = channels, .co = channels, .h = axis, .w = axis};
            const BoxWay way = best_folded_box_way(g, transposed, bytes, 1, results, bytes);
            SCOPED_TRACE(concat(channels, " channels, stride ", stride, ", transposed ", transposed,
                                ", results ", static_cast<int>(results), ", bytes ", bytes));
            ASSERT_GT(way.choice.places, 0);
            const int columns = way.fold.exists() ? (transposed ? way.fold.y : way.fold.x) : 1;
            EXPECT_EQ(int{way.plan.folded}, columns);
            EXPECT_EQ(way.plan.to_channels, channels * columns);
            ++(columns > 1 ? folded : unfolded);
          }
  EXPECT_GT(folded, 10);
  EXPECT_GT(unfolded, 10);
}

}  // namespace
}  // namespace tapedeck::test
