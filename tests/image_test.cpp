#include <tapedeck/nn/data/image.h>

#include <cmath>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/nn/data/npy.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The samples that make_files.py put into its PNGs, [c,5,7], over the largest of their depth.
std::vector<float> picture(int channels, int bits) {
  std::vector<float> values;
  const int most = (1 << bits) - 1;
  for (int c = 0; c < channels; ++c) {
    for (int y = 0; y < 5; ++y) {
      for (int x = 0; x < 7; ++x) {
        const int sample = (1237 * y + 5101 * x + 7759 * c + 11) & most;
        values.push_back(static_cast<float>(sample) / static_cast<float>(most));
      }
    }
  }
  return values;
}

TEST(LoadImage, ReadsEveryKindOfPng) {
  struct Kind {
    const char* name;
    int channels, bits;
  };
  for (const auto& [name, channels, bits] : {Kind{"gray1", 1, 1},
                                             {"gray2", 1, 2},
                                             {"gray4", 1, 4},
                                             {"gray8", 1, 8},
                                             {"gray16", 1, 16},
                                             {"gray_alpha8", 2, 8},
                                             {"gray_alpha16", 2, 16},
                                             {"rgb8", 3, 8},
                                             {"rgb16", 3, 16},
                                             {"rgb8_interlaced", 3, 8},
                                             {"rgba8", 4, 8},
                                             {"rgba16", 4, 16},
                                             {"gray8_gamma", 1, 8}}) {
    const Tensor image = load_image(test_file(concat(name, ".png")));
    EXPECT_EQ(image.shape(), (Shape{channels, 5, 7})) << name;
    const std::vector<float> values = image.to_vector<float>(), expected = picture(channels, bits);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(values[i], expected[i], 1e-7) << name << " at " << i;  // 1 to 4 bits are widened to 8
    }
  }
}

TEST(LoadImage, ResolvesPalettes) {
  for (const char* name : {"palette4.png", "palette8_alpha.png"}) {
    const bool alpha = std::string(name) == "palette8_alpha.png";
    const Tensor image = load_image(test_file(name));
    ASSERT_EQ(image.shape(), (Shape{alpha ? 4 : 3, 5, 7}));
    for (int y = 0; y < 5; ++y) {
      for (int x = 0; x < 7; ++x) {
        const int k = (y + 2 * x) % 6, at = y * 7 + x;
        const int colour[] = {40 * k % 256, (70 * k + 5) % 256, 255 - 30 * k,
                              k == 0   ? 0
                              : k == 1 ? 128
                                       : 255};
        for (int c = 0; c < image.size(0); ++c) {
          EXPECT_EQ(image.data<float>()[35 * c + at], static_cast<float>(colour[c]) / 255.0f) << name;
        }
      }
    }
  }
}

TEST(LoadImage, ReadsJpegAsPillowDoes) {
  for (const char* name : {"gray.jpg", "rgb.jpg", "rgb_progressive.jpg", "cmyk.jpg"}) {
    const Tensor image = load_image(test_file(name));
    const Tensor expected = load_npy(test_file(concat(name, ".npy")));  // [20,24,c] of 0 to 255
    const std::int64_t channels = expected.size(2), colours = std::min<std::int64_t>(channels, 3);
    ASSERT_EQ(image.shape(), (Shape{colours, 20, 24})) << name;
    const std::uint8_t* in = expected.data<std::uint8_t>();
    for (std::int64_t i = 0; i < 480; ++i) {
      for (std::int64_t c = 0; c < colours; ++c) {
        // Pillow gives CMYK as inks, 255 for full.
        const float value = channels == 4
                                ? static_cast<float>((255 - in[i * 4 + c]) * (255 - in[i * 4 + 3])) / 255.0f
                                : static_cast<float>(in[i * channels + c]);
        ASSERT_NEAR(image.data<float>()[c * 480 + i] * 255.0f, value, 2.1) << name << " " << c << " " << i;
      }
    }
  }
}

