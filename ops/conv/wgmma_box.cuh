// conv_transpose2d and conv2d over boxes of pixels (box_plan.h) on Hopper's tensor cores.
//
//   global --tensor memory accelerator--> boxes of pixels (kPixelBytes of channels each) --+
//   global --bulk copies----------------> weights of a tap, packed ------------------------+- wgmma -->
//   registers
//
// wgmma multiplies D[64 channels, N pixels] += W[64, K] * box[N, K]^T. A tap moves all pixels of a tile by
// the same number of places, so its operand is the box from another row on: nothing is copied for it. A tile
// has N places for each of two warpgroups, and one block of 64 channels, or N places and a block for each.
//
// Operands of several parts (scaled_half.cuh) have a box and a block of weights for each part in a stage.
//
// There is a thread block for each multiprocessor, and each takes every so many tiles. Two threads of two
// warps bring boxes and two weights, through a ring each, as long as there are free stages: also while the
// others write results. One warpgroup leads by some taps, so that it writes while the other one multiplies;
// with several parts warpgroups take turns at the tensor cores.
//
// Results go through shared memory: with the channels last a warpgroup writes whole pixels by 16 bytes a
// thread, in nchw a warp writes 32 places of a channel at once.
//
// On an H200, channels last, forward in bfloat16 (bench/results/gpu_conv.json): 512 to 256 channels, kernel
// 4, stride 2: 647 TFLOP/s; 64 to 64 channels, 3x3: 513, where tensor cores still wait for results to be
// written. A box with one tap brings as much as windows do, and is no faster. What mattered: that products of
// a tap are in line (see Consumer::multiply; 1.15 to 1.4 times as fast); kernels for many numbers of places,
// as with 256 a quarter is wasted on images 64 wide. What did not: the order of the map's axes; turns of
// warpgroups in the weight's gradient; letting the next kernel's blocks come early, which made small
// layers 1.2 to 1.4 times as slow.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include <tapedeck/ops/conv/box_choice.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>
#include <tapedeck/ops/conv/tensor_map.cuh>
#include <tapedeck/ops/conv/wgmma_tile.cuh>

namespace tapedeck::cu::conv_gemm {

/// Where the result at a place is, from the tile's first on; its image, row and column in the tile.
struct alignas(16) PlaceOfResult {
  std::int64_t offset;
  short image, row, column, unused;
};
static_assert(sizeof(PlaceOfResult) == kPlaceBytes);

struct BoxArguments {
  BoxPlan plan;
  BoxTile tile;
  CUtensorMap maps[kMaxPlanes];
  const char* packed;
  const unsigned *largest, *largest_weight;  // of what is read and of the weights, where these are scaled
  const void* bias;
  float negative_slope;  // of the results
  void* to;
  float* parts;  // of splits, if there are several
  ImageStrides to_strides;
  int blocks;  // of channels in a tile: 1 or 2
  int tiles_block, tiles, splits;
  Divider by_tiles, by_blocks, by_columns, by_rows, by_images;  // by the number of tiles along these
  int box_bytes, box_stages, weight_stages;                     // box_bytes: of a part
  int copies;                                                   // channel_copies()
  int lead;  // taps of its first tile that a warpgroup has multiplied when the other one begins
  BoxResults results;
  bool vectors,
      pairs;  // whether kVectorBytes of channels of `to`, or two, are neighbours and can be written at once
};

/// What a block of threads makes.
template <class M, int kPlaces, int kOfPlace>
struct BoxKernel {
  using Math = M;
  using Value = typename Math::Value;
  static constexpr int N = kPlaces, kParts = Math::kOperandParts;
  static constexpr int kJoined = kOfPlace;  // phases of columns in a tile
  static constexpr int kThreads = kConsumerThreads + kWarpgroup;
  static constexpr int kConsumerRegisters = 232, kOtherRegisters = 40;
  static constexpr int kSums = N / 2;  // of a consumer and a phase
  static constexpr int kTurns = 3;     // the first of two named barriers

  using Sums = float[kJoined][kSums];
  template <class F>
  __device__ __forceinline__ static void for_joined(const F& f) {
    f.template operator()<0>();
    if constexpr (kJoined == 2) f.template operator()<1>();
  }

  /// Bytes of shared memory, and where its parts begin; all aligned to 1024 but the end.
  struct Memory {
    TAPEDECK_HD Memory(const BoxArguments& call)
        : weights(call.box_stages * kParts * call.box_bytes),
          staged(weights + call.weight_stages * weight_bytes(call)),
          places(staged + kStagedBytes),
          end(places + 2 * N * static_cast<int>(sizeof(PlaceOfResult))) {}
    int weights, staged, places, end;
  };
  /// Of a tap, all parts.
  __device__ __host__ static int weight_bytes(const BoxArguments& call) {
    return kParts * call.blocks * kBlockBytes;
  }
  struct Barriers {
    Barrier full_box[kMostStages], empty_box[kMostStages];
    Barrier full_weight[kMostStages], empty_weight[kMostStages];
    Barrier lead;
  };

