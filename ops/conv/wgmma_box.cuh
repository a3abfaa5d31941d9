// conv_transpose2d and conv2d over boxes of pixels (box_plan.h) on Hopper's tensor cores.
//
//   global --tensor memory accelerator--> boxes of pixels (kPixelBytes of channels each) --+
//   global --bulk copies, or as boxes---> weights of a tap, packed, or as they lie --------+- wgmma -->
//   registers
//
// wgmma multiplies D[64 channels, N pixels] += W[64, K] * box[N, K]^T. A tap moves all pixels of a tile by
// the same number of places, so its operand is the box from another row on: nothing is copied for it. A tile
// has N places for each of two warpgroups, and one block of 64 channels, or N places and a block for each; or
// each warpgroup has tiles of its own.
//
// Where results of nchw step over columns (stride 2), a tile has N places of each of the two phases of
// columns, and twice the sums: so that rows are written whole, and a box serves both. Alone, a phase wrote
// every second element: a VAE's layers of 64 to 64 and 64 to 32 channels took 1.5 times as long. Products of
// half as many places are slower, so it does not pay for layers with many channels to read. Where phases have
// as many taps each, a pair of blocks may have one each instead and swap a half of their results
// (BoxRows::write_swapped()): tiles stay what they are, and rows are written whole. In nchw a DCGAN's
// second and third layer take 0.92 to 0.99 of the fastest other way's time; layers of many tiles, where
// blocks wait for each other at each of them, up to 1.2 times as long.
//
// Phases of rows write between each other's rows, too. Where these begin or end within sectors of memory, and
// the second-level cache does not hold all results, memory seems to write these sectors in parts. There a
// tile has all four phases, and each warpgroup a piece of each channel's image in shared memory, which
// threads copy at once (BoxRows::write_runs()): 4096 images of 14x14, 64 to 64 channels, in TF32 on an H200
// take 157 us for 335. Tiles are small so, and products slower; what bounds them is what is done with sums.
// (Loads and stores of whole vectors in place of copies: 181 us. Warpgroups with a tile each, in turns: 0.95
// of the time, for 32 channels of 28x28 1.12. A third of what a profile finds warps at are copies of threads,
// which start one after another.)
//
// Few channels are folded: neighbouring columns are one with the channels of both (fold.h). The first and the
// last tap of a row then meet only some channels, and take fewer steps of products.
//
// Operands of several parts (scaled_half.cuh) have a box and a block of weights for each part in a stage.
//
// There is a thread block for each multiprocessor, and each takes every so many tiles. Two threads of two
// warps bring boxes and two weights, or where boxes are made here one brings what they are made of and one
// weights, through a ring each, as long as there are free stages: also while the others write results. One
// warpgroup leads by some taps, so that it writes while the other one multiplies, or by one tap where a block
// has one tile; with several parts warpgroups take turns at the tensor cores.
//
// But a lead lasts no longer than stages do: in the end both warpgroups write, and tensor cores wait. So
// where there is one block of channels, warpgroups may have a tile each, in turns (BoxChoice::in_turns):
// stages are left by one of them, which passes over what comes for the other one, and one writes while the
// other one multiplies. Weights then come twice as often. Layers that take turns in TF32, channels last, take
// 0.72 to 1.01 of the time.
//
// In nchw a tile writes parts of many rows, and how these lie in memory counts: where one ends within a
// sector of 32 bytes, another tile writes the rest of it, and memory seems to write such sectors twice
// (timings say so; its traffic was not counted). In kb57 in TF32, with tiles of 54 columns, a warp took as
// long to write as products take; its input gradient took 2.8 ms, with 64 columns 2.1. So tiles end where
// sectors do or, if rows begin anywhere, are wide (kPartClocks in box_choice.h).
//
// Tried and not kept: copies of nchw images that are made while products run. Of 8 to 24 multiprocessors that
// only copy, each tells, band of pixels by band, what is there, and products wait for that. With the best
// number for each of 42 cases (the seven largest layers of bench/conv_shapes.h, float32 and TF32, all passes)
// they took 0.96 of the time with a copy before, by the geometric mean; where kernels make their boxes
// themselves (forward of kb57, kb69 and kb78 in float32) 0.97 to 1.02 of that way's time. A multiprocessor
// copied 45 bytes a clock, reading and writing: the accelerator takes some 2.8 clocks for each 128 bytes that
// it brings or stores; threads that loaded 16 bytes each copied 28. And products took longer than the
// multiprocessors that they lost say (perhaps since memory and power are shared): kb57's forward in TF32
// took 2.57 ms with 24 that copied, though by its times with 8 and with 48 the copy takes these 1.7, and
// products take the others 1.7.
//
// Nor layers of small nchw images without a copy: a block of threads had all pixels of one to four images in
// shared memory, put channels together and scaled them itself, while a kernel packed weights, and multiplied
// by mma.sync. A VAE's two layers, 128 images, took 0.75 to 1.2 times as long in float32, 0.93 to 1.4 in TF32
// and 0.96 to 1.5 in bfloat16: of 12,000 to 30,000 clocks of a block products took a quarter; what 16 warps
// wait for and jump to at the begin, between taps and to write took the rest.
//
// Boxes of nchw images may be made by two warps of the kernel, from pieces of rows that the accelerator
// brings, instead of by a copy (wgmma_box_gather.cuh). Tried before, all slower: transposing loads of 16
// bytes to registers, which wait for each other; 4 bytes along rows by cp.async, 370 instructions for 64
// columns of 32 channels where now it is some 155; the same by seven warps. What mattered then: room for a
// third stage of weights, and that rows which begin anywhere are slow to write in parts (PartsOfRows in
// box_plan.h).
//
// On an H200, channels last, forward in bfloat16 (bench/results/gpu_conv.json): 512 to 256 channels, kernel
// 4, stride 2: 763 TFLOP/s; 64 to 64 channels, 3x3: 599; 1024 to 512, kernel 2, stride 2: 621. What mattered:
// that products of a tap are in line (see multiply_tap; 1.15 to 1.4 times as fast); kernels for many numbers
// of places, as with 256 a quarter is wasted on images 64 wide; boxes without a halo (box_plan.h; up to
// 1.15). What did not: the order of the map's axes; turns of warpgroups in the weight's gradient; letting the
// next kernel's blocks come early, which made small layers 1.2 to 1.4 times as slow, or once a block has
// multiplied (0.94 to 1.18 times as long; only the kernel that adds splits' sums may); bringing all maps near
// to the accelerator before they are needed, or touching all parameters; two taps in a group of products
// where these are of few places (0.97 to 1.07 times as long); results of a block's only tile written by a
// loop from where boxes were (0.95 to 1.07 times as long: perhaps sectors that are written in parts bound
// them, not instructions); clusters of two blocks whose boxes come to both at once, which are no faster (the
// second-level cache does not bound) or slower (also where a box has one tap: unet_up and products of 1x1
// took 1.01 to 1.04 times as long), and whose arrivals at barriers must not be releases to the cluster; half
// as many bytes of weights, or half of the boxes, as if these came to two at once (1 to 2% faster); splits as
// blocks of a cluster, the first of which adds sums from shared memory (single layers 0.56 to 1.7 times as
// long, on average of 377 0.99 to 1.02), or each a share of them (111 ways took 1.04 to 1.12 times as long as
// before there were such splits; with another kernel that adds sums 0.92 to 1; an H200 has 39 clusters of
// three at once, 30 of four); weights packed by pairs of channels in another way than now (1.04 to 1.2 times
// as long); moments of channels for a batch normalisation behind it, from sums in registers with a branch for
// each place: a DCGAN's layers of 128 images in TF32 took 5, 17 and 51 us more, where reading results again
// takes 7 to 15, and large layers up to 12% more without being asked for them.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/wgmma_box_gather.cuh>
#include <tapedeck/ops/conv/wgmma_box_results.cuh>

