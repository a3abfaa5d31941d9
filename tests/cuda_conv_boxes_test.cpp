// Products over boxes of pixels by Hopper's instructions, and of scaled halves (ops/conv/wgmma_box.cuh).
#include "cuda_conv_boxes.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv/explain.h>
#include <tapedeck/ops/conv/tiled.h>

namespace tapedeck::test {
namespace {

class CudaConvBoxes : public CudaConvTest {};

// A power of two as slope: rounding before and after it is the same.
TEST_F(CudaConvBoxes, RectifyWhatTheyWrite) {
  struct Layer {
    Shape x, w;
  };
  Share share;
  for (const Layer& layer : {Layer{{5, 64, 13, 14}, {64, 72, 4, 4}}, Layer{{5, 33, 12, 12}, {33, 35, 4, 4}},
                             Layer{{1, 512, 6, 6}, {512, 64, 4, 4}}}) {
    for (ConvAlgorithm algorithm :
         {ConvAlgorithm::boxes, ConvAlgorithm::halves, ConvAlgorithm::gathered, ConvAlgorithm::automatic}) {
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        for (Layout layout : {Layout::nchw, Layout::nhwc}) {
          for (Precision precision : {Precision::highest, Precision::high}) {
            SCOPED_TRACE(concat(layer.x, " ", algorithm, " ", dtype, " ", layout));
            if (!share.takes_next()) continue;
            set_conv_algorithm(algorithm);
            set_float32_precision(precision);
            const auto tensor = [&](const Shape& shape) { return randn(shape).to(kCuda).to(dtype); };
            const Tensor x = tensor(layer.x).to(layout), w = tensor(layer.w).to(layout),
                         b = tensor({layer.w[1]});
            const ConvTranspose2dOptions options{.stride = 2, .padding = 1};
            const Tensor y = conv_transpose2d(x, w, b, options).tensor();
            for (double slope : {0.0, 0.25}) {
              const Tensor expected = (slope == 0 ? relu(y) : leaky_relu(y, slope)).tensor();
              const Tensor rectified = conv_transpose2d(x, w, b, options, slope).tensor();
              EXPECT_EQ(rectified.to_vector<float>(), expected.to_vector<float>()) << slope;
            }
          }
        }
      }
    }
  }
}

/// How it computes a layer's forward, where results can be written like that.
conv_gemm::BoxWay box_way(const OverBoxes& way, const ConvTranspose2dGeometry& g,
                          conv_gemm::BoxResults results) {
  const bool gathers = way.algorithm == ConvAlgorithm::gathered && !have_channels_last(results),
             halves = way.dtype == DType::float32 && way.algorithm != ConvAlgorithm::boxes;
  const int parts = halves && way.precision == Precision::highest ? 2 : 1,
            bytes = static_cast<int>(size_of(way.dtype));
  return conv_gemm::known_box_way(g, true, halves ? 2 : bytes, parts, results, bytes, gathers);
}

/// A layer's result and input gradient, in poisoned memory, are those of `tensor`.
void expect_as_tensor(const OverBoxes& way, const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const ConvTranspose2dOptions& o, double negative_slope = 1) {
  const Tensor from = x.to(way.dtype), w = weight.to(way.dtype),
               b = bias.defined() ? bias.to(way.dtype) : Tensor{};
  const Conv2dOptions plain{o.stride, o.padding, o.dilation, o.groups};
  set_float32_precision(Precision::highest);
  set_conv_algorithm(ConvAlgorithm::tensor);
  const Tensor y = conv_transpose2d(from, w, b, o, negative_slope).tensor(),
               b2 = randn({x.size(1)}).to(kCuda).to(way.dtype), gx = conv2d(y, w, b2, plain).tensor();
  set_float32_precision(way.precision);
  set_conv_algorithm(way.algorithm);
  poison_memory();
  const Tensor y2 = conv_transpose2d(from, w, b, o, negative_slope).tensor();
  poison_memory();
  const Tensor gx2 = conv2d(y, w, b2, plain).tensor();
  // In bfloat16 both are rounded: they differ by a unit in the last place.
  const double room = way.dtype == DType::bfloat16 ? 3 : 2;
  expect_near("y", y2.to(Device{}), y.to(Device{}), way.tolerance, room);
  expect_near("gx", gx2.to(Device{}), gx.to(Device{}), way.tolerance, room);
}

// Every width of a kernel over boxes, in both layouts; what is not written stays NaN.
TEST_F(CudaConvBoxes, AllWidths) {
  Share share;
  for (std::int64_t size : {7, 10, 13, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 100}) {
    if (is_sanitized() && size > 40) break;
    for (std::int64_t stride : {1, 2}) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        const std::int64_t kernel = stride == 1 ? 3 : 4;
        const ConvTranspose2dOptions options{.stride = stride, .padding = 1};
        const Tensor w = randn({64, 72, kernel, kernel});
        for (const OverBoxes& way : kOverBoxes) {
          const bool gathers = way.algorithm == ConvAlgorithm::gathered;
          if (gathers && layout == Layout::nhwc) continue;
          const Tensor x = randn({5, 64, size, gathers ? (size + 7) / 8 * 8 : size + 1}).to(layout);
          for (Layout of_weight : {Layout::nchw, Layout::nhwc}) {
            SCOPED_TRACE(concat(size, " stride ", stride, " ", layout, " ", way, " weight ", of_weight));
            if (share.takes_next())
              expect_as_tensor(way, x.to(kCuda), w.to(of_weight).to(kCuda), {}, options);
          }
        }
      }
    }
  }
}

