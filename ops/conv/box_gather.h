// Boxes of pixels (box_plan.h) of nchw images that the kernel's own warps make (wgmma_box_gather.cuh): what
// comes to shared memory of a row, and what each lane takes from there to which place of a box. Host
// arithmetic, too, for tests.
//
// The tensor memory accelerator brings pieces of rows, of all channels of a box, as they lie: a piece begins
// at a multiple of kVectorBytes. Warps transpose them, 8 channels and 8 pixels at a time, as matrices. Of
// folded columns (fold.h) some lie at one place, each with its own vectors of channels.
//
//   columns of the image, box from column 3 on, pitch 5:    [0 1 2 3 4 5 6 7] [8 9 ..      pieces
//   places of the row                                              0 1 2 3 4
#pragma once

#include <tapedeck/ops/conv/box_plan.h>

namespace tapedeck::conv_gemm {

// Warps that transpose, and slots for pieces on the way to them, each warp's own.
inline constexpr int kGatherWarps = 2, kGatherSlots = 4, kSlotBytes = 4096;
static_assert(kGatherSlots % kGatherWarps == 0);
/// Behind the slots: where lanes write what is of no place.
inline constexpr int kNowhereBytes = 32 * kVectorBytes;
inline constexpr int kGatherBytes = kGatherSlots * kSlotBytes + kGatherWarps * kNowhereBytes;
static_assert(kGatherBytes % 1024 == 0);
inline constexpr int kGatheredElements = 8;  // of a vector of a box

/// The pieces of a plan's boxes.
struct GatheredPieces {
  GatheredPieces() = default;
  /// `fold`: columns of the image that are one. `value_bytes`: of the image's elements.
  GatheredPieces(const BoxPlan& p, const BoxTile& t, int fold, int value_bytes) {
    while (1 << log_fold < fold) ++log_fold;
    vectors = fold > 1 ? p.vectors / fold : 2 * p.steps(0);
    row_bytes = vectors > 4 ? 64 : 128;
    pixels = row_bytes / value_bytes, align = kVectorBytes / value_bytes;
    lines = t.images * t.box_rows;
    int most = 0;  // columns before a box that its first piece has
    for (const BoxTaps& taps : p.w.of)
      if (taps.taps > 0 && taps.origin != kFarOutside)
        most = std::max(most, t.columns * fold % align == 0 ? before(taps.origin * fold) : align - 1);
    each = (most + t.pitch * fold + pixels - 1) / pixels;
  }
  /// Columns between the begin of a piece and column c, which may be negative.
  TAPEDECK_HD int before(int c) const { return c & (align - 1); }
  TAPEDECK_HD int all() const { return lines * each; }  // of a box
  int bytes() const { return vectors * kGatheredElements * row_bytes; }

  int vectors = 0;                // of a column; of the chunk that has most
  int row_bytes = 0, pixels = 0;  // of a piece, in each channel
  int align = 1;                  // columns at which pieces begin
  int lines = 0, each = 0;        // rows of a box; pieces of each
  int log_fold = 0;               // 0 or 1
};

/// What a lane has to do with each piece. Values of 16 bits are matrices of 8 channels (rows) and 8 pixels,
/// as they lie, of which the four of 4 vectors of channels are loaded at once, and stored transposed. Of
/// float32 a lane loads two pairs of pixels of a channel, and all lanes 8 channels of 16 pixels: two
/// matrices, which are stored transposed, those of two vectors at once.
template <int kValueBytes>
struct GatherLane {
  static constexpr int kPixels = kValueBytes == 2 ? 8 : 16;  // at once
  static constexpr int kVectorsAtOnce = kValueBytes == 2 ? 4 : 2;

