// Boxes of nchw images, made by warps of the kernel that multiplies them (wgmma_box.cuh), instead of by the
// tensor memory accelerator from a copy with the channels last:
//
//   global --tensor memory accelerator, pieces of rows--> slots --warps, 8x8 matrices transposed--> boxes
//
// Of float32 images boxes are scaled halves (scaled_half.cuh), which are made on the way. One thread brings
// pieces, with what is to become of them; a warp takes every kGatherWarps-th one, and has to know nothing of
// tiles. The full barrier of a box counts its pieces. (Which lane takes what: box_gather.h.)
//
// A box that serves few products costs more to make than to copy: map_way() estimates both.
//
// On an H100, of the time with a copy, forward and input gradient (layers of bench/conv_shapes.h): in
// bfloat16 kb57 0.55 and 0.87, kb65 0.78 and 0.84, kb69 0.89 and 0.71, kb71 0.55 and 0.86; as scaled halves
// in TF32 0.83 and 0.94, 0.88 and 0.83, 0.92 and 0.85, 0.83 and 0.91; in two parts 0.86 and 0.90, 1.04
// and 1.0, 1.0 and 0.82, 0.90 and 0.86.
//
// What mattered: that the thread that brings has few instructions a piece (more registers, which consumers
// can spare, and addresses that are kept); the order of channels (box_gather.h); and the number of slots, of
// which float32 needs more where they leave boxes their room (kb71 in TF32: 0.76 ms with 4, 0.65 with 8).
// What did not: pieces of 32 channels also where all 64 begin alike (TF32 up to 1.2 times as long). Nor
// boxes for results that step over every second column, two planes' at once of the same pieces, of whole rows
// where tiles had these: input gradients of dcgan4 took 0.97 and 1.0 of the time with a copy in bfloat16 and
// TF32, others with stride 2 of bench/conv_shapes.h 1.08 to 3 times as long (an H200).
#pragma once

#include <cstddef>

#include <tapedeck/ops/conv/box_gather.h>
#include <tapedeck/ops/conv/scaled_half.cuh>
#include <tapedeck/ops/conv/wgmma_box_tile.cuh>

namespace tapedeck::cu::conv_gemm {

/// What is to become of a piece in a slot.
struct alignas(16) GatheredPiece {
  static constexpr int kEnd = -1;
  int row;     // where its line's first place begins in the boxes' memory
  int column;  // of the box, of its first pixel
  int inside;  // GatheredPieces::inside(): of flat images
  int box;  // stage, the piece's first vector << 8, the parity of the turn to wait for << 16, whether there
            // is one << 17; or kEnd: there are no more pieces

  __device__ __forceinline__ static int box_of(int stage, unsigned turn) {
    return stage | (turn > 0 ? 1 << 17 | ((turn - 1) & 1) << 16 : 0);
  }
  __device__ __forceinline__ int stage() const { return box & 0xff; }
  __device__ __forceinline__ int vector() const { return box >> 8 & 0xff; }
  __device__ __forceinline__ unsigned parity() const { return box >> 16 & 1; }
  __device__ __forceinline__ bool waits() const { return box >> 17 != 0; }
};

struct GatherBarriers {
  Barrier full[kMostSlots], empty[kMostSlots];
  GatheredPiece pieces[kMostSlots];

