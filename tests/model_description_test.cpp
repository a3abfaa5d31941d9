#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/tapedeck.h>

#include "errors.h"

namespace tapedeck::nn {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string build_error(const std::string& text, std::int64_t max_parameters = 1 << 20) {
  return error_of([&] { ModelDescription::parse(text, "m.txt").build(max_parameters); });
}

constexpr const char* kDecoder =
    "# a decoder\r\n"
    "\n"
    "linear in=8 out=96   # comment after values\n"
    "unflatten shape=6x4x4\n"
    "\tbatch_norm2d  features=6\teps=1e-3\n"
    "conv_transpose2d out=4 in=6 padding=1x0 kernel=4x3 stride=2x3 output_padding=1x2 bias=false\n"
    "sigmoid";

TEST(ModelDescription, BuildsTheLayersInOrder) {
  const auto description = ModelDescription::parse(kDecoder);
  Sequential model = description.build();
  ASSERT_EQ(model.size(), 5u);
  EXPECT_STREQ(model[3].kind(), "ConvTranspose2d");
  EXPECT_EQ(model[3].parameter_count(), 6 * 4 * 4 * 3);
  EXPECT_EQ(model.parameter_count(), 8 * 96 + 96 + 6 + 6 + 6 * 4 * 4 * 3);
  // Height (4-1)*2 - 2*1 + 4 + 1 = 9, width (4-1)*3 - 0 + 3 + 2 = 14.
  EXPECT_EQ(model(Tensor::ones({2, 8})).shape(), (Shape{2, 4, 9, 14}));
}

TEST(ModelDescription, TracesShapesAndLines) {
  const auto description = ModelDescription::parse(kDecoder);
  const Sequential model = description.build();
  const auto rows = description.trace(model, {1, 8});
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0].line, 3);
  EXPECT_EQ(rows[0].text, "linear in=8 out=96");
  EXPECT_EQ(rows[0].output, (Shape{1, 96}));
  EXPECT_EQ(rows[0].parameters, 8 * 96 + 96);
  EXPECT_EQ(rows[2].text, "batch_norm2d features=6 eps=1e-3");
  EXPECT_EQ(rows[4].line, 7);
  EXPECT_EQ(rows[4].output, (Shape{1, 4, 9, 14}));
  EXPECT_TRUE(model.is_training()) << "the mode must be as before";
  EXPECT_TRUE(model[2].is_training());
}

TEST(ModelDescription, EveryLayerCanBeBuiltAndRun) {
  struct Case {
    std::string line;
    Shape input, output;
  };
  const std::vector<Case> cases = {
      {"adaptive_avg_pool2d size=2x3", {2, 3, 5, 7}, {2, 3, 2, 3}},
      {"avg_pool2d kernel=2x3 stride=1x2 padding=1", {2, 3, 5, 7}, {2, 3, 6, 4}},
      {"batch_norm1d features=4 momentum=0.2", {3, 4}, {3, 4}},
      {"batch_norm2d features=3", {2, 3, 5, 7}, {2, 3, 5, 7}},
      {"conv2d in=4 out=6 kernel=3x2 stride=2x1 padding=1 dilation=1x2 groups=2", {2, 4, 5, 7}, {2, 6, 3, 7}},
      {"conv_transpose2d in=4 out=6 kernel=3 stride=2 groups=2 dilation=2x1", {2, 4, 5, 7}, {2, 6, 13, 15}},
      {"dropout p=0.3", {2, 3}, {2, 3}},
      {"elu alpha=0.5", {2, 3}, {2, 3}},
      {"flatten", {2, 3, 5, 7}, {2, 105}},
      {"gelu approximate=tanh", {2, 3}, {2, 3}},
      {"group_norm groups=2 channels=4", {2, 4, 3, 3}, {2, 4, 3, 3}},
      {"hardtanh min=-2 max=0.5", {2, 3}, {2, 3}},
      {"identity", {2, 3}, {2, 3}},
      {"layer_norm shape=3x5", {2, 3, 5}, {2, 3, 5}},
      {"leaky_relu slope=0.2", {2, 3}, {2, 3}},
      {"linear in=3 out=5 bias=false", {2, 3}, {2, 5}},
      {"log_softmax dim=0", {2, 3}, {2, 3}},
      {"max_pool2d kernel=2", {2, 3, 5, 7}, {2, 3, 2, 3}},
      {"mish", {2, 3}, {2, 3}},
      {"pixel_shuffle factor=2", {2, 8, 3, 5}, {2, 2, 6, 10}},
      {"pixel_unshuffle factor=2", {2, 3, 4, 6}, {2, 12, 2, 3}},
      {"relu", {2, 3}, {2, 3}},
      {"sigmoid", {2, 3}, {2, 3}},
      {"silu", {2, 3}, {2, 3}},
      {"softmax", {2, 3}, {2, 3}},
      {"softplus beta=2 threshold=10", {2, 3}, {2, 3}},
      {"tanh", {2, 3}, {2, 3}},
      {"unflatten shape=2x3x5", {4, 30}, {4, 2, 3, 5}},
      {"upsample scale=3x2 mode=bilinear", {2, 3, 5, 7}, {2, 3, 15, 14}},
  };
  std::vector<std::string> covered;
  for (const Case& c : cases) {
    covered.push_back(c.line.substr(0, c.line.find(' ')));
    Sequential model = ModelDescription::parse(c.line).build();
    EXPECT_EQ(model(randn(c.input)).shape(), c.output) << c.line;
    const std::int64_t parameters = model.parameter_count();
    EXPECT_EQ(build_error(c.line, parameters), "no error");
    if (parameters == 0) continue;
    EXPECT_THAT(build_error(c.line, parameters - 1), HasSubstr("legal are at most"));
  }
  EXPECT_EQ(covered, layer_names());
}

