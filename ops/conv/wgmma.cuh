// Hopper's instructions for matrix products: warpgroups that multiply from registers and shared memory,
// copies in bulk, and the barriers that these complete. For sm_90a only.
//
// wgmma: four warps multiply D[64, N] += A[64, K] * B[N, K], K being 32 bytes. A is in registers: thread l of
// warp w has of rows 16*w + l/4 (words 0 and 2) and those 8 further (1 and 3) the 4 bytes l % 4 (0 and 1) and
// l % 4 + 4 (2 and 3). B is in shared memory: rows of 128 bytes whose eight vectors of 16 bytes are at
// v ^ (row % 8), rows being counted from multiples of 1024 bytes: a matrix may begin at any. D is as with
// mma.sync: d[4*j + i] is in row 16*w + l/4 + i/2*8 and column 8*j + l%4*2 + i%2. A may be in shared memory
// as well, like B. A and D belong to the tensor cores from wgmma_fence() to wgmma_wait().
#pragma once

#include <cuda.h>

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

/// What wgmma needs to know of a matrix in shared memory. The lower word of it, to which 1 for each 16 bytes
/// is added, and the whole of it.
__device__ __forceinline__ unsigned descriptor_of(const void* shared) {
  return (shared_address(shared) & 0x3ffff) >> 4 | 1 << 16;  // unused here
}
__device__ __forceinline__ std::uint64_t descriptor(unsigned lower) {
  constexpr unsigned kUpper = 1024 >> 4   // between groups of 8 rows
                              | 1 << 30;  // swizzle of 128 bytes
  return std::uint64_t{kUpper} << 32 | lower;
}
__device__ __forceinline__ std::uint64_t matrix_descriptor(const void* shared) {
  return descriptor(descriptor_of(shared));
}

/// x, which is the same for all threads of a warp, as the compiler then knows: it computes what depends on it
/// once a warp, and not anew where it is used.
template <class T>
__device__ __forceinline__ T uniform(T x) {
  return __shfl_sync(~0u, x, 0);
}

// Registers of D in PTX and as operands: of g times 16 columns.
#define TAPEDECK_D1 "%0,%1,%2,%3,%4,%5,%6,%7"
#define TAPEDECK_D2 TAPEDECK_D1 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define TAPEDECK_D3 TAPEDECK_D2 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define TAPEDECK_D4 TAPEDECK_D3 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define TAPEDECK_D5 TAPEDECK_D4 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define TAPEDECK_D6 TAPEDECK_D5 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define TAPEDECK_D7 TAPEDECK_D6 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define TAPEDECK_D8 TAPEDECK_D7 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define TAPEDECK_D9 TAPEDECK_D8 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define TAPEDECK_D10 TAPEDECK_D9 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define TAPEDECK_D11 TAPEDECK_D10 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define TAPEDECK_D12 TAPEDECK_D11 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define TAPEDECK_D13 TAPEDECK_D12 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define TAPEDECK_D14 TAPEDECK_D13 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define TAPEDECK_D15 TAPEDECK_D14 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define TAPEDECK_D16 TAPEDECK_D15 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define TAPEDECK_R8(i)                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define TAPEDECK_R1_ TAPEDECK_R8(0)
#define TAPEDECK_R2_ TAPEDECK_R1_, TAPEDECK_R8(8)
#define TAPEDECK_R3_ TAPEDECK_R2_, TAPEDECK_R8(16)
#define TAPEDECK_R4_ TAPEDECK_R3_, TAPEDECK_R8(24)
#define TAPEDECK_R5_ TAPEDECK_R4_, TAPEDECK_R8(32)
#define TAPEDECK_R6_ TAPEDECK_R5_, TAPEDECK_R8(40)
#define TAPEDECK_R7_ TAPEDECK_R6_, TAPEDECK_R8(48)
#define TAPEDECK_R8_ TAPEDECK_R7_, TAPEDECK_R8(56)
#define TAPEDECK_R9_ TAPEDECK_R8_, TAPEDECK_R8(64)
#define TAPEDECK_R10_ TAPEDECK_R9_, TAPEDECK_R8(72)
#define TAPEDECK_R11_ TAPEDECK_R10_, TAPEDECK_R8(80)
#define TAPEDECK_R12_ TAPEDECK_R11_, TAPEDECK_R8(88)
#define TAPEDECK_R13_ TAPEDECK_R12_, TAPEDECK_R8(96)
#define TAPEDECK_R14_ TAPEDECK_R13_, TAPEDECK_R8(104)
#define TAPEDECK_R15_ TAPEDECK_R14_, TAPEDECK_R8(112)
#define TAPEDECK_R16_ TAPEDECK_R15_, TAPEDECK_R8(120)
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
    TAPEDECK_WGMMA(32, type, TAPEDECK_D2, TAPEDECK_R2_, 16, 17, 18, 19, 20, 21, tail);      \
  } else if constexpr (N == 64) {                                                           \
    TAPEDECK_WGMMA(64, type, TAPEDECK_D4, TAPEDECK_R4_, 32, 33, 34, 35, 36, 37, tail);      \
  } else if constexpr (N == 96) {                                                           \
    TAPEDECK_WGMMA(96, type, TAPEDECK_D6, TAPEDECK_R6_, 48, 49, 50, 51, 52, 53, tail);      \
  } else if constexpr (N == 128) {                                                          \
    TAPEDECK_WGMMA(128, type, TAPEDECK_D8, TAPEDECK_R8_, 64, 65, 66, 67, 68, 69, tail);     \
  } else {                                                                                  \
    static_assert(N == 192);                                                                \
    TAPEDECK_WGMMA(192, type, TAPEDECK_D12, TAPEDECK_R12_, 96, 97, 98, 99, 100, 101, tail); \
  }

