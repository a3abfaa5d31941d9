// Copies to and from a GPU that go on beside its work.
#pragma once

#include <memory>

#include <tapedeck/core/tensor.h>

namespace tapedeck {

/// The CPU, with memory that GPUs copy from without a detour (page-locked). Elsewhere than in a CopyStream
/// such tensors are like all others. Where there is no GPU it is the CPU's default context.
const Context& pinned_context();

/// A stream of its own for copies between the CPU and a device.
class CopyStream {
 public:
  /// Null for the CPU, where nothing need be copied.
  static std::unique_ptr<CopyStream> make(Device device);
  virtual ~CopyStream() = default;

  /// Queues to = from, of equal shape, dtype and layout, one on the CPU and one on the device. The copy
  /// begins after what the calling thread has queued on the device so far, and the call waits for nothing if
  /// the one on the CPU is of the pinned context. Both are kept until it is done, and `from` must not change.
  virtual void copy(const Tensor& from, const Tensor& to) = 0;
  /// What the calling thread queues on the device from now on begins after the copies so far.
  virtual void join() = 0;
  /// Returns when the copies so far are done.
  virtual void wait() = 0;
};

namespace cpu {
const Context& pinned_context();
std::unique_ptr<CopyStream> new_copy_stream(Device device);
}  // namespace cpu
namespace cu {
const Context& pinned_context();
std::unique_ptr<CopyStream> new_copy_stream(Device device);
}  // namespace cu

}  // namespace tapedeck
