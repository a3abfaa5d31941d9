#include "op_support.h"

namespace tapedeck {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}
double softplus_of(double x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
double gelu_of(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}
double gelu_tanh_of(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double mish_of(double x) {
  return x * std::tanh(softplus_of(x));
}

Variable f_relu(const Variable& x) {
  return relu(x);
}

TEST(Activation, Relu) {
  check_unary(
      f_relu, [](double x) { return x > 0 ? x : 0; }, -2, 2);
  const Tensor whole = Tensor::from({std::int64_t{-3}, std::int64_t{4}}, {2});
  EXPECT_THAT(relu(whole).tensor().to_vector<std::int64_t>(), ElementsAre(0, 4));
}

TEST(Activation, LeakyRelu) {
  for (double slope : {0.01, 0.2, -0.5, 0.0}) {
    check_unary([=](const Variable& x) { return leaky_relu(x, slope); },
                [=](double x) { return x > 0 ? x : slope * x; }, -2, 2);
  }
  EXPECT_FLOAT_EQ(static_cast<float>(leaky_relu(Tensor::full({}, -1)).item()), -0.01f);
}

TEST(Activation, Elu) {
  for (double alpha : {1.0, 0.3, -2.0}) {
    check_unary([=](const Variable& x) { return elu(x, alpha); },
                [=](double x) { return x > 0 ? x : alpha * std::expm1(x); }, -4, 3);
  }
}

TEST(Activation, Gelu) {
  check_unary([](const Variable& x) { return gelu(x); }, gelu_of, -4, 4);
  check_unary([](const Variable& x) { return gelu(x, Gelu::tanh); }, gelu_tanh_of, -4, 4);
}

TEST(Activation, Silu) {
  check_unary([](const Variable& x) { return silu(x); }, [](double x) { return x * sigmoid_of(x); }, -6, 6);
}

TEST(Activation, Mish) {
  check_unary([](const Variable& x) { return mish(x); }, mish_of, -6, 6);
}

TEST(Activation, Softplus) {
  check_unary([](const Variable& x) { return softplus(x); }, softplus_of, -6, 6);
  for (double threshold : {20.0, 3.0}) {
    check_unary([=](const Variable& x) { return softplus(x, 2.5, threshold); },
                [=](double x) { return 2.5 * x > threshold ? x : softplus_of(2.5 * x) / 2.5; }, -3, 12);
  }
}

TEST(Activation, Tanh) {
  check_unary([](const Variable& x) { return tanh(x); }, [](double x) { return std::tanh(x); }, -4, 4);
}

TEST(Activation, Sigmoid) {
  check_unary([](const Variable& x) { return sigmoid(x); }, sigmoid_of, -6, 6);
}

TEST(Activation, Hardtanh) {
  check_unary([](const Variable& x) { return hardtanh(x); },
              [](double x) { return std::min(1.0, std::max(-1.0, x)); }, -2, 2);
  check_unary([](const Variable& x) { return hardtanh(x, -0.5, 6); },
              [](double x) { return std::min(6.0, std::max(-0.5, x)); }, -3, 8);
}

TEST(Activation, GradientsAtTheCorners) {
  const auto slopes = [](auto f, const std::vector<double>& at) {
    const Variable x = Variable::parameter(Tensor::from(at, {static_cast<std::int64_t>(at.size())}));
    Tape tape;
    tape.backward(sum(f(x)));
    return x.grad().tensor().to_vector<double>();
  };
  EXPECT_THAT(slopes(f_relu, {-1, -0.0, 0, 1}), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(slopes([](const Variable& x) { return leaky_relu(x, 0.25); }, {-1, 0, 1}),
              ElementsAre(0.25, 0.25, 1));
  EXPECT_THAT(slopes([](const Variable& x) { return elu(x, 0.5); }, {0, 1}), ElementsAre(0.5, 1));
  EXPECT_THAT(slopes([](const Variable& x) { return hardtanh(x); }, {-2, -1, 0, 1, 2}),
              ElementsAre(0, 0, 1, 0, 0));
  EXPECT_THAT(slopes([](const Variable& x) { return softplus(x, 1, 20); }, {20.001, 1000}),
              ElementsAre(1, 1));
}

TEST(Activation, Float32IsAccurateEverywhere) {
  EXPECT_LT(worst_ulp([](const Variable& x) { return tanh(x); }, [](double x) { return std::tanh(x); }), 2.5);
  EXPECT_LT(worst_ulp([](const Variable& x) { return sigmoid(x); }, sigmoid_of), 2.5);
  EXPECT_LT(worst_ulp([](const Variable& x) { return softplus(x, 1, 1e9); }, softplus_of), 2.5);
  EXPECT_LT(
      worst_ulp([](const Variable& x) { return elu(x); }, [](double x) { return x > 0 ? x : std::expm1(x); }),
      2.5);
  // Products with a factor that is denormal on the far left, where the result is below 1e-36.
  EXPECT_LT(worst_ulp([](const Variable& x) { return silu(x); }, [](double x) { return x * sigmoid_of(x); },
                      -1e30, 3e38, 1e-36),
            4);
  EXPECT_LT(worst_ulp([](const Variable& x) { return gelu(x); }, gelu_of, -1e30, 3e38, 1e-36), 6);
  EXPECT_LT(worst_ulp([](const Variable& x) { return mish(x); }, mish_of, -1e30, 3e38, 1e-36), 5);
}

TEST(Activation, SameBitsForEveryInstructionSetAndThreadCount) {
  const Tensor x = random_tensor({100'003}, {.dtype = DType::float32}, -20, 20);
  const int threads = num_threads();
  for (const auto& f : std::vector<std::function<Variable(const Variable&)>>{
           f_relu, [](const Variable& v) { return tanh(v); }, [](const Variable& v) { return sigmoid(v); },
           [](const Variable& v) { return gelu(v); }, [](const Variable& v) { return gelu(v, Gelu::tanh); },
           [](const Variable& v) { return silu(v); }, [](const Variable& v) { return mish(v); },
           [](const Variable& v) { return softplus(v); }, [](const Variable& v) { return elu(v); },
           [](const Variable& v) { return exp(v); }, [](const Variable& v) { return log(abs(v)); },
           [](const Variable& v) { return erf(v); }}) {
    const auto both = [&] {  // the value and the fused gradient
      const Variable leaf = Variable::parameter(x);
      Tape tape;
      const Variable y = f(leaf);
      tape.backward(y, {.gradient = x});
      auto bits = y.tensor().to_vector<float>();
      const auto more = leaf.grad().tensor().to_vector<float>();
      bits.insert(bits.end(), more.begin(), more.end());
      return bits;
    };
    limit_instruction_set(InstructionSet::baseline);
    set_num_threads(1);
    const auto expected = both();
    set_num_threads(3);
    EXPECT_EQ(both(), expected);
    limit_instruction_set(InstructionSet::avx2);
    EXPECT_EQ(both(), expected);
    limit_instruction_set(InstructionSet::avx512);
    EXPECT_EQ(both(), expected);
  }
  set_num_threads(threads);
}

TEST(Activation, SavesWhatItNeeds) {
  const Variable x = Variable::parameter(Tensor::ones({1000}));
  Tape tape;
  const Variable y = relu(x);
  EXPECT_EQ(tape.saved_bytes(), 4000u);
  EXPECT_FALSE(y.tensor().shares_storage(x.tensor()));
}

TEST(Activation, Errors) {
  const Tensor whole = Tensor::zeros({2}, {.dtype = DType::int64});
  EXPECT_THAT(error_of([&] { tanh(whole); }), HasSubstr("tanh: x is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] { gelu(whole); }), HasSubstr("gelu: x is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] { hardtanh(Tensor::zeros({1}), 2, 1); }),
              HasSubstr("hardtanh: min 2 is above max 1"));
  EXPECT_THAT(error_of([&] { softplus(Tensor::zeros({1}), 0); }),
              HasSubstr("softplus: beta is 0; legal are finite numbers but 0"));
  EXPECT_THAT(error_of([&] { relu(Variable()); }), HasSubstr("relu: x is undefined"));
}

}  // namespace
}  // namespace tapedeck