namespace tapedeck::cu::conv_gemm {

/// What a block of threads makes.
template <class M, int kPlaces, int kOfPlace>
struct BoxKernel {
  using Math = M;
  using TileAt = BoxTileAt<kOfPlace>;
  using Output = BoxOutput<M, kPlaces, kOfPlace>;
  using Sums = typename Output::Sums;
  static constexpr int N = kPlaces, kParts = Math::kOperandParts;
  static constexpr int kJoined = kOfPlace;  // phases in a tile
  static constexpr int kThreads = kConsumerThreads + kWarpgroup;
  static constexpr int kSums = N / 2;  // of a consumer and a phase
  // Consumers of kernels that can gather leave registers to what does.
  static constexpr bool kSpares = places_can_gather(kParts, kJoined, N);
  static constexpr bool kCanGather = sizeof(typename Math::Element) == 2 && kSpares;
  static constexpr int kConsumerRegisters = kSpares ? 224 : 232, kOtherRegisters = kSpares ? 56 : 40;
  // Named barriers; kTurns: the first of two. 1 and 2 are BoxPixels'.
  static constexpr int kTurns = 3, kBringersMeet = 5, kAllMeet = 6;

  template <class F>
  __device__ __forceinline__ static void for_joined(const F& f) {
    f.template operator()<0>();
    if constexpr (kJoined > 1) f.template operator()<1>();
    if constexpr (kJoined == 4) f.template operator()<2>(), f.template operator()<3>();
  }