TEST(ModelDescription, ValuesReachTheLayers) {
  const auto run = [](const std::string& line, double x) {
    return ModelDescription::parse(line).build()(Tensor::full({1}, x)).item();
  };
  EXPECT_FLOAT_EQ(static_cast<float>(run("leaky_relu slope=0.25", -2)), -0.5f);
  EXPECT_FLOAT_EQ(static_cast<float>(run("hardtanh min=-3 max=0.5", -2)), -2.0f);
  EXPECT_FLOAT_EQ(static_cast<float>(run("hardtanh min=-3 max=0.5", 2)), 0.5f);
  EXPECT_NEAR(run("elu alpha=2", -1), 2 * (std::exp(-1.0) - 1), 1e-6);
  EXPECT_NEAR(run("softplus beta=2", 0.5), std::log1p(std::exp(1.0)) / 2, 1e-6);
  EXPECT_NEAR(run("gelu", 1), 0.8413447, 1e-6);
  EXPECT_NEAR(run("gelu approximate=tanh", 1), 0.8411920, 1e-6);
}

TEST(ModelDescription, ErrorsNameTheLine) {
  struct Case {
    std::string text, error;
  };
  const std::vector<Case> cases = {
      {"", "m.txt: there is no layer in this model description"},
      {"\n# only a comment\n", "m.txt: there is no layer in this model description"},
      {"relu\n\nconv3d in=1",
       "m.txt:3: layer \"conv3d\" is unknown; legal are adaptive_avg_pool2d, avg_pool2d, "},
      {"linear in=3", "m.txt:1: linear: out is missing"},
      {"linear in=3 out=4 chanels=5", "m.txt:1: linear: \"chanels\" is unknown; legal are in out bias"},
      {"relu slope=1", "m.txt:1: relu: \"slope\" is unknown; it takes no keys"},
      {"linear in=3 out=4 in=5", "m.txt:1: linear: in is given twice"},
      {"linear in 3 out=4", "m.txt:1: linear: \"in\" is not key=value"},
      {"linear in=0 out=4",
       "m.txt:1: linear: in=\"0\" is not legal; legal are whole numbers from 1 to 16777216"},
      {"linear in=3.5 out=4", "m.txt:1: linear: in=\"3.5\" is not legal"},
      {"linear in=99999999999999999999 out=4", "m.txt:1: linear: in=\"99999999999999999999\" is not legal"},
      {"linear in= out=4", "m.txt:1: linear: in=\"\" is not legal"},
      {"linear in=3 out=4 bias=yes", "m.txt:1: linear: bias=\"yes\" is not legal; legal are true, false"},
      {"conv2d in=3 out=4 kernel=3x3x3",
       "m.txt:1: conv2d: kernel=\"3x3x3\" has 3 sizes; legal are N and HxW"},
      {"conv2d in=3 out=4 kernel=3x", "m.txt:1: conv2d: kernel=\"\" is not legal"},
      {"leaky_relu slope=nan", "m.txt:1: leaky_relu: slope=\"nan\" is not a finite number"},
      {"leaky_relu slope=1,5", "m.txt:1: leaky_relu: slope=\"1,5\" is not a finite number"},
      {"unflatten shape=1x1x1x1x1x1x1x1x1", "m.txt:1: unflatten: shape has 9 sizes"},
      {"relu\x1b[31m", "m.txt:1: layer \"relu?[31m\" is unknown"},
  };
  for (const Case& c : cases) EXPECT_THAT(build_error(c.text), StartsWith(c.error)) << c.text;
}

