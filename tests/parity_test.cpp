// What PyTorch computed (tests/parity, made by make_parity.py) against what Tapedeck computes.
#include <tapedeck/nn/data/safetensors.h>
#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

namespace tapedeck {
namespace {

using TensorMap = std::map<std::string, Tensor>;

TensorMap read(const std::string& file) {
  const auto state = data::load_safetensors(std::string(TAPEDECK_TEST_DATA) + "/../parity/" + file);
  return {state.begin(), state.end()};
}

/// max |a - b| / max |b|: relative to the tensor, so that sums that cancel do not count against it.
double relative_error(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i])) return INFINITY;
    worst = std::max(worst, std::abs(x[i] - y[i]));
    scale = std::max(scale, std::abs(y[i]));
  }
  return worst / std::max(scale, 1e-30);
}

using F = std::function<Variable(const Variables&)>;

Variable normalise(const Variables& x, bool training) {
  const Tensor mean = Tensor::zeros({4}, x[0].tensor().options());
  const Tensor var = Tensor::ones({4}, x[0].tensor().options());
  return batch_norm(x[0], x[1], x[2], mean, var, {.training = training});
}

const std::map<std::string, F>& cases() {
  using V = const Variables&;
  static const std::map<std::string, F> table = {
      {"conv_transpose2d", [](V x) { return conv_transpose2d(x[0], x[1], x[2]); }},
      {"conv_transpose2d_k4s2p1",
       [](V x) { return conv_transpose2d(x[0], x[1], x[2], {.stride = 2, .padding = 1}); }},
      {"conv_transpose2d_everything",
       [](V x) {
         return conv_transpose2d(x[0], x[1], x[2],
                                 {.stride = {3, 2},
                                  .padding = {1, 2},
                                  .output_padding = {2, 1},
                                  .dilation = {2, 3},
                                  .groups = 2});
       }},
      {"conv_transpose2d_empty_phases",
       [](V x) {
         return conv_transpose2d(x[0], x[1], {}, {.stride = {5, 4}, .padding = 1, .dilation = 2});
       }},
      {"conv_transpose2d_depthwise",
       [](V x) { return conv_transpose2d(x[0], x[1], x[2], {.stride = 2, .padding = 1, .groups = 4}); }},
      {"conv_transpose2d_unbatched",
       [](V x) {
         return conv_transpose2d(x[0], x[1], {}, {.stride = 2, .padding = 1, .output_padding = 1});
       }},
      {"conv2d", [](V x) { return conv2d(x[0], x[1], x[2]); }},
      {"conv2d_everything",
       [](V x) {
         return conv2d(x[0], x[1], x[2],
                       {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2});
       }},
      {"matmul", [](V x) { return matmul(x[0], x[1]); }},
      {"matmul_batched", [](V x) { return matmul(x[0], x[1]); }},
      {"linear", [](V x) { return linear(x[0], x[1], x[2]); }},
      {"div", [](V x) { return x[0] / x[1]; }},
      {"exp", [](V x) { return exp(x[0]); }},
      {"log", [](V x) { return log(x[0]); }},
      {"sqrt", [](V x) { return sqrt(x[0]); }},
      {"pow_scalar", [](V x) { return pow(x[0], 2.5); }},
      {"pow_tensor", [](V x) { return pow(x[0], x[1]); }},
      {"abs", [](V x) { return abs(x[0]); }},
      {"minimum", [](V x) { return minimum(x[0], x[1]); }},
      {"maximum", [](V x) { return maximum(x[0], x[1]); }},
      {"clamp", [](V x) { return clamp(x[0], -0.5, 0.7); }},
      {"where", [](V x) { return where(gt(x[0], x[1]), x[0] * 2.0, x[1]); }},
      {"relu", [](V x) { return relu(x[0]); }},
      {"leaky_relu", [](V x) { return leaky_relu(x[0], 0.2); }},
      {"elu", [](V x) { return elu(x[0], 1.3); }},
      {"gelu", [](V x) { return gelu(x[0]); }},
      {"gelu_tanh", [](V x) { return gelu(x[0], Gelu::tanh); }},
      {"silu", [](V x) { return silu(x[0]); }},
      {"mish", [](V x) { return mish(x[0]); }},
      {"softplus", [](V x) { return softplus(x[0] * 4.0, 1.5, 3); }},
      {"tanh", [](V x) { return tanh(x[0]); }},
      {"sigmoid", [](V x) { return sigmoid(x[0]); }},
      {"hardtanh", [](V x) { return hardtanh(x[0], -0.4, 0.6); }},
      {"softmax", [](V x) { return softmax(x[0], 1); }},
      {"log_softmax", [](V x) { return log_softmax(x[0], -1); }},
      {"logsumexp",
       [](V x) {
         return logsumexp(x[0], {0, 2});
       }},
      {"sum",
       [](V x) {
         return sum(x[0], {0, 2}, true);
       }},
      {"mean", [](V x) { return mean(x[0], {1}); }},
      {"var",
       [](V x) {
         return var(x[0], {0, 2});
       }},
      {"var_biased", [](V x) { return var(x[0], {1}, {.correction = 0, .keepdim = true}); }},
      {"max", [](V x) { return max(x[0], {1}); }},
      {"min",
       [](V x) {
         return min(x[0], {0, 2}, true);
       }},
      {"permute",
       [](V x) {
         return permute(x[0], {2, 0, 1});
       }},
      {"cat",
       [](V x) {
         return cat({x[0], x[1]}, 1);
       }},
      {"slice", [](V x) { return slice(x[0], 1, 1, 5, 2); }},
      {"pad",
       [](V x) {
         return pad(x[0], {1, 2, 0, 3}, 0.5);
       }},
      {"gather", [](V x) { return gather(x[0], 1, x[1]); }},
      {"index_select", [](V x) { return index_select(x[0], 0, x[1]); }},
      {"batch_norm", [](V x) { return normalise(x, true); }},
      {"batch_norm_eval", [](V x) { return normalise(x, false); }},
      {"group_norm", [](V x) { return group_norm(x[0], 3, x[1], x[2], 1e-5); }},
      {"layer_norm",
       [](V x) {
         return layer_norm(x[0], {4, 3}, x[1], x[2], 1e-5);
       }},
      {"max_pool2d",
       [](V x) {
         return max_pool2d(x[0],
                           {.kernel_size = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}});
       }},
      {"max_pool2d_ceil",
       [](V x) {
         return max_pool2d(x[0], {.kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true});
       }},
      {"avg_pool2d",
       [](V x) {
         return avg_pool2d(x[0], {.kernel_size = {3, 2}, .stride = {2, 1}, .padding = 1});
       }},
      {"avg_pool2d_exclude_pad",
       [](V x) {
         return avg_pool2d(
             x[0],
             {.kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false});
       }},
      {"adaptive_avg_pool2d",
       [](V x) {
         return adaptive_avg_pool2d(x[0], {3, 5});
       }},
      {"upsample_nearest2d",
       [](V x) {
         return upsample_nearest2d(x[0], {7, 9});
       }},
      {"upsample_bilinear2d",
       [](V x) {
         return upsample_bilinear2d(x[0], {7, 9});
       }},
      {"upsample_bilinear2d_corners",
       [](V x) {
         return upsample_bilinear2d(x[0], {7, 9}, true);
       }},
      {"pixel_shuffle", [](V x) { return pixel_shuffle(x[0], 2); }},
      {"mse_loss", [](V x) { return nn::mse_loss(x[0], x[1]); }},
      {"l1_loss", [](V x) { return nn::l1_loss(x[0], x[1]); }},
      {"huber_loss", [](V x) { return nn::huber_loss(x[0], x[1], {.delta = 0.7}); }},
      {"bce_with_logits", [](V x) { return nn::binary_cross_entropy_with_logits(x[0], x[1]); }},
      {"cross_entropy", [](V x) { return nn::cross_entropy(x[0], x[1]); }},
      {"cross_entropy_2d", [](V x) { return nn::cross_entropy(x[0], x[1]); }},
      {"kl_divergence_gaussian", [](V x) { return nn::kl_divergence_gaussian(x[0], x[1]); }},
  };
  return table;
}