  /// Bytes of shared memory, and where its parts begin; all but places and the end are aligned to 1024.
  struct Memory {
    TAPEDECK_HD Memory(const BoxArguments& call)
        : weights(call.box_stages * kParts * call.box_bytes),
          staged(weights + call.weight_stages * weight_bytes(call)),
          places(staged + call.staged_bytes),
          end(places + places_bytes(call.results, N)) {}
    int weights, staged, places, end;
  };
  /// Of a tap, all parts.
  __device__ __host__ static int weight_bytes(const BoxArguments& call) {
    return kParts * call.blocks * kBlockBytes;
  }
  /// Threads that bring a share of it each.
  __device__ __host__ __forceinline__ static int weight_shares(const BoxArguments& call) {
    return call.slots > 0 ? 1 : 2;
  }
  // Rings of stages, in the order of the warps that make their barriers.
  static constexpr int kFullBox = 0, kEmptyBox = 1, kFullWeight = 2, kEmptyWeight = 3;
  struct Barriers {
    Barrier rings[4][kMostStages];
    Barrier lead;
    GatherBarriers gathered;
    SwapBarriers swap;
  };

  struct Position {
    int stage = 0;
    unsigned turn = 0;
    __device__ void advance(int stages) {
      if (++stage == stages) stage = 0, ++turn;
    }
  };

  /// Calls f with a thread block's tiles, of which it has the first one. Addresses of the others must be
  /// computed for all threads of a warp at once, by instructions that take only what follows from parameters
  /// and the block: else who brings is too slow for tensor cores (unet_up in nchw took 1.06 times as long).
  template <class F>
  __device__ __forceinline__ static void for_tiles(const BoxArguments& call, const TileAt& first,
                                                   const F& f) {
    f(first);
#pragma unroll 1
    for (int t = blockIdx.x + gridDim.x; t < call.tiles * call.splits; t += gridDim.x) f(TileAt(call, t));
  }

  /// A slice of each box.
  __device__ static void bring_boxes(const BoxArguments& call, const TileAt& first, int slice, char* memory,
                                     Barriers& barriers) {
    const BoxPlan& p = call.plan;
    if (slice >= call.slices) return;
    const int bytes = call.slice * call.tile.row_pixels() * kPixelBytes, row = slice * call.slice;
    Position at;
    for_tiles(call, first, [&](const TileAt& tile) {
      BoxPlan::Box box = p.box_of(tile.phase, tile.begin);
#pragma unroll 1
      for (int b = tile.begin; b < tile.end; ++b, p.advance(box), at.advance(call.box_stages)) {
        const BoxTaps &h = p.h.of[box.i], &w = p.w.of[box.j];
        const CUtensorMap& map = call.maps[h.plane * p.w.planes + w.plane];
        if (at.turn > 0) barriers.rings[kEmptyBox][at.stage].wait((at.turn - 1) & 1);
        Barrier& full = barriers.rings[kFullBox][at.stage];
        full.arrive_and_expect(kParts * bytes);
        if (b == tile.begin) await_previous<false>();
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          full.copy_box(memory + (at.stage * kParts + part) * call.box_bytes + slice * bytes, map,
                        box.chunk * kVectors * p.elements, tile.column + w.origin, tile.image,
                        tile.row + row + h.origin, part * p.groups + tile.group);
        }
      }
    });
  }

  /// The same of nchw images: one warp brings pieces of rows, others make boxes of them.
  __device__ __forceinline__ static void make_boxes(const BoxArguments& call, int warp, char* memory,
                                                    Barriers& barriers) {
    char* const slots = memory - call.gather_bytes;
    if (warp > 0) {
      BoxGatherer<Math>(call, memory, slots, warp - 1)
          .run(warp - 1, barriers.gathered, barriers.rings[kFullBox], barriers.rings[kEmptyBox]);
    } else if (is_first_of_warp()) {
      if (call.pieces.flat) {
        bring_pieces<kJoined, true>(call, kParts, slots, barriers.gathered);
      } else {
        bring_pieces<kJoined, false>(call, kParts, slots, barriers.gathered);
      }
    }
  }

