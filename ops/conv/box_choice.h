// How a product over boxes (box_plan.h) is computed by wgmma_box.cuh: tiles, stages and splits, and about how
// long it takes. Host arithmetic, of an H100's sizes: results do not depend on the device.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <tapedeck/ops/conv/box_gather.h>
#include <tapedeck/ops/conv/box_plan.h>
#include <tapedeck/ops/conv/box_runs.h>
#include <tapedeck/ops/conv/fold.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/tiling.h>

namespace tapedeck::conv_gemm {

inline constexpr int kConsumerThreads = 256, kWarpgroup = 128;
inline constexpr int kMostStages = 8;
inline constexpr int kBlockBytes = kBlockChannels * kPixelBytes;  // of a tap's weights
// Results in shared memory, but for boxes. In nchw a warp has rows of places, one for each of 16 channels, or
// of 8 channels and pairs, of 16-bit pairs 64 results of 16 channels; with the channels last a warpgroup has
// rows of 64 channels, one for each place. Pitches are such that 32 threads meet 32 banks.
inline constexpr int kStagedPlaces = 32, kStagedPitch = 40;  // in words
inline constexpr int kPairedPitch = 72, kJoinedPitch = 80;
inline constexpr int kStagedBytes = kConsumerThreads / 32 * 16 * kStagedPitch * 4;
static_assert(8 * kJoinedPitch <= 16 * kStagedPitch && 8 * kPairedPitch <= 16 * kStagedPitch);
static_assert(16 * 128 <= 16 * kStagedPitch * 4 && 16 * kStagedPitch * 4 % 128 == 0);  // of 16-bit pairs
inline constexpr int kPlaceBytes = 16;  // of where a place's result is

/// Places of a warpgroup that kernels are compiled for, up to most_places().
using BoxPlaces = std::integer_sequence<int, 64, 96, 128, 160, 192, 208, 224, 240, 256>;
using JoinedPlaces = std::integer_sequence<int, 64, 80, 96, 112, 128, 144>;  // of each of two phases
using AllJoinedPlaces = std::integer_sequence<int, 64, 80>;                  // of each of four

/// With operands of so many parts: of two, there are registers for a tap's sums, too.
constexpr int most_places(int parts, int joined) {
  if (joined == 4) return parts == 1 ? 80 : 64;
  return parts == 1 ? (joined == 1 ? 256 : 144) : (joined == 1 ? 192 : 128);
}

/// Whether kernels with so many places make boxes of nchw images: the largest have no registers for that.
constexpr bool places_can_gather(int parts, int joined, int places) {
  const int sums = places / 2 * (joined + parts - 1);
  return sums < (parts == 1 ? 144 : 192);
}

/// Whether kernels with so many places of one phase can swap results of so many bytes (BoxResults::swapped):
/// the largest have no registers for that.
constexpr bool places_can_swap(int places, int value_bytes) {
  return places <= (value_bytes == 2 ? 192 : 160);
}

/// What it takes to write a result of one phase of columns, between those of others.
inline constexpr double kGapClocks = 0.35;
/// What it takes to write a part of a channel's row that begins and ends at sectors of memory, and one that
/// does not, of values of 4 and of 2 bytes: another tile writes the rest of these sectors. (Fitted to 12
/// layers in three precisions, timed on an H200 with tiles of 16 to 258 columns: 128 images of 64 to 64
/// channels of 256 x 256, 3x3, in bfloat16 took 3.0 ms with 26 columns, 1.9 with 32.)
inline constexpr double kPartClocks = 4, kCutPartClocks = 16, kCutHalvesClocks = 10;

/// What is written at once: vectors of channels, or with the channels last boxes of pixels, too; in nchw
/// single results of rows, pairs that are neighbours in a row, or boxes; of folded columns (fold.h) what a
/// thread has of neighbours, or of two that are not aligned to more, pairs. Swapped are boxes of both phases
/// of columns where results of nchw step over these: two thread blocks have a phase each, and swap a half of
/// their channels. Runs are whole pieces of channels: of tiles that have all phases and whole rows.
enum class BoxResults { channels, pixels, rows, pairs, boxes, folds, folded_pairs, swapped, runs };
constexpr bool have_channels_last(BoxResults results) {
  return results == BoxResults::channels || results == BoxResults::pixels;
}
/// Whether the tensor memory accelerator writes boxes of rows.
TAPEDECK_HD constexpr bool are_boxes(BoxResults results) {
  return results == BoxResults::boxes || results == BoxResults::swapped;
}
constexpr bool are_folds(BoxResults results) {
  return results == BoxResults::folds || results == BoxResults::folded_pairs;
}
/// Of a table of places, which boxes of pixels do without. (So do boxes of nchw; but tiles that take that
/// room, too, leave less for weights.)
TAPEDECK_HD constexpr int places_bytes(BoxResults results, int places) {
  return results == BoxResults::pixels ? 0 : 2 * places * kPlaceBytes;
}

/// How weights come to shared memory: packed; or, where they have their channels last, as they lie, rows of
/// `to` with the channels of `from`, or rows of `from` with the channels of `to`.
enum class BoxWeights { packed, rows_of_to, rows_of_from };

/// How weights are read that have their channels last: if vectors of them begin at whole vectors, blocks have
/// no copies, and results their channels last, too. Products of 16 bits can be of transposed rows.
inline BoxWeights box_weights(const BoxPlan& p, bool transposed, BoxResults results, std::uintptr_t address) {
  const int neighbours = transposed ? p.to_channels : p.from_channels;
  if (!have_channels_last(results) || p.joined() != 1 || channel_copies(p.to_channels) != 1 ||
      neighbours % p.elements != 0 || address % kVectorBytes != 0)
    return BoxWeights::packed;
  if (!transposed) return BoxWeights::rows_of_to;
  return p.elements == 8 ? BoxWeights::rows_of_from : BoxWeights::packed;
}
inline constexpr int kWeightRows = kBlockChannels / 2;  // of a block, that are brought at once as they lie

/// What it takes to add the sums of splits: another kernel, and what is written or read of them in a clock.
/// (Fitted to 397 layers' ways, timed on an H200: with 20,000 clocks and nothing for bytes, which was a
/// guess, hardly anything was split, and these took 1.04 times as long, with channels last 1.1.) Boxes that
/// the kernel makes are left to that guess: with less, single layers took 1.5 times as long.
inline constexpr double kSumClocks = 7000, kSumBytes = 2800, kGatheredSumClocks = 20000;

/// How a plan is computed. `places`: of each phase in a tile.
struct BoxChoice {
  int places = 0, blocks = 1, box_stages = 0, weight_stages = 0, lead = 0, splits = 1;
  int box_bytes = 0, shared_bytes = 0;  // of a part in a stage; that boxes are read from
  int staged_bytes = kStagedBytes;      // of results
  bool in_turns = false;                // warpgroups have a tile each; else halves of it, or of its channels
  int slots = 0;  // of pieces of nchw images, of which the kernel makes boxes; 0: these are of a copy
  int half = 0;   // place where the second half of the tile begins, if there are two
  BoxTile tile;
  BoxResults results = BoxResults::channels;
  std::int64_t tiles = 0;
  double clocks = 0;                   // an estimate of the time
  double multiplied = 0, brought = 0;  // of the time, if one of these were all that it takes

