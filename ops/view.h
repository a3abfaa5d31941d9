// Views: some of a tensor's elements, in some order; and the one kernel that copies between views.
//
// Permuting, slicing, padding and joining are all a copy from one view to another.
#pragma once

#include <span>

#include <tapedeck/ops/strided.h>

namespace tapedeck {

/// Where the elements of a box lie in a tensor: the one at (i0, i1, ...) of the box is element
/// `offset + i0 * strides[0] + i1 * strides[1] + ...` of the bytes.
struct View {
  Tensor tensor;
  Shape shape;
  std::int64_t offset = 0;
  Strides strides{};

  /// All of a tensor.
  explicit View(const Tensor& whole);

  /// Dimension i of the result is dimension `dims[i]` of this; `dims` is a permutation.
  View permute(std::span<const int> dims) const;
  /// Of dimension `dim` the elements begin, begin + step, ..., `count` of them, all in range.
  View slice(int dim, std::int64_t begin, std::int64_t count, std::int64_t step = 1) const;
};

namespace cpu {
/// out = in; equal shapes (with elements), dtypes and devices, and no element of `out` twice.
void copy_view(const View& in, const View& out);
}  // namespace cpu
namespace cu {
void copy_view(const View& in, const View& out);
}  // namespace cu

/// Copies on the views' device.
void copy_view(const View& in, const View& out);

}  // namespace tapedeck
