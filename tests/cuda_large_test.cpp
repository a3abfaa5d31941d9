// Work of full size on a GPU: the adjoint identity of all layers that are benchmarked, and tensors of more
// than 2^31 elements, which hold what parts of them give alone.
//
// Operands are -1, 0 and 1. Sums of their products are exact in whatever order, in TF32 and as scaled halves
// too, so that what must be equal is equal to the bit.
#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <functional>
#include <vector>

#include <tapedeck/core/memory.h>
#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/kernels.h>

#include "../bench/conv_shapes.h"
#include "cuda_support.h"

namespace tapedeck::test {
namespace {

class CudaLarge : public CudaTest {
 protected:
  void TearDown() override {
    set_conv_algorithm(ConvAlgorithm::automatic);
    set_float32_precision(Precision::highest);
    if (cuda_device_count() > 0) empty_cache(kCuda);
  }
};

/// -1, 0 and 1 in equal parts; in half types a few of 2.
Tensor signs(const Shape& shape, DType dtype, Layout layout = Layout::nchw) {
  const Tensor x = Tensor::empty(shape, {dtype, kCuda, layout});
  uniform_(x, 0, 3);
  return (Variable(x.to(DType::uint8).to(dtype)) - 1.0).tensor();
}

/// Calls f(begin, end) for images [begin, end) of about `elements` together.
template <class F>
void for_each_part(const Tensor& x, std::int64_t elements, F f) {
  const std::int64_t n = x.size(0),
                     step = std::max<std::int64_t>(1, elements / std::max<std::int64_t>(1, x.count() / n));
  for (std::int64_t begin = 0; begin < n; begin += step) f(begin, std::min(n, begin + step));
}

/// In float64.
double dot(const Tensor& a, const Tensor& b) {
  double total = 0;
  for_each_part(a, 1 << 26, [&](std::int64_t begin, std::int64_t end) {
    const auto part = [&](const Tensor& t) { return Variable(t.slice(begin, end).to(DType::float64)); };
    total += sum(part(a) * part(b)).item();
  });
  return total;
}

/// f(), where its result, of that shape, finds NaN in memory.
template <class F>
Tensor over_nan(const Shape& shape, const TensorOptions& options, F f) {
  Tensor::full(shape, std::numeric_limits<double>::quiet_NaN(), options);
  return f().tensor();
}

// <y, y> = <x, gx> = <w, gw> for the gradients of y itself. What is not rounded obeys to the bit: all but the
// gradients of the half types, whose roundings are independent of each other. float16 would not hold weight
// gradients, which are sums of up to 8 million pixels: x is made smaller, by a power of two.
TEST_F(CudaLarge, TheAdjointIdentityHoldsAtFullSize) {
  manual_seed(3);
  for (const bench::ConvShape& c : bench::kConvShapes) {
    const auto& o = c.options;
    for (const auto& [dtype, precision] : {std::pair(DType::float32, Precision::highest),
                                           {DType::float32, Precision::high},
                                           {DType::bfloat16, Precision::highest},
                                           {DType::float16, Precision::highest}}) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        SCOPED_TRACE(concat(c.name, " ", dtype, precision == Precision::high ? " high " : " ", layout));
        set_float32_precision(precision);
        const TensorOptions images{dtype, kCuda, layout}, rows{dtype, kCuda};
        const double unit = dtype == DType::float16 ? 0x1p-8 : 1;
        const Tensor x = (Variable(signs(c.x(), dtype, layout)) * unit).tensor(),
                     w = signs(c.weight(), dtype);
        const Shape y_shape = conv_transpose2d_geometry(x, w, {}, o).y_shape();
        const Tensor y = over_nan(y_shape, images, [&] { return conv_transpose2d(x, w, {}, o); });
        const Tensor gx = over_nan(c.x(), images, [&] {
          return conv2d(y, w, {}, {o.stride, o.padding, o.dilation, o.groups});
        });
        const Tensor gw =
            over_nan(c.weight(), rows, [&] { return conv_transpose2d_weight_grad(x, y, c.kernel, o); });
        const double rounding = dtype == DType::bfloat16  ? 3e-4
                                : dtype == DType::float16 ? 4e-5
                                                          : 0,
                     expected = dot(y, y), slack = rounding * expected;
        EXPECT_GT(expected, 0);
        EXPECT_NEAR(dot(x, gx), expected, slack);
        EXPECT_NEAR(dot(w, gw), expected, slack);
      }
    }
    empty_cache(kCuda);
  }
}

