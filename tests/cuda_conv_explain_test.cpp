// Which kernels a GPU's convolutions take; in builds with CUDA, on machines with and without a GPU.
#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/kernels.h>

#include "../bench/conv_shapes.h"
#include "cuda_conv_support.h"

namespace tapedeck::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

struct Layer {
  Shape x, w;
  ConvTranspose2dOptions options = {.stride = 2, .padding = 1};

  ConvExplanation on(DType dtype, Layout layout, bool has_wgmma = true) const {
    return cu::explain_on(conv_transpose2d_geometry(Tensor::empty(x), Tensor::empty(w), {}, options), dtype,
                          layout, has_wgmma);
  }
};

constexpr Layout nchw = Layout::nchw, nhwc = Layout::nhwc;

std::string choices(const ConvExplanation& e) {
  return concat(to_string(e.forward), ", ", to_string(e.input_gradient), ", ", to_string(e.weight_gradient));
}

// Whatever is forced, for random layers of few elements, some of them without images, and of some more
// channels.
TEST(CudaConvExplain, HasAnAnswerAtTheEdges) {
  int answers = 0, empty = 0;
  for (const ConvAlgorithm a : kGpuAlgorithms) {
    SCOPED_TRACE(concat(a));
    const ConvAlgorithmScope scope(a);
    for (const std::int64_t unit : {1, 8}) {
      sweep(
          1, 110, 6, 3,
          [&](const ConvCase& c, ConvRandom&, const TensorOptions& to) {
            empty += c.n == 0;
            for (const Layout layout : {nchw, nhwc})
              for (const bool has_wgmma : {false, true}) {
                const ConvExplanation e = cu::explain_on(geometry_of(c), to.dtype, layout, has_wgmma);
                for (const ConvChoice& choice : {e.forward, e.input_gradient, e.weight_gradient}) {
                  EXPECT_FALSE(choice.kernel.empty() || choice.reason.empty());
                  ++answers;
                }
              }
          },
          {DType::float32, DType::bfloat16, DType::float64}, Device{}, unit);
    }
  }
  EXPECT_EQ(answers, std::ssize(kGpuAlgorithms) * 2 * (110 / kFewer) * 2 * 2 * 3);
  if (kFewer == 1) {
    EXPECT_GT(empty, std::ssize(kGpuAlgorithms));
  }
}

TEST(CudaConvExplain, NoImagesAreNothingToForce) {
  for (const std::int64_t channels : {3, 64}) {
    const Layer none{{0, 64, 8, 8}, {64, channels, 4, 4}};
    for (const ConvAlgorithm a : kGpuAlgorithms) {
      const ConvAlgorithmScope scope(a);
      for (const DType dtype : {DType::float32, DType::bfloat16})
        for (const Layout layout : {nchw, nhwc}) {
          SCOPED_TRACE(concat(a, " ", dtype, " ", layout, " ", channels));
          const ConvExplanation e = none.on(dtype, layout);
          for (const ConvChoice& c : {e.forward, e.input_gradient, e.weight_gradient}) {
            EXPECT_EQ(c.kernel, "reference");
            EXPECT_EQ(c.reason, "no images");
          }
        }
    }
  }
}

