// Ops that rectify their own result equal the activation behind them.
#include "op_support.h"
#include "sanitizers.h"

#include <tapedeck/nn/conv.h>
#include <tapedeck/nn/linear.h>

namespace tapedeck {
namespace {

using namespace test;

using V = const Variables&;

/// An op with a slope: x, weight and maybe a bias.
struct Rectified {
  const char* name;
  std::function<Variable(V, double slope)> f;
  std::vector<Shape> shapes;
  Layout layout = Layout::nchw;
};

Variable bias_of(V v) {
  return v.size() > 2 ? v[2] : Variable();
}

std::vector<Rectified> cases() {
  const auto up = [](V v, double slope) {
    return conv_transpose2d(v[0], v[1], bias_of(v), {.stride = {2, 1}, .padding = 1}, slope);
  };
  const auto down = [](V v, double slope) {
    return conv2d(v[0], v[1], bias_of(v), {.stride = {2, 1}, .padding = 1}, slope);
  };
  const auto product = [](V v, double slope) { return linear(v[0], v[1], bias_of(v), slope); };
  return {{"conv_transpose2d", up, {{3, 4, 5, 7}, {4, 6, 3, 2}, {6}}},
          {"conv_transpose2d nhwc", up, {{3, 4, 5, 7}, {4, 6, 3, 2}, {6}}, Layout::nhwc},
          {"conv_transpose2d of one image", up, {{4, 5, 7}, {4, 6, 3, 2}, {6}}},
          {"conv_transpose2d without bias", up, {{3, 4, 5, 7}, {4, 6, 3, 2}}},
          {"conv2d", down, {{3, 4, 5, 7}, {6, 4, 3, 2}, {6}}},
          {"conv2d nhwc", down, {{3, 4, 5, 7}, {6, 4, 3, 2}, {6}}, Layout::nhwc},
          {"conv2d of one image", down, {{4, 5, 7}, {6, 4, 3, 2}, {6}}},
          {"linear", product, {{5, 7}, {33, 7}, {33}}},
          {"linear of 3 dimensions", product, {{2, 5, 7}, {6, 7}, {6}}},
          {"linear without bias", product, {{5, 7}, {33, 7}}},
          {"no images", up, {{0, 4, 5, 7}, {4, 6, 3, 2}, {6}}}};
}

Variables leaves_of(const Rectified& c, DType dtype, Device device = {}) {
  Variables leaves;
  for (std::size_t i = 0; i < c.shapes.size(); ++i) {
    const Layout layout = i == 0 && c.shapes[i].rank() == 4 ? c.layout : Layout::nchw;
    leaves.push_back(
        Variable::parameter(random_tensor(c.shapes[i], {dtype, {}, layout}, -1, 1, 10 + i).to(device)));
  }
  return leaves;
}

TEST(Rectify, EqualsTheActivationBehindTheOp) {
  for (const Rectified& c : cases()) {
    for (DType dtype : {DType::float64, DType::float32, DType::bfloat16}) {
      for (double slope : {0.0, 0.2}) {
        SCOPED_TRACE(concat(c.name, " ", dtype, " slope ", slope));
        const auto run = [&](bool fused) {
          const Variables leaves = leaves_of(c, dtype);
          Tape tape;
          Variable y = c.f(leaves, fused ? slope : 1);
          if (!fused) y = slope == 0 ? relu(y) : leaky_relu(y, slope);
          tape.backward(y, {.gradient = random_tensor(y.shape(), {dtype}, -1, 1, 3)});
          Tensors results{y.tensor()};
          for (const Variable& leaf : leaves) results.push_back(leaf.grad().tensor());
          return results;
        };
        const Tensors fused = run(true), apart = run(false);
        // A half result is rounded before the activation, or after it.
        const double bound = dtype == DType::float64 ? 1e-13 : dtype == DType::float32 ? 1e-5 : 2e-2;
        for (std::size_t i = 0; i < fused.size(); ++i) {
          SCOPED_TRACE(i);
          EXPECT_EQ(fused[i].layout(), apart[i].layout());
          const auto a = fused[i].to_vector<double>(), b = apart[i].to_vector<double>();
          ASSERT_EQ(a.size(), b.size());
          for (std::size_t k = 0; k < a.size(); ++k) ASSERT_NEAR(a[k], b[k], bound * (1 + std::abs(b[k])));
        }
      }
    }
  }
}

TEST(Rectify, FirstAndSecondDerivatives) {
  for (const Rectified& c : cases()) {
    if (c.shapes[0][0] == 0) continue;
    SCOPED_TRACE(c.name);
    const auto f = [&](V v) { return c.f(v, 0.3); };
    const Variables leaves = leaves_of(c, DType::float64);
    const GradcheckOptions some{.elements = test::kSanitized ? 3 : 0};
    gradcheck(f, leaves, some);
    gradgradcheck(f, leaves, some);
  }
}

TEST(Rectify, FrozenInputsCostNothing) {
  for (const Rectified& c : cases()) {
    for (std::size_t wanted = 0; wanted < c.shapes.size(); ++wanted) {
      const Variables leaves = leaves_of(c, DType::float32);
      Variables some(leaves.size());
      for (std::size_t i = 0; i < leaves.size(); ++i) some[i] = i == wanted ? leaves[i] : leaves[i].detach();
      const auto gradient = [&](V v) {
        Tape tape;
        const Variable y = c.f(v, 0);
        return tape.gradient(y, {leaves[wanted]}, {.gradient = Tensor::ones(y.shape())})[0]
            .tensor()
            .to_vector<double>();
      };
      EXPECT_EQ(gradient(some), gradient(leaves)) << c.name << " input " << wanted;
    }
  }
}

TEST(Rectify, RefusesNegativeSlopes) {
  const Variable x = Tensor::ones({2, 3});
  EXPECT_EQ(error_of([&] {
              linear(x, Tensor::ones({4, 3}), {}, -0.5);
            }),
            "linear: negative_slope -0.5 is not legal; legal is 0 or more");
}

TEST(Rectify, ModulesFuseTheActivationBehindThem) {
  const Tensor x = random_tensor({2, 3, 4, 5}, {}, -1, 1, 1);
  nn::ConvTranspose2d up({.in_channels = 3, .out_channels = 4, .kernel_size = 3});
  nn::Conv2d down({.in_channels = 4, .out_channels = 5, .kernel_size = 3});
  nn::Linear linear({.in_features = 5, .out_features = 6});
  nn::Sequential model(up, nn::ReLU(), down, nn::LeakyReLU({.negative_slope = 0.1}), linear, nn::ReLU(),
                       nn::Identity());
  Tape tape;
  const Variable y = model(x);
  EXPECT_EQ(tape.size(), 5u);  // linear's rows are reshaped before and after it
  const Variable apart = relu(linear(leaky_relu(down(relu(up(x))), 0.1)));
  EXPECT_EQ(y.tensor().to_vector<float>(), apart.tensor().to_vector<float>());
  nn::Sequential steep(down, nn::LeakyReLU({.negative_slope = -1}));  // an absolute value
  EXPECT_GE(min(steep(up(x))).item(), 0);
}

}  // namespace
}  // namespace tapedeck