void compare(const std::string& name, const TensorMap& pack, DType dtype, double tolerance) {
  Variables inputs;
  for (std::size_t i = 0; pack.contains(name + "/in" + std::to_string(i)); ++i) {
    const Tensor x = pack.at(name + "/in" + std::to_string(i));
    inputs.push_back(is_floating(x.dtype()) ? Variable::parameter(x.to(dtype)) : Variable(x));
  }
  Tape tape;
  const Variable y = cases().at(name)(inputs);
  ASSERT_EQ(y.shape(), pack.at(name + "/out").shape()) << name;
  EXPECT_LE(relative_error(y.tensor(), pack.at(name + "/out")), tolerance) << name;
  tape.backward(y, {.gradient = pack.at(name + "/cotangent").to(dtype)});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    ASSERT_TRUE(inputs[i].grad().defined()) << name << " input " << i;
    EXPECT_LE(relative_error(inputs[i].grad().tensor(), pack.at(name + "/grad" + std::to_string(i))),
              tolerance)
        << name << " gradient of input " << i;
  }
}

TEST(Parity, EveryCaseOfThePackIsTested) {
  std::set<std::string> stored, tested;
  for (const auto& [name, tensor] : read("ops.safetensors")) stored.insert(name.substr(0, name.find('/')));
  for (const auto& [name, f] : cases()) tested.insert(name);
  EXPECT_EQ(stored, tested);
}

