// Separable linear resampling of images: average pooling and upsampling, and their gradients.
//
//   y[oh,ow] = sum over ih, iw of A_h[oh,ih] * A_w[ow,iw] * x[ih,iw]
//
// A is sparse, and known from a few numbers. The gradient is the same map with both A transposed: each
// result gathers, in both directions, so it is deterministic, and gradients of gradients need nothing new.
#pragma once

#include <algorithm>

#include <tapedeck/core/host_device.h>
#include <tapedeck/core/op.h>

namespace tapedeck {

enum class Resampling : std::uint8_t {
  window,    ///< mean over kernel inputs from o*stride - padding on
  adaptive,  ///< mean over the inputs from floor(o*in/out) to ceil((o+1)*in/out)
  nearest,   ///< input floor(o*in/out)
  linear,    ///< between the inputs around (o + 1/2)*in/out - 1/2, clamped
  corners,   ///< between the inputs around o*(in - 1)/(out - 1)
};

/// One axis: which inputs an output reads, and with which weights. Trivially copyable and usable on every
/// device.
struct ResampleAxis {
  Resampling kind;
  std::int64_t in, out;
  std::int64_t kernel = 1, stride = 1, padding = 0;  // of a window
  bool count_padding = true;                         // whether a window's mean counts padding

  struct Taps {
    std::int64_t first, count;
  };

  /// The inputs that output o reads: count of them, from `first` on. Neither end ever moves back as o grows.
  TAPEDECK_HD Taps taps(std::int64_t o) const {
    switch (kind) {
      case Resampling::window: {
        const std::int64_t start = o * stride - padding, first = start < 0 ? 0 : start;
        const std::int64_t end = start + kernel < in ? start + kernel : in;
        return {first, end - first};
      }
      case Resampling::adaptive: {
        const std::int64_t first = o * in / out;
        return {first, ((o + 1) * in + out - 1) / out - first};
      }
      case Resampling::nearest:
        return {o * in / out, 1};
      case Resampling::linear:
      case Resampling::corners:
        break;
    }
    return {position(o) / denominator(),
            position(o) % denominator() == 0 || position(o) / denominator() + 1 == in ? 1 : 2};
  }

  /// The weight of input taps(o).first + k in output o.
  TAPEDECK_HD double weight(std::int64_t o, std::int64_t k) const {
    const Taps read = taps(o);
    switch (kind) {
      case Resampling::window: {
        if (!count_padding) return 1.0 / static_cast<double>(read.count);
        const std::int64_t start = o * stride - padding, room = in + padding - start;
        return 1.0 / static_cast<double>(kernel < room ? kernel : room);
      }
      case Resampling::adaptive:
      case Resampling::nearest:
        return 1.0 / static_cast<double>(read.count);
      case Resampling::linear:
      case Resampling::corners:
        break;
    }
    if (read.count == 1) return 1;
    const double second =
        static_cast<double>(position(o) % denominator()) / static_cast<double>(denominator());
    return k == 0 ? 1 - second : second;
  }

 private:
  /// Where output o lies among the inputs: position / denominator, exactly.
  TAPEDECK_HD std::int64_t position(std::int64_t o) const {
    if (kind == Resampling::corners) return o * (in - 1);
    const std::int64_t at = (2 * o + 1) * in - out;
    return at < 0 ? 0 : at;
  }
  TAPEDECK_HD std::int64_t denominator() const {
    if (kind == Resampling::corners) return out > 1 ? out - 1 : 1;
    return 2 * out;
  }
};

/// Throws Error, naming `op`, unless x is floating, of shape [n,c,h,w] or [c,h,w], and h and w are 1 or more.
void check_images(const char* op, const Variable& x);

/// Resamples the images x; the result has x's layout.
Variable resample(const char* op, const Variable& x, const ResampleAxis& h, const ResampleAxis& w);

namespace cpu {
/// From x [n,c,h.in,w.in] to y [n,c,h.out,w.out], or, transposed, from [n,c,h.out,w.out] to [n,c,h.in,w.in].
/// Equal layouts.
void resample(const Tensor& x, const ResampleAxis& h, const ResampleAxis& w, bool transposed,
              const Tensor& y);
}  // namespace cpu
namespace cu {
void resample(const Tensor& x, const ResampleAxis& h, const ResampleAxis& w, bool transposed,
              const Tensor& y);
}  // namespace cu

}  // namespace tapedeck
