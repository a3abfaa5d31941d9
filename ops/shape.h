// Rearranging elements: shapes, orders, parts, joins.
//
// A dimension counts from the end when negative. All dtypes; floating ones are differentiable. What
// keeps its rank of 4 keeps its layout, except for permute(), whose result is row-major.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include <tapedeck/core/op.h>

namespace tapedeck {

/// The same elements, in row-major order, in another shape; one size may be -1. Shares the bytes of a
/// row-major x. Throws Error when the counts differ.
Variable reshape(const Variable& x, std::span<const std::int64_t> sizes);
inline Variable reshape(const Variable& x, std::initializer_list<std::int64_t> sizes) {
  return reshape(x, std::span(sizes.begin(), sizes.size()));
}
inline Variable reshape(const Variable& x, const Shape& shape) {
  return reshape(x, std::span(shape.begin(), shape.end()));
}

/// Dimensions start_dim to end_dim, both included, as one. A scalar becomes [1].
Variable flatten(const Variable& x, int start_dim = 0, int end_dim = -1);

/// x with a dimension of size 1 inserted at `dim`, from -(rank + 1) to rank.
Variable unsqueeze(const Variable& x, int dim);
/// x without its dimensions of size 1, or without dimension `dim` if its size is 1.
Variable squeeze(const Variable& x);
Variable squeeze(const Variable& x, int dim);

/// Dimension i of the result is dimension `dims[i]` of x. Throws Error unless `dims` names each once.
Variable permute(const Variable& x, const std::vector<int>& dims);
Variable transpose(const Variable& x, int dim0, int dim1);

/// x with its elements stored in another order. Throws Error for nhwc unless x has rank 4.
Variable to_layout(const Variable& x, Layout layout);

/// The tensors one after the other along `dim`. Their other sizes, dtypes and devices must be equal. The
/// result is nhwc when all are.
Variable cat(const Variables& xs, int dim);
/// Tensors of equal shape, one after the other along a new dimension `dim`.
Variable stack(const Variables& xs, int dim = 0);

/// Elements begin, begin + step, ... before `end` of dimension `dim`. Negative `begin` and `end` count from
/// the end. Along the leading dimension with step 1 the result shares the bytes of x. Throws Error
/// unless 0 <= begin <= end <= size and step >= 1.
Variable slice(const Variable& x, int dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1);

/// Parts of `size` elements along `dim`; the last may be smaller.
Variables split(const Variable& x, std::int64_t size, int dim = 0);
/// Parts of the given sizes, which must sum to the dimension's.
Variables split(const Variable& x, const std::vector<std::int64_t>& sizes, int dim = 0);

/// x with `widths` more elements of `value` before and after: {left, right} of the last dimension, then
/// {top, bottom} of the one before, and so on. Negative widths cut elements off. Throws Error for an
/// odd number of widths, for more than two a dimension, and when a size would fall below 0.
Variable pad(const Variable& x, const std::vector<std::int64_t>& widths, double value = 0);

}  // namespace tapedeck
