// The weight's gradient over rows of nchw images (row_grad_plan.h) on Hopper's tensor cores: images are read
// as they lie, of 16-bit types, or in TF32's accuracy of float32 (scaled_half.cuh).
//
//   gw[ci, co, kh, kw] = sum over images, r, c of x[ci, r, c] * y[co, r*sh - ph + kh*dh, c - pw + kw*dw]
// wgmma multiplies D[64, N] += A[64, 16 pixels] * B[N, 16 pixels]^T with pixels of a row as k, which are
// neighbours of both operands in memory. B are x's tiles of some rows, one after another: those that y's row
// meets through the kernel's rows. A are fragments in registers: a thread loads words of y's row from shared
// memory, at any word, and shifts them by an element where kw wants it. So all columns of the kernel read one
// tile of y, and as A's rows are a warp's own, 16 channels of y, warps of a warpgroup may have different
// columns.
//
// One thread brings tiles; warpgroups that multiply release them in their order. A group of two steps of 16
// pixels is loaded while the one before is multiplied. Tensor cores truncate what they add: after kFlush
// steps D is added to what is written already, in float32.
//
// On an H200 in bfloat16 (bench/compare_gpu.py): kb57 0.95 ms, 650 TFLOP/s, where copies and boxes take 1.84;
// kb71 0.31 and 0.43, kb78 0.52 and 0.64, kb69 0.94 and 1.11. Shared memory bounds it beside the tensor
// cores: of kb57's 1,152 clocks of products a step it is busy for 576 by x's rows, some 290 by fragments,
// which odd shifts load twice, and 150 by what comes. Without loads of fragments kb57 takes 0.71 of the time.
// Fragments of three or four groups, to load further ahead, do not fit the registers (C7512).
//
// Float32 is brought to slots of its own, and three warps beside the one that brings make scaled halves of
// it. On an H200 kb57 in TF32 takes 1.78 ms, 0.72 of what copies and boxes do, kb71 as long as they; kb65,
// kb69 and kb78 would take 1.5, 1.15 and 1.2 times as long. What bounds it seem to be these three warps. A
// scale may be a guess (largest.cuh): halves that overflow raise the operand's second word, and the kernel is
// called once more, to do all again, or nearly always nothing.
//
// y's pixels outside of its row, and those that meet none of x's row, are made zeros in fragments. An
// infinity or a NaN meets zeros outside of the other image, and so may reach its channel's other taps.
#pragma once

#include <optional>

#include <tapedeck/ops/conv/row_grad_plan.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>
#include <tapedeck/ops/conv/tensor_map.cuh>
#include <tapedeck/ops/conv/wgmma_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

struct RowGradArguments {
  RowGradPlan plan;
  CUtensorMap x_map, y_map;
  float* parts;                     // [part][group][tap][channel of y][channel of x]
  unsigned *largest_x, *largest_y;  // two words each (largest.cuh), where these are scaled
  bool x_is_guess, y_is_guess;      // and whether they are of a sample
  bool repeats;                     // what a wrong guess made
};
static_assert(sizeof(RowGradArguments) <= 4096);

template <class M, int kXRows, int kTaps>
struct RowGradKernel {
  using Math = M;
  static constexpr int kColumns = kTaps * kXRows;
  static constexpr bool kConverts = Math::kScaled;
  static constexpr int kConverters = 3;  // warps that make halves
  static constexpr int kMostWarpgroups = row_grad_warpgroups(kColumns, kConverts),
                       kMostThreads = kMostWarpgroups * 128 + 128;
  // The warpgroup of the one that brings leaves some of its registers.
  static constexpr int kConsumerRegisters = kMostWarpgroups == 3 ? 152 : 112,
                       kOtherRegisters = kMostWarpgroups == 3 ? 56 : 32;
  static constexpr int kFlush = kConverts ? 512 : 2048, kFlushRows = kFlush / (kRowPixels / 16);
  static constexpr int kXBytes = kXRows * 2 * kRowPixels;
  using Fragments = std::uint32_t[2][4];  // of two steps

  struct Barriers {
    Barrier full[kMostRowStages], empty[kMostRowStages];
    Barrier full_floats[kMostFloatSlots], empty_floats[kMostFloatSlots];
  };

