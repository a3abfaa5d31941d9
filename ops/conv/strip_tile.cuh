// What the kernels for strips of rows (strip_plan.h) share on the device: copies to shared memory, and
// products of 16 pixels by 8 channels on tensor cores (mma.sync).
//
// Shared memory has the elements as they are in memory. 16-bit types are multiplied as they are, and float32
// as TF32. kParts = 3: float32's accuracy, each operand a sum of two TF32 numbers, the first the operand
// rounded, so that the second has either sign and loses at most a bit; sums over four steps are added to the
// result's in float32, since tensor cores truncate what they add.
#pragma once

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/strip_ahead_plan.h>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/wgmma.cuh>

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
/// A copy of what exists.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned shared, const void* global) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(kBytes)
                 : "memory");
  }
}
/// 4, 8 or 16 bytes.
template <int kBytes>
__device__ __forceinline__ void store_zero(unsigned shared) {
  if constexpr (kBytes == 16) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(shared), "r"(0) : "memory");
  } else if constexpr (kBytes == 8) {
    asm volatile("st.shared.v2.u32 [%0], {%1, %1};" ::"r"(shared), "r"(0) : "memory");
  } else {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(0) : "memory");
  }
}
template <class T>
__device__ __forceinline__ void store_half(unsigned shared, T x) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared), "h"(__builtin_bit_cast(unsigned short, x))
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits for all groups of copies but the last N.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Bulk copies from shared to global memory, of Hopper; elsewhere nothing. (Waiting for these waits for
// copies to shared memory, too, and the other way round.)
/// Lets bulk copies read what this thread wrote to shared memory.
__device__ __forceinline__ void publish_for_bulk_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Starts a copy of a multiple of 16 bytes to global memory.
__device__ __forceinline__ void start_bulk_copy(void* to, unsigned shared, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared),
               "r"(bytes)
               : "memory");
#endif
}
__device__ __forceinline__ void commit_bulk_copies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}
/// Waits until all of this thread's bulk copies have read shared memory.
__device__ __forceinline__ void wait_for_bulk_reads() {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#endif
}

// Barriers of bulk copies to shared memory, likewise.
/// By all threads, before __syncthreads().
template <int N>
__device__ __forceinline__ void initialise(conv_gemm::Barrier (&barriers)[N], int arrivals) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x < N) barriers[threadIdx.x].initialise(arrivals);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait(conv_gemm::Barrier& barrier, unsigned parity) {
#if __CUDA_ARCH__ >= 900
  barrier.wait(parity);
#endif
}

/// The first kCount threads of a block wait for each other.
template <int kCount>
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kCount) : "memory");
}

/// Of a ring of stages whose barriers tell when they are full and empty: the one that comes next, and its
/// barriers' parity.
struct Turn {
  __device__ __forceinline__ void pass(int stages) {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  int stage = 0;
  unsigned parity = 0;
};
/// The same of one of several warps that fill stages in turn. There are no fewer stages than warps, or
/// parities would not tell.
struct CopyTurn : Turn {
  __device__ __forceinline__ explicit CopyTurn(int warp) : until(warp) {}
  /// Calls copy(stage) when the next stage is this warp's, and empty.
  template <class Copy>
  __device__ __forceinline__ void next(int stages, int warps, conv_gemm::Barrier* empty, Copy copy) {
    if (until == 0) {
      wait(empty[stage], parity ^ 1);
      copy(stage);
      until = warps;
    }
    --until;
    pass(stages);
  }
  int until;  // stages before this warp's
};

/// x in a register from here on: a kernel's arguments are otherwise read again and again, which waits longer
/// than for a register. (A sum that the compiler cannot know to be x.)
__device__ __forceinline__ int kept(int x) {
  int y;
  asm volatile("{ .reg .s32 zero; mov.u32 zero, %%ctaid.z; add.s32 %0, %1, zero; }" : "=r"(y) : "r"(x));
  return y;
}

/// Writes neighbours at once: of 16-bit types, the compiler otherwise writes each.
template <class T, int N>
__device__ __forceinline__ void store(T* to, const Pack<T, N>& pack) {
  using Words = std::conditional_t<sizeof(pack) == 16, uint4,
                                   std::conditional_t<sizeof(pack) == 8, uint2, std::uint32_t>>;
  static_assert(sizeof(Words) == sizeof(pack));
  *reinterpret_cast<Words*>(to) = __builtin_bit_cast(Words, pack);
}

/// Brings rows of a row-major tensor of images to [row][channel][pitch] in shared memory, zeros outside.
template <class T>
class RowCopy {
 public:
  /// `channels` that shared memory has, `existing` that the tensor has of these, `rows` to copy; `copies` of
  /// `copy` elements of a row, which `lanes` threads share. Rows are shifted by up to `shifts`.
  __device__ RowCopy(const Divider& channels, int existing, int rows, int height, int width, int pitch,
                     int copy, int copies, int lanes, const ImageStrides& strides, int shifts = 0)
      : exist(existing),
        by_channels_(channels),
        shifts_(shifts),
        rows_(rows),
        height_(height),
        width_(width),
        pitch_(pitch),
        bytes_(copy * static_cast<int>(sizeof(T))),
        copies_(copies),
        lanes_(lanes),
        stride_c_(strides.c),
        stride_h_(strides.h) {}