TEST(CudaConvExplain, NamesWhatRuns) {
  const auto kernels = [](const Layer& layer, DType dtype, Layout layout, bool has_wgmma = true) {
    const ConvExplanation e = layer.on(dtype, layout, has_wgmma);
    return concat(e.forward.kernel, ", ", e.input_gradient.kernel, ", ", e.weight_gradient.kernel);
  };
  const Layer wide{{2, 256, 16, 16}, {256, 256, 4, 4}};
  EXPECT_EQ(kernels(wide, DType::float32, nchw), "wgmma, wgmma, wgmma");
  EXPECT_EQ(kernels(wide, DType::bfloat16, nhwc, false), "tensor, tensor, tensor");
  EXPECT_EQ(kernels(wide, DType::float64, nchw), "simt, simt, simt");
  EXPECT_EQ(kernels({wide.x, wide.w, {.stride = 9}}, DType::float32, nchw),
            "reference, reference, reference");
  EXPECT_EQ(kernels({{32, 64, 32, 32}, {64, 3, 4, 4}}, DType::float32, nchw), "thin, thin, thin");
  EXPECT_THAT(kernels({{2, 16, 8, 8}, {16, 1, 3, 3}}, DType::float32, nchw), StartsWith("direct, direct, "));
  {
    const ConvAlgorithmScope scope(ConvAlgorithm::tensor);
    EXPECT_EQ(choices(wide.on(DType::float32, nchw)), "tensor, tensor, tensor");
    EXPECT_EQ(wide.on(DType::float32, nchw).forward.reason, "forced");
  }

  const Layer narrow{{1, 32, 64, 64}, {32, 16, 2, 2}, {.stride = 2}};
  EXPECT_EQ(narrow.on(DType::float32, nchw).forward.reason, "the least estimated time");
  const ConvAlgorithmScope scope(ConvAlgorithm::strip);
  ConvExplanation e = narrow.on(DType::float32, nchw);
  e.workspace = 0;
  EXPECT_EQ(to_string(e),
            "forward strip, input gradient strip, weight gradient strip; 4 phases, 0 empty; "
            "0.017 GFLOP, 1.6 MB, at least 0.000 ms");
  EXPECT_EQ(e.limit, e.bytes / 4.27e12);
  EXPECT_EQ(e.share(2 * e.limit), 0.5);
  e.workspace = 3e6;
  EXPECT_THAT(to_string(e), HasSubstr("1.6 MB, workspace 3.0 MB, at least"));
}

// Layers whose algorithms take times on an H200 that are far apart: factors that are fitted anew, or other
// terms, must tell these.
TEST(CudaConvExplain, TakesWhatIsFastestByFar) {
  const auto kernels = [](const Layer& layer, DType dtype) {
    const ConvExplanation e = layer.on(dtype, nchw);
    return concat(e.forward.kernel, ", ", e.input_gradient.kernel, ", ", e.weight_gradient.kernel);
  };
  constexpr DType float32 = DType::float32, bfloat16 = DType::bfloat16;
  // One column: strips have tiles of 16, and would take 0.46, 1.11 and 0.62 instead of 0.07, 0.03 and 0.04
  // ms.
  const Layer column{{64, 384, 100, 1}, {384, 16, 1, 6}, {2, 0, {2, 0}, {3, 1}, 4}};
  EXPECT_THAT(kernels(column, float32), Not(HasSubstr("strip")));
  // Many channels of y for few of x, whose weights strips have in parts: 0.42 ms, others 0.74.
  const Layer parted{{16, 8, 16, 256}, {8, 256, 6, 4}, {{3, 5}, {3, 6}, {1, 1}, {1, 2}}};
  EXPECT_EQ(parted.on(float32, nchw).input_gradient.kernel, "strip");
  // Few channels, and a kernel of one element: sums in registers take 0.03 ms, strips 0.16.
  const Layer pointwise{{8, 48, 128, 56}, {48, 17, 1, 1}, {{1, 2}, 0, {0, 1}, {3, 1}, 16}};
  EXPECT_EQ(pointwise.on(bfloat16, nchw).input_gradient.kernel, "direct");
  // What memory bounds: 0.29, 0.25 and 0.24 ms by strips, twice and more by all others.
  const Layer bound{{16, 32, 128, 256}, {32, 16, 3, 5}, {{2, 3}, {1, 2}, 0, {2, 1}, 4}};
  EXPECT_EQ(kernels(bound, float32), "strip, strip, strip");
  // Rows that are no whole vectors: 11 and 16 us, others 21; the weight's gradient in float32 21, others 31
  // (in bfloat16 13 and 15, which is not far).
  const Layer last{{64, 64, 30, 30}, {64, 3, 4, 4}};
  EXPECT_THAT(kernels(last, bfloat16), StartsWith("thin, thin, "));
  EXPECT_EQ(last.on(float32, nchw).weight_gradient.kernel, "thin");
  // One channel of y, and 64 taps, which products with all taps fill: 0.15 ms, others 1.05 and more.
  const Layer thin{{16, 96, 128, 128}, {96, 1, 8, 8}, {{1, 2}, {3, 6}}};
  EXPECT_EQ(thin.on(float32, nchw).forward.kernel, "columns");
  // The weight's gradient for one channel of y a group: 0.06 ms, others 0.23.
  const Layer few{{128, 192, 64, 31}, {192, 1, 8, 3}, {{2, 5}, {21, 2}, {0, 3}, {3, 1}, 2}};
  EXPECT_EQ(few.on(bfloat16, nchw).weight_gradient.kernel, "columns");
  // Much work.
  EXPECT_EQ(kernels({{32, 512, 64, 64}, {512, 256, 4, 4}}, bfloat16), "wgmma, wgmma, wgmma");
}