/// Starts d = a*b + (keep ? d : 0). `b_from`: matrix_descriptor() of the tile, plus 2 for each 32 bytes of k.
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

#define TAPEDECK_WGMMA(n, type, d_text, d_registers, a, b, k, tail)                       \
  asm volatile("{ .reg .pred keep; setp.ne.b32 keep, %" #k                                \
               ", 0;\n"                                                                   \
               "wgmma.mma_async.sync.aligned.m64n" #n type " {" d_text "}, %" #a ", %" #b \
               ", keep, 1, 1" tail "; }"                                                  \
               : d_registers                                                              \
               : "l"(a_from), "l"(b_from), "r"(static_cast<int>(keep)))
#define TAPEDECK_WGMMA_SIZES(type, tail)                                         \
  if constexpr (N == 64) {                                                       \
    TAPEDECK_WGMMA(64, type, TAPEDECK_D4, TAPEDECK_R4_, 32, 33, 34, tail);       \
  } else if constexpr (N == 80) {                                                \
    TAPEDECK_WGMMA(80, type, TAPEDECK_D5, TAPEDECK_R5_, 40, 41, 42, tail);       \
  } else if constexpr (N == 96) {                                                \
    TAPEDECK_WGMMA(96, type, TAPEDECK_D6, TAPEDECK_R6_, 48, 49, 50, tail);       \
  } else if constexpr (N == 112) {                                               \
    TAPEDECK_WGMMA(112, type, TAPEDECK_D7, TAPEDECK_R7_, 56, 57, 58, tail);      \
  } else if constexpr (N == 128) {                                               \
    TAPEDECK_WGMMA(128, type, TAPEDECK_D8, TAPEDECK_R8_, 64, 65, 66, tail);      \
  } else if constexpr (N == 144) {                                               \
    TAPEDECK_WGMMA(144, type, TAPEDECK_D9, TAPEDECK_R9_, 72, 73, 74, tail);      \
  } else if constexpr (N == 160) {                                               \
    TAPEDECK_WGMMA(160, type, TAPEDECK_D10, TAPEDECK_R10_, 80, 81, 82, tail);    \
  } else if constexpr (N == 192) {                                               \
    TAPEDECK_WGMMA(192, type, TAPEDECK_D12, TAPEDECK_R12_, 96, 97, 98, tail);    \
  } else if constexpr (N == 208) {                                               \
    TAPEDECK_WGMMA(208, type, TAPEDECK_D13, TAPEDECK_R13_, 104, 105, 106, tail); \
  } else if constexpr (N == 224) {                                               \
    TAPEDECK_WGMMA(224, type, TAPEDECK_D14, TAPEDECK_R14_, 112, 113, 114, tail); \
  } else if constexpr (N == 240) {                                               \
    TAPEDECK_WGMMA(240, type, TAPEDECK_D15, TAPEDECK_R15_, 120, 121, 122, tail); \
  } else {                                                                       \
    static_assert(N == 256);                                                     \
    TAPEDECK_WGMMA(256, type, TAPEDECK_D16, TAPEDECK_R16_, 128, 129, 130, tail); \
  }

/// The same with A in shared memory. kTransposedA, for 16-bit types: as 16 rows of 64 elements.
template <class Math, int N, bool kTransposedA = false>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], std::uint64_t a_from, std::uint64_t b_from,
                                      bool keep) {
  using T = typename Math::Element;
  if constexpr (std::is_same_v<T, float>) {
    static_assert(!kTransposedA);
    TAPEDECK_WGMMA_SIZES("k8.f32.tf32.tf32", "")
  } else if constexpr (kTransposedA && std::is_same_v<T, bfloat16>) {
    TAPEDECK_WGMMA_SIZES("k16.f32.bf16.bf16", ", 1, 0")
  } else if constexpr (kTransposedA) {
    TAPEDECK_WGMMA_SIZES("k16.f32.f16.f16", ", 1, 0")
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    TAPEDECK_WGMMA_SIZES("k16.f32.bf16.bf16", ", 0, 0")
  } else {
    TAPEDECK_WGMMA_SIZES("k16.f32.f16.f16", ", 0, 0")
  }
}

