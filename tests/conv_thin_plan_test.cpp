// Tiles of layers whose y has few channels, without a GPU: whether regions hold what tiles read.
#include <gtest/gtest.h>

#include <tapedeck/ops/conv/thin_products.h>

#include "conv_definition.h"

namespace tapedeck::test {
namespace {

using namespace conv_thin;

ConvTranspose2dGeometry geometry_of(const ConvCase& c) {
  const auto axis = [&](int a) {
    return ConvAxis{c.in[a], c.out(a), c.kernel[a], c.stride[a], c.padding[a], c.dilation[a]};
  };
  return {.n = c.n, .ci = c.ci, .co = c.co, .groups = c.groups, .h = axis(0), .w = axis(1)};
}

/// Each output is in one tile, whose region of x has every pixel that it reads.
void check_tiles_of_y(const ThinAxis& a) {
  ASSERT_GE(a.size * a.tiles, a.y);
  ASSERT_LT(a.size * (a.tiles - 1), a.y);
  for (int o = 0; o < a.y; ++o) {
    const int first = o / a.size * a.size, begin = a.x_begin(first);
    ASSERT_EQ(begin % a.align, 0);
    for (int k = 0; k < a.kernel; ++k) {
      const int at = o + a.padding - k * a.dilation;
      if (at < 0 || at % a.stride != 0 || at / a.stride >= a.x) continue;
      ASSERT_GE(at / a.stride, begin);
      ASSERT_LT(at / a.stride, begin + a.region);
    }
  }
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
  int plans = 0, wide = 0, large = 0;
  for (int i = 0; i < 4000; ++i) {
    ConvCase c = random.conv_case(i % 5 == 0 ? 300 : i % 3 == 0 ? 60 : 12, 1);
    c.groups = 1;
    c.co = random.in(1, 4), c.ci = 8 * random.in(2, i % 4 == 0 ? 1500 : 30), c.n = random.in(1, 200);
    if (i % 4 == 0) c.kernel[0] = random.in(1, 2), c.kernel[1] = 1;
    const Layout layout = i % 2 == 0 ? Layout::nhwc : Layout::nchw;
    const int bytes = i % 7 < 3 ? 4 : 2;
    if (layout == Layout::nchw) c.in[1] = (c.in[1] + 7) / 8 * 8;
    if (c.out(0) < 1 || c.out(1) < 1) continue;
    SCOPED_TRACE(c.text());
    for (const ThinPass pass : {ThinPass::transposed, ThinPass::plain, ThinPass::weight}) {
      const auto plan = thin_plan(geometry_of(c), pass, layout, bytes);
      if (!plan) continue;
      ++plans;
      wide += plan->w.tiles > 1;
      ASSERT_EQ(plan->products, c.co * c.kernel[0] * c.kernel[1]);
      ASSERT_LE(plan->products, kMostProducts);
      // What kernels find in shared memory, of which Hopper has 227 KB for a block.
      ASSERT_LE(plan->shared_bytes, 225 * 1024);
      if (pass != ThinPass::weight) {
        ASSERT_GE(plan->padded_products, plan->products);
        ASSERT_GE(plan->channels, plan->ci);
        const int rows = pass == ThinPass::transposed ? plan->padded_products : plan->channels,
                  columns = pass == ThinPass::transposed ? plan->channels : plan->padded_products;
        ASSERT_GE(plan->weight_pitch, columns);
        ASSERT_EQ(plan->weight_pitch * bytes % 16, 0);
        const int other = pass == ThinPass::transposed ? plan->tile_bytes() : plan->region_bytes(bytes);
        ASSERT_GE(plan->shared_bytes, rows * plan->weight_pitch * bytes + other);
        large += plan->shared_bytes > 150 * 1024;
      }
      for (const ThinAxis* axis : {&plan->h, &plan->w})
        pass == ThinPass::transposed ? check_tiles_of_y(*axis) : check_tiles_of_x(*axis);
      if (pass == ThinPass::transposed) {
        ASSERT_LE(plan->tile_bytes(), kMostTileBytes);
        ASSERT_EQ(plan->pixels() % 64, 0);
        ASSERT_GE(plan->pixels(), plan->h.region * plan->w.region);
        ASSERT_EQ(plan->w.region % plan->w.align, 0);
      } else {
        // A thread's neighbouring pixels are of one row.
        ASSERT_LE(plan->region_bytes(bytes), kMostTileBytes);
        ASSERT_EQ(plan->w.size % (layout == Layout::nhwc ? 4 : 16 / bytes), 0);
      }
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(plans, 1000);
  EXPECT_GT(wide, 50);
  EXPECT_GT(large, 10);
}

}  // namespace
}  // namespace tapedeck::test
