// The weight's gradient over boxes of pixels (box_plan.h) on Hopper's tensor cores, for 16-bit operands: of
// 16-bit types, or scaled halves (scaled_half.cuh).
//
//   gw[ci, co, tap] = sum over pixels i of x[i, ci] * plane[i + shift(tap), co]
// for taps that read one of y's planes. wgmma multiplies D[64 ci, N] += A[64 ci, 16 pixels] * B[N, 16
// pixels]^T with both operands as they lie, a row of 64 channels for each pixel: 16-bit types may be
// transposed on the way to the tensor cores. B is `kAtoms` blocks of 64 channels of y, `atom_step` bytes
// apart: those of neighbouring taps of a row, a row of shared memory apart, so that A is read once for all,
// or where a plane has one tap, of kAtoms boxes.
//
// A warpgroup has D for a block of ci and a unit, kAtoms taps of a row. A thread block has the units and
// blocks of ci that share boxes, and a range of tiles of pixels, whose sums it writes; a last kernel adds the
// sums of all ranges in their order (wgmma_weight_grad.cuh). Tensor cores truncate what they add: after
// kFlush steps D is added to what is written already, in float32. Operands of two parts are multiplied three
// times, the products of kFlushOfParts steps are added in registers, and the other warpgroup multiplies
// meanwhile.
//
// Pixels that do not exist are zeros in x. A box of y of whole rows is read past its end at such pixels:
// there are zeros, too.
#pragma once

#include <optional>

#include <tapedeck/ops/conv/box_grad_plan.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>
#include <tapedeck/ops/conv/tensor_map.cuh>
#include <tapedeck/ops/conv/wgmma_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

struct BoxGradArguments {
  BoxGradPlan plan;
  CUtensorMap x_map, y_maps[kMaxPlanes];
  float* parts;
  const unsigned *largest_x, *largest_y;           // where these are scaled
  int groups, ci, co, kernel_w, y_channels, rows;  // as in WgmmaWeightGradArguments
  int split_tiles, stages;
};