// Weights with the channels last are read as they lie, 16-bit results written as boxes of pixels: few
// channels of results and many, in groups, in part of a block and of a chunk; sums that are split; phases
// without taps; images in part of a tile, and of one pixel; strides with more phases than there are maps.
TEST_F(CudaConvBoxes, WithAllChannelsLast) {
  struct Layer {
    Shape x;
    std::int64_t co, kernel, stride, padding, groups;
  };
  Share share;
  for (const Layer& l : {Layer{{5, 40, 13, 14}, 8, 3, 1, 1, 1}, Layer{{5, 40, 13, 14}, 16, 4, 2, 1, 1},
                         Layer{{7, 64, 9, 11}, 24, 3, 2, 1, 1}, Layer{{7, 64, 9, 11}, 32, 3, 1, 1, 1},
                         Layer{{3, 144, 12, 10}, 80, 3, 1, 1, 2}, Layer{{3, 80, 12, 10}, 144, 4, 2, 1, 2},
                         Layer{{1, 512, 6, 6}, 64, 4, 2, 1, 1}, Layer{{4, 72, 9, 10}, 136, 2, 3, 0, 1},
                         Layer{{3, 64, 60, 70}, 200, 3, 1, 1, 1}, Layer{{37, 64, 1, 1}, 72, 2, 2, 0, 1},
                         Layer{{2, 64, 6, 7}, 72, 5, 4, 1, 1}, Layer{{2, 64, 6, 7}, 44, 3, 1, 1, 1},
                         Layer{{41, 64, 7, 7}, 64, 3, 1, 1, 1}, Layer{{40, 64, 6, 8}, 64, 1, 1, 0, 1},
                         Layer{{41, 64, 1, 6}, 64, 1, 1, 0, 1}}) {
    const ConvTranspose2dOptions options{.stride = l.stride, .padding = l.padding, .groups = l.groups};
    const Tensor x = randn(l.x).to(Layout::nhwc).to(kCuda),
                 w = randn({l.x[1], l.co / l.groups, l.kernel, l.kernel}).to(Layout::nhwc).to(kCuda),
                 bias = randn({l.co}).to(kCuda);
    for (const OverBoxes& way : kOverBoxes) {
      if (way.algorithm == ConvAlgorithm::gathered) continue;
      SCOPED_TRACE(concat(l.x, " ", l.co, " kernel ", l.kernel, " ", way));
      if (share.takes_next()) expect_as_tensor(way, x, w, bias, options, 0.25);
    }
  }
}

// Copies with the channels last by as many thread blocks as large images have: of pixels that are read by
// four, by two, one by one; of few channels and many, in groups, of images in part of a tile; without rows
// that no tap reaches.
TEST_F(CudaConvBoxes, CopiesOfManyPixels) {
  struct Layer {
    Shape x;
    std::int64_t co, groups, stride;
  };
  Share share;
  for (const Layer& l : {Layer{{9, 64, 100, 100}, 24, 1, 1}, Layer{{9, 64, 90, 111}, 24, 1, 1},
                         Layer{{9, 64, 91, 111}, 24, 1, 1}, Layer{{9, 72, 91, 110}, 16, 1, 1},
                         Layer{{20, 8, 180, 180}, 8, 1, 1}, Layer{{14, 15, 111, 111}, 24, 3, 1},
                         Layer{{70, 32, 50, 50}, 16, 1, 1}, Layer{{4, 64, 60, 60}, 64, 1, 5},
                         Layer{{3, 24, 40, 61}, 40, 1, 5}, Layer{{3, 24, 41, 62}, 72, 1, 5}}) {
    const ConvTranspose2dOptions options{.stride = l.stride, .padding = 1, .groups = l.groups};
    for (const OverBoxes& way : kOverBoxes) {
      SCOPED_TRACE(concat(l.x, " ", l.co, " ", way));
      if (!share.takes_next()) continue;
      const Tensor x = randn(l.x, {.device = kCuda}),
                   w = randn({l.x[1], l.co / l.groups, 3, 3}, {.device = kCuda});
      expect_as_tensor(way, x, w, {}, options);
    }
  }
}

