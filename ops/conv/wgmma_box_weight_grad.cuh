// The weight's gradient over boxes of pixels (box_plan.h) on Hopper's tensor cores, for 16-bit operands: of
// 16-bit types, or scaled halves (scaled_half.cuh).
//
//   gw[ci, co, tap] = sum over pixels i of x[i, ci] * plane[i + shift(tap), co]
// for taps that read one of y's planes. wgmma multiplies D[64 ci, N] += A[64 ci, 16 pixels] * B[N, 16
// pixels]^T with both operands as they lie, a row of 64 channels for each pixel: 16-bit types may be
// transposed on the way to the tensor cores. B is `kAtoms` blocks of 64 channels of y, `atom_step` bytes
// apart: those of neighbouring taps of a row, a row of shared memory apart, so that A is read once for all,
// or where a plane has one tap or taps have boxes of their own, of kAtoms boxes.
//
// A warpgroup has D for a block of ci and a unit, kAtoms taps of a row or one less. A thread block has the
// units and blocks of ci that share boxes, and a range of tiles of pixels, whose sums it writes; a last
// kernel adds the sums of all ranges in their order (wgmma_weight_grad.cuh). Where there is little to
// multiply, blocks of neighbouring ranges are a cluster: each adds a share of what they have in shared
// memory, in their order, before it writes. If these are all sums and the weight has its channels last,
// blocks write the weight. (An H200, dcgan2 in bfloat16: 30 to 23 us with boxes of taps, a cluster, and
// without the last kernel.)
//
// Tensor cores truncate what they add: after kFlush steps D is added to what is written already, in float32.
// Operands of two parts are multiplied three times, the products of kFlushOfParts steps are added in
// registers, and the other warpgroup multiplies meanwhile.
//
// A small layer takes as long to begin as to multiply: with divisions by multiplying, and zeros only where no
// box is brought, dcgan2 took 20.2 instead of 23.3 us in bfloat16 with channels last (an H100). Since warps
// that bring do not wait for those that make zeros (see BoxKernel::run()), and the kernel that adds sums gets
// ready while these are written, in bfloat16 with channels last such layers take 0.90 to 1 of the time (an
// H200).
//
// Pixels that do not exist are zeros in x. A box of y of whole rows is read past its end at such pixels:
// there are zeros, too.
#pragma once

#include <optional>

#include <tapedeck/ops/conv/box_grad_plan.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/fold.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>
#include <tapedeck/ops/conv/tensor_map.cuh>
#include <tapedeck/ops/conv/wgmma_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

struct BoxGradArguments {
  BoxGradPlan plan;
  CUtensorMap x_map, y_maps[kMaxPlanes];
  float* parts;
  const unsigned *largest_x, *largest_y;           // two words each (largest.cuh), where these are scaled
  int groups, ci, co, kernel_w, y_channels, rows;  // as in WgmmaWeightGradArguments
  int split_tiles, stages;
  int cluster;  // blocks of neighbouring ranges that add their sums
  void* w;      // of channels last, where blocks write the weight itself; else nullptr: parts of sums
  int taps;
};
static_assert(sizeof(BoxGradArguments) <= 4096);

template <class M, int kAtomsOfTile>
struct BoxGradKernel {
  using Math = M;
  static constexpr int kParts = Math::kOperandParts;
  static constexpr int kAtoms = kAtomsOfTile;
  static constexpr int kWarpgroups = grad_warpgroups(kAtoms, kParts);
  static constexpr int kConsumers = kWarpgroups * 128, kThreads = kConsumers + 128;
  // Steps until D is added to what is written. Results of 16 bits can do with less accuracy.
  static constexpr int kFlush = Math::kScaled ? 512 : 2048;
  static_assert(kFlush >= BoxGradPlan::kMostSteps);
  static constexpr int kStepWords = 16 * kPixelBytes / 16;  // from a step's pixels to the next one's
  static constexpr int kMostStages = 4;
  // Those who bring leave some of theirs.
  static constexpr int kConsumerRegisters = kWarpgroups == 2   ? 232
                                            : kWarpgroups == 3 ? 152
                                                               : 104,
                       kOtherRegisters = kWarpgroups == 4 ? 64 : 40;

