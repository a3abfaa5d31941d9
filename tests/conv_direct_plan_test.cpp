// conv2d by direct kernels without a GPU: what its threads compute from conv_direct::PlainPlan and
// PlainTiles, in plain loops, against the definition.
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/ops/conv/direct_grad_plan.h>
#include <tapedeck/ops/conv/direct_plain.h>

#include "conv_geometry.h"
#include "sanitizers.h"

namespace tapedeck::test {
namespace {

using namespace conv_direct;
using testing::Contains;
using testing::ElementsAre;
using testing::Gt;

conv_gemm::ImageStrides strides(std::int64_t channels, std::int64_t h, std::int64_t w) {
  return {channels * h * w, static_cast<int>(h * w), static_cast<int>(w), 1};
}

/// How cases are shared among threads.
struct Sharing {
  std::set<int> channels, splits, pixels;
  std::set<std::pair<int, int>> steps;  // taps and channels
  std::set<std::pair<int, int>> sums;   // channels and taps of a thread, of the weight's gradient
};

void check_plain(const ConvCase& c, ConvRandom& random, Sharing& seen) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  const PlainTiles tiles(g, c.n);
  PlainPlan plan(g, c.n);
  plan.from = strides(c.co, c.out(0), c.out(1));
  plan.to = strides(c.ci, c.in[0], c.in[1]);
  const Values y = random.integers(c.y_count()), w = random.integers(c.w_count()),
               expected = define_x(c, y, w);
  Values x(expected.size(), 0.0);
  std::vector<int> written(expected.size(), 0);

  EXPECT_EQ(tiles.lanes * tiles.splits, kPlainThreads);
  EXPECT_EQ(tiles.lanes % 32, 0);
  EXPECT_EQ(tiles.chunk % tiles.step.channels, 0);
  EXPECT_TRUE(can_read(tiles.step, tiles.pixels));
  EXPECT_LE(tiles.shared_elements() * 4, 48 << 10);
  for (std::int64_t group = 0; group < c.groups; ++group)
    for (std::int64_t block = 0; block < tiles.blocks; ++block)
      for (int lane = 0; lane < tiles.lanes; ++lane)
        for (int i = 0; i < tiles.pixels; ++i) {
          const int at = static_cast<int>(block / tiles.tiles) * tiles.lanes * tiles.pixels +
                         i * tiles.lanes + lane,
                    first = static_cast<int>(block % tiles.tiles) * tiles.channels;
          const PlainPlan::Reads reads = plan.reads_of(at);
          const std::int64_t to = plan.result_of(at);
          if (to < 0) {
            EXPECT_EQ(reads.taps, 0U);
            continue;
          }
          for (int m = first; m < std::min(first + tiles.channels, plan.to_channels); ++m) {
            double sum = 0;
            for (int split = 0; split < tiles.splits; ++split)
              for (int k = 0; k < tiles.of_split; ++k) {
                const int channel = split * tiles.of_split + k;
                if (channel >= plan.from_channels) continue;
                const std::int64_t of_channel =
                                       reads.offset + (group * plan.from_channels + channel) * plan.from.c,
                                   plane = of_channel - reads.offset + at / (c.in[0] * c.in[1]) * plan.from.n;
                for (int tap = 0; tap < tiles.padded_taps; ++tap) {
                  if ((reads.taps >> tap & 1) == 0) continue;
                  EXPECT_LT(tap, plan.taps);
                  const std::int64_t from = of_channel + plan.offset_of(tap);
                  EXPECT_GE(from, plane);
                  EXPECT_LT(from, plane + plan.from.c);
                  const std::int64_t weight =
                      ((group * plan.to_channels + m) * plan.from_channels + channel) * plan.taps + tap;
                  sum += y[static_cast<std::size_t>(from)] * w[static_cast<std::size_t>(weight)];
                }
              }
            const auto result = static_cast<std::size_t>(to + (group * plan.to_channels + m) * plan.to.c);
            x[result] = sum;
            ++written[result];
          }
        }
  EXPECT_EQ(x, expected);
  EXPECT_EQ(written, std::vector<int>(expected.size(), 1));
  seen.channels.insert(tiles.channels);
  seen.splits.insert(tiles.splits);
  seen.steps.emplace(tiles.step.taps, tiles.step.channels);
  seen.pixels.insert(tiles.pixels);
}

void check_grad(const ConvCase& c, ConvRandom& random, Sharing& seen) {
  const ConvTranspose2dGeometry g = geometry_of(c);
  const GradTiles tiles(g);
  GradPlan plan(g, tiles);
  plan.x = strides(c.ci, c.in[0], c.in[1]);
  plan.y = strides(c.co, c.out(0), c.out(1));
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count()),
               expected = define_w(c, x, y);
  Values w(expected.size(), 0.0);
  std::vector<int> written(expected.size(), 0);
  EXPECT_GE(tiles.splits * tiles.split_pixels, plan.pixels);
  EXPECT_LT((tiles.splits - 1) * tiles.split_pixels, std::max(1, plan.pixels));
  for (int block = 0; block < tiles.blocks; ++block) {
    const GradPlan::Share share = plan.share_of(block);
    for (int k = 0; k < tiles.sums.channels * tiles.sums.taps; ++k) {
      const std::int64_t place = plan.place_of(share, k);
      if (place < 0) continue;
      const GradPlan::Tap tap = plan.tap(share.tap + k / tiles.sums.channels);
      const std::int64_t channel = share.group * plan.ci + share.x + k % tiles.sums.channels;
      double sum = 0;
      for (int i = 0; i < plan.pixels; ++i) {
        const GradPlan::Pixel pixel = plan.pixel(i);
        if (!plan.reaches(pixel, tap)) continue;
        const std::int64_t image = i / (c.in[0] * c.in[1]), of_x = channel * plan.x.c + pixel.x,
                           of_y = share.y * plan.y.c + pixel.y + tap.offset,
                           plane = image * plan.y.n + share.y * plan.y.c;
        EXPECT_GE(of_y, plane);
        EXPECT_LT(of_y, plane + plan.y.c);
        sum += x[static_cast<std::size_t>(of_x)] * y[static_cast<std::size_t>(of_y)];
      }
      w[static_cast<std::size_t>(place)] = sum;
      ++written[static_cast<std::size_t>(place)];
    }
    // Beyond the last tap threads read nothing.
    EXPECT_FALSE(plan.reaches(plan.pixel(0), plan.tap(plan.taps)));
  }
  EXPECT_EQ(w, expected);
  EXPECT_EQ(written, std::vector<int>(expected.size(), 1));
  seen.sums.emplace(tiles.sums.channels, tiles.sums.taps);
  seen.splits.insert(static_cast<int>(tiles.splits));
}

