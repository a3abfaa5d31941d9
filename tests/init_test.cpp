// First values: their distributions, and what they do to the variance of what goes through.
#include <tapedeck/nn/init.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/nn/conv.h>
#include <tapedeck/nn/linear.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>

namespace tapedeck::nn {
namespace {

using ::testing::HasSubstr;

struct Moments {
  double mean = 0, variance = 0, least = 0, most = 0;
};

Moments moments(const std::vector<double>& values) {
  Moments m;
  const auto count = static_cast<double>(values.size());
  m.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  for (const double v : values) m.variance += (v - m.mean) * (v - m.mean) / count;
  m.least = *std::min_element(values.begin(), values.end());
  m.most = *std::max_element(values.begin(), values.end());
  return m;
}

Moments moments(const Variable& w) {
  return moments(w.tensor().to_vector<double>());
}

void expect_uniform(const Variable& w, double bound) {
  const Moments m = moments(w);
  EXPECT_GE(m.least, -bound);
  EXPECT_LE(m.most, bound);
  EXPECT_LT(m.least, -0.98 * bound);
  EXPECT_GT(m.most, 0.98 * bound);
  EXPECT_NEAR(m.mean, 0, 0.05 * bound);
  EXPECT_NEAR(m.variance, bound * bound / 3, 0.02 * bound * bound);
}

void expect_normal(const Variable& w, double deviation) {
  const Moments m = moments(w);
  EXPECT_NEAR(m.mean, 0, 0.05 * deviation);
  EXPECT_NEAR(m.variance, deviation * deviation, 0.05 * deviation * deviation);
  EXPECT_GT(m.most, 3 * deviation);  // a uniform distribution ends at 1.73
}

TEST(Init, LayersStartAsPyTorchs) {
  const Linear linear({.in_features = 300, .out_features = 200});
  expect_uniform(linear.weight, 1 / std::sqrt(300.0));
  expect_uniform(linear.bias, 1 / std::sqrt(300.0));
  // [ci, co/groups, kh, kw]: the fan is counted from the output channels.
  const ConvTranspose2d up(
      {.in_channels = 60, .out_channels = 200, .kernel_size = {3, 5}, .stride = {3, 5}, .groups = 20});
  expect_uniform(up.weight, 1 / std::sqrt(10.0 * 15));
  expect_uniform(up.bias, 1 / std::sqrt(10.0 * 15));
  const Conv2d down({.in_channels = 60, .out_channels = 200, .kernel_size = {3, 5}, .groups = 20});
  expect_uniform(down.weight, 1 / std::sqrt(3.0 * 15));
  expect_uniform(down.bias, 1 / std::sqrt(3.0 * 15));
  expect_normal(Embedding({.num_embeddings = 100, .embedding_dim = 100}).weight, 1);
}

TEST(Init, DrawsTheBiasAfterTheWeight) {
  Generator a(5), b(5);
  const Linear with({.in_features = 4, .out_features = 3}, a);
  const Linear without({.in_features = 4, .out_features = 3, .bias = false}, b);
  EXPECT_EQ(with.weight.tensor().to_vector<float>(), without.weight.tensor().to_vector<float>());
  EXPECT_EQ(a.offset(), 2u);
  EXPECT_EQ(b.offset(), 1u);
}

TEST(Init, XavierAndKaiming) {
  const Variable w = Tensor::empty({120, 40, 3, 2});  // fans: in 240, out 720
  init::xavier_uniform_(w, 2);
  expect_uniform(w, 2 * std::sqrt(6.0 / 960));
  init::xavier_normal_(w);
  expect_normal(w, std::sqrt(2.0 / 960));
  init::kaiming_uniform_(w, {.a = std::sqrt(5.0)});
  expect_uniform(w, 1 / std::sqrt(240.0));
  init::kaiming_normal_(w, {.fan = init::Fan::out, .nonlinearity = init::Nonlinearity::relu});
  expect_normal(w, std::sqrt(2.0 / 720));
  EXPECT_THROW(init::xavier_normal_(Tensor::empty({3})), Error);
}

TEST(Init, Gains) {
  EXPECT_DOUBLE_EQ(init::gain(init::Nonlinearity::linear), 1);
  EXPECT_DOUBLE_EQ(init::gain(init::Nonlinearity::sigmoid), 1);
  EXPECT_DOUBLE_EQ(init::gain(init::Nonlinearity::tanh), 5.0 / 3);
  EXPECT_DOUBLE_EQ(init::gain(init::Nonlinearity::relu), std::sqrt(2.0));
  EXPECT_DOUBLE_EQ(init::gain(init::Nonlinearity::leaky_relu, 0.2), std::sqrt(2 / 1.04));
  EXPECT_DOUBLE_EQ(init::gain(init::Nonlinearity::selu), 0.75);
}

TEST(Init, OrthogonalRowsOrColumns) {
  for (const Shape& shape : {Shape{5, 3, 2, 2}, Shape{12, 3, 2, 1}}) {
    const Variable w = Tensor::empty(shape, {.dtype = DType::float64});
    init::orthogonal_(w, 2);
    const std::int64_t rows = shape[0], columns = shape.count() / rows;
    const auto values = w.tensor().to_vector<double>();
    const bool wide = rows <= columns;
    const std::int64_t count = std::min(rows, columns), length = std::max(rows, columns);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t j = 0; j < count; ++j) {
        double dot = 0;
        for (std::int64_t k = 0; k < length; ++k) {
          const auto value = [&](std::int64_t v) {
            return values[static_cast<std::size_t>(wide ? v * columns + k : k * columns + v)];
          };
          dot += value(i) * value(j);
        }
        EXPECT_NEAR(dot, i == j ? 4 : 0, 1e-12) << shape[0] << " " << i << " " << j;
      }
    }
  }
}