  /// A share of each tap's weights.
  __device__ static void bring_weights(const BoxArguments& call, const TileAt& first, int share, int shares,
                                       char* weights, Barriers& barriers) {
    const BoxPlan& p = call.plan;
    const int bytes = weight_bytes(call), mine = bytes / shares;
    weights += share * mine;
    Position at;
    for_tiles(call, first, [&](const TileAt& tile) {
      BoxPlan::Box box = p.box_of(tile.phase, tile.begin);
#pragma unroll 1
      for (int b = tile.begin; b < tile.end; ++b, p.advance(box)) {
#pragma unroll 1
        for (int k = 0; k < kJoined; ++k) {
          const int i = box.i + BoxPlan::row_of_joined(k), j = box.j + BoxPlan::column_of_joined(k),
                    taps = p.taps(i, j);
          const char* from =
              call.packed +
              ((static_cast<std::int64_t>(tile.group) * p.weights + p.weight_of_taps(i, j, box.chunk)) *
                   call.tiles_block +
               tile.block) *
                  bytes +
              share * mine;
          if (b == tile.begin) await_previous<false>();
#pragma unroll 1
          for (int tap = 0; tap < taps; ++tap, at.advance(call.weight_stages)) {
            if (at.turn > 0) barriers.rings[kEmptyWeight][at.stage].wait((at.turn - 1) & 1);
            barriers.rings[kFullWeight][at.stage].arrive_with_copy(weights + at.stage * bytes, from, mine);
            from += static_cast<std::int64_t>(call.tiles_block) * bytes;
          }
        }
      }
    });
  }

  /// The same of weights as they lie, a half of each block's rows.
  __device__ static void bring_lying_weights(const BoxArguments& call, const TileAt& first, int half,
                                             char* weights, Barriers& barriers) {
    const BoxPlan& p = call.plan;
    const int bytes = weight_bytes(call), all = call.blocks, row = half * kWeightRows;
    const CUtensorMap& map = call.maps[kMaxPlanes];
    const bool of_to = call.weights == BoxWeights::rows_of_to;
    constexpr int kChunk = kPixelBytes / sizeof(typename Math::Element);
    weights += row * kPixelBytes;
    Position at;
    for_tiles(call, first, [&](const TileAt& tile) {
      const int to_channel = tile.block * all * kBlockChannels;
      BoxPlan::Box box = p.box_of(tile.phase, tile.begin);
#pragma unroll 1
      for (int b = tile.begin; b < tile.end; ++b, p.advance(box)) {
        const int rows = p.h.of[box.i].taps, columns = p.w.of[box.j].taps;
        if (b == tile.begin) await_previous<false>();
#pragma unroll 1
        for (int y = 0; y < rows; ++y)
#pragma unroll 1
          for (int x = 0; x < columns; ++x, at.advance(call.weight_stages)) {
            if (at.turn > 0) barriers.rings[kEmptyWeight][at.stage].wait((at.turn - 1) & 1);
            Barrier& full = barriers.rings[kFullWeight][at.stage];
            full.arrive_and_expect(all * kWeightRows * kPixelBytes);
            const int tap = p.tap_of(box.i, box.j, y, x, call.kernel_w);
#pragma unroll 1
            for (int block = 0; block < all; ++block) {
              const int to = to_channel + block * kBlockChannels, from = box.chunk * kChunk;
              full.copy_box(weights + at.stage * bytes + block * kBlockBytes, map, of_to ? from : to, tap,
                            (of_to ? to : from) + row, tile.group, 0);
            }
          }
      }
    });
  }

  /// What a warpgroup multiplies.
  ///
  /// Between two taps a warp has to do little: while one warpgroup writes results, the other one alone keeps
  /// the tensor cores busy. With 108 instructions a tap, 560 clocks, where products of four steps of 256
  /// places take 512 (a profile on an H200), it could not: both warpgroups multiplied at the same time, and
  /// then both wrote. So all that a tap does not change is in registers, addresses are of shared memory, and
  /// what is the same for all threads of a warp is known to be.
  class Consumer {
   public:
    __device__ Consumer(const BoxArguments& call, const char* memory, const char* weights, Barriers& barriers,
                        int warpgroup)
        : call_(call),
          boxes_(barriers.rings[kFullBox], barriers.rings[kEmptyBox], call.box_stages),
          weights_(barriers.rings[kFullWeight], barriers.rings[kEmptyWeight], call.weight_stages),
          lead_(shared_address(&barriers.lead)),
          box_at_(descriptor_of(memory) +
                  (call.halves == 2 ? warpgroup * call.half * (kPixelBytes / 16) : 0)),
          weight_at_(descriptor_of(weights) + (call.blocks == 1 ? 0 : warpgroup * (kBlockBytes / 16))),
          weight_step_(uniform(static_cast<unsigned>(weight_bytes(call)) / 16)),
          before_lead_(call.lead) {}