  __device__ void initialise() {
    for (int s = 0; s < kMostSlots; ++s) full[s].initialise(1), empty[s].initialise(1);
  }
};

/// For one thread: brings pieces of all boxes of the block's tiles. It is one after another that bounds how
/// fast they come, so what a piece takes is few instructions.
template <int kJoined, bool kFlat>
__device__ __forceinline__ void bring_pieces(const BoxArguments& call, int parts, char* slots,
                                             GatherBarriers& barriers) {
  const BoxPlan& p = call.plan;
  const GatheredPieces& pieces = call.pieces;
  constexpr unsigned kBarrier = sizeof(Barrier);
  // Kept: the compiler would find addresses of shared memory anew for each piece.
  const unsigned full = kept(shared_address(barriers.full)), memory = kept(shared_address(slots)),
                 end_of_slots = static_cast<unsigned>(call.slots) * kBarrier;
  constexpr unsigned kEmpty = offsetof(GatherBarriers, empty), kPieces = offsetof(GatherBarriers, pieces);
  unsigned slot = 0, parity = 1;  // slot: times kBarrier
  const auto begin_slot = [&](const GatheredPiece& piece) {
    Barrier::wait_at(full + kEmpty + slot, parity);
    store_words(full + kPieces + slot * (sizeof(GatheredPiece) / kBarrier), piece.row, piece.column,
                piece.inside, piece.box);
  };
  const auto end_slot = [&] {
    slot += kBarrier;
    if (slot == end_of_slots) slot = 0, parity ^= 1;
  };
  int stage = 0;
  unsigned turn = 0;
#pragma unroll 1
  for (int t = blockIdx.x; t < call.tiles * call.splits; t += gridDim.x) {
    const BoxTileAt<kJoined> tile(call, t);
    BoxPlan::Box box = p.box_of(tile.phase, tile.begin);
#pragma unroll 1
    for (int b = tile.begin; b < tile.end; ++b, p.advance(box)) {
      const BoxTaps &h = p.h.of[box.i], &w = p.w.of[box.j];
      const bool outside = h.origin == kFarOutside || w.origin == kFarOutside;
      const int first = outside ? 0 : (tile.column + w.origin) << pieces.log_fold,
                channel = box.chunk * (kVectors * kGatheredElements) / pieces.apart,
                first_row = outside ? p.from_h : (tile.row + h.origin) * p.h.step + h.remainder;
      GatheredPiece piece{0, 0, pieces.inside(first), GatheredPiece::box_of(stage, turn)};
#pragma unroll 1
      for (int odd = 0; odd < pieces.apart; ++odd) {
        piece.row = stage * parts * call.box_bytes;
#pragma unroll 1
        for (int y = first_row, row = 0; row < call.tile.box_rows; ++row, y += p.h.step) {
#pragma unroll 1
          for (int image = tile.image; image < tile.image + call.tile.images; ++image) {
            const int column = kFlat ? pieces.flat_column(odd, y, p.from_h, first) : first;
            int from = column - pieces.before(column);
            piece.column = from - column;
#pragma unroll 1
            for (int k = 0; k < pieces.each; ++k) {
              begin_slot(piece);
              Barrier::arrive_and_expect_at(full + slot, call.piece_bytes);
              Barrier::copy_box_at(full + slot, memory + slot * (kSlotBytes / kBarrier), call.maps[0], from,
                                   kFlat ? 0 : y, channel, tile.group, image);
              end_slot();
              from += pieces.pixels, piece.column += pieces.pixels;
            }
            piece.row += call.tile.pitch * kPixelBytes;
          }
        }
        piece.box += pieces.vectors << 8;
      }
      if (++stage == call.box_stages) stage = 0, ++turn;
    }
  }
#pragma unroll 1
  for (int warp = 0; warp < kGatherWarps; ++warp, end_slot()) {
    begin_slot({0, 0, 0, GatheredPiece::kEnd});
    Barrier::arrive_at(full + slot);
  }
}

/// What a warp of kGatherWarps does: makes its share of all boxes.
template <class Math>
class BoxGatherer {
 public:
  using Value = typename Math::Value;
  using Element = typename Math::Element;
  static constexpr int kParts = Math::kOperandParts;
  using Lane = GatherLane<sizeof(Value)>;
  static_assert(sizeof(Element) == 2);

  __device__ __forceinline__ BoxGatherer(const BoxArguments& call, char* memory, char* slots, int warp)
      : call_(call),
        memory_(shared_address(memory)),
        slots_(shared_address(slots)),
        nowhere_(slots_ + call.slots * kSlotBytes + warp * kNowhereBytes + threadIdx.x % 32 * kVectorBytes),
        lane_(call.pieces, static_cast<int>(threadIdx.x % 32)) {
    if constexpr (Math::kScaled)
      scale_ = scale_of(call_.largest_is_guess ? call_.largest[0] : largest_of(call_.largest));
  }

