// conv_transpose2d where writing y takes most of the time: few channels a group, or a large stride.
//
//   y[n, co, oh, ow] = bias[co] + sum over ci and taps: x[n, ci, ih, iw] * w[ci, co, kh, kw]
//
// A block keeps the weights of a group's channels of y in shared memory and takes one tile of x after another
// (strip_plan.h): rows of all channels of the group. Warps share (row of y, column phase, 32 pixels of x);
// their sums go to shared memory in the order of y, phases interleaved, and so does the bias where a phase
// has no taps. Then whole rows of y are written, 16 bytes a thread, aligned as they are in memory: the first
// element of a staged row is as far from a multiple of 16 bytes as it will be.
//
//   x, in shared memory      staged                            y
//   row a-1  [ci][w+halo]    co 0: | 0 1 2 | 0 1 2 | ...       full lines; rows without taps are the bias,
//   row a                    co 1: | 0 1 2 | 0 1 2 | ...       and are written without being staged
//
// What bounds it should be the writing: stores of 4 bytes a stride apart, as sums lie in registers, would
// each touch a sector of their own. Two or three blocks of a multiprocessor take turns in reading,
// multiplying and writing.
//
// On an H200, 32 to 64 channels in 4 groups, kernel 3x5, stride 2x3 (kb75 in
// bench/results/gpu_conv.json): 0.29, 0.29 and 0.19 ms in float32, TF32 and bfloat16, 70, 70 and 53% of a
// copy's bandwidth; 32 to 64, kernel 3, stride 5 (kb81): 0.33, 0.36 and 0.20, 60, 56 and 49%. Warps wait for
// shared memory and tensor cores more than for memory. What helped: positions of units in a table instead of
// divisions (0.43 to 0.35 ms), steps four at a time, so that loads of the next are under way, as many blocks
// launched as fit at once (bfloat16: 0.31 to 0.21). What did not: warps on their own, without barriers (0.29
// to 0.40, kb81 0.33 to 0.55), narrower tiles with more blocks a multiprocessor (0.37 to 0.49), and in
// float32 registers for three blocks instead of two (0.36).
#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

constexpr int kM = 2;  // times 16 pixels, of a warp

struct TransposedArguments {
  Strip strip;
  const void *x, *w, *bias;
  void* y;
  int blocks;       // of channels of y of a group
  int tiles;        // of an image's x, all images
  int staged_rows;  // of y at once
  int staged_pitch;
  int offsets, weights, entries, tile, stage, bias_at;  // bytes from the start of shared memory
};

/// Writes `count` elements of a row, which is `shift` elements past a multiple of 16 bytes, as `from` is in
/// shared memory. A warp.
template <class T>
__device__ __forceinline__ void write_row(T* to, const T* from, int shift, int count) {
  constexpr int kElements = kStoreBytes / static_cast<int>(sizeof(T));
  const int lane = static_cast<int>(threadIdx.x) % 32,
            head = min(count, (kElements - shift) & (kElements - 1));
  const int vectors = (count - head) / kElements, tail = head + vectors * kElements;
  uint4* const vectors_to = reinterpret_cast<uint4*>(to + head);
  const uint4* const vectors_from = reinterpret_cast<const uint4*>(from + head);
#pragma unroll 4
  for (int v = lane; v < vectors; v += 32) vectors_to[v] = vectors_from[v];
  const int edge = lane < kElements ? lane : tail + lane - kElements;
  if (lane < kElements ? edge < head : edge < count) to[edge] = from[edge];
}

/// The same with one value.
template <class T>
__device__ __forceinline__ void fill_row(T* to, T value, int shift, int count) {
  constexpr int kElements = kStoreBytes / static_cast<int>(sizeof(T));
  const int lane = static_cast<int>(threadIdx.x) % 32,
            head = min(count, (kElements - shift) & (kElements - 1));
  const int vectors = (count - head) / kElements, tail = head + vectors * kElements;
  Pack<T, kElements> pack;
#pragma unroll
  for (T& element : pack.values) element = value;
  const uint4 vector = __builtin_bit_cast(uint4, pack);
  uint4* const vectors_to = reinterpret_cast<uint4*>(to + head);
#pragma unroll 4
  for (int v = lane; v < vectors; v += 32) vectors_to[v] = vector;
  const int edge = lane < kElements ? lane : tail + lane - kElements;
  if (lane < kElements ? edge < head : edge < count) to[edge] = value;
}

