// Pooling of images [n,c,h,w] or [c,h,w], as in PyTorch. Floating; results have x's layout.
//
// A window starts every `stride` pixels, the first one `padding` before the image. There are as many as fit
// the padded image; with ceil_mode also one that reaches beyond it, if it starts in the image or before.
// Throw Error for a kernel, stride or dilation below 1, for padding of more than half a window (dilation
// counted) and when no window fits.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

struct MaxPool2dOptions {
  Size2 kernel_size = 1;
  Size2 stride = 0;  ///< 0 on both axes: the kernel's size
  Size2 padding = 0, dilation = 1;
  bool ceil_mode = false;
};

/// The largest pixel of each window, NaN if one is NaN; padding is never it. The gradient goes to the first
/// of equal ones.
Variable max_pool2d(const Variable& x, const MaxPool2dOptions& options);

struct AvgPool2dOptions {
  Size2 kernel_size = 1;
  Size2 stride = 0;  ///< 0 on both axes: the kernel's size
  Size2 padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< whether zeros of the padding are part of the mean
};

/// The mean of each window. What reaches beyond the padded image is never counted.
Variable avg_pool2d(const Variable& x, const AvgPool2dOptions& options);

/// The mean of windows that make up the image, as equal as they can be: o-th window from floor(o*in/out) to
/// ceil((o + 1)*in/out). `output_size` may be larger than x's.
Variable adaptive_avg_pool2d(const Variable& x, Size2 output_size);

namespace cpu {
/// y = the largest of x in each window; index (int64, or none) = where it is, ih * w + iw. x, y and index
/// have one layout. The options are resolved: stride is not 0.
void max_pool2d(const Tensor& x, const MaxPool2dOptions& options, const Tensor& y, const Tensor& index);
}  // namespace cpu
namespace cu {
void max_pool2d(const Tensor& x, const MaxPool2dOptions& options, const Tensor& y, const Tensor& index);
}  // namespace cu

}  // namespace tapedeck
