// Two warpgroups multiply: C[BM, BN] = the sum over k of A[BM, k] * B[BN, k], in chunks of 128 bytes of k, on
// Hopper's tensor cores.
//
//   global --cp.async, gathered--> A stages --ldmatrix or loads--> registers --+
//   global --one bulk copy a chunk--> B stages ------------------------------- wgmma --> registers
//
// Shared memory is a ring of kStages chunks of A and B. While chunk c is multiplied, the threads wait for
// c+1, start the copies of c+kStages-1 into the stage that c-1 left, and load the fragments of c+1: two sets
// of registers take turns. B comes packed, as wgmma wants it (wgmma.cuh), so that a tile is one contiguous
// block; for Tf32x3 as two tiles, large and small parts. Of A the tensor cores cut off what TF32 has no bits
// for, so the word itself is the large part.
//
// A warpgroup has kM blocks of 64 rows. Tensor cores truncate what they add, so that long sums in them lose
// digits: after kFlush chunks (0: never) the sums are added to others in float32.
#pragma once

#include <tapedeck/ops/conv/wgmma.cuh>

namespace tapedeck::cu::conv_gemm {

inline constexpr int kSteps = kChunkBytes / 32;  // of k in a chunk

/// A chunk of A for one warpgroup, as wgmma takes it.
template <class Math, int kM>
struct Fragments {
  std::uint32_t large[kM][kSteps][4];
  std::uint32_t small[kM][Math::kParts == 3 ? kSteps : 1][4];

  __device__ __forceinline__ void prepare() {
    if constexpr (std::is_same_v<typename Math::Element, float>) {
#pragma unroll
      for (int i = 0; i < kM; ++i)
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            std::uint32_t& x = large[i][s][k];
            if constexpr (Math::kParts == 3) {
              std::uint32_t cut;
              Math::split(x, cut, small[i][s][k]);
            } else {
              x = __float_as_uint(round_to_tf32(__uint_as_float(x)));
            }
          }
    }
  }
};

/// What B has of x for the first, then the second part; x becomes the rest.
template <class Math>
__device__ __forceinline__ typename Math::Element next_part(typename Math::Element& x) {
  if constexpr (Math::kParts == 3) {
    const float part = round_to_tf32(x);
    x -= part;
    return part;
  } else {
    return Math::prepare(x);
  }
}

template <class M, int kBlocksOfRows, int kColumns, int kRing, int kFlushChunks>
struct WarpgroupTile {
  using Math = M;
  static constexpr int kM = kBlocksOfRows, BM = 128 * kM, BN = kColumns, kThreads = 256, kStages = kRing,
                       kFlush = kFlushChunks;
  static constexpr int kBParts = Math::kParts == 3 ? 2 : 1, kBBytes = BN * kChunkBytes * kBParts;
  static constexpr int kSums = kM * BN / 2;  // of a thread

  /// Index of a chunk of B's vector: element `k` of row n is in vector `v`. In units of 16 bytes.
  TAPEDECK_HD static constexpr int b_vector(int part, int n, int v) {
    return (part * BN + n) * kVectors + (v ^ (n & 7));
  }
};

template <class Tile>
class WarpgroupSums {
  using Math = typename Tile::Math;
  static constexpr int kM = Tile::kM, BN = Tile::BN;

 public:
  float values[kM][BN / 2] = {};