/// Row r of a tile's y, and phase j of a row: what warps look up in shared memory.
struct RowEntry {
  int phase;  // the first of its column phases
  int x;      // bytes from the tile's start to its result's window
  int to;     // the row of y is `to` + the tile's a * step
};
struct PhaseEntry {
  int begin, steps, to;
};

template <class T, int kParts, int kN>
__global__ void __launch_bounds__(kThreads, kParts == 3 ? 2 : 3)
    strip_transposed_kernel(const __grid_constant__ TransposedArguments call) {
  extern __shared__ uint4 shared[];
  char* const memory = reinterpret_cast<char*>(shared);
  constexpr int kElements = kStoreBytes / static_cast<int>(sizeof(T));
  const Strip& p = call.strip;
  const Plan& plan = p.plan;
  int* const offsets = reinterpret_cast<int*>(memory + call.offsets);
  constexpr bool kSplit = kParts == 3;
  using Stored = typename Product<T, kParts, false, kSplit>::Stored;
  Stored* const weights = reinterpret_cast<Stored*>(memory + call.weights);
  float* const bias = reinterpret_cast<float*>(memory + call.bias_at);
  T* const x_tile = reinterpret_cast<T*>(memory + call.tile);
  T* const stage = reinterpret_cast<T*>(memory + call.stage);

  const int combinations = plan.groups * call.blocks,
            combination = static_cast<int>(blockIdx.x) % combinations;
  const int group = combination / call.blocks, first = (combination - group * call.blocks) * kN * 8;
  const int channels = min(kN * 8, plan.to_channels - first), channel = group * plan.to_channels + first;
  make_offsets(p, offsets);
  make_weights<T, kParts, kN, false, kSplit>(p, static_cast<const T*>(call.w), group, first, weights);
  if (threadIdx.x < kN * 8) {
    const bool exists = call.bias != nullptr && static_cast<int>(threadIdx.x) < channels;
    bias[threadIdx.x] =
        exists ? convert<float>(static_cast<const T*>(call.bias)[channel + static_cast<int>(threadIdx.x)])
               : 0.0f;
  }

  RowEntry* const row_entries = reinterpret_cast<RowEntry*>(memory + call.entries);
  const int phases_h = plan.h.count, rows = kept(p.rows * phases_h);
  PhaseEntry* const phase_entries = reinterpret_cast<PhaseEntry*>(row_entries + rows);
  int live_phases = 0;  // those that taps reach; their rows come first
  for (int i = 0; i < phases_h; ++i) live_phases += plan.h.phase[i].taps > 0;
  const int live_rows = kept(p.rows * live_phases);
  for (int r = threadIdx.x; r < rows; r += kThreads) {
    const int a = r / phases_h, i = r - a * phases_h;
    const PhaseAxis& h = plan.h.phase[i];
    int before = 0;
    for (int j = 0; j < i; ++j) before += plan.h.phase[j].taps > 0;
    const int at =
        h.taps > 0 ? a * live_phases + before : live_rows + a * (phases_h - live_phases) + i - before;
    // Of a phase that ends before others do, rows past its end are past y's end, too.
    row_entries[at] = {i * plan.w.count, p.result_offset(a, 0) * p.bytes, h.to + a * h.to_step};
  }
  // Of column phases, too, those that taps reach come first: warps share the work.
  for (int e = threadIdx.x; e < plan.phases(); e += kThreads) {
    const int i = e / plan.w.count, j = e - i * plan.w.count;
    int at = i * plan.w.count;
    for (int k = 0; k < plan.w.count; ++k) {
      const bool first = plan.w.phase[k].taps > 0, mine = plan.w.phase[j].taps > 0;
      at += first != mine ? first : k < j;
    }
    phase_entries[at] = {p.step_begin[e], p.step_begin[e + 1] - p.step_begin[e], plan.w.phase[j].to};
  }

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int step_w = kept(plan.w.phase[0].to_step), step_h = kept(plan.h.phase[0].to_step);
  const int phases_w = kept(plan.w.count), parts_w = kept(p.columns / (kM * kPixels));
  const int staged_rows = kept(call.staged_rows), staged_pitch = kept(call.staged_pitch), to_h = kept(p.to_h);
  const int plane = kept(plan.to.c), y_pitch = kept(plan.to.h), kept_channels = kept(channels);
  // This warp's 32 pixels, and the first row and phase of those that it takes of staged rows.
  const int first_pixel = warp % parts_w * (kM * kPixels) + g, first_unit = warp / parts_w,
            unit_step = kWarps / parts_w;
  const unsigned x_address = shared_address(x_tile) + first_pixel * static_cast<int>(sizeof(T));
  const auto copy = copy_of<T, false>(p, plan.from_channels, p.slots);
  const int low_h = kept(p.slot_of.low), half_step = kept(8 * step_w);
  static_assert(kM == 2);
  const T* const from =
      static_cast<const T*>(call.x) + static_cast<std::int64_t>(group) * plan.from_channels * plan.from.c;
  // How far the first element of y is from a multiple of 16 bytes.
  const int y_shift = static_cast<int>(reinterpret_cast<std::uintptr_t>(call.y) / sizeof(T)) % kElements;

  // What this thread's sums begin with.
  float starts[kN * 2];
#pragma unroll
  for (int v = 0; v < kN * 2; ++v) {
    const int c = v / 2 * 8 + t * 2 + v % 2;
    const bool exists = call.bias != nullptr && c < channels;
    starts[v] = exists ? convert<float>(static_cast<const T*>(call.bias)[channel + c]) : 0.0f;
  }
  const int tile_step = static_cast<int>(gridDim.x) / combinations;
  const auto start_copy = [&](int tile_index) {
    if (tile_index < call.tiles) {
      const Tile tile = p.tile(tile_index);
      copy.start(x_tile, from + tile.image * plan.from.n, p.first_column(tile),
                 [&](int slot) { return tile.a + low_h + slot; });
    }
    commit_copies();
  };

  int tile_index = static_cast<int>(blockIdx.x) / combinations;
  start_copy(tile_index);
  for (; tile_index < call.tiles; tile_index += tile_step) {
    const Tile tile = p.tile(tile_index);
    wait_for_copies<0>();
    __syncthreads();

    const std::int64_t image_at =
        tile.image * plan.to.n + static_cast<std::int64_t>(channel) * plane + tile.b * step_w;
    T* const image = static_cast<T*>(call.y) + image_at;
    const unsigned image_shift = static_cast<unsigned>(y_shift) + static_cast<unsigned>(image_at);
    const int columns = min(p.columns * step_w, p.to_w - tile.b * step_w), first_row = tile.a * step_h;
    const auto shift_of = [&](int row, int c) {
      return static_cast<int>(
          (image_shift + static_cast<unsigned>(row * y_pitch) + static_cast<unsigned>(c * plane)) &
          (kElements - 1));
    };

    // Rows without taps, between products, so that memory is never idle.
    int dead = live_rows, dead_channel = warp;
    const auto fill_next = [&] {
      while (dead_channel >= kept_channels) dead_channel -= kept_channels, ++dead;
      if (dead >= rows) return false;
      const int row = first_row + row_entries[dead].to, c = dead_channel;
      dead_channel += kWarps;
      if (row < to_h) {
        fill_row(image + (c * plane + row * y_pitch), convert<T>(bias[c]), shift_of(row, c), columns);
      }
      return true;
    };

    for (int r0 = 0; r0 < live_rows; r0 += staged_rows) {
      const int some = min(staged_rows, live_rows - r0);
      int staged = 0, j = first_unit;
      while (j >= phases_w) j -= phases_w, ++staged;
      while (staged < some) {
        const RowEntry entry = row_entries[r0 + staged];
        const int row = first_row + entry.to;
        if (row < to_h) {
          const PhaseEntry phase = phase_entries[entry.phase + j];
          Sums<kM, kN> sums;
          unsigned pixels[kM];
#pragma unroll
          for (int m = 0; m < kM; ++m) {
            pixels[m] = x_address + entry.x + m * kPixels * static_cast<int>(sizeof(T));
#pragma unroll
            for (int v = 0; v < kN * 4; ++v) sums.values[m][v / 4][v % 4] = starts[v / 4 * 2 + v % 2];
          }
          multiply_steps<T, kParts, false, kSplit>(
              sums, pixels, 8 * static_cast<int>(sizeof(T)),
              reinterpret_cast<const int2*>(offsets) + phase.begin * 4 + t,
              weights + phase.begin * kN * 32 + lane, kN * 32, phase.steps);
          // Channels 8 apart have the same shift.
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            T* to = stage + (staged * kept_channels + t * 2 + k) * staged_pitch + shift_of(row, t * 2 + k) +
                    phase.to + first_pixel * step_w;
#pragma unroll
            for (int n = 0; n < kN; ++n, to += 8 * staged_pitch) {
              if (n * 8 + t * 2 + k >= kept_channels) continue;
              to[0] = convert<T>(sums.values[0][n][k]);
              to[half_step] = convert<T>(sums.values[0][n][k + 2]);
              to[2 * half_step] = convert<T>(sums.values[1][n][k]);
              to[3 * half_step] = convert<T>(sums.values[1][n][k + 2]);
            }
          }
        }
        fill_next();
        j += unit_step;
        while (j >= phases_w) j -= phases_w, ++staged;
      }
      __syncthreads();
      // The next tile's x is on its way while rows are written.
      if (r0 + staged_rows >= live_rows) start_copy(tile_index + tile_step);
      int c = warp;
      staged = 0;
      while (c >= kept_channels) c -= kept_channels, ++staged;
      while (staged < some) {
        const RowEntry entry = row_entries[r0 + staged];
        const int row = first_row + entry.to;
        if (row < to_h) {
          const int shift = shift_of(row, c);
          write_row(image + (c * plane + row * y_pitch),
                    stage + (staged * kept_channels + c) * staged_pitch + shift, shift, columns);
        }
        c += kWarps;
        while (c >= kept_channels) c -= kept_channels, ++staged;
      }
      if (r0 + staged_rows < live_rows) __syncthreads();
    }
    while (fill_next()) {
    }
  }
}

