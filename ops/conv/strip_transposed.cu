// conv_transpose2d where writing y takes most of the time: few channels a group, or a large stride.
//
//   y[n, co, oh, ow] = bias[co] + sum over ci and taps: x[n, ci, ih, iw] * w[ci, co, kh, kw]
//
// A block keeps the weights of 8 or 16 channels of y in shared memory and takes one tile of x after another
// (strip_plan.h). A warp has the results of 16 pixels in a row of y at a time, those of column phases that
// see the same pixels at once (strip_passes.h), and puts them where they belong in a stage (strip_stage.h):
// some rows of all of the block's channels as they lie in y. Columns that no tap reaches are the bias.
//
//   x, in shared memory      stage                             y
//   row a-1  [ci][w+halo]    co 0: | 0 1 2 | 0 1 2 | ...       lines of a row
//   row a                    co 1: | 0 1 2 | 0 1 2 | ...       rows without taps: the bias, not staged
//
// Lines are copied to y by bulk copies, which no warp waits for until their part of shared memory is wanted
// again; what a line has before its first multiple of 16 bytes and behind its last is written by threads.
// Rows without taps are written by warps between products.
//
// What bounds it should be the writing: stores of 4 bytes a stride apart, as sums lie in registers, would
// each touch a sector of their own. 16-bit types have a kernel of their own (strip_transposed_halves.cu), as
// instructions bound them first.
//
// On an H200 (kb75 and kb81 of bench/compare_gpu.py): in float32 and TF32 0.294 and 0.271 ms, 69
// and 75% of a copy's 4.27 TB/s, and 0.275 and 0.277, 72 and 72%. What helped: lines
// of whole rows, congruent to memory (kb81 in float32 0.43 to 0.27 ms; lines of half a row 0.35), all column
// phases of a pixel at once, 16 channels a block instead of 8 (0.31), and no bounds of columns where sums are
// put. What did not: a second stage or a second tile of x in shared memory (2% at most), and lines of several
// rows in one piece with rows without taps in them (0.43); rows without taps written only while lines are
// read from shared memory, with tiles of two rows (0.30). Rows that do not begin in a sector cost most of the
// rest: lines of 2,544 bytes are written at 3.4 TB/s whatever writes them, such of 2,560 at 4.15.

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/bulk_writes.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_transposed.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

