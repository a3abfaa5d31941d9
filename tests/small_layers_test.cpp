// Layers that wrap one op: which op, with which arguments, and the state of those that have one.
#include <tapedeck/nn/activation.h>
#include <tapedeck/nn/dropout.h>
#include <tapedeck/nn/pool.h>
#include <tapedeck/nn/upsample.h>

#include <cmath>
#include <functional>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/core/random.h>

#include "errors.h"

namespace tapedeck::nn {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

std::vector<std::string> state_of(const Module& module) {
  std::vector<std::string> state;
  for (const auto& [name, tensor] : module.state_dict()) {
    state.push_back(concat(name, " ", tensor.dtype(), " ", tensor.shape()));
  }
  return state;
}

TEST(Activations, AreTheirFormulas) {
  const auto gelu_tanh = [](double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
  };
  const struct {
    std::shared_ptr<Module> layer;
    const char* kind;
    std::function<double(double)> formula;
  } cases[] = {
      {std::make_shared<ReLU>(), "ReLU", [](double x) { return std::max(x, 0.0); }},
      {std::make_shared<LeakyReLU>(), "LeakyReLU", [](double x) { return x > 0 ? x : 0.01 * x; }},
      {std::make_shared<LeakyReLU>(LeakyReLU::Options{.negative_slope = 0.3}), "LeakyReLU",
       [](double x) { return x > 0 ? x : 0.3 * x; }},
      {std::make_shared<ELU>(), "ELU", [](double x) { return x > 0 ? x : std::expm1(x); }},
      {std::make_shared<ELU>(ELU::Options{.alpha = 2}), "ELU",
       [](double x) { return x > 0 ? x : 2 * std::expm1(x); }},
      {std::make_shared<GELU>(), "GELU", [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }},
      {std::make_shared<GELU>(GELU::Options{.approximate = Gelu::tanh}), "GELU", gelu_tanh},
      {std::make_shared<SiLU>(), "SiLU", [](double x) { return x / (1 + std::exp(-x)); }},
      {std::make_shared<Mish>(), "Mish", [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }},
      {std::make_shared<Softplus>(), "Softplus", [](double x) { return std::log1p(std::exp(x)); }},
      {std::make_shared<Softplus>(Softplus::Options{.beta = 3, .threshold = 4}), "Softplus",
       [](double x) { return 3 * x > 4 ? x : std::log1p(std::exp(3 * x)) / 3; }},
      {std::make_shared<Tanh>(), "Tanh", [](double x) { return std::tanh(x); }},
      {std::make_shared<Sigmoid>(), "Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }},
      {std::make_shared<Hardtanh>(), "Hardtanh", [](double x) { return std::min(1.0, std::max(-1.0, x)); }},
      {std::make_shared<Hardtanh>(Hardtanh::Options{.min_val = -0.5, .max_val = 2}), "Hardtanh",
       [](double x) { return std::min(2.0, std::max(-0.5, x)); }}};
  const Tensor x = Tensor::from<double>({-3, -0.75, -0.1, 0, 0.2, 0.9, 1.5, 2.5}, {2, 4});
  const auto xs = x.to_vector<double>();
  for (const auto& c : cases) {
    EXPECT_STREQ(c.layer->kind(), c.kind);
    EXPECT_THAT(state_of(*c.layer), IsEmpty());
    const auto y = (*c.layer)(x).tensor().to_vector<double>();
    for (std::size_t i = 0; i < xs.size(); ++i) EXPECT_NEAR(y[i], c.formula(xs[i]), 1e-12) << c.kind << xs[i];
  }
}

TEST(Softmax, IsOverItsDimension) {
  const Tensor x = randn({2, 3, 4}, {.dtype = DType::float64});
  for (const int dim : {0, 1, -1}) {
    const auto p = Softmax({.dim = dim})(x).tensor().to_vector<double>();
    const auto log_p = LogSoftmax({.dim = dim})(x).tensor().to_vector<double>();
    const auto values = x.to_vector<double>();
    const int d = dim < 0 ? 2 : dim;
    const std::int64_t stride = d == 0 ? 12 : d == 1 ? 4 : 1, size = x.size(d);
    for (std::int64_t i = 0; i < 24; ++i) {
      const std::int64_t first = i - i / stride % size * stride;
      double total = 0;
      for (std::int64_t k = 0; k < size; ++k)
        total += std::exp(values[static_cast<std::size_t>(first + k * stride)]);
      const auto at = static_cast<std::size_t>(i);
      EXPECT_NEAR(p[at], std::exp(values[at]) / total, 1e-14);
      EXPECT_NEAR(log_p[at], values[at] - std::log(total), 1e-14);
    }
  }
}

Tensor ramp(const Shape& shape) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < shape.count(); ++i) values.push_back(static_cast<double>(i));
  return Tensor::from(values, shape);
}

