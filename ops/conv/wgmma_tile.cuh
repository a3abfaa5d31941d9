// A block multiplies: C[BM, BN] = the sum over k of A[BM, k] * B[BN, k], in chunks of 128 bytes of k, on
// Hopper's tensor cores.
//
//   producers (1 or 2 warpgroups)                           consumers (2 warpgroups)
//   global --cp.async, gathered-------> A stages --ldmatrix or loads--> registers --+
//   global --one bulk copy a chunk----> B stages ---------------------------------- wgmma --> registers
//
// Shared memory is a ring of kStages chunks of A and B, each with two barriers: `full`, when all copies of a
// chunk have come, and `empty`, when all consumers have multiplied it. While chunk c is multiplied, a
// consumer waits for c+1 and loads its fragments: two sets of registers take turns. Producers leave registers
// to consumers. B comes packed, as wgmma wants it (wgmma.cuh), so that a tile is one contiguous block; for
// Tf32x3 as two tiles, large and small parts. Of A the tensor cores cut off what TF32 has no bits for, so the
// word itself is the large part.
//
// A warpgroup has kM blocks of 64 rows. Tensor cores truncate what they add, so that long sums in them lose
// digits: after kFlush chunks (0: never) the sums are added to others in float32.
#pragma once

#include <tapedeck/ops/conv/wgmma.cuh>

namespace tapedeck::cu::conv_gemm {

inline constexpr int kSteps = kChunkBytes / 32;  // of k in a chunk

/// A chunk of 64 rows of A, as wgmma takes it.
template <class Math>
struct Fragments {
  std::uint32_t large[kSteps][4];
  std::uint32_t small[Math::kParts == 3 ? kSteps : 1][4];

  __device__ __forceinline__ void prepare() {
    if constexpr (std::is_same_v<typename Math::Element, float>) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          std::uint32_t& x = large[s][k];
          if constexpr (Math::kParts == 3) {
            std::uint32_t cut;
            Math::split(x, cut, small[s][k]);
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

/// `kABytes` of a chunk of A.
template <class M, int kBlocksOfRows, int kColumns, int kFlushChunks, int kABytesOfStage>
struct WarpgroupTile {
  using Math = M;
  static constexpr int kM = kBlocksOfRows, BM = 128 * kM, BN = kColumns, kFlush = kFlushChunks;
  // Where each product is three, copies need fewer threads, and fragments more registers.
  static constexpr bool kThree = Math::kParts == 3;
  static constexpr int kConsumers = 256, kProducers = kThree ? 128 : 256, kThreads = kConsumers + kProducers;
  static constexpr int kConsumerRegisters = kThree ? 224 : 200, kProducerRegisters = 56;
  static constexpr int kBParts = Math::kParts == 3 ? 2 : 1, kBBytes = BN * kChunkBytes * kBParts;
  static constexpr int kABytes = kABytesOfStage, kStage = kABytes + kBBytes;
  static constexpr int kStages = 200 * 1024 / kStage < 6 ? 200 * 1024 / kStage : 6;
  static constexpr int kSums = kM * BN / 2;  // of a consumer
  static_assert(kABytes % 1024 == 0 && kStages >= 3);

  struct Ring {
    Barrier full[kStages], empty[kStages];
  };

  /// Place of vector v of row n of part `part` of B's tile, in units of 16 bytes.
  TAPEDECK_HD static constexpr int b_vector(int part, int n, int v) {
    return (part * BN + n) * kVectors + (v ^ (n & 7));
  }
};

/// Bytes from a block's dynamic shared memory to the first multiple of 1024, where stages begin, as rows of
/// matrices are counted from there (wgmma.cuh). (A function of the pointer would be simpler, but changes the
/// compiler's mind about the kernels of wgmma_row_weight_grad.cuh.)
__device__ __forceinline__ unsigned to_stages(const uint4* memory) {
  return (1024 - shared_address(memory) % 1024) % 1024;
}

/// Where a warp is in the ring.
template <class Tile>
struct RingPosition {
  int stage = 0;
  unsigned turn = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == Tile::kStages) stage = 0, ++turn;
  }
};

template <class Tile>
class WarpgroupSums {
  using Math = typename Tile::Math;
  static constexpr int kM = Tile::kM, BN = Tile::BN;

 public:
  float values[kM][BN / 2] = {};

