// Losses and learning rates of models that PyTorch trained against those of Tapedeck.
#include <functional>
#include <memory>

#include <gtest/gtest.h>

#include "cuda_support.h"
#include "parity.h"
#include "sanitizers.h"

namespace tapedeck {
namespace {

using namespace test;

struct Vae final : nn::Module {
  nn::Sequential encode = register_module(
      "encode", nn::Sequential(nn::Linear({.in_features = 64, .out_features = 32}), nn::ReLU()));
  nn::Linear mu = register_module("mu", nn::Linear({.in_features = 32, .out_features = 4}));
  nn::Linear logvar = register_module("logvar", nn::Linear({.in_features = 32, .out_features = 4}));
  nn::Sequential decode = register_module(
      "decode", nn::Sequential(
                    nn::Linear({.in_features = 4, .out_features = 32}), nn::ReLU(), nn::Unflatten({8, 2, 2}),
                    nn::ConvTranspose2d({.in_channels = 8,
                                         .out_channels = 8,
                                         .kernel_size = 3,
                                         .stride = 2,
                                         .padding = 1,
                                         .output_padding = 1}),
                    nn::ReLU(),
                    nn::ConvTranspose2d({.in_channels = 8,
                                         .out_channels = 4,
                                         .kernel_size = 3,
                                         .stride = 2,
                                         .padding = 1,
                                         .output_padding = 1}),
                    nn::ReLU(),
                    nn::ConvTranspose2d(
                        {.in_channels = 4, .out_channels = 1, .kernel_size = 3, .stride = 1, .padding = 1})));

  Variable loss(const Variable& x, const Variable& noise) {
    const Variable h = encode(flatten(x, 1));
    const Variable m = mu(h), v = logvar(h);
    const Variable y = decode(m + noise * exp(v * 0.5));
    return nn::binary_cross_entropy_with_logits(y, x) + nn::kl_divergence_gaussian(m, v) * 0.01;
  }
};

struct Dcgan final : nn::Module {
  nn::Sequential decode = register_module(
      "decode", nn::Sequential(nn::ConvTranspose2d(
                                   {.in_channels = 6, .out_channels = 16, .kernel_size = 4, .bias = false}),
                               nn::BatchNorm2d({.num_features = 16}), nn::ELU(),
                               nn::ConvTranspose2d({.in_channels = 16,
                                                    .out_channels = 8,
                                                    .kernel_size = 4,
                                                    .stride = 2,
                                                    .padding = 1,
                                                    .bias = false}),
                               nn::BatchNorm2d({.num_features = 8}), nn::ELU(),
                               nn::ConvTranspose2d({.in_channels = 8,
                                                    .out_channels = 3,
                                                    .kernel_size = 4,
                                                    .stride = 2,
                                                    .padding = 1,
                                                    .bias = false}),
                               nn::Tanh()));

