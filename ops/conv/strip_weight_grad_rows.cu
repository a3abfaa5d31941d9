// The weight's gradient where reading y takes most of the time and a row of y meets several rows of x:
// kernels of two or three such rows. strip_weight_grad.cu has the others.
//
//   gw[ci, co, kh, kw] = sum over n and the pixels (ih, iw) of x: x[n, ci, ih, iw] * y[n, co, oh, ow]
//
// As there, a product of matrices whose rows are (kw, co), whose columns are ci, and that sums pixels of x.
// Here a block goes down columns of x: with each row of x come the rows of y that it meets first
// (strip_plan.h: a group of slots), through a ring of stages, and each row of y is read once. A warp has 16
// pixels of a row; the fragments of x's last rows stay in its registers, and what it loads of y is multiplied
// by all of them:
//
//   group q of y:    x's row q    taps kh of its slots      x's row q-1    the next taps      q-2 ...
//   group q+1:       q+1                                    q (moved)                         q-1 (moved)
//
// Warps side by side have different ci, the others different pixels; their sums are added in order, and so
// are the blocks', by a second kernel.
//
// On an H200 (kb75 of bench/compare_gpu.py) in float32, TF32 and bfloat16: 0.24, 0.18 and 0.13 ms, 84, 116
// and 77% of a copy's bandwidth for all rows of y, of which every other is read (0.62, 0.47 and 0.29 by
// tiles); channels last 0.22, 0.19 and 0.13 (products of tiles by groups: 0.89, 0.65 and 0.36).
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

constexpr int kSteps = 2, kMostStages = 4;  // steps of 8 pixels of a warp

struct Arguments {
  Strip strip;  // of y; its chunk is the channels of y of a block
  const void *x, *y;
  float* parts;
  ImageStrides x_strides;
  int side, x_channels;  // warps side by side; channels of x of a block
  int x_pitch, x_copy, x_copies, x_lanes;
  Divider by_x_channels;
  int y_blocks, x_blocks;         // of a group's channels
  int length, strips, items;      // rows of x of a strip; strips of a column tile; of all
  int splits;                     // blocks that share items
  int stages, stage_bytes, x_at;  // of x in a stage
  int ring;                       // bytes from the start of shared memory, before it the offsets
  int tap[kMaxPhases];            // of (slot, row of x), or -1
  std::int64_t count;             // of weights
};

/// What a block goes down: rows [begin, end) of column tile b of an image; the rows of y's last groups are
/// met by x's last row.
struct Item {
  __device__ Item(const Arguments& call, int index) {
    const int rest = index / call.strip.tiles_w;
    b = (index - rest * call.strip.tiles_w) * call.strip.columns;
    image = rest / call.strips;
    begin = (rest - image * call.strips) * call.length;
    end = min(call.strip.to_h, begin + call.length);
  }
  int image, b, begin, end;
};

