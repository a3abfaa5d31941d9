// The weight's gradient where reading y takes most of the time: few channels a group, or a large stride.
//
//   gw[ci, co, kh, kw] = sum over n and the pixels (ih, iw) of x: x[n, ci, ih, iw] * y[n, co, oh, ow]
//
// A product of matrices with all taps at once: rows are (tap, co), columns ci, and what is summed are pixels
// of x. A block takes tiles of x and the rows of y that taps bring to them (strip_plan.h) through a ring of
// stages, and keeps sums of its channels and all taps in registers:
//
//   rows (tap, co) of 16:  y[co][window of the tap + pixel]      8 pixels a step, `stride` apart in y
//   columns ci of 8:       x[ci][pixel]                          of a step loaded once for all taps
//
// Warps side by side have different ci, the others different pixels; their sums are added in order, and so
// are the blocks', by a second kernel.
//
// Where each row of y meets one row of x and rows are long, Hopper has strip_ahead_weight_grad.cu: on an H200
// kb81 of bench/compare_gpu.py took 0.26, 0.23 and 0.15 ms here in float32, TF32 and bfloat16. Twice the
// warps changed nothing in bfloat16, and made TF32 slower (0.26). What bounds it are a thread's instructions:
// an element of y is loaded and split in two for each tap. What helped: wide tiles of few rows, whose copies
// are longer (16 columns and 8 rows: 0.55, 64 and 2: 0.43 ms), four or five rows of 16 at once, without
// branches between them (0.48 to 0.44); in bfloat16 copies of 16 bytes where rows are shifted against them,
// by places that are found anew for each tile (0.18 to 0.15; in float32 0.28).
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

constexpr int kGroup = 2;  // steps of 8 pixels whose sums are added at once

/// Of `m` rows of 16 a warp multiplies so many at once, without branches between them.
constexpr int rows_at_once(int m) {
  return m % 5 == 0 ? 5 : 4;
}

struct WeightGradArguments {
  Strip strip;  // of y; its chunk is the channels of y of a block
  const void *x, *y;
  float* parts;
  ImageStrides x_strides;
  int x_channels, columns;  // of a block; warps side by side
  int x_pitch, x_copy, x_copies, x_lanes;
  Divider by_x_channels;
  int y_blocks, x_blocks;  // of a group's channels
  int rows;                // (tap, co)
  int tiles, stages, splits;
  int stage_bytes, x_at, places_at;  // of x, and of the places of windows, in a stage
  int windows, slot_rows, ring;      // bytes from the start of shared memory
  std::int64_t count;                // of weights
};

/// What a row (tap, co) is summed over: bytes from a tile's start, the slot of its row of y, elements from
/// the block's first channel.
struct Window {
  int offset, slot, channel;
};

