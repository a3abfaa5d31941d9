// Copies that threads do not wait for, between global and shared memory: instructions, their barriers, and
// turns at rings of stages.
#pragma once

#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/wgmma.cuh>

namespace tapedeck::cu::conv_strip {

using conv_gemm::shared_address;

/// kBytes from global to shared memory, or zeros, until wait_for_copies().
template <int kBytes>
__device__ __forceinline__ void copy_or_zero(unsigned shared, const void* global, bool exists) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(exists ? kBytes : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "r"(exists ? kBytes : 0)
                 : "memory");
  }
}
/// A copy of what exists.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned shared, const void* global) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(kBytes)
                 : "memory");
  }
}
/// 4, 8 or 16 bytes.
template <int kBytes>
__device__ __forceinline__ void store_zero(unsigned shared) {
  if constexpr (kBytes == 16) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(0) : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %1};" ::"r"(shared), "r"(0) : "memory");
  } else {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(0) : "memory");
  }
}
template <class T>
__device__ __forceinline__ void store_half(unsigned shared, T x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared), "h"(__builtin_bit_cast(unsigned short, x))
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for all groups of copies but the last N.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Bulk copies from shared to global memory, of Hopper; elsewhere nothing. (Waiting for these waits for
// copies to shared memory, too, and the other way round.)
/// Lets bulk copies read what this thread wrote to shared memory.
__device__ __forceinline__ void publish_for_bulk_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Starts a copy of a multiple of 16 bytes to global memory.
__device__ __forceinline__ void start_bulk_copy(void* to, unsigned shared, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared),
               "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void commit_bulk_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// Waits until all of this thread's bulk copies have read shared memory.
__device__ __forceinline__ void wait_for_bulk_reads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Barriers of bulk copies to shared memory, likewise.
/// By all threads, before __syncthreads().
template <int N>
__device__ __forceinline__ void initialise(conv_gemm::Barrier (&barriers)[N], int arrivals) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x < N) barriers[threadIdx.x].initialise(arrivals);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait(conv_gemm::Barrier& barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  barrier.wait(parity);
#endif
}

/// The first kCount threads of a block wait for each other.
template <int kCount>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kCount) : "memory");
}

/// Of a ring of stages whose barriers tell when they are full and empty: the one that comes next, and its
/// barriers' parity.
struct Turn {
  __device__ __forceinline__ void pass(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  int stage = 0;
  unsigned parity = 0;
};
/// The same of one of several warps that fill stages in turn. There are no fewer stages than warps, or
/// parities would not tell.
struct CopyTurn : Turn {
  __device__ __forceinline__ explicit CopyTurn(int warp) : until(warp) {}
  /// Calls copy(stage) when the next stage is this warp's, and empty.
  template <class Copy>
  __device__ __forceinline__ void next(int stages, int warps, conv_gemm::Barrier* empty, Copy copy) {
    if (until == 0) {
      wait(empty[stage], parity ^ 1);
      copy(stage);
      until = warps;
    }
    --until;
    pass(stages);
  }
  int until;  // stages before this warp's
};

}  // namespace tapedeck::cu::conv_strip
