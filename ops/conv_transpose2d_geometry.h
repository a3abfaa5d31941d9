// The geometry of transposed and plain 2-D convolutions: sizes, phases and taps of every kernel.
//
// A transposed convolution takes x [n,ci,ih,iw] to y [n,co,oh,ow] with w [ci,co/groups,kh,kw]; the plain
// convolution with the same geometry takes y back to x, and is its gradient. On each axis input position
// i and tap k meet output position o exactly where
//
//   o + padding = i*stride + k*dilation.
//
// Outputs with the same phase, (o + padding) mod stride, see the same taps at unit stride: with
// o + padding = q*stride + phase, tap k reads input i = q - delta(k). Everything that a kernel needs to
// know about positions is a function of ConvAxis; no other file states the relation.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include <tapedeck/core/host_device.h>
#include <tapedeck/core/shape.h>

namespace tapedeck {

class Tensor;

struct ConvTranspose2dOptions {
  Size2 stride = 1, padding = 0, output_padding = 0, dilation = 1;
  std::int64_t groups = 1;
  /// Empty, or the wanted {oh, ow} (the non-spatial sizes may stand in front and are ignored), which takes
  /// the place of output_padding.
  std::vector<std::int64_t> output_size = {};
};

struct Conv2dOptions {
  Size2 stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
};

/// One axis. Trivially copyable and usable on every device. After validation stride, padding, dilation
/// and kernel are below 2^31, so that no product here overflows.
struct ConvAxis {
  std::int64_t in = 1, out = 1, kernel = 1, stride = 1, padding = 0, dilation = 1;

  /// Floor and ceiling of a/b for b > 0, also for negative a, where C++ division is neither.
  TAPEDECK_HD static constexpr std::int64_t floor_div(std::int64_t a, std::int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
  }
  TAPEDECK_HD static constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return a / b + (a % b > 0 ? 1 : 0);
  }
  TAPEDECK_HD static constexpr std::int64_t gcd(std::int64_t a, std::int64_t b) {
    while (b != 0) {
      const std::int64_t rest = a % b;
      a = b;
      b = rest;
    }
    return a;
  }

  /// The output that input i reaches through tap k; it may lie outside [0, out).
  TAPEDECK_HD constexpr std::int64_t output(std::int64_t i, std::int64_t k) const {
    return i * stride + k * dilation - padding;
  }
  /// The input that reaches output o through tap k, or -1 if there is none.
  TAPEDECK_HD constexpr std::int64_t input(std::int64_t o, std::int64_t k) const {
    const std::int64_t t = o + padding - k * dilation;
    return t >= 0 && t % stride == 0 && t / stride < in ? t / stride : -1;
  }

  /// The inputs [begin, end) that tap k takes to an output.
  TAPEDECK_HD constexpr std::int64_t input_begin(std::int64_t k) const {
    const std::int64_t i = ceil_div(padding - k * dilation, stride);
    return i < 0 ? 0 : i > in ? in : i;
  }
  TAPEDECK_HD constexpr std::int64_t input_end(std::int64_t k) const {
    const std::int64_t i = floor_div(out - 1 + padding - k * dilation, stride) + 1, begin = input_begin(k);
    return i < begin ? begin : i > in ? in : i;
  }
  /// The taps [begin, end) that take input i to an output.
  TAPEDECK_HD constexpr std::int64_t tap_begin(std::int64_t i) const {
    const std::int64_t k = ceil_div(padding - i * stride, dilation);
    return k < 0 ? 0 : k > kernel ? kernel : k;
  }
  TAPEDECK_HD constexpr std::int64_t tap_end(std::int64_t i) const {
    const std::int64_t k = floor_div(out - 1 + padding - i * stride, dilation) + 1, begin = tap_begin(i);
    return k < begin ? begin : k > kernel ? kernel : k;
  }
  /// The number of (input, tap) pairs that reach an output.
  constexpr std::int64_t pairs() const {
    std::int64_t sum = 0;
    for (std::int64_t k = 0; k < kernel; ++k) sum += input_end(k) - input_begin(k);
    return sum;
  }

  // Phases. Those that gcd(stride, dilation) does not divide have no taps, and so may others: their
  // outputs are the bias alone.

