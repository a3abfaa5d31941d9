// conv_transpose2d with channels last where writing y takes most of the time: few channels a group, or a
// large stride.
//
//   y[n, oh, ow, co] = bias[co] + sum over ci and taps: x[n, ih, iw, ci] * w[ci, co, kh, kw]
//
// A block keeps the weights of up to 16 channels of y of some groups in shared memory and takes one tile of x
// after another (strip_plan.h), the next on its way while one is multiplied. A warp has 32 results of a row,
// a phase and a group at a time. What it has in registers are whole sectors of y: a thread's 4 channels are
// neighbours, and so are those of the four threads of a pixel, so that nothing is staged; warps side by side
// have the groups of the same pixels. A phase without taps is one of no steps.
//
//   thread   0        1        2          3            4 ...
//   pixel 0  co 0..3  co 4..7  co 8..11  co 12..15  |  pixel 1, a stride further
//
// On an H200 (kb75 in bench/results/gpu_conv.json) in TF32 and bfloat16: 0.37 and 0.22 ms, 56 and 47% of a
// copy's bandwidth (products of tiles by groups: 1.17 and 0.95).
#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

constexpr int kM = 2;  // times 16 results, of a warp

struct Arguments {
  Strip strip;
  const void *x, *w, *bias;
  void* y;
  int blocks;  // of channels of y of a group
  int groups;  // of a block
  int tiles, units;
  int parts;  // of 32 results, of a row of a phase
  Divider by_groups, by_parts;
  int offsets, weights, bias_at, entries, ring, stage_bytes;  // bytes from the start of shared memory
};

/// A row of a tile and a column phase.
struct Entry {
  int begin, steps;  // of the table of offsets
  int x;             // bytes from the tile's start to its first result's window
  int row, column;   // of y, from the tile's
  int results;       // of the phase along w
};

template <class T, int kParts, int kN>
__global__ void __launch_bounds__(kThreads, kParts == 3 ? 2 : 3)
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
  Entry* const entries = reinterpret_cast<Entry*>(memory + call.entries);

  const int combinations = plan.groups / call.groups * call.blocks,
            combination = static_cast<int>(blockIdx.x) % combinations;
  const int part_of_groups = combination / call.blocks, group = part_of_groups * call.groups,
            first = (combination - part_of_groups * call.blocks) * kN * 8;
  const int channels = min(kN * 8, plan.to_channels - first), channel = group * plan.to_channels + first;
  const int low_h = kept(p.slot_of.low), stage_bytes = kept(call.stage_bytes);
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

  make_offsets(p, offsets);
  const int of_group = kept(p.steps / P::kSteps * kN * 32);
  for (int i = 0; i < call.groups; ++i)
    make_weights<T, kParts, kN, true, false>(p, static_cast<const T*>(call.w), group + i, first,
                                             weights + i * of_group);
  for (int e = threadIdx.x; e < call.groups * kN * 8; e += kThreads) {
    const int i = e / (kN * 8), c = e - i * (kN * 8);
    const bool exists = call.bias != nullptr && c < channels;
    bias[e] =
        exists ? convert<float>(static_cast<const T*>(call.bias)[channel + i * plan.to_channels + c]) : 0.0f;
  }
  for (int e = threadIdx.x; e < p.rows * plan.phases(); e += kThreads) {
    const int a = e / plan.phases(), phase = e - a * plan.phases(), i = phase / plan.w.count;
    const PhaseAxis &h = plan.h.phase[i], &w = plan.w.phase[phase - i * plan.w.count];
    entries[e] = {p.step_begin[phase],
                  p.step_begin[phase + 1] - p.step_begin[phase],
                  p.result_offset(a, 0) * p.bytes,
                  h.to + a * h.to_step,
                  w.to,
                  w.count};
  }

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  constexpr int kVector = kN * 2, kPixelBytes = kStep * static_cast<int>(sizeof(T));
  const int units = kept(call.units), to_h = kept(p.to_h), step_h = kept(plan.h.phase[0].to_step),
            step_w = kept(plan.w.phase[0].to_step);
  const int y_row = kept(plan.to.h), y_pixel = kept(plan.to.w), y_step = kept(step_w * plan.to.w);
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
    T* const image = static_cast<T*>(call.y) + tile.image * plan.to.n + channel + t * kVector;
    for (int unit = warp; unit < units; unit += kWarps) {
      const int rest = call.by_groups.divide(unit), i = call.by_groups.modulo(unit, rest);
      const int at = call.by_parts.divide(rest), part = call.by_parts.modulo(rest, at);
      const Entry entry = entries[at];
      const int row = tile.a * step_h + entry.row, result = part * (kM * kPixels) + g;
      if (row >= to_h) continue;
      using Vector = Pack<float, kVector>;
      const Vector start = reinterpret_cast<const Vector*>(bias)[i * 4 + t];
      Sums<kM, kN> sums;
      unsigned pixels[kM];
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        pixels[m] = x_tile + entry.x + i * x_group + (result + m * kPixels) * kPixelBytes;
#pragma unroll
        for (int v = 0; v < kN * 4; ++v) sums.values[m][v / 4][v % 4] = start.values[v / 4 * 2 + v % 2];
      }
      multiply_steps<T, kParts, true, false>(sums, pixels, 8 * kPixelBytes, table + entry.begin * 4,
                                             my_weights + i * of_group + entry.begin / P::kSteps * kN * 32,
                                             kN * 32, entry.steps);
      T* to = image + i * y_group + static_cast<std::int64_t>(row) * y_row +
              static_cast<std::int64_t>(tile.b + result) * y_step + entry.column * y_pixel;
      const int left = writes ? entry.results - tile.b - result : 0;
