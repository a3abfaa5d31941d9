// Reductions over any dimensions, and the expansion that is a sum's gradient.
#pragma once

#include <vector>

#include <tapedeck/core/op.h>

namespace tapedeck {

/// Reductions of x over the dimensions `dims` (negative ones count from the end); over all of them when
/// there is no list or it is empty. A reduced dimension keeps size 1 with `keepdim`, else it goes. Throw
/// Error when a dimension is out of range or named twice. All are formed in a fixed order, in float64 (in
/// int64 for integers).

/// The sum; of integers as int64. The sum of nothing is 0.
Variable sum(const Variable& x);
Variable sum(const Variable& x, const std::vector<int>& dims, bool keepdim = false);

/// The mean of a floating x; NaN of nothing.
Variable mean(const Variable& x);
Variable mean(const Variable& x, const std::vector<int>& dims, bool keepdim = false);

/// The largest and the smallest element; NaN if one is NaN. The gradient is shared equally among the
/// elements that are equal to the result (as PyTorch's amax does). Throws Error when there is none.
Variable max(const Variable& x);
Variable max(const Variable& x, const std::vector<int>& dims, bool keepdim = false);
Variable min(const Variable& x);
Variable min(const Variable& x, const std::vector<int>& dims, bool keepdim = false);

struct VarOptions {
  double correction = 1;  ///< the sum of squares is divided by max(0, count - correction)
  bool keepdim = false;
};

/// The variance of a floating x: sum of (x - mean)^2 / (count - correction).
Variable var(const Variable& x, const std::vector<int>& dims = {}, const VarOptions& options = {});

/// The position (int64) of the largest element along `dim`, of the first one if several are equal; of the
/// first NaN if there is one. Without `dim`: in row-major order of all elements, of rank 0. Throws Error
/// when there is none.
Variable argmax(const Variable& x);
Variable argmax(const Variable& x, int dim, bool keepdim = false);

/// x repeated along dimensions of size 1 (and new leading ones) to `shape`.
Variable broadcast_to(const Variable& x, const Shape& shape);
/// The sum of x over what broadcasting to x's shape from `shape` repeats: broadcast_to's gradient.
Variable sum_to(const Variable& x, const Shape& shape);

enum class Extreme : std::uint8_t { max, min };

// In these, `out` has x's rank, and size 1 in the dimensions that are reduced.
namespace cpu {
/// out = scale * sum of x. For integer x, out is int64 and scale is 1.
void sum(const Tensor& x, double scale, const Tensor& out);
/// out = largest or smallest of x, of x's type.
void extreme(Extreme kind, const Tensor& x, const Tensor& out);
/// share = 1 / (how many elements of x equal the extreme y that stands for them) where x does, else 0.
/// share is like x, y like extreme()'s out. NaN counts as equal to NaN.
void extreme_share(const Tensor& x, const Tensor& y, const Tensor& share);
/// out = scale * sum of (x - mean)^2.
void squared_deviation(const Tensor& x, double scale, const Tensor& out);
/// out (int64) = the first position of the largest element along `dim`; out has size 1 there and x's layout.
void argmax(const Tensor& x, int dim, const Tensor& out);
/// out = scale * x; x broadcasts to out.
void expand(const Tensor& x, double scale, const Tensor& out);
}  // namespace cpu
namespace cu {
void sum(const Tensor& x, double scale, const Tensor& out);
void extreme(Extreme kind, const Tensor& x, const Tensor& out);
void extreme_share(const Tensor& x, const Tensor& y, const Tensor& share);
void squared_deviation(const Tensor& x, double scale, const Tensor& out);
void argmax(const Tensor& x, int dim, const Tensor& out);
void expand(const Tensor& x, double scale, const Tensor& out);
}  // namespace cu

}  // namespace tapedeck
