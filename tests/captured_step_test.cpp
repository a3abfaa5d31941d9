// Captured steps: on the CPU they are the function itself; on a GPU replays equal eager steps to the bit.
#include "../bench/training.h"
#include "cuda_support.h"
#include "decoder.h"
#include "op_support.h"

#include <cstring>

#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/precision.h>

namespace tapedeck {
namespace {

using namespace test;
using ::testing::HasSubstr;

class CudaCapturedStep : public CudaTest {};

TEST(CapturedStep, OnTheCpuRunsTheFunction) {
  int calls = 0;
  CapturedStep step(Device{}, [&](const Tensors& x) -> Tensors {
    ++calls;
    EXPECT_FALSE(is_capturing());
    EXPECT_FALSE(replayed_number(Device{}, [] { return 1.0; }).defined());
    return {(Variable(x[0]) + Variable(x[1])).tensor()};
  });
  for (int i = 0; i < 5; ++i) {
    const Tensor x = Tensor::full({3}, i), y = Tensor::full({3}, 10);
    EXPECT_EQ(step({x, y})[0].to_vector<float>(), std::vector<float>(3, static_cast<float>(10 + i)));
  }
  EXPECT_EQ(calls, 5);
  EXPECT_EQ(step.graphs(), 0u);
  EXPECT_EQ(step.memory_stats().reserved, 0u);
  EXPECT_THAT(error_of([&] { step({Tensor()}); }), HasSubstr("captured step: an input is undefined"));
}

/// Losses of all steps, and then all parameters, buffers and averages.
struct Trained {
  std::vector<double> losses;
  std::vector<std::vector<double>> state;
  std::uint64_t draws;
  std::size_t graphs;
};

/// Trains with all that a step may have: noise, dropout, normalisation, clipping, Adam with a schedule, and
/// moving averages. Batches are of 16, and every fifth of 7.
Trained train(bool captured, int steps, std::uint64_t reseed_at = 1000000) {
  Generator init(5), noise(9);
  SmallDecoder model(init);
  model.to(kCuda);
  optim::Adam adam(model.parameters(), {.lr = 1e-2});
  optim::StepLR schedule(adam, {.step_size = 7, .gamma = 0.9});
  optim::ExponentialMovingAverage average(model.parameters(), {.decay = 0.99, .warmup = true});
  const auto run = [&](const Tensors& x) -> Tensors {
    adam.zero_grad();
    Tape tape;
    const Variable codes = x[0] + 0.1 * Variable(randn(x[0].shape(), x[0].options(), noise));
    const Variable loss = nn::mse_loss(model(dropout(codes, 0.2, true, noise)), x[1]);
    tape.backward(loss);
    optim::clip_grad_norm(model.parameters(), 0.5);
    adam.step();
    average.update();
    return {loss.tensor()};
  };
  CapturedStep step(kCuda, run);
  Trained result;
  for (int i = 0; i < steps; ++i) {
    const std::int64_t n = i % 5 == 4 ? 7 : 16;
    if (static_cast<std::uint64_t>(i) == reseed_at) noise.set_state(77, 3);
    const Tensor z = random_tensor({n, 6}, {}, -1, 1, 1 + i % 3),
                 image = random_tensor({n, 3, 6, 6}, {}, 0, 1, 2);
    const Tensors out = captured ? step({z, image}) : run({z.to(kCuda), image.to(kCuda)});
    result.losses.push_back(out[0].item());
    schedule.step();
  }
  for (const auto& [name, tensor] : model.state_dict()) result.state.push_back(tensor.to_vector<double>());
  for (const auto& [name, tensor] : average.state_dict()) result.state.push_back(tensor.to_vector<double>());
  for (const auto& [name, tensor] : adam.state_dict()) result.state.push_back(tensor.to_vector<double>());
  result.draws = noise.offset();
  result.graphs = step.graphs();
  return result;
}

TEST_F(CudaCapturedStep, ReplaysEqualEagerStepsToTheBit) {
  const int steps = is_sanitized() ? 10 : 1000;  // each size eager, and captured
  const Trained eager = train(false, steps), captured = train(true, steps);
  EXPECT_EQ(eager.graphs, 0u);
  EXPECT_EQ(captured.graphs, 2u);
  EXPECT_EQ(captured.losses, eager.losses);
  EXPECT_EQ(captured.state, eager.state);
  EXPECT_EQ(captured.draws, eager.draws);
  if (steps == 1000) {
    EXPECT_LT(eager.losses.back(), 0.7 * eager.losses.front());
  }
}

/// The losses of steps of a real decoder, and what it and its optimizer hold after them, on the host.
std::pair<std::vector<double>, Tensors> train_decoder(const char* name, DType products, bool captured) {
  manual_seed(5);
  bench::Training training(name, is_sanitized() ? 4 : 64, kCuda);
  const auto run = [&](const Tensors& x) {
    const Autocast scope(products);
    return training.step(x);
  };
  CapturedStep step(kCuda, run);
  std::pair<std::vector<double>, Tensors> result;
  for (int i = 0; i < (is_sanitized() ? 3 : 50); ++i) {
    const Tensors batch{(Variable(training.codes) * (1 + 0.1 * (i % 3))).tensor(), training.images};
    result.first.push_back((captured ? step(batch) : run(batch))[0].item());
  }
  for (const auto& [key, tensor] : training.model.state_dict())
    result.second.push_back(tensor.to(Device{}).clone());
  for (const auto& [key, tensor] : training.adam.state_dict())
    result.second.push_back(tensor.to(Device{}).clone());
  return result;
}

TEST_F(CudaCapturedStep, DecodersReplayTheirEagerStepsToTheBit) {
  Share share;
  for (const char* name : {"vae", "dcgan"}) {
    for (const auto& [precision, products] : {std::pair(Precision::highest, DType::float32),
                                              {Precision::high, DType::float32},
                                              {Precision::highest, DType::bfloat16}}) {
      if (!share.takes_next()) continue;
      SCOPED_TRACE(concat(name, " ", products, precision == Precision::high ? " high" : " highest"));
      set_float32_precision(precision);
      const auto [losses, state] = train_decoder(name, products, false);
      const auto [replayed_losses, replayed_state] = train_decoder(name, products, true);
      set_float32_precision(Precision::highest);
      EXPECT_EQ(replayed_losses, losses);
      if (!is_sanitized()) {
        EXPECT_LT(losses.back(), losses.front());
      }
      ASSERT_EQ(replayed_state.size(), state.size());
      for (std::size_t i = 0; i < state.size(); ++i) {
        EXPECT_EQ(std::memcmp(replayed_state[i].raw(), state[i].raw(), state[i].bytes()), 0) << i;
      }
    }
  }
}

/// Losses, parameters and the final scale of steps in a half type, the scale starting far too high.
std::vector<std::vector<double>> train_half(DType dtype, bool captured, int steps) {
  Generator init(5);
  SmallDecoder model(init);
  model.to(kCuda);
  optim::Adam adam(model.parameters(), {.lr = 1e-2});
  optim::GradScaler scaler(kCuda, {.init_scale = 1e9, .growth_interval = 5});
  const auto run = [&](const Tensors& x) -> Tensors {
    adam.zero_grad();
    Tape tape;
    Variable loss;
    {
      const Autocast half(dtype);
      loss = nn::mse_loss(model(x[0]), x[1]);
    }
    tape.backward(scaler.scale(loss));
    scaler.unscale(model.parameters());
    optim::clip_grad_norm(model.parameters(), 1);
    scaler.step(adam);
    scaler.update();
    return {loss.tensor()};
  };
  CapturedStep step(kCuda, run);
  std::vector<std::vector<double>> result(1);
  for (int i = 0; i < steps; ++i) {
    const Tensor z = random_tensor({16, 6}, {}, -1, 1, 1 + i % 3),
                 image = random_tensor({16, 3, 6, 6}, {}, 0, 1, 2);
    const Tensors out = captured ? step({z, image}) : run({z.to(kCuda), image.to(kCuda)});
    result[0].push_back(out[0].item());
  }
  for (const auto& [name, tensor] : model.state_dict()) {
    EXPECT_NE(size_of(tensor.dtype()), 2u) << name;
    result.push_back(tensor.to_vector<double>());
  }
  result.push_back({scaler.current_scale()});
  return result;
}

TEST_F(CudaCapturedStep, HalfTypesWithAScaler) {
  for (DType dtype : {DType::bfloat16, DType::float16}) {
    SCOPED_TRACE(to_string(dtype));
    const int steps = is_sanitized() ? 8 : 100;
    const auto eager = train_half(dtype, false, steps), captured = train_half(dtype, true, steps);
    EXPECT_EQ(captured, eager);
    if (steps == 100) {
      EXPECT_LT(eager[0].back(), 0.8 * eager[0].front());
    }
    EXPECT_EQ(eager.back()[0] < 1e9, dtype == DType::float16);  // which overflowed, and went on
  }
}

TEST_F(CudaCapturedStep, ReadsSeedsAnew) {
  const int steps = is_sanitized() ? 6 : 20, at = steps - 2;
  const Trained eager = train(false, steps, at), captured = train(true, steps, at),
                other = train(true, steps);
  EXPECT_EQ(captured.losses, eager.losses);
  EXPECT_EQ(captured.state, eager.state);
  EXPECT_NE(other.losses, eager.losses);
}

TEST_F(CudaCapturedStep, OptimizersSettingsAreReadAnew) {
  using Make = std::function<std::unique_ptr<optim::Optimizer>(const Variables&)>;
  const std::vector<std::pair<const char*, Make>> optimizers = {
      {"SGD",
       [](const Variables& p) {
         return std::make_unique<optim::SGD>(p, optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
       }},
      {"AdamW",
       [](const Variables& p) {
         return std::make_unique<optim::AdamW>(p, optim::AdamW::Options{.lr = 0.01});
       }},
      {"RMSprop", [](const Variables& p) {
         return std::make_unique<optim::RMSprop>(p, optim::RMSprop::Options{.lr = 0.01, .momentum = 0.5});
       }}};
  for (const auto& optimizer_of : optimizers) {
    SCOPED_TRACE(optimizer_of.first);
    const auto train = [&](bool captured, bool changed) {
      const Variable w = Variable::parameter(random_tensor({50}, {}, -1, 1).to(kCuda));
      const auto optimizer = optimizer_of.second({w});
      const auto run = [&](const Tensors& x) -> Tensors {
        optimizer->zero_grad();
        Tape tape;
        tape.backward(sum(square(w - x[0])));
        optimizer->step();
        return {};
      };
      CapturedStep step(kCuda, run);
      for (int i = 0; i < 12; ++i) {
        const Tensor x = Tensor::full({50}, i, {.device = kCuda});
        if (changed && i == 5) optimizer->groups()[0].momentum = 0.7;
        if (changed && i == 8) optimizer->groups()[0].weight_decay = 0.3;
        captured ? step({x}) : run({x});
      }
      return w.tensor().to_vector<float>();
    };
    EXPECT_EQ(train(true, true), train(false, true));
    EXPECT_NE(train(true, true), train(true, false));
  }
  const Variable w = Variable::parameter(Tensor::ones({3}, {.device = kCuda}));
  optim::SGD sgd({w}, {.lr = 0.1});
  CapturedStep step(kCuda, [&](const Tensors& x) -> Tensors {
    w.set_grad(x[0]);
    sgd.step();
    return {};
  });
  for (int i = 0; i < 3; ++i) step({Tensor::ones({3})});
  sgd.groups()[0].momentum = 0.9;
  EXPECT_THAT(error_of([&] { step({Tensor::ones({3})}); }),
              HasSubstr("SGD: momentum of group 0 has become 0.9 since its step was captured"));
}

TEST_F(CudaCapturedStep, DrawsAgainInCheckpoints) {
  const Tensor labels = Tensor::from<std::int64_t>({1, 0, 3, 2}, {4}).to(kCuda);
  const auto train = [&](bool captured) {
    manual_seed(3);
    const Variable w = Variable::parameter(Tensor::full({4, 50}, 1, {.device = kCuda}));
    const auto run = [&](const Tensors& x) -> Tensors {
      Tape tape;
      const Variable y =
          checkpoint([](const Variables& v) { return dropout(v[0] * v[0], 0.5, true); }, {w * x[0]});
      const Variable loss = nn::cross_entropy(y, x[1]);
      return {loss.tensor(), tape.gradient(loss, {w})[0].tensor()};
    };
    CapturedStep step(kCuda, run);
    std::vector<std::vector<double>> all;
    for (int i = 0; i < 6; ++i) {
      const Tensors x{Tensor::full({4, 50}, 1 + i, {.device = kCuda}), labels};
      for (const Tensor& result : captured ? step(x) : run(x)) all.push_back(result.to_vector<double>());
    }
    return all;
  };
  EXPECT_EQ(train(true), train(false));
}

TEST_F(CudaCapturedStep, RunsThenCapturesThenReplays) {
  int calls = 0;
  CapturedStep step(kCuda, [&](const Tensors& x) -> Tensors {
    ++calls;
    return {(Variable(x[0]) * 2.0).tensor()};
  });
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(step({Tensor::full({3}, i)})[0].to_vector<float>()[2], 2 * i);
    EXPECT_EQ(calls, std::min(2, i + 1));
  }
  // Another shape, dtype or layout is another graph.
  for (const TensorOptions& options :
       {TensorOptions{}, TensorOptions{DType::float64}, TensorOptions{DType::float32, {}, Layout::nhwc}}) {
    const Tensor x = Tensor::full({1, 2, 3, 4}, 3, options);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(step({x})[0].to_vector<double>(), std::vector<double>(24, 6));
  }
  EXPECT_EQ(step.graphs(), 4u);
  EXPECT_EQ(calls, 8);
  EXPECT_GT(step.memory_stats().in_use, 0u);
}

TEST_F(CudaCapturedStep, ReadsItsOwnInputsWhereTheyAre) {
  CapturedStep step(kCuda, [&](const Tensors& x) -> Tensors { return {(Variable(x[0]) * 2.0).tensor()}; });
  const Tensors like{Tensor::full({5}, 1, {.device = kCuda})};
  EXPECT_TRUE(step.own_inputs(like)[0].shares_storage(like[0]));
  for (int i = 0; i < 3; ++i) step(like);
  const Tensors own = step.own_inputs(like);
  EXPECT_FALSE(own[0].shares_storage(like[0]));
  EXPECT_EQ(own[0].to_vector<float>(), std::vector<float>(5, 1));
  own[0].fill_(7);
  EXPECT_EQ(step(own)[0].to_vector<float>(), std::vector<float>(5, 14));
  EXPECT_EQ(step(like)[0].to_vector<float>(), std::vector<float>(5, 2));
  EXPECT_EQ(step(own)[0].to_vector<float>(), std::vector<float>(5, 2));  // what was copied there
  EXPECT_EQ(step.graphs(), 1u);
}

TEST_F(CudaCapturedStep, RefusesItsOwnInputsInAnotherOrder) {
  CapturedStep step(kCuda, [&](const Tensors& x) -> Tensors { return {(x[0] - Variable(x[1])).tensor()}; });
  const Tensors like{Tensor::full({5}, 3, {.device = kCuda}), Tensor::full({5}, 1, {.device = kCuda})};
  for (int i = 0; i < 2; ++i) step(like);
  const Tensors own = step.own_inputs(like);
  EXPECT_THROW(step({own[1], own[0]}), Error);
  EXPECT_THROW(step({like[1], own[0]}), Error);
  EXPECT_EQ(step({own[0], like[1]})[0].to_vector<float>(), std::vector<float>(5, 2));
}

TEST_F(CudaCapturedStep, TakesNoMemoryAfterItIsCaptured) {
  CapturedStep step(kCuda,
                    [&](const Tensors& x) -> Tensors { return {exp(sum(x[0] * Variable(x[0]))).tensor()}; });
  const Tensor x = Tensor::full({1000, 1000}, 1e-3, {.device = kCuda});
  for (int i = 0; i < 2; ++i) step({x});
  const MemoryStats device = memory_stats(kCuda), own = step.memory_stats();
  for (int i = 0; i < 100; ++i) step({x});
  EXPECT_EQ(memory_stats(kCuda).device_allocations, device.device_allocations);
  EXPECT_EQ(memory_stats(kCuda).allocations, device.allocations);
  EXPECT_EQ(step.memory_stats().allocations, own.allocations);
}

TEST_F(CudaCapturedStep, ItsMemoryIsItsOwn) {
  Tensor kept;
  {
    CapturedStep step(kCuda, [](const Tensors& x) -> Tensors { return {(Variable(x[0]) + 1.0).tensor()}; });
    const Tensor x = Tensor::full({1 << 20}, 1, {.device = kCuda});
    Tensor y;
    for (int i = 0; i < 3; ++i) y = step({x})[0];
    // What others allocate and fill never lies in it.
    for (int i = 0; i < 20; ++i) Tensor::full({1 << 20}, kNan, {.device = kCuda});
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1 << 20, 2));
    kept = y;
    step({Tensor::full({1 << 20}, 5, {.device = kCuda})});
  }
  // A result outlives the step that made it, and the next step does not use its memory.
  CapturedStep next(kCuda, [](const Tensors& x) -> Tensors { return {(Variable(x[0]) * kNan).tensor()}; });
  for (int i = 0; i < 3; ++i) next({Tensor::full({1 << 20}, 1)});
  EXPECT_EQ(kept.to_vector<float>(), std::vector<float>(1 << 20, 6));
}