TEST(ModelDescription, LayersOwnErrorsNameTheLine) {
  EXPECT_THAT(build_error("relu\nconv_transpose2d in=3 out=4 kernel=3 groups=2"),
              StartsWith("m.txt:2: conv_transpose2d: "));
}

TEST(ModelDescription, RefusesWhatWouldTakeTooMuchMemory) {
  EXPECT_THAT(build_error("linear in=16777216 out=16777216"), HasSubstr("legal are at most 1048576"));
  EXPECT_THAT(build_error("conv2d in=4096 out=4096 kernel=16777216x16777216"),
              HasSubstr("m.txt:1: conv2d: the model"));
  EXPECT_THAT(build_error("conv2d in=7 out=6 kernel=61", 1 << 14),
              HasSubstr("the model would have 156288 parameters"));
  EXPECT_THAT(build_error("linear in=600 out=1000\nlinear in=1000 out=600"),
              StartsWith("m.txt:2: linear: the model"));
  EXPECT_EQ(build_error("linear in=600 out=1000\nlinear in=1000 out=400"), "no error");
  EXPECT_THAT(build_error(std::string((1 << 20) + 1, '#')), HasSubstr("1048577 bytes are too many"));
}

TEST(ModelDescription, TraceNamesTheLayerThatDoesNotFit) {
  const auto description = ModelDescription::parse("linear in=3 out=5\n\nlinear in=4 out=2", "m.txt");
  const Sequential model = description.build();
  EXPECT_THAT(error_of([&] { description.trace(model, {1, 3}); }), StartsWith("m.txt:3: linear: "));
}

TEST(ModelDescription, TraceRefusesActivationsThatAreTooLarge) {
  // Few parameters, and 2^48 pixels.
  const auto description =
      ModelDescription::parse("relu\nadaptive_avg_pool2d size=16777216x16777216\n", "m.txt");
  const Sequential model = description.build();
  EXPECT_THAT(error_of([&] {
                description.trace(model, {1, 1, 4, 4});
              }),
              StartsWith("m.txt:2: the activations would take 1.00 PiB beside the 64 B in use; legal are at "
                         "most 4.00 GiB"));
  const auto upsample = ModelDescription::parse("upsample scale=4\nupsample scale=4", "m.txt");
  const Sequential small = upsample.build();
  EXPECT_EQ(upsample.trace(small, {1, 1, 4, 4}, 17 * 1024 + 64).back().output, (Shape{1, 1, 64, 64}));
  EXPECT_THAT(error_of([&] { upsample.trace(small, {1, 1, 4, 4}, 16 * 1024); }), StartsWith("m.txt:2: "));
  EXPECT_THAT(error_of([&] {
                upsample.trace(small, {1, 1, 64, 64}, 100);
              }),
              StartsWith("the activations would take 16.00 KiB"));
}

TEST(ModelDescription, LoadsFiles) {
  const std::string path = testing::TempDir() + "model_description_test.txt";
  std::ofstream(path) << "linear in=3 out=5\nrelu\n";
  EXPECT_EQ(ModelDescription::load(path).build().size(), 2u);
  std::ofstream(path) << "relu\nrelo\n";
  EXPECT_THAT(error_of([&] { ModelDescription::load(path); }), StartsWith(path + ":2: layer \"relo\""));
  std::filesystem::remove(path);
  EXPECT_THAT(error_of([&] { ModelDescription::load(path); }), HasSubstr("there is no such file"));
  EXPECT_THAT(error_of([&] { ModelDescription::load(testing::TempDir()); }),
              HasSubstr("there is no such file"));
}

}  // namespace
}  // namespace tapedeck::nn
