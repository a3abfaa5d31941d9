// Optimizers against scalar formulas in float64, written from the papers and torch.optim's documentation.
#include <tapedeck/nn/optim/adam.h>
#include <tapedeck/nn/optim/rmsprop.h>
#include <tapedeck/nn/optim/sgd.h>

#include <cmath>
#include <functional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/core/parallel.h>

#include "errors.h"

namespace tapedeck::optim {
namespace {

/// One number under an optimizer: step(gradient) changes p.
struct Scalar {
  double p = 0;
  double a = 0, b = 0, c = 0;  // the optimizer's memory
  int t = 0;
};
using Rule = std::function<void(Scalar&, double gradient)>;

/// Runs an optimizer over two parameters (one long enough for several threads) for `steps` steps of made
/// up gradients, some of them missing, and compares with the rule in float64.
template <class Make>
void expect_follows(const Make& make, const Rule& rule, DType dtype = DType::float64,
                    double tolerance = 1e-12, int steps = 100) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal;
  const std::vector<std::int64_t> counts = {3 * 7, 20011};
  Variables parameters;
  std::vector<std::vector<Scalar>> scalars;
  for (const std::int64_t count : counts) {
    std::vector<Scalar> list(static_cast<std::size_t>(count));
    std::vector<double> values;
    for (Scalar& s : list) values.push_back(s.p = normal(random));
    parameters.push_back(Variable::parameter(Tensor::from(values, {count}).to(dtype)));
    scalars.push_back(std::move(list));
  }
  auto optimizer = make(parameters);
  for (int t = 0; t < steps; ++t) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].zero_grad();
      if (i == 0 && t % 5 == 3) continue;  // this one's counter must not advance
      std::vector<double> gradient;
      for (Scalar& s : scalars[i]) {
        gradient.push_back(s.p * 0.5 + 0.3 * normal(random));
        rule(s, gradient.back());
      }
      parameters[i].set_grad(Tensor::from(gradient, {counts[i]}).to(dtype));
    }
    optimizer->step();
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto values = parameters[i].tensor().to_vector<double>();
    for (std::size_t k = 0; k < values.size(); ++k) {
      ASSERT_NEAR(values[k], scalars[i][k].p, tolerance * (1 + std::abs(scalars[i][k].p)))
          << "parameter " << i << " element " << k;
    }
  }
}

template <class O, class Options>
auto maker(const Options& options) {
  return [=](const Variables& parameters) { return std::make_unique<O>(parameters, options); };
}

TEST(SGD, Plain) {
  expect_follows(maker<SGD>(SGD::Options{.lr = 0.1, .weight_decay = 0.01}),
                 [](Scalar& s, double g) { s.p -= 0.1 * (g + 0.01 * s.p); });
}

TEST(SGD, MomentumWithDampening) {
  expect_follows(maker<SGD>(SGD::Options{.lr = 0.1, .momentum = 0.8, .dampening = 0.3}),
                 [](Scalar& s, double g) {
                   s.a = s.t++ == 0 ? g : 0.8 * s.a + 0.7 * g;
                   s.p -= 0.1 * s.a;
                 });
}

TEST(SGD, Nesterov) {
  expect_follows(
      maker<SGD>(SGD::Options{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.02, .nesterov = true}),
      [](Scalar& s, double g) {
        g += 0.02 * s.p;
        s.a = 0.9 * s.a + g;
        s.p -= 0.05 * (g + 0.9 * s.a);
      });
}

Rule adam_rule(double decay_gradient, double decay_weight, bool amsgrad) {
  return [=](Scalar& s, double g) {
    ++s.t;
    g += decay_gradient * s.p;
    s.p -= 0.02 * decay_weight * s.p;
    s.a = 0.8 * s.a + 0.2 * g;
    s.b = 0.99 * s.b + 0.01 * g * g;
    s.c = amsgrad ? std::max(s.c, s.b) : s.b;
    const double m = s.a / (1 - std::pow(0.8, s.t)), v = s.c / (1 - std::pow(0.99, s.t));
    s.p -= 0.02 * m / (std::sqrt(v) + 1e-3);
  };
}

