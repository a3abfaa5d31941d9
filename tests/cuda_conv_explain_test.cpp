// Which kernels a GPU's convolutions take; in builds with CUDA, on machines with and without a GPU.
#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck::test {
namespace {

TEST(CudaConvExplain, NamesWhatRuns) {
  const auto explain = [](const Shape& x, const Shape& w, const ConvTranspose2dOptions& options, DType dtype,
                          Layout layout, bool has_wgmma = true) {
    const ConvExplanation e = cu::explain_on(
        conv_transpose2d_geometry(Tensor::zeros(x), Tensor::zeros(w), {}, options), dtype, layout, has_wgmma);
    return concat(e.forward.kernel, ", ", e.input_gradient.kernel, ", ", e.weight_gradient.kernel);
  };
  const Layout nchw = Layout::nchw, nhwc = Layout::nhwc;
  const ConvTranspose2dOptions twice{.stride = 2, .padding = 1};
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, twice, DType::float32, nchw), "wgmma, wgmma, wgmma");
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, twice, DType::bfloat16, nhwc, false),
            "tensor, tensor, tensor");
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, twice, DType::float64, nchw), "simt, simt, simt");
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, {.stride = 9}, DType::float32, nchw),
            "reference, reference, reference");
  const ConvTranspose2dOptions each{.stride = 2, .padding = 1, .groups = 64};
  EXPECT_EQ(explain({2, 64, 8, 8}, {64, 1, 4, 4}, each, DType::float16, nchw),
            "depthwise, depthwise, depthwise");
  EXPECT_EQ(explain({2, 64, 8, 8}, {64, 1, 4, 4}, each, DType::float32, nhwc),
            "depthwise channels last, depthwise channels last, depthwise channels last");
  EXPECT_EQ(explain({2, 64, 8, 8}, {64, 3, 4, 4}, twice, DType::float32, nchw),
            "direct thin, direct thin, strip");
  {
    const ConvAlgorithmScope scope(ConvAlgorithm::tensor);
    EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, twice, DType::float32, nchw),
              "tensor, tensor, tensor");
  }

  ConvExplanation e =
      cu::explain_on(conv_transpose2d_geometry(Tensor::zeros({1, 32, 64, 64}), Tensor::zeros({32, 16, 2, 2}),
                                               {}, {.stride = 2}),
                     DType::float32, nchw, true);
  EXPECT_EQ(to_string(e),
            "forward strip, input gradient strip, weight gradient strip; 4 phases, 0 empty; "
            "0.017 GFLOP, 1.6 MB, at least 0.000 ms");
  EXPECT_EQ(e.forward.reason, "few channels, or less than 24 operations a byte");
  EXPECT_EQ(e.limit, e.bytes / 4.27e12);
  EXPECT_EQ(e.share(2 * e.limit), 0.5);
  e.workspace = 3e6;
  EXPECT_THAT(to_string(e), testing::HasSubstr("1.6 MB, workspace 3.0 MB, at least"));
}

}  // namespace
}  // namespace tapedeck::test
