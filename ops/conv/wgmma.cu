// Whether the kernels of wgmma_tile.cuh were built for a device.
#include <atomic>

#include <tapedeck/core/launch.cuh>
#include <tapedeck/ops/conv/gemm.cuh>

namespace tapedeck::cu::conv_gemm {

namespace {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr int kProbeThreads = 64;
#else
constexpr int kProbeThreads = 32;
#endif

/// Its launch bound says which code the driver took.
__global__ void __launch_bounds__(kProbeThreads) probe_kernel() {}

}  // namespace

bool has_wgmma(Device device) {
  static std::atomic<int> known[64];  // 0: not asked yet, 1: no, 2: yes
  std::atomic<int>& state = known[device.index % 64];
  if (state == 0) {
    const DeviceScope scope(device);
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, probe_kernel), "cudaFuncGetAttributes");
    state = attributes.maxThreadsPerBlock == 64 ? 2 : 1;
  }
  return state == 2;
}

}  // namespace tapedeck::cu::conv_gemm
