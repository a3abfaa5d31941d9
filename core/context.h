// Contexts: where the work of a thread goes.
#pragma once

#include <tapedeck/core/allocator.h>
#include <tapedeck/core/device.h>

namespace tapedeck {

/// A device, a stream on it and the allocator that serves both. A user may own one, over a stream of
/// their own, and make it current for a scope (before the stream is destroyed: retire_stream() of
/// core/memory.h); otherwise each device's default context is used. That of a
/// CUDA device has a stream of its own, which neither waits for CUDA's default stream nor is waited for by
/// it: only such a stream can be captured in a graph.
///
/// Who reads on one stream what another writes has the one wait for the other (cudaStreamWaitEvent). Memory
/// needs no such care: a tensor that is dropped while streams use it stays until all are done with it.
class Context {
 public:
  /// A context on `device` with its default allocator. `stream` stays the caller's; on a CUDA device null
  /// is CUDA's default stream.
  explicit Context(Device device, Stream stream = nullptr);
  Context(Device device, Stream stream, Allocator& allocator)
      : device_(device), stream_(stream), allocator_(&allocator) {}

  Device device() const { return device_; }
  Stream stream() const { return stream_; }
  Allocator& allocator() const { return *allocator_; }

  /// The calling thread's context for `device`: the innermost ContextScope, else the default one.
  static const Context& current(Device device);

 private:
  Device device_;
  Stream stream_;
  Allocator* allocator_;
};

namespace cpu {
/// The context of threads that have none of their own.
const Context& default_context(Device device);
}  // namespace cpu
namespace cu {
const Context& default_context(Device device);
}  // namespace cu

/// Makes a context current for the calling thread until the scope ends.
class ContextScope {
 public:
  explicit ContextScope(const Context& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  friend class Context;
  const Context* context_;
  ContextScope* outer_;
};

}  // namespace tapedeck
