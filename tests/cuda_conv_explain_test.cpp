// Which kernels a GPU's convolutions take; in builds with CUDA, on machines with and without a GPU.
#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck::test {
namespace {

TEST(CudaConvExplain, NamesWhatRuns) {
  const auto explain = [](const Shape& x, const Shape& w, const ConvTranspose2dOptions& options, DType dtype,
                          Layout layout, bool has_wgmma = true) {
    const ConvGpuExplanation e = cu::explain(
        conv_transpose2d_geometry(Tensor::zeros(x), Tensor::zeros(w), {}, options), dtype, layout, has_wgmma);
    return concat(e.forward, " ", e.input_gradient, " ", e.weight_gradient);
  };
  const Layout nchw = Layout::nchw, nhwc = Layout::nhwc;
  const ConvTranspose2dOptions twice{.stride = 2, .padding = 1};
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, twice, DType::float32, nchw), "wgmma wgmma wgmma");
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, twice, DType::bfloat16, nhwc, false),
            "tensor tensor tensor");
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, twice, DType::float64, nchw), "simt simt simt");
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, {.stride = 9}, DType::float32, nchw),
            "reference reference reference");
  const ConvTranspose2dOptions each{.stride = 2, .padding = 1, .groups = 64};
  EXPECT_EQ(explain({2, 64, 8, 8}, {64, 1, 4, 4}, each, DType::float16, nchw),
            "depthwise depthwise depthwise");
  EXPECT_EQ(explain({2, 64, 8, 8}, {64, 1, 4, 4}, each, DType::float32, nhwc),
            "depthwise depthwise depthwise");
  EXPECT_EQ(explain({2, 64, 8, 8}, {64, 3, 4, 4}, twice, DType::float32, nchw), "direct direct strip");
  set_conv_algorithm(ConvAlgorithm::tensor);
  EXPECT_EQ(explain({2, 256, 16, 16}, {256, 256, 4, 4}, twice, DType::float32, nchw), "tensor tensor tensor");
  set_conv_algorithm(ConvAlgorithm::automatic);

  const ConvGpuExplanation e =
      cu::explain(conv_transpose2d_geometry(Tensor::zeros({1, 32, 64, 64}), Tensor::zeros({32, 16, 2, 2}), {},
                                            {.stride = 2}),
                  DType::float32, nchw, true);
  EXPECT_EQ(to_string(e),
            "forward strip, input gradient strip, weight gradient strip; 4 phases, 0 empty; "
            "0.017 GFLOP, 1.6 MB, workspace 0.0 MB, at least 0.000 ms");
}

}  // namespace
}  // namespace tapedeck::test
