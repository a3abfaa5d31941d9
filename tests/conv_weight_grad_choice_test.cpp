// Which of Hopper's ways computes the weight's gradient (ops/conv/weight_grad_choice.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <tapedeck/ops/conv/tiled.h>

namespace tapedeck::test {
namespace {

using conv_gemm::Factors;
using conv_gemm::GradKind;
using conv_gemm::weight_grad_way;

constexpr Factors kFloat{4, 3}, kTf32{4, 1}, kHalf{2, 1};
constexpr Factors kAll[] = {kFloat, kTf32, kHalf};
constexpr Layout kLayouts[] = {Layout::nchw, Layout::nhwc};

/// Of stride 1; y is as large as x.
ConvTranspose2dGeometry layer(std::int64_t n, std::int64_t ci, std::int64_t size, std::int64_t co) {
  const ConvAxis axis{size, size, 3, 1, 1, 1};
  return {.n = n, .ci = ci, .co = co, .h = axis, .w = axis};
}

TEST(ConvWeightGradChoice, TakesWhatIsForced) {
  const ConvTranspose2dGeometry g = layer(8, 64, 64, 64);
  for (const Factors& f : kAll) {
    SCOPED_TRACE(f.element_bytes * 10 + f.parts);
    const bool has_rows = f.parts == 1;
    const auto kind = [&](ConvAlgorithm a, Layout x, Layout y, bool rows = true) {
      const ConvAlgorithmScope scope(a);
      return weight_grad_way(g, x, y, f, rows).kind;
    };
    for (const Layout layout : kLayouts) {
      EXPECT_EQ(kind(ConvAlgorithm::windows, layout, layout), GradKind::windows);
      EXPECT_EQ(kind(f.are_float() ? ConvAlgorithm::halves : ConvAlgorithm::boxes, layout, layout),
                GradKind::boxes);
    }
    EXPECT_EQ(kind(ConvAlgorithm::rows, Layout::nchw, Layout::nchw) == GradKind::rows, has_rows);
    // Rows are of nchw, and of tensors that begin where they can be read.
    for (const auto& [x, y] :
         {std::pair(Layout::nhwc, Layout::nhwc), {Layout::nchw, Layout::nhwc}, {Layout::nhwc, Layout::nchw}})
      EXPECT_NE(kind(ConvAlgorithm::rows, x, y), GradKind::rows);
    EXPECT_NE(kind(ConvAlgorithm::rows, Layout::nchw, Layout::nchw, false), GradKind::rows);
  }
}

TEST(ConvWeightGradChoice, TakesPairsOfColumns) {
  const auto dcgan = [](std::int64_t size) {
    const ConvAxis axis{size, 2 * size, 4, 2, 1, 1};
    return ConvTranspose2dGeometry{.n = 128, .ci = 2048 / size, .co = 1024 / size, .h = axis, .w = axis};
  };
  const auto kind = [](const ConvTranspose2dGeometry& g, const Factors& f, bool rows = true) {
    return weight_grad_way(g, Layout::nchw, Layout::nchw, f, rows).kind;
  };
  for (const Factors& f : kAll) {
    SCOPED_TRACE(f.element_bytes * 10 + f.parts);
    const GradKind of_one = f.parts == 1 ? GradKind::rows : GradKind::boxes;
    EXPECT_EQ(kind(dcgan(16), f), of_one);
    EXPECT_EQ(kind(dcgan(16), f, false), GradKind::boxes);
    EXPECT_EQ(kind(dcgan(4), f), GradKind::boxes);  // short lines
    const ConvAlgorithmScope scope(ConvAlgorithm::rows);
    EXPECT_EQ(kind(dcgan(16), f), of_one);
    if (f.parts > 1) continue;
    EXPECT_TRUE(conv_gemm::are_pairs(dcgan(16)));
    EXPECT_EQ(conv_gemm::written_sums(dcgan(16), f), 33);
  }
  EXPECT_FALSE(conv_gemm::are_pairs(layer(8, 64, 64, 64)));
}

TEST(ConvWeightGradChoice, TakesTheLeastEstimate) {
  using namespace conv_estimate;
  int taken[3] = {};
  for (const ConvTranspose2dGeometry& g : {layer(1, 4, 8, 4), layer(128, 64, 7, 64), layer(64, 1, 56, 512),
                                           layer(8, 64, 1024, 64), layer(2, 256, 16, 3)}) {
    for (const Factors& f : kAll) {
      for (const Layout layout : kLayouts) {
        SCOPED_TRACE(concat(g.x_shape(), g.weight_shape(), f.element_bytes * 10 + f.parts, layout));
        const ConvCall c(g, ConvPass::weight_gradient, f, layout);
        const double windows = microseconds(ConvAlgorithm::windows, c, conv_gemm::of_windows_weight_grad(c)),
                     boxes = microseconds(f.are_float() ? ConvAlgorithm::halves : ConvAlgorithm::boxes, c,
                                          conv_gemm::of_boxes_weight_grad(c)),
                     rows = microseconds(ConvAlgorithm::rows, c, conv_gemm::of_rows_weight_grad(c));
        EXPECT_TRUE(std::isfinite(windows) && windows > 0);
        const conv_gemm::WeightGradWay& way = weight_grad_way(g, layout, layout, f);
        EXPECT_EQ(way.microseconds, std::min({windows, boxes, rows}));
        EXPECT_EQ(way.microseconds, way.kind == GradKind::windows ? windows
                                    : way.kind == GradKind::boxes ? boxes
                                                                  : rows);
        EXPECT_EQ(way.boxes.plan.exists(), way.kind == GradKind::boxes);
        ++taken[static_cast<int>(way.kind)];
      }
    }
  }
  for (const int times : taken) EXPECT_GT(times, 0);
}

// A rule by operations a byte once took windows for these, which an H200 computes in 0.15 to 0.58 of their
// time over boxes: random111 and 156 of bench/conv_sets.py.
TEST(ConvWeightGradChoice, TakesBoxesForFewChannelsOfManyPixels) {
  const auto axis = [](std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation) {
    return ConvAxis{
        in, (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1, kernel, stride, padding, dilation};
  };
  const ConvTranspose2dGeometry few{
      .n = 64, .ci = 1, .co = 512, .h = axis(16, 4, 2, 5, 2), .w = axis(56, 9, 1, 5, 1)},
      some{.n = 64, .ci = 17, .co = 512, .h = axis(7, 3, 4, 1, 1), .w = axis(16, 6, 1, 7, 3)};
  for (const ConvTranspose2dGeometry& g : {few, some})
    for (const Factors& f : kAll)
      EXPECT_EQ(weight_grad_way(g, Layout::nchw, Layout::nchw, f).kind, GradKind::boxes);
}

TEST(ConvWeightGradChoice, HasNoBoxesWhereCopiesHaveTooLongRows) {
  // One channel of y in each of 1,024 groups is copied as eight: 2^31 elements of a row.
  const auto g = [](std::int64_t width) {
    return ConvTranspose2dGeometry{.n = 1,
                                   .ci = 16384,
                                   .co = 1024,
                                   .groups = 1024,
                                   .h = {1, 1, 1, 1, 0, 1},
                                   .w = {width, 4 * width, 4, 4, 0, 1}};
  };
  const ConvAlgorithmScope scope(ConvAlgorithm::boxes);
  const auto kind = [&](std::int64_t width) {
    return weight_grad_way(g(width), Layout::nchw, Layout::nchw, kHalf).kind;
  };
  EXPECT_EQ(kind(32768), GradKind::boxes);
  EXPECT_EQ(kind(65536), GradKind::windows);
  EXPECT_TRUE(conv_gemm::tiled_weight_grads(g(65536), kHalf).empty());
}

TEST(ConvWeightGradChoice, TilesAsForced) {
  const ConvTranspose2dGeometry g = layer(8, 64, 64, 64);
  const auto tiled = conv_gemm::tiled_weight_grads(g, kHalf);
  ASSERT_GT(tiled.size(), 1U);
  for (const ConvCandidate& c : tiled) {
    const ConvAlgorithmScope scope(c);
    EXPECT_EQ(to_string(weight_grad_taken(g, Layout::nchw, Layout::nchw, kHalf)), to_string(c));
  }
  // A map's tiling is none of the gradient's.
  const ConvAlgorithmScope scope(
      ConvCandidate(ConvAlgorithm::boxes, ConvTiling::parse("1.1.0.2.4.144.1.0.0")));
  EXPECT_EQ(weight_grad_way(g, Layout::nchw, Layout::nchw, kHalf).boxes.tiling(),
            conv_gemm::box_grad_way(g, 1).tiling());
}

}  // namespace
}  // namespace tapedeck::test
