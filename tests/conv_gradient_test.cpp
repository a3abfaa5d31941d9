// Gradients of first and second order of the whole family, and the adjoint identities between its members.
#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>

#include "conv_gradient_cases.h"
#include "conv_paths.h"

namespace tapedeck::test {
namespace {

Variable input(const Shape& shape, Layout layout = Layout::nchw) {
  return Variable::parameter(randn(shape, {.dtype = DType::float64}).to(layout));
}

TEST(ConvGradients, Transposed) {
  manual_seed(11);
  for (const GradientCase& c : kGradientCases) {
    const auto f = [&](const Variables& v) { return conv_transpose2d(v[0], v[1], v[2], c.options); };
    const Variables in{input(c.x, c.layout), input(c.w), input({c.w[1] * c.options.groups})};
    SCOPED_TRACE(to_string(c.x));
    for_each_path_of_many_cases([&] { gradcheck(f, in); });
    gradgradcheck(f, in);
  }
}

TEST(ConvGradients, WeightGrad) {
  manual_seed(12);
  for (const GradientCase& c : kGradientCases) {
    const Size2 kernel(c.w[2], c.w[3]);
    const auto f = [&](const Variables& v) {
      return conv_transpose2d_weight_grad(v[0], v[1], kernel, c.options);
    };
    const Variable x = input(c.x, c.layout);
    const Shape y = conv_transpose2d(x, input(c.w), {}, c.options).shape();
    const Variables in{x, input(y, c.layout)};
    SCOPED_TRACE(to_string(c.x));
    for_each_path_of_many_cases([&] { gradcheck(f, in); });
    gradgradcheck(f, in);
  }
}

TEST(ConvGradients, Plain) {
  manual_seed(13);
  for (const GradientCase& c : kGradientCases) {
    const auto& o = c.options;
    const auto f = [&](const Variables& v) {
      return conv2d(v[0], v[1], v[2], {o.stride, o.padding, o.dilation, o.groups});
    };
    const Shape y = conv_transpose2d(input(c.x), input(c.w), {}, o).shape();
    const Variables in{input(y, c.layout), input(c.w), input({c.w[0]})};
    SCOPED_TRACE(to_string(c.x));
    for_each_path_of_many_cases([&] { gradcheck(f, in); });
    gradgradcheck(f, in);
  }
}

double dot(const Variable& a, const Variable& b) {
  return sum(a * b).item();
}

TEST(ConvGradients, AdjointIdentityHoldsAtRealSizes) {
  manual_seed(14);
  const GradientCase cases[] = {
      {{3, 40, 9, 11}, {40, 24, 4, 3}, {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {0, 2}}},
      {{4, 64, 7, 7}, {64, 3, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}, Layout::nhwc},
      {{3, 20, 6, 5}, {20, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 20}},
      {{5, 30, 1, 1}, {30, 17, 4, 4}, {}},
      {{2, 24, 8, 9}, {24, 6, 3, 5}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 4}},
  };
  for_each_path([&] {
    for (const GradientCase& c : cases) {
      const Variable x = input(c.x, c.layout), w = input(c.w);
      Tape tape;
      const Variable y = conv_transpose2d(x, w, {}, c.options);
      const Variable gy = input(y.shape(), c.layout);
      const Variables g = tape.gradient(y, {x, w}, {.gradient = gy});
      const double expected = dot(y, gy);
      EXPECT_NEAR(dot(x, g[0]), expected, 1e-9 * std::abs(expected) + 1e-8) << to_string(c.x);
      EXPECT_NEAR(dot(w, g[1]), expected, 1e-9 * std::abs(expected) + 1e-8) << to_string(c.x);
    }
  });
}

TEST(ConvGradients, FrozenInputsCostNothing) {
  const Variable x = input({2, 3, 4, 4});
  const Tensor w = randn({3, 2, 3, 3}, {.dtype = DType::float64});
  Tape tape;
  const Variable y = conv_transpose2d(x, w);
  EXPECT_EQ(tape.saved_bytes(), w.bytes());  // x is saved for w's gradient only
}

TEST(ConvGradients, GradientsHaveTheLayoutOfWhatTheyAreTheGradientOf) {
  for_each_path([] {
    const Variable x = input({2, 3, 4, 4}, Layout::nhwc), w = input({3, 2, 3, 3}, Layout::nhwc);
    Tape tape;
    const Variable y = conv_transpose2d(x, w, {}, {.stride = 2});
    EXPECT_EQ(y.tensor().layout(), Layout::nhwc);
    const Variable gy = randn(y.shape(), {.dtype = DType::float64});  // nchw
    const Variables g = tape.gradient(y, {x, w}, {.gradient = gy});
    EXPECT_EQ(g[0].tensor().layout(), Layout::nhwc);
    EXPECT_EQ(g[1].tensor().layout(), Layout::nhwc);
    Tape again;
    const Variable row_major =
        conv_transpose2d(x.tensor().to(Layout::nchw), w.tensor().to(Layout::nchw), {}, {.stride = 2});
    EXPECT_LT(max(square(y - row_major)).item(), 1e-20);
  });
}

}  // namespace
}  // namespace tapedeck::test