    /// Starts a tile's products; its last ones are under way until finish().
    __device__ __forceinline__ void start(const TileAt& tile, Sums& sums) {
      const BoxPlan& p = call_.plan;
      box_before_ = weight_before_ = -1;
#pragma unroll
      for (int k = 0; k < kJoined; ++k) {
        has_products_[k] = false;
        if constexpr (kParts > 1) clear(sums[k]);
      }
      const bool whole = p.all_steps() == p.chunks * kMostSteps && !p.is_narrow;
      constexpr bool kFewRegisters = kParts * kJoined >= 4;  // for another loop
      const auto multiply = [&]<bool kTransposed>() {
        if (!kFewRegisters && whole) {
          multiply_boxes<kTransposed, kFewRegisters ? -1 : kMostSteps>(tile, sums);
        } else {
          multiply_boxes<kTransposed, -1>(tile, sums);
        }
      };
      if (kTransposable && call_.weights == BoxWeights::rows_of_from) {
        multiply.template operator()<kTransposable>();
      } else {
        multiply.template operator()<false>();
      }
    }
    __device__ __forceinline__ void finish(Sums& sums) {
      if constexpr (kParts == 1) {
        wgmma_wait<0>();
#pragma unroll
        for (int k = 0; k < kJoined; ++k) pin(sums[k]);
        if (weight_before_ >= 0) weights_.leave(weight_before_);
        if (box_before_ >= 0) boxes_.leave(box_before_);
#pragma unroll
        for (int k = 0; k < kJoined; ++k)
          if (!has_products_[k]) {  // hardly ever: else it would be a selection of each sum
            clear(sums[k]);
            pin(sums[k]);
          }
      }
    }

    /// Leaves out what is brought for a tile of the other warpgroup, which is not split.
    __device__ void skip(const TileAt& tile) {
      boxes_.advance(tile.end - tile.begin);
      if (tile.has_results()) weights_.advance(call_.plan.taps_of(tile.phase));
    }

    /// Lets the other warpgroup begin, at the latest after the first tile.
    __device__ void end_first_tile() {
      if (before_lead_ > 0 && threadIdx.x == 0) Barrier::arrive_at(lead_);
      before_lead_ = 0;
    }

   private:
    static constexpr bool kTransposable = Output::kWeightsCanLie && sizeof(typename Math::Element) == 2;
    __device__ __forceinline__ static void clear(float (&sums)[kSums]) {
#pragma unroll
      for (float& x : sums) x = 0;
    }
    /// A place in a ring of stages; the first of two rows of barriers in shared memory.
    struct Ring {
      __device__ Ring(const Barrier* full, const Barrier* empty, int all)
          : full_at(uniform(shared_address(full))), empty_at(uniform(shared_address(empty))), stages(all) {}
      __device__ __forceinline__ void wait() const { Barrier::wait_at(full_at + stage * kBarrier, turn); }
      /// After the warp has waited for its products: all its threads are there.
      __device__ __forceinline__ void leave(int left) const {
        if (threadIdx.x % 32 == 0) Barrier::arrive_at(empty_at + left * kBarrier);
      }
      __device__ __forceinline__ void advance() {
        if (++stage == stages) stage = 0, turn ^= 1;
      }
      __device__ void advance(int count) {
        const int turns = (stage + count) / stages;
        stage += count - turns * stages, turn ^= turns & 1;
      }
      static constexpr unsigned kBarrier = sizeof(Barrier);
      unsigned full_at, empty_at;
      int stages, stage = 0;
      unsigned turn = 0;
    };