// Results that the tensor memory accelerator writes: of whole rows, in tiles of rows or of images, of few
// channels that are not folded and many, rectified; what is not written stays NaN.
TEST_F(CudaConvBoxes, BoxesOfResults) {
  struct Layer {
    Shape x;
    std::int64_t co, kernel, stride, padding, groups;
  };
  int layers = 0, boxes = 0;
  for (const Layer& l : {Layer{{257, 64, 8, 8}, 128, 4, 2, 1, 1}, Layer{{70, 40, 16, 16}, 18, 4, 2, 1, 1},
                         Layer{{90, 64, 9, 24}, 72, 3, 1, 1, 1}, Layer{{30, 64, 31, 32}, 66, 2, 2, 0, 1},
                         Layer{{129, 36, 14, 16}, 66, 2, 2, 0, 1}, Layer{{65, 24, 20, 16}, 18, 2, 2, 0, 1},
                         Layer{{70, 20, 24, 32}, 66, 2, 2, 0, 1}, Layer{{66, 64, 16, 32}, 10, 2, 2, 0, 1},
                         Layer{{257, 32, 8, 8}, 96, 4, 2, 1, 2}, Layer{{71, 128, 5, 16}, 96, 4, 2, 1, 2}}) {
    if (layers++ % test_share() != 0) continue;
    const ConvTranspose2dOptions options{.stride = l.stride, .padding = l.padding, .groups = l.groups};
    const Tensor x = randn(l.x).to(kCuda), b = randn({l.co}).to(kCuda),
                 w = randn({l.x[1], l.co / l.groups, l.kernel, l.kernel}).to(kCuda);
    const auto g = conv_transpose2d_geometry(x, w, b, options);
    for (const OverBoxes& way : kOverBoxes) {
      SCOPED_TRACE(concat(l.x, " to ", l.co, " ", way));
      const auto best = box_way(way, g, conv_gemm::BoxResults::boxes);
      const auto row_bytes = g.w.out * static_cast<std::int64_t>(size_of(way.dtype));
      if (row_bytes % 16 == 0 && best.choice.results == conv_gemm::BoxResults::boxes) ++boxes;
      expect_as_tensor(way, x, w, b, options, 0.25);
    }
  }
  if (test_share() == 1) {
    EXPECT_GE(boxes, 20);  // of what is checked here: those of few taps
  }
}

/// Forwards of a layer are those of `tensor` by every way over boxes with `results` that `takes` of its
/// kind's number so far, in poisoned memory; `seen` counts them by numbers of places. `number`: the layer's,
/// of which some have no bias, and others float16.
template <class F>
void expect_of_ways(const Layer& l, int number, conv_gemm::BoxResults results, const F& takes,
                    std::map<int, int>& seen) {
  const bool has_bias = number % 3 != 1;
  const Tensor x = randn(l.x).to(kCuda), b = has_bias ? randn({l.co}).to(kCuda) : Tensor{},
               w = randn({l.x[1], l.co / l.options.groups, l.kernel.h, l.kernel.w}).to(kCuda);
  const auto g = conv_transpose2d_geometry(x, w, b, l.options);
  for (OverBoxes way : kOverBoxes) {
    if (way.dtype == DType::bfloat16 && number % 2 == 1) way.dtype = DType::float16;
    const Tensor from = x.to(way.dtype), weight = w.to(way.dtype),
                 bias = has_bias ? b.to(way.dtype) : Tensor{};
    const auto result = [&] { return conv_transpose2d(from, weight, bias, l.options, 0.25).tensor(); };
    set_float32_precision(Precision::highest);
    set_conv_algorithm(ConvAlgorithm::tensor);
    const Tensor y = result().to(Device{});
    set_float32_precision(way.precision);
    const bool is_float = way.dtype == DType::float32, gathers = way.algorithm == ConvAlgorithm::gathered,
               halves = is_float && way.algorithm != ConvAlgorithm::boxes;
    const int parts = halves && way.precision == Precision::highest ? 2 : 1,
              bytes = static_cast<int>(size_of(way.dtype));
    std::map<std::vector<int>, int> of_kind;
    for (const conv_gemm::BoxWay& of : conv_gemm::box_ways(g, true, halves ? 2 : bytes, parts,
                                                           conv_gemm::BoxResults::boxes, bytes, gathers)) {
      if (of.choice.results != results || !takes(of, is_float, of_kind)) continue;
      SCOPED_TRACE(concat(l.x, " to ", l.co, " ", way, ", tiling ", of.tiling().to_string()));
      const ConvAlgorithmScope scope(ConvCandidate{way.algorithm, of.tiling()});
      poison_memory();
      expect_near("y", result().to(Device{}), y, way.tolerance, is_float ? 2 : 3);
      ++seen[of.choice.places];
    }
  }
}