template <class T, int kParts, bool kLast, int kM, int kN>
__global__ void __launch_bounds__(kThreads, kM* kN <= 16 ? 2 : 1)
    strip_weight_grad_kernel(const __grid_constant__ WeightGradArguments call) {
  extern __shared__ uint4 shared[];
  char* const memory = reinterpret_cast<char*>(shared);
  const Strip& p = call.strip;
  const Plan& plan = p.plan;
  int rest = static_cast<int>(blockIdx.x);
  const auto next = [&rest](int count) {
    const int quotient = rest / count, index = rest - quotient * count;
    rest = quotient;
    return index;
  };
  const int y_first = next(call.y_blocks) * p.chunk, x_first = next(call.x_blocks) * call.x_channels;
  const int group = next(plan.groups), split = rest;
  const int y_channels = min(p.chunk, plan.from_channels - y_first);
  const T* const y = static_cast<const T*>(call.y) +
                     static_cast<std::int64_t>(group * plan.from_channels + y_first) * plan.from.c;
  const T* const x = static_cast<const T*>(call.x) +
                     static_cast<std::int64_t>(group * plan.to_channels + x_first) * call.x_strides.c;

  const int stages = kept(call.stages), stage_bytes = kept(call.stage_bytes), x_at = kept(call.x_at);
  const auto copy_x = [&]() -> Copy<T, kLast> {
    const int existing = min(call.x_channels, plan.to_channels - x_first);
    if constexpr (kLast) {
      return {call.x_channels, existing, p.rows, p.to_h, p.to_w, call.x_pitch, p.columns, call.x_strides};
    } else {
      return {call.by_x_channels, existing,    p.rows,        p.to_h,       p.to_w,
              call.x_pitch,       call.x_copy, call.x_copies, call.x_lanes, call.x_strides};
    }
  }();
  int* const slot_rows = reinterpret_cast<int*>(memory + call.slot_rows);
  for (int slot = threadIdx.x; slot < p.slots; slot += kThreads) slot_rows[slot] = p.slot_of.row(slot);
  // Windows of rows g and g + 8 of each 16; past the last row one that exists.
  Window* const windows = reinterpret_cast<Window*>(memory + call.windows);
  for (int e = threadIdx.x; e < kM * kPixels; e += kThreads) {
    const int row = e / kPixels * kPixels + e % 2 * 8 + e % kPixels / 2, k = row < call.rows ? row : 0;
    const Strip::Element element = p.element(0, k);
    windows[e] = {p.offset(0, 0, k) * p.bytes, p.tap_slot(element.jh), element.channel * plan.from.c};
  }
  __syncthreads();
  int next_tile = split, next_stage = 0;
  const auto copy_next = [&] {
    if (next_tile < call.tiles) {
      const Tile tile = p.tile(next_tile);
      char* const stage = memory + call.ring + next_stage * stage_bytes;
      const int first_row = tile.a * p.reach_h.step, first_column = p.first_column(tile);
      // Elements of the block's first channel and row 0, past a multiple of 16 bytes.
      const int base =
          static_cast<int>(reinterpret_cast<std::uintptr_t>(y + tile.image * plan.from.n) / sizeof(T)) +
          first_column;
      // Without shifts a stage's places are those of the tile before.
      int* const places = reinterpret_cast<int*>(stage + call.places_at);
      const bool are_new = p.shifts > 0 || next_tile < split + stages * call.splits;
      for (int e = threadIdx.x; are_new && e < kM * kPixels; e += kThreads) {
        const Window window = windows[e];
        for (int row = 0; row < p.rows; ++row) {
          const int y_row = first_row + slot_rows[window.slot + row * p.slot_of.count],
                    shift = (base + window.channel + y_row * plan.from.h) & p.shifts;
          places[row * (kM * kPixels) + e] =
              window.offset + p.result_offset(row, 0) * p.bytes + shift * static_cast<int>(sizeof(T));
        }
      }
      // Made anew each time: its registers are for sums.
      auto copy_y = copy_of<T, kLast>(p, y_channels, p.slots);
      copy_y.start(reinterpret_cast<T*>(stage), y + tile.image * plan.from.n, first_column,
                   [&](int slot) { return first_row + slot_rows[slot]; });
      copy_x.start(reinterpret_cast<T*>(stage + x_at), x + tile.image * call.x_strides.n, tile.b,
                   [&](int row) { return tile.a + row; });
      next_tile += call.splits;
      if (++next_stage == stages) next_stage = 0;
    }
    commit_copies();
  };
  for (int i = 1; i < call.stages; ++i) copy_next();

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int warp_n = warp % call.columns * kN, warp_p = warp / call.columns, warps_p = kWarps / call.columns;
  using P = PixelProduct<T, kParts>;
  static_assert(kGroup == 2);
  constexpr int kPixel = kLast ? kStep : 1;  // elements between columns
  constexpr int kBytes = static_cast<int>(sizeof(T));
  const int step_bytes = p.reach_w.step * kPixel * static_cast<int>(sizeof(T));
  const int steps_of_row = kept(p.columns / 8), groups = kept(p.rows * steps_of_row / kGroup);
  const int x_pitch = kept(call.x_pitch), x_8 = kept(kLast ? call.x_pitch : 8 * call.x_pitch),
            x_row = kept(call.x_channels / 8 * x_8);
  const int tiles_m = (call.rows + kPixels - 1) / kPixels;

  constexpr int kAtOnce = rows_at_once(kM);
  float sums[kM][kN][4] = {};
  int stage = 0;
  for (int tile_index = split; tile_index < call.tiles; tile_index += call.splits) {
    if (stages == 2) {
      wait_for_copies<0>();
    } else if (stages == 3) {
      wait_for_copies<1>();
    } else {
      wait_for_copies<2>();
    }
    __syncthreads();
    copy_next();
    const char* const at = memory + call.ring + stage * stage_bytes;
    const int2* const places = reinterpret_cast<const int2*>(at + call.places_at) + g;
    if (++stage == stages) stage = 0;
    const unsigned y_tile = shared_address(at) + t * step_bytes;
    const unsigned x_tile =
        shared_address(at + call.x_at) + (warp_n * x_8 + (kLast ? t * kPixel + g : g * x_pitch + t)) * kBytes;
    for (int i = warp_p; i < groups; i += warps_p) {
      typename P::B b[kN];
      // The steps of a group are in one row.
      const int row = i * kGroup / steps_of_row, first = (i * kGroup - row * steps_of_row) * 8;
      const int2* const row_places = places + row * (kM * 8);
      unsigned windows[kGroup], columns[kGroup];
#pragma unroll
      for (int s = 0; s < kGroup; ++s) {
        windows[s] = y_tile + (first + s * 8) * step_bytes;
        columns[s] = x_tile + (row * x_row + (first + s * 8) * kPixel) * kBytes;
      }
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const int more = n * x_8 * kBytes;
        b[n] = P::load_columns({columns[0] + more, columns[1] + more}, 4 * kPixel * kBytes);
      }
      // Some rows of 16 at once, so that loads of the next are under way; past the last is what is not
      // written.
#pragma unroll
      for (int m0 = 0; m0 < kM; m0 += kAtOnce) {
        if (m0 >= tiles_m) break;
#pragma unroll
        for (int m = m0; m < m0 + kAtOnce; ++m) {
          const int2 of_rows = row_places[m * 8];
          const auto a = P::load_rows({windows[0] + of_rows.x, windows[1] + of_rows.x},
                                      {windows[0] + of_rows.y, windows[1] + of_rows.y}, 4 * step_bytes);
#pragma unroll
          for (int n = 0; n < kN; ++n) P::add_product(sums[m][n], a, b[n]);
        }
      }
    }
  }

  // Sums of warps that have other pixels of the same channels are added, one warp after another.
  wait_for_copies<0>();
  constexpr int kSums = kM * kN * 4 * 32;  // of warps side by side, each
  float* const shared_sums = reinterpret_cast<float*>(memory + call.ring);
  for (int turn = 0; turn < warps_p; ++turn) {
    __syncthreads();
    if (turn != warp_p) continue;
    float* const to = shared_sums + warp % call.columns * kSums + lane;
#pragma unroll
    for (int i = 0; i < kM * kN * 4; ++i) {
      const float sum = sums[i / (kN * 4)][i / 4 % kN][i % 4];
      to[i * 32] = turn == 0 ? sum : to[i * 32] + sum;
    }
  }
  __syncthreads();
  const int taps = plan.kernel_h * plan.kernel_w;
  float* const parts = call.parts + split * call.count;
  for (int e = threadIdx.x; e < call.columns * kSums; e += kThreads) {
    const int of_lane = e % 32, i = e / 32 % (kSums / 32), column = e / kSums;
    const int row = i / (kN * 4) * kPixels + of_lane / 4 + i % 4 / 2 * 8, tap = p.by_chunk.divide(row),
              co = y_first + p.by_chunk.modulo(row, tap);
    const int ci = x_first + (column * kN + i / 4 % kN) * 8 + of_lane % 4 * 2 + i % 2;
    if (row >= call.rows || co >= plan.from_channels || ci >= plan.to_channels) continue;
    parts[(static_cast<std::int64_t>(group * plan.to_channels + ci) * plan.from_channels + co) * taps + tap] =
        shared_sums[e];
  }
}