/// kSlots rows of y come with a row of x, kRows rows of x meet each; kM * 16 rows (kw, co).
template <class T, int kParts, bool kLast, int kSlots, int kRows, int kM>
__global__ void __launch_bounds__(kThreads, 2)
    strip_weight_grad_rows_kernel(const __grid_constant__ Arguments call) {
  extern __shared__ uint4 shared[];
  char* const memory = reinterpret_cast<char*>(shared);
  const Strip& p = call.strip;
  const Plan& plan = p.plan;
  int2* const offsets = reinterpret_cast<int2*>(memory);

  int rest = static_cast<int>(blockIdx.x);
  const auto next_of = [&rest](int count) {
    const int quotient = rest / count, index = rest - quotient * count;
    rest = quotient;
    return index;
  };
  const int y_first = next_of(call.y_blocks) * p.chunk, x_first = next_of(call.x_blocks) * call.x_channels;
  const int group = next_of(plan.groups), split = rest;
  const T* const y = static_cast<const T*>(call.y) +
                     static_cast<std::int64_t>(group * plan.from_channels + y_first) * plan.from.c;
  const T* const x = static_cast<const T*>(call.x) +
                     static_cast<std::int64_t>(group * plan.to_channels + x_first) * call.x_strides.c;

  const int stages = kept(call.stages), stage_bytes = kept(call.stage_bytes), x_at = kept(call.x_at);
  auto copy_y = copy_of<T, kLast>(p, min(p.chunk, plan.from_channels - y_first), kSlots);
  const auto copy_x = [&]() -> Copy<T, kLast> {
    const int existing = min(call.x_channels, plan.to_channels - x_first);
    if constexpr (kLast) {
      return {call.x_channels, existing, 1, p.to_h, p.to_w, call.x_pitch, p.columns, call.x_strides};
    } else {
      return {call.by_x_channels, existing,      1, p.to_h, p.to_w, call.x_pitch, call.x_copy, call.x_copies,
              call.x_lanes,       call.x_strides};
    }
  }();
  const int step_h = kept(p.reach_h.step), step_w = kept(p.reach_w.step), low_w = kept(p.low_w);
  int slot_rows[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) slot_rows[s] = kept(p.slot_of.row(s));
  int next_index = split, next_stage = 0;
  Item next(call, next_index);
  const auto copy_next = [&] {
    if (next_index < call.items) {
      char* const stage = memory + call.ring + next_stage * stage_bytes;
      copy_y.start(reinterpret_cast<T*>(stage), y + next.image * plan.from.n, next.b * step_w + low_w,
                   [&](int slot) {
                     int row = slot_rows[0];
#pragma unroll
                     for (int s = 1; s < kSlots; ++s) row = slot == s ? slot_rows[s] : row;
                     return next.begin * step_h + row;
                   });
      copy_x.start(reinterpret_cast<T*>(stage + x_at), x + next.image * call.x_strides.n, next.b,
                   [&](int) { return next.begin < next.end ? next.begin : -1; });
      if (++next.begin == next.end + kRows - 1) next = Item(call, next_index += call.splits);
      if (++next_stage == stages) next_stage = 0;
    }
    commit_copies();
  };
  for (int i = 1; i < call.stages; ++i) copy_next();

  // Windows of rows g and g + 8 of each 16; past the last row one that exists.
  for (int e = threadIdx.x; e < kM * kPixels; e += kThreads) {
    const int row = e / kPixels * kPixels + e % 2 * 8 + e % kPixels / 2;
    reinterpret_cast<int*>(offsets)[e] = p.row_offset(row) * p.bytes;
  }

  using P = PixelProduct<T, kParts>;
  constexpr int kPixel = kLast ? kStep : 1;  // elements between columns
  constexpr int kBytes = static_cast<int>(sizeof(T));
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int warp_n = warp % call.side, warp_p = warp / call.side, warps_p = kWarps / call.side;
  const int step_bytes = step_w * kPixel * static_cast<int>(sizeof(T)),
            slot_bytes = kept(p.slot_pitch * p.bytes);
  const int x_8 = kLast ? call.x_pitch : 8 * call.x_pitch;
  const unsigned y_offset = static_cast<unsigned>((warp_p * kPixels + t) * step_bytes),
                 x_offset = static_cast<unsigned>(x_at) +
                            static_cast<unsigned>(warp_n * x_8 + (warp_p * kPixels + t) * kPixel +
                                                  g * (kLast ? 1 : call.x_pitch)) *
                                sizeof(T);
  const unsigned ring = shared_address(memory + call.ring);
  const int tiles_m = (p.row_elements() + kPixels - 1) / kPixels;

  const int shifts = kept(p.shifts), row_pitch = kept(plan.from.h);
  const int y_base = static_cast<int>(reinterpret_cast<std::uintptr_t>(y) / sizeof(T));

  float sums[kSlots * kRows][kM][4] = {};
  int stage = 0;
  for (int index = split; index < call.items; index += call.splits) {
    const Item item(call, index);
    // Of this thread's first channel of y, in the tile's first column and row 0.
    const int shift_of_item =
        p.shift(y_base + static_cast<int>(item.image * plan.from.n), g, 0, item.b * step_w + low_w);
    typename P::B of_x[kRows];
#pragma unroll
    for (auto& row : of_x) row = P::zeros();
    for (int q = item.begin; q < item.end + kRows - 1; ++q) {
      if (stages == 2) {
        wait_for_copies<0>();
      } else if (stages == 3) {
        wait_for_copies<1>();
      } else {
        wait_for_copies<2>();
      }
      __syncthreads();
      copy_next();
      const unsigned at = ring + stage * stage_bytes;
      if (++stage == stages) stage = 0;
#pragma unroll
      for (int r = kRows - 1; r > 0; --r) of_x[r] = of_x[r - 1];
      const unsigned from = at + x_offset;
      of_x[0] = P::load_columns({from, from + 8 * kPixel * kBytes}, 4 * kPixel * kBytes);
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int shift = shift_of_item + (q * step_h + slot_rows[slot]) * row_pitch;
        const unsigned row =
            at + y_offset + slot * slot_bytes + static_cast<unsigned>(shift & shifts) * sizeof(T);
#pragma unroll
        for (int m = 0; m < kM; ++m) {
          if (m >= tiles_m) break;
          const int2 of_rows = offsets[m * 8 + g];
          const unsigned upper = row + of_rows.x, lower = row + of_rows.y;
          const auto a =
              P::load_rows({upper, upper + 8 * step_bytes}, {lower, lower + 8 * step_bytes}, 4 * step_bytes);
#pragma unroll
          for (int r = 0; r < kRows; ++r) P::add_product(sums[slot * kRows + r][m], a, of_x[r]);
        }
      }
    }
  }

  // Sums of warps that have other pixels of the same channels are added, one warp after another.
  wait_for_copies<0>();
  constexpr int kSums = kSlots * kRows * kM * 4 * 32;  // of warps side by side, each
  float* const shared_sums = reinterpret_cast<float*>(memory + call.ring);
  for (int turn = 0; turn < warps_p; ++turn) {
    __syncthreads();
    if (turn != warp_p) continue;
    float* const to = shared_sums + warp_n * kSums + lane;
#pragma unroll
    for (int i = 0; i < kSums / 32; ++i) {
      const float sum = sums[i / (kM * 4)][i / 4 % kM][i % 4];
      to[i * 32] = turn == 0 ? sum : to[i * 32] + sum;
    }
  }
  __syncthreads();
  const int taps = plan.kernel_h * plan.kernel_w;
  float* const parts = call.parts + split * call.count;
  for (int e = threadIdx.x; e < call.side * kSums; e += kThreads) {
    const int of_lane = e % 32, i = e / 32 % (kSums / 32), column = e / kSums;
    const int row = i / 4 % kM * kPixels + of_lane / 4 + i % 4 / 2 * 8, kw = p.by_chunk.divide(row),
              co = y_first + p.by_chunk.modulo(row, kw), kh = call.tap[i / (kM * 4)];
    const int ci = x_first + column * 8 + of_lane % 4 * 2 + i % 2;
    if (kh < 0 || row >= p.row_elements() || co >= plan.from_channels || ci >= plan.to_channels) continue;
    parts[(static_cast<std::int64_t>(group * plan.to_channels + ci) * plan.from_channels + co) * taps +
          kh * plan.kernel_w + kw] = shared_sums[e];
  }
}

