// Two kernels of one stream at the same time, where the second does not depend on the first.
//
// The first one's blocks let the next ones come only when they have seen that all before is done. So the
// second need not wait to begin; but its blocks do not end before the first kernel has: what comes next waits
// for both.
#pragma once

#include <tapedeck/core/launch_kernel.cuh>

namespace tapedeck::cu {

/// await_previous() of a kernel that the next one may run beside.
__device__ __forceinline__ void await_previous_beside_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// What a kernel that may run beside the one before it begins and ends with. `is_beside`: it does; the kernel
/// before begins with await_previous_beside_next() or with this, reads nothing that this one writes, and
/// writes nothing that this one reads or writes.
__device__ __forceinline__ void begin_beside_previous(bool is_beside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (!is_beside) cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ __forceinline__ void end_beside_previous(bool is_beside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (is_beside) cudaGridDependencySynchronize();
#endif
}

}  // namespace tapedeck::cu