  /// Starts the products of chunk c.
  __device__ __forceinline__ void start(const Fragments<Math, kM>& a, const char* b, int c) {
    wgmma_fence();
    const std::uint64_t large = b_descriptor(b), small = large + BN * kChunkBytes / 16;
    const bool keeps = Tile::kFlush == 0 || c % Tile::kFlush != 0;
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      float(&to)[BN / 2] = sums(i);
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const bool keep = s > 0 || keeps;
        if constexpr (Math::kParts == 3) {
          wgmma<Math, BN>(to, a.small[i][s], large + 2 * s, keep);
          wgmma<Math, BN>(to, a.large[i][s], small + 2 * s, true);
          wgmma<Math, BN>(to, a.large[i][s], large + 2 * s, true);
        } else {
          wgmma<Math, BN>(to, a.large[i][s], large + 2 * s, keep);
        }
      }
    }
    wgmma_commit();
  }
  /// Ends them.
  __device__ __forceinline__ void finish(int c, bool last) {
    wgmma_wait();
#pragma unroll
    for (int i = 0; i < kM; ++i) pin(sums(i));
    if constexpr (Tile::kFlush > 0) {
      if (Tile::kFlush > 1 && c % Tile::kFlush != Tile::kFlush - 1 && !last) return;
#pragma unroll
      for (int i = 0; i < kM; ++i)
#pragma unroll
        for (int k = 0; k < BN / 2; ++k) values[i][k] += part_[i][k];
    }
  }

  /// Row and column of value k of block i in the tile.
  __device__ __forceinline__ static int row(int i, int k) {
    const int warpgroup = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    return (warpgroup * kM + i) * 64 + warp * 16 + lane / 4 + k / 2 % 2 * 8;
  }
  __device__ __forceinline__ static int column(int k) {
    return k / 4 * 8 + threadIdx.x % 4 * 2 + k % 2;
  }

  /// f(row, column, sum) for each of this thread's.
  template <class F>
  __device__ __forceinline__ void for_each(F f) const {
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int k = 0; k < BN / 2; ++k) f(row(i, k), column(k), values[i][k]);
  }

 private:
  __device__ __forceinline__ float (&sums(int i))[BN / 2] {
    if constexpr (Tile::kFlush > 0) {
      return part_[i];
    } else {
      return values[i];
    }
  }
  float part_[Tile::kFlush > 0 ? kM : 1][Tile::kFlush > 0 ? BN / 2 : 1];
};

/// sums += the products of `chunks` chunks. A's loader has kBytes of a stage, a multiple of 1024; issue(c,
/// stage) starts to copy chunk c; prepare(c) runs before, with a barrier between; load(stage, i, fragments)
/// loads block i of this warpgroup. `packed` is chunk 0 of B, `step` bytes before the next. `shared` is
/// aligned to 1024 bytes.
template <class Tile, class A>
__device__ __forceinline__ void multiply_chunks(WarpgroupSums<Tile>& sums, A& a, const char* packed,
                                                std::int64_t step, int chunks, char* shared,
                                                CopyBarrier* barriers) {
  using Math = typename Tile::Math;
  constexpr int kStages = Tile::kStages, kStage = A::kBytes + Tile::kBBytes;
  if (chunks <= 0) return;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) barriers[s].initialise();
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
#pragma unroll
  for (int c = 0; c < kStages; ++c) a.prepare(c);
  __syncthreads();

  const auto issue = [&](int c) {
    if (c < chunks) {
      char* const stage = shared + c % kStages * kStage;
      a.issue(c, stage);
      if (threadIdx.x == 0) {
        barriers[c % kStages].copy(stage + A::kBytes, packed + c * step, Tile::kBBytes);
      }
    }
    commit_async();  // a group for each chunk, so that they can be counted
  };
  const auto load = [&](int c, Fragments<Math, Tile::kM>& fragments) {
#pragma unroll
    for (int i = 0; i < Tile::kM; ++i) a.load(shared + c % kStages * kStage, i, fragments.large[i]);
    fragments.prepare();
  };
#pragma unroll
  for (int c = 0; c < kStages - 1; ++c) issue(c);

  Fragments<Math, Tile::kM> even, odd;
  wait_async_but<kStages - 2>();
  barriers[0].wait(0);
  __syncthreads();
  load(0, even);
  const auto multiply = [&](int c, const Fragments<Math, Tile::kM>& now, Fragments<Math, Tile::kM>& next) {
    sums.start(now, shared + c % kStages * kStage + A::kBytes, c);
    if (c + 1 < chunks) {
      wait_async_but<kStages - 3>();
      barriers[(c + 1) % kStages].wait((c + 1) / kStages);
      __syncthreads();
      issue(c + kStages - 1);
      a.prepare(c + kStages);
      load(c + 1, next);
    }
    sums.finish(c, c + 1 == chunks);
  };
#pragma unroll 1
  for (int c = 0; c < chunks; c += 2) {
    multiply(c, even, odd);
    if (c + 1 < chunks) multiply(c + 1, odd, even);
  }
}

}  // namespace tapedeck::cu::conv_gemm
