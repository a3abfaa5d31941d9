// Weight gradients over boxes without a GPU: what the kernel computes from conv_gemm::BoxGradPlan, in plain
// loops, against the definition. The rest of shared memory is zero.
#include <gtest/gtest.h>

#include <functional>

#include <tapedeck/ops/conv/box_grad_plan.h>

#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

/// A box of one channel in shared memory: what comes past its rows is zero, or what a slice has too much.
Values grad_box(const BoxTile& t, int bytes, const std::function<double(int, int, int)>& pixel) {
  Values box;
  for (int y = 0; y < t.slices() * t.slice(); ++y)
    for (int a = 0; a < t.images; ++a)
      for (int x = 0; x < t.pitch; ++x) box.push_back(pixel(a, y, x));
  EXPECT_EQ(box.size(), static_cast<std::size_t>(t.pixels()));
  EXPECT_LE(t.pixels() * kPixelBytes, bytes);
  box.resize(static_cast<std::size_t>(bytes / kPixelBytes), 0.0);
  return box;
}

void check_weight_grad(const ConvCase& c, ConvRandom& random, const BoxGradPlan& p) {
  ASSERT_TRUE(fits(geometry_of(c)));
  if (!p.exists()) return;
  const int most_bytes = p.most_bytes, parts = p.parts;
  const BoxPlan& planes = p.planes;
  ASSERT_LE(2 * p.stage_bytes(), most_bytes);
  ASSERT_LE(p.atoms, most_grad_atoms(parts));
  ASSERT_LE(p.units * p.x_blocks, grad_warpgroups(p.atoms, parts));
  const std::int64_t ci = c.ci / c.groups, co = c.co / c.groups;
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count()),
               expected = define_w(c, x, y);
  Values w(expected.size(), -1e9);
  std::vector<int> written(expected.size(), 0);
  for (int index = 0; index < p.works(); ++index) {
    const BoxGradPlan::Work work = p.work(index);
    const BoxTaps &of_h = planes.h.of[work.i], &of_w = planes.w.of[work.j];
    const auto channels = [&](int block, std::int64_t all) {
      return std::max<std::int64_t>(
          0, std::min<std::int64_t>(kBlockChannels, all - std::int64_t{block} * kBlockChannels));
    };
    for (int x_block = work.x_block; x_block < work.x_block + p.x_blocks; ++x_block)
      for (int u = 0; u < p.units; ++u) {
        const BoxGradPlan::Unit unit = p.unit(work, u);
        for (int a = 0; a < p.atoms; ++a) {
          const BoxGradPlan::Atom atom = p.atom(work, unit, a);
          if (a == p.atoms - 1 && p.is_narrow(unit)) {  // is not multiplied
            ASSERT_FALSE(atom.exists);
            continue;
          }
          // Those that do not exist are multiplied, too.
          const bool in_box = p.atoms_are_taps && !p.tile.of_taps;  // atoms of a row share a box
          const int at_tap = p.place(work, unit) + (in_box ? a * p.atom_step(work) : 0);
          ASSERT_LE(((p.tile.steps - 1) * p.tile.y_step + 16 + at_tap) * kPixelBytes, p.tile.y_bytes);
          if (!atom.exists) continue;
          ASSERT_LT(atom.kh, c.kernel[0]);
          ASSERT_LT(atom.kw, c.kernel[1]);
          for (std::int64_t i = 0; i < channels(x_block, ci); ++i)
            for (std::int64_t o = 0; o < channels(atom.y_block, co); ++o) {
              const std::int64_t in_group = std::int64_t{x_block} * kBlockChannels + i,
                                 of_x = work.group * ci + in_group,
                                 of_y = work.group * co + std::int64_t{atom.y_block} * kBlockChannels + o;
              double sum = 0;
              for (int t = 0; t < p.tiles(); ++t) {
                const BoxGradPlan::Pixels at = p.pixels(t);
                const Values xs = grad_box(p.tile.x, p.tile.x_bytes, [&](int n, int row, int column) {
                  const std::int64_t image = at.image + n, h = at.row + row, v = at.column + column;
                  if (image >= c.n || h >= c.in[0] || v >= c.in[1]) return 0.0;
                  return x[static_cast<std::size_t>(((image * c.ci + of_x) * c.in[0] + h) * c.in[1] + v)];
                });
                const Values ys = grad_box(p.tile.y, p.tile.y_bytes, [&](int n, int row, int column) {
                  const std::int64_t image = at.image + n, q_h = at.row + of_h.origin + row,
                                     q_w = at.column + p.column(work, p.tile.of_taps ? a : 0) + column,
                                     h = q_h * planes.h.step + of_h.remainder,
                                     v = q_w * planes.w.step + of_w.remainder;
                  if (image >= c.n || q_h < 0 || q_w < 0 || h >= c.out(0) || v >= c.out(1)) return 0.0;
                  return y[static_cast<std::size_t>(((image * c.co + of_y) * c.out(0) + h) * c.out(1) + v)];
                });
                int place = at_tap;
                for (int step = 0; step < p.tile.steps; ++step, place += p.tile.y_step) {
                  for (int k = 0; k < 16; ++k) {
                    sum += xs.at(static_cast<std::size_t>(step * 16 + k)) *
                           ys.at(static_cast<std::size_t>(place + k));
                  }
                }
              }
              const auto result = static_cast<std::size_t>(
                  ((of_x * co + std::int64_t{atom.y_block} * kBlockChannels + o) * c.kernel[0] + atom.kh) *
                      c.kernel[1] +
                  atom.kw);
              w[result] = sum;
              ++written[result];
            }
        }
      }
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(written[i], 1) << "element " << i;
    ASSERT_EQ(w[i], expected[i]) << "element " << i;
  }
}