  struct Position {
    int stage = 0;
    unsigned turn = 0;
    __device__ void advance(int stages) {
      if (++stage == stages) stage = 0, ++turn;
    }
  };

  /// Tile `index` of call.tiles * call.splits.
  struct TileAt {
    __device__ TileAt(const BoxArguments& call, int index) {
      const BoxPlan& p = call.plan;
      const int split = call.splits == 1 ? 0 : call.by_tiles.divide(index);
      index -= split * call.tiles;
      const auto next = [&index](const Divider& count) {
        const int quotient = count.divide(index), rest = count.modulo(index, quotient);
        index = quotient;
        return rest;
      };
      block = next(call.by_blocks);
      const int turn = next(p.by_phases);
      // Phases have different numbers of taps: a thread block does not always get the same one.
      phase = p.by_phases.modulo(turn + index, p.by_phases.divide(turn + index));
      column = next(call.by_columns) * call.tile.columns;
      row = next(call.by_rows) * call.tile.rows;
      image = next(call.by_images) * call.tile.images;
      group = index;
      i = p.by_phases_w.divide(phase), j = p.by_phases_w.modulo(phase, i);
      rows = min(call.tile.rows, p.h.count[i] - row);
      most_columns = 0;
#pragma unroll
      for (int k = 0; k < kJoined; ++k) {
        columns[k] = min(call.tile.columns, p.w.count[j + k] - column);
        most_columns = max(most_columns, columns[k]);
      }
      images = min(call.tile.images, p.n - image);
      const int all = has_results() && p.has_boxes(i, j) ? p.planes() * p.chunks : 0,
                each = call.splits == 1 ? all : (all + call.splits - 1) / call.splits;
      begin = min(all, split * each), end = min(all, begin + each);
    }
    /// columns[k], without an address: so the array stays in registers.
    __device__ int columns_of(int k) const {
      return k == 0 ? columns[0] : columns[kJoined - 1];
    }
    __device__ bool has_results() const {
      return rows > 0 && most_columns > 0;
    }
    int block, phase, i, j, group, image, row, column;  // j: the first of joined phases
    int images, rows, columns[kJoined], most_columns;   // that are inside
    int begin, end;                                     // boxes
  };

  /// A slice of each box.
  __device__ static void bring_boxes(const BoxArguments& call, int slice, char* memory, Barriers& barriers) {
    const BoxPlan& p = call.plan;
    if (slice >= call.tile.slices()) return;
    const int bytes = call.tile.slice_pixels() * kPixelBytes, offset = slice * call.tile.slice();
    const int image = call.tile.images > 1 ? offset : 0, row = call.tile.images > 1 ? 0 : offset;
    Position at;
#pragma unroll 1
    for (int t = blockIdx.x; t < call.tiles * call.splits; t += gridDim.x) {
      const TileAt tile(call, t);
#pragma unroll 1
      for (int b = tile.begin; b < tile.end; ++b, at.advance(call.box_stages)) {
        const BoxPlan::Box box = p.box_of(tile.phase, b);
        const BoxTaps &h = p.h.of[box.i], &w = p.w.of[box.j];
        const CUtensorMap& map = call.maps[p.planes() == 1 ? 0 : b / p.chunks];
        if (at.turn > 0) barriers.empty_box[at.stage].wait((at.turn - 1) & 1);
        Barrier& full = barriers.full_box[at.stage];
        full.arrive_and_expect(kParts * bytes);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          full.copy_box(memory + (at.stage * kParts + part) * call.box_bytes + slice * bytes, map,
                        box.chunk * kVectors * p.elements, tile.column + w.origin, tile.row + row + h.origin,
                        tile.image + image, part * p.groups + tile.group);
        }
      }
    }
  }

