// What kernels over boxes (wgmma_box.cuh) are called with, and the tiles of a call.
#pragma once

#include <tapedeck/ops/conv/box_choice.h>
#include <tapedeck/ops/conv/box_gather.h>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/tensor_map.cuh>
#include <tapedeck/ops/conv/wgmma_tile.cuh>

namespace tapedeck::cu::conv_gemm {

/// Where the result at a place is, from the tile's first on; its image, row and column in the tile
/// (BoxSums::in_tile()).
struct alignas(16) PlaceOfResult {
  std::int64_t offset;
  unsigned in_tile, unused;
};
static_assert(sizeof(PlaceOfResult) == kPlaceBytes);

struct BoxArguments {
  // What blocks look at first comes first, in as few lines of 64 bytes as can be (BoxKernel::run()).
  int tiles, splits;
  // By the number of tiles along these; of phases, those of rows, if a pair of blocks has both of columns.
  Divider by_blocks, by_phases, by_columns, by_rows, by_images;
  BoxTile tile;
  BoxResults results;
  std::uint16_t arrivals[4];  // at a barrier of each of BoxKernel's rings
  int slots,
      gather_bytes;  // of boxes that the kernel makes, if it does; bytes: of shared memory before boxes
  Divider by_tiles;
  const char* packed;
  Divider by_splits;
  int box_bytes, box_stages, weight_stages;  // box_bytes: of a part
  int slices, slice;                         // of a box: tile.slices() and tile.slice()
  int blocks, tiles_block;                   // of channels: in a tile, 1 or 2; and tiles
  BoxWeights weights;
  // Taps of its first tile that a warpgroup has multiplied when the other one begins, at least one unless
  // they take turns.
  int lead;
  int halves, half;        // of a tile's places, and where the second one begins, if there are two
  std::int8_t log_copies;  // of channel_copies()
  std::int8_t log_fold;    // of are_folds(): a channel has so many neighbouring columns of one of `to`
  bool in_order;           // of a block's channels; or as block_row() says
  bool in_turns;           // warpgroups have a tile each, in turns; else halves of one, or of its channels
  alignas(64) BoxPlan plan;
  // Of planes to read; then, where results are boxes, of their phases (of rows, or of pixels). The last is of
  // weights, where these are not packed.
  CUtensorMap maps[kMaxPlanes + 1];
  int kernel_w;
  const unsigned *largest, *largest_weight;  // two words each (largest.cuh) of what is read and of the
                                             // weights, where these are scaled
  int piece_bytes;                           // of what boxes are made of, where the kernel makes them
  GatheredPieces pieces;
  // Whether `largest` is a guess (largest.cuh), and whether this is the call that repeats what a wrong one
  // made.
  bool largest_is_guess, repeats;
  const void* bias;
  float negative_slope;  // of the results
  void* to;
  float* parts;  // of splits, if there are several
  ImageStrides to_strides;
  BoxPlace::Dividers by_place;
  ResultBox box;          // of results, if they are boxes
  bool one_box;           // of pixels: whether StoredRows are
  bool rows_are_vectors;  // of swapped results: kVectorBytes each
  int staged_bytes;
  // Whether kVectorBytes of channels of `to`, or two, are neighbours and can be written at once; of
  // are_folds() and runs, four and two columns.
  bool vectors, pairs;
  ResultRuns runs;  // of results, if they are runs
};

static_assert(offsetof(BoxArguments, plan) == 3 * 64 && offsetof(BoxPlan, h) == 64 &&
              offsetof(BoxAxis, of) == 64);
static_assert(sizeof(BoxArguments) <= 4096);  // what a kernel's parameters may take with CUDA 12.0

/// Tile `index` of call.tiles * call.splits, with kJoined phases.
template <int kJoined>
struct BoxTileAt {
  BoxTileAt() = default;
  __device__ BoxTileAt(const BoxArguments& call, int index) {
    const BoxPlan& p = call.plan;
    const int split = call.splits == 1 ? 0 : call.by_tiles.divide(index);
    index -= split * call.tiles;
    const auto next = [&index](const Divider& count) {
      const int quotient = count.divide(index), rest = count.modulo(index, quotient);
      index = quotient;
      return rest;
    };
    // A pair of blocks has both phases of columns of a tile.
    const bool swaps = call.results == BoxResults::swapped;
    const int of_pair = index & 1;
    if (swaps) index >>= 1;
    block = next(call.by_blocks);
    const int turn = next(call.by_phases);
    // Phases have different numbers of taps: a thread block does not always get the same one.
    phase = call.by_phases.modulo(turn + index, call.by_phases.divide(turn + index));
    if (swaps) phase = 2 * phase + of_pair;
    column = next(call.by_columns) * call.tile.columns;
    row = next(call.by_rows) * call.tile.rows;
    image = next(call.by_images) * call.tile.images;
    group = index;
    i = p.by_phases_w.divide(phase), j = p.by_phases_w.modulo(phase, i);
    const int height = kJoined == 4 ? max(p.h.count[0], p.h.count[1]) : p.h.count[i];
    rows = min(call.tile.rows, height - row);
    most_columns = 0;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      columns[k] = min(call.tile.columns, p.w.count[j + k] - column);
      most_columns = max(most_columns, columns[k]);
    }
    images = min(call.tile.images, p.n - image);
    const int all = p.boxes(phase) * static_cast<int>(has_results()),
              each = call.splits == 1 ? all : call.by_splits.divide(all + call.splits - 1);
    begin = min(all, split * each), end = min(all, begin + each);
  }
  /// columns[k], without an address: so the array stays in registers.
  __device__ int columns_of(int k) const {
    return k == 0 ? columns[0] : columns[kColumns - 1];
  }
  __device__ bool has_results() const {
    return rows > 0 && most_columns > 0;
  }
  static constexpr int kColumns = kJoined == 1 ? 1 : 2;  // phases of these
  int block, phase, i, j, group, image, row, column;     // i, j: the first of joined phases
  int images, rows, columns[kColumns], most_columns;     // that are inside
  int begin, end;                                        // boxes
};

}  // namespace tapedeck::cu::conv_gemm