TEST(LoadImage, ConvertsChannels) {
  const std::vector<float> rgba = picture(4, 8), gray_alpha = picture(2, 8), gray = picture(1, 8);
  const std::vector<float> from_gray = load_image(test_file("gray8.png"), {.channels = 3}).to_vector<float>();
  const std::vector<float> from_rgba = load_image(test_file("rgba8.png"), {.channels = 3}).to_vector<float>();
  const std::vector<float> to_gray = load_image(test_file("rgba8.png"), {.channels = 1}).to_vector<float>();
  const std::vector<float> on_white =
      load_image(test_file("gray_alpha8.png"), {.channels = 1}).to_vector<float>();
  ASSERT_EQ(from_gray.size(), 105u);
  ASSERT_EQ(to_gray.size(), 35u);
  for (std::size_t i = 0; i < 35; ++i) {
    const float alpha = rgba[105 + i];
    float luma = 0;
    for (std::size_t c = 0; c < 3; ++c) {
      EXPECT_EQ(from_gray[35 * c + i], gray[i]);
      const float blended = rgba[35 * c + i] * alpha + (1 - alpha);
      EXPECT_NEAR(from_rgba[35 * c + i], blended, 1e-6);
      luma += blended * std::array{0.299f, 0.587f, 0.114f}[c];
    }
    EXPECT_NEAR(to_gray[i], luma, 1e-6);
    EXPECT_NEAR(on_white[i], gray_alpha[i] * gray_alpha[35 + i] + (1 - gray_alpha[35 + i]), 1e-6);
  }
  EXPECT_THAT(message_of<Error>([] { load_image(test_file("gray8.png"), {.channels = 2}); }),
              HasSubstr("channels 2 is not legal; legal is 0, 1 or 3"));
}