TEST(Pooling, PassesItsOptions) {
  const Tensor x = ramp({1, 1, 4, 6});
  EXPECT_THAT(MaxPool2d({.kernel_size = 2})(x).tensor().to_vector<double>(),
              ElementsAre(7, 9, 11, 19, 21, 23));
  EXPECT_THAT(
      MaxPool2d({.kernel_size = {2, 3}, .stride = {2, 3}, .padding = {1, 0}})(x).tensor().to_vector<double>(),
      ElementsAre(2, 5, 14, 17, 20, 23));
  EXPECT_THAT(AvgPool2d({.kernel_size = {4, 3}})(x).tensor().to_vector<double>(),
              ElementsAre(DoubleNear(10, 1e-12), DoubleNear(13, 1e-12)));
  EXPECT_THAT(AdaptiveAvgPool2d({.output_size = {1, 2}})(x).tensor().to_vector<double>(),
              ElementsAre(DoubleNear(10, 1e-12), DoubleNear(13, 1e-12)));
  expect_error([&] { MaxPool2d({.kernel_size = 7})(x); }, "max_pool2d: ");
}

TEST(Upsample, ByFactorOrSize) {
  const Tensor x = ramp({1, 1, 1, 2});
  EXPECT_THAT(Upsample({.scale_factor = 2})(x).tensor().to_vector<double>(),
              ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(Upsample({.size = {1, 6}})(x).tensor().to_vector<double>(), ElementsAre(0, 0, 0, 1, 1, 1));
  EXPECT_THAT(
      Upsample({.scale_factor = {1, 2}, .mode = Upsample::Mode::bilinear})(x).tensor().to_vector<double>(),
      ElementsAre(0, 0.25, 0.75, 1));
  EXPECT_THAT(Upsample({.size = {1, 3}, .mode = Upsample::Mode::bilinear, .align_corners = true})(x)
                  .tensor()
                  .to_vector<double>(),
              ElementsAre(0, 0.5, 1));
  expect_error([] { Upsample({}); },
               "Upsample: scale_factor 0x0 and size 0x0 are not legal; legal is one of them");
  expect_error([] { Upsample({.scale_factor = 2, .size = 4}); }, "legal is one of them");
  expect_error([] { Upsample({.scale_factor = 2, .align_corners = true}); }, "bilinear mode only");
  expect_error(
      [] {
        Upsample({.scale_factor = 2})(randn({2, 3}));
      },
      "Upsample: x has shape [2,3]; legal are");
}

TEST(PixelShuffle, AndBack) {
  const Tensor x = ramp({1, 4, 1, 2});
  const Variable y = PixelShuffle({.upscale_factor = 2})(x);
  EXPECT_EQ(y.shape(), Shape({1, 1, 2, 4}));
  EXPECT_THAT(y.tensor().to_vector<double>(), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(PixelUnshuffle({.downscale_factor = 2})(y).tensor().to_vector<double>(),
              ElementsAreArray(x.to_vector<double>()));
}

TEST(Dropout, ZeroesAndScalesInTrainingOnly) {
  Generator a(1), b(1);
  Dropout layer({.p = 0.25}, a);
  const Tensor x = Tensor::ones({100, 100});
  const auto y = layer(x).tensor().to_vector<float>();
  double zeros = 0;
  for (const float value : y) {
    if (value == 0) {
      ++zeros;
    } else {
      EXPECT_FLOAT_EQ(value, 4.0f / 3);
    }
  }
  EXPECT_NEAR(zeros / 10000, 0.25, 0.02);
  EXPECT_EQ(Dropout({.p = 0.25}, b)(x).tensor().to_vector<float>(), y);
  EXPECT_NE(layer(x).tensor().to_vector<float>(), y);
  layer.eval();
  EXPECT_EQ(layer(x).tensor().to_vector<float>(), x.to_vector<float>());
  expect_error([] { Dropout({.p = 1.5}); }, "Dropout: p 1.5 is not legal; legal is [0, 1]");
}

}  // namespace
}  // namespace tapedeck::nn
