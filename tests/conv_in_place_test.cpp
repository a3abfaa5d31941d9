// Gradients with y read where it lies (ops/conv/in_place.h): which taps share a vector, bands and chunks that
// end anywhere, rows of y that several rows of x meet.
#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include <tapedeck/ops/conv/in_place.h>
#include <tapedeck/ops/conv/kernels.h>

#include "conv_reference.h"

namespace tapedeck::test {
namespace {

TEST(FoldedAxis, EachTapOfAPixelIsInOnePlace) {
  for (std::int64_t kernel = 1; kernel <= 9; ++kernel) {
    for (std::int64_t stride = 1; stride <= 5; ++stride) {
      for (std::int64_t channels : {1, 2, 3, 4, 5, 8, 9, 16, 17, 40}) {
        for (std::int64_t lanes : {4, 8, 16}) {
          const ConvAxis w{
              .in = 11, .out = 10 * stride + kernel, .kernel = kernel, .stride = stride, .padding = 1};
          const cpu::FoldedAxis fold(w, channels, lanes);
          EXPECT_GE(fold.width, fold.columns * channels);
          EXPECT_EQ(fold.width % lanes, 0);
          EXPECT_LE(fold.axis.kernel, kernel);
          EXPECT_EQ(fold.axis.in, w.in + fold.columns - 1);
          std::map<std::pair<std::int64_t, std::int64_t>, int> seen;  // (pixel, tap)
          for (std::int64_t m = 0; m < fold.axis.in; ++m) {
            for (std::int64_t r = 0; r < fold.axis.kernel; ++r) {
              for (std::int64_t j = 0; j < fold.columns; ++j) {
                const std::int64_t pixel = m - fold.columns + 1 + j, k = fold.tap(r, j);
                if (k < 0 || pixel < 0 || pixel >= w.in) continue;
                EXPECT_EQ(fold.axis.output(m, r), w.output(pixel, k));
                ++seen[{pixel, k}];
              }
            }
          }
          EXPECT_EQ(seen.size(), static_cast<std::size_t>(w.in * kernel));
          for (const auto& [at, times] : seen)
            EXPECT_EQ(times, 1) << "pixel " << at.first << ", tap " << at.second;
        }
      }
    }
  }
}

TEST(InPlace, AllKindsOfRowsAndLanes) {
  for (const LayerCase& c :
       {LayerCase{"long rows, more than a chunk",
                  {1, 20, 3, 350},
                  {20, 30, 3, 3},
                  {.stride = {5, 2}, .padding = {1, 2}, .dilation = {2, 1}}},
        LayerCase{"many bands of rows", {1, 3, 75, 18}, {3, 7, 4, 4}, {.stride = 2, .padding = 1}},
        LayerCase{"two columns a vector",
                  {2, 32, 20, 40},
                  {32, 16, 3, 5},
                  {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 4}},
        LayerCase{"many columns a vector", {2, 2, 9, 33}, {2, 9, 5, 9}, {.padding = {2, 4}}},
        LayerCase{"columns of five channels", {2, 10, 9, 21}, {10, 6, 3, 7}, {.stride = {1, 2}, .groups = 2}},
        LayerCase{"several panels", {1, 150, 7, 19}, {150, 50, 5, 3}, {.stride = 2, .padding = {3, 1}}},
        LayerCase{"planes of a power of two", {1, 24, 32, 32}, {24, 70, 4, 4}, {.stride = 2, .padding = 1}},
        LayerCase{"rows that share a factor",
                  {2, 17, 6, 23},
                  {17, 26, 4, 2},
                  {.stride = {4, 1}, .dilation = {6, 3}}},
        LayerCase{"cropped", {2, 16, 8, 17}, {16, 12, 5, 5}, {.stride = {3, 2}, .padding = {4, 4}}},
        LayerCase{"rows without taps",
                  {2, 16, 5, 16},
                  {16, 4, 1, 1},
                  {.stride = 3, .padding = 0, .output_padding = 2}}})
    expect_reference(c, ConvAlgorithm::in_place);
}

TEST(InPlace, IsTakenWhereYIsMuchLarger) {
  if (instruction_set() != InstructionSet::avx512) GTEST_SKIP() << "estimates differ";
  const Tensor x = Tensor::zeros({2, 32, 64, 128}), w = Tensor::zeros({32, 64, 3, 3});
  const ConvExplanation e =
      explain(conv_transpose2d_geometry(x, w, {}, {.stride = 5, .padding = 1, .dilation = 2}));
  EXPECT_EQ(e.forward.kernel, "planes");
  EXPECT_EQ(e.input_gradient.kernel, "in_place");
  EXPECT_EQ(e.weight_gradient.kernel, "in_place");
}

TEST(InPlace, WeightsOfNoImagesHaveNoGradient) {
  const ConvAlgorithmScope scope(ConvAlgorithm::in_place);
  const Variable x = Tensor::empty({0, 8, 5, 20}), gy = Tensor::empty({0, 6, 11, 41});
  const Tensor gw = conv_transpose2d_weight_grad(x, gy, 3, {.stride = 2}).tensor();
  EXPECT_EQ(gw.to_vector<double>(), std::vector<double>(8 * 6 * 9, 0.0));
  const Variable w = Tensor::zeros({8, 6, 3, 3});
  EXPECT_EQ(conv2d(gy, w, {}, {.stride = 2}).shape(), x.shape());
}

}  // namespace
}  // namespace tapedeck::test
