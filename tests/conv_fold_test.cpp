// Layers of folded columns (ops/conv/fold.h) against the definition.
#include <gtest/gtest.h>

#include <algorithm>

#include <tapedeck/ops/conv/wgmma_choice.h>

#include "conv_geometry.h"

namespace tapedeck::test {
namespace {

using conv_gemm::Fold;

ConvCase folded_case(const ConvCase& c, const Fold& fold) {
  const ConvTranspose2dGeometry g = fold.of(geometry_of(c));
  ConvCase f = c;
  f.ci = g.ci, f.co = g.co;
  f.in[1] = g.w.in, f.kernel[1] = g.w.kernel, f.stride[1] = g.w.stride;
  f.padding[1] = g.w.padding, f.dilation[1] = g.w.dilation, f.output_padding[1] = 0;
  f.output_padding[1] = g.w.out - f.out(1);
  return f;
}

/// Calls f(index of an image's element, index of it in the image of which `fold` columns are one).
template <class F>
void for_each_element(std::int64_t n, std::int64_t channels, std::int64_t h, std::int64_t w, int fold,
                      const F& f) {
  for (std::int64_t i = 0; i < n * channels * h * w; ++i) {
    const std::int64_t column = i % w, row = i / w % h, c = i / w / h % channels,
                       image = i / w / h / channels,
                       folded = ((image * fold + column % fold) * channels + c) * h + row;
    f(static_cast<std::size_t>(i), static_cast<std::size_t>(folded * (w / fold) + column / fold));
  }
}

Values fold_image(const Values& image, std::int64_t n, std::int64_t channels, std::int64_t h, std::int64_t w,
                  int fold) {
  Values folded(image.size());
  for_each_element(n, channels, h, w, fold, [&](std::size_t i, std::size_t k) { folded[k] = image[i]; });
  return folded;
}

void check_fold(const ConvCase& c, const Fold& fold, ConvRandom& random) {
  const ConvCase f = folded_case(c, fold);
  const Values x = random.integers(c.x_count()), y = random.integers(c.y_count()),
               w = random.integers(c.w_count());
  const Values folded_x = fold_image(x, c.n, c.ci, c.in[0], c.in[1], fold.x),
               folded_y = fold_image(y, c.n, c.co, c.out(0), c.out(1), fold.y);
  // Element (f, ci, e, co, h, t) of the folded weight is (ci, co, h, k), where there is such a tap.
  const auto folded_weight = [&](std::int64_t of_x, std::int64_t ci, std::int64_t of_y, std::int64_t co,
                                 std::int64_t h, std::int64_t t) {
    return static_cast<std::size_t>(
        (((of_x * c.ci + ci) * f.co + of_y * c.co + co) * c.kernel[0] + h) * f.kernel[1] + t);
  };
  Values folded_w(f.w_count(), 0.0);
  const Values folded_gw = define_w(f, folded_x, folded_y);
  Values gw(c.w_count(), 0.0);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(w.size()); ++i) {
    const std::int64_t k = i % c.kernel[1], h = i / c.kernel[1] % c.kernel[0],
                       pair = i / c.kernel[1] / c.kernel[0], co = pair % c.co, ci = pair / c.co;
    int met = 0;
    for (int of_x = 0; of_x < fold.x; ++of_x)
      for (int of_y = 0; of_y < fold.y; ++of_y) {
        for (int t = 0; t < fold.taps; ++t)
          if (fold.tap_of(t, of_y, of_x) == k) {
            folded_w[folded_weight(of_x, ci, of_y, co, h, t)] = w[static_cast<std::size_t>(i)];
            EXPECT_EQ(fold.folded_tap(static_cast<int>(k), of_y, of_x), t);
            ++met;
          }
        if (const int t = fold.folded_tap(static_cast<int>(k), of_y, of_x); t >= 0) {
          EXPECT_LT(t, fold.taps);
          EXPECT_EQ(fold.tap_of(t, of_y, of_x), k);
          gw[static_cast<std::size_t>(i)] += folded_gw[folded_weight(of_x, ci, of_y, co, h, t)];
        }
      }
    EXPECT_EQ(met, fold.x);  // once for each column of x's
  }
  EXPECT_EQ(gw, define_w(c, x, y));
  EXPECT_EQ(define_y(f, folded_x, folded_w, {}),
            fold_image(define_y(c, x, w, {}), c.n, c.co, c.out(0), c.out(1), fold.y));
  EXPECT_EQ(define_x(f, folded_y, folded_w),
            fold_image(define_x(c, y, w), c.n, c.ci, c.in[0], c.in[1], fold.x));
}

TEST(ConvFold, ComputesTheSameLayer) {
  ConvRandom random(61);
  int folds = 0, strided = 0, dilated = 0, fours = 0;
  for (int i = 0; i < 6000; ++i) {
    const ConvCase c = random.conv_case(12, 3);
    SCOPED_TRACE(c.text());
    conv_gemm::for_folds(geometry_of(c), 16, [&](const Fold& fold) {
      check_fold(c, fold, random);
      ++folds, strided += c.stride[1] > 1, dilated += c.dilation[1] > 1, fours += fold.y == 4;
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(folds, 300);
  EXPECT_GT(strided, 50);
  EXPECT_GT(dilated, 50);
  EXPECT_GT(fours, 50);
}

// Steps of channels that plans leave out have no weights.
TEST(ConvFold, LeavesOutWhatNothingSees) {
  ConvRandom random(62);
  int left_out = 0;
  for (int i = 0; i < 3000; ++i) {
    const ConvCase c = random.conv_case(12, 4, 8);
    SCOPED_TRACE(c.text());
    conv_gemm::for_folds(geometry_of(c), 2, [&](const Fold& fold) {
      for (const bool transposed : {true, false}) {
        for (const auto split : {conv_gemm::BoxSplit::none, conv_gemm::BoxSplit::columns}) {
          conv_gemm::BoxPlan p(fold.of(geometry_of(c)), transposed, 2, conv_gemm::BoxJoin::none, split);
          p.narrow(fold, transposed);
          const auto channels = static_cast<int>(transposed ? c.ci : c.co),
                     columns = transposed ? fold.x : fold.y, steps = (channels * columns + 15) / 16;
          for (int j = 0; j < conv_gemm::kMaxReads; ++j) {
            const conv_gemm::BoxTaps& t = p.w.of[j];
            for (int tap = 0; tap < t.taps; ++tap)
              for (int step = 0; step < steps; ++step) {
                const bool taken = !p.is_narrow || ((tap > 0 || step >= p.steps_from[j]) &&
                                                    (tap + 1 < t.taps || step < p.steps_to[j]));
                bool seen = false;
                for (int k = step * 16; k < std::min(step * 16 + 16, channels * columns); ++k)
                  for (int other = 0; other < (transposed ? fold.y : fold.x); ++other) {
                    const int e = transposed ? other : k / channels, f = transposed ? k / channels : other;
                    seen = seen || fold.tap_of(t.tap + tap * t.tap_step, e, f) >= 0;
                  }
                EXPECT_TRUE(taken || !seen) << tap << " " << step;
                left_out += taken ? 0 : 1;
              }
          }
          EXPECT_GT(p.taken(), 0);
          EXPECT_LE(p.taken(), 1);
        }
      }
    });
    if (HasFailure()) return;
  }
  EXPECT_GT(left_out, 1000);
}

// Results of nchw are written as neighbours: never of phases that step over folded columns.
TEST(ConvFold, FoldsAreNeighbours) {
  using conv_gemm::BoxResults;
  ConvRandom random(63);
  int folds = 0;
  for (int i = 0; i < 4000; ++i) {
    ConvCase c = random.conv_case(40, 4, 8);
    c.n = 400;  // much work, as folds are for
    if (i % 4 == 0) c.in[1] = random.in(1, 4);
    const ConvTranspose2dGeometry g = geometry_of(c);
    if (g.w.out < 1 || !conv_gemm::fits(g)) continue;
    SCOPED_TRACE(c.text());
    for (const bool transposed : {true, false}) {
      const auto width = static_cast<int>(transposed ? g.w.out : g.w.in);
      const auto most = conv_gemm::box_results(Layout::nchw, width, 2, 0);
      const conv_gemm::BoxWay way = conv_gemm::known_box_way(g, transposed, 2, 1, most, 2);
      if (way.choice.places == 0 || !are_folds(way.choice.results)) continue;
      ++folds;
      EXPECT_EQ(way.plan.w.to_step, 1);
      if (way.choice.results == BoxResults::folds) {
        EXPECT_EQ(way.choice.tile.columns % 2, 0);
        EXPECT_EQ(way.choice.tile.pitch % 2, 0);
      }
      EXPECT_EQ(width % (transposed ? way.fold.y : way.fold.x), 0);
    }
  }
  EXPECT_GT(folds, 200);
}

// What a folded layer saves is more than what it adds: 32 channels are as many as blocks have in pairs.
TEST(ConvFold, FillsBlocksOfFewChannels) {
  const auto layer = [](std::int64_t channels, std::int64_t width) {
    const ConvAxis axis{width, width, 3, 1, 1, 1};
    return ConvTranspose2dGeometry{.n = 8, .ci = channels, .co = channels, .h = axis, .w = axis};
  };
  using conv_gemm::BoxResults;
  for (const BoxResults results :
       {BoxResults::channels, BoxResults::pixels, BoxResults::boxes, BoxResults::pairs}) {
    const auto way_of = [&](std::int64_t channels, std::int64_t width) {
      return conv_gemm::known_box_way(layer(channels, width), true, 2, 1, results, 2);
    };
    EXPECT_EQ(way_of(64, 256).fold.y, 1);
    EXPECT_EQ(way_of(32, 256).fold.y, 2);
    EXPECT_EQ(way_of(16, 256).fold.y, 4);
    EXPECT_EQ(way_of(16, 258).fold.y, 2);  // columns that four do not divide
    EXPECT_EQ(way_of(32, 255).fold.y, 1);
    EXPECT_EQ(way_of(20, 256).fold.y, 1);  // channels that are not whole vectors
  }
  EXPECT_EQ(conv_gemm::box_grad_way(layer(64, 256), 1).fold.y, 1);
  EXPECT_EQ(conv_gemm::box_grad_way(layer(32, 256), 1).fold.y, 2);
  EXPECT_EQ(conv_gemm::box_grad_way(layer(32, 256), 2).fold.y, 2);
  EXPECT_EQ(conv_gemm::box_grad_way(layer(16, 256), 1).fold.y, 4);
}

}  // namespace
}  // namespace tapedeck::test
