// Products of matrices by tiles (matmul_tiles.cu): how a product is shared out, and where a block
// keeps what. Host arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include <tapedeck/core/host_device.h>

namespace tapedeck::matmul_tiles {

/// What factors are: float32, to its accuracy or rounded to TF32; or of 16 bits.
enum class TileMath : std::uint8_t { float32, tf32, bfloat16, float16 };

/// out[i] [m,n] = a[i] [m,k] times b[i] [k,n] for `batch` pairs, all row-major; an operand whose neighbours
/// in memory are not neighbours in k (a that is transposed, b that is not) is [k, its rows or columns]: of 16
/// bits none is. k is counted in words of 4 bytes, so two of 16 bits are one.
struct Sizes {
  std::int64_t m, n, k, batch;
};

inline constexpr int kDepth = 32;  // of k in a stage
inline constexpr int kStages = 4;
/// A block has kTiles tiles of kTile x kTile, of each of which two warps have half of a stage's k.
inline constexpr int kTile = 32, kTiles = 4, kThreads = kTiles * 2 * 32;

/// What a block has of one operand in a stage: `kRows` of its rows (of b, columns), kDepth of k, in lines as
/// they are in memory: `kAlongK`, whether neighbours there are neighbours in k. In words of 4 bytes.
template <int kRows, bool kAlongK>
struct Stage {
  static constexpr int kLine = kAlongK ? kDepth : kRows, kLines = kAlongK ? kRows : kDepth;
  /// Eight lines of which 16 bytes are read, or four of which eight words are, have different banks.
  static constexpr int kPitch = kAlongK ? kLine + 4 : kLine + 8;
  static constexpr int kWords = kLines * kPitch;
  TAPEDECK_HD static constexpr int word_of(int row, int k) {
    return kAlongK ? row * kPitch + k : k * kPitch + row;
  }

  /// What a thread copies, kCopied words at a time: from `at` on of `line`, and of every kLinesAtOnce-th.
  template <int kCopied>
  struct Share {
    static constexpr int kOfLine = kLine / kCopied, kLinesAtOnce = kThreads / kOfLine;
    static_assert(kThreads % kOfLine == 0 && kLines % kLinesAtOnce == 0);
    TAPEDECK_HD explicit Share(int thread) : line(thread / kOfLine), at(thread % kOfLine * kCopied) {}
    TAPEDECK_HD int word() const { return line * kPitch + at; }
    int line, at;
  };
};

/// How a product is computed.
struct Plan {
  explicit Plan(const Sizes& p) {
    // The fewest tiles, square ones rather.
    std::int64_t least = 0;
    for (const int rows : {64, 32, 128}) {
      const int columns = kTiles * kTile * kTile / rows;
      const std::int64_t count = ceil_div(p.m, rows) * ceil_div(p.n, columns);
      if (tile_m > 0 && count >= least) continue;
      least = count, tile_m = rows, tile_n = columns;
    }
    tiles_m = ceil_div(p.m, tile_m), tiles_n = ceil_div(p.n, tile_n);
    const std::int64_t free = kBlocks / std::max<std::int64_t>(blocks(p.batch), 1);
    const std::int64_t shares = p.k < kLeastShared ? 1 : std::clamp<std::int64_t>(free, 1, p.k / kLeastShare);
    split_depth = ceil_div(ceil_div(p.k, shares), kDepth) * kDepth;
    splits = ceil_div(p.k, split_depth);
  }
  /// Of one split.
  std::int64_t blocks(std::int64_t batch) const { return tiles_m * tiles_n * batch; }

  int tile_m = 0, tile_n = 0;
  std::int64_t tiles_m, tiles_n;
  std::int64_t splits, split_depth;  // of k, the last one perhaps less

 private:
  /// Blocks that an H200 has at once; and of k, what makes up for adding up splits, and is a split's at
  /// least.
  static constexpr std::int64_t kBlocks = 132 * 2, kLeastShared = 257, kLeastShare = 2 * kDepth;

  static constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
};

/// Whether lines of an operand begin at odd words.
inline bool are_odd(const Sizes& p, bool transposed_a, bool transposed_b) {
  return (transposed_a ? p.m : p.k) % 2 != 0 || (transposed_b ? p.k : p.n) % 2 != 0;
}

/// The sizes of a product of so many elements if it is computed by tiles: where they are faster on an H200
/// than cuBLASLt's products, or seldom slower. That has no tensor cores at float32's accuracy, so there tiles
/// are as fast from some k on; where lines begin at odd words, only where few blocks would share a batch's
/// products. At other precisions cuBLASLt has Hopper's, but does not share a batch's products along k.
/// `calls`: of cuBLASLt, each for such a batch, which tiles have in one: at float32's accuracy that pays from
/// shorter sums on. (4 of 22 products of 96 x 992, 72 of k: 64 to 53 us; 4 of 31 of 17 x 100, 495: a layer
/// from 393 to 132; 2 of 8 of 128 x 3100, 72: from 47 to 56. Larger ones were not timed.) Not of so short
/// sums that most of a stage is none.
inline std::optional<Sizes> tiled(const Sizes& elements, bool transposed_a, bool transposed_b, TileMath math,
                                  std::int64_t calls = 1) {
  constexpr std::int64_t kLeastOfCall = 48, kLeastOfCalls = 192, kMostOfGrid = 65535,
                         kMostElements = std::int64_t{1} << 30;
  Sizes p = elements;
  if (math == TileMath::bfloat16 || math == TileMath::float16) {
    if (transposed_a || !transposed_b || p.k % 2 != 0) return {};
    p.k /= 2;
  }
  if (p.batch * calls > kMostOfGrid || std::max(p.m, p.n) * p.k >= kMostElements ||
      p.m * p.n >= kMostElements || std::min(p.m, p.n) < 2 || p.k < 1)
    return {};
  const Plan plan(p);
  const auto takes = [&] {
    if (math != TileMath::float32) {
      // Of whole vectors cuBLASLt has Hopper's products.
      const std::int64_t vector = math == TileMath::tf32 ? 4 : 8;
      if (elements.n % vector != 0 || elements.k % vector != 0) return plan.splits >= 4 && elements.k >= 700;
      return p.batch > 1 && plan.splits >= (math == TileMath::tf32 ? 8 : 12);
    }
    if (calls > 1 && p.k >= kLeastOfCall && p.k * calls >= kLeastOfCalls) return true;
    // Of a product so small cuBLASLt makes 264 splits.
    if (plan.blocks(p.batch) == 1 && p.k >= 96) return true;
    return p.k >= 512 && (!are_odd(p, transposed_a, transposed_b) || (p.batch > 1 && plan.splits > 1));
  };
  if (!takes()) return {};
  p.batch *= calls;
  return p;
}

}  // namespace tapedeck::matmul_tiles