  /// row(s): the tensor's row that is the s-th, in the image or not. `from`: of the image and the first
  /// channel.
  template <class Row>
  __device__ __forceinline__ void start(T* to, const T* from, int first_column, Row row) const {
    if (shifts_ > 0) return start_shifted(to, from, first_column, row);
    if (bytes_ == 16) return start_by<16>(to, from, first_column, row);
    if (bytes_ == 8) return start_by<8>(to, from, first_column, row);
    if (bytes_ == 4) return start_by<4>(to, from, first_column, row);
    if constexpr (sizeof(T) == 2) start_by<2>(to, from, first_column, row);
  }

  /// The same where start() copies 16 bytes at once, shifted or not, and all channels exist: one warp copies
  /// the bulk of each row by an instruction of Hopper's, at whose end it has `arrived`, and its ends as
  /// start() does.
  template <class Row>
  __device__ __forceinline__ void start_bulk(T* to, const T* from, int first_column, Row row,
                                             conv_gemm::Barrier& arrived) const {
#if __CUDA_ARCH__ >= 900
    const int of_slot = static_cast<int>(by_channels_.divisor) * pitch_ / kVector;
    for (int slot = 0; slot < rows_; ++slot) {
      if (static_cast<unsigned>(row(slot)) < static_cast<unsigned>(height_)) continue;
      for (int i = static_cast<int>(threadIdx.x); i < of_slot; i += kThreads)
        store_zero<16>(shared_address(to) + static_cast<unsigned>(slot * of_slot + i) * 16);
    }
    if (threadIdx.x >= 32) return;
    publish_for_bulk_copies();  // what threads wrote to this place before
    each_row(to, from, first_column, row, static_cast<int>(threadIdx.x), 32,
             [&](const T* source, unsigned address, bool inside) {
               if (!inside) return arrived.arrive();
               const Span span(*this, source, first_column, true);
               const int low = min(span.low, copies_), whole = max(span.high - low, 0);
               source -= span.shift;
               const auto shared = [&](int i) { return address + static_cast<unsigned>(i) * 16; };
               if (whole > 0) {
                 arrived.arrive_with_copy(__cvta_shared_to_generic(shared(low)), source + low * kVector,
                                          whole * 16);
               } else {
                 arrived.arrive();
               }
               for (int i = 0; i < low; ++i) span.copy_words(i, shared(i), source + i * kVector);
               for (int i = low + whole; i < copies_; ++i)
                 span.copy_words(i, shared(i), source + i * kVector);
             });
#endif
  }

