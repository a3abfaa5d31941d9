// Losses against definition loops in float64, values that PyTorch gives, and gradient checks.
#include <tapedeck/nn/loss.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/autograd/gradcheck.h>
#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/random.h>
#include <tapedeck/ops/arithmetic.h>

#include "errors.h"

namespace tapedeck::nn {
namespace {

constexpr TensorOptions kDouble = {.dtype = DType::float64};

double stable_logistic(double x, double t) {
  return -t * (x < 0 ? x - std::log1p(std::exp(x)) : -std::log1p(std::exp(-x))) -
         (1 - t) * (x < 0 ? -std::log1p(std::exp(x)) : -x - std::log1p(std::exp(-x)));
}

struct Pointwise {
  const char* name;
  std::function<Variable(const Variable&, const Variable&, Reduction)> loss;
  std::function<double(double, double)> value;
};

std::vector<Pointwise> pointwise_losses() {
  return {{"mse", [](auto& x, auto& t, Reduction r) { return mse_loss(x, t, r); },
           [](double x, double t) { return std::pow(x - t, 2); }},
          {"l1", [](auto& x, auto& t, Reduction r) { return l1_loss(x, t, r); },
           [](double x, double t) { return std::abs(x - t); }},
          {"huber",
           [](auto& x, auto& t, Reduction r) { return huber_loss(x, t, {.delta = 0.7, .reduction = r}); },
           [](double x, double t) {
             const double d = std::abs(x - t);
             return d < 0.7 ? 0.5 * d * d : 0.7 * (d - 0.35);
           }},
          {"bce", [](auto& x, auto& t, Reduction r) { return binary_cross_entropy_with_logits(x, t, r); },
           stable_logistic}};
}

TEST(PointwiseLoss, FollowsItsDefinitionInEveryTypeLayoutAndReduction) {
  const Shape shape{3, 5, 7, 11};
  const Tensor x64 = randn(shape, kDouble), t64 = rand(shape, kDouble);
  const struct {
    DType dtype;
    double tolerance;
  } types[] = {
      {DType::float64, 1e-14}, {DType::float32, 1e-6}, {DType::bfloat16, 8e-3}, {DType::float16, 1e-3}};
  for (const Pointwise& p : pointwise_losses()) {
    for (const auto& [dtype, tolerance] : types) {
      for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
        const Tensor x = x64.to(dtype).to(layout), t = t64.to(dtype);
        const auto xs = x.to_vector<double>(), ts = t.to_vector<double>();
        const Variable each = p.loss(x, t, Reduction::none);
        EXPECT_EQ(each.tensor().layout(), layout);
        EXPECT_EQ(each.dtype(), dtype);
        const auto values = each.tensor().to_vector<double>();
        double sum = 0;
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double expected = p.value(xs[i], ts[i]);
          ASSERT_NEAR(values[i], expected, tolerance * (1 + std::abs(expected))) << p.name << " " << i;
          sum += expected;
        }
        const auto count = static_cast<double>(values.size());
        EXPECT_NEAR(p.loss(x, t, Reduction::sum).item(), sum, tolerance * (1 + sum)) << p.name;
        EXPECT_NEAR(p.loss(x, t, Reduction::mean).item(), sum / count, tolerance * 2) << p.name;
      }
    }
  }
}

TEST(PointwiseLoss, PassesGradientChecks) {
  const Variable x = Variable::parameter(randn({2, 3, 4, 5}, kDouble).to(Layout::nhwc));
  const Variable t = Variable::parameter(rand({2, 3, 4, 5}, kDouble));
  for (const Pointwise& p : pointwise_losses()) {
    for (const Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
      SCOPED_TRACE(p.name);
      const auto f = [&](const Variables& in) { return p.loss(in[0], in[1], r); };
      gradcheck(f, {x, t});
      gradgradcheck(f, {x, t});
    }
  }
}

