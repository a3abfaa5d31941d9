// The one place that knows whether CUDA is built in.
//
// A kernel is a pair of functions of one signature, `cpu::f` and `cu::f`. An op calls
// `TAPEDECK_KERNEL(device, f)(arguments...)`; a build without CUDA names only `cpu::f`, so nothing of
// the other has to exist. The library's build defines TAPEDECK_CUDA for its own sources only; a program
// that writes kernels of its own decides for itself.
#pragma once

#include <tapedeck/core/device.h>

#if defined(TAPEDECK_CUDA)
#define TAPEDECK_KERNEL(device, kernel) ((device).is_cuda() ? &cu::kernel : &cpu::kernel)
#else
#define TAPEDECK_KERNEL(device, kernel) ((void)(device), &cpu::kernel)
#endif

namespace tapedeck {

/// Whether this build contains the CUDA kernels.
bool has_cuda_backend();

/// The number of CUDA devices that this build can use; 0 without the CUDA backend.
int cuda_device_count();

namespace cpu {
/// -1: there is no backend.
int cuda_device_count();
}  // namespace cpu
namespace cu {
int cuda_device_count();
}  // namespace cu

}  // namespace tapedeck