  static constexpr int kBringersMeet = 2, kAllMeet = 3;  // named barriers; 1 is add_of_cluster()'s

  struct Barriers {
    Barrier full[kMostStages], empty[kMostStages];
  };

  /// What a thread block has.
  struct Work : BoxGradPlan::Work {
    __device__ explicit Work(const BoxGradArguments& call)
        : BoxGradPlan::Work(call.plan.work(blockIdx.x)),
          begin(blockIdx.y * call.split_tiles),
          end(min(call.plan.tiles(), begin + call.split_tiles)) {}
    int begin, end;
  };

  __device__ static void bring(const BoxGradArguments& call, const Work& work, bool is_x, int slice,
                               char* memory, Barriers& barriers) {
    const BoxGradPlan& p = call.plan;
    const BoxTile& box = is_x ? p.tile.x : p.tile.y;
    if (slice >= box.slices()) return;
    const int bytes = box.slice_pixels() * kPixelBytes;
    const bool of_taps = !is_x && p.tile.of_taps;
    // Of blocks of channels, or of a row's taps.
    const int boxes = is_x      ? p.x_blocks
                      : of_taps ? p.planes.w.of[work.j].taps
                                : p.y_blocks,
              first = is_x ? work.x_block : work.y_block;
    const int of_box = is_x ? p.tile.x_bytes : p.tile.y_bytes;
    memory += (is_x ? 0 : p.x_blocks * p.tile.x_bytes) + slice * bytes;
    const CUtensorMap& map = is_x ? call.x_map : call.y_maps[work.plane];
    int stage = 0;
    unsigned turn = 0;
    for (int t = work.begin; t < work.end; ++t) {
      const BoxGradPlan::Pixels at = p.pixels(t);
      const int row = at.row + slice * box.slice() + (is_x ? 0 : p.planes.h.of[work.i].origin);
      if (turn > 0) barriers.empty[stage].wait((turn - 1) & 1);
      Barrier& full = barriers.full[stage];
      full.arrive_and_expect(kParts * bytes * boxes);
      if (t == work.begin) await_previous<false>();
      for (int part = 0; part < kParts; ++part) {
        char* const to = memory + stage * p.stage_bytes() + part * p.part_bytes();
        for (int b = 0; b < boxes; ++b) {
          full.copy_box(to + b * of_box, map, (first + (of_taps ? 0 : b)) * kBlockChannels,
                        at.column + (is_x ? 0 : p.column(work, b)), at.image, row,
                        part * p.planes.groups + work.group);
        }
      }
      if (++stage == call.stages) stage = 0, ++turn;
    }
  }

  /// What wgmma has to know of rows of 64 channels of pixels, transposed: the lower word of it (wgmma.cuh).
  __device__ __forceinline__ static unsigned pixels_at(const void* shared, int atom_step) {
    return (shared_address(shared) & 0x3ffff) >> 4 | static_cast<unsigned>(atom_step >> 4) << 16;
  }

