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
// 1.05 to 1.3 times as fast. A loop of nchw is many small steps
// (1,150 instructions a warp and tile, by a profile): twice as many rows at once in shared memory took 1 to
// 1.11 times as long. Without what some calls do not need (adding where there is no bias, comparing channels
// that all exist, copies of channels that there are none of), with channels last kb69 in bfloat16 took 0.95
// of the time, and on average the forward of the benchmark's 17 layers 0.99.
#pragma once

#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>
#include <tapedeck/ops/conv/wgmma_box_tile.cuh>

namespace tapedeck::cu::conv_gemm {

/// Of two blocks of a cluster that swap results: of each warp, whether what the other block's warp sends has
/// come (data and barrier are in this block's shared memory, where waiting for one shows the other), whether
/// the other one may be sent more, and how often they have swapped.
struct SwapBarriers {
  __device__ void initialise() {
#pragma unroll
    for (int w = 0; w < kConsumerThreads / 32; ++w)
      come[w].initialise(1), free[w].initialise(1), turns[w] = 0;
  }
  Barrier come[kConsumerThreads / 32], free[kConsumerThreads / 32];
  unsigned turns[kConsumerThreads / 32];
};

/// For tiles of kPlaces of each of kOfPlace joined phases, and sums of Math's products.
template <class Math, int kPlaces, int kOfPlace>
struct BoxOutput {
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

  /// Writes a warpgroup's finished sums.
  __device__ static void write(const BoxArguments& call, const TileAt& tile, const PlaceOfResult* places,
                               char* memory, SwapBarriers& barriers, const Sums& sums) {
    if constexpr (kCanSwap)
      if (call.results == BoxResults::swapped) return write_swapped(call, tile, memory, barriers, sums[0]);
    if (call.results == BoxResults::boxes) return write_box(call, tile, memory, sums);
    if constexpr (kCanBePixels)
      if (call.results == BoxResults::pixels) return write_pixels(call, tile, memory, sums[0]);
    float* const staged = reinterpret_cast<float*>(memory);
    const int first = first_channel(call, tile);
    Value* const to = static_cast<Value*>(call.to) + first_result(call, tile);
    places += first_place(call);
    if constexpr (kJoined == 1) {
      if (call.results == BoxResults::folds) return write_folds(call, tile, places, to, sums[0]);
    }
    const auto write_pairs_of = [&]<bool kFolded>() {
      if constexpr (sizeof(Value) == 2) {
        write_halves<kFolded>(call, tile, places, memory, to, sums);
      } else {
        write_pairs<kFolded>(call, tile, places, staged, to, sums);
      }
    };
    if (kJoined == 1 && call.results == BoxResults::folded_pairs) {
      write_pairs_of.template operator()<kJoined == 1>();
    } else if (kJoined == 2 || call.results == BoxResults::pairs) {
      write_pairs_of.template operator()<false>();
    } else if (call.results == BoxResults::rows) {
      write_rows(call, tile, places, staged, to, sums[0]);
    } else if (call.vectors) {
      write_vectors(call, tile, places, staged, to + first, sums[0]);
    } else {
      write_channels(call, tile, places, to, sums[0]);
    }
  }