/// Linear interpolation of row[i] at the centre of pixel o of a row that is `factor` times as long.
double interpolated(const std::vector<double>& row, std::int64_t o, std::int64_t factor) {
  const double x = (static_cast<double>(o) + 0.5) / static_cast<double>(factor) - 0.5;
  const auto left = static_cast<std::size_t>(std::floor(x));
  return row[left] + (x - std::floor(x)) * (row[left + 1] - row[left]);
}

TEST(Init, BilinearUpsamples) {
  for (const std::int64_t factor : {2, 3, 4}) {
    for (const std::int64_t groups : {1, 2}) {
      const std::int64_t kernel = 2 * factor - factor % 2;
      const Variable w = Tensor::empty({2, 2 / groups, kernel, kernel}, {.dtype = DType::float64});
      init::bilinear_(w);
      const std::vector<double> rows = {1, 5, 2, 8, 3}, columns = {2, -1, 4, 1};
      std::vector<double> image;
      for (const double sign : {1.0, -2.0}) {
        for (const double r : rows) {
          for (const double c : columns) image.push_back(sign * r * c);
        }
      }
      const Variable y =
          conv_transpose2d(Tensor::from(image, {1, 2, 5, 4}), w, {},
                           {.stride = factor, .padding = (factor - factor % 2) / 2, .groups = groups});
      ASSERT_EQ(y.shape(), Shape({1, 2, 5 * factor, 4 * factor})) << factor;
      const auto values = y.tensor().to_vector<double>();
      for (std::int64_t h = factor; h < 4 * factor; ++h) {  // away from the border, where pixels end
        for (std::int64_t x = factor; x < 3 * factor; ++x) {
          const double expected = interpolated(rows, h, factor) * interpolated(columns, x, factor);
          const auto at = static_cast<std::size_t>(h * 4 * factor + x);
          EXPECT_NEAR(values[at], expected, 1e-12) << factor << " " << h << " " << x;
          EXPECT_NEAR(values[at + values.size() / 2], -2 * expected, 1e-12);
        }
      }
    }
  }
  EXPECT_THROW(init::bilinear_(Tensor::empty({3, 2, 4, 4})), Error);
}

TEST(Init, IcnrRepeatsItsKernels) {
  const Variable w = Tensor::empty({2 * 9, 4, 3, 3});
  init::icnr_(w, 3);
  const auto values = w.tensor().to_vector<float>();
  const std::size_t size = 4 * 9;
  for (std::size_t i = 0; i < 18; ++i) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i * size);
    const auto source = values.begin() + static_cast<std::ptrdiff_t>(i / 9 * 9 * size);
    EXPECT_TRUE(std::equal(begin, begin + static_cast<std::ptrdiff_t>(size), source)) << i;
  }
  EXPECT_NE(values[0], values[9 * size]);
  EXPECT_LE(moments(w).most, 1.0 / 6);
  EXPECT_GT(moments(w).most, 0.9 / 6);
  init::icnr_(w, 3, [](const Tensor& kernels) {
    EXPECT_EQ(kernels.shape(), Shape({2, 4, 3, 3}));
    kernels.fill_(7);
  });
  EXPECT_EQ(moments(w).least, 7);
  EXPECT_THROW(init::icnr_(w, 2), Error);
}

TEST(Init, VarianceCorrectTransposedConvolutionsKeepTheVariance) {
  struct Case {
    std::int64_t ci, co, groups;
    Size2 kernel, stride, dilation;
  };
  for (const Case& c : {Case{32, 16, 1, 4, 2, 1}, Case{32, 64, 4, {3, 5}, {2, 3}, 1}, Case{48, 8, 1, 2, 3, 1},
                        Case{32, 32, 2, {4, 3}, {2, 1}, {3, 2}}}) {
    const Variable w = Tensor::empty({c.ci, c.co / c.groups, c.kernel.h, c.kernel.w});
    init::conv_transpose2d_variance_(w, {.stride = c.stride, .groups = c.groups, .gain = 1.5});
    const Tensor x = randn({3, c.ci, 24, 24});
    const Tensor y =
        conv_transpose2d(x, w, {}, {.stride = c.stride, .dilation = c.dilation, .groups = c.groups}).tensor();
    // Away from the border, where inputs are missing; whole periods of the phases.
    const std::int64_t lost_h = 8 * c.stride.h, lost_w = 8 * c.stride.w;
    const std::int64_t h = 8 * c.stride.h, width = 8 * c.stride.w;
    std::vector<double> inner;
    const auto values = y.to_vector<double>();
    for (std::int64_t plane = 0; plane < 3 * c.co; ++plane) {
      for (std::int64_t i = lost_h; i < lost_h + h; ++i) {
        for (std::int64_t j = lost_w; j < lost_w + width; ++j) {
          inner.push_back(values[static_cast<std::size_t>((plane * y.size(2) + i) * y.size(3) + j)]);
        }
      }
    }
    EXPECT_NEAR(moments(inner).variance, 1.5 * 1.5, 0.12 * 2.25) << "ci " << c.ci << " groups " << c.groups;
  }
  const Variable w = Tensor::empty({4, 2, 3, 3});
  EXPECT_THROW(init::conv_transpose2d_variance_(w, {.groups = 3}), Error);
  EXPECT_THROW(init::conv_transpose2d_variance_(w, {.stride = 0}), Error);
}

}  // namespace
}  // namespace tapedeck::nn
