// Gradients of first and second order on a GPU against differences.
#include "conv_gradient_cases.h"
#include "cuda_support.h"
#include "op_support.h"

#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck {
namespace {

using namespace test;

using Function = std::function<Variable(const Variables&)>;

class CudaGradcheck : public CudaTest {
 protected:
  void check_first(const char* name, const Function& f, const Variables& inputs) {
    if (share_.takes_next()) first(name, f, inputs);
  }
  void check_both(const char* name, const Function& f, const Variables& inputs,
                  double rtol_of_second = 1e-5) {
    if (!share_.takes_next()) return;
    first(name, f, inputs);
    SCOPED_TRACE(name);
    EXPECT_EQ(error_of([&] { gradgradcheck(f, inputs, {.rtol = rtol_of_second, .elements = elements_}); }),
              "no error");
  }

 private:
  void first(const char* name, const Function& f, const Variables& inputs) const {
    SCOPED_TRACE(name);
    EXPECT_EQ(error_of([&] { gradcheck(f, inputs, {.elements = elements_}); }), "no error");
  }

  // Some elements of each input: what is wrong is hardly ever wrong for one of them alone, and the CPU's
  // tests take all. An evaluation is some 0.5 ms, most of it copies to the host and back.
  const std::int64_t elements_ = is_sanitized() ? 1 : 5;
  Share share_;
};

Variable leaf(const Shape& shape, Layout layout = Layout::nchw, double low = -2, double high = 2) {
  return Variable::parameter(random_tensor(shape, {DType::float64, {}, layout}, low, high,
                                           3 + static_cast<std::uint64_t>(shape.count()))
                                 .to(kCuda));
}

// Every case in each of the three functions. Their gradients are made of each other, so that gradients of
// gradients need no second look at each kernel: forced algorithms are checked in first order, and the
// rectified forms, whose gradients are those of the others and a mask.
TEST_F(CudaGradcheck, Convolutions) {
  using V = const Variables&;
  for (const GradientCase& c : kGradientCases) {
    SCOPED_TRACE(concat(c.x, " ", c.w));
    const auto& o = c.options;
    const Conv2dOptions plain{o.stride, o.padding, o.dilation, o.groups};
    const Size2 kernel(c.w[2], c.w[3]);
    const Variable x = leaf(c.x, c.layout), w = leaf(c.w), b = leaf({c.w[1] * o.groups}), b2 = leaf({c.w[0]});
    const Variable y = leaf(conv_transpose2d(x, w, {}, o).shape(), c.layout);
    const Function up = [&](V v) { return conv_transpose2d(v[0], v[1], v[2], o); },
                   down = [&](V v) { return conv2d(v[0], v[1], v[2], plain); },
                   weight_grad = [&](V v) { return conv_transpose2d_weight_grad(v[0], v[1], kernel, o); };
    check_both("conv_transpose2d", up, {x, w, b});
    check_both("conv2d", down, {y, w, b2});
    check_both("weight_grad", weight_grad, {x, y});
    check_first("rectified", [&](V v) { return conv_transpose2d(v[0], v[1], v[2], o, 0.2); }, {x, w, b});
    check_first("rectified conv2d", [&](V v) { return conv2d(v[0], v[1], v[2], plain, 0); }, {y, w, b2});
    using enum ConvAlgorithm;
    for (ConvAlgorithm algorithm : {reference, direct, simt, depthwise}) {
      const ConvAlgorithmScope scope(algorithm);
      SCOPED_TRACE(to_string(algorithm));
      check_first("conv_transpose2d", up, {x, w, b});
      check_first("conv2d", down, {y, w, b2});
      check_first("weight_grad", weight_grad, {x, y});
    }
  }
}

TEST_F(CudaGradcheck, Others) {
  using V = const Variables&;
  check_both("arithmetic", [](V v) { return v[0] * v[1] / (v[2] * v[2] + 1.0) - v[0]; },
             {leaf({2, 3, 1, 4}), leaf({3, 2, 1}), leaf({2, 3, 2, 4}, Layout::nhwc)});
  check_both("linear", [](V v) { return linear(v[0], v[1], v[2]); }, {leaf({4, 3}), leaf({2, 3}), leaf({2})});
  check_both("activations", [](V v) { return silu(v[0]) + gelu(v[0]) * tanh(v[0]) + softplus(v[0]); },
             {leaf({2, 7})});
  check_both("softmax", [](V v) { return softmax(v[0], 1); }, {leaf({3, 5})});
  check_both("variance", [](V v) { return var(v[0], {0, 2}); }, {leaf({2, 3, 4})});
  check_both("batch_norm",
             [](V v) {
               const Tensor mean = Tensor::zeros({3}, {DType::float64, kCuda}),
                            var = Tensor::ones({3}, {DType::float64, kCuda});
               return batch_norm(v[0], v[1], v[2], mean, var, {.training = true});
             },
             {leaf({4, 3, 2, 3}), leaf({3}), leaf({3})});
  check_both("group_norm", [](V v) { return group_norm(v[0], 2, v[1], v[2]); },
             {leaf({2, 4, 3}), leaf({4}), leaf({4})});
  check_both("pooling",
             [](V v) { return avg_pool2d(v[0], {.kernel_size = 2}) + max_pool2d(v[0], {.kernel_size = 2}); },
             {leaf({2, 2, 4, 4})});
  check_both("resampling", [](V v) { return upsample_bilinear2d(v[0], {5, 7}); }, {leaf({1, 2, 3, 4})});
  check_both("shapes",
             [](V v) {
               return cat({permute(v[0], {1, 0}), slice(v[0], 1, 0, 2)}, 1) * 2.0;
             },
             {leaf({3, 3})});
  check_both("indices",
             [](V v) {
               return index_select(v[0], 0, Tensor::from<std::int64_t>({2, 0, 2}, {3}).to(kCuda)) * v[1];
             },
             {leaf({3, 4}), leaf({3, 1})});
  check_both("matmul", [](V v) { return matmul(v[0], v[1]); }, {leaf({2, 3, 4}), leaf({4, 2})});
  check_both("rectified linear", [](V v) { return linear(v[0], v[1], v[2], 0); },
             {leaf({4, 3}), leaf({2, 3}), leaf({2})});
  check_both("powers", [](V v) { return pow(v[0], v[1]) + pow(v[0], 2.5); },
             {leaf({3, 4}, Layout::nchw, 0.5, 2), leaf({4})});
  check_both("choices",
             [](V v) {
               return minimum(v[0], v[1]) * maximum(v[0], v[1]) + where(gt(v[0], v[1]), v[0], v[1] * v[1]);
             },
             {leaf({3, 5}), leaf({5})});
  check_both("log_softmax", [](V v) { return log_softmax(v[0], 0) + logsumexp(v[0], {1}, true); },
             {leaf({3, 5})});
  check_both("extremes", [](V v) { return square(max(v[0], {1})) + square(min(v[0], {1})); },
             {leaf({3, 5, 2})});
  check_both("layer_norm", [](V v) { return layer_norm(v[0], {4}, v[1], v[2]); },
             {leaf({2, 3, 4}), leaf({4}), leaf({4})});
  const auto index = [](const std::vector<std::int64_t>& values, const Shape& shape) {
    return Tensor::from(values, shape).to(kCuda);
  };
  check_both("gather",
             [&](V v) {
               return square(gather(v[0], 1, index({3, 3, 0, 1, 2, 3}, {2, 3})));
             },
             {leaf({2, 4})});
  check_both("scatter_add",
             [&](V v) {
               return square(scatter_add(v[0], 1, index({3, 3, 0, 1, 3, 3}, {2, 3}), {2, 5}));
             },
             {leaf({2, 3})});
  check_both("index_add",
             [&](V v) {
               return square(index_add(v[0], 0, index({2, 0, 2}, {3}), 4));
             },
             {leaf({3, 4})});
  check_both("embedding",
             [&](V v) {
               return square(embedding(v[0], index({1, 0, 1, 4}, {2, 2})));
             },
             {leaf({5, 3})});
  check_both("pad and stack",
             [](V v) {
               const Variable padded = pad(v[0], {1, 2, 0, 1}, 0.5);
               return square(stack({padded, padded * 2.0}, 1));
             },
             {leaf({2, 3})});
  check_both("pixel_shuffle", [](V v) { return square(pixel_unshuffle(pixel_shuffle(v[0], 2) * 1.5, 2)); },
             {leaf({2, 4, 2, 3}, Layout::nhwc)});
  check_both("nearest", [](V v) { return square(upsample_nearest2d(v[0], {5, 7})); }, {leaf({1, 2, 3, 4})});
  check_both("adaptive_avg_pool2d",
             [](V v) {
               return square(adaptive_avg_pool2d(v[0], {2, 3}));
             },
             {leaf({1, 2, 5, 4}, Layout::nhwc)});
  check_both("dropout",
             [](V v) {
               Generator generator(3);
               return square(dropout(v[0], 0.3, true, generator));
             },
             {leaf({4, 5})});
  check_both("l1", [](V v) { return square(nn::l1_loss(v[0], v[1])); },
             {leaf({3, 5}), leaf({3, 5}, Layout::nchw, 3, 4)});
  check_both("binary cross-entropy", [](V v) { return nn::binary_cross_entropy_with_logits(v[0], v[1]); },
             {leaf({3, 5}), leaf({3, 5}, Layout::nchw, 0.1, 0.9)});
  check_both("cross_entropy",
             [&](V v) {
               return nn::cross_entropy(v[0], index({1, 4, -100}, {3}), {.label_smoothing = 0.1});
             },
             {leaf({3, 5})});
  check_both("kl", [](V v) { return nn::kl_divergence_gaussian(v[0], v[1]); }, {leaf({3, 5}), leaf({3, 5})});
  check_both(
      "ssim", [](V v) { return nn::ssim(v[0], v[1], {.window_size = 3}); },
      {leaf({1, 2, 4, 5}, Layout::nchw, 0, 1), leaf({1, 2, 4, 5}, Layout::nhwc, 0.1, 0.9)}, 1e-4);
  check_both("losses",
             [](V v) { return nn::mse_loss(v[0], v[1]) + nn::huber_loss(v[0], v[1], {.delta = 0.7}); },
             {leaf({3, 5}), leaf({3, 5}, Layout::nchw, 3, 4)});
}

}  // namespace
}  // namespace tapedeck
