// The weight's gradient of pairs of columns without a GPU: what the kernel computes from
// conv_gemm::PairGradPlan, in plain loops, against the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include <tapedeck/ops/conv/pair_grad_plan.h>

#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;

/// A block's stages, by elements, and what the tensor memory accelerator brings there: x's boxes not
/// swizzled.
class Stages {
 public:
  Stages(const PairGradPlan& p, const Values& x, const Values& y)
      : p_(p), x_(x), y_(y), memory_(static_cast<std::size_t>(p.shared_bytes() / p.element_bytes), kOld) {}

  void bring(const PairGradPlan::Work& work, const PairGradPlan::Tile& tile, int stage) {
    EXPECT_EQ(tile.row * p_.x_w * p_.element_bytes % 16, 0);
    EXPECT_EQ(p_.x_h * p_.x_w * p_.element_bytes % 16, 0);  // from plane to plane
    EXPECT_EQ(p_.y_h * p_.y_w * p_.element_bytes % 16, 0);
    for (int box = 0; box < p_.boxes(); ++box) {
      const int first = tile.row * p_.x_w + box * p_.box_pixels();
      for (int c = 0; c < p_.x_rows; ++c)
        for (int k = 0; k < p_.box_pixels(); ++k)
          at(stage, box * p_.box_bytes() + c * 128 + k * p_.element_bytes) =
              first + k < p_.x_h * p_.x_w
                  ? value(x_, tile.image, work.group, work.x_channel + c, p_.ci, p_.x_h * p_.x_w, first + k)
                  : 0;
    }
    const int first = p_.first_row(work, tile) * p_.y_w, plane = p_.y_h * p_.y_w;
    EXPECT_EQ(first * p_.element_bytes % 16, 0);
    int to = p_.x_bytes;
    for (int c = 0; c < p_.y_rows; ++c)
      for (int k = first; k < first + p_.y_channel_bytes / p_.element_bytes; ++k, to += p_.element_bytes)
        at(stage, to) =
            k >= 0 && k < plane ? value(y_, tile.image, work.group, work.y_channel + c, p_.co, plane, k) : 0;
    EXPECT_EQ(to, p_.x_bytes + p_.y_brought());
  }
  /// Step s of a tile, as descriptors count: pixel k of it.
  double x(int stage, int s, int channel, int k) const {
    return at(stage, s / 4 * p_.box_bytes() + channel * 128 + s % 4 * 32 + k * p_.element_bytes);
  }
  /// At a byte of y's tile; words that count as zero may be before and behind it.
  double y(int stage, int byte, bool counts) const {
    EXPECT_GE(p_.x_bytes + byte, 0);
    EXPECT_LT(byte, counts ? p_.y_brought() : p_.y_bytes);
    return counts ? at(stage, p_.x_bytes + byte) : 0;
  }

 private:
  static constexpr double kOld = 1e6;  // what nobody wrote
  double value(const Values& images, int image, int group, int channel, int channels, int plane,
               int pixel) const {
    if (image >= p_.n || channel >= channels) return 0;
    return images[static_cast<std::size_t>(
        ((std::int64_t{image} * p_.groups + group) * channels + channel) * plane + pixel)];
  }
  double& at(int stage, int byte) {
    EXPECT_EQ(byte % p_.element_bytes, 0);
    return memory_[static_cast<std::size_t>((stage * p_.stage_bytes() + byte) / p_.element_bytes)];
  }
  double at(int stage, int byte) const { return const_cast<Stages*>(this)->at(stage, byte); }

  const PairGradPlan& p_;
  const Values &x_, &y_;
  Values memory_;
};