  /// The same of row y of each of up to 32 channels, of which not all need exist, by one warp, for others
  /// that wait: of `arrived`, which expects kRowArrivals.
  static constexpr int kRowArrivals = 2 * 32;
  __device__ __forceinline__ void start_row(T* to, const T* from, int first_column, int y,
                                            conv_gemm::Barrier& arrived) const {
#if __CUDA_ARCH__ >= 900
    const int lane = static_cast<int>(threadIdx.x) % 32, channels = static_cast<int>(by_channels_.divisor),
              rows = static_cast<unsigned>(y) < static_cast<unsigned>(height_) ? min(exist, channels) : 0;
    const unsigned shared = shared_address(to), pitch = static_cast<unsigned>(pitch_) * sizeof(T);
    from += static_cast<std::int64_t>(y) * stride_h_ + first_column;
    struct Ends {
      __device__ __forceinline__ Ends(const RowCopy& copy, const T* from, int first_column)
          : span(copy, from, first_column, true),
            ends(span.first, copy.width_, copy.copies_, kVector),
            source(from - span.shift) {}
      Span span;
      RowEnds ends;
      const T* source;
    };
    const auto ends_of = [&](int channel) {
      return Ends(*this, from + static_cast<std::int64_t>(channel) * stride_c_, first_column);
    };
    for (int c = lane / 4; c < rows; c += 8) {  // four lanes share a row's ends
      const Ends row = ends_of(c);
      for (int end = lane % 4; end < row.ends.count(); end += 4) {
        const int i = row.ends.at(end);
        row.span.copy_words(i, shared + static_cast<unsigned>(c) * pitch + static_cast<unsigned>(i) * 16,
                            row.source + i * kVector);
      }
    }
    for (int i = rows * pitch_ / kVector + lane; i < channels * pitch_ / kVector; i += 32)
      store_zero<16>(shared + static_cast<unsigned>(i) * 16);
    publish_for_bulk_copies();  // what was written to this place before
    const Ends row = ends_of(min(lane, channels - 1));
    const int copies = row.ends.high - row.ends.low;
    if (lane < rows && copies > 0) {
      arrived.arrive_with_copy(__cvta_shared_to_generic(shared + static_cast<unsigned>(lane) * pitch +
                                                        static_cast<unsigned>(row.ends.low) * 16),
                               row.source + row.ends.low * kVector, copies * 16);
    } else {
      arrived.arrive();
    }
    arrived.arrive_after_copies();
#endif
  }

  int exist;

 private:
  static constexpr int kVector = 16 / static_cast<int>(sizeof(T));

  __device__ __forceinline__ int lane() const {
    return static_cast<int>(threadIdx.x) & (lanes_ - 1);
  }
  __device__ __forceinline__ int lanes_log() const {
    return 31 - __clz(lanes_);
  }

  /// Of this thread's copies of a row those that lie in the tensor's row: `whole`, from `begin` on.
  struct Mine {
    int begin, whole;
  };
  __device__ __forceinline__ Mine mine(int low, int high) const {
    const int up = max(min(low, copies_) - lane() + lanes_ - 1, 0) >> lanes_log(),
              begin = lane() + (up << lanes_log());
    return {begin, max(high - begin + lanes_ - 1, 0) >> lanes_log()};
  }

  /// This thread's copies of a row, of kBytes each: `whole` ones, of three instructions each, and edge(i,
  /// address, source) for the others.
  template <int kBytes, class Edge>
  __device__ __forceinline__ void copy_row(unsigned address, const T* source, const Mine& whole,
                                           Edge edge) const {
    constexpr int kElements = kBytes / static_cast<int>(sizeof(T));
    const auto edges = [&](int i, int end) {
      for (; i < end; i += lanes_)
        edge(i, address + static_cast<unsigned>(i * kBytes), source + i * kElements);
    };
    edges(lane(), whole.begin);
    unsigned to = address + static_cast<unsigned>(whole.begin * kBytes);
    const T* from = source + whole.begin * kElements;
#pragma unroll 4
    for (int k = 0; k < whole.whole; ++k, to += lanes_ * kBytes, from += lanes_ * kElements)
      copy_async<kBytes>(to, from);
    edges(whole.begin + (whole.whole << lanes_log()), copies_);
  }

