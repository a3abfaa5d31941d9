#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tapedeck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr TensorOptions kDouble = {.dtype = DType::float64};

std::vector<double> values(const Variable& x) {
  return x.tensor().to_vector<double>();
}

/// The starts of the windows along one axis, counted one by one.
std::vector<std::int64_t> starts(std::int64_t in, std::int64_t window, std::int64_t stride,
                                 std::int64_t padding, bool ceil_mode) {
  std::vector<std::int64_t> result;
  std::int64_t start = -padding;
  for (; start + window <= in + padding; start += stride) result.push_back(start);
  const bool covered = !result.empty() && result.back() + window == in + padding;
  if (ceil_mode && !covered && start < in) result.push_back(start);
  return result;
}

struct Case {
  Shape shape;
  Size2 kernel, stride, padding, dilation;
  bool ceil_mode, count_include_pad;
};

/// Random parameters that are legal, windows larger than the image included.
Case random_case(std::mt19937& random, bool dilated) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Case c{{pick(1, 3), pick(1, 4), pick(1, 9), pick(1, 9)},
         1,
         {pick(1, 4), pick(1, 4)},
         0,
         1,
         pick(0, 1) == 1,
         pick(0, 1) == 1};
  const auto axis = [&](std::int64_t in, std::int64_t& kernel, std::int64_t& padding,
                        std::int64_t& dilation) {
    do {
      kernel = pick(1, 5);
      padding = pick(0, kernel / 2);
      dilation = dilated && in >= 5 ? pick(1, 2) : 1;
    } while (in + 2 * padding < (kernel - 1) * dilation + 1);
  };
  axis(c.shape[2], c.kernel.h, c.padding.h, c.dilation.h);
  axis(c.shape[3], c.kernel.w, c.padding.w, c.dilation.w);
  return c;
}

TEST(MaxPool2d, EqualsItsDefinition) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 400; ++trial) {
    const Case c = random_case(random, true);
    const Tensor x = randn(c.shape, kDouble);
    const auto in = x.to_vector<double>();
    const auto hs =
        starts(c.shape[2], (c.kernel.h - 1) * c.dilation.h + 1, c.stride.h, c.padding.h, c.ceil_mode);
    const auto ws =
        starts(c.shape[3], (c.kernel.w - 1) * c.dilation.w + 1, c.stride.w, c.padding.w, c.ceil_mode);
    std::vector<double> expected;
    std::vector<std::size_t> from;
    for (std::int64_t plane = 0; plane < c.shape[0] * c.shape[1]; ++plane)
      for (std::int64_t h0 : hs)
        for (std::int64_t w0 : ws) {
          expected.push_back(-std::numeric_limits<double>::infinity());
          from.push_back(0);
          for (std::int64_t i = 0; i < c.kernel.h; ++i)
            for (std::int64_t j = 0; j < c.kernel.w; ++j) {
              const std::int64_t h = h0 + i * c.dilation.h, w = w0 + j * c.dilation.w;
              if (h < 0 || h >= c.shape[2] || w < 0 || w >= c.shape[3]) continue;
              const auto at = static_cast<std::size_t>((plane * c.shape[2] + h) * c.shape[3] + w);
              if (in[at] > expected.back()) {
                expected.back() = in[at];
                from.back() = at;
              }
            }
        }
    const Tensor gy = randn(
        {c.shape[0], c.shape[1], static_cast<std::int64_t>(hs.size()), static_cast<std::int64_t>(ws.size())},
        kDouble);
    std::vector<double> expected_gradient(in.size(), 0.0);
    for (std::size_t i = 0; i < from.size(); ++i) expected_gradient[from[i]] += gy.to_vector<double>()[i];

    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Variable leaf = Variable::parameter(x.to(layout));
      Tape tape;
      const Variable y = max_pool2d(leaf, {c.kernel, c.stride, c.padding, c.dilation, c.ceil_mode});
      ASSERT_EQ(y.shape(), gy.shape());
      ASSERT_EQ(values(y), expected);
      EXPECT_EQ(y.tensor().layout(), layout);
      tape.backward(y, {.gradient = gy});
      EXPECT_EQ(leaf.grad().tensor().layout(), layout);
      const auto gradient = values(leaf.grad());
      for (std::size_t i = 0; i < gradient.size(); ++i) ASSERT_NEAR(gradient[i], expected_gradient[i], 1e-12);
    }
  }
}

