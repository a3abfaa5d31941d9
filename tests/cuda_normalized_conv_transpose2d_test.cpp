// Prologues on a GPU: kernels that normalise x as they read it, beside batch_norm() and a convolution.
#include "normalized_conv.h"

#include "cuda_conv_support.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>

#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/context.h>
#include <tapedeck/core/memory.h>
#include <tapedeck/nn/activation.h>
#include <tapedeck/nn/conv.h>
#include <tapedeck/nn/norm.h>
#include <tapedeck/ops/conv/explain.h>

namespace tapedeck::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const NormalizedConv kOneOp = detail::normalized_conv_transpose2d, kIfWorthIt = detail::normalized_at_once;

class CudaNormalizedConv : public CudaConvTest {
 protected:
  void SetUp() override {
    CudaConvTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!has_wgmma()) GTEST_SKIP() << "this GPU has none of the kernels that apply prologues";
  }
  /// Asks for instructions, not for prologues: without these all tests would be skipped, and none fail.
  static bool has_wgmma() {
    set_conv_algorithm(ConvAlgorithm::wgmma);
    const auto g =
        conv_transpose2d_geometry(Tensor::zeros({4, 64, 9, 8}), Tensor::zeros({64, 32, 4, 4}), {}, {});
    const bool has = explain(g, DType::bfloat16, Layout::nchw, kCuda).forward.kernel == "wgmma";
    set_conv_algorithm(ConvAlgorithm::automatic);
    return has;
  }
};

/// What computes it, and how exactly.
struct Way {
  const char* name;
  DType dtype;
  Precision precision;
  double tolerance;  // 0: to the bit
};