  /// each(source, address, inside): a row of this thread's that begins there in the tensor and in shared
  /// memory.
  template <class Row, class Each>
  __device__ __forceinline__ void each_row(T* to, const T* from, int first_column, Row row, int first,
                                           int step, Each each) const {
    const int channels = static_cast<int>(by_channels_.divisor);
    const unsigned shared = shared_address(to), pitch = static_cast<unsigned>(pitch_) * sizeof(T);
    from += first_column;
    for (int r = first; r < rows_ * channels; r += step) {
      const int slot = by_channels_.divide(r), channel = by_channels_.modulo(r, slot), y = row(slot);
      each(from + static_cast<std::int64_t>(channel) * stride_c_ + static_cast<std::int64_t>(y) * stride_h_,
           shared + static_cast<unsigned>(r) * pitch,
           static_cast<unsigned>(y) < static_cast<unsigned>(height_) && channel < exist);
    }
  }
  template <class Row, class Each>
  __device__ __forceinline__ void each_row(T* to, const T* from, int first_column, Row row, Each each) const {
    each_row(to, from, first_column, row, static_cast<int>(threadIdx.x) >> lanes_log(),
             kThreads >> lanes_log(), each);
  }

  /// A row as far from a multiple of 16 bytes as it is in memory, of which copy i has columns first + i *
  /// kVector on. Those in [low, high) lie in the tensor's row.
  struct Span {
    __device__ __forceinline__ Span(const RowCopy& copy, const T* source, int first_column, bool inside)
        : shift(static_cast<int>(reinterpret_cast<std::uintptr_t>(source) / sizeof(T)) & copy.shifts_),
          first(first_column - shift),
          width(inside ? copy.width_ : 0),
          low((max(-first, 0) + kVector - 1) / kVector),
          high(min(max(width - first, 0) / kVector, copy.copies_)) {}
    __device__ __forceinline__ bool has(int column) const {
      return static_cast<unsigned>(column) < static_cast<unsigned>(width);
    }
    /// One that begins before the row, of what the row before it ends with, or goes past it. Odd rows of
    /// 16-bit elements begin or end within a word.
    __device__ __forceinline__ void copy_words(int i, unsigned to, const T* from) const {
      constexpr int kWord = 4 / static_cast<int>(sizeof(T));
      const int column = first + i * kVector;
      if constexpr (kWord == 2) {
        if (((column | width) & 1) != 0) {
#pragma unroll
          for (int k = 0; k < kVector; k += 2) {
            const unsigned word = to + static_cast<unsigned>(k) * 2;
            const bool has_first = has(column + k);
            if (has_first == has(column + k + 1)) {
              copy_or_zero<4>(word, from + k, has_first);
            } else {  // half a word, of which no copy may read the other half: the tensor may end there
              store_half(word, has_first ? from[k] : T(0.0f));
              store_half(word + 2, has_first ? T(0.0f) : from[k + 1]);
            }
          }
          return;
        }
      }
#pragma unroll
      for (int k = 0; k < kVector; k += kWord)
        copy_or_zero<4>(to + static_cast<unsigned>(k) * sizeof(T), from + k, has(column + k));
    }
    int shift, first, width, low, high;
  };

  template <int kBytes, class Row>
  __device__ __forceinline__ void start_by(T* to, const T* from, int first_column, Row row) const {
    constexpr int kElements = kBytes / static_cast<int>(sizeof(T));
    // Of a row in the image: its copies do or do not exist, none in part.
    const int low = (max(-first_column, 0) + kElements - 1) / kElements,
              high = min((max(width_ - first_column, 0) + kElements - 1) / kElements, copies_);
    const Mine whole = mine(low, high);
    each_row(to, from, first_column, row, [&](const T* source, unsigned address, bool inside) {
      if constexpr (kBytes < 4) {
        for (int i = lane(); i < copies_; i += lanes_)
          store_half(address + i * kBytes, inside && i >= low && i < high ? source[i] : T(0.0f));
      } else if (inside) {
        copy_row<kBytes>(address, source, whole, [](int, unsigned at, const T*) { store_zero<kBytes>(at); });
      } else {
        for (int i = lane(); i < copies_; i += lanes_) store_zero<kBytes>(address + i * kBytes);
      }
    });
  }