/// How many elements differ, a NaN from everything.
double differences(const Tensor& a, const Tensor& b) {
  return sum(ne(a, b)).item();
}

// More than 2^31 elements in x or y, or both. A layer in 16 bits is some 0.15 s for each algorithm and layout
// on an H200: 4.3 GB are read or written about 30 times.
TEST_F(CudaLarge, ConvolutionsOfManyElements) {
  using enum ConvAlgorithm;
  struct Layer {
    Shape x, w;
    Conv2dOptions options;
    std::vector<ConvAlgorithm> algorithms;
    std::vector<Layout> layouts = {Layout::nchw, Layout::nhwc};
    DType dtype = DType::bfloat16;
  };
  const Layer layers[] = {
      // Many elements on both sides: products of tiles on tensor cores, gathered or over boxes.
      {{32800, 64, 32, 32}, {64, 64, 3, 3}, {.padding = 1}, {tensor, wgmma, boxes}},
      // In y alone, whose columns have two phases.
      {{32800, 64, 16, 16}, {64, 64, 4, 4}, {.stride = 2, .padding = 1}, {automatic}},
      // The same in float32, some 40 GB: as scaled halves where the dispatcher may choose, and as three
      // products.
      {{32800, 64, 16, 16},
       {64, 64, 4, 4},
       {.stride = 2, .padding = 1},
       {automatic, wgmma},
       {Layout::nchw, Layout::nhwc},
       DType::float32},
      // Groups of few channels: rows in shared memory.
      {{65600, 32, 32, 32}, {32, 8, 3, 5}, {.padding = {1, 2}, .groups = 4}, {strip}},
      // A channel a group, on both sides and in y alone.
      {{16400, 128, 32, 32}, {128, 1, 3, 3}, {.padding = 1, .groups = 128}, {depthwise}},
      {{16400, 128, 16, 16}, {128, 1, 4, 4}, {.stride = 2, .padding = 1, .groups = 128}, {depthwise}},
      // In x alone, few channels in y: sums in registers.
      {{65600, 8, 64, 64}, {8, 2, 3, 3}, {.padding = 1}, {direct}},
      // More pixels than 32 bits can count: the reference.
      {{8800, 1, 500, 500}, {1, 1, 3, 3}, {.padding = 1}, {automatic}, {Layout::nchw}},
  };
  manual_seed(4);
  for (const Layer& layer : layers) {
    const auto& o = layer.options;
    const DType dtype = layer.dtype;
    const ConvTranspose2dOptions up{.stride = o.stride, .padding = o.padding, .groups = o.groups};
    const Size2 kernel(layer.w[2], layer.w[3]);
    for (Layout layout : layer.layouts) {
      empty_cache(kCuda);
      const Tensor x = signs(layer.x, dtype, layout), w = signs(layer.w, dtype);
      const Shape y_shape = conv_transpose2d_geometry(x, w, {}, up).y_shape();
      ASSERT_GT(std::max(x.count(), y_shape.count()), std::int64_t{1} << 31);
      const Tensor gy = signs(y_shape, dtype, layout);
      // Of parts, and in float32, that sums over all of them have no rounding.
      Variable gw_sum = Tensor::zeros(layer.w, {.device = kCuda});
      for_each_part(gy, 1 << 28, [&](std::int64_t begin, std::int64_t end) {
        const auto part = [&](const Tensor& t) { return t.slice(begin, end).to(DType::float32); };
        gw_sum = gw_sum + conv_transpose2d_weight_grad(part(x), part(gy), kernel, up);
      });
      const Tensor gw_expected = gw_sum.tensor().to(dtype);
      for (ConvAlgorithm algorithm : layer.algorithms) {
        SCOPED_TRACE(concat(layer.x, " ", layer.w, " ", dtype, " ", layout, " ", algorithm));
        set_conv_algorithm(algorithm);
        const Tensor y = conv_transpose2d(x, w, {}, up).tensor(), gx = conv2d(gy, w, {}, o).tensor();
        EXPECT_EQ(differences(conv_transpose2d_weight_grad(x, gy, kernel, up).tensor(), gw_expected), 0);
        set_conv_algorithm(automatic);
        for_each_part(y, 1 << 28, [&](std::int64_t begin, std::int64_t end) {
          SCOPED_TRACE(concat("images ", begin, " to ", end));
          const auto part = [&](const Tensor& t) { return t.slice(begin, end); };
          EXPECT_EQ(differences(part(y), conv_transpose2d(part(x), w, {}, up).tensor()), 0);
          EXPECT_EQ(differences(part(gx), conv2d(part(gy), w, {}, o).tensor()), 0);
        });
      }
    }
  }
}