/// Results and gradients of one op and of two.
void check_layer(NormalizedLayer layer, const Way& way, const NormalizedConv& f) {
  set_float32_precision(way.precision);
  layer.as.dtype = way.dtype, layer.as.device = kCuda;
  SCOPED_TRACE(concat(way.name, " ", layer.text()));
  const NormalizedResults one = run(layer, f), two = run(layer, two_ops);
  EXPECT_THAT(one.tape, HasSubstr("batch_norm_conv_transpose2d"));
  EXPECT_LT(one.saved, two.saved);
  ASSERT_EQ(one.tensors.size(), two.tensors.size());
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    SCOPED_TRACE(concat("tensor ", i));
    EXPECT_EQ(one.tensors[i].layout(), two.tensors[i].layout());
    if (way.tolerance == 0) {
      EXPECT_EQ(one.tensors[i].to_vector<double>(), two.tensors[i].to_vector<double>());
    } else {
      expect_near("result", one.tensors[i], two.tensors[i], way.tolerance, 4);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

// Copies for boxes: of channels that fill vectors and others, of rows of any width, by four pixels, two and
// one at a time, of few tiles and many, in groups, folded; and of halves with channels last.
TEST_F(CudaNormalizedConv, OfBoxes) {
  Share share;
  int checked = 0;
  const ConvTranspose2dOptions up{.stride = 2, .padding = 1};
  std::vector<NormalizedLayer> layers;
  for (const std::int64_t width : {8, 6, 7})
    for (const std::int64_t channels : {64, 20})
      layers.push_back({.x = {4, channels, 9, width}, .w = {channels, 32, 4, 4}, .options = up});
  layers.push_back({.x = {70, 64, 32, 36}, .w = {64, 32, 4, 4}, .options = up});  // many tiles
  layers.push_back({.x = {71, 40, 33, 34}, .w = {40, 24, 3, 3}, .options = up});
  layers.push_back({.x = {70, 72, 31, 31}, .w = {72, 24, 3, 3}, .options = up});
  layers.push_back({.x = {3, 96, 8, 8}, .w = {96, 16, 3, 3}, .options = {.groups = 2}});
  layers.push_back({.x = {5, 16, 20, 32}, .w = {16, 16, 3, 3}, .options = {.padding = 1}});
  layers.push_back({.x = {2, 64, 1, 1}, .w = {64, 32, 4, 4}});
  const Way ways[] = {{"two halves", DType::float32, Precision::highest, 3e-7},
                      {"halves", DType::float32, Precision::high, 6e-4},
                      {"bfloat16", DType::bfloat16, Precision::highest, 0},
                      {"float16", DType::float16, Precision::highest, 0}};
  for (NormalizedLayer layer : layers) {
    for (const Way& way : ways) {
      for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
        const bool whole = layer.x[1] / layer.options.groups % 8 == 0;
        // Channels that are last, and whole vectors of 16 bits, have no copy; other ones are put apart.
        if (layout == Layout::nhwc && (way.dtype != DType::float32 || !whole)) continue;
        if (layer.x[2] == 1 && way.dtype != DType::float32) continue;
        if (!share.takes_next()) continue;
        set_conv_algorithm(way.dtype == DType::float32 ? ConvAlgorithm::halves : ConvAlgorithm::boxes);
        layer.as.layout = layout;
        // Results that differ in a bit may have other signs.
        layer.norm_slope = checked % 3 * 0.25, layer.slope = way.tolerance > 0 || checked % 2 == 0 ? 1 : 0.5;
        layer.affine = checked % 5 != 4, layer.has_bias = checked % 4 != 3;
        check_layer(layer, way, kIfWorthIt);
        if (HasFailure()) return;
        ++checked;
      }
    }
  }
  EXPECT_GT(checked * test_share(), 60);
}

// Images that are copied as they are, for TF32.
TEST_F(CudaNormalizedConv, OfBoxesOfTf32) {
  set_conv_algorithm(ConvAlgorithm::boxes);
  set_float32_precision(Precision::high);
  for (const std::int64_t width : {8, 7}) {
    const Tensor x = Tensor::zeros({4, 64, 9, width}, {.device = kCuda}),
                 w = Tensor::zeros({64, 32, 4, 4}, {.device = kCuda});
    const auto g = conv_transpose2d_geometry(x, w, {}, {.stride = 2, .padding = 1});
    EXPECT_TRUE(cu::applies_prologue(g, x, false, false));
    check_layer({.x = {4, 64, 9, width}, .w = {64, 32, 4, 4}, .options = {.stride = 2, .padding = 1}},
                {"TF32", DType::float32, Precision::high, 6e-4}, kOneOp);
  }
}

// In evaluation, too, where scaled halves ask for a magnitude that nobody knows.
TEST_F(CudaNormalizedConv, OfThinLayers) {
  set_conv_algorithm(ConvAlgorithm::thin);
  Share share;
  int checked = 0;
  for (const Way& way : {Way{"two parts", DType::float32, Precision::highest, 0},
                         Way{"TF32", DType::float32, Precision::high, 0},
                         Way{"bfloat16", DType::bfloat16, Precision::highest, 0},
                         Way{"float16", DType::float16, Precision::highest, 0}}) {
    for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (const std::int64_t channels : {16, 24, 40, 64}) {
        for (const std::int64_t taps : {2, 3, 4}) {
          if (!share.takes_next()) continue;
          const std::int64_t widths[] = {16, 14, way.dtype == DType::float32 ? 15 : 18};
          const std::int64_t width = widths[checked / 3 % 3];
          const bool words = way.dtype == DType::float32 && layout == Layout::nchw && width % 4 != 0;
          NormalizedLayer layer{.x = {3, channels, 9, width},
                                .w = {channels, 1 + checked % 4, taps, taps},
                                .options = {.stride = 2, .padding = 1},
                                .norm_slope = checked % 3 * 0.25,
                                .slope = checked % 2 == 0 ? 1.0 : 0.5,
                                .training = checked % 4 != 1,
                                .affine = checked % 5 != 4,
                                .as = {DType::float32, kCuda, layout}};
          check_layer(layer, way, words ? kOneOp : kIfWorthIt);  // then the weight's gradient is thin
          if (HasFailure()) return;
          ++checked;
        }
      }
    }
  }
  EXPECT_GT(checked * test_share(), 90);
}

