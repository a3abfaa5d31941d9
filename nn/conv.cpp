#include <tapedeck/nn/conv.h>

#include <numeric>

#include <tapedeck/nn/init.h>
#include <tapedeck/nn/warning.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>

namespace tapedeck::nn {

namespace {

std::string times(Size2 size) {
  return concat(size.h, "x", size.w);
}

template <class Options>
void check_options(const char* kind, const Options& o) {
  check(o.in_channels >= 1 && o.out_channels >= 1, kind, ": in_channels ", o.in_channels,
        " and out_channels ", o.out_channels, " are not legal; legal is 1 or more");
  check(o.groups >= 1 && o.in_channels % o.groups == 0 && o.out_channels % o.groups == 0, kind, ": groups ",
        o.groups, " is not legal; legal are common divisors of in_channels ", o.in_channels,
        " and out_channels ", o.out_channels);
  check(o.kernel_size.h >= 1 && o.kernel_size.w >= 1, kind, ": kernel_size ", times(o.kernel_size),
        " is not legal; legal is 1 or more");
  check(o.stride.h >= 1 && o.stride.w >= 1, kind, ": stride ", times(o.stride),
        " is not legal; legal is 1 or more");
  check(o.padding.h >= 0 && o.padding.w >= 0, kind, ": padding ", times(o.padding),
        " is not legal; legal is 0 or more");
  check(o.dilation.h >= 1 && o.dilation.w >= 1, kind, ": dilation ", times(o.dilation),
        " is not legal; legal is 1 or more");
}

template <class Options>
std::string describe(const Options& o) {
  std::string text = concat(o.in_channels, " -> ", o.out_channels, ", kernel ", times(o.kernel_size));
  const auto add = [&](const char* name, Size2 size, Size2 usual) {
    if (!(size == usual)) text += concat(", ", name, " ", times(size));
  };
  add("stride", o.stride, 1);
  add("padding", o.padding, 0);
  if constexpr (requires { o.output_padding; }) add("output_padding", o.output_padding, 0);
  add("dilation", o.dilation, 1);
  if (o.groups != 1) text += concat(", groups ", o.groups);
  return text;
}

/// Whether some phases of an axis have more taps than others.
bool is_uneven(std::int64_t kernel, std::int64_t stride, std::int64_t dilation) {
  return kernel % stride != 0 || std::gcd(stride, dilation) != 1;
}

void warn_of_checkerboard(const ConvTranspose2d::Options& o) {
  if (!is_uneven(o.kernel_size.h, o.stride.h, o.dilation.h) &&
      !is_uneven(o.kernel_size.w, o.stride.w, o.dilation.w)) {
    return;
  }
  warn_once(
      concat("ConvTranspose2d: kernel ", times(o.kernel_size), " with stride ", times(o.stride),
             " and dilation ", times(o.dilation),
             " reaches some outputs with more taps than others, which shows as a checkerboard (Odena et "
             "al., 2016); use a kernel that the stride divides, and a dilation prime to it"));
}

}  // namespace

ConvTranspose2d::ConvTranspose2d(const Options& options, Generator& generator) : options_(options) {
  const Options& o = options;
  check_options("ConvTranspose2d", o);
  warn_of_checkerboard(o);
  weight = register_parameter(
      "weight", Tensor::empty({o.in_channels, o.out_channels / o.groups, o.kernel_size.h, o.kernel_size.w}));
  const double bound = init::default_bound(weight.shape());
  init::uniform_(weight, -bound, bound, generator);
  if (!o.bias) return;
  bias = register_parameter("bias", Tensor::empty({o.out_channels}));
  init::uniform_(bias, -bound, bound, generator);
}

Variable ConvTranspose2d::forward_rectified(const Variable& x, double negative_slope) {
  if (negative_slope < 0) return {};
  return conv_transpose2d(
      x, weight, bias,
      {options_.stride, options_.padding, options_.output_padding, options_.dilation, options_.groups},
      negative_slope);
}

Variable ConvTranspose2d::forward_normalized(const BatchNormCall& x, double negative_slope) {
  if (negative_slope < 0) return {};
  return detail::normalized_at_once(
      x, weight, bias,
      {options_.stride, options_.padding, options_.output_padding, options_.dilation, options_.groups},
      negative_slope);
}

Variable ConvTranspose2d::forward(const Variable& x, const std::vector<std::int64_t>& output_size) {
  return conv_transpose2d(
      x, weight, bias,
      {options_.stride, options_.padding, 0, options_.dilation, options_.groups, output_size});
}

std::string ConvTranspose2d::details() const {
  return describe(options_);
}

Conv2d::Conv2d(const Options& options, Generator& generator) : options_(options) {
  const Options& o = options;
  check_options("Conv2d", o);
  weight = register_parameter(
      "weight", Tensor::empty({o.out_channels, o.in_channels / o.groups, o.kernel_size.h, o.kernel_size.w}));
  const double bound = init::default_bound(weight.shape());
  init::uniform_(weight, -bound, bound, generator);
  if (!o.bias) return;
  bias = register_parameter("bias", Tensor::empty({o.out_channels}));
  init::uniform_(bias, -bound, bound, generator);
}

Variable Conv2d::forward_rectified(const Variable& x, double negative_slope) {
  if (negative_slope < 0) return {};
  return conv2d(x, weight, bias, {options_.stride, options_.padding, options_.dilation, options_.groups},
                negative_slope);
}

std::string Conv2d::details() const {
  return describe(options_);
}

}  // namespace tapedeck::nn
