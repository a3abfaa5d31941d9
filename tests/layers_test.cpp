// Layers: the shapes and names of their state, and what they compute against definition loops.
#include <tapedeck/nn/activation.h>
#include <tapedeck/nn/conv.h>
#include <tapedeck/nn/linear.h>
#include <tapedeck/nn/optim/adam.h>
#include <tapedeck/nn/optim/average.h>
#include <tapedeck/nn/warning.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/autograd/tape.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/reduce.h>

#include "errors.h"

namespace tapedeck::nn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Names and shapes of the state, as PyTorch's state_dict() has them.
std::vector<std::string> state_of(const Module& module) {
  std::vector<std::string> state;
  for (const auto& [name, tensor] : module.state_dict()) {
    state.push_back(concat(name, " ", tensor.dtype(), " ", tensor.shape()));
  }
  return state;
}

double at(const Tensor& x, std::initializer_list<std::int64_t> index) {
  std::int64_t flat = 0;
  int d = 0;
  for (const std::int64_t i : index) flat = flat * x.size(d++) + i;
  return x.to_vector<double>()[static_cast<std::size_t>(flat)];
}

void expect_close(const Tensor& a, const std::vector<double>& b, double tolerance) {
  const auto values = a.to_vector<double>();
  ASSERT_EQ(values.size(), b.size());
  for (std::size_t i = 0; i < b.size(); ++i) EXPECT_NEAR(values[i], b[i], tolerance) << "element " << i;
}

TEST(Linear, MultipliesByTheTransposedWeight) {
  Linear layer({.in_features = 3, .out_features = 4});
  EXPECT_THAT(state_of(layer), ElementsAre("weight float32 [4,3]", "bias float32 [4]"));
  layer.to(DType::float64);
  const Tensor x = randn({2, 5, 3}, {.dtype = DType::float64});
  std::vector<double> expected;
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < 5; ++j) {
      for (std::int64_t o = 0; o < 4; ++o) {
        double sum = at(layer.bias.tensor(), {o});
        for (std::int64_t k = 0; k < 3; ++k) sum += at(x, {i, j, k}) * at(layer.weight.tensor(), {o, k});
        expected.push_back(sum);
      }
    }
  }
  const Variable y = layer(x);
  EXPECT_EQ(y.shape(), Shape({2, 5, 4}));
  expect_close(y.tensor(), expected, 1e-12);
  EXPECT_THAT(state_of(Linear({.in_features = 3, .out_features = 4, .bias = false})),
              ElementsAre("weight float32 [4,3]"));
  expect_error([&] { layer(randn({2, 4}, {.dtype = DType::float64})); }, "linear: ");
  expect_error([] { Linear({.in_features = 3}); }, "Linear: in_features 3 and out_features 0 are not legal");
}

TEST(Embedding, TakesRowsAndTrainsThem) {
  Embedding codes({.num_embeddings = 5, .embedding_dim = 2});
  EXPECT_THAT(state_of(codes), ElementsAre("weight float32 [5,2]"));
  const Tensor index = Tensor::from<std::int64_t>({4, 0, 4, 1, 1, 4}, {2, 3});
  Tape tape;
  const Variable y = codes(index);
  EXPECT_EQ(y.shape(), Shape({2, 3, 2}));
  EXPECT_EQ(at(y.tensor(), {1, 0, 1}), at(codes.weight.tensor(), {1, 1}));
  tape.backward(sum(y));
  EXPECT_THAT(codes.weight.grad().tensor().to_vector<float>(), ElementsAre(1, 1, 2, 2, 0, 0, 0, 0, 3, 3));
}

TEST(Flatten, KeepsTheBatch) {
  const Tensor x = randn({2, 3, 4, 5});
  EXPECT_EQ(Flatten()(x).shape(), Shape({2, 60}));
  EXPECT_EQ(Flatten({.start_dim = 0, .end_dim = 1})(x).shape(), Shape({6, 4, 5}));
}

TEST(Unflatten, SplitsDimensionOne) {
  EXPECT_EQ(Unflatten({3, 4, 5})(randn({2, 60})).shape(), Shape({2, 3, 4, 5}));
  EXPECT_EQ(Unflatten({3, 4})(randn({2, 12, 7})).shape(), Shape({2, 3, 4, 7}));
  expect_error(
      [] {
        Unflatten({3, 4})(randn({2, 11}));
      },
      "Unflatten: x has shape [2,11]; dimension 1 must be 12 to become [3,4]");
}

TEST(Identity, ReturnsItsInput) {
  const Variable x = Variable::parameter(randn({2}));
  EXPECT_TRUE(Identity()(x).is(x));
}