// Over bands (thin_bands.h), whose blocks go through several of them and parts of channels.
TEST_F(CudaNormalizedConv, OfThinBands) {
  set_conv_algorithm(ConvAlgorithm::thin);
  for (const Way& way : {Way{"two parts", DType::float32, Precision::highest, 0},
                         Way{"TF32", DType::float32, Precision::high, 0},
                         Way{"bfloat16", DType::bfloat16, Precision::highest, 0}}) {
    for (const std::int64_t taps : {3, 4}) {
      const NormalizedLayer layer{.x = {40, 80, 20, 24},
                                  .w = {80, 2, taps, taps},
                                  .options = {.stride = taps - 2, .padding = 1},
                                  .norm_slope = 0.25,
                                  .slope = 1,
                                  .training = true,
                                  .affine = true,
                                  .as = {DType::float32, kCuda, Layout::nchw}};
      check_layer(layer, way, kIfWorthIt);
      if (HasFailure()) return;
    }
  }
}

// Other kernels get x normalised.
TEST_F(CudaNormalizedConv, OfKernelsWithoutPrologues) {
  const NormalizedLayer layer{
      .x = {4, 32, 9, 8}, .w = {32, 32, 4, 4}, .options = {.stride = 2, .padding = 1}};
  for (const auto& [algorithm, dtype] :
       {std::pair(ConvAlgorithm::windows, DType::float32),
        std::pair(ConvAlgorithm::gathered, DType::bfloat16), std::pair(ConvAlgorithm::simt, DType::float64),
        std::pair(ConvAlgorithm::direct, DType::float16),
        std::pair(ConvAlgorithm::channels_last, DType::bfloat16),
        std::pair(ConvAlgorithm::reference, DType::float32)}) {
    set_conv_algorithm(algorithm);
    check_layer(layer, {"", dtype, Precision::highest, 0}, kOneOp);
    const Tensor x = Tensor::zeros(layer.x, {dtype, kCuda}), w = Tensor::zeros(layer.w, {dtype, kCuda});
    Tape tape;
    EXPECT_FALSE(
        kIfWorthIt({.x = x, .options = {.training = true}}, Variable::parameter(w), {}, {}, 1).defined());
  }
}

// The bound of what a prologue makes is one: scaled halves overflow at twice the largest magnitude. A value
// far from all others; channels of one value, whose mean is rounded; large weights; slopes above 1.
TEST_F(CudaNormalizedConv, MagnitudesAreBounded) {
  set_conv_algorithm(ConvAlgorithm::halves);
  const auto at = [](const Tensor& x, std::int64_t channel) { return x.data<double>() + channel * 9 * 8; };
  const std::function<void(const Tensor&)> changes[] = {[&](const Tensor& x) { at(x, 3)[17] = 1e6; },
                                                        [&](const Tensor& x) {
                                                          for (std::int64_t n = 0; n < 4; ++n)
                                                            for (int i = 0; i < 9 * 8; ++i)
                                                              at(x, n * 64 + 5)[i] = 12345.678;
                                                        },
                                                        [&](const Tensor& x) {
                                                          for (std::int64_t i = 0; i < x.count(); ++i)
                                                            x.data<double>()[i] = i == 77 ? -3e4 : 0;
                                                        },
                                                        [&](const Tensor& x) {
                                                          for (std::int64_t i = 0; i < x.count(); ++i)
                                                            x.data<double>()[i] *= 1e-12;
                                                        }};
  for (const Precision precision : {Precision::highest, Precision::high}) {
    for (const auto& change : changes) {
      for (const double slope : {0.0, 8.0, -20.0}) {
        // Errors of the halves are beside the bound, which may be 17 times what there is here.
        check_layer({.x = {4, 64, 9, 8},
                     .w = {64, 32, 4, 4},
                     .options = {.stride = 2, .padding = 1},
                     .norm_slope = slope,
                     .change = change},
                    {"", DType::float32, precision, precision == Precision::high ? 2e-3 : 2e-6}, kIfWorthIt);
        if (HasFailure()) return;
      }
    }
  }
}

