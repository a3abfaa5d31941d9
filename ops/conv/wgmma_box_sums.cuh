// The sums of a warpgroup over boxes (wgmma_box.cuh): which channel and place each is of, and what becomes of
// them before they are written.
#pragma once

#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>
#include <tapedeck/ops/conv/wgmma_box_tile.cuh>

namespace tapedeck::cu::conv_gemm {

/// For tiles of kPlaces of each of kOfPlace joined phases, and sums of Math's products: joined phase k has
/// columns BoxPlan::column_of_joined(k).
template <class Math, int kPlaces, int kOfPlace>
struct BoxSums {
  using Value = typename Math::Value;
  using TileAt = BoxTileAt<kOfPlace>;
  static constexpr int N = kPlaces, kJoined = kOfPlace;
  static constexpr int kSums = N / 2;  // of a consumer and a phase
  using Sums = float[kJoined][kSums];
  /// Whether weights may be read as they lie (BoxWeights), and whether channels may be in order: these
  /// weights' are, and those of 16-bit results with the channels last, which are then written by fewer
  /// instructions.
  static constexpr bool kWeightsCanLie = Math::kOperandParts == 1 && !Math::kScaled && kJoined == 1,
                        kCanBeInOrder = kJoined == 1 && (sizeof(Value) == 2 || kWeightsCanLie),
                        kCanBePixels = kJoined == 1 && sizeof(Value) == 2,
                        kCanSwap = kJoined == 1 && places_can_swap(N, sizeof(Value));

  // Sum k of a consumer is of channel `channel(call, k)` of its block and `place(k)` of its warpgroup. A warp
  // has 16 channels; those of channel_copies() have the same ones.
  __device__ __forceinline__ static int channel_of_warp(const BoxArguments& call) {
    return (threadIdx.x & ((kWarpgroup >> call.log_copies) - 1)) / 32 * 16;
  }
  __device__ __forceinline__ static int channel(const BoxArguments& call, int k) {
    const int of_thread = threadIdx.x % 32 / 4, second = k / 2 % 2;
    return channel_of_warp(call) + (is_in_order(call) ? of_thread + second * 8 : of_thread * 2 + second);
  }
  __device__ __forceinline__ static bool is_in_order(const BoxArguments& call) {
    return kCanBeInOrder && call.in_order;
  }
  /// From the first of a thread's two channels to the second.
  __device__ __forceinline__ static int to_second(const BoxArguments& call) {
    return is_in_order(call) ? 8 : 1;
  }
  __device__ __forceinline__ static int copy_of_warp(const BoxArguments& call) {
    return threadIdx.x % kWarpgroup >> (7 - call.log_copies);
  }
  /// Whether a warp's copy writes pass `pass`, and whether that is the last of a turn of all copies.
  __device__ __forceinline__ static bool writes(const BoxArguments& call, int pass) {
    return (pass & ((1 << call.log_copies) - 1)) == copy_of_warp(call);
  }
  __device__ __forceinline__ static bool ends_turn(const BoxArguments& call, int pass) {
    const int rest = (1 << call.log_copies) - 1;
    return (pass & rest) == rest;
  }
  __device__ __forceinline__ static int place(int k) { return k / 4 * 8 + threadIdx.x % 4 * 2 + k % 2; }
  /// The first channel of a consumer's block, in the group.
  __device__ __forceinline__ static int first_channel(const BoxArguments& call, const TileAt& tile) {
    const int warpgroup = threadIdx.x / kWarpgroup;
    return (tile.block * call.blocks + (call.blocks == 1 ? 0 : warpgroup)) * kBlockChannels;
  }
  __device__ __forceinline__ static int first_place(const BoxArguments& call) {
    return call.halves == 2 ? static_cast<int>(threadIdx.x) / kWarpgroup * call.half : 0;
  }
  __device__ static std::int64_t first_result(const BoxArguments& call, const TileAt& tile) {
    const BoxPlan& p = call.plan;
    const ImageStrides& s = call.to_strides;
    return tile.image * s.n + static_cast<std::int64_t>(p.h.to[tile.i] + tile.row * p.h.to_step) * s.h +
           static_cast<std::int64_t>(p.w.to[tile.j] + tile.column * p.w.to_step) * s.w +
           static_cast<std::int64_t>(tile.group) * p.to_channels * s.c;
  }
  __device__ static PlaceOfResult place_of_result(const BoxArguments& call, int place) {
    const BoxPlan& p = call.plan;
    const ImageStrides& s = call.to_strides;
    const BoxPlace at(call.by_place, place);
    PlaceOfResult result;
    if constexpr (kJoined == 4) {  // in shared memory
      result.offset = at.image * call.runs.pitch + call.runs.result(at.row, at.column);
      result.in_tile = in_tile(at.image, at.row, at.column);
      return result;
    }
    result.offset = at.image * s.n + static_cast<std::int64_t>(at.row * p.h.to_step) * s.h +
                    static_cast<std::int64_t>(at.column * p.w.to_step) * s.w;
    result.in_tile = in_tile(at.image, at.row, at.column);
    return result;
  }
  /// Three numbers below 512 in one, to compare all at once.
  __device__ __forceinline__ static unsigned in_tile(int image, int row, int column) {
    return static_cast<unsigned>(column << 20 | row << 10 | image);
  }
  /// Images, rows and columns of a tile that are inside of the result, as exists() wants them.
  __device__ __forceinline__ static unsigned inside(const TileAt& tile, int columns) {
    return kBorrows + in_tile(tile.images, tile.rows, max(columns, 0)) - in_tile(1, 1, 1);
  }
  /// Whether a place's image, row and column are: none of the differences borrows.
  __device__ __forceinline__ static bool exists(const PlaceOfResult& at, unsigned inside) {
    return (~(inside - at.in_tile) & kBorrows) == 0;
  }
  static constexpr unsigned kBorrows = 1 << 29 | 1 << 19 | 1 << 9;
  /// From a result of the first of joined phases to the one at the same place of phase k.
  __device__ __forceinline__ static std::int64_t to_phase(const BoxArguments& call, const TileAt& tile,
                                                          int k) {
    const BoxAxis& w = call.plan.w;
    return k == 0 ? 0 : static_cast<std::int64_t>(w.to[tile.j + k] - w.to[tile.j]) * call.to_strides.w;
  }