// Functions of rows, or of images: a part's result is that part of the result, and so are gradients.
TEST_F(CudaLarge, OpsOnManyElements) {
  using F = std::function<Variable(const Variable&)>;
  const DType half = DType::bfloat16;
  const Shape images{32800, 64, 32, 32}, rows{131200, 16384};
  ASSERT_GT(images.count(), std::int64_t{1} << 31);
  manual_seed(5);
  const Tensor w = signs({16384, 8}, half), mean = randn({64}, {half, kCuda}),
               variance = rand({64}, {half, kCuda}),
               index = Tensor::from<std::int64_t>({16383, 0, 7, 16383}, {4}).to(kCuda);
  const std::vector<std::tuple<const char*, Shape, F>> functions = {
      {"relu", images, [](const Variable& x) { return relu(x); }},
      {"tanh", rows, [](const Variable& x) { return tanh(x); }},
      {"multiply by a row", rows,
       [&](const Variable& x) {
         return x * reshape(slice(w, 1, 3, 4), {1, -1});
       }},
      {"permute", images,
       [](const Variable& x) {
         return permute(x, {0, 2, 3, 1});
       }},
      {"to_layout", images, [](const Variable& x) { return to_layout(x, Layout::nhwc) * 2.0; }},
      {"softmax", rows, [](const Variable& x) { return softmax(x, 1); }},
      {"layer_norm", rows, [](const Variable& x) { return layer_norm(x, {16384}); }},
      {"batch_norm", images,
       [&](const Variable& x) { return batch_norm(x, {}, {}, mean, variance, {.negative_slope = 0}); }},
      {"group_norm", images, [](const Variable& x) { return group_norm(x, 4); }},
      {"matmul", rows, [&](const Variable& x) { return matmul(x, w); }},
      {"index_select", rows, [&](const Variable& x) { return index_select(x, 1, index); }},
      {"max_pool2d", images, [](const Variable& x) { return max_pool2d(x, {.kernel_size = 2}); }},
      {"bilinear",
       {8200, 64, 32, 32},
       [](const Variable& x) {
         return upsample_bilinear2d(x, {64, 64});
       }},
      {"squared error", images, [](const Variable& x) { return square(x - 0.5); }},
  };
  for (const auto& [name, shape, f] : functions) {
    empty_cache(kCuda);
    const Variable x = Variable::parameter(signs(shape, half));
    Variable y, gx;
    Tensor gy;
    {
      Tape tape;  // gone before the parts': it would listen to their walks, which then have other roundings
      y = f(x);
      gy = signs(y.shape(), half);
      gx = tape.gradient(y, {x}, {.gradient = gy})[0];
    }
    for_each_part(x.tensor(), 1 << 28, [&](std::int64_t begin, std::int64_t end) {
      SCOPED_TRACE(concat(name, ", rows ", begin, " to ", end));
      const Variable part = Variable::parameter(x.tensor().slice(begin, end));
      Tape own;
      const Variable part_y = f(part);
      const Variable part_gx = own.gradient(part_y, {part}, {.gradient = gy.slice(begin, end)})[0];
      EXPECT_EQ(differences(y.tensor().slice(begin, end), part_y.tensor()), 0);
      EXPECT_EQ(differences(gx.tensor().slice(begin, end), part_gx.tensor()), 0);
    });
  }
}