struct Configuration {
  int slots = 0, rows = 0, m = 0;  // kSlots, kRows, kM
  StripEffort effort;
};
constexpr Configuration kConfigurations[] = {{1, 3, 5, {}}, {1, 2, 8, {}}, {2, 2, 4, {}}};

/// The arguments but for tensors and strides, and the kernel; m is 0 where nothing fits.
Configuration arguments_of(const ConvTranspose2dGeometry& g, DType dtype, bool last, int y_copy, int x_copy,
                           Arguments& a) {
  const int bytes = static_cast<int>(size_of(dtype));
  const Strip start(g, false, bytes, last);
  const int ci = start.plan.to_channels, co = start.plan.from_channels, taps_w = start.plan.kernel_w;
  Configuration chosen;
  for (const Configuration& c : kConfigurations) {
    if (c.slots == start.slot_of.count && c.rows == start.slot_of.groups + 1) chosen = c;
  }
  if (chosen.m == 0) return {};
  const int unit = last ? kStep : 1, most = chosen.m * kPixels / taps_w / unit * unit;
  // Where a group has few rows (kw, co), what a stage takes besides is most of it.
  if ((most < 4 && most < co) || co * taps_w < 2 * kPixels) return {};
  a = {};
  a.y_blocks = static_cast<int>(ceil_div(co, most));
  const int y_channels = static_cast<int>(ceil_div(ceil_div(co, a.y_blocks), unit)) * unit;
  a.side = 1;
  while (a.side < 4 && a.side * 8 < ci) a.side *= 2;
  a.x_channels = a.side * 8;
  a.by_x_channels = Divider(a.x_channels);
  a.x_blocks = static_cast<int>(ceil_div(ci, a.x_channels));
  Strip& p = a.strip;
  p = start;
  const int columns = kWarps / a.side * kSteps * 8;
  p.set_tile(1, columns, y_channels, y_copy, 8, 4, true);
  a.x_copy = x_copy / bytes;
  a.x_copies = static_cast<int>(ceil_div(columns, a.x_copy));
  a.x_lanes = 4;
  while (a.x_lanes < 32 && a.x_lanes < a.x_copies) a.x_lanes *= 2;
  a.x_pitch = last ? columns * kStep + kStep
                   : (columns * bytes / 4 + (8 + 4 - columns * bytes / 4 % 8) % 8) * 4 / bytes;
  const auto align = [](int n) { return (n + 127) / 128 * 128; };
  a.x_at = align(chosen.slots * p.slot_pitch * bytes);
  a.stage_bytes = align(a.x_at + a.x_channels / (last ? kStep : 1) * a.x_pitch * bytes);
  a.ring = align(chosen.m * kPixels * 4);
  a.stages = std::min(kMostStages, (kMostShared / 2 - 1024 - a.ring) / a.stage_bytes);
  if (a.stages < 2 || a.stages * a.stage_bytes < a.side * chosen.slots * chosen.rows * chosen.m * 4 * 32 * 4)
    return {};
  for (int& tap : a.tap) tap = -1;
  for (int kh = 0; kh < p.plan.kernel_h; ++kh) {
    const int slot = p.tap_slot(kh);
    a.tap[slot % p.slot_of.count * chosen.rows + slot / p.slot_of.count] = kh;
  }
  // Strips that give an H100's blocks equal work: the fewest rows that one of them goes down. The result does
  // not depend on the device.
  const std::int64_t combinations = std::int64_t{p.plan.groups} * a.y_blocks * a.x_blocks,
                     tiles = std::int64_t{p.plan.n} * p.tiles_w,
                     resident = std::max<std::int64_t>(1, 264 / combinations);
  std::int64_t fewest = 0;
  for (int strips = 1; strips <= p.to_h; ++strips) {
    const std::int64_t length = ceil_div(p.to_h, strips),
                       rows = ceil_div(tiles * strips, resident) * (length + chosen.rows - 1);
    if (fewest > 0 && rows >= fewest) continue;
    fewest = rows;
    a.length = static_cast<int>(length);
  }
  a.strips = static_cast<int>(ceil_div(p.to_h, a.length));
  a.items = static_cast<int>(tiles * a.strips);
  a.splits =
      static_cast<int>(ceil_div(a.items, ceil_div(a.items, std::min<std::int64_t>(resident, a.items))));
  const double down = static_cast<double>(ceil_div(a.items, a.splits) * ceil_div(combinations, 264)) *
                      (a.length + chosen.rows - 1),
               y_rows = 2 * down * chosen.slots * y_channels, x_rows = 2 * down * a.x_channels;
  chosen.effort = {bytes_of_rows(p, y_rows) + x_rows * columns * bytes,
                   2 * down * chosen.slots * static_cast<double>(ceil_div(p.row_elements(), kPixels)) *
                       (12 + 6 * chosen.rows),
                   down, copies_of_rows(p, y_rows) + x_rows * (last ? columns * bytes / 16.0 : a.x_copies)};
  return chosen;
}

