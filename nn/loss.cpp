#include <tapedeck/nn/loss.h>

#include <cmath>
#include <numbers>

#include <tapedeck/ops/activation.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/loss.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/shape.h>
#include <tapedeck/ops/softmax.h>

namespace tapedeck::nn {

namespace {

Variable reduce(const Variable& losses, Reduction reduction) {
  switch (reduction) {
    case Reduction::mean:
      return mean(losses);
    case Reduction::sum:
      return sum(losses);
    case Reduction::none:
      break;
  }
  return losses;
}

Variable pointwise(const PointwiseLossCall& call, const Variable& x, const Variable& t, Reduction reduction) {
  if (reduction == Reduction::none) return pointwise_loss(call, x, t);
  const bool mean = reduction == Reduction::mean && x.defined();
  return pointwise_loss_sum(call, mean ? 1 / static_cast<double>(x.count()) : 1, x, t);
}

void check_same_shape(const char* name, const char* a_name, const Variable& a, const char* b_name,
                      const Variable& b) {
  check(a.defined() && b.defined(), name, ": ", a.defined() ? b_name : a_name, " is undefined");
  check(a.shape() == b.shape(), name, ": ", a_name, " has shape ", a.shape(), " but ", b_name, " has ",
        b.shape());
}

}  // namespace

Variable mse_loss(const Variable& input, const Variable& target, Reduction reduction) {
  return pointwise({PointwiseLoss::squared}, input, target, reduction);
}

Variable l1_loss(const Variable& input, const Variable& target, Reduction reduction) {
  return pointwise({PointwiseLoss::absolute}, input, target, reduction);
}

Variable huber_loss(const Variable& input, const Variable& target, const HuberOptions& options) {
  return pointwise({PointwiseLoss::huber, options.delta}, input, target, options.reduction);
}

Variable binary_cross_entropy_with_logits(const Variable& logits, const Variable& target,
                                          const BinaryCrossEntropyOptions& options) {
  const PointwiseLossCall call{PointwiseLoss::logistic};
  if (!options.weight.defined() && !options.pos_weight.defined()) {
    return pointwise(call, logits, target, options.reduction);
  }
  check_same_shape("binary_cross_entropy_with_logits", "input", logits, "target", target);
  Variable losses;
  if (options.pos_weight.defined()) {
    const Variable positive = (options.pos_weight - 1.0) * target + 1.0;
    losses = (1.0 - target) * logits + positive * softplus(-logits, 1, 100);
  } else {
    losses = pointwise_loss(call, logits, target);
  }
  return reduce(options.weight.defined() ? losses * options.weight : losses, options.reduction);
}

Variable cross_entropy(const Variable& logits, const Variable& target, const CrossEntropyOptions& options) {
  check(logits.defined() && target.defined(), "cross_entropy: ", logits.defined() ? "target" : "logits",
        " is undefined");
  check(logits.rank() >= 2 && logits.shape().without(1) == target.shape(),
        "cross_entropy: logits have shape ", logits.shape(), " and target has ", target.shape(),
        "; legal are [n, classes, ...] and [n, ...]");
  check(target.dtype() == DType::int64, "cross_entropy: target is ", target.dtype(), "; legal is int64");
  check(options.label_smoothing >= 0 && options.label_smoothing <= 1, "cross_entropy: label_smoothing ",
        options.label_smoothing, " is not legal; legal is [0, 1]");
  const Variable counted = ne(target, static_cast<double>(options.ignore_index));  // uint8
  const Variable index = unsqueeze(target * cast(counted, DType::int64), 1);       // 0 where ignored

  const Variable log_p = log_softmax(logits, 1);
  Variable losses = -squeeze(gather(log_p, 1, index), 1);
  if (options.label_smoothing > 0) {
    losses = losses * (1 - options.label_smoothing) - mean(log_p, {1}) * options.label_smoothing;
  }
  losses = where(counted, losses, Tensor::zeros({}, {losses.dtype(), logits.device()}));
  if (options.reduction == Reduction::mean) return sum(losses) / cast(sum(counted), losses.dtype());
  return reduce(losses, options.reduction);
}

Variable kl_divergence_gaussian(const Variable& mu, const Variable& logvar, Reduction reduction) {
  check_same_shape("kl_divergence_gaussian", "mu", mu, "logvar", logvar);
  check(mu.rank() >= 1, "kl_divergence_gaussian: mu has shape ", mu.shape(), "; legal is [n, ...]");
  const Variable each = (mu * mu + exp(logvar) - logvar - 1.0) * 0.5;
  const Variable samples = mu.rank() == 1 ? each : sum(flatten(each, 1), {1});
  return reduce(samples, reduction);
}

Variable ssim(const Variable& x, const Variable& y, const SsimOptions& options) {
  check_same_shape("ssim", "x", x, "y", y);
  const std::int64_t size = options.window_size;
  check(size >= 1 && size % 2 == 1, "ssim: window_size ", size, " is not legal; legal are odd numbers");
  check(x.rank() == 4 && x.size(2) >= size && x.size(3) >= size, "ssim: x has shape ", x.shape(),
        "; legal is [n, c, h, w] with h and w of at least the window's ", size);
  check(x.count() > 0, "ssim: x has shape ", x.shape(),
        "; legal is a batch of 1 or more, of 1 channel or more");
  check(options.sigma > 0, "ssim: sigma ", options.sigma, " is not legal; legal is above 0");
  // Half types are computed in float32, and under Autocast stay there. Its products would not do: variances
  // are small differences.
  const Variable wide_x = detail::widened(x), wide_y = detail::widened(y);
  const Autocast off(DType::float32);
  if (wide_x.dtype() != x.dtype() || wide_y.dtype() != y.dtype()) return ssim(wide_x, wide_y, options);
  if (size_of(x.dtype()) == 2) {
    return cast(ssim(cast(x, DType::float32), cast(y, DType::float32), options), x.dtype());
  }

  const std::int64_t n = x.size(0), c = x.size(1), middle = size / 2;
  std::vector<double> window;
  double total = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    const double at = static_cast<double>(i - middle) / options.sigma;
    window.push_back(std::exp(-0.5 * at * at));
    total += window.back();
  }
  for (double& value : window) value /= total;
  const Tensor taps = Tensor::empty({size}, {x.dtype(), x.device()});
  for (std::int64_t i = 0; i < size; ++i)
    taps.slice(i, i + 1).fill_(window[i]);  // a captured step copies nothing
  const Variable row = taps.reshape({1, 1, 1, size});
  const Variable along_w = broadcast_to(row, {c, 1, 1, size});
  const Variable along_h = reshape(along_w, {c, 1, size, 1});

