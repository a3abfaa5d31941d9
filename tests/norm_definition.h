// Normalisation by definition, for its tests.
#pragma once

#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace tapedeck::test {

inline constexpr TensorOptions kDouble = {.dtype = DType::float64};
inline constexpr double kEps = 1e-3;

inline std::vector<double> values(const Variable& x) {
  return x.tensor().to_vector<double>();
}

inline void expect_near(const Variable& got, const std::vector<double>& expected, double tolerance = 1e-11) {
  const auto list = values(got);
  ASSERT_EQ(list.size(), expected.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    ASSERT_NEAR(list[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << "element " << i;
  }
}

/// Normalisation by definition, on row-major lists. set[i] is the set of elements that i is normalised
/// with, parameter[i] its weight and bias; given statistics, if there are any, are by set.
struct Reference {
  std::vector<std::size_t> set, parameter;
  std::vector<double> mean, var, y, gx, gw, gb;
  double negative_slope = 1;  // of what follows

  void run(const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& b,
           std::vector<double> gy, double eps, bool constant_statistics = false) {
    const std::size_t sets = *std::max_element(set.begin(), set.end()) + 1;
    std::vector<double> n(sets), mean_t(sets), mean_tx(sets);
    for (std::size_t s : set) ++n[s];
    if (!constant_statistics) {
      mean.assign(sets, 0);
      var.assign(sets, 0);
      for (std::size_t i = 0; i < x.size(); ++i) mean[set[i]] += x[i] / n[set[i]];
      for (std::size_t i = 0; i < x.size(); ++i) var[set[i]] += std::pow(x[i] - mean[set[i]], 2) / n[set[i]];
    }
    const auto xhat = [&](std::size_t i) { return (x[i] - mean[set[i]]) / std::sqrt(var[set[i]] + eps); };
    gw.assign(w.size(), 0);
    gb.assign(w.size(), 0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t p = parameter[i];
      y.push_back(xhat(i) * w[p] + b[p]);
      if (y[i] <= 0) {
        y[i] *= negative_slope;
        gy[i] *= negative_slope;
      }
      gw[p] += gy[i] * xhat(i);
      gb[p] += gy[i];
      mean_t[set[i]] += gy[i] * w[p] / n[set[i]];
      mean_tx[set[i]] += gy[i] * w[p] * xhat(i) / n[set[i]];
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t s = set[i];
      const double through_statistics = constant_statistics ? 0 : mean_t[s] + xhat(i) * mean_tx[s];
      gx.push_back((gy[i] * w[parameter[i]] - through_statistics) / std::sqrt(var[s] + eps));
    }
  }
};

/// The shapes of batch and group normalisation: [n,c], [n,c,l], images with long and short rows of pixels.
inline const std::vector<Shape> kShapes = {{7, 6},       {3, 6, 5},     {2, 6, 3, 5},
                                           {3, 6, 1, 1}, {2, 6, 9, 13}, {5, 36, 1, 2}};

/// The channel of each element.
inline std::vector<std::size_t> channels(const Shape& shape) {
  std::vector<std::size_t> list;
  const std::int64_t inner = shape.count() / shape[0] / shape[1];
  for (std::int64_t i = 0; i < shape.count(); ++i)
    list.push_back(static_cast<std::size_t>(i / inner % shape[1]));
  return list;
}

inline std::vector<Layout> layouts(const Shape& shape) {
  return shape.rank() == 4 ? std::vector{Layout::nchw, Layout::nhwc} : std::vector{Layout::nchw};
}

/// Expects norm(x, weight, bias) and its gradients, in every layout of x, to be those of `reference`, which
/// it fills first.
template <class Norm>
void expect_norm(Reference& reference, const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& gy,
                 const Norm& norm, bool constant_statistics = false) {
  reference.run(x.to_vector<double>(), w.to_vector<double>(), b.to_vector<double>(), gy.to_vector<double>(),
                kEps, constant_statistics);
  for (Layout layout : layouts(x.shape())) {
    const Variable leaf = Variable::parameter(x.to(layout)), weight = Variable::parameter(w),
                   bias = Variable::parameter(b);
    Tape tape;
    const Variable y = norm(leaf, weight, bias);
    EXPECT_EQ(y.tensor().layout(), layout);
    tape.backward(y, {.gradient = gy});
    EXPECT_EQ(leaf.grad().tensor().layout(), layout);
    expect_near(y, reference.y);
    expect_near(leaf.grad(), reference.gx);
    expect_near(weight.grad(), reference.gw);
    expect_near(bias.grad(), reference.gb);
  }
}

}  // namespace tapedeck::test