TEST(ConvBoxGradPlan, MultipliesWhatTheDefinitionDoes) {
  ConvRandom random(44);
  int of_rows = 0;
  for (int i = 0; i < 600 / kFewer; ++i) {
    // Small images, wide ones, and several blocks of channels.
    const ConvCase c = i % 3 == 0   ? random.conv_case(6, 2)
                       : i % 3 == 1 ? random.conv_case(i % 5 == 0 ? 300 : 40, 1)
                                    : random.conv_case(3, 200);
    if (c.x_count() * c.w_count() > 30000000) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    const int bytes = i % 2 == 0 ? 225 * 1024 : 60 * 1024, parts = i % 5 < 2 ? 2 : 1;
    const BoxGradPlan plan(geometry_of(c), bytes, parts);
    check_weight_grad(c, random, plan);
    if (::testing::Test::HasFailure()) return;
    const GradTile& tile = plan.tile;
    if (tile.steps > 1 && tile.y_step > 16) ++of_rows;
  }
  if (kSanitized) return;  // too few to be of all kinds
  EXPECT_GT(of_rows, 40);
}

// What the autotuner tries, too: fewer atoms, other tiles. Each has a name of its own.
TEST(ConvBoxGradPlan, OfOtherTilings) {
  ConvRandom random(47);
  int ways = 0, few_atoms = 0, of_taps = 0;
  for (int i = 0; i < 40 / kFewer; ++i) {
    ConvCase c = random.conv_case(i % 2 == 0 ? 6 : 14, 1);
    c.groups = 1, c.ci = random.in(16, 20), c.co = random.in(16, 20);
    if (i % 2 == 0) c.in[0] = c.in[1] = 4;
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    const int parts = i % 3 == 0 ? 2 : 1;
    int most_atoms = 0;
    for (const BoxGradWay& way : grad_ways(geometry_of(c), parts, kMostGradTiles)) {
      ASSERT_EQ(box_grad_way(geometry_of(c), parts, way.tiling()).tiling(), way.tiling());
      if (way.fold.exists()) continue;
      SCOPED_TRACE(way.tiling().to_string());
      check_weight_grad(c, random, way.plan);
      if (::testing::Test::HasFailure()) return;
      most_atoms = std::max(most_atoms, way.plan.atoms);
      ++ways, few_atoms += way.plan.atoms < most_atoms ? 1 : 0, of_taps += way.plan.tile.of_taps ? 1 : 0;
    }
  }
  if (kSanitized) return;  // too few to be of all kinds
  EXPECT_GT(ways, 200);
  EXPECT_GT(few_atoms, 50);
  EXPECT_GT(of_taps, 10);
}