// Results of phases of columns that different tiles write: an H200 takes 584 us for them in nchw, and 328.
TEST(CudaConvExplain, WritesManyPhasesWithChannelsLast) {
  const Layer layer{{128, 16, 16, 13}, {16, 512, 9, 4}, {{1, 5}, {5, 1}, 0, {1, 2}, 2}};
  const ConvExplanation e = layer.on(DType::bfloat16, nchw), last = layer.on(DType::bfloat16, nhwc);
  EXPECT_EQ(e.forward.kernel, "channels_last");
  EXPECT_EQ(e.forward.variant, to_string(last.forward));
  const auto g = conv_transpose2d_geometry(Tensor::empty(layer.x), Tensor::empty(layer.w), {}, layer.options);
  EXPECT_EQ(e.forward.workspace,
            last.forward.workspace + 2 * static_cast<double>(g.x_shape().count() + g.y_shape().count()));
  EXPECT_NE(layer.on(DType::bfloat16, nchw, false).forward.kernel, "channels_last");
  EXPECT_NE(last.forward.kernel, "channels_last");
  EXPECT_NE(e.input_gradient.kernel, "channels_last");
  {
    // One channel of y: nothing is copied behind it.
    const ConvAlgorithmScope scope(ConvAlgorithm::channels_last);
    const Layer one{{4, 32, 16, 16}, {32, 1, 3, 3}};
    EXPECT_EQ(one.on(DType::float32, nchw).forward.workspace,
              one.on(DType::float32, nhwc).forward.workspace + 4 * 4 * 32 * 16 * 16);
  }
  const ConvAlgorithmScope scope(ConvAlgorithm::channels_last);
  const Layer long_rows{{8, 64, 64, 64}, {64, 64, 3, 3}, {.padding = 1}};
  EXPECT_EQ(long_rows.on(DType::float32, nchw).forward.kernel, "channels_last");
  EXPECT_EQ(long_rows.on(DType::float32, nhwc).forward.kernel, "wgmma");
}

// Answers are remembered, for each precision, algorithm, type and device anew.
TEST(CudaConvExplain, AsksAgainWhatChoicesDependOn) {
  const Layer layer{{32, 256, 64, 64}, {256, 256, 4, 4}};
  const std::string free = choices(layer.on(DType::float32, nchw));
  EXPECT_THAT(free, HasSubstr("halves in two parts"));
  set_float32_precision(Precision::high);
  EXPECT_THAT(choices(layer.on(DType::float32, nchw)), Not(HasSubstr("in two parts")));
  set_float32_precision(Precision::highest);
  {
    const ConvAlgorithmScope scope(ConvAlgorithm::tensor);
    EXPECT_EQ(choices(layer.on(DType::float32, nchw)), "tensor, tensor, tensor");
  }
  EXPECT_EQ(choices(layer.on(DType::float64, nchw)), "simt, simt, simt");
  EXPECT_EQ(choices(layer.on(DType::float32, nchw, false)), "tensor, tensor, tensor");
  const Layer none{{0, 64, 32, 32}, {64, 64, 4, 4}};
  EXPECT_EQ(none.on(DType::float32, nchw).forward.reason, "no images");
}