template <class M, int kAtomsOfTile>
struct BoxGradKernel {
  using Math = M;
  static constexpr int kParts = Math::kOperandParts;
  static constexpr int kAtoms = kAtomsOfTile, N = 64 * kAtoms, kSums = N / 2;
  static constexpr int kWarpgroups = grad_warpgroups(kAtoms, kParts);
  static constexpr int kConsumers = kWarpgroups * 128, kThreads = kConsumers + 128;
  static constexpr int kFlush = 512, kFlushOfParts = 4;  // steps
  static constexpr int kMostStages = 4;
  static constexpr bool kTakesRegisters = kParts * kSums > 128;  // from those who bring
  static constexpr int kBehind = 4;                              // products

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
    const int bytes = box.slice_pixels() * kPixelBytes, offset = slice * box.slice();
    const int blocks = is_x ? p.x_blocks : p.y_blocks, first = is_x ? work.x_block : work.y_block;
    const int of_block = is_x ? p.tile.x_bytes : p.tile.y_bytes;
    memory += (is_x ? 0 : p.x_blocks * p.tile.x_bytes) + slice * bytes;
    const CUtensorMap& map = is_x ? call.x_map : call.y_maps[work.plane];
    int stage = 0;
    unsigned turn = 0;
    for (int t = work.begin; t < work.end; ++t) {
      const BoxGradPlan::Pixels at = p.pixels(t);
      const int row = at.row + (is_x ? 0 : p.planes.h.of[work.i].origin),
                column = at.column + (is_x ? 0 : p.planes.w.of[work.j].origin);
      if (turn > 0) barriers.empty[stage].wait((turn - 1) & 1);
      Barrier& full = barriers.full[stage];
      full.arrive_and_expect(kParts * bytes * blocks);
      for (int part = 0; part < kParts; ++part) {
        char* const to = memory + stage * p.stage_bytes() + part * p.part_bytes();
        for (int b = 0; b < blocks; ++b) {
          full.copy_box(to + b * of_block, map, (first + b) * kBlockChannels, column,
                        row + (box.images > 1 ? 0 : offset), at.image + (box.images > 1 ? offset : 0),
                        part * p.planes.groups + work.group);
        }
      }
      if (++stage == call.stages) stage = 0, ++turn;
    }
  }

  /// What wgmma has to know of rows of 64 channels of pixels, transposed.
  __device__ __forceinline__ static std::uint64_t pixels_descriptor(const void* shared, int atom_step) {
    return (shared_address(shared) & 0x3ffff) >> 4 | static_cast<std::uint64_t>(atom_step >> 4) << 16 |
           std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
  }

  __device__ static void run(const BoxGradArguments& call, char* memory, Barriers& barriers) {
    const BoxGradPlan& p = call.plan;
    const Work work(call);
    const int x_bytes = p.tile.x_bytes, stage_bytes = p.stage_bytes(), warpgroups = p.units * p.x_blocks;
    // All threads of a warp take the same path, and the compiler knows.
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    // Zeros after boxes of y; and where boxes come later, for what is read past an end then.
    for (int i = threadIdx.x; i < call.stages * stage_bytes / kVectorBytes; i += kThreads)
      reinterpret_cast<uint4*>(memory)[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x == 0) {
      for (int s = 0; s < call.stages; ++s) {
        barriers.full[s].initialise(p.tile.x.slices() + p.tile.y.slices());
        barriers.empty[s].initialise(4 * warpgroups);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    await_previous<false>();
    if (warpgroup >= kWarpgroups) {
      if constexpr (kTakesRegisters) leave_registers<40>();
      const int warp = (threadIdx.x - kConsumers) / 32;
      if (threadIdx.x % 32 == 0) bring(call, work, warp < 2, warp % 2, memory, barriers);
      return;
    }
    if constexpr (kTakesRegisters) take_registers<232>();
    if (warpgroup >= warpgroups) return;
    const int x_block = warpgroup / p.units;
    const BoxGradPlan::Unit unit = p.unit(work, warpgroup % p.units);
    const char* const x = memory + x_block * x_bytes;
    const char* const y = memory + p.x_blocks * x_bytes + p.place(work, unit) * kPixelBytes;
    const int atom_step = p.atom_step(work) * kPixelBytes;

    if constexpr (kParts > 1) return run_parts(call, work, x_block, unit, x, y, atom_step, barriers);
    const int tiles_at_once = max(1, kFlush / (p.tile.segments * p.tile.steps));
    int stage = 0;
    unsigned turn = 0;
#pragma unroll 1
    for (int first = work.begin; first < work.end; first += tiles_at_once) {
      float sums[kSums];
#pragma unroll
      for (float& s : sums) s = 0;
      const int last = min(work.end, first + tiles_at_once);
      int before = -1;
      bool keep = false;
#pragma unroll 1
      for (int t = first; t < last; ++t) {
        barriers.full[stage].wait(turn & 1);
        std::uint64_t a = pixels_descriptor(x + stage * stage_bytes, 0),
                      b = pixels_descriptor(y + stage * stage_bytes, atom_step);
        // Each product is a group. When as many as kBehind of this stage are queued, the one before may be
        // left.
        int queued = 0;
#pragma unroll 1
        for (int segment = 0; segment < p.tile.segments; ++segment) {
#pragma unroll 1
          for (int s = 0; s < p.tile.steps; ++s, keep = true) {
            wgmma_fence();
            wgmma_transposed<Math, N>(sums, a + s * kPixelBytes, b + s * kPixelBytes, keep);
            wgmma_commit();
            if (++queued == kBehind && before >= 0) {
              wgmma_wait<kBehind>();
              leave(barriers.empty[before]);
              before = -1;
            }
          }
          a += p.tile.x.pitch * (kPixelBytes / 16), b += p.tile.y.pitch * (kPixelBytes / 16);
        }
        if (before >= 0) {
          wgmma_wait<1>();
          leave(barriers.empty[before]);
        }
        before = stage;
        if (++stage == call.stages) stage = 0, ++turn;
      }
      wgmma_wait<0>();
      pin(sums);
      leave(barriers.empty[before]);
      add(call, work, x_block, unit, sums, first > work.begin);
    }
  }

  /// The same with operands of two parts.
  __device__ static void run_parts(const BoxGradArguments& call, const Work& work, int x_block,
                                   const BoxGradPlan::Unit& unit, const char* x, const char* y, int atom_step,
                                   Barriers& barriers) {
    const BoxGradPlan& p = call.plan;
    const int next = p.part_bytes() / 16, steps = p.tile.segments * p.tile.steps;
    const int next_segment_a = p.tile.x.pitch * (kPixelBytes / 16) - p.tile.steps * kPixelBytes,
              next_segment_b = p.tile.y.pitch * (kPixelBytes / 16) - p.tile.steps * kPixelBytes;
    static_assert(kFlushOfParts == 4);
    float sums[kSums], some[kSums];
#pragma unroll
    for (float& s : sums) s = 0;
    int stage = 0;
    unsigned turn = 0;
#pragma unroll 1
    for (int t = work.begin; t < work.end; ++t) {
      barriers.full[stage].wait(turn & 1);
      std::uint64_t a = pixels_descriptor(x + stage * p.stage_bytes(), 0),
                    b = pixels_descriptor(y + stage * p.stage_bytes(), atom_step);
      int of_segment = 0;
      const auto multiply_steps = [&]<int kSteps>() {
        std::uint64_t at_a[kSteps], at_b[kSteps];
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          at_a[s] = a, at_b[s] = b;
          const bool last = ++of_segment == p.tile.steps;
          a += kPixelBytes + (last ? next_segment_a : 0), b += kPixelBytes + (last ? next_segment_b : 0);
          if (last) of_segment = 0;
        }
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          wgmma_transposed<Math, N>(some, at_a[s] + next, at_b[s], s > 0);
          wgmma_transposed<Math, N>(some, at_a[s], at_b[s] + next, true);
          wgmma_transposed<Math, N>(some, at_a[s], at_b[s], true);
        }
        wgmma_commit();
        wgmma_wait<0>();
        pin(some);
#pragma unroll
        for (int k = 0; k < kSums; ++k) sums[k] += some[k];
      };
#pragma unroll 1
      for (int left = steps; left > 0; left -= kFlushOfParts) {
        if (left >= 4) {
          multiply_steps.template operator()<4>();
        } else if (left == 3) {
          multiply_steps.template operator()<3>();
        } else if (left == 2) {
          multiply_steps.template operator()<2>();
        } else {
          multiply_steps.template operator()<1>();
        }
      }
      leave(barriers.empty[stage]);
      if (++stage == call.stages) stage = 0, ++turn;
    }
    add(call, work, x_block, unit, sums, false);
  }

  /// Writes sums, or adds them to those that are there.
  __device__ static void add(const BoxGradArguments& call, const Work& work, int x_block,
                             const BoxGradPlan::Unit& unit, const float (&sums)[kSums], bool adds) {
    const BoxGradPlan& p = call.plan;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int ci = (work.x_block + x_block) * kBlockChannels + warp * 16 + lane / 4;
    float* const part =
        call.parts +
        (static_cast<std::int64_t>(blockIdx.y) * call.groups + work.group) * call.rows * call.ci + ci;
    const auto unscaled = [&] {
      if constexpr (Math::kScaled) {
        return InverseScales(*call.largest_x, *call.largest_y);
      } else {
        return [](float sum) { return sum; };
      }
    }();
#pragma unroll
    for (int atom = 0; atom < kAtoms; ++atom) {
      const BoxGradPlan::Atom at = p.atom(work, unit, atom);
      if (!at.exists) continue;
      const std::int64_t tap = at.kh * call.kernel_w + at.kw;
#pragma unroll
      for (int k = 0; k < 32; ++k) {
        const int co = at.y_block * kBlockChannels + k / 4 * 8 + lane % 4 * 2 + k % 2, row = k / 2 % 2 * 8;
        if (co >= call.co || ci + row >= call.ci) continue;
        float* const to = part + (tap * call.y_channels + co) * call.ci + row;
        const float sum = unscaled(sums[atom * 32 + k]);
        *to = adds ? *to + sum : sum;
      }
    }
  }

 private:
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
  launch_kernel_with_shared("conv: weight gradient", device, box_weight_grad_kernel<K>,
                            dim3(grid_size("conv", call.plan.works()), static_cast<unsigned>(splits)),
                            K::kThreads, shared, call);
}