/// kP column phases at once, kC * 8 channels of y.
template <int kParts, int kP, int kC>
__global__ void __launch_bounds__(kThreads, 2)
    strip_transposed_kernel(const __grid_constant__ TransposedArguments call) {
  extern __shared__ uint4 shared[];
  char* const memory = reinterpret_cast<char*>(shared);
  using T = float;
  constexpr int kBytes = static_cast<int>(sizeof(T)), kElements = kStoreBytes / kBytes, kChannels = kC * 8;
  constexpr bool kSplit = kParts == 3;
  using P = Product<T, kParts, false, kSplit>;
  const Strip& p = call.strip;
  const Plan& plan = p.plan;
  const Passes& passes = call.passes;
  int* const offsets = reinterpret_cast<int*>(memory + call.offsets);
  typename P::Stored* const weights = reinterpret_cast<typename P::Stored*>(memory + call.weights);
  float* const bias = reinterpret_cast<float*>(memory + call.bias_at);

  const int combinations = plan.groups * call.blocks,
            combination = static_cast<int>(blockIdx.x) % combinations;
  const int group = combination / call.blocks, first = (combination - group * call.blocks) * kChannels;
  const int channels = min(kChannels, plan.to_channels - first), channel = group * plan.to_channels + first;
  const int tile_step = static_cast<int>(gridDim.x) / combinations;

  const T* const from =
      static_cast<const T*>(call.x) + static_cast<std::int64_t>(group) * plan.from_channels * plan.from.c;
  const int buffers = call.buffers, tile_bytes = call.tile_bytes, low_h = p.slot_of.low;
  int buffer = 0;
  const auto start_copy = [&](int tile_index) {
    if (tile_index < call.tiles) {
      const Tile tile = p.tile(tile_index);
      // Made anew each time: its registers are for sums.
      copy_of<T, false>(p, plan.from_channels, p.slots)
          .start(reinterpret_cast<T*>(memory + call.tile + buffer * tile_bytes),
                 from + tile.image * plan.from.n, p.first_column(tile),
                 [&](int slot) { return tile.a + low_h + slot; });
    }
    commit_copies();
  };
  int tile_index = static_cast<int>(blockIdx.x) / combinations;
  start_copy(tile_index);

  make_offsets(p, passes, offsets);
  make_weights<T, kParts, kP, kC, false, kSplit>(p, passes, static_cast<const T*>(call.w), group, first,
                                                 weights);
  if (static_cast<int>(threadIdx.x) < kChannels) {
    const bool exists = call.bias != nullptr && static_cast<int>(threadIdx.x) < channels;
    bias[threadIdx.x] =
        exists ? convert<float>(static_cast<const T*>(call.bias)[channel + static_cast<int>(threadIdx.x)])
               : 0.0f;
  }
  const int rows = kept(p.rows * plan.h.count);
  RowEntry* const row_entries = reinterpret_cast<RowEntry*>(memory + call.entries);
  PassEntry<kP>* const pass_entries = reinterpret_cast<PassEntry<kP>*>(row_entries + rows);
  const int live_rows = make_row_entries(p, passes, row_entries);
  make_entries(p, passes, pass_entries);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const Stage& stage = call.stage;
  const int parts = kept(call.parts), pass_count = passes.count, pitch = kept(stage.pitch),
            staged_rows = kept(stage.rows), stages = call.stages;
  const int step_h = kept(plan.h.phase[0].to_step), step_w = kept(plan.w.phase[0].to_step),
            half_step = 8 * step_w;
  const unsigned to_h = kept(p.to_h);
  const bool sectors = call.sectors;
  const int plane = kept(plan.to.c), y_row = kept(plan.to.h);
  // What this thread's sums begin with: of channels 8 apart.
  const float2* const starts = reinterpret_cast<const float2*>(bias) + t;
  int ring = 0;
  for (; tile_index < call.tiles; tile_index += tile_step) {
    wait_for_copies<0>();
    wait_for_bulk_reads();
    __syncthreads();
    const unsigned x_tile = shared_address(memory + call.tile + buffer * tile_bytes) + g * kBytes;
    if (buffers == 2) {
      buffer ^= 1;
      start_copy(tile_index + tile_step);
    }
    const Tile tile = p.tile(tile_index);
    const int first_row = tile.a * step_h, first_column = Stage::first_column(p, tile);
    T* const image = static_cast<T*>(call.y) + tile.image * plan.to.n +
                     static_cast<std::int64_t>(channel) * plane + first_column;
    const Stage::Span columns = stage.columns(first_column);
    // Of a line, modulo 32 bytes.
    const unsigned base = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(image) / sizeof(T));
    const auto shift_of = [&](int c, int row) {
      return static_cast<int>((base + static_cast<unsigned>(c * plane + row * y_row)) & (2 * kElements - 1));
    };

    // Rows without taps, between products.
    int dead = live_rows, dead_channel = warp;
    const auto fill_next = [&] {
      while (dead_channel >= channels) dead_channel -= channels, ++dead;
      if (dead >= rows) return false;
      const RowEntry entry = row_entries[dead];
      const int row = first_row + entry.row, c = dead_channel;
      dead_channel += kWarps;
      if (static_cast<unsigned>(row) < to_h) {
        const int at = c * plane + row * y_row;
        fill_row(image + at, bias[c],
                 ends_of<T>(columns, base + at, entry.shares(row, to_h, sectors), false));
      }
      return true;
    };

    for (int begin = 0; begin < live_rows; begin += staged_rows) {
      if (stages == 1 && begin > 0) {
        wait_for_bulk_reads();
        __syncthreads();
      }
      const int some = min(staged_rows, live_rows - begin);
      T* const staged = reinterpret_cast<T*>(memory + call.ring + ring * call.stage_bytes);
      for (int unit = warp; unit < some * parts; unit += kWarps) {
        const int r = call.by_parts.divide(unit), pixel = (unit - r * parts) * kPixels;
        const RowEntry entry = row_entries[begin + r];
        const int row = first_row + entry.row;
        if (static_cast<unsigned>(row) < to_h) {
          // This thread's pixels are 8 apart; of its channels [8][2] the first's place, in elements.
          int to[kC][2];
#pragma unroll
          for (int v = 0; v < kC * 2; ++v) {
            const int c = v / 2 * 8 + t * 2 + v % 2, line = r * kChannels + v / 2 * 8 + v % 2 * 4 + t;
            to[v / 2][v % 2] = line * pitch + shift_of(c, row) + (pixel + g) * step_w;
          }
          const auto put = [&](int column, const auto& value) {
#pragma unroll
            for (int v = 0; v < kC * 4; ++v)
              staged[to[v / 4][v % 2] + column + v / 2 % 2 * half_step] = convert<T>(value(v / 4, v % 4));
          };
          for (int q = 0; q < pass_count; ++q) {
            const PassEntry<kP> pass = pass_entries[entry.pass + q];
            Sums<kP, kC> sums;
#pragma unroll
            for (int c = 0; c < kC; ++c) {
              const float2 start = starts[c * 4];
#pragma unroll
              for (int v = 0; v < kP * 4; ++v) sums.values[v / 4][c][v % 4] = v % 2 == 0 ? start.x : start.y;
            }
            add_pass<T, kParts, kP, kC, false, kSplit>(
                sums, x_tile + entry.x + pixel * kBytes, 8 * kBytes,
                reinterpret_cast<const int2*>(offsets) + pass.begin * 4 + t,
                weights + pass.begin / P::kSteps * (kP * kC * 32) + lane, pass);
#pragma unroll
            for (int n = 0; n < kP; ++n)
              if (n == 0 || pass.column[n] >= 0)
                put(pass.column[n], [&](int c, int k) { return sums.values[n][c][k]; });
          }
          for (int k = passes.live; k < plan.w.count; ++k)
            put(plan.w.phase[passes.order[k]].to - p.first_to,
                [&](int c, int k) { return k % 2 == 0 ? starts[c * 4].x : starts[c * 4].y; });
        }
        fill_next();
      }
      publish_for_bulk_copies();
      if (stages == 2) wait_for_bulk_reads();  // the next stage's
      __syncthreads();
      // All products of the tile have been.
      if (buffers == 1 && begin + staged_rows >= live_rows) start_copy(tile_index + tile_step);
      // Sixteen threads a line.
      for (int line = static_cast<int>(threadIdx.x) / 16; line < some * kChannels; line += kThreads / 16) {
        const int r = line / kChannels, c = Stage::channel(line % kChannels);
        const RowEntry entry = row_entries[begin + r];
        const int row = first_row + entry.row;
        if (c >= channels || static_cast<unsigned>(row) >= to_h) continue;
        const int at = c * plane + row * y_row;
        write_line(image + at, staged + (line * pitch + shift_of(c, row)), bias[c], columns,
                   ends_of<T>(columns, base + at, entry.shares(row, to_h, sectors), true));
      }
      commit_bulk_copies();
      if (stages == 2) ring ^= 1;
    }
    while (fill_next()) {
    }
  }
  wait_for_bulk_reads();
}