template <class F>
Sharing sweep(std::uint64_t seed, int cases, std::int64_t size, std::int64_t channels, const F& check) {
  ConvRandom random(seed);
  Sharing seen;
  for (int i = 0; i < cases / kFewer; ++i) {
    const ConvCase c = random.conv_case(size, channels);
    SCOPED_TRACE("case " + std::to_string(i) + ": " + c.text());
    check(c, random, seen);
    if (::testing::Test::HasFailure()) break;
  }
  return seen;
}

const ConvCase kManyTaps[] = {
    {.n = 2, .ci = 1, .co = 3, .in = {4, 9}, .kernel = {1, 28}, .stride = {1, 2}, .padding = {0, 5}},
    {.n = 1, .ci = 1, .co = 2, .in = {5, 6}, .kernel = {8, 8}, .stride = {2, 3}, .padding = {3, 2}},
    {.n = 2,
     .ci = 3,
     .co = 2,
     .in = {5, 6},
     .kernel = {8, 8},
     .stride = {3, 1},
     .padding = {9, 2},
     .dilation = {2, 1}},
    {.n = 1, .ci = 2, .co = 3, .in = {3, 7}, .kernel = {1, 64}, .padding = {0, 31}},
    {.n = 40, .ci = 2, .co = 1, .in = {8, 8}, .kernel = {4, 4}, .stride = {2, 2}, .padding = {1, 1}}};

TEST(ConvDirectPlan, OfManyTapsAndPixels) {
  ConvRandom random(46);
  Sharing seen;
  for (const ConvCase& c : kManyTaps) {
    SCOPED_TRACE(c.text());
    check_plain(c, random, seen);
  }
  // As many pixels as keep all multiprocessors busy by fours.
  check_plain({.n = 220, .ci = 1, .co = 2, .in = {16, 128}, .kernel = {2, 1}, .stride = {2, 2}}, random,
              seen);
  EXPECT_THAT(seen.pixels, ElementsAre(2, 4));
  // And as keep them busy with larger tiles of channels.
  for (const int channels : {17, 20})
    check_plain({.n = 25, .ci = channels, .co = 8, .in = {16, 64}, .kernel = {1, 2}, .stride = {2, 1}},
                random, seen);
  EXPECT_THAT(seen.channels, Contains(20));
}
TEST(ConvDirectPlan, AtTheEdges) {
  sweep(41, 1000, 6, 3, check_plain);
}
TEST(ConvDirectPlan, WithManyChannels) {
  const Sharing seen = sweep(42, 100, 8, 40, check_plain);
  if (kSanitized) return;  // too few to be of all kinds
  EXPECT_THAT(seen.channels, ElementsAre(1, 2, 4, 8, 12, 16));
  EXPECT_THAT(seen.splits, ElementsAre(1, 2, 4, 8));
  for (const PlainStep& step : kPlainSteps)
    EXPECT_TRUE(seen.steps.contains({step.taps, step.channels}))
        << step.taps << " taps of " << step.channels << " channels";
}

