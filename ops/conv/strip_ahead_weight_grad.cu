// The weight's gradient as strip_weight_grad.cu, where each row of y meets one row of x: for reading that
// never stops.
//
//   gw[ci, co, kh, kw] = sum over n and the pixels (ih, iw) of x: x[n, ci, ih, iw] * y[n, co, oh, ow]
//
// A block has some channels of y, and sums of all their weights in registers. Some warps bring rows to a ring
// of stages, as far ahead as there is room: a row of x of all channels, then rows of y that taps along h
// bring to it. Eight warps have 16 pixels of the row each; what they load of x stays in registers while
// stages of y come and go:
//
//   rows ci of 16:     x[ci][pixel]                          of a unit loaded once
//   columns co of 8:   y[co][window of the tap + pixel]      `stride` apart
//
// Sums of warps are added in order, and so are the blocks', by a second kernel.
//
// On an H200 kb81 of bench/compare_gpu.py takes 0.149, 0.153 and 0.086 ms in float32, TF32 and bfloat16, and
// 0.27, 0.23 and 0.15 in strip_weight_grad.cu. Copies of y's rows alone take 0.121 and 0.062. What mattered:
// stages of 16 channels of y, as to begin one takes a warp that copies some thousand clocks (of 8 channels,
// and with sums added warp by warp, 0.109 ms in bfloat16). Of 2x2 taps, stride 2, it took 0.94 of that
// kernel's time in float32 then, 1.08 in TF32.
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

struct Arguments {
  AheadWeightGrad ahead;
  const void *x = nullptr, *y = nullptr;
  float* parts = nullptr;
  ImageStrides x_strides = {};
  std::int64_t count = 0;  // of weights
};

