// Losses and measures of quality.
//
// Shapes and dtypes of the two sides must agree; Throw Error otherwise, naming both.
#pragma once

#include <cstdint>

#include <tapedeck/core/op.h>

namespace tapedeck::nn {

/// What is done with the losses of single elements.
enum class Reduction : std::uint8_t { mean, sum, none };

/// (input - target)^2.
Variable mse_loss(const Variable& input, const Variable& target, Reduction reduction = Reduction::mean);
/// |input - target|.
Variable l1_loss(const Variable& input, const Variable& target, Reduction reduction = Reduction::mean);

struct HuberOptions {
  double delta = 1;  ///< above 0
  Reduction reduction = Reduction::mean;
};
/// d^2/2 where |d| < delta, else delta (|d| - delta/2), with d = input - target.
Variable huber_loss(const Variable& input, const Variable& target, const HuberOptions& options = {});

struct BinaryCrossEntropyOptions {
  Variable weight = {};      ///< of each element; broadcasts
  Variable pos_weight = {};  ///< of the part with target 1; broadcasts, e.g. [c] over [n, c]
  Reduction reduction = Reduction::mean;
};
/// -pos_weight t log(p) - (1 - t) log(1 - p), with p = sigmoid(logits) and targets t in [0, 1]. Stable for
/// logits of any size. The mean is over elements, whatever their weights.
Variable binary_cross_entropy_with_logits(const Variable& logits, const Variable& target,
                                          const BinaryCrossEntropyOptions& options = {});
inline Variable binary_cross_entropy_with_logits(const Variable& logits, const Variable& target,
                                                 Reduction reduction) {
  return binary_cross_entropy_with_logits(logits, target, {.reduction = reduction});
}

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;  ///< targets of this value cost nothing and do not count in the mean
  double label_smoothing = 0;        ///< in [0, 1]: this much of the target is spread over all classes
  Reduction reduction = Reduction::mean;
};
/// -log softmax(logits)[target] over the classes in dimension 1: logits [n, c, ...], target (int64)
/// [n, ...] in [0, c).
Variable cross_entropy(const Variable& logits, const Variable& target,
                       const CrossEntropyOptions& options = {});

/// The divergence of the normal distributions N(mu, exp(logvar)), independent in all dimensions but the
/// first, from N(0, 1): for each sample the sum of (mu^2 + exp(logvar) - 1 - logvar)/2. The reduction is over
/// samples: the mean is that of a batch, and none gives [n].
Variable kl_divergence_gaussian(const Variable& mu, const Variable& logvar,
                                Reduction reduction = Reduction::mean);

struct SsimOptions {
  double data_range = 1;          ///< the largest possible value minus the smallest
  std::int64_t window_size = 11;  ///< odd; images must be at least as large
  double sigma = 1.5;
  double k1 = 0.01, k2 = 0.03;
};
/// The mean structural similarity of images [n, c, h, w], over every position of a Gaussian window inside
/// the image, each channel for itself (Wang et al., 2004): 1 for equal images. Half types are computed in
/// float32.
Variable ssim(const Variable& x, const Variable& y, const SsimOptions& options = {});
/// 1 - ssim.
Variable ssim_loss(const Variable& x, const Variable& y, const SsimOptions& options = {});

/// The peak signal-to-noise ratio of each image of x [n, ...] in dB, 10 log10(data_range^2 / mse): [n] in
/// float64, infinite for equal images. Not differentiable.
Tensor psnr(const Tensor& x, const Tensor& y, double data_range = 1);

}  // namespace tapedeck::nn
