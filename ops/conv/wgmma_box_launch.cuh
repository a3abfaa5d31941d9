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

/// The row-major weight as a plan's channels see it.
struct WeightStrides {
  std::int64_t group;
  int from, to, kernel_h, kernel_w;  // between channels of `from`, of `to`; taps are neighbours
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

  /// `padded`: channels of `to`, in whole tiles of blocks; `at_once`: taps that a thread reads.
  WeightTile(const BoxPlan& p, const WeightStrides& strides, int padded, int value_bytes, int at_once)
      : pitch(kVectors * p.elements + 4 / value_bytes),
        taps(taps_of_block(strides.kernel_h * strides.kernel_w, at_once)),
        by_taps(taps),
        by_reads(taps / at_once),
        by_kernel_w(strides.kernel_w),
        by_chunks(p.chunks),
        to_is_near(strides.to < strides.from) {
    const std::int64_t tiles_taps = ceil_div(strides.kernel_h * strides.kernel_w, taps);
    const auto blocks_of = [&] { return p.chunks * tiles_taps * (padded >> log_channels); };
    const auto leaves_idle = [&] {
      return blocks_of() * p.groups < 2 * 132 && taps << log_channels > kSector;
    };
    while (log_channels > 0 && (shared_bytes(value_bytes) > kSharedBytes || leaves_idle())) --log_channels;
    by_tiles_to = Divider(padded >> log_channels);
    blocks = blocks_of();
  }
  TAPEDECK_HD int channels() const { return 1 << log_channels; }  // of `to`
  int shared_bytes(int value_bytes) const { return channels() * taps * pitch * value_bytes; }

  int pitch;  // of a tap's channels in shared memory, so that taps meet different banks
  int taps, log_channels = 3;
  Divider by_taps, by_reads, by_kernel_w, by_chunks, by_tiles_to;
  std::int64_t blocks = 0;  // of a group
  bool to_is_near;          // whether channels of `to` are nearer to each other than those of `from`
};

/// Fills packed weights: [group][weight][tile of blocks][part][block][row][vector, swizzled]. A block reads
/// weights as they lie, a thread always the same kTaps taps, and writes whole rows of vectors. What
/// counts here is instructions (a profile on an H200: 2.5 a clock), so a block looks for the places of its
/// taps once.
template <class Math, int kTaps>
__global__ void __launch_bounds__(kThreads)
    pack_box_weights_kernel(const __grid_constant__ BoxPlan p, const __grid_constant__ WeightStrides strides,
                            const __grid_constant__ WeightTile t, const typename Math::Value* w, int blocks,
                            int tiles_block, const unsigned* largest, uint4* packed) {
  using T = typename Math::Element;
  using Value = typename Math::Value;
  constexpr int kParts = Math::kOperandParts;
  constexpr int kElements = kVectorBytes / sizeof(T), kFrom = kVectors * kElements;
  constexpr int kAtOnce = kTaps == 1 ? 8 : 4;  // loads
  extern __shared__ uint4 memory[];
  __shared__ int weights[WeightTile::kMostTaps];
  Value* const staged = reinterpret_cast<Value*>(memory);
  const int index = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x), group = blockIdx.y;
  const int rest = t.by_tiles_to.divide(index), tile_taps = t.by_chunks.divide(rest);
  const int first_m = t.by_tiles_to.modulo(index, rest) << t.log_channels,
            chunk = t.by_chunks.modulo(rest, tile_taps), first_tap = tile_taps * t.taps;
  const int taps = min(t.taps, strides.kernel_h * strides.kernel_w - first_tap);
  if (thread < taps) {
    const int kh = t.by_kernel_w.divide(first_tap + thread),
              kw = t.by_kernel_w.modulo(first_tap + thread, kh);
    weights[thread] = p.weight_of(kh, kw, chunk * kVectors);
  }
  await_previous();
  // A line has the taps of a pair of channels (positions_fit() keeps weights within 31 bits). Rows of a block
  // repeat its channels where these are few.
  const int first_line = t.by_reads.divide(thread), tap = t.by_reads.modulo(thread, first_line) * kTaps,
            step = t.by_reads.divide(kThreads),
            lines = first_line < step && tap < taps ? kFrom << t.log_channels : 0;
  const int of_block = first_m % kBlockChannels,
            different = kBlockChannels / channel_copies(p.to_channels) - 1;
  const Value* const from = w + group * strides.group +
                            static_cast<std::int64_t>(chunk * kFrom) * strides.from +
                            static_cast<std::int64_t>(first_m - of_block) * strides.to + first_tap + tap;
  const int from_channels = p.from_channels - chunk * kFrom, to_channels = p.to_channels - first_m + of_block;
  for (int first = first_line; first < lines; first += kAtOnce * step) {
    Pack<Value, kTaps> values[kAtOnce];
    int to[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int line = first + k * step;
      const int c = t.to_is_near ? line >> t.log_channels : line % kFrom,
                m = t.to_is_near ? line & (t.channels() - 1) : line / kFrom, row = (of_block + m) & different;
      to[k] = line < lines ? (m * t.taps + tap) * t.pitch + c : -1;
      values[k] =
          line < lines && c < from_channels && row < to_channels
              ? *reinterpret_cast<const Pack<Value, kTaps>*>(from + c * strides.from + row * strides.to)
              : Pack<Value, kTaps>{};
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
      for (int e = 0; e < kTaps; ++e)
        if (to[k] >= 0) staged[to[k] + e * t.pitch] = values[k].values[e];
  }
  __syncthreads();
  float scale = 1;
  if constexpr (Math::kScaled) scale = scale_of(largest_of(largest));
  const std::int64_t tile_step = std::int64_t{tiles_block} * kParts * blocks * kBlockChannels * kVectors;
  packed += group * p.weights * tile_step;
  for (int i = thread; i < (t.taps * kVectors) << t.log_channels; i += kThreads) {
    const int line = i / kVectors, v = i % kVectors, of_tile = t.by_taps.divide(line),
              of_taps = t.by_taps.modulo(line, of_tile);
    if (of_taps >= taps || weights[of_taps] < 0) continue;
    Pack<T, kElements> parts[kParts];
#pragma unroll
    for (int k = 0; k < kElements; ++k) {
      const Value value = staged[line * t.pitch + v * kElements + k];
      if constexpr (Math::kScaled) {
        T of_value[kParts];
        split_half(value, scale, of_value);
#pragma unroll
        for (int part = 0; part < kParts; ++part) parts[part].values[k] = of_value[part];
      } else {
        parts[0].values[k] = Math::prepare(value);
      }
    }
    const int m = first_m + of_tile, block = m / kBlockChannels, row = block_row(m % kBlockChannels);
    uint4* const to = packed + weights[of_taps] * tile_step;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const int of_block_rows = (block / blocks * kParts + part) * blocks + block % blocks;
      *reinterpret_cast<Pack<T, kElements>*>(to + (of_block_rows * kBlockChannels + row) * kVectors +
                                             (v ^ (row & 7))) = parts[part];
    }
  }
}

