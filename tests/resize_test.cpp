#include <tapedeck/nn/data/resize.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/random.h>
#include <tapedeck/nn/data/npy.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::HasSubstr;

TEST(Resize, IsWhatPyTorchCallsAntialiasedBilinear) {
  const Tensor image = load_npy(test_file("resize_in.npy"));
  for (const Size2 size : {Size2(5, 7), Size2(16, 24), Size2(29, 31)}) {
    const Tensor expected = load_npy(test_file(concat("resize_", size.h, "x", size.w, ".npy")));
    const Tensor out = resize(image, size);
    ASSERT_EQ(out.shape(), expected.shape());
    for (std::int64_t i = 0; i < out.count(); ++i) {
      ASSERT_NEAR(out.data<float>()[i], expected.data<float>()[i], 2e-6) << size.h << " " << i;
    }
  }
}

TEST(Resize, IsADoubleSumOfTriangles) {
  const std::int64_t c = 2, h = 9, w = 4;
  const Tensor image = rand({c, h, w});
  for (const Size2 size : {Size2(3, 11), Size2(1, 1), Size2(20, 2), Size2(9, 3), Size2(4, 4)}) {
    const Tensor out = resize(image, size);
    const double sy = static_cast<double>(h) / static_cast<double>(size.h);
    const double sx = static_cast<double>(w) / static_cast<double>(size.w);
    const auto weight = [](double from, double centre, double reach) {
      return std::max(0.0, 1 - std::abs(from + 0.5 - centre) / reach);
    };
    for (std::int64_t k = 0; k < c; ++k) {
      for (std::int64_t y = 0; y < size.h; ++y) {
        for (std::int64_t x = 0; x < size.w; ++x) {
          double sum = 0, total = 0;
          for (std::int64_t i = 0; i < h; ++i) {
            for (std::int64_t j = 0; j < w; ++j) {
              const double weights =
                  weight(static_cast<double>(i), (static_cast<double>(y) + 0.5) * sy, std::max(1.0, sy)) *
                  weight(static_cast<double>(j), (static_cast<double>(x) + 0.5) * sx, std::max(1.0, sx));
              sum += weights * image.data<float>()[(k * h + i) * w + j];
              total += weights;
            }
          }
          ASSERT_NEAR(out.data<float>()[(k * size.h + y) * size.w + x], sum / total, 1e-6);
        }
      }
    }
  }
}

TEST(CenterCrop, TakesTheMiddle) {
  std::vector<float> values(2 * 5 * 6);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor image = Tensor::from(values, {2, 5, 6});
  const Tensor crop = center_crop(image, {2, 3});  // rows 1 and 2, columns 1 to 3
  EXPECT_EQ(crop.to_vector<float>(), (std::vector<float>{7, 8, 9, 13, 14, 15, 37, 38, 39, 43, 44, 45}));
  EXPECT_THAT(message_of<Error>([&] {
                center_crop(image, {6, 6});
              }),
              HasSubstr("center_crop: size 6 x 6 is not legal; legal is 1 x 1 to 5 x 6"));
}

TEST(ResizeAndCrop, FitsTheShortSideAndCutsTheLong) {
  // A gradient along w survives in proportion: the middle third of 4 x 12 in 2 x 2 is columns 4 to 7.
  std::vector<float> values;
  for (int i = 0; i < 4 * 12; ++i) values.push_back(static_cast<float>(i % 12));
  const Tensor image = Tensor::from(values, {1, 4, 12});
  const Tensor out = resize_and_crop(image, 2);
  ASSERT_EQ(out.shape(), (Shape{1, 2, 2}));
  for (int y = 0; y < 2; ++y) {
    EXPECT_NEAR(out.data<float>()[2 * y], 4.5, 1e-6);
    EXPECT_NEAR(out.data<float>()[2 * y + 1], 6.5, 1e-6);
  }
  EXPECT_EQ(resize_and_crop(image, {7, 3}).shape(), (Shape{1, 7, 3}));
  EXPECT_EQ(resize_and_crop(image, {1, 30}).shape(), (Shape{1, 1, 30}));
  EXPECT_EQ(resize_and_crop(image, {4, 12}).to_vector<float>(), values);
  EXPECT_THAT(message_of<Error>([&] { resize_and_crop(image, 0); }), HasSubstr("size 0 x 0 is not legal"));
  EXPECT_THAT(message_of<Error>([&] {
                resize(Tensor::zeros({2, 2}), 1);
              }),
              HasSubstr("legal is float32 [c,h,w]"));
}

}  // namespace
}  // namespace tapedeck::data