TEST(Adam, AddsDecayToTheGradient) {
  expect_follows(
      maker<Adam>(Adam::Options{.lr = 0.02, .betas = {0.8, 0.99}, .eps = 1e-3, .weight_decay = 0.1}),
      adam_rule(0.1, 0, false));
}

TEST(Adam, Amsgrad) {
  expect_follows(maker<Adam>(Adam::Options{.lr = 0.02, .betas = {0.8, 0.99}, .eps = 1e-3, .amsgrad = true}),
                 adam_rule(0, 0, true));
}

TEST(AdamW, ShrinksTheWeight) {
  expect_follows(
      maker<AdamW>(AdamW::Options{.lr = 0.02, .betas = {0.8, 0.99}, .eps = 1e-3, .weight_decay = 0.1}),
      adam_rule(0, 0.1, false));
}

TEST(Adam, Float32StaysClose) {
  expect_follows(maker<Adam>(Adam::Options{.lr = 0.02, .betas = {0.8, 0.99}, .eps = 1e-3}),
                 adam_rule(0, 0, false), DType::float32, 1e-5);
}

TEST(Adam, HalfParametersKeepFloat32Moments) {
  const Variable p = Variable::parameter(Tensor::ones({5}, {.dtype = DType::bfloat16}));
  Adam optimizer({p}, {.lr = 0.25});
  p.set_grad(Tensor::full({5}, 0.1, {.dtype = DType::bfloat16}));
  optimizer.step();
  EXPECT_NEAR(p.tensor().to_vector<double>()[4], 0.75, 1e-6);
  for (const auto& [name, tensor] : optimizer.state_dict()) {
    if (name == "state.0.exp_avg") {
      EXPECT_EQ(tensor.dtype(), DType::float32);
    }
  }
}

TEST(RMSprop, Plain) {
  expect_follows(maker<RMSprop>(RMSprop::Options{.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1}),
                 [](Scalar& s, double g) {
                   g += 0.1 * s.p;
                   s.a = 0.9 * s.a + 0.1 * g * g;
                   s.p -= 0.01 * g / (std::sqrt(s.a) + 1e-3);
                 });
}

TEST(RMSprop, CenteredWithMomentum) {
  expect_follows(maker<RMSprop>(RMSprop::Options{
                     .lr = 0.01, .alpha = 0.9, .eps = 1e-3, .momentum = 0.7, .centered = true}),
                 [](Scalar& s, double g) {
                   s.a = 0.9 * s.a + 0.1 * g * g;
                   s.b = 0.9 * s.b + 0.1 * g;
                   s.c = 0.7 * s.c + g / (std::sqrt(s.a - s.b * s.b) + 1e-3);
                   s.p -= 0.01 * s.c;
                 });
}

TEST(RMSprop, CenteredSurvivesAConstantGradient) {
  const Variable p = Variable::parameter(Tensor::zeros({64}));
  RMSprop optimizer({p}, {.lr = 1e-6, .alpha = 0.5, .centered = true});
  for (int t = 0; t < 300; ++t) {
    p.set_grad(Tensor::full({64}, 0.1 + 0.01 * t));
    if (t > 50) p.set_grad(Tensor::full({64}, 0.7));
    optimizer.step();
  }
  for (const double value : p.tensor().to_vector<double>()) EXPECT_TRUE(std::isfinite(value));
}

TEST(Optimizer, GroupsHaveSettingsOfTheirOwn) {
  const Variable a = Variable::parameter(Tensor::ones({2})), b = Variable::parameter(Tensor::ones({2}));
  SGD optimizer({{.parameters = {a}, .lr = 0.5, .weight_decay = 1.0}, {.parameters = {b}}}, {.lr = 0.25});
  for (const Variable& p : {a, b}) p.set_grad(Tensor::ones({2}));
  optimizer.step();
  EXPECT_EQ(a.tensor().to_vector<float>()[1], 0.0f);
  EXPECT_EQ(b.tensor().to_vector<float>()[1], 0.75f);
  optimizer.zero_grad();
  EXPECT_FALSE(a.grad().defined());
}