  /// What becomes of sums: without their scales, with their bias, as a Rectifier has them (ops/rectifier.h).
  struct Finish {
    __device__ explicit Finish(const BoxArguments& call)
        : slope(call.negative_slope), has_bias(call.bias != nullptr) {
      if constexpr (Math::kScaled) scales = InverseScales(call.largest, call.largest_weight);
    }
    /// All of a thread's sums of a phase at once, before any of them is written: for each few that are
    /// written together code would be 1.4 times as long.
    template <int kCount>
    __device__ __forceinline__ void operator()(float (&sums)[kCount], const float (&bias)[2]) const {
      if constexpr (Math::kScaled) {
        if (scales.first != 1) {  // hardly ever
#pragma unroll
          for (float& x : sums) x *= scales.first;
          pin(sums);  // else it would be a selection of each sum
        }
      }
      if constexpr (Math::kScaled) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[k] = fmaf(sums[k], scales.second, bias[k / 2 % 2]);
      } else if (has_bias) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) sums[k] += bias[k / 2 % 2];
        pin(sums);  // else it would be a selection of each sum
      }
      if (slope == 1) return;
      if (slope == 0) {
#pragma unroll
        for (float& x : sums) asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(x));  // NaN stays
      } else {
#pragma unroll
        for (float& x : sums) x = x <= 0 ? x * slope : x;
      }
    }
    float slope;
    bool has_bias;
    InverseScales scales;
  };

  __device__ static void load_bias(const BoxArguments& call, const TileAt& tile, float (&bias)[2]) {
    const int first = first_channel(call, tile), of_group = call.plan.to_channels;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int mine = first + channel(call, 2 * i);
      bias[i] = call.bias != nullptr && mine < of_group
                    ? convert<float>(static_cast<const Value*>(
                          call.bias)[static_cast<std::int64_t>(tile.group) * of_group + mine])
                    : 0.0f;
    }
  }
  /// Where channel c of folded columns begins, from the first of `to`; or any other channel.
  __device__ __forceinline__ static std::int64_t channel_offset(const BoxArguments& call, int c) {
    const int column = c & ((1 << call.log_fold) - 1);
    return static_cast<std::int64_t>(c >> call.log_fold) * call.to_strides.c + column;
  }
  /// Two 16-bit results in one.
  __device__ __forceinline__ static std::uint32_t pair_of(float a, float b) {
    return __builtin_bit_cast(std::uint32_t, Pack<Value, 2>{convert<Value>(a), convert<Value>(b)});
  }
};

}  // namespace tapedeck::cu::conv_gemm