  __device__ __forceinline__ void run(int warp, GatherBarriers& barriers, Barrier* full, Barrier* empty) {
    constexpr unsigned kBarrier = sizeof(Barrier);
    const unsigned full_slots = kept(shared_address(barriers.full)),
                   empty_slots = full_slots + offsetof(GatherBarriers, empty),
                   pieces = full_slots + offsetof(GatherBarriers, pieces),
                   full_boxes = kept(shared_address(full)), empty_boxes = kept(shared_address(empty));
    unsigned turn = 0;
#pragma unroll 1
    for (int slot = warp;;) {
      Barrier::wait_at(full_slots + slot * kBarrier, turn);
      const GatheredPiece piece = read_piece(pieces + slot * sizeof(GatheredPiece));
      if (piece.box == GatheredPiece::kEnd) break;
      if (piece.waits()) Barrier::wait_at(empty_boxes + piece.stage() * kBarrier, piece.parity());
      transpose<false>(piece, slots_ + slot * kSlotBytes);
      if constexpr (Math::kScaled)
        if (__any_sync(~0u, has_large())) repeat(piece, slots_ + slot * kSlotBytes);
      if (call_.pieces.flat) clear_outside(piece);
      fence_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        Barrier::arrive_at(empty_slots + slot * kBarrier);
        Barrier::arrive_at(full_boxes + piece.stage() * kBarrier);
      }
      if ((slot += kGatherWarps) >= call_.slots) slot = warp, turn ^= 1;
    }
  }

