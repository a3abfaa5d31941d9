// What every CUDA source shares: errors, the current device, streams, and memory for the time of a call.
#pragma once

#include <cuda_runtime.h>

#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/context.h>
#include <tapedeck/core/error.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck::cu {

/// Throws Error, naming `what`, unless a call of the runtime succeeded.
void check_cuda(cudaError_t status, const char* what);
/// The same for the kernel that was just launched.
void check_launch(const char* kernel);

/// Makes a device the calling thread's current one for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int device_, previous_ = 0;
};

/// The calling thread's stream on a device.
inline cudaStream_t stream_of(Device device) {
  return static_cast<cudaStream_t>(Context::current(device).stream());
}

/// The number of multiprocessors of a device.
int multiprocessors(Device device);

/// The memory of a device as the driver gives it: what caching allocators are made over.
DeviceMemory& device_memory(Device device);

/// False when TAPEDECK_CUDA_CACHE=0 turns the caching allocator off, for memory checkers.
bool caches_memory();

/// `count` uninitialised elements for the kernels of one call. The destructor gives them back to the stream's
/// cache, where they stay until what was queued before is done.
template <class T>
class Workspace {
 public:
  Workspace(Device device, std::int64_t count)
      : storage_(static_cast<std::size_t>(count) * sizeof(T), Context::current(device)) {}
  T* data() const { return static_cast<T*>(storage_.data()); }

 private:
  Storage storage_;
};

}  // namespace tapedeck::cu
