// How weights are packed for the kernels over boxes (wgmma_box.cuh): what a thread reads and where it writes
// that, for the kernel (box_packing.cuh), its host side and tests.
//
// Packed weights are [group][weight][tile of blocks][part][block][row][vector]: rows of kVectors vectors of
// channels of `from`, at v ^ (row & 7), one for each of a block's channels of `to`; a weight is a chunk of
// channels at a tap (BoxPlan::weight_of()). A thread reads `near` neighbours in memory of as many channels of
// `from` as a vector has, and so has the vectors of so many taps, or channels of `to`. Eight threads have the
// vectors of a row: they write whole lines, and read whole sectors.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/box_choice.h>
#include <tapedeck/ops/conv/box_gather.h>

namespace tapedeck::conv_gemm {

/// The weight as a plan's channels see it.
struct WeightStrides {
  WeightStrides(const ConvTranspose2dGeometry& g, bool transposed, const BoxPlan& p, Layout layout)
      : group(g.group_ci() * g.group_co() * g.h.kernel * g.w.kernel),
        kernel_h(static_cast<int>(g.h.kernel)),
        kernel_w(static_cast<int>(g.w.kernel)),
        last(layout == Layout::nhwc),
        to_is_near(transposed) {
    const int near = transposed ? p.to_channels : p.from_channels, of_near = last ? 1 : taps(),
              of_far = taps() * near;
    from = transposed ? of_far : of_near, to = transposed ? of_near : of_far, tap = last ? near : 1;
  }
  TAPEDECK_HD int taps() const { return kernel_h * kernel_w; }

  std::int64_t group;
  int from, to, tap, kernel_h, kernel_w;  // between channels of `from`, of `to`, and taps
  bool last, to_is_near;                  // whether channels are last; nearer to each other than the others
};

/// Where a chunk of channels at a tap is among packed weights (BoxPlan::weight_of()): `first`, or -1, and
/// `step` for each chunk before. The host knows them for kernels of so many taps: to find them took a warp a
/// microsecond or two.
struct WeightTaps {
  static constexpr int kMost = 128;
  WeightTaps(const BoxPlan& p, const WeightStrides& strides) : known(strides.taps() <= kMost) {
    for (int tap = 0; known && tap < strides.taps(); ++tap) {
      const auto at = [&](int chunk) {
        return p.weight_of(tap / strides.kernel_w, tap % strides.kernel_w, chunk * kVectors);
      };
      first[tap] = at(0), step[tap] = at(1) - at(0);
    }
  }
  TAPEDECK_HD int of(int tap, int chunk) const { return first[tap] + chunk * step[tap]; }

  bool known;
  int first[kMost], step[kMost];
};

/// What neighbours in memory are of.
enum class WeightOrder : std::uint8_t { taps, to, from };

struct BoxPacking {
  /// `value_bytes`: of the weight's elements, which begins at `address`; `of_tile`: blocks of a tile of
  /// channels, of which there are `all_tiles`. `are_in_order`, `parity`: BoxArguments::in_order and
  /// GatheredPieces::of_parity().
  BoxPacking(const BoxPlan& p, const WeightStrides& s, int value_bytes, std::uintptr_t address, int of_parts,
             int of_tile, int all_tiles, bool are_in_order, int parity)
      : plan(p),
        strides(s),
        taps(p, s),
        parts(of_parts),
        blocks(of_tile),
        tiles(all_tiles),
        in_order(are_in_order),
        of_parity(parity),
        order(!s.last        ? WeightOrder::taps
              : s.to_is_near ? WeightOrder::to
                             : WeightOrder::from) {
    const int padded = tiles * blocks * kBlockChannels, vector = kVectorBytes / value_bytes;
    const auto threads_of = [&](int at_once) {
      return std::int64_t{p.groups} * p.chunks * s.taps() * padded * kVectors / at_once;
    };
    const int neighbours = order == WeightOrder::taps ? s.taps()
                           : order == WeightOrder::to ? p.to_channels
                                                      : p.from_channels;
    const bool are_whole = neighbours % vector == 0 && address % kVectorBytes == 0;
    // Of few weights one at a time: there, what a thread waits for is all that counts.
    const bool are_enough = order == WeightOrder::from ? parity == 0 : threads_of(vector) >= kLeastThreads;
    near = are_whole && are_enough ? vector : 1;
    by_near = Divider((order == WeightOrder::taps ? s.taps() : padded) / results());
    by_inner = Divider(std::int64_t{s.taps()} * padded / results());
    by_kernel_w = Divider(s.kernel_w), by_chunks = Divider(p.chunks);
    threads = threads_of(results());
  }