// Phases of columns that two blocks swap, by every kind of tile that can be, with the fewest places and the
// most: several tiles a block and less than one, parts of blocks of channels, odd numbers of images and rows,
// halves of images, phases of rows that differ or have no taps, groups, no bias.
TEST_F(CudaConvBoxes, SwappedPhases) {
  int layers = 0;
  std::map<int, int> swapped;  // of numbers of places
  for (const Layer& l :
       {Layer{{259, 64, 8, 8}, 128, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{37, 128, 4, 4}, 192, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{21, 64, 3, 4}, 66, {2, 2}, {.stride = 2}}, Layer{{35, 72, 9, 16}, 66, {2, 2}, {.stride = 2}},
        Layer{{3, 64, 31, 28}, 130, {2, 2}, {.stride = 2}},
        Layer{{66, 128, 5, 16}, 96, {4, 4}, {.stride = 2, .padding = 1, .groups = 2}},
        Layer{{11, 64, 12, 16}, 64, {3, 4}, {.stride = 2, .padding = 1}},
        Layer{{9, 40, 7, 24}, 80, {1, 4}, {.stride = 2, .padding = {0, 1}}},
        Layer{{67, 48, 1, 32}, 64, {1, 2}, {.stride = {1, 2}}},
        Layer{{5, 40, 21, 40}, 72, {3, 6}, {.stride = {1, 2}, .padding = {1, 2}}}}) {
    if (layers++ % test_share() != 0) continue;
    const auto takes = [](const conv_gemm::BoxWay& of, bool is_float,
                          std::map<std::vector<int>, int>& of_kind) {
      // Of each kind the first ones, and the largest.
      const conv_gemm::BoxChoice& c = of.choice;
      const int of_this = ++of_kind[{static_cast<int>(of.plan.split), c.blocks, c.in_turns ? 1 : 0}];
      return of_this <= 2 || c.places == (is_float ? 160 : 192);
    };
    expect_of_ways(l, layers - 1, conv_gemm::BoxResults::swapped, takes, swapped);
  }
  if (test_share() == 1) {
    for (const int places : {64, 96, 160, 192}) EXPECT_GT(swapped[places], 5) << places << " places";
  }
}

// All phases in a tile, by every kind of tile that can be: planes that begin anywhere in their vectors, bands
// of rows, halves of rows and of images, copies of channels, parts of blocks of these, phases without taps,
// several chunks, groups, no bias, images of which a row or a column is of the first phase alone.
TEST_F(CudaConvBoxes, RunsOfAllPhases) {
  int layers = 0;
  std::map<int, int> runs;  // of numbers of places
  for (const Layer& l :
       {Layer{{135, 64, 7, 7}, 64, {3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}},
        Layer{{69, 64, 14, 14}, 32, {3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}},
        Layer{{33, 72, 7, 9}, 66, {3, 3}, {.stride = 2, .padding = 1}},
        Layer{{67, 128, 8, 8}, 130, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{37, 96, 4, 4}, 48, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{5, 40, 33, 30}, 16, {4, 5}, {.stride = 2, .padding = 1}},
        Layer{{9, 64, 16, 16}, 24, {2, 2}, {.stride = 2}}, Layer{{21, 24, 3, 5}, 40, {1, 3}, {.stride = 2}},
        Layer{{11, 64, 6, 10}, 96, {5, 3}, {.stride = 2, .padding = {2, 1}, .groups = 2}},
        Layer{{66, 32, 1, 7}, 17, {3, 3}, {.stride = 2, .padding = {1, 0}}}}) {
    if (layers++ % test_share() != 0) continue;
    const auto takes = [](const conv_gemm::BoxWay& of, bool, std::map<std::vector<int>, int>& of_kind) {
      return ++of_kind[{of.choice.blocks, of.choice.places}] == 1 || of.choice.slots == 8;
    };
    expect_of_ways(l, layers - 1, conv_gemm::BoxResults::runs, takes, runs);
  }
  if (test_share() == 1) {
    EXPECT_GT(runs[64], 40);
    EXPECT_GT(runs[80], 20);
  }
}

// Tiles that warpgroups have in turns: an even number and an odd one a thread block, whose taps do not fill
// all stages; several chunks of channels, groups, phases of different numbers of taps.
TEST_F(CudaConvBoxes, TilesInTurns) {
  int layers = 0, turns = 0;
  for (const Layer& l : {Layer{{4, 64, 131, 140}, 64, {3, 3}, {}}, Layer{{9, 64, 120, 121}, 64, {3, 7}, {}},
                         Layer{{9, 64, 118, 126}, 40, {3, 5}, {.padding = 1}},
                         Layer{{3, 72, 100, 150}, 64, {5, 5}, {.padding = 2}},
                         Layer{{7, 128, 100, 101}, 128, {3, 5}, {.padding = 1, .groups = 2}},
                         Layer{{9, 128, 64, 64}, 64, {4, 4}, {.stride = 2, .padding = 1}},
                         Layer{{9, 64, 70, 90}, 64, {5, 5}, {.stride = 2, .padding = 1}},
                         Layer{{5, 64, 60, 62}, 48, {3, 3}, {.stride = 4}}}) {
    if (layers++ % test_share() != 0) continue;
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Tensor x = randn(l.x).to(layout).to(kCuda), b = randn({l.co}).to(kCuda),
                   w = randn({l.x[1], l.co / l.options.groups, l.kernel.h, l.kernel.w}).to(layout).to(kCuda);
      const auto g = conv_transpose2d_geometry(x, w, b, l.options);
      for (const OverBoxes& way : kOverBoxes) {
        if (way.algorithm == ConvAlgorithm::gathered && layout == Layout::nhwc) continue;
        SCOPED_TRACE(concat(l.x, " to ", l.co, " ", layout, " ", way));
        const auto results = conv_gemm::box_results(layout, g.w.out, static_cast<int>(size_of(way.dtype)), 0);
        const conv_gemm::BoxChoice choice = box_way(way, g, results).choice;
        if (choice.in_turns && choice.tiles > 3 * 132) ++turns;
        expect_as_tensor(way, x, w, b, l.options, 0.25);
      }
    }
  }
  if (test_share() == 1) {
    EXPECT_GT(turns, 8);
  }
}

