// conv2d as strip_plain.cu, where each row of y meets one row of x: for reading that never stops.
//
//   x[n, ci, ih, iw] = bias[ci] + sum over co and taps: y[n, co, oh, ow] * w[ci, co, kh, kw]
//
// A block keeps the weights of a group in shared memory, for two teams. Two warps of a team bring rows of y,
// a tap's of some channels at once, to a ring of stages, as far ahead as there is room, and eight multiply
// them; they meet at barriers of the stage only:
//
//   the warps that copy        empty[i], copies of a row into stage i       next stage, tap, chunk, unit ...
//   the warps that multiply    full[i], products of the tap with stage i    arrive at empty[i] ...
//
// A row's ends, which are no copies of 16 bytes, are words that lanes of the warp copy.
//
// On an H200 kb81 of bench/compare_gpu.py takes 0.141, 0.142 and 0.079 ms in float32, TF32 and bfloat16, 83,
// 83 and 74% of the 4.27 TB/s of a copy for the rows that are read, and 0.22, 0.22 and 0.12 in
// strip_plain.cu: there a block waits for copies that begin when the stage before is multiplied, two of 62 KB
// in float32; here 100 KB and more are on their way. Copies of these rows alone, by four warps, take 0.121
// and 0.062. Weights that each thread looked for where a product has them, in 32 lines of memory for a load,
// took 0.011 and 0.013 ms more. Four warps that copy for each team, one arrival at a barrier for a warp, and
// one for all of a stage's copies make no difference.
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

struct AheadArguments {
  Ahead ahead;
  const void *y, *w, *bias;
  void* x;
};

