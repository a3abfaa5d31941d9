// Packs weights for the kernels over boxes (wgmma_box.cuh), chooses among these and launches them.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/bulk_writes.cuh>
#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/wgmma_box.cuh>

namespace tapedeck::cu::conv_gemm {

/// The weight as a plan's channels see it.
struct WeightStrides {
  WeightStrides(const ConvTranspose2dGeometry& g, bool transposed, const BoxPlan& p, Layout layout)
      : group(g.group_ci() * g.group_co() * g.h.kernel * g.w.kernel),
        kernel_h(static_cast<int>(g.h.kernel)),
        kernel_w(static_cast<int>(g.w.kernel)),
        last(layout == Layout::nhwc),
        to_is_near(transposed) {
    const int taps = kernel_h * kernel_w, near = transposed ? p.to_channels : p.from_channels,
              of_near = last ? 1 : taps, of_far = taps * near;
    from = transposed ? of_far : of_near, to = transposed ? of_near : of_far, tap = last ? near : 1;
  }
  std::int64_t group;
  int from, to, tap, kernel_h, kernel_w;  // between channels of `from`, of `to`, and taps
  bool last, to_is_near;                  // whether channels are last; nearer to each other than the others
};

/// How weights are packed: a block has a chunk of channels of `from`, some of `to`, and some taps.
struct WeightTile {
  static constexpr int kSharedBytes = 32 * 1024, kMostTaps = 32;
  static constexpr int kSector = 8;  // weights that are read together, at least

  /// Blocks have nearly as many each.
  static int taps_of_block(int all, int at_once) {
    const auto tiles = ceil_div(all, kMostTaps);
    return static_cast<int>(ceil_div(ceil_div(all, tiles), at_once) * at_once);
  }

  /// `padded`: channels of `to`, in whole tiles of blocks; `at_once`: neighbours that a thread reads, taps or
  /// where these are last, channels.
  WeightTile(const BoxPlan& p, const WeightStrides& strides, int padded, int value_bytes, int at_once)
      : pitch(kVectors * p.elements + 4 / value_bytes) {
    const int all_taps = strides.kernel_h * strides.kernel_w;
    taps = taps_of_block(all_taps, strides.last ? 1 : at_once);
    const auto is_too_large = [&] { return shared_bytes(value_bytes) > kSharedBytes; };
    const auto blocks_of = [&] { return p.chunks * ceil_div(all_taps, taps) * (padded >> log_channels); };
    const auto are_few = [&] { return blocks_of() * p.groups < 2 * 132; };
    if (strides.last) {
      const int least_log = strides.to_is_near ? 2 : 0;
      while (taps > 1 && (is_too_large() || are_few())) taps = (taps + 1) / 2;
      while (log_channels > least_log && are_few()) --log_channels;
    } else {
      while (log_channels > 0 && (is_too_large() || (are_few() && taps << log_channels > kSector)))
        --log_channels;
    }
    by_taps = Divider(taps), by_reads = Divider(std::max(1, taps / at_once));
    by_kernel_w = Divider(strides.kernel_w), by_chunks = Divider(p.chunks);
    by_tiles_to = Divider(padded >> log_channels);
    blocks = blocks_of();
  }
  TAPEDECK_HD int channels() const { return 1 << log_channels; }  // of `to`
  int shared_bytes(int value_bytes) const { return channels() * taps * pitch * value_bytes; }

