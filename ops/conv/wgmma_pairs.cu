// The weight's gradient of stride 2 along w over nchw images as they lie (pair_grad_plan.h) on Hopper's
// tensor cores, of 16-bit types or of float32 in TF32: there is no copy with channels last, and nothing is
// packed.
//
//   gw[ci, co, kh, kw] = sum over images, r, c of x[ci, r, c] * y[co, r*sh - ph + kh*dh, 2*c + s]
//   s = kw - pw
// wgmma multiplies D[64, N] += A[64, 32 bytes of pixels] * B[N, 32 bytes of pixels]^T. B is x's tile, whose
// pixels are neighbours in memory. A are fragments in registers: of 16 bits a thread has two neighbouring
// pixels of a channel, which meet elements two apart, halves of neighbouring words of y's row:
//
//   words     [y0 y1] [y2 y3] [y4 y5]     s = 0: y2 y4, s = 1: y3 y5, loaded as one pair of words
//   pixels              0       1         s = -1: y1 y3, which needs a word before
//
// So a pair of taps of columns are two sets of fragments, and a byte permutation each, of one set of loads.
// Of float32 a pair are two neighbours, rounded to TF32; x is rounded as it is brought. Rows of A are a
// warp's own: 16 channels of y, its kh and its pair.
//
//   one thread --tensor memory accelerator--> ring of tiles --> two warpgroups --> parts of sums --> sum
//
// On an H200 (weight's gradients of bench/conv_shapes.h, us, over boxes of copies before): dcgan4 24.4
// over 35 in bfloat16 and 38.6 over 53 in TF32, 111 over 194 for its 1024 images; dcgan3 39 over 44 in TF32.
//
// What mattered: few instructions a step, as a scheduler has two warps that multiply (branches between kinds
// of loads, and what the compiler computed anew, took a fifth); that words are loaded two steps ahead; and
// that copies are few lines (pair_grad_plan.h). Copies by eight warps, 16 bytes a thread, took as long as the
// products. Shared memory bounds it now: of the 256 clocks of a step of both warpgroups x's pixels take 128
// and words 128, and what comes 50.
//
// Tried and slower: pairs of blocks that add their sums, as clusters over boxes do, so that half as many are
// written and read (dcgan3 26.4 over 24.2 us in bfloat16 and 41.1 over 39 in TF32, dcgan4 25.1 over 24.4 and
// 41.6 over 38.6). And for small images, of a VAE's layers, blocks that bring whole images, whose threads put
// x and a plane of y for each tap of columns in order, and that multiply by mma.sync, a warp a tap: 15.7 over
// 12.1 us and 17.8 over 17.4 in bfloat16, 19.2 over 15.4 and 34.6 over 20.4 in TF32. A third of the time was
// putting in order.
//
// An infinity or a NaN meets zeros outside of the other image, and so may reach its channel's other taps.
#include <tapedeck/ops/conv/pair_grad_plan.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/tensor_map.cuh>
#include <tapedeck/ops/conv/wgmma_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

struct PairGradArguments {
  PairGradPlan plan;
  CUtensorMap x_map, y_map;
  float* parts;  // [split][group][tap][channel of y][channel of x]
};
static_assert(sizeof(PairGradArguments) <= 4096);

