// Likeness of images against definition loops in float64.
#include <tapedeck/nn/loss.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/autograd/gradcheck.h>
#include <tapedeck/core/random.h>
#include <tapedeck/ops/arithmetic.h>

#include "errors.h"

namespace tapedeck::nn {
namespace {

constexpr TensorOptions kDouble = {.dtype = DType::float64};

/// From the definition, window by window, with means removed before anything is multiplied.
double ssim_by_definition(const Tensor& a, const Tensor& b, double range, std::int64_t size, double sigma) {
  const auto xs = a.to_vector<double>(), ys = b.to_vector<double>();
  const std::int64_t planes = a.size(0) * a.size(1), h = a.size(2), w = a.size(3);
  double total = 0, count = 0;
  for (std::int64_t p = 0; p < planes; ++p) {
    for (std::int64_t top = 0; top + size <= h; ++top) {
      for (std::int64_t left = 0; left + size <= w; ++left) {
        const auto over_window = [&](auto f) {
          double sum = 0, weights = 0;
          for (std::int64_t i = 0; i < size; ++i) {
            for (std::int64_t j = 0; j < size; ++j) {
              const double di = static_cast<double>(i - size / 2), dj = static_cast<double>(j - size / 2);
              const double weight = std::exp(-(di * di + dj * dj) / (2 * sigma * sigma));
              const auto at = static_cast<std::size_t>((p * h + top + i) * w + left + j);
              sum += weight * f(xs[at], ys[at]);
              weights += weight;
            }
          }
          return sum / weights;
        };
        const double mx = over_window([](double x, double) { return x; });
        const double my = over_window([](double, double y) { return y; });
        const double vx = over_window([&](double x, double) { return (x - mx) * (x - mx); });
        const double vy = over_window([&](double, double y) { return (y - my) * (y - my); });
        const double cov = over_window([&](double x, double y) { return (x - mx) * (y - my); });
        const double c1 = 1e-4 * range * range, c2 = 9e-4 * range * range;
        total += (2 * mx * my + c1) * (2 * cov + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2));
        count += 1;
      }
    }
  }
  return total / count;
}

TEST(Ssim, FollowsItsDefinition) {
  const Tensor x = rand({2, 3, 13, 16}, kDouble);
  const Tensor y = (Variable(x) * 0.7 + Variable(rand({2, 3, 13, 16}, kDouble)) * 0.3).tensor();
  EXPECT_NEAR(ssim(x, y).item(), ssim_by_definition(x, y, 1, 11, 1.5), 1e-12);
  EXPECT_NEAR(ssim(x.to(Layout::nhwc), y).item(), ssim_by_definition(x, y, 1, 11, 1.5), 1e-12);
  EXPECT_NEAR(ssim(x, y, {.data_range = 2, .window_size = 5, .sigma = 0.8}).item(),
              ssim_by_definition(x, y, 2, 5, 0.8), 1e-12);
  EXPECT_NEAR(ssim(x.to(DType::float32), y.to(DType::float32)).item(), ssim_by_definition(x, y, 1, 11, 1.5),
              1e-5);
  EXPECT_NEAR(ssim(x, x).item(), 1, 1e-12);
  EXPECT_NEAR(ssim_loss(x, y).item(), 1 - ssim(x, y).item(), 1e-15);
  EXPECT_EQ(ssim(x.to(DType::bfloat16), x.to(DType::bfloat16)).item(), 1);
}

TEST(Ssim, PassesGradientChecks) {
  const auto f = [](const Variables& in) { return ssim(in[0], in[1], {.window_size = 3}); };
  const Variables in = {Variable::parameter(rand({2, 2, 4, 5}, kDouble)),
                        Variable::parameter(rand({2, 2, 4, 5}, kDouble))};
  gradcheck(f, in);
  gradgradcheck(f, in, {.rtol = 1e-4});
}

TEST(Ssim, RejectsWhatDoesNotFit) {
  const Tensor x = Tensor::ones({1, 1, 10, 20});
  expect_error([&] { ssim(x, x); },
               "ssim: x has shape [1,1,10,20]; legal is [n, c, h, w] with h and w of at least");
  expect_error([&] { ssim(x, x, {.window_size = 4}); },
               "ssim: window_size 4 is not legal; legal are odd numbers");
  const Tensor none = Tensor::ones({0, 1, 20, 20});
  expect_error([&] { ssim(none, none); }, "ssim: x has shape [0,1,20,20]; legal is a batch of 1 or more");
  expect_error([&] { ssim(x, Tensor::ones({1})); }, "ssim: x has shape [1,1,10,20] but y has [1]");
}

TEST(Psnr, IsOfEachImage) {
  Tensor x = Tensor::zeros({3, 1, 4, 5}), y = Tensor::zeros({3, 1, 4, 5});
  y.slice(0, 1).fill_(0.1);
  y.slice(1, 2).fill_(1);
  const auto values = psnr(x, y).to_vector<double>();
  ASSERT_EQ(values.size(), 3u);
  EXPECT_NEAR(values[0], 20, 1e-5);
  EXPECT_NEAR(values[1], 0, 1e-12);
  EXPECT_EQ(values[2], std::numeric_limits<double>::infinity());
  EXPECT_NEAR(psnr(x, y, 10).to_vector<double>()[1], 20, 1e-12);
  expect_error([&] { psnr(x, Tensor::zeros({3})); }, "psnr: x has shape [3,1,4,5] but y has [3]");
}

}  // namespace
}  // namespace tapedeck::nn