// The statistics of all elements, the loss over them, and an optimizer's step.
TEST_F(CudaLarge, TrainingOfManyElements) {
  const DType half = DType::bfloat16;
  const Shape shape{32800, 64, 32, 32};
  manual_seed(6);
  const Tensor x = signs(shape, half), y = signs(shape, half);
  Variable sums = Tensor::zeros({64}, {DType::float64, kCuda}), squares = sums;
  double loss = 0;
  for_each_part(x, 1 << 26, [&](std::int64_t begin, std::int64_t end) {
    const Variable part = x.slice(begin, end).to(DType::float64),
                   other = y.slice(begin, end).to(DType::float64);
    sums = sums + sum(part, {0, 2, 3});
    squares = squares + sum(square(part), {0, 2, 3});
    loss += sum(square(part - other)).item();
  });
  const double count = static_cast<double>(shape.count()) / 64;
  {
    const Tensor mean = Tensor::zeros({64}, {.device = kCuda}),
                 variance = Tensor::ones({64}, {.device = kCuda});
    const Variable weight = Tensor::ones({64}, {.device = kCuda}),
                   bias = Tensor::zeros({64}, {.device = kCuda});
    const Variable z = batch_norm(x, weight, bias, mean, variance, {.training = true, .momentum = 1});
    const Variable exact_mean = sums / count, exact_variance = squares / count - square(exact_mean);
    EXPECT_LT(max(abs(mean.to(DType::float64) - exact_mean)).item(), 1e-6);
    EXPECT_LT(max(abs(variance.to(DType::float64) - exact_variance)).item(), 1e-6);
    const Tensor last = x.slice(shape[0] - 8, shape[0]).to(DType::float64);
    const auto to_channels = [](const Variable& v) { return reshape(v, {1, 64, 1, 1}); };
    const Variable expected = (last - to_channels(exact_mean)) / sqrt(to_channels(exact_variance) + 1e-5);
    EXPECT_LT(max(abs(z.tensor().slice(shape[0] - 8, shape[0]).to(DType::float64) - expected)).item(), 8e-3);
  }
  empty_cache(kCuda);
  const Variable p = Variable::parameter(x.clone());
  Tape tape;
  const Variable error = nn::mse_loss(p, y, nn::Reduction::sum);
  EXPECT_NEAR(error.item(), loss, loss * 0x1p-8);
  tape.backward(error);
  optim::Adam adam({p}, {.lr = 0.01});
  adam.step();
  const std::int64_t end = shape[0], begin = end - 4000;
  const Variable part = Variable::parameter(x.slice(begin, end).clone());
  part.set_grad((Variable(x.slice(begin, end)) - Variable(y.slice(begin, end))).tensor());
  part.set_grad((part.grad() * 2.0).tensor());
  EXPECT_EQ(differences(p.grad().tensor().slice(begin, end), part.grad().tensor()), 0);
  optim::Adam own({part}, {.lr = 0.01});
  own.step();
  EXPECT_EQ(differences(p.tensor().slice(begin, end), part.tensor()), 0);
  EXPECT_GT(differences(part.tensor(), x.slice(begin, end)), 0);
}

}  // namespace
}  // namespace tapedeck::test
