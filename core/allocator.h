// Allocators: bytes on a device, handed out and taken back.
#pragma once

#include <cstddef>

namespace tapedeck {

/// An order of work on a device: a `cudaStream_t`, or null for the CPU and for the default stream.
using Stream = void*;
/// A mark in a stream's order of work: a `cudaEvent_t`.
using Event = void*;

/// Hands out bytes of one device. Knows nothing of tensors.
class Allocator {
 public:
  virtual ~Allocator() = default;

  /// At least `bytes` bytes for use in `stream`, aligned for any vector load of the device (64 bytes
  /// on the CPU, 512 on CUDA); null when `bytes` is 0. Throws Error when there is not enough memory.
  virtual void* allocate(std::size_t bytes, Stream stream) = 0;

  /// From now on until it is taken back, work on a second stream uses what allocate() returned at `pointer`,
  /// too. May be said any number of times, by any thread.
  virtual void record_stream(void* pointer, Stream stream) = 0;

  /// Takes back what allocate() returned for the same stream; work that is queued there, and on streams that
  /// were recorded for it, may still use it.
  virtual void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept = 0;
};

}  // namespace tapedeck
