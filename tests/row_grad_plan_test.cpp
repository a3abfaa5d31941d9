// The weight's gradient over rows without a GPU: what the kernel computes from conv_gemm::RowGradPlan, in
// plain loops, against the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include <tapedeck/ops/conv/row_grad_plan.h>

#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

/// Images and what the tensor memory accelerator brings of them.
struct Brought {
  const Values& images;
  const RowBoxes& boxes;
  int channels, n;

  /// Element `at` of row i of a tile of `rows` channels from `channel` on, which begins at (image, row,
  /// column); 0 outside of the map.
  double operator()(int image, int channel, int rows, int row, int column, int i, int at) const {
    const int of_box = rows / boxes.apart, b = i / of_box;
    const int begin = RowBoxes::aligned(boxes.first(b, row, column));
    EXPECT_EQ(begin % RowBoxes::kAligned, 0);
    const std::int64_t first = std::int64_t{begin} + at, second = boxes.second(row),
                       third = channel / boxes.apart + i % of_box, plane = boxes.height * boxes.width,
                       row_size = boxes.flat ? boxes.apart * plane : boxes.width,
                       second_size = boxes.flat ? 1 : boxes.height;
    if (first < 0 || first >= row_size || second < 0 || second >= second_size || third < 0 ||
        third >= channels / boxes.apart || image < 0 || image >= n)
      return 0;
    return images[static_cast<std::size_t>((image * (channels / boxes.apart) + third) * boxes.apart * plane +
                                           second * boxes.width + first)];
  }
};

/// A tile of x: rows outside of the image are zeros.
struct XTile {
  int image = -1, row = 0, column = 0;
  bool exists = false;
  bool operator==(const XTile&) const = default;
};

/// Sums of some rows of tiles are computed. Returns whether there was a plan.
bool check(const ConvCase& c, ConvRandom& random) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  RowGradPlan p = best_row_plan(g, random.chance(50));
  if (!p.exists()) return false;
  // Small rings and few blocks go round more often.
  if (random.chance(50)) p.stages = p.parts + 3, p.splits = std::min(p.splits, 2);
  EXPECT_LE(p.shared_bytes(), kMostRowBytes);
  EXPECT_LE(p.warpgroups * p.parts, row_grad_warpgroups(p.columns(), p.are_float));
  EXPECT_LE(p.stages, kMostRowStages);
  EXPECT_EQ(p.x_bytes() % 1024, 0);
  EXPECT_EQ(p.y_begin() % 128, 0);
  EXPECT_EQ(p.y_bytes % 128, 0);
  EXPECT_LE(p.y_columns, kMostOfBox);
  EXPECT_TRUE(p.x.apart == 1 && !p.x.flat);  // as the kernel has it
  EXPECT_GE(p.x_rows, 8);
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count()),
               expected = define_w(c, x, y);
  const Brought x_of{x, p.x, static_cast<int>(c.ci), p.n}, y_of{y, p.y, static_cast<int>(c.co), p.n};
  std::vector<int> written(expected.size(), 0);
  for (int index = 0; index < p.works(); ++index) {
    const RowGradPlan::Work work = p.work(index);
    const int x_channel = work.group * p.ci + work.x_channel, y_channel = work.group * p.co + work.y_channel;
    const auto rows_of = [&](int rows) {
      std::set<int> some = {0, rows - 1};
      for (int i = 0; i < 2; ++i) some.insert(static_cast<int>(random.in(0, rows - 1)));
      return some;
    };
    const std::set<int> x_rows = rows_of(p.x_rows), y_rows = rows_of(p.y_rows);
    // Sums by [unit][row of y][block of columns][row of x].
    const int units = 4 * p.warpgroups;
    std::vector<double> sums(static_cast<std::size_t>(units * 16 * p.columns()), 0.0);
    const auto sum_at = [&](int unit, int row, int column) -> double& {
      return sums[static_cast<std::size_t>((unit * 16 + row) * p.columns() + column)];
    };
    for (int split = 0; split < p.splits; ++split) {
      std::vector<XTile> ring(static_cast<std::size_t>(p.x_slots() + p.taps - 1));
      std::vector<XTile> before;  // of the item
      int step = 0, item_image = -1, item_column = -1;
      for (RowGradPlan::Steps at(p, work.kh, split); at.exist(); at.next(), ++step) {
        const XTile tile{at.image, at.x_row(), at.column, at.x_exists()};
        if (at.image != item_image || at.column != item_column || before.back().row + p.x_step != tile.row)
          before.clear();
        item_image = at.image, item_column = at.column;
        before.push_back(tile);
        const int slot = step % p.x_slots();
        ring[static_cast<std::size_t>(slot)] = tile;
        if (p.is_twice(slot)) ring[static_cast<std::size_t>(slot + p.x_slots())] = tile;
        if (!at.y_exists()) continue;
        EXPECT_GE(before.size(), static_cast<std::size_t>(p.taps));
        for (int j = 0; j < p.taps; ++j) {
          const XTile& from = ring[static_cast<std::size_t>(p.x_window(step) + j)];
          EXPECT_EQ(from, before[before.size() - static_cast<std::size_t>(p.taps - j)]);
          if (::testing::Test::HasFailure()) return true;
          if (!from.exists) continue;
          for (int u = 0; u < units; ++u) {
            const RowGradPlan::Unit unit = p.unit(work.unit + u);
            const int first = p.first_pixel(at.column, unit.kw), past = p.past_pixel(at.column, unit.kw),
                      shift = p.shift(at, unit);
            for (const int i : y_rows) {
              if (i < unit.row || i >= unit.row + kUnitChannels) continue;
              for (int k = first; k < past; ++k) {
                const double of_y =
                    y_of(at.image, y_channel, p.y_rows, at.y_row(), at.column - p.padding_w, i, k + shift);
                EXPECT_LT(k + shift, p.y_columns);
                EXPECT_EQ(unit.box, i / (p.y_rows / p.y.apart));
                for (const int m : x_rows)
                  sum_at(u, i - unit.row, j * p.x_rows + m) +=
                      of_y * x_of(at.image, from.exists ? x_channel : static_cast<int>(c.ci), p.x_rows,
                                  from.row, at.column, m, k);
              }
            }
          }
        }
      }
    }
    for (int u = 0; u < units; ++u) {
      const RowGradPlan::Unit unit = p.unit(work.unit + u);
      if (!unit.exists) continue;
      for (int j = 0; j < p.taps; ++j) {
        const int t = p.row_tap(j);
        if (t >= work.taps) continue;
        const int kh = work.kh + t * p.kh_step;
        EXPECT_LT(kh, p.kernel_h);
        for (int row = 0; row < kUnitChannels; ++row)
          for (int m = 0; m < p.x_rows; ++m) {
            const int co = work.y_channel + p.y.channel(unit.row + row, p.y_rows), ci = work.x_channel + m;
            if (co >= p.co || ci >= p.ci) continue;
            const auto i = static_cast<std::size_t>(
                (((std::int64_t{work.group} * p.ci + ci) * p.co + co) * p.kernel_h + kh) * p.kernel_w +
                unit.kw);
            ++written[i];
            if (y_rows.contains(unit.row + row) && x_rows.contains(m)) {
              EXPECT_EQ(sum_at(u, row, j * p.x_rows + m), expected[i]) << "element " << i;
            }
            if (::testing::Test::HasFailure()) return true;
          }
      }
    }
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    EXPECT_EQ(written[i], 1) << "element " << i;
    if (::testing::Test::HasFailure()) return true;
  }
  return true;
}