 private:
  /// Read by the lane that gives the slot back: racecheck does not follow others (docs/sanitizers.md).
  __device__ __forceinline__ static GatheredPiece read_piece(unsigned shared) {
    uint4 x{};
    if (threadIdx.x % 32 == 0) x = load_words(shared);
    return {static_cast<int>(uniform(x.x)), static_cast<int>(uniform(x.y)), static_cast<int>(uniform(x.z)),
            static_cast<int>(uniform(x.w))};
  }
  /// The same of a piece with halves that are too large or not finite. Is the scale a guess, the largest
  /// magnitude that is beyond it is found.
  __device__ __forceinline__ void repeat(const GatheredPiece& piece, unsigned slot) {
    most_ = 0;
    transpose<true>(piece, slot);
    if (!call_.largest_is_guess) return;
    const unsigned of_warp = __reduce_max_sync(~0u, most_);
    if (threadIdx.x % 32 == 0 && is_beyond(of_warp, call_.largest[0]))
      atomicMax(const_cast<unsigned*>(call_.largest) + 1, of_warp);
  }
  /// Makes zeros of what a piece of a flat image has beyond its row.
  __device__ __forceinline__ void clear_outside(const GatheredPiece& piece) const {
    const GatheredPieces& pieces = call_.pieces;
    const int columns = call_.tile.pitch << pieces.log_fold, first = max(piece.column, 0),
              last = min(piece.column + pieces.pixels, columns) - 1;
    if (pieces.is_inside(piece.inside, first) && pieces.is_inside(piece.inside, last)) return;
    __syncwarp();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x % 32); i < pieces.pixels; i += 32) {
      const int column = piece.column + i;
      if (column < 0 || column >= columns || pieces.is_inside(piece.inside, column)) continue;
#pragma unroll 1
      for (int v = 0; v < pieces.vectors; ++v) {
        const unsigned to =
            Lane::vector_at(pieces, memory_ + static_cast<unsigned>(piece.row), column, piece.vector() + v);
#pragma unroll
        for (int part = 0; part < kParts; ++part) store_words(to + part * call_.box_bytes, 0, 0, 0, 0);
      }
    }
  }
  /// Makes a piece's part of a box. kCareful: of scaled halves, of which some may be too large or not finite.
  template <bool kCareful>
  __device__ __forceinline__ void transpose(const GatheredPiece& piece, unsigned slot) {
    large_ = 0;
    if (call_.pieces.row_bytes == 64) {
      transpose<kCareful, 64, false>(piece, slot);
    } else if (sizeof(Value) == 2 && Lane::are_two(call_.pieces)) {
      transpose<kCareful, 128, sizeof(Value) == 2>(piece, slot);
    } else {
      transpose<kCareful, 128, false>(piece, slot);
    }
  }
  template <bool kCareful, int kRowBytes, bool kTwo>
  __device__ __forceinline__ void transpose(const GatheredPiece& piece, unsigned slot) {
    // Loads of kEach times Lane::kPixels pixels.
    constexpr int kAtOnce = sizeof(Value) == 4 ? 1 : kRowBytes / 32, kEach = kTwo ? 2 : 1;
    constexpr int kPixels = kAtOnce * kEach * Lane::kPixels,
                  kAll = kRowBytes / static_cast<int>(sizeof(Value));
    const GatheredPieces& pieces = call_.pieces;
    const int columns = call_.tile.pitch << pieces.log_fold;
    const unsigned first =
        lane_.to_of(pieces, memory_ + static_cast<unsigned>(piece.row), piece.column, piece.vector());
    const unsigned from_first = kept(slot + static_cast<unsigned>(lane_.from));  // one register
#pragma unroll
    for (int k = 0; k < kAll / Lane::kPixels; k += kAtOnce * kEach) {
      const int column = piece.column + k * Lane::kPixels;
      if (column <= -kPixels || column >= columns) continue;
      unsigned to[kAtOnce];
      bool has[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        to[i] = Lane::to_next(pieces, first, k + i * kEach);
        has[i] = lane_.has && static_cast<unsigned>(column + i * kEach * Lane::kPixels + lane_.pixel) <
                                  static_cast<unsigned>(columns);
      }
      if constexpr (sizeof(Value) == 2) {
        // Rows of 64 bytes have two matrices of each lane, of the first 4 vectors and the others.
        constexpr int kMatrices = kRowBytes == 64 ? 2 : 1, kOther = Lane::kVectorsAtOnce;
        std::uint32_t words[kAtOnce][kMatrices][4];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int m = 0; m < kMatrices; ++m)
            load_transposed(
                Lane::from_next(from_first, k + i * kEach) + Lane::from_step(kRowBytes, m * kOther),
                words[i][m]);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
          for (int m = 0; m < kMatrices; ++m)
            store_matrices(has[i] ? to[i] ^ m * kOther * kVectorBytes : nowhere_, words[i][m]);
      } else {
        unsigned from = Lane::from_next(from_first, k);
        int v = 0;
        const auto move = [&]<int kCount>() {
          float2 pairs[kCount][4];
#pragma unroll
          for (int i = 0; i < kCount * 4; ++i)
            pairs[i / 4][i % 4] =
                load_pair((from ^ i % 2 * Lane::kPairBytes) + Lane::from_step(kRowBytes, i / 2));
#pragma unroll
          for (int n = 0; n < kCount; ++n, v += Lane::kVectorsAtOnce) {
            std::uint32_t words[kParts][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) halves_of<kCareful>(pairs[n][i], i, words);
#pragma unroll
            for (int part = 0; part < kParts; ++part)
              store_transposed(has[0] ? (to[0] ^ v * kVectorBytes) + part * call_.box_bytes : nowhere_,
                               words[part]);
          }
          from += Lane::from_step(kRowBytes, kCount * Lane::kVectorsAtOnce);
        };
        if constexpr (kParts == 1) {  // of two parts there are not enough registers
#pragma unroll 1
          while (v + 2 * Lane::kVectorsAtOnce <= pieces.vectors) move.template operator()<2>();
        }
#pragma unroll 1
        while (v < pieces.vectors) move.template operator()<1>();
      }
    }
  }

  /// The parts of two pixels, as word i of each.
  template <bool kCareful>
  __device__ __forceinline__ void halves_of(float2 x, int i, std::uint32_t (&words)[kParts][4]) {
    if (kCareful && call_.largest_is_guess) most_ = max(most_, max(magnitude(x.x), magnitude(x.y)));
    x.x *= scale_, x.y *= scale_;
    const std::uint32_t halves = pair_of_halves(x);
    words[0][i] = halves;
    if constexpr (!kCareful) large_ = larger_halves(large_, halves);
    if constexpr (kParts == 2) {
      const float2 first = floats_of_halves(halves);
      float2 rest = make_float2(x.x - first.x, x.y - first.y);
      if constexpr (kCareful) {
        if (!isfinite(rest.x)) rest.x = 0;
        if (!isfinite(rest.y)) rest.y = 0;
      }
      words[1][i] = pair_of_halves(rest);
    }
  }
  /// Whether a half of the piece is 2^15 or more, which a right scale lets only infinities be.
  __device__ __forceinline__ bool has_large() const {
    return (((large_ & 0x7fff7fffu) + 0x08000800u) & 0x80008000u) != 0;
  }

  const BoxArguments& call_;
  const unsigned memory_, slots_, nowhere_;
  const Lane lane_;
  float scale_ = 1;
  // The largest magnitude of a repeated piece; and those of a piece's halves, with signs of no meaning.
  unsigned most_ = 0, large_ = 0;
};

}  // namespace tapedeck::cu::conv_gemm