TEST(PointwiseLoss, TheFusedGradientIsTheComposedOne) {
  for (const Pointwise& p : pointwise_losses()) {
    for (const Reduction r : {Reduction::mean, Reduction::none}) {
      const Variable x = Variable::parameter(randn({2, 3, 5, 4}, kDouble));
      const Variable t = Variable::parameter(rand({2, 3, 5, 4}, kDouble).to(Layout::nhwc));
      const auto gradients = [&] {
        Tape tape;
        const Variable y = p.loss(x, t, r);
        return tape.gradient(y, {x, t},
                             {.gradient = randn(y.shape(), kDouble, *std::make_unique<Generator>(3))});
      };
      const Variables fused = gradients();
      Tape outer;
      const Variables composed = gradients();
      for (std::size_t i = 0; i < 2; ++i) {
        const auto a = fused[i].tensor().to_vector<double>(), b = composed[i].tensor().to_vector<double>();
        for (std::size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(a[k], b[k], 1e-14) << p.name;
      }
    }
  }
}

TEST(PointwiseLoss, MatchesPyTorch) {
  const Tensor x = Tensor::from<double>({0.5, -1.5, 2.0, 3.0, 0.25, -0.75}, {2, 3});
  const Tensor t = Tensor::from<double>({1.0, 0.0, 0.25, 0.5, 1.0, 0.0}, {2, 3});
  const Tensor weight = Tensor::from<double>({0.5, 2.0}, {2, 1});
  const Tensor pos_weight = Tensor::from<double>({2.0, 0.5, 3.0}, {3});
  EXPECT_NEAR(mse_loss(x, t).item(), 2.15625, 1e-14);
  EXPECT_NEAR(l1_loss(x, t).item(), 1.2916666666666667, 1e-14);
  EXPECT_NEAR(huber_loss(x, t, {.delta = 0.8}).item(), 0.7212500000000001, 1e-14);
  EXPECT_NEAR(binary_cross_entropy_with_logits(x, t).item(), 0.8023026751288862, 1e-14);
  EXPECT_NEAR(binary_cross_entropy_with_logits(x, t, {.weight = weight, .pos_weight = pos_weight}).item(),
              0.9859038530472636, 1e-14);
  EXPECT_NEAR(binary_cross_entropy_with_logits(x, t, {.weight = weight, .reduction = Reduction::sum}).item(),
              6.174004691737887, 1e-13);
}

TEST(PointwiseLoss, CrossEntropyOfHugeLogitsIsFinite) {
  const Variable x = Variable::parameter(Tensor::from<float>({500, -500, 500, -500}, {4}));
  const Tensor t = Tensor::from<float>({1, 0, 0, 1}, {4});
  Tape tape;
  const Variable y = binary_cross_entropy_with_logits(x, t, Reduction::sum);
  EXPECT_EQ(y.item(), 1000);
  tape.backward(y);
  EXPECT_THAT(x.grad().tensor().to_vector<float>(), ::testing::ElementsAre(0, 0, 1, -1));
  const Tensor pos_weight = Tensor::ones({1});
  EXPECT_EQ(
      binary_cross_entropy_with_logits(x, t, {.pos_weight = pos_weight, .reduction = Reduction::sum}).item(),
      1000);
}

TEST(PointwiseLoss, WeightedPassesGradientChecks) {
  const Variable x = Variable::parameter(randn({3, 4}, kDouble));
  const Variable t = Variable::parameter(rand({3, 4}, kDouble));
  const Variable weight = Variable::parameter(rand({3, 1}, kDouble));
  const Variable pos_weight = Variable::parameter(rand({4}, kDouble));
  const auto f = [&](const Variables& in) {
    return binary_cross_entropy_with_logits(in[0], in[1], {.weight = in[2], .pos_weight = in[3]});
  };
  gradcheck(f, {x, t, weight, pos_weight});
  gradgradcheck(f, {x, t, weight, pos_weight});
}

TEST(PointwiseLoss, SumsToTheSameBitsForAnyNumberOfThreads) {
  const Tensor x = randn({100003}), t = randn({100003});
  const int before = num_threads();
  set_num_threads(1);
  const double one = mse_loss(x, t).item();
  set_num_threads(3);
  EXPECT_EQ(mse_loss(x, t).item(), one);
  set_num_threads(before);
}

TEST(PointwiseLoss, RejectsWhatDoesNotFit) {
  const Tensor x = Tensor::ones({2, 3});
  expect_error(
      [&] {
        mse_loss(x, Tensor::ones({3, 2}));
      },
      "mse_loss: input has shape [2,3] but target has [3,2]");
  expect_error(
      [&] {
        l1_loss(x, Tensor::ones({2, 3}, kDouble));
      },
      "l1_loss: input is float32 but target is float64");
  expect_error([&] { huber_loss(x, x, {.delta = 0}); }, "huber_loss: delta 0 is not legal; legal is above 0");
  expect_error([&] { mse_loss(x.to(DType::int64), x.to(DType::int64)); },
               "mse_loss: dtype int64 is not legal");
  expect_error([&] { mse_loss(x, {}); }, "mse_loss: target is undefined");
  expect_error([&] { mse_loss({}, x); }, "mse_loss: input is undefined");
  expect_error([&] { binary_cross_entropy_with_logits(x, Tensor::ones({3}), {.weight = x}); },
               "binary_cross_entropy_with_logits: input has shape [2,3] but target has [3]");
}

/// The loss of each position, and its weight.
struct Entropy {
  double sum = 0, weight = 0;
};

Entropy entropy(const Tensor& logits, const Tensor& target, std::int64_t ignored, double smoothing) {
  const std::int64_t n = logits.size(0), c = logits.size(1), rest = logits.count() / (n * c);
  const auto x = logits.to_vector<double>();
  const auto t = target.to_vector<std::int64_t>();
  Entropy result;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t r = 0; r < rest; ++r) {
      const std::int64_t cls = t[static_cast<std::size_t>(i * rest + r)];
      if (cls == ignored) continue;
      double total = 0;
      const auto logit = [&](std::int64_t k) { return x[static_cast<std::size_t>((i * c + k) * rest + r)]; };
      for (std::int64_t k = 0; k < c; ++k) total += std::exp(logit(k));
      for (std::int64_t k = 0; k < c; ++k) {
        const double wanted = (k == cls ? 1 - smoothing : 0) + smoothing / static_cast<double>(c);
        result.sum -= wanted * (logit(k) - std::log(total));
      }
      result.weight += 1;
    }
  }
  return result;
}