TEST(MaxPool2d, NegativeImagesNaNAndTies) {
  const Tensor x = Tensor::from({-3.f, -1.f, -1.f, -5.f}, {1, 2, 2});
  const Variable leaf = Variable::parameter(x);
  Tape tape;
  const Variable y = max_pool2d(leaf, {.kernel_size = 2});
  EXPECT_EQ(y.shape(), Shape({1, 1, 1}));
  EXPECT_EQ(y.item(), -1);
  tape.backward(y);
  EXPECT_THAT(values(leaf.grad()), ElementsAre(0, 1, 0, 0));  // the first of equal ones
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(
      std::isnan(max_pool2d(Tensor::from({1.f, nan, 2.f, 3.f}, {1, 2, 2}), {.kernel_size = 2}).item()));
}

TEST(AvgPool2d, EqualsItsDefinition) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 400; ++trial) {
    const Case c = random_case(random, false);
    const Tensor x = randn(c.shape, kDouble);
    const auto in = x.to_vector<double>();
    const auto hs = starts(c.shape[2], c.kernel.h, c.stride.h, c.padding.h, c.ceil_mode);
    const auto ws = starts(c.shape[3], c.kernel.w, c.stride.w, c.padding.w, c.ceil_mode);
    const Tensor gy = randn(
        {c.shape[0], c.shape[1], static_cast<std::int64_t>(hs.size()), static_cast<std::int64_t>(ws.size())},
        kDouble);
    const auto g = gy.to_vector<double>();
    std::vector<double> expected, expected_gradient(in.size(), 0.0);
    for (std::int64_t plane = 0; plane < c.shape[0] * c.shape[1]; ++plane)
      for (std::int64_t h0 : hs)
        for (std::int64_t w0 : ws) {
          double sum = 0, all = 0, inside = 0;
          std::vector<std::size_t> read;
          for (std::int64_t h = h0; h < h0 + c.kernel.h; ++h)
            for (std::int64_t w = w0; w < w0 + c.kernel.w; ++w) {
              if (h >= c.shape[2] + c.padding.h || w >= c.shape[3] + c.padding.w) continue;
              ++all;
              if (h < 0 || h >= c.shape[2] || w < 0 || w >= c.shape[3]) continue;
              ++inside;
              read.push_back(static_cast<std::size_t>((plane * c.shape[2] + h) * c.shape[3] + w));
              sum += in[read.back()];
            }
          const double divisor = c.count_include_pad ? all : inside;
          for (std::size_t at : read) expected_gradient[at] += g[expected.size()] / divisor;
          expected.push_back(sum / divisor);
        }
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Variable leaf = Variable::parameter(x.to(layout));
      Tape tape;
      const Variable y = avg_pool2d(leaf, {c.kernel, c.stride, c.padding, c.ceil_mode, c.count_include_pad});
      ASSERT_EQ(y.shape(), gy.shape());
      EXPECT_EQ(y.tensor().layout(), layout);
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(values(y)[i], expected[i], 1e-12);
      tape.backward(y, {.gradient = gy});
      EXPECT_EQ(leaf.grad().tensor().layout(), layout);
      const auto gradient = values(leaf.grad());
      for (std::size_t i = 0; i < gradient.size(); ++i) ASSERT_NEAR(gradient[i], expected_gradient[i], 1e-12);
    }
  }
}

TEST(AdaptiveAvgPool2d, EqualsItsDefinition) {
  const Shape shape = {2, 3, 7, 5};
  const Tensor x = randn(shape, kDouble);
  const auto in = x.to_vector<double>();
  for (const Size2 size : {Size2(1), Size2(3, 2), Size2(7, 5), Size2(4, 9), Size2(10, 1)}) {
    std::vector<double> expected;
    for (std::int64_t plane = 0; plane < 6; ++plane)
      for (std::int64_t o = 0; o < size.h; ++o)
        for (std::int64_t p = 0; p < size.w; ++p) {
          double sum = 0, count = 0;
          const auto begin = [](std::int64_t at, double in_size, std::int64_t out) {
            return std::floor(static_cast<double>(at) * in_size / static_cast<double>(out));
          };
          const auto end = [](std::int64_t at, double in_size, std::int64_t out) {
            return std::ceil(static_cast<double>(at + 1) * in_size / static_cast<double>(out));
          };
          for (double h = begin(o, 7, size.h); h < end(o, 7, size.h); ++h)
            for (double w = begin(p, 5, size.w); w < end(p, 5, size.w); ++w, ++count)
              sum += in[static_cast<std::size_t>(static_cast<double>(plane * 35) + h * 5 + w)];
          expected.push_back(sum / count);
        }
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Variable y = adaptive_avg_pool2d(x.to(layout), size);
      ASSERT_EQ(y.shape(), Shape({2, 3, size.h, size.w}));
      EXPECT_EQ(y.tensor().layout(), layout);
      for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(values(y)[i], expected[i], 1e-12);
    }
  }
}