  /// By one thread.
  __device__ static void bring(const RowGradArguments& call, const RowGradPlan::Work& work, char* memory,
                               Barriers& barriers) {
    const RowGradPlan& p = call.plan;
    const int x_channel = work.group * p.ci + work.x_channel,
              y_channel = (work.group * p.co + work.y_channel) / p.y.apart, no_channel = p.groups * p.ci,
              y_bytes = p.y.apart * p.y_box_bytes;
    char* const y_memory = memory + p.y_begin();
    int stage = 0, slot = 0;
    unsigned turn = 0;
    for (RowGradPlan::Steps at(p, work.kh, blockIdx.y); at.exist(); at.next()) {
      if (turn > 0) barriers.empty[stage].wait((turn - 1) & 1);
      Barrier& full = barriers.full[stage];
      const int copies = p.is_twice(slot) ? 2 : 1, x_row = at.x_row(), y_row = at.y_row();
      const bool has_x = at.x_exists(), has_y = at.y_exists();
      full.arrive_and_expect(copies * kXBytes + (has_y ? y_bytes : 0));
      for (int copy = 0; copy < copies; ++copy)
        full.copy_box(memory + (slot + copy * p.x_slots()) * kXBytes, call.x_map, at.column, x_row,
                      has_x ? x_channel : no_channel, at.image, 0);
      for (int b = 0; b < p.y.apart && has_y; ++b)
        full.copy_box(y_memory + stage * p.y_bytes + b * p.y_box_step, call.y_map,
                      RowBoxes::aligned(p.y.first(b, y_row, at.column - p.padding_w)), p.y.second(y_row),
                      y_channel, at.image, 0);
      if (++stage == p.stages) stage = 0, ++turn;
      if (++slot == p.x_slots()) slot = 0;
    }
  }

  /// The same of float32, to slots of its own.
  __device__ static void bring_floats(const RowGradArguments& call, const RowGradPlan::Work& work,
                                      char* memory, Barriers& barriers) {
    const RowGradPlan& p = call.plan;
    const int x_channel = work.group * p.ci + work.x_channel,
              y_channel = (work.group * p.co + work.y_channel) / p.y.apart, no_channel = p.groups * p.ci,
              y_bytes = 2 * p.y.apart * p.y_box_bytes;
    memory += p.floats_begin();
    int slot = 0;
    unsigned turn = 0;
    for (RowGradPlan::Steps at(p, work.kh, blockIdx.y); at.exist(); at.next()) {
      if (turn > 0) barriers.empty_floats[slot].wait((turn - 1) & 1);
      Barrier& full = barriers.full_floats[slot];
      const int x_row = at.x_row(), y_row = at.y_row();
      const bool has_x = at.x_exists(), has_y = at.y_exists();
      full.arrive_and_expect(2 * kXBytes + (has_y ? y_bytes : 0));
      char* const to = memory + slot * p.floats_bytes();
      full.copy_box(to, call.x_map, at.column, x_row, has_x ? x_channel : no_channel, at.image, 0);
      for (int b = 0; b < p.y.apart && has_y; ++b)
        full.copy_box(to + 2 * kXBytes + b * 2 * p.y_box_step, call.y_map,
                      RowBoxes::aligned(p.y.first(b, y_row, at.column - p.padding_w)), p.y.second(y_row),
                      y_channel, at.image, 0);
      if (++slot == p.float_slots) slot = 0, ++turn;
    }
  }