/// kTaps along both axes; kM * 16 channels of x.
template <class T, int kParts, int kTaps, int kM>
__global__ void __launch_bounds__(AheadWeightGrad::kAllThreads, 1)
    strip_ahead_weight_grad_kernel(const __grid_constant__ Arguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using P = PixelProduct<T, kParts>;
  constexpr int kBytes = static_cast<int>(sizeof(T)), kMostStages = AheadWeightGrad::kMostStages,
                kOctets = AheadWeightGrad::kChannels / kStep;
  extern __shared__ uint4 shared[];
  __shared__ conv_gemm::Barrier full[kMostStages], empty[kMostStages];
  char* const memory = reinterpret_cast<char*>(shared);
  const AheadWeightGrad& ahead = call.ahead;
  const Strip& p = ahead.strip;
  const Plan& plan = p.plan;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  int rest = static_cast<int>(blockIdx.x);
  const auto next_of = [&rest](int count) {
    const int quotient = rest / count, index = rest - quotient * count;
    rest = quotient;
    return index;
  };
  const int y_first = next_of(ahead.y_blocks) * AheadWeightGrad::kChannels, group = next_of(plan.groups),
            split = rest;
  const T* const y = static_cast<const T*>(call.y) +
                     static_cast<std::int64_t>(group * plan.from_channels + y_first) * plan.from.c;
  const T* const x =
      static_cast<const T*>(call.x) + static_cast<std::int64_t>(group * plan.to_channels) * call.x_strides.c;
  const int stages = kept(ahead.stages), stage_bytes = kept(ahead.stage_bytes), units = kept(ahead.units),
            step_h = kept(p.reach_h.step), step_w = kept(p.reach_w.step);

  if (thread < kMostStages) {
    full[thread].initialise(RowCopy<T>::kRowArrivals);
    empty[thread].initialise(kWarps * 32);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  await_previous<false>();

  if (warp >= kWarps) {
    conv_gemm::leave_registers<72>();
    if (warp >= kWarps + ahead.copying) return;
    const RowCopy<T> copy_y = copy_of<T, false>(p, AheadWeightGrad::kChannels, 1);
    const RowCopy<T> copy_x(ahead.by_x_channels, plan.to_channels, 1, p.to_h, p.to_w, ahead.x_pitch,
                            16 / kBytes, ahead.x_copies, 32, call.x_strides, ahead.x_shifts);
    CopyTurn turn(warp - kWarps);
    const auto copy = [&](const RowCopy<T>& rows, const T* from, int first_column, int row) {
      turn.next(stages, ahead.copying, empty, [&](int stage) {
        rows.start_row(reinterpret_cast<T*>(memory + stage * stage_bytes), from, first_column, row,
                       full[stage]);
      });
    };
    for (int index = split; index < units; index += ahead.splits) {
      const Unit unit(p, index);
      copy(copy_x, x + unit.image * call.x_strides.n, unit.column, unit.row);
#pragma unroll 1
      for (int slot = 0; slot < kTaps; ++slot)
        copy(copy_y, y + unit.image * plan.from.n, unit.column * step_w + p.low_w,
             unit.row * step_h + p.slot_of.row(slot));
    }
    wait_for_copies<0>();
    return;
  }

  conv_gemm::take_registers<216>();
  const int g = lane / 4, t = lane % 4, pixel = warp * AheadWeightGrad::kWarpPixels + t;
  const int step_bytes = step_w * kBytes, x_pitch = kept(ahead.x_pitch * kBytes);
  const unsigned ring = shared_address(memory), y_thread = ring + g * p.pitch * kBytes + pixel * step_bytes,
                 x_thread = ring + g * x_pitch + pixel * kBytes;
  int tap_offset[kTaps], tap_row[kTaps];  // along w and h
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    tap_offset[tap] = kept(p.row_offset(tap * AheadWeightGrad::kChannels) * kBytes);
    tap_row[tap] = kept(p.slot_of.row(tap) * plan.from.h);
  }
  const int row_step = kept(step_h * plan.from.h), octet_bytes = kept(kStep * p.pitch * kBytes);
  const auto element_of = [](const T* of) {
    return static_cast<int>(reinterpret_cast<std::uintptr_t>(of) / sizeof(T));
  };
  Turn turn;
  const auto leave = [&] {
    empty[turn.stage].arrive();  // each thread, as in strip_ahead.cu
    turn.pass(stages);
  };
  float sums[kTaps][kOctets][kTaps][kM][4] = {};  // taps along h and w
  for (int index = split; index < units; index += ahead.splits) {
    const Unit unit(p, index);
    const int x_shift =
        element_of(x + unit.image * call.x_strides.n + unit.row * call.x_strides.h + unit.column) +
        g * call.x_strides.c;
    typename P::A a[kM];
    full[turn.stage].wait(turn.parity);
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      const unsigned upper = x_thread + turn.stage * stage_bytes + m * kPixels * x_pitch +
                             static_cast<unsigned>(x_shift & ahead.x_shifts) * kBytes,
                     lower = upper + 8 * x_pitch;
      a[m] = P::load_rows({upper, upper + 8 * kBytes}, {lower, lower + 8 * kBytes}, 4 * kBytes);
    }
    leave();
    const int y_shift =
        p.shift(element_of(y + unit.image * plan.from.n), g, 0, unit.column * step_w + p.low_w) +
        unit.row * row_step;
#pragma unroll
    for (int slot = 0; slot < kTaps; ++slot) {
      // Channels 8 apart have the same shift.
      unsigned at = y_thread + turn.stage * stage_bytes +
                    static_cast<unsigned>((y_shift + tap_row[slot]) & p.shifts) * kBytes;
      full[turn.stage].wait(turn.parity);
#pragma unroll
      for (int octet = 0; octet < kOctets; ++octet, at += octet_bytes)
#pragma unroll
        for (int tap = 0; tap < kTaps; ++tap) {
          const unsigned first = at + tap_offset[tap];
          const auto b = P::load_columns({first, first + 8 * step_bytes}, 4 * step_bytes);
#pragma unroll
          for (int m = 0; m < kM; ++m) P::add_product(sums[slot][octet][tap][m], a[m], b);
        }
      leave();
    }
  }

  // Sums of warps, where stages were.
  constexpr int kSums = kTaps * kOctets * kTaps * kM * 4;
  float* const shared_sums = reinterpret_cast<float*>(memory);
  meet<kThreads>();
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int k = i % 4, m = i / 4 % kM, tap = i / 4 / kM;
    shared_sums[(warp * kSums + i) * 32 + lane] =
        sums[tap / kTaps / kOctets][tap / kTaps % kOctets][tap % kTaps][m][k];
  }
  meet<kThreads>();
  float* const parts = call.parts + split * call.count;
  for (int e = thread; e < kSums * 32; e += kThreads) {
    const int i = e / 32, of_lane = e % 32, k = i % 4, m = i / 4 % kM, tap = i / 4 / kM;
    const int ci = m * kPixels + of_lane / 4 + k / 2 * 8,
              co = y_first + tap / kTaps % kOctets * kStep + of_lane % 4 * 2 + k % 2;
    if (ci >= plan.to_channels) continue;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared_sums[w * (kSums * 32) + e];
    parts[(static_cast<std::int64_t>(group * plan.to_channels + ci) * plan.from_channels + co) *
              (kTaps * kTaps) +
          tap / kTaps / kOctets * kTaps + tap % kTaps] = sum;
  }