template <class K>
void launch_box(BoxArguments& call, const BoxChoice& choice, const WeightStrides& strides, const Tensor& w,
                const Tensor& to) {
  using Math = typename K::Math;
  const BoxPlan& p = call.plan;
  call.blocks = choice.blocks;
  call.copies = channel_copies(p.to_channels);
  call.tiles_block = static_cast<int>(ceil_div(ceil_div(p.to_channels, kBlockChannels), call.blocks));
  const std::int64_t bytes = std::int64_t{p.groups} * p.weights * call.tiles_block * K::weight_bytes(call);
  const Workspace<uint4> packed(to.device(), std::max<std::int64_t>(1, bytes / kVectorBytes));
  call.packed = reinterpret_cast<const char*>(packed.data());
  if (bytes > 0) {
    using Value = typename Math::Value;
    const auto pack = [&]<int kTaps>() {
      const WeightTile tile(p, strides, call.tiles_block * call.blocks * kBlockChannels, sizeof(Value),
                            kTaps);
      launch_kernel_with_shared("conv: pack", to.device(), pack_box_weights_kernel<Math, kTaps>,
                                dim3(grid_size("conv", tile.blocks), static_cast<unsigned>(p.groups)),
                                kThreads, tile.shared_bytes(sizeof(Value)), p, strides, tile,
                                static_cast<const Value*>(w.read()), call.blocks, call.tiles_block,
                                call.largest_weight, packed.data());
    };
    const bool quads = strides.kernel_h * strides.kernel_w % 4 == 0 && is_aligned(w.read(), sizeof(Value));
    quads ? pack.template operator()<4>() : pack.template operator()<1>();
  }
  const BoxTile& t = call.tile;
  call.tiles = static_cast<int>(grid_size("conv", choice.tiles));
  call.by_tiles = Divider(call.tiles);
  call.by_blocks = Divider(call.tiles_block);
  call.by_columns = Divider(ceil_div(p.w.most(), t.columns));
  call.by_rows = Divider(ceil_div(p.h.most(), t.rows));
  call.by_images = Divider(ceil_div(p.n, t.images));
  call.splits = choice.splits;
  call.box_stages = choice.box_stages, call.weight_stages = choice.weight_stages;
  call.box_bytes = choice.box_bytes;
  call.lead = choice.lead;
  const Workspace<float> parts(
      to.device(),
      call.splits > 1 ? call.splits * choice.tiles * K::kJoined * K::kSums * kConsumerThreads : 1);
  call.parts = parts.data();
  const int shared = std::max(typename K::Memory(call).end, choice.shared_bytes) + 1024;
  allow_shared_memory(box_kernel<K>, shared);
  const std::int64_t blocks =
      std::min<std::int64_t>(multiprocessors(to.device()), choice.tiles * call.splits);
  launch_kernel_with_shared("conv: boxes", to.device(), box_kernel<K>, grid_size("conv", blocks), K::kThreads,
                            shared, call);
  if (call.splits > 1) {
    launch_kernel("conv: sum of parts", to.device(), add_box_parts_kernel<K>,
                  dim3(grid_size("conv", choice.tiles), K::kJoined * K::kSums / 4), kConsumerThreads, call);
  }
}