/// The arguments but for tensors and strides; `tiles` 0 where shared memory is too small.
TransposedArguments arguments_of(const ConvTranspose2dGeometry& g, DType dtype, int copy, int channels) {
  const bool three = dtype == DType::float32 && float32_precision() == Precision::highest;
  TransposedArguments best{};
  const int bytes = static_cast<int>(size_of(dtype)), elements = kStoreBytes / bytes;
  const Strip start(g, true, bytes);
  const auto reached = [](const PhaseAxes& axis) {
    int live = 0;
    for (int i = 0; i < axis.count; ++i) live += axis.phase[i].taps > 0;
    return live;
  };
  const int live_h = reached(start.plan.h), live_w = reached(start.plan.w);
  double least = 0;
  for (int columns : {32, 64, 128, 256}) {
    for (int rows : {1, 2, 4, 8}) {
      for (int staged : {1, 2, 3, 4, 6, 8, 12, 16}) {
        if (staged > rows * live_h) break;
        TransposedArguments a{};
        Strip& p = a.strip;
        p = start;
        p.set_tile(rows, columns, p.plan.from_channels, copy, 16, 8);
        const int results = columns * p.plan.w.phase[0].to_step, all_rows = rows * p.plan.h.count;
        // The pitch is 4 words modulo 8, so that neighbouring channels' sums meet different banks.
        a.staged_pitch = ((results + elements) * bytes + 31) / 32 * 32 / bytes + 16 / bytes;
        a.staged_rows = staged;
        const int some = std::min(channels, p.plan.to_channels);
        const auto align = [](int n) { return (n + 127) / 128 * 128; };
        a.offsets = 0;
        a.weights = align(p.steps * kStep * 4);
        a.bias_at = a.weights + p.steps * channels * kStep * (three ? 8 : 4);
        a.entries = a.bias_at + channels * 4;
        a.tile = align(a.entries + all_rows * static_cast<int>(sizeof(RowEntry)) +
                       p.plan.phases() * static_cast<int>(sizeof(PhaseEntry)));
        a.stage = align(a.tile + p.tile_bytes());
        const int total = a.stage + a.staged_rows * some * a.staged_pitch * bytes;
        constexpr int kMost = (kMostShared >> 1) - 1024;  // of two blocks a multiprocessor
        if (total > kMost) continue;
        // Bytes that move, warps without work while sums are made, and what barriers cost.
        const double pixels = static_cast<double>(p.tiles_h) * rows * p.tiles_w * columns;
        const double reread = static_cast<double>(p.slots) / rows * p.pitch / columns;
        const double edges =
            1 + 64.0 / (static_cast<double>(results) * bytes);  // rows begin and end in a sector
        const double written = static_cast<double>(p.plan.h.count) * p.plan.w.count * channels * edges;
        // Warps of a part of the columns share the phases of staged rows, some of them without taps.
        const int warps = std::max(1, kWarps / (columns / (kM * kPixels)));
        const int live_units = staged * live_w;
        const double idle = static_cast<double>((live_units + warps - 1) / warps * warps) / live_units;
        const double fixed = 4000.0 * (rows * live_h / static_cast<double>(staged)) / (rows * columns);
        const double blocks = static_cast<double>(p.tiles()) * p.plan.groups * p.plan.to_channels / channels;
        const double waves = blocks < 264 ? 264 / blocks : 1;
        const double cost =
            pixels * waves * (written * (0.7 + 0.3 * idle) + reread * p.plan.from_channels + fixed);
        if (best.tiles > 0 && cost >= least) continue;
        least = cost;
        best = a;
        best.tiles = std::max(1, p.tiles());
        best.blocks = (p.plan.to_channels + channels - 1) / channels;
      }
    }
  }
  return best;
}

