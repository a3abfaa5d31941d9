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

/// What tells a thread its part of packed weights.
struct WeightVectors {
  WeightVectors(const BoxPlan& p, const WeightStrides& strides, int padded)
      : to_is_near(strides.to < strides.from),
        channels(padded),
        count(std::int64_t{strides.kernel_h} * strides.kernel_w * p.chunks * kVectors * padded),
        by_taps(strides.kernel_h * strides.kernel_w),
        by_kernel_w(strides.kernel_w),
        by_near(to_is_near ? padded : p.chunks * kVectors) {}
  bool to_is_near;
  int channels;        // of `to`, padded
  std::int64_t count;  // of a group
  Divider by_taps, by_kernel_w, by_near;
};

/// Fills packed weights: [group][weight][tile of blocks][part][block][row][vector, swizzled]. A thread has a
/// vector of a tap and a channel of `to`; neighbours have neighbouring weights.
template <class Math>
__global__ void __launch_bounds__(kThreads)
    pack_box_weights_kernel(const __grid_constant__ BoxPlan p, const __grid_constant__ WeightStrides strides,
                            const __grid_constant__ WeightVectors all, const typename Math::Value* w,
                            int blocks, const unsigned* largest, uint4* packed) {
  using T = typename Math::Element;
  using Value = typename Math::Value;
  await_previous();
  constexpr int kParts = Math::kOperandParts;
  constexpr int kElements = kVectorBytes / sizeof(T);
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x), group = blockIdx.y;
  if (i >= all.count) return;
  const int rest = all.by_taps.divide(i), tap = all.by_taps.modulo(i, rest);
  const int outer = all.by_near.divide(rest), inner = all.by_near.modulo(rest, outer);
  const int m = all.to_is_near ? inner : outer, v = all.to_is_near ? outer : inner;
  const int of_block = m % kBlockChannels,
            channel = m - of_block + of_block % (kBlockChannels / channel_copies(p.to_channels));
  const int kh = all.by_kernel_w.divide(tap), weight = p.weight_of(kh, all.by_kernel_w.modulo(tap, kh), v);
  if (weight < 0) return;
  const Value* const from = w + group * strides.group +
                            static_cast<std::int64_t>(v) * kElements * strides.from +
                            static_cast<std::int64_t>(channel) * strides.to + tap;
  Pack<T, kElements> parts[kParts];
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const bool exists = channel < p.to_channels && v * kElements + k < p.from_channels;
    const Value value = exists ? from[static_cast<std::int64_t>(k) * strides.from] : Value{};
    if constexpr (Math::kScaled) {
      T of_value[kParts];
      split_half(value, scale_of(*largest), of_value);
#pragma unroll
      for (int part = 0; part < kParts; ++part) parts[part].values[k] = of_value[part];
    } else {
      parts[0].values[k] = Math::prepare(value);
    }
  }
  const int block = m / kBlockChannels, row = block_row(m % kBlockChannels);
  const std::int64_t tile =
      (static_cast<std::int64_t>(group) * p.weights + weight) * (all.channels / kBlockChannels / blocks) +
      block / blocks;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const std::int64_t to = ((tile * kParts + part) * blocks + block % blocks) * kBlockChannels + row;
    *reinterpret_cast<Pack<T, kElements>*>(packed + to * kVectors + (v % kVectors ^ (row & 7))) = parts[part];
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
    const WeightVectors all(p, strides, call.tiles_block * call.blocks * kBlockChannels);
    launch_kernel("conv: pack", to.device(), pack_box_weights_kernel<Math>,
                  dim3(grid_size("conv", ceil_div(all.count, kThreads)), static_cast<unsigned>(p.groups)),
                  kThreads, p, strides, all, static_cast<const typename Math::Value*>(w.raw()), call.blocks,
                  call.largest_weight, packed.data());
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
  std::optional<Largest> largest;
  if constexpr (Math::kScaled) {
    largest.emplace(from, w);
    call.largest = largest->a(), call.largest_weight = largest->b();
  }
  const ConvAxis* const rows = transposed ? nullptr : &g.h;
  const ChannelsLast images = Math::kScaled ? ChannelsLast(from, plan.groups, rows, kParts, call.largest)
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