TEST(ConvTranspose2d, FollowsItsDefinition) {
  ConvTranspose2d layer({.in_channels = 4,
                         .out_channels = 6,
                         .kernel_size = {3, 4},
                         .stride = {3, 2},
                         .padding = {1, 2},
                         .output_padding = {2, 1},
                         .dilation = {1, 3},
                         .groups = 2});
  EXPECT_THAT(state_of(layer), ElementsAre("weight float32 [4,3,3,4]", "bias float32 [6]"));
  layer.to(DType::float64);
  const Tensor x = randn({2, 4, 3, 5}, {.dtype = DType::float64});
  const std::int64_t oh = (3 - 1) * 3 - 2 + 2 + 2 + 1, ow = (5 - 1) * 2 - 4 + 9 + 1 + 1;
  std::vector<double> expected(static_cast<std::size_t>(2 * 6 * oh * ow));
  const auto y_at = [&](std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) -> double& {
    return expected[static_cast<std::size_t>(((n * 6 + c) * oh + h) * ow + w)];
  };
  for (std::int64_t n = 0; n < 2; ++n) {
    for (std::int64_t c = 0; c < 6; ++c) {
      for (std::int64_t h = 0; h < oh; ++h) {
        for (std::int64_t w = 0; w < ow; ++w) y_at(n, c, h, w) = at(layer.bias.tensor(), {c});
      }
    }
    for (std::int64_t ci = 0; ci < 4; ++ci) {
      for (std::int64_t ih = 0; ih < 3; ++ih) {
        for (std::int64_t iw = 0; iw < 5; ++iw) {
          for (std::int64_t c = 0; c < 3; ++c) {
            for (std::int64_t kh = 0; kh < 3; ++kh) {
              for (std::int64_t kw = 0; kw < 4; ++kw) {
                const std::int64_t h = ih * 3 + kh - 1, w = iw * 2 + kw * 3 - 2;
                if (h < 0 || h >= oh || w < 0 || w >= ow) continue;
                y_at(n, ci / 2 * 3 + c, h, w) +=
                    at(x, {n, ci, ih, iw}) * at(layer.weight.tensor(), {ci, c, kh, kw});
              }
            }
          }
        }
      }
    }
  }
  const Variable y = layer(x);
  EXPECT_EQ(y.shape(), Shape({2, 6, oh, ow}));
  expect_close(y.tensor(), expected, 1e-12);
}

TEST(ConvTranspose2d, TakesAnOutputSize) {
  ConvTranspose2d layer({.in_channels = 2, .out_channels = 3, .kernel_size = 4, .stride = 2, .padding = 1});
  EXPECT_EQ(layer(randn({1, 2, 5, 7})).shape(), Shape({1, 3, 10, 14}));
  EXPECT_EQ(layer.forward(randn({1, 2, 5, 7}), {11, 14}).shape(), Shape({1, 3, 11, 14}));
  EXPECT_EQ(layer.forward(randn({2, 5, 7}), {10, 15}).shape(), Shape({3, 10, 15}));
  expect_error([&] { layer.forward(randn({1, 2, 5, 7}), {12, 14}); }, "conv_transpose2d: output_size");
  expect_error([&] { layer(randn({1, 3, 5, 7})); }, "conv_transpose2d: ");
}

TEST(ConvTranspose2d, RejectsIllegalOptions) {
  expect_error([] { ConvTranspose2d({.in_channels = 4, .out_channels = 6, .kernel_size = 3, .groups = 4}); },
               "ConvTranspose2d: groups 4 is not legal; legal are common divisors of in_channels 4 and "
               "out_channels 6");
  expect_error([] { ConvTranspose2d({.in_channels = 4, .out_channels = 6}); },
               "kernel_size 0x0 is not legal");
  expect_error([] { ConvTranspose2d({.out_channels = 6}); }, "in_channels 0 and out_channels 6");
  expect_error(
      [] {
        Conv2d({.in_channels = 1, .out_channels = 1, .kernel_size = 3, .stride = {1, 0}});
      },
      "Conv2d: stride 1x0 is not legal; legal is 1 or more");
}

TEST(ConvTranspose2d, WarnsOnceOfACheckerboard) {
  std::vector<std::string> said;
  const WarningHandler before = set_warning_handler([&](const std::string& text) { said.push_back(text); });
  const auto make = [](Size2 kernel, Size2 stride, Size2 dilation) {
    ConvTranspose2d(
        {.in_channels = 1, .out_channels = 1, .kernel_size = kernel, .stride = stride, .dilation = dilation});
  };
  make(4, 2, 1);
  make({4, 9}, {4, 3}, 1);
  make(6, 2, 3);
  make(5, 1, 2);
  EXPECT_THAT(said, IsEmpty());
  make({4, 5}, 2, 1);
  make({4, 5}, 2, 1);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0],
              HasSubstr("ConvTranspose2d: kernel 4x5 with stride 2x2 and dilation 1x1 reaches some"));
  make(4, 2, {1, 2});  // the taps meet the even phases only
  EXPECT_EQ(said.size(), 2u);
  set_warning_handler(before);
}