  /// A half of each tap's weights.
  __device__ static void bring_weights(const BoxArguments& call, int half, char* weights,
                                       Barriers& barriers) {
    const BoxPlan& p = call.plan;
    const int bytes = weight_bytes(call), mine = bytes / 2;
    weights += half * mine;
    Position at;
#pragma unroll 1
    for (int t = blockIdx.x; t < call.tiles * call.splits; t += gridDim.x) {
      const TileAt tile(call, t);
#pragma unroll 1
      for (int b = tile.begin; b < tile.end; ++b) {
        const BoxPlan::Box box = p.box_of(tile.phase, b);
#pragma unroll 1
        for (int j = box.j; j < box.j + kJoined; ++j) {
          const int taps = p.taps(box.i, j);
          const char* from =
              call.packed +
              ((static_cast<std::int64_t>(tile.group) * p.weights + p.weight_of_taps(box.i, j, box.chunk)) *
                   call.tiles_block +
               tile.block) *
                  bytes +
              half * mine;
#pragma unroll 1
          for (int tap = 0; tap < taps; ++tap, at.advance(call.weight_stages)) {
            if (at.turn > 0) barriers.empty_weight[at.stage].wait((at.turn - 1) & 1);
            barriers.full_weight[at.stage].arrive_with_copy(weights + at.stage * bytes, from, mine);
            from += static_cast<std::int64_t>(call.tiles_block) * bytes;
          }
        }
      }
    }
  }

  /// What a warpgroup multiplies.
  class Consumer {
   public:
    __device__ Consumer(const BoxArguments& call, char* memory, char* weights, Barriers& barriers)
        : call_(call), memory_(memory), weights_(weights), barriers_(barriers) {}

    __device__ void multiply(const TileAt& tile, Sums& sums) {
#pragma unroll
      for (int k = 0; k < kJoined; ++k)
#pragma unroll
        for (float& x : sums[k]) x = 0;
      if (tile.begin == tile.end) return;
      const BoxPlan& p = call_.plan;
      const int first = call_.blocks == 1 ? static_cast<int>(threadIdx.x) / kWarpgroup * N : 0;
      box_before_ = weight_before_ = -1;
#pragma unroll 1
      for (int b = tile.begin; b < tile.end; ++b) {
        const BoxPlan::Box box = p.box_of(tile.phase, b);
        barriers_.full_box[box_.stage].wait(box_.turn & 1);
        for_joined([&]<int kPhase>() { multiply_taps(box, box.j + kPhase, first, sums[kPhase]); });
        if constexpr (kParts > 1) leave(barriers_.empty_box[box_.stage]);
        box_before_ = box_.stage;
        box_.advance(call_.box_stages);
      }
      if constexpr (kParts > 1) return;
      wgmma_wait<0>();
#pragma unroll
      for (int k = 0; k < kJoined; ++k) pin(sums[k]);
      if (weight_before_ >= 0) leave(barriers_.empty_weight[weight_before_]);
      leave(barriers_.empty_box[box_before_]);
    }

    /// Lets the other warpgroup begin, at the latest after the first tile.
    __device__ void end_first_tile() {
      if (taps_ < call_.lead) lead();
      taps_ = call_.lead;
    }

   private:
    __device__ void lead() const {
      if (threadIdx.x == 0) barriers_.lead.arrive();
    }
    /// Adds the products of taps (box.i, j) of the box that is there.
    __device__ __forceinline__ void multiply_taps(const BoxPlan::Box& box, int j, int first,
                                                  float (&sums)[kSums]) {
      const BoxPlan& p = call_.plan;
      const BoxTaps &h = p.h.of[box.i], &w = p.w.of[j];
      const int steps = p.steps(box.chunk), down = h.shift * call_.tile.pitch, bytes = weight_bytes(call_);
      const char* const my_weights =
          weights_ + (call_.blocks == 1 ? 0 : threadIdx.x / kWarpgroup * kBlockBytes);
      const std::uint64_t pixels = matrix_descriptor(memory_ + box_.stage * kParts * call_.box_bytes);
#pragma unroll 1
      for (int y = 0; y < h.taps; ++y)
#pragma unroll 1
        for (int x = 0; x < w.taps; ++x) {
          barriers_.full_weight[weight_.stage].wait(weight_.turn & 1);
          const std::uint64_t from = pixels + (first + w.first + y * down + x * w.shift) * (kPixelBytes / 16);
          const std::uint64_t weights = matrix_descriptor(my_weights + weight_.stage * bytes);
          const auto multiply_steps = [&]<int kSteps>() {
            if constexpr (kParts == 1) {
              start<kSteps>(sums, weights, from);
            } else {
              add_parts_of_tap<kSteps>(sums, weights, from);
            }
          };
          if (steps == 4) {
            multiply_steps.template operator()<4>();
          } else if (steps == 3) {
            multiply_steps.template operator()<3>();
          } else if (steps == 2) {
            multiply_steps.template operator()<2>();
          } else {
            multiply_steps.template operator()<1>();
          }
          if (kParts == 1 && ++taps_ == call_.lead) lead();
          if constexpr (kParts > 1) {
            leave(barriers_.empty_weight[weight_.stage]);
          } else if (weight_before_ >= 0) {
            wgmma_wait<1>();
            leave(barriers_.empty_weight[weight_before_]);
            if (box_before_ >= 0) leave(barriers_.empty_box[box_before_]);
            box_before_ = -1;
          }
          weight_before_ = weight_.stage;
          weight_.advance(call_.weight_stages);
        }
    }
    /// Starts a group of products of a tap. In line, so that its last product is what ends it: with a loop,
    /// the compiler ends groups by products of nothing, and waiting for all groups but one waits for
    /// everything.
    template <int kSteps>
    __device__ __forceinline__ static void start(float (&sums)[kSums], std::uint64_t weights,
                                                 std::uint64_t from) {
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < kSteps; ++s) wgmma<Math, N>(sums, weights + 2 * s, from + 2 * s, true);
      wgmma_commit();
    }
    /// Adds a tap's products of parts: summed by tensor cores, which truncate, only for the tap, those of the
    /// smaller parts first. Warpgroups take turns, so that one multiplies while the other one adds: without,
    /// tensor cores serve both at once, and both add at once.
    template <int kSteps>
    __device__ __forceinline__ void add_parts_of_tap(float (&sums)[kSums], std::uint64_t weights,
                                                     std::uint64_t from) const {
      const int next_weights = call_.blocks * (kBlockBytes / 16), next_from = call_.box_bytes / 16;
      float of_tap[kSums];
      const int warpgroup = threadIdx.x / kWarpgroup;
      await_turn(kTurns + warpgroup);
      wgmma_fence();
#pragma unroll
      for (int product = 0; product < 3; ++product) {
        const std::uint64_t w = weights + (product == 0 ? next_weights : 0),
                            x = from + (product == 1 ? next_from : 0);
#pragma unroll
        for (int s = 0; s < kSteps; ++s) wgmma<Math, N>(of_tap, w + 2 * s, x + 2 * s, product > 0 || s > 0);
      }
      wgmma_commit();
      pass_turn(kTurns + 1 - warpgroup);
      wgmma_wait<0>();
      pin(of_tap);
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[k] += of_tap[k];
    }
    __device__ __forceinline__ static void leave(Barrier& barrier) {
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier.arrive();
    }