int shared_bytes(const TransposedArguments& a, int channels) {
  return a.stage +
         a.staged_rows * std::min(channels, a.strip.plan.to_channels) * a.staged_pitch * a.strip.bytes;
}

int block_channels(const ConvTranspose2dGeometry& g) {
  return g.group_co() <= 8 ? 8 : 16;
}

template <class T, int kParts, int kN>
void launch(const TransposedArguments& a, Device device) {
  const int bytes = shared_bytes(a, kN * 8);
  conv_gemm::allow_shared_memory(strip_transposed_kernel<T, kParts, kN>, bytes);
  const std::int64_t combinations = static_cast<std::int64_t>(a.strip.plan.groups) * a.blocks;
  int resident_blocks = 0;  // of a multiprocessor
  check_cuda(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident_blocks, strip_transposed_kernel<T, kParts, kN>,
                                                    kThreads, static_cast<std::size_t>(bytes)),
      "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  const std::int64_t resident = std::int64_t{multiprocessors(device)} * std::max(1, resident_blocks);
  const std::int64_t most = std::clamp<std::int64_t>(resident / combinations, 1, a.tiles);
  const std::int64_t turns = ceil_div(a.tiles, most);  // equal ones
  strip_transposed_kernel<T, kParts, kN><<<grid_size("conv", ceil_div(a.tiles, turns) * combinations),
                                           kThreads, static_cast<std::size_t>(bytes), stream_of(device)>>>(a);
  check_launch("conv: strip");
}

}  // namespace