  TAPEDECK_HD GatherLane(const GatheredPieces& pieces, int lane)
      : pixel(kValueBytes == 2 ? lane % 8 : pixel_of(lane % 8, lane / 8 % 2)),
        vector(kValueBytes == 2 ? lane / 8 : lane / 16) {
    // The accelerator exchanges 16 bytes of rows of 16-bit values, so that those of 8 rows lie in all banks.
    const int row = kValueBytes == 2 ? lane : lane / 4, in_row = kValueBytes == 4         ? lane % 4
                                                                 : pieces.row_bytes == 64 ? row / 2 % 4
                                                                                          : row % 8;
    from = row * pieces.row_bytes + in_row * kVectorBytes;
    if (kValueBytes == 4 && in_row >= 2) from += kPairBytes;
    has = vector < pieces.vectors;
  }
  /// Where the lane's 16 bytes are in a slot: of kPixels pixels k of a piece, of the first vectors. Of
  /// float32 where its pair of the first matrix is; that of the second one is beside it, at ^ kPairBytes.
  TAPEDECK_HD int from_of(int k) const {
    return kValueBytes == 2 ? from ^ (k * kVectorBytes) : from + k * 64;
  }
  /// To those of so many vectors on.
  TAPEDECK_HD static constexpr int from_step(int row_bytes, int vectors) {
    return vectors * kGatheredElements * row_bytes;
  }
  /// Where the lane's column of the first pixels of a piece, which has its first pixel at `column` of the
  /// box, has the lane's first vector, if the line's first place begins at `row` of boxes that begin at a
  /// multiple of 1024; negative columns are before it. That v vectors on (a multiple of kVectorsAtOnce) is at
  /// ^ v * kVectorBytes: folded columns have 2 or 4.
  TAPEDECK_HD unsigned to_of(const GatheredPieces& pieces, unsigned row, int column) const {
    const int at = column + pixel;
    const unsigned place = row + static_cast<unsigned>((at >> pieces.log_fold) * kPixelBytes);
    const int of_place = (at & pieces.log_fold) * pieces.vectors + vector;
    return place + (static_cast<unsigned>(of_place) ^ (place / kPixelBytes & 7)) * kVectorBytes;
  }
  /// The same of pixels k, from that of the first.
  TAPEDECK_HD static unsigned to_next(const GatheredPieces& pieces, unsigned first, int k) {
    const int places = kPixels * k >> pieces.log_fold;  // a multiple of 4
    return (first ^ static_cast<unsigned>((places & 4) * kVectorBytes)) +
           static_cast<unsigned>(places * kPixelBytes);
  }

  static constexpr int kPairBytes = 8;
  int pixel, vector, from;
  bool has;  // such a vector

 private:
  /// Column i of matrix `second` of 16 pixels: eight that lie in all banks of a box.
  TAPEDECK_HD static int pixel_of(int i, int second) { return i / 2 * 4 + (i / 4 ^ second) * 2 + i % 2; }
};

/// Whether the boxes of a plan have all pixels of an axis of what is read.
inline bool reads_all(const BoxAxis& a, int size) {
  for (int remainder = 0; remainder < a.step; ++remainder) {
    const int pixels = (size - remainder + a.step - 1) / a.step;
    int reached = 0;  // pixels of the plane before this one are read
    for (bool more = true; more && reached < pixels;) {
      more = false;
      for (int i = 0; i < a.phases; ++i)
        for (int r = 0; r < a.reads; ++r) {
          const BoxTaps& t = a.of[i * a.reads + r];
          if (t.taps == 0 || a.count[i] == 0 || t.remainder != remainder || t.origin == kFarOutside) continue;
          const int end = t.origin + t.first + (t.taps - 1) * t.shift + a.count[i];
          if (t.origin <= reached && end > reached) reached = end, more = true;
        }
    }
    if (reached < pixels) return false;
  }
  return true;
}

/// Whether boxes have all elements of what is read, so that a sample's largest magnitude may be their scale's
/// (ops/largest.cuh).
inline bool may_be_sampled(const BoxPlan& p) {
  return reads_all(p.h, p.from_h) && reads_all(p.w, p.from_w);
}
/// Whether warps can make a plan's boxes: rows are whole vectors, of which all columns are read; of pairs of
/// folded ones all channels are in one box.
inline bool can_gather(const BoxPlan& p, int fold, int value_bytes) {
  return p.w.step == 1 && p.from_w * fold * value_bytes % kVectorBytes == 0 &&
         (fold == 1 || (fold == 2 && p.chunks == 1 && p.vectors % 4 == 0));
}

/// About how many clocks it takes to make a box of so many parts.
inline double gather_clocks(const GatheredPieces& pieces, int parts, int value_bytes) {
  const double of_slot = value_bytes == 2 ? 220 : parts == 1 ? 290 : 400;
  return pieces.all() * (of_slot * pieces.bytes() / kSlotBytes + 60);
}

}  // namespace tapedeck::conv_gemm
