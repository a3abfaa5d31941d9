// The autotuner on a GPU: what it chooses computes the same, and trials leave no traces.
#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/tuner.h>

#include "cuda_support.h"
#include "errors.h"
#include "files.h"

namespace tapedeck::test {
namespace {

using testing::Not;
using testing::StartsWith;

class CudaConvAutotune : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    set_conv_autotune(std::nullopt);
  }
  void TearDown() override {
    set_conv_autotune(std::nullopt);
    set_float32_precision(Precision::highest);
  }
};

/// Without an end, under a sanitizer too.
ConvAutotuneOptions options(const std::string& file = "", bool pinned = false) {
  return {.file = file, .pinned = pinned, .budget_seconds = 1000};
}

struct Layer {
  Shape x, w;
  ConvTranspose2dOptions options = {.stride = 2, .padding = 1};
};
const Layer kLayers[] = {{{8, 64, 16, 16}, {64, 32, 4, 4}},
                         {{4, 16, 20, 24}, {16, 8, 3, 3}, {.stride = 1, .padding = 1}},
                         {{3, 32, 9, 7}, {32, 4, 4, 4}, {.stride = 2, .padding = 1, .groups = 2}}};

/// A layer's tensors, and what its three maps make of them.
struct Maps {
  Maps(const Layer& of, DType dtype, Layout in) : layer(of), layout(in) {
    Generator generator(7);
    x = randn(layer.x, {dtype, kCuda, layout}, generator);
    w = randn(layer.w, {dtype, kCuda}, generator);
    g = conv_transpose2d_geometry(x.tensor(), w.tensor(), {}, layer.options);
    gy = randn(g.y_shape(), {dtype, kCuda, layout}, generator);
  }
  std::array<Tensor, 3> results() const {
    const auto& o = layer.options;
    return {conv_transpose2d(x, w, {}, o).tensor(),
            conv2d(gy, w, {}, {o.stride, o.padding, o.dilation, o.groups}).tensor(),
            conv_transpose2d_weight_grad(x, gy, {layer.w[2], layer.w[3]}, o).tensor()};
  }
  std::array<ConvChoice, 3> choices() const {
    const ConvExplanation e = explain(g, x.tensor().dtype(), layout, kCuda);
    return {e.forward, e.input_gradient, e.weight_gradient};
  }

  Layer layer;
  Layout layout;
  ConvTranspose2dGeometry g;
  Variable x, w, gy;
};

/// ||a - b|| / ||b||
double difference(const Tensor& a, const Tensor& b) {
  const auto p = a.to_vector<double>(), q = b.to_vector<double>();
  double apart = 0, norm = 0;
  for (std::size_t i = 0; i < q.size(); ++i) apart += (p[i] - q[i]) * (p[i] - q[i]), norm += q[i] * q[i];
  return std::sqrt(apart / norm);
}

void expect_equal_bits(const std::array<Tensor, 3>& a, const std::array<Tensor, 3>& b) {
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(a[i].to_vector<double>(), b[i].to_vector<double>()) << i;
}