TEST(CrossEntropy, FollowsItsDefinition) {
  const Tensor logits = randn({3, 5, 2, 4}, kDouble);
  std::vector<std::int64_t> classes;
  for (std::int64_t i = 0; i < 24; ++i) classes.push_back(i * 7 % 5);
  classes[3] = classes[17] = -100;
  const Tensor target = Tensor::from(classes, {3, 2, 4});
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    for (const double smoothing : {0.0, 0.3}) {
      for (const std::int64_t ignored : {-100, 2}) {
        Tensor t = target;
        if (ignored == 2) {
          std::vector<std::int64_t> legal = classes;
          std::replace(legal.begin(), legal.end(), std::int64_t{-100}, std::int64_t{4});
          t = Tensor::from(legal, {3, 2, 4});
        }
        const Entropy expected = entropy(logits, t, ignored, smoothing);
        CrossEntropyOptions options{.ignore_index = ignored, .label_smoothing = smoothing};
        EXPECT_NEAR(cross_entropy(logits.to(layout), t, options).item(), expected.sum / expected.weight,
                    1e-13);
        options.reduction = Reduction::sum;
        EXPECT_NEAR(cross_entropy(logits.to(layout), t, options).item(), expected.sum, 1e-12);
        options.reduction = Reduction::none;
        const Variable each = cross_entropy(logits.to(layout), t, options);
        EXPECT_EQ(each.shape(), t.shape());
        const auto values = each.tensor().to_vector<double>();
        double sum = 0;
        for (const double value : values) sum += value;
        EXPECT_NEAR(sum, expected.sum, 1e-12);
        if (ignored == -100) {
          EXPECT_EQ(values[17], 0);
        }
      }
    }
  }
}

