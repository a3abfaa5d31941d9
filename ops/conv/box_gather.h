// Boxes of pixels (box_plan.h) of nchw images that the kernel's own warps make (wgmma_box_gather.cuh): what
// comes to shared memory of a row, and what each lane takes from there to which place of a box. Host
// arithmetic, too, for tests.
//
// The tensor memory accelerator brings pieces of rows, of a box's channels, as they lie: in memory a piece
// begins at a multiple of kVectorBytes. Warps transpose them, 8 channels and 8 pixels at a time, as matrices.
// Of folded columns (fold.h) some lie at one place, each with its own vectors of channels.
//
//   columns of the image, box from column 3 on, pitch 5:    [0 1 2 3 4 5 6 7] [8 9 ..      pieces
//   places of the row                                              0 1 2 3 4
#pragma once

#include <algorithm>
#include <iterator>

#include <tapedeck/ops/conv/box_plan.h>

namespace tapedeck::conv_gemm {

// Warps that transpose, and slots for pieces on the way to them, each warp's own.
inline constexpr int kGatherWarps = 2, kSlotBytes = 4096;
inline constexpr int kSlots[] = {4, 8, 12}, kMostSlots = 12;  // as many as kernels have
static_assert(std::all_of(std::begin(kSlots), std::end(kSlots),
                          [](int n) { return n % kGatherWarps == 0 && n <= kMostSlots; }));
/// Behind the slots: where lanes write what is of no place.
inline constexpr int kNowhereBytes = 32 * kVectorBytes;
/// Of shared memory for so many slots, if any.
constexpr int gather_bytes(int slots) {
  return slots == 0 ? 0 : slots * kSlotBytes + kGatherWarps * kNowhereBytes;
}
static_assert(kGatherWarps * kNowhereBytes % 1024 == 0);
inline constexpr int kGatheredElements = 8;  // of a vector of a box

/// The pieces of a plan's boxes: 64 bytes of a row of up to 64 channels, or 128 of up to 32.
///
/// Where rows are not whole vectors, images are read as if each channel were one row, and a piece begins up
/// to a vector before its columns, at another place in each row. Where channels are not whole vectors either,
/// a piece has every second channel, for these begin alike: a box has the even ones first, and weights are
/// packed in that order (gathered_channel()). Channels are far apart in memory, so all rows of the even ones
/// come before those of the odd ones: kb57's input gradient, whose channels are 2 MB each, took 3.3 ms with
/// them in turns, and 1.6 with this, more registers and a shorter loop that clears (bfloat16, an H100). That
/// addresses of so many pages are not at hand is a guess.
struct GatheredPieces {
  GatheredPieces() = default;
  /// `fold`: columns of the image that are one. `value_bytes`: of the image's elements.
  GatheredPieces(const BoxPlan& p, const BoxTile& t, int fold, int value_bytes) {
    while (1 << log_fold < fold) ++log_fold;
    width = p.from_w * fold, channel = p.from_h * width;
    const auto are_whole = [&](std::int64_t elements) { return elements * value_bytes % kVectorBytes == 0; };
    flat = !are_whole(width), apart = are_whole(channel) ? 1 : 2;
    of_column = fold > 1 ? p.vectors / fold : 2 * p.steps(0);
    vectors = of_column / apart;
    row_bytes = vectors > 4 ? 64 : 128;
    pixels = row_bytes / value_bytes, align = kVectorBytes / value_bytes;
    lines = t.images * t.box_rows;
    int most = 0;  // columns before a box that its first piece has
    for (const BoxTaps& taps : p.w.of)
      if (taps.taps > 0 && taps.origin != kFarOutside)
        most =
            std::max(most, !flat && t.columns * fold % align == 0 ? before(taps.origin * fold) : align - 1);
    each = (most + t.pitch * fold + pixels - 1) / pixels;
  }
  /// Columns between the begin of a piece and column c, which may be negative.
  TAPEDECK_HD int before(int c) const { return c & (align - 1); }
  TAPEDECK_HD int all() const { return lines * apart * each; }  // of a box
  int bytes() const { return vectors * kGatheredElements * row_bytes; }
  /// Of flat images: where row y of the first channel of the even ones (0) or the odd ones (1) has column c,
  /// on the map's first axis. Of rows outside of the image the axis' end, behind which there are zeros.
  /// (can_gather() and positions_fit() keep it within 31 bits.)
  TAPEDECK_HD int flat_column(int odd, int y, int height, int c) const {
    return y >= 0 && y < height ? odd * channel + y * width + c : channel * apart;
  }
  /// Of a box from column `first` of the image on: which of its columns are of the image, the first, and <<
  /// 16 the end of them; both at most 32767, which is more than a box has.
  TAPEDECK_HD int inside(int first) const {
    const int begin = first < 0 ? -first : 0, end = width > first ? width - first : 0;
    return (begin < 0x7fff ? begin : 0x7fff) | (end < 0x7fff ? end : 0x7fff) << 16;
  }
  TAPEDECK_HD static bool is_inside(int inside, int column) {
    return column >= (inside & 0xffff) && column < inside >> 16;
  }
  /// Vectors of a column's even channels that are before those of the odd ones; 0: all are in order.
  TAPEDECK_HD int of_parity() const { return apart == 1 ? 0 : vectors; }