TEST(Parity, OpsInFloat64) {
  const TensorMap pack = read("ops.safetensors");
  for (const auto& [name, f] : cases()) compare(name, pack, DType::float64, 1e-12);
}

TEST(Parity, OpsInFloat32) {
  const TensorMap pack = read("ops.safetensors");
  for (const auto& [name, f] : cases()) compare(name, pack, DType::float32, 1e-5);
}

// ---- traces ----

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

/// 100 training steps of M from the stored weights on the stored data.
template <class M>
Trace train(const TensorMap& pack, const std::string& model, const std::string& optimizer_name,
            const std::string& schedule_name, DType dtype) {
  M module;
  nn::StateDict initial;
  const std::string prefix = model + "/initial/";
  for (const auto& [name, tensor] : pack) {
    if (name.starts_with(prefix)) initial.emplace_back(name.substr(prefix.size()), tensor);
  }
  module.load_state_dict(initial);
  module.to(dtype);
  const double rate = model == "vae" ? 1.0 : 0.5;
  const auto optimizer = optimizers().at(optimizer_name)(module.parameters(), rate);
  const Schedule step = schedule_name.empty() ? Schedule() : schedules().at(schedule_name)(*optimizer);

  const Tensor x = pack.at(model + "/data0").to(dtype), y = pack.at(model + "/data1").to(dtype);
  Trace trace;
  for (std::int64_t i = 0; i < 100; ++i) {
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
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    worst = std::max(worst, std::abs(ours.at(i) - theirs[i]) / std::abs(theirs[i]));
  }
  return worst;
}

template <class M>
void compare_traces(const std::string& model) {
  const TensorMap pack = read("traces.safetensors");
  std::size_t compared = 0;
  for (const auto& [name, tensor] : pack) {
    const std::string end = "/losses_float64";
    if (!name.starts_with(model + "/") || !name.ends_with(end)) continue;
    const std::string key = name.substr(0, name.size() - end.size());
    const std::string run = key.substr(model.size() + 1);
    const auto slash = run.find('/');
    const std::string optimizer = run.substr(0, slash);
    const std::string scheduler = slash == std::string::npos ? "" : run.substr(slash + 1);
    const Trace exact = train<M>(pack, model, optimizer, scheduler, DType::float64);
    EXPECT_LE(worst_relative(exact.losses, tensor.template to_vector<double>()), 1e-9)
        << key << " in float64";
    const Trace single = train<M>(pack, model, optimizer, scheduler, DType::float32);
    EXPECT_LE(worst_relative(single.losses, pack.at(key + "/losses_float32").to_vector<double>()), 1e-5)
        << key << " in float32";
    if (!scheduler.empty()) {
      EXPECT_LE(worst_relative(exact.rates, pack.at(key + "/lr").to_vector<double>()), 1e-9) << key;
    }
    ++compared;
  }
  EXPECT_EQ(compared, optimizers().size() + schedules().size());
}

TEST(Parity, VaeTraces) {
  compare_traces<Vae>("vae");
}
TEST(Parity, DcganTraces) {
  compare_traces<Dcgan>("dcgan");
}

}  // namespace
}  // namespace tapedeck