// The weight's gradient, which alone is sooner done over images as they lie, reads the copy that x's makes.
TEST(CudaConvExplain, KnowsThatGradientsReadOneCopy) {
  const Layer layer{{4096, 64, 14, 14}, {64, 32, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}};
  set_float32_precision(Precision::high);
  const ConvChoice c = layer.on(DType::float32, nchw).weight_gradient;
  EXPECT_EQ(to_string(c), "wgmma (boxes of scaled halves, columns folded by 1 and 2)");
  EXPECT_THAT(c.reason, HasSubstr("both gradients"));
  {
    const ConvAlgorithmScope scope(ConvAlgorithm::rows);
    EXPECT_EQ(to_string(layer.on(DType::float32, nchw).weight_gradient),
              "wgmma (rows as they lie, pairs of columns)");
  }
  set_float32_precision(Precision::highest);
}

// Of images that the second-level cache does not hold, whose rows end within sectors.
TEST(CudaConvExplain, WritesAllPhasesAtOnce) {
  const auto forward = [](std::int64_t n, std::int64_t size, DType dtype) {
    const Layer layer{{n, 64, size, size}, {64, 64, 3, 3}, {.stride = 2, .padding = 1, .output_padding = 1}};
    return to_string(layer.on(dtype, nchw).forward);
  };
  EXPECT_EQ(forward(4096, 7, DType::bfloat16), "wgmma (boxes of pixels, all phases in a tile)");
  EXPECT_EQ(forward(4096, 7, DType::float32),
            "wgmma (boxes of scaled halves in two parts, all phases in a tile)");
  EXPECT_THAT(forward(128, 7, DType::float32), Not(HasSubstr("all phases")));
  EXPECT_THAT(forward(4096, 8, DType::float32), Not(HasSubstr("all phases")));
}

TEST(CudaConvExplain, TakesMatrixProductsOfOnePixel) {
  const auto forward = [](const Layer& layer, DType dtype) { return layer.on(dtype, nchw).forward; };
  const Layer small{{128, 100, 1, 1}, {100, 512, 4, 4}, {.stride = 9}};
  EXPECT_EQ(forward(small, DType::float32).kernel, "matrix");
  EXPECT_EQ(forward(small, DType::float32).reason, "x is one pixel, and y of the kernel's size");
  // cuBLASLt has no tensor cores for float32's accuracy, which long sums of much work need.
  const Layer large{{4096, 512, 1, 1}, {512, 512, 4, 4}, {}};
  EXPECT_EQ(forward(large, DType::float32).kernel, "matrix");
  EXPECT_EQ(large.on(DType::float32, nchw).input_gradient.kernel, "wgmma");
  EXPECT_EQ(large.on(DType::bfloat16, nchw).input_gradient.kernel, "matrix");
  // A row that no tap reaches.
  EXPECT_THAT(forward({small.x, small.w, {.stride = 2, .output_padding = {1, 0}}}, DType::float32).kernel,
              AnyOf("wgmma", "channels_last"));
}

TEST(CudaConvExplain, CountsTheWorkspace) {
  const Layer wide{{2, 256, 16, 16}, {256, 256, 4, 4}};
  const double weight = 256 * 256 * 16;
  {
    const ConvAlgorithmScope scope(ConvAlgorithm::tensor);
    const ConvExplanation e = wide.on(DType::float32, nchw);
    EXPECT_EQ(e.forward.workspace, 4 * weight);  // packed, without holes
    EXPECT_EQ(e.input_gradient.workspace, 4 * weight);
    // 64 tiles of 128 channels times 128 columns: two blocks each, for 132 multiprocessors.
    EXPECT_EQ(e.weight_gradient.workspace, 2 * 4 * weight);
    EXPECT_EQ(e.workspace, 2 * 4 * weight);
  }
  {
    const ConvAlgorithmScope scope(ConvAlgorithm::reference);
    EXPECT_EQ(wide.on(DType::float32, nchw).workspace, 0);
  }
  {
    // Channels of y in parts: those of cuda_conv_test's layers that are meant to have some.
    const ConvAlgorithmScope scope(ConvAlgorithm::strip);
    const Layer layers[] = {{{1, 8, 7, 40}, {8, 250, 6, 4}, {{3, 5}, {3, 6}, {1, 1}, {1, 2}}},
                            {{1, 4, 13, 40}, {4, 128, 9, 7}, {.stride = {3, 5}, .groups = 2}},
                            {{1, 32, 5, 71}, {32, 132, 3, 3}, {.stride = 5}}};
    for (const Layer& layer : layers) {
      const ConvChoice c = layer.on(DType::float32, nchw).input_gradient;
      EXPECT_EQ(c.kernel, "strip") << concat(layer.x);
      EXPECT_GE(c.workspace, 2 * 4 * static_cast<double>(layer.x.count())) << concat(layer.x);
    }
  }
  // Splits of 5,184 pixels, of 256 at least, with sums of 64 weights each.
  const Layer few{{64, 2, 9, 9}, {2, 2, 4, 4}};
  const ConvAlgorithmScope scope(ConvAlgorithm::direct);
  const ConvExplanation e = few.on(DType::float64, nchw);
  EXPECT_EQ(e.forward.workspace, 0);
  EXPECT_EQ(e.weight_gradient.workspace, 21 * 64 * 8);
  EXPECT_EQ(e.workspace, 21 * 64 * 8);
}

