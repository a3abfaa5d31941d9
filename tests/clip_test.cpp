// Clipping of gradients, and the norm that it needs.
#include <tapedeck/nn/optim/clip.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/ops/optimizer_step.h>

#include "errors.h"

namespace tapedeck::optim {
namespace {

TEST(GlobalNorm, IsExactAndScales) {
  const Tensor a = Tensor::from<float>({3, 0, 0}, {3}), b = Tensor::full({40000}, 0.02);
  const Tensor norm = global_norm({a, b});
  EXPECT_NEAR(norm.item(), 5, 1e-6);  // 9 + 40000 * 0.0004
  const Tensors scaled = scale_to_norm({a, b}, norm, 1);
  EXPECT_NEAR(scaled[0].to_vector<double>()[0], 0.6, 1e-6);
  EXPECT_EQ(scale_to_norm({a}, norm, 10)[0].to_vector<double>()[0], 3);
}

TEST(Clip, ByNormScalesAllGradientsTogether) {
  const Variable a = Variable::parameter(Tensor::zeros({2})), b = Variable::parameter(Tensor::zeros({1}));
  const Variable unused = Variable::parameter(Tensor::zeros({4}));
  a.set_grad(Tensor::from<float>({2, -3}, {2}));
  b.set_grad(Tensor::from<float>({6}, {1}));
  EXPECT_NEAR(clip_grad_norm({a, unused, b}, 14).item(), 7, 1e-12);
  EXPECT_EQ(b.grad().item(), 6);
  EXPECT_NEAR(clip_grad_norm({a, unused, b}, 3.5).item(), 7, 1e-12);
  EXPECT_NEAR(a.grad().tensor().to_vector<double>()[1], -1.5, 1e-6);
  EXPECT_NEAR(b.grad().item(), 3, 1e-6);
  EXPECT_EQ(clip_grad_norm({unused}, 1).item(), 0);
  EXPECT_EQ(clip_grad_norm({}, 1).item(), 0);
  expect_error([&] { clip_grad_norm({a}, -1); },
               "clip_grad_norm: max_norm -1 is not legal; legal is 0 or more");
}

TEST(Clip, GradientsThatShareTheirBytesAreScaledOnce) {
  const Variable a = Variable::parameter(Tensor::zeros({2}));
  const Variable b = Variable::parameter(Tensor::zeros({2}));
  const Tensor gradient = Tensor::from<float>({3, 4}, {2});
  a.set_grad(gradient);
  b.set_grad(gradient);
  clip_grad_norm({a, b}, std::sqrt(50.0) / 10);
  for (const Variable& p : {a, b}) EXPECT_NEAR(p.grad().tensor().to_vector<double>()[1], 0.4, 1e-6);
  EXPECT_EQ(gradient.to_vector<float>()[1], 4);
}

TEST(Clip, ByValueClampsEachElement) {
  const Variable a = Variable::parameter(Tensor::zeros({4})),
                 unused = Variable::parameter(Tensor::zeros({1}));
  a.set_grad(Tensor::from<float>({-3, -0.5, 0.25, 8}, {4}));
  clip_grad_value({a, unused}, 0.5);
  EXPECT_THAT(a.grad().tensor().to_vector<float>(), ::testing::ElementsAre(-0.5, -0.5, 0.25, 0.5));
  expect_error([&] { clip_grad_value({a}, -1); },
               "clip_grad_value: limit -1 is not legal; legal is 0 or more");
}

}  // namespace
}  // namespace tapedeck::optim
