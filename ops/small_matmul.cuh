// Small products of two matrices. Internal.
#pragma once

#include <optional>

#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/small_matmul.h>

namespace tapedeck::cu {

/// A matrix that takes part in a product: where it is, row-major, and of which size before it is transposed.
struct Matrix {
  const void* data;
  std::int64_t rows, columns;
  Transpose transpose;
};

/// How a [m,k] times b [k,n] of these types is cut; nothing where cuBLASLt is to compute it: of large
/// products, of float64, and where rows begin at odd elements of 16 bits.
std::optional<small_matmul::Plan> small_matmul_plan(DType factors, const Matrix& a, const Matrix& b);
/// out [m,n] = the product, plus bias [n] in every row if it is defined, rectified. Of factors of 16 bits,
/// out may be float32.
void small_matmul(const small_matmul::Plan& plan, DType factors, const Matrix& a, const Matrix& b,
                  const Tensor& bias, void* out, DType product, Device device, double negative_slope);

}  // namespace tapedeck::cu