  template <class Row>
  __device__ __forceinline__ void start_shifted(T* to, const T* from, int first_column, Row row) const {
    each_row(to, from, first_column, row, [&](const T* source, unsigned address, bool inside) {
      const Span span(*this, source, first_column, inside);
      copy_row<16>(address, source - span.shift, mine(span.low, span.high),
                   [&](int i, unsigned to, const T* at) { span.copy_words(i, to, at); });
    });
  }

  Divider by_channels_;
  int shifts_, rows_, height_, width_, pitch_, bytes_, copies_, lanes_, stride_c_, stride_h_;
};

/// The same of a tensor with channels last, 16 bytes of a pixel at once, to [row][8
/// channels][column][channel].
template <class T>
class PixelCopy {
 public:
  /// `channels` that shared memory has, a multiple of 8, `existing` that the tensor has of these; `pitch`
  /// between 8 of them in shared memory; `columns` and `rows` to copy.
  __device__ PixelCopy(int channels, int existing, int rows, int height, int width, int pitch, int columns,
                       const ImageStrides& strides)
      : exist(existing),
        rows_(kept(rows)),
        height_(kept(height)),
        width_(kept(width)),
        columns_(kept(columns)),
        slot_pitch_(kept(channels / kStep * pitch)),
        stride_w_(kept(strides.w)),
        stride_h_(kept(strides.h)) {
    const int pieces = channels / kElements, piece = static_cast<int>(threadIdx.x) % pieces;
    column_ = static_cast<int>(threadIdx.x) / pieces;
    step_ = kThreads / pieces;
    channel_ = piece * kElements;
    to_ = channel_ / kStep * pitch + channel_ % kStep;
    if (column_ >= step_) rows_ = 0;  // a thread that is left over
  }

  template <class Row>
  __device__ __forceinline__ void start(T* to, const T* from, int first_column, Row row) const {
    int slot = 0, column = column_;
    const unsigned shared = shared_address(to + to_);
    const T* const source = from + channel_;
    while (true) {
      while (column >= columns_) column -= columns_, ++slot;
      if (slot >= rows_) return;
      const int y = row(slot), x = first_column + column;
      const bool exists = static_cast<unsigned>(y) < static_cast<unsigned>(height_) &&
                          static_cast<unsigned>(x) < static_cast<unsigned>(width_) && channel_ < exist;
      copy_or_zero<16>(
          shared + static_cast<unsigned>(slot * slot_pitch_ + column * kStep) * sizeof(T),
          source + static_cast<std::int64_t>(y) * stride_h_ + static_cast<std::int64_t>(x) * stride_w_,
          exists);
      column += step_;
    }
  }

  int exist;