  /// In nchw, where a tile has whole rows: each warp has its channels' results as a box in shared memory,
  /// [channel][row][image][column], which one thread hands to the tensor memory accelerator. Of copies of
  /// channels the first has the even ones, the second the odd ones.
  __device__ __forceinline__ static void write_box(const BoxArguments& call, const TileAt& tile, char* memory,
                                                   const Sums& sums) {
    const BoxPlan& p = call.plan;
    const ResultBox& box = call.box;
    const int lane = threadIdx.x % 32, warp = uniform(static_cast<int>(threadIdx.x) / 32),
              half = call.halves == 2 ? warp / (kWarpgroup / 32) : 0,
              copy = warp % (kWarpgroup / 32) >> (2 - call.log_copies),
              first_of_warp = uniform(first_channel(call, tile) + channel_of_warp(call)),
              row = tile.row + (call.tile.halves_are_of_rows() ? half * box.rows : 0),
              image = tile.image + (call.tile.halves_are_of_rows() ? 0 : half * box.images);
    if (copy >= 2 || first_of_warp >= p.to_channels || image >= p.n || row >= p.h.count[tile.i]) return;
    const int channels = call.log_copies == 0 ? 16 : 8, pitch = box.places * kJoined;  // of a channel
    Value* const rows = reinterpret_cast<Value*>(memory) + warp * channels * pitch;
    if (lane == 0) await_boxes_read();
    __syncwarp();
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      if (call.log_copies > 0 && copy != odd) continue;
      Value* const mine = rows + (call.log_copies == 0 ? lane / 4 * 2 + odd : lane / 4) * pitch;
#pragma unroll
      for (int k = 0; k < kSums; k += 4) {  // of eight places
        Pack<Value, 2 * kJoined> values;
#pragma unroll
        for (int i = 0; i < 2 * kJoined; ++i)
          values.values[i] = convert<Value>(sums[i % kJoined][k + odd * 2 + i / kJoined]);
        if (place(k) < box.places)
          *reinterpret_cast<Pack<Value, 2 * kJoined>*>(mine + place(k) * kJoined) = values;
      }
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
      store_box(call.maps[p.planes() + tile.i], shared_address(rows), 0, image, row,
                call.log_copies == 0 ? 0 : copy, (tile.group * p.to_channels + first_of_warp) / 2);
      commit_boxes();
    }
  }
  /// In nchw, of results that step over columns: blocks of a pair have a phase of columns each of the same
  /// tile. Warps of the same channels swap them: the first block's has the even channels of both phases then,
  /// the second one's the odd ones, and each hands whole rows to the tensor memory accelerator as write_box()
  /// does. What comes lies as the threads have it, where the box is made of it.
  ///
  /// (Written by a phase, rows have a result in every second place: 64 to 128 stores a thread that fill no
  /// sector, which with all around them took some 10 of the 26 us of a DCGAN's layer in a profile on an H200.
  /// Plain stores to the other block, with a release and an arrival behind all, took 0.98 to 1.07 times as
  /// long in unet_up.)
  __device__ __forceinline__ static void write_swapped(const BoxArguments& call, const TileAt& tile,
                                                       char* memory, SwapBarriers& barriers,
                                                       const float (&sums)[kSums]) {
    const BoxPlan& p = call.plan;
    const ResultBox& box = call.box;
    const int lane = threadIdx.x % 32, warp = uniform(static_cast<int>(threadIdx.x) / 32),
              half = call.halves == 2 ? warp / (kWarpgroup / 32) : 0,
              first_of_warp = uniform(first_channel(call, tile) + channel_of_warp(call)),
              row = tile.row + (call.tile.halves_are_of_rows() ? half * box.rows : 0),
              image = tile.image + (call.tile.halves_are_of_rows() ? 0 : half * box.images);
    // The same for both blocks.
    if (first_of_warp >= p.to_channels || image >= p.n || row >= p.h.count[tile.i]) return;
    const unsigned rank = rank_in_cluster();
    const bool is_first = p.w.to[tile.j] == 0;  // of a row's results
    char* const mine = memory + warp * (call.staged_bytes / (kConsumerThreads / 32));
    const unsigned come = shared_address(&barriers.come[warp]), free = shared_address(&barriers.free[warp]);
    constexpr int kGroupWords = sizeof(Value) / 2, kWords = kSums / 4 * kGroupWords;  // a group: eight places
    const unsigned turn = barriers.turns[warp];
    __syncwarp();
    if (lane == 0) {
      barriers.turns[warp] = turn + 1;
      Barrier::arrive_and_expect_at(come, 32 * kWords * 4);
    }
    if (turn > 0) {
      if (lane == 0) {
        await_boxes_read();
        Barrier::arrive_at_other(address_of_cluster(free, rank ^ 1));
      }
      Barrier::wait_at(free, (turn - 1) & 1);
    }
    static_assert(kWords % 4 == 0);
    const unsigned there = address_of_cluster(shared_address(mine), rank ^ 1) + lane * kVectorBytes,
                   to_come = address_of_cluster(come, rank ^ 1);
    std::uint32_t kept[kWords], words[kWords];
#pragma unroll
    for (int v = 0; v < kWords / 4; ++v) {
      std::uint32_t sent[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int word = 4 * v + i, k = word / kGroupWords * 4, e = word % kGroupWords;
        std::uint32_t even, odd;
        if constexpr (sizeof(Value) == 2) {
          even = pair_of(sums[k], sums[k + 1]), odd = pair_of(sums[k + 2], sums[k + 3]);
        } else {
          // Copies: where sums themselves go on, products wait for each other (C7520).
          asm volatile("mov.b32 %0, %1;" : "=r"(even) : "f"(sums[k + e]));
          asm volatile("mov.b32 %0, %1;" : "=r"(odd) : "f"(sums[k + 2 + e]));
        }
        kept[word] = rank == 0 ? even : odd, sent[i] = rank == 0 ? odd : even;
        asm volatile("" : "+r"(kept[word]));  // here, so that sums need no registers longer
      }
      send_words(there + v * (32 * kVectorBytes), make_uint4(sent[0], sent[1], sent[2], sent[3]), to_come);
    }
    Barrier::wait_at(come, turn & 1);
#pragma unroll
    for (int v = 0; v < kWords / 4; ++v) {
      const uint4 x = load_words(shared_address(mine) + (v * 32 + lane) * kVectorBytes);
      words[4 * v] = x.x, words[4 * v + 1] = x.y, words[4 * v + 2] = x.z, words[4 * v + 3] = x.w;
    }
    __syncwarp();
    // Of two places both phases' results.
    const int pitch = box.places * 2 * static_cast<int>(sizeof(Value));  // of a channel
    char* const to = mine + lane / 4 * pitch + lane % 4 * (4 * sizeof(Value));
#pragma unroll
    for (int g = 0; g < kSums / 4; ++g) {
      if (place(4 * g) >= box.places) continue;
      std::uint32_t first[kGroupWords], second[kGroupWords];
#pragma unroll
      for (int e = 0; e < kGroupWords; ++e) {
        const std::uint32_t a = kept[g * kGroupWords + e], b = words[g * kGroupWords + e];
        first[e] = is_first ? a : b, second[e] = is_first ? b : a;
      }
      char* const of_group = to + g * (16 * sizeof(Value));
      if constexpr (sizeof(Value) == 2) {
        *reinterpret_cast<uint2*>(of_group) =
            make_uint2(__byte_perm(first[0], second[0], 0x5410), __byte_perm(first[0], second[0], 0x7632));
      } else {
        *reinterpret_cast<uint4*>(of_group) = make_uint4(first[0], second[0], first[1], second[1]);
      }
    }
    if (sizeof(Value) == 2 && call.rows_are_vectors) {
      __syncwarp();
      return write_vectors_of_box(call, tile, shared_address(mine), image, row,
                                  first_of_warp + static_cast<int>(rank));
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
      store_box(call.maps[p.planes() + tile.i], shared_address(mine), 0, image, row, static_cast<int>(rank),
                (tile.group * p.to_channels + first_of_warp) / 2);
      commit_boxes();
    }
  }
  /// Writes a warp's box of every second channel, from `channel` on, of which a row's results are a vector.
  /// (The tensor memory accelerator is slow with such rows: warps that had handed it boxes waited 1,300 to
  /// 4,300 clocks until it had read them, where rows are two vectors 200 to 400; read in the kernel on an
  /// H200. With loads and stores, and weights packed by pairs, dcgan2's forward in bfloat16 took 0.93 of the
  /// time.)
  __device__ __forceinline__ static void write_vectors_of_box(const BoxArguments& call, const TileAt& tile,
                                                              unsigned from, int image, int row,
                                                              int channel) {
    const BoxPlan& p = call.plan;
    const ResultBox& box = call.box;
    const ImageStrides& s = call.to_strides;
    const int rows = box.rows * box.images,
              row_bytes = box.places / rows * 2 * static_cast<int>(sizeof(Value)), to_row = p.h.to_step * s.h;
    Value* const to = static_cast<Value*>(call.to) + image * s.n +
                      static_cast<std::int64_t>(p.h.to[tile.i]) * s.h +
                      row * static_cast<std::int64_t>(to_row) +
                      (static_cast<std::int64_t>(tile.group) * p.to_channels + channel) * s.c;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) % 32; i < 8 * rows; i += 32) {
      const int c = i / rows, of_box = i - c * rows, y = of_box / box.images, n = of_box - y * box.images;
      const bool exists = channel + 2 * c < p.to_channels && row + y < p.h.count[tile.i] && image + n < p.n;
      store_if(exists, reinterpret_cast<uint4*>(to + n * s.n + y * to_row + 2 * c * s.c),
               load_words(from + i * row_bytes));
    }
  }
  /// Whether results find their places in a table.
  __device__ __forceinline__ static bool needs_places(const BoxArguments& call) {
    return call.splits == 1 && !are_boxes(call.results) && call.results != BoxResults::pixels;
  }
  /// What ends a kernel.
  __device__ __forceinline__ static void end(const BoxArguments& call) {
    if (are_boxes(call.results) || call.results == BoxResults::pixels) await_boxes_read();
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

  /// Writes a place's values of channels `step` apart, of which `count` exist, if the place does.
  template <int kChannels, class V>
  __device__ __forceinline__ static void write_place(Value* to, std::int64_t step, int count, bool exists,
                                                     const V (&values)[kChannels]) {
    const auto write_all = [&](const auto& is_there) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) store_if(is_there(c), to + c * step, values[c]);
    };
    if (count >= kChannels) {  // nothing to compare
      write_all([&](int) { return exists; });
    } else {
      write_all([&](int c) { return exists && c < count; });
    }
  }

  /// In nchw: a warp's 16 channels have a row each of kStagedPlaces results.
  __device__ __forceinline__ static void write_rows(const BoxArguments& call, const TileAt& tile,
                                                    const PlaceOfResult* places, float* staged, Value* to,
                                                    const float (&sums)[kSums]) {
    const BoxPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_of_warp = first_channel(call, tile) + channel_of_warp(call);
    if (first_of_warp >= p.to_channels) return;
    float* const rows = staged + warp * (16 * kStagedPitch);
    const std::int64_t step = call.to_strides.c;
    to += first_of_warp * step;
    const unsigned inside_tile = inside(tile, tile.columns[0]);
    const int channels = p.to_channels - first_of_warp;
#pragma unroll
    for (int pass = 0; pass < (N + kStagedPlaces - 1) / kStagedPlaces; ++pass) {
      if (!writes(call, pass)) continue;
      constexpr int kAll = kStagedPlaces / 2;  // sums of a pass
#pragma unroll
      for (int i = 0; i < kAll; i += 4) {
        const int k = pass * kAll + i;
        if (k >= kSums) break;
        float* const at = rows + lane / 4 * kStagedPitch + i * 2 + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(sums[k], sums[k + 1]);
        *reinterpret_cast<float2*>(at + 8 * kStagedPitch) = make_float2(sums[k + 2], sums[k + 3]);
      }
      const int place = pass * kStagedPlaces + lane;
      const PlaceOfResult at = places[min(place, N - 1)];
      const bool mine = place < N && exists(at, inside_tile);
      __syncwarp();
      Value values[16];
#pragma unroll
      for (int c = 0; c < 16; ++c) values[c] = convert<Value>(rows[block_row(c) * kStagedPitch + lane]);
      __syncwarp();
      write_place(to + at.offset, step, channels, mine, values);
    }
  }

  /// In nchw, where two results of a row are neighbours at an even place of memory: those of joined phases,
  /// of two folded columns (kFolded), or of two places. Half of a warp's channels, the even or the odd ones,
  /// have a row of 32 pairs at a time; folded columns all that there are.
  template <bool kFolded>
  __device__ __forceinline__ static void write_pairs(const BoxArguments& call, const TileAt& tile,
                                                     const PlaceOfResult* places, float* staged, Value* to,
                                                     const Sums& sums) {
    constexpr int kOfPlaceHere = kFolded ? 2 : kJoined, kPass = 64 / kOfPlaceHere;  // places
    constexpr int kPitch = kOfPlaceHere == 2 ? kJoinedPitch : kPairedPitch;
    const BoxPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_of_warp = first_channel(call, tile) + channel_of_warp(call);
    if (first_of_warp >= p.to_channels) return;
    float* const rows = staged + warp * (16 * kStagedPitch);
    const std::int64_t step = call.to_strides.c;
    to += (kFolded ? first_of_warp / 2 : first_of_warp) * step;
    const unsigned inside_tile = inside(tile, tile.columns[0]);
    const int channels = p.to_channels - first_of_warp;
#pragma unroll
    for (int pass = 0; pass < (N + kPass - 1) / kPass; ++pass) {
      if (!writes(call, pass)) continue;
      const int place = pass * kPass + lane * (2 / kOfPlaceHere);
      const PlaceOfResult at = places[min(place, N - 1)];
      const bool mine = place < N && exists(at, inside_tile);
#pragma unroll
      for (int odd = 0; odd < (kFolded ? 1 : 2); ++odd) {
        constexpr int kGroups = kPass / 8, kOfGroup = 2 * kOfPlaceHere;  // groups of eight places
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
          const int first = (pass * kGroups + i) * 4;
          if (first >= kSums) break;
          Pack<float, kOfGroup> of_group;
#pragma unroll
          for (int e = 0; e < kOfGroup; ++e)
            of_group.values[e] =
                sums[kFolded ? 0 : e % kJoined][first + e / kOfPlaceHere + (kFolded ? e % 2 : odd) * 2];
          *reinterpret_cast<Pack<float, kOfGroup>*>(rows + lane / 4 * kPitch +
                                                    (i * 8 + lane % 4 * 2) * kOfPlaceHere) = of_group;
        }
        __syncwarp();
        Pack<Value, 2> values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          const float2 pair = *reinterpret_cast<const float2*>(rows + c * kPitch + lane * 2);
          values[c] = {convert<Value>(pair.x), convert<Value>(pair.y)};
        }
        __syncwarp();
        write_place(to + at.offset + odd * step, kFolded ? step : 2 * step,
                    kFolded ? (channels + 1) / 2 : (channels - odd + 1) / 2, mine, values);
      }
    }
  }

  /// The same of 16-bit results: as matrices of 8 channels and 8 results, which is how threads have them, a
  /// warp's channels come to rows of 64 results each. Of joined phases or folded columns, where a thread has
  /// four neighbours, vectors of a row have every other pair.
  template <bool kFolded>
  __device__ __forceinline__ static void write_halves(const BoxArguments& call, const TileAt& tile,
                                                      const PlaceOfResult* places, char* memory, Value* to,
                                                      const Sums& sums) {
    constexpr int kOfPlaceHere = kFolded ? 2 : kJoined, kPass = 64 / kOfPlaceHere, kRowBytes = 128,
                  kRowVectors = kRowBytes / kVectorBytes, kChannels = kFolded ? 8 : 16,
                  kAtOnce = kFolded ? 4 : 2;  // vectors of a row
    static_assert(kOfPlaceHere == 2 || kSums % 8 == 0);
    const BoxPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_of_warp = first_channel(call, tile) + channel_of_warp(call);
    if (first_of_warp >= p.to_channels) return;
    const std::int64_t step = call.to_strides.c;
    to += (kFolded ? first_of_warp / 2 : first_of_warp) * step;
    const unsigned inside_tile = inside(tile, tile.columns[0]);
    const int channels = (p.to_channels - first_of_warp) / (kFolded ? 2 : 1);
    // A lane has the address of row r of one of four matrices: of two channels and two vectors, or of four
    // vectors. A channel's vector v lies at v ^ r, so that rows of a matrix are in all banks. Then a lane has
    // two results of each channel.
    const unsigned rows = shared_address(memory) + warp * (16 * kStagedPitch * 4);
    const int r = lane % 8, matrix = lane / 8, channel_of_row = kFolded ? r : 2 * r + matrix % 2,
              vector = kOfPlaceHere == 1 ? lane / 4 : lane / 8 * 2 + lane % 2,
              word = kOfPlaceHere == 1 ? lane % 4 : lane % 8 / 2;
    const unsigned stored = rows + channel_of_row * kRowBytes +
                            ((kFolded ? matrix : matrix / 2) ^ r) * kVectorBytes,
                   loaded = rows + vector * kVectorBytes + word * 4;
#pragma unroll
    for (int pass = 0; pass < (N + kPass - 1) / kPass; ++pass) {
      if (!writes(call, pass)) continue;
      const int place = pass * kPass + lane * (2 / kOfPlaceHere);
      const PlaceOfResult at = places[min(place, N - 1)];
      const bool mine = place < N && exists(at, inside_tile);
#pragma unroll
      for (int v = 0; v < kRowVectors; v += kAtOnce) {
        const int first = (pass * kRowVectors + v) / kOfPlaceHere * 4;
        if (first >= kSums) break;
        // Of a thread's second channel or the first one: of two groups of eight places, element e of one; of
        // joined phases place `group` of phase e.
        const auto sum = [&](int second, int group, int e) {
          if constexpr (kJoined == 2) return sums[e][first + second * 2 + group];
          const int k = first + group * 4 + second * 2 + e;
          return k < kSums ? sums[0][k] : 0;
        };
        std::uint32_t words[4];
#pragma unroll
        for (int m = 0; m < 4; ++m)
          words[m] = kFolded ? pair_of(sum(0, m / 2, m % 2), sum(1, m / 2, m % 2))
                             : pair_of(sum(m % 2, m / 2, 0), sum(m % 2, m / 2, 1));
        store_matrices(stored ^ v * kVectorBytes, words);
      }
      __syncwarp();
      std::uint32_t values[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c)
        values[c] = load_word((loaded ^ (kFolded ? c : c / 2) * kVectorBytes) + c * kRowBytes);
      __syncwarp();
      write_place(to + at.offset, step, channels, mine, values);
    }
  }

  /// Two 16-bit results in one.
  __device__ __forceinline__ static std::uint32_t pair_of(float a, float b) {
    return __builtin_bit_cast(std::uint32_t, Pack<Value, 2>{convert<Value>(a), convert<Value>(b)});
  }
  /// Where channel c of folded columns begins, from the first of `to`; or any other channel.
  __device__ __forceinline__ static std::int64_t channel_offset(const BoxArguments& call, int c) {
    const int column = c & ((1 << call.log_fold) - 1);
    return static_cast<std::int64_t>(c >> call.log_fold) * call.to_strides.c + column;
  }
  /// In nchw, of folded columns: a thread's two channels are neighbours in a row, and so are those of two
  /// places, if the fold is of two. Four threads write 16 results that are, of each of eight channels.
  __device__ __forceinline__ static void write_folds(const BoxArguments& call, const TileAt& tile,
                                                     const PlaceOfResult* places, Value* to,
                                                     const float (&sums)[kSums]) {
    const int mine = first_channel(call, tile) + channel(call, 0);
    if (mine >= call.plan.to_channels) return;
    const bool whole = call.vectors && call.log_fold == 1;
    const unsigned inside_tile = inside(tile, tile.columns[0]), next_column = in_tile(0, 0, 1);
    to += channel_offset(call, mine);
    constexpr int kAtOnce = kSums % 16 == 0 ? 4 : 2;  // pairs of places
#pragma unroll
    for (int first = 0; first < kSums; first += 4 * kAtOnce) {
      PlaceOfResult at[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) at[i] = places[place(first + 4 * i)];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int k = first + 4 * i;
        if (!writes(call, k / 4)) continue;
        const Pack<Value, 2> a = {convert<Value>(sums[k]), convert<Value>(sums[k + 2])},
                             b = {convert<Value>(sums[k + 1]), convert<Value>(sums[k + 3])};
        Value* const result = to + at[i].offset;
        const bool one = exists(at[i], inside_tile);
        PlaceOfResult next = at[i];
        next.in_tile += next_column;
        const bool two = exists(next, inside_tile);
        if (whole && two) {
          *reinterpret_cast<Pack<Value, 4>*>(result) = {a.values[0], a.values[1], b.values[0], b.values[1]};
        } else {
          if (one) *reinterpret_cast<Pack<Value, 2>*>(result) = a;
          if (two) *reinterpret_cast<Pack<Value, 2>*>(result + (1 << call.log_fold)) = b;
        }
      }
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
  __device__ __forceinline__ static void synchronise_warpgroup() {
    meet<kWarpgroup>(1 + threadIdx.x / kWarpgroup);
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