TEST(Optimizer, AStepThatCannotBeFinishedIsNotBegun) {
  const Variable a = Variable::parameter(Tensor::ones({2})), b = Variable::parameter(Tensor::ones({3}));
  Adam optimizer({{.parameters = {a}}, {.parameters = {b}}}, {.lr = 0.5});
  a.set_grad(Tensor::ones({2}));
  b.set_grad(Tensor::ones({3}));
  optimizer.step();
  const auto expect_refused = [&](const std::string& text) {
    const auto values = a.tensor().to_vector<float>();
    const double steps = optimizer.state_dict()[6].second.item();
    ASSERT_EQ(optimizer.state_dict()[6].first, "state.0.step");
    expect_error([&] { optimizer.step(); }, text);
    EXPECT_EQ(a.tensor().to_vector<float>(), values);
    EXPECT_EQ(optimizer.state_dict()[6].second.item(), steps);
  };
  b.set_grad(Tensor::ones({3}, {.dtype = DType::float64}));
  expect_refused("Adam: the gradient is float64 [3]");
  b.set_tensor(Tensor::ones({3}, {.dtype = DType::float64}));  // now it is the state that does not fit
  expect_refused("Adam: the slot is float32 [3]");
  b.set_tensor(Tensor::ones({4}));
  expect_refused("Adam: the gradient is float64 [3]");
}

TEST(Optimizer, TakesGradientsOfAnyLayout) {
  const Shape shape{2, 3, 2, 2};
  const Variable p = Variable::parameter(Tensor::zeros(shape));
  std::vector<float> values;
  for (int i = 0; i < 24; ++i) values.push_back(static_cast<float>(i));
  SGD optimizer({p}, {.lr = 1});
  p.set_grad(Tensor::from(values, shape).to(Layout::nhwc));
  optimizer.step();
  for (float& value : values) value = -value;
  EXPECT_EQ(p.tensor().to_vector<float>(), values);
}

TEST(Optimizer, MixesDtypes) {
  const Variable a = Variable::parameter(Tensor::ones({2}));
  const Variable b = Variable::parameter(Tensor::ones({3}, {.dtype = DType::float64}));
  SGD optimizer({a, b}, {.lr = 0.5});
  a.set_grad(Tensor::ones({2}));
  b.set_grad(Tensor::ones({3}, {.dtype = DType::float64}));
  optimizer.step();
  EXPECT_EQ(a.tensor().to_vector<double>()[0], 0.5);
  EXPECT_EQ(b.tensor().to_vector<double>()[2], 0.5);
}

TEST(Optimizer, TheSameBitsForAnyNumberOfThreads) {
  const int before = num_threads();
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    const Variable p = Variable::parameter(Tensor::ones({100003}));
    Adam optimizer({p}, {.lr = 0.1});
    std::vector<float> gradient(100003);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = std::sin(static_cast<float>(i));
    p.set_grad(Tensor::from(gradient, {100003}));
    for (int t = 0; t < 3; ++t) optimizer.step();
    results.push_back(p.tensor().to_vector<float>());
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
}