/// What the compiler keeps in a register, as it cannot make it anew.
__device__ __forceinline__ unsigned pinned(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

template <class M, int kXRows>
struct PairGradKernel {
  using Math = M;
  using T = typename Math::Element;
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kConsumers = 32 * kPairUnits, kThreads = kConsumers + 128;
  static constexpr int kConsumerRegisters = 216, kOtherRegisters = 40;
  using Fragments = std::uint32_t[2][4];  // of a pair's taps
  using Sums = float[2][kXRows / 2];

  struct Shared {
    Barrier full[kMostPairStages], empty[kMostPairStages];
    // PairGradPlan::row_of() of what each fourth lane multiplies in two steps: two of a step, in halves.
    alignas(8) std::uint32_t rows[kMostPairSteps / 2][4][2];
  };

  /// By one thread.
  __device__ static void bring(const PairGradArguments& call, const PairGradPlan::Work& work, char* memory,
                               Shared& shared) {
    const PairGradPlan& p = call.plan;
    const int bytes = p.x_bytes + p.y_brought(), boxes = p.boxes(), tiles = p.tiles();
    int stage = 0;
    unsigned turn = 0;
#pragma unroll 1
    for (int i = blockIdx.y; i < tiles; i += p.splits) {
      const PairGradPlan::Tile tile = p.tile(i);
      if (turn > 0) shared.empty[stage].wait((turn - 1) & 1);
      Barrier& full = shared.full[stage];
      full.arrive_and_expect(bytes);
      char* to = memory + stage * p.stage_bytes();
      const int first = tile.row * p.x_w;
#pragma unroll 1
      for (int box = 0; box < boxes; ++box, to += p.box_bytes())
        full.copy_box(to, call.x_map, first + box * p.box_pixels(), work.x_channel, work.group, tile.image,
                      0);
      full.copy_box(to, call.y_map, p.first_row(work, tile) * p.y_w * p.element_bytes / 8, work.y_channel,
                    work.group, tile.image, 0);
      if (++stage == p.stages) stage = 0, ++turn;
    }
  }

  /// What a thread loads for a step: for each of its fragments' words two, and a third one that is alone.
  struct Words {
    uint2 both[4];
    std::uint32_t single[4];
  };
  /// What a thread needs to know of its unit.
  struct Loads {
    unsigned to_single;           // bytes from both words to the single one
    unsigned of_both, of_single;  // what takes elements out of words
    bool first_is_single;
    // Bits of all steps' words, two each: whether they are of y's row; of three words the first are of single
    // ones.
    std::uint32_t first, second;
    std::uint32_t single[2][2];  // masks of these, of the next two steps

    __device__ __forceinline__ void set_single() {
#pragma unroll
      for (int i = 0; i < 4; ++i) single[i / 2][i % 2] = 0u - (first >> i & 1);
    }
  };
  /// `rows` are two row_of(), `near` and `far` where a thread's channels begin.
  template <PairLoad kLoad>
  __device__ __forceinline__ static void load(Words& words, unsigned to_single, unsigned near, unsigned far,
                                              std::uint32_t rows) {
    const unsigned low = rows & 0xffff, high = rows >> 16;
    const unsigned at[4] = {near + low, far + low, near + high, far + high};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kLoad == PairLoad::words) {
        words.both[i] = make_uint2(load_word(at[i]), load_word(at[i] + 4));
      } else {
        words.both[i] = __builtin_bit_cast(uint2, load_pair(at[i]));
      }
      if constexpr (kLoad == PairLoad::three) words.single[i] = load_word(at[i] + to_single);
    }
  }
  /// Makes fragments of them, here and nowhere else: the compiler would not wait for who reads others.
  /// `step`: of two.
  template <PairLoad kLoad>
  __device__ __forceinline__ static void set(Fragments& a, const Words& words, const Loads& how, int step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint32_t first = words.both[i].x, second = words.both[i].y;
      asm volatile("" : "+r"(first), "+r"(second)::"memory");
      if constexpr (kLoad == PairLoad::three) {
        // a[0] is of both words, a[1] of the single one and its neighbour.
        std::uint32_t single = words.single[i];
        asm volatile("" : "+r"(single)::"memory");
        a[0][i] = __byte_perm(first, second, how.of_both);
        a[1][i] = __byte_perm(single & how.single[step][i / 2], how.first_is_single ? first : second,
                              how.of_single);
      } else {
        const std::uint32_t bit = 1u << (2 * step + i / 2);
        first = (how.first & bit) != 0 ? first : 0, second = (how.second & bit) != 0 ? second : 0;
        if constexpr (kHalf) {
          a[0][i] = __byte_perm(first, second, 0x5410), a[1][i] = __byte_perm(first, second, 0x7632);
        } else {
          a[0][i] = __float_as_uint(round_to_tf32(__uint_as_float(first)));
          a[1][i] = __float_as_uint(round_to_tf32(__uint_as_float(second)));
        }
      }
    }
  }
  /// Starts the products of a step; `b`: descriptor_of() x's pixels.
  __device__ __forceinline__ static void multiply(Sums& sums, const Fragments& a, unsigned b) {
    const unsigned from = uniform(b);
    wgmma_fence();
    wgmma<Math, kXRows>(sums[0], a[0], descriptor(from), true);
    wgmma<Math, kXRows>(sums[1], a[1], descriptor(from), true);
    wgmma_commit();
  }
  /// Fragments are kept until here: tensor cores have read them.
  __device__ __forceinline__ static void done(const Fragments& a) {
#pragma unroll
    for (int t = 0; t < 2; ++t)
      asm volatile("" ::"r"(a[t][0]), "r"(a[t][1]), "r"(a[t][2]), "r"(a[t][3]) : "memory");
  }

  /// By a warpgroup.
  template <PairLoad kLoad>
  __device__ static void multiply_tiles(const PairGradArguments& call, const PairGradPlan::Work& work,
                                        const PairGradPlan::Unit& unit, const char* memory, Shared& shared) {
    const PairGradPlan& p = call.plan;
    const int lane = static_cast<int>(pinned(threadIdx.x % 32));
    Loads how{};
    how.first_is_single = kLoad == PairLoad::three && p.first_is_single(unit);
    how.to_single = pinned(how.first_is_single ? -4u : 8u);
    how.of_both = pinned(how.first_is_single ? 0x5410 : 0x7632);
    how.of_single = pinned(how.first_is_single ? 0x7632 : 0x1054);
    const int steps = p.steps(), tiles = p.tiles(), stage_bytes = p.stage_bytes();
    const auto is_inside = [&](int i, int word) {  // of steps' words, two each
      const int k = (i / 2 * (kHalf ? 16 : 8)) + lane % 4 * (kHalf ? 2 : 1) + i % 2 * (kHalf ? 8 : 4);
      return static_cast<std::uint32_t>(p.is_inside(unit, k, word));
    };
    constexpr bool kThree = kLoad == PairLoad::three;
#pragma unroll 1
    for (int i = 0; i < 2 * steps; ++i) {
      how.first |= is_inside(i, kThree && !how.first_is_single ? 2 : 0) << i;
      how.second |= is_inside(i, 1) << i;
    }
    how.set_single();
    const bool varies = kThree && 32 % p.x_w != 0;  // from two steps to the next two
    const Loads of_tile = how;
    const unsigned channel = pinned(shared_address(memory) + (unit.channel + lane / 4) * p.y_channel_bytes +
                                    p.x_bytes + p.first_byte(unit) + (how.first_is_single ? 4 : 0)),
                   to_far = pinned(8 * p.y_channel_bytes), x = pinned(descriptor_of(memory)),
                   rows = pinned(shared_address(shared.rows) + lane % 4 * 8),
                   full = pinned(shared_address(shared.full)), empty = pinned(shared_address(shared.empty));
    Sums sums;
#pragma unroll
    for (int k = 0; k < kXRows / 2; ++k) sums[0][k] = sums[1][k] = 0;
    // Words are loaded two steps before fragments are made of them, which is when the products are done that
    // read the fragments before.
    Fragments even = {}, odd = {};
    Words even_words = {}, odd_words = {};
    int stage = 0, held = -1, tile = blockIdx.y, s = 0;
    unsigned turn = 0, near = channel, at = rows, b = x;
    const auto load_steps = [&] { return __builtin_bit_cast(uint2, load_pair(at)); };
    const auto begin_tile = [&] {
      Barrier::wait_at(full + stage * 8, turn & 1);
      near = channel + stage * stage_bytes, b = x + stage * stage_bytes / 16;
    };
    begin_tile();
    uint2 of_steps = load_steps();
    load<kLoad>(even_words, how.to_single, near, near + to_far, of_steps.x);
    load<kLoad>(odd_words, how.to_single, near, near + to_far, of_steps.y);
    at += steps > 2 ? 32 : 0;
    of_steps = load_steps();
#pragma unroll 1
    while (tile < tiles) {
      const unsigned first_b = b;
      set<kLoad>(even, even_words, how, 0);
      multiply(sums, even, first_b);
      // Now what comes two steps later; behind the last one, of any words.
      int left = -1;  // a stage whose products are all started with these two steps
      std::uint32_t first = how.first >> 4, second = how.second >> 4;
      b += s % 4 == 0 ? 4 : kXRows * 8 - 4;
      if ((s += 2) == steps) {
        s = 0, left = stage, first = of_tile.first, second = of_tile.second;
        if (++stage == p.stages) stage = 0, ++turn;
        if ((tile += p.splits) < tiles) begin_tile();
      }
      load<kLoad>(even_words, how.to_single, near, near + to_far, of_steps.x);
      wgmma_wait<1>();
      done(odd);
      if (held >= 0) {
        __syncwarp();
        if (lane == 0) Barrier::arrive_at(empty + held * 8);
      }
      held = left;
      set<kLoad>(odd, odd_words, how, 1);
      multiply(sums, odd, first_b + 2);
      load<kLoad>(odd_words, how.to_single, near, near + to_far, of_steps.y);
      at = s + 2 < steps ? at + 32 : rows;
      of_steps = load_steps();
      how.first = first, how.second = second;
      if (varies) how.set_single();
      wgmma_wait<1>();
      done(even);
    }
    wgmma_wait<0>();
    done(odd);
    pin(sums[0]), pin(sums[1]);
    leave_room();  // for the kernel that adds parts
    // Where the first word is alone, both are of the second tap.
    if (unit.exists) write(call, work, unit, how.first_is_single, sums);
  }

  __device__ static void write(const PairGradArguments& call, const PairGradPlan::Work& work,
                               const PairGradPlan::Unit& unit, bool are_swapped, const Sums& sums) {
    const PairGradPlan& p = call.plan;
    const int lane = threadIdx.x % 32, kh = work.kh + unit.tap;
    const std::int64_t tap_sums = static_cast<std::int64_t>(p.co) * p.ci;
    float* const part = call.parts + (static_cast<std::int64_t>(blockIdx.y) * p.groups + work.group) *
                                         (p.kernel_h * p.kernel_w * tap_sums);
    const int co = work.y_channel + unit.channel + lane / 4, ci = work.x_channel + lane % 4 * 2;
    const bool whole = p.ci % 2 == 0;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int kw = p.kw_of(unit.pair) + (are_swapped ? 1 - t : t);
      if (kw < 0 || kw >= p.kernel_w) continue;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (co + row * 8 >= p.co) continue;
        float* const to =
            part + (kh * p.kernel_w + kw) * tap_sums + static_cast<std::int64_t>(co + row * 8) * p.ci + ci;
#pragma unroll
        for (int j = 0; j < kXRows / 8; ++j) {
          const float a = sums[t][4 * j + 2 * row], b = sums[t][4 * j + 2 * row + 1];
          if (whole) {
            if (ci + j * 8 < p.ci) *reinterpret_cast<float2*>(to + j * 8) = make_float2(a, b);
          } else {
            if (ci + j * 8 < p.ci) to[j * 8] = a;
            if (ci + j * 8 + 1 < p.ci) to[j * 8 + 1] = b;
          }
        }
      }
    }
  }

  __device__ __forceinline__ static void run(const PairGradArguments& call, char* memory, Shared& shared) {
    const PairGradPlan& p = call.plan;
    if (threadIdx.x == 0) {
      for (int s = 0; s < p.stages; ++s) shared.full[s].initialise(1), shared.empty[s].initialise(kPairUnits);
      fence_initialised();
    }
    for (int i = threadIdx.x; i < p.steps() * 4; i += kThreads) {
      const int step = i / 4, lane = i % 4, k = step * (kHalf ? 16 : 8) + lane * (kHalf ? 2 : 1);
      shared.rows[step / 2][lane][step % 2] = static_cast<std::uint32_t>(p.row_of(k)) |
                                              static_cast<std::uint32_t>(p.row_of(k + (kHalf ? 8 : 4))) << 16;
    }
    __syncthreads();
    await_previous<false>();
    const PairGradPlan::Work work = p.work(blockIdx.x);
    if (threadIdx.x < kConsumers) {
      take_registers<kConsumerRegisters>();
      const PairGradPlan::Unit unit = p.unit(work, uniform(static_cast<int>(threadIdx.x) / 32));
      const auto multiply = [&]<PairLoad kLoad>() {
        multiply_tiles<kLoad>(call, work, unit, memory, shared);
      };
      const PairLoad how = p.load_of(unit);  // the same for a warpgroup
      if (how == PairLoad::three) {
        if constexpr (kHalf) multiply.template operator()<PairLoad::three>();
      } else if (how == PairLoad::pairs) {
        multiply.template operator()<PairLoad::pairs>();
      } else {
        multiply.template operator()<PairLoad::words>();
      }
    } else {
      leave_registers<kOtherRegisters>();
      if (threadIdx.x == kConsumers) bring(call, work, memory, shared);
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, 1)
    pair_weight_grad_kernel(const __grid_constant__ PairGradArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ typename K::Shared shared;
  K::run(call, reinterpret_cast<char*>(memory) + to_stages(memory), shared);
#endif
}

template <class Math>
bool pair_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  PairGradArguments call{};
  call.plan = pair_grad_plan(g, static_cast<int>(sizeof(typename Math::Element)));
  const PairGradPlan& p = call.plan;
  if (!p.exists() || !has_rows(x) || !has_rows(y)) return false;

  const DeviceScope scope(w.device());
  call.x_map = pair_map_of_x(x, p), call.y_map = pair_map_of_y(y, p);
  const int taps = p.kernel_h * p.kernel_w;
  const Workspace<float> parts(w.device(), std::int64_t{p.splits} * p.groups * taps * p.co * p.ci);
  call.parts = parts.data();
  const auto launch = [&]<int kXRows>() {
    using K = PairGradKernel<Math, kXRows>;
    allow_shared_memory(pair_weight_grad_kernel<K>, kMostPairBytes + 1024);
    launch_kernel_with_shared("conv: weight gradient", w.device(), pair_weight_grad_kernel<K>,
                              dim3(grid_size("conv", p.works()), static_cast<unsigned>(p.splits)),
                              K::kThreads, p.shared_bytes() + 1024, call);
  };
  p.x_rows == 64 ? launch.template operator()<64>() : launch.template operator()<128>();
  WgmmaWeightGradArguments sum{};
  sum.parts = call.parts;
  sum.groups = p.groups, sum.ci = p.ci, sum.co = p.co, sum.taps = taps;
  sum.y_channels = p.co, sum.rows = taps * p.co, sum.splits = p.splits;
  sum_weight_grads<typename Math::Element>(sum, w);
  return true;
}

template bool pair_weight_grad<Half<bfloat16>>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                               const Tensor&);
template bool pair_weight_grad<Half<float16>>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                              const Tensor&);
template bool pair_weight_grad<Tf32>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                     const Tensor&);

}  // namespace tapedeck::cu::conv_gemm