template <class T, int kParts, bool kLast, int kSlots, int kRows, int kM>
void launch(const Arguments& a, Device device) {
  const int bytes = a.ring + a.stages * a.stage_bytes;
  const auto kernel = strip_weight_grad_rows_kernel<T, kParts, kLast, kSlots, kRows, kM>;
  conv_gemm::allow_shared_memory(kernel, bytes);
  const std::int64_t blocks = std::int64_t{a.splits} * a.y_blocks * a.x_blocks * a.strip.plan.groups;
  kernel<<<grid_size("conv", blocks), kThreads, static_cast<std::size_t>(bytes), stream_of(device)>>>(a);
  check_launch("conv: strip weight gradient");
}

}  // namespace

std::optional<StripEffort> strip_weight_grad_rows_effort(const ConvTranspose2dGeometry& g, DType dtype,
                                                         Layout layout) {
  const bool last = layout == Layout::nhwc;
  if (!strips_serve(g, dtype, layout)) return {};
  const int bytes = static_cast<int>(size_of(dtype));
  Arguments a;
  const Configuration chosen = arguments_of(g, dtype, last, copy_bytes(nullptr, g.w.out, bytes),
                                            copy_bytes(nullptr, g.w.in, bytes), a);
  if (chosen.m == 0) return {};
  return chosen.effort;
}

