// The largest magnitudes of float32 tensors, which products of scaled halves ask for (conv/scaled_half.cuh).
//
// Kernels that make a tensor find it on the way: a maximum in registers, and one atomic maximum a block, on
// which order has no influence. The tensor remembers where it is until somebody may write it (core/tensor.h).
// Of a tensor whose maker did not care, it costs a read; of a large one that is copied as halves anyway, only
// a read of a sample: copies are scaled for magnitudes up to 16 times the sample's, and made again in the
// rare case that they meet larger ones. Infinities and NaN do not count.
//
// (Blocks that copy, and find it together, were tried: the meeting of 528 took 2.4 us from where the last one
// came, and the next kernel begins 0.6 us after the last block of one before it. A DCGAN's layers in TF32
// took 1.04 to 1.12 times as long.)
//
// Two words hold it: what was found, 16 times the sample's largest, or a bound of what a prologue makes; and
// 0, or the largest of what is beyond that. Their maximum is what operands are scaled by. The second word is
// of what the first copy takes: of y all rows that some tap reaches, of which those who share its words
// (conv/operand_copies.h) read some; nobody may who reads others. Tensors do not remember guesses. Of such
// large tensors the last bits of results depend on whether the magnitude was known: the same program gives
// the same bits each time, a tensor and its copy need not.
#pragma once

#include <memory>

#include <tapedeck/ops/prologue.h>
#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

/// Bits that are ordered as magnitudes are.
__device__ __forceinline__ unsigned magnitude(float x) {
  const unsigned bits = __float_as_uint(x) & 0x7fffffffu;
  return bits < 0x7f800000u ? bits : 0;
}

/// Of the two words of a tensor.
__device__ __forceinline__ unsigned largest_of(const unsigned* words) {
  return max(words[0], words[1]);
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

/// Two words on y's device for kernels that make y, queued next on the current stream: 0, the first to be
/// raised. Null if it is not worth it: nobody asks for the magnitudes of such tensors, or they are soon read.
std::shared_ptr<unsigned> new_largest(const Tensor& y);
/// The same for a bound of what a prologue makes of x, which its statistics remember. Null where nobody asks
/// for it.
std::shared_ptr<unsigned> new_bound(const Tensor& x);
/// After these kernels are queued: y remembers the words, if there are any. Nobody else has y yet.
void keep_largest(const Tensor& y, const std::shared_ptr<unsigned>& words);
/// Words with a bound of what a prologue makes, where that is known here and now; else null.
std::shared_ptr<unsigned> bound_of(const Prologue& prologue);

/// A tensor's two words, on the device.
struct Magnitude {
  const unsigned* words = nullptr;
  bool is_guess = false;  // of a sample: the next to read the tensor raises the second word
};

/// The largest magnitudes of two tensors, found on the current stream where they are not known.
class Largest {
 public:
  /// Whether a tensor is copied as halves next, at least all of it that is read later, so that a guess will
  /// do.
  enum class Next { reads, copies };

  /// `prologue_a`: of what that makes of `a` instead, if there is one, whose bound is known.
  Largest(const Tensor& a, Next next_a, const Tensor& b, Next next_b, const Prologue& prologue_a = {});
  const Magnitude& a() const { return magnitudes_[0]; }
  const Magnitude& b() const { return magnitudes_[1]; }

 private:
  std::shared_ptr<void> words_[2];
  Magnitude magnitudes_[2];
};

}  // namespace tapedeck::cu
