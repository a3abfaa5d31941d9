// Losses, optimizers and whole training steps on a GPU.
#include "../bench/training.h"
#include "cuda_op_cases.h"
#include "decoder.h"

#include <tapedeck/core/precision.h>

namespace tapedeck {
namespace {

using namespace test;

class CudaTraining : public CudaTest {};

TEST_F(CudaTraining, Losses) {
  using V = const Variables&;
  using nn::Reduction;
  for (Reduction r : {Reduction::mean, Reduction::sum, Reduction::none}) {
    check_cases({
        {"mse", [&](V v) { return nn::mse_loss(v[0], v[1], r); }, {{4, 3, 5, 7}, {4, 3, 5, 7}}},
        {"l1", [&](V v) { return nn::l1_loss(v[0], v[1], r); }, {{4, 3, 5, 7}, {4, 3, 5, 7}}},
        {"huber",
         [&](V v) { return nn::huber_loss(v[0], v[1], {.delta = 0.7, .reduction = r}); },
         {{70001}, {70001}}},
        {"bce",
         [&](V v) { return nn::binary_cross_entropy_with_logits(v[0], v[1], r); },
         {{65, 7}, {65, 7}},
         0,
         1},
        {"weighted bce",
         [&](V v) {
           return nn::binary_cross_entropy_with_logits(
               v[0], v[1], {.pos_weight = constant(v[0], 2, {7}), .reduction = r});
         },
         {{65, 7}, {65, 7}},
         0,
         1},
        {"cross_entropy",
         [&](V v) {
           return nn::cross_entropy(v[0], integers(v[0], {1, 4, 0, 4}, {4}), {.reduction = r});
         },
         {{4, 5}}},
        {"ignored targets",
         [&](V v) {
           return nn::cross_entropy(v[0], integers(v[0], {1, -100, 0, -100}, {4}),
                                    {.label_smoothing = 0.1, .reduction = r});
         },
         {{4, 5}}},
        {"kl", [&](V v) { return nn::kl_divergence_gaussian(v[0], v[1], r); }, {{65, 7}, {65, 7}}},
    });
  }
  check_cases({
      {"mse of nothing", [](V v) { return nn::mse_loss(v[0], v[1], Reduction::sum); }, {{0, 3}, {0, 3}}},
      {"ssim_loss",
       [](V v) { return nn::ssim_loss(v[0], v[1]); },
       {{2, 3, 13, 19}, {2, 3, 13, 19}},
       0,
       1,
       20},
      {"ssim", [](V v) { return nn::ssim(v[0], v[1]); }, {{2, 3, 19, 13}, {2, 3, 19, 13}}, 0, 1, 20},
  });
}

TEST_F(CudaTraining, SignalToNoise) {
  const Tensor x = random_tensor({4, 3, 5, 7}, {}, 0, 1, 1), y = random_tensor({4, 3, 5, 7}, {}, 0, 1, 2);
  expect_close(nn::psnr(x.to(kCuda), y.to(kCuda)).to(Device{}), nn::psnr(x, y), 1e-6);
}

TEST_F(CudaTraining, ClipsEachElement) {
  for (DType dtype : kFloatingTypes) {
    const Variable p = Variable::parameter(Tensor::zeros({100003}, {dtype, kCuda})),
                   none = Variable::parameter(p.tensor());
    const Tensor gradient = random_tensor({100003}, {dtype}, -1, 1);
    p.set_grad(gradient.to(kCuda));
    optim::clip_grad_value({p, none}, 0.25);
    EXPECT_EQ(p.grad().tensor().to_vector<double>(),
              clamp(gradient, -0.25, 0.25).tensor().to_vector<double>());
    EXPECT_FALSE(none.grad().defined());
  }
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const Variables&)>;

/// The parameters after five steps of an optimizer with clipped gradients, and their moving averages.
Tensors optimized(const MakeOptimizer& make, DType dtype, Device device, bool exact) {
  const DType compute = exact ? DType::float64 : dtype;
  Variables parameters;
  for (const Shape& shape : {Shape{3, 5}, Shape{100003}, Shape{}, Shape{0, 2}, Shape{2, 3, 5, 7}}) {
    parameters.push_back(Variable::parameter(
        random_tensor(shape, {dtype}, -1, 1, 3 + parameters.size()).to(compute).to(device)));
  }
  const auto optimizer = make(parameters);
  optim::ExponentialMovingAverage average(parameters, {.decay = 0.5});
  for (std::uint64_t step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (i == step) continue;  // no gradient
      parameters[i].set_grad(
          random_tensor(parameters[i].shape(), {dtype}, -1, 1, 50 * step + i).to(compute).to(device));
    }
    optim::clip_grad_norm(parameters, 100);
    optimizer->step();
    optimizer->zero_grad();
    average.update();
  }
  Tensors results;
  for (const Variable& p : parameters) results.push_back(p.tensor().to(Device{}));
  const auto scope = average.swap_in();
  for (const Variable& p : parameters) results.push_back(p.tensor().to(Device{}));
  return results;
}

TEST_F(CudaTraining, Optimizers) {
  const std::vector<std::pair<const char*, MakeOptimizer>> optimizers = {
      {"SGD",
       [](const Variables& p) { return std::make_unique<optim::SGD>(p, optim::SGD::Options{.lr = 0.1}); }},
      {"SGD momentum",
       [](const Variables& p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGD::Options{.lr = 0.1, .momentum = 0.9, .dampening = 0.1, .weight_decay = 0.01});
       }},
      {"SGD Nesterov",
       [](const Variables& p) {
         return std::make_unique<optim::SGD>(
             p, optim::SGD::Options{.lr = 0.1, .momentum = 0.9, .nesterov = true});
       }},
      {"Adam",
       [](const Variables& p) {
         return std::make_unique<optim::Adam>(p, optim::Adam::Options{.lr = 0.01, .weight_decay = 0.1});
       }},
      {"Adam amsgrad",
       [](const Variables& p) {
         return std::make_unique<optim::Adam>(p, optim::Adam::Options{.lr = 0.01, .amsgrad = true});
       }},
      {"AdamW",
       [](const Variables& p) {
         return std::make_unique<optim::AdamW>(p, optim::AdamW::Options{.lr = 0.01});
       }},
      {"RMSprop",
       [](const Variables& p) {
         return std::make_unique<optim::RMSprop>(p, optim::RMSprop::Options{.lr = 0.01});
       }},
      {"RMSprop centered",
       [](const Variables& p) {
         return std::make_unique<optim::RMSprop>(
             p, optim::RMSprop::Options{
                    .lr = 0.01, .eps = 1e-3, .weight_decay = 0.1, .momentum = 0.5, .centered = true});
       }},
  };
  Share share(3);
  for (const auto& [name, make] : optimizers) {
    for (DType dtype : kFloatingTypes) {
      SCOPED_TRACE(concat(name, " ", dtype));
      if (!share.takes_next()) continue;
      const Tensors exact = optimized(make, dtype, Device{}, true);
      const Tensors got = optimized(make, dtype, kCuda, false),
                    again = is_sanitized() ? got : optimized(make, dtype, kCuda, false);
      for (std::size_t i = 0; i < exact.size(); ++i) {
        SCOPED_TRACE(i);
        expect_close(got[i], exact[i], bound(dtype));
        EXPECT_EQ(bytes_of(got[i]), bytes_of(again[i]));
      }
    }
  }
}

