// Rows of `to` on their way from sums to memory: in shared memory as they lie in memory, so that what is
// copied is lines of 16 bytes and more.
//
//   [row of a tile][channel][column]
//
// A line is a tile's columns of a row of a channel. Its first element is as far past a multiple of 32 bytes,
// its shift, as in memory: a bulk copy from shared memory that is shifted by 16 bytes against it writes each
// sector of memory twice, and takes 1.6 times as long (measured on an H200: 2.5 instead of 4.15 TB/s).
#pragma once

#include <tapedeck/ops/conv/strip_plan.h>

namespace tapedeck::conv_strip {

struct Stage {
  Stage() = default;
  Stage(const Strip& p, int staged_rows, int block_channels)
      : rows(staged_rows),
        channels(block_channels),
        elements(kStoreBytes / p.bytes),
        sector(kSectorBytes / p.bytes),
        span(p.columns * p.plan.w.phase[0].to_step),
        width(p.to_w) {
    // 8 words modulo 32, so that the channels of four threads meet different banks.
    const int least = (span + sector - 1) * p.bytes / 4;
    pitch = ((least + 23) / 32 * 32 + 8) * 4 / p.bytes;
    row_pitch = channels * pitch;
  }
  /// The same of lines that are as far apart as planes of `to`, modulo 32 bytes, in rows of whole sectors:
  /// all lines of a row have the shift of its first. For 16-bit types.
  static Stage congruent(const Strip& p, int staged_rows, int block_channels) {
    Stage stage(p, staged_rows, block_channels);
    const int sector = stage.sector, least = stage.span + (p.to_h * p.to_w - stage.span) % sector;
    int fewest = 0;
    for (int pitch = least < stage.span ? least + sector : least, i = 0; i < 4; ++i, pitch += sector) {
      const int conflicts = stage.conflicts(pitch, p.plan.w.phase[0].to_step);
      if (i > 0 && conflicts >= fewest) continue;
      fewest = conflicts;
      stage.pitch = pitch;
    }
    stage.row_pitch = (block_channels * stage.pitch + 2 * sector - 2) / sector * sector;
    return stage;
  }

  /// Where a channel is among those of a row: those that four threads have first of 8 follow each other.
  TAPEDECK_HD static int place(int channel) { return channel / 8 * 8 + channel % 2 * 4 + channel % 8 / 2; }
  TAPEDECK_HD static int channel(int place) { return place / 8 * 8 + place % 4 * 2 + place / 4 % 2; }
  TAPEDECK_HD int size() const { return rows * row_pitch; }  // elements

  /// The column of `to` at the start of a tile's lines: it may be before the first.
  TAPEDECK_HD static int first_column(const Strip& p, const Tile& tile) {
    return tile.b * p.plan.w.phase[0].to_step + p.first_to;
  }
  /// How far past a multiple of 32 bytes a line begins. `base`: of a block's channel 0.
  TAPEDECK_HD int shift(const Strip& p, int base, int channel, int row, int first_column) const {
    return (base + channel * p.plan.to.c + row * p.plan.to.h + first_column) & (sector - 1);
  }

  /// Elements [begin, end) of a line.
  struct Span {
    int begin, end;
  };
  /// Those that exist.
  TAPEDECK_HD Span columns(int first_column) const {
    Span all{first_column < 0 ? -first_column : 0, first_column + span < width ? span : width - first_column};
    if (all.end < all.begin) all.end = all.begin;
    return all;
  }

  static constexpr int kSectorBytes = 32;
  int rows = 0, channels = 0;
  int elements = 4, sector = 8;  // of 16 and of 32 bytes
  int span = 0;                  // columns of a tile
  int width = 0;                 // of `to`
  int pitch = 0, row_pitch = 0;  // between lines, and rows

 private:
  /// Of a warp's words that meet the same bank, the most: of 8 lines and, a step's columns apart, 4 words.
  static int conflicts(int pitch, int step) {
    int of_bank[32] = {}, most = 0;
    for (int lane = 0; lane < 32; ++lane)
      most = std::max(most, ++of_bank[(lane / 4 * pitch / 2 + lane % 4 * step) % 32]);
    return most;
  }
};

/// Whether the sectors at a line's ends, which it shares with the rows beside it, are written whole.
struct Shares {
  bool begin, end;
};

/// Which elements of a line are written, [first, last), and of these [begin, end) as vectors of 16 bytes.
struct Ends {
  int first, begin, end, last;
};

/// Those of a line whose element 0 is `at` elements past some sector: with the sectors that it shares or,
/// where it is not `live`, without.
template <class T>
TAPEDECK_HD inline Ends ends_of(const Stage::Span& columns, unsigned at, const Shares& shares, bool live) {
  constexpr int kElements = kStoreBytes / static_cast<int>(sizeof(T)),
                kSector = Stage::kSectorBytes / static_cast<int>(sizeof(T));
  int first = columns.begin, last = columns.end;
  const int from = static_cast<int>(at & (kSector - 1)), start = from + first, past = from + last;
  const int begin = first + (-start & (shares.begin ? kSector - 1 : kElements - 1)),
            end = last - (past & (shares.end ? kSector - 1 : kElements - 1));
  if (shares.begin) first = live ? first - (start & (kSector - 1)) : begin;
  if (shares.end) last = live ? last + (-past & (kSector - 1)) : end;
  const int begins = begin < last ? begin : last;
  return {first, begins, end > begins ? end : begins, last};
}

}  // namespace tapedeck::conv_strip