/// The same with A in shared memory, for 16-bit types with both matrices transposed: 16 rows of 64 elements,
/// and as many for each 64 columns of B, a step that b_from says.
template <class Math, int N>
__device__ __forceinline__ void wgmma_transposed(float (&d)[N / 2], std::uint64_t a_from,
                                                 std::uint64_t b_from, bool keep) {
  if constexpr (std::is_same_v<typename Math::Element, bfloat16>) {
    TAPEDECK_WGMMA_SIZES("k16.f32.bf16.bf16", ", 1, 1")
  } else {
    TAPEDECK_WGMMA_SIZES("k16.f32.f16.f16", ", 1, 1")
  }
}

#undef TAPEDECK_WGMMA_SIZES
#undef TAPEDECK_WGMMA
#undef TAPEDECK_D1
#undef TAPEDECK_R1_
#undef TAPEDECK_D2
#undef TAPEDECK_R2_
#undef TAPEDECK_D3
#undef TAPEDECK_R3_
#undef TAPEDECK_D4
#undef TAPEDECK_R4_
#undef TAPEDECK_D5
#undef TAPEDECK_R5_
#undef TAPEDECK_D6
#undef TAPEDECK_R6_
#undef TAPEDECK_D7
#undef TAPEDECK_R7_
#undef TAPEDECK_D8
#undef TAPEDECK_R8_
#undef TAPEDECK_D9
#undef TAPEDECK_R9_
#undef TAPEDECK_D10
#undef TAPEDECK_R10_
#undef TAPEDECK_D11
#undef TAPEDECK_R11_
#undef TAPEDECK_D12
#undef TAPEDECK_R12_
#undef TAPEDECK_D13
#undef TAPEDECK_R13_
#undef TAPEDECK_D14
#undef TAPEDECK_R14_
#undef TAPEDECK_D15
#undef TAPEDECK_R15_
#undef TAPEDECK_D16
#undef TAPEDECK_R16_
#undef TAPEDECK_R8

/// A barrier in shared memory: its n-th phase is over when as many have arrived as it was told, and the bytes
/// that they announced have come.
class Barrier {
 public:
  __device__ void initialise(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() { arrive_at(address()); }
  /// Arrives when the asynchronous copies are done that this thread has started.
  __device__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
  }
  /// Arrives, and announces bytes of copies.
  __device__ void arrive_and_expect(int bytes) { arrive_and_expect_at(address(), bytes); }
  /// Copies a box of announced bytes by the tensor memory accelerator, from these places of the map's axes
  /// on.
  __device__ void copy_box(void* shared, const CUtensorMap& map, int a, int b, int c, int d, int e) {
    copy_box_at(address(), shared_address(shared), map, a, b, c, d, e);
  }
  /// Arrives, and copies `bytes` from global to shared memory, all multiples of 16.
  __device__ void arrive_with_copy(void* shared, const void* global, int bytes) {
    arrive_and_expect(bytes);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(shared)),
        "l"(global), "r"(bytes), "r"(address())
        : "memory");
  }
  /// Waits for the end of a phase of this parity.
  __device__ void wait(unsigned parity) { wait_at(address(), parity); }

  // The same of a barrier at an address of shared memory.
  __device__ __forceinline__ static void arrive_at(unsigned address) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
  }
  __device__ __forceinline__ static void arrive_and_expect_at(unsigned address, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ static void copy_box_at(unsigned address, unsigned shared,
                                                     const CUtensorMap& map, int a, int b, int c, int d,
                                                     int e) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
        "%4, %5, %6, %7}], [%2];" ::"r"(shared),
        "l"(&map), "r"(address), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e)
        : "memory");
  }
  /// arrive_at() of another block's barrier (address_of_cluster()), by who has read what that one may write
  /// now. Nothing is written for it, so no release to the cluster is needed, which takes long.
  __device__ __forceinline__ static void arrive_at_other(unsigned address) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
  }
  __device__ __forceinline__ static void wait_at(unsigned address, unsigned parity) {
    asm volatile(
        "{ .reg .pred done;\n"
        "again%=: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again%=; }" ::"r"(address),
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

__device__ __forceinline__ std::uint32_t load_word(unsigned shared) {
  std::uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(shared) : "memory");
  return word;
}
__device__ __forceinline__ uint4 load_words(unsigned shared) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(shared)
               : "memory");
  return x;
}
__device__ __forceinline__ float2 load_pair(unsigned shared) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(shared) : "memory");
  return x;
}

