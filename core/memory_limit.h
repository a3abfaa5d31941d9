// What the program may take of a device, for all allocators over its memory together.
#pragma once

#include <cstddef>

#include <tapedeck/core/device.h>

namespace tapedeck {

namespace cpu {
/// Nothing: the CPU's memory has one allocator, which keeps to its limit.
void limit_device_memory(Device device, std::size_t bytes);
}  // namespace cpu
namespace cu {
void limit_device_memory(Device device, std::size_t bytes);
}  // namespace cu

}  // namespace tapedeck