// A bound in place of the largest magnitude costs no accuracy, against float64.
TEST_F(CudaNormalizedConv, IsAsAccurateAsTwoOps) {
  const NormalizedLayer layer{.x = {16, 128, 16, 16},
                              .w = {128, 64, 4, 4},
                              .options = {.stride = 2, .padding = 1},
                              .tracks = false,
                              .as = {DType::float32, kCuda}};
  NormalizedLayer exact_layer = layer;
  exact_layer.as = {DType::float64};
  exact_layer.change = [](const Tensor& x) { x.copy_(x.to(DType::float32).to(DType::float64)); };
  NormalizedLayer rounded = layer;
  rounded.change = exact_layer.change;
  const auto exact = run(exact_layer, two_ops).tensors;
  set_conv_algorithm(ConvAlgorithm::halves);
  const auto one = run(rounded, kIfWorthIt).tensors, two = run(rounded, two_ops).tensors;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double of_one = relative_error(one[i].to(Device{}), exact[i]),
                 of_two = relative_error(two[i].to(Device{}), exact[i]);
    EXPECT_LT(of_one, of_two + 1e-7) << i << " " << of_one << " " << of_two;
  }
}

// A channel that is not finite leaves the scale of others alone: of another group's results nothing is lost.
TEST_F(CudaNormalizedConv, OtherGroupsOfWhatIsNotFinite) {
  set_conv_algorithm(ConvAlgorithm::halves);
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), HUGE_VAL}) {
    const NormalizedLayer layer{.x = {3, 96, 8, 8},
                                .w = {96, 16, 3, 3},
                                .options = {.groups = 2},
                                .tracks = false,
                                .as = {DType::float32, kCuda},
                                .change = [&](const Tensor& x) { x.data<double>()[5 * 64 + 3] = value; }};
    const NormalizedResults one = run(layer, kIfWorthIt), two = run(layer, two_ops);
    const auto second = [](const NormalizedResults& r, std::size_t i, int dim) {
      const Tensor t = r.tensors[i].to(Device{}), turned = dim == 0 ? t : permute(t, {1, 0, 2, 3}).tensor();
      return turned.slice(turned.size(0) / 2, turned.size(0)).clone();
    };
    expect_near("y", second(one, 0, 1), second(two, 0, 1), 3e-7, 4);
    expect_near("weight", second(one, 4, 0), second(two, 4, 0), 3e-7, 4);
  }
}

// Of pixels and channels that do not exist nothing becomes, in particular no infinity, which float16 makes of
// a large mean.
TEST_F(CudaNormalizedConv, OfPixelsThatDoNotExist) {
  set_conv_algorithm(ConvAlgorithm::thin);
  struct Kind {
    Layout layout;
    std::int64_t width;
  };
  for (const Kind& kind : {Kind{Layout::nchw, 8}, Kind{Layout::nchw, 14}, Kind{Layout::nhwc, 8}})
    for (const double value : {300.0, -300.0})
      check_layer({.x = {3, 24, 9, kind.width},
                   .w = {24, 3, 4, 4},
                   .options = {.stride = 2, .padding = 1},
                   .norm_slope = 0.25,
                   .affine = false,
                   .as = {DType::float32, kCuda, kind.layout},
                   .change =
                       [&](const Tensor& x) {
                         for (std::int64_t n = 0; n < 3; ++n)
                           for (std::int64_t i = 0; i < 9 * kind.width; ++i)
                             x.data<double>()[(n * 24 + 23) * 9 * kind.width + i] = value;
                       }},
                  {"", DType::float16, Precision::highest, 0}, kIfWorthIt);
}

// Thin kernels read whole vectors here, which a view may begin beside.
TEST_F(CudaNormalizedConv, OfAView) {
  const Shape shape{3, 64, 8, 8};
  const Tensor all = randn({shape.count() + 1}, {.device = kCuda}),
               x = all.slice(1, all.count()).reshape(shape), w = randn({64, 3, 4, 4}, {.device = kCuda});
  const BatchNormCall call{.x = x, .options = {.training = true, .negative_slope = 0}};
  const ConvTranspose2dOptions up{.stride = 2, .padding = 1};
  EXPECT_FALSE(kIfWorthIt(call, w, {}, up, 1).defined());
  expect_near("y", kOneOp(call, w, {}, up, 1).tensor(), two_ops(call, w, {}, up, 1).tensor(), 1e-6, 4);
}

