// The convolution family on a GPU: every algorithm, dtype, layout and precision against the definition and
// against the CPU in float64; the same bits each time.
#include "cuda_conv_support.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <tuple>

#include <tapedeck/core/memory.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/explain.h>
#include <tapedeck/ops/conv/matrix.h>
#include <tapedeck/ops/conv/operand_copies.h>

namespace tapedeck::test {
namespace {

constexpr DType kTypes[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16};

class CudaConv : public CudaConvTest {};

/// The algorithm that TAPEDECK_CONV_ALGORITHM names, or null.
const char* only_algorithm() {
  return std::getenv("TAPEDECK_CONV_ALGORITHM");
}

/// Whether an algorithm that is forced computes any of a layer. What counts as `automatic` has runs of its
/// own under the sanitizers, each of which has one algorithm.
bool is_of_share(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  const ConvAlgorithm forced = conv_algorithm();
  if (std::getenv("CUDA_FORCE_PTX_JIT") != nullptr) {  // cuBLAS has none
    const ConvExplanation e = cu::explain_on(g, dtype, layout, false);
    for (const ConvChoice& c : {e.forward, e.input_gradient, e.weight_gradient})
      if (c.kernel == "matrix" || c.kernel == "columns") return false;
  }
  if (!is_sanitized() || forced == ConvAlgorithm::automatic) return true;
  if (forced == ConvAlgorithm::halves && dtype != DType::float32) return false;
  if (forced == ConvAlgorithm::rows && (dtype == DType::float64 || layout == Layout::nhwc)) return false;
  if (forced == ConvAlgorithm::gathered && layout == Layout::nhwc) return false;
  const std::string wanted = to_string(is_way_of_wgmma(forced) ? ConvAlgorithm::wgmma : forced);
  const ConvExplanation e = cu::explain_on(g, dtype, layout, true);
  const auto is_wanted = [&](const ConvChoice& c) { return c.kernel == wanted; };
  return is_wanted(e.forward) || is_wanted(e.input_gradient) || is_wanted(e.weight_gradient);
}
bool is_of_share(const ConvCase& c, DType dtype) {
  return is_of_share(geometry_of(c), dtype, c.nhwc ? Layout::nhwc : Layout::nchw);
}
bool is_of_share(const LayerCase& c, DType dtype, Layout layout) {
  return is_of_share(conv_transpose2d_geometry(Tensor::zeros(c.x), Tensor::zeros(c.w), {}, c.options), dtype,
                     layout);
}

/// Calls f for each algorithm and precision, or for the one that TAPEDECK_CONV_ALGORITHM names.
template <class F>
void for_each_algorithm(F f) {
  const char* const only = only_algorithm();
  for (const ConvAlgorithm algorithm : kGpuAlgorithms) {
    for (Precision precision : {Precision::highest, Precision::high}) {
      const bool multiplies = algorithm == ConvAlgorithm::matrix || algorithm == ConvAlgorithm::columns ||
                              algorithm == ConvAlgorithm::thin || algorithm == ConvAlgorithm::strip ||
                              algorithm == ConvAlgorithm::tensor || algorithm == ConvAlgorithm::wgmma ||
                              is_way_of_wgmma(algorithm) || algorithm == ConvAlgorithm::channels_last ||
                              algorithm == ConvAlgorithm::automatic;
      if (precision == Precision::high && !multiplies) continue;
      if (only != nullptr && algorithm != parse_conv_algorithm(only)) continue;
      set_conv_algorithm(algorithm);
      set_float32_precision(precision);
      SCOPED_TRACE(concat(algorithm, precision == Precision::high ? " high" : " highest"));
      f();
    }
  }
  set_conv_algorithm(ConvAlgorithm::automatic);
  set_float32_precision(Precision::highest);
}

// Integers are exact in TF32 too. A sanitizer's share are the first cases that its algorithm computes.
template <class Check>
void sweep_algorithms(std::uint64_t seed, int cases, std::int64_t size, std::int64_t channels,
                      Check check_case, std::int64_t unit = 1) {
  for_each_algorithm([&] {
    int left = std::max(1, cases / test_share());
    const auto check_share = [&](const ConvCase& c, ConvRandom& random, const TensorOptions& to) {
      if (left == 0 || !is_of_share(c, to.dtype)) return;
      --left;
      check_case(c, random, to);
    };
    sweep(seed, cases, size, channels, check_share, {std::begin(kTypes), std::end(kTypes)}, kCuda, unit);
  });
}

TEST_F(CudaConv, TransposedAtTheEdges) {
  sweep_algorithms(1, 300, 6, 3, check_transposed);
}
TEST_F(CudaConv, TransposedWithBlocks) {
  sweep_algorithms(2, 100, 12, 24, check_transposed);
}
TEST_F(CudaConv, TransposedWithPanels) {
  sweep_algorithms(5, 30, 5, 90, check_transposed);
}
TEST_F(CudaConv, TransposedOfEights) {
  sweep_algorithms(7, 50, 8, 3, check_transposed, 8);
}
TEST_F(CudaConv, PlainAtTheEdges) {
  sweep_algorithms(3, 300, 6, 3, check_plain);
}
TEST_F(CudaConv, PlainWithBlocks) {
  sweep_algorithms(4, 100, 12, 24, check_plain);
}
TEST_F(CudaConv, PlainWithPanels) {
  sweep_algorithms(6, 30, 5, 90, check_plain);
}
TEST_F(CudaConv, PlainOfEights) {
  sweep_algorithms(8, 50, 8, 3, check_plain, 8);
}

// `run` rounds its operands to the type, so the half types' results are compared with float64 results of the
// rounded operands; what is left is the rounding of the result, half a unit in the last place at most.
// float32 sums one term after another are off by some 2e-8 times the square root of their number.
TEST_F(CudaConv, RealNumbersAgreeWithTheCpu) {
  Share share;
  int number = 0;
  for (const LayerCase& c : kLayerCases) {
    for (DType dtype : kTypes) {
      const Results exact = run(c, Layout::nchw, dtype, Device{}, true);
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        for_each_algorithm([&] {
          SCOPED_TRACE(concat(c.name, " ", layout, " ", dtype));
          if (!is_of_share(c, dtype, layout) || !share.takes_next()) return;
          const double tolerance = dtype == DType::float64 ? 1e-14
                                   : dtype == DType::float32
                                       ? (float32_precision() == Precision::high ? 6e-4 : 2e-6)
                                   : dtype == DType::bfloat16 ? 3e-3
                                                              : 4e-4;
          const Layout of_weight = number++ % 2 == 0 ? layout : Layout::nchw;
          const Results got = run(c, layout, dtype, kCuda, false, of_weight);
          EXPECT_EQ(to_string(got.gw.layout()), to_string(of_weight));
          expect_near("y", got.y, exact.y, tolerance);
          expect_near("gx", got.gx, exact.gx, tolerance);
          expect_near("gw", got.gw, exact.gw, tolerance);
          expect_near("gb", got.gb, exact.gb, tolerance);
        });
      }
    }
  }
}

// One pixel to a map of the kernel's size is a matrix product; what only looks like it is not. Integers, that
// nothing is rounded but results; what is not written stays NaN.
TEST_F(CudaConv, OnePixelToAMap) {
  struct Layer {
    ConvCase c;
    bool is_matrix;
  };
  const Layer layers[] = {
      {{.n = 128, .ci = 100, .co = 24, .kernel = {4, 4}}, true},
      {{.n = 33, .ci = 7, .co = 5, .kernel = {3, 5}, .stride = {2, 3}}, true},
      {{.n = 1, .ci = 64, .co = 32, .kernel = {7, 1}, .dilation = {1, 3}}, true},
      {{.n = 9, .ci = 40, .co = 1, .kernel = {2, 2}}, true},
      {{.n = 65, .ci = 1, .co = 8, .kernel = {4, 4}}, true},
      {{.n = 16, .ci = 24, .co = 40, .stride = {9, 1}}, true},
      {{.n = 5, .ci = 8, .co = 6, .kernel = {3, 3}, .stride = {2, 2}, .output_padding = {1, 0}}, false},
      {{.n = 5, .ci = 8, .co = 6, .kernel = {3, 3}, .padding = {0, 1}}, false},
      {{.n = 5, .ci = 8, .co = 6, .kernel = {3, 3}, .dilation = {2, 1}}, false},
      {{.n = 5, .ci = 8, .co = 6, .groups = 2, .kernel = {3, 3}}, false},
      {{.n = 5, .ci = 8, .co = 6, .in = {1, 2}, .kernel = {3, 3}}, false},
      {{.n = 5, .ci = 8, .co = 6, .kernel = {3, 3}, .nhwc = true}, true},
      {{.n = 40, .ci = 65, .co = 32, .kernel = {4, 4}, .nhwc = true}, true},
      {{.n = 40, .ci = 65, .co = 32, .kernel = {4, 4}, .nhwc = true, .weight_nhwc = true}, true},
      {{.n = 128, .ci = 100, .co = 24, .kernel = {4, 4}, .weight_nhwc = true}, true},
  };
  Share share;
  ConvRandom random(29);
  for (const Layer& layer : layers) {
    for (ConvAlgorithm algorithm : {ConvAlgorithm::matrix, ConvAlgorithm::automatic}) {
      for (DType dtype : kTypes) {
        for (Precision precision : {Precision::highest, Precision::high}) {
          if (!share.takes_next() || (precision == Precision::high && dtype != DType::float32)) continue;
          ConvCase c = layer.c;
          c.bias = algorithm == ConvAlgorithm::matrix;
          SCOPED_TRACE(concat(c.text(), " ", dtype, " ", algorithm));
          set_conv_algorithm(algorithm);
          set_float32_precision(precision);
          const ConvExplanation e =
              explain(geometry_of(c), dtype, c.nhwc ? Layout::nhwc : Layout::nchw, kCuda);
          for (const ConvChoice& choice : {e.forward, e.input_gradient, e.weight_gradient})
            EXPECT_EQ(choice.kernel == "matrix", layer.is_matrix) << choice.kernel;
          poison_memory(100000);
          check_transposed(c, random, {dtype, kCuda});
          check_plain(c, random, {dtype, kCuda});
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Its results are rectified while the bias is added, or after that.
TEST_F(CudaConv, MatricesAreRectified) {
  ConvRandom random(30);
  const auto integers = [&](const Shape& shape, DType dtype) {
    return Tensor::from(random.integers(static_cast<std::size_t>(shape.count())), shape).to(dtype).to(kCuda);
  };
  for (DType dtype : kTypes) {
    const Tensor x = integers({20, 12, 1, 1}, dtype), w = integers({12, 9, 4, 3}, dtype),
                 b = integers({9}, dtype), y = integers({20, 9, 4, 3}, dtype), to_x = integers({12}, dtype);
    for (double slope : {0.0, 0.25}) {
      SCOPED_TRACE(concat(dtype, " ", slope));
      set_conv_algorithm(ConvAlgorithm::matrix);
      const Tensor up = conv_transpose2d(x, w, b, {}, slope).tensor(),
                   down = conv2d(y, w, to_x, {}, slope).tensor();
      set_conv_algorithm(ConvAlgorithm::reference);
      EXPECT_EQ(up.to_vector<double>(), conv_transpose2d(x, w, b, {}, slope).tensor().to_vector<double>());
      EXPECT_EQ(down.to_vector<double>(), conv2d(y, w, to_x, {}, slope).tensor().to_vector<double>());
    }
  }
}

// Products with all taps are made of some images at a time, the last time of fewer; groups, strides of both
// kinds, results that are rectified, one group in either layout. Integers, against the definition.
TEST_F(CudaConv, ColumnsOfSomeImagesAtATime) {
  ConvRandom random(31);
  struct Columns {
    Shape x, w;
    ConvTranspose2dOptions options;
  };
  // The definition is slow: under a sanitizer few images more than are taken at a time.
  const bool few = is_sanitized();
  const Columns layers[] = {{{few ? 70 : 150, 6, 33, 47}, {6, 2, 5, 6}, {{1, 2}, {2, 3}, {0, 1}, 1}},
                            {{few ? 25 : 130, 8, 40, 31}, {8, 1, 8, 7}, {{3, 1}, 0, {1, 0}, {1, 2}, 4}},
                            // Pixels of y that lie beside those of x.
                            {{4, 5, 9, 11}, {5, 4, 1, 1}, {1, 1, 2, 3}},
                            // Few taps, of four columns a thread, and of many lines a block.
                            {{60, 6, 33, 47}, {6, 2, 2, 3}, {{2, 3}}},
                            {{64, 2, 136, 1}, {2, 64, 2, 1}, {{2, 1}}},
                            // Made by convolutions: forward, the input's gradient with sets, and of groups.
                            {{few ? 12 : 20, 96, 40, 48}, {96, 10, 5, 4}, {{1, 3}, {1, 2}, 0, {2, 1}, 2}},
                            {{few ? 22 : 33, 4, 39, 45}, {4, 64, 6, 5}, {2, {3, 1}, 1, 1}},
                            {{7, 2, 41, 45}, {2, 64, 9, 8}, {{1, 5}, 0, {0, 1}, 1, 2}}};
  std::map<std::string, int> variants;
  for (const Columns& layer : layers) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (double slope : {1.0, 0.25}) {
        SCOPED_TRACE(concat(layer.x, " ", layout, " ", slope));
        const auto integers = [&](const Shape& shape, Layout of) {
          return Tensor::from(random.integers(static_cast<std::size_t>(shape.count())), shape)
              .to(DType::float32)
              .to(of)
              .to(kCuda);
        };
        const Tensor x = integers(layer.x, layout), w = integers(layer.w, Layout::nchw),
                     b = integers({layer.w[1] * layer.options.groups}, Layout::nchw),
                     to_x = integers({layer.x[1]}, Layout::nchw);
        const auto g = conv_transpose2d_geometry(x, w, b, layer.options);
        {
          const ConvAlgorithmScope scope(ConvAlgorithm::columns);
          const ConvExplanation e = cu::explain_on(g, DType::float32, layout, true);
          const bool computes = g.groups == 1 || layout == Layout::nchw;
          EXPECT_EQ(e.forward.kernel == "columns", computes) << e.forward.kernel;
          const bool computes_input = layout == Layout::nchw || (computes && g.ci <= 16);
          EXPECT_EQ(e.input_gradient.kernel == "columns", computes_input) << e.input_gradient.kernel;
          EXPECT_EQ(e.weight_gradient.kernel == "columns", layout == Layout::nchw)
              << e.weight_gradient.kernel;
          ++variants["forward " + e.forward.variant];
          ++variants["input " + e.input_gradient.variant];
          if (!computes) continue;
        }
        const Tensor gy = integers(g.y_shape(), layout);
        const auto both = [&](ConvAlgorithm algorithm) {
          set_conv_algorithm(algorithm);
          const Tensor y = Tensor::empty_like(gy), gx = Tensor::empty_like(x), gw = Tensor::empty_like(w);
          cu::conv_transpose2d(g, x, w, b, y, slope);
          cu::conv2d(g, gy, w, to_x, gx, slope);
          cu::conv_transpose2d_weight_grad(g, x, gy, gw);
          return std::tuple(y.to_vector<float>(), gx.to_vector<float>(), gw.to_vector<float>());
        };
        EXPECT_EQ(both(ConvAlgorithm::columns), both(ConvAlgorithm::reference));
      }
    }
  }
  // Both slopes of nchw.
  EXPECT_EQ(variants["forward products by a convolution"], 2);
  EXPECT_EQ(variants["input products by a convolution"], 4);
  EXPECT_EQ(variants["input gathered pixels"], 10);
}

// Rows of matrices that are no whole vectors get room behind them where products are large. Integers, of
// which results alone are rounded; what is not written stays NaN.
TEST_F(CudaConv, ColumnsWithRoomBehindRows) {
  ConvRandom random(32);
  struct Columns {
    Shape x, w;
    ConvTranspose2dOptions options;
    bool rows, pixels;                              // whether these have room, in half types
    bool plain_rows = false, plain_pixels = false;  // and of conv2d's products that are added up behind
  };
  const Columns layers[] = {
      {{64, 100, 31, 31}, {100, 17, 5, 3}, {{1, 2}, {2, 0}, 0, {1, 2}}, true, true},
      {{192, 64, 28, 31}, {64, 18, 3, 3}, {{2, 1}, 1, {1, 0}, 1, 2}, true, true},
      {{80, 96, 32, 24}, {96, 3, 5, 3}, {2, {2, 1}, 1, 1}, true, false},
      {{64, 64, 29, 33}, {64, 32, 3, 2}, {{1, 3}}, false, true},
      {{160, 1, 16, 31}, {1, 96, 3, 3}, {{1, 4}, {1, 0}, {0, 1}}, false, false, true, false},
      {{24, 16, 14, 15}, {16, 128, 8, 4}, {{1, 4}, {0, 1}, {0, 1}}, false, false, false, true},
      {{24, 16, 14, 15}, {16, 128, 8, 4}, {{1, 4}, {0, 1}}, false, false}};
  for (const Columns& layer : layers) {
    for (DType dtype : {DType::bfloat16, DType::float16, DType::float32}) {
      if (is_sanitized() && dtype != DType::bfloat16) continue;
      SCOPED_TRACE(concat(layer.x, " ", dtype));
      set_float32_precision(Precision::high);
      const auto integers = [&](const Shape& shape) {
        return Tensor::from(random.integers(static_cast<std::size_t>(shape.count())), shape)
            .to(dtype)
            .to(kCuda);
      };
      const Tensor x = integers(layer.x), w = integers(layer.w),
                   b = integers({layer.w[1] * layer.options.groups}), to_x = integers({layer.x[1]});
      const auto g = conv_transpose2d_geometry(x, w, b, layer.options);
      const conv_columns::Gathered half(g, 2, conv_columns::multiple_of(2, 1));
      EXPECT_EQ(half.padded.rows != half.rows(g), layer.rows);
      EXPECT_EQ(half.padded.line != half.pixels, layer.pixels);
      const conv_columns::Products forward(g, true, 4, conv_columns::multiple_of(2, 1));
      EXPECT_EQ(forward.padded.rows != forward.rows(), layer.rows && g.groups == 1);
      EXPECT_EQ(forward.padded.line != forward.pixels, layer.pixels && g.groups == 1);
      if (layer.x[1] <= conv_columns::kMostChannels) {
        EXPECT_FALSE(conv_columns::gathers(g, Layout::nchw, 2, 1));
        for (int bytes : {2, 4}) {
          const conv_columns::Products plain(g, false, 4, conv_columns::multiple_of(bytes, 1));
          EXPECT_EQ(plain.padded.rows != plain.rows(), layer.plain_rows);
          EXPECT_EQ(plain.padded.line != plain.pixels, layer.plain_pixels);
        }
      }
      const conv_columns::Gathered words(g, 4, conv_columns::multiple_of(4, 1));
      EXPECT_EQ(words.padded.rows != words.rows(g), layer.rows);
      const Tensor gy = integers(g.y_shape());
      const auto all = [&](ConvAlgorithm algorithm) {
        const ConvAlgorithmScope scope(algorithm);
        const auto nothing = [](const Tensor& of) {
          const Tensor made = Tensor::empty_like(of);
          made.fill_(std::numeric_limits<double>::quiet_NaN());
          return made;
        };
        const Tensor y = nothing(gy), gx = nothing(x), gx_alone = nothing(x), gw = nothing(w);
        cu::conv_transpose2d(g, x, w, b, y, 0.5);
        cu::conv2d(g, gy, w, to_x, gx, 0.5);
        cu::conv2d(g, gy, w, {}, gx_alone, 1);
        cu::conv_transpose2d_weight_grad(g, x, gy, gw);
        if (algorithm == ConvAlgorithm::columns) {
          const ConvExplanation e = cu::explain_on(g, dtype, Layout::nchw, true);
          EXPECT_EQ(e.forward.kernel, "columns");
          EXPECT_EQ(e.input_gradient.kernel, "columns");
          EXPECT_EQ(e.weight_gradient.kernel, "columns");
        }
        return std::tuple(y.to_vector<float>(), gx.to_vector<float>(), gx_alone.to_vector<float>(),
                          gw.to_vector<float>());
      };
      // The definition is slow under a sanitizer.
      const auto other = is_sanitized() ? ConvAlgorithm::tensor : ConvAlgorithm::reference;
      EXPECT_TRUE(all(ConvAlgorithm::columns) == all(other));
      set_float32_precision(Precision::highest);
    }
  }
}

// More groups than a grid has along most of its axes.
TEST_F(CudaConv, ManyGroupsOfOneChannel) {
  if (only_algorithm() != nullptr) GTEST_SKIP() << "of the choice that is made";
  const std::int64_t groups = 70000;
  const ConvCase c{.n = 2,
                   .ci = groups,
                   .co = groups,
                   .groups = groups,
                   .in = {3, 2},
                   .kernel = {3, 3},
                   .stride = {2, 1},
                   .padding = {1, 1}};
  for (bool nhwc : {false, true}) {
    ConvCase of_layout = c;
    of_layout.nhwc = nhwc;
    SCOPED_TRACE(of_layout.text());
    const ConvExplanation e =
        explain(geometry_of(c), DType::float32, nhwc ? Layout::nhwc : Layout::nchw, kCuda);
    for (const ConvChoice& choice : {e.forward, e.input_gradient, e.weight_gradient})
      EXPECT_EQ(choice.kernel, "depthwise");
    ConvRandom random(31);
    check_transposed(of_layout, random, {DType::float32, kCuda});
  }
}

// Kernels for 1 to 4 channels of y, whose threads have one pixel, or several where there are many.
TEST_F(CudaConv, ThinLayers) {
  Share share;
  ConvRandom random(23);
  const std::int64_t widths[] = {84, 83, 86};  // threads have 4, 1 and 2 pixels of a row
  set_conv_algorithm(ConvAlgorithm::direct);
  for (const auto& [kernel, stride] : {std::pair(3, 1), std::pair(3, 2), std::pair(4, 2)}) {
    for (std::int64_t co : {1, 2, 3, 4}) {
      for (std::int64_t padding : {0, 1, 2}) {
        for (bool many : {false, true}) {
          if (!share.takes_next()) continue;
          ConvCase c{.n = many ? 40 : 3,
                     .ci = many ? 2 : 9,
                     .co = co,
                     .in = {many ? 84 : 6, many ? widths[(co + padding) % 3] : 37},
                     .kernel = {kernel, kernel},
                     .stride = {stride, stride},
                     .padding = {padding, padding},
                     .output_padding = {stride - 1, 0},
                     .bias = co > 2};
          SCOPED_TRACE(c.text());
          check_transposed(c, random, {DType::float32, kCuda});
          check_plain(c, random, {DType::float32, kCuda});
          if (HasFailure()) return;
        }
      }
    }
  }
}

// More taps than the sweeps have, and as many pixels as threads have by fours; in nchw, as direct_plain()
// has.
TEST_F(CudaConv, DirectKernelsOfManyTapsAndPixels) {
  Share share;
  ConvRandom random(29);
  set_conv_algorithm(ConvAlgorithm::direct);
  const ConvCase cases[] = {
      {.n = 2, .ci = 1, .co = 3, .in = {4, 9}, .kernel = {1, 28}, .stride = {1, 2}, .padding = {0, 5}},
      {.n = 1, .ci = 1, .co = 16, .in = {5, 6}, .kernel = {8, 8}, .stride = {2, 3}, .padding = {3, 2}},
      {.n = 2, .ci = 3, .co = 9, .in = {5, 6}, .kernel = {8, 8}, .stride = {3, 1}, .padding = {9, 2}},
      {.n = 1, .ci = 2, .co = 3, .in = {3, 7}, .kernel = {1, 64}, .padding = {0, 31}},
      {.n = 2, .ci = 3, .co = 2, .in = {6, 9}, .kernel = {8, 16}, .padding = {2, 7}},
      {.n = 220, .ci = 1, .co = 2, .in = {16, 128}, .kernel = {2, 1}, .stride = {2, 2}, .bias = true},
      {.n = 110, .ci = 2, .co = 3, .in = {32, 128}, .kernel = {3, 2}, .stride = {2, 1}},
      {.n = 110, .ci = 3, .co = 2, .in = {32, 128}, .kernel = {1, 3}, .stride = {1, 2}, .bias = true},
      {.n = 110, .ci = 8, .co = 2, .in = {32, 128}, .kernel = {1, 2}, .stride = {2, 2}},
      {.n = 25, .ci = 18, .co = 9, .in = {16, 64}, .kernel = {2, 4}, .stride = {2, 3}, .bias = true},
      {.n = 1, .ci = 16, .co = 16, .in = {9, 14}, .kernel = {7, 9}, .padding = {3, 4}},
      {.n = 2, .ci = 20, .co = 33, .in = {9, 14}, .kernel = {6, 1}, .stride = {3, 4}, .padding = {1, 0}}};
  for (const ConvCase& c : cases)
    for (DType dtype : kTypes) {
      if (!share.takes_next()) continue;
      SCOPED_TRACE(concat(dtype, ": ", c.text()));
      check_transposed(c, random, {dtype, kCuda});
      check_plain(c, random, {dtype, kCuda});
      if (HasFailure()) return;
    }
}

// Kernels that put rows and planes together in shared memory: widths of many tiles, lines of all alignments,
// rows and columns without taps, images that are not aligned.
TEST_F(CudaConv, RowsAndPlanesAsTheyLieInMemory) {
  struct Layer {
    ConvAlgorithm algorithm;
    Shape x, w;
    ConvTranspose2dOptions options;
  };
  const ConvTranspose2dOptions dilated{.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 4};
  const Layer layers[] = {
      {ConvAlgorithm::strip, {3, 32, 11, 256}, {32, 16, 3, 5}, dilated},
      {ConvAlgorithm::strip, {3, 32, 10, 131}, {32, 8, 3, 5}, dilated},
      {ConvAlgorithm::strip, {3, 32, 7, 128}, {32, 64, 3, 3}, {.stride = 5, .padding = 1, .dilation = 2}},
      {ConvAlgorithm::strip, {2, 24, 9, 77}, {24, 24, 3, 3}, {.stride = 5, .padding = 1, .dilation = 2}},
      {ConvAlgorithm::strip, {3, 8, 37, 1500}, {8, 8, 2, 2}, {.stride = 2}},
      {ConvAlgorithm::strip, {3, 8, 5, 701}, {8, 11, 3, 4}, {.padding = 1}},
      // Channels of y in parts, of which the last is smaller.
      {ConvAlgorithm::strip, {2, 8, 7, 40}, {8, 250, 6, 4}, {{3, 5}, {3, 6}, {1, 1}, {1, 2}}},
      {ConvAlgorithm::strip, {2, 4, 13, 40}, {4, 128, 9, 7}, {.stride = {3, 5}, .groups = 2}},
      {ConvAlgorithm::strip, {2, 32, 5, 71}, {32, 132, 3, 3}, {.stride = 5}},
      // Long rows of y that each meet one of x: few channels of x and two taps; groups, of which one has no
      // whole eights, and fewer stages than warps that copy; two warps side by side.
      {ConvAlgorithm::strip, {2, 16, 5, 600}, {16, 16, 2, 2}, {.stride = 2}},
      {ConvAlgorithm::strip, {2, 40, 4, 260}, {40, 16, 3, 3}, {.stride = {3, 8}, .groups = 2}},
      {ConvAlgorithm::strip, {2, 50, 4, 260}, {50, 32, 2, 2}, {.stride = {2, 8}}},
      {ConvAlgorithm::thin, {5, 64, 32, 32}, {64, 3, 4, 4}, {.stride = 2, .padding = 1}},
      {ConvAlgorithm::thin, {3, 40, 61, 136}, {40, 3, 5, 5}, {.padding = 2}},
      {ConvAlgorithm::thin,
       {3, 200, 17, 24},
       {200, 1, 3, 3},
       {.stride = 2, .padding = 1, .output_padding = 1}},
      {ConvAlgorithm::depthwise,
       {6, 200, 40, 56},
       {200, 1, 4, 4},
       {.stride = 2, .padding = 1, .groups = 200}},
      {ConvAlgorithm::depthwise, {6, 200, 71, 64}, {200, 1, 3, 3}, {.padding = 1, .groups = 200}},
      {ConvAlgorithm::depthwise,
       {6, 200, 33, 48},
       {200, 2, 3, 3},
       {.stride = 2, .padding = 1, .output_padding = 1, .groups = 200}},
  };
  int number = 0;
  for (const Layer& layer : layers) {
    if (number++ % std::min(test_share(), 3) != 0) continue;
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
        for (Precision precision : {Precision::highest, Precision::high}) {
          if (precision == Precision::high && dtype != DType::float32) continue;
          if (test_share() > 1 && dtype == DType::float16) continue;
          SCOPED_TRACE(concat(layer.x, " ", layer.w, " ", layout, " ", dtype));
          const auto tensor = [&](const Shape& shape) { return randn(shape).to(kCuda).to(dtype); };
          // The first image is left out: the others are aligned to less.
          const Tensor x = tensor(layer.x).to(layout).slice(1, layer.x[0]), w = tensor(layer.w),
                       b = tensor({layer.w[1] * layer.options.groups}), bx = tensor({layer.x[1]});
          const auto exactly = [](const Tensor& t) { return t.to(DType::float64); };
          const Size2 kernel{layer.w[2], layer.w[3]};
          const auto& o = layer.options;
          const Conv2dOptions plain{o.stride, o.padding, o.dilation, o.groups};
          set_float32_precision(Precision::highest);
          set_conv_algorithm(ConvAlgorithm::reference);
          const Tensor y = conv_transpose2d(exactly(x), exactly(w), exactly(b), o).tensor();
          const Tensor gy =
              tensor({layer.x[0], y.size(1), y.size(2), y.size(3)}).to(layout).slice(1, layer.x[0]);
          const Tensor gx = conv2d(exactly(gy), exactly(w), exactly(bx), plain).tensor(),
                       gw = conv_transpose2d_weight_grad(exactly(x), exactly(gy), kernel, o).tensor();
          set_float32_precision(precision);
          set_conv_algorithm(layer.algorithm);
          const double tolerance = dtype == DType::float32    ? (precision == Precision::high ? 6e-4 : 2e-6)
                                   : dtype == DType::bfloat16 ? 3e-3
                                                              : 4e-4;
          const auto check = [&](const char* what, const Tensor& got, const Tensor& expected) {
            expect_near(what, got.to(Device{}), expected.to(Device{}), tolerance);
          };
          poison_memory();
          check("y", conv_transpose2d(x, w, b, o).tensor(), y);
          poison_memory();
          check("gx", conv2d(gy, w, bx, plain).tensor(), gx);
          poison_memory();
          check("gw", conv_transpose2d_weight_grad(x, gy, kernel, o).tensor(), gw);
        }
      }
    }
  }
}

/// The most bytes that f has at a time, but for what was there before.
template <class F>
double bytes_taken(F f) {
  reset_peak_memory_stats(kCuda);
  const std::size_t before = memory_stats(kCuda).in_use;
  f();
  return static_cast<double>(memory_stats(kCuda).peak_in_use - before);
}

/// Blocks of up to 1 MiB are whole multiples of 512 bytes, larger ones up to 1 MiB more than they need;
/// largest magnitudes come from a block of 1 KiB.
void expect_workspace(const char* what, const ConvChoice& choice, double taken) {
  constexpr double kMost = 4;  // blocks
  const double large = choice.workspace > 0x1p20 ? kMost * 0x1p20 : 0;
  EXPECT_GE(taken, choice.workspace) << what << " " << to_string(choice);
  EXPECT_LE(taken, choice.workspace + kMost * 512 + 1024 + large) << what << " " << to_string(choice);
}

TEST_F(CudaConv, ExplainKnowsTheWorkspace) {
  if (is_sanitized()) GTEST_SKIP() << "blocks of the cache are counted";
  for_each_algorithm([&] {
    for (const LayerCase& c : kLayerCases) {
      for (DType dtype : kTypes) {
        for (Layout layout : {Layout::nchw, Layout::nhwc}) {
          SCOPED_TRACE(concat(c.name, " ", layout, " ", dtype));
          const TensorOptions rows{dtype, kCuda}, images{dtype, kCuda, layout};
          const Tensor x = Tensor::zeros(c.x, images), w = Tensor::zeros(c.w, rows),
                       bias = Tensor::zeros({c.w[1] * c.options.groups}, rows);
          const auto g = conv_transpose2d_geometry(x, w, bias, c.options);
          const Tensor y = Tensor::zeros(g.y_shape(), images);
          const ConvExplanation e = explain(g, dtype, layout, kCuda);
          expect_workspace("forward", e.forward,
                           bytes_taken([&] { cu::conv_transpose2d(g, x, w, bias, y); }));
          expect_workspace("input gradient", e.input_gradient, bytes_taken([&] {
                             const OperandCopies both(ReadByBoth::y);
                             cu::conv2d(g, y, w, {}, x);
                           }));
          expect_workspace("weight gradient", e.weight_gradient, bytes_taken([&] {
                             const OperandCopies both(ReadByBoth::y);
                             cu::conv_transpose2d_weight_grad(g, x, y, w);
                           }));
        }
      }
    }
  });
}

// Layers with room behind rows, and products of groups in one launch, whose sums are shared.
TEST_F(CudaConv, ExplainKnowsTheWorkspaceOfColumns) {
  if (is_sanitized()) GTEST_SKIP() << "blocks of the cache are counted";
  struct Columns {
    Shape x, w;
    ConvTranspose2dOptions options;
    DType dtype;
  };
  const Columns layers[] = {
      {{64, 100, 31, 31}, {100, 17, 5, 3}, {{1, 2}, {2, 0}, 0, {1, 2}}, DType::bfloat16},
      {{160, 1, 16, 31}, {1, 96, 3, 3}, {{1, 4}, {1, 0}, {0, 1}}, DType::bfloat16},
      {{24, 16, 14, 15}, {16, 128, 8, 4}, {{1, 4}, {0, 1}, {0, 1}}, DType::float16},
      {{3, 34, 10, 10}, {34, 33, 5, 4}, {{3, 2}, 0, 0, 1, 2}, DType::float32}};
  const ConvAlgorithmScope scope(ConvAlgorithm::columns);
  for (const Columns& layer : layers) {
    SCOPED_TRACE(concat(layer.x, " ", layer.dtype));
    const TensorOptions on{layer.dtype, kCuda};
    const Tensor x = Tensor::zeros(layer.x, on), w = Tensor::zeros(layer.w, on);
    const auto g = conv_transpose2d_geometry(x, w, {}, layer.options);
    const Tensor y = Tensor::zeros(g.y_shape(), on);
    const ConvExplanation e = explain(g, layer.dtype, Layout::nchw, kCuda);
    expect_workspace("forward", e.forward, bytes_taken([&] { cu::conv_transpose2d(g, x, w, {}, y); }));
    expect_workspace("input gradient", e.input_gradient, bytes_taken([&] { cu::conv2d(g, y, w, {}, x); }));
    expect_workspace("weight gradient", e.weight_gradient,
                     bytes_taken([&] { cu::conv_transpose2d_weight_grad(g, x, y, w); }));
  }
  const Columns& grouped = layers[3];
  const auto g =
      conv_transpose2d_geometry(Tensor::zeros(grouped.x), Tensor::zeros(grouped.w), {}, grouped.options);
  const auto sizes = conv_columns::input_product(g, conv_columns::Gathered(g, 4)).tiled(4, 3);
  ASSERT_TRUE(sizes);
  EXPECT_EQ(sizes->batch, 6);
  EXPECT_GT(matmul_tiles::Plan(*sizes).splits, 1);
}

// Both gradients use a copy of the result's gradient, each algorithm its own form of it, with the same
// results as when each makes one.
TEST_F(CudaConv, GradientsTogetherReadTheSameCopies) {
  Share share;
  for_each_algorithm([&] {
    for (const LayerCase& c : kLayerCases) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        SCOPED_TRACE(concat(c.name, " ", layout));
        if (!is_of_share(c, DType::float32, layout) || !share.takes_next()) continue;
        manual_seed(31);
        const Variable x = Variable::parameter(randn(c.x).to(layout).to(kCuda)),
                       w = Variable::parameter(randn(c.w).to(kCuda));
        Tape tape;
        const Variable y = conv_transpose2d(x, w, {}, c.options);
        const Tensor gy = randn(y.shape()).to(layout).to(kCuda), gx = Tensor::empty_like(x.tensor()),
                     gw = Tensor::empty_like(w.tensor());
        const auto g = conv_transpose2d_geometry(x.tensor(), w.tensor(), {}, c.options);
        const Variables both = tape.gradient(y, {x, w}, {.gradient = gy});
        {
          const OperandCopies copies(ReadByBoth::y);
          cu::conv2d(g, gy, w.tensor(), {}, gx);
        }
        {
          const OperandCopies copies(ReadByBoth::y);
          cu::conv_transpose2d_weight_grad(g, x.tensor(), gy, gw);
        }
        EXPECT_TRUE(same_bits(both[0].tensor().to(Device{}), gx.to(Device{})));
        EXPECT_TRUE(same_bits(both[1].tensor().to(Device{}), gw.to(Device{})));
      }
    }
  });
}