/// The arguments but for tensors and strides, `tiles` 0 where nothing fits, and what they make the kernel do.
struct Found {
  TransposedArguments arguments;
  StripEffort effort;
};
/// Those of the least cost, in bytes of y and the like.
Found find_arguments(const ConvTranspose2dGeometry& g, DType dtype, int copy) {
  const bool halves = size_of(dtype) == 2,
             three = dtype == DType::float32 && float32_precision() == Precision::highest;
  Found found{};
  TransposedArguments& best = found.arguments;
  const int bytes = static_cast<int>(size_of(dtype));
  Strip start(g, true, bytes);
  const Passes passes = halves ? choose_whole_passes(start) : choose_passes(start);
  if (passes.count < 0) return found;
  choose_rows(start);
  int live_h = 0;
  for (int i = 0; i < start.plan.h.count; ++i) live_h += start.plan.h.phase[i].taps > 0;
  const int step_h = start.plan.h.phase[0].to_step;
  const int all_parts = (start.reach_w.most + kPixels - 1) / kPixels;
  double least = 0;
  const auto consider = [&](int channels, int columns, int rows, int staged, int buffers, int stages) {
    TransposedArguments a{};
    Strip& p = a.strip;
    Strip copied;  // of x, before 16-bit types are turned
    p = start;
    if (halves) {
      p.set_tile(rows, columns, (p.plan.from_channels + kStep - 1) / kStep * kStep, copy, 4, 0);
      a.pitch = p.pitch;
      a.tile_bytes = p.tile_bytes();
      copied = p;
      p = p.turned();
      a.pairs = p.pitch / (2 * kStep);
      a.by_pairs = Divider(a.pairs);
      a.stage = Stage::congruent(p, staged, channels);
    } else {
      p.set_tile(rows, columns, p.plan.from_channels, copy, 16, 8);
      a.tile_bytes = p.tile_bytes();
      copied = p;
      a.stage = Stage(p, staged, channels);
    }
    a.sectors = p.tiles_w == 1 && p.to_w >= 2 * a.stage.sector;
    a.passes = passes;
    a.passes.set_tile(p);
    a.parts = columns / kPixels;
    a.by_parts = Divider(a.parts);
    a.buffers = buffers;
    a.stages = stages;
    const auto align = [](int n) { return (n + 127) / 128 * 128; };
    const int steps = a.passes.all_steps(p), all_rows = rows * p.plan.h.count;
    a.weights = align(steps * kStep * 4);
    a.bias_at = a.weights + steps * passes.most * channels * kStep * (three ? 8 : bytes);
    a.entries = a.bias_at + channels * 4;
    a.tile = align(a.entries + all_rows * static_cast<int>(sizeof(RowEntry)) +
                   p.plan.h.count * passes.count * (2 + 2 * kMostPlaces) * 4);
    a.tile_bytes = align(a.tile_bytes);
    a.octets = a.tile + buffers * a.tile_bytes;
    a.ring = a.octets + (halves ? align(p.tile_bytes()) : 0);
    a.stage_bytes = align(a.stage.size() * bytes);
    const std::int64_t total = std::int64_t{a.ring} + std::int64_t{stages} * a.stage_bytes;
    if (total > (kMostShared >> 1) - 1024) return;  // of two blocks a multiprocessor
    a.blocks = (p.plan.to_channels + channels - 1) / channels;
    a.tiles = std::max(1, p.tiles());
    // What a block's tile costs in bytes that memory writes in the time: lines begin and end in a sector; x
    // comes from the caches, mostly; barriers, and the wait for the slowest warp, a stage.
    const double written = static_cast<double>(channels) * rows * step_h * (a.stage.span * bytes + 160);
    const double read = 0.4 * p.slots * p.slot_pitch * bytes;
    const int of_tile = (rows * live_h + staged - 1) / staged, live = staged * a.parts;  // units of a stage
    const double idle = static_cast<double>((live + kWarps - 1) / kWarps * kWarps) / std::max(1, live);
    const double fixed = halves
                             ? of_tile * (stages == 2 ? 500.0 : 2000.0) + 4000.0
                             : of_tile * (stages == 2 ? 2000.0 : 5000.0) + (buffers == 2 ? 2000.0 : 6000.0);
    const double together = static_cast<double>(a.tiles) * p.plan.groups * a.blocks;
    const double turns = std::ceil(together / 264);
    const double cost = turns * (written * (0.8 + 0.2 * idle) * (channels == 8 ? 1.1 : 1.0) + read + fixed);
    if (best.tiles > 0 && cost >= least) return;
    least = cost;
    best = a;
    // Two blocks a multiprocessor.
    const double x_rows = 2 * turns * copied.slots * copied.chunk;
    found.effort = {2 * turns * written + bytes_of_rows(copied, x_rows),
                    2 * turns * rows * a.parts * steps * (8 + channels / 8 * passes.most * 4) * idle,
                    turns * of_tile, copies_of_rows(copied, x_rows),
                    static_cast<double>(steps) * passes.most * channels * kStep};
  };
  for (int channels : {8, 16}) {
    if (channels > 8 && g.group_co() <= 8) break;
    // Of at most as many columns as a line of each channel, and one of x, may have.
    const std::int64_t part_bytes = kPixels * bytes *
                                    std::max(std::int64_t{start.plan.w.phase[0].to_step} * channels,
                                             std::int64_t{start.reach_w.step} * start.plan.from_channels);
    const int most = static_cast<int>(std::min<std::int64_t>(all_parts, (kMostShared >> 1) / part_bytes));
    int last = 0;
    for (int parts = most; parts > 0; parts -= std::max(1, parts / 16)) {
      const int tiles_w = (all_parts + parts - 1) / parts,
                columns = (all_parts + tiles_w - 1) / tiles_w * kPixels;
      if (columns == last) continue;
      last = columns;
      for (int rows : {1, 2, 4, 8})
        for (int staged = 1; staged <= std::min(std::max(1, rows * live_h), 16); ++staged)
          for (int buffers = 1; buffers <= (halves ? 1 : 2); ++buffers)
            for (int stages : {1, 2}) consider(channels, columns, rows, staged, buffers, stages);
    }
  }
  return found;
}