  bool gathers() const { return slots > 0; }
  /// Of a tile's places, that warpgroups have.
  int halves() const { return blocks == 1 && !in_turns ? 2 : 1; }
};

inline constexpr int kMostSharedBytes = 225 * 1024;  // and 1024 to align, and barriers

/// Of the packed weights of a plan.
inline double packed_box_bytes(const BoxPlan& p, int blocks, int parts = 1) {
  const double all =
      static_cast<double>((p.to_channels + kBlockChannels * blocks - 1) / (kBlockChannels * blocks));
  return all * blocks * p.groups * p.weights * parts * kBlockBytes;
}
inline constexpr double kMostPackedBytes = 1 << 30;  // of memory for them
/// About what it takes to pack them.
inline double packing_clocks(const BoxPlan& p, int blocks, int parts) {
  return 4000 + packed_box_bytes(p, blocks, parts) / 280;
}

/// Bytes of a warpgroup's results that are written as boxes of pixels: 16-bit channels of a block without its
/// copies, of each place.
constexpr int staged_pixel_bytes(const BoxPlan& p, int places) {
  return (places * (kPixelBytes / channel_copies(p.to_channels)) + 1023) / 1024 * 1024;
}
/// Whether there can be such boxes: a map for each phase, beside those of planes and of weights.
inline bool pixels_fit(const BoxPlan& p, int value_bytes) {
  return value_bytes == 2 && p.joined() == 1 && p.to_channels % 8 == 0 &&
         p.planes() + p.phases() <= kMaxPlanes;
}

/// Bytes of a warp's results that are written as a box: of 16 channels, or of copies of these every second
/// one.
inline int staged_box_bytes(const BoxPlan& p, const ResultBox& box, int value_bytes) {
  return (channel_copies(p.to_channels) == 1 ? 16 : 8) * box.places * p.joined() * value_bytes;
}

/// The same of results that are swapped, of every second channel: they come as what 32 threads have of these,
/// before they are put in order.
inline int staged_swap_bytes(const ResultBox& box, int places, int value_bytes) {
  return 8 * 2 * std::max(box.places, places / 2) * value_bytes;
}

/// Whether boxes of results have whole pairs of channels, and of a warp's none of another group.
inline bool have_whole_pairs(const BoxPlan& p) {
  return p.to_channels % 2 == 0 && (p.to_channels % 16 == 0 || p.groups == 1);
}
/// Whether two blocks can swap results of a plan.
inline bool can_swap(const BoxPlan& p) {
  return p.has_twin_columns() && channel_copies(p.to_channels) == 1 && have_whole_pairs(p);
}

/// Whether warpgroups may have tiles in turns. What it is slow for is left out: in nchw joined phases (1.3
/// times as long for a DCGAN's layer), boxes of results that are not swapped, and few channels (1.05 times
/// for 32).
inline bool can_take_turns(const BoxPlan& p, int parts, BoxResults results) {
  if (parts > 1 || p.joined() > 1) return false;
  return have_channels_last(results) || (results != BoxResults::boxes && channel_copies(p.to_channels) == 1);
}

/// With tiles of `places` for a warpgroup and `blocks` of channels, of operands of `parts`; no places if it
/// does not fit. `value_bytes`: of a result in nchw. `in_turns`: of one block.
inline BoxChoice box_choice(const BoxPlan& p, int places, int blocks, int parts, BoxResults results,
                            int value_bytes = 4, bool in_turns = false, int slots = 0) {
  BoxChoice c;
  c.blocks = blocks, c.in_turns = in_turns, c.slots = slots;
  const int halves = c.halves(), weight_bytes = parts * blocks * kBlockBytes;
  if (results == BoxResults::pixels) c.staged_bytes = 2 * staged_pixel_bytes(p, places);
  const auto left_beside = [&](int staged_bytes) {
    return kMostSharedBytes - staged_bytes - places_bytes(results, places) - gather_bytes(slots);
  };
  const auto most_pixels = [&](int staged_bytes) {
    return (left_beside(staged_bytes) - 2 * weight_bytes) / (2 * parts * kPixelBytes) / 8 * 8;
  };
  int steps = 0;
  for (int k = 0; k < p.chunks; ++k) steps += p.steps(k);
  const double taken = steps * p.taken();
  // Runs: by the times that runs_pay() names.
  const bool runs = results == BoxResults::runs;
  const int of_place = results == BoxResults::swapped  ? 12
                       : runs                          ? (parts == 1 ? 200 : 130)
                       : results == BoxResults::boxes  ? 28 * p.joined()
                       : p.joined() == 2               ? 60
                       : results == BoxResults::rows   ? 10
                       : results == BoxResults::pixels ? 2
                       : are_folds(results)            ? 12
                                                       : 6;
  // Rows of one phase of columns have gaps: no sector is written whole.
  const bool swaps = results == BoxResults::swapped;
  const int together = swaps ? 2 : p.joined_w;  // phases of columns
  const bool gaps = !have_channels_last(results) && p.w.to_step > together;
  PartsOfRows parts_of_rows;
  if (!have_channels_last(results) && !runs) {
    const int folded = are_folds(results) ? p.folded : 1, of_column = value_bytes * together * folded,
              channels = std::min(p.to_channels, kBlockChannels * blocks) / folded;
    const bool begins_whole = !gaps && p.w.most() * of_column % kSectorBytes == 0;
    // Joined phases are compared with phases that are not, and with gaps, of which this is not known.
    const int at_once = gaps || together == 2 || results == BoxResults::folds ? 0
                        : results == BoxResults::pairs                        ? 64
                                                                              : 32;
    parts_of_rows = {begins_whole ? kSectorBytes / of_column : p.w.most(), channels * kPartClocks,
                     channels * (value_bytes == 2 ? kCutHalvesClocks : kCutPartClocks),
                     begins_whole ? 0 : at_once, places};
    if (have_cut_rows(p, value_bytes)) parts_of_rows.of_row = parts_of_rows.of_other;
  }
  // What a tile's place takes, of which each of two warpgroups has one at a time.
  const double of_products = static_cast<double>(p.h.taps * p.w.taps) / p.phases() * taken *
                             (parts == 1 ? 1 : 3) / (in_turns ? 2 : 1),
               of_places = (1.2 * of_products + of_place) / halves;
  if (are_boxes(results) || runs) {
    // Of as many rows or images as leave room for boxes to read.
    const int unit = runs ? 2 : std::max(1, 16 / (together * value_bytes));
    // Few images are a tile each: two would leave multiprocessors without one.
    const int most_images =
        runs && std::int64_t{p.n} * p.groups * count(count(p.to_channels, kBlockChannels), blocks) <= 132
            ? 1
            : kMostOfBox;
    for (int most = most_pixels(0); most > 0; most -= 32) {
      c.tile = box_tile_of_halves(p, places, halves, most, unit, most_images);
      if (c.tile.rows == 0 || c.tile.pitch * together > kMostOfBox) return c;
      const ResultBox box(c.tile, halves);
      c.half = box.places;
      c.staged_bytes = kConsumerThreads / 32 *
                       (swaps  ? staged_swap_bytes(box, places, value_bytes)
                        : runs ? ResultRuns(p, box, value_bytes).staged() * value_bytes
                               : staged_box_bytes(p, box, value_bytes));
      if (c.tile.pixels() <= most_pixels(c.staged_bytes)) break;
      c.tile.rows = 0;
    }
  } else if (results == BoxResults::pixels) {
    // A row begins at a multiple of 128 bytes.
    c.tile = box_tile(p, places, most_pixels(c.staged_bytes), false, halves, channel_copies(p.to_channels));
    c.half = first_half(c.tile);
  } else {
    const bool even = results == BoxResults::folds || (results == BoxResults::pairs && p.joined() == 1);
    if (results == BoxResults::folds) c.staged_bytes = 0;
    c.tile = box_tile(p, places * halves, most_pixels(c.staged_bytes), even, 1, 1, parts_of_rows, of_places);
    c.half = places;
  }
  if (c.tile.rows == 0) return c;
  const std::int64_t channel_tiles = count(count(p.to_channels, kBlockChannels), blocks);
  const int all = (halves - 1) * c.half + places, left = left_beside(c.staged_bytes);
  c.results = results;
  const BoxTile& t = c.tile;
  const int part_bytes = (t.pixels() + 7) / 8 * 1024, box_bytes = parts * part_bytes;
  c.weight_stages = std::min(4, (left - 2 * box_bytes) / weight_bytes);
  c.box_stages = std::min(4, (left - c.weight_stages * weight_bytes) / box_bytes);
  // Places beyond a box's last are read, too: of the last box beyond its end.
  const auto read = [&](int stages) {
    return stages * box_bytes - part_bytes + (all + p.h.halo() * t.row_pixels() + p.w.halo()) * kPixelBytes;
  };
  while (c.box_stages > 1 && read(c.box_stages) > kMostSharedBytes - gather_bytes(slots)) --c.box_stages;
  // Where each warp makes every second box alone, it makes all boxes of a stage, or none: else in turns it
  // could take a stage for left that was left once less.
  if (slots > 0 && in_turns && c.box_stages == 3 &&
      GatheredPieces(p, t, p.folded_from, value_bytes).all() == 1)
    c.box_stages = 2;
  // A box is left when the next one's first products are on their way.
  if (c.box_stages < 2 || c.weight_stages < 2) return c;
  // Results as boxes take the room of weights, without which a warpgroup cannot lead. (Who swaps waits
  // anyway.)
  if (results == BoxResults::boxes && c.weight_stages < 4) return c;
  c.box_bytes = part_bytes;
  c.places = places;
  c.shared_bytes = read(c.box_stages);
  c.weight_stages = std::min(kMostStages, (left - c.box_stages * box_bytes) / weight_bytes);

  c.tiles = channel_tiles * p.groups * p.phases() * count(p.n, t.images) * count(p.h.most(), t.rows) *
            count(p.w.most(), t.columns);
  // Clocks of the tiles of all phases at a place: tensor cores take places / 2 for a step of a warpgroup, and
  // shared memory places / 4 + 16; or what is brought; then results are written.
  int taps = 0, boxes = 0, least_taps = 1 << 20;
  for (int phase = 0; phase < p.phases(); ++phase) {
    const int of_phase = p.boxes(phase) / std::max(1, p.chunks);
    BoxPlan::Box box = p.box_of(phase, 0);
    for (int k = 0; k < of_phase; ++k) {
      const int of_box = p.taps_of_box(box);
      taps += of_box, least_taps = std::min(least_taps, of_box);
      box.chunk = p.chunks - 1;
      p.advance(box);
    }
    boxes += of_phase * p.chunks;
  }
  boxes = std::max(boxes, p.phases() * p.chunks);
  // No warpgroup may wait for a stage that the other one has not begun with. Of a block's only tile nothing
  // is multiplied while results are written, so there a lead is time in which one waits. (With one tap layers
  // of a DCGAN and a VAE took 0.92 to 1 of the time on an H200.)
  c.lead = in_turns ? 0 : c.tiles <= 132 ? 1 : std::min(c.weight_stages, c.box_stages * least_taps);
  // Products of half as many places at once, as joined phases have, take longer than half.
  const double of_joined = p.joined() == 1 ? 1 : parts == 1 ? 1.2 : 1.05;
  const double step = 2 * std::max(places / 2.0, places / 4.0 + 16) * of_joined;
  // Products of two parts take three steps, and their sums are added by one warpgroup while the other one
  // multiplies, but for what both wait.
  const double multiplied =
      parts == 1 ? taps * (taken * step + p.chunks * 60) : taps * (taken * 3 * step + p.chunks * 200);
  constexpr double kRefillClocks = 1000, kStoreClocks = 100;
  const double pixels_brought =
      slots > 0 ? gather_clocks(GatheredPieces(p, t, p.folded_from, value_bytes), parts, value_bytes, slots,
                                tiles_at_border(p.w, p.from_w, count(p.w.most(), t.columns)))
                : parts * t.pixels() * kPixelBytes / kBroughtBytes;
  const double brought =
      boxes * pixels_brought + static_cast<double>(taps) * p.chunks * weight_bytes / kBroughtBytes;
  // Of a half: each image's row is a store, of one of four warps, or all are one.
  const StoredRows stored(t, halves == 2, 0);
  const int stores = results != BoxResults::pixels                         ? 0
                     : StoredRows::are_one_box(t, halves == 2, p.h.most()) ? 1
                                                                           : stored.images * stored.rows;
  const double of_gaps = gaps ? kGapClocks * all * kBlockChannels * blocks : 0,
               written = (places * of_place + of_gaps) / (runs ? std::min(2, channel_copies(p.to_channels))
                                                               : channel_copies(p.to_channels)) +
                         stores * kStoreClocks,
               parted = parts_of_rows.of(t, p.w.most());
  // A stage of weights, or a box, is brought again when both warpgroups have left it, which takes a latency,
  // of boxes twice as long as of weights, and its bytes. While one warpgroup writes, the other one has what
  // is in stages to multiply: with less it waits. (Fitted, as kStoreClocks and 0.9 for few tiles in turns
  // below, to 9,659 timings of ways of 115 layers on an H200, of more ways than cuda_conv_bench --candidates
  // tries: what seems to be fastest of a layer's ways takes 1.037 times as long as the fastest, where without
  // it took 1.046.)
  const auto refilled_of = [&](double tap) {
    const double steps_of_weights = taps * p.chunks,
                 of_weights = steps_of_weights * (tap + kRefillClocks) / c.weight_stages;
    if (slots > 0) return of_weights;  // of kernels that gather, none of these was timed
    return std::max(of_weights + steps_of_weights * weight_bytes / kBroughtBytes / c.weight_stages,
                    (steps_of_weights * tap + boxes * (2 * kRefillClocks + pixels_brought)) / c.box_stages);
  };
  const double tap = step / 2 * steps / std::max(1, p.chunks) * (parts == 1 ? 1 : 3),
               refilled = refilled_of(2 * tap), alone = 600 + std::min(written, 6.0 * places),
               others = parts == 1 ? 600 + std::max(0.0, alone - (c.weight_stages - 2) * tap) : 1200;
  // Small layers take 0 to 3 us longer with boxes of pixels, most about one (an H100; why, was not found
  // out).
  const double packing = packing_clocks(p, blocks, parts) + (results == BoxResults::pixels ? 1800 : 0);
  // Pairs of blocks that swap results wait for each other while nothing is multiplied, but after the first
  // tile for more than that. (By the ways of DCGANs' layers on an H200, which took 1,000 to 4,500 clocks a
  // tile more than others that seemed to take as long.)
  constexpr double kSwapClocks = 4000;
  const double swapped = swaps ? kSwapClocks * (static_cast<double>(count(c.tiles, 132)) - 1) : 0;
  // In nchw bands of rows with a box for each tap are slower than this says: up to 1.3 times, by the same
  // measurements.
  const bool bands = t.rows < p.h.most() && !have_channels_last(results);
  const double of_taps = bands && p.split == BoxSplit::taps ? 1.2 : 1;
  const double turns = static_cast<double>(count(c.tiles, 132)) / p.phases();
  c.multiplied = turns * multiplied / (in_turns ? 2 : 1), c.brought = turns * brought;
  if (in_turns) {
    // One warpgroup multiplies while the other one writes, which takes it as long as it takes both (an
    // H200's profile: 50 clocks a place of nchw). Fitted to layers that were timed both ways: it is slower
    // than what is counted in nchw, where both could share a box, and where mostly both write, and faster
    // with few tiles.
    const double of_place_alone = results == BoxResults::channels ? 20
                                  : results == BoxResults::pixels ? 10
                                  : results == BoxResults::folds  ? 20
                                                                  : 50,
                 written_alone =
                     written + places * (of_place_alone - of_place) / channel_copies(p.to_channels),
                 multiplied_alone = taps * (taken * step / 2 + p.chunks * 50) / p.phases(),
                 refilled_alone = refilled_of(tap) / p.phases(),
                 turn = std::max({multiplied_alone, brought / p.phases(), refilled_alone,
                                  (multiplied_alone + written_alone + 600) / 2}),
                 missed = (have_channels_last(results) ? 1 : 1.05) * (c.tiles <= 132 ? 0.9 : 1) *
                          (p.to_channels > kBlockChannels ? 1.05 : 1) *
                          (written_alone > 1.5 * multiplied_alone ? 1.08 : 1);
    c.clocks = static_cast<double>(count(c.tiles, 132)) * (missed * of_taps * 1.1 * turn + parted) +
               written_alone + 600 + packing + swapped;
    return c;
  }
  const double products = of_taps * 1.2 * std::max({multiplied, brought, refilled}) / p.phases();
  // Tiles that leave half of the multiprocessors without work are split, into parts of at least eight taps.
  // (Whole ones took 1.05 to 1.1 times as long as tiles in turns that seemed to be slower.)
  const std::int64_t of_tile = std::max(1, boxes / p.phases()),
                     most = std::min<std::int64_t>({of_tile, taps * p.chunks / p.phases() / 8,
                                                    132 / std::max<std::int64_t>(1, c.tiles),
                                                    swaps || runs ? 1 : 132});
  c.clocks = most > 1 ? std::numeric_limits<double>::infinity()
                      : static_cast<double>(count(c.tiles, 132)) * (products + written + parted + others) +
                            packing + swapped;
  for (int splits = 2; splits <= most; ++splits) {
    const double part = static_cast<double>(count(of_tile, splits)) / static_cast<double>(of_tile),
                 bytes =
                     4.0 * places * p.joined() * kConsumerThreads / 2 * static_cast<double>(c.tiles) * splits,
                 added = (slots > 0 ? kGatheredSumClocks : kSumClocks) + 2 * bytes / kSumBytes +
                         of_gaps / channel_copies(p.to_channels) * static_cast<double>(c.tiles) / 132,
                 clocks = products * part + others + added + packing;
    if (clocks < c.clocks) c.splits = splits, c.clocks = clocks;
  }
  c.multiplied /= c.splits, c.brought /= c.splits;
  return c;
}

/// A plan and how it is computed; no places if there is no way.
struct BoxWay {
  BoxPlan plan;
  BoxChoice choice;
  Fold fold;  // of the images that the plan is of