    const BoxArguments& call_;
    char *memory_, *weights_;
    Barriers& barriers_;
    Position box_, weight_;
    int box_before_ = -1, weight_before_ = -1;  // stages that products under way may still read
    int taps_ = 0;
  };

  // Sum k of a consumer is of channel `channel(call, k)` of its block and `place(k)` of its warpgroup. A warp
  // has 16 channels; those of channel_copies() have the same ones.
  __device__ __forceinline__ static int channel_of_warp(const BoxArguments& call) {
    return threadIdx.x % (kWarpgroup / call.copies) / 32 * 16;
  }
  __device__ __forceinline__ static int channel(const BoxArguments& call, int k) {
    return channel_of_warp(call) + threadIdx.x % 32 / 4 * 2 + k / 2 % 2;
  }
  /// Whether a warp's copy writes pass `pass`, and whether that is the last of a turn of all copies.
  __device__ __forceinline__ static bool writes(const BoxArguments& call, int pass) {
    const int copy = threadIdx.x % kWarpgroup / (kWarpgroup / call.copies);
    return (pass & (call.copies - 1)) == copy;
  }
  __device__ __forceinline__ static bool ends_turn(const BoxArguments& call, int pass) {
    return (pass & (call.copies - 1)) == call.copies - 1;
  }
  __device__ __forceinline__ static int place(int k) {
    return k / 4 * 8 + threadIdx.x % 4 * 2 + k % 2;
  }
  /// The first channel of a consumer's block, in the group.
  __device__ __forceinline__ static int first_channel(const BoxArguments& call, const TileAt& tile) {
    const int warpgroup = threadIdx.x / kWarpgroup;
    return (tile.block * call.blocks + (call.blocks == 1 ? 0 : warpgroup)) * kBlockChannels;
  }
  __device__ __forceinline__ static int first_place(const BoxArguments& call) {
    return call.blocks == 1 ? static_cast<int>(threadIdx.x) / kWarpgroup * N : 0;
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
    const BoxPlace at(call.tile, place);
    PlaceOfResult result;
    result.offset = at.image * s.n + static_cast<std::int64_t>(at.row * p.h.to_step) * s.h +
                    static_cast<std::int64_t>(at.column * p.w.to_step) * s.w;
    result.image = static_cast<short>(at.image), result.row = static_cast<short>(at.row);
    result.column = static_cast<short>(at.column), result.unused = 0;
    return result;
  }
  __device__ __forceinline__ static bool exists(const TileAt& tile, const PlaceOfResult& at, int columns) {
    return at.image < tile.images && at.row < tile.rows && at.column < columns;
  }
  /// From a result of the first of joined phases to the one at the same place of phase k.
  __device__ __forceinline__ static std::int64_t to_phase(const BoxArguments& call, const TileAt& tile,
                                                          int k) {
    const BoxAxis& w = call.plan.w;
    return k == 0 ? 0 : static_cast<std::int64_t>(w.to[tile.j + k] - w.to[tile.j]) * call.to_strides.w;
  }

  /// What becomes of sums: without their scales, with their bias, as a Rectifier has them (ops/rectifier.h).
  struct Finish {
    __device__ explicit Finish(const BoxArguments& call)
        : slope(call.negative_slope),
          // Below it there are no results. NaN stays.
          least(slope == 0 ? 0.0f : -INFINITY) {
      if constexpr (Math::kScaled) scales = InverseScales(*call.largest, *call.largest_weight);
    }
    /// of_channel[i]: the bias of sums i * kCount / 2 to (i + 1) * kCount / 2.
    template <int kCount>
    __device__ __forceinline__ void operator()(float (&sums)[kCount], const float (&bias)[2]) const {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        float x = sums[i];
        const float of_channel = bias[i * 2 / kCount];
        if constexpr (Math::kScaled) {
          x = fmaf(x * scales.first, scales.second, of_channel);
        } else {
          x += of_channel;
        }
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(sums[i]) : "f"(x), "f"(least));
      }
      if (slope == 0 || slope == 1) return;