/// Four matrices of 8x8 16-bit elements from shared memory, transposed: of each a thread has two neighbours
/// of column lane / 4, and lane i the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_transposed(unsigned shared, std::uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared)
               : "memory");
}
/// Four matrices to shared memory: of each a thread has two neighbours of row lane / 4.
__device__ __forceinline__ void store_matrices(unsigned shared, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// Four matrices of 8x8 16-bit elements to shared memory, transposed: of each a thread has two neighbours of
/// row lane / 4, and lane i the address of row i % 8 of what is written of matrix i / 8.
__device__ __forceinline__ void store_transposed(unsigned shared, const std::uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

/// To 16 bytes of shared memory.
__device__ __forceinline__ void store_words(unsigned shared, int a, int b, int c, int d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

/// An address that the compiler keeps in a register, as it does not know where it comes from.
__device__ __forceinline__ unsigned kept(unsigned address) {
  asm("" : "+r"(address));
  return address;
}

/// For a thread that has written shared memory: what is stored or multiplied from there later sees it.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Stores a box of shared memory by the tensor memory accelerator, to these places of the map's axes on; with
/// commit_boxes() behind the last of some.
__device__ __forceinline__ void store_box(const CUtensorMap& map, unsigned shared, int a, int b, int c, int d,
                                          int e) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(shared), "r"(a), "r"(b), "r"(c), "r"(d), "r"(e)
      : "memory");
}
__device__ __forceinline__ void commit_boxes() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// For the thread that stored boxes: their shared memory is read, so that it may change or end. Written they
/// are when the kernel ends.
__device__ __forceinline__ void await_boxes_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/// *to = x, if `does`: without a branch, after which threads of a warp may be apart.
template <class T>
__device__ __forceinline__ void store_if(bool does, void* to, const T& x) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  const int p = does;
  if constexpr (sizeof(T) == 2) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.b16 [%1], %2; }" ::"r"(p), "l"(to),
                 "h"(__builtin_bit_cast(std::uint16_t, x))
                 : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.b32 [%1], %2; }" ::"r"(p), "l"(to),
                 "r"(__builtin_bit_cast(unsigned, x))
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    const auto words = __builtin_bit_cast(uint2, x);
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.v2.b32 [%1], {%2, %3}; }" ::"r"(p),
                 "l"(to), "r"(words.x), "r"(words.y)
                 : "memory");
  } else {
    const auto words = __builtin_bit_cast(uint4, x);
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.global.v4.b32 [%1], {%2, %3, %4, %5}; }" ::"r"(p),
        "l"(to), "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
        : "memory");
  }
}

/// The same of four words of shared memory.
__device__ __forceinline__ void store_words_if(bool does, unsigned shared, const uint4& x) {
  const int p = does;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %0, 0; @p st.shared.v4.b32 [%1], {%2, %3, %4, %5}; }" ::"r"(p),
               "r"(shared), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

/// A named barrier of kCount threads: to wait there, or only to tell that one is there. (__syncthreads(),
/// where others only arrive at barrier 0, was an illegal instruction on an H200; and where some wait for all
/// threads here and others there, synccheck reports that they diverge.)
template <int kCount>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}
template <int kCount>
__device__ __forceinline__ void arrive(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}

/// For who has initialised barriers, before others are told.
__device__ __forceinline__ void fence_initialised() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Two warpgroups take turns by named barriers: one waits for its own until the other one has passed the
/// turn.
__device__ __forceinline__ void await_turn(int barrier) {
  meet<256>(barrier);
}
__device__ __forceinline__ void pass_turn(int barrier) {
  arrive<256>(barrier);
}

// Blocks of a cluster: which one this is; a barrier of all their threads that have not ended, after which
// they see what these wrote before; and four words of the same place of another one's shared memory.
__device__ __forceinline__ unsigned rank_in_cluster() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void synchronise_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ float4 load_of_cluster(unsigned shared, unsigned rank) {
  float4 x;
  asm volatile(
      "{ .reg .u32 there; mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there]; }"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(shared), "r"(rank)
      : "memory");
  return x;
}

/// What is at an address of this block's shared memory, in that of another one.
__device__ __forceinline__ unsigned address_of_cluster(unsigned shared, unsigned rank) {
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
  return there;
}
/// Sends words to another block's shared memory, and 16 bytes to a barrier of it, which expects them.
__device__ __forceinline__ void send_words(unsigned to, const uint4& x, unsigned barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w), "r"(barrier)
      : "memory");
}

/// Brings a map near to the tensor memory accelerator, before it is needed.
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
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