/// find_arguments(), which tries hundreds of tiles.
const Found& arguments_of(const ConvTranspose2dGeometry& g, DType dtype, int copy) {
  return remembered(ConvQuestion(g, copy, float32_precision(), dtype),
                    [&] { return find_arguments(g, dtype, copy); });
}

}  // namespace

std::optional<StripEffort> strip_transposed_effort(const ConvTranspose2dGeometry& g, DType dtype) {
  if (!strips_serve(g, dtype, Layout::nchw)) return {};
  const Found& found = arguments_of(g, dtype, copy_bytes(nullptr, g.w.in, static_cast<int>(size_of(dtype))));
  if (found.arguments.tiles == 0) return {};
  return found.effort;
}

void strip_transposed(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y) {
  const DeviceScope scope(y.device());
  TransposedArguments a =
      arguments_of(g, y.dtype(), copy_bytes(x.raw(), g.w.in, static_cast<int>(size_of(y.dtype())))).arguments;
  check(a.tiles > 0, "conv: strips do not fit shared memory");
  a.strip.plan.from = ImageStrides(x.strides());
  a.strip.plan.to = ImageStrides(y.strides());
  a.x = x.raw();
  a.w = w.raw();
  a.bias = bias.defined() ? bias.raw() : nullptr;
  a.y = y.raw();
  announce_bulk_writes(y);
  if (y.dtype() != DType::float32) return launch_transposed_halves(a, y.dtype(), y.device());
  const auto choose_phases = [&]<int kParts, int kC>() {
    if (a.passes.most == 1) return launch_transposed(strip_transposed_kernel<kParts, 1, kC>, a, y.device());
    if (a.passes.most == 2) return launch_transposed(strip_transposed_kernel<kParts, 2, kC>, a, y.device());
    launch_transposed(strip_transposed_kernel<kParts, 3, kC>, a, y.device());
  };
  const auto choose = [&]<int kParts>() {
    if (a.stage.channels == 8) return choose_phases.template operator()<kParts, 1>();
    choose_phases.template operator()<kParts, 2>();
  };
  if (float32_precision() != Precision::highest) return choose.template operator()<1>();
  choose.template operator()<3>();
}

}  // namespace tapedeck::cu
