// Kernels that get ready while the one before them ends (Hopper's programmatic dependent launch): it saves
// most of the time between small kernels, in streams and in graphs.
#pragma once

#include <tapedeck/core/cuda.cuh>

namespace tapedeck::cu {

/// Whether kernels were compiled for the device such that await_previous() waits.
bool overlaps_launches(Device device);

/// What a kernel that launch_kernel() queues begins with: waits until all that was queued before is done, and
/// lets the next kernel's blocks come where this one's leave room, to wait as well. Not so a kernel that
/// fills most multiprocessors whole: the next one's blocks would crowd on the others.
template <bool kLeavesRoom = true>
__device__ __forceinline__ void await_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if constexpr (kLeavesRoom) cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
#endif
}

/// In a kernel that did not leave room: lets the next one's blocks come from now on, where some of this one's
/// have ended.
__device__ __forceinline__ void leave_room() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

/// Queues a kernel, which must call await_previous() (or as preparations.cuh says) before it touches global
/// memory, on the current stream of `device`, with so many bytes of dynamic shared memory; `cluster`: how
/// many blocks are one (sm_90).
template <class... P, class... A>
void launch_kernel_of_clusters(const char* op, Device device, void (*kernel)(P...), dim3 grid, dim3 block,
                               int shared, dim3 cluster, const A&... arguments) {
  const DeviceScope scope(device);
  cudaLaunchAttribute attributes[2] = {};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = stream_of(device);
  config.attrs = attributes;
  if (overlaps_launches(device)) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster.x * cluster.y * cluster.z > 1) {
    cudaLaunchAttribute& together = attributes[config.numAttrs++];
    together.id = cudaLaunchAttributeClusterDimension;
    together.val.clusterDim.x = cluster.x;
    together.val.clusterDim.y = cluster.y;
    together.val.clusterDim.z = cluster.z;
  }
  check_cuda(cudaLaunchKernelEx(&config, kernel, static_cast<P>(arguments)...), op);
}
template <class... P, class... A>
void launch_kernel_with_shared(const char* op, Device device, void (*kernel)(P...), dim3 grid, dim3 block,
                               int shared, const A&... arguments) {
  launch_kernel_of_clusters(op, device, kernel, grid, block, shared, dim3(1), arguments...);
}
template <class... P, class... A>
void launch_kernel(const char* op, Device device, void (*kernel)(P...), dim3 grid, dim3 block,
                   const A&... arguments) {
  launch_kernel_with_shared(op, device, kernel, grid, block, 0, arguments...);
}

}  // namespace tapedeck::cu