// Layers with enough work that the two share what they read, each of another form.
TEST_F(CudaConv, GradientsTogetherOfMuchWork) {
  Share share(5);
  struct Layer {
    Shape x, w;
    ConvTranspose2dOptions options;
  };
  for (const Layer& layer :
       {Layer{{160, 64, 14, 14}, {64, 72, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}},
        Layer{{40, 264, 4, 4}, {264, 128, 4, 4}, {.stride = 2, .padding = 1}},
        Layer{{60, 96, 9, 8}, {96, 96, 3, 3}, {.padding = 1}}}) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Tensor x = randn(layer.x).to(layout).to(kCuda), w = randn(layer.w).to(kCuda);
      const auto gradients = [&](DType dtype, const Tensor& gy) {
        const Variable a = Variable::parameter(x.to(dtype)), b = Variable::parameter(w.to(dtype));
        Tape tape;
        return tape.gradient(conv_transpose2d(a, b, {}, layer.options), {a, b}, {.gradient = gy.to(dtype)});
      };
      const Shape y_shape = conv_transpose2d_geometry(x, w, {}, layer.options).y_shape();
      const Tensor gy = randn(y_shape).to(layout).to(kCuda);
      const Variables expected = is_sanitized() ? Variables() : gradients(DType::float64, gy);
      for (const auto& [precision, tolerance] :
           {std::pair(Precision::highest, 1e-6), {Precision::high, 6e-4}, {Precision::medium, 6e-3}}) {
        SCOPED_TRACE(concat(layer.x, " ", layout, " ", static_cast<int>(precision)));
        if (!share.takes_next()) continue;
        set_float32_precision(precision);
        poison_memory();
        const Variables both = gradients(DType::float32, gy);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_LT(relative_error(both[i].tensor().to(Device{}), expected[i].tensor().to(Device{})),
                    tolerance);
        }
      }
      set_float32_precision(Precision::highest);
    }
  }
}

