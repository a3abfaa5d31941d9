#include <tapedeck/nn/init.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/index.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck::nn::init {

namespace {

double fan_of(const Shape& weight, Fan fan) {
  const Fans both = fans(weight);
  return static_cast<double>(fan == Fan::in ? both.in : both.out);
}

/// Uniform numbers of mean 0.
void uniform_of_deviation(const Variable& w, double deviation, Generator& generator) {
  const double bound = std::sqrt(3.0) * deviation;
  tapedeck::uniform_(w.tensor(), -bound, bound, generator);
}

double xavier_deviation(const Shape& weight, double gain) {
  const Fans both = fans(weight);
  return gain * std::sqrt(2.0 / static_cast<double>(both.in + both.out));
}

double kaiming_deviation(const Shape& weight, const KaimingOptions& options) {
  return gain(options.nonlinearity, options.a) / std::sqrt(fan_of(weight, options.fan));
}

}  // namespace

void uniform_(const Variable& w, double low, double high, Generator& generator) {
  tapedeck::uniform_(w.tensor(), low, high, generator);
}

void normal_(const Variable& w, double mean, double stddev, Generator& generator) {
  tapedeck::normal_(w.tensor(), mean, stddev, generator);
}

void constant_(const Variable& w, double value) {
  w.tensor().fill_(value);
}

Fans fans(const Shape& weight) {
  check(weight.rank() >= 2, "init: the weight has shape ", weight, "; legal is a rank of 2 or more");
  std::int64_t spatial = 1;
  for (int i = 2; i < weight.rank(); ++i) spatial *= weight[i];
  return {weight[1] * spatial, weight[0] * spatial};
}

double default_bound(const Shape& weight) {
  const std::int64_t fan_in = fans(weight).in;
  return fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0;
}

double gain(Nonlinearity nonlinearity, double a) {
  switch (nonlinearity) {
    case Nonlinearity::linear:
    case Nonlinearity::sigmoid:
      return 1;
    case Nonlinearity::tanh:
      return 5.0 / 3;
    case Nonlinearity::relu:
      return std::sqrt(2.0);
    case Nonlinearity::leaky_relu:
      return std::sqrt(2 / (1 + a * a));
    case Nonlinearity::selu:
      return 0.75;
  }
  return 1;
}

void xavier_uniform_(const Variable& w, double gain, Generator& generator) {
  uniform_of_deviation(w, xavier_deviation(w.shape(), gain), generator);
}

void xavier_normal_(const Variable& w, double gain, Generator& generator) {
  tapedeck::normal_(w.tensor(), 0, xavier_deviation(w.shape(), gain), generator);
}

void kaiming_uniform_(const Variable& w, const KaimingOptions& options, Generator& generator) {
  uniform_of_deviation(w, kaiming_deviation(w.shape(), options), generator);
}

void kaiming_normal_(const Variable& w, const KaimingOptions& options, Generator& generator) {
  tapedeck::normal_(w.tensor(), 0, kaiming_deviation(w.shape(), options), generator);
}

void orthogonal_(const Variable& w, double gain, Generator& generator) {
  const std::int64_t rows = w.size(0), columns = fans(w.shape()).in;
  const std::int64_t count = std::min(rows, columns), length = std::max(rows, columns);
  std::vector<double> basis =
      randn({count, length}, {.dtype = DType::float64}, generator).to_vector<double>();
  const auto vector = [&](std::int64_t i) {
    return std::span(basis).subspan(static_cast<std::size_t>(i * length), static_cast<std::size_t>(length));
  };
  const auto dot = [](std::span<const double> a, std::span<const double> b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<double> v = vector(i);
    for (int pass = 0; pass < 2; ++pass) {  // Gram-Schmidt; the second pass removes what rounding left
      for (std::int64_t j = 0; j < i; ++j) {
        const std::span<const double> u = vector(j);
        const double along = dot(v, u);
        for (std::size_t k = 0; k < v.size(); ++k) v[k] -= along * u[k];
      }
    }
    const double norm = std::sqrt(dot(v, v));
    for (double& value : v) value /= norm;
  }
  Variable matrix = Tensor::from(basis, {count, length});
  if (rows > columns) matrix = transpose(matrix, 0, 1);
  w.tensor().copy_(affine(matrix, gain, 0).tensor().reshape(w.shape()));
}

