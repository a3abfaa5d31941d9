// What depthwise kernels of common sizes share (depthwise_rows.cu, depthwise_planes.cu, depthwise_ring.cu).
#pragma once

#include <tapedeck/core/dtype.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::cu::conv_depthwise {

/// f with K, S and P of a geometry, the same in both axes, or false if there are no kernels for them.
template <class F>
bool visit_sizes(const ConvTranspose2dGeometry& g, F f) {
  const auto is = [&](std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
    for (const ConvAxis* a : {&g.h, &g.w}) {
      if (a->kernel != kernel || a->stride != stride || a->padding != padding || a->dilation != 1)
        return false;
    }
    return true;
  };
  if (is(4, 2, 1)) return f.template operator()<4, 2, 1>();
  if (is(3, 1, 1)) return f.template operator()<3, 1, 1>();
  if (is(3, 2, 1)) return f.template operator()<3, 2, 1>();
  return false;
}

/// f with a 16-bit type, or false for another.
template <class F>
bool visit_16_bits(DType dtype, F f) {
  if (dtype == DType::bfloat16) return f.template operator()<bfloat16>();
  if (dtype == DType::float16) return f.template operator()<float16>();
  return false;
}
/// The same with float32 as well.
template <class F>
bool visit_type(DType dtype, F f) {
  return dtype == DType::float32 ? f.template operator()<float>() : visit_16_bits(dtype, f);
}

/// to[k] = the sum of all threads' sums[k], added in a fixed order, by a block of kWarps warps.
template <int kWarps, int kTaps>
__device__ __forceinline__ void write_sums(float (&sums)[kTaps], float* to) {
  __shared__ float of_warps[kWarps][kTaps];
#pragma unroll
  for (int k = 0; k < kTaps; ++k) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sums[k] += __shfl_down_sync(0xffffffffu, sums[k], lanes);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][k] = sums[k];
  }
  __syncthreads();
  if (threadIdx.x >= kTaps) return;
  float sum = of_warps[0][threadIdx.x];
#pragma unroll
  for (int i = 1; i < kWarps; ++i) sum += of_warps[i][threadIdx.x];
  to[threadIdx.x] = sum;
}

}  // namespace tapedeck::cu::conv_depthwise
