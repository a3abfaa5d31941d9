// First values of weights. All fill `w` in place, under no tape, from the generator's numbers.
//
// Fans are counted as in PyTorch: of a weight [a, b, spatial...], fan_in is b * spatial and fan_out is
// a * spatial. For linear [out, in] and conv2d [co, ci/groups, kh, kw] fan_in is how many products are
// summed for one output. For conv_transpose2d [ci, co/groups, kh, kw] it is not: see
// conv_transpose2d_variance_().
#pragma once

#include <cstdint>
#include <functional>

#include <tapedeck/core/random.h>
#include <tapedeck/core/variable.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::nn::init {

void uniform_(const Variable& w, double low = 0, double high = 1, Generator& generator = default_generator());
void normal_(const Variable& w, double mean = 0, double stddev = 1,
             Generator& generator = default_generator());
void constant_(const Variable& w, double value);

struct Fans {
  std::int64_t in, out;
};
/// Throws Error for a rank below 2.
Fans fans(const Shape& weight);

/// PyTorch's default for linear and convolution layers, of weight and bias alike: uniform in +-bound with
/// bound = 1/sqrt(fan_in) of the weight (kaiming_uniform_ with a = sqrt(5)); 0 when fan_in is.
double default_bound(const Shape& weight);

enum class Nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };
/// The factor that keeps the variance through a nonlinearity; `a` is leaky_relu's negative slope.
double gain(Nonlinearity nonlinearity, double a = 0.01);

/// Variance gain^2 * 2/(fan_in + fan_out) (Glorot and Bengio, 2010).
void xavier_uniform_(const Variable& w, double gain = 1, Generator& generator = default_generator());
void xavier_normal_(const Variable& w, double gain = 1, Generator& generator = default_generator());

enum class Fan { in, out };
struct KaimingOptions {
  double a = 0;  ///< leaky_relu's negative slope
  Fan fan = Fan::in;
  Nonlinearity nonlinearity = Nonlinearity::leaky_relu;
};
/// Variance gain^2/fan (He et al., 2015).
void kaiming_uniform_(const Variable& w, const KaimingOptions& options = {},
                      Generator& generator = default_generator());
void kaiming_normal_(const Variable& w, const KaimingOptions& options = {},
                     Generator& generator = default_generator());

/// `gain` times a random matrix [a, b * spatial] with orthonormal rows, or columns where there are more
/// rows (Saxe et al., 2014). Throws Error for a rank below 2.
void orthogonal_(const Variable& w, double gain = 1, Generator& generator = default_generator());

/// Bilinear interpolation for conv_transpose2d weights [ci, co/groups, kh, kw]: with groups = ci or with
/// ci = co and groups = 1, kernel 2s - s % 2, stride s and padding (s - s % 2)/2 each channel is upsampled s
/// times (Long et al., 2015). Channel i of a group goes to channel i alone. Throws Error unless co/groups
/// divides ci.
void bilinear_(const Variable& w);

/// For conv2d weights [co * upscale^2, ci, kh, kw] whose result goes through pixel_shuffle(upscale): `fill`
/// (by default kaiming_uniform_ as in layers) makes [co, ci, kh, kw], and each result channel is repeated
/// upscale^2 times, so that the shuffled image starts as nearest-neighbour upsampling, without
/// checkerboards (Aitken et al., 2017). Throws Error unless upscale^2 divides the leading size.
void icnr_(const Variable& w, std::int64_t upscale, const std::function<void(const Tensor&)>& fill = {});

struct ConvTransposeVarianceOptions {
  Size2 stride = 1;
  std::int64_t groups = 1;
  double gain = 1;  ///< e.g. gain(Nonlinearity::relu), when the input comes from a ReLU
};
/// Normal numbers that keep the variance through conv_transpose2d with weight [ci, co/groups, kh, kw].
/// On each axis tap k meets only the outputs of phase k*dilation mod stride, so an output of phase p sums
/// n(p) taps, and as every tap belongs to one phase, the mean of n(p) over the stride's phases is
/// kernel/stride. With independent weights of variance s^2 the mean variance of the outputs is then
///   s^2 * ci/groups * (kh/stride_h) * (kw/stride_w) * E[x^2],
/// and s^2 = gain^2 over the factors in between makes it gain^2 E[x^2]. (PyTorch's default counts
/// co/groups * kh * kw instead, and outputs shrink or grow with every layer.)
void conv_transpose2d_variance_(const Variable& w, const ConvTransposeVarianceOptions& options,
                                Generator& generator = default_generator());

}  // namespace tapedeck::nn::init
