// The largest magnitudes of float32 tensors, which products of scaled halves ask for (conv/scaled_half.cuh).
//
// Kernels that make a tensor find it on the way: a maximum in registers, and one atomic maximum a block, on
// which order has no influence. The tensor remembers where it is until somebody may write it (core/tensor.h).
// Of a tensor whose maker did not care, it costs a read. Infinities and NaN do not count.
#pragma once

#include <memory>

#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

/// Bits that are ordered as magnitudes are.
__device__ __forceinline__ unsigned magnitude(float x) {
  const unsigned bits = __float_as_uint(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? bits : 0;
}

/// For all threads of a block of kBlock: raises *largest to the largest of their `most`.
template <int kBlock>
__device__ __forceinline__ void raise_largest(unsigned* largest, unsigned most) {
  __shared__ unsigned of_warps[kBlock / 32];
  most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = most;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  most = __reduce_max_sync(~0u, threadIdx.x < kBlock / 32 ? of_warps[threadIdx.x] : 0);
  if (threadIdx.x == 0 && most > 0) atomicMax(largest, most);
}

/// A word on y's device for kernels that make y, queued next on the current stream: 0, to be raised. Null if
/// it is not worth it: nobody asks for the magnitudes of such tensors, or they are soon read.
std::shared_ptr<unsigned> new_largest(const Tensor& y);
/// After these kernels are queued: y remembers the word, if there is one. Nobody else has y yet.
void keep_largest(const Tensor& y, const std::shared_ptr<unsigned>& word);

/// The largest magnitudes of two tensors, found on the current stream where they are not known.
class Largest {
 public:
  Largest(const Tensor& a, const Tensor& b);
  // Their bits, on the device.
  const unsigned* a() const { return static_cast<const unsigned*>(a_.get()); }
  const unsigned* b() const { return static_cast<const unsigned*>(b_.get()); }

 private:
  std::shared_ptr<void> a_, b_;
};

}  // namespace tapedeck::cu