// Parameters are cast as the convolution alone would cast them.
TEST_F(CudaNormalizedConv, UnderAutocast) {
  set_conv_algorithm(ConvAlgorithm::thin);  // which applies prologues
  const Tensor x = randn({3, 64, 8, 8}, {.device = kCuda});
  const auto gradients = [&](const NormalizedConv& f, DType dtype) {
    const Variable w = Variable::parameter(Tensor::full({64, 3, 4, 4}, 0.3, {.device = kCuda}));
    Tape tape;
    const Autocast half(DType::bfloat16);
    const Variable y = f({.x = x.to(dtype), .options = {.training = true}}, w, {}, {.stride = 2}, 1);
    if (!y.defined()) return std::vector<float>();
    EXPECT_EQ(y.dtype(), DType::bfloat16);
    return tape.gradient(sum(y * y), {w})[0].tensor().to_vector<float>();
  };
  EXPECT_EQ(gradients(kIfWorthIt, DType::bfloat16), gradients(two_ops, DType::bfloat16));
  EXPECT_TRUE(gradients(kIfWorthIt, DType::float32).empty());
}

TEST_F(CudaNormalizedConv, OfTapesWalkedAgain) {
  set_conv_algorithm(ConvAlgorithm::thin);  // which applies prologues
  const Variable x = Variable::parameter(randn({3, 64, 8, 8}, {.device = kCuda})),
                 w = Variable::parameter(randn({64, 3, 4, 4}, {.device = kCuda}));
  Tape tape;
  const Variable y = kIfWorthIt({.x = x, .options = {.training = true}}, w, {}, {.stride = 2}, 1);
  const Tensor gy = randn(y.shape(), {.device = kCuda});
  const Variables first = tape.gradient(y, {x, w}, {.gradient = gy, .retain = true}),
                  second = tape.gradient(y, {x, w}, {.gradient = gy});
  for (std::size_t i = 0; i < 2; ++i)
    EXPECT_EQ(first[i].tensor().to_vector<float>(), second[i].tensor().to_vector<float>());
}

// Statistics bound what follows from them on the stream that they were made on; others find it themselves.
TEST_F(CudaNormalizedConv, OfGradientsOnAnotherStream) {
  set_conv_algorithm(ConvAlgorithm::halves);
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  {
    const Context second(kCuda, other);
    const Variable x = randn({32, 64, 8, 8}, {.device = kCuda}),
                   w = Variable::parameter(randn({64, 32, 4, 4}, {.device = kCuda}));
    Tape tape;
    const Variable y = kIfWorthIt({.x = x, .options = {.training = true, .negative_slope = 0}}, w, {},
                                  {.stride = 2, .padding = 1}, 1);
    ASSERT_TRUE(y.defined());
    const Tensor gy = randn(y.shape(), {.device = kCuda});
    // What it takes tells whether x is normalised as it is copied, or before.
    const auto gradient = [&](std::size_t& peak) {
      reset_peak_memory_stats(kCuda);
      const std::size_t before = memory_stats(kCuda).in_use;
      const Variable g = tape.gradient(y, {w}, {.gradient = gy, .retain = true})[0];
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      peak = memory_stats(kCuda).peak_in_use - before;
      return g;
    };
    std::size_t peak_here = 0, peak_there = 0;
    gradient(peak_here);
    const Variable here = gradient(peak_here);
    Variable there;
    {
      const ContextScope scope(second);
      there = gradient(peak_there);
    }
    EXPECT_GE(peak_there, peak_here + x.tensor().bytes() / 2);
    expect_near("gradient", there.tensor(), here.tensor(), 3e-7, 4);
  }
  retire_stream(kCuda, other);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
}

TEST_F(CudaNormalizedConv, HasGradientsOfBothOrders) {
  const auto leaf = [](const Shape& shape) {
    return Variable::parameter(random_tensor(shape, {DType::float64}, 0.5, 1.5, 4).to(kCuda));
  };
  const auto f = [](const Variables& v) {
    return kOneOp({v[0], v[1], v[2], {}, {}, {.training = true, .negative_slope = 0.2}}, v[3], v[4],
                  {.stride = 2}, 0.3);
  };
  const Variables inputs{leaf({2, 2, 2, 2}), leaf({2}), leaf({2}), leaf({2, 2, 2, 1}), leaf({2})};
  const GradcheckOptions options{.elements = is_sanitized() ? 1 : 0};
  gradcheck(f, inputs, options);
  gradgradcheck(f, inputs, options);
}