// The plan is the one of least clocks of all numbers of atoms and tiles; blocks may be more than run at once,
// where else many multiprocessors would have none.
TEST(ConvBoxGradPlan, HasTheLeastClocks) {
  const auto axis = [](std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation) {
    return ConvAxis{
        in, (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1, kernel, stride, padding, dilation};
  };
  int few_atoms = 0, turns = 0;
  for (const ConvTranspose2dGeometry& g :
       {ConvTranspose2dGeometry{.n = 128,
       .ci = 16,
       .co = 1024,
       .groups = 2,
       .h = axis(16, 9, 1, 5, 1),
       .w = axis(13, 4, 5, 1, 2)},
        {.n = 32, .ci = 64, .co = 256, .h = axis(8, 5, 2, 3, 1), .w = axis(13, 5, 1, 2, 1)},
        {.n = 1, .ci = 512, .co = 96, .h = axis(13, 3, 2, 2, 1), .w = axis(31, 4, 5, 0, 1)},
        {.n = 16, .ci = 1024, .co = 512, .h = axis(28, 2, 2, 0, 1), .w = axis(28, 2, 2, 0, 1)},
        {.n = 128, .ci = 512, .co = 256, .h = axis(4, 4, 2, 1, 1), .w = axis(4, 4, 2, 1, 1)}})
    for (const int parts : {1, 2}) {
      SCOPED_TRACE(concat(g.x_shape(), g.weight_shape(), parts));
      const BoxGradPlan& plan = box_grad_way(g, parts).plan;
      int most_atoms = 0;
      for (const BoxGradWay& way : grad_ways(g, parts, kMostGradTiles)) {
        EXPECT_LE(plan.clocks(), way.plan.clocks()) << way.tiling().to_string();
        most_atoms = std::max(most_atoms, way.plan.atoms);
      }
      few_atoms += plan.atoms < most_atoms;
      turns += plan.works() < 132 && plan.works() * plan.splits() > 132;
    }
  EXPECT_GT(few_atoms, 3);
  EXPECT_GT(turns, 0);
}

// Small images, several side by side: also with boxes for the taps of a row.
TEST(ConvBoxGradPlan, OfSmallImages) {
  ConvRandom random(46);
  int of_taps = 0, of_pitch = 0;
  for (int i = 0; i < 400; ++i) {
    ConvCase c;
    c.n = random.in(1, 9);
    c.ci = random.in(1, 3), c.co = random.in(1, 3);
    c.in[0] = i % 2 == 0 ? 4 : 8, c.in[1] = i % 3 == 0 ? c.in[0] : 32 / c.in[0] * (i % 2 + 1);
    for (int a = 0; a < 2; ++a) {
      c.kernel[a] = random.in(2, 5), c.stride[a] = random.in(1, 3), c.padding[a] = random.in(0, 2);
      c.dilation[a] = random.in(1, 2);
    }
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    const BoxGradPlan plan(geometry_of(c), 225 * 1024, i % 4 / 2 + 1);
    check_weight_grad(c, random, plan);
    if (::testing::Test::HasFailure()) return;
    const GradTile& tile = plan.tile;
    if (tile.x.images > 1) ++(tile.of_taps ? of_taps : of_pitch);
  }
  EXPECT_GT(of_taps, 5);
  EXPECT_GT(of_pitch, 3);
}

}  // namespace
}  // namespace tapedeck::test