TEST_F(CudaCapturedStep, SaysWhatCannotBeCaptured) {
  Generator generator(3);
  const auto second = [&](const CapturedStep::Function& f) {
    CapturedStep step(kCuda, f);
    const Tensor x = Tensor::ones({4});
    step({x});
    const std::string error = error_of([&] { step({x}); });
    EXPECT_FALSE(is_capturing());
    EXPECT_EQ(step.graphs(), 0u);
    return error;
  };
  EXPECT_THAT(second([](const Tensors& x) -> Tensors {
                return {Tensor::full({}, x[0].slice(0, 1).item(), {.device = kCuda})};
              }),
              HasSubstr("captured step: it copies from cuda:0 to cpu"));
  EXPECT_THAT(second([](const Tensors& x) -> Tensors {
                return {x[0], Tensor::ones({2}).to(kCuda)};
              }),
              HasSubstr("captured step: it copies from cpu to cuda:0"));
  EXPECT_THAT(second([](const Tensors& x) -> Tensors {
                synchronize(kCuda);
                return x;
              }),
              HasSubstr("cudaDeviceSynchronize"));
  const std::uint64_t before = generator.offset();
  EXPECT_THAT(second([&](const Tensors&) -> Tensors {
                const Tensor x = rand({4}, {.device = kCuda}, generator);
                return {rand({4}, {}, generator)};
              }),
              HasSubstr("draws numbers on the CPU"));
  EXPECT_EQ(generator.offset(), before + 2);  // those of the first call
  // The stream can be used, and captured, as before.
  CapturedStep step(kCuda, [](const Tensors& x) -> Tensors { return {(Variable(x[0]) + 1.0).tensor()}; });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(step({Tensor::ones({4})})[0].to_vector<float>()[3], 2);
  EXPECT_EQ(step.graphs(), 1u);
}

TEST_F(CudaCapturedStep, NumbersOfTheHost) {
  double number = 0;
  int asked = 0;
  CapturedStep step(kCuda, [&](const Tensors& x) -> Tensors {
    const Tensor live = replayed_number(kCuda, [&] { return ++asked, number; });
    const Variable factor =
        live.defined() ? live.to(DType::float32) : Tensor::full({1}, number, {.device = kCuda});
    return {(x[0] * factor).tensor()};
  });
  for (int i = 0; i < 10; ++i) {
    number = i / 2 + 0.5;
    EXPECT_EQ(step({Tensor::ones({4})})[0].to_vector<float>()[3], static_cast<float>(number));
    EXPECT_EQ(asked, i);
  }
}

}  // namespace
}  // namespace tapedeck