/// Of so many steps, and after them of the model as it is used then.
std::vector<double> losses(DType dtype, Device device, int steps = 20) {
  Generator generator(5);
  SmallDecoder model(generator);
  model.to(dtype);
  model.to(device);
  optim::Adam optimizer(model.parameters(), {.lr = 1e-2});
  const Tensor z = random_tensor({16, 6}, {DType::float32}, -1, 1, 1).to(dtype).to(device);
  const Tensor image = random_tensor({16, 3, 6, 6}, {DType::float32}, 0, 1, 2).to(dtype).to(device);
  std::vector<double> trace;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    Tape tape;
    const Variable loss = nn::mse_loss(model(z), image);
    tape.backward(loss);
    optimizer.step();
    trace.push_back(loss.item());
  }
  model.eval();
  trace.push_back(nn::mse_loss(model(z), image).item());
  return trace;
}

TEST_F(CudaTraining, ADecoderTrainsAsOnTheCpu) {
  const int steps = is_sanitized() ? 3 : 20;
  const auto exact = losses(DType::float64, Device{}, steps);
  if (steps == 20) {
    EXPECT_LT(exact[19], 0.5 * exact[0]);
  }
  for (DType dtype : {DType::float64, DType::float32}) {
    const auto got = losses(dtype, kCuda, steps);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      EXPECT_NEAR(got[i], exact[i], (dtype == DType::float64 ? 1e-10 : 1e-4) * exact[i]) << i;
    }
    if (!is_sanitized()) {
      EXPECT_EQ(losses(dtype, kCuda), got);
    }
  }
}

