// What the kernels for strips of rows (strip_plan.h) share on the device: copies to shared memory, and
// products of 16 pixels by 8 channels on tensor cores (mma.sync).
//
// All types are multiplied as TF32, which holds every bfloat16 and float16: shared memory has the elements as
// they are in memory, and a thread widens those that it reads. kParts = 3: float32's accuracy, each operand a
// sum of two TF32 numbers, the first the operand rounded, so that the second has either sign and loses at
// most a bit; sums over four steps are added to the result's in float32, since tensor cores truncate what
// they add.
#pragma once

#include <tapedeck/ops/conv/strip_plan.h>
#include <tapedeck/ops/conv/gemm.cuh>

namespace tapedeck::cu::conv_strip {

using namespace tapedeck::conv_strip;
using conv_gemm::shared_address;

/// kBytes from global to shared memory, or zeros, until wait_for_copies().
template <int kBytes>
__device__ __forceinline__ void copy_or_zero(unsigned shared, const void* global, bool exists) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(exists ? kBytes : 0)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
                 "r"(exists ? kBytes : 0)
                 : "memory");
  }
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for all groups of copies but the last N.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/// x in a register from here on: a kernel's arguments are otherwise read again and again, which waits longer
/// than for a register. (A sum that the compiler cannot know to be x.)
__device__ __forceinline__ int kept(int x) {
  int y;
  asm volatile("{ .reg .s32 zero; mov.u32 zero, %%ctaid.z; add.s32 %0, %1, zero; }" : "=r"(y) : "r"(x));
  return y;
}

/// Brings rows of a row-major tensor of images to [row][channel][pitch] in shared memory, zeros outside.
template <class T>
class RowCopy {
 public:
  /// `channels` that shared memory has, `existing` that the tensor has of these, `rows` to copy; `copies` of
  /// `copy` elements of a row, which `lanes` threads share.
  __device__ RowCopy(int channels, int existing, int rows, int height, int width, int pitch, int copy,
                     int copies, int lanes, const ImageStrides& strides)
      : exist(existing),
        channels_(kept(channels)),
        rows_(kept(rows)),
        height_(kept(height)),
        width_(kept(width)),
        pitch_(kept(pitch)),
        bytes_(kept(copy * static_cast<int>(sizeof(T)))),
        copies_(kept(copies)),
        lanes_(kept(lanes)),
        stride_c_(kept(strides.c)),
        stride_h_(kept(strides.h)) {
    lane_ = static_cast<int>(threadIdx.x) % lanes;
    const int first = static_cast<int>(threadIdx.x) / lanes;
    slot_ = first / channels;
    channel_ = first % channels;
    step_ = kThreads / lanes;
  }

  /// row(s): the tensor's row that is the s-th, in the image or not. `from`: of the image and the first
  /// channel.
  template <class Row>
  __device__ __forceinline__ void start(T* to, const T* from, int first_column, Row row) const {
    if (bytes_ == 16) return start_by<16>(to, from, first_column, row);
    if (bytes_ == 8) return start_by<8>(to, from, first_column, row);
    if (bytes_ == 4) return start_by<4>(to, from, first_column, row);
    if constexpr (sizeof(T) == 2) start_by<2>(to, from, first_column, row);
  }

  int exist;

 private:
  template <int kBytes, class Row>
  __device__ __forceinline__ void start_by(T* to, const T* from, int first_column, Row row) const {
    constexpr int kElements = kBytes / static_cast<int>(sizeof(T));
    const int x = first_column + lane_ * kElements, step = lanes_ * kElements;
    int slot = slot_, channel = channel_;
    while (slot < rows_) {
      const int y = row(slot);
      const bool inside = static_cast<unsigned>(y) < static_cast<unsigned>(height_) && channel < exist;
      const T* source = from + static_cast<std::int64_t>(channel) * stride_c_ +
                        static_cast<std::int64_t>(y) * stride_h_ + x;
      T* const target = to + (slot * channels_ + channel) * pitch_ + lane_ * kElements;
      unsigned address = shared_address(target);
      const int width = inside ? width_ : 0;
#pragma unroll 4
      for (int i = lane_, at = 0; i < copies_; i += lanes_, at += step) {
        const bool exists = static_cast<unsigned>(x + at) < static_cast<unsigned>(width);
        if constexpr (kBytes >= 4) {
          copy_or_zero<kBytes>(address, source + at, exists);
          address += step * static_cast<int>(sizeof(T));
        } else {
          target[at] = exists ? source[at] : T(0.0f);
        }
      }
      channel += step_;
      while (channel >= channels_) channel -= channels_, ++slot;
    }
  }