  // The local means of x, y, x^2, y^2 and xy.
  const Variable maps = cat({x, y, x * x, y * y, x * y}, 0);
  const Variable blurred = conv2d(conv2d(maps, along_w, {}, {.groups = c}), along_h, {}, {.groups = c});
  const Variables parts = split(blurred, n, 0);
  const Variable &mx = parts[0], &my = parts[1];
  const Variable mean_product = mx * my, mean_squares = mx * mx + my * my;
  const Variable covariance = parts[4] - mean_product, variances = parts[2] + parts[3] - mean_squares;
  const double c1 = std::pow(options.k1 * options.data_range, 2);
  const double c2 = std::pow(options.k2 * options.data_range, 2);
  return mean((mean_product * 2.0 + c1) * (covariance * 2.0 + c2) / ((mean_squares + c1) * (variances + c2)));
}

Variable ssim_loss(const Variable& x, const Variable& y, const SsimOptions& options) {
  return 1.0 - ssim(x, y, options);
}

Tensor psnr(const Tensor& x, const Tensor& y, double data_range) {
  const NoTape no_tape;
  check_same_shape("psnr", "x", x, "y", y);
  check(x.rank() >= 1, "psnr: x has shape ", x.shape(), "; legal is [n, ...]");
  check(data_range > 0, "psnr: data_range ", data_range, " is not legal; legal is above 0");
  const Variable d = Variable(x.to(DType::float64)) - y.to(DType::float64);
  const Variable mse = d.rank() == 1 ? d * d : mean(flatten(d * d, 1), {1});
  return affine(log(mse / (data_range * data_range)), -10 / std::numbers::ln10, 0).tensor();
}

}  // namespace tapedeck::nn
