// Results over boxes (wgmma_box.cuh) to channels last: rows of pixels that the tensor memory accelerator
// writes, and loops over vectors of channels and single ones.
#pragma once

#include <tapedeck/ops/conv/wgmma_box_sums.cuh>

namespace tapedeck::cu::conv_gemm {

/// What a BoxOutput writes to channels that are last.
template <class Math, int kPlaces, int kOfPlace>
struct BoxPixels : BoxSums<Math, kPlaces, kOfPlace> {
  using Base = BoxSums<Math, kPlaces, kOfPlace>;
  using Base::channel;
  using Base::channel_of_warp;
  using Base::copy_of_warp;
  using Base::ends_turn;
  using Base::exists;
  using Base::first_channel;
  using Base::inside;
  using Base::is_in_order;
  using Base::kSums;
  using Base::N;
  using Base::pair_of;
  using Base::place;
  using Base::to_second;
  using Base::writes;
  using typename Base::Sums;
  using typename Base::TileAt;
  using typename Base::Value;

  __device__ __forceinline__ static void synchronise_warpgroup() {
    meet<kWarpgroup>(1 + threadIdx.x / kWarpgroup);
  }

  /// With the channels last: a warpgroup has its places' channels in shared memory, from where its warps hand
  /// rows to the tensor memory accelerator, of as many columns as a tile has, or all at once where nothing is
  /// between them. All that is left to do is about a sixth of what loops of loads and stores took.
  __device__ __forceinline__ static void write_pixels(const BoxArguments& call, const TileAt& tile,
                                                      char* memory, const float (&sums)[kSums]) {
    const BoxPlan& p = call.plan;
    const BoxTile& t = call.tile;
    const int lane = threadIdx.x % 32, warp = uniform(static_cast<int>(threadIdx.x) / 32),
              half = warp / (kWarpgroup / 32), log_row = 7 - call.log_copies;
    const unsigned rows = uniform(shared_address(memory)) + half * (((N << log_row) + 1023) & ~1023);
    if (lane == 0) await_boxes_read();
    synchronise_warpgroup();
    if (call.log_copies == 0) {
      stage_pixels<true>(call, rows, sums);
    } else {
      stage_pixels<false>(call, rows, sums);
    }
    fence_async();
    synchronise_warpgroup();
    const int channel = first_channel(call, tile);
    if (lane == 0 && channel < p.to_channels) {
      const StoredRows of_half(t, call.halves == 2, half);
      const CUtensorMap& map = call.maps[p.planes() + tile.phase];
      int turn = warp % (kWarpgroup / 32);
      const int next_row = call.one_box ? of_half.rows : 1, next_image = call.one_box ? of_half.images : 1;
      for (int y = 0; y < of_half.rows && of_half.first_row + y < tile.rows; y += next_row) {
        const unsigned row = rows + (y * t.row_pixels() << log_row);
        for (int n = 0; n < of_half.images && of_half.first_image + n < tile.images; n += next_image) {
          if (turn-- != 0) continue;
          turn = kWarpgroup / 32 - 1;
          store_box(map, row + (n * t.pitch << log_row), channel, tile.column,
                    tile.image + of_half.first_image + n, tile.row + of_half.first_row + y, tile.group);
        }
      }
      commit_boxes();
    }
    __syncwarp();
  }

  /// Sums to rows of channels, one for each place. kAll: where there are no copies of channels: places are
  /// known then, and nothing is tested.
  template <bool kAll>
  __device__ __forceinline__ static void stage_pixels(const BoxArguments& call, unsigned rows,
                                                      const float (&sums)[kSums]) {
    // Lanes of a matrix have the same channels of eight places: as bytes are swizzled, other banks.
    const int log_copies = kAll ? 0 : call.log_copies, log_row = 7 - log_copies, lane = threadIdx.x % 32,
              of_eight = lane % 8, mask = (8 >> log_copies) - 1,
              vector = (channel_of_warp(call) / 8 + lane / 8 % 2) ^ (of_eight >> log_copies & mask),
              copy = copy_of_warp(call), copies_mask = (1 << log_copies) - 1;
    const unsigned to = rows + ((lane / 16 * 8 + of_eight) << log_row) + vector * kVectorBytes;
#pragma unroll
    for (int i = 0; i < kSums; i += 8) {  // 16 places
      if (!kAll && (i / 8 & copies_mask) != copy) continue;
      std::uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) words[k] = pair_of(sums[i + 2 * k], sums[i + 2 * k + 1]);
      store_transposed(to + (i * 2 << log_row), words);
    }
  }