TEST(Pool, HalfTypesEmptyBatchesAndUnbatchedImages) {
  for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const Tensor x = Tensor::from({1., 2., 3., 4., 5., 6., 7., 8.}, {2, 2, 2}).to(dtype);
    EXPECT_THAT(values(max_pool2d(x, {.kernel_size = 2})), ElementsAre(4, 8));
    EXPECT_THAT(values(avg_pool2d(x, {.kernel_size = 2})), ElementsAre(2.5, 6.5));
    EXPECT_THAT(values(adaptive_avg_pool2d(x, {1, 2})), ElementsAre(2, 3, 6, 7));
    EXPECT_EQ(avg_pool2d(x, {.kernel_size = 2}).dtype(), dtype);
  }
  EXPECT_EQ(max_pool2d(Tensor::zeros({0, 3, 4, 4}), {.kernel_size = 2}).shape(), Shape({0, 3, 2, 2}));
  EXPECT_EQ(avg_pool2d(Tensor::zeros({0, 3, 4, 4}), {.kernel_size = 2}).shape(), Shape({0, 3, 2, 2}));
}

TEST(Pool, SameBitsForEveryThreadCount) {
  const Tensor x = randn({3, 5, 41, 37});
  const int before = num_threads();
  std::vector<float> results[2];
  for (int i : {0, 1}) {
    set_num_threads(i == 0 ? 1 : 5);
    for (const Variable& y :
         {max_pool2d(x, {.kernel_size = 3, .stride = 2, .padding = 1}), adaptive_avg_pool2d(x, {10, 50})}) {
      const auto y_values = y.tensor().to_vector<float>();
      results[i].insert(results[i].end(), y_values.begin(), y_values.end());
    }
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
}

TEST(Pool, FirstAndSecondDerivatives) {
  const auto both = [](auto f) {  // squared, so that there is a second derivative to be wrong
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Variable x = Variable::parameter(randn({2, 2, 5, 4}, kDouble).to(layout));
      const auto squared = [f](const Variables& in) {
        const Variable y = f(in[0]);
        return y * y;
      };
      gradcheck(squared, {x});
      gradgradcheck(squared, {x});
    }
  };
  both([](const Variable& x) {
    return max_pool2d(x, {.kernel_size = {3, 2}, .stride = {2, 1}, .padding = {1, 0}});
  });
  both([](const Variable& x) {
    return avg_pool2d(x, {.kernel_size = {2, 3}, .stride = 2, .padding = {0, 1}, .ceil_mode = true});
  });
  both([](const Variable& x) { return adaptive_avg_pool2d(x, {3, 6}); });
}

TEST(Pool, GiantWindowsAreWhatTheirTapsInTheImageAre) {
  // Windows that begin and end far outside of the image: their taps there are neither visited nor counted.
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(7 * 6);
  for (float& number : numbers) number = normal(random);
  const Variable x = Variable::parameter(Tensor::from(numbers, {1, 1, 7, 6}));
  constexpr std::int64_t kGiant = 2'000'000'000, kBefore = kGiant / 2;
  Tape tape;
  // Rows: window o holds rows max(0, 2 o - kBefore) to before 2 o - kBefore + kGiant, so all of them.
  const Variable y = max_pool2d(x, {.kernel_size = {kGiant, 2}, .stride = {2, 2}, .padding = {kBefore, 0}});
  ASSERT_EQ(y.shape(), Shape({1, 1, 4, 3}));
  for (std::int64_t o = 0; o < 4; ++o) {
    for (std::int64_t p = 0; p < 3; ++p) {
      float largest = -1e9f;
      for (std::int64_t i = 0; i < 14; ++i) largest = std::max(largest, numbers[i / 2 * 6 + 2 * p + i % 2]);
      EXPECT_EQ(values(y)[o * 3 + p], largest);
    }
  }
  double total = 0;
  for (const double g : values(tape.gradient(sum(y), {x})[0])) total += g;
  EXPECT_EQ(total, 12);
  EXPECT_EQ(values(avg_pool2d(x, {.kernel_size = kGiant, .stride = kGiant, .padding = kBefore})).size(), 1u);

  // More taps than float32 can count: the last pixel is the largest.
  constexpr std::int64_t kSide = 4099;
  const Variable large = Variable::parameter(Tensor::zeros({1, 1, kSide, kSide}));
  large.tensor().data<float>()[large.count() - 1] = 1;
  const Variable whole = max_pool2d(large, {.kernel_size = kSide});
  EXPECT_EQ(tape.gradient(whole, {large})[0].tensor().data<float>()[large.count() - 1], 1);
}