struct Configuration {
  int m = 0, n = 0;  // kM, kN
  StripEffort effort;
};
constexpr Configuration kConfigurations[] = {{16, 1, {}}, {10, 2, {}}, {4, 2, {}}};

/// Rows of 16 that a warp multiplies of so many rows, some of which do not exist.
double rows_multiplied(int rows, int m) {
  const std::int64_t unit = rows_at_once(m);
  return static_cast<double>(ceil_div(ceil_div(rows, kPixels), unit) * unit);
}

/// The arguments but for tensors and strides, and the kernel; m is 0 where nothing fits.
Configuration arguments_of(const ConvTranspose2dGeometry& g, DType dtype, bool last, int y_copy, int x_copy,
                           WeightGradArguments& best) {
  const int bytes = static_cast<int>(size_of(dtype));
  const Strip start(g, false, bytes, last);
  const int ci = start.plan.to_channels, co = start.plan.from_channels, taps = start.plan.taps(0, 0);
  Configuration chosen;
  double least = 0;
  for (const Configuration& c : kConfigurations) {
    int side = 1;
    while (side < 4 && side * c.n * 8 < ci) side *= 2;
    if (c.m * kPixels < taps) continue;
    const int unit = last ? kStep : 1, most_channels = c.m * kPixels / taps / unit * unit;
    if (most_channels == 0) continue;
    const int y_blocks = static_cast<int>(ceil_div(co, most_channels)),
              y_channels = static_cast<int>(ceil_div(ceil_div(co, y_blocks), unit)) * unit;
    if (y_channels < 4 && y_channels < co) continue;
    for (int columns : {16, 32, 64, 128}) {
      for (int rows : {1, 2, 4, 8, 16}) {
        static_assert(16 % (8 * kGroup) == 0);
        WeightGradArguments a{};
        Strip& p = a.strip;
        p = start;
        p.set_tile(rows, columns, y_channels, y_copy, 8, 4, bytes == 2);
        a.columns = side;
        a.x_channels = side * c.n * 8;
        a.by_x_channels = Divider(a.x_channels);
        a.x_blocks = static_cast<int>(ceil_div(ci, a.x_channels));
        a.y_blocks = y_blocks;
        a.rows = y_channels * taps;
        a.x_copy = x_copy / bytes;
        a.x_copies = static_cast<int>(ceil_div(columns, a.x_copy));
        a.x_lanes = 4;
        while (a.x_lanes < 32 && a.x_lanes < a.x_copies) a.x_lanes *= 2;
        a.x_pitch = last ? columns * kStep + kStep
                         : (columns * bytes / 4 + (8 + 4 - columns * bytes / 4 % 8) % 8) * 4 / bytes;
        const auto align = [](int n) { return (n + 127) / 128 * 128; };
        a.x_at = align(p.tile_bytes());
        a.places_at = align(a.x_at + rows * a.x_channels / (last ? kStep : 1) * a.x_pitch * bytes);
        a.stage_bytes = align(a.places_at + rows * c.m * kPixels * 4);
        a.windows = 0;
        a.slot_rows = c.m * kPixels * static_cast<int>(sizeof(Window));
        a.ring = align(a.slot_rows + p.slots * 4);
        const int blocks = c.m * c.n <= 16 ? 2 : 1;
        a.stages = std::min(4, (kMostShared / blocks - 1024 - a.ring) / a.stage_bytes);
        if (a.stages < 2 || a.stages * a.stage_bytes < side * c.m * c.n * 512) continue;
        // Of a pixel, in elements that are read: reading, or a thread's instructions.
        const double read = (p.read() * co * a.x_blocks + static_cast<double>(ci) * y_blocks) / p.used() *
                            waiting(a.stage_bytes, blocks * (a.stages - 1));
        const int groups = rows * columns / (8 * kGroup), warps = kWarps / side;
        const double busy =
            static_cast<double>(groups) / (static_cast<double>(ceil_div(groups, warps)) * warps);
        const double tiles_m = static_cast<double>(ceil_div(a.rows, kPixels)) * y_blocks,
                     tiles_n = static_cast<double>(side) * a.x_blocks;
        const double work = tiles_m * tiles_n * (24 + 4 * c.n) / 8 / busy / p.used() * 1.6;
        // What a stage takes besides, mostly waiting, and a row's copy.
        const double fixed = (12000.0 / blocks + 40.0 * p.slots * y_channels) / (rows * columns);
        const double cost = std::max(read, work) + 0.3 * std::min(read, work) + fixed * y_blocks * a.x_blocks;
        if (chosen.m > 0 && cost >= least) continue;
        least = cost;
        best = a;
        best.tiles = p.tiles();
        chosen = c;
        // Blocks of an H100's multiprocessors: the result does not depend on the device.
        const std::int64_t combinations = std::int64_t{a.y_blocks} * a.x_blocks * p.plan.groups;
        const std::int64_t most = std::clamp<std::int64_t>(132 * blocks / combinations, 1, best.tiles);
        const std::int64_t turns = ceil_div(best.tiles, most);
        best.splits = static_cast<int>(ceil_div(best.tiles, turns));
        const auto down = static_cast<double>(turns * ceil_div(combinations, 132 * blocks));
        const double together = down * blocks, y_rows = together * p.slots * y_channels,
                     x_rows = together * rows * a.x_channels;
        chosen.effort = {bytes_of_rows(p, y_rows) + x_rows * columns * bytes,
                         together * static_cast<double>(ceil_div(groups, warps)) *
                             rows_multiplied(a.rows, c.m) * (24 + 4 * c.n),
                         down,
                         copies_of_rows(p, y_rows) + x_rows * (last ? columns * bytes / 16.0 : a.x_copies)};
      }
    }
  }
  return chosen;
}

