// Normalisation as modules. See ops/norm.h for what they compute.
#pragma once

#include <tapedeck/nn/module.h>
#include <tapedeck/ops/norm.h>

namespace tapedeck::nn {

struct BatchNormLayerOptions {
  std::int64_t num_features = 0;
  double eps = 1e-5;
  double momentum = 0.1;
  bool affine = true;               ///< weight and bias, 1 and 0 at first
  bool track_running_stats = true;  ///< without them, evaluation uses the batch's statistics too
};

/// What BatchNorm1d and BatchNorm2d share: parameters "weight" and "bias", buffers "running_mean",
/// "running_var" and "num_batches_tracked", all with PyTorch's names.
class BatchNorm : public Module {
 public:
  Variable weight, bias;               // [num_features], undefined unless affine
  Variable running_mean, running_var;  // [num_features], undefined unless track_running_stats
  Variable num_batches_tracked;        // int64 []

  /// A derived class overrides forward_rectified(), which is called alone as well as fused.
  Variable forward(const Variable& x) final { return forward_rectified(x, 1); }
  std::string details() const override;

 protected:
  explicit BatchNorm(const BatchNormLayerOptions& options);
  bool can_rectify() const override { return true; }
  Variable forward_rectified(const Variable& x, double negative_slope) override;
  /// What forward_rectified() calls.
  BatchNormCall call_of(const Variable& x, double negative_slope) const;

 private:
  BatchNormLayerOptions options_;
};

/// Batch normalisation (Ioffe and Szegedy, 2015) of images [n, c, h, w].
class BatchNorm2d final : public BatchNorm {
 public:
  using Options = BatchNormLayerOptions;
  explicit BatchNorm2d(const Options& options) : BatchNorm(options) {}
  const char* kind() const override { return "BatchNorm2d"; }

 protected:
  Variable forward_rectified(const Variable& x, double negative_slope) override;
  std::optional<BatchNormCall> batch_norm_call(const Variable& x, double negative_slope) const override;
};

/// Batch normalisation of vectors [n, c] or sequences [n, c, length].
class BatchNorm1d final : public BatchNorm {
 public:
  using Options = BatchNormLayerOptions;
  explicit BatchNorm1d(const Options& options) : BatchNorm(options) {}
  const char* kind() const override { return "BatchNorm1d"; }

 protected:
  Variable forward_rectified(const Variable& x, double negative_slope) override;
};

/// Normalisation over groups of channels (Wu and He, 2018) of x [n, c, ...].
class GroupNorm final : public Module {
 public:
  struct Options {
    std::int64_t num_groups = 0;
    std::int64_t num_channels = 0;  ///< a multiple of num_groups
    double eps = 1e-5;
    bool affine = true;
  };
  explicit GroupNorm(const Options& options);

  Variable weight, bias;  // [num_channels], undefined unless affine

  Variable forward(const Variable& x) override;
  const char* kind() const override { return "GroupNorm"; }
  std::string details() const override;

 private:
  Options options_;
};

/// Normalisation over the last dimensions (Ba et al., 2016).
class LayerNorm final : public Module {
 public:
  struct Options {
    Shape normalized_shape = {};
    double eps = 1e-5;
    bool affine = true;
  };
  explicit LayerNorm(const Options& options);

  Variable weight, bias;  // of normalized_shape, undefined unless affine

  Variable forward(const Variable& x) override;
  const char* kind() const override { return "LayerNorm"; }
  std::string details() const override;

 private:
  Options options_;
};

}  // namespace tapedeck::nn
