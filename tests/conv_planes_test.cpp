// Planes (ops/conv/correlate.cpp) in their special ways: rolling along rows, and rows of results past the
// caches, one by one, in stretches and in pairs.
#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>

#include <cmath>

#include "conv_reference.h"

namespace tapedeck::test {
namespace {

// Many channels, so that bands would have few rows.
TEST(RollingPlanes, RowsOfAllWindows) {
  for (const LayerCase& c :
       {LayerCase{"two rows of phases", {1, 9, 9, 130}, {9, 90, 3, 4}, {.stride = 2, .padding = 1}},
        LayerCase{"three rows of one phase",
                  {2, 16, 11, 100},
                  {16, 60, 3, 5},
                  {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2}},
        LayerCase{
            "padded beyond the image", {1, 5, 6, 90}, {5, 100, 6, 3}, {.stride = {1, 2}, .padding = {5, 1}}}})
    expect_reference(c, ConvAlgorithm::planes);
}

/// A pair of every second row.
const LayerCase kEverySecondRow{"pairs, of every second row",
                                {2, 32, 65, 128},
                                {32, 16, 3, 5},
                                {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 4}};

/// Results go past the caches from 16 MB on, in rows of at least 1 KB.
void expect_streamed(const LayerCase& c) {
  const auto g = conv_transpose2d_geometry(Tensor::empty(c.x), Tensor::empty(c.w), {}, c.options);
  ASSERT_GE(g.y_shape().count() * 4, 16 << 20) << c.name;
  ASSERT_GE(g.w.out * 4, 1 << 10) << c.name;
}

TEST(StreamedRows, AllKindsOfRows) {
  for (const LayerCase& c :
       {kEverySecondRow, LayerCase{"pairs, of all rows", {3, 8, 71, 1030}, {8, 20, 3, 3}, {.padding = 1}},
        LayerCase{"pairs, from outside", {3, 16, 50, 620}, {16, 18, 3, 2}, {.stride = {1, 3}}},
        LayerCase{"several stretches", {1, 4, 20, 4096}, {4, 32, 3, 4}, {.stride = {1, 2}}},
        LayerCase{
            "three rows of five", {1, 8, 40, 81}, {8, 64, 3, 3}, {.stride = 5, .padding = 1, .dilation = 2}},
        LayerCase{"few rows have taps", {1, 4, 10, 300}, {4, 41, 1, 1}, {.stride = {40, 1}}},
        LayerCase{"a row of taps in each panel",
                  {3, 8, 1, 200},
                  {8, 70, 1, 3},
                  {.stride = {30, 5}, .output_padding = {29, 0}}}}) {
    expect_streamed(c);
    expect_reference(c, ConvAlgorithm::planes, {DType::float32});
  }
}

// 1.05 and 0.97 times as much; without fused multiply-adds 1.11 and 1.00.
TEST(StreamedRows, PairsErrHardlyMoreThanAPlainLoop) {
  if (kSanitized) GTEST_SKIP() << "about values only";
  for (const LayerCase& c :
       {kEverySecondRow, LayerCase{"all rows", {1, 8, 130, 512}, {8, 80, 3, 3}, {.padding = 1}}}) {
    expect_streamed(c);
    manual_seed(3);
    const Tensor x = randn(c.x), w = randn(c.w);
    const auto run = [&](ConvAlgorithm algorithm, DType dtype) {
      const ConvAlgorithmScope scope(algorithm);
      return conv_transpose2d(x.to(dtype), w.to(dtype), {}, c.options).tensor().to_vector<double>();
    };
    const auto exact = run(ConvAlgorithm::reference, DType::float64);
    const auto error = [&](ConvAlgorithm algorithm) {
      const auto y = run(algorithm, DType::float32);
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += (y[i] - exact[i]) * (y[i] - exact[i]);
      return std::sqrt(sum / static_cast<double>(y.size()));
    };
    EXPECT_LT(error(ConvAlgorithm::planes), 1.15 * error(ConvAlgorithm::reference)) << c.name;
  }
}

}  // namespace
}  // namespace tapedeck::test