  int channels_, rows_, height_, width_, pitch_, bytes_, copies_, lanes_, stride_c_, stride_h_;
  int lane_, slot_, channel_, step_;  // of this thread; threads of a block that start a row each
};

/// The element at an address in shared memory: one addition less than with a pointer and an index.
template <class T>
__device__ __forceinline__ float load(unsigned address) {
  if constexpr (std::is_same_v<T, float>) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
    return x;
  } else {
    unsigned short x;
    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(address));
    return convert<float>(__builtin_bit_cast(T, x));
  }
}

/// A number as kParts TF32 numbers: large + small.
template <class T, int kParts>
__device__ __forceinline__ void split(float x, std::uint32_t& large, std::uint32_t& small) {
  const std::uint32_t bits = __float_as_uint(x);
  if constexpr (kParts == 3) {
    large = (bits + 0x1000u) & 0xffffe000u;
    small = __float_as_uint(x - __uint_as_float(large));
  } else if constexpr (std::is_same_v<T, float>) {
    // Infinities and NaN stay; tensor cores drop the lower bits.
    large = fabsf(x) < __int_as_float(0x7f800000) ? bits + 0x1000u : bits;
  } else {
    large = bits;
  }
}

template <class T, int kParts, int N>
struct Fragment {
  __device__ __forceinline__ void set(int i, float x) {
    split<T, kParts>(x, large[i], small[kParts == 3 ? i : 0]);
  }
  std::uint32_t large[N], small[kParts == 3 ? N : 1];
};

/// The weights of two elements of k in shared memory, as they are or in their parts.
template <class T, int kParts, bool kSplit>
struct Weights {
  using Stored = std::conditional_t<kSplit, float4, float2>;
  __device__ __forceinline__ static Fragment<T, kParts, 2> read(const Stored& w) {
    Fragment<T, kParts, 2> b;
    if constexpr (kSplit) {
      b.large[0] = __float_as_uint(w.x), b.large[1] = __float_as_uint(w.y);
      b.small[0] = __float_as_uint(w.z), b.small[1] = __float_as_uint(w.w);
    } else {
      b.set(0, w.x);
      b.set(1, w.y);
    }
    return b;
  }
  __device__ __forceinline__ static Stored make(float x, float y) {
    if constexpr (kSplit) {
      Fragment<T, kParts, 2> b;
      b.set(0, x);
      b.set(1, y);
      return {__uint_as_float(b.large[0]), __uint_as_float(b.large[1]), __uint_as_float(b.small[0]),
              __uint_as_float(b.small[1])};
    } else {
      return {x, y};
    }
  }
};

/// c += a * b.
template <class T, int kParts>
__device__ __forceinline__ void multiply(float (&c)[4], const Fragment<T, kParts, 4>& a,
                                         const Fragment<T, kParts, 2>& b) {
  if constexpr (kParts == 3) {
    conv_gemm::Tf32::multiply(c, a.small, b.large[0], b.large[1]);
    conv_gemm::Tf32::multiply(c, a.large, b.small[0], b.small[1]);
  }
  conv_gemm::Tf32::multiply(c, a.large, b.large[0], b.large[1]);
}

/// Sums of kM * 16 pixels and kN * 8 channels of a warp: thread l has of pixels l/4 and l/4 + 8 the channels
/// l%4*2 and l%4*2 + 1.
template <int kM, int kN>
struct Sums {
  float values[kM][kN][4];
};