// Of one geometry with more and more images and channels, until blocks of threads are busy without splits.
TEST(ConvDirectPlan, SharesChannelsWherePixelsAreFew) {
  const auto tiles = [](std::int64_t images, std::int64_t to, std::int64_t from, std::int64_t kernel) {
    const ConvAxis axis{.in = 32, .out = 32 + kernel - 1, .kernel = kernel};
    return PlainTiles({.n = images, .ci = to, .co = from, .groups = 1, .h = axis, .w = axis}, images);
  };
  EXPECT_EQ(tiles(1, 3, 33, 3).splits, 8);
  EXPECT_EQ(tiles(1, 3, 3, 3).splits, 4);
  EXPECT_EQ(tiles(1, 3, 1, 3).splits, 1);
  EXPECT_EQ(tiles(500, 3, 33, 3).splits, 1);
  EXPECT_EQ(tiles(500, 3, 33, 3).pixels, 4);
  EXPECT_EQ(tiles(1, 3, 33, 3).pixels, 2);
  EXPECT_EQ(tiles(500, 16, 33, 3).pixels, 2);
  EXPECT_EQ(tiles(500, 17, 33, 3).channels, 20);
  EXPECT_EQ(tiles(1, 17, 33, 3).channels, 12);
  EXPECT_EQ(tiles(1, 17, 33, 3).tiles, 2);
}

// As few taps and channels that do not exist as can be.
TEST(ConvDirectPlan, StepsFitTheKernel) {
  const auto step = [](std::int64_t to, std::int64_t from, std::int64_t kernel_h, std::int64_t kernel_w) {
    const auto axis = [](std::int64_t kernel) {
      return ConvAxis{.in = 32, .out = 32 + kernel - 1, .kernel = kernel};
    };
    const PlainTiles tiles(
        {.n = 500, .ci = to, .co = from, .groups = 1, .h = axis(kernel_h), .w = axis(kernel_w)}, 500);
    return std::pair(tiles.step.taps, tiles.step.channels);
  };
  EXPECT_EQ(step(16, 64, 3, 3), std::pair(3, 2));
  EXPECT_EQ(step(16, 1, 3, 3), std::pair(4, 1));
  EXPECT_EQ(step(3, 64, 3, 3), std::pair(2, 2));  // of four pixels
  EXPECT_EQ(step(16, 33, 4, 4), std::pair(4, 1));
  EXPECT_EQ(step(16, 33, 2, 1), std::pair(2, 2));
  EXPECT_EQ(step(16, 33, 1, 1), std::pair(1, 4));
}
// Weights of all splits of one step's channels, of the most taps and channels.
TEST(ConvDirectPlan, WeightsFitSharedMemory) {
  for (std::int64_t images : {1, 25, 100})
    for (std::int64_t to : {1, 8, 16, 20})
      for (std::int64_t taps = 1; taps <= kMostTaps; ++taps) {
        const ConvAxis h{.in = 32, .out = 32}, w{.in = 32, .out = 32 + taps - 1, .kernel = taps};
        const PlainTiles tiles({.n = images, .ci = to, .co = 64, .groups = 1, .h = h, .w = w}, images);
        EXPECT_GE(tiles.padded_taps, taps);
        EXPECT_LE(tiles.shared_elements() * 4, 48 << 10)
            << images << " images, " << to << " channels, " << taps;
      }
}

TEST(ConvDirectGradPlan, AtTheEdges) {
  sweep(43, 1000, 6, 3, check_grad);
}
TEST(ConvDirectGradPlan, WithManyChannels) {
  Sharing seen = sweep(44, 150, 8, 40, check_grad);
  ConvRandom random(45);
  for (const ConvCase& c : kManyTaps) {
    SCOPED_TRACE(c.text());
    check_grad(c, random, seen);
  }
  if (kSanitized) return;  // too few to be of all kinds
  for (const GradSums& s : kGradSums)
    EXPECT_TRUE(seen.sums.contains({s.channels, s.taps})) << s.channels << " channels, " << s.taps << " taps";
  EXPECT_THAT(seen.splits, Contains(Gt(1)));
}

// As many as keep multiprocessors busy, of enough pixels for each thread.
TEST(ConvDirectGradPlan, SplitsPixels) {
  const auto splits = [](std::int64_t images, std::int64_t co) {
    const ConvAxis axis{.in = 32, .out = 34, .kernel = 3};
    return GradTiles({.n = images, .ci = 3, .co = co, .groups = 1, .h = axis, .w = axis}).splits;
  };
  EXPECT_EQ(splits(1, 1), 4);
  EXPECT_EQ(splits(1, 1000), 1);
  EXPECT_EQ(splits(64, 1), 256);
  EXPECT_EQ(splits(64, 100), 11);
  EXPECT_EQ(splits(64, 2000), 1);
}

}  // namespace
}  // namespace tapedeck::test