TEST_F(CudaConvAutotune, MeasuresEachCallOnceAndComputesTheSame) {
  struct Kind {
    DType dtype;
    Precision precision;
    Layout layout;
    double tolerance;
  };
  Share share;
  for (const Kind& kind : {Kind{DType::float32, Precision::highest, Layout::nchw, 1e-5},
                           {DType::float32, Precision::high, Layout::nhwc, 2e-3},
                           {DType::bfloat16, Precision::highest, Layout::nhwc, 1e-2},
                           {DType::float16, Precision::highest, Layout::nchw, 1e-2},
                           {DType::float64, Precision::highest, Layout::nchw, 1e-10}}) {
    set_float32_precision(kind.precision);
    for (const Layer& layer : kLayers) {
      if (!share.takes_next()) continue;
      const Maps run(layer, kind.dtype, kind.layout);
      SCOPED_TRACE(concat(kind.dtype, " ", kind.layout, " ", run.x.tensor().shape()));
      set_conv_autotune(std::nullopt);
      const auto estimated = run.results();
      for (const ConvChoice& c : run.choices()) EXPECT_THAT(c.reason, Not(StartsWith("measured")));

      set_conv_autotune(options());
      for (const ConvChoice& c : run.choices())
        EXPECT_THAT(c.reason, Not(StartsWith("measured"))) << "explain() makes no trials";
      EXPECT_EQ(conv_tuner()->measurements(), 0);
      const auto tuned = run.results();
      const std::int64_t measurements = conv_tuner()->measurements();
      EXPECT_GE(measurements, 6);
      for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(difference(tuned[i], estimated[i]), kind.tolerance) << i;
      for (const ConvChoice& c : run.choices())
        EXPECT_THAT(c.reason, StartsWith("measured: ")) << to_string(c);
      expect_equal_bits(run.results(), tuned);
      EXPECT_EQ(conv_tuner()->measurements(), measurements);
    }
  }
}

TEST_F(CudaConvAutotune, WritesWhatPinnedChoicesRead) {
  const TemporaryFolder folder;
  const std::string path = folder / "choices";
  const Maps run(kLayers[0], DType::float32, Layout::nchw), other(kLayers[1], DType::float32, Layout::nchw);
  const auto estimated = other.results();
  set_conv_autotune(options(path));
  const auto tuned = run.results();
  const auto choices = run.choices();
  const std::string text = read_text(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);

  set_conv_autotune(options(path, true));
  expect_equal_bits(run.results(), tuned);
  expect_equal_bits(other.results(), estimated);
  EXPECT_EQ(conv_tuner()->measurements(), 0);
  const auto pinned = run.choices();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(to_string(pinned[i]), to_string(choices[i]));
    EXPECT_EQ(pinned[i].reason, choices[i].reason);
  }
  EXPECT_EQ(read_text(path), text);
}

// The file decides, whatever is fastest.
TEST_F(CudaConvAutotune, RunsWhatTheFileNames) {
  const TemporaryFolder folder;
  const std::string path = folder / "choices";
  const Maps run(kLayers[0], DType::float32, Layout::nchw);
  set_conv_autotune(options(path));
  (void)run.results();
  set_conv_autotune(std::nullopt);
  for (const ConvAlgorithm a : {ConvAlgorithm::tensor, ConvAlgorithm::direct}) {
    std::string lines;
    std::istringstream text(read_text(path));
    for (std::string line; std::getline(text, line);) {
      // The algorithm is the eighth field.
      std::size_t begin = 0;
      for (int field = 0; field < 7 && begin != std::string::npos; ++field) {
        begin = line.find('\t', begin);
        if (begin != std::string::npos) ++begin;
      }
      if (begin != std::string::npos) line.replace(begin, line.find('\t', begin) - begin, to_string(a));
      lines += line + "\n";
    }
    write_text(folder / "other", lines);
    set_conv_autotune(options(folder / "other", true));
    const auto pinned = run.results();
    for (const ConvChoice& c : run.choices()) {
      EXPECT_EQ(c.kernel, to_string(a));
      EXPECT_THAT(c.reason, StartsWith("measured: "));
    }
    set_conv_autotune(std::nullopt);
    const ConvAlgorithmScope forced(a);
    expect_equal_bits(pinned, run.results());
  }
}

TEST_F(CudaConvAutotune, LeavesForcedAlgorithmsAlone) {
  const Maps run(kLayers[0], DType::float32, Layout::nchw);
  set_conv_autotune(options());
  const ConvAlgorithmScope forced(ConvAlgorithm::direct);
  (void)run.results();
  EXPECT_EQ(conv_tuner()->measurements(), 0);
  for (const ConvChoice& c : run.choices()) EXPECT_EQ(c.reason, "forced");
}