  /// Makes halves of vectors of eight float32 in shared memory. Half as many instructions for each as with
  /// vectors of four made kb57 1.14 times as fast (an H200).
  class Converter {
   public:
    /// `converter`: which warp of those that do this.
    __device__ Converter(unsigned* words, bool is_guess, int converter)
        : words_(words),
          bound_(is_guess ? words[0] : largest_of(words)),
          scale_(scale_of(bound_)),
          is_guess_(is_guess),
          first_(converter * 32) {}
    /// Vector i becomes halves at to(i); if `again` is not 0, also so many bytes further.
    template <class F>
    __device__ __forceinline__ void operator()(unsigned from, int count, unsigned again, const F& to) const {
      constexpr int kAtOnce = 3;
      const int lane = threadIdx.x % 32;
      // Four lanes read the first half of their vectors, four the second one: so eight meet all banks.
      const bool swapped = (lane & 4) != 0;
      const unsigned near = swapped ? 16 : 0, far = 16 - near;
      std::uint32_t most = 0;
#pragma unroll 1
      for (int of_warp = first_; of_warp < count; of_warp += kAtOnce * kThreads) {
        uint4 values[kAtOnce][2];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const unsigned at = from + min(of_warp + lane + k * kThreads, count - 1) * 32;
          values[k][0] = conv_gemm::load_words(at + near), values[k][1] = conv_gemm::load_words(at + far);
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const int i = of_warp + lane + k * kThreads;
          const auto scaled = [&](unsigned bits) { return __uint_as_float(bits) * scale_; };
          std::uint32_t halves[4];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint4& x = values[k][h];
            halves[2 * h] = pair_of_halves({scaled(x.x), scaled(x.y)});
            halves[2 * h + 1] = pair_of_halves({scaled(x.z), scaled(x.w)});
          }
          most = larger_halves(
              most, larger_halves(larger_halves(halves[0], halves[1]), larger_halves(halves[2], halves[3])));
          const uint4 vector = swapped ? make_uint4(halves[2], halves[3], halves[0], halves[1])
                                       : make_uint4(halves[0], halves[1], halves[2], halves[3]);
          const unsigned at = to(i);
          store_words_if(i < count, at, vector);
          if (again > 0) store_words_if(i < count, at + again, vector);
        }
      }
      constexpr std::uint32_t kInfinite = 0x7c00;
      const bool is_infinite = (most & 0x7fff) >= kInfinite || (most >> 16 & 0x7fff) >= kInfinite;
      if (is_guess_ && __any_sync(~0u, is_infinite)) look(from, count);
    }

   private:
    static constexpr int kThreads = kConverters * 32;
    /// Whether a finite element made a half infinite.
    __device__ __forceinline__ void look(unsigned from, int count) const {
      unsigned most = 0;
#pragma unroll 1
      for (int i = first_ + static_cast<int>(threadIdx.x) % 32; i < count; i += kThreads) {
        for (int half = 0; half < 2; ++half) {
          const uint4 x = conv_gemm::load_words(from + i * 32 + half * 16);
          for (const unsigned bits : {x.x, x.y, x.z, x.w}) most = max(most, magnitude(__uint_as_float(bits)));
        }
      }
      most = __reduce_max_sync(~0u, most);
      if (threadIdx.x % 32 == 0 && is_beyond(most, bound_)) atomicMax(words_ + 1, most);
    }
    unsigned* words_;
    unsigned bound_;
    float scale_;
    bool is_guess_;
    int first_;
  };
  /// Makes the tiles' halves; `converter`: which warp of those that do.
  __device__ static void convert(const RowGradArguments& call, const RowGradPlan::Work& work, char* memory,
                                 Barriers& barriers, int converter) {
    const RowGradPlan& p = call.plan;
    const Converter x(call.largest_x, call.x_is_guess && !call.repeats, converter),
        y(call.largest_y, call.y_is_guess && !call.repeats, converter);
    const unsigned tiles = shared_address(memory);
    int stage = 0, slot = 0, floats = 0;
    unsigned turn = 0, floats_turn = 0;
#pragma unroll 1
    for (RowGradPlan::Steps at(p, work.kh, blockIdx.y); at.exist(); at.next()) {
      if (turn > 0) barriers.empty[stage].wait((turn - 1) & 1);
      barriers.full_floats[floats].wait(floats_turn & 1);
      const unsigned from = tiles + p.floats_begin() + floats * p.floats_bytes(),
                     to_x = tiles + slot * kXBytes;
      constexpr int kOfRow = kRowPixels / 8;  // vectors
      x(from, kXRows * kOfRow, p.is_twice(slot) ? p.x_slots() * kXBytes : 0, [&](int i) {
        const int row = i / kOfRow, of_row = i % kOfRow;  // bytes are swizzled as wgmma reads them
        return to_x + row * (2 * kRowPixels) + (of_row ^ (row & 7)) * 16;
      });
      if (at.y_exists()) {
        for (int b = 0; b < p.y.apart; ++b) {
          const unsigned to_y = tiles + p.y_begin() + stage * p.y_bytes + b * p.y_box_step;
          y(from + 2 * kXBytes + b * 2 * p.y_box_step, p.y_box_bytes / 16, 0,
            [&](int i) { return to_y + i * 16; });
        }
      }
      fence_async();
      __syncwarp();
      if (threadIdx.x % 32 == 0) barriers.empty_floats[floats].arrive(), barriers.full[stage].arrive();
      if (++stage == p.stages) stage = 0, ++turn;
      if (++slot == p.x_slots()) slot = 0;
      if (++floats == p.float_slots) floats = 0, ++floats_turn;
    }
  }

  /// What a warp reads of a row of y.
  struct Row {
    const char *near, *far;  // a thread's first words of channels lane / 4 and 8 further
    bool is_odd;             // elements begin in the middle of words
    int first, past;         // pixels that count
  };
  /// Fragments of 32 pixels, from pixel 32*half on.
  template <bool kOdd>
  __device__ __forceinline__ static void load_words(Fragments& a, const Row& row, int half) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const auto* const from = reinterpret_cast<const std::uint32_t*>(i % 2 == 0 ? row.near : row.far) +
                                 half * 16 + s * 8 + i / 2 * 4;
        a[s][i] = kOdd ? __byte_perm(from[0], from[1], 0x5432) : from[0];
      }
  }
  __device__ __forceinline__ static void load(Fragments& a, const Row& row, int half) {
    if (row.is_odd) {
      load_words<true>(a, row, half);
    } else {
      load_words<false>(a, row, half);
    }
    if (row.first == 0 && row.past == kRowPixels) return;
    const int pixel = half * 32 + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int s = 0; s < 2; ++s)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int at = pixel + s * 16 + k * 8;
        const std::uint32_t mask = (at >= row.first && at < row.past ? 0xffffu : 0) |
                                   (at + 1 >= row.first && at + 1 < row.past ? 0xffff0000u : 0);
        a[s][2 * k] &= mask, a[s][2 * k + 1] &= mask;
      }
  }
  /// Starts the products of 32 pixels; `b`: descriptor_of() x's rows at the first.
  __device__ __forceinline__ static void multiply(float (&sums)[kColumns / 2], const Fragments& a,
                                                  unsigned b) {
    const unsigned from = uniform(b);
    wgmma_fence();
    wgmma<Math, kColumns>(sums, a[0], descriptor(from), true);
    wgmma<Math, kColumns>(sums, a[1], descriptor(from + 2), true);
    wgmma_commit();
  }
  /// Fragments are kept until here: tensor cores have read them.
  __device__ __forceinline__ static void done(const Fragments& a) {
#pragma unroll
    for (int s = 0; s < 2; ++s)
      asm volatile("" ::"r"(a[s][0]), "r"(a[s][1]), "r"(a[s][2]), "r"(a[s][3]) : "memory");
  }

  __device__ static void multiply_rows(const RowGradArguments& call, const RowGradPlan::Work& work,
                                       const char* memory, Barriers& barriers) {
    const RowGradPlan& p = call.plan;
    const int lane = threadIdx.x % 32, warp = uniform(static_cast<int>(threadIdx.x) / 32),
              part = warp / (4 * p.warpgroups);
    const RowGradPlan::Unit unit = p.unit(work.unit + warp - part * 4 * p.warpgroups);
    const char* const near = memory + p.y_begin() + p.y_place(unit.row + lane / 4) + lane % 4 * 4;
    const int to_far = p.y_place(unit.row + lane / 4 + 8) - p.y_place(unit.row + lane / 4);
    const unsigned x = descriptor_of(memory);
    Row row{};

    int stage = 0, window = kTaps == 1 ? 0 : p.x_slots() - (kTaps - 1), step = 0;
    unsigned turn = 0;
    // Steps that are over but not released, from stage `oldest` on.
    int held = 0, oldest = 0;
    const auto release = [&] {
      __syncwarp();
#pragma unroll 1
      for (; held > 0; --held) {
        if (lane == 0) barriers.empty[oldest].arrive();
        if (++oldest == p.stages) oldest = 0;
      }
    };
    RowGradPlan::Steps at(p, work.kh, blockIdx.y);
    bool adds = false;
#pragma unroll 1
    do {
      float sums[kColumns / 2];
#pragma unroll
      for (float& s : sums) s = 0;
      Fragments first = {}, second = {};
#pragma unroll 1
      for (int rows = kFlushRows; rows > 0 && at.exist(); at.next()) {
        barriers.full[stage].wait(turn & 1);
        if (!at.y_exists()) {
          wgmma_wait<0>();
          ++held;
          release();
        } else if ((step & (p.parts - 1)) != part) {
          ++held;
        } else {
          const int shift = p.shift(at, unit);
          row.near = near + stage * p.y_bytes + shift / 2 * 4, row.far = row.near + to_far;
          row.is_odd = shift % 2 != 0;
          row.first = p.first_pixel(at.column, unit.kw), row.past = p.past_pixel(at.column, unit.kw);
          const unsigned b = x + window * (kXBytes / 16);
          load(first, row, 0);
          multiply(sums, first, b);
          wgmma_wait<1>();
          done(second);
          release();
          ++held;
          if (p.x.width - at.column > 32) {
            load(second, row, 1);
            multiply(sums, second, b + 4);
            wgmma_wait<1>();
          } else {
            wgmma_wait<0>();
          }
          done(first);
          --rows;
        }
        ++step;
        if (++stage == p.stages) stage = 0, ++turn;
        if (++window == p.x_slots()) window = 0;
      }
      wgmma_wait<0>();
      done(second);
      pin(sums);
      release();
      add(call, work, unit, part, sums, adds);
      adds = true;
    } while (at.exist());
  }

  /// Writes sums, or adds them to those that are there.
  __device__ static void add(const RowGradArguments& call, const RowGradPlan::Work& work,
                             const RowGradPlan::Unit& unit, int part, const float (&sums)[kColumns / 2],
                             bool adds) {
    const RowGradPlan& p = call.plan;
    if (!unit.exists) return;
    const int lane = threadIdx.x % 32;
    const std::int64_t tap_sums = static_cast<std::int64_t>(p.co) * p.ci;
    const auto unscaled = [&] {
      if constexpr (kConverts) {
        return InverseScales(call.largest_x, call.largest_y);
      } else {
        return [](float sum) { return sum; };
      }
    }();
    float* const parts =
        call.parts + ((static_cast<std::int64_t>(blockIdx.y) * p.parts + part) * p.groups + work.group) *
                         (p.kernel_h * p.kernel_w * tap_sums);
    int co[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) co[i] = work.y_channel + p.y.channel(unit.row + lane / 4 + 8 * i, p.y_rows);
    int first_ci = work.x_channel + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) {
      const int t = p.row_tap(j);
      if (t >= work.taps) continue;
      float* to = parts + ((work.kh + t * p.kh_step) * p.kernel_w + unit.kw) * tap_sums;
      // Or all addresses are computed before products, and kept meanwhile.
      asm volatile("" : "+l"(to), "+r"(first_ci), "+r"(co[0]), "+r"(co[1]));
      constexpr int kOf = kXRows / 2, kAtOnce = 4;  // a thread's sums of a tap; loaded before any is stored
#pragma unroll
      for (int begin = 0; begin < kOf; begin += kAtOnce) {
        const auto for_each = [&](const auto& f) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const int k = begin + i, ci = first_ci + k / 4 * 8 + k % 2;
            if (co[k / 2 % 2] < p.co && ci < p.ci) f(i, to + co[k / 2 % 2] * p.ci + ci);
          }
        };
        float there[kAtOnce] = {};
        if (adds) for_each([&](int i, const float* from) { there[i] = *from; });
        for_each([&](int i, float* result) { *result = there[i] + unscaled(sums[j * kOf + begin + i]); });
      }
    }
  }

  __device__ __forceinline__ static void run(const RowGradArguments& call, char* memory, Barriers& barriers) {
    const RowGradPlan& p = call.plan;
    const int warps = 4 * p.warpgroups * p.parts;  // that multiply
    if (threadIdx.x == 0) {
      for (int s = 0; s < p.stages; ++s)
        barriers.full[s].initialise(kConverts ? kConverters : 1), barriers.empty[s].initialise(warps);
      for (int s = 0; s < p.float_slots; ++s)
        barriers.full_floats[s].initialise(1), barriers.empty_floats[s].initialise(kConverters);
      fence_initialised();
    }
    __syncthreads();
    await_previous<false>();
    if constexpr (kConverts) {
      const auto is_wrong = [](bool is_guess, const unsigned* words) {
        return is_guess && is_beyond(words[1], words[0]);
      };
      if (call.repeats && !is_wrong(call.x_is_guess, call.largest_x) &&
          !is_wrong(call.y_is_guess, call.largest_y))
        return;
    }
    const RowGradPlan::Work work = p.work(blockIdx.x);
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp < warps) {
      take_registers<kConsumerRegisters>();
      multiply_rows(call, work, memory, barriers);
    } else {
      leave_registers<kOtherRegisters>();
      if constexpr (kConverts) {
        if (warp > warps) return convert(call, work, memory, barriers, warp - warps - 1);
        if (threadIdx.x % 32 == 0) bring_floats(call, work, memory, barriers);
      } else {
        if (warp == warps && threadIdx.x % 32 == 0) bring(call, work, memory, barriers);
      }
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kMostThreads, 1)
    row_weight_grad_kernel(const __grid_constant__ RowGradArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  __shared__ typename K::Barriers barriers;
  K::run(call, reinterpret_cast<char*>(memory) + to_stages(memory), barriers);
#endif
}

