// How small products of two matrices are cut for the kernel of small_matmul.cu. Host arithmetic, of an H100's
// sizes: results do not depend on the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tapedeck/core/tensor.h>

namespace tapedeck::small_matmul {

inline constexpr int kTile = 64;         // rows of the product that a thread block has, and columns
inline constexpr int kChunkBytes = 128;  // of k, of one row or column
inline constexpr int kMultiprocessors = 132;

/// c [m,n] = the sum over k of a [m,k] * b [k,n], in float32 where these are shorter.
struct Plan {
  Plan(std::int64_t rows, std::int64_t columns, std::int64_t depth, int element_bytes)
      : m(rows), n(columns), k(depth), chunk(kChunkBytes / element_bytes) {
    // As many blocks as there are multiprocessors, of at least four chunks each: fewer take as long.
    const std::int64_t chunks = up(k, chunk), most = std::max<std::int64_t>(1, chunks / 4);
    split_chunks = up(chunks, std::clamp<std::int64_t>(kMultiprocessors / tiles(), 1, most));
    splits = up(chunks, split_chunks);
  }
  std::int64_t tiles() const { return up(m, kTile) * up(n, kTile); }
  /// Of parts of sums, float32, where there are more than one.
  std::int64_t parts() const { return splits == 1 ? 0 : splits * m * n; }

  std::int64_t m, n, k;
  int chunk;                          // elements of k that are multiplied at once
  std::int64_t splits, split_chunks;  // k in so many parts, of so many chunks

 private:
  static std::int64_t up(std::int64_t size, std::int64_t unit) { return (size + unit - 1) / unit; }
};

/// Whether that kernel is faster than cuBLASLt's, of elements with so many parts (3: float32's accuracy, for
/// which cuBLASLt has no tensor cores).
inline bool is_small(std::int64_t m, std::int64_t n, std::int64_t k, int parts) {
  const double gflop = 2e-9 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return gflop < (parts == 3 ? 1.5 : 0.3);
}

}  // namespace tapedeck::small_matmul