    static constexpr int kMostSteps = kVectors / 2;  // of 32 bytes, of a box
    /// Adds the products of a tile. kSteps: the steps of every box; -1: boxes may have fewer.
    template <bool kTransposed, int kSteps>
    __device__ __forceinline__ void multiply_boxes(const TileAt& tile, Sums& sums) {
      const BoxPlan& p = call_.plan;
      BoxPlan::Box box = p.box_of(tile.phase, tile.begin);
#pragma unroll 1
      for (int b = tile.begin; b < tile.end; ++b, p.advance(box)) {
        boxes_.wait();
        for_joined([&]<int kPhase>() {
          if constexpr (kSteps > 0) {
            multiply_taps<kPhase, kTransposed, kSteps>(box, kSteps, sums[kPhase], has_products_[kPhase]);
          } else {
            multiply_box<kPhase, kTransposed>(box, sums[kPhase], has_products_[kPhase]);
          }
        });
        if constexpr (kParts > 1) {
          boxes_.leave(boxes_.stage);
        } else {
          box_before_ = boxes_.stage;  // each box has taps, at the first of which the one before is left
        }
        boxes_.advance();
      }
    }
    /// Adds the products of a joined phase and the box that is there.
    template <int kPhase, bool kTransposed>
    __device__ __forceinline__ void multiply_box(const BoxPlan::Box& box, float (&sums)[kSums],
                                                 bool& has_products) {
      const int steps = call_.plan.steps(box.chunk);
      const auto multiply = [&]<int kSteps>() {
        multiply_taps<kPhase, kTransposed, kSteps>(box, steps, sums, has_products);
      };
      if (kJoined == 1 && call_.plan.is_narrow) {
        multiply.template operator()<kJoined == 1 ? 0 : 1>();
      } else if (steps == kMostSteps) {
        multiply.template operator()<kMostSteps>();
      } else if (steps == 3) {
        multiply.template operator()<3>();
      } else if (steps == 2) {
        multiply.template operator()<2>();
      } else {
        multiply.template operator()<1>();
      }
    }
    /// Adds the products of the taps of the box that is there. kTransposed: with rows of `from`. kSteps: all
    /// that the box has; 0: the first and the last tap of a row perhaps take fewer, at least one. (For joined
    /// phases, which are not folded, there would not be enough registers.)
    template <int kPhase, bool kTransposed, int kSteps>
    __device__ __forceinline__ void multiply_taps(const BoxPlan::Box& box, int steps, float (&sums)[kSums],
                                                  bool& has_products) {
      const BoxPlan& p = call_.plan;
      const BoxTaps &h = p.h.of[box.i + BoxPlan::row_of_joined(kPhase)],
                    &w = p.w.of[box.j + BoxPlan::column_of_joined(kPhase)];
      int begin = 0, end = steps;
      if (kSteps == 0) {
        const int before = box.chunk * kMostSteps;
        begin = min(max(p.steps_from[box.j] - before, 0), steps - 1);
        end = min(max(p.steps_to[box.j] - before, 1), steps);
      }
      constexpr unsigned kPixel = kPixelBytes / 16, kStep = step_of_weights(kTransposed);
      const int rows = uniform(h.taps), columns = uniform(w.taps);
      const unsigned right = uniform(w.shift * kPixel), down = h.shift * call_.tile.row_pixels() * kPixel;
      unsigned row = box_at_ + boxes_.stage * kParts * call_.box_bytes / 16 + w.first * kPixel;
      if constexpr (kJoined == 4) row += h.first * call_.tile.row_pixels() * kPixel;
#pragma unroll 1
      for (int y = 0; y < rows; ++y, row += down) {
        unsigned from = row;
#pragma unroll 1
        for (int x = 0; x < columns; ++x, from += right) {
          const unsigned weights = uniform(weight_at_ + weights_.stage * weight_step_),
                         pixels = uniform(from);
          weights_.wait();
          if constexpr (kSteps > 0) {
            multiply_tap<kSteps, kTransposed>(weights, pixels, sums, has_products);
          } else {
            const int first = x == 0 ? begin : 0, count = uniform((x == columns - 1 ? end : steps) - first);
            const unsigned m = uniform(weights + kStep * first), n = uniform(pixels + 2 * first);
            if (count == 4) {
              multiply_tap<4, kTransposed>(m, n, sums, has_products);
            } else if (count == 3) {
              multiply_tap<3, kTransposed>(m, n, sums, has_products);
            } else if (count == 2) {
              multiply_tap<2, kTransposed>(m, n, sums, has_products);
            } else {
              multiply_tap<1, kTransposed>(m, n, sums, has_products);
            }
          }
          has_products = true;
          weights_.advance();
        }
      }
    }
    /// In a descriptor, to the next 16 channels.
    static constexpr unsigned step_of_weights(bool transposed) {
      return transposed ? 16 * kPixelBytes / 16 : 2;
    }
    /// Adds a tap's products of these matrices; what the tap before has read is left.
    template <int kSteps, bool kTransposed>
    __device__ __forceinline__ void multiply_tap(unsigned weights, unsigned pixels, float (&sums)[kSums],
                                                 bool has_products) {
      if constexpr (kParts == 1) {
        constexpr unsigned kStep = step_of_weights(kTransposed);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
          wgmma<Math, N, kTransposed>(sums, descriptor(weights + kStep * s), descriptor(pixels + 2 * s),
                                      s > 0 || has_products);
        wgmma_commit();
        if (--before_lead_ == 0 && threadIdx.x == 0) Barrier::arrive_at(lead_);
        if (weight_before_ >= 0) {
          wgmma_wait<1>();
          weights_.leave(weight_before_);
          if (box_before_ >= 0) boxes_.leave(box_before_);
          box_before_ = -1;
        }
        weight_before_ = weights_.stage;
      } else {
        add_parts_of_tap<kSteps>(sums, weights, pixels);
        weights_.leave(weights_.stage);
      }
    }
    /// Adds a tap's products of parts: summed by tensor cores, which truncate, only for the tap, those of the
    /// smaller parts first. Warpgroups take turns, so that one multiplies while the other one adds: without,
    /// tensor cores serve both at once, and both add at once.
    template <int kSteps>
    __device__ __forceinline__ void add_parts_of_tap(float (&sums)[kSums], unsigned weights,
                                                     unsigned from) const {
      const unsigned next_weights = call_.blocks * (kBlockBytes / 16), next_from = call_.box_bytes / 16;
      float of_tap[kSums];
      const int warpgroup = threadIdx.x / kWarpgroup;
      await_turn(kTurns + warpgroup);
      wgmma_fence();
#pragma unroll
      for (int product = 0; product < 3; ++product) {
        const unsigned w = weights + (product == 0 ? next_weights : 0),
                       x = from + (product == 1 ? next_from : 0);
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
          wgmma<Math, N>(of_tap, descriptor(w + 2 * s), descriptor(x + 2 * s), product > 0 || s > 0);
      }
      wgmma_commit();
      pass_turn(kTurns + 1 - warpgroup);
      wgmma_wait<0>();
      pin(of_tap);
#pragma unroll
      for (int k = 0; k < kSums; ++k) sums[k] += of_tap[k];
    }