  /// What tells it from other ways of a call.
  ConvTiling tiling() const {
    return {fold.x,
            fold.y,
            static_cast<int>(plan.split),
            plan.joined(),
            static_cast<int>(choice.results),
            choice.places,
            choice.blocks,
            choice.in_turns ? 1 : 0,
            choice.slots};
  }
};

/// Calls f with all choices of a plan. `gathers`: those of kernels that make their boxes.
template <class F>
void for_box_choices(const BoxPlan& p, int parts, BoxResults results, int value_bytes, bool gathers,
                     const F& f) {
  if (p.planes() > kMaxPlanes || packed_box_bytes(p, 2, parts) > kMostPackedBytes) return;
  const auto offer = [&](int places) {
    if (places > most_places(parts, p.joined()) ||
        (gathers && !places_can_gather(parts, p.joined(), places)) ||
        (results == BoxResults::swapped && !places_can_swap(places, value_bytes)))
      return;
    const auto offer_slots = [&](int blocks, bool in_turns, int slots) {
      const BoxChoice c = box_choice(p, places, blocks, parts, results, value_bytes, in_turns, slots);
      if (c.places > 0) f(c);
    };
    const auto offer_blocks = [&](int blocks, bool in_turns) {
      if (!gathers) return offer_slots(blocks, in_turns, 0);
      for (const int slots : kSlots) offer_slots(blocks, in_turns, slots);
    };
    offer_blocks(1, false);
    if (p.to_channels > kBlockChannels) offer_blocks(2, false);
    if (can_take_turns(p, parts, results)) offer_blocks(1, true);
  };
  const auto offer_all = [&]<int... kPlaces>(std::integer_sequence<int, kPlaces...>) {
    (offer(kPlaces), ...);
  };
  if (p.joined() == 1) {
    offer_all(BoxPlaces());
  } else if (p.joined() == 2) {
    offer_all(JoinedPlaces());
  } else {
    offer_all(AllJoinedPlaces());
  }
}

/// The choice of least clocks.
inline BoxChoice best_box_choice(const BoxPlan& p, int parts, BoxResults results, int value_bytes,
                                 bool gathers = false) {
  BoxChoice best;
  for_box_choices(p, parts, results, value_bytes, gathers, [&](const BoxChoice& c) {
    // The same tile in more places is more to multiply, which the estimate may not see.
    const BoxTile &t = c.tile, &b = best.tile;
    const bool wastes = results == BoxResults::pixels && best.places > 0 && c.blocks == best.blocks &&
                        c.in_turns == best.in_turns && t.images == b.images && t.rows == b.rows &&
                        t.columns == b.columns;
    if (!wastes && (best.places == 0 || c.clocks < best.clocks)) best = c;
  });
  return best;
}

/// Calls f with all plans, and what is written at once of their results. `results`: the most that can be, of
/// so many bytes each. `fold`: of g, if it is of folded images. `gathers`: plans whose kernels make their
/// boxes.
template <class F>
void for_box_plans(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes, BoxResults results,
                   int value_bytes, const Fold& fold, bool gathers, const F& f) {
  const auto offer = [&](const BoxPlan& plan, BoxResults of_way) {
    if (!gathers || can_gather(plan, plan.folded_from, value_bytes)) f(plan, of_way);
  };
  const auto offer_narrow = [&](const BoxPlan& plan) {
    if (are_folds(results)) {
      // Two places are neighbours in memory (of images one column wide phases of results are not).
      if (plan.w.to_step == 1) offer(plan, results);
      return;
    }
    offer(plan, have_channels_last(results) ? BoxResults::channels : BoxResults::rows);
    if (results == BoxResults::boxes && !gathers && can_swap(plan)) offer(plan, BoxResults::swapped);
    if (results == BoxResults::pixels && pixels_fit(plan, value_bytes)) offer(plan, results);
  };
  const auto offer_wide = [&](const BoxPlan& wide) {
    if (results != BoxResults::pairs && results != BoxResults::boxes) return;
    offer(wide, BoxResults::pairs);
    if (results == BoxResults::boxes && have_whole_pairs(wide)) offer(wide, results);
  };
  for (const BoxSplit split : {BoxSplit::none, BoxSplit::columns, BoxSplit::taps}) {
    BoxPlan plan(g, transposed, element_bytes, BoxJoin::none, split);
    if (plan.split != split) continue;
    plan.narrow(fold, transposed);
    offer_narrow(plan);
    if (plan.w.to_step == 1) offer_wide(plan);
    if (split == BoxSplit::none && plan.w.phases == 2)
      offer_wide(BoxPlan(g, transposed, element_bytes, BoxJoin::columns));
  }
  if (!have_channels_last(results) && !fold.exists()) {
    const BoxPlan plan(g, transposed, element_bytes, BoxJoin::all);
    if (ResultRuns::exist(plan)) offer(plan, BoxResults::runs);
  }
}

/// The best way of these plans.
inline BoxWay best_box_way(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes, int parts,
                           BoxResults results, int value_bytes, const Fold& fold = {}, bool gathers = false) {
  BoxWay best;
  best.fold = fold;
  for_box_plans(g, transposed, element_bytes, results, value_bytes, fold, gathers,
                [&](const BoxPlan& plan, BoxResults of_way) {
                  if (of_way == BoxResults::runs && !runs_pay(plan, value_bytes)) return;
                  const BoxChoice choice = best_box_choice(plan, parts, of_way, value_bytes, gathers);
                  if (choice.places > 0 && (best.choice.places == 0 || choice.clocks < best.choice.clocks))
                    best = {plan, choice, fold};
                });
  return best;
}

/// Of a kernel that prepares operands: it waits for the one before. (Fitted to 354 pairs of a layer and a
/// precision, timed folded and not on an H200: what is chosen takes 1.02 times as long as the faster one.)
inline constexpr double kKernelClocks = 5000;

/// Calls f with the folds of a call, its folded geometry, and what is written at once of its results.
template <class F>
void for_box_folds(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes, int parts,
                   BoxResults results, const F& f) {
  for_folds(g, element_bytes, [&](const Fold& fold) {
    const int of_results = transposed ? fold.y : fold.x;
    BoxResults of_fold = results;
    if (!have_channels_last(results) && of_results > 1) {
      // They begin anywhere; or what is folded fills more than a block (a DCGAN's layer of 128 to 64 channels
      // took 1.3 times as long).
      const std::int64_t channels = (transposed ? g.co : g.ci) * of_results;
      if (results == BoxResults::rows || (channels > kBlockChannels && (parts == 1 || fold.x == 1))) return;
      of_fold =
          results == BoxResults::pairs && of_results == 2 ? BoxResults::folded_pairs : BoxResults::folds;
    }
    f(fold, fold.of(g), of_fold);
  });
}

/// Whether weights of a way are packed by a kernel.
inline bool packs_weights(const BoxWay& way, bool transposed, int element_bytes, int value_bytes) {
  return element_bytes != value_bytes ||
         box_weights(way.plan, transposed, way.choice.results, 0) == BoxWeights::packed;
}
/// What kernels take that only ways of folded images need. `packs`: whether unfolded ones pack weights, too.
inline double folding_clocks(const BoxWay& way, bool transposed, int element_bytes, int value_bytes,
                             BoxResults results, bool gathers, bool packs) {
  // Weights are folded, with their channels last, and packed where they could lie; where only what is read is
  // folded, in nchw, its copy takes longer.
  const bool by_copy =
      !have_channels_last(results) && (transposed ? way.fold.y : way.fold.x) == 1 && !gathers;
  return kKernelClocks *
         ((packs ? 0 : 1) + (packs_weights(way, transposed, element_bytes, value_bytes) ? 1 : 0) +
          (by_copy ? 1 : 0));
}

/// The best way, of folded images where that is faster.
inline BoxWay best_folded_box_way(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes,
                                  int parts, BoxResults results, int value_bytes, bool gathers = false) {
  BoxWay best = best_box_way(g, transposed, element_bytes, parts, results, value_bytes, {}, gathers);
  const bool packs = best.choice.places == 0 || packs_weights(best, transposed, element_bytes, value_bytes);
  for_box_folds(g, transposed, element_bytes, parts, results,
                [&](const Fold& fold, const ConvTranspose2dGeometry& folded, BoxResults of_fold) {
                  BoxWay way = best_box_way(folded, transposed, element_bytes, parts, of_fold, value_bytes,
                                            fold, gathers);
                  if (way.choice.places == 0) return;
                  way.choice.clocks +=
                      folding_clocks(way, transposed, element_bytes, value_bytes, results, gathers, packs);
                  if (best.choice.places == 0 || way.choice.clocks < best.choice.clocks) best = way;
                });
  return best;
}

/// All ways that best_folded_box_way() compares, or those of them that may have a tiling, without what
/// folding takes.
inline std::vector<BoxWay> box_ways(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes,
                                    int parts, BoxResults results, int value_bytes, bool gathers,
                                    const ConvTiling& tiling = {}) {
  std::vector<BoxWay> ways;
  bool packs = false;
  if (!tiling.exists()) {
    const BoxWay unfolded =
        best_box_way(g, transposed, element_bytes, parts, results, value_bytes, {}, gathers);
    packs = unfolded.choice.places == 0 || packs_weights(unfolded, transposed, element_bytes, value_bytes);
  }
  const auto add = [&](const ConvTranspose2dGeometry& of, BoxResults most, const Fold& fold) {
    if (tiling.exists() && (tiling[0] != fold.x || tiling[1] != fold.y)) return;
    for_box_plans(
        of, transposed, element_bytes, most, value_bytes, fold, gathers,
        [&](const BoxPlan& plan, BoxResults of_way) {
          if (tiling.exists() && (tiling[2] != static_cast<int>(plan.split) || tiling[3] != plan.joined()))
            return;
          for_box_choices(plan, parts, of_way, value_bytes, gathers, [&](const BoxChoice& choice) {
            BoxWay& way = ways.emplace_back(BoxWay{plan, choice, fold});
            if (fold.exists() && !tiling.exists())
              way.choice.clocks +=
                  folding_clocks(way, transposed, element_bytes, value_bytes, results, gathers, packs);
          });
        });
  };
  add(g, results, {});
  for_box_folds(g, transposed, element_bytes, parts, results,
                [&](const Fold& fold, const ConvTranspose2dGeometry& folded, BoxResults of_fold) {
                  add(folded, of_fold, fold);
                });
  return ways;
}

/// best_folded_box_way(), which takes microseconds; or the way of a tiling, or none if there is no such way.
inline BoxWay known_box_way(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes, int parts,
                            BoxResults results, int value_bytes, bool gathers = false,
                            const ConvTiling& tiling = {}) {
  const auto [a, b] = tiling.code();
  const ConvQuestion question(g, transposed, element_bytes, parts, results, value_bytes, gathers, a, b);
  return remembered(question, [&] {
    if (!tiling.exists())
      return best_folded_box_way(g, transposed, element_bytes, parts, results, value_bytes, gathers);
    for (const BoxWay& way :
         box_ways(g, transposed, element_bytes, parts, results, value_bytes, gathers, tiling))
      if (way.tiling() == tiling) return way;
    return BoxWay();
  });
}

}  // namespace tapedeck::conv_gemm
