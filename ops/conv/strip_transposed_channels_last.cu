// conv_transpose2d with channels last where writing y takes most of the time: few channels a group, or a
// large stride.
//
//   y[n, oh, ow, co] = bias[co] + sum over ci and taps: x[n, ih, iw, ci] * w[ci, co, kh, kw]
//
// A block keeps the weights of up to 16 channels of y of some groups in shared memory and takes one tile of x
// after another (strip_plan.h), the next on its way while one is multiplied. A warp has the results of 16
// pixels of a row and a group at a time, those of column phases that see the same pixels at once
// (strip_passes.h). What it has in registers are whole sectors of y: a thread's 4 channels are neighbours,
// and so are those of the four threads of a pixel; warps side by side have the groups of the same pixels. A
// phase without taps is one of no steps.
//
//   thread   0        1        2          3            4 ...
//   pixel 0  co 0..3  co 4..7  co 8..11  co 12..15  |  pixel 1, a stride further
//
// On an H200 (kb75 in bench/results/gpu_conv.json) in TF32 and bfloat16: 0.31 and 0.20 ms, 66 and 52% of a
// copy's bandwidth; a phase at a time 0.36 and 0.22, products of tiles by groups 1.17 and 0.95. What did not
// help: rows of y put together in shared memory and written by bulk copies (0.43 and 0.20).
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_passes.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

struct Arguments {
  Strip strip;
  Passes passes;
  const void *x, *w, *bias;
  void* y;
  int blocks;  // of channels of y of a group
  int groups;  // of a block
  int tiles, units;
  int parts;  // of 16 pixels, of a row
  Divider by_groups, by_parts;
  int offsets, weights, bias_at, entries, ring;  // bytes from the start of shared memory
  int stage_bytes;
};

/// A row of a tile of y.
struct RowEntry {
  int pass;  // its phase's first
  int x;     // bytes from the tile's start to its first pixel's window
  int row;   // of y, from the tile's
};