std::int64_t strip_weight_grad_rows_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  const int bytes = static_cast<int>(size_of(dtype));
  Arguments a;
  arguments_of(g, dtype, layout == Layout::nhwc, copy_bytes(nullptr, g.w.out, bytes),
               copy_bytes(nullptr, g.w.in, bytes), a);
  return a.splits;
}

void strip_weight_grad_rows(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                            const Tensor& w) {
  const DeviceScope scope(w.device());
  const int bytes = static_cast<int>(size_of(w.dtype()));
  const bool last = y.layout() == Layout::nhwc;
  Arguments a;
  const Configuration chosen = arguments_of(g, w.dtype(), last, copy_bytes(y.raw(), g.w.out, bytes),
                                            copy_bytes(x.raw(), g.w.in, bytes), a);
  check(chosen.m > 0, "conv: strips do not fit shared memory");
  a.strip.plan.from = ImageStrides(y.strides());
  a.x_strides = ImageStrides(x.strides());
  a.x = x.raw();
  a.y = y.raw();
  a.count = w.count();
  const Workspace<float> parts(w.device(), a.splits * a.count);
  a.parts = parts.data();
  const auto choose_size = [&]<class T, int kParts, bool kLast>() {
    if (chosen.slots == 2) return launch<T, kParts, kLast, 2, 2, 4>(a, w.device());
    if (chosen.rows == 2) return launch<T, kParts, kLast, 1, 2, 8>(a, w.device());
    launch<T, kParts, kLast, 1, 3, 5>(a, w.device());
  };
  visit_strip(w.dtype(), [&]<class T, int kParts>() {
    last ? choose_size.template operator()<T, kParts, true>()
         : choose_size.template operator()<T, kParts, false>();
    add_parts<T>(a.parts, a.splits, w);
  });
}

}  // namespace tapedeck::cu
