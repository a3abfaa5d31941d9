// Tiles of layers whose y has few channels, without a GPU: whether regions hold what tiles read.
#include <gtest/gtest.h>

#include <tapedeck/ops/conv/thin_products.h>

#include "conv_geometry.h"

namespace tapedeck::test {
namespace {

using namespace conv_thin;

/// The pixel of x that output o reads by tap k, or -1.
int pixel_of(const ThinAxis& a, int o, int k) {
  const int at = o + a.padding - k * a.dilation;
  return at >= 0 && at % a.stride == 0 && at / a.stride < a.x ? at / a.stride : -1;
}

/// Outputs find their taps by their phases.
void check_taps(const ThinAxis& a) {
  for (int o = 0; o < a.y; ++o) {
    const int at = o + a.padding;
    const TapsOfPhase taps = a.taps_of(at % a.stride);
    int next = taps.k, i = at / a.stride + taps.i;
    for (int k = 0; k < a.kernel; ++k) {
      const int pixel = pixel_of(a, o, k);
      if (k == next) {
        ASSERT_EQ(i >= 0 && i < a.x ? i : -1, pixel);
        next += a.tap_step, i -= a.tap_back;
      } else {
        ASSERT_EQ(pixel, -1);
      }
    }
  }
}

/// Each output is in one tile, whose region of x has every pixel that it reads.
void check_tiles_of_y(const ThinAxis& a) {
  ASSERT_GE(a.size * a.tiles, a.y);
  ASSERT_LT(a.size * (a.tiles - 1), a.y);
  for (int o = 0; o < a.y; ++o) {
    const int first = o / a.size * a.size, begin = a.x_begin(first);
    ASSERT_EQ(begin % a.align, 0);
    for (int k = 0; k < a.kernel; ++k) {
      const int pixel = pixel_of(a, o, k);
      if (pixel < 0) continue;
      ASSERT_GE(pixel, begin);
      ASSERT_LT(pixel, begin + a.region);
    }
  }
}
/// Each output is of one band of one part, when all that it reads was multiplied and is still there.
void check_bands(const ThinPlan& plan) {
  const ThinAxis& a = plan.h;
  int done = 0;
  for (int part = 0; part < a.tiles; ++part) {
    const int last = std::min((part + 1) * a.size, a.x), begin = std::max(part * a.size - a.halo(), 0);
    ASSERT_GT(last, part * a.size);
    ASSERT_EQ(a.outputs_before(part * a.size), done);
    for (int row = begin, end = 0; row < last; row = end) {
      end = std::min(row + a.band, last);
      const int outputs = a.outputs_before(end);
      for (int o = done; o < outputs; ++o)
        for (int k = 0; k < a.kernel; ++k) {
          const int pixel = pixel_of(a, o, k);
          if (pixel < 0) continue;
          ASSERT_GE(pixel, std::max(begin, end - a.region));
          ASSERT_LT(pixel, end);
        }
      ASSERT_LE(outputs - done, plan.rows_at_once());
      // A part's first band may have only positions before it.
      done = std::max(done, outputs);
    }
  }
  ASSERT_EQ(done, a.y);
}
/// Each pixel of x is in one tile, whose region of y has what all its taps meet.
void check_tiles_of_x(const ThinAxis& a) {
  ASSERT_GE(a.size * a.tiles, a.x);
  ASSERT_LT(a.size * (a.tiles - 1), a.x);
  for (int i = 0; i < a.size; ++i) {
    ASSERT_LT(i * a.stride + (a.kernel - 1) * a.dilation, a.region);
  }
}

TEST(ConvThinPlan, RegionsHoldWhatTilesRead) {
  ConvRandom random(51);
  int plans = 0, words = 0, wide = 0, large = 0, bands = 0;
  for (int i = 0; i < 4000; ++i) {
    ConvCase c = random.conv_case(i % 5 == 0 ? 300 : i % 3 == 0 ? 60 : 12, 1);
    c.groups = 1;
    c.co = random.in(1, 4), c.ci = 8 * random.in(2, i % 4 == 0 ? 1500 : 30), c.n = random.in(1, 200);
    if (i % 4 == 0) c.kernel[0] = random.in(1, 2), c.kernel[1] = 1;
    const Layout layout = i % 2 == 0 ? Layout::nhwc : Layout::nchw;
    const int bytes = i % 7 < 3 ? 4 : 2;
    if (layout == Layout::nchw && i % 4 != 1) c.in[1] = (c.in[1] + 7) / 8 * 8;
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    SCOPED_TRACE(c.text());
    for (const ThinPass pass : {ThinPass::transposed, ThinPass::plain, ThinPass::weight}) {
      const auto plan = thin_plan(geometry_of(c), pass, layout, bytes, i % 7 == 0 ? 2 : 1);
      const std::int64_t row = c.in[1] * bytes;
      const bool never = row % 4 != 0 || (bytes == 4 && pass != ThinPass::weight && row % 16 != 0);
      if (layout == Layout::nchw && never) {
        ASSERT_FALSE(plan);
      }
      if (!plan) continue;
      ++plans;
      if (layout == Layout::nchw) {
        ASSERT_EQ(plan->by_words, row % (pass == ThinPass::transposed ? 4 * bytes : 16) != 0);
        words += plan->by_words;
      }
      wide += plan->w.tiles > 1;
      ASSERT_EQ(plan->products, c.co * c.kernel[0] * c.kernel[1]);
      ASSERT_LE(plan->products, kMostProducts);
      // What kernels find in shared memory, of which Hopper has 227 KB for a block.
      ASSERT_LE(plan->shared_bytes, 225 * 1024);
      const int of_pass = pass == ThinPass::transposed ? plan->sum_bytes() : plan->region_bytes();
      ASSERT_GE(plan->shared_bytes, plan->ring_bytes() + plan->weight_bytes() + of_pass);
      if (pass != ThinPass::weight) {
        ASSERT_GE(plan->padded_products, plan->products);
        ASSERT_GE(plan->channels, plan->ci);
        ASSERT_EQ(plan->weight_bytes(), plan->operand_parts * plan->channels * plan->padded_products * bytes);
        large += plan->shared_bytes > 100 * 1024;
      } else {
        // Warps' sums.
        ASSERT_GE(plan->shared_bytes, 4 * 128 / bytes * (plan->at_once * 16 + 1) * 4);
      }
      ASSERT_GE(plan->blocks(), 1);
      ASSERT_LE(plan->blocks(), plan->tiles());
      if (pass == ThinPass::transposed) {
        check_taps(plan->h);
        check_taps(plan->w);
        check_bands(*plan);
        check_tiles_of_y(plan->w);
        ASSERT_GE(plan->sum_pitch, plan->h.region * plan->w.region);
        // Vectors of x, and pairs or fours of z, do not go beyond a row, and are aligned.
        ASSERT_EQ(plan->w.align, layout == Layout::nhwc ? 2 : 4);
        ASSERT_EQ(plan->w.region % plan->w.align, 0);
        ASSERT_EQ(plan->sum_pitch % plan->w.align, 0);
        bands += plan->h.band < plan->h.size && plan->h.tiles > 1 && plan->h.halo() > 0;
      } else {
        check_tiles_of_x(plan->h);
        check_tiles_of_x(plan->w);
        // A thread's neighbouring pixels are of one row.
        ASSERT_EQ(plan->w.size % (layout == Layout::nhwc ? 4 : 16 / bytes), 0);
      }
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(plans, 1000);
  EXPECT_GT(words, 200);
  EXPECT_GT(wide, 50);
  EXPECT_GT(large, 10);
  EXPECT_GT(bands, 100);
}

TEST(ConvThinPlan, TakesWhatFitsAndNothingThatOverflows) {
  // Sums of a band of many rows take 116 KB.
  const ConvCase wide{
      .n = 128, .ci = 64, .co = 3, .in = {64, 64}, .kernel = {5, 5}, .stride = {2, 2}, .padding = {2, 2}};
  EXPECT_TRUE(thin_plan(geometry_of(wide), ThinPass::transposed, Layout::nchw, 4, 2));
  // A region of 3.6 billion bytes.
  const ConvCase far{.n = 1,
                     .ci = 16,
                     .co = 1,
                     .in = {8, 8},
                     .kernel = {2, 2},
                     .padding = {14990, 14990},
                     .dilation = {30000, 30000}};
  ASSERT_EQ(far.out(0), 28);
  for (const ThinPass pass : {ThinPass::transposed, ThinPass::plain, ThinPass::weight})
    EXPECT_FALSE(thin_plan(geometry_of(far), pass, Layout::nchw, 4, 1));
}

}  // namespace
}  // namespace tapedeck::test
