// Loops over tensors of different strides: broadcasting and layouts in one place.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <tapedeck/core/parallel.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck {

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

  /// The loop over `shape`; each tensor's shape broadcasts to it.
  static StridedLoop over(const Shape& shape, const std::array<const Tensor*, N>& tensors) {
    StridedLoop loop;
    struct Dim {
      std::int64_t size;
      std::array<std::int64_t, N> stride;
    };
    std::array<Dim, Shape::kMaxRank> dims{};
    int count = 0;
    std::array<std::vector<std::int64_t>, N> all;
    for (int k = 0; k < N; ++k)
      all[static_cast<std::size_t>(k)] = tensors[static_cast<std::size_t>(k)]->strides();
    for (int i = 0; i < shape.rank(); ++i) {
      if (shape[i] == 1) continue;
      Dim dim{shape[i], {}};
      for (int k = 0; k < N; ++k) {
        const Tensor& tensor = *tensors[static_cast<std::size_t>(k)];
        const int d = i - shape.rank() + tensor.rank();
        const bool present = d >= 0 && tensor.size(d) != 1;
        dim.stride[static_cast<std::size_t>(k)] =
            present ? all[static_cast<std::size_t>(k)][static_cast<std::size_t>(d)] : 0;
      }
      dims[static_cast<std::size_t>(count++)] = dim;
    }
    std::stable_sort(dims.begin(), dims.begin() + count,
                     [](const Dim& a, const Dim& b) { return a.stride[0] > b.stride[0]; });
    for (int i = 0; i < count; ++i) {
      const Dim& dim = dims[static_cast<std::size_t>(i)];
      bool merges = loop.rank > 0;
      for (int k = 0; k < N && merges; ++k) {
        merges = loop.strides[k][loop.rank - 1] == dim.stride[static_cast<std::size_t>(k)] * dim.size;
      }
      const int at = merges ? loop.rank - 1 : loop.rank++;
      loop.sizes[at] = merges ? loop.sizes[at] * dim.size : dim.size;
      for (int k = 0; k < N; ++k) loop.strides[k][at] = dim.stride[static_cast<std::size_t>(k)];
    }
    if (loop.rank == 0) {
      loop.rank = 1;
      loop.sizes[0] = 1;
    }
    if (shape.count() == 0) loop.sizes[0] = 0;
    return loop;
  }

  /// Calls `body(offsets, n)` for runs of n elements along the innermost dimension, in parallel;
  /// offsets[k] is where the run starts in tensor k.
  template <class F>
  void for_each_run(F&& body, std::int64_t grain = 1 << 14) const {
    const std::int64_t total = count(), inner = sizes[rank - 1];
    parallel_for(total, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end;) {
        const std::int64_t within = i % inner;
        const std::int64_t n = std::min(inner - within, end - i);
        std::array<std::int64_t, N> offsets{};
        for (int k = 0; k < N; ++k) offsets[static_cast<std::size_t>(k)] = within * strides[k][rank - 1];
        std::int64_t rest = i / inner;
        for (int d = rank - 2; d >= 0; --d) {
          const std::int64_t at = rest % sizes[d];
          rest /= sizes[d];
          for (int k = 0; k < N; ++k) offsets[static_cast<std::size_t>(k)] += at * strides[k][d];
        }
        body(offsets, n);
        i += n;
      }
    });
  }
};

}  // namespace tapedeck