TEST_F(CudaConv, TheSameBitsAgain) {
  Share share;
  const auto host = [](const Tensor& x) { return x.to(Device{}); };
  for (const LayerCase& c : kLayerCases) {
    for (DType dtype : kTypes) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        if (!share.takes_next()) continue;
        SCOPED_TRACE(concat(c.name, " ", layout, " ", dtype));
        const Results one = run(c, layout, dtype, kCuda), two = run(c, layout, dtype, kCuda);
        EXPECT_TRUE(same_bits(host(one.y), host(two.y)));
        EXPECT_TRUE(same_bits(host(one.gx), host(two.gx)));
        EXPECT_TRUE(same_bits(host(one.gw), host(two.gw)));
        EXPECT_TRUE(same_bits(host(one.gb), host(two.gb)));
      }
    }
  }
}

TEST_F(CudaConv, NothingUnwrittenIsReadAndNothingStaysUnwritten) {
  for_each_algorithm([&] {
    for (const LayerCase& c : kLayerCases) {
      for (DType dtype : kTypes) {
        for (Layout layout : {Layout::nchw, Layout::nhwc}) {
          SCOPED_TRACE(concat(c.name, " ", layout, " ", dtype));
          const Results before = run(c, layout, dtype, kCuda);
          poison_memory();
          const Results after = run(c, layout, dtype, kCuda);
          for (auto result : {&Results::y, &Results::gx, &Results::gw, &Results::gb}) {
            const Tensor a = (before.*result).to(Device{}), b = (after.*result).to(Device{});
            EXPECT_TRUE(same_bits(a, b));
            for (double v : b.to_vector<double>()) ASSERT_FALSE(std::isnan(v));
          }
        }
      }
    }
  });
}

// Enough pixels that sums over them are split.
TEST_F(CudaConv, ManyImages) {
  Share share;
  for_each_algorithm([&] {
    ConvRandom random(17);
    for (bool nhwc : {false, true}) {
      const ConvCase c{.n = 40,
                       .ci = 33,
                       .co = 20,
                       .in = {9, 11},
                       .kernel = {3, 4},
                       .stride = {2, 2},
                       .padding = {1, 1},
                       .nhwc = nhwc};
      for (DType dtype : kTypes) {
        if (is_of_share(c, dtype) && share.takes_next()) check_transposed(c, random, {dtype, kCuda});
      }
    }
  });
}

}  // namespace
}  // namespace tapedeck::test