// Neighbouring columns as one: two and four of y's, one to four of x's; rows that are whole vectors and that
// are not, several chunks, channels that do not fill a block, dilation, sums that are split.
TEST_F(CudaConvBoxes, FoldedColumns) {
  int layers = 0, folds = 0, gradients = 0, turns = 0;
  for (const Layer& l :
       {Layer{{6, 32, 90, 96}, 32, {3, 3}, {}}, Layer{{6, 32, 80, 90}, 24, {3, 7}, {.padding = {1, 3}}},
        Layer{{9, 16, 70, 100}, 16, {5, 5}, {.padding = 2}},
        Layer{{9, 16, 60, 130}, 8, {3, 3}, {.padding = 1}},
        Layer{{9, 8, 90, 92}, 16, {3, 4}, {.padding = {0, 1}, .dilation = {1, 2}}},
        Layer{{9, 64, 51, 61}, 32, {3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}},
        Layer{{7, 32, 50, 60}, 16, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{1, 128, 16, 16}, 16, {9, 9}, {.stride = {1, 2}, .padding = 4, .output_padding = {0, 1}}},
        Layer{{5, 40, 60, 64}, 32, {3, 3}, {.stride = {1, 2}, .padding = {1, 0}, .output_padding = {0, 1}}},
        Layer{{64, 32, 16, 2}, 8, {3, 5}, {.padding = {1, 0}, .output_padding = {0, 2}, .dilation = {1, 3}}},
        Layer{{6, 16, 256, 1},
              8,
              {3, 2},
              {.stride = {1, 2}, .padding = {1, 0}, .output_padding = {0, 3}, .dilation = {1, 4}}},
        Layer{{5, 32, 130, 160}, 32, {5, 5}, {.padding = 2}},
        Layer{{5, 32, 130, 162}, 32, {5, 7}, {.padding = {2, 3}}}}) {
    if (layers++ % test_share() != 0) continue;
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Tensor x = randn(l.x).to(layout).to(kCuda), b = randn({l.co}).to(kCuda),
                   w = randn({l.x[1], l.co, l.kernel.h, l.kernel.w})
                           .to(layers % 2 == 0 ? layout : Layout::nhwc)
                           .to(kCuda);
      const auto g = conv_transpose2d_geometry(x, w, b, l.options);
      for (const OverBoxes& way : kOverBoxes) {
        if (way.algorithm == ConvAlgorithm::gathered && layout == Layout::nhwc) continue;
        SCOPED_TRACE(concat(l.x, " to ", l.co, " ", layout, " ", way));
        const auto results = conv_gemm::box_results(layout, g.w.out, static_cast<int>(size_of(way.dtype)), 0);
        const conv_gemm::BoxWay best = box_way(way, g, results);
        if (best.fold.exists()) ++folds;
        if (are_folds(best.choice.results) && best.choice.in_turns) ++turns;
        expect_as_tensor(way, x, w, b, l.options, 0.25);
        if (way.algorithm == ConvAlgorithm::gathered) continue;
        if (way.dtype == DType::float32 && way.algorithm == ConvAlgorithm::boxes) continue;
        const int parts =
            way.algorithm == ConvAlgorithm::halves && way.precision == Precision::highest ? 2 : 1;
        if (conv_gemm::box_grad_way(g, parts).fold.exists()) ++gradients;
        const Tensor from = x.to(way.dtype), gy = randn(g.y_shape()).to(layout).to(kCuda).to(way.dtype);
        set_conv_algorithm(ConvAlgorithm::tensor);
        set_float32_precision(Precision::highest);
        const Tensor gw = conv_transpose2d_weight_grad(from, gy, l.kernel, l.options).tensor();
        set_conv_algorithm(way.algorithm);
        set_float32_precision(way.precision);
        const Tensor gw2 = weight_grad_after_nan(from, gy, l.kernel, l.options);
        expect_near("gw", gw2.to(Device{}), gw.to(Device{}), way.tolerance, 3);
      }
    }
  }
  if (test_share() == 1) {
    EXPECT_GT(folds, 50);
    EXPECT_GT(gradients, 35);
    EXPECT_GT(turns, 0);
  }
}