  /// Starts the products of chunk c with block i.
  __device__ __forceinline__ void start(int i, const Fragments<Math>& a, const char* b, int c) {
    wgmma_fence();
    const std::uint64_t large = matrix_descriptor(b), small = large + BN * kChunkBytes / 16;
    const bool keeps = Tile::kFlush == 0 || c % Tile::kFlush != 0;
    float(&to)[BN / 2] = sums(i);
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const bool keep = s > 0 || keeps;
      if constexpr (Math::kParts == 3) {
        wgmma<Math, BN>(to, a.small[s], large + 2 * s, keep);
        wgmma<Math, BN>(to, a.large[s], small + 2 * s, true);
        wgmma<Math, BN>(to, a.large[s], large + 2 * s, true);
      } else {
        wgmma<Math, BN>(to, a.large[s], large + 2 * s, keep);
      }
    }
    wgmma_commit();
  }
  /// Ends all.
  __device__ __forceinline__ void finish(int c, bool last) {
    wgmma_wait<0>();
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

/// By one thread, before a barrier of the block.
template <class Tile>
__device__ __forceinline__ void initialise(typename Tile::Ring& ring) {
#pragma unroll
  for (int s = 0; s < Tile::kStages; ++s) {
    ring.full[s].initialise(Tile::kProducers + 1);
    ring.empty[s].initialise(Tile::kConsumers);
  }
  fence_initialised();
}

/// Producers: brings chunks of A, by a.issue(stage), and of B: `packed` is the first, `step` bytes before the
/// next. `shared` is aligned to 1024 bytes.
template <class Tile, class A>
__device__ __forceinline__ void produce(A& a, const char* packed, std::int64_t step, int chunks, char* shared,
                                        typename Tile::Ring& ring, RingPosition<Tile>& at) {
  for (int c = 0; c < chunks; ++c, at.advance()) {
    if (at.turn > 0) ring.empty[at.stage].wait((at.turn - 1) & 1);
    char* const stage = shared + at.stage * Tile::kStage;
    if (threadIdx.x == Tile::kConsumers) {
      ring.full[at.stage].arrive_with_copy(stage + Tile::kABytes, packed + c * step, Tile::kBBytes);
    }
    a.issue(stage);
    ring.full[at.stage].arrive_after_copies();
  }
}

/// Consumers: sums += the products of chunks. A::load(stage, i, fragments) loads block i of a warpgroup.
template <class A, class Tile>
__device__ __forceinline__ void consume(WarpgroupSums<Tile>& sums, int chunks, char* shared,
                                        typename Tile::Ring& ring, RingPosition<Tile>& at) {
  using Math = typename Tile::Math;
  if (chunks <= 0) return;
  const auto load = [&](int i, Fragments<Math>& fragments) {
    A::load(shared + at.stage * Tile::kStage, i, fragments.large);
    fragments.prepare();
  };
  const auto b_of = [&](int stage) { return shared + stage * Tile::kStage + Tile::kABytes; };
  // Each consumer arrives, not one for its warp: compute-sanitizer's racecheck does not see that __syncwarp()
  // orders the others' reads before that arrival.
  const auto leave = [&](int stage) { ring.empty[stage].arrive(); };
  Fragments<Math> even, odd;
  ring.full[at.stage].wait(at.turn & 1);
  load(0, even);
  if constexpr (Tile::kM == 1) {
    const auto multiply = [&](int c, const Fragments<Math>& now, Fragments<Math>& next) {
      const int stage = at.stage;
      sums.start(0, now, b_of(stage), c);
      at.advance();
      if (c + 1 < chunks) {
        ring.full[at.stage].wait(at.turn & 1);
        load(0, next);
      }
      sums.finish(c, c + 1 == chunks);
      leave(stage);
    };
#pragma unroll 1
    for (int c = 0; c < chunks; c += 2) {
      multiply(c, even, odd);
      if (c + 1 < chunks) multiply(c + 1, odd, even);
    }
  } else {
    // The blocks' products take turns: one block's fragments are loaded while the other's are multiplied.
    static_assert(Tile::kM == 2 && Tile::kFlush == 0);
    int previous = -1;
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
      const int stage = at.stage;
      sums.start(0, even, b_of(stage), c);
      if (previous >= 0) {
        wgmma_wait<1>();
        leave(previous);
      }
      load(1, odd);
      sums.start(1, odd, b_of(stage), c);
      at.advance();
      wgmma_wait<1>();
      if (c + 1 < chunks) {
        ring.full[at.stage].wait(at.turn & 1);
        load(0, even);
      }
      previous = stage;
    }
    sums.finish(chunks, true);
    leave(previous);
  }
}

/// A barrier of the consumers.
template <class Tile>
__device__ __forceinline__ void synchronise_consumers() {
  meet<Tile::kConsumers>(1);
}

}  // namespace tapedeck::cu::conv_gemm