/// kP column phases at once, kN * 8 channels of y.
template <class T, int kParts, int kP, int kN>
__global__ void __launch_bounds__(kThreads, 2)
    strip_transposed_channels_last_kernel(const __grid_constant__ Arguments call) {
  extern __shared__ uint4 shared[];
  char* const memory = reinterpret_cast<char*>(shared);
  const Strip& p = call.strip;
  const Plan& plan = p.plan;
  int* const offsets = reinterpret_cast<int*>(memory + call.offsets);
  using P = Product<T, kParts, true, false>;
  using Stored = typename P::Stored;
  Stored* const weights = reinterpret_cast<Stored*>(memory + call.weights);
  float* const bias = reinterpret_cast<float*>(memory + call.bias_at);
  const Passes& passes = call.passes;
  const int rows = p.rows * plan.h.count;
  RowEntry* const row_entries = reinterpret_cast<RowEntry*>(memory + call.entries);
  PassEntry<kP>* const pass_entries = reinterpret_cast<PassEntry<kP>*>(row_entries + rows);

  const int combinations = plan.groups / call.groups * call.blocks,
            combination = static_cast<int>(blockIdx.x) % combinations;
  const int part_of_groups = combination / call.blocks, group = part_of_groups * call.groups,
            first = (combination - part_of_groups * call.blocks) * kN * 8;
  const int channels = min(kN * 8, plan.to_channels - first), channel = group * plan.to_channels + first;
  const int low_h = p.slot_of.low, stage_bytes = kept(call.stage_bytes);
  const PixelCopy<T> copy(call.groups * p.chunk, call.groups * p.chunk, p.slots, plan.from_h, plan.from_w,
                          p.pitch, p.copies, plan.from);
  const T* const from = static_cast<const T*>(call.x) + static_cast<std::int64_t>(group) * plan.from_channels;
  int next_tile = static_cast<int>(blockIdx.x) / combinations, next_stage = 0;
  const int tile_step = static_cast<int>(gridDim.x) / combinations;
  const auto copy_next = [&] {
    if (next_tile < call.tiles) {
      const Tile tile = p.tile(next_tile);
      copy.start(reinterpret_cast<T*>(memory + call.ring + next_stage * stage_bytes),
                 from + tile.image * plan.from.n, p.first_column(tile),
                 [&](int slot) { return tile.a + low_h + slot; });
    }
    next_tile += tile_step;
    next_stage ^= 1;
    commit_copies();
  };
  copy_next();

  constexpr int kTiles = kP * kN;
  make_offsets(p, passes, offsets);
  const int of_group = kept(passes.all_steps(p) / P::kSteps * kTiles * 32);
  for (int i = 0; i < call.groups; ++i)
    make_weights<T, kParts, kP, kN, true, false>(p, passes, static_cast<const T*>(call.w), group + i, first,
                                                 weights + i * of_group);
  for (int e = threadIdx.x; e < call.groups * kN * 8; e += kThreads) {
    const int i = e / (kN * 8), c = e - i * (kN * 8);
    const bool exists = call.bias != nullptr && c < channels;
    bias[e] =
        exists ? convert<float>(static_cast<const T*>(call.bias)[channel + i * plan.to_channels + c]) : 0.0f;
  }
  for (int r = threadIdx.x; r < rows; r += kThreads) {
    const int a = r / plan.h.count, i = r - a * plan.h.count;
    row_entries[r] = {i * passes.count, p.result_offset(a, 0) * p.bytes,
                      plan.h.phase[i].to + a * plan.h.phase[i].to_step};
  }
  make_entries(p, passes, pass_entries);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  constexpr int kVector = kN * 2, kPixelBytes = kStep * static_cast<int>(sizeof(T));
  const int units = kept(call.units);
  const int to_h = kept(p.to_h), step_h = kept(plan.h.phase[0].to_step),
            step_w = kept(plan.w.phase[0].to_step);
  const int y_row = kept(plan.to.h), y_pixel = kept(plan.to.w), y_step = 8 * step_w * y_pixel;
  const int first_to = p.first_to, pass_count = passes.count;
  const unsigned width = p.to_w;
  const int x_group = kept(p.chunk / kStep * p.pitch * p.bytes), y_group = kept(plan.to_channels);
  const int2* const table = reinterpret_cast<const int2*>(offsets) + t;
  const Stored* const my_weights = weights + lane;
  const bool writes = t * kVector < channels;

  int stage = 0;
  for (int tile_index = static_cast<int>(blockIdx.x) / combinations; tile_index < call.tiles;
       tile_index += tile_step) {
    const Tile tile = p.tile(tile_index);
    wait_for_copies<0>();
    __syncthreads();
    copy_next();
    const unsigned x_tile = shared_address(memory + call.ring) + stage * stage_bytes;
    stage ^= 1;
    T* const image = static_cast<T*>(call.y) + tile.image * plan.to.n + channel;
    const int tile_column = tile.b * step_w + first_to;
    for (int unit = warp; unit < units; unit += kWarps) {
      const int rest = call.by_groups.divide(unit), i = call.by_groups.modulo(unit, rest);
      const int at = call.by_parts.divide(rest), part = call.by_parts.modulo(rest, at);
      const RowEntry entry = row_entries[at];
      // This thread's pixels are 8 apart; of the first, the first column of y.
      const int row = tile.a * step_h + entry.row, pixel = part * kPixels + g,
                column = tile_column + pixel * step_w;
      if (row >= to_h) continue;
      using Vector = Pack<float, kVector>;
      const Vector start = reinterpret_cast<const Vector*>(bias)[i * 4 + t];
      // Its first channel in y.
      const int place = row * y_row + column * y_pixel + i * y_group + t * kVector;
      const auto write = [&](int of_phase, const float(&first)[kVector], const float(&second)[kVector]) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          Pack<T, kVector> pack;
#pragma unroll
          for (int v = 0; v < kVector; ++v) pack.values[v] = convert<T>(k == 0 ? first[v] : second[v]);
          if (writes && static_cast<unsigned>(column + of_phase + k * 8 * step_w) < width)
            store(image + (place + of_phase * y_pixel + k * y_step), pack);
        }
      };
      for (int q = 0; q < pass_count; ++q) {
        const PassEntry<kP> pass = pass_entries[entry.pass + q];
        Sums<kP, kN> sums;
#pragma unroll
        for (int v = 0; v < kTiles * 4; ++v)
          sums.values[v / (kN * 4)][v / 4 % kN][v % 4] = start.values[v / 4 % kN * 2 + v % 2];
        add_pass<T, kParts, kP, kN, true, false>(
            sums, x_tile + entry.x + i * x_group + pixel * kPixelBytes, 8 * kPixelBytes,
            table + pass.begin * 4, my_weights + i * of_group + pass.begin / P::kSteps * kTiles * 32, pass);
#pragma unroll
        for (int n = 0; n < kP; ++n) {
          if (n > 0 && pass.column[n] < 0) continue;
          float values[2][kVector];
#pragma unroll
          for (int v = 0; v < kVector * 2; ++v)
            values[v / kVector][v % kVector] = sums.values[n][v % kVector / 2][v / kVector * 2 + v % 2];
          write(pass.column[n], values[0], values[1]);
        }
      }
      for (int k = passes.live; k < plan.w.count; ++k)
        write(plan.w.phase[passes.order[k]].to - first_to, start.values, start.values);
    }
  }
}

