// Which dimensions a reduction takes, and the shapes that it leaves.
#pragma once

#include <vector>

#include <tapedeck/core/tensor.h>

namespace tapedeck {

struct ReduceDims {
  Shape kept;    ///< x's shape with size 1 where reduced
  Shape result;  ///< the same elements in the shape that the caller sees

  /// Reduces `dims`; all when it is empty. Throws Error, naming `op`, when one is out of range or named
  /// twice.
  static ReduceDims of(const char* op, const Shape& x, const std::vector<int>& dims, bool keepdim);

  /// For the reduction of a tensor of rank `rank` to `shape`, which broadcasts to its shape.
  static ReduceDims to(const Shape& shape, int rank);

  /// An uninitialised tensor for the result; nhwc if x is and the rank stays.
  Tensor empty_result(const Tensor& x, DType dtype) const;
};

/// `dim` made not negative. Throws Error, naming `op`, when it is out of range for x.
int checked_dim(const char* op, const Shape& x, int dim);

}  // namespace tapedeck