  int vectors = 0, of_column = 0;  // of a piece; of a column, of the chunk that has most
  int row_bytes = 0, pixels = 0;   // of a piece, in each channel
  int align = 1;                   // columns at which pieces begin
  int apart = 1;                   // channels of a piece, in the image: 2 where parity counts
  int lines = 0, each = 0;         // rows of a box; pieces of one, of the same channels
  int log_fold = 0;                // 0 or 1
  bool flat = false;
  int width = 0, channel = 0;  // of the image, elements
};

/// Which channel of a chunk is element e of its vector v.
TAPEDECK_HD inline int gathered_channel(int v, int e, int of_parity) {
  if (of_parity == 0) return v * kGatheredElements + e;
  const int half = v / of_parity, odd = half % 2, in_half = v - half * of_parity;
  return ((half / 2 * of_parity + in_half) * kGatheredElements + e) * 2 + odd;
}

/// What a lane has to do with each piece. Values of 16 bits are matrices of 8 channels (rows) and 8 pixels,
/// as they lie, of which the four of 4 vectors of channels are loaded at once, and stored transposed; or of
/// 2 vectors, and twice the pixels, where a piece has no more. Of float32 a lane loads two pairs of pixels of
/// a channel, and all lanes 8 channels of 16 pixels: two matrices, which are stored transposed, those of two
/// vectors at once.
template <int kValueBytes>
struct GatherLane {
  static constexpr int kPixels = kValueBytes == 2 ? 8 : 16;  // of matrices
  static constexpr int kVectorsAtOnce = kValueBytes == 2 ? 4 : 2;
  /// Of 2 vectors of 16-bit values.
  TAPEDECK_HD static bool are_two(const GatheredPieces& pieces) {
    return kValueBytes == 2 && pieces.vectors <= 2;
  }

