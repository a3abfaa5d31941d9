// The matrix product of the CPU.
#pragma once

#include <cstdint>

namespace tapedeck::cpu {

/// A row-major matrix with `step` elements between rows, to be read as it stands or transposed.
template <class T>
struct MatrixView {
  const T* data;
  std::int64_t step;
  bool transposed;
};

/// c [m,n] = a [m,k] times b [k,n], plus bias [n] in every row unless it is null; c has `step` elements
/// between rows. Negative results are multiplied by negative_slope (Rectifier of ops/rectifier.h). T is float
/// or double. The result does not depend on the number of threads.
template <class T>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView<T>& a, const MatrixView<T>& b,
          const T* bias, T* c, std::int64_t step, double negative_slope = 1);

}  // namespace tapedeck::cpu