TEST(Pool, ErrorsNameValuesAndRanges) {
  const Variable x = Tensor::zeros({1, 1, 4, 5});
  const auto max_error = [&](const MaxPool2dOptions& options, const char* text) {
    EXPECT_THAT([&] { max_pool2d(x, options); }, ThrowsMessage<Error>(HasSubstr(text)));
  };
  max_error({.kernel_size = {2, 0}}, "max_pool2d: kernel_size 0 on axis w; legal is 1 to 2147483647");
  max_error({.kernel_size = 2, .stride = {1, 0}}, "max_pool2d: stride 0 on axis w; legal is 1 to");
  max_error({.kernel_size = 2, .dilation = {-1, 1}}, "max_pool2d: dilation -1 on axis h; legal is 1 to");
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  max_error({.kernel_size = {kMost, 1}},
            "max_pool2d: kernel_size 9223372036854775807 on axis h; legal is 1 to");
  max_error({.kernel_size = 2, .stride = kMost}, "max_pool2d: stride 9223372036854775807 on axis h");
  max_error({.kernel_size = 3, .dilation = kMost / 2 + 1}, "dilation 4611686018427387904 on axis h");
  max_error({.kernel_size = 2147483647, .padding = kMost - 5}, "padding 9223372036854775802 on axis h");
  max_error({.kernel_size = 2147483647, .dilation = 2147483647}, "a window of 4611686011984936963 on axis h");
  max_error({.kernel_size = 3, .padding = {2, 1}},
            "max_pool2d: padding 2 on axis h; legal for a window of 3 is 0 to 1");
  max_error({.kernel_size = {5, 5}},
            "max_pool2d: a window of 5 on axis h does not fit x's size 4 with padding 0");
  EXPECT_THAT(
      [&] {
        max_pool2d(Tensor::zeros({1, 1, 1, 1}), {.kernel_size = 2, .padding = 1, .dilation = 2});
      },
      ThrowsMessage<Error>(HasSubstr("max_pool2d: window 0 on axis h contains only padding")));
  EXPECT_THAT(
      [&] { avg_pool2d(x, {.kernel_size = 2, .padding = -1}); },
      ThrowsMessage<Error>(HasSubstr("avg_pool2d: padding -1 on axis h; legal for a window of 2 is 0 to 1")));
  EXPECT_THAT(
      [&] {
        adaptive_avg_pool2d(x, {2, 0});
      },
      ThrowsMessage<Error>(HasSubstr("output_size {2,0}; legal is 1 or more")));
  EXPECT_THAT(
      [&] {
        avg_pool2d(Tensor::zeros({4, 5}), {.kernel_size = 2});
      },
      ThrowsMessage<Error>(HasSubstr("avg_pool2d: x has shape [4,5]; legal is [n,c,h,w] or [c,h,w]")));
  EXPECT_THAT(
      [&] {
        max_pool2d(Tensor::zeros({1, 1, 4, 4}, {.dtype = DType::int64}), {.kernel_size = 2});
      },
      ThrowsMessage<Error>(HasSubstr("x is int64; legal are the floating types")));
  EXPECT_THAT(
      [&] {
        adaptive_avg_pool2d(Tensor::zeros({1, 1, 0, 4}), 2);
      },
      ThrowsMessage<Error>(HasSubstr("x [1,1,0,4] has no pixels")));
}

}  // namespace
}  // namespace tapedeck