  __device__ __forceinline__ static void run(const BoxGradArguments& call, char* memory, Barriers& barriers) {
    const BoxGradPlan& p = call.plan;
    // All threads of a warp take the same path, and the compiler knows.
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (warpgroup >= kWarpgroups) {
      leave_registers<kOtherRegisters>();
      const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x - kConsumers) / 32, 0);
      const bool is_x = warp < 2, is_first = threadIdx.x % 32 == 0;
      if (is_first && warp == 0) {
        const int slices = p.tile.x.slices() + p.tile.y.slices(), readers = 4 * p.units * p.x_blocks;
#pragma unroll
        for (int s = 0; s < kMostStages; ++s)
          barriers.full[s].initialise(slices), barriers.empty[s].initialise(readers);
        fence_initialised();
      }
      const Work work(call);
      // What comes first does not wait for those who make zeros.
      meet<128>(kBringersMeet);
      arrive<kThreads>(kAllMeet);
      if (is_first) bring(call, work, is_x, warp % 2, memory, barriers);
      return;
    }
    // Zeros after boxes of y, where products of pixels that do not exist read. A warp has a stage's part.
    const int x_bytes = p.tile.x_bytes, part = threadIdx.x / 32;
    static_assert(kConsumers / 32 >= kMostStages * kParts);
    if (part < call.stages * kParts) {
      char* box = memory + part * p.part_bytes() + p.x_blocks * x_bytes;
      for (int b = 0; b < p.y_boxes(); ++b, box += p.tile.y_bytes) {
        for (int i = p.tile.y.pixels() * kPixelBytes + threadIdx.x % 32 * kVectorBytes; i < p.tile.y_bytes;
             i += 32 * kVectorBytes)
          *reinterpret_cast<uint4*>(box + i) = make_uint4(0, 0, 0, 0);
      }
    }
    fence_async();
    meet<kThreads>(kAllMeet);
    take_registers<kConsumerRegisters>();
    const Work work(call);
    await_previous<false>();
    if (warpgroup >= p.units * p.x_blocks) return;
    const int x_block = warpgroup / p.units;
    const BoxGradPlan::Unit unit = p.unit(work, warpgroup % p.units);
    const unsigned x = pixels_at(memory + x_block * x_bytes, 0),
                   y = pixels_at(memory + p.x_blocks * x_bytes + p.place(work, unit) * kPixelBytes,
                                 p.atom_step(work) * kPixelBytes);
    const auto multiply = [&]<int kUnit>() {
      if constexpr (kParts == 1) {
        multiply_tiles<kUnit>(call, work, x_block, unit, x, y, barriers);
      } else {
        multiply_tiles_of_parts<kUnit>(call, work, x_block, unit, x, y, barriers);
      }
    };
    if constexpr (kAtoms > 1) {
      if (p.is_narrow(unit)) return multiply.template operator()<kAtoms - 1>();
    }
    multiply.template operator()<kAtoms>();
  }

  /// The sums of a unit of kUnit atoms.
  ///
  /// A warp has little time for a step: four warpgroups' products of two atoms take 64 clocks each. With a
  /// wait and descriptors for each, 52 instructions, tensor cores were busy for 67% of the time (big,
  /// bfloat16); so steps are at constant distances, and four are a group: 89%.
  template <int kUnit>
  __device__ static void multiply_tiles(const BoxGradArguments& call, const Work& work, int x_block,
                                        const BoxGradPlan::Unit& unit, unsigned x, unsigned y,
                                        Barriers& barriers) {
    const BoxGradPlan& p = call.plan;
    const int tiles_at_once = max(1, kFlush / p.tile.steps), stage_words = p.stage_bytes() / 16,
              steps = p.tile.steps, y_words = p.tile.y_step * (kPixelBytes / 16);
    int stage = 0;
    unsigned turn = 0;
#pragma unroll 1
    for (int first = work.begin; first < work.end; first += tiles_at_once) {
      float sums[32 * kUnit];
#pragma unroll
      for (float& s : sums) s = 0;
      const int last = min(work.end, first + tiles_at_once);
      int before = -1;
      bool keep = false;
#pragma unroll 1
      for (int t = first; t < last; ++t) {
        barriers.full[stage].wait(turn & 1);
        unsigned a = x + stage * stage_words, b = y + stage * stage_words;
        const auto multiply_steps = [&]<int kSteps>() {
          const unsigned from_a = uniform(a), from_b = uniform(b);
          unsigned y_step_words = y_words;
          asm volatile("" : "+r"(y_step_words));  // or multiples of it are kept in registers: too many
          wgmma_fence();
#pragma unroll
          for (int s = 0; s < kSteps; ++s)
            wgmma_transposed<Math, 64 * kUnit>(sums, descriptor(from_a + s * kStepWords),
                                               descriptor(from_b + s * y_step_words), s > 0 || keep);
          wgmma_commit();
          keep = true;
          a += kSteps * kStepWords, b += kSteps * y_step_words;
          if (before >= 0) {  // its last group is done when this stage's first is all that is queued
            wgmma_wait<1>();
            leave(barriers.empty[before]);
            before = -1;
          }
        };
#pragma unroll 1
        for (int left = steps; left > 0; left -= 4) for_steps(left, multiply_steps);
        before = stage;
        if (++stage == call.stages) stage = 0, ++turn;
      }
      wgmma_wait<0>();
      pin(sums);
      leave(barriers.empty[before]);
      add<kUnit>(call, work, x_block, unit, sums, first > work.begin);
    }
  }

  /// The same with operands of two parts.
  template <int kUnit>
  __device__ static void multiply_tiles_of_parts(const BoxGradArguments& call, const Work& work, int x_block,
                                                 const BoxGradPlan::Unit& unit, unsigned x, unsigned y,
                                                 Barriers& barriers) {
    const BoxGradPlan& p = call.plan;
    const int next = p.part_bytes() / 16, steps = p.tile.steps, stage_words = p.stage_bytes() / 16,
              y_step_words = p.tile.y_step * (kPixelBytes / 16);
    static_assert(kFlushOfParts == 4);
    float sums[32 * kUnit], some[32 * kUnit];
#pragma unroll
    for (float& s : sums) s = 0;
    int stage = 0;
    unsigned turn = 0;
#pragma unroll 1
    for (int t = work.begin; t < work.end; ++t) {
      barriers.full[stage].wait(turn & 1);
      unsigned a = x + stage * stage_words, b = y + stage * stage_words;
      const auto multiply_steps = [&]<int kSteps>() {
        const unsigned from_a = uniform(a), from_b = uniform(b);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          constexpr int N = 64 * kUnit;
          const unsigned at_a = from_a + s * kStepWords, at_b = from_b + s * y_step_words;
          wgmma_transposed<Math, N>(some, descriptor(at_a + next), descriptor(at_b), s > 0);
          wgmma_transposed<Math, N>(some, descriptor(at_a), descriptor(at_b + next), true);
          wgmma_transposed<Math, N>(some, descriptor(at_a), descriptor(at_b), true);
        }
        wgmma_commit();
        wgmma_wait<0>();
        pin(some);
#pragma unroll
        for (int k = 0; k < 32 * kUnit; ++k) sums[k] += some[k];
        a += kSteps * kStepWords, b += kSteps * y_step_words;
      };
#pragma unroll 1
      for (int left = steps; left > 0; left -= kFlushOfParts) for_steps(left, multiply_steps);
      leave(barriers.empty[stage]);
      if (++stage == call.stages) stage = 0, ++turn;
    }
    add<kUnit>(call, work, x_block, unit, sums, false);
  }

  /// What a thread's sums are of: of this block of x's channels a row, of which `left` channels are left.
  struct Row {
    __device__ Row(const BoxGradArguments& call, const Work& work, int x_block)
        : ci((work.x_block + x_block) * kBlockChannels + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4),
          left(call.ci - ci) {}
    int ci, left;
  };
  /// The first of two channels of y that a thread has of eight. Found anew each time, or all that follow from
  /// it are computed before products, and kept meanwhile.
  __device__ __forceinline__ static int pair_of_thread() {
    int pair = threadIdx.x % 4 * 2;
    asm volatile("" : "+r"(pair));
    return pair;
  }
  __device__ __forceinline__ static auto unscaled_by(const BoxGradArguments& call) {
    if constexpr (Math::kScaled) {
      return InverseScales(call.largest_x, call.largest_y);
    } else {
      return [](float sum) { return sum; };
    }
  }
  /// Where the part of a work's sums begins, of tap 0 and channel 0 of y.
  __device__ __forceinline__ static float* part_of(const BoxGradArguments& call, const Work& work,
                                                   const Row& row) {
    const std::int64_t part = blockIdx.y / call.cluster;
    return call.parts + (part * call.groups + work.group) * call.rows * call.ci + row.ci;
  }

  /// Writes four of a thread's sums, to the weight or its part: of two rows, 8 apart, and two neighbouring
  /// channels of y.
  class Write {
   public:
    __device__ __forceinline__ Write(const BoxGradArguments& call, const Work& work, int x_block)
        : call_(call), row_(call, work, x_block), part_(part_of(call, work, row_)) {
      const std::int64_t first = (static_cast<std::int64_t>(work.group) * call.ci + row_.ci) * call.taps;
      w_ = static_cast<Value*>(call.w) + first * call.co;
    }
    /// `four`: which of an atom's eight.
    template <class F>
    __device__ __forceinline__ void operator()(const BoxGradPlan::Atom& at, int four, const float4& sum,
                                               const F& unscaled) const {
      const int co = at.y_block * kBlockChannels + four * 8 + pair_of_thread(),
                tap = at.kh * call_.kernel_w + at.kw;
      if (!at.exists || co >= call_.co || row_.left <= 0) return;
      if (call_.w != nullptr) {
        write(w_ + static_cast<std::int64_t>(tap) * call_.co + co, co, unscaled(sum.x), unscaled(sum.y));
        if (row_.left <= 8) return;
        write(w_ + (std::int64_t{8} * call_.taps + tap) * call_.co + co, co, unscaled(sum.z),
              unscaled(sum.w));
      } else {
        float* const to = part_ + (static_cast<std::int64_t>(tap) * call_.y_channels + co) * call_.ci;
        const bool second = co + 1 < call_.co;
        to[0] = unscaled(sum.x);
        if (second) to[call_.ci] = unscaled(sum.y);
        if (row_.left <= 8) return;
        to[8] = unscaled(sum.z);
        if (second) to[call_.ci + 8] = unscaled(sum.w);
      }
    }

   private:
    using Value = typename Math::Value;
    __device__ __forceinline__ void write(Value* to, int co, float first, float second) const {
      const Pack<Value, 2> pair{convert<Value>(first), convert<Value>(second)};
      if (call_.co % 2 == 0) {
        *reinterpret_cast<Pack<Value, 2>*>(to) = pair;
      } else {
        to[0] = pair.values[0];
        if (co + 1 < call_.co) to[1] = pair.values[1];
      }
    }
    const BoxGradArguments& call_;
    const Row row_;
    float* const part_;
    Value* w_;
  };

  /// Writes sums, or adds them to those that are there.
  template <int kUnit>
  __device__ static void add(const BoxGradArguments& call, const Work& work, int x_block,
                             const BoxGradPlan::Unit& unit, const float (&sums)[32 * kUnit], bool adds) {
    const BoxGradPlan& p = call.plan;
    if (call.w == nullptr) leave_room();  // for the kernel that adds sums
    if constexpr (kParts == 1)
      if (call.cluster > 1) return add_of_cluster<kUnit>(call, work, x_block, unit, sums);
    const auto unscaled = unscaled_by(call);
    if (call.w != nullptr) {
      const Write write(call, work, x_block);
#pragma unroll
      for (int atom = 0; atom < kUnit; ++atom) {
        const BoxGradPlan::Atom at = p.atom(work, unit, atom);
#pragma unroll
        for (int f = 0; f < 8; ++f) {
          const float* const four = sums + atom * 32 + f * 4;
          write(at, f, make_float4(four[0], four[1], four[2], four[3]), unscaled);
        }
      }
      return;
    }
    const Row row(call, work, x_block);
    float* const part = part_of(call, work, row);
#pragma unroll
    for (int atom = 0; atom < kUnit; ++atom) {
      const BoxGradPlan::Atom at = p.atom(work, unit, atom);
      if (!at.exists) continue;
      const std::int64_t tap = at.kh * call.kernel_w + at.kw;
      const int first = at.y_block * kBlockChannels + pair_of_thread();
      float* to = part + (tap * call.y_channels + first) * call.ci;
      // Or all addresses are computed before products, and kept meanwhile.
      asm volatile("" : "+l"(to));
      // Several at a time: what is there is loaded before anything is stored.
      constexpr int kAtOnce = kWarpgroups == 4 ? 8 : 16;
#pragma unroll
      for (int begin = 0; begin < 32; begin += kAtOnce, to += 2 * kAtOnce * call.ci) {
        const auto for_each = [&](const auto& f) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int co = i / 4 * 8 + i % 2, down = i / 2 % 2 * 8;
            if (first + begin * 2 + co < call.co && down < row.left) f(i, to + co * call.ci + down);
          }
        };
        float there[kAtOnce] = {};
        if (adds) for_each([&](int i, const float* from) { there[i] = *from; });
        for_each([&](int i, float* result) {
          const float sum = unscaled(sums[atom * 32 + begin + i]);
          *result = adds ? there[i] + sum : sum;
        });
      }
    }
  }

  /// Writes the sum of a cluster's sums. Each block has its own in shared memory, where stages were,
  /// [warpgroup][four][thread][4], and adds a share of all blocks' fours, in the order of blocks.
  template <int kUnit>
  __device__ static void add_of_cluster(const BoxGradArguments& call, const Work& work, int x_block,
                                        const BoxGradPlan::Unit& unit, const float (&sums)[32 * kUnit]) {
    const BoxGradPlan& p = call.plan;
    const unsigned mine =
        sums_at() + threadIdx.x / 128 * (kAtoms * 8 * 128 * kVectorBytes) + threadIdx.x % 128 * kVectorBytes;
    constexpr unsigned kNext = 128 * kVectorBytes;  // four
    // All warpgroups' products have read their stages.
    asm volatile("bar.sync 1, %0;" ::"r"(p.units * p.x_blocks * 128) : "memory");
#pragma unroll
    for (int f = 0; f < kUnit * 8; ++f)
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(mine + f * kNext), "f"(sums[f * 4]),
                   "f"(sums[f * 4 + 1]), "f"(sums[f * 4 + 2]), "f"(sums[f * 4 + 3])
                   : "memory");
    synchronise_cluster();
    const auto unscaled = unscaled_by(call);
    const Write write(call, work, x_block);
    const int blocks = call.cluster, share = kUnit * 8 / blocks,
              begin = static_cast<int>(rank_in_cluster()) * share;
