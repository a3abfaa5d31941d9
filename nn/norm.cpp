#include <tapedeck/nn/norm.h>

namespace tapedeck::nn {

BatchNorm::BatchNorm(const BatchNormLayerOptions& options) : options_(options) {
  check(options.num_features >= 1, "BatchNorm: num_features ", options.num_features,
        " is not legal; legal is 1 or more");
  check(options.eps > 0, "BatchNorm: eps ", options.eps, " is not legal; legal is above 0");
  check(options.momentum >= 0 && options.momentum <= 1, "BatchNorm: momentum ", options.momentum,
        " is not legal; legal is 0 to 1");
  if (options.affine) {
    weight = register_parameter("weight", Tensor::ones({options.num_features}));
    bias = register_parameter("bias", Tensor::zeros({options.num_features}));
  }
  if (options.track_running_stats) {
    running_mean = register_buffer("running_mean", Tensor::zeros({options.num_features}));
    running_var = register_buffer("running_var", Tensor::ones({options.num_features}));
    num_batches_tracked = register_buffer("num_batches_tracked", Tensor::zeros({}, {.dtype = DType::int64}));
  }
}

Variable BatchNorm::forward_rectified(const Variable& x, double negative_slope) {
  return batch_norm(call_of(x, negative_slope));
}

BatchNormCall BatchNorm::call_of(const Variable& x, double negative_slope) const {
  return {
      x,
      weight,
      bias,
      running_mean,
      running_var,
      {.training = is_training() || !options_.track_running_stats,
       .momentum = options_.momentum,
       .eps = options_.eps,
       .negative_slope = negative_slope,
       .batches = is_training() && options_.track_running_stats ? num_batches_tracked.tensor() : Tensor()}};
}

std::string BatchNorm::details() const {
  return std::to_string(options_.num_features);
}

Variable BatchNorm2d::forward_rectified(const Variable& x, double negative_slope) {
  return batch_norm(*batch_norm_call(x, negative_slope));
}

std::optional<BatchNormCall> BatchNorm2d::batch_norm_call(const Variable& x, double negative_slope) const {
  check(x.rank() == 4, "BatchNorm2d: x has shape ", x.shape(), "; legal is [n, c, h, w]");
  return call_of(x, negative_slope);
}

Variable BatchNorm1d::forward_rectified(const Variable& x, double negative_slope) {
  check(x.rank() == 2 || x.rank() == 3, "BatchNorm1d: x has shape ", x.shape(),
        "; legal is [n, c] or [n, c, length]");
  return BatchNorm::forward_rectified(x, negative_slope);
}

GroupNorm::GroupNorm(const Options& options) : options_(options) {
  check(
      options.num_groups >= 1 && options.num_channels >= 1 && options.num_channels % options.num_groups == 0,
      "GroupNorm: num_groups ", options.num_groups, " does not divide num_channels ", options.num_channels);
  if (options.affine) {
    weight = register_parameter("weight", Tensor::ones({options.num_channels}));
    bias = register_parameter("bias", Tensor::zeros({options.num_channels}));
  }
}

Variable GroupNorm::forward(const Variable& x) {
  return group_norm(x, options_.num_groups, weight, bias, options_.eps);
}

std::string GroupNorm::details() const {
  return concat(options_.num_groups, " groups of ", options_.num_channels);
}

LayerNorm::LayerNorm(const Options& options) : options_(options) {
  check(options.normalized_shape.rank() >= 1, "LayerNorm: normalized_shape is empty");
  if (options.affine) {
    weight = register_parameter("weight", Tensor::ones(options.normalized_shape));
    bias = register_parameter("bias", Tensor::zeros(options.normalized_shape));
  }
}

Variable LayerNorm::forward(const Variable& x) {
  return layer_norm(x, options_.normalized_shape, weight, bias, options_.eps);
}

std::string LayerNorm::details() const {
  return to_string(options_.normalized_shape);
}

}  // namespace tapedeck::nn
