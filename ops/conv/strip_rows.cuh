// Rows of `from` (strip_plan.h) on their way to shared memory, copied by the threads of a block, or by a warp
// for others that wait: of row-major images row by row, of images with the channels last pixel by pixel.
#pragma once

#include <tapedeck/ops/conv/strip_ahead_plan.h>
#include <tapedeck/ops/conv/strip_async.cuh>

namespace tapedeck::cu::conv_strip {

using namespace tapedeck::conv_strip;

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

}  // namespace tapedeck::cu::conv_strip
