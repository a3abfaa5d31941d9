// Chooses among the kernels over boxes (wgmma_box.cuh) and launches them, after what makes ready for them.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/box_packing.cuh>
#include <tapedeck/ops/conv/bulk_writes.cuh>
#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/wgmma_box.cuh>

namespace tapedeck::cu::conv_gemm {

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
  check(K::kJoined < 4 || call.splits == 1, "conv: tiles of all phases are not split");
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
  if constexpr (K::kJoined < 4)
    if (call.splits > 1)
      launch_kernel("conv: sum of parts", to.device(), add_box_parts_kernel<K>,
                    dim3(grid_size("conv", choice.tiles), K::kJoined * K::kSums / 4), kConsumerThreads, call);
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
                                                call.tile.pitch * (swaps ? 2 : plan.joined_w), call.box,
                                                swaps || channel_copies(plan.to_channels) > 1 ? 1 : 2);
  }
  if (choice.results == BoxResults::runs) {
    announce_bulk_writes(to);
    call.box = ResultBox(call.tile, call.halves);
    call.runs = ResultRuns(plan, call.box, sizeof(T));
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
  if (choice.results == BoxResults::runs) {
    const auto are_whole = [&](int columns) {
      return call.runs.width % columns == 0 &&
             reinterpret_cast<std::uintptr_t>(to.raw()) % (static_cast<unsigned>(columns) * sizeof(T)) == 0;
    };
    call.vectors = are_whole(4), call.pairs = are_whole(2);
  }
  const WeightStrides strides(g, transposed, plan, w.layout());
  call.kernel_w = strides.kernel_w;
  if (!Math::kScaled && strides.last)
    call.weights = box_weights(plan, transposed, choice.results, reinterpret_cast<std::uintptr_t>(w.read()));
  const bool lie = call.weights != BoxWeights::packed;
  check(!lie || !gathers, "conv: weights that lie are not for boxes of nchw images");
  if (lie) call.maps[kMaxPlanes] = weight_map(w, plan.groups, kWeightRows);
  call.in_order = lie || (have_channels_last(choice.results) && plan.joined() == 1 && sizeof(T) == 2);
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
    const BoxPacking packing(plan, strides, sizeof(T), reinterpret_cast<std::uintptr_t>(w.read()), kParts,
                             call.blocks, call.tiles_block, call.in_order, call.pieces.of_parity());
    pack_box_weights<Math>(packing, w, call.largest_weight, packed->data(), preparations);
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
  if (plan.joined() == 1) {
    launch_any.template operator()<1>(BoxPlaces());
  } else if (plan.joined() == 2) {
    launch_any.template operator()<2>(JoinedPlaces());
  } else {
    launch_any.template operator()<4>(AllJoinedPlaces());
  }
}

}  // namespace tapedeck::cu::conv_gemm
