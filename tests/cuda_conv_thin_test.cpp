// Layers whose y has 1 to 4 channels, on a GPU: products on tensor cores (ops/conv/thin_products.cu).
#include "cuda_conv_support.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv/explain.h>
#include <tapedeck/ops/conv/thin_bands.h>

namespace tapedeck::test {
namespace {

class CudaConvThin : public CudaConvTest {};

bool is_thin(const ConvChoice& pass) {
  return pass.kernel.starts_with("thin");
}
/// Whether thin kernels compute all three, if they are forced.
bool is_thin(const ConvCase& c, DType dtype) {
  const ConvExplanation e = cu::explain_on(geometry_of(c), dtype, c.nhwc ? Layout::nhwc : Layout::nchw, true);
  return is_thin(e.forward) && is_thin(e.input_gradient) && is_thin(e.weight_gradient);
}

/// Checks all passes that thin kernels compute, if they are forced. In nchw rows of 16 bits may be an even
/// number of pixels, and of float32, for the weight's gradient alone, any. Whether there are any.
bool check_thin(const ConvCase& c, ConvRandom& random, DType dtype) {
  SCOPED_TRACE(concat(c.text(), " ", dtype));
  const bool all = c.nhwc || c.in[1] % (dtype == DType::float32 ? 4 : 2) == 0,
             gradient = all || dtype == DType::float32;
  EXPECT_EQ(is_thin(c, dtype), all);
  const ConvExplanation e = cu::explain_on(geometry_of(c), dtype, c.nhwc ? Layout::nhwc : Layout::nchw, true);
  EXPECT_EQ(is_thin(e.weight_gradient), gradient);
  if (gradient) check_transposed(c, random, {dtype, kCuda});
  if (all) check_plain(c, random, {dtype, kCuda});
  return gradient;
}

// y of few channels: every kernel that has products enough, and tiles of parts of rows.
TEST_F(CudaConvThin, AllSizes) {
  Share share;
  ConvRandom random(24);
  int checked = 0;
  set_conv_algorithm(ConvAlgorithm::thin);
  for (int i = 0; i < 240; ++i) {
    const auto any = [&](std::int64_t least, std::int64_t most) { return random.in(least, most); };
    ConvCase c{.n = any(1, 3),
               .ci = i % 3 == 0 ? 8 * any(2, 9) : any(16, 40),
               .co = any(1, 4),
               .in = {any(1, i % 5 == 0 ? 40 : 9), i % 4 == 0 ? 8 * any(1, 17) : 8 * any(1, 4)},
               .kernel = {any(1, 5), any(1, 5)},
               .stride = {any(1, 4), any(1, 4)},
               .dilation = {any(1, 3), any(1, 2)},
               .bias = i % 2 == 0,
               .nhwc = i % 3 == 0};
    for (int a : {0, 1}) {
      if (a == 1 && (c.nhwc || i % 3 == 1)) c.in[1] = any(1, i % 4 == 0 ? 90 : 12);
      c.padding[a] = any(0, std::min<std::int64_t>(c.dilation[a] * (c.kernel[a] - 1), 3));
      c.output_padding[a] = any(0, std::max(c.stride[a], c.dilation[a]) - 1);
    }
    if (c.co * c.kernel[0] * c.kernel[1] > 80 || c.out(0) < 1 || c.out(1) < 1 || !share.takes_next())
      continue;
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      for (Precision precision : {Precision::highest, Precision::high}) {
        if (precision == Precision::high && dtype != DType::float32) continue;
        set_float32_precision(precision);
        checked += check_thin(c, random, dtype);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(checked * test_share(), 500);
}

// Thread blocks that go through several parts, some of several bands, of which outputs read rows before them;
// rows that are no whole vectors, large strides, wide padding, and more images than a grid has blocks along
// other axes.
TEST_F(CudaConvThin, PartsOfManyBands) {
  set_conv_algorithm(ConvAlgorithm::thin);
  ConvRandom random(25);
  for (bool nhwc : {false, true}) {
    for (const ConvCase& c :
         {ConvCase{.n = 600,
         .ci = 16,
         .co = 3,
         .in = {19, 24},
         .kernel = {5, 3},
         .stride = {2, 1},
         .padding = {3, 1},
         .output_padding = {1, 0},
         .dilation = {2, 1},
         .nhwc = nhwc},
          ConvCase{
              .n = 500, .ci = 16, .co = 1, .in = {9, 8}, .kernel = {3, 3}, .padding = {1, 1}, .nhwc = nhwc},
          ConvCase{.n = 2,
          .ci = 24,
          .co = 4,
          .in = {131, 72},
          .kernel = {4, 4},
          .stride = {2, 2},
          .padding = {1, 1},
          .nhwc = nhwc,
          .weight_nhwc = true},
          ConvCase{.n = 2, .ci = 16, .co = 2, .in = {6, 8}, .kernel = {2, 3}, .stride = {8, 7}, .nhwc = nhwc},
          ConvCase{
              .n = 3, .ci = 16, .co = 2, .in = {12, 16}, .kernel = {2, 2}, .padding = {4, 3}, .nhwc = nhwc},
          ConvCase{.n = 600,
          .ci = 16,
          .co = 1,
          .in = {14, 14},
          .kernel = {4, 4},
          .stride = {2, 2},
          .padding = {1, 1},
          .nhwc = nhwc},
          ConvCase{.n = 300, .ci = 24, .co = 3, .in = {9, 70}, .kernel = {3, 3}, .nhwc = nhwc},
          ConvCase{.n = 70000, .ci = 16, .co = 1, .in = {1, 8}, .kernel = {1, 2}, .nhwc = nhwc}}) {
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        check_thin(c, random, dtype);
        if (HasFailure()) return;
      }
    }
  }
}

/// Whether a pass of a layer takes bands.
bool takes_bands(const ConvCase& c, conv_thin::ThinPass pass, DType dtype, Precision precision) {
  return conv_thin::band_pixels(geometry_of(c), pass, Layout::nchw, static_cast<int>(size_of(dtype)),
                                dtype == DType::float32 && precision == Precision::highest ? 2 : 1) > 0;
}

// All passes over bands (thin_bands.h): bands of one row to all, parts of images, all numbers of y's
// channels, weights of one or many tiles; and blocks that go through several images, with more bands than
// stages.
TEST_F(CudaConvThin, Bands) {
  using conv_thin::ThinPass;
  set_conv_algorithm(ConvAlgorithm::thin);
  Share share;
  ConvRandom random(26);
  const auto case_of = [](bool is_strided) {
    const std::int64_t kernel = is_strided ? 4 : 3, stride = is_strided ? 2 : 1;
    return ConvCase{.kernel = {kernel, kernel}, .stride = {stride, stride}, .padding = {1, 1}};
  };
  std::vector<ConvCase> cases;
  for (const bool is_strided : {true, false}) {
    for (const auto& [n, ci, co, h, w] :
         {std::array{134, 48, is_strided ? 1 : 2, 40, 32}, {133, 80, 2, 10, 24}}) {
      ConvCase c = case_of(is_strided);
      c.n = n, c.ci = ci, c.co = co, c.in[0] = h, c.in[1] = w;
      cases.push_back(c);
    }
    const conv_thin::BandGradPlan plan(geometry_of(cases[cases.size() - 2]), is_strided ? 4 : 3,
                                       is_strided ? 2 : 1, 256, 2);
    EXPECT_GT((plan.part_rows + plan.rows - 1) / plan.rows, plan.stages);
    EXPECT_GT(plan.units, conv_thin::kMultiprocessors);
  }
  for (int i = 0; i < 56; ++i) {
    ConvCase c = case_of(i % 2 == 0);
    c.n = random.in(1, 4), c.ci = 16 * random.in(1, 6), c.co = 1 + i / 2 % 4;
    c.in[1] = i % 3 == 0 ? 4 * random.in(1, 50) : 8 * random.in(1, 17);
    c.in[0] = random.in(1, std::max<std::int64_t>(3, 640 / c.in[1]));
    c.bias = i % 3 != 0;
    cases.push_back(c);
  }
  std::array<int, 3> of_bands{};
  for (const ConvCase& c : cases) {
    if (!share.takes_next()) continue;
    for (DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      for (Precision precision : {Precision::highest, Precision::high}) {
        if (precision == Precision::high && dtype != DType::float32) continue;
        set_float32_precision(precision);
        SCOPED_TRACE(concat(c.text(), " ", dtype, precision == Precision::high ? " TF32" : ""));
        for (const ThinPass pass : {ThinPass::transposed, ThinPass::plain, ThinPass::weight})
          of_bands[static_cast<std::size_t>(pass)] += takes_bands(c, pass, dtype, precision) ? 1 : 0;
        check_transposed(c, random, {dtype, kCuda});
        check_plain(c, random, {dtype, kCuda});
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_GT(of_bands[0] * test_share(), 120);
  EXPECT_GT(of_bands[1] * test_share(), 150);
  EXPECT_GT(of_bands[2] * test_share(), 60);
}

// No less than fused multiply-adds have, plus 1e-7: the sums of these layers have 48 to 16,384 terms.
TEST_F(CudaConvThin, HasTheAccuracyOfFloat32) {
  const auto random = [](const Shape& shape) { return randn(shape, {DType::float64}); };
  const Tensor x = random({16, 64, 32, 32}).to(DType::float32), w = random({64, 3, 4, 4}).to(DType::float32),
               gy = random({16, 3, 64, 64}).to(DType::float32);
  const auto g = conv_transpose2d_geometry(x, w, {}, {.stride = 2, .padding = 1});
  const auto compute = [&](Layout layout, const auto& as) {
    const ConvTranspose2dOptions options{.stride = 2, .padding = 1};
    const Tensor a = as(x).to(layout), b = as(gy).to(layout);
    return std::array{conv_transpose2d(a, as(w), {}, options).tensor().to(Device{}),
                      conv2d(b, as(w), {}, {.stride = 2, .padding = 1}).tensor().to(Device{}),
                      conv_transpose2d_weight_grad(a, b, 4, options).tensor().to(Device{})};
  };
  const auto exact = compute(Layout::nchw, [](const Tensor& t) { return t.to(DType::float64); });
  set_conv_algorithm(ConvAlgorithm::thin);
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    EXPECT_EQ(to_string(cu::explain_on(g, DType::float32, layout, true).forward),
              layout == Layout::nchw ? "thin (bands of rows)" : "thin");
    const auto got = compute(layout, [](const Tensor& t) { return t.to(kCuda); });
    for (std::size_t i = 0; i < exact.size(); ++i)
      EXPECT_LT(relative_error(got[i].to(DType::float64), exact[i]), 2.2e-7) << concat(layout, " ", i);
  }
}

// x that begins beside a vector is left to others.
TEST_F(CudaConvThin, BesideVectors) {
  const auto tensor = [](const Shape& shape) { return randn(shape).to(kCuda).to(DType::bfloat16); };
  const Shape of_x{2, 24, 8, 16};
  const Tensor x = tensor({1 + of_x.count()}).slice(1, 1 + of_x.count()).reshape(of_x), copy = x.clone(),
               w = tensor({24, 3, 3, 3}), gy = tensor({2, 3, 8, 16});
  const ConvTranspose2dOptions options{.padding = 1};
  expect_near("y", conv_transpose2d(x, w, {}, options).tensor().to(Device{}),
              conv_transpose2d(copy, w, {}, options).tensor().to(Device{}), 6e-3);
  expect_near("gw", conv_transpose2d_weight_grad(x, gy, 3, options).tensor().to(Device{}),
              conv_transpose2d_weight_grad(copy, gy, 3, options).tensor().to(Device{}), 6e-3);
  // Bands are for aligned tensors.
  const Shape of_y{2, 3, 32, 32};
  const Tensor y = tensor({1 + of_y.count()}).slice(1, 1 + of_y.count()).reshape(of_y), of_copy = y.clone(),
               large = tensor({2, 32, 16, 16}), weight = tensor({32, 3, 4, 4});
  set_conv_algorithm(ConvAlgorithm::thin);
  const ConvTranspose2dOptions strided{.stride = 2, .padding = 1};
  expect_near("gw", conv_transpose2d_weight_grad(large, y, 4, strided).tensor().to(Device{}),
              conv_transpose2d_weight_grad(large, of_copy, 4, strided).tensor().to(Device{}), 6e-3);
  expect_near("gx", conv2d(y, weight, {}, {.stride = 2, .padding = 1}).tensor().to(Device{}),
              conv2d(of_copy, weight, {}, {.stride = 2, .padding = 1}).tensor().to(Device{}), 6e-3);
}

// Words of products have places of none, whose weights are zeros.
TEST_F(CudaConvThin, KeepsInfinities) {
  set_conv_algorithm(ConvAlgorithm::thin);
  for (const auto& [layout, channels] :
       {std::pair(Layout::nchw, 24), {Layout::nhwc, 24}, {Layout::nchw, 32}}) {  // the last of bands
    SCOPED_TRACE(concat(layout, " ", channels));
    std::vector<float> values(2 * 8 * 16, 1.0f);
    values[40] = std::numeric_limits<float>::infinity();
    const Tensor y = Tensor::from(values, {2, 1, 8, 16}).to(kCuda).to(DType::bfloat16).to(layout);
    const Tensor w = Tensor::full({channels, 1, 3, 3}, 2.0, {DType::bfloat16, kCuda});
    const auto x = conv2d(y, w, {}, {.padding = 1}).tensor().to(Device{}).to_vector<float>();
    EXPECT_EQ(std::count_if(x.begin(), x.end(), [](float v) { return std::isnan(v); }), 0);
    EXPECT_EQ(std::count_if(x.begin(), x.end(), [](float v) { return std::isinf(v); }), channels * 9);
  }
}

// An infinite gradient at y's last column, which a pixel after the row's end would meet by the first tap.
TEST_F(CudaConvThin, KeepsInfinitiesOfWeightGradients) {
  set_conv_algorithm(ConvAlgorithm::thin);
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for (const auto& [layout, width] :
         {std::pair(Layout::nchw, 14), {Layout::nhwc, 14}, {Layout::nchw, 16}, {Layout::nchw, 24}}) {
      SCOPED_TRACE(concat(dtype, " ", layout, " ", width));
      // The latter of bands, if their pixels nearly fill one.
      const std::int64_t height = width == 14 ? 4 : 256 / width, y_width = 2 * width;
      std::vector<float> values(static_cast<std::size_t>(2 * height * y_width), 1.0f);
      values[static_cast<std::size_t>(3 * y_width + y_width - 1)] = std::numeric_limits<float>::infinity();
      const Tensor gy = Tensor::from(values, {1, 1, 2 * height, y_width}).to(kCuda).to(dtype).to(layout),
                   x = Tensor::full({1, 48, height, width}, 2.0, {dtype, kCuda}).to(layout);
      const auto gw = conv_transpose2d_weight_grad(x, gy, 4, {.stride = 2, .padding = 1})
                          .tensor()
                          .to(Device{})
                          .to(Layout::nchw)
                          .to_vector<float>();
      for (std::size_t i = 0; i < gw.size(); ++i) {
        // Row 3 is met by taps 0 and 2, the last column by tap 2.
        const bool meets = i / 4 % 2 == 0 && i % 4 == 2;
        EXPECT_EQ(std::isfinite(gw[i]), !meets) << i;
      }
    }
  }
}

TEST_F(CudaConvThin, RectifiesWhatItWrites) {
  set_conv_algorithm(ConvAlgorithm::thin);
  for (DType dtype : {DType::float32, DType::bfloat16}) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      SCOPED_TRACE(concat(dtype, " ", layout));
      const auto tensor = [&](const Shape& shape) { return randn(shape).to(kCuda).to(dtype); };
      const Tensor x = tensor({5, 32, 12, 16}).to(layout), w = tensor({32, 3, 4, 4}), of_y = tensor({3}),
                   of_x = tensor({32});
      const Conv2dOptions plain{.stride = 2, .padding = 1};
      const ConvTranspose2dOptions options{.stride = 2, .padding = 1};
      const Tensor y = conv_transpose2d(x, w, of_y, options).tensor(), z = conv2d(y, w, of_x, plain).tensor();
      for (double slope : {0.0, 0.25}) {
        const auto rectified = [&](const Tensor& t) {
          return (slope == 0 ? relu(t) : leaky_relu(t, slope)).tensor().to_vector<float>();
        };
        EXPECT_EQ(conv_transpose2d(x, w, of_y, options, slope).tensor().to_vector<float>(), rectified(y));
        EXPECT_EQ(conv2d(y, w, of_x, plain, slope).tensor().to_vector<float>(), rectified(z));
      }
    }
  }
}

}  // namespace
}  // namespace tapedeck::test
