// What becomes of a warpgroup's sums (wgmma_box.cuh): their scales are taken, bias and rectifier applied, and
// results written.
//
// Results go through shared memory: with the channels last a warpgroup writes whole pixels by 16 bytes a
// thread; in nchw a warp writes 32 places of a channel at once, of 16-bit pairs 32 pairs. Where that can be,
// threads hand results to the tensor memory accelerator instead: 16-bit rows of pixels, or in nchw all of a
// tile with whole rows. Of folded columns (fold.h) a thread has neighbours in nchw, which it writes as it has
// them.
//
// A timeline (clocks of an H200, read in the kernel) showed that both warpgroups come to write at the same
// time, 3,000 to 5,000 clocks a tile by loops of loads and stores, while tensor cores wait: stages are too
// few for one to be half a tile ahead. Rows of pixels, with weights read as they lie, made layers in bfloat16
// 1.05 to 1.3 times as fast. In nchw what blocks that all write at once have to write is what bounds them
// where they have one tile or two: in bfloat16 dcgan4's forward takes 6,000 clocks for 8.4 MB, and stores of
// whole vectors by kernels of their own wrote 3.1 TB/s, of halves of sectors 1.5. A loop of nchw is many
// small steps (1,150 instructions a warp and tile, by a profile): twice as many rows at once in shared memory
// took 1 to 1.11 times as long. Without what some calls do not need (adding where there is no bias, comparing
// channels that all exist, copies of channels that there are none of), with channels last kb69 in bfloat16
// took 0.95 of the time, and on average the forward of the benchmark's 17 layers 0.99.
#pragma once

#include <tapedeck/ops/conv/wgmma_box_pixels.cuh>
#include <tapedeck/ops/conv/wgmma_box_rows.cuh>

namespace tapedeck::cu::conv_gemm {

/// For tiles of kPlaces of each of kOfPlace joined phases, and sums of Math's products.
template <class Math, int kPlaces, int kOfPlace>
struct BoxOutput : BoxSums<Math, kPlaces, kOfPlace> {
  using Base = BoxSums<Math, kPlaces, kOfPlace>;
  using Base::channel;
  using Base::channel_offset;
  using Base::exists;
  using Base::first_channel;
  using Base::first_place;
  using Base::first_result;
  using Base::inside;
  using Base::kCanBePixels;
  using Base::kCanSwap;
  using Base::kJoined;
  using Base::kSums;
  using Base::load_bias;
  using Base::N;
  using Base::place;
  using Base::place_of_result;
  using Base::to_phase;
  using Base::to_second;
  using Base::writes;
  using typename Base::Finish;
  using typename Base::Sums;
  using typename Base::TileAt;
  using typename Base::Value;
  using Rows = BoxRows<Math, kPlaces, kOfPlace>;
  using Pixels = BoxPixels<Math, kPlaces, kOfPlace>;

  /// Writes a warpgroup's finished sums.
  __device__ static void write(const BoxArguments& call, const TileAt& tile, const PlaceOfResult* places,
                               char* memory, SwapBarriers& barriers, const Sums& sums) {
    if constexpr (kCanSwap)
      if (call.results == BoxResults::swapped)
        return Rows::write_swapped(call, tile, memory, barriers, sums[0]);
    if constexpr (kJoined == 4) {
      Rows::write_runs(call, tile, places, memory, sums);
    } else {
      if (call.results == BoxResults::boxes) return Rows::write_box(call, tile, memory, sums);
      if constexpr (kCanBePixels)
        if (call.results == BoxResults::pixels) return Pixels::write_pixels(call, tile, memory, sums[0]);
      float* const staged = reinterpret_cast<float*>(memory);
      const int first = first_channel(call, tile);
      Value* const to = static_cast<Value*>(call.to) + first_result(call, tile);
      places += first_place(call);
      if constexpr (kJoined == 1) {
        if (call.results == BoxResults::folds) return Rows::write_folds(call, tile, places, to, sums[0]);
      }
      const auto write_pairs_of = [&]<bool kFolded>() {
        if constexpr (sizeof(Value) == 2) {
          Rows::template write_halves<kFolded>(call, tile, places, memory, to, sums);
        } else {
          Rows::template write_pairs<kFolded>(call, tile, places, staged, to, sums);
        }
      };
      if (kJoined == 1 && call.results == BoxResults::folded_pairs) {
        write_pairs_of.template operator()<kJoined == 1>();
      } else if (kJoined == 2 || call.results == BoxResults::pairs) {
        write_pairs_of.template operator()<false>();
      } else if (call.results == BoxResults::rows) {
        Rows::write_rows(call, tile, places, staged, to, sums[0]);
      } else if (call.vectors) {
        Pixels::write_vectors(call, tile, places, staged, to + first, sums[0]);
      } else {
        Pixels::write_channels(call, tile, places, to, sums[0]);
      }
    }
  }