// Of more taps, direct kernels of the weight's gradient serve few channels on one side, and no more than 128.
TEST(CudaConvExplain, DirectKernelsHaveSomeTaps) {
  const ConvAlgorithmScope scope(ConvAlgorithm::direct);
  const auto grad = [](std::int64_t channels, std::int64_t kernel) {
    const Layer layer{{1, channels, 4, 4}, {channels, 17, 1, kernel}};
    return layer.on(DType::float32, nchw).weight_gradient.kernel;
  };
  EXPECT_EQ(grad(16, 128), "direct");
  EXPECT_NE(grad(16, 129), "direct");
  EXPECT_EQ(grad(17, 25), "direct");
  EXPECT_NE(grad(17, 26), "direct");
}

TEST(CudaConvExplain, TakesDepthwiseKernelsOfManyGroups) {
  const Layer many{{1, 70000, 4, 4}, {70000, 1, 3, 3}, {.padding = 1, .groups = 70000}};
  for (Layout layout : {nchw, nhwc}) {
    const ConvExplanation e = many.on(DType::float32, layout);
    for (const ConvChoice& choice : {e.forward, e.input_gradient, e.weight_gradient})
      EXPECT_EQ(choice.kernel, "depthwise");
  }
  const Layer two{{1, 140000, 4, 4}, {140000, 2, 3, 3}, {.padding = 1, .groups = 70000}};
  EXPECT_EQ(choices(two.on(DType::float32, nchw)), "reference, reference, reference");
}

TEST(CudaConvExplain, TakesDirectKernelsWherePlanesDoNotPay) {
  const auto of = [](std::int64_t n, std::int64_t channels, std::int64_t size, std::int64_t kernel,
                     std::int64_t stride, DType dtype = DType::float32) {
    const Layer layer{
        {n, channels, size, size}, {channels, 1, kernel, kernel}, {.stride = stride, .groups = channels}};
    return choices(layer.on(dtype, nchw));
  };
  const std::string planes = "depthwise (planes in shared memory)",
                    all_planes = concat(planes, ", ", planes, ", ", planes);
  EXPECT_EQ(of(16, 128, 33, 5, 1), all_planes);
  EXPECT_EQ(of(16, 128, 33, 5, 4), planes + ", direct, direct") << "long steps";
  EXPECT_EQ(of(16, 128, 33, 5, 3), planes + ", " + planes + ", direct");
  EXPECT_EQ(of(16, 128, 33, 2, 2), planes + ", " + planes + ", direct") << "few taps for many planes";
  EXPECT_EQ(of(16, 128, 13, 5, 1), planes + ", direct, direct") << "small planes";
  EXPECT_EQ(of(1, 128, 33, 5, 1), planes + ", direct, " + planes) << "few planes";
  EXPECT_EQ(of(16, 128, 13, 5, 1, DType::float64), all_planes) << "not timed";
}

std::string choices_of(const char* shape, DType dtype, Layout layout, bool has_wgmma = true) {
  const auto c = std::ranges::find(bench::kConvShapes, std::string_view(shape),
                                   [](const bench::ConvShape& s) -> std::string_view { return s.name; });
  return choices(Layer{c->x(), c->weight(), c->options}.on(dtype, layout, has_wgmma));
}