void bilinear_(const Variable& w) {
  check(w.rank() == 4, "bilinear_: the weight has shape ", w.shape(), "; legal is [ci, co/groups, kh, kw]");
  const std::int64_t ci = w.size(0), co = w.size(1), kh = w.size(2), kw = w.size(3);
  check(co > 0 && ci % co == 0, "bilinear_: the weight has shape ", w.shape(),
        "; the output channels of a group, ", co, ", must divide the input channels, ", ci);
  const auto hat = [](std::int64_t at, std::int64_t kernel) {
    const std::int64_t reach = (kernel + 1) / 2;
    const double middle = static_cast<double>(kernel - 1) / 2;
    return 1 - std::abs(static_cast<double>(at) - middle) / static_cast<double>(reach);
  };
  std::vector<double> values(static_cast<std::size_t>(w.count()), 0.0);
  for (std::int64_t c = 0; c < ci; ++c) {
    for (std::int64_t h = 0; h < kh; ++h) {
      for (std::int64_t x = 0; x < kw; ++x) {
        values[static_cast<std::size_t>(((c * co + c % co) * kh + h) * kw + x)] = hat(h, kh) * hat(x, kw);
      }
    }
  }
  w.tensor().copy_(Tensor::from(values, w.shape()));
}

void icnr_(const Variable& w, std::int64_t upscale, const std::function<void(const Tensor&)>& fill) {
  const std::int64_t repeats = upscale * upscale;
  check(w.rank() == 4 && upscale >= 1 && w.size(0) % repeats == 0, "icnr_: upscale ", upscale,
        " with a weight of shape ", w.shape(), "; legal is 1 or more, whose square divides the leading size");
  const Tensor& to = w.tensor();
  const Tensor kernels = Tensor::empty(to.shape().with(0, to.size(0) / repeats), to.options());
  if (fill) {
    fill(kernels);
  } else {
    const double bound = default_bound(to.shape());
    tapedeck::uniform_(kernels, -bound, bound);
  }
  std::vector<std::int64_t> source(static_cast<std::size_t>(to.size(0)));
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::int64_t>(i) / repeats;
  const Tensor index = Tensor::from(source, {to.size(0)}).to(to.device());
  to.copy_(index_select(kernels, 0, index).tensor());
}

void conv_transpose2d_variance_(const Variable& w, const ConvTransposeVarianceOptions& options,
                                Generator& generator) {
  check(w.rank() == 4, "conv_transpose2d_variance_: the weight has shape ", w.shape(),
        "; legal is [ci, co/groups, kh, kw]");
  check(options.groups >= 1 && w.size(0) % options.groups == 0, "conv_transpose2d_variance_: groups ",
        options.groups, " is not legal; legal are the divisors of the input channels, ", w.size(0));
  check(options.stride.h >= 1 && options.stride.w >= 1, "conv_transpose2d_variance_: stride {",
        options.stride.h, ", ", options.stride.w, "} is not legal; legal is 1 or more");
  const std::int64_t group_ci = w.size(0) / options.groups;
  const double taps_h = static_cast<double>(w.size(2)) / static_cast<double>(options.stride.h);
  const double taps_w = static_cast<double>(w.size(3)) / static_cast<double>(options.stride.w);
  const double summed = static_cast<double>(group_ci) * taps_h * taps_w;
  tapedeck::normal_(w.tensor(), 0, options.gain / std::sqrt(summed), generator);
}

}  // namespace tapedeck::nn::init
