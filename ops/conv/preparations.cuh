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
// promises that to kernels that wait. A multiprocessor's own cache may hold what was there before: so they
// read past it (load_fresh()). A fence instead, which empties that cache, took half a microsecond (a timeline
// on an H100).
//
// (Copies and packing that read before magnitudes are found (largest.cuh), of which the first waits for that
// in the middle and raises a word for the others, took 1.3 us less to 5 us longer on an H200, on average of a
// DCGAN's and a VAE's layers in TF32 and float32 1.01 times as long: packing began later than without.
// Packing before the copy: 0.97 to 1.17 times as long, in bfloat16 1 to 1.17.)
//
// What they write is allocated before the first one is queued: memory that another thread frees later, on the
// same stream, may still be in use.
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include <tapedeck/core/launch_kernel.cuh>

namespace tapedeck::cu {

/// Counts such kernels where they are queued, one directly after another.
class Preparations {
 public:
  /// `any`: whether one is queued already.
  explicit Preparations(bool any = false) : any_(any) {}
  /// What to tell the next kernel: whether it is beside another one.
  bool next_is_beside() { return std::exchange(any_, true); }
  /// What end() calls: it queues a kernel that makes again what one of these made, if that was wrong. That
  /// one begins with await_previous(): it waits for all of these, and its reader may come at once.
  void repeat_at_end(std::function<void()> repeat) { repetitions_.push_back(std::move(repeat)); }
  /// After the last of these, before who reads what they make.
  void end() {
    for (const auto& repeat : std::exchange(repetitions_, {})) repeat();
  }

 private:
  bool any_;
  std::vector<std::function<void()>> repetitions_;
};

/// What such a kernel begins with, in place of await_previous().
__device__ __forceinline__ void begin_preparation([[maybe_unused]] bool beside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (!beside) cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
/// *from, not from the multiprocessor's own cache: how such a kernel reads all that others wrote.
template <class T>
__device__ __forceinline__ T load_fresh(const T* from) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
  using Word = std::conditional_t<
      sizeof(T) == 2, unsigned short,
      std::conditional_t<sizeof(T) == 4, unsigned, std::conditional_t<sizeof(T) == 8, uint2, uint4>>>;
  return __builtin_bit_cast(T, __ldcg(reinterpret_cast<const Word*>(from)));
}
/// And ends with, in all threads.
__device__ __forceinline__ void end_preparation([[maybe_unused]] bool beside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (beside) cudaGridDependencySynchronize();
#endif
}

}  // namespace tapedeck::cu
