// What the tests of elementwise ops and reductions share.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/tapedeck.h>

#include "errors.h"

namespace tapedeck::test {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInf = std::numeric_limits<double>::infinity();

inline constexpr DType kFloatingTypes[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16};

/// Numbers uniform in [low, high); whole ones for integer types.
inline Tensor random_tensor(const Shape& shape, const TensorOptions& options, double low, double high,
                            std::uint64_t seed = 11) {
  Generator generator(seed);
  const Tensor x = Tensor::empty(shape, {DType::float64, {}, options.layout});
  uniform_(x, low, high, generator);
  return x.to(options.dtype);
}

inline Variable random_leaf(const Shape& shape, double low, double high, std::uint64_t seed = 11,
                            Layout layout = Layout::nchw) {
  return Variable::parameter(random_tensor(shape, {DType::float64, {}, layout}, low, high, seed));
}

/// The relative error that rounding to `dtype` may cause, with some room for the computation.
inline double tolerance(DType dtype) {
  switch (dtype) {
    case DType::float64:
      return 4e-14;
    case DType::float32:
      return 6e-7;
    case DType::bfloat16:
      return 0x1p-8;
    case DType::float16:
      return 0x1p-11;
    default:
      return 0;
  }
}

/// Every element within a relative `tolerance`, and those smaller than `size` as if they were of that size;
/// NaN and infinities where expected.
inline void expect_values(const Tensor& y, const std::vector<double>& expected, double tolerance,
                          double size = 0.01) {
  const auto values = y.to_vector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(expected[i])) {
      ASSERT_TRUE(values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i])))
          << "element " << i << " is " << values[i] << ", not " << expected[i];
    } else {
      ASSERT_NEAR(values[i], expected[i], tolerance * std::max(size, std::abs(expected[i])))
          << "element " << i;
    }
  }
}

/// A differentiable function of one tensor against its definition in float64, for x in [low, high):
/// values and gradients for every dtype and layout, gradient checks of both orders, NaN, and no elements.
inline void check_unary(const std::function<Variable(const Variable&)>& f,
                        const std::function<double(double)>& definition, double low, double high) {
  for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1031}, Shape{2, 3, 5, 7}}) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      if (layout == Layout::nhwc && shape.rank() != 4) continue;
      for (DType dtype : kFloatingTypes) {
        SCOPED_TRACE(concat(dtype, " ", shape, " ", layout));
        const Variable x = Variable::parameter(random_tensor(shape, {dtype, {}, layout}, low, high));
        std::vector<double> expected = x.tensor().to_vector<double>();
        for (double& v : expected) v = definition(v);
        // A cotangent of the other layout: the gradient still has x's.
        const Tensor gy = random_tensor(shape, {dtype}, -1, 1, 5);
        Tape tape;
        const Variable y = f(x);
        ASSERT_EQ(y.dtype(), dtype);
        ASSERT_EQ(y.tensor().layout(), layout);
        expect_values(y.tensor(), expected, tolerance(dtype));
        tape.backward(y, {.gradient = gy});
        EXPECT_EQ(x.grad().tensor().layout(), layout);
        // Of the values as they are, in float64.
        const Variable exact = Variable::parameter(x.tensor().to(DType::float64));
        Tape exact_tape;
        exact_tape.backward(f(exact), {.gradient = gy.to(DType::float64)});
        // Where f' is computed from a rounded result, it has that error too.
        expect_values(x.grad().tensor(), exact.grad().tensor().to_vector<double>(), 4 * tolerance(dtype), 1);
      }
    }
  }
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const Variable x = random_leaf({2, 3, 2, 3}, low, high, 13, layout);
    const auto g = [&](const Variables& v) { return f(v[0]); };
    gradcheck(g, {x});
    gradgradcheck(g, {x});
  }
  EXPECT_TRUE(std::isnan(f(Tensor::full({}, kNan)).item()));
  EXPECT_TRUE(
      std::isnan(f(Tensor::full({40}, kNan, {.dtype = DType::float64})).tensor().to_vector<double>()[39]));
}

/// For about a million float32 values spread over all there are, from `low` to `high`: the largest error
/// of f against float64, in units in the last place; errors below `absolute` do not count. NaN and
/// infinities must be exact.
inline double worst_ulp(const std::function<Variable(const Variable&)>& f,
                        const std::function<double(double)>& definition, double low = -kInf,
                        double high = kInf, double absolute = 0) {
  std::vector<float> values = {0.f,
                               -0.f,
                               1e-45f,
                               -1e-45f,
                               1.17549435e-38f,
                               3.40282347e38f,
                               static_cast<float>(kInf),
                               static_cast<float>(-kInf)};
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  std::erase_if(values, [&](float v) { return std::isnan(v) || v < low || v > high; });
  const auto results =
      f(Tensor::from(values, {static_cast<std::int64_t>(values.size())})).tensor().to_vector<float>();
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double exact = definition(static_cast<double>(values[i]));
    const double result = static_cast<double>(results[i]);
    const auto rounded = static_cast<float>(exact);
    if (std::isnan(exact) || std::isinf(rounded)) {
      // At the edge of overflow either side may round the other way.
      const bool edge = std::isinf(rounded) && std::abs(result) > 3.4028e38;
      EXPECT_TRUE(edge || (std::isnan(exact) && std::isnan(result))) << values[i] << ": " << result;
      continue;
    }
    const int exponent = std::max(-125, std::ilogb(rounded) + 1);
    const double ulp = std::ldexp(1.0, exponent - 24);
    const double error = std::abs(result - exact);
    if (error > absolute) worst = std::max(worst, error / ulp);
    EXPECT_LT(error, 1e3 * ulp + absolute) << "f(" << values[i] << ") = " << result << ", not " << exact;
  }
  return worst;
}

}  // namespace tapedeck::test