TEST(RowGradPlan, EveryProductOnce) {
  ConvRandom random(51);
  int plans = 0, flat = 0, narrow = 0, strided = 0;
  for (int i = 0; i < 400 / kFewer; ++i) {
    ConvCase c = random.conv_case(6, 1);
    c.n = random.in(1, 2), c.groups = random.chance(70) ? 1 : 2;
    c.ci = c.groups * (random.chance(50) ? 8 * random.in(2, 5) : random.in(16, 70));
    c.co = c.groups * (random.chance(50) ? 8 * random.in(2, 10) : random.in(16, 40));
    c.in[1] = 8 * random.in(4, random.chance(50) ? 9 : 17);
    c.stride[1] = 1, c.output_padding[1] = 0;
    if (random.chance(20)) c.kernel[1] = random.in(5, 9);
    if (random.chance(10)) c.kernel[0] = 1, c.padding[0] = 0, c.dilation[0] = random.in(5, 1 << 27);
    c.padding[1] = random.in(0, c.dilation[1] * (c.kernel[1] - 1));
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    if (c.x_count() * c.w_count() > 300000000) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    if (!check(c, random)) continue;
    if (::testing::Test::HasFailure()) return;
    const RowGradPlan p = best_row_plan(geometry_of(c));
    EXPECT_LE(p.columns_of_rows() / p.strips, c.n * c.in[0]) << "phases that have rows";
    ++plans, flat += p.y.flat ? 1 : 0, narrow += p.x_rows == 32 ? 1 : 0;
    strided += p.x_step > 1 || p.kh_step > 1 ? 1 : 0;
  }
  if (kSanitized) return;  // too few to be of all kinds
  EXPECT_GT(plans, 100);
  EXPECT_GT(flat, 30);
  EXPECT_GT(narrow, 30);
  EXPECT_GT(strided, 30);
}

TEST(RowGradPlan, TilesFitSharedMemory) {
  ConvRandom random(52);
  int plans = 0;
  for (int i = 0; i < 5000; ++i) {
    ConvCase c = random.conv_case(100, 20, 8);
    c.in[1] = 8 * random.in(4, 40), c.stride[1] = 1;
    const ConvTranspose2dGeometry g = geometry_of(c);
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    const RowGradPlan p = best_row_plan(g, i % 2 == 1);
    if (!p.exists()) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    ++plans;
    ASSERT_EQ(p.float_slots > 1, p.are_float);
    ASSERT_EQ(p.floats_begin() % 128, 0);
    ASSERT_EQ(p.floats_bytes() % 128, 0);
    ASSERT_LE(p.shared_bytes(), kMostRowBytes);
    ASSERT_GE(p.units * p.unit_tiles, 1);
    ASSERT_GE(p.unit_tiles * 4 * p.warpgroups, p.units);
    ASSERT_LE(p.splits, p.items());
    ASSERT_GE(p.stages, p.parts + 3);  // those that a part holds back, and some ahead
    std::vector<int> taken(static_cast<std::size_t>(p.y_bytes / 2), 0);
    for (int row = 0; row < p.y_rows; ++row)
      for (int k = 0; k < p.y_columns; ++k) {
        ASSERT_LT(p.y_place(row) / 2 + k, p.y_bytes / 2);
        ASSERT_EQ(taken[static_cast<std::size_t>(p.y_place(row) / 2 + k)]++, 0);
      }
    // A warp's words of eight rows are in as many banks, where boxes have eight.
    for (int row = 0; row < p.y_rows && p.y_rows / p.y.apart % 8 == 0; row += 8) {
      std::set<int> banks;
      for (int lane = 0; lane < 32; ++lane) banks.insert((p.y_place(row + lane / 4) / 4 + lane % 4) % 32);
      ASSERT_EQ(banks.size(), 32u);
    }
  }
  EXPECT_GT(plans, 1000);
}

}  // namespace
}  // namespace tapedeck::test
