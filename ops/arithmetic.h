// Broadcasting arithmetic.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/ops/reduce.h>  // broadcast_to and sum_to, between shapes that broadcast

namespace tapedeck {

/// Elementwise a + b, a - b, a * b, a / b of tensors of one dtype, with NumPy's broadcasting. The
/// result is nhwc when an operand of the result's shape is. Throws Error when shapes do not broadcast, or
/// dtypes or devices differ; div also for integer types.
Variable add(const Variable& a, const Variable& b);
Variable sub(const Variable& a, const Variable& b);
Variable mul(const Variable& a, const Variable& b);
Variable div(const Variable& a, const Variable& b);

/// x * scale + shift, in x's dtype. Throws Error when x is of an integer type and they are not whole.
Variable affine(const Variable& x, double scale, double shift);

inline Variable operator+(const Variable& a, const Variable& b) {
  return add(a, b);
}
inline Variable operator-(const Variable& a, const Variable& b) {
  return sub(a, b);
}
inline Variable operator*(const Variable& a, const Variable& b) {
  return mul(a, b);
}
inline Variable operator/(const Variable& a, const Variable& b) {
  return div(a, b);
}
inline Variable operator-(const Variable& x) {
  return affine(x, -1, 0);
}
inline Variable operator+(const Variable& x, double c) {
  return affine(x, 1, c);
}
inline Variable operator+(double c, const Variable& x) {
  return affine(x, 1, c);
}
inline Variable operator-(const Variable& x, double c) {
  return affine(x, 1, -c);
}
inline Variable operator-(double c, const Variable& x) {
  return affine(x, -1, c);
}
inline Variable operator*(const Variable& x, double c) {
  return affine(x, c, 0);
}
inline Variable operator*(double c, const Variable& x) {
  return affine(x, c, 0);
}
inline Variable operator/(const Variable& x, double c) {
  return affine(x, 1 / c, 0);
}

enum class Arithmetic : std::uint8_t {
  add,
  sub,
  mul,
  div,
  minimum,
  maximum,
  above,  ///< 0 where a < b, 1/2 where a == b, else 1
  pow,
};

namespace cpu {
/// out = a op b; a and b broadcast to out's shape.
void arithmetic(Arithmetic kind, const Tensor& a, const Tensor& b, const Tensor& out);
/// out = x * scale + shift; equal shapes and layouts.
void affine(const Tensor& x, double scale, double shift, const Tensor& out);
}  // namespace cpu
namespace cu {
void arithmetic(Arithmetic kind, const Tensor& a, const Tensor& b, const Tensor& out);
void affine(const Tensor& x, double scale, double shift, const Tensor& out);
}  // namespace cu

}  // namespace tapedeck
