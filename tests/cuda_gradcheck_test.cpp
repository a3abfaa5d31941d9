// Gradients of first and second order on a GPU against differences.
#include "cuda_support.h"
#include "op_support.h"

namespace tapedeck {
namespace {

using namespace test;

class CudaGradcheck : public CudaTest {};

using Function = std::function<Variable(const Variables&)>;

Variable leaf(const Shape& shape, Layout layout = Layout::nchw, double low = -2, double high = 2) {
  return Variable::parameter(random_tensor(shape, {DType::float64, {}, layout}, low, high,
                                           3 + static_cast<std::uint64_t>(shape.count()))
                                 .to(kCuda));
}

void check_both(const char* name, const Function& f, const Variables& inputs) {
  SCOPED_TRACE(name);
  EXPECT_EQ(error_of([&] { gradcheck(f, inputs); }), "no error");
  EXPECT_EQ(error_of([&] { gradgradcheck(f, inputs); }), "no error");
}

TEST_F(CudaGradcheck, Convolutions) {
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const ConvTranspose2dOptions options{
        .stride = {2, 1}, .padding = {1, 0}, .output_padding = {1, 0}, .dilation = {1, 2}, .groups = 2};
    check_both("conv_transpose2d",
               [&](const Variables& v) { return conv_transpose2d(v[0], v[1], v[2], options); },
               {leaf({2, 4, 3, 2}, layout), leaf({4, 1, 3, 2}), leaf({2})});
    check_both("conv2d",
               [](const Variables& v) { return conv2d(v[0], v[1], v[2], {.stride = 2, .padding = 1}); },
               {leaf({2, 2, 4, 5}, layout), leaf({3, 2, 3, 2}), leaf({3})});
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
  check_both("losses",
             [](V v) { return nn::mse_loss(v[0], v[1]) + nn::huber_loss(v[0], v[1], {.delta = 0.7}); },
             {leaf({3, 5}), leaf({3, 5}, Layout::nchw, 3, 4)});
}

}  // namespace
}  // namespace tapedeck
