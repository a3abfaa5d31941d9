// Learning rates against the values that torch.optim.lr_scheduler (2.15) gives for the same settings.
#include <tapedeck/nn/optim/scheduler.h>
#include <tapedeck/nn/optim/sgd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "errors.h"

namespace tapedeck::optim {
namespace {

struct Fixture {
  Variable parameter = Variable::parameter(Tensor::zeros({1}));
  SGD optimizer{{parameter}, {.lr = 0.1, .momentum = 0.9}};
  double lr() const { return optimizer.groups()[0].lr; }
  double momentum() const { return optimizer.groups()[0].momentum; }
};

/// Steps `scheduler` and compares what is set before each step.
void expect_rates(const Fixture& f, Scheduler& scheduler, const std::vector<double>& expected,
                  const std::vector<double>& momentum = {}) {
  for (std::size_t t = 0; t < expected.size(); ++t) {
    EXPECT_NEAR(f.lr(), expected[t], 1e-11) << "step " << t;
    if (!momentum.empty()) {
      EXPECT_NEAR(f.momentum(), momentum[t], 1e-11) << "step " << t;
    }
    scheduler.step();
  }
}

TEST(Scheduler, Step) {
  Fixture f;
  StepLR scheduler(f.optimizer, {.step_size = 3, .gamma = 0.5});
  expect_rates(f, scheduler, {0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025, 0.025});
}

TEST(Scheduler, MultiStepCountsARepeatedMilestoneTwice) {
  Fixture f;
  MultiStepLR scheduler(f.optimizer, {.milestones = {2, 5, 5}, .gamma = 0.5});
  expect_rates(f, scheduler, {0.1, 0.1, 0.05, 0.05, 0.05, 0.0125, 0.0125, 0.0125});
}

TEST(Scheduler, Exponential) {
  Fixture f;
  ExponentialLR scheduler(f.optimizer, {.gamma = 0.9});
  expect_rates(f, scheduler, {0.1, 0.09, 0.081, 0.0729, 0.06561, 0.059049});
}

TEST(Scheduler, CosineGoesDownAndUpAgain) {
  Fixture f;
  CosineAnnealingLR scheduler(f.optimizer, {.t_max = 5, .eta_min = 0.01});
  expect_rates(f, scheduler,
               {0.1, 0.0914057647469, 0.0689057647469, 0.0410942352531, 0.0185942352531, 0.01,
                0.0185942352531, 0.0410942352531, 0.0689057647469, 0.0914057647469, 0.1, 0.0914057647469});
}

TEST(Scheduler, WarmRestarts) {
  Fixture f;
  CosineAnnealingWarmRestarts scheduler(f.optimizer, {.t_0 = 2, .t_mult = 2, .eta_min = 0.01});
  expect_rates(f, scheduler,
               {0.1, 0.055, 0.1, 0.0868198051534, 0.055, 0.0231801948466, 0.1, 0.096574578963,
                0.0868198051534, 0.0722207544564, 0.055, 0.0377792455436});
  Fixture g;
  CosineAnnealingWarmRestarts equal(g.optimizer, {.t_0 = 3});
  expect_rates(g, equal, {0.1, 0.075, 0.025, 0.1, 0.075, 0.025, 0.1});
}

TEST(Scheduler, LinearWarmup) {
  Fixture f;
  LinearWarmup scheduler(f.optimizer, {.total_iters = 4, .start_factor = 0.25});
  expect_rates(f, scheduler, {0.025, 0.04375, 0.0625, 0.08125, 0.1, 0.1, 0.1});
}

TEST(Scheduler, OneCycle) {
  Fixture f;
  OneCycleLR scheduler(f.optimizer, {.max_lr = 1, .total_steps = 10});
  expect_rates(f, scheduler,
               {0.04, 0.52, 1, 0.950484632013, 0.81174565395, 0.611262021936, 0.388741978064, 0.18825834605,
                0.0495193679865, 4e-06},
               {0.95, 0.9, 0.85, 0.854951556605, 0.868825509907, 0.888873953302, 0.911126046698,
                0.931174490093, 0.945048443395, 0.95});
  EXPECT_THROW(scheduler.step(), Error);
  EXPECT_EQ(scheduler.steps(), 10);
}

TEST(Scheduler, OneCycleInThreeLinearPhases) {
  Fixture f;
  OneCycleLR scheduler(f.optimizer, {.max_lr = 1,
                                     .total_steps = 12,
                                     .pct_start = 0.4,
                                     .anneal = OneCycleLR::Anneal::linear,
                                     .three_phase = true});
  expect_rates(f, scheduler,
               {0.04, 0.292631578947, 0.545263157895, 0.797894736842, 0.949473684211, 0.696842105263,
                0.444210526316, 0.191578947368, 0.0352945882353, 0.0235310588235, 0.0117675294118, 4e-06},
               {0.95, 0.923684210526, 0.897368421053, 0.871052631579, 0.855263157895, 0.881578947368,
                0.907894736842, 0.934210526316, 0.95, 0.95, 0.95, 0.95});
}

TEST(Scheduler, SequentialWarmsUpAndThenAnneals) {
  Fixture f;
  auto warmup = std::make_shared<LinearWarmup>(f.optimizer,
                                               LinearWarmup::Options{.total_iters = 4, .start_factor = 0.25});
  auto cosine = std::make_shared<CosineAnnealingLR>(f.optimizer, CosineAnnealingLR::Options{.t_max = 6});
  SequentialLR scheduler(f.optimizer, {warmup, cosine}, {4});
  expect_rates(
      f, scheduler,
      {0.025, 0.04375, 0.0625, 0.08125, 0.1, 0.0933012701892, 0.075, 0.05, 0.025, 0.00669872981078, 0});
}

TEST(Scheduler, EachGroupStartsFromItsOwnRate) {
  const Variable a = Variable::parameter(Tensor::zeros({1})), b = Variable::parameter(Tensor::zeros({1}));
  SGD optimizer({{.parameters = {a}}, {.parameters = {b}, .lr = 1.0}}, {.lr = 0.1});
  ExponentialLR scheduler(optimizer, {.gamma = 0.5});
  scheduler.step();
  EXPECT_DOUBLE_EQ(optimizer.groups()[0].lr, 0.05);
  EXPECT_DOUBLE_EQ(optimizer.groups()[1].lr, 0.5);
}

TEST(Scheduler, ContinuesFromItsState) {
  Fixture f;
  CosineAnnealingLR scheduler(f.optimizer, {.t_max = 9});
  for (int i = 0; i < 4; ++i) scheduler.step();
  const nn::StateDict state = scheduler.state_dict();
  scheduler.step();

  Fixture g;
  g.optimizer.groups()[0].lr = 7;  // what another checkpoint left there does not matter
  CosineAnnealingLR resumed(g.optimizer, {.t_max = 9});
  resumed.load_state_dict(state);
  EXPECT_EQ(resumed.steps(), 4);
  resumed.step();
  EXPECT_EQ(g.lr(), f.lr());
  EXPECT_THROW(resumed.load_state_dict({}), Error);
}

using Make = std::function<std::shared_ptr<Scheduler>(Optimizer&)>;

template <class S>
Make made(const typename S::Options& options) {
  return [=](Optimizer& optimizer) { return std::make_shared<S>(optimizer, options); };
}

Make one_after_the_other(const std::vector<Make>& makes, const std::vector<std::int64_t>& milestones) {
  return [=](Optimizer& optimizer) {
    std::vector<std::shared_ptr<Scheduler>> schedulers;
    for (const Make& make : makes) schedulers.push_back(make(optimizer));
    return std::make_shared<SequentialLR>(optimizer, std::move(schedulers), milestones);
  };
}

/// Saves after each of some steps and continues in a fresh optimizer, whose own state is loaded before or
/// after the scheduler is made.
void expect_resumes(const Make& make) {
  const auto fresh = [] {
    const Variable a = Variable::parameter(Tensor::zeros({1})), b = Variable::parameter(Tensor::zeros({1}));
    return std::make_unique<SGD>(std::vector<ParamGroup>{{.parameters = {a}}, {.parameters = {b}, .lr = 0.7}},
                                 SGD::Options{.lr = 0.1, .momentum = 0.9});
  };
  const auto settings = [](const Optimizer& optimizer) {
    std::vector<double> all;
    for (const auto& group : optimizer.groups()) all.insert(all.end(), {group.lr, group.momentum});
    return all;
  };
  for (const bool optimizer_first : {true, false}) {
    for (int saved_after = 0; saved_after < 10; ++saved_after) {
      const auto optimizer = fresh(), resumed_optimizer = fresh();
      const auto scheduler = make(*optimizer);
      for (int t = 0; t < saved_after; ++t) scheduler->step();
      const nn::StateDict state = scheduler->state_dict(), optimizer_state = optimizer->state_dict();

      if (optimizer_first) resumed_optimizer->load_state_dict(optimizer_state);
      const auto resumed = make(*resumed_optimizer);
      if (!optimizer_first) resumed_optimizer->load_state_dict(optimizer_state);
      resumed->load_state_dict(state);
      for (int t = saved_after; t < 12; ++t) {
        ASSERT_EQ(settings(*resumed_optimizer), settings(*optimizer))
            << "saved after " << saved_after << " steps, step " << t;
        scheduler->step();
        resumed->step();
      }
      const auto later_one = make(*resumed_optimizer);  // starts from the learning rates of the first run
      const auto unbroken_later_one = make(*optimizer);
      later_one->step();
      unbroken_later_one->step();
      EXPECT_EQ(settings(*resumed_optimizer), settings(*optimizer));
    }
  }
}

TEST(Scheduler, EveryKindContinuesInANewProcess) {
  const Make warmup = made<LinearWarmup>({.total_iters = 4, .start_factor = 0.25});
  const Make cosine = made<CosineAnnealingLR>({.t_max = 9, .eta_min = 0.01});
  const Make one_cycle = made<OneCycleLR>({.max_lr = 1, .total_steps = 20});
  const std::vector<Make> kinds = {
      made<StepLR>({.step_size = 3}),
      made<MultiStepLR>({.milestones = {2, 5, 5}}),
      made<ExponentialLR>({.gamma = 0.9}),
      cosine,
      made<CosineAnnealingWarmRestarts>({.t_0 = 2, .t_mult = 2}),
      warmup,
      one_cycle,
      one_after_the_other({warmup, cosine}, {4}),
      one_after_the_other({one_cycle, cosine}, {3}),
      one_after_the_other({one_after_the_other({warmup, one_cycle}, {2}), cosine, warmup}, {6, 9}),
  };
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    SCOPED_TRACE(i);
    expect_resumes(kinds[i]);
  }
}

TEST(Scheduler, AStateThatDoesNotFitChangesNothing) {
  Fixture f;
  const auto make = one_after_the_other(
      {made<ExponentialLR>({.gamma = 0.5}), made<OneCycleLR>({.max_lr = 1, .total_steps = 5})}, {2});
  const auto scheduler = make(f.optimizer);
  scheduler->step();
  const double lr = f.lr(), momentum = f.momentum();
  nn::StateDict state = scheduler->state_dict();
  state[0].second = Tensor::from<std::int64_t>({8}, {});  // beyond the cycle's last step
  EXPECT_THROW(scheduler->load_state_dict(state), Error);
  state[0].second = Tensor::from<std::int64_t>({-1}, {});
  EXPECT_THROW(scheduler->load_state_dict(state), Error);
  state.pop_back();  // scheduler.1.initial_lr
  EXPECT_THROW(scheduler->load_state_dict(state), Error);
  EXPECT_EQ(scheduler->steps(), 1);
  EXPECT_EQ(f.lr(), lr);
  EXPECT_EQ(f.momentum(), momentum);
}

TEST(ReduceLROnPlateau, WaitsReducesAndCoolsDown) {
  const std::vector<double> metrics = {1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.89, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5};
  const std::vector<double> expected = {0.1,  0.1,  0.1,   0.05,  0.05,  0.05,  0.05,
                                        0.05, 0.05, 0.025, 0.025, 0.025, 0.025, 0.0125};
  Fixture f, g;
  ReduceLROnPlateau scheduler(f.optimizer, {.factor = 0.5, .patience = 1, .cooldown = 2});
  ReduceLROnPlateau resumed(g.optimizer, {.factor = 0.5, .patience = 1, .cooldown = 2});
  for (std::size_t t = 0; t < metrics.size(); ++t) {
    scheduler.step(metrics[t]);
    EXPECT_NEAR(f.lr(), expected[t], 1e-12) << "step " << t;
    if (t == 4) {  // a copy that continues in the middle of a cool-down
      g.optimizer.load_state_dict(f.optimizer.state_dict());
      resumed.load_state_dict(scheduler.state_dict());
    } else if (t > 4) {
      resumed.step(metrics[t]);
      EXPECT_EQ(g.lr(), f.lr()) << "step " << t;
    }
  }
}

TEST(ReduceLROnPlateau, AbsoluteThresholdAndLeastRate) {
  const std::vector<double> metrics = {-1,   -0.9, -0.9, -0.9, -0.9, -0.9, -0.89,
                                       -0.5, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5};
  const std::vector<double> expected = {0.1,  0.1,  0.05, 0.05, 0.03, 0.03, 0.03,
                                        0.03, 0.03, 0.03, 0.03, 0.03, 0.03, 0.03};
  Fixture f;
  ReduceLROnPlateau scheduler(f.optimizer, {.mode = ReduceLROnPlateau::Mode::max,
                                            .factor = 0.5,
                                            .patience = 1,
                                            .threshold = 0.2,
                                            .threshold_mode = ReduceLROnPlateau::Threshold::absolute,
                                            .min_lr = 0.03});
  for (std::size_t t = 0; t < metrics.size(); ++t) {
    scheduler.step(metrics[t]);
    EXPECT_NEAR(f.lr(), expected[t], 1e-12) << "step " << t;
  }
}

TEST(Scheduler, RejectsIllegalSettings) {
  Fixture f;
  expect_error([&] { StepLR(f.optimizer, {.step_size = 0}); }, "StepLR: step_size 0 is not legal");
  expect_error([&] { CosineAnnealingLR(f.optimizer, {.t_max = 0}); }, "t_max 0 is not legal");
  expect_error([&] { CosineAnnealingWarmRestarts(f.optimizer, {.t_0 = 2, .t_mult = 0}); },
               "t_mult 0 is not legal");
  expect_error([&] { OneCycleLR(f.optimizer, {.max_lr = 1, .total_steps = 5, .pct_start = 2}); },
               "pct_start 2 is not legal; legal is [0, 1]");
  expect_error([&] { SequentialLR(f.optimizer, {}, {}); }, "0 schedulers and 0 milestones");
  expect_error([&] { ReduceLROnPlateau(f.optimizer, {.factor = 1}); }, "factor 1 is not legal");
}

}  // namespace
}  // namespace tapedeck::optim
