// Page-locked memory, and copies from it on a stream of their own.
#include <tapedeck/core/copy_stream.h>

#include <deque>

#include <tapedeck/core/cuda.cuh>
#include <tapedeck/core/pinned.cuh>

namespace tapedeck::cu {

namespace {

/// Page-locked memory of the CPU. Work that uses it keeps the tensor that holds it, so what is freed is idle.
class PinnedMemory final : public DeviceMemory {
 public:
  void* take(std::size_t bytes) override {
    void* pointer = nullptr;
    const cudaError_t status = cudaHostAlloc(&pointer, bytes, cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check_cuda(status, "cudaHostAlloc");
    return pointer;
  }
  void give_back(void* pointer, std::size_t) noexcept override { (void)cudaFreeHost(pointer); }
  Event record_event(Stream) override { return this; }
  bool is_done(Event) override { return true; }
  void wait(Event) noexcept override {}
  void release_event(Event) noexcept override {}
};

class Copies final : public CopyStream {
 public:
  explicit Copies(Device device) : device_(device), memory_(device_memory(device)) {
    const DeviceScope scope(device);
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  ~Copies() override {
    ++detail::synchronizations;
    (void)cudaStreamSynchronize(stream_);
    for (const Kept& kept : kept_) memory_.release_event(kept.copied);
    (void)cudaStreamDestroy(stream_);
  }

  void copy(const Tensor& from, const Tensor& to) override {
    const Device there = from.device().is_cpu() ? to.device() : from.device();
    check(there == device_ && from.device() != to.device() &&
              (from.device().is_cpu() || to.device().is_cpu()) && from.shape() == to.shape() &&
              from.dtype() == to.dtype() && from.layout() == to.layout(),
          "copy stream: from ", from, " to ", to, "; legal are equal tensors, one on the CPU and one on ",
          device_);
    while (!kept_.empty() && memory_.is_done(kept_.front().copied)) {
      memory_.release_event(kept_.front().copied);
      kept_.pop_front();
    }
    to.bump_version();
    if (from.count() == 0) return;
    const DeviceScope scope(device_);
    order(stream_of(device_), stream_);
    if (!is_pinned(from.device().is_cpu() ? from : to)) ++detail::synchronizations;  // CUDA may wait
    check_cuda(cudaMemcpyAsync(to.raw(), from.read(), from.bytes(), cudaMemcpyDefault, stream_),
               "cudaMemcpyAsync");
    kept_.push_back({from, to, memory_.record_event(stream_)});
  }

  void join() override {
    const DeviceScope scope(device_);
    order(stream_, stream_of(device_));
  }

  void wait() override {
    if (!kept_.empty()) memory_.wait(kept_.back().copied);
  }

 private:
  struct Kept {
    Tensor from, to;
    Event copied;
  };

  /// What is queued on `second` from now on begins after what is queued on `first`.
  void order(cudaStream_t first, cudaStream_t second) {
    const Event event = memory_.record_event(first);
    check(event != nullptr, "copy stream: a step is being captured, whose replays would not repeat copies");
    const cudaError_t waits = cudaStreamWaitEvent(second, static_cast<cudaEvent_t>(event));
    memory_.release_event(event);  // a wait is for the event as it was then
    check_cuda(waits, "cudaStreamWaitEvent");
  }

  Device device_;
  DeviceMemory& memory_;
  cudaStream_t stream_ = nullptr;
  std::deque<Kept> kept_;
};

}  // namespace

const Context& pinned_context() {
  static auto* const memory = new PinnedMemory;  // these outlive every static tensor
  static auto* const allocator = new CachingAllocator("pinned", *memory, caches_memory());
  static const Context context(Device{}, nullptr, *allocator);
  return context;
}

std::unique_ptr<CopyStream> new_copy_stream(Device device) {
  return std::make_unique<Copies>(device);
}

}  // namespace tapedeck::cu