/// wgmma_weight_grad() of images in nchw, if there is a plan for them: returns whether there was.
template <class Math>
bool row_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  RowGradArguments call{};
  call.plan = row_grad_plan(g, Math::kScaled);
  const RowGradPlan& p = call.plan;
  if (!p.exists() || !has_rows(x) || !has_rows(y)) return false;

  const DeviceScope scope(w.device());
  std::optional<Largest> largest;
  if constexpr (Math::kScaled) {
    // Copies that share words may take rows of y that are not read here: then these are of no guess.
    using enum Largest::Next;
    largest.emplace(x, copies, y, p.stride_h == 1 && p.dilation_h == 1 ? copies : reads);
    call.largest_x = const_cast<unsigned*>(largest->a().words);
    call.largest_y = const_cast<unsigned*>(largest->b().words);
    call.x_is_guess = largest->a().is_guess, call.y_is_guess = largest->b().is_guess;
  }
  call.x_map = row_map(x, p.x, kRowPixels, p.x_rows, !Math::kScaled);
  call.y_map = row_map(y, p.y, p.y_columns, p.y_rows, false);
  const int taps = p.kernel_h * p.kernel_w;
  const Workspace<float> parts(w.device(), std::int64_t{p.sums()} * p.groups * taps * p.co * p.ci);
  call.parts = parts.data();
  const auto offer = [&]<int kXRows, int kTaps>() {
    if (p.x_rows != kXRows || p.taps != kTaps) return;
    using K = RowGradKernel<Math, kXRows, kTaps>;
    const int shared = p.shared_bytes() + 1024;
    allow_shared_memory(row_weight_grad_kernel<K>, kMostRowBytes + 1024);
    const auto launch = [&] {
      launch_kernel_with_shared("conv: weight gradient", w.device(), row_weight_grad_kernel<K>,
                                dim3(grid_size("conv", p.works()), static_cast<unsigned>(p.splits)),
                                p.warpgroups * p.parts * 128 + 128, shared, call);
    };
    launch();
    if (call.x_is_guess || call.y_is_guess) {
      call.repeats = true;
      launch();
    }
  };
  offer.template operator()<32, 1>();
  offer.template operator()<32, 2>();
  offer.template operator()<32, 3>();
  offer.template operator()<64, 1>();
  offer.template operator()<64, 2>();
  offer.template operator()<64, 3>();
  WgmmaWeightGradArguments sum{};
  sum.parts = call.parts;
  sum.groups = p.groups, sum.ci = p.ci, sum.co = p.co, sum.taps = taps;
  sum.y_channels = p.co, sum.rows = taps * p.co, sum.splits = p.sums();
  sum_weight_grads<typename Math::Value>(sum, w);
  return true;
}

}  // namespace tapedeck::cu::conv_gemm