// Copies of channels that are last but fill no whole vectors: by tiles of all sizes, of pixels that are read
// in part, from tensors that begin inside of a vector; without rows that no tap reaches.
TEST_F(CudaConvBoxes, CopiesOfChannelsApart) {
  struct Images {
    Shape x;
    std::int64_t co, groups, stride;
    std::int64_t skipped = 0;  // images before those that are read
  };
  Share share;
  for (const Images& l : {Images{{9, 33, 100, 101}, 17, 1, 1}, Images{{9, 100, 90, 80}, 20, 1, 2},
                          Images{{3, 51, 30, 31}, 99, 3, 1}, Images{{8, 3, 150, 151}, 3, 1, 2, 1},
                          Images{{2, 1028, 20, 21}, 68, 4, 1}, Images{{3, 33, 57, 61}, 66, 3, 5, 1},
                          Images{{2, 65, 9, 11}, 35, 1, 4, 1}, Images{{1, 4100, 3, 5}, 12, 1, 1}}) {
    const ConvTranspose2dOptions options{.stride = l.stride, .padding = 1, .groups = l.groups};
    const Tensor all = randn(l.x).to(Layout::nhwc).to(kCuda),
                 w = randn({l.x[1], l.co / l.groups, 3, 3}).to(kCuda);
    for (const OverBoxes& way : kOverBoxes) {
      if (way.algorithm == ConvAlgorithm::gathered || !share.takes_next()) continue;
      SCOPED_TRACE(concat(l.x, " to ", l.co, " stride ", l.stride, " ", way));
      const auto images = [&](const Tensor& x) { return x.to(way.dtype).slice(l.skipped, x.size(0)); };
      const Tensor x = images(all);
      expect_as_tensor(way, x, w, {}, options);
      // The weight's gradient is never over boxes of float32 as it is.
      if (way.dtype == DType::float32 && way.algorithm == ConvAlgorithm::boxes) continue;
      const Tensor y = randn(conv_transpose2d_geometry(all, w, {}, options).y_shape()),
                   gy = images(y.to(Layout::nhwc).to(kCuda));
      expect_weight_grad_as_tensor(way.algorithm, way.precision, x, gy, 3, options, Layout::nchw,
                                   way.tolerance);
    }
  }
}

// What the autotuner tries: the results of each tiling are those of `tensor`.
TEST_F(CudaConvBoxes, TilingsOfTheAutotuner) {
  struct Kind {
    DType dtype;
    Precision precision;
    double tolerance;
  };
  int tilings = 0;
  Share share;
  for (const Layer& l :
       {Layer{{9, 128, 16, 16}, 64, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{5, 32, 24, 40}, 32, {3, 3}, {}},
        Layer{{17, 64, 14, 14}, 32, {3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}}}) {
    for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (const Kind& kind : {Kind{DType::bfloat16, Precision::highest, 3e-3},
                               {DType::float32, Precision::high, 6e-4},
                               {DType::float32, Precision::highest, 1e-6}}) {
        const auto tensor = [&](const Shape& shape) {
          return randn(shape).to(layout).to(kCuda).to(kind.dtype);
        };
        const Tensor x = tensor(l.x), w = tensor({l.x[1], l.co, l.kernel.h, l.kernel.w});
        const auto g = conv_transpose2d_geometry(x, w, {}, l.options);
        const Tensor gy = tensor(g.y_shape());
        const Conv2dOptions plain{l.options.stride, l.options.padding, l.options.dilation, l.options.groups};
        const auto compute = [&](int pass) {
          return pass == 0   ? conv_transpose2d(x, w, {}, l.options).tensor()
                 : pass == 1 ? conv2d(gy, w, {}, plain).tensor()
                             : weight_grad_after_nan(x, gy, l.kernel, l.options, layout);
        };
        const conv_gemm::Factors f = kind.dtype == DType::bfloat16       ? conv_gemm::Factors{2, 1}
                                     : kind.precision == Precision::high ? conv_gemm::Factors{4, 1}
                                                                         : conv_gemm::Factors{4, 3};
        for (const int pass : {0, 1, 2}) {
          set_float32_precision(Precision::highest);
          set_conv_algorithm(ConvAlgorithm::tensor);
          const Tensor expected = compute(pass).to(Device{});
          set_float32_precision(kind.precision);
          const auto results =
              conv_gemm::box_results(layout, pass == 0 ? g.w.out : g.w.in, f.element_bytes, 0);
          for (const ConvCandidate& c : pass == 2 ? conv_gemm::tiled_weight_grads(g, f)
                                                  : conv_gemm::tiled_maps(g, pass == 0, layout, results, f)) {
            if (!share.takes_next()) continue;
            SCOPED_TRACE(concat(l.x, " to ", l.co, " ", layout, " ", kind.dtype, " pass ", pass, " ", c));
            const ConvAlgorithmScope scope(c);
            poison_memory();
            expect_near("result", compute(pass).to(Device{}), expected, kind.tolerance, 3);
            ++tilings;
          }
        }
      }
    }
  }
  if (test_share() == 1) {
    EXPECT_GT(tilings, 300);
  }
}

