// CUDA devices: errors, memory behind the caching allocator, and default contexts.
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/memory_limit.h>

namespace tapedeck::cu {

void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]]
    return;
  (void)cudaGetLastError();  // so that it is reported once
  throw Error(concat("cuda: ", what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status)));
}

void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
}

unsigned grid_size(const char* op, std::int64_t blocks) {
  check(blocks <= 0x7fffffff, op, ": ", blocks, " blocks of threads are more than a grid has");
  return static_cast<unsigned>(blocks);
}

DeviceScope::DeviceScope(Device device) : device_(device.index) {
  check_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != device_) check_cuda(cudaSetDevice(device_), "cudaSetDevice");
}

DeviceScope::~DeviceScope() {
  if (previous_ != device_) (void)cudaSetDevice(previous_);
}

int cuda_device_count() {
  static const int count = [] {
    int found = 0;
    const bool driver = cudaGetDeviceCount(&found) == cudaSuccess;
    (void)cudaGetLastError();
    return driver ? found : 0;
  }();
  return count;
}

void synchronize(Device device) {
  const DeviceScope scope(device);
  ++detail::synchronizations;
  check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

namespace {

/// Used by several allocators, each with a lock of its own.
class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(Device device) : device_(device) {}

  void* take(std::size_t bytes) override {
    const DeviceScope scope(device_);
    if (bytes > allowed()) return nullptr;
    void* pointer = nullptr;
    const cudaError_t status = cudaMalloc(&pointer, bytes);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check_cuda(status, "cudaMalloc");
    taken_ += bytes;
    return pointer;
  }
  void give_back(void* pointer, std::size_t bytes) noexcept override {
    (void)cudaFree(pointer);
    taken_ -= bytes;
  }
  std::optional<std::size_t> left() override {
    const DeviceScope scope(device_);
    std::size_t left = 0, all = 0;
    const bool known = cudaMemGetInfo(&left, &all) == cudaSuccess;
    (void)cudaGetLastError();
    if (!known) return {};
    return std::min(left, allowed());
  }
  void set_limit(std::size_t bytes) { limit_ = bytes; }

  Event record_event(Stream stream) override {
    const DeviceScope scope(device_);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture), "cudaStreamIsCapturing");
    if (capture != cudaStreamCaptureStatusNone) return nullptr;
    cudaEvent_t event = nullptr;
    if (const std::lock_guard lock(mutex_); !idle_.empty()) {
      event = idle_.back();
      idle_.pop_back();
    }
    if (event == nullptr) {
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
    check_cuda(cudaEventRecord(event, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
    return event;
  }
  bool is_done(Event event) override {
    const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (status == cudaErrorNotReady) return false;
    check_cuda(status, "cudaEventQuery");
    return true;
  }
  void wait(Event event) noexcept override {
    ++detail::synchronizations;
    (void)cudaEventSynchronize(static_cast<cudaEvent_t>(event));
  }
  void release_event(Event event) noexcept override {
    try {
      const std::lock_guard lock(mutex_);
      idle_.push_back(static_cast<cudaEvent_t>(event));
    } catch (...) {
      (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
    }
  }

 private:
  std::size_t allowed() const {
    const std::size_t limit = limit_, taken = taken_;
    return limit > taken ? limit - taken : 0;
  }

  Device device_;
  std::atomic<std::size_t> taken_ = 0, limit_ = std::numeric_limits<std::size_t>::max();
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;
};

__global__ void probe_kernel() {}

/// Whether the code that runs on the current device was compiled for Hopper or later: PTX for older GPUs,
/// which the driver translates for newer ones, does not wait by itself.
bool has_code_that_waits() {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, probe_kernel), "cudaFuncGetAttributes");
  return attributes.ptxVersion >= 90;
}

/// What exists once for each device that is used. Never destroyed: it outlives every static tensor.
struct DeviceState {
  explicit DeviceState(Device device)
      : memory(device),
        allocator(to_string(device), memory, caches_memory()),
        stream(new_stream(device)),
        context(device, stream, allocator) {
    check_cuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device.index),
               "cudaDeviceGetAttribute");
    const DeviceScope scope(device);
    overlaps_launches = has_code_that_waits();
  }

  static cudaStream_t new_stream(Device device) {
    const DeviceScope scope(device);
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
  }

  CudaMemory memory;
  CachingAllocator allocator;
  cudaStream_t stream;
  Context context;
  int multiprocessors = 0;
  bool overlaps_launches = false;
};

DeviceState& state_of(Device device) {
  struct Slot {
    std::once_flag once;
    DeviceState* state = nullptr;
  };
  const int count = cuda_device_count();
  static auto* const slots = new std::vector<Slot>(static_cast<std::size_t>(count));
  check(device.is_cuda() && device.index >= 0 && device.index < count, "context: ", device,
        " is not available; this machine has ", count, " CUDA devices");
  Slot& slot = (*slots)[static_cast<std::size_t>(device.index)];
  std::call_once(slot.once, [&] { slot.state = new DeviceState(device); });
  return *slot.state;
}

}  // namespace

bool caches_memory() {
  const char* cache = std::getenv("TAPEDECK_CUDA_CACHE");
  return cache == nullptr || std::string_view(cache) != "0";
}

DeviceMemory& device_memory(Device device) {
  return state_of(device).memory;
}

void limit_device_memory(Device device, std::size_t bytes) {
  state_of(device).memory.set_limit(bytes);
}

CachingAllocator& caching_allocator(Device device) {
  return state_of(device).allocator;
}

const Context& default_context(Device device) {
  return state_of(device).context;
}

int multiprocessors(Device device) {
  return state_of(device).multiprocessors;
}

bool overlaps_launches(Device device) {
  return state_of(device).overlaps_launches;
}

}  // namespace tapedeck::cu