/// Sums of some rows of tiles are computed. Returns whether there was a plan.
bool check(const ConvCase& c, ConvRandom& random, int element_bytes) {
  PairGradPlan p = best_pair_plan(geometry_of(c), element_bytes);
  if (!p.exists()) return false;
  if (random.chance(50)) p.stages = kLeastPairStages, p.splits = std::min(p.splits, 2);
  const int at_once = element_bytes == 2 ? 2 : 1,  // pixels of a fragment's word
      of_step = 32 / element_bytes;
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count()),
               expected = define_w(c, x, y);
  std::vector<int> written(expected.size(), 0);
  for (int index = 0; index < p.works(); ++index) {
    const PairGradPlan::Work work = p.work(index);
    std::set<int> channels = {0, p.x_rows - 1};
    for (int i = 0; i < 2; ++i) channels.insert(static_cast<int>(random.in(0, p.x_rows - 1)));
    std::vector<double> sums(static_cast<std::size_t>(kPairUnits * kPairUnitChannels * 2 * p.x_rows), 0.0);
    const auto sum_at = [&](int unit, int row, int tap, int channel) -> double& {
      return sums[static_cast<std::size_t>(((unit * kPairUnitChannels + row) * 2 + tap) * p.x_rows +
                                           channel)];
    };
    for (int split = 0; split < p.splits; ++split) {
      Stages stages(p, x, y);
      int stage = 0;
      for (int i = split; i < p.tiles(); i += p.splits) {
        stages.bring(work, p.tile(i), stage);
        for (int u = 0; u < kPairUnits; ++u) {
          const PairGradPlan::Unit unit = p.unit(work, u);
          const int first = p.to_kh(unit.tap) + p.to_pair(unit.pair);
          const bool three = p.load_of(unit) == PairLoad::three;
          EXPECT_EQ(three, p.is_odd());
          EXPECT_EQ(p.first_byte(unit), first - (three ? 2 : 0));
          const int both = p.first_byte(unit) + (three && p.first_is_single(unit) ? 4 : 0);
          EXPECT_EQ(both % (p.load_of(unit) == PairLoad::words ? 4 : 8), 0);
          const int single = three ? (p.first_is_single(unit) ? 0 : 2) : -1;
          for (int row = 0; row < kPairUnitChannels; ++row)
            for (int k = 0; k < p.steps() * of_step; k += at_once) {
              const int begin = (unit.channel + row) * p.y_channel_bytes + p.row_of(k) + first;
              EXPECT_LT(p.row_of(k), 1 << 16);
              EXPECT_EQ(p.row_of(k) % 8, 0);
              for (int j = 0; j < at_once; ++j)
                for (int tap = 0; tap < 2; ++tap) {
                  const int word = (2 * j + tap + (three ? 1 : 0)) / (4 / p.element_bytes);
                  const double of_y = stages.y(stage, begin + (2 * j + tap) * p.element_bytes,
                                               (three && word != single) || p.is_inside(unit, k, word));
                  for (const int m : channels)
                    sum_at(u, row, tap, m) += of_y * stages.x(stage, k / of_step, m, k % of_step + j);
                }
              if (::testing::Test::HasFailure()) return true;
            }
        }
        if (++stage == p.stages) stage = 0;
      }
    }
    for (int u = 0; u < kPairUnits; ++u) {
      const PairGradPlan::Unit unit = p.unit(work, u);
      if (!unit.exists) continue;
      for (int tap = 0; tap < 2; ++tap) {
        const int kw = p.kw_of(unit.pair) + tap, kh = work.kh + unit.tap;
        if (kw < 0 || kw >= p.kernel_w) continue;
        EXPECT_LT(kh, p.kernel_h);
        for (int row = 0; row < kPairUnitChannels; ++row)
          for (int m = 0; m < p.x_rows; ++m) {
            const int co = work.y_channel + unit.channel + row, ci = work.x_channel + m;
            if (co >= p.co || ci >= p.ci) continue;
            const auto i = static_cast<std::size_t>(
                (((std::int64_t{work.group} * p.ci + ci) * p.co + co) * p.kernel_h + kh) * p.kernel_w + kw);
            ++written[i];
            if (channels.contains(m)) {
              EXPECT_EQ(sum_at(u, row, tap, m), expected[i]) << "element " << i;
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

ConvCase pair_case(ConvRandom& random, std::int64_t most_width, std::int64_t most_channels) {
  ConvCase c = random.conv_case(random.chance(10) ? 40 : 9, 1);
  c.n = random.in(1, 5), c.groups = random.chance(70) ? 1 : 2;
  c.ci = c.groups * random.in(16, most_channels), c.co = c.groups * random.in(16, most_channels);
  c.in[1] = random.chance(80) ? 4 * random.in(1, most_width / 4) : random.in(1, most_width);
  c.stride[1] = 2, c.dilation[1] = random.chance(5) ? 2 : 1;
  c.kernel[1] = random.chance(60) ? random.in(2, 4) : random.in(1, 16);
  c.padding[1] =
      random.chance(60) ? (c.kernel[1] - 1) / 2 : random.in(0, std::min<std::int64_t>(c.kernel[1], 9));
  // y's width is twice x's, or nearly.
  const std::int64_t more = 2 * c.padding[1] + 2 - c.kernel[1];
  c.output_padding[1] = random.chance(70) ? std::clamp<std::int64_t>(more, 0, 1) : random.in(0, 1);
  return c;
}

TEST(PairGradPlan, EveryProductOnce) {
  ConvRandom random(61);
  int plans[2] = {}, pairs[8] = {}, odd = 0, half_boxes = 0, in_parts = 0, wide = 0;
  for (int i = 0; i < 900 / kFewer; ++i) {
    ConvCase c = pair_case(random, random.chance(20) ? 128 : 24, 40);
    if (i % 8 == 0) {  // of three words
      c.in[1] = 4 * random.in(1, 12), c.kernel[1] = random.in(2, 8), c.dilation[1] = 1;
      c.padding[1] = (c.kernel[1] - 1) / 2, c.output_padding[1] = c.kernel[1] % 2;
    }
    if (c.out(0) < 1 || c.out(1) < 1 || c.x_count() * c.w_count() > 150000000) continue;
    for (const int bytes : {2, 4}) {
      SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text() + ", " + std::to_string(bytes) + " bytes");
      if (!check(c, random, bytes)) continue;
      if (::testing::Test::HasFailure()) return;
      const PairGradPlan p = best_pair_plan(geometry_of(c), bytes);
      ++plans[bytes / 4], ++pairs[p.pairs], odd += p.is_odd() ? 1 : 0, wide += p.x_w > 64 ? 1 : 0;
      in_parts += p.row_tiles > 1 ? 1 : 0, half_boxes += p.steps() % 4 != 0 ? 1 : 0;
    }
  }
  if (kSanitized) return;  // too few to be of all kinds
  EXPECT_GT(plans[0], 15);
  EXPECT_GT(plans[1], 40);
  EXPECT_GT(half_boxes, 10);
  EXPECT_GT(in_parts, 20);
  EXPECT_GT(odd, 5);
  EXPECT_GT(wide, 0);
  for (int n = 1; n <= 7; ++n) EXPECT_GT(pairs[n], 0) << n;
}

TEST(PairGradPlan, TilesFitSharedMemory) {
  ConvRandom random(62);
  int plans = 0;
  for (int i = 0; i < 3000; ++i) {
    const ConvCase c = pair_case(random, 128, 600);
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    const PairGradPlan p = best_pair_plan(geometry_of(c), i % 2 == 0 ? 2 : 4);
    if (!p.exists()) continue;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    ++plans;
    ASSERT_GE(p.stages, 3);  // a warp that waits for a tile has two to release
    ASSERT_LE(p.steps() * ((p.tiles() + p.splits - 1) / p.splits), i % 2 == 0 ? 2048 : 1024);
    ASSERT_LE(p.stages, kMostPairStages);
    ASSERT_LE(p.shared_bytes(), kMostPairBytes);
    ASSERT_EQ(p.stage_bytes() % 1024, 0);
    ASSERT_EQ(p.x_bytes % 1024, 0);
    ASSERT_LE(p.steps(), kMostPairSteps);
    ASSERT_EQ(p.steps() % 2, 0);
    ASSERT_LE(std::max({p.y_channel_bytes / 8, p.y_rows, p.x_rows}), kMostOfBox);
    ASSERT_EQ(p.y_channel_bytes % 16, 0);
    ASSERT_LE(p.splits, p.tiles());
    for (int warpgroup = 0; warpgroup < 2; ++warpgroup)
      for (int warp = 0; warp < 4; ++warp)
        ASSERT_EQ(p.load_of(p.unit(p.work(0), warpgroup * 4 + warp)),
                  p.load_of(p.unit(p.work(0), warpgroup * 4)));
  }
  EXPECT_GT(plans, 200);
}

// Where 32 bits would not do.
TEST(PairGradPlan, LeavesOutWhatIsTooLarge) {
  const ConvAxis four{4, 8, 4, 2, 1, 1};
  ConvTranspose2dGeometry g{.n = 1, .ci = 16, .co = 16, .h = four, .w = four};
  EXPECT_TRUE(best_pair_plan(g, 4).exists());
  g.h = {33, 32, 1, 1, 0, 1}, g.w = {4, 1 << 24, 1, 2, 0, 1 << 24};
  EXPECT_FALSE(best_pair_plan(g, 4).exists());
  g.h = {1, 1, 32769, 1, 1 << 22, 256}, g.w = {128, 256, 4, 2, 1, 1};
  EXPECT_FALSE(best_pair_plan(g, 4).exists());
  // More blocks than an axis of a grid has.
  g.h = four, g.w = four, g.n = std::int64_t{1} << 29;
  EXPECT_FALSE(best_pair_plan(g, 4).exists());
}

// Pairs of words that half a warp loads of four channels are in as many banks.
TEST(PairGradPlan, DecodersMeetAllBanks) {
  for (const std::int64_t size : {8, 16}) {
    const ConvAxis axis{size, 2 * size, 4, 2, 1, 1};
    const PairGradPlan p =
        best_pair_plan({.n = 128, .ci = 2048 / size, .co = 1024 / size, .h = axis, .w = axis}, 2);
    ASSERT_TRUE(p.exists());
    std::set<int> banks;
    for (int lane = 0; lane < 16; ++lane)
      for (int word = 0; word < 2; ++word)
        banks.insert(((lane / 4 * p.y_channel_bytes + p.row_of(lane % 4 * 2)) / 4 + word) % 32);
    EXPECT_EQ(banks.size(), 32u) << size;
  }
}

}  // namespace
}  // namespace tapedeck::test