    const BoxArguments& call_;
    Ring boxes_, weights_;
    unsigned lead_, box_at_, weight_at_;        // matrices: the lower words of their descriptors
    unsigned weight_step_;                      // to the next stage
    int before_lead_;                           // taps until the other warpgroup may begin
    int box_before_ = -1, weight_before_ = -1;  // stages that products under way may still read
    bool has_products_[kJoined] = {};
  };

  /// Has a tile be known here, not only where it is used.
  __device__ __forceinline__ static void settle(TileAt& tile) {
    asm volatile(""
                 : "+r"(tile.phase), "+r"(tile.image), "+r"(tile.row), "+r"(tile.column), "+r"(tile.block),
                   "+r"(tile.group), "+r"(tile.begin), "+r"(tile.end));
  }

  /// Reads anew what would else be kept in a register from the kernel's begin on.
  __device__ __forceinline__ static bool is_first_of_warp() {
    unsigned lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane == 0;
  }

  /// Whether this call is one that repeats what was not wrong.
  __device__ __forceinline__ static bool repeats_nothing(const BoxArguments& call) {
    if constexpr (Math::kScaled) {
      if (call.repeats) {
        await_previous<false>();
        return !is_beyond(call.largest[1], call.largest[0]);
      }
    }
    return false;
  }

  /// What the warps beside the consumers do.
  __device__ __forceinline__ static void bring(const BoxArguments& call, char* memory, const Memory& at,
                                               Barriers& barriers, int warp) {
    leave_registers<kOtherRegisters>();
    if (is_first_of_warp()) {
      prefetch_map(call.maps[warp < kMostSlices || call.weights == BoxWeights::packed ? 0 : kMaxPlanes]);
      Barrier* const ring = barriers.rings[warp];
      const int arrivals = call.arrivals[warp];
#pragma unroll
      for (int s = 0; s < kMostStages; ++s) ring[s].initialise(arrivals);
      if (kCanGather && call.slots > 0 && warp == 0) [[unlikely]]
        barriers.gathered.initialise();
      fence_initialised();
    }
    TileAt first(call, blockIdx.x);
    settle(first);
    meet<kWarpgroup>(kBringersMeet);
    if (call.results == BoxResults::swapped) {
      synchronise_cluster();
    } else {
      arrive<kThreads>(kAllMeet);  // consumers are ready later
    }
    if (repeats_nothing(call)) return;
    if constexpr (kCanGather) {
      if (call.slots > 0 && warp <= kGatherWarps) {
        await_previous<false>();
        return make_boxes(call, warp, memory, barriers);
      }
    }
    if (!is_first_of_warp()) return;
    if (warp < kMostSlices) return bring_boxes(call, first, warp, memory, barriers);
    const int share = call.slots > 0 ? 0 : warp - kMostSlices;
    if (Output::kWeightsCanLie && call.weights != BoxWeights::packed)
      return bring_lying_weights(call, first, share, memory + at.weights, barriers);
    bring_weights(call, first, share, weight_shares(call), memory + at.weights, barriers);
  }