#pragma unroll
      for (int b = 0; b < kM * kPixels; b += 8, to += 8 * y_step) {
        Pack<T, kVector> pack;
#pragma unroll
        for (int v = 0; v < kVector; ++v)
          pack.values[v] = convert<T>(sums.values[b / kPixels][v / 2][b / 8 % 2 * 2 + v % 2]);
        if (b < left) store(to, pack);
      }
    }
  }
}

int block_channels(const ConvTranspose2dGeometry& g) {
  return g.group_co() <= 8 ? 8 : 16;
}

/// The arguments but for tensors and strides; `tiles` 0 where shared memory is too small.
Arguments arguments_of(const ConvTranspose2dGeometry& g, DType dtype) {
  Arguments best{};
  const int bytes = static_cast<int>(size_of(dtype)), channels = block_channels(g);
  const Strip start(g, true, bytes, true);
  double least = 0;
  for (int columns : {32, 64, 128}) {
    for (int rows : {1, 2, 4, 8}) {
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
      p.slot_pitch *= a.groups;
      const auto align = [](int n) { return (n + 127) / 128 * 128; };
      a.parts = columns / (kM * kPixels);
      a.by_parts = Divider(a.parts);
      a.by_groups = Divider(a.groups);
      a.units = rows * p.plan.phases() * a.parts * a.groups;
      a.offsets = 0;
      a.weights = align(p.steps * kStep * 4);
      a.bias_at = a.weights + a.groups * p.steps * channels * kStep * bytes;
      a.entries = a.bias_at + a.groups * channels * 4;
      a.ring = align(a.entries + rows * p.plan.phases() * static_cast<int>(sizeof(Entry)));
      a.stage_bytes = align(p.tile_bytes());
      if (a.ring + 2 * a.stage_bytes > (kMostShared >> 1) - 1024) continue;  // of two blocks a multiprocessor
      const std::int64_t combinations = p.plan.groups / a.groups * ceil_div(p.plan.to_channels, channels);
      const double written = static_cast<double>(p.plan.phases()) * channels * a.groups,
                   fixed = 6000.0 / (rows * columns);  // of a tile, mostly waiting
      const double busy =
          static_cast<double>(a.units) / static_cast<double>(ceil_div(a.units, kWarps) * kWarps);
      const double turns = static_cast<double>(ceil_div(p.tiles() * combinations, 264));
      const double cost =
          turns * rows * columns * (written / busy + p.read() * p.plan.from_channels * a.groups + fixed);
      if (best.tiles > 0 && cost >= least) continue;
      least = cost;
      best = a;
      best.tiles = std::max(1, p.tiles());
      best.blocks = static_cast<int>(ceil_div(p.plan.to_channels, channels));
    }
  }
  return best;
}

template <class T, int kParts, int kN>
void launch(const Arguments& a, Device device) {
  const int bytes = a.ring + 2 * a.stage_bytes;
  const auto kernel = strip_transposed_channels_last_kernel<T, kParts, kN>;
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

bool strip_transposed_channels_last_fits(const ConvTranspose2dGeometry& g, DType dtype) {
  return dtype != DType::float64 && conv_gemm::fits(g) && g.n > 0 && conv_strip::channels_last_fits(g) &&
         arguments_of(g, dtype).tiles > 0;
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
  const auto choose = [&]<class T, int kParts>() {
    if (block_channels(g) == 8) return launch<T, kParts, 1>(a, y.device());
    launch<T, kParts, 2>(a, y.device());
  };
  if (y.dtype() == DType::bfloat16) return choose.template operator()<bfloat16, 1>();
  if (y.dtype() == DType::float16) return choose.template operator()<float16, 1>();
  if (float32_precision() != Precision::highest) return choose.template operator()<float, 1>();
  choose.template operator()<float, 3>();
}

}  // namespace tapedeck::cu