TEST(Conv2d, FollowsItsDefinition) {
  Conv2d layer({.in_channels = 4,
                .out_channels = 6,
                .kernel_size = {3, 2},
                .stride = {1, 2},
                .padding = {2, 1},
                .dilation = {2, 1},
                .groups = 2});
  EXPECT_THAT(state_of(layer), ElementsAre("weight float32 [6,2,3,2]", "bias float32 [6]"));
  layer.to(DType::float64);
  const Tensor x = randn({2, 4, 6, 7}, {.dtype = DType::float64});
  const std::int64_t oh = 6 + 4 - 4 - 1 + 1, ow = (7 + 2 - 1 - 1) / 2 + 1;
  std::vector<double> expected;
  for (std::int64_t n = 0; n < 2; ++n) {
    for (std::int64_t c = 0; c < 6; ++c) {
      for (std::int64_t h = 0; h < oh; ++h) {
        for (std::int64_t w = 0; w < ow; ++w) {
          double sum = at(layer.bias.tensor(), {c});
          for (std::int64_t ci = 0; ci < 2; ++ci) {
            for (std::int64_t kh = 0; kh < 3; ++kh) {
              for (std::int64_t kw = 0; kw < 2; ++kw) {
                const std::int64_t ih = h + kh * 2 - 2, iw = w * 2 + kw - 1;
                if (ih < 0 || ih >= 6 || iw < 0 || iw >= 7) continue;
                sum += at(x, {n, c / 3 * 2 + ci, ih, iw}) * at(layer.weight.tensor(), {c, ci, kh, kw});
              }
            }
          }
          expected.push_back(sum);
        }
      }
    }
  }
  const Variable y = layer(x);
  EXPECT_EQ(y.shape(), Shape({2, 6, oh, ow}));
  expect_close(y.tensor(), expected, 1e-12);
}

TEST(Layers, TheSameSeedGivesTheSameWeights) {
  Generator a(3), b(3), c(4);
  const auto make = [](Generator& generator) {
    return ConvTranspose2d({.in_channels = 2, .out_channels = 2, .kernel_size = 2}, generator);
  };
  const auto first = make(a), second = make(b), other = make(c);
  EXPECT_EQ(first.weight.tensor().to_vector<float>(), second.weight.tensor().to_vector<float>());
  EXPECT_EQ(first.bias.tensor().to_vector<float>(), second.bias.tensor().to_vector<float>());
  EXPECT_NE(first.weight.tensor().to_vector<float>(), other.weight.tensor().to_vector<float>());
}

// In float64, which hides no mistakes; also where the layout changes meanwhile.
TEST(Layers, TrainAlikeWithChannelsLast) {
  const auto trained = [](const std::vector<Layout>& of_steps) {
    manual_seed(3);
    Sequential net(ConvTranspose2d({.in_channels = 5, .out_channels = 4, .kernel_size = 3, .stride = 2}),
                   LeakyReLU(), Conv2d({.in_channels = 4, .out_channels = 6, .kernel_size = {2, 3}}));
    net.to(DType::float64);
    optim::Adam adam(net.parameters(), {.lr = 0.01});
    optim::ExponentialMovingAverage average(net.parameters(), {.decay = 0.9});
    const Tensor x = randn({2, 5, 6, 7}, {.dtype = DType::float64});
    for (const Layout layout : of_steps) {
      net.to(layout);
      Tape tape;
      tape.backward(sum(square(net(x.to(layout)))));
      const Variable weight = net.parameters()[0];
      EXPECT_EQ(to_string(weight.tensor().layout()), to_string(layout));
      EXPECT_EQ(to_string(weight.grad().tensor().layout()), to_string(layout));
      adam.step();
      average.update();
      net.zero_grad();
    }
    StateDict state = net.state_dict();
    for (const auto& entry : average.state_dict()) state.push_back(entry);
    return state;
  };
  using enum Layout;
  const StateDict rows = trained({nchw, nchw, nchw});
  for (const auto& layouts : {std::vector{nhwc, nhwc, nhwc}, {nhwc, nchw, nhwc}}) {
    const StateDict last = trained(layouts);
    ASSERT_EQ(rows.size(), last.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      expect_close(rows[i].second, last[i].second.to_vector<double>(), 1e-10);
  }
}

TEST(Layers, DescribeThemselves) {
  EXPECT_EQ(Linear({.in_features = 20, .out_features = 48}).details(), "20 -> 48");
  EXPECT_EQ(Embedding({.num_embeddings = 5, .embedding_dim = 2}).details(), "5 rows of 2");
  EXPECT_EQ(Unflatten({3, 4, 4}).details(), "[3,4,4]");
  EXPECT_EQ(ConvTranspose2d({.in_channels = 3,
                             .out_channels = 6,
                             .kernel_size = 4,
                             .stride = 2,
                             .padding = {1, 0},
                             .groups = 3})
                .details(),
            "3 -> 6, kernel 4x4, stride 2x2, padding 1x0, groups 3");
  EXPECT_EQ(Conv2d({.in_channels = 3, .out_channels = 6, .kernel_size = {4, 3}}).details(),
            "3 -> 6, kernel 4x3");
}

}  // namespace
}  // namespace tapedeck::nn