#endif
}

AheadWeightGrad ahead_of(const ConvTranspose2dGeometry& g, DType dtype, const void* x, const void* y) {
  const int bytes = static_cast<int>(size_of(dtype));
  return {g, bytes, copy_bytes(y, g.w.out, bytes), copy_bytes(x, g.w.in, bytes)};
}

template <class T, int kParts, int kTaps, int kM>
void launch(const Arguments& a, Device device) {
  const int bytes = a.ahead.stages * a.ahead.stage_bytes;
  conv_gemm::allow_shared_memory(strip_ahead_weight_grad_kernel<T, kParts, kTaps, kM>, bytes);
  const std::int64_t blocks = std::int64_t{a.ahead.splits} * a.ahead.y_blocks * a.ahead.strip.plan.groups;
  launch_kernel_with_shared("conv: strip weight gradient", device,
                            strip_ahead_weight_grad_kernel<T, kParts, kTaps, kM>, grid_size("conv", blocks),
                            AheadWeightGrad::kAllThreads, bytes, a);
}

}  // namespace

std::int64_t strip_weight_grad_ahead_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout,
                                            bool has_bulk) {
  if (!has_bulk || layout != Layout::nchw || !strips_serve(g, dtype, layout)) return 0;
  return ahead_of(g, dtype, nullptr, nullptr).splits;
}

bool strip_weight_grad_ahead(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                             const Tensor& w) {
  if (y.layout() != Layout::nchw || !conv_gemm::has_wgmma(w.device())) return false;
  Arguments a{ahead_of(g, w.dtype(), x.raw(), y.raw())};
  if (!a.ahead.fits()) return false;
  const DeviceScope scope(w.device());
  a.ahead.strip.plan.from = ImageStrides(y.strides());
  a.x_strides = ImageStrides(x.strides());
  a.x = x.raw();
  a.y = y.raw();
  a.count = w.count();
  const Workspace<float> parts(w.device(), a.ahead.splits * a.count);
  a.parts = parts.data();
  visit_strip(w.dtype(), [&]<class T, int kParts>() {
    const auto choose_channels = [&]<int kTaps>() {
      a.ahead.m == 1 ? launch<T, kParts, kTaps, 1>(a, w.device())
                     : launch<T, kParts, kTaps, 2>(a, w.device());
    };
    a.ahead.strip.plan.kernel_h == 2 ? choose_channels.template operator()<2>()
                                     : choose_channels.template operator()<3>();
    add_parts<T>(a.parts, a.ahead.splits, w);
  });
  return true;
}

}  // namespace tapedeck::cu
