// Elementwise functions, comparisons and choices. Those of two or three tensors broadcast as arithmetic
// does; results have the layout of their inputs.
#pragma once

#include <tapedeck/core/op.h>

namespace tapedeck {

/// Of a floating x; abs, square and clamp also of integers. Outside of their domain log, sqrt and pow give
/// NaN, as libm's functions do. The gradient of abs is 0 at 0.
Variable exp(const Variable& x);
Variable log(const Variable& x);
Variable sqrt(const Variable& x);
Variable square(const Variable& x);
Variable abs(const Variable& x);
Variable sin(const Variable& x);
Variable cos(const Variable& x);
Variable erf(const Variable& x);
/// x^exponent. The gradient for an exponent of 0 is 0.
Variable pow(const Variable& x, double exponent);
/// x^y. Where x is 0, its logarithm in the gradient of a y that is not negative counts as 0.
Variable pow(const Variable& x, const Variable& y);

/// The smaller and the larger of a and b; NaN if one is NaN. Where they are equal each gets half of the
/// gradient.
Variable minimum(const Variable& a, const Variable& b);
Variable maximum(const Variable& a, const Variable& b);
/// x limited to [min, max]; NaN stays. The gradient is 1 inside and on the bounds, else 0. Throws Error
/// unless min <= max.
Variable clamp(const Variable& x, double min, double max);

/// Whether a and b compare so, as uint8: 1 or 0. A number is converted to a floating x's type first; with
/// integers it is compared exactly. (As a float64 it is itself exact up to 2^53; compare with a tensor
/// beyond.)
Variable eq(const Variable& a, const Variable& b);
Variable ne(const Variable& a, const Variable& b);
Variable lt(const Variable& a, const Variable& b);
Variable le(const Variable& a, const Variable& b);
Variable gt(const Variable& a, const Variable& b);
Variable ge(const Variable& a, const Variable& b);
Variable eq(const Variable& x, double value);
Variable ne(const Variable& x, double value);
Variable lt(const Variable& x, double value);
Variable le(const Variable& x, double value);
Variable gt(const Variable& x, double value);
Variable ge(const Variable& x, double value);

/// a where `condition` (uint8) is not 0, else b. The three broadcast; a and b are of one type.
Variable where(const Variable& condition, const Variable& a, const Variable& b);

/// x converted; itself if it is of that type already. Gradients flow between floating types.
Variable cast(const Variable& x, DType dtype);

enum class Comparison : std::uint8_t { eq, ne, lt, le, gt, ge };

namespace cpu {
/// out (uint8) = a compared with b; they broadcast to out's shape.
void compare(Comparison kind, const Tensor& a, const Tensor& b, const Tensor& out);
/// out = condition ? a : b; they broadcast to out's shape.
void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out);
}  // namespace cpu
namespace cu {
void compare(Comparison kind, const Tensor& a, const Tensor& b, const Tensor& out);
void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out);
}  // namespace cu

}  // namespace tapedeck