#pragma unroll 2
    for (int f = begin; f < begin + share; ++f) {
      float4 sum = load_of_cluster(mine + f * kNext, 0);
      for (int other = 1; other < blocks; ++other) {
        const float4 more = load_of_cluster(mine + f * kNext, other);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      write(p.atom(work, unit, f / 8), f % 8, sum, unscaled);
    }
    __syncwarp();
    synchronise_cluster();  // nobody leaves whose sums are read
  }

 private:
  /// Where dynamic shared memory begins, aligned as stages are.
  __device__ __forceinline__ static unsigned sums_at() {
    extern __shared__ uint4 memory[];
    return (shared_address(memory) + 1023) & ~1023u;
  }
  /// f for the next four steps, or as many as are left.
  template <class F>
  __device__ __forceinline__ static void for_steps(int left, const F& f) {
    if (left >= 4) {
      f.template operator()<4>();
    } else if (left == 3) {
      f.template operator()<3>();
    } else if (left == 2) {
      f.template operator()<2>();
    } else {
      f.template operator()<1>();
    }
  }
  __device__ __forceinline__ static void leave(Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier.arrive();
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, 1)
    box_weight_grad_kernel(const __grid_constant__ BoxGradArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ typename K::Barriers barriers;
  const unsigned past = shared_address(memory) % 1024;
  K::run(call, reinterpret_cast<char*>(memory) + (1024 - past) % 1024, barriers);
#endif
}