  /// Vectors of a thread.
  TAPEDECK_HD int results() const { return order == WeightOrder::from ? 1 : near; }

  /// What a thread packs; the first of its vectors' taps, and rows of a block.
  struct Share {
    int group, chunk, v, tap, block, row;
    int channel, from;  // of `to`; the vector's first one of `from`, which perhaps do not exist
  };
  TAPEDECK_HD Share share(int thread) const {
    Share s{};
    s.v = thread % kVectors;
    const int line = thread / kVectors, outer = by_inner.divide(line), inner = by_inner.modulo(line, outer),
              far = by_near.divide(inner), near_one = by_near.modulo(inner, far) * results();
    s.group = by_chunks.divide(outer), s.chunk = by_chunks.modulo(outer, s.group);
    const int m = order == WeightOrder::taps ? far : near_one;
    s.tap = order == WeightOrder::taps ? near_one : far;
    // Rows of a block repeat its channels where these are few.
    s.block = m / kBlockChannels, s.row = m % kBlockChannels;
    s.channel = s.block * kBlockChannels + (s.row & (kBlockChannels / channel_copies(plan.to_channels) - 1));
    s.from = s.chunk * (kVectors * plan.elements) +
             (of_parity == 0 ? s.v * plan.elements : gathered_channel(s.v, 0, of_parity));
    return s;
  }
  /// Between channels of a vector.
  TAPEDECK_HD int next_from() const { return of_parity == 0 ? 1 : 2; }
  /// The element of the weight that is first. (positions_fit() keeps those that exist within 31 bits.)
  TAPEDECK_HD std::int64_t source(const Share& s) const {
    return s.group * strides.group +
           (static_cast<std::int64_t>(s.from) * strides.from +
            static_cast<std::int64_t>(s.channel) * strides.to + s.tap * strides.tap);
  }
  /// Which weight vector r is of, or -1 if no result sees it.
  TAPEDECK_HD int weight(const Share& s, int r) const {
    const int of_vector = s.tap + (order == WeightOrder::taps ? r : 0);
    if (taps.known) return taps.of(of_vector, s.chunk);
    const int kh = by_kernel_w.divide(of_vector);
    return plan.weight_of(kh, by_kernel_w.modulo(of_vector, kh), s.chunk * kVectors);
  }
  /// Where a part of it is, in vectors.
  TAPEDECK_HD std::int64_t place(const Share& s, int r, int of_weight, int part) const {
    const int of_vector = s.row + (order == WeightOrder::to ? r : 0),
              to = in_order ? of_vector : block_row(of_vector),
              block = (s.block / blocks * parts + part) * blocks + s.block % blocks;
    return (std::int64_t{s.group} * plan.weights + of_weight) * tiles * parts * blocks * kBlockChannels *
               kVectors +
           (block * kBlockChannels + to) * kVectors + (s.v ^ (to & 7));
  }

  static constexpr std::int64_t kLeastThreads = 1 << 16;
  BoxPlan plan;
  WeightStrides strides;
  WeightTaps taps;
  int parts, blocks, tiles;  // blocks: of channels, of a tile
  bool in_order;             // channels of a block
  int of_parity;             // the order of channels of `from`
  WeightOrder order;
  int near = 1;
  Divider by_near, by_inner, by_kernel_w, by_chunks;
  std::int64_t threads = 0;
};

}  // namespace tapedeck::conv_gemm