template <class T, int kParts, bool kLast, int kM, int kN>
void launch(const WeightGradArguments& a, Device device) {
  const int bytes = a.ring + a.stages * a.stage_bytes;
  conv_gemm::allow_shared_memory(strip_weight_grad_kernel<T, kParts, kLast, kM, kN>, bytes);
  const std::int64_t blocks = std::int64_t{a.splits} * a.y_blocks * a.x_blocks * a.strip.plan.groups;
  strip_weight_grad_kernel<T, kParts, kLast, kM, kN>
      <<<grid_size("conv", blocks), kThreads, static_cast<std::size_t>(bytes), stream_of(device)>>>(a);
  check_launch("conv: strip weight gradient");
}

}  // namespace

std::optional<StripEffort> strip_weight_grad_effort(const ConvTranspose2dGeometry& g, DType dtype,
                                                    Layout layout) {
  if (const auto effort = strip_weight_grad_rows_effort(g, dtype, layout)) return effort;
  const bool last = layout == Layout::nhwc;
  if (!strips_serve(g, dtype, layout)) return {};
  const int bytes = static_cast<int>(size_of(dtype));
  WeightGradArguments a;
  const Configuration chosen = arguments_of(g, dtype, last, copy_bytes(nullptr, g.w.out, bytes),
                                            copy_bytes(nullptr, g.w.in, bytes), a);
  if (chosen.m == 0) return {};
  StripEffort effort = chosen.effort;
  if (strip_weight_grad_ahead_splits(g, dtype, layout, true) > 0) {
    // Nobody waits for stages, copies are of whole rows, and rows are not multiplied some at once.
    effort.stages = effort.copies = 0;
    effort.products *= static_cast<double>(ceil_div(a.rows, kPixels)) / rows_multiplied(a.rows, chosen.m);
  }
  return effort;
}

