#include <tapedeck/tapedeck.h>

#include <cmath>
#include <tuple>

#include <gtest/gtest.h>

namespace tapedeck {
namespace {

TEST(BatchNormLayer, TrainsOnTheBatchAndEvaluatesOnWhatItTracked) {
  nn::BatchNorm2d layer({.num_features = 2, .momentum = 1.0});
  Generator generator(3);
  const Tensor x = randn({3, 2, 4, 5}, {}, generator);
  const auto y = layer(x).tensor().to_vector<double>();
  for (int c = 0; c < 2; ++c) {
    double sum = 0, squares = 0;
    for (int n = 0; n < 3; ++n) {
      for (int p = 0; p < 20; ++p) {
        const double v = y[static_cast<std::size_t>((n * 2 + c) * 20 + p)];
        sum += v;
        squares += v * v;
      }
    }
    EXPECT_NEAR(sum / 60, 0, 1e-6);
    EXPECT_NEAR(squares / 60, 1, 1e-4);
  }
  EXPECT_EQ(layer.num_batches_tracked.item(), 1);

  layer.eval();
  const double mean = layer.running_mean.tensor().to_vector<double>()[0];
  const double var = layer.running_var.tensor().to_vector<double>()[0];
  const double x0 = x.to_vector<double>()[0];
  EXPECT_NEAR(layer(x).tensor().to_vector<double>()[0], (x0 - mean) / std::sqrt(var + 1e-5), 1e-5);
  EXPECT_EQ(layer.num_batches_tracked.item(), 1);
}

TEST(BatchNormLayer, IsFusedWithTheActivationBehindItUnlessAHookSeesItsResult) {
  const nn::BatchNorm2d norm({.num_features = 3});
  const Tensor x = randn({2, 3, 4, 5});
  for (const bool leaky : {false, true}) {
    nn::Sequential model(norm);
    leaky ? model.push_back(nn::LeakyReLU({.negative_slope = 0.2})) : model.push_back(nn::ReLU());
    const auto run = [&] {
      const Variable leaf = Variable::parameter(x);
      Tape tape;
      const Variable y = model(leaf);
      tape.backward(y, {.gradient = x});
      return std::tuple(y.tensor().to_vector<float>(), leaf.grad().tensor().to_vector<float>(), tape.size());
    };
    const auto [y, gradient, ops] = run();
    EXPECT_EQ(ops, 1u);
    Variable seen;
    model[0].register_forward_hook([&](const nn::Module&, const Variable&, const Variable& between) {
      seen = between;
      return Variable();
    });
    EXPECT_EQ(run(), std::tuple(y, gradient, std::size_t{2}));
    EXPECT_LT(min(seen).item(), -1);
    model[0].clear_hooks();
  }
}

TEST(BatchNormLayer, CountsEmptyBatches) {
  nn::BatchNorm2d layer({.num_features = 3});
  layer(Tensor::zeros({0, 3, 4, 4}));
  EXPECT_EQ(layer.num_batches_tracked.item(), 1);
  layer.eval();
  layer(Tensor::zeros({0, 3, 4, 4}));
  EXPECT_EQ(layer.num_batches_tracked.item(), 1);
}

TEST(BatchNormLayer, HasPyTorchsNames) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : nn::BatchNorm1d({.num_features = 3}).state_dict()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "bias", "running_mean", "running_var",
                                             "num_batches_tracked"}));
}

TEST(NormLayers, RefuseBadArguments) {
  EXPECT_THROW(nn::BatchNorm2d({.num_features = 0}), Error);
  EXPECT_THROW(nn::GroupNorm({.num_groups = 3, .num_channels = 4}), Error);
  EXPECT_THROW(nn::LayerNorm({}), Error);
  EXPECT_THROW(nn::BatchNorm2d({.num_features = 2})(Tensor::zeros({4, 2})), Error);
  EXPECT_THROW(nn::BatchNorm1d({.num_features = 2})(Tensor::zeros({4, 2, 1, 1})), Error);
}

TEST(NormLayers, AreTheirOps) {
  Generator generator(5);
  const Tensor x = randn({2, 6, 3, 4}, {}, generator);
  nn::GroupNorm group({.num_groups = 3, .num_channels = 6});
  EXPECT_EQ(group(x).tensor().to_vector<float>(),
            group_norm(x, 3, group.weight, group.bias).tensor().to_vector<float>());
  nn::LayerNorm layer({.normalized_shape = {3, 4}});
  EXPECT_EQ(layer(x).tensor().to_vector<float>(),
            layer_norm(x, {3, 4}, layer.weight, layer.bias).tensor().to_vector<float>());
  EXPECT_EQ(nn::LayerNorm({.normalized_shape = {3, 4}, .affine = false}).parameters().size(), 0u);
}

}  // namespace
}  // namespace tapedeck
