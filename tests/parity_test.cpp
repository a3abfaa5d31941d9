// Values and gradients of ops that PyTorch computed against those of Tapedeck.
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "cuda_support.h"
#include "parity.h"

namespace tapedeck {
namespace {

using namespace test;

using F = std::function<Variable(const Variables&)>;

Variable normalise(const Variables& x, bool training) {
  const Tensor mean = Tensor::zeros({4}, x[0].tensor().options());
  const Tensor var = Tensor::ones({4}, x[0].tensor().options());
  return batch_norm(x[0], x[1], x[2], mean, var, {.training = training});
}

const std::map<std::string, F>& cases() {
  using V = const Variables&;
  static const std::map<std::string, F> table = {
      {"conv_transpose2d", [](V x) { return conv_transpose2d(x[0], x[1], x[2]); }},
      {"conv_transpose2d_k4s2p1",
       [](V x) { return conv_transpose2d(x[0], x[1], x[2], {.stride = 2, .padding = 1}); }},
      {"conv_transpose2d_everything",
       [](V x) {
         return conv_transpose2d(x[0], x[1], x[2],
                                 {.stride = {3, 2},
                                  .padding = {1, 2},
                                  .output_padding = {2, 1},
                                  .dilation = {2, 3},
                                  .groups = 2});
       }},
      {"conv_transpose2d_empty_phases",
       [](V x) {
         return conv_transpose2d(x[0], x[1], {}, {.stride = {5, 4}, .padding = 1, .dilation = 2});
       }},
      {"conv_transpose2d_depthwise",
       [](V x) { return conv_transpose2d(x[0], x[1], x[2], {.stride = 2, .padding = 1, .groups = 4}); }},
      {"conv_transpose2d_unbatched",
       [](V x) {
         return conv_transpose2d(x[0], x[1], {}, {.stride = 2, .padding = 1, .output_padding = 1});
       }},
      {"conv2d", [](V x) { return conv2d(x[0], x[1], x[2]); }},
      {"conv2d_everything",
       [](V x) {
         return conv2d(x[0], x[1], x[2],
                       {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2});
       }},
      {"matmul", [](V x) { return matmul(x[0], x[1]); }},
      {"matmul_batched", [](V x) { return matmul(x[0], x[1]); }},
      {"linear", [](V x) { return linear(x[0], x[1], x[2]); }},
      {"div", [](V x) { return x[0] / x[1]; }},
      {"exp", [](V x) { return exp(x[0]); }},
      {"log", [](V x) { return log(x[0]); }},
      {"sqrt", [](V x) { return sqrt(x[0]); }},
      {"pow_scalar", [](V x) { return pow(x[0], 2.5); }},
      {"pow_tensor", [](V x) { return pow(x[0], x[1]); }},
      {"abs", [](V x) { return abs(x[0]); }},
      {"minimum", [](V x) { return minimum(x[0], x[1]); }},
      {"maximum", [](V x) { return maximum(x[0], x[1]); }},
      {"clamp", [](V x) { return clamp(x[0], -0.5, 0.7); }},
      {"where", [](V x) { return where(gt(x[0], x[1]), x[0] * 2.0, x[1]); }},
      {"relu", [](V x) { return relu(x[0]); }},
      {"leaky_relu", [](V x) { return leaky_relu(x[0], 0.2); }},
      {"elu", [](V x) { return elu(x[0], 1.3); }},
      {"gelu", [](V x) { return gelu(x[0]); }},
      {"gelu_tanh", [](V x) { return gelu(x[0], Gelu::tanh); }},
      {"silu", [](V x) { return silu(x[0]); }},
      {"mish", [](V x) { return mish(x[0]); }},
      {"softplus", [](V x) { return softplus(x[0] * 4.0, 1.5, 3); }},
      {"tanh", [](V x) { return tanh(x[0]); }},
      {"sigmoid", [](V x) { return sigmoid(x[0]); }},
      {"hardtanh", [](V x) { return hardtanh(x[0], -0.4, 0.6); }},
      {"softmax", [](V x) { return softmax(x[0], 1); }},
      {"log_softmax", [](V x) { return log_softmax(x[0], -1); }},
      {"logsumexp",
       [](V x) {
         return logsumexp(x[0], {0, 2});
       }},
      {"sum",
       [](V x) {
         return sum(x[0], {0, 2}, true);
       }},
      {"mean", [](V x) { return mean(x[0], {1}); }},
      {"var",
       [](V x) {
         return var(x[0], {0, 2});
       }},
      {"var_biased", [](V x) { return var(x[0], {1}, {.correction = 0, .keepdim = true}); }},
      {"max", [](V x) { return max(x[0], {1}); }},
      {"min",
       [](V x) {
         return min(x[0], {0, 2}, true);
       }},
      {"permute",
       [](V x) {
         return permute(x[0], {2, 0, 1});
       }},
      {"cat",
       [](V x) {
         return cat({x[0], x[1]}, 1);
       }},
      {"slice", [](V x) { return slice(x[0], 1, 1, 5, 2); }},
      {"pad",
       [](V x) {
         return pad(x[0], {1, 2, 0, 3}, 0.5);
       }},
      {"gather", [](V x) { return gather(x[0], 1, x[1]); }},
      {"index_select", [](V x) { return index_select(x[0], 0, x[1]); }},
      {"batch_norm", [](V x) { return normalise(x, true); }},
      {"batch_norm_eval", [](V x) { return normalise(x, false); }},
      {"group_norm", [](V x) { return group_norm(x[0], 3, x[1], x[2], 1e-5); }},
      {"layer_norm",
       [](V x) {
         return layer_norm(x[0], {4, 3}, x[1], x[2], 1e-5);
       }},
      {"max_pool2d",
       [](V x) {
         return max_pool2d(x[0],
                           {.kernel_size = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}});
       }},
      {"max_pool2d_ceil",
       [](V x) {
         return max_pool2d(x[0], {.kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true});
       }},
      {"avg_pool2d",
       [](V x) {
         return avg_pool2d(x[0], {.kernel_size = {3, 2}, .stride = {2, 1}, .padding = 1});
       }},
      {"avg_pool2d_exclude_pad",
       [](V x) {
         return avg_pool2d(
             x[0],
             {.kernel_size = 3, .stride = 2, .padding = 1, .ceil_mode = true, .count_include_pad = false});
       }},
      {"adaptive_avg_pool2d",
       [](V x) {
         return adaptive_avg_pool2d(x[0], {3, 5});
       }},
      {"upsample_nearest2d",
       [](V x) {
         return upsample_nearest2d(x[0], {7, 9});
       }},
      {"upsample_bilinear2d",
       [](V x) {
         return upsample_bilinear2d(x[0], {7, 9});
       }},
      {"upsample_bilinear2d_corners",
       [](V x) {
         return upsample_bilinear2d(x[0], {7, 9}, true);
       }},
      {"pixel_shuffle", [](V x) { return pixel_shuffle(x[0], 2); }},
      {"mse_loss", [](V x) { return nn::mse_loss(x[0], x[1]); }},
      {"l1_loss", [](V x) { return nn::l1_loss(x[0], x[1]); }},
      {"huber_loss", [](V x) { return nn::huber_loss(x[0], x[1], {.delta = 0.7}); }},
      {"bce_with_logits", [](V x) { return nn::binary_cross_entropy_with_logits(x[0], x[1]); }},
      {"cross_entropy", [](V x) { return nn::cross_entropy(x[0], x[1]); }},
      {"cross_entropy_2d", [](V x) { return nn::cross_entropy(x[0], x[1]); }},
      {"kl_divergence_gaussian", [](V x) { return nn::kl_divergence_gaussian(x[0], x[1]); }},
  };
  return table;
}

void compare(const std::string& name, const TensorMap& pack, DType dtype, double tolerance,
             Device device = {}) {
  Variables inputs;
  for (std::size_t i = 0; pack.contains(name + "/in" + std::to_string(i)); ++i) {
    const Tensor x = pack.at(name + "/in" + std::to_string(i)).to(device);
    inputs.push_back(is_floating(x.dtype()) ? Variable::parameter(x.to(dtype)) : Variable(x));
  }
  Tape tape;
  const Variable y = cases().at(name)(inputs);
  ASSERT_EQ(y.shape(), pack.at(name + "/out").shape()) << name;
  EXPECT_LE(relative_error(y.tensor(), pack.at(name + "/out")), tolerance) << name;
  tape.backward(y, {.gradient = pack.at(name + "/cotangent").to(dtype).to(device)});
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    ASSERT_TRUE(inputs[i].grad().defined()) << name << " input " << i;
    EXPECT_LE(relative_error(inputs[i].grad().tensor(), pack.at(name + "/grad" + std::to_string(i))),
              tolerance)
        << name << " gradient of input " << i;
  }
}

TEST(Parity, EveryCaseOfThePackIsTested) {
  std::set<std::string> stored, tested;
  for (const auto& [name, tensor] : read("ops.safetensors")) stored.insert(name.substr(0, name.find('/')));
  for (const auto& [name, f] : cases()) tested.insert(name);
  EXPECT_EQ(stored, tested);
}

TEST(Parity, OpsInFloat64) {
  const TensorMap pack = read("ops.safetensors");
  for (const auto& [name, f] : cases()) compare(name, pack, DType::float64, 1e-12);
}

TEST(Parity, OpsInFloat32) {
  const TensorMap pack = read("ops.safetensors");
  for (const auto& [name, f] : cases()) compare(name, pack, DType::float32, 1e-5);
}

class CudaParity : public CudaTest {};

TEST_F(CudaParity, Ops) {
  const TensorMap pack = read("ops.safetensors");
  for (const auto& [name, f] : cases()) {
    compare(name, pack, DType::float64, 1e-12, kCuda);
    compare(name, pack, DType::float32, 1e-5, kCuda);
  }
}

}  // namespace
}  // namespace tapedeck
