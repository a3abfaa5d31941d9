// The weight's gradient by Hopper's instructions: over boxes of small images, and over rows of nchw as they
// lie (ops/conv/wgmma_box_weight_grad.cuh, wgmma_row_weight_grad.cuh, wgmma_pairs.cu).
#include "cuda_conv_boxes.h"

#include <initializer_list>

#include <tapedeck/ops/conv/explain.h>
#include <tapedeck/ops/conv/pair_grad_plan.h>
#include <tapedeck/ops/conv/row_grad_plan.h>
#include <tapedeck/ops/conv/tiled.h>

namespace tapedeck::test {
namespace {

class CudaConvWeightGrad : public CudaConvTest {};

/// Tensors of a type that begin so many elements behind where they are aligned: other kernels take those.
/// (Four, so that every fifth or fifteenth case is of each.)
struct Tensors {
  DType dtype;
  std::int64_t first;
  Precision precision() const { return dtype == DType::float32 ? Precision::high : Precision::highest; }
  double tolerance() const { return dtype == DType::bfloat16 ? 3e-3 : 6e-4; }
  Tensor operator()(const Shape& shape) const {
    return randn({shape.count() + first})
        .to(kCuda)
        .to(dtype)
        .slice(first, first + shape.count())
        .reshape(shape);
  }
};
constexpr Tensors kTensors[] = {
    {DType::bfloat16, 0}, {DType::bfloat16, 3}, {DType::float16, 0}, {DType::float32, 0}};

ConvTranspose2dGeometry geometry_of(const Layer& l) {
  return conv_transpose2d_geometry(Tensor::empty(l.x),
                                   Tensor::empty({l.x[1], l.co / l.options.groups, l.kernel.h, l.kernel.w}),
                                   {}, l.options);
}

/// A layer's weight gradient over rows is that of `tensor`; `variant`: of rows, if these have a plan.
void expect_rows_as_tensor(const Layer& l, const Tensors& tensor, const char* variant,
                           std::initializer_list<Layout> of_weight) {
  SCOPED_TRACE(concat(l.x, " to ", l.co, " ", tensor.dtype, " from ", tensor.first));
  const ConvTranspose2dGeometry g = geometry_of(l);
  if (variant != nullptr) {
    const ConvAlgorithmScope scope(ConvAlgorithm::rows);
    set_float32_precision(tensor.precision());
    EXPECT_EQ(explain(g, tensor.dtype, Layout::nchw, kCuda).weight_gradient.variant, variant);
    set_float32_precision(Precision::highest);
  }
  const Tensor x = tensor(l.x), gy = tensor(g.y_shape());
  for (const Layout layout : of_weight)
    expect_weight_grad_as_tensor(ConvAlgorithm::rows, tensor.precision(), x, gy, l.kernel, l.options, layout,
                                 tensor.tolerance());
}

// Small images, several in a tile, also where taps of a row have boxes of their own; sums that blocks of a
// cluster add, and weights that blocks write, in whole pairs of channels and not.
TEST_F(CudaConvWeightGrad, WeightGradientsOfSmallImages) {
  using namespace conv_gemm;
  const ConvTranspose2dOptions twice{.stride = 2, .padding = 1};
  int of_taps = 0, of_pitch = 0, clusters = 0, written = 0;
  Share share;
  for (const Layer& l :
       {Layer{{5, 40, 4, 4}, 33, 4, twice}, Layer{{6, 70, 8, 8}, 66, 4, twice},
        Layer{{9, 64, 8, 8}, 64, {5, 3}, {.padding = 2}}, Layer{{32, 512, 4, 4}, 256, 4, twice},
        Layer{{33, 256, 8, 8}, 128, 4, twice}, Layer{{64, 192, 4, 4}, 161, {3, 4}, twice},
        Layer{{64, 256, 4, 4}, 256, 4, {.stride = 2, .padding = 1, .groups = 2}},
        Layer{{100, 72, 7, 7}, 64, 3, {.stride = 2, .padding = 1, .output_padding = 1}}}) {
    for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (const OverBoxes& way : kOverBoxes) {
        if (way.algorithm == ConvAlgorithm::gathered) continue;
        if (way.dtype == DType::float32 && way.algorithm == ConvAlgorithm::boxes) continue;
        for (const Layout weight : {Layout::nchw, Layout::nhwc}) {
          if (!share.takes_next()) continue;
          SCOPED_TRACE(concat(l.x, " to ", l.co, " ", layout, " ", way, " weight ", weight));
          const auto tensor = [&](const Shape& shape) {
            return randn(shape).to(layout).to(kCuda).to(way.dtype);
          };
          const Tensor x = tensor(l.x);
          const auto g = geometry_of(l);
          const int parts = way.precision == Precision::highest && way.dtype == DType::float32 ? 2 : 1;
          // What is estimated to be the fastest, and what seldom is.
          std::vector<ConvTiling> tilings(1);
          const auto add = [&](const auto& is_wanted) {
            for (const BoxGradWay& gradient : grad_ways(g, parts, kMostGradTiles))
              if (is_wanted(gradient.plan)) return tilings.push_back(gradient.tiling());
          };
          add([](const BoxGradPlan& plan) { return plan.tile.of_taps && plan.tile.x.images > 1; });
          add([](const BoxGradPlan& plan) { return plan.cluster() > 1; });
          const Tensor gy = tensor(g.y_shape());
          for (const ConvTiling& tiling : tilings) {
            SCOPED_TRACE(tiling.to_string());
            const BoxGradWay& gradient = box_grad_way(g, parts, tiling);
            const GradTile& tile = gradient.plan.tile;
            if (tile.x.images > 1) ++(tile.of_taps ? of_taps : of_pitch);
            if (gradient.plan.cluster() > 1) ++clusters;
            if (gradient.written_sums(weight == Layout::nhwc) == 0) ++written;
            expect_weight_grad_as_tensor({way.algorithm, tiling}, way.precision, x, gy, l.kernel, l.options,
                                         weight, way.tolerance);
          }
        }
      }
    }
  }
  if (test_share() == 1) {
    EXPECT_GT(of_taps, 30);
    EXPECT_GT(of_pitch, 8);
    EXPECT_GT(clusters, 8);
    EXPECT_GT(written, 8);
  }
}

// Rows of images in nchw as they lie, of 16 bits or float32: rows of y that begin at any element, one to
// three rows of x at once, parts of a block that take turns, strips of half a tile, padding, dilation,
// strides of rows, groups.
TEST_F(CudaConvWeightGrad, RowsAsTheyLie) {
  Share share;
  int of_floats = 0;
  for (const Layer& l : {Layer{{1, 64, 8, 64}, 64, 1, {}},
                         Layer{{2, 64, 9, 64}, 64, {1, 3}, {.padding = {0, 1}}},
                         Layer{{1, 64, 12, 64}, 64, 3, {.padding = 1}},
                         Layer{{2, 64, 40, 200}, 64, 3, {}},
                         Layer{{2, 64, 32, 128}, 64, {3, 7}, {}},
                         Layer{{3, 64, 32, 64}, 128, {3, 5}, {}},
                         Layer{{2, 32, 48, 256}, 32, 3, {}},
                         Layer{{2, 32, 48, 256}, 32, {3, 7}, {.padding = {1, 3}}},
                         Layer{{2, 48, 17, 72}, 80, {5, 3}, {.padding = {2, 1}}},
                         Layer{{2, 96, 20, 72}, 160, 3, {.padding = 1, .groups = 2}},
                         Layer{{2, 64, 25, 80}, 64, 3, {.padding = 2, .dilation = 2}},
                         Layer{{1, 64, 25, 136}, 64, {3, 4}, {.padding = {1, 5}, .dilation = 3}},
                         Layer{{2, 64, 21, 64}, 64, {4, 3}, {.stride = {2, 1}, .padding = 1}},
                         Layer{{2, 32, 21, 64}, 48, {5, 3}, {{3, 1}, {1, 1}, {0, 0}, {2, 1}}},
                         Layer{{2, 64, 21, 136}, 64, 2, {.padding = 1}},
                         Layer{{1, 64, 30, 104}, 64, 7, {.padding = 3}},
                         Layer{{1, 64, 30, 104}, 64, {5, 9}, {.padding = {4, 8}}},
                         Layer{{2, 100, 24, 64}, 72, 3, {.padding = 1}},
                         Layer{{2, 20, 24, 64}, 24, 3, {.padding = 1}},
                         Layer{{1, 128, 24, 64}, 128, 3, {.padding = 1}},
                         Layer{{2, 64, 16, 40}, 64, 3, {.padding = 1}},
                         Layer{{4, 64, 1, 128}, 64, 3, {.padding = 1}},
                         Layer{{40, 64, 2, 64}, 64, 3, {}}}) {
    for (const Tensors& tensor : kTensors) {
      const bool is_float = tensor.dtype == DType::float32,
                 exists = conv_gemm::row_grad_plan(geometry_of(l), is_float).exists();
      EXPECT_TRUE(exists || is_float) << "float32 needs more room";
      of_floats += exists && is_float ? 1 : 0;
      if (!share.takes_next()) continue;
      const char* const variant = is_float ? "rows as they lie, of scaled halves" : "rows as they lie";
      expect_rows_as_tensor(l, tensor, exists ? variant : nullptr, {Layout::nchw});
    }
  }
  EXPECT_GT(of_floats, 15);
}

// The same of stride 2 along w, of 16 bits and of float32: one to eight columns of kernels, that begin at
// whole words and in the middle, rows of 4 to 64 pixels, tiles that end behind images and in the middle
// of boxes, of two to 14 steps, more tiles than stages and one for each block, strides and dilation of
// rows, groups, channels in part of a tile.
TEST_F(CudaConvWeightGrad, PairsAsTheyLie) {
  Share share;
  int of_floats = 0, of_halves = 0;
  const ConvTranspose2dOptions twice{.stride = 2, .padding = 1},
      one_more{.stride = 2, .padding = 1, .output_padding = 1};
  for (const Layer& l :
       {Layer{{9, 1024, 4, 4}, 336, 4, twice},
        Layer{{10, 256, 8, 8}, 128, 4, twice},
        Layer{{7, 128, 16, 16}, 64, 4, twice},
        Layer{{40, 130, 16, 16}, 66, 4, twice},
        Layer{{600, 16, 15, 16}, 16, 4, twice},
        Layer{{6, 64, 16, 16}, 32, 3, one_more},
        Layer{{70, 200, 8, 8}, 100, 3, one_more},
        Layer{{100, 64, 14, 14}, 32, 3, one_more},
        Layer{{2, 72, 20, 16}, 140, 2, {.stride = 2}},
        Layer{{2, 33, 10, 32}, 17, 4, twice},
        Layer{{2, 64, 9, 64}, 48, 4, twice},
        Layer{{80, 64, 12, 20}, 32, 4, twice},
        Layer{{3, 48, 7, 40}, 40, 3, one_more},
        Layer{{2, 192, 12, 12}, 80, {5, 5}, {.stride = 2, .padding = 2, .output_padding = 1}},
        Layer{{3, 96, 12, 20}, 96, {4, 6}, {{2, 2}, {1, 2}, {0, 0}, {1, 1}, 3}},
        Layer{{9, 48, 8, 16}, 33, {2, 8}, {.stride = 2, .padding = {0, 3}}},
        Layer{{9, 48, 8, 12}, 33, {3, 7}, {.stride = 2, .padding = {1, 3}, .output_padding = 1}},
        Layer{{9, 20, 6, 8}, 20, {2, 4}, {.stride = 2, .padding = {0, 1}}},
        Layer{{2, 40, 11, 16}, 24, {3, 4}, {{3, 2}, {1, 1}, {0, 0}, {2, 1}}},
        Layer{{2, 40, 11, 16}, 24, {4, 1}, {{1, 2}, {1, 0}, {0, 1}, {1, 1}}}}) {
    for (const Tensors& tensor : kTensors) {
      const bool exists =
          conv_gemm::pair_grad_plan(geometry_of(l), static_cast<int>(size_of(tensor.dtype))).exists();
      (tensor.dtype == DType::float32 ? of_floats : of_halves) += exists ? 1 : 0;
      if (!share.takes_next()) continue;
      expect_rows_as_tensor(l, tensor, exists ? "rows as they lie, pairs of columns" : nullptr,
                            {Layout::nchw, Layout::nhwc});
    }
  }
  EXPECT_EQ(of_floats, 20);
  EXPECT_EQ(of_halves, 3 * 17);
}

}  // namespace
}  // namespace tapedeck::test
