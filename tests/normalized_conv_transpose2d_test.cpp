// conv_transpose2d() behind batch_norm() as one op, which kernels without prologues compute in two steps.
#include "normalized_conv.h"

#include <tapedeck/nn/activation.h>
#include <tapedeck/nn/conv.h>
#include <tapedeck/nn/norm.h>

namespace tapedeck {
namespace {

using namespace test;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

const NormalizedConv kOneOp = detail::normalized_conv_transpose2d;

TEST(NormalizedConvTranspose2d, IsBothOpsToTheBit) {
  std::vector<NormalizedLayer> layers;
  for (const DType dtype : kFloatingTypes)
    for (const Layout layout : {Layout::nchw, Layout::nhwc})
      for (const bool training : {true, false})
        for (const auto& [norm_slope, slope] :
             {std::pair(0.0, 1.0), std::pair(1.0, 0.0), std::pair(0.2, 0.3)})
          layers.push_back(
              {.norm_slope = norm_slope, .slope = slope, .training = training, .as = {dtype, {}, layout}});
  layers.push_back({.affine = false});
  layers.push_back({.has_bias = false});
  layers.push_back({.tracks = false});
  layers.push_back({.affine = false, .has_bias = false, .tracks = false});
  layers.push_back({.w = {4, 3, 3, 2}, .options = {.groups = 2}});
  for (const NormalizedLayer& layer : layers) {
    SCOPED_TRACE(layer.text());
    const NormalizedResults one = run(layer, kOneOp), two = run(layer, two_ops);
    EXPECT_THAT(one.tape, HasSubstr("batch_norm_conv_transpose2d"));
    EXPECT_LT(one.saved, two.saved);
    ASSERT_EQ(one.tensors.size(), two.tensors.size());
    for (std::size_t i = 0; i < one.tensors.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(one.tensors[i].dtype(), two.tensors[i].dtype());
      EXPECT_EQ(one.tensors[i].layout(), two.tensors[i].layout());
      EXPECT_EQ(one.tensors[i].to_vector<double>(), two.tensors[i].to_vector<double>());
    }
  }
}

TEST(NormalizedConvTranspose2d, HasGradientsOfBothOrders) {
  const Variable x = random_leaf({3, 2, 3, 2}, -1, 2, 1), norm_weight = random_leaf({2}, 0.5, 2, 2),
                 norm_bias = random_leaf({2}, -1, 1, 3), w = random_leaf({2, 3, 2, 3}, -1, 1, 4),
                 bias = random_leaf({3}, -1, 1, 5);
  for (const bool training : {true, false}) {
    SCOPED_TRACE(training);
    const auto f = [&](const Variables& v) {
      const Variable mean = Tensor::full({2}, 0.3, {DType::float64}),
                     var = Tensor::full({2}, 1.3, {DType::float64});
      return kOneOp({v[0], v[1], v[2], mean, var, {.training = training, .negative_slope = 0.2}}, v[3], v[4],
                    {.stride = 2}, 0.3);
    };
    gradcheck(f, {x, norm_weight, norm_bias, w, bias});
    gradgradcheck(f, {x, norm_weight, norm_bias, w, bias});
  }
}

// What the way back does not need is not kept.
TEST(NormalizedConvTranspose2d, OfSomeInputsOnly) {
  const NormalizedLayer layer;
  const auto only = [&](const NormalizedConv& f, int wanted) {
    int i = 0;
    std::vector<Variable> leaves;
    for (const Shape& shape : {layer.x, Shape{4}, Shape{4}, layer.w, Shape{6}}) {
      const Tensor t = random_tensor(shape, layer.as, 0.5, 2, 7 + i);
      leaves.push_back(i++ == wanted ? Variable::parameter(t) : Variable(t));
    }
    Tape tape;
    const Variable y =
        f({.x = leaves[0], .weight = leaves[1], .bias = leaves[2], .options = {.training = true}}, leaves[3],
          leaves[4], layer.options, 1);
    const std::size_t saved = tape.saved_bytes();
    const Tensor gy = random_tensor(y.shape(), layer.as, -1, 1, 3);
    return std::pair(tape.gradient(y, {leaves[wanted]}, {.gradient = gy})[0].tensor().to_vector<double>(),
                     saved);
  };
  for (int wanted = 0; wanted < 5; ++wanted) {
    const auto one = only(kOneOp, wanted), two = only(two_ops, wanted);
    EXPECT_EQ(one.first, two.first) << wanted;
    EXPECT_LE(one.second, two.second + (wanted == 3 ? 4 * 6 * 8 : 2 * 4 * 8))
        << wanted;  // numbers of channels
  }
  EXPECT_EQ(only(kOneOp, 4).second, 0);
}

TEST(NormalizedConvTranspose2d, RefusesBadArgumentsBeforeStatisticsMove) {
  const Tensor mean = Tensor::zeros({4}), var = Tensor::ones({4});
  const BatchNormCall call{
      .x = randn({3, 4, 5, 5}), .running_mean = mean, .running_var = var, .options = {.training = true}};
  const auto one = [&](const BatchNormCall& c, const Shape& w, double slope) {
    return [=] { kOneOp(c, randn(w), {}, {}, slope); };
  };
  EXPECT_THAT(one(call, {5, 2, 3, 3}, 1), ThrowsMessage<Error>(HasSubstr("weight")));
  EXPECT_THAT(one(call, {4, 2, 3, 3}, -1), ThrowsMessage<Error>(HasSubstr("negative_slope -1")));
  BatchNormCall wrong = call;
  wrong.weight = Tensor::ones({3});
  EXPECT_THAT(one(wrong, {4, 2, 3, 3}, 1), ThrowsMessage<Error>(HasSubstr("weight has shape")));
  EXPECT_EQ(mean.to_vector<float>(), std::vector<float>(4, 0));
  EXPECT_EQ(var.to_vector<float>(), std::vector<float>(4, 1));
}

// CPU kernels have no prologues: then the ops stay two.
TEST(NormalizedConvTranspose2d, IsTwoOpsOnACpu) {
  const NormalizedLayer layer{.as = {DType::float32}};
  const NormalizedResults some =
      run(layer, static_cast<Variable (*)(const BatchNormCall&, const Variable&, const Variable&,
                                          const ConvTranspose2dOptions&, double)>(conv_transpose2d));
  EXPECT_THAT(some.tape, Not(HasSubstr("batch_norm_conv_transpose2d")));
  EXPECT_EQ(some.tensors[0].to_vector<float>(), run(layer, two_ops).tensors[0].to_vector<float>());
  nn::Sequential model(nn::BatchNorm2d({.num_features = 4}), nn::ReLU(),
                       nn::ConvTranspose2d({.in_channels = 4, .out_channels = 2, .kernel_size = 2}));
  Tape tape;
  model(randn({2, 4, 3, 3}));
  EXPECT_THAT(tape.to_text(), HasSubstr("batch_norm "));
}

}  // namespace
}  // namespace tapedeck