template <class K>
void launch_box_weight_grad(const BoxGradArguments& call, int splits, Device device) {
  // Neighbouring taps' atoms overlap; compute-sanitizer takes them for as many bytes as if they did not.
  const int shared =
      std::min(call.stages * call.plan.stage_bytes() + 1024 + (K::kAtoms - 1) * 16 * kPixelBytes,
               kMostGradBytes + 1024);
  allow_shared_memory(box_weight_grad_kernel<K>, shared);
  launch_kernel_of_clusters("conv: weight gradient", device, box_weight_grad_kernel<K>,
                            dim3(grid_size("conv", call.plan.works()), static_cast<unsigned>(splits)),
                            K::kThreads, shared, dim3(1, static_cast<unsigned>(call.cluster)), call);
}

/// wgmma_weight_grad() for 16-bit operands, in a way that has a plan.
template <class Math>
void box_weight_grad(const ConvTranspose2dGeometry& g, const BoxGradWay& way, const Tensor& x,
                     const Tensor& y, const Tensor& w, const Prologue& prologue) {
  using T = typename Math::Element;
  constexpr int kParts = Math::kOperandParts;
  BoxGradArguments call{};
  const Fold fold = way.fold;
  call.plan = way.plan;
  const BoxGradPlan& p = call.plan;
  call.stages = p.stages();

  const DeviceScope scope(w.device());
  const BoxPlan& planes = p.planes;
  std::optional<Largest> largest;
  if constexpr (Math::kScaled) {
    using enum Largest::Next;
    largest.emplace(x, copies, y, copies, prologue);
    call.largest_x = largest->a().words, call.largest_y = largest->b().words;
  }
  const auto images_of = [&](const Tensor& images, const ConvAxis* rows, int columns,
                             const Magnitude& magnitude, const Prologue& before) {
    return Math::kScaled ? ChannelsLast(images, planes.groups, rows, columns, kParts, magnitude, before)
                         : ChannelsLast(images, planes.groups, rows, columns, before);
  };
  const ChannelsLast x_images = images_of(x, nullptr, fold.x, largest ? largest->a() : Magnitude{}, prologue),
                     y_images = images_of(y, &g.h, fold.y, largest ? largest->b() : Magnitude{}, {});
  Preparations preparations;
  x_images.make(preparations), y_images.make(preparations);
  preparations.end();
  const int groups = kParts * planes.groups;
  call.x_map =
      image_map(x_images, dtype_of<T>, planes.n, groups, {planes.h.most()}, {planes.w.most()}, p.tile.x);
  for (int i = 0; i < planes.h.planes; ++i)
    for (int j = 0; j < planes.w.planes; ++j)
      call.y_maps[i * planes.w.planes + j] =
          image_map(y_images, dtype_of<T>, planes.n, groups, planes.plane_h(i), planes.plane_w(j), p.tile.y);
  call.groups = planes.groups, call.ci = planes.to_channels, call.co = planes.from_channels;
  const ConvTranspose2dGeometry folded = fold.of(g);
  call.kernel_w = static_cast<int>(folded.w.kernel);
  call.y_channels = y_images.group_channels;
  const int taps = static_cast<int>(g.h.kernel) * call.kernel_w;
  call.taps = taps;
  call.rows = taps * call.y_channels;
  call.split_tiles = p.split_tiles();
  const int splits = p.splits(), sums = way.written_sums(w.layout() == Layout::nhwc);
  call.cluster = p.cluster();
  if (sums == 0) call.w = w.raw();
  const Workspace<float> parts(w.device(), std::int64_t{sums} * call.groups * call.rows * call.ci);
  call.parts = parts.data();
  switch (p.atoms) {
    case 1:
      launch_box_weight_grad<BoxGradKernel<Math, 1>>(call, splits, w.device());
      break;
    case 2:
      launch_box_weight_grad<BoxGradKernel<Math, 2>>(call, splits, w.device());
      break;
    case 3:
      launch_box_weight_grad<BoxGradKernel<Math, 3>>(call, splits, w.device());
      break;
    default:
      if constexpr (most_grad_atoms(kParts) == 4)
        launch_box_weight_grad<BoxGradKernel<Math, 4>>(call, splits, w.device());
  }
  if (sums == 0) return;
  WgmmaWeightGradArguments sum{};
  sum.parts = call.parts;
  sum.groups = call.groups, sum.ci = call.ci, sum.co = call.co, sum.taps = taps;
  sum.y_channels = call.y_channels, sum.rows = call.rows, sum.splits = sums;
  if (fold.exists()) {
    const Tensor of_folded = Tensor::empty(folded.weight_shape(), {.device = w.device()});
    sum_weight_grads<float>(sum, of_folded);
    unfold_weight_grad(fold, of_folded, w);
  } else {
    sum_weight_grads<typename Math::Value>(sum, w);
  }
}

}  // namespace tapedeck::cu::conv_gemm