/// wgmma_weight_grad() for 16-bit operands, if there are tiles for it: returns whether there were.
template <class Math>
bool box_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  using T = typename Math::Element;
  constexpr int kParts = Math::kOperandParts;
  BoxGradArguments call{};
  call.plan = box_grad_plan(g, kParts);
  const BoxGradPlan& p = call.plan;
  if (!p.exists()) return false;
  call.stages = std::min(4, kMostGradBytes / p.stage_bytes());

  const DeviceScope scope(w.device());
  const BoxPlan& planes = p.planes;
  std::optional<Largest> largest;
  if constexpr (Math::kScaled) {
    largest.emplace(x, y);
    call.largest_x = largest->a(), call.largest_y = largest->b();
  }
  const auto images_of = [&](const Tensor& images, const ConvAxis* rows, const unsigned* magnitude) {
    return Math::kScaled ? ChannelsLast(images, planes.groups, rows, kParts, magnitude)
                         : ChannelsLast(images, planes.groups, rows);
  };
  const ChannelsLast x_images = images_of(x, nullptr, call.largest_x),
                     y_images = images_of(y, &g.h, call.largest_y);
  const int groups = kParts * planes.groups;
  call.x_map =
      image_map(x_images, dtype_of<T>, planes.n, groups, {planes.h.most()}, {planes.w.most()}, p.tile.x);
  for (int i = 0; i < planes.h.planes; ++i)
    for (int j = 0; j < planes.w.planes; ++j)
      call.y_maps[i * planes.w.planes + j] =
          image_map(y_images, dtype_of<T>, planes.n, groups, planes.plane_h(i), planes.plane_w(j), p.tile.y);
  call.groups = planes.groups, call.ci = planes.to_channels, call.co = planes.from_channels;
  call.kernel_w = static_cast<int>(g.w.kernel);
  call.y_channels = y_images.group_channels;
  const int taps = static_cast<int>(g.h.kernel) * call.kernel_w;
  call.rows = taps * call.y_channels;
  call.split_tiles = p.split_tiles();
  const int splits = p.splits();
  const Workspace<float> parts(w.device(), std::int64_t{splits} * call.groups * call.rows * call.ci);
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
  WgmmaWeightGradArguments sum{};
  sum.parts = call.parts;
  sum.groups = call.groups, sum.ci = call.ci, sum.co = call.co, sum.taps = taps;
  sum.y_channels = call.y_channels, sum.rows = call.rows, sum.splits = splits;
  sum_weight_grads<typename Math::Value>(sum, w);
  return true;
}

}  // namespace tapedeck::cu::conv_gemm