TEST(LoadImage, EveryTruncationIsOneError) {
  ::testing::internal::CaptureStderr();
  for (const char* name : {"rgb8.png", "rgb8_interlaced.png", "gray.jpg", "rgb_progressive.jpg"}) {
    const std::string whole = read_text(test_file(name));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      // A JPEG without its last byte, half of the end mark, has all its pixels.
      if (size + 2 > whole.size() && std::string_view(name).ends_with("jpg")) continue;
      const std::string cut = whole.substr(0, size);
      const std::string error =
          message_of<Error>([&] { decode_image(std::as_bytes(std::span(cut)), "some.image"); });
      EXPECT_THAT(error, HasSubstr("load_image: some.image: ")) << name << " " << size;
      EXPECT_THAT(error, ::testing::Not(HasSubstr("\n")));
    }
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(LoadImage, CorruptionIsOneErrorOrAnImage) {
  ::testing::internal::CaptureStderr();
  int errors = 0;
  for (const char* name : {"rgb8.png", "palette8_alpha.png", "rgb.jpg", "rgb_progressive.jpg", "cmyk.jpg"}) {
    const std::string whole = read_text(test_file(name));
    for (std::size_t at = 0; at < whole.size(); ++at) {
      std::string broken = whole;
      broken[at] = static_cast<char>(broken[at] ^ 0xa5);
      try {
        decode_image(std::as_bytes(std::span(broken)), "some.image");
      } catch (const Error& error) {
        ++errors;
        EXPECT_THAT(error.what(), HasSubstr("load_image: some.image: "));
      }
    }
  }
  EXPECT_GT(errors, 500);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(LoadImage, RefusesHugeImagesAndWhatIsNone) {
  EXPECT_THAT(message_of<Error>([] { load_image(test_file("rgb8.png"), {.max_pixels = 34}); }),
              HasSubstr("5 x 7 pixels; legal is 1 up to 34"));
  EXPECT_THAT(message_of<Error>([] { load_image(test_file("rgb.jpg"), {.max_pixels = 100}); }),
              HasSubstr("20 x 24 pixels; legal is"));
  EXPECT_THAT(message_of<Error>([] { load_image(test_file("scalar.npy")); }),
              HasSubstr("scalar.npy: not an image: it begins neither as PNG nor as JPEG"));
  EXPECT_THAT(message_of<Error>([] { load_image("/nowhere.png"); }), HasSubstr("/nowhere.png: cannot open"));
}

TEST(LoadImage, LargeJpegsMayComeSmaller) {
  EXPECT_EQ(load_image(test_file("rgb.jpg"), {.needed_side = 6}).shape(), (Shape{3, 20, 24}));
  EXPECT_EQ(load_image(test_file("rgb.jpg"), {.needed_side = 5}).shape(), (Shape{3, 10, 12}));
  EXPECT_EQ(load_image(test_file("rgb.jpg"), {.needed_side = 1}).shape(), (Shape{3, 3, 3}));
}

TEST(SavePng, RoundTripsBytesAndRoundsFloats) {
  const TemporaryFolder folder;
  for (std::int64_t channels = 1; channels <= 4; ++channels) {
    std::vector<std::uint8_t> bytes;
    for (std::int64_t i = 0; i < channels * 15; ++i) bytes.push_back(static_cast<std::uint8_t>(i * 73));
    const Tensor image = Tensor::from(bytes, {channels, 3, 5});
    save_png(folder / "x.png", image);
    const Tensor back = load_image(folder / "x.png");
    ASSERT_EQ(back.shape(), image.shape());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_EQ(back.data<float>()[i], static_cast<float>(bytes[i]) / 255.0f);
    }
    save_png(folder / "y.png", back);
    EXPECT_EQ(read_text(folder / "y.png"), read_text(folder / "x.png"));
  }
  const float inf = std::numeric_limits<float>::infinity();
  save_png(folder / "x.png", Tensor::from<float>({-inf, -3, 0.4f / 255, 0.6f / 255, 7, inf}, {1, 2, 3}));
  EXPECT_THAT(load_image(folder / "x.png").to_vector<float>(), ElementsAre(0, 0, 0, 1.0f / 255, 1, 1));
}

TEST(SavePng, RefusesWhatIsNoPicture) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TemporaryFolder folder;
  const auto error = [&](const Tensor& image) {
    return message_of<Error>([&] { save_png(folder / "x.png", image); });
  };
  EXPECT_THAT(error(Tensor::from<float>({0, 0, 0, 0, 0, nan}, {1, 2, 3})),
              HasSubstr("image is NaN at [0,1,2]"));
  EXPECT_THAT(error(Tensor::zeros({5, 2, 3})),
              HasSubstr("image is float32 [5,2,3] on cpu; legal is [c,h,w]"));
  EXPECT_THAT(error(Tensor::zeros({1, 3, 2, 3})), HasSubstr("legal is [c,h,w]"));
  EXPECT_THAT(error(Tensor::zeros({1, 0, 3})), HasSubstr("no empty side"));
  EXPECT_THAT(error(Tensor()), HasSubstr("image is undefined"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(MakeGrid, PlacesImagesRowByRow) {
  std::vector<float> values;
  for (int i = 1; i <= 3 * 2 * 2 * 3; ++i) values.push_back(static_cast<float>(i));
  const Tensor images = Tensor::from(values, {3, 2, 2, 3});
  const Tensor grid = make_grid(images, {.columns = 2, .padding = 1, .value = -1});
  ASSERT_EQ(grid.shape(), (Shape{2, 7, 9}));
  for (int c = 0; c < 2; ++c) {
    for (int y = 0; y < 7; ++y) {
      for (int x = 0; x < 9; ++x) {
        float expected = -1;
        const int row = y / 3, column = x / 4, iy = y % 3 - 1, ix = x % 4 - 1, i = row * 2 + column;
        if (row < 2 && column < 2 && i < 3 && iy >= 0 && ix >= 0) {
          expected = values[static_cast<std::size_t>(((i * 2 + c) * 2 + iy) * 3 + ix)];
        }
        EXPECT_EQ(grid.data<float>()[(c * 7 + y) * 9 + x], expected) << c << " " << y << " " << x;
      }
    }
  }
  EXPECT_EQ(make_grid(images, {.padding = 0}).shape(), (Shape{2, 2, 9}));
  EXPECT_EQ(make_grid(images.to(Layout::nhwc)).to_vector<float>(), make_grid(images).to_vector<float>());
  EXPECT_THAT(message_of<Error>([] {
                make_grid(Tensor::zeros({2, 2, 3}));
              }),
              HasSubstr("legal is [n,c,h,w]"));
  EXPECT_THAT(message_of<Error>([&] { make_grid(images, {.columns = 0}); }), HasSubstr("columns 0"));
  EXPECT_THAT(message_of<Error>([&] { make_grid(images, {.padding = -1}); }), HasSubstr("padding -1"));
}

}  // namespace
}  // namespace tapedeck::data
