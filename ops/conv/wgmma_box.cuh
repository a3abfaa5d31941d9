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
// Where results of nchw step over columns (stride 2), a tile has N places of each of the two phases of
// columns, and twice the sums: so that rows are written whole, and a box serves both. Alone, a phase wrote
// every second element: a VAE's layers of 64 to 64 and 64 to 32 channels took 1.5 times as long. Products of
// half as many places are slower, so it does not pay for layers with many channels to read.
//
// Operands of several parts (scaled_half.cuh) have a box and a block of weights for each part in a stage.
//
// There is a thread block for each multiprocessor, and each takes every so many tiles. Two threads of two
// warps bring boxes and two weights, through a ring each, as long as there are free stages: also while the
// others write results. One warpgroup leads by some taps, so that it writes while the other one multiplies;
// with several parts warpgroups take turns at the tensor cores.
//
// On an H200, channels last, forward in bfloat16 (bench/results/gpu_conv.json): 512 to 256 channels, kernel
// 4, stride 2: 586 TFLOP/s; 64 to 64 channels, 3x3: 462, where tensor cores still wait for results to be
// written. A box with one tap brings as much as windows do, and is no faster. What mattered: that products of
// a tap are in line (see Consumer::multiply; 1.15 to 1.4 times as fast); kernels for many numbers of places,
// as with 256 a quarter is wasted on images 64 wide. What did not: the order of the map's axes; turns of
// warpgroups in the weight's gradient; letting the next kernel's blocks come early, which made small
// layers 1.2 to 1.4 times as slow.
#pragma once

#include <algorithm>

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
  static constexpr int kJoined = kOfPlace;  // phases of columns in a tile
  static constexpr int kThreads = kConsumerThreads + kWarpgroup;
  static constexpr int kConsumerRegisters = 232, kOtherRegisters = 40;
  static constexpr int kSums = N / 2;  // of a consumer and a phase
  static constexpr int kTurns = 3;     // the first of two named barriers

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

  __device__ static void run(const BoxArguments& call, char* memory, Barriers& barriers) {
    const Memory at(call);
    PlaceOfResult* const places = reinterpret_cast<PlaceOfResult*>(memory + at.places);
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * N; i += kThreads) places[i] = Output::place_of_result(call, i);
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
    const typename Output::Finish finish(call);
    bool first = true;
    for (int t = blockIdx.x; t < call.tiles * call.splits; t += gridDim.x) {
      const TileAt tile(call, t);
      if (!tile.has_results()) continue;
      if (kParts == 1 && first && threadIdx.x >= kWarpgroup) barriers.lead.wait(0);
      float bias[2];
      Output::load_bias(call, tile, bias);  // before it is needed
      Sums sums;
      consumer.multiply(tile, sums);
      if (kParts == 1 && first) consumer.end_first_tile();
      first = false;
      if (call.splits == 1) {
        Output::write(call, tile, places, reinterpret_cast<float*>(memory + at.staged), finish, bias, sums);
      } else {
        float* const part =
            call.parts + static_cast<std::int64_t>(t) * (kJoined * kSums * kConsumerThreads) + threadIdx.x;
#pragma unroll
        for (int k = 0; k < kJoined * kSums; ++k) part[k * kConsumerThreads] = sums[k / kSums][k % kSums];
      }
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
  K::Output::add_parts(call);
}

}  // namespace tapedeck::cu::conv_gemm