template <int kM, int kN>
__device__ __forceinline__ void add_sums(Sums<kM, kN>& to, const Sums<kM, kN>& from) {
#pragma unroll
  for (int i = 0; i < kM * kN * 4; ++i)
    to.values[i / (kN * 4)][i / 4 % kN][i % 4] += from.values[i / (kN * 4)][i / 4 % kN][i % 4];
}

/// sums += products of `steps` steps. `pixels`: addresses in shared memory of this thread's first pixel of
/// each 16, the other being `half` bytes further; `offsets`: the table's row of this thread, in bytes, of (k,
/// k + 4) for k = l%4; `weights`: this thread's of the first 8 channels, `pitch` apart from step to step.
template <class T, int kParts, int kM, int kN>
__device__ __forceinline__ void multiply_steps(Sums<kM, kN>& sums, const unsigned (&pixels)[kM], int half,
                                               const int2* offsets, const float2* weights, int pitch,
                                               int steps) {
  const auto add = [&](Sums<kM, kN>& to) {
    const int2 at = *offsets;
    offsets += 4;
    Fragment<T, kParts, 4> a[kM];
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      const unsigned x = pixels[i] + at.x, y = pixels[i] + at.y;
      a[i].set(0, load<T>(x));
      a[i].set(1, load<T>(x + half));
      a[i].set(2, load<T>(y));
      a[i].set(3, load<T>(y + half));
    }
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      const float2 w = weights[j * 32];
      Fragment<T, kParts, 2> b;
      b.set(0, w.x);
      b.set(1, w.y);
#pragma unroll
      for (int i = 0; i < kM; ++i) multiply<T, kParts>(to.values[i][j], a[i], b);
    }
    weights += pitch;
  };
  constexpr int kFlush = 4;
  for (; steps >= kFlush; steps -= kFlush) {
    Sums<kM, kN> part = {};
#pragma unroll
    for (int s = 0; s < kFlush; ++s) add(kParts == 3 ? part : sums);
    if constexpr (kParts == 3) add_sums(sums, part);
  }
  if (steps > 0) {
    Sums<kM, kN> part = {};
    for (int s = 0; s < steps; ++s) add(kParts == 3 ? part : sums);
    if constexpr (kParts == 3) add_sums(sums, part);
  }
}

/// Fills the table of offsets, in bytes: two ints for each step and l%4.
__device__ __forceinline__ void make_offsets(const Strip& p, int* offsets) {
  for (int e = threadIdx.x; e < p.steps * kStep; e += kThreads) {
    const int step = e / kStep, t = e % kStep / 2, half = e % 2;
    int phase = 0;
    while (p.step_begin[phase + 1] <= step) ++phase;
    offsets[e] = p.offset(phase / p.plan.w.count, phase % p.plan.w.count,
                          (step - p.step_begin[phase]) * kStep + t + half * 4) *
                 p.bytes;
  }
}

/// Fills the weights of a group and `tiles` * 8 channels of `to` from `first` on, as multiply_steps() wants
/// them: [chunk][step][8 channels][thread] of two elements of k, 4 apart.
template <class T>
__device__ __forceinline__ void make_weights(const Strip& p, const T* w, int group, int first, int tiles,
                                             float* weights) {
  const int of_step = tiles * 64, all = p.chunks * p.steps * of_step;
#pragma unroll 4
  for (int e = threadIdx.x; e < all; e += kThreads) {
    const int step = e / of_step, rest = e - step * of_step, lane = rest % 64 / 2;
    const int chunk = step / p.steps, of_chunk = step - chunk * p.steps;
    int phase = 0;
    while (p.step_begin[phase + 1] <= of_chunk) ++phase;
    const int k = (of_chunk - p.step_begin[phase]) * kStep + lane % 4 + rest % 2 * 4;
    const std::int64_t at = p.weight(group, chunk, phase / p.plan.w.count, phase % p.plan.w.count, k,
                                     first + rest / 64 * 8 + lane / 4);
    weights[e] = at < 0 ? 0.0f : convert<float>(w[at]);
  }
}

}  // namespace tapedeck::cu::conv_strip