  /// With the channels last, where there are no whole vectors of channels.
  __device__ __forceinline__ static void write_channels(const BoxArguments& call, const TileAt& tile,
                                                        const PlaceOfResult* places, Value* to,
                                                        const float (&sums)[kSums]) {
    const int mine = first_channel(call, tile) + channel(call, 0), to_second_channel = to_second(call);
    const unsigned inside_tile = inside(tile, tile.columns[0]);
#pragma unroll
    for (int k = 0; k < kSums; k += 4) {
      if (!writes(call, k / 4)) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const PlaceOfResult at = places[place(k + e)];
        if (!exists(at, inside_tile) || mine >= call.plan.to_channels) continue;
        Value* const result = to + at.offset + mine;
        if (call.pairs && to_second_channel == 1) {
          *reinterpret_cast<Pack<Value, 2>*>(result) = {convert<Value>(sums[k + e]),
                                                        convert<Value>(sums[k + 2 + e])};
        } else {
          result[0] = convert<Value>(sums[k + e]);
          if (mine + to_second_channel < call.plan.to_channels)
            result[to_second_channel] = convert<Value>(sums[k + 2 + e]);
        }
      }
    }
  }

  /// The same where whole vectors of channels are neighbours; `to`: of the warpgroup's first channel.
  __device__ __forceinline__ static void write_vectors(const BoxArguments& call, const TileAt& tile,
                                                       const PlaceOfResult* places, float* staged, Value* to,
                                                       const float (&sums)[kSums]) {
    constexpr int kElements = kVectorBytes / sizeof(Value), kVectorsOfPlace = kBlockChannels / kElements;
    constexpr int kPass = 128 / sizeof(Value), kPasses = (N + kPass - 1) / kPass;  // of places
    constexpr int kPitch = kBlockChannels * sizeof(Value) + kVectorBytes;
    static_assert(2 * kPass * kPitch <= kStagedBytes);
    const int warpgroup = threadIdx.x / kWarpgroup, thread = threadIdx.x % kWarpgroup;
    char* const rows = reinterpret_cast<char*>(staged) + warpgroup * (kPass * kPitch);
    // A row has a place's channels, and of each copy those of a place of another pass.
    constexpr int kLogVectors = kVectorsOfPlace == 8 ? 3 : kVectorsOfPlace == 16 ? 4 : 5;
    static_assert(1 << kLogVectors == kVectorsOfPlace);
    const int v = thread % kVectorsOfPlace, log_of_copy = kLogVectors - call.log_copies,
              copy = v >> log_of_copy, c = (v - (copy << log_of_copy)) * kElements;
    const bool has_channels = first_channel(call, tile) + c < call.plan.to_channels;
    const unsigned inside_tile = inside(tile, has_channels ? tile.columns[0] : 0);
    to += c;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (writes(call, pass)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          constexpr int kAll = kPass / 4;  // sums of a half
          const int first = pass * 2 * kAll + half * kAll;
          if (first >= kSums) break;
          if (is_in_order(call)) {
            stage_channels<kAll>(sums, first, pass * kPass, rows, kPitch);
          } else if constexpr (sizeof(Value) == 4) {
            const int of_row = thread / 32 * 16 + thread % 32 / 4 * 2;
#pragma unroll
            for (int i = 0; i < kAll; ++i) {
              if (i % 4 >= 2 || first + i >= kSums) continue;
              *reinterpret_cast<Pack<Value, 2>*>(rows + (place(first + i) - pass * kPass) * kPitch +
                                                 of_row * sizeof(Value)) = {
                  convert<Value>(sums[first + i]), convert<Value>(sums[first + i + 2])};
            }
          }
        }
      }
      if (pass + 1 < kPasses && !ends_turn(call, pass)) continue;
      synchronise_warpgroup();
      const int first_place = ((pass >> call.log_copies << call.log_copies) + copy) * kPass;
      // Several at a time: all is loaded before anything is stored.
      constexpr int kAll = kPass * kVectorsOfPlace / kWarpgroup, kAtOnce = sizeof(Value) == 2 ? 4 : 2;
      static_assert(kAll % kAtOnce == 0);
#pragma unroll
      for (int begin = 0; begin < kAll; begin += kAtOnce) {
        PlaceOfResult at[kAtOnce];
        uint4 values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int of_pass = thread / kVectorsOfPlace + (begin + i) * (kWarpgroup / kVectorsOfPlace);
          at[i] = places[min(first_place + of_pass, N - 1)];
          values[i] = *reinterpret_cast<const uint4*>(rows + of_pass * kPitch + v * kVectorBytes);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int of_pass = thread / kVectorsOfPlace + (begin + i) * (kWarpgroup / kVectorsOfPlace);
          store_if(first_place + of_pass < N && exists(at[i], inside_tile), to + at[i].offset, values[i]);
        }
      }
      synchronise_warpgroup();
    }
  }
  /// Of channels in order: kCount sums from `first` on, to rows of channels, one for each place from
  /// `first_place` on.
  template <int kCount>
  __device__ __forceinline__ static void stage_channels(const float (&sums)[kSums], int first,
                                                        int first_place, char* rows, int pitch) {
    const int lane = threadIdx.x % 32, of_warp = threadIdx.x % kWarpgroup / 32 * 16;
    if constexpr (sizeof(Value) == 2) {
      static_assert(kCount % 8 == 0 && kSums % 8 == 0);
#pragma unroll
      for (int i = 0; i < kCount; i += 8) {  // 16 places
        if (first + i >= kSums) break;
        std::uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = pair_of(sums[first + i + 2 * k], sums[first + i + 2 * k + 1]);
        store_transposed(shared_address(rows) +
                             ((first + i) * 2 - first_place + lane / 16 * 8 + lane % 8) * pitch +
                             (of_warp + lane / 8 % 2 * 8) * static_cast<int>(sizeof(Value)),
                         words);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (first + i >= kSums) break;
        *reinterpret_cast<Value*>(rows + (place(first + i) - first_place) * pitch +
                                  (of_warp + lane / 4 + i / 2 % 2 * 8) * sizeof(Value)) =
            convert<Value>(sums[first + i]);
      }
    }
  }
};

}  // namespace tapedeck::cu::conv_gemm
