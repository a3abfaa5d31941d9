// Largest: a maximum does not depend on the order in which it is found.
#include <algorithm>

#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>

namespace tapedeck::cu::conv_gemm {

namespace {

constexpr int kAtOnce = 4;  // loads

struct Operand {
  const float* data;
  std::int64_t count;
};

__device__ __forceinline__ unsigned magnitude(float x) {
  const unsigned bits = __float_as_uint(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? bits : 0;
}

/// Block (x, i) has a share of operand i.
__global__ void __launch_bounds__(kThreads) largest_kernel(Operand a, Operand b, unsigned* largest) {
  await_previous();
  const Operand operand = blockIdx.y == 0 ? a : b;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                     threads = std::int64_t{gridDim.x} * kThreads;
  unsigned most = 0;
  const bool aligned = reinterpret_cast<std::uintptr_t>(operand.data) % sizeof(float4) == 0;
  const std::int64_t vectors = aligned ? operand.count / 4 : 0;
  const auto* const data = reinterpret_cast<const float4*>(operand.data);
  for (std::int64_t i = thread; i < vectors; i += threads * kAtOnce) {
    float4 x[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) x[k] = i + k * threads < vectors ? data[i + k * threads] : float4{};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      most = max(most,
                 max(max(magnitude(x[k].x), magnitude(x[k].y)), max(magnitude(x[k].z), magnitude(x[k].w))));
    }
  }
  for (std::int64_t i = vectors * 4 + thread; i < operand.count; i += threads)
    most = max(most, magnitude(operand.data[i]));
  most = __reduce_max_sync(~0u, most);
  __shared__ unsigned of_warps[kThreads / 32];
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  most = __reduce_max_sync(~0u, threadIdx.x < kThreads / 32 ? of_warps[threadIdx.x] : 0);
  if (threadIdx.x == 0 && most > 0) atomicMax(largest + blockIdx.y, most);
}

}  // namespace

Largest::Largest(const Tensor& a, const Tensor& b)
    : a_(OperandCopies::find(a, {})), b_(OperandCopies::find(b, {})) {
  if (a_ != nullptr && b_ != nullptr) return;
  const DeviceScope scope(a.device());
  const auto bits = std::make_shared<Storage>(2 * sizeof(unsigned), Context::current(a.device()));
  auto* const words = static_cast<unsigned*>(bits->data());
  check_cuda(cudaMemsetAsync(words, 0, 2 * sizeof(unsigned), stream_of(a.device())), "cudaMemsetAsync");
  Operand operands[2] = {};
  unsigned count = 0;
  std::int64_t most = 1;
  const auto find = [&](const Tensor& x, std::shared_ptr<void>& mine) {
    if (mine != nullptr) return;
    mine = std::shared_ptr<void>(bits, words + count);
    OperandCopies::keep(x, {}, mine);
    operands[count++] = {static_cast<const float*>(x.raw()), x.count()};
    most = std::max(most, x.count());
  };
  find(a, a_);
  find(b, b_);
  const std::int64_t blocks =
      std::clamp<std::int64_t>(ceil_div(most, kThreads * 4 * kAtOnce), 1, 8 * multiprocessors(a.device()));
  launch_kernel("conv: largest magnitudes", a.device(), largest_kernel,
                dim3(grid_size("conv", blocks), count), kThreads, operands[0], operands[1], words);
}

}  // namespace tapedeck::cu::conv_gemm