  TAPEDECK_HD constexpr std::int64_t common() const { return gcd(stride, dilation); }
  /// Between neighbouring taps of a phase, and between the inputs that they read.
  TAPEDECK_HD constexpr std::int64_t tap_step() const { return stride / common(); }
  TAPEDECK_HD constexpr std::int64_t input_step() const { return dilation / common(); }

  TAPEDECK_HD constexpr std::int64_t phase_of_output(std::int64_t o) const { return (o + padding) % stride; }
  TAPEDECK_HD constexpr std::int64_t phase_of_tap(std::int64_t k) const { return k * dilation % stride; }
  /// Tap k of a phase reads input q - delta(k).
  TAPEDECK_HD constexpr std::int64_t delta(std::int64_t k) const { return k * dilation / stride; }

  /// The smallest tap of a phase, or `kernel` if it has none.
  TAPEDECK_HD constexpr std::int64_t first_tap(std::int64_t phase) const {
    const std::int64_t g = common(), s = stride / g, d = dilation / g % s;
    if (phase % g != 0) return kernel;
    // d * inverse = 1 modulo s, by Euclid's extended algorithm.
    std::int64_t inverse = 0, next = 1, a = s, b = d;
    while (b != 0) {
      const std::int64_t times = a / b, rest = a % b, previous = inverse - times * next;
      inverse = next;
      next = previous;
      a = b;
      b = rest;
    }
    inverse = inverse < 0 ? inverse + s : inverse;
    const std::int64_t k = phase / g * inverse % s;
    return k < kernel ? k : kernel;
  }
  /// The number of taps of a phase; the j-th is first_tap(phase) + j * tap_step().
  TAPEDECK_HD constexpr std::int64_t taps(std::int64_t phase) const {
    return ceil_div(kernel - first_tap(phase), tap_step());
  }

  /// The outputs of a phase are output_at(q, phase) for q in [q_begin, q_end); the range may be empty.
  TAPEDECK_HD constexpr std::int64_t q_begin(std::int64_t phase) const {
    return ceil_div(padding - phase, stride);
  }
  TAPEDECK_HD constexpr std::int64_t q_end(std::int64_t phase) const {
    return floor_div(out - 1 + padding - phase, stride) + 1;
  }
  TAPEDECK_HD constexpr std::int64_t output_at(std::int64_t q, std::int64_t phase) const {
    return q * stride + phase - padding;
  }
};

/// All of a call: x [n,ci,h.in,w.in], y [n,co,h.out,w.out], weight [ci,co/groups,h.kernel,w.kernel].
struct ConvTranspose2dGeometry {
  std::int64_t n = 1, ci = 1, co = 1, groups = 1;
  ConvAxis h, w;
  bool batched = true;  // otherwise x and y have no leading n, which is 1

  TAPEDECK_HD constexpr std::int64_t group_ci() const { return ci / groups; }
  TAPEDECK_HD constexpr std::int64_t group_co() const { return co / groups; }

  Shape x_shape() const { return batched ? Shape{n, ci, h.in, w.in} : Shape{ci, h.in, w.in}; }
  Shape y_shape() const { return batched ? Shape{n, co, h.out, w.out} : Shape{co, h.out, w.out}; }
  Shape weight_shape() const { return {ci, group_co(), h.kernel, w.kernel}; }

  /// Multiplications and additions that the definition asks for: only taps that reach an output count.
  double flops() const {
    return 2.0 * static_cast<double>(n * ci) * static_cast<double>(group_co()) *
           static_cast<double>(h.pairs()) * static_cast<double>(w.pairs());
  }
};
static_assert(std::is_trivially_copyable_v<ConvTranspose2dGeometry>);

/// The geometry of conv_transpose2d(x, weight, bias, options); bias may be undefined. Throws Error for
/// whatever is not legal, naming the argument, its value and what is.
ConvTranspose2dGeometry conv_transpose2d_geometry(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                  const ConvTranspose2dOptions& options);
/// That of conv_transpose2d_weight_grad(x, gy, kernel, options).
ConvTranspose2dGeometry conv_transpose2d_weight_grad_geometry(const Tensor& x, const Tensor& gy, Size2 kernel,
                                                              const ConvTranspose2dOptions& options);
/// That of conv2d(y, weight, bias, options), whose result is the geometry's x.
ConvTranspose2dGeometry conv2d_geometry(const Tensor& y, const Tensor& weight, const Tensor& bias,
                                        const Conv2dOptions& options);

}  // namespace tapedeck