int block_channels(const ConvTranspose2dGeometry& g) {
  return g.group_co() <= 8 ? 8 : 16;
}

/// The arguments but for tensors and strides; `tiles` 0 where shared memory is too small.
Arguments arguments_of(const ConvTranspose2dGeometry& g, DType dtype, StripEffort* effort = nullptr) {
  Arguments best{};
  const int bytes = static_cast<int>(size_of(dtype)), channels = block_channels(g);
  Strip start(g, true, bytes, true);
  const Passes passes = choose_passes(start);
  if (passes.count < 0) return best;
  double least = 0;
  const auto consider = [&](int rows, int columns) {
    Arguments a{};
    Strip& p = a.strip;
    p = start;
    p.set_tile(rows, columns, p.plan.from_channels, 16, 32, 0);
    // Groups whose channels of y are 256 bytes: a pixel's are written at about the same time.
    a.groups = 1;
    while (p.plan.to_channels <= channels && p.plan.groups % (2 * a.groups) == 0 &&
           2 * a.groups * channels * bytes <= 256) {
      a.groups *= 2;
    }
    a.passes = passes;
    a.passes.set_tile(p);
    p.slot_pitch *= a.groups;
    const auto align = [](int n) { return (n + 127) / 128 * 128; };
    a.parts = columns / kPixels;
    a.by_parts = Divider(a.parts);
    a.by_groups = Divider(a.groups);
    const int steps = a.passes.all_steps(p), all_rows = rows * p.plan.h.count,
              step_w = p.plan.w.phase[0].to_step;
    a.units = all_rows * a.parts * a.groups;
    a.offsets = 0;
    a.weights = align(steps * kStep * 4);
    a.bias_at = a.weights + a.groups * steps * passes.most * channels * kStep * bytes;
    a.entries = a.bias_at + a.groups * channels * 4;
    a.ring = align(a.entries + all_rows * static_cast<int>(sizeof(RowEntry)) +
                   p.plan.h.count * passes.count * static_cast<int>(sizeof(PassEntry<3>)));
    a.stage_bytes = align(p.tile_bytes());
    if (a.ring + 2 * a.stage_bytes > (kMostShared >> 1) - 1024) return;  // of two blocks a multiprocessor
    const std::int64_t combinations = p.plan.groups / a.groups * ceil_div(p.plan.to_channels, channels);
    const double written = static_cast<double>(p.plan.h.count) * step_w * channels * a.groups,
                 fixed = 6000.0 / (rows * columns);  // mostly waiting
    const double busy =
        static_cast<double>(a.units) / static_cast<double>(ceil_div(a.units, kWarps) * kWarps);
    const double turns = static_cast<double>(ceil_div(p.tiles() * combinations, 264));
    const double cost =
        turns * rows * columns * (written / busy + p.read() * p.plan.from_channels * a.groups + fixed);
    if (best.tiles > 0 && cost >= least) return;
    least = cost;
    best = a;
    best.tiles = std::max(1, p.tiles());
    best.blocks = static_cast<int>(ceil_div(p.plan.to_channels, channels));
    if (effort == nullptr) return;
    // Two blocks a multiprocessor.
    const double x_rows = 2 * turns * p.slots * p.chunk * a.groups;
    *effort = {2 * turns * rows * columns * written * bytes + bytes_of_rows(p, x_rows),
               2 * turns * a.units * steps / p.plan.h.count * (8 + channels / 8 * passes.most * 4) / busy,
               turns, copies_of_rows(p, x_rows),
               static_cast<double>(a.groups) * steps * passes.most * channels * kStep};
  };
  for (int columns : {16, 32, 64, 128})
    for (int rows : {1, 2, 4, 8}) consider(rows, columns);
  return best;
}