// scripts/gpu_test.sh runs these in two processes at once, and compares what they print.
TEST_F(CudaTraining, AHundredRerunsHaveTheSameBits) {
  const auto first = losses(DType::float32, kCuda);
  for (int rerun = 1; rerun < 100; ++rerun) ASSERT_EQ(losses(DType::float32, kCuda), first) << rerun;
  std::printf("bits:");
  for (const double loss : first) std::printf(" %a", loss);
  std::printf("\n");
}

/// FNV-1a.
std::uint64_t hash_of(const Tensors& tensors) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const Tensor& tensor : tensors) {
    for (std::uint8_t byte : bytes_of(tensor.to(Device{}))) hash = (hash ^ byte) * 0x100000001b3u;
  }
  return hash;
}

// The tensor cores' kernels, and sums over many pixels, which are split. The loss is scaled for float16.
TEST_F(CudaTraining, AHundredRerunsOfARealGeneratorHaveTheSameBits) {
  struct Kind {
    Precision precision;
    DType products;
    Layout layout;
  };
  for (const auto& [precision, products, layout] : {Kind{Precision::highest, DType::float32, Layout::nchw},
                                                    {Precision::high, DType::float32, Layout::nchw},
                                                    {Precision::high, DType::float32, Layout::nhwc},
                                                    {Precision::highest, DType::bfloat16, Layout::nchw},
                                                    {Precision::highest, DType::float16, Layout::nchw}}) {
    SCOPED_TRACE(concat(products, precision == Precision::high ? " high " : " highest ", layout));
    set_float32_precision(precision);
    manual_seed(6);
    bench::Training training("dcgan", 128, kCuda);
    const Tensor codes = training.codes.to(layout), images = training.images.to(layout);
    const auto run = [&, products = products] {
      const Autocast scope(products);
      Tape tape;
      const Variable loss = nn::mse_loss(training.model(codes), images) * 0x1p14;
      Tensors results{loss.tensor()};
      for (const Variable& g : tape.gradient(loss, training.model.parameters()))
        results.push_back(g.tensor());
      return results;
    };
    const Tensors first = run();
    for (int rerun = 1; rerun < 100; ++rerun) {
      const Tensors again = run();
      Variable different = Tensor::zeros({}, {DType::int64, kCuda});
      for (std::size_t i = 0; i < first.size(); ++i) different = different + sum(ne(again[i], first[i]));
      ASSERT_EQ(different.item(), 0) << rerun;
    }
    std::printf("bits: %016llx\n", static_cast<unsigned long long>(hash_of(first)));
  }
  set_float32_precision(Precision::highest);
}

}  // namespace
}  // namespace tapedeck
