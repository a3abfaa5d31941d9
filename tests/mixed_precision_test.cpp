// Autocast and gradient scaling: which types results have, and that training in half types follows float32.
#include "decoder.h"
#include "op_support.h"

#include <cmath>

namespace tapedeck {
namespace {

using namespace test;
using ::testing::HasSubstr;

/// Numbers in [-1, 1), of one seed for each shape.
Tensor numbers(const Shape& shape) {
  return random_tensor(shape, {}, -1, 1, 1);
}

TEST(Autocast, ChoosesTypes) {
  const Variable x = numbers({2, 3}), w = numbers({4, 3}), image = numbers({1, 2, 3, 3});
  const Variable kernel = numbers({2, 2, 3, 3});
  for (DType half : {DType::bfloat16, DType::float16}) {
    const Autocast scope(half);
    EXPECT_EQ(linear(x, w).dtype(), half);
    EXPECT_EQ(matmul(x, transpose(w, 0, 1)).dtype(), half);
    EXPECT_EQ(conv_transpose2d(image, kernel).dtype(), half);
    EXPECT_EQ(conv2d(image, kernel).dtype(), half);
    const Variable y = linear(x, w);
    EXPECT_EQ(relu(y).dtype(), half);
    EXPECT_EQ((y + 1.0).dtype(), half);
    EXPECT_EQ((y + numbers({2, 4})).dtype(), DType::float32);
    EXPECT_EQ((y * y).dtype(), half);
    EXPECT_EQ(softmax(y, 1).dtype(), DType::float32);
    EXPECT_EQ(mean(y).dtype(), DType::float32);
    EXPECT_EQ(nn::mse_loss(y, numbers({2, 4})).dtype(), DType::float32);
    EXPECT_EQ(nn::cross_entropy(y, Tensor::from<std::int64_t>({1, 3}, {2})).dtype(), DType::float32);
    EXPECT_EQ(layer_norm(y, {4}, numbers({4}), numbers({4})).dtype(), half);
    {
      const Autocast off(DType::float32);
      EXPECT_EQ(linear(x, w).dtype(), DType::float32);
    }
    EXPECT_EQ(linear(cast(x, DType::float64), cast(w, DType::float64)).dtype(), DType::float64);
  }
  EXPECT_EQ(linear(x, w).dtype(), DType::float32);
  EXPECT_THAT(error_of([] { Autocast scope(DType::float64); }), HasSubstr("dtype float64 is not legal"));
}

/// The loss and the gradients of one step.
std::pair<double, std::vector<Tensor>> gradients(DType dtype, bool in_checkpoint) {
  Generator g(5);
  SmallDecoder model(g);
  const Tensor z = random_tensor({16, 6}, {}, -1, 1, 1), image = random_tensor({16, 3, 6, 6}, {}, 0, 1, 2);
  Tape tape;
  Variable loss;
  {
    const Autocast scope(dtype);
    const Variable y =
        in_checkpoint ? checkpoint([&](const Variables& in) { return model(in[0]); }, {z}) : model(z);
    EXPECT_EQ(y.dtype(), dtype);
    loss = nn::mse_loss(y, image);
  }
  tape.backward(loss);
  std::vector<Tensor> result;
  for (const Variable& parameter : model.parameters()) {
    EXPECT_EQ(parameter.dtype(), DType::float32);
    EXPECT_EQ(parameter.grad().dtype(), DType::float32);
    result.push_back(parameter.grad().tensor());
  }
  EXPECT_EQ(model.norm.running_mean.dtype(), DType::float32);
  if (!in_checkpoint) result.push_back(model.norm.running_var.tensor());  // which moves twice there
  return {loss.item(), result};
}

TEST(Autocast, GradientsAreThoseOfFloat32UpToRounding) {
  const auto [loss, exact] = gradients(DType::float32, false);
  for (const auto& [dtype, bound] : {std::pair(DType::bfloat16, 0.04), std::pair(DType::float16, 0.005)}) {
    SCOPED_TRACE(to_string(dtype));
    for (const bool in_checkpoint : {false, true}) {
      const auto [half_loss, got] = gradients(dtype, in_checkpoint);
      EXPECT_NEAR(half_loss, loss, bound * loss);
      for (std::size_t i = 0; i < got.size(); ++i) {
        double error = 0, size = 0;
        const auto a = exact[i].to_vector<double>(), b = got[i].to_vector<double>();
        for (std::size_t k = 0; k < a.size(); ++k) {
          error += (a[k] - b[k]) * (a[k] - b[k]);
          size += a[k] * a[k];
        }
        // The bias before a normalisation has a gradient of 0 but for rounding.
        EXPECT_LT(std::sqrt(error), bound * (std::sqrt(size) + 1e-3)) << i;
      }
    }
  }
}

TEST(Autocast, SsimIsThatOfFloat32) {
  const Variable x = numbers({2, 3, 16, 16}), y = x * 0.9 + 0.01;
  const double outside = nn::ssim(x, y).item();
  const Autocast scope(DType::bfloat16);
  EXPECT_EQ(nn::ssim(x, y).item(), outside);
  const Variable half = cast(x, DType::bfloat16), wide = cast(half, DType::float32);
  EXPECT_EQ(nn::ssim(half, half * 0.5).dtype(), DType::float32);
  EXPECT_EQ(nn::ssim(half, y).item(), nn::ssim(wide, y).item());
}

TEST(Autocast, BatchNormTakesFloat32Parameters) {
  const Tensor x = numbers({4, 3, 5, 5}), gy = numbers({4, 3, 5, 5});
  const auto run = [&](DType dtype) {
    const Variable input = Variable::parameter(x.to(dtype));
    const Variable w = Variable::parameter(Tensor::from<float>({1, -2, 3}, {3}));
    const Variable b = Variable::parameter(Tensor::from<float>({0, 1, 2}, {3}));
    const Tensor mean = Tensor::zeros({3}), var = Tensor::ones({3});
    Tape tape;
    const Variable y = batch_norm(input, w, b, mean, var, {.training = true});
    tape.backward(y, {.gradient = gy.to(dtype)});
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_EQ(w.grad().dtype(), DType::float32);
    return std::vector<Tensor>{y.tensor(), input.grad().tensor(), w.grad().tensor(), b.grad().tensor(), mean,
                               var};
  };
  const auto exact = run(DType::float32), half = run(DType::bfloat16);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    SCOPED_TRACE(i);
    const auto a = exact[i].to_vector<double>(), b = half[i].to_vector<double>();
    for (std::size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(b[k], a[k], 0.02 * (3 + std::abs(a[k])));
  }
}

TEST(GradScaler, DividesAndLeavesOutOverflows) {
  const Variable w = Variable::parameter(Tensor::from<float>({1, 2}, {2}));
  optim::SGD sgd({w}, {.lr = 0.5});
  optim::GradScaler scaler(Device{}, {.init_scale = 1024, .growth_interval = 2});
  const auto step = [&](const Tensor& factor) {
    sgd.zero_grad();
    Tape tape;
    tape.backward(scaler.scale(sum(w * factor)));
    scaler.unscale({w});
    scaler.step(sgd);
    scaler.update();
    return w.tensor().to_vector<float>();
  };
  const Tensor fine = Tensor::from<float>({1, 4}, {2});
  EXPECT_EQ(step(fine), (std::vector<float>{0.5, 0}));
  EXPECT_EQ(w.grad().tensor().to_vector<float>(), (std::vector<float>{1, 4}));
  EXPECT_EQ(scaler.current_scale(), 1024);
  EXPECT_EQ(step(fine), (std::vector<float>{0, -2}));
  EXPECT_EQ(scaler.current_scale(), 2048);
  for (const double bad : {INFINITY, -INFINITY, NAN}) {
    const double before = scaler.current_scale();
    EXPECT_EQ(step(Tensor::from<float>({1, static_cast<float>(bad)}, {2})), (std::vector<float>{0, -2}));
    EXPECT_EQ(scaler.current_scale(), before / 2);
  }
  EXPECT_EQ(step(fine), (std::vector<float>{-0.5, -4}));
  EXPECT_EQ(scaler.current_scale(), 256);
  EXPECT_EQ(step(fine), (std::vector<float>{-1, -6}));
  EXPECT_EQ(scaler.current_scale(), 512);
}

TEST(GradScaler, ALeftOutStepDoesNotCount) {
  const Variable w = Variable::parameter(Tensor::ones({3}));
  optim::Adam adam({w}, {.lr = 0.1});
  optim::GradScaler scaler(Device{}, {.init_scale = 4});
  for (const float g : {1.0f, INFINITY, 1.0f}) {
    w.set_grad(Tensor::full({3}, 4 * g));
    scaler.unscale({w});
    scaler.step(adam);
    scaler.update();
  }
  const nn::StateDict state = adam.state_dict();
  const auto step = std::find_if(state.begin(), state.end(),
                                 [](const auto& entry) { return entry.first == "state.0.step"; });
  ASSERT_NE(step, state.end());
  EXPECT_EQ(step->second.item(), 2);
}

TEST(GradScaler, SharedGradientsAreDividedOnce) {
  const Variable a = Variable::parameter(Tensor::ones({2})), b = Variable::parameter(Tensor::ones({2}));
  const Variable shared = Tensor::full({2}, 8);
  a.set_grad(shared);
  b.set_grad(shared);
  optim::GradScaler scaler(Device{}, {.init_scale = 4});
  scaler.unscale({a, b});
  EXPECT_EQ(a.grad().tensor().to_vector<float>(), (std::vector<float>{2, 2}));
  EXPECT_EQ(b.grad().tensor().to_vector<float>(), (std::vector<float>{2, 2}));
}

TEST(GradScaler, StateAndErrors) {
  optim::GradScaler scaler(Device{}, {.init_scale = 8, .growth_interval = 3}), other(Device{});
  scaler.update();
  other.load_state_dict(scaler.state_dict());
  EXPECT_EQ(other.current_scale(), 8);
  EXPECT_EQ(other.state_dict()[1].second.item(), 1);
  EXPECT_THAT(error_of([&] {
                other.load_state_dict({{"scale", Tensor::ones({})}});
              }),
              HasSubstr("GradScaler: the state has no number growth_tracker"));
  EXPECT_THAT(error_of([] { optim::GradScaler(Device{}, {.init_scale = 0}); }), HasSubstr("init_scale 0"));
  EXPECT_THAT(error_of([] { optim::GradScaler(Device{}, {.growth_interval = 0}); }),
              HasSubstr("growth_interval 0"));
}

}  // namespace
}  // namespace tapedeck