template <class T, int kParts, int kP, int kN>
void launch(const Arguments& a, Device device) {
  const int bytes = a.ring + 2 * a.stage_bytes;
  const auto kernel = strip_transposed_channels_last_kernel<T, kParts, kP, kN>;
  conv_gemm::allow_shared_memory(kernel, bytes);
  const std::int64_t combinations = static_cast<std::int64_t>(a.strip.plan.groups) / a.groups * a.blocks;
  int resident_blocks = 0;  // of a multiprocessor
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident_blocks, kernel, kThreads,
                                                           static_cast<std::size_t>(bytes)),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const std::int64_t resident = std::int64_t{multiprocessors(device)} * std::max(1, resident_blocks);
  const std::int64_t most = std::clamp<std::int64_t>(resident / combinations, 1, a.tiles);
  const std::int64_t turns = ceil_div(a.tiles, most);  // equal ones
  kernel<<<grid_size("conv", ceil_div(a.tiles, turns) * combinations), kThreads,
           static_cast<std::size_t>(bytes), stream_of(device)>>>(a);
  check_launch("conv: strip");
}

}  // namespace

std::optional<StripEffort> strip_transposed_channels_last_effort(const ConvTranspose2dGeometry& g,
                                                                 DType dtype) {
  StripEffort effort;
  if (!strips_serve(g, dtype, Layout::nhwc) || arguments_of(g, dtype, &effort).tiles == 0) return {};
  return effort;
}

void strip_transposed_channels_last(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w,
                                    const Tensor& bias, const Tensor& y) {
  const DeviceScope scope(y.device());
  Arguments a = arguments_of(g, y.dtype());
  a.strip.plan.from = ImageStrides(x.strides());
  a.strip.plan.to = ImageStrides(y.strides());
  a.x = x.raw();
  a.w = w.raw();
  a.bias = bias.defined() ? bias.raw() : nullptr;
  a.y = y.raw();
  const auto choose_phases = [&]<class T, int kParts, int kN>() {
    if (a.passes.most == 1) return launch<T, kParts, 1, kN>(a, y.device());
    if (a.passes.most == 2) return launch<T, kParts, 2, kN>(a, y.device());
    launch<T, kParts, 3, kN>(a, y.device());
  };
  visit_strip(y.dtype(), [&]<class T, int kParts>() {
    if (block_channels(g) == 8) return choose_phases.template operator()<T, kParts, 1>();
    choose_phases.template operator()<T, kParts, 2>();
  });
}

}  // namespace tapedeck::cu