 private:
  static constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  int rows_, height_, width_, columns_, slot_pitch_, stride_w_, stride_h_;
  int column_, channel_, step_, to_;  // of this thread
};

/// The copy of a strip's rows, and of as many rows of something else that is as wide.
template <class T, bool kLast>
using Copy = std::conditional_t<kLast, PixelCopy<T>, RowCopy<T>>;
template <class T, bool kLast>
__device__ __forceinline__ Copy<T, kLast> copy_of(const Strip& p, int existing, int rows) {
  if constexpr (kLast) {
    return {p.chunk, existing, rows, p.plan.from_h, p.plan.from_w, p.pitch, p.copies, p.plan.from};
  } else {
    return {p.by_chunk, existing, rows,         p.plan.from_h, p.plan.from_w, p.pitch,
            p.copy,     p.copies, p.copy_lanes, p.plan.from,   p.shifts};
  }
}

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

/// Two elements of 16 bits in a word.
__device__ __forceinline__ std::uint32_t load_halves(unsigned low, unsigned high) {
  const auto load_half = [](unsigned address) {
    std::uint32_t x;
    asm volatile("{ .reg .u16 h; ld.shared.u16 h, [%1]; cvt.u32.u16 %0, h; }" : "=r"(x) : "r"(address));
    return x;
  };
  return __byte_perm(load_half(low), load_half(high), 0x5410);
}

/// Two neighbours, aligned.
template <class T>
__device__ __forceinline__ float2 load_two(unsigned address) {
  if constexpr (std::is_same_v<T, float>) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
    return x;
  } else {
    std::uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
    if constexpr (std::is_same_v<T, bfloat16>) {
      return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
    } else {
      return {convert<float>(__builtin_bit_cast(T, static_cast<unsigned short>(x))),
              convert<float>(__builtin_bit_cast(T, static_cast<unsigned short>(x >> 16)))};
    }
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

/// The elements of a step of a thread's two pixels, of which the second is `half` bytes further; `at`: of the
/// two elements of k, or of the first of two neighbours. `second`: the pixel's address for the second
/// element.
template <class T, int kParts, bool kLast>
__device__ __forceinline__ Fragment<T, kParts, 4> load_pixels(unsigned pixel, unsigned second, int half,
                                                              const int2& at) {
  Fragment<T, kParts, 4> a;
  if constexpr (kLast) {
    const float2 x = load_two<T>(pixel + at.x), y = load_two<T>(pixel + at.x + half);
    a.set(0, x.x);
    a.set(1, y.x);
    a.set(2, x.y);
    a.set(3, y.y);
  } else {
    const unsigned x = pixel + at.x, y = second + at.y;
    a.set(0, load<T>(x));
    a.set(1, load<T>(x + half));
    a.set(2, load<T>(y));
    a.set(3, load<T>(y + half));
  }
  return a;
}

/// The channel of `to` that column n of 8 channels of a block is. Channels last, of two times 8 a thread's
/// four are neighbours.
template <int kN, bool kLast>
__device__ __forceinline__ int channel_of(int tile, int n) {
  if constexpr (kLast && kN % 2 == 0) {
    return tile / 2 * 16 + n / 2 * 4 + tile % 2 * 2 + n % 2;
  } else {
    return tile * 8 + n;
  }
}

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

/// How a product is made of what is in shared memory. Of a step as TF32:
template <class T, int kParts, bool kLast, bool kSplit>
struct WideProduct {
  static constexpr int kSteps = 1;
  using A = Fragment<T, kParts, 4>;
  using B = Fragment<T, kParts, 2>;
  using W = Weights<T, kParts, kSplit>;
  using Stored = typename W::Stored;
  /// `table`: the thread's row of offsets.
  __device__ __forceinline__ static A load(unsigned pixel, unsigned second, int half, const int2* table) {
    return load_pixels<T, kParts, kLast>(pixel, second, half, *table);
  }
  __device__ __forceinline__ static B read(const Stored& w) { return W::read(w); }
  /// read(s, i): the weight of the i-th of the two elements of k of step s.
  template <class Read>
  __device__ __forceinline__ static Stored make(Read read) {
    return W::make(read(0, 0), read(0, 1));
  }
  __device__ __forceinline__ static void multiply(float (&c)[4], const A& a, const B& b) {
    conv_strip::multiply<T, kParts>(c, a, b);
  }
};
/// Of two steps as they are, 16 bits each, two elements of k in a word: channels last neighbours, else put
/// together.
template <class T, bool kLast>
struct HalfProduct {
  static constexpr int kSteps = 2;
  struct A {
    std::uint32_t words[4];
  };
  using B = uint2;
  using Stored = uint2;
  __device__ __forceinline__ static A load(unsigned pixel, unsigned second, int half, const int2* table) {
    const int2 x = table[0], y = table[4];
    const auto word = [&](const int2& at, int more) {
      return kLast ? load_word(pixel + at.x + more) : load_halves(pixel + at.x + more, second + at.y + more);
    };
    return {word(x, 0), word(x, half), word(y, 0), word(y, half)};
  }
  __device__ __forceinline__ static B read(const Stored& w) { return w; }
  template <class Read>
  __device__ __forceinline__ static Stored make(Read read) {
    return {two(read(0, 0), read(0, 1)), two(read(1, 0), read(1, 1))};
  }
  __device__ __forceinline__ static void multiply(float (&c)[4], const A& a, const B& b) {
    conv_gemm::Half<T>::multiply(c, a.words, b.x, b.y);
  }

 private:
  __device__ __forceinline__ static std::uint32_t load_word(unsigned address) {
    std::uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(address));
    return x;
  }
  __device__ __forceinline__ static std::uint32_t two(float low, float high) {
    Pack<T, 2> pack;
    pack.values[0] = convert<T>(low), pack.values[1] = convert<T>(high);
    return __builtin_bit_cast(std::uint32_t, pack);
  }
};
template <class T, int kParts, bool kLast, bool kSplit>
using Product =
    std::conditional_t<sizeof(T) == 2, HalfProduct<T, kLast>, WideProduct<T, kParts, kLast, kSplit>>;

/// A product over 16 pixels, of two times 8: rows (tap, channel) of one image by 8 channels of another. As
/// TF32:
template <class T, int kParts>
struct WidePixels {
  struct A {
    Fragment<T, kParts, 4> steps[2];
  };
  struct B {
    Fragment<T, kParts, 2> steps[2];
  };
  /// Addresses of this thread's pixel of each 8, for its two rows; 4 pixels are `four` bytes.
  __device__ __forceinline__ static A load_rows(const unsigned (&upper)[2], const unsigned (&lower)[2],
                                                int four) {
    A a;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      a.steps[s].set(0, load<T>(upper[s]));
      a.steps[s].set(1, load<T>(lower[s]));
      a.steps[s].set(2, load<T>(upper[s] + four));
      a.steps[s].set(3, load<T>(lower[s] + four));
    }
    return a;
  }
  __device__ __forceinline__ static B load_columns(const unsigned (&at)[2], int four) {
    B b;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      b.steps[s].set(0, load<T>(at[s]));
      b.steps[s].set(1, load<T>(at[s] + four));
    }
    return b;
  }
  __device__ __forceinline__ static B zeros() {
    B b;
#pragma unroll
    for (int e = 0; e < 4; ++e) b.steps[e / 2].set(e % 2, 0.0f);
    return b;
  }
  /// sums += a * b. At float32's accuracy the product is added in float32: tensor cores truncate what they
  /// add.
  __device__ __forceinline__ static void add_product(float (&sums)[4], const A& a, const B& b) {
    float part[4] = {};
    float(&c)[4] = kParts == 3 ? part : sums;
#pragma unroll
    for (int s = 0; s < 2; ++s) multiply<T, kParts>(c, a.steps[s], b.steps[s]);
    if constexpr (kParts == 3) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] += part[k];
    }
  }
};
/// 16-bit types as they are.
template <class T>
struct HalfPixels {
  struct A {
    std::uint32_t words[4];
  };
  struct B {
    std::uint32_t words[2];
  };
  __device__ __forceinline__ static A load_rows(const unsigned (&upper)[2], const unsigned (&lower)[2],
                                                int four) {
    return {load_halves(upper[0], upper[0] + four), load_halves(lower[0], lower[0] + four),
            load_halves(upper[1], upper[1] + four), load_halves(lower[1], lower[1] + four)};
  }
  __device__ __forceinline__ static B load_columns(const unsigned (&at)[2], int four) {
    return {load_halves(at[0], at[0] + four), load_halves(at[1], at[1] + four)};
  }
  __device__ __forceinline__ static B zeros() { return {0, 0}; }
  __device__ __forceinline__ static void add_product(float (&sums)[4], const A& a, const B& b) {
    conv_gemm::Half<T>::multiply(sums, a.words, b.words[0], b.words[1]);
  }
};
template <class T, int kParts>
using PixelProduct = std::conditional_t<sizeof(T) == 2, HalfPixels<T>, WidePixels<T, kParts>>;

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

/// Calls f<T, kParts>() for a tensor's type, and the precision that is wanted of float32.
template <class F>
void visit_strip(DType dtype, const F& f) {
  if (dtype == DType::bfloat16) return f.template operator()<bfloat16, 1>();
  if (dtype == DType::float16) return f.template operator()<float16, 1>();
  if (float32_precision() != Precision::highest) return f.template operator()<float, 1>();
  f.template operator()<float, 3>();
}

}  // namespace tapedeck::cu::conv_strip
