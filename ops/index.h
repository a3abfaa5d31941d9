// Selecting elements by index, and the sums over equal indices that are its gradients.
//
// An index is an int64 tensor; no gradient flows to it. All dtypes of x; results have x's layout. On the CPU
// an index out of range throws Error with its position, its value and the legal range; a GPU, which would
// have to be waited for, gives NaN (0 for integers) for it, and adds nothing. Sums are formed in the
// order of the index, whatever the number of threads.
#pragma once

#include <tapedeck/core/op.h>

namespace tapedeck {

/// Element j along `dim` of the result is element index[j] along `dim` of x. `index` has rank 1; an
/// element may be taken more than once.
Variable index_select(const Variable& x, int dim, const Variable& index);

/// Zeros with `size` elements along `dim`, and x's other sizes; to element index[j] along `dim`, element j of
/// x is added. The gradient of index_select().
Variable index_add(const Variable& x, int dim, const Variable& index, std::int64_t size);

/// Rows of a table [rows, features...] by an index of any shape: [index shape..., features...].
Variable embedding(const Variable& table, const Variable& index);

/// y has index's shape; y[i][j][k] = x[i][index[i][j][k]][k] for dim 1, and so on. x and index have the
/// same rank, and index is nowhere larger than x but along `dim`.
Variable gather(const Variable& x, int dim, const Variable& index);

/// Zeros of `shape`, and then y[i][index[i][j][k]][k] += x[i][j][k] for dim 1, and so on. x and index
/// have one shape, which is nowhere larger than `shape` but along `dim`. The gradient of gather().
Variable scatter_add(const Variable& x, int dim, const Variable& index, const Shape& shape);

namespace cpu {
// The indices are in range and row-major; `dim` is not negative; `out` has elements.
void index_select(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
void index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
void gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
void scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
}  // namespace cpu
namespace cu {
void index_select(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
void index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
void gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
void scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& out);
}  // namespace cu

}  // namespace tapedeck