// Weights as they are packed: more taps than a block has, many channels, copies of few, weights that are not
// aligned; what is not written stays NaN.
TEST_F(CudaConvBoxes, ManyTaps) {
  Share share;
  for (const Layer& l :
       {Layer{{3, 40, 12, 13}, 72, {7, 7}, {.padding = 3}},
        Layer{{3, 40, 9, 10}, 20, {6, 6}, {.stride = 2, .padding = 2}},
        Layer{{2, 70, 9, 10}, 66, {5, 8}, {.padding = {2, 3}}},
        Layer{{2, 24, 16, 17}, 24, {11, 11}, {.padding = 5, .groups = 2}},
        Layer{{1, 640, 6, 7}, 320, {3, 3}, {.padding = 1}}, Layer{{1, 1280, 6, 7}, 20, {2, 2}, {.stride = 2}},
        Layer{{2, 528, 6, 7}, 264, {1, 1}, {}},
        Layer{{2, 48, 9, 10}, 40, {4, 4}, {.stride = 2, .padding = 1}}}) {
    for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (const std::int64_t first : {0, 1}) {
        for (const OverBoxes& way : kOverBoxes) {
          if (!share.takes_next()) continue;
          SCOPED_TRACE(concat(l.x, " to ", l.co, " ", layout, " from ", first, " ", way));
          const Shape of_weight{l.x[1], l.co / l.options.groups, l.kernel.h, l.kernel.w};
          const Tensor x = randn(l.x).to(layout).to(kCuda), w = randn({of_weight.count() + 1})
                                                                    .to(kCuda)
                                                                    .to(way.dtype)
                                                                    .slice(first, first + of_weight.count())
                                                                    .reshape(of_weight);
          const auto g = conv_transpose2d_geometry(x.to(way.dtype), w, {}, l.options);
          EXPECT_GT(box_way(way, g, conv_gemm::BoxResults::channels).choice.places, 0);
          expect_as_tensor(way, x, w, {}, l.options);
        }
      }
    }
  }
}

// Boxes that warps make (box_gather.h): of narrow images and wide ones, several images in a tile, phases
// without taps, rows that are apart, groups, several chunks and parts of one, sums that are split, folded
// columns of few channels; rows that begin anywhere, channels too; and views that are not aligned, whose
// boxes are of a copy after all.
TEST_F(CudaConvBoxes, GatheredFromNchw) {
  int gathered = 0, by_parity = 0;
  Share share;
  for (const Layer& l :
       {Layer{{3, 64, 33, 64}, 64, {3, 3}, {}}, Layer{{3, 64, 33, 72}, 72, {3, 7}, {.padding = {1, 3}}},
        Layer{{2, 64, 20, 304}, 64, {3, 5}, {.padding = {2, 4}, .dilation = 2}},
        Layer{{9, 40, 8, 8}, 48, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{5, 136, 9, 16}, 70, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{7, 20, 7, 8}, 40, {3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}},
        Layer{{2, 144, 12, 24}, 80, {3, 3}, {.padding = 1, .groups = 2}},
        Layer{{3, 96, 9, 32}, 144, {3, 3}, {.padding = 1, .groups = 3}},
        Layer{{1, 512, 6, 8}, 64, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{4, 72, 9, 16}, 136, {2, 2}, {.stride = 3}},
        Layer{{4, 32, 20, 24}, 64, {3, 3}, {.stride = {5, 1}, .padding = {1, 2}, .dilation = 2}},
        Layer{{3, 32, 60, 128}, 32, {3, 3}, {.padding = 1}},
        Layer{{3, 32, 30, 256}, 32, {3, 7}, {.padding = {1, 3}}},
        Layer{{3, 16, 40, 64}, 16, {5, 5}, {.padding = 2}}, Layer{{37, 64, 1, 8}, 72, {2, 2}, {.stride = 2}},
        // Channels begin at whole vectors, rows do not; and in 16 bits, only every second channel does.
        Layer{{3, 64, 36, 62}, 64, {3, 3}, {.padding = {0, 1}}}, Layer{{3, 64, 34, 62}, 64, {3, 3}, {}},
        Layer{{2, 64, 40, 304}, 72, {3, 3}, {}}, Layer{{2, 128, 20, 22}, 80, {3, 3}, {.padding = 1}},
        Layer{{2, 128, 18, 22}, 64, {3, 5}, {.padding = {2, 1}}}, Layer{{9, 32, 6, 6}, 40, {3, 3}, {}},
        Layer{{40, 32, 6, 10}, 64, {3, 3}, {.padding = 1}},
        Layer{{3, 32, 60, 130}, 32, {3, 3}, {.padding = 1}},
        Layer{{3, 32, 58, 130}, 32, {3, 7}, {.padding = 1}},
        Layer{{3, 16, 30, 66}, 16, {3, 3}, {.padding = 1}},
        Layer{{2, 96, 10, 34}, 96, {3, 3}, {.padding = 1, .groups = 3}},
        Layer{{5, 64, 14, 14}, 32, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{4, 24, 20, 23}, 64, {3, 3}, {.stride = {5, 1}, .padding = {1, 2}, .dilation = 2}},
        // Of many places: 192, 208 and 240, 160 and 208, of joined phases 96 and 112, 160, 208 and 256.
        Layer{{9, 64, 64, 128}, 64, {3, 3}, {.padding = 1}}, Layer{{3, 64, 60, 512}, 64, {3, 3}, {}},
        Layer{{9, 32, 60, 256}, 32, {3, 3}, {.padding = 1}},
        Layer{{9, 64, 32, 64}, 64, {4, 4}, {.stride = 2, .padding = 1}},
        Layer{{5, 96, 70, 512}, 96, {3, 3}, {.padding = 1}}}) {
    for (const std::int64_t first : {0, 1}) {  // what does not begin at 16 bytes is copied
      for (const OverBoxes& way : kOverBoxes) {
        if (way.algorithm != ConvAlgorithm::gathered || !share.takes_next()) continue;
        SCOPED_TRACE(concat(l.x, " to ", l.co, " from ", first, " ", way));
        const Tensor all = randn({l.x.count() + 2}).to(kCuda).to(way.dtype),
                     x = all.slice(first, first + l.x.count()).reshape(l.x),
                     w = randn({l.x[1], l.co / l.options.groups, l.kernel.h, l.kernel.w}).to(kCuda);
        const auto g = conv_transpose2d_geometry(x, w.to(way.dtype), {}, l.options);
        set_conv_algorithm(way.algorithm), set_float32_precision(way.precision);
        const ConvExplanation e = cu::explain_on(g, way.dtype, Layout::nchw, true);
        for (const ConvChoice& c : {e.forward, e.input_gradient})
          if (c.variant.find("gathered from nchw") != std::string::npos) ++gathered;
        const conv_gemm::BoxWay forward = box_way(way, g, conv_gemm::BoxResults::rows);
        if (forward.choice.gathers())
          by_parity += conv_gemm::GatheredPieces(forward.plan, forward.choice.tile, forward.plan.folded_from,
                                                 static_cast<int>(size_of(way.dtype)))
                           .apart == 2;
        expect_as_tensor(way, x, w, randn({l.co}).to(kCuda), l.options, 0.25);
      }
    }
  }
  if (test_share() == 1) {
    EXPECT_GT(gathered, 110);
    EXPECT_GT(by_parity, 5);
  }
}

