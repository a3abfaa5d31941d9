// Loops over tensors of different strides: broadcasting and layouts in one place.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include <tapedeck/core/parallel.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck {

/// Elements between neighbours along each dimension.
using Strides = std::array<std::int64_t, Shape::kMaxRank>;

/// A nest of loops over N tensors, with the first one's elements in memory order. Trivially copyable,
/// so that a CUDA kernel can take it by value. Dimensions that can be walked as one are merged;
/// dimension `rank - 1` is the innermost.
template <int N>
struct StridedLoop {
  int rank = 0;
  std::int64_t sizes[Shape::kMaxRank] = {};
  std::int64_t strides[N][Shape::kMaxRank] = {};

  std::int64_t count() const {
    std::int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= sizes[i];
    return product;
  }

  /// The loop over `shape`, in which tensor k takes `strides[k][d]` elements per step of dimension d.
  static StridedLoop over(const Shape& shape, const std::array<Strides, N>& strides) {
    StridedLoop loop;
    std::array<int, Shape::kMaxRank> order{};  // the dimensions, the first tensor's outermost first
    int dims = 0;
    for (int d = 0; d < shape.rank(); ++d) {
      if (shape[d] != 1) order[dims++] = d;
    }
    std::stable_sort(order.begin(), order.begin() + dims,
                     [&](int a, int b) { return strides[0][a] > strides[0][b]; });
    for (int i = 0; i < dims; ++i) {
      const int d = order[i];
      bool merges = loop.rank > 0;
      for (int k = 0; k < N && merges; ++k) {
        merges = loop.strides[k][loop.rank - 1] == strides[k][d] * shape[d];
      }
      const int at = merges ? loop.rank - 1 : loop.rank++;
      loop.sizes[at] = merges ? loop.sizes[at] * shape[d] : shape[d];
      for (int k = 0; k < N; ++k) loop.strides[k][at] = strides[k][d];
    }
    if (loop.rank == 0) {
      loop.rank = 1;
      loop.sizes[0] = 1;
    }
    if (shape.count() == 0) loop.sizes[0] = 0;
    return loop;
  }

  /// The loop over `shape`; each tensor's shape broadcasts to it.
  static StridedLoop over(const Shape& shape, const std::array<const Tensor*, N>& tensors) {
    std::array<Strides, N> strides{};
    for (std::size_t k = 0; k < N; ++k) {
      const std::vector<std::int64_t> own = tensors[k]->strides();
      const int missing = shape.rank() - tensors[k]->rank();
      for (int d = missing; d < shape.rank(); ++d) {
        if (tensors[k]->size(d - missing) != 1) {
          strides[k][d] = own[d - missing];
        }
      }
    }
    return over(shape, strides);
  }

  /// Calls `body(offsets, n)` for runs of n elements along the innermost dimension, in parallel;
  /// offsets[k] is where the run starts in tensor k.
  template <class F>
  void for_each_run(F&& body, std::int64_t grain = 1 << 14) const {
    const std::int64_t total = count(), inner = sizes[rank - 1];
    parallel_for(total, grain, [&](std::int64_t begin, std::int64_t end) {
      std::array<std::int64_t, N> offsets{};
      std::array<std::int64_t, Shape::kMaxRank> at{};  // where the run stands in the outer dimensions
      std::int64_t within = begin % inner, rest = begin / inner;
      for (int d = rank - 2; d >= 0; --d) {
        at[d] = rest % sizes[d];
        rest /= sizes[d];
      }
      for (int k = 0; k < N; ++k) {
        offsets[k] = within * strides[k][rank - 1];
        for (int d = 0; d < rank - 1; ++d) offsets[k] += at[d] * strides[k][d];
      }
      for (std::int64_t i = begin; i < end;) {
        const std::int64_t n = std::min(inner - within, end - i);
        body(std::as_const(offsets), n);
        i += n;
        for (int k = 0; k < N; ++k) offsets[k] -= within * strides[k][rank - 1];
        within = 0;
        for (int d = rank - 2; d >= 0; --d) {
          const bool carry = ++at[d] == sizes[d];
          const std::int64_t steps = carry ? 1 - sizes[d] : 1;
          for (int k = 0; k < N; ++k) offsets[k] += steps * strides[k][d];
          if (!carry) break;
          at[d] = 0;
        }
      }
    });
  }
};

}  // namespace tapedeck