TEST_F(CudaConvAutotune, LeavesRandomNumbersAndMemoryAlone) {
  const Maps run(kLayers[0], DType::float32, Layout::nchw);
  set_conv_autotune(options());
  (void)run.results();  // what kernels keep from their first call on is there
  set_conv_autotune(std::nullopt);
  manual_seed(3);
  const Tensor undisturbed = randn({100}, {.device = kCuda});
  const std::size_t in_use = memory_stats(kCuda).in_use;
  manual_seed(3);
  set_conv_autotune(options());
  (void)run.results();
  EXPECT_GT(conv_tuner()->measurements(), 0);
  EXPECT_EQ(default_generator().offset(), 0u);
  EXPECT_EQ(memory_stats(kCuda).in_use, in_use);
  EXPECT_EQ(randn({100}, {.device = kCuda}).to_vector<float>(), undisturbed.to_vector<float>());
}

// Gradients of a layer, whose operands both gradients share.
TEST_F(CudaConvAutotune, TunesGradientsOfATape) {
  const Maps run(kLayers[0], DType::float32, Layout::nchw);
  const auto gradients = [&] {
    const Variable x = Variable::parameter(run.x.tensor()), w = Variable::parameter(run.w.tensor());
    Tape tape;
    const Variable y = conv_transpose2d(x, w, {}, run.layer.options);
    const Variables g = tape.gradient(y, {x, w}, {.gradient = run.gy.tensor()});
    return std::array<Tensor, 3>{y.tensor(), g[0].tensor(), g[1].tensor()};
  };
  const auto estimated = gradients();
  set_conv_autotune(options());
  const auto tuned = gradients();
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(difference(tuned[i], estimated[i]), 1e-5) << i;
  const std::int64_t measurements = conv_tuner()->measurements();
  EXPECT_GT(measurements, 0);
  expect_equal_bits(gradients(), tuned);
  EXPECT_EQ(conv_tuner()->measurements(), measurements);
}

TEST_F(CudaConvAutotune, CapturedStepsTakeWhatIsKnown) {
  if (is_sanitized()) GTEST_SKIP() << "a sanitizer may run without the cache that graphs need";
  const Maps run(kLayers[0], DType::float32, Layout::nchw);
  set_conv_autotune(options());
  CapturedStep step(kCuda, [&](const Tensors& in) -> Tensors {
    return {conv_transpose2d(in[0], run.w, {}, run.layer.options).tensor()};
  });
  const auto eager = step({run.x.tensor()})[0].to_vector<double>();  // tunes
  const std::int64_t measurements = conv_tuner()->measurements();
  EXPECT_GT(measurements, 0);
  EXPECT_EQ(step({run.x.tensor()})[0].to_vector<double>(), eager);  // captures
  EXPECT_EQ(step({run.x.tensor()})[0].to_vector<double>(), eager);
  EXPECT_EQ(step.graphs(), 1u);

  // Nothing is known of what comes first while another step is captured; that choice is not kept.
  int calls = 0;
  const auto estimated = [&] {
    set_conv_autotune(std::nullopt);
    return conv2d(run.gy, run.w, {}, {.stride = 2, .padding = 1}).tensor().to_vector<double>();
  }();
  set_conv_autotune(options());
  CapturedStep late(kCuda, [&](const Tensors& in) -> Tensors {
    if (calls++ == 0) return {in[0]};
    return {conv2d(in[0], run.w, {}, {.stride = 2, .padding = 1}).tensor()};
  });
  (void)late({run.gy.tensor()});
  EXPECT_EQ(late({run.gy.tensor()})[0].to_vector<double>(), estimated);
  EXPECT_EQ(conv_tuner()->measurements(), 0);
  (void)conv2d(run.gy, run.w, {}, {.stride = 2, .padding = 1});
  EXPECT_GT(conv_tuner()->measurements(), 0);
}

}  // namespace
}  // namespace tapedeck::test