TEST_F(CudaNormalizedConv, IsFoundAnewByEachReplay) {
  for (const ConvAlgorithm algorithm : {ConvAlgorithm::halves, ConvAlgorithm::thin}) {
    set_conv_algorithm(algorithm);
    const Shape of_w = algorithm == ConvAlgorithm::thin ? Shape{64, 3, 4, 4} : Shape{64, 32, 4, 4};
    const auto f = [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
      const Variable x = Variable::parameter(in[0]), w = Variable::parameter(in[1]),
                     scale = Variable::parameter(in[2]);
      Tape tape;
      const Variable y =
          kIfWorthIt({.x = x, .weight = scale, .options = {.training = true, .negative_slope = 0}}, w, {},
                     {.stride = 2, .padding = 1}, 1);
      const Variables g = tape.gradient(y, {x, w, scale}, {.gradient = in[3]});
      return {y.tensor(), g[0].tensor(), g[1].tensor(), g[2].tensor()};
    };
    CapturedStep step(kCuda, f);
    const auto normal = [](const Shape& shape) { return randn(shape, {.device = kCuda}); };
    const Tensor w = normal(of_w);
    for (const double factor : {1.0, 1e6, 1e-6}) {
      const std::vector<Tensor> in{(normal({8, 64, 8, 8}) * factor).tensor(), w,
                                   (normal({64}) * factor).tensor(), normal({8, of_w[1], 16, 16})};
      const std::vector<Tensor> made = step(in), eager = f(in);
      for (std::size_t i = 0; i < made.size(); ++i)
        EXPECT_EQ(made[i].to_vector<float>(), eager[i].to_vector<float>()) << i << " " << factor;
    }
  }
}

// A Sequential finds the pair by itself, with activations after each; not where hooks look between them.
TEST_F(CudaNormalizedConv, OfModules) {
  set_conv_algorithm(ConvAlgorithm::thin);  // which applies prologues
  Generator generator(3);
  nn::Sequential model(
      nn::BatchNorm2d({.num_features = 64}), nn::ReLU(),
      nn::ConvTranspose2d({.in_channels = 64, .out_channels = 3, .kernel_size = 4, .stride = 2}, generator),
      nn::LeakyReLU({.negative_slope = 0.1}), nn::BatchNorm2d({.num_features = 3}));
  model.to(kCuda);
  const Tensor x = randn({8, 64, 16, 16}, {}, generator).to(kCuda);
  const auto step = [&] {
    model.zero_grad();
    Tape tape;
    const Variable y = model(x);
    tape.backward(y, {.gradient = y.tensor().clone()});
    std::vector<std::vector<float>> made{y.tensor().to_vector<float>()};
    for (const Variable& p : model.parameters()) made.push_back(p.grad().tensor().to_vector<float>());
    return std::pair(made, tape.to_text());
  };
  const auto [one, of_one] = step();
  EXPECT_THAT(of_one, HasSubstr("batch_norm_conv_transpose2d"));
  EXPECT_THAT(of_one, Not(HasSubstr("leaky")));
  EXPECT_EQ(dynamic_cast<nn::BatchNorm2d&>(model[0]).num_batches_tracked.item(), 1);
  int seen = 0;
  model[0].register_forward_hook([&](const nn::Module&, const Variable&, const Variable&) {
    ++seen;
    return Variable();
  });
  const auto [two, of_two] = step();
  EXPECT_EQ(seen, 1);
  EXPECT_THAT(of_two, Not(HasSubstr("batch_norm_conv_transpose2d")));
  EXPECT_EQ(one, two);
  nn::Sequential of_sequences(nn::BatchNorm1d({.num_features = 64}),
                              nn::ConvTranspose2d({.in_channels = 64, .out_channels = 3, .kernel_size = 4}));
  of_sequences.to(kCuda);
  EXPECT_THAT([&] { of_sequences(x); },
              ::testing::ThrowsMessage<Error>(HasSubstr("BatchNorm1d: x has shape")));
  model[0].clear_hooks();
  model.eval();
  const Tensor of_both = model(x).tensor();
  Variable y = x;
  for (std::size_t i = 0; i < model.size(); ++i) y = model[i](y);
  EXPECT_EQ(of_both.to_vector<float>(), y.tensor().to_vector<float>());
}

}  // namespace
}  // namespace tapedeck::test
