// A CUDA program with kernels of its own that uses nothing of Tapedeck but the caching allocator: no tensors,
// memory by stream without cudaMalloc and cudaFree in the loop, and an account of it.
#include <cstdio>
#include <fstream>

#include <cuda_runtime.h>

#include <tapedeck/core/activity.h>
#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/error.h>

using namespace tapedeck;

namespace {

__global__ void squares_kernel(float* out, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = static_cast<float>(i % 100) * static_cast<float>(i % 100);
}

__global__ void add_kernel(const float* a, const float* b, float* out, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = a[i] + b[i];
}

constexpr int kCount = 1 << 20, kThreads = 256, kBlocks = kCount / kThreads;
constexpr std::size_t kBytes = kCount * sizeof(float);

/// Queues work on one stream. What is freed here may still be in use there: the allocator hands it out on the
/// same stream only, or on another after an event.
void queue(CachingAllocator& memory, cudaStream_t stream, float* out) {
  const auto scope = ActivityScope::op("squares");
  auto* const a = static_cast<float*>(memory.allocate(kBytes, stream));
  auto* const b = static_cast<float*>(memory.allocate(kBytes, stream));
  squares_kernel<<<kBlocks, kThreads, 0, stream>>>(a, kCount);
  squares_kernel<<<kBlocks, kThreads, 0, stream>>>(b, kCount);
  add_kernel<<<kBlocks, kThreads, 0, stream>>>(a, b, out, kCount);
  memory.deallocate(b, kBytes, stream);
  memory.deallocate(a, kBytes, stream);
}

void run() {
  CachingAllocator& memory = cu::caching_allocator(device("cuda"));
  memory.record_history(true);
  cudaStream_t streams[2];
  float* results[2];
  for (int s = 0; s < 2; ++s) {
    cudaStreamCreate(&streams[s]);
    results[s] = static_cast<float*>(memory.allocate(kBytes, streams[s]));
  }
  for (int step = 0; step < 100; ++step) {
    for (int s = 0; s < 2; ++s) queue(memory, streams[s], results[s]);
    count_memory_step();
  }
  for (int s = 0; s < 2; ++s) {
    float last = 0;
    cudaMemcpyAsync(&last, results[s] + kCount - 1, sizeof last, cudaMemcpyDeviceToHost, streams[s]);
    cudaStreamSynchronize(streams[s]);
    check(cudaGetLastError() == cudaSuccess && last == 2.0f * 75 * 75, "own_kernels: stream ", s, " made ",
          last);
    memory.deallocate(results[s], kBytes, streams[s]);
    memory.retire(streams[s]);
    cudaStreamDestroy(streams[s]);
  }
  const MemoryStats stats = memory.stats();
  std::printf("%llu allocations, %llu of them by cudaMalloc; at most %s in use\n",
              static_cast<unsigned long long>(stats.allocations),
              static_cast<unsigned long long>(stats.device_allocations),
              format_bytes(stats.peak_in_use).c_str());
  std::ofstream("own_kernels.html") << memory_page({memory.snapshot()});

  memory.set_limit(stats.reserved);
  try {
    (void)memory.allocate(std::size_t{1} << 30, nullptr);
  } catch (const Error& error) {
    std::printf("%s\n", error.what());
  }
}

}  // namespace

int main() {
  try {
    run();
  } catch (const Error& error) {
    std::fprintf(stderr, "own_kernels: %s\n", error.what());
    return 1;
  }
}
