#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tapedeck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr TensorOptions kDouble = {.dtype = DType::float64};

std::vector<double> values(const Variable& x) {
  return x.tensor().to_vector<double>();
}

/// Sizes up, down, equal, to one pixel, mixed.
const std::vector<Size2> kSizes = {{10, 8}, {11, 7}, {5, 4}, {3, 2}, {1, 1}, {1, 9}, {17, 3}};

/// Both results and gradients against a map from a position to what it reads: {index, weight} along an axis.
using Axis = std::vector<std::pair<std::int64_t, double>>;
void expect_map(const std::function<Variable(const Variable&, Size2)>& f,
                const std::function<Axis(std::int64_t o, std::int64_t in, std::int64_t out)>& axis) {
  const Shape shape = {2, 3, 5, 4};
  for (const Size2 size : kSizes) {
    const Tensor x = randn(shape, kDouble), gy = randn({2, 3, size.h, size.w}, kDouble);
    const auto in = x.to_vector<double>(), g = gy.to_vector<double>();
    std::vector<double> expected, expected_gradient(in.size(), 0.0);
    for (std::int64_t plane = 0; plane < 6; ++plane)
      for (std::int64_t o = 0; o < size.h; ++o)
        for (std::int64_t p = 0; p < size.w; ++p) {
          double sum = 0;
          for (const auto& [h, wh] : axis(o, 5, size.h))
            for (const auto& [w, ww] : axis(p, 4, size.w)) {
              const auto at = static_cast<std::size_t>((plane * 5 + h) * 4 + w);
              sum += wh * ww * in[at];
              expected_gradient[at] += wh * ww * g[expected.size()];
            }
          expected.push_back(sum);
        }
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Variable leaf = Variable::parameter(x.to(layout));
      Tape tape;
      const Variable y = f(leaf, size);
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

/// The two neighbours of a real position, clamped to the image.
Axis neighbours(double position, std::int64_t in) {
  const double clamped = std::max(position, 0.0), below = std::floor(clamped);
  const auto first = static_cast<std::int64_t>(below);
  return {{first, 1 - (clamped - below)}, {std::min(first + 1, in - 1), clamped - below}};
}

TEST(Upsample, NearestEqualsItsDefinition) {
  expect_map([](const Variable& x, Size2 size) { return upsample_nearest2d(x, size); },
             [](std::int64_t o, std::int64_t in, std::int64_t out) {
               return Axis{{static_cast<std::int64_t>(
                                std::floor(static_cast<double>(o * in) / static_cast<double>(out))),
                            1.0}};
             });
}

TEST(Upsample, BilinearEqualsItsDefinition) {
  expect_map([](const Variable& x, Size2 size) { return upsample_bilinear2d(x, size); },
             [](std::int64_t o, std::int64_t in, std::int64_t out) {
               return neighbours(
                   (static_cast<double>(o) + 0.5) * static_cast<double>(in) / static_cast<double>(out) - 0.5,
                   in);
             });
}

TEST(Upsample, BilinearWithAlignedCornersEqualsItsDefinition) {
  expect_map([](const Variable& x, Size2 size) { return upsample_bilinear2d(x, size, true); },
             [](std::int64_t o, std::int64_t in, std::int64_t out) {
               return neighbours(out == 1 ? 0
                                          : static_cast<double>(o) * static_cast<double>(in - 1) /
                                                static_cast<double>(out - 1),
                                 in);
             });
}

TEST(Upsample, ValuesOfPyTorch) {
  const Tensor x = Tensor::from({1., 2., 3., 4.}, {1, 2, 2});
  EXPECT_THAT(values(upsample_nearest2d(x, {2, 4})), ElementsAre(1, 1, 2, 2, 3, 3, 4, 4));
  EXPECT_THAT(values(upsample_bilinear2d(x, {2, 4})), ElementsAre(1, 1.25, 1.75, 2, 3, 3.25, 3.75, 4));
  EXPECT_THAT(values(upsample_bilinear2d(x, {3, 3}, true)), ElementsAre(1, 1.5, 2, 2, 2.5, 3, 3, 3.5, 4));
}

TEST(Upsample, InfinityStaysWhereItIs) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto y = values(upsample_bilinear2d(Tensor::from({1., 2., inf}, {1, 1, 3}), {1, 6}));
  EXPECT_THAT(y, ElementsAre(1, 1.25, 1.75, inf, inf, inf));
}

TEST(PixelShuffle, MovesChannelsIntoThePixels) {
  const Shape shape = {2, 12, 3, 5};
  const Tensor x = randn(shape, kDouble);
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const Variable y = pixel_shuffle(x.to(layout), 2);
    ASSERT_EQ(y.shape(), Shape({2, 3, 6, 10}));
    EXPECT_EQ(y.tensor().layout(), layout);
    const auto in = x.to_vector<double>(), out = values(y);
    for (std::int64_t n = 0; n < 2; ++n)
      for (std::int64_t c = 0; c < 3; ++c)
        for (std::int64_t h = 0; h < 6; ++h)
          for (std::int64_t w = 0; w < 10; ++w) {
            const std::int64_t from = ((n * 12 + c * 4 + h % 2 * 2 + w % 2) * 3 + h / 2) * 5 + w / 2;
            ASSERT_EQ(out[static_cast<std::size_t>(((n * 3 + c) * 6 + h) * 10 + w)],
                      in[static_cast<std::size_t>(from)]);
          }
    const Variable back = pixel_unshuffle(y, 2);
    EXPECT_EQ(values(back), in);
    EXPECT_EQ(back.tensor().layout(), layout);
  }
  EXPECT_EQ(pixel_shuffle(Tensor::zeros({9, 1, 2}), 3).shape(), Shape({1, 3, 6}));
}