// The forms of a kernel that layers of the benchmark take: the functions that tell them are those that
// launchers ask.
TEST(CudaConvExplain, NamesVariants) {
  constexpr DType float32 = DType::float32, bfloat16 = DType::bfloat16;
  const auto three = [](const std::string& choice) { return concat(choice, ", ", choice, ", ", choice); };

  const std::string boxes = "wgmma (boxes of pixels)", halves = "wgmma (boxes of scaled halves)",
                    two_halves = "wgmma (boxes of scaled halves in two parts)",
                    windows = "wgmma (windows gathered for each tap)";
  const std::string gathered = "wgmma (boxes of pixels, gathered from nchw)",
                    gathered_halves = "wgmma (boxes of scaled halves, gathered from nchw)";
  EXPECT_EQ(choices_of("kb57", float32, nchw),
            concat("wgmma (boxes of scaled halves in two parts, gathered from nchw), ", two_halves, ", ",
                   two_halves));
  EXPECT_EQ(choices_of("kb57", bfloat16, nchw),
            concat(gathered, ", ", gathered, ", wgmma (rows as they lie)"));
  EXPECT_EQ(choices_of("dcgan1", float32, nchw), three("matrix"));
  EXPECT_EQ(choices_of("dcgan1", bfloat16, nchw, false), three("matrix"));
  EXPECT_EQ(choices_of("dcgan1", DType::float64, nchw), three("matrix"));
  EXPECT_EQ(choices_of("dcgan4", bfloat16, nchw),
            concat("wgmma (boxes of pixels, both phases of columns in a tile), ", boxes,
                   ", wgmma (rows as they lie, pairs of columns)"));
  EXPECT_EQ(choices_of("dcgan2", bfloat16, nchw),
            concat("wgmma (boxes of pixels, phases of columns swapped by two blocks), ", boxes, ", ", boxes));
  {
    const ConvAlgorithmScope scope(ConvAlgorithm::wgmma);
    EXPECT_EQ(choices_of("kb81", float32, nchw), three(two_halves));
    EXPECT_EQ(choices_of("dcgan1", float32, nchw), concat(two_halves, ", ", two_halves, ", ", windows));
  }
  set_float32_precision(Precision::high);
  EXPECT_EQ(choices_of("kb57", float32, nchw), concat(gathered_halves, ", ", halves, ", ", halves));
  {
    const ConvAlgorithmScope scope(ConvAlgorithm::boxes);
    EXPECT_EQ(choices_of("kb57", float32, nchw), concat(boxes, ", ", boxes, ", ", halves));
  }
  set_float32_precision(Precision::highest);

  EXPECT_EQ(
      choices_of("depthwise", float32, nchw),
      "depthwise (planes in shared memory), depthwise (rows in registers), depthwise (rows in registers)");
  EXPECT_EQ(choices_of("depthwise", bfloat16, nchw),
            "depthwise (rows in registers), depthwise (rows in registers), depthwise (whole planes in shared "
            "memory)");
  EXPECT_EQ(choices_of("depthwise", DType::float64, nchw), three("depthwise (planes in shared memory)"));
  EXPECT_EQ(choices_of("depthwise", bfloat16, nhwc), three("depthwise (rows through a ring)"));
  EXPECT_EQ(choices_of("depthwise", bfloat16, nhwc, false), three("depthwise (channels last)"));

  for (const DType dtype : {float32, bfloat16}) {
    EXPECT_EQ(choices_of("dcgan5", dtype, nchw), three("thin (bands of rows)"));
    EXPECT_EQ(choices_of("dcgan5", dtype, nhwc), three("thin"));
  }
  EXPECT_EQ(choices_of("kb75", bfloat16, nchw), "strip, strip, strip (rows of y read once)");
  EXPECT_EQ(choices_of("kb75", bfloat16, nhwc),
            "strip (channels last), strip (channels last), strip (rows of y read once)");
  EXPECT_EQ(choices_of("kb75", bfloat16, nhwc, false), three("tensor"));
}

}  // namespace
}  // namespace tapedeck::test