bool strip_transposed_fits(const ConvTranspose2dGeometry& g, DType dtype) {
  return dtype != DType::float64 && conv_gemm::fits(g) && g.n > 0 &&
         arguments_of(g, dtype, 16, block_channels(g)).tiles > 0;
}

void strip_transposed(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y) {
  const DeviceScope scope(y.device());
  const int channels = block_channels(g);
  TransposedArguments a =
      arguments_of(g, y.dtype(), copy_bytes(x.raw(), g.w.in, static_cast<int>(size_of(y.dtype()))), channels);
  a.strip.plan.from = ImageStrides(x.strides());
  a.strip.plan.to = ImageStrides(y.strides());
  a.x = x.raw();
  a.w = w.raw();
  a.bias = bias.defined() ? bias.raw() : nullptr;
  a.y = y.raw();
  const auto choose = [&]<class T, int kParts>() {
    if (channels == 8) return launch<T, kParts, 1>(a, y.device());
    launch<T, kParts, 2>(a, y.device());
  };
  if (y.dtype() == DType::bfloat16) return choose.template operator()<bfloat16, 1>();
  if (y.dtype() == DType::float16) return choose.template operator()<float16, 1>();
  if (float32_precision() != Precision::highest) return choose.template operator()<float, 1>();
  choose.template operator()<float, 3>();
}

}  // namespace tapedeck::cu
