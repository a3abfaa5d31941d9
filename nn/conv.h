// Convolutions and transposed convolutions.
#pragma once

#include <tapedeck/core/random.h>
#include <tapedeck/nn/module.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::nn {

/// conv_transpose2d with a weight [in_channels, out_channels/groups, kh, kw] and a bias [out_channels].
/// x is [n, in_channels, h, w] or [in_channels, h, w]. Warns once when a strided kernel reaches some outputs
/// with more taps than others, which shows as a checkerboard (Odena et al., 2016).
class ConvTranspose2d final : public Module {
 public:
  struct Options {
    std::int64_t in_channels = 0, out_channels = 0;
    Size2 kernel_size = 0;
    Size2 stride = 1, padding = 0, output_padding = 0, dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
  };
  explicit ConvTranspose2d(const Options& options, Generator& generator = default_generator());
  Variable forward(const Variable& x) override { return forward_rectified(x, 1); }
  /// The result of spatial size `output_size`, which takes the place of output_padding.
  Variable forward(const Variable& x, const std::vector<std::int64_t>& output_size);
  const char* kind() const override { return "ConvTranspose2d"; }
  std::string details() const override;
  const Options& options() const { return options_; }

  Variable weight, bias;  ///< bias is undefined without one

 protected:
  bool can_rectify() const override { return true; }
  Variable forward_rectified(const Variable& x, double negative_slope) override;
  Variable forward_normalized(const BatchNormCall& x, double negative_slope) override;

 private:
  Options options_;
};

/// conv2d with a weight [out_channels, in_channels/groups, kh, kw] and a bias [out_channels]. x is
/// [n, in_channels, h, w] or [in_channels, h, w].
class Conv2d final : public Module {
 public:
  struct Options {
    std::int64_t in_channels = 0, out_channels = 0;
    Size2 kernel_size = 0;
    Size2 stride = 1, padding = 0, dilation = 1;
    std::int64_t groups = 1;
    bool bias = true;
  };
  explicit Conv2d(const Options& options, Generator& generator = default_generator());
  Variable forward(const Variable& x) override { return forward_rectified(x, 1); }
  const char* kind() const override { return "Conv2d"; }
  std::string details() const override;
  const Options& options() const { return options_; }

  Variable weight, bias;  ///< bias is undefined without one

 protected:
  bool can_rectify() const override { return true; }
  Variable forward_rectified(const Variable& x, double negative_slope) override;

 private:
  Options options_;
};

}  // namespace tapedeck::nn
