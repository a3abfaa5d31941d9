// Softmax and its logarithm, without overflow for any finite x: the largest element is taken off first.
#pragma once

#include <vector>

#include <tapedeck/core/op.h>

namespace tapedeck {

/// exp(x) / (sum of exp(x) along `dim`), of a floating x.
Variable softmax(const Variable& x, int dim);
/// log(softmax(x, dim)), without the loss of computing it so.
Variable log_softmax(const Variable& x, int dim);
/// log(sum of exp(x)) over the dimensions `dims` (over all when there are none), as reductions in
/// ops/reduce.h. Of elements that are all -inf, or of none, it is -inf, and their gradient is 0.
Variable logsumexp(const Variable& x, const std::vector<int>& dims, bool keepdim = false);

namespace cpu {
/// out = softmax of x along `dim` (not negative), or its logarithm.
void softmax(const Tensor& x, int dim, bool logarithm, const Tensor& out);
/// out = log of the sum of exp(x); out has x's rank, and size 1 where reduced.
void logsumexp(const Tensor& x, const Tensor& out);
}  // namespace cpu
namespace cu {
void softmax(const Tensor& x, int dim, bool logarithm, const Tensor& out);
void logsumexp(const Tensor& x, const Tensor& out);
}  // namespace cu

}  // namespace tapedeck