// Float32 operands of all sizes as scaled halves: results only scale with them.
TEST_F(CudaConvBoxes, ScaledHalvesOfAllSizes) {
  const ConvTranspose2dOptions options{.stride = 2, .padding = 1};
  const Tensor x = randn({3, 40, 9, 12}), w = randn({40, 24, 4, 4});  // rows of whole vectors
  for (const auto& [precision, algorithm] : {std::pair(Precision::highest, ConvAlgorithm::halves),
                                             {Precision::high, ConvAlgorithm::halves},
                                             {Precision::highest, ConvAlgorithm::gathered},
                                             {Precision::high, ConvAlgorithm::gathered}}) {
    set_float32_precision(precision);
    set_conv_algorithm(algorithm);
    const auto times = [](const Tensor& t, double factor) { return (Variable(t) * factor).tensor(); };
    const auto run_scaled = [&](double of_x, double of_w) {
      return conv_transpose2d(times(x, of_x).to(kCuda), times(w, of_w).to(kCuda), {}, options)
          .tensor()
          .to(Device{});
    };
    const Tensor one = run_scaled(1, 1);
    for (const auto& [of_x, of_w] : {std::pair{0x1p-100, 0x1p+20},
                                     {0x1p+110, 0x1p-60},
                                     {0x1p+122, 0x1p-100},
                                     {0x1p-100, 0x1p+120},
                                     {0x1p-50, 0x1p-40},
                                     {0x1p+60, 0x1p+50},
                                     {0x1p-10, 1.0}}) {
      SCOPED_TRACE(concat(of_x, " ", of_w));
      EXPECT_TRUE(same_bits(run_scaled(of_x, of_w), times(times(one, of_x), of_w)));
    }
    EXPECT_TRUE(same_bits(run_scaled(0, 1), times(one, 0)));
  }
}

// An infinity or a NaN shows in the results that see it, and nowhere else.
TEST_F(CudaConvBoxes, ScaledHalvesThatAreNotFinite) {
  for (float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const auto& [precision, algorithm] : {std::pair(Precision::highest, ConvAlgorithm::halves),
                                               {Precision::high, ConvAlgorithm::halves},
                                               {Precision::highest, ConvAlgorithm::gathered},
                                               {Precision::high, ConvAlgorithm::gathered}}) {
      set_float32_precision(precision);
      set_conv_algorithm(algorithm);
      Tensor x = randn({2, 16, 12, 12});
      const Tensor w = randn({16, 16, 3, 3}).to(kCuda);
      const Tensor before = conv_transpose2d(x.to(kCuda), w, {}, {}).tensor().to(Device{});
      x.data<float>()[5 * 144 + 6 * 12 + 7] = bad;  // image 0, channel 5, row 6, column 7
      const Tensor after = conv_transpose2d(x.to(kCuda), w, {}, {}).tensor().to(Device{});
      const float *a = before.data<float>(), *b = after.data<float>();
      for (std::int64_t i = 0; i < before.count(); ++i) {
        const std::int64_t n = i / (16 * 14 * 14), row = i / 14 % 14, column = i % 14;
        const bool sees = n == 0 && row >= 6 && row < 9 && column >= 7 && column < 10;
        ASSERT_EQ(std::isfinite(b[i]), !sees) << i;
        if (!sees) {
          ASSERT_EQ(a[i], b[i]) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tapedeck::test