TEST(CrossEntropy, MatchesPyTorch) {
  const Tensor x = Tensor::from<double>({0.5, -1.5, 2.0, 3.0, 0.25, -0.75}, {2, 3});
  const auto target = [](std::int64_t a, std::int64_t b) { return Tensor::from<std::int64_t>({a, b}, {2}); };
  EXPECT_NEAR(cross_entropy(x, target(2, 0)).item(), 0.15481675773369066, 1e-14);
  EXPECT_NEAR(cross_entropy(x, target(2, -100), {.label_smoothing = 0.2}).item(), 0.5591353825649327, 1e-14);
  EXPECT_NEAR(cross_entropy(x, target(2, 0), {.label_smoothing = 0.2, .reduction = Reduction::sum}).item(),
              1.0763001821340479, 1e-14);
  EXPECT_NEAR(cross_entropy(x, target(2, 1), {.ignore_index = 1}).item(), 0.22580204923159933, 1e-14);
}

TEST(CrossEntropy, IgnoredPositionsMayHoldAnything) {
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  const Variable x = Variable::parameter(Tensor::from<double>({0, 0, kNan, 1}, {2, 2}));
  Tape tape;
  const Variable loss = cross_entropy(x, Tensor::from<std::int64_t>({1, -100}, {2}));
  EXPECT_NEAR(loss.item(), std::log(2.0), 1e-15);
}

TEST(CrossEntropy, PassesGradientChecks) {
  const Variable x = Variable::parameter(randn({2, 4, 3}, kDouble));
  const Tensor target = Tensor::from<std::int64_t>({0, 3, -100, 1, 1, 2}, {2, 3});
  for (const double smoothing : {0.0, 0.3}) {
    const auto f = [&](const Variables& in) {
      return cross_entropy(in[0], target, {.label_smoothing = smoothing});
    };
    gradcheck(f, {x});
    gradgradcheck(f, {x});
  }
}

TEST(CrossEntropy, RejectsWhatDoesNotFit) {
  const Tensor x = Tensor::ones({2, 3}), target = Tensor::zeros({2}, {.dtype = DType::int64});
  expect_error([&] { cross_entropy(x, Tensor::zeros({3}, {.dtype = DType::int64})); },
               "cross_entropy: logits have shape [2,3] and target has [3]; legal are [n, classes, ...] and");
  expect_error([&] { cross_entropy(x, Tensor::zeros({2})); },
               "cross_entropy: target is float32; legal is int64");
  expect_error([&] { cross_entropy(x, target, {.label_smoothing = 2}); }, "label_smoothing 2 is not legal");
  expect_error([&] { cross_entropy(x, Tensor::full({2}, 3, {.dtype = DType::int64})); }, "index");
}

TEST(KlDivergence, FollowsItsDefinition) {
  const Tensor mu = randn({3, 4, 2}, kDouble), logvar = randn({3, 4, 2}, kDouble);
  const auto m = mu.to_vector<double>(), l = logvar.to_vector<double>();
  std::vector<double> samples(3);
  for (std::size_t i = 0; i < m.size(); ++i) {
    samples[i / 8] += 0.5 * (m[i] * m[i] + std::exp(l[i]) - 1 - l[i]);
  }
  const double sum = samples[0] + samples[1] + samples[2];
  EXPECT_NEAR(kl_divergence_gaussian(mu, logvar).item(), sum / 3, 1e-13);
  EXPECT_NEAR(kl_divergence_gaussian(mu, logvar, Reduction::sum).item(), sum, 1e-13);
  const Variable each = kl_divergence_gaussian(mu, logvar, Reduction::none);
  ASSERT_EQ(each.shape(), Shape({3}));
  EXPECT_NEAR(each.tensor().to_vector<double>()[1], samples[1], 1e-13);
  EXPECT_EQ(kl_divergence_gaussian(Tensor::zeros({2, 3}), Tensor::zeros({2, 3})).item(), 0);
  expect_error([&] { kl_divergence_gaussian(mu, Tensor::zeros({3}, kDouble)); },
               "kl_divergence_gaussian: mu has shape [3,4,2] but logvar has [3]");
}

TEST(KlDivergence, PassesGradientChecks) {
  const auto f = [](const Variables& in) { return kl_divergence_gaussian(in[0], in[1]); };
  const Variables in = {Variable::parameter(randn({2, 3}, kDouble)),
                        Variable::parameter(randn({2, 3}, kDouble))};
  gradcheck(f, in);
  gradgradcheck(f, in);
}

}  // namespace
}  // namespace tapedeck::nn