std::int64_t strip_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout,
                                      bool has_bulk) {
  if (strip_weight_grad_rows_effort(g, dtype, layout)) return strip_weight_grad_rows_splits(g, dtype, layout);
  if (const auto splits = strip_weight_grad_ahead_splits(g, dtype, layout, has_bulk)) return splits;
  const int bytes = static_cast<int>(size_of(dtype));
  WeightGradArguments a;
  arguments_of(g, dtype, layout == Layout::nhwc, copy_bytes(nullptr, g.w.out, bytes),
               copy_bytes(nullptr, g.w.in, bytes), a);
  return a.splits;
}

void strip_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  const DeviceScope scope(w.device());
  const int bytes = static_cast<int>(size_of(w.dtype()));
  if (strip_weight_grad_rows_effort(g, w.dtype(), y.layout())) return strip_weight_grad_rows(g, x, y, w);
  if (strip_weight_grad_ahead(g, x, y, w)) return;
  const bool last = y.layout() == Layout::nhwc;
  WeightGradArguments a;
  const Configuration chosen = arguments_of(g, w.dtype(), last, copy_bytes(y.raw(), g.w.out, bytes),
                                            copy_bytes(x.raw(), g.w.in, bytes), a);
  check(chosen.m > 0, "conv: strips do not fit shared memory");
  a.strip.plan.from = ImageStrides(y.strides());
  a.x_strides = ImageStrides(x.strides());
  a.x = x.raw();
  a.y = y.raw();
  const std::int64_t count = w.count();
  const Workspace<float> parts(w.device(), a.splits * count);
  a.parts = parts.data();
  a.count = count;
  const auto choose_size = [&]<class T, int kParts, bool kLast>() {
    if (chosen.m == 16) return launch<T, kParts, kLast, 16, 1>(a, w.device());
    if (chosen.m == 10) return launch<T, kParts, kLast, 10, 2>(a, w.device());
    launch<T, kParts, kLast, 4, 2>(a, w.device());
  };
  visit_strip(w.dtype(), [&]<class T, int kParts>() {
    last ? choose_size.template operator()<T, kParts, true>()
         : choose_size.template operator()<T, kParts, false>();
    add_parts<T>(a.parts, a.splits, w);
  });
}

}  // namespace tapedeck::cu