template <class T, int kParts, int kN>
__global__ void __launch_bounds__(Ahead::kAllThreads, 1)
    strip_ahead_kernel(const __grid_constant__ AheadArguments call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using P = Product<T, kParts, false, false>;
  constexpr int kTeams = Ahead::kTeams, kFlush = 4;  // steps whose sums tensor cores add
  extern __shared__ uint4 shared[];
  __shared__ conv_gemm::Barrier full[kTeams][Ahead::kMostStages], empty[kTeams][Ahead::kMostStages];
  __shared__ int slot_rows[kMaxPhases];
  char* const memory = reinterpret_cast<char*>(shared);
  const Ahead& ahead = call.ahead;
  const Strip& p = ahead.strip;
  const Plan& plan = p.plan;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int groups = plan.groups, block = static_cast<int>(blockIdx.x) / groups,
            blocks = static_cast<int>(gridDim.x) / groups,
            group = static_cast<int>(blockIdx.x) - block * groups;
  const bool copies = thread >= Ahead::kMultiplying;
  const int team = copies ? (warp - kTeams * kWarps) / Ahead::kCopying : warp / kWarps;
  const int first_unit = block + team * blocks, unit_step = kTeams * blocks;
  const int chunks = kept(p.chunks), slots = kept(p.slot_of.count), stages = kept(ahead.stages),
            units = kept(ahead.units), step_h = kept(p.reach_h.step), step_w = kept(p.reach_w.step);
  const T* const from =
      static_cast<const T*>(call.y) + static_cast<std::int64_t>(group) * plan.from_channels * plan.from.c;

  if (thread < kTeams * Ahead::kMostStages) {
    full[thread % kTeams][thread / kTeams].initialise(RowCopy<T>::kRowArrivals);
    empty[thread % kTeams][thread / kTeams].initialise(kWarps * 32);
  }
  if (thread < kMaxPhases) slot_rows[thread] = p.slot_of.row(thread);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
  await_previous<false>();

  if (copies) {
    const RowCopy<T> copy = copy_of<T, false>(p, p.chunk, 1);
    CopyTurn turn((warp - kTeams * kWarps) % Ahead::kCopying);
    for (int index = first_unit; index < units; index += unit_step) {
      const Unit unit(p, index);
      const T* rows = from + unit.image * plan.from.n;
      for (int chunk = 0; chunk < chunks; ++chunk, rows += static_cast<std::int64_t>(p.chunk) * plan.from.c)
        for (int slot = 0; slot < slots; ++slot)
          turn.next(stages, Ahead::kCopying, empty[team], [&](int stage) {
            copy.start_row(reinterpret_cast<T*>(memory + ahead.stage(team, stage)), rows,
                           unit.column * step_w + p.low_w, unit.row * step_h + slot_rows[slot],
                           full[team][stage]);
          });
    }
    wait_for_copies<0>();
    return;
  }

  int* const offsets = reinterpret_cast<int*>(memory);
  typename P::Stored* const weights = reinterpret_cast<typename P::Stored*>(memory + ahead.weights);
  float* const bias = reinterpret_cast<float*>(memory + ahead.bias_at);
  const int all_n = kept(ahead.side * kN), steps = kept(ahead.steps),
            of_tap = kept(steps / P::kSteps * all_n * 32);
  const int channels = plan.to_channels, channel = group * channels;
  for (int e = thread; e < steps * kStep; e += Ahead::kMultiplying)
    offsets[e] = p.row_offset(p.element_of(e / kStep, e % kStep / 2, e % 2)) * p.bytes;
  // Neighbouring threads have neighbouring channels of y, which are a few taps apart in memory, and a thread
  // eight of x, which are all channels of y apart.
  const int of_octet = steps * kStep, of_chunk = slots * of_octet;
  const std::int64_t to_next = static_cast<std::int64_t>(plan.from_channels) * plan.kernel_h * plan.kernel_w;
  for (int e = thread; e < chunks * of_chunk * all_n; e += Ahead::kMultiplying) {
    const int octet = e / (chunks * of_chunk), of_all = e - octet * (chunks * of_chunk),
              tap = of_all / of_octet, k = of_all - tap * of_octet, chunk = tap / slots, first = octet * 8;
    const std::int64_t at = p.row_weight(group, chunk, tap - chunk * slots, k, 0);
    const T* const w = static_cast<const T*>(call.w) + max(at, std::int64_t{0}) + first * to_next;
    T of_x[8];
#pragma unroll
    for (int m = 0; m < 8; ++m) of_x[m] = at >= 0 && first + m < channels ? w[m * to_next] : convert<T>(0.0f);
    const int step = k / kStep;
    typename P::Stored* const to =
        weights + tap * of_tap + (step / P::kSteps * all_n + octet) * 32 + k % (kStep / 2);
#pragma unroll
    for (int m = 0; m < 8; ++m) P::set(to[m * 4], step % P::kSteps, k % kStep / (kStep / 2), of_x[m]);
  }
  if (thread < all_n * 8) {
    const bool exists = call.bias != nullptr && thread < channels;
    bias[thread] = exists ? convert<float>(static_cast<const T*>(call.bias)[channel + thread]) : 0.0f;
  }
  meet<Ahead::kMultiplying>();

  const int g = lane / 4, t = lane % 4, of_team = warp % kWarps;
  const int warp_n = of_team % ahead.side * kN, pixel = of_team / ahead.side * kPixels + g;
  const int step_bytes = step_w * static_cast<int>(sizeof(T)), half = 8 * step_bytes;
  const unsigned pixels = shared_address(memory) + pixel * step_bytes;
  const int2* const table = reinterpret_cast<const int2*>(offsets) + t;
  const typename P::Stored* const my_weights = weights + warp_n * 32 + lane;
  const int shifts = kept(p.shifts), row_pitch = kept(plan.from.h), plane_4 = kept(4 * plan.from.c),
            weight_step = kept(all_n * 32);
  const int y_base = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) / sizeof(T));

  Turn turn;
  for (int index = first_unit; index < units; index += unit_step) {
    const Unit unit(p, index);
    // Of this thread's first channel in row 0 of y.
    const int shift_of_unit =
        p.shift(y_base + static_cast<int>(unit.image * plan.from.n), t, 0, unit.column * step_w + p.low_w);
    const typename P::Stored* of_row = my_weights;
    Sums<1, kN> sums = {};
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int slot = 0; slot < slots; ++slot, of_row += of_tap, turn.pass(stages)) {
        const int shift = shift_of_unit + (unit.row * step_h + slot_rows[slot]) * row_pitch;
        const unsigned at = pixels + static_cast<unsigned>(ahead.stage(team, turn.stage)),
                       first = at + static_cast<unsigned>(shift & shifts) * sizeof(T),
                       second = at + static_cast<unsigned>((shift + plane_4) & shifts) * sizeof(T);
        full[team][turn.stage].wait(turn.parity);
        for (int begin = 0; begin < steps; begin += kFlush) {
          Sums<1, kN> flushed = {};
          Sums<1, kN>& to = kParts == 3 ? flushed : sums;
          const auto add = [&](int s) {
            const auto a = P::load(first, second, half, table + s * 4);
#pragma unroll
            for (int n = 0; n < kN; ++n)
              P::multiply(to.values[0][n], a, P::read(of_row[s / P::kSteps * weight_step + n * 32]));
          };
          // Without branches, so that loads of later steps are under way.
          const auto add_all = [&]<int kCount>() {
#pragma unroll
            for (int s = 0; s < kCount; s += P::kSteps) add(begin + s);
          };
          const int count = min(steps - begin, kFlush);
          if (count == 4) {
            add_all.template operator()<4>();
          } else if (P::kSteps == 1 && count == 3) {
            add_all.template operator()<3>();
          } else if (count == 2) {
            add_all.template operator()<2>();
          } else {
            add_all.template operator()<1>();
          }
          if constexpr (kParts == 3) add_sums(sums, flushed);
        }
        // Each thread arrives, not one for its warp: compute-sanitizer's racecheck does not see __syncwarp().
        empty[team][turn.stage].arrive();
      }
    }
    T* const to = static_cast<T*>(call.x) + unit.image * plan.to.n +
                  static_cast<std::int64_t>(channel) * plan.to.c +
                  static_cast<std::int64_t>(unit.row) * plan.to.h + unit.column + pixel;
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int c = (warp_n + n) * 8 + t * 2 + k % 2, b = k / 2 * 8;
        if (c >= channels || unit.column + pixel + b >= p.to_w) continue;
        to[static_cast<std::int64_t>(c) * plan.to.c + b] = convert<T>(sums.values[0][n][k] + bias[c]);
      }
  }
