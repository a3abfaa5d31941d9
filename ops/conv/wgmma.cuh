// Hopper's instructions for matrix products: warpgroups that multiply from registers and shared memory,
// copies in bulk, and the barriers that these complete. For sm_90a only.
//
// wgmma: four warps multiply D[64, N] += A[64, K] * B[N, K], K being 32 bytes. A is in registers: thread l of
// warp w has of rows 16*w + l/4 (words 0 and 2) and those 8 further (1 and 3) the 4 bytes l % 4 (0 and 1) and
// l % 4 + 4 (2 and 3). B is in shared memory: rows of 128 bytes whose eight vectors of 16 bytes are at
// v ^ (row % 8), from an address that is a multiple of 1024. D is as with mma.sync: d[4*j + i] is in row
// 16*w + l/4 + i/2*8 and column 8*j + l%4*2 + i%2.
// A and D belong to the tensor cores from wgmma_fence() to wgmma_wait().
#pragma once

#include <tapedeck/ops/conv/gemm_tile.cuh>

namespace tapedeck::cu::conv_gemm {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all groups that were committed but the last N.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/// Keeps the compiler from moving reads of d up before the wait.
template <int N>
__device__ __forceinline__ void pin(float (&d)[N]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}

/// What wgmma needs to know of B.
__device__ __forceinline__ std::uint64_t b_descriptor(const void* shared) {
  return (shared_address(shared) & 0x3ffff) >> 4 | std::uint64_t{1} << 16 |  // unused here
         std::uint64_t{1024 >> 4} << 32 |                                    // between groups of 8 rows
         std::uint64_t{1} << 62;                                             // swizzle of 128 bytes
}

#define TAPEDECK_D16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define TAPEDECK_D32 TAPEDECK_D16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TAPEDECK_D64                                                                          \
  TAPEDECK_D32                                                                                \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53," \
  "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TAPEDECK_R4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TAPEDECK_R16(i) TAPEDECK_R4(i), TAPEDECK_R4(i + 4), TAPEDECK_R4(i + 8), TAPEDECK_R4(i + 12)
#define TAPEDECK_R32(i) TAPEDECK_R16(i), TAPEDECK_R16(i + 16)
#define TAPEDECK_R64(i) TAPEDECK_R32(i), TAPEDECK_R32(i + 32)
// `n` columns, the type's name in PTX, the registers of D, the operands that follow them, what ends the list.
#define TAPEDECK_WGMMA(n, type, d_text, d_registers, a0, a1, a2, a3, b, k, tail)                     \
  asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %" #k                                           \
               ", 0;\n"                                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #n type " {" d_text "}, {%" #a0 ",%" #a1 ",%" #a2 \
               ",%" #a3 "}, %" #b ", keep, 1, 1" tail "; }"                                          \
               : d_registers                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b_from), "r"(static_cast<int>(keep)))
#define TAPEDECK_WGMMA_SIZES(type, tail)                                                    \
  if constexpr (N == 32) {                                                                  \
    TAPEDECK_WGMMA(32, type, TAPEDECK_D16, TAPEDECK_R16(0), 16, 17, 18, 19, 20, 21, tail);  \
  } else if constexpr (N == 64) {                                                           \
    TAPEDECK_WGMMA(64, type, TAPEDECK_D32, TAPEDECK_R32(0), 32, 33, 34, 35, 36, 37, tail);  \
  } else {                                                                                  \
    static_assert(N == 128);                                                                \
    TAPEDECK_WGMMA(128, type, TAPEDECK_D64, TAPEDECK_R64(0), 64, 65, 66, 67, 68, 69, tail); \
  }

/// Starts d = a*b + (keep ? d : 0). `b_from`: b_descriptor() of the tile, plus 2 for each 32 bytes of k.
template <class Math, int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], const std::uint32_t (&a)[4], std::uint64_t b_from,
                                      bool keep) {
  using T = typename Math::Element;
  if constexpr (std::is_same_v<T, float>) {
    TAPEDECK_WGMMA_SIZES("k8.f32.tf32.tf32", "")
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    TAPEDECK_WGMMA_SIZES("k16.f32.bf16.bf16", ", 0")
  } else {
    TAPEDECK_WGMMA_SIZES("k16.f32.f16.f16", ", 0")
  }
}

#undef TAPEDECK_WGMMA_SIZES
#undef TAPEDECK_WGMMA
#undef TAPEDECK_R64
#undef TAPEDECK_R32
#undef TAPEDECK_R16
#undef TAPEDECK_R4
#undef TAPEDECK_D64
#undef TAPEDECK_D32
#undef TAPEDECK_D16

/// A barrier in shared memory: its n-th phase is over when as many have arrived as it was told, and the bytes
/// that they announced have come.
class Barrier {
 public:
  __device__ void initialise(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  /// Arrives when the asynchronous copies are done that this thread has started.
  __device__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
  }
  /// Arrives, and copies `bytes` from global to shared memory, all multiples of 16.
  __device__ void arrive_with_copy(void* shared, const void* global, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(address())
        : "memory");
  }
  /// Waits for the end of a phase of this parity.
  __device__ void wait(unsigned parity) {
    asm volatile(
        "{ .reg .pred done;\n"
        "again%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again%=; }" ::"r"(address()),
        "r"(parity)
        : "memory");
  }

 private:
  __device__ unsigned address() const { return shared_address(&state_); }
  std::uint64_t state_;
};

/// 16 bytes from global to shared memory, or zeros. kNearCache: also to the multiprocessor's own cache, for
/// neighbours that read the same.
template <bool kNearCache>
__device__ __forceinline__ void copy_async_or_zero(unsigned shared, const void* global, bool copies) {
  if constexpr (kNearCache) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(copies ? 16 : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(copies ? 16 : 0)
                 : "memory");
  }
}

/// Registers of a thread of this warpgroup from now on.
template <int N>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
__device__ __forceinline__ void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace tapedeck::cu::conv_gemm