  TAPEDECK_HD GatherLane(const GatheredPieces& pieces, int lane)
      : pixel(kValueBytes == 2 ? lane % 8 : pixel_of(lane % 8, lane / 8 % 2)),
        vector(kValueBytes == 2 ? lane / 8 : lane / 16) {
    const bool two = are_two(pieces);
    if (two) pixel += vector / 2 * 8, vector %= 2;
    // The accelerator exchanges 16 bytes of rows of 16-bit values, so that those of 8 rows lie in all banks.
    const int row = kValueBytes == 4 ? lane / 4
                    : two            ? lane % 16
                                     : lane,
              in_row = kValueBytes == 4         ? lane % 4
                       : pieces.row_bytes == 64 ? row / 2 % 4
                                                : row % 8 ^ (two ? lane / 16 : 0);
    from = row * pieces.row_bytes + in_row * kVectorBytes;
    if (kValueBytes == 4 && in_row >= 2) from += kPairBytes;
    has = vector < pieces.vectors;
  }
  /// Where the lane's 16 bytes are in a slot: of kPixels pixels k of a piece, of the first vectors. Of
  /// float32 where its pair of the first matrix is; that of the second one is beside it, at ^ kPairBytes.
  TAPEDECK_HD int from_of(int k) const { return static_cast<int>(from_next(static_cast<unsigned>(from), k)); }
  /// From where they are of the first pixels, in a slot that begins at a multiple of 1024.
  TAPEDECK_HD static unsigned from_next(unsigned first, int k) {
    return kValueBytes == 2 ? first ^ static_cast<unsigned>(k * kVectorBytes)
                            : first + static_cast<unsigned>(k * 64);
  }
  /// To those of so many vectors on.
  TAPEDECK_HD static constexpr int from_step(int row_bytes, int vectors) {
    return vectors * kGatheredElements * row_bytes;
  }
  /// Where the lane's column of the first pixels of a piece, which has its first pixel at `column` of the
  /// box, has the lane's first vector, if the line's first place begins at `row` of boxes that begin at a
  /// multiple of 1024, and the piece's first vector is `first`; negative columns are before it. That v
  /// vectors on (a multiple of kVectorsAtOnce) is at ^ v * kVectorBytes: folded columns have 2 or 4.
  TAPEDECK_HD unsigned to_of(const GatheredPieces& pieces, unsigned row, int column, int first) const {
    return vector_at(pieces, row, column + pixel, first + vector);
  }
  /// Where a column has a vector.
  TAPEDECK_HD static unsigned vector_at(const GatheredPieces& pieces, unsigned row, int column, int vector) {
    const unsigned place = row + static_cast<unsigned>((column >> pieces.log_fold) * kPixelBytes);
    const int of_place = (column & pieces.log_fold) * pieces.of_column + vector;
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
/// Whether warps can make a plan's boxes: all columns are read, and every channel begins at a whole vector,
/// or every second one does, of columns of 4 or 8 vectors in chunks that are whole, if there are several; of
/// pairs of folded columns all channels are in one box.
inline bool can_gather(const BoxPlan& p, int fold, int value_bytes) {
  if (p.w.step != 1 || (fold != 1 && (fold != 2 || p.chunks != 1 || p.vectors % 4 != 0))) return false;
  const std::int64_t width = std::int64_t{p.from_w} * fold, channel = p.from_h * width;
  if (width * value_bytes % kVectorBytes == 0) return true;
  if (2 * channel >= kFarOutside || 2 * channel * value_bytes % kVectorBytes != 0) return false;
  if (channel * value_bytes % kVectorBytes == 0) return true;
  // Vectors of even channels, two or more, are followed by as many of odd ones, in each chunk alike.
  const int channels = p.from_channels / fold, vectors = fold > 1 ? p.vectors / fold : 2 * p.steps(0);
  return channels % 2 == 0 && vectors >= 4 && (vectors & (vectors - 1)) == 0 &&
         (p.chunks == 1 || p.from_channels % (kVectors * kGatheredElements) == 0);
}

/// About which part of tiles, so many along an axis of `size` pixels, has boxes that reach beyond it.
inline double tiles_at_border(const BoxAxis& a, int size, std::int64_t tiles) {
  for (int i = 0; i < a.phases * a.reads; ++i) {
    const BoxTaps& t = a.of[i];
    const int results = a.count[i / a.reads];
    if (t.taps == 0 || results == 0 || t.origin == kFarOutside) continue;
    if (t.origin < 0 || t.origin + t.first + (t.taps - 1) * t.shift + results > size)
      return std::min(1.0, 2.0 / static_cast<double>(tiles));
  }
  return 0;
}
/// About how many clocks it takes to make a box of so many parts: two warps transpose, and pieces come as
/// soon as a slot is empty. `at_border`: the part of tiles that reach beyond the image, where flat ones are
/// cleared.
inline double gather_clocks(const GatheredPieces& pieces, int parts, int value_bytes, int slots,
                            double at_border) {
  constexpr double kLatency = 2200, kClear = 300;
  const double of_slot = value_bytes == 2 ? 220 : parts == 1 ? 270 : 360;
  const double made = of_slot * pieces.bytes() / kSlotBytes + 60 + (pieces.flat ? kClear * at_border : 0);
  return pieces.all() * std::max(made, kLatency / slots);
}

}  // namespace tapedeck::conv_gemm