#pragma unroll
      for (float& x : sums) x = x <= 0 ? x * slope : x;
    }
    float slope, least;
    InverseScales scales;
  };

  __device__ static void load_bias(const BoxArguments& call, const TileAt& tile, float (&bias)[2]) {
    const int mine = first_channel(call, tile) + channel(call, 0), of_group = call.plan.to_channels;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      bias[i] = call.bias != nullptr && mine + i < of_group
                    ? convert<float>(static_cast<const Value*>(
                          call.bias)[static_cast<std::int64_t>(tile.group) * of_group + mine + i])
                    : 0.0f;
    }
  }

  /// Finishes a warpgroup's sums and writes them.
  __device__ static void write(const BoxArguments& call, const TileAt& tile, const PlaceOfResult* places,
                               float* staged, const Finish& finish, const float (&bias)[2],
                               const Sums& sums) {
    const int first = first_channel(call, tile);
    Value* const to = static_cast<Value*>(call.to) + first_result(call, tile);
    places += first_place(call);
    if (kJoined == 2 || call.results == BoxResults::pairs) {
      write_pairs(call, tile, places, staged, to, finish, bias, sums);
    } else if (call.results == BoxResults::rows) {
      write_rows(call, tile, places, staged, to, finish, bias, sums[0]);
    } else if (call.vectors) {
      write_vectors(call, tile, places, staged, to + first, finish, bias, sums[0]);
    } else {
      write_channels(call, tile, places, to, finish, bias, sums[0]);
    }
  }

  /// In nchw: a warp's 16 channels have a row each of kStagedPlaces results.
  __device__ __forceinline__ static void write_rows(const BoxArguments& call, const TileAt& tile,
                                                    const PlaceOfResult* places, float* staged, Value* to,
                                                    const Finish& finish, const float (&bias)[2],
                                                    const float (&sums)[kSums]) {
    const BoxPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_of_warp = first_channel(call, tile) + channel_of_warp(call);
    if (first_of_warp >= p.to_channels) return;
    float* const rows = staged + warp * (16 * kStagedPitch);
    const std::int64_t step = call.to_strides.c;
    to += first_of_warp * step;
#pragma unroll
    for (int pass = 0; pass < (N + kStagedPlaces - 1) / kStagedPlaces; ++pass) {
      if (!writes(call, pass)) continue;
#pragma unroll
      for (int i = 0; i < kStagedPlaces / 8; ++i) {
        const int k = (pass * (kStagedPlaces / 8) + i) * 4;
        if (k >= kSums) break;
        float finished[4] = {sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
        finish(finished, bias);
        float* const at = rows + lane / 4 * kStagedPitch + i * 8 + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(finished[0], finished[1]);
        *reinterpret_cast<float2*>(at + 8 * kStagedPitch) = make_float2(finished[2], finished[3]);
      }
      const int place = pass * kStagedPlaces + lane;
      const PlaceOfResult at = places[min(place, N - 1)];
      __syncwarp();
      Value values[16];
#pragma unroll
      for (int c = 0; c < 16; ++c) values[c] = convert<Value>(rows[block_row(c) * kStagedPitch + lane]);
      __syncwarp();
      if (place >= N || !exists(tile, at, tile.columns[0])) continue;
      Value* const result = to + at.offset;
      if (first_of_warp + 16 <= p.to_channels) {
#pragma unroll
        for (int c = 0; c < 16; ++c) result[c * step] = values[c];
      } else {
#pragma unroll
        for (int c = 0; c < 16; ++c)
          if (first_of_warp + c < p.to_channels) result[c * step] = values[c];
      }
    }
  }

  /// In nchw, where two results of a row are neighbours at an even place of memory: those of joined phases,
  /// or of two places. Half of a warp's channels, the even or the odd ones, have a row of 32 pairs at a time.
  __device__ __forceinline__ static void write_pairs(const BoxArguments& call, const TileAt& tile,
                                                     const PlaceOfResult* places, float* staged, Value* to,
                                                     const Finish& finish, const float (&bias)[2],
                                                     const Sums& sums) {
    constexpr int kPass = 64 / kJoined;  // places
    constexpr int kPitch = kJoined == 2 ? kJoinedPitch : kPairedPitch;
    const BoxPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int first_of_warp = first_channel(call, tile) + channel_of_warp(call);
    if (first_of_warp >= p.to_channels) return;
    float* const rows = staged + warp * (16 * kStagedPitch);
    const std::int64_t step = call.to_strides.c;
    to += first_of_warp * step;
#pragma unroll
    for (int pass = 0; pass < (N + kPass - 1) / kPass; ++pass) {
      if (!writes(call, pass)) continue;
      const int place = pass * kPass + lane * (2 / kJoined);
      const PlaceOfResult at = places[min(place, N - 1)];
      const bool mine = place < N && exists(tile, at, tile.columns[0]);
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        const float of_channels[2] = {bias[odd], bias[odd]};
#pragma unroll
        for (int i = 0; i < kPass / 8; ++i) {
          const int k = (pass * (kPass / 8) + i) * 4 + odd * 2;
          if (k >= kSums) break;
          Pack<float, 2 * kJoined> finished;
#pragma unroll
          for (int e = 0; e < 2; ++e)
#pragma unroll
            for (int phase = 0; phase < kJoined; ++phase)
              finished.values[e * kJoined + phase] = sums[phase][k + e];
          finish(finished.values, of_channels);
          *reinterpret_cast<Pack<float, 2 * kJoined>*>(rows + lane / 4 * kPitch +
                                                       (i * 8 + lane % 4 * 2) * kJoined) = finished;
        }
        __syncwarp();
        Pack<Value, 2> values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          const float2 pair = *reinterpret_cast<const float2*>(rows + c * kPitch + lane * 2);
          values[c] = {convert<Value>(pair.x), convert<Value>(pair.y)};
        }
        __syncwarp();
        if (!mine) continue;
        Value* const result = to + at.offset + odd * step;
        if (first_of_warp + 16 <= p.to_channels) {
#pragma unroll
          for (int c = 0; c < 8; ++c) *reinterpret_cast<Pack<Value, 2>*>(result + 2 * c * step) = values[c];
        } else {
#pragma unroll
          for (int c = 0; c < 8; ++c)
            if (first_of_warp + 2 * c + odd < p.to_channels)
              *reinterpret_cast<Pack<Value, 2>*>(result + 2 * c * step) = values[c];
        }
      }
    }
  }

  /// With the channels last, where there are no whole vectors of channels.
  __device__ __forceinline__ static void write_channels(const BoxArguments& call, const TileAt& tile,
                                                        const PlaceOfResult* places, Value* to,
                                                        const Finish& finish, const float (&bias)[2],
                                                        const float (&sums)[kSums]) {
    const int mine = first_channel(call, tile) + channel(call, 0);
#pragma unroll
    for (int k = 0; k < kSums; k += 4) {
      if (!writes(call, k / 4)) continue;
      float finished[4] = {sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
      finish(finished, bias);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const PlaceOfResult at = places[place(k + e)];
        if (!exists(tile, at, tile.columns[0]) || mine >= call.plan.to_channels) continue;
        Value* const result = to + at.offset + mine;
        if (call.pairs) {
          *reinterpret_cast<Pack<Value, 2>*>(result) = {convert<Value>(finished[e]),
                                                        convert<Value>(finished[2 + e])};
        } else {
          result[0] = convert<Value>(finished[e]);
          if (mine + 1 < call.plan.to_channels) result[1] = convert<Value>(finished[2 + e]);
        }
      }
    }
  }

  /// The same where whole vectors of channels are neighbours; `to`: of the warpgroup's first channel.
  __device__ __forceinline__ static void write_vectors(const BoxArguments& call, const TileAt& tile,
                                                       const PlaceOfResult* places, float* staged, Value* to,
                                                       const Finish& finish, const float (&bias)[2],
                                                       const float (&sums)[kSums]) {
    constexpr int kElements = kVectorBytes / sizeof(Value), kVectorsOfPlace = kBlockChannels / kElements;
    constexpr int kPass = 128 / sizeof(Value), kPasses = (N + kPass - 1) / kPass;  // of places
    constexpr int kPitch = kBlockChannels * sizeof(Value) + kVectorBytes;
    static_assert(2 * kPass * kPitch <= kStagedBytes);
    const int warpgroup = threadIdx.x / kWarpgroup, thread = threadIdx.x % kWarpgroup;
    char* const rows = reinterpret_cast<char*>(staged) + warpgroup * (kPass * kPitch);
    const int of_row = thread / 32 * 16 + thread % 32 / 4 * 2;
    // A row has a place's channels, and of each copy those of a place of another pass.
    const int v = thread % kVectorsOfPlace, of_copy = kVectorsOfPlace / call.copies, copy = v / of_copy;
    const int c = (v - copy * of_copy) * kElements;
    const bool has_channels = first_channel(call, tile) + c < call.plan.to_channels;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      if (writes(call, pass)) {
#pragma unroll
        for (int k = pass * (kPass / 2); k < min((pass + 1) * (kPass / 2), kSums); k += 4) {
          float finished[4] = {sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
          finish(finished, bias);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            *reinterpret_cast<Pack<Value, 2>*>(rows + (place(k + e) - pass * kPass) * kPitch +
                                               of_row * sizeof(Value)) = {convert<Value>(finished[e]),
                                                                          convert<Value>(finished[2 + e])};
          }
        }
      }
      if (pass + 1 < kPasses && !ends_turn(call, pass)) continue;
      synchronise_warpgroup();
      const int first_place = (pass / call.copies * call.copies + copy) * kPass;
#pragma unroll
      for (int i = 0; i < kPass * kVectorsOfPlace / kWarpgroup; ++i) {
        const int of_pass = thread / kVectorsOfPlace + i * (kWarpgroup / kVectorsOfPlace);
        if (first_place + of_pass >= N) break;
        const PlaceOfResult at = places[first_place + of_pass];
        if (!exists(tile, at, tile.columns[0]) || !has_channels) continue;
        *reinterpret_cast<uint4*>(to + at.offset + c) =
            *reinterpret_cast<const uint4*>(rows + of_pass * kPitch + v * kVectorBytes);
      }
      synchronise_warpgroup();
    }
  }
  __device__ __forceinline__ static void synchronise_warpgroup() {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / kWarpgroup), "n"(kWarpgroup) : "memory");
  }

  __device__ static void run(const BoxArguments& call, char* memory, Barriers& barriers) {
    const Memory at(call);
    PlaceOfResult* const places = reinterpret_cast<PlaceOfResult*>(memory + at.places);
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * N; i += kThreads) places[i] = place_of_result(call, i);
    if (threadIdx.x == 0) {
      for (int s = 0; s < kMostStages; ++s) {
        barriers.full_box[s].initialise(call.tile.slices());
        barriers.full_weight[s].initialise(2);
        barriers.empty_box[s].initialise(kConsumerThreads / 32);
        barriers.empty_weight[s].initialise(kConsumerThreads / 32);
      }
      barriers.lead.initialise(1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    await_previous<false>();
    if (threadIdx.x >= kConsumerThreads) {
      leave_registers<kOtherRegisters>();
      const int warp = (threadIdx.x - kConsumerThreads) / 32;
      if (threadIdx.x % 32 != 0) return;
      if (warp < kMostSlices) return bring_boxes(call, warp, memory, barriers);
      return bring_weights(call, warp - kMostSlices, memory + at.weights, barriers);
    }
    take_registers<kConsumerRegisters>();
    if (kParts > 1 && threadIdx.x >= kWarpgroup) pass_turn(kTurns);
    Consumer consumer(call, memory, memory + at.weights, barriers);
    const Finish finish(call);
    bool first = true;
    for (int t = blockIdx.x; t < call.tiles * call.splits; t += gridDim.x) {
      const TileAt tile(call, t);
      if (!tile.has_results()) continue;
      if (kParts == 1 && first && threadIdx.x >= kWarpgroup) barriers.lead.wait(0);
      float bias[2];
      load_bias(call, tile, bias);  // before it is needed
      Sums sums;
      consumer.multiply(tile, sums);
      if (kParts == 1 && first) consumer.end_first_tile();
      first = false;
      if (call.splits == 1) {
        write(call, tile, places, reinterpret_cast<float*>(memory + at.staged), finish, bias, sums);
      } else {
        float* const part =
            call.parts + static_cast<std::int64_t>(t) * (kJoined * kSums * kConsumerThreads) + threadIdx.x;
#pragma unroll
        for (int k = 0; k < kJoined * kSums; ++k) part[k * kConsumerThreads] = sums[k / kSums][k % kSums];
      }
    }
  }

  /// Adds the parts of four sums of each consumer of a tile.
  __device__ static void add_parts(const BoxArguments& call) {
    await_previous();
    const BoxPlan& p = call.plan;
    const TileAt tile(call, blockIdx.x);
    if (!tile.has_results()) return;
    constexpr int kOfTile = kJoined * kSums * kConsumerThreads;
    const int first = static_cast<int>(blockIdx.y) * 4, phase = first / kSums;
    const float* from =
        call.parts + static_cast<std::int64_t>(blockIdx.x) * kOfTile + first * kConsumerThreads + threadIdx.x;
    float sums[4] = {};
    for (int s = 0; s < call.splits; ++s) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[k] += from[k * kConsumerThreads];
      from += static_cast<std::int64_t>(call.tiles) * kOfTile;
    }
    Value* const to = static_cast<Value*>(call.to) + first_result(call, tile) + to_phase(call, tile, phase);
    float bias[2];
    load_bias(call, tile, bias);
    const Finish finish(call);
    finish(sums, bias);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const PlaceOfResult at = place_of_result(call, first_place(call) + place(first % kSums + k));
      const int c = first_channel(call, tile) + channel(call, k);
      if (!exists(tile, at, tile.columns_of(phase)) || c >= p.to_channels || !writes(call, 0)) continue;
      to[at.offset + static_cast<std::int64_t>(c) * call.to_strides.c] = convert<Value>(sums[k]);
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, 1) box_kernel(const __grid_constant__ BoxArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ typename K::Barriers barriers;
  const unsigned past = shared_address(memory) % 1024;
  K::run(call, reinterpret_cast<char*>(memory) + (1024 - past) % 1024, barriers);
#endif
}

