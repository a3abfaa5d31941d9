// Each example with small settings does what it says. train_decoder has tests of its own.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include <gmock/gmock.h>

#include <tapedeck/nn/data/image.h>

#include "cuda_support.h"
#include "program.h"
#include "sanitizers.h"

namespace tapedeck {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class Examples : public ProgramTest {
 protected:
  /// What the example printed.
  std::string run(std::vector<std::string> command) const {
    command[0] = examples_folder() + "/" + command[0];
    const Ended ended = run_program(command);
    expect_ok(ended);
    return ended.out;
  }

  /// The number that follows the last `label`.
  static double last_number(const std::string& text, const std::string& label) {
    const std::size_t at = text.rfind(label);
    if (at == std::string::npos) return std::nan("");
    return std::strtod(text.c_str() + at + label.size(), nullptr);
  }

  /// Expects a picture that is not of one colour.
  void expect_picture(const std::string& name, const Shape& shape) const {
    const Tensor picture = data::load_image(path(name));
    EXPECT_EQ(picture.shape(), shape);
    const std::vector<float> values = picture.to_vector<float>();
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    EXPECT_GT(*high - *low, 0.2f);
  }
};

constexpr const char* kData = "sprites:count=64,size=16";

/// Epochs or steps. Under sanitizers fewer, after which nothing is expected of what was learned.
std::string some(int steps) {
  return std::to_string(test::kSanitized ? steps / 5 : steps);
}

TEST_F(Examples, HelloTapeFindsTheGradient) {
  std::istringstream lines(run({"hello_tape"}));
  int rows = 0;
  double x = 0, gradient = 0, expected = 0;
  for (std::string line; std::getline(lines, line);) {
    if (std::sscanf(line.c_str(), "%lf %lf %lf", &x, &gradient, &expected) != 3) continue;
    EXPECT_NEAR(gradient, 2 * std::cos(x) + 2 * x, 1e-5);
    EXPECT_NEAR(gradient, expected, 2e-6);
    ++rows;
  }
  EXPECT_EQ(rows, 3);
  EXPECT_THAT(run({"hello_tape", "--dot"}), StartsWith("digraph"));
}

TEST_F(Examples, CustomOpAgreesWithDifferences) {
  EXPECT_THAT(run({"custom_op"}), HasSubstr("derivatives agree with central differences"));
}

TEST_F(Examples, GradientPenaltyMeasuresADistance) {
  const std::string out = run({"gradient_penalty", some(500)});
  if (test::kSanitized) return;
  EXPECT_NEAR(last_number(out, "distance"), 5, 0.6) << out;
  EXPECT_NEAR(last_number(out, "mean slope"), 1, 0.15) << out;
}

TEST_F(Examples, AutoencoderCopiesImages) {
  const std::string out = run({"autoencoder", kData, some(150), "picture.png"});
  expect_picture("picture.png", {3, 146, 146});
  if (test::kSanitized) return;
  EXPECT_LT(last_number(out, "loss"), 0.01) << out;  // 0.06 for black images
}

TEST_F(Examples, VariationalAutoencoderLearns) {
  const std::string early = run({"vae_mnist", kData, "1"}),
                    late = run({"vae_mnist", kData, some(150), "picture.png"});
  expect_picture("picture.png", {3, 146, 146});
  if (test::kSanitized) return;
  EXPECT_LT(last_number(late, "loss"), 0.5 * last_number(early, "loss")) << late;
}

TEST_F(Examples, AdversariesStayInBalance) {
  const std::string out = run({"dcgan", kData, some(20), "picture.png"});
  for (const char* player : {"discriminator", "generator"}) {
    EXPECT_GT(last_number(out, player), 0.001) << out;
    EXPECT_LT(last_number(out, player), 10) << out;
  }
  expect_picture("picture.png", {3, 146, 146});
}

class CudaExamples : public Examples {
 protected:
  void SetUp() override { test::require_cuda(); }
};

TEST_F(CudaExamples, KernelsOfOnesOwnTakeMemoryFromTheCache) {
  const std::string out = run({"own_kernels"});
  EXPECT_THAT(out, HasSubstr("402 allocations, "));
  EXPECT_LE(last_number(out, "allocations, "), 4) << out;  // by cudaMalloc
  EXPECT_THAT(out, HasSubstr("cuda:0 allocator: out of memory: requested 1.00 GiB, in use 0 B"));
  EXPECT_THAT(content("own_kernels.html"), HasSubstr("\"op\": \"squares\""));
}

}  // namespace
}  // namespace tapedeck
