// CUDA graphs for captured steps, and their memory.
#include <tapedeck/core/captured_step.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/cuda.cuh>

namespace tapedeck::cu {

namespace {

/// Memory that only the graphs of one step use, on one stream: what is freed may be reused at once.
class GraphMemory final : public DeviceMemory {
 public:
  explicit GraphMemory(Device device) : device_(device) {}
  void* take(std::size_t bytes) override { return device_memory(device_).take(bytes); }
  void give_back(void* pointer, std::size_t bytes) noexcept override {
    device_memory(device_).give_back(pointer, bytes);
  }
  std::optional<std::size_t> left() override { return device_memory(device_).left(); }
  Event record_event(Stream) override { return this; }
  bool is_done(Event) override { return true; }
  void wait(Event) noexcept override {}
  void release_event(Event) noexcept override {}

 private:
  Device device_;
};

struct Pool {
  explicit Pool(Device on) : device(on), memory(on), allocator(concat(on, " graph"), memory) {}
  Device device;
  GraphMemory memory;
  CachingAllocator allocator;
};

/// Pools that no step has. They are never destroyed, as tensors may still live there; those in which none
/// does serve the next step.
struct IdlePools {
  std::mutex mutex;
  std::vector<Pool*> pools;
};

IdlePools& idle_pools() {
  static auto* const pools = new IdlePools;
  return *pools;
}

Pool* take_pool(Device device) {
  IdlePools& idle = idle_pools();
  const std::lock_guard lock(idle.mutex);
  const auto empty = std::find_if(idle.pools.begin(), idle.pools.end(), [&](Pool* pool) {
    return pool->device == device && pool->allocator.stats().in_use == 0;
  });
  if (empty == idle.pools.end()) return new Pool(device);
  Pool* const pool = *empty;
  idle.pools.erase(empty);
  cu::synchronize(device);  // tensors may have been freed while work on them was queued
  pool->allocator.trim();
  pool->allocator.reset_peak();
  return pool;
}

void give_back_pool(Pool* pool) {
  try {
    cu::synchronize(pool->device);
    pool->allocator.trim();
    IdlePools& idle = idle_pools();
    const std::lock_guard lock(idle.mutex);
    idle.pools.push_back(pool);
  } catch (...) {  // a device that fails keeps its memory
  }
}

struct Numbers {
  double values[detail::kNumbers];
};

__global__ void set_kernel(const __grid_constant__ Numbers numbers, double* to) {
  to[threadIdx.x] = numbers.values[threadIdx.x];
}

class Graph final : public detail::CapturedGraph {
 public:
  Graph(const Context& context, std::shared_ptr<Pool> pool)
      : pool_(std::move(pool)), context_(context.device(), context.stream(), pool_->allocator) {}
  ~Graph() override {
    if (executable_ == nullptr) return;
    ++detail::synchronizations;
    (void)cudaStreamSynchronize(stream());
    (void)cudaGraphExecDestroy(executable_);
  }

  std::unique_ptr<CapturedGraph> another() override { return std::make_unique<Graph>(context_, pool_); }
  const Context& context() const override { return context_; }
  MemoryStats memory_stats() const override { return pool_->allocator.stats(); }
  std::string memory_snapshot() const override { return pool_->allocator.snapshot(); }

  void begin() override {
    const DeviceScope scope(context_.device());
    const bool remembers = caching_allocator(context_.device()).records_history();
    if (remembers != pool_->allocator.records_history()) pool_->allocator.record_history(remembers);
    // Relaxed: the graph's memory is taken from the device while the step is captured.
    check_cuda(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  }

  void end() override {
    const DeviceScope scope(context_.device());
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(stream(), &graph), "cudaStreamEndCapture");
    const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
    (void)cudaGraphDestroy(graph);
    check_cuda(made, "cudaGraphInstantiate");
    check_cuda(cudaGraphUpload(executable_, stream()), "cudaGraphUpload");
  }

  void abandon() noexcept override {
    cudaGraph_t graph = nullptr;
    (void)cudaStreamEndCapture(stream(), &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
  }

  void launch() override {
    const DeviceScope scope(context_.device());
    check_cuda(cudaGraphLaunch(executable_, stream()), "cudaGraphLaunch");
  }

  void set(const double* numbers, double* to) override {
    const DeviceScope scope(context_.device());
    Numbers values;
    std::memcpy(values.values, numbers, sizeof values);
    set_kernel<<<1, detail::kNumbers, 0, stream()>>>(values, to);
    check_launch("captured step");
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(context_.stream()); }

  std::shared_ptr<Pool> pool_;
  Context context_;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::unique_ptr<detail::CapturedGraph> new_graph(const Context& context) {
  if (!caches_memory()) return nullptr;  // it would give memory back to the device while a step is captured
  const std::shared_ptr<Pool> pool(take_pool(context.device()), give_back_pool);
  return std::make_unique<Graph>(context, pool);
}

}  // namespace tapedeck::cu