  /// Whether results find their places in a table.
  __device__ __forceinline__ static bool needs_places(const BoxArguments& call) {
    return call.splits == 1 && !are_boxes(call.results) && call.results != BoxResults::pixels;
  }
  /// What ends a kernel.
  __device__ __forceinline__ static void end(const BoxArguments& call) {
    if (are_boxes(call.results) || call.results == BoxResults::pixels || call.results == BoxResults::runs)
      await_boxes_read();
  }

  static constexpr int kPartsAtOnce = 4;  // loads of a sum
  /// Adds the parts of four sums of each consumer of a tile.
  __device__ static void add_parts(const BoxArguments& call) {
    await_previous();
    const BoxPlan& p = call.plan;
    const TileAt tile(call, blockIdx.x);
    const int c = first_channel(call, tile) + channel(call, 0);
    if (!tile.has_results() || c >= p.to_channels || !writes(call, 0)) return;
    constexpr int kOfTile = kJoined * kSums * kConsumerThreads;
    const int first = static_cast<int>(blockIdx.y) * 4, phase = first / kSums;
    const float* from =
        call.parts + static_cast<std::int64_t>(blockIdx.x) * kOfTile + first * kConsumerThreads + threadIdx.x;
    float sums[4] = {};
    const std::int64_t of_split = static_cast<std::int64_t>(call.tiles) * kOfTile;
    for (int s = 0; s < call.splits; s += kPartsAtOnce, from += kPartsAtOnce * of_split) {
      float parts[kPartsAtOnce][4];
#pragma unroll
      for (int i = 0; i < kPartsAtOnce; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          parts[i][k] = s + i < call.splits ? from[i * of_split + k * kConsumerThreads] : 0;
#pragma unroll
      for (int i = 0; i < kPartsAtOnce; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) sums[k] += parts[i][k];
    }
    Value* const to = static_cast<Value*>(call.to) + first_result(call, tile) + to_phase(call, tile, phase);
    float bias[2];
    load_bias(call, tile, bias);
    const Finish finish(call);
    finish(sums, bias);
#pragma unroll
    for (int e = 0; e < 2; ++e) {  // two channels of each of two places
      const int mine = place(first % kSums + e);
      const PlaceOfResult at = place_of_result(call, first_place(call) + mine);
      if (mine >= (call.halves == 2 ? call.half : N)) continue;  // the other warpgroup's
      if (!exists(at, inside(tile, tile.columns_of(phase)))) continue;
      Value* const result = to + at.offset + channel_offset(call, c);
      if (call.pairs && to_second(call) == 1) {
        *reinterpret_cast<Pack<Value, 2>*>(result) = {convert<Value>(sums[e]), convert<Value>(sums[2 + e])};
      } else {
        result[0] = convert<Value>(sums[e]);
        if (c + to_second(call) < p.to_channels)
          result[to_second(call) * call.to_strides.c] = convert<Value>(sums[2 + e]);
      }
    }
  }
};

}  // namespace tapedeck::cu::conv_gemm