  int pitch;  // of a tap's channels in shared memory, so that taps meet different banks
  int taps, log_channels = 3;
  Divider by_taps, by_reads, by_kernel_w, by_chunks, by_tiles_to;
  std::int64_t blocks = 0;  // of a group
};

/// Where a chunk of channels at a tap is among packed weights (BoxPlan::weight_of()): `first`, or -1, and
/// `step` for each chunk before. The host knows them for kernels of so many taps: to find them took a warp a
/// microsecond or two.
struct WeightTaps {
  static constexpr int kMost = 64;
  WeightTaps(const BoxPlan& p, const WeightStrides& strides)
      : known(strides.kernel_h * strides.kernel_w <= kMost) {
    for (int tap = 0; known && tap < strides.kernel_h * strides.kernel_w; ++tap) {
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

/// Fills packed weights: [group][weight][tile of blocks][part][block][row][vector, swizzled]. A block reads
/// weights as they lie, a thread kNear neighbours, always the same taps or where weights have their channels
/// last, some channels, and writes whole rows of vectors. What counts here is instructions (a profile on an
/// H200: 2.5 a clock), so a block looks for the places of its taps once.
/// `of_parity`: the order of channels (gathered_channel()).
template <class Math, int kNear, bool kLast>
__global__ void __launch_bounds__(kThreads)
    pack_box_weights_kernel(const __grid_constant__ BoxPlan p, const __grid_constant__ WeightStrides strides,
                            const __grid_constant__ WeightTile t, const __grid_constant__ WeightTaps all_taps,
                            const typename Math::Value* w, int blocks, int tiles_block, bool in_order,
                            int of_parity, const unsigned* largest, uint4* packed, bool beside) {
  using T = typename Math::Element;
  using Value = typename Math::Value;
  constexpr int kParts = Math::kOperandParts;
  constexpr int kElements = kVectorBytes / sizeof(T), kFrom = kVectors * kElements;
  constexpr int kAtOnce = kNear == 1 ? 8 : 4;  // loads
  extern __shared__ uint4 memory[];
  __shared__ int weights[WeightTile::kMostTaps];
  Value* const staged = reinterpret_cast<Value*>(memory);
  const int index = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), group = blockIdx.y;
  const int rest = t.by_tiles_to.divide(index), tile_taps = t.by_chunks.divide(rest);
  const int first_m = t.by_tiles_to.modulo(index, rest) << t.log_channels,
            chunk = t.by_chunks.modulo(rest, tile_taps), first_tap = tile_taps * t.taps;
  const int taps = min(t.taps, strides.kernel_h * strides.kernel_w - first_tap);
  if (thread < taps) {
    const int tap = first_tap + thread;
    if (all_taps.known) {
      weights[thread] = all_taps.of(tap, chunk);
    } else {
      const int kh = t.by_kernel_w.divide(tap), kw = t.by_kernel_w.modulo(tap, kh);
      weights[thread] = p.weight_of(kh, kw, chunk * kVectors);
    }
  }
  begin_preparation(beside);
  float scale = 1;
  if constexpr (Math::kScaled) scale = scale_of(max(load_fresh(largest), load_fresh(largest + 1)));
  // Rows of a block repeat its channels where these are few. (positions_fit() keeps weights within 31 bits.)
  const int of_block = first_m % kBlockChannels,
            different = kBlockChannels / channel_copies(p.to_channels) - 1;
  const Value* const from = w + group * strides.group +
                            static_cast<std::int64_t>(chunk * kFrom) * strides.from +
                            static_cast<std::int64_t>(first_m - of_block) * strides.to +
                            static_cast<std::int64_t>(first_tap) * strides.tap;
  const int from_channels = p.from_channels - chunk * kFrom, to_channels = p.to_channels - first_m + of_block;
  struct Place {
    int c, m, tap;
  };
  using Near = Pack<Value, kNear>;
  const auto load = [&](const Place& at) {
    const int row = (of_block + at.m) & different;
    return at.c < from_channels && row < to_channels
               ? load_fresh(reinterpret_cast<const Near*>(from + at.c * strides.from + row * strides.to +
                                                          at.tap * strides.tap))
               : Near{};
  };
  const auto staged_at = [&](const Place& at) { return (at.m * t.taps + at.tap) * t.pitch + at.c; };
  // Reads from the places of first, first + step, ... below `count`; what is neighbours there comes `to_next`
  // apart.
  const auto stage = [&](int first, int step, int count, int to_next, const auto& place_of) {
    for (; first < count; first += kAtOnce * step) {
      Near values[kAtOnce];
      int to[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = first + k * step;
        const Place at = place_of(i);
        to[k] = i < count ? staged_at(at) : -1;
        values[k] = i < count ? load(at) : Near{};
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
        for (int e = 0; e < kNear; ++e)
          if (to[k] >= 0) staged[to[k] + e * to_next] = values[k].values[e];
    }
  };
  // The same of two channels of 16 bits at once, from the places' even ones on, as words. (On an H200 a
  // DCGAN's and a VAE's layers in bfloat16 took 0.97 to 1.01 of the time.)
  const auto stage_pairs = [&](int first, int step, int count, int to_next, const auto& place_of) {
    for (; first < count; first += kAtOnce / 2 * step) {
      Near values[kAtOnce / 2][2];
      int to[kAtOnce / 2];
#pragma unroll
      for (int k = 0; k < kAtOnce / 2; ++k) {
        const int i = first + k * step;
        const Place at = place_of(i), next{at.c + 1, at.m, at.tap};
        to[k] = i < count ? staged_at(at) : -1;
        values[k][0] = i < count ? load(at) : Near{};
        values[k][1] = i < count ? load(next) : Near{};
      }
#pragma unroll
      for (int k = 0; k < kAtOnce / 2; ++k)
#pragma unroll
        for (int e = 0; e < kNear; ++e)
          if (to[k] >= 0)
            *reinterpret_cast<Pack<Value, 2>*>(staged + to[k] + e * to_next) = {values[k][0].values[e],
                                                                                values[k][1].values[e]};
    }
  };
  if constexpr (kLast) {
    if (strides.to_is_near) {
      const int log_vectors = t.log_channels - (kNear == 4 ? 2 : 0), vectors = 1 << log_vectors;
      stage(thread, kThreads, (kFrom * taps) << log_vectors, t.taps * t.pitch, [&](int i) {
        const int line = i >> log_vectors;
        return Place{line % kFrom, (i & (vectors - 1)) * kNear, line / kFrom};
      });
    } else {
      constexpr int kVectorsOfRow = kFrom / kNear;
      stage(thread, kThreads, (kVectorsOfRow * taps) << t.log_channels, 1, [&](int i) {
        const int line = i / kVectorsOfRow;
        return Place{i % kVectorsOfRow * kNear, line & (t.channels() - 1), line >> t.log_channels};
      });
    }
  } else {
    // A line has the taps of a pair of channels.
    const int first_line = t.by_reads.divide(thread), tap = t.by_reads.modulo(thread, first_line) * kNear,
              step = t.by_reads.divide(kThreads),
              lines = first_line < step && tap < taps ? kFrom << t.log_channels : 0;
    constexpr int kChannels = sizeof(Value) == 2 ? 2 : 1, kLines = kFrom / kChannels;
    const auto place_of = [&](int line) {
      return strides.to_is_near ? Place{(line >> t.log_channels) * kChannels, line & (t.channels() - 1), tap}
                                : Place{line % kLines * kChannels, line / kLines, tap};
    };
    if constexpr (kChannels == 2) {
      stage_pairs(first_line, step, lines / 2, t.pitch, place_of);
    } else {
      stage(first_line, step, lines, t.pitch, place_of);
    }
  }
  __syncthreads();
  const std::int64_t tile_step = std::int64_t{tiles_block} * kParts * blocks * kBlockChannels * kVectors;
  packed += group * p.weights * tile_step;
  for (int i = thread; i < (t.taps * kVectors) << t.log_channels; i += kThreads) {
    const int line = i / kVectors, v = i % kVectors, of_tile = t.by_taps.divide(line),
              of_taps = t.by_taps.modulo(line, of_tile);
    if (of_taps >= taps || weights[of_taps] < 0) continue;
    Pack<T, kElements> parts[kParts];
    const int channel = of_parity == 0 ? v * kElements : gathered_channel(v, 0, of_parity),
              next = of_parity == 0 ? 1 : 2;
    const Value* const of_line = staged + line * t.pitch + channel;
    const auto set = [&](int k, Value value) {
      if constexpr (Math::kScaled) {
        T of_value[kParts];
        split_half(value, scale, of_value);
#pragma unroll
        for (int part = 0; part < kParts; ++part) parts[part].values[k] = of_value[part];
      } else {
        parts[0].values[k] = Math::prepare(value);
      }
    };
    if (sizeof(Value) == 2 && of_parity == 0) {
#pragma unroll
      for (int k = 0; k < kElements; k += 2) {
        const auto pair = *reinterpret_cast<const Pack<Value, 2>*>(of_line + k);
        set(k, pair.values[0]), set(k + 1, pair.values[1]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kElements; ++k) set(k, of_line[k * next]);
    }
    const int m = first_m + of_tile, block = m / kBlockChannels, of_rows = m % kBlockChannels,
              row = in_order ? of_rows : block_row(of_rows);
    uint4* const to = packed + weights[of_taps] * tile_step;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int of_block_rows = (block / blocks * kParts + part) * blocks + block % blocks;
      *reinterpret_cast<Pack<T, kElements>*>(to + (of_block_rows * kBlockChannels + row) * kVectors +
                                             (v ^ (row & 7))) = parts[part];
    }
  }
  end_preparation(beside);
}

template <class Math>
void pack_box_weights(const BoxArguments& call, const WeightStrides& strides, const Tensor& w, uint4* packed,
                      Preparations& preparations) {
  using Value = typename Math::Value;
  const BoxPlan& p = call.plan;
  const auto pack = [&]<int kNear, bool kLast>() {
    const WeightTile tile(p, strides, call.tiles_block * call.blocks * kBlockChannels, sizeof(Value), kNear);
    launch_kernel_with_shared("conv: pack", w.device(), pack_box_weights_kernel<Math, kNear, kLast>,
                              dim3(grid_size("conv", tile.blocks), static_cast<unsigned>(p.groups)), kThreads,
                              tile.shared_bytes(sizeof(Value)), p, strides, tile, WeightTaps(p, strides),
                              static_cast<const Value*>(w.read()), call.blocks, call.tiles_block,
                              call.in_order, call.pieces.of_parity(), call.largest_weight, packed,
                              preparations.next_is_beside());
  };
  const int taps = strides.kernel_h * strides.kernel_w, channels = static_cast<int>(w.size(1));
  const bool quads = (strides.last ? channels : taps) % 4 == 0 && is_aligned(w.read(), sizeof(Value));
  if (strides.last) {
    quads ? pack.template operator()<4, true>() : pack.template operator()<1, true>();
  } else {
    quads ? pack.template operator()<4, false>() : pack.template operator()<1, false>();
  }
}

/// Whether a build has the kernel of so many places: a sample (TapedeckCuda.cmake) has those of the fewest
/// and of the most.
constexpr bool is_compiled([[maybe_unused]] int parts, [[maybe_unused]] int joined,
                           [[maybe_unused]] int places) {
#if defined(TAPEDECK_CUDA_SAMPLE)
  return places == 64 || places == most_places(parts, joined);
#else
  return true;
#endif
}

template <class K>
void launch_box(BoxArguments& call, const BoxChoice& choice, const Tensor& to) {
  const BoxPlan& p = call.plan;
  const BoxTile& t = call.tile;
  call.tiles = static_cast<int>(grid_size("conv", choice.tiles));
  call.by_tiles = Divider(call.tiles);
  call.by_blocks = Divider(call.tiles_block);
  call.by_columns = Divider(ceil_div(p.w.most(), t.columns));
  call.by_rows = Divider(ceil_div(p.h.most(), t.rows));
  call.by_images = Divider(ceil_div(p.n, t.images));
  call.by_place = BoxPlace::Dividers(t);
  call.slices = t.slices(), call.slice = t.slice();
  call.splits = choice.splits, call.by_splits = Divider(choice.splits);
  call.box_stages = choice.box_stages, call.weight_stages = choice.weight_stages;
  call.box_bytes = choice.box_bytes;
  call.lead = choice.lead;
  const auto expect = [&](int ring, int arrivals) {
    call.arrivals[ring] = static_cast<std::uint16_t>(arrivals);
  };
  const int readers = (call.in_turns ? kWarpgroup : kConsumerThreads) / 32;
  expect(K::kFullBox, call.slots > 0 ? call.pieces.all() : call.slices), expect(K::kEmptyBox, readers);
  expect(K::kFullWeight, K::weight_shares(call)), expect(K::kEmptyWeight, readers);
  const Workspace<float> parts(
      to.device(),
      call.splits > 1 ? call.splits * choice.tiles * K::kJoined * K::kSums * kConsumerThreads : 1);
  call.parts = parts.data();
  const int shared = std::max(typename K::Memory(call).end, choice.shared_bytes) + call.gather_bytes + 1024;
  allow_shared_memory(box_kernel<K>, shared);
  const bool in_pairs = call.results == BoxResults::swapped;
  call.by_phases = Divider(std::max(1, in_pairs ? p.h.phases : p.phases()));
  const int all = multiprocessors(to.device()), most = in_pairs ? all - all % 2 : all;
  const std::int64_t blocks = std::min<std::int64_t>(most, choice.tiles * call.splits);
  const auto launch = [&] {
    launch_kernel_of_clusters("conv: boxes", to.device(), box_kernel<K>, grid_size("conv", blocks),
                              K::kThreads, shared, dim3(in_pairs ? 2 : 1), call);
  };
  launch();
  if (call.largest_is_guess) {
    call.largest_is_guess = false, call.repeats = true;
    launch();
  }
  if (call.splits > 1) {
    launch_kernel("conv: sum of parts", to.device(), add_box_parts_kernel<K>,
                  dim3(grid_size("conv", choice.tiles), K::kJoined * K::kSums / 4), kConsumerThreads, call);
  }
}

/// Whether rows of an nchw tensor are whole vectors of so many elements.
inline bool rows_are_whole(const ImageStrides& s, const Tensor& to, int elements) {
  return s.c % elements == 0 && s.n % elements == 0 && s.h % elements == 0 &&
         reinterpret_cast<std::uintptr_t>(to.raw()) %
                 (static_cast<unsigned>(elements) * size_of(to.dtype())) ==
             0;
}

/// Has a kernel make its boxes of nchw images.
inline void gather_from(BoxArguments& call, const Tensor& from, int fold, int slots, bool largest_is_guess) {
  const int bytes = static_cast<int>(size_of(from.dtype()));
  call.slots = slots, call.gather_bytes = gather_bytes(slots);
  call.largest_is_guess = largest_is_guess;
  call.pieces = GatheredPieces(call.plan, call.tile, fold, bytes);
  call.piece_bytes = call.pieces.bytes();
  call.maps[0] = piece_map(from, call.plan.groups, call.pieces);
}

/// wgmma_map() over boxes. Where images are folded, `g`, `w` and `bias` are those of folded ones, `from` and
/// `to` as they lie. `prologue`: of boxes that are not gathered, where ChannelsLast::can_apply() it.
template <class Math>
void box_map(const ConvTranspose2dGeometry& g, bool transposed, const BoxWay& way, const Tensor& from,
             const Tensor& w, const Tensor& bias, const Tensor& to, double negative_slope,
             const Prologue& prologue) {
  const BoxPlan& plan = way.plan;
  const BoxChoice& choice = way.choice;
  using T = typename Math::Value;
  constexpr int kParts = Math::kOperandParts;
  const DeviceScope scope(to.device());
  BoxArguments call{};
  call.plan = plan, call.tile = choice.tile;
  const ConvAxis* const rows = transposed ? nullptr : &g.h;
  const bool gathers = choice.gathers() && reinterpret_cast<std::uintptr_t>(from.read()) % kVectorBytes == 0;
  std::optional<Largest> largest;
  if constexpr (Math::kScaled) {
    using enum Largest::Next;
    largest.emplace(from, !gathers || may_be_sampled(plan) ? copies : reads, w, reads, prologue);
    call.largest = largest->a().words, call.largest_weight = largest->b().words;
  }
  const int fold_from = transposed ? way.fold.x : way.fold.y, fold_to = transposed ? way.fold.y : way.fold.x;
  std::optional<ChannelsLast> images;
  if (gathers) {
    gather_from(call, from, fold_from, choice.slots, largest && largest->a().is_guess);
  } else if constexpr (Math::kScaled) {
    images.emplace(from, plan.groups, rows, fold_from, kParts, largest->a(), prologue);
  } else {
    images.emplace(from, plan.groups, rows, fold_from, prologue);
  }
  if (images)
    for (int i = 0; i < plan.h.planes; ++i)
      for (int j = 0; j < plan.w.planes; ++j)
        call.maps[i * plan.w.planes + j] =
            image_map(*images, dtype_of<typename Math::Element>, plan.n, kParts * plan.groups,
                      plan.plane_h(i), plan.plane_w(j), call.tile);
  call.results = choice.results, call.staged_bytes = choice.staged_bytes;
  call.in_turns = choice.in_turns, call.halves = choice.halves(), call.half = choice.half;
  if (are_boxes(choice.results)) {
    announce_bulk_writes(to);
    const bool swaps = choice.results == BoxResults::swapped;
    call.box = ResultBox(call.tile, call.halves);
    for (int i = 0; i < plan.h.phases; ++i)
      call.maps[plan.planes() + i] = result_map(to, plan.h.to[i], plan.h.to_step, plan.h.count[i],
                                                call.tile.pitch * (swaps ? 2 : plan.joined), call.box,
                                                swaps || channel_copies(plan.to_channels) > 1 ? 1 : 2);
  }
  if (choice.results == BoxResults::pixels) {
    announce_bulk_writes(to);
    const BoxTile& t = call.tile;
    call.one_box = StoredRows::are_one_box(t, call.halves == 2, plan.h.most());
    const StoredRows stored(t, call.halves == 2, 0);
    for (int i = 0; i < plan.h.phases; ++i)
      for (int j = 0; j < plan.w.phases; ++j)
        call.maps[plan.planes() + i * plan.w.phases + j] = pixel_map(
            to, plan.groups, fold_to, {plan.h.count[i], plan.h.to[i], plan.h.to_step},
            {plan.w.count[j], plan.w.to[j], plan.w.to_step}, kPixelBytes / channel_copies(plan.to_channels),
            t.columns, call.one_box ? stored.images : 1, call.one_box ? stored.rows : 1);
  }
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.negative_slope = static_cast<float>(negative_slope);
  call.to = to.raw();
  call.to_strides = ImageStrides(to.strides());
  call.to_strides.w *= fold_to;
  if (are_folds(choice.results))
    while (1 << call.log_fold < fold_to) ++call.log_fold;
  const auto neighbours = [&](int elements) {
    const ImageStrides& s = call.to_strides;
    return s.c == 1 && plan.to_channels % elements == 0 && s.n % elements == 0 && s.h % elements == 0 &&
           s.w % elements == 0 && reinterpret_cast<std::uintptr_t>(to.raw()) % (elements * sizeof(T)) == 0;
  };
  call.vectors = neighbours(kVectorBytes / sizeof(T)), call.pairs = neighbours(2);
  if (choice.results == BoxResults::swapped)
    call.rows_are_vectors = plan.w.count[0] * 2 * sizeof(T) == kVectorBytes &&
                            rows_are_whole(call.to_strides, to, kVectorBytes / sizeof(T));
  if (are_folds(choice.results)) call.pairs = true, call.vectors = rows_are_whole(call.to_strides, to, 4);
  const WeightStrides strides(g, transposed, plan, w.layout());
  call.kernel_w = strides.kernel_w;
  if (!Math::kScaled && strides.last)
    call.weights = box_weights(plan, transposed, choice.results, reinterpret_cast<std::uintptr_t>(w.read()));
  const bool lie = call.weights != BoxWeights::packed;
  check(!lie || !gathers, "conv: weights that lie are not for boxes of nchw images");
  if (lie) call.maps[kMaxPlanes] = weight_map(w, plan.groups, kWeightRows);
  call.in_order = lie || (have_channels_last(choice.results) && plan.joined == 1 && sizeof(T) == 2);
  call.blocks = choice.blocks;
  call.log_copies = static_cast<std::int8_t>(log_channel_copies(plan.to_channels));
  call.tiles_block = static_cast<int>(ceil_div(ceil_div(plan.to_channels, kBlockChannels), call.blocks));
  std::optional<Workspace<uint4>> packed;
  const auto bytes = static_cast<std::int64_t>(packed_box_bytes(plan, call.blocks, kParts));
  if (!lie && bytes > 0) packed.emplace(to.device(), bytes / kVectorBytes);
  Preparations preparations;
  if (images) images->make(preparations, packed.has_value());  // first: blocks that pack find their places
  if (packed) {
    call.packed = reinterpret_cast<const char*>(packed->data());
    pack_box_weights<Math>(call, strides, w, packed->data(), preparations);
  }
  preparations.end();
  const auto launch = [&]<int kJoined, int kPlaces>() {
    if constexpr (kPlaces <= most_places(kParts, kJoined)) {
      if (choice.places != kPlaces) return;
      constexpr bool kCompiled = is_compiled(kParts, kJoined, kPlaces);
      check(kCompiled, "conv: TAPEDECK_CUDA_SAMPLE left out the kernel of ", kPlaces, " places");
      if constexpr (kCompiled) launch_box<BoxKernel<Math, kPlaces, kJoined>>(call, choice, to);
    }
  };
  const auto launch_any = [&]<int kJoined, int... kPlaces>(std::integer_sequence<int, kPlaces...>) {
    (launch.template operator()<kJoined, kPlaces>(), ...);
  };
  if (plan.joined == 1) {
    launch_any.template operator()<1>(BoxPlaces());
  } else {
    launch_any.template operator()<2>(JoinedPlaces());
  }
}

}  // namespace tapedeck::cu::conv_gemm