/// Trains 6 steps at once, and 3 steps, a checkpoint and 3 steps in a fresh optimizer.
template <class O, class Options>
void expect_resumes(const Options& options) {
  const auto train = [](const Variables& ps, O& optimizer, int begin, int end) {
    for (int t = begin; t < end; ++t) {
      for (std::size_t i = 0; i < ps.size(); ++i) {
        if (i == 1 && t < 4) continue;  // has no state at the checkpoint
        std::vector<float> g;
        for (int k = 0; k < 5; ++k)
          g.push_back(std::sin(static_cast<float>(t * 7 + k + static_cast<int>(i))));
        ps[i].set_grad(Tensor::from(g, {5}));
      }
      optimizer.step();
    }
  };
  const Variables ps = {Variable::parameter(Tensor::ones({5})), Variable::parameter(Tensor::zeros({5}))};
  O optimizer(ps, options);
  train(ps, optimizer, 0, 3);
  optimizer.groups()[0].lr *= 0.5;  // as a scheduler does
  nn::StateDict checkpoint;
  for (const auto& [name, tensor] : optimizer.state_dict()) checkpoint.emplace_back(name, tensor.clone());
  Variables copies;
  for (const Variable& p : ps) copies.push_back(Variable::parameter(p.tensor().clone()));
  train(ps, optimizer, 3, 6);

  O resumed(copies, options);
  resumed.load_state_dict(checkpoint);
  train(copies, resumed, 3, 6);
  for (std::size_t i = 0; i < ps.size(); ++i) {
    EXPECT_EQ(copies[i].tensor().to_vector<float>(), ps[i].tensor().to_vector<float>());
  }
  const nn::StateDict a = optimizer.state_dict(), b = resumed.state_dict();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].first, b[i].first);
}

TEST(Optimizer, ContinuesFromItsStateToTheSameBits) {
  expect_resumes<SGD>(SGD::Options{.lr = 0.1});
  expect_resumes<SGD>(SGD::Options{.lr = 0.1, .momentum = 0.9, .dampening = 0.1});
  expect_resumes<Adam>(Adam::Options{.lr = 0.1, .amsgrad = true});
  expect_resumes<AdamW>(AdamW::Options{.lr = 0.1});
  expect_resumes<RMSprop>(RMSprop::Options{.lr = 0.1, .momentum = 0.5, .centered = true});
}

TEST(Optimizer, NamesWhatDoesNotFitAndChangesNothing) {
  const Variable p = Variable::parameter(Tensor::ones({2}));
  Adam optimizer({p}, {.lr = 0.1});
  p.set_grad(Tensor::ones({2}));
  optimizer.step();
  nn::StateDict state = optimizer.state_dict();
  state[0].second = Tensor::full({}, 9, {.dtype = DType::float64});
  state.back().second = Tensor::ones({3});
  state.emplace_back("state.7.step", Tensor::ones({}));
  expect_error(
      [&] { optimizer.load_state_dict(state); },
      "Adam: the state does not fit; state.0.exp_avg_sq has shape [3]; legal is [2]; state.7.step is "
      "unknown");
  EXPECT_EQ(optimizer.groups()[0].lr, 0.1);
  expect_error([&] { optimizer.load_state_dict({}); }, "group.0.lr is missing");
}

TEST(Optimizer, RejectsIllegalParametersAndSettings) {
  const Variable p = Variable::parameter(Tensor::ones({2}));
  expect_error([&] { SGD({p, p}, {.lr = 0.1}); }, "SGD: parameter 1 is given twice");
  expect_error([&] { SGD(Variables{}, {.lr = 0.1}); }, "SGD: there are no parameters");
  expect_error([&] { SGD({p}, {.lr = -1}); }, "SGD: lr -1 is not legal; legal is 0 or more");
  expect_error([&] { SGD({p}, {.lr = 1, .nesterov = true}); }, "SGD: momentum 0 and dampening 0");
  expect_error([&] { Adam({p}, {.betas = {0.9, 1}}); }, "Adam: beta2 1 is not legal; legal is [0, 1)");
  expect_error([&] { AdamW({p}, {.betas = {1, 0.9}}); }, "AdamW: beta1 1 is not legal; legal is [0, 1)");
  expect_error([&] { RMSprop({p}, {.alpha = 1.5}); }, "RMSprop: alpha 1.5 is not legal; legal is [0, 1]");
  p.set_grad(Tensor::ones({2}, {.dtype = DType::float64}));
  SGD optimizer({p}, {.lr = 1});
  expect_error([&] { optimizer.step(); },
               "SGD: the gradient is float64 [2] on cpu but its parameter is float32 [2] on cpu");
}

}  // namespace
}  // namespace tapedeck::optim
