// Kernels that make ready what the next one reads, side by side.
//
// None of them needs another one's results before its end, but a programmatic dependent launch
// (core/launch_kernel.cuh) waits for the kernel before. So the first waits for what was queued before, and
// only then lets the second one come; that one begins at once, and waits for the first when its own work is
// done. Who waits for the last one then waits for all:
//
//   first   |wait|---work---|
//   second       |------work------|wait|
//   reader                             |wait|---work---
//
// What was written before the first one is complete and in memory when a second one begins, though CUDA only
// promises that to kernels that wait. So that one's own cache holds nothing older, it begins with a fence.
//
// What they write is allocated before the first one is queued: memory that another thread frees later, on the
// same stream, may still be in use.
#pragma once

#include <utility>

#include <tapedeck/core/launch_kernel.cuh>

namespace tapedeck::cu {

/// Counts such kernels where they are queued, one directly after another. One that waits for those before,
/// to repeat their work, begins like a first one and may be among them.
class Preparations {
 public:
  /// `any`: whether one is queued already.
  explicit Preparations(bool any = false) : any_(any) {}
  /// What to tell the next kernel: whether it is beside another one.
  bool next_is_beside() { return std::exchange(any_, true); }

 private:
  bool any_;
};

/// What such a kernel begins with, in place of await_previous().
__device__ __forceinline__ void begin_preparation([[maybe_unused]] bool beside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (beside) {
    __threadfence();  // nothing is read that was cached before the first one began
  } else {
    cudaGridDependencySynchronize();
  }
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
/// And ends with, in all threads.
__device__ __forceinline__ void end_preparation([[maybe_unused]] bool beside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (beside) cudaGridDependencySynchronize();
#endif
}

}  // namespace tapedeck::cu