  Variable loss(const Variable& z, const Variable& target) { return nn::mse_loss(decode(z), target); }
};

using OptimizerPtr = std::unique_ptr<optim::Optimizer>;
using MakeOptimizer = std::function<OptimizerPtr(const Variables&, double rate)>;

const std::map<std::string, MakeOptimizer>& optimizers() {
  using P = const Variables&;
  static const std::map<std::string, MakeOptimizer> table = {
      {"sgd",
       [](P p, double r) { return std::make_unique<optim::SGD>(p, optim::SGD::Options{.lr = 0.2 * r}); }},
      {"sgd_momentum",
       [](P p, double r) {
         return std::make_unique<optim::SGD>(
             p, optim::SGD::Options{.lr = 0.05 * r, .momentum = 0.9, .weight_decay = 1e-3});
       }},
      {"sgd_nesterov",
       [](P p, double r) {
         return std::make_unique<optim::SGD>(
             p, optim::SGD::Options{.lr = 0.05 * r, .momentum = 0.9, .nesterov = true});
       }},
      {"adam",
       [](P p, double r) {
         return std::make_unique<optim::Adam>(p, optim::Adam::Options{.lr = 5e-3 * r, .eps = 1e-3});
       }},
      {"adam_weight_decay",
       [](P p, double r) {
         return std::make_unique<optim::Adam>(
             p,
             optim::Adam::Options{.lr = 1e-3 * r, .betas = {0.5, 0.99}, .eps = 1e-3, .weight_decay = 1e-3});
       }},
      {"adamw",
       [](P p, double r) {
         return std::make_unique<optim::AdamW>(
             p, optim::AdamW::Options{.lr = 5e-3 * r, .eps = 1e-3, .weight_decay = 0.05});
       }},
      {"rmsprop",
       [](P p, double r) {
         return std::make_unique<optim::RMSprop>(p, optim::RMSprop::Options{.lr = 2e-4 * r, .eps = 1e-3});
       }},
      {"rmsprop_centered",
       [](P p, double r) {
         return std::make_unique<optim::RMSprop>(
             p, optim::RMSprop::Options{.lr = 3e-4 * r, .eps = 1e-3, .momentum = 0.5, .centered = true});
       }},
  };
  return table;
}

/// Steps whichever scheduler it was made for; the metric matters to the plateau's alone.
using Schedule = std::function<void(double metric)>;
using MakeSchedule = std::function<Schedule(optim::Optimizer&)>;

template <class S>
Schedule schedule(optim::Optimizer& optimizer, const typename S::Options& options) {
  return [scheduler = std::make_shared<S>(optimizer, options)](double metric) {
    if constexpr (std::is_same_v<S, optim::ReduceLROnPlateau>) {
      scheduler->step(metric);
    } else {
      scheduler->step();
    }
  };
}

const std::map<std::string, MakeSchedule>& schedules() {
  using O = optim::Optimizer&;
  static const std::map<std::string, MakeSchedule> table = {
      {"step", [](O o) { return schedule<optim::StepLR>(o, {.step_size = 20, .gamma = 0.5}); }},
      {"multi_step",
       [](O o) {
         return schedule<optim::MultiStepLR>(o, {.milestones = {15, 40, 70}, .gamma = 0.3});
       }},
      {"exponential", [](O o) { return schedule<optim::ExponentialLR>(o, {.gamma = 0.97}); }},
      {"cosine", [](O o) { return schedule<optim::CosineAnnealingLR>(o, {.t_max = 80, .eta_min = 1e-4}); }},
      {"cosine_warm_restarts",
       [](O o) {
         return schedule<optim::CosineAnnealingWarmRestarts>(o, {.t_0 = 15, .t_mult = 2, .eta_min = 1e-4});
       }},
      {"linear_warmup",
       [](O o) { return schedule<optim::LinearWarmup>(o, {.total_iters = 25, .start_factor = 0.1}); }},
      {"one_cycle", [](O o) { return schedule<optim::OneCycleLR>(o, {.max_lr = 0.05, .total_steps = 100}); }},
      {"plateau",
       [](O o) {
         return schedule<optim::ReduceLROnPlateau>(o, {.factor = 0.5, .patience = 4, .threshold = 0.1});
       }},
  };
  return table;
}

struct Trace {
  std::vector<double> losses, rates;
};

/// A sanitizer has seen all kernels of a step after the first, and those of an optimizer's state after two.
int steps() {
  return is_sanitized() ? 2 : 100;
}

/// Training steps of M on `device`, from the stored weights on the stored data.
template <class M>
Trace train(const TensorMap& pack, const std::string& model, const std::string& optimizer_name,
            const std::string& schedule_name, DType dtype, Device device) {
  M module;
  nn::StateDict initial;
  const std::string prefix = model + "/initial/";
  for (const auto& [name, tensor] : pack) {
    if (name.starts_with(prefix)) initial.emplace_back(name.substr(prefix.size()), tensor);
  }
  module.load_state_dict(initial);
  module.to(dtype);
  module.to(device);
  const double rate = model == "vae" ? 1.0 : 0.5;
  const auto optimizer = optimizers().at(optimizer_name)(module.parameters(), rate);
  const Schedule step = schedule_name.empty() ? Schedule() : schedules().at(schedule_name)(*optimizer);

  const auto data = [&](const char* key) { return pack.at(model + key).to(dtype).to(device); };
  const Tensor x = data("/data0"), y = data("/data1");
  Trace trace;
  for (std::int64_t i = 0; i < steps(); ++i) {
    trace.rates.push_back(optimizer->groups()[0].lr);
    optimizer->zero_grad();
    Tape tape;
    const Variable loss =
        module.loss(x, model == "vae" ? y.slice(i, i + 1).reshape({y.size(1), y.size(2)}) : y);
    tape.backward(loss);
    optimizer->step();
    trace.losses.push_back(loss.item());
    if (step) step(trace.losses.back());
  }
  return trace;
}

double worst_relative(const std::vector<double>& ours, const std::vector<double>& theirs) {
  double worst = 0;
  EXPECT_EQ(static_cast<std::int64_t>(ours.size()), steps());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    worst = std::max(worst, std::abs(ours[i] - theirs.at(i)) / std::abs(theirs.at(i)));
  }
  return worst;
}

/// In float64 to 1e-9, which tells of a wrong formula; in float32 to `single_tolerance`.
template <class M>
void compare_traces(const std::string& model, Device device = {}, double single_tolerance = 1e-5) {
  const TensorMap pack = read("traces.safetensors");
  std::size_t stored = 0;
  Share share;
  for (const auto& [name, tensor] : pack) {
    const std::string end = "/losses_float64";
    if (!name.starts_with(model + "/") || !name.ends_with(end)) continue;
    ++stored;
    if (!share.takes_next()) continue;
    const std::string key = name.substr(0, name.size() - end.size());
    const std::string run = key.substr(model.size() + 1);
    const auto slash = run.find('/');
    const std::string optimizer = run.substr(0, slash);
    const std::string scheduler = slash == std::string::npos ? "" : run.substr(slash + 1);
    const Trace exact = train<M>(pack, model, optimizer, scheduler, DType::float64, device);
    EXPECT_LE(worst_relative(exact.losses, tensor.template to_vector<double>()), 1e-9)
        << key << " in float64";
    const Trace single = train<M>(pack, model, optimizer, scheduler, DType::float32, device);
    EXPECT_LE(worst_relative(single.losses, pack.at(key + "/losses_float32").to_vector<double>()),
              single_tolerance)
        << key << " in float32";
    if (!scheduler.empty()) {
      EXPECT_LE(worst_relative(exact.rates, pack.at(key + "/lr").to_vector<double>()), 1e-9) << key;
    }
  }
  EXPECT_EQ(stored, optimizers().size() + schedules().size());
}

TEST(Parity, VaeTraces) {
  if (kSanitized) GTEST_SKIP() << "about values only";
  compare_traces<Vae>("vae");
}
TEST(Parity, DcganTraces) {
  if (kSanitized) GTEST_SKIP() << "about values only";
  compare_traces<Dcgan>("dcgan");
}

class CudaParity : public CudaTest {};

TEST_F(CudaParity, VaeTraces) {
  compare_traces<Vae>("vae", kCuda, 2e-5);
}
TEST_F(CudaParity, DcganTraces) {
  compare_traces<Dcgan>("dcgan", kCuda, 2e-5);
}

}  // namespace
}  // namespace tapedeck