#endif
}

Ahead ahead_of(const ConvTranspose2dGeometry& g, DType dtype, const void* y) {
  const int bytes = static_cast<int>(size_of(dtype));
  return {g, bytes, copy_bytes(y, g.w.out, bytes)};
}

template <class T, int kParts, int kN>
void launch(const AheadArguments& a, Device device) {
  const int bytes = a.ahead.shared_bytes(), groups = a.ahead.strip.plan.groups;
  conv_gemm::allow_shared_memory(strip_ahead_kernel<T, kParts, kN>, bytes);
  const std::int64_t pairs = ceil_div(a.ahead.units, Ahead::kTeams),
                     most = std::clamp<std::int64_t>(multiprocessors(device) / groups, 1, pairs),
                     turns = ceil_div(pairs, most);  // equal ones
  launch_kernel_with_shared("conv: strip", device, strip_ahead_kernel<T, kParts, kN>,
                            grid_size("conv", ceil_div(pairs, turns) * groups), Ahead::kAllThreads, bytes, a);
}

}  // namespace

bool strip_ahead_serves(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_bulk) {
  return has_bulk && layout == Layout::nchw && strips_serve(g, dtype, layout) &&
         ahead_of(g, dtype, nullptr).fits();
}

bool strip_ahead(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                 const Tensor& x) {
  if (y.layout() != Layout::nchw || !conv_gemm::has_wgmma(x.device())) return false;
  AheadArguments a{ahead_of(g, x.dtype(), y.raw()), y.raw(), w.raw(), bias.defined() ? bias.raw() : nullptr,
                   x.raw()};
  if (!a.ahead.fits()) return false;
  const DeviceScope scope(x.device());
  a.ahead.strip.plan.from = ImageStrides(y.strides());
  a.ahead.strip.plan.to = ImageStrides(x.strides());
  visit_strip(x.dtype(), [&]<class T, int kParts>() {
    if (a.ahead.n == 1) return launch<T, kParts, 1>(a, x.device());
    if (a.ahead.n == 2) return launch<T, kParts, 2>(a, x.device());
    launch<T, kParts, 4>(a, x.device());
  });
  return true;
}

}  // namespace tapedeck::cu