/// wgmma_map() over boxes.
template <class Math>
void box_map(const ConvTranspose2dGeometry& g, bool transposed, const BoxWay& way, const Tensor& from,
             const Tensor& w, const Tensor& bias, const Tensor& to, double negative_slope) {
  const BoxPlan& plan = way.plan;
  const BoxChoice& choice = way.choice;
  using T = typename Math::Value;
  constexpr int kParts = Math::kOperandParts;
  const DeviceScope scope(to.device());
  BoxArguments call{};
  call.plan = plan, call.tile = choice.tile;
  const ConvAxis* const rows = transposed ? nullptr : &g.h;
  std::optional<Largest> largest;
  if constexpr (Math::kScaled) {
    using enum Largest::Next;
    largest.emplace(from, ChannelsLast::takes_all(rows) ? copies : reads, w, reads);
    call.largest = largest->a().words, call.largest_weight = largest->b().words;
  }
  const ChannelsLast images = Math::kScaled ? ChannelsLast(from, plan.groups, rows, kParts, largest->a())
                                            : ChannelsLast(from, plan.groups, rows);
  for (int i = 0; i < plan.h.planes; ++i)
    for (int j = 0; j < plan.w.planes; ++j)
      call.maps[i * plan.w.planes + j] =
          image_map(images, dtype_of<typename Math::Element>, plan.n, kParts * plan.groups, plan.plane_h(i),
                    plan.plane_w(j), call.tile);
  const int halves = choice.blocks == 1 ? 2 : 1;
  call.results = choice.results, call.half = choice.half, call.staged_bytes = choice.staged_bytes;
  if (choice.results == BoxResults::boxes) {
    announce_bulk_writes(to);
    call.box = ResultBox(call.tile, halves);
    for (int i = 0; i < plan.h.phases; ++i)
      call.maps[plan.planes() + i] =
          result_map(to, plan.h.to[i], plan.h.to_step, plan.h.count[i], call.tile.pitch * plan.joined,
                     call.box, channel_copies(plan.to_channels) == 1 ? 2 : 1);
  }
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.negative_slope = static_cast<float>(negative_slope);
  call.to = to.raw();
  call.to_strides = ImageStrides(to.strides());
  const auto neighbours = [&](int elements) {
    const ImageStrides& s = call.to_strides;
    return s.c == 1 && plan.to_channels % elements == 0 && s.n % elements == 0 && s.h % elements == 0 &&
           s.w % elements == 0 && reinterpret_cast<std::uintptr_t>(to.raw()) % (elements * sizeof(T)) == 0;
  };
  call.vectors = neighbours(kVectorBytes / sizeof(T)), call.pairs = neighbours(2);
  const int taps = static_cast<int>(g.h.kernel * g.w.kernel), from_c = plan.from_channels,
            to_c = plan.to_channels;
  const WeightStrides strides{static_cast<std::int64_t>(from_c) * to_c * taps,
                              transposed ? to_c * taps : taps, transposed ? taps : from_c * taps,
                              static_cast<int>(g.h.kernel), static_cast<int>(g.w.kernel)};
  const auto launch = [&]<int kJoined, int kPlaces>() {
    if constexpr (kPlaces <= most_places(kParts, kJoined))
      if (choice.places == kPlaces)
        launch_box<BoxKernel<Math, kPlaces, kJoined>>(call, choice, strides, w, to);
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
