// The one place that knows whether CUDA is built in.
//
// A kernel is a pair of functions of one signature, `cpu::f` and `cu::f`. An op calls
// `TAPEDECK_KERNEL(device, f)(arguments...)`; a build without CUDA names only `cpu::f`, so nothing of
// the other has to exist.
#pragma once

#include <tapedeck/core/device.h>

#if defined(TAPEDECK_CUDA)
#define TAPEDECK_KERNEL(device, kernel) ((device).is_cuda() ? &cu::kernel : &cpu::kernel)
#else
#define TAPEDECK_KERNEL(device, kernel) ((void)(device), &cpu::kernel)
#endif

namespace tapedeck {

/// Whether this build contains the CUDA kernels.
constexpr bool has_cuda_backend() {
#if defined(TAPEDECK_CUDA)
  return true;
#else
  return false;
#endif
}

/// The number of CUDA devices that this build can use; 0 without the CUDA backend.
#if defined(TAPEDECK_CUDA)
int cuda_device_count();
#else
inline int cuda_device_count() {
  return 0;
}
#endif

}  // namespace tapedeck