  /// In line: at a call the assembler lets each product wait for itself (C7510), 1.3 to 1.8 times as long.
  __device__ __forceinline__ static void run(const BoxArguments& call, char* memory, Barriers& barriers) {
    const Memory at(call);
    // Small layers have a tile for each multiprocessor, and an eighth to a half of their time is over before
    // the first product: in dcgan2 in bfloat16, channels last, of some 28,000 clocks of a block 5,200 until
    // its first box was asked for, and 1,200 until that came (clocks read in the kernel, an H200). It is not
    // arithmetic. In small kernels of their own, a jump to code that the launch had not run yet took 75 to
    // 100 clocks, or up to 300 where another kernel had run in between (straight code does not wait), and a
    // line of 64 bytes of parameters that had not been read yet another 70; lines that different warps read
    // came one after another. So what is looked at first is together in parameters, on the way to the first
    // box little is jumped over, and warps that bring wait for no consumer, nor for the kernel before until
    // they know what comes first. Layers of a DCGAN and a VAE in bfloat16 then took 0.83 to 1.03 of the
    // time (forward and input gradient).
    const int other = uniform(static_cast<int>(threadIdx.x) / 32) - kConsumerThreads / 32;
    if (other >= 0) return bring(call, memory, at, barriers, other);
    if (threadIdx.x == 0) {
      barriers.lead.initialise(1);
      if (call.results == BoxResults::swapped) barriers.swap.initialise();
      fence_initialised();
    }
    if (Output::needs_places(call)) {
      PlaceOfResult* const places = reinterpret_cast<PlaceOfResult*>(memory + at.places);
#pragma unroll 1
      for (int i = threadIdx.x; i < 2 * N; i += kConsumerThreads)
        places[i] = Output::place_of_result(call, i);
    }
    if (call.results == BoxResults::swapped) {
      synchronise_cluster();
    } else {
      meet<kThreads>(kAllMeet);
    }
    if (repeats_nothing(call)) return;
    take_registers<kConsumerRegisters>();
    const int warpgroup = uniform(static_cast<int>(threadIdx.x) / kWarpgroup);
    const bool in_turns = kParts == 1 && call.in_turns;
    if ((kParts > 1 || in_turns) && warpgroup > 0) pass_turn(kTurns);
    Consumer consumer(call, memory, memory + at.weights, barriers, warpgroup);
    await_previous<false>();
    const typename Output::Finish finish(call);
    const int all = call.tiles * call.splits, blocks = gridDim.x;
    // In turns: a tile of the other warpgroup's is after each one, or before the first. Nobody waits for what
    // a stage brings next before all that it brought the other one is there: barriers only know odd from
    // even.
    const auto skip = [&](int t) {
      if (in_turns && t < all) consumer.skip(TileAt(call, t));
    };
    const auto in_turn = [&](const auto& multiply) {
      if (in_turns) await_turn(kTurns + warpgroup);
      multiply();
      if (in_turns) pass_turn(kTurns + 1 - warpgroup);
    };
    const bool is_second = in_turns && warpgroup > 0;
    if (is_second) skip(blockIdx.x);
    bool first = !in_turns;
    int t = blockIdx.x + (is_second ? blocks : 0);
    TileAt tile(call, min(t, all - 1));
    while (t < all) {
      const int next = t + (in_turns ? 2 : 1) * blocks;
      if (!tile.has_results()) {
        in_turn([] {});
        skip(t + blocks);
        t = next;
        tile = TileAt(call, min(next, all - 1));
        continue;
      }
      if (kParts == 1 && first && warpgroup > 0) barriers.lead.wait(0);
      float bias[2];
      constexpr bool kFewRegisters = kParts * kJoined >= 4;
      if (!kFewRegisters) Output::load_bias(call, tile, bias);  // before it is needed
      Sums sums;
      in_turn([&] { consumer.start(tile, sums); });
      if (kFewRegisters) Output::load_bias(call, tile, bias);
      if (kParts == 1 && first) consumer.end_first_tile();
      first = false;
      const TileAt next_tile(call, min(next, all - 1));  // while the last products are under way
      consumer.finish(sums);
      if (call.splits == 1) {
        for_joined([&]<int kPhase>() { finish(sums[kPhase], bias); });
        Output::write(call, kFewRegisters ? TileAt(call, t) : tile,  // else a part of it would be spilled
                      reinterpret_cast<const PlaceOfResult*>(memory + at.places), memory + at.staged,
                      barriers.swap, sums);
      } else {
        leave_room();  // for the kernel that adds sums
        float* const part =
            call.parts + static_cast<std::int64_t>(t) * (kJoined * kSums * kConsumerThreads) + threadIdx.x;
#pragma unroll
        for (int k = 0; k < kJoined * kSums; ++k) part[k * kConsumerThreads] = sums[k / kSums][k % kSums];
      }
      skip(t + blocks);
      t = next;
      tile = next_tile;
    }
    Output::end(call);
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, 1) box_kernel(const __grid_constant__ BoxArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ typename K::Barriers barriers;
  const unsigned past = shared_address(memory) % 1024;
  K::run(call, reinterpret_cast<char*>(memory) + (1024 - past) % 1024 + call.gather_bytes, barriers);
#endif
}

template <class K>
__global__ void __launch_bounds__(kConsumerThreads)
    add_box_parts_kernel(const __grid_constant__ BoxArguments call) {
  K::Output::add_parts(call);
}

}  // namespace tapedeck::cu::conv_gemm