template <class K>
__global__ void __launch_bounds__(kConsumerThreads)
    add_box_parts_kernel(const __grid_constant__ BoxArguments call) {
  K::add_parts(call);
}

/// The row-major weight as a plan's channels see it.
struct WeightStrides {
  std::int64_t group;
  int from, to, kernel_h, kernel_w;  // between channels of `from`, of `to`; taps are neighbours
};

/// Fills packed weights: [group][weight][tile of blocks][part][block][row][vector, swizzled]. A thread has a
/// vector of a tap and a channel of `to`; neighbours have neighbouring weights.
template <class Math>
__global__ void __launch_bounds__(kThreads)
    pack_box_weights_kernel(const __grid_constant__ BoxPlan p, const __grid_constant__ WeightStrides strides,
                            const typename Math::Value* w, int blocks, int padded_channels,
                            std::int64_t count, const unsigned* largest, uint4* packed) {
  using T = typename Math::Element;
  using Value = typename Math::Value;
  await_previous();
  constexpr int kParts = Math::kOperandParts;
  constexpr int kElements = kVectorBytes / sizeof(T);
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const unsigned taps = strides.kernel_h * strides.kernel_w, vectors = p.chunks * kVectors,
                 channels = padded_channels;
  const bool to_is_near = strides.to < strides.from;
  const unsigned near = to_is_near ? channels : vectors, of_group = taps * vectors * channels;
  const int group = static_cast<int>(i / of_group);
  const unsigned at = static_cast<unsigned>(i - static_cast<std::int64_t>(group) * of_group);
  const unsigned tap = at % taps, rest = at / taps, inner = rest % near, outer = rest / near;
  const int m = static_cast<int>(to_is_near ? inner : outer),
            v = static_cast<int>(to_is_near ? outer : inner);
  const int of_block = m % kBlockChannels,
            channel = m - of_block + of_block % (kBlockChannels / channel_copies(p.to_channels));
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
  const int kh = static_cast<int>(tap) / strides.kernel_w,
            weight = p.weight_of(kh, static_cast<int>(tap) - kh * strides.kernel_w, v);
  if (weight < 0) return;
  const int block = m / kBlockChannels, row = block_row(m % kBlockChannels);
  const std::int64_t tile =
      (static_cast<std::int64_t>(group) * p.weights + weight) * (padded_channels / kBlockChannels / blocks) +
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
    const int padded = call.tiles_block * call.blocks * kBlockChannels;
    const std::int64_t count =
        std::int64_t{p.groups} * strides.kernel_h * strides.kernel_w * p.chunks * kVectors * padded;
    launch_kernel("conv: pack", to.device(), pack_box_weights_kernel<Math>,
                  grid_size("conv", ceil_div(count, kThreads)), kThreads, p, strides,
                  static_cast<const typename Math::Value*>(w.raw()), call.blocks, padded, count,
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
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.negative_slope = static_cast<float>(negative_slope);
  call.to = to.raw();
  call.results = choice.results;
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