TEST(Upsample, FirstAndSecondDerivatives) {
  const auto both = [](auto f) {  // squared, so that there is a second derivative to be wrong
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Variable x = Variable::parameter(randn({2, 4, 4, 2}, kDouble).to(layout));
      const auto squared = [f](const Variables& in) {
        const Variable y = f(in[0]);
        return y * y;
      };
      gradcheck(squared, {x});
      gradgradcheck(squared, {x});
    }
  };
  both([](const Variable& x) { return upsample_nearest2d(x, {6, 3}); });
  both([](const Variable& x) { return upsample_bilinear2d(x, {3, 5}); });
  both([](const Variable& x) { return upsample_bilinear2d(x, {6, 3}, true); });
  both([](const Variable& x) { return pixel_shuffle(x, 2); });
  both([](const Variable& x) { return pixel_unshuffle(x, 2); });
}

TEST(Upsample, HalfTypesEmptyBatchesAndThreadCounts) {
  for (DType dtype : {DType::bfloat16, DType::float16}) {
    const Variable y = upsample_bilinear2d(Tensor::from({1., 2.}, {1, 1, 2}).to(dtype), {1, 4});
    EXPECT_EQ(y.dtype(), dtype);
    EXPECT_THAT(values(y), ElementsAre(1, 1.25, 1.75, 2));
  }
  EXPECT_EQ(upsample_nearest2d(Tensor::zeros({0, 3, 2, 2}), 4).shape(), Shape({0, 3, 4, 4}));
  const Tensor x = randn({3, 5, 31, 27});
  const int before = num_threads();
  std::vector<float> results[2];
  for (int i : {0, 1}) {
    set_num_threads(i == 0 ? 1 : 5);
    results[i] = upsample_nearest2d(x, {62, 100}).tensor().to_vector<float>();
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
}

TEST(Upsample, ErrorsNameValuesAndRanges) {
  const Variable x = Tensor::zeros({1, 8, 4, 6});
  EXPECT_THAT(
      [&] {
        upsample_nearest2d(x, {0, 3});
      },
      ThrowsMessage<Error>(HasSubstr("upsample_nearest2d: size {0,3}; legal is 1 or more")));
  EXPECT_THAT(
      [&] {
        upsample_bilinear2d(Tensor::zeros({1, 8, 0, 6}), 3);
      },
      ThrowsMessage<Error>(HasSubstr("upsample_bilinear2d: x [1,8,0,6] has no pixels")));
  EXPECT_THAT(
      [&] { pixel_shuffle(x, 3); },
      ThrowsMessage<Error>(HasSubstr("pixel_shuffle: upscale_factor 3 for the 8 channels of x [1,8,4,6]")));
  EXPECT_THAT([&] { pixel_shuffle(x, 0); }, ThrowsMessage<Error>(HasSubstr("upscale_factor 0")));
  EXPECT_THAT([&] { pixel_unshuffle(x, 4); },
              ThrowsMessage<Error>(
                  HasSubstr("pixel_unshuffle: downscale_factor 4 for x [1,8,4,6]; legal is a divisor")));
}

}  // namespace
}  // namespace tapedeck
