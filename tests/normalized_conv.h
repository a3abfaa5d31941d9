// What the tests of conv_transpose2d() behind batch_norm() share.
#pragma once

#include "op_support.h"

#include <optional>

namespace tapedeck::test {

/// A layer, its input, and how both are computed.
struct NormalizedLayer {
  Shape x = {3, 4, 5, 7}, w = {4, 6, 3, 2};
  ConvTranspose2dOptions options = {.stride = {2, 1}, .padding = 1};
  double norm_slope = 0, slope = 1;
  bool training = true, affine = true, has_bias = true, tracks = true;
  TensorOptions as = {DType::float64};
  std::function<void(const Tensor& x)> change = {};  // of x, on the CPU in float64

  std::string text() const {
    return concat(x, " ", w, " groups ", options.groups, " ", as.dtype, " ", as.layout, " slopes ",
                  norm_slope, " ", slope, training ? " training" : "", affine ? " affine" : "",
                  has_bias ? " bias" : "");
  }
};

/// What it made: the result, gradients of x and parameters, and the statistics that moved.
struct NormalizedResults {
  std::vector<Tensor> tensors;
  std::string tape;
  std::size_t saved = 0;
};

using NormalizedConv = std::function<Variable(const BatchNormCall&, const Variable& w, const Variable& bias,
                                              const ConvTranspose2dOptions&, double slope)>;

inline Variable two_ops(const BatchNormCall& x, const Variable& w, const Variable& bias,
                        const ConvTranspose2dOptions& options, double slope) {
  return conv_transpose2d(batch_norm(x), w, bias, options, slope);
}

inline NormalizedResults run(const NormalizedLayer& layer, const NormalizedConv& f) {
  const std::int64_t ci = layer.x[1], co = layer.w[1] * layer.options.groups;
  std::uint64_t seed = 1;
  const auto made = [&](const Shape& shape, double low, double high) {
    return random_tensor(shape, {DType::float64}, low, high, ++seed);
  };
  const auto placed = [&](const Tensor& t) {
    return (t.rank() == 4 ? t.to(layer.as.layout) : t).to(layer.as.dtype).to(layer.as.device);
  };
  const auto leaf = [&](const Tensor& t) { return Variable::parameter(placed(t)); };
  const Tensor of_x = made(layer.x, -1, 2);
  if (layer.change) layer.change(of_x);
  BatchNormCall call{.x = leaf(of_x)};
  if (layer.affine) call.weight = leaf(made({ci}, -1, 2)), call.bias = leaf(made({ci}, -1, 1));
  if (layer.tracks)
    call.running_mean = placed(made({ci}, -1, 1)), call.running_var = placed(made({ci}, 0.5, 2));
  const Tensor batches = Tensor::zeros({}, {DType::int64, layer.as.device});
  call.options = {.training = layer.training, .negative_slope = layer.norm_slope};
  if (layer.training && layer.tracks) call.options.batches = batches;
  const Variable w = leaf(made(layer.w, -1, 1)), bias = layer.has_bias ? leaf(made({co}, -1, 1)) : Variable();
  Tape tape;
  const Variable y = f(call, w, bias, layer.options, layer.slope);
  NormalizedResults results{{}, tape.to_text(), tape.saved_bytes()};
  tape.backward(y, {.gradient = placed(made(y.shape(), -1, 1))});
  results.tensors.push_back(y.tensor());
  for (const Variable& v : {call.x, call.weight, call.bias, w, bias})
    if (v.defined()) results.tensors.push_back(v.grad().tensor());
  for (const Tensor& moved :
       {call.running_mean.defined() ? call.running_mean.tensor() : Tensor(),
        call.running_var.defined() ? call.running_var.tensor() : Tensor(), call.options.batches})
    if (moved.defined()) results.tensors.push_back(moved);
  return results;
}

}  // namespace tapedeck::test
