// strip_transposed.cu's kernel for 16-bit types, whose bytes are half as many, so that instructions bound it
// before memory does. Blocks, tiles of x, stages and lines of y are as there; other than there,
//
// - x is turned in shared memory, once a tile, so that 8 channels of a pixel are 16 bytes: one instruction
//   (ldmatrix) then loads 16 pixels of two taps by 8 channels;
// - products have channels of y as rows and pixels as columns, so that a thread has two neighbouring pixels
//   of a channel; where one pass has all columns of a step, live or not, its results of these are neighbours
//   in y, and put into the stage as words of two;
// - lines of the stage are as far apart as planes of y, modulo 32 bytes, so that a row has one shift.
//
//   x as copied            turned                         sums of a thread      y
//   [slot][ci][column]     [slot][8 ci][column][8]        2 pixels * 3 columns  | 0 1 2 | 0 1 2 |
//
// On an H200 (kb75 and kb81 of bench/compare_gpu.py) in bfloat16 0.140 and 0.137 ms, 73% of a copy's
// bandwidth; 0.176 and 0.184 by strip_transposed.cu's way. Of this the weights' table, which saves each block
// some thousand instructions before its first tile, made kb81 0.168 to 0.146 ms, and whole sectors 3%.
#include <tapedeck/ops/conv/gemm_tile.cuh>
#include <tapedeck/ops/conv/strip_transposed.cuh>

namespace tapedeck::cu::conv_strip {

namespace {

/// A pass of a row phase: what warps look up.
template <int kP>
struct HalfPassEntry {
  int begin, most;  // products of 16 elements of k: the first, and how many
  int count[kP];    // of each place of its sums, those that its phase has
  int column[kP];   // from a pixel's first column on, or -1
};

/// Weights of 16 elements of k for a thread: of its channel, and of the one 8 further.
template <int kC>
using HalfWeights = std::conditional_t<kC == 2, uint4, uint2>;

template <class T>
__device__ __forceinline__ std::uint32_t two(float low, float high) {
  Pack<T, 2> pack;
  pack.values[0] = convert<T>(low), pack.values[1] = convert<T>(high);
  return __builtin_bit_cast(std::uint32_t, pack);
}

/// d = c + a * b, of 16 channels and 8 pixels.
template <class T, int kC>
__device__ __forceinline__ void multiply(float (&d)[4], const HalfWeights<kC>& a, std::uint32_t b0,
                                         std::uint32_t b1) {
  if constexpr (kC == 2) {
    conv_gemm::Half<T>::multiply(d, {a.x, a.y, a.z, a.w}, b0, b1);
  } else {
    conv_gemm::Half<T>::multiply(d, {a.x, 0, a.y, 0}, b0, b1);
  }
}

/// Eight elements of k, of a tap and neighbouring channels: half of a product's.
template <int kP>
struct Octet {
  int offset;       // of its pixels, in bytes
  int channels;     // that exist
  int weights[kP];  // of a place, the first for the block's first channel, or -1
};

template <int kP>
__device__ __forceinline__ void make_octets(const Strip& p, const Passes& passes, int group, int first,
                                            Octet<kP>* octets) {
  static_assert(sizeof(Octet<kP>) <= kStep * 4);  // what arguments leave for each
  for (int step = threadIdx.x; step < passes.all_steps(p); step += kThreads) {
    of_step(passes, step, [&](int i, int q, int in_pass) {
      const auto element = passes.element(p, i, q, in_pass * kStep);
      Octet<kP>& octet = octets[step];
      octet.offset = passes.offset(p, i, element) * p.bytes;
      octet.channels = p.plan.from_channels - element.channel;
      for (int place = 0; place < kP; ++place) {
        const int n = passes.phase_at(p, q, place);
        octet.weights[place] =
            n < 0 ? -1 : static_cast<int>(passes.weight(p, group, i, q, n, element, first));
      }
    });
  }
}

/// The weights of kC * 8 channels of y: [product][place][thread].
template <class T, int kP, int kC>
__device__ __forceinline__ void make_half_weights(const Strip& p, const Passes& passes, const T* w,
                                                  int channels, const Octet<kP>* octets,
                                                  HalfWeights<kC>* weights) {
  const int count = passes.all_steps(p) / 2 * kP * 32, to_step = p.plan.kernel_h * p.plan.kernel_w,
            from_step = p.plan.to_channels * to_step;
  for (int e = threadIdx.x; e < count; e += kThreads) {
    const int lane = e % 32, rest = e / 32, product = rest / kP, place = rest - product * kP;
    struct {
      Pack<T, 2> of[2][kC];  // octet, channel of y
    } words;
#pragma unroll
    for (int v = 0; v < 4 * kC; ++v) {
      const Octet<kP>& octet = octets[product * 2 + v / (2 * kC)];
      const int from = lane % 4 * 2 + v % 2, to = lane / 4 + v / 2 % kC * 8, first = octet.weights[place];
      const bool exists = first >= 0 && from < octet.channels && to < channels;
      words.of[v / (2 * kC)][v / 2 % kC].values[v % 2] =
          exists ? w[first + from * from_step + to * to_step] : T(0.0f);
    }
    weights[e] = __builtin_bit_cast(HalfWeights<kC>, words);
  }
}

template <int kP>
__device__ __forceinline__ void make_half_entries(const Strip& p, const Passes& passes,
                                                  HalfPassEntry<kP>* entries) {
  for (int e = threadIdx.x; e < p.plan.h.count * passes.count; e += kThreads) {
    const int i = e / passes.count, q = e - i * passes.count;
    HalfPassEntry<kP>& pass = entries[e];
    pass.begin = passes.step_begin[e] / 2;
    pass.most = passes.steps(p, i, q, 0) / 2;
    for (int place = 0; place < kP; ++place) {
      const int n = passes.phase_at(p, q, place);
      pass.count[place] = n < 0 ? 0 : passes.steps(p, i, q, n) / 2;
      pass.column[place] = n < 0 ? -1 : p.plan.w.phase[passes.order[passes.first[q] + n]].to - p.first_to;
    }
  }
}

/// Brings 8 channels of a pixel together: rows of x, `pitch` elements apart, of 2 * `pairs` columns.
template <class T>
__device__ __forceinline__ void turn(const T* from, T* to, int octets, int pitch, int pairs,
                                     const Divider& by_pairs) {
  for (int i = threadIdx.x; i < octets * pairs; i += kThreads) {
    const int octet = by_pairs.divide(i), pair = i - octet * pairs;
    const T* const source = from + octet * kStep * pitch + pair * 2;
    std::uint32_t words[kStep];
#pragma unroll
    for (int c = 0; c < kStep; ++c) words[c] = *reinterpret_cast<const std::uint32_t*>(source + c * pitch);
    uint4* const target = reinterpret_cast<uint4*>(to) + i * 2;
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const auto channels = [&](int c) {
        return __byte_perm(words[c], words[c + 1], column == 0 ? 0x5410 : 0x7632);
      };
      target[column] = {channels(0), channels(2), channels(4), channels(6)};
    }
  }
}

/// Puts a thread's results of two pixels' steps, each of channels 8 apart, where they lie in the stage: words
/// of two, the first of which may begin `between` words.
template <class T, int kP, int kC>
__device__ __forceinline__ void put_steps(T* to, bool between, int line_pitch,
                                          const float (&sums)[kP][2][4]) {
#pragma unroll
  for (int c = 0; c < kC; ++c)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      T* const line = to + c * 8 * line_pitch + half * 8 * kP;
      const auto result = [&](int k) { return sums[k % kP][half][c * 2 + k / kP]; };
      const auto put_two = [&](int k) {
        *reinterpret_cast<std::uint32_t*>(line + k) = two<T>(result(k), result(k + 1));
      };
      if (between) {
        line[0] = convert<T>(result(0));
#pragma unroll
        for (int k = 1; k < 2 * kP - 1; k += 2) put_two(k);
        line[2 * kP - 1] = convert<T>(result(2 * kP - 1));
      } else {
#pragma unroll
        for (int k = 0; k < 2 * kP; k += 2) put_two(k);
      }
    }
}

/// kP places of sums a pass, kC * 8 channels of y.
template <class T, int kP, int kC>
__global__ void __launch_bounds__(kThreads, 2)
    strip_transposed_halves_kernel(const __grid_constant__ TransposedArguments call) {
  extern __shared__ uint4 shared[];
  char* const memory = reinterpret_cast<char*>(shared);
  constexpr int kElements = kStoreBytes / static_cast<int>(sizeof(T)), kSector = 2 * kElements,
                kChannels = kC * 8, kPixelBytes = kStep * static_cast<int>(sizeof(T));
  const Strip& p = call.strip;
  const Plan& plan = p.plan;
  const Passes& passes = call.passes;
  const Stage& stage = call.stage;
  Octet<kP>* const octets = reinterpret_cast<Octet<kP>*>(memory + call.offsets);
  HalfWeights<kC>* const weights = reinterpret_cast<HalfWeights<kC>*>(memory + call.weights);
  float* const bias = reinterpret_cast<float*>(memory + call.bias_at);
  T *const tile_of_x = reinterpret_cast<T*>(memory + call.tile), *const turned = reinterpret_cast<T*>(
                                                                     memory + call.octets);

  const int combinations = plan.groups * call.blocks,
            combination = static_cast<int>(blockIdx.x) % combinations;
  const int group = combination / call.blocks, first = (combination - group * call.blocks) * kChannels;
  const int channels = min(kChannels, plan.to_channels - first), channel = group * plan.to_channels + first;
  const int tile_step = static_cast<int>(gridDim.x) / combinations;

  const T* const from =
      static_cast<const T*>(call.x) + static_cast<std::int64_t>(group) * plan.from_channels * plan.from.c;
  const int low_h = p.slot_of.low;
  const auto start_copy = [&](int tile_index) {
    if (tile_index < call.tiles) {
      const Tile tile = p.tile(tile_index);
      const RowCopy<T> copy(p.by_chunk, plan.from_channels, p.slots, plan.from_h, plan.from_w, call.pitch,
                            p.copy, p.copies, p.copy_lanes, plan.from);
      copy.start(tile_of_x, from + tile.image * plan.from.n, p.first_column(tile),
                 [&](int slot) { return tile.a + low_h + slot; });
    }
    commit_copies();
  };
  int tile_index = static_cast<int>(blockIdx.x) / combinations;
  start_copy(tile_index);

  make_octets(p, passes, group, first, octets);
  if (static_cast<int>(threadIdx.x) < kChannels) {
    const bool exists = call.bias != nullptr && static_cast<int>(threadIdx.x) < channels;
    bias[threadIdx.x] =
        exists ? convert<float>(static_cast<const T*>(call.bias)[channel + static_cast<int>(threadIdx.x)])
               : 0.0f;
  }
  const int rows = kept(p.rows * plan.h.count);
  RowEntry* const row_entries = reinterpret_cast<RowEntry*>(memory + call.entries);
  HalfPassEntry<kP>* const pass_entries = reinterpret_cast<HalfPassEntry<kP>*>(row_entries + rows);
  const int live_rows = make_row_entries(p, passes, row_entries);
  make_half_entries(p, passes, pass_entries);
  __syncthreads();
  make_half_weights<T, kP, kC>(p, passes, static_cast<const T*>(call.w), channels, octets, weights);

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int parts = kept(call.parts), pass_count = passes.count, line_pitch = kept(stage.pitch),
            row_pitch = kept(stage.row_pitch), staged_rows = kept(stage.rows), stages = call.stages;
  const int step_h = kept(plan.h.phase[0].to_step), step_w = kept(plan.w.phase[0].to_step);
  const unsigned to_h = kept(p.to_h);
  const bool sectors = call.sectors;
  const int plane = kept(plan.to.c), y_row = kept(plan.to.h);
  // This thread's row of the matrices that it loads, and its first result of a row of the stage.
  const unsigned my_pixel = shared_address(turned) + (lane / 16 * 8 + lane % 8) * kPixelBytes;
  const Octet<kP>* const my_octets = octets + lane / 8 % 2;
  const HalfWeights<kC>* const my_weights = weights + lane;
  const int my_result = g * line_pitch + t * 2 * step_w;
  const float start[2] = {bias[g], bias[g + (kC - 1) * 8]};
  int ring = 0;
  for (; tile_index < call.tiles; tile_index += tile_step) {
    wait_for_copies<0>();
    __syncthreads();
    turn(tile_of_x, turned, p.slots * (p.chunk / kStep), call.pitch, call.pairs, call.by_pairs);
    if (stages == 1) wait_for_bulk_reads();
    __syncthreads();
    start_copy(tile_index + tile_step);
    const Tile tile = p.tile(tile_index);
    const int first_row = tile.a * step_h, first_column = Stage::first_column(p, tile);
    T* const image = static_cast<T*>(call.y) + tile.image * plan.to.n +
                     static_cast<std::int64_t>(channel) * plane + first_column;
    const Stage::Span columns = stage.columns(first_column);
    const unsigned base = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(image) / sizeof(T));
    /// Of a row's line of the first channel, modulo 32 bytes.
    const auto shift_of = [&](int row) {
      return static_cast<int>((base + static_cast<unsigned>(row * y_row)) & (kSector - 1));
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
        fill_row(image + at, convert<T>(bias[c]),
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
          const int result = r * row_pitch + shift_of(row) + pixel * step_w + my_result;
          T* const to = staged + result;
          const unsigned pixels = my_pixel + entry.x + pixel * kPixelBytes;
          for (int q = 0; q < pass_count; ++q) {
            const HalfPassEntry<kP> pass = pass_entries[entry.pass + q];
            float sums[kP][2][4];  // [place][8 pixels][channel, two pixels]
#pragma unroll
            for (int v = 0; v < kP * 8; ++v) sums[v / 8][v / 4 % 2][v % 4] = start[v / 2 % 2];
            const Octet<kP>* octet = my_octets + pass.begin * 2;
            const HalfWeights<kC>* weight = my_weights + pass.begin * (kP * 32);
            int s = 0;
#pragma unroll 1
            do {
              std::uint32_t x[4];
              conv_gemm::load_matrices(pixels + octet->offset, x);
              octet += 2;
#pragma unroll
              for (int n = 0; n < kP; ++n) {
                if (s >= pass.count[n]) continue;
                const HalfWeights<kC> w = weight[n * 32];
                multiply<T, kC>(sums[n][0], w, x[0], x[1]);
                multiply<T, kC>(sums[n][1], w, x[2], x[3]);
              }
              weight += kP * 32;
            } while (++s < pass.most);  // Of rows that taps reach, a pass has a product.
            if (passes.whole) {
              put_steps<T, kP, kC>(to, result % 2 != 0, line_pitch, sums);
              continue;
            }
#pragma unroll
            for (int n = 0; n < kP; ++n) {
              const int column = pass.column[n];
              if (column < 0) continue;
#pragma unroll
              for (int v = 0; v < kC * 4; ++v)
                to[v / 4 * 8 * line_pitch + (v / 2 % 2 * 8 + v % 2) * step_w + column] =
                    convert<T>(sums[n][v / 2 % 2][v / 4 * 2 + v % 2]);
            }
          }
          if (!passes.whole) {
            for (int k = passes.live; k < plan.w.count; ++k) {
              const int column = plan.w.phase[passes.order[k]].to - p.first_to;
#pragma unroll
              for (int v = 0; v < kC * 4; ++v)
                to[v / 4 * 8 * line_pitch + (v / 2 % 2 * 8 + v % 2) * step_w + column] =
                    convert<T>(start[v / 4]);
            }
          }
        }
        fill_next();
      }
      publish_for_bulk_copies();
      if (stages == 2) wait_for_bulk_reads();  // the next stage's
      __syncthreads();
      // Sixteen threads a line.
      for (int line = static_cast<int>(threadIdx.x) / 16; line < some * kChannels; line += kThreads / 16) {
        const int r = line / kChannels, c = line % kChannels;
        const RowEntry entry = row_entries[begin + r];
        const int row = first_row + entry.row;
        if (c >= channels || static_cast<unsigned>(row) >= to_h) continue;
        const int at = c * plane + row * y_row;
        T* const to = image + at;
        const T* const lies = staged + (r * row_pitch + shift_of(row) + c * line_pitch);
        write_line(to, lies, convert<T>(bias[c]), columns,
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

}  // namespace

void launch_transposed_halves(const TransposedArguments& a, DType dtype, Device device) {
  const auto launch = [&]<class T, int kP>() {
    if (a.stage.channels == 8) {
      launch_transposed(strip_transposed_halves_kernel<T, kP, 1>, a, device);
    } else {
      launch_transposed(strip_transposed_halves_kernel<T, kP, 2>, a, device);
    }
  };
  const auto choose = [&]<class T>() {
    switch (a.passes.most) {
      case 1:
        return launch.template operator()<T, 1>();
      case 2:
        return launch.template operator()<T, 2>();
      case 3:
        return launch.template operator()<T, 3>();
      case 4:
        return launch.template operator()<T, 4>();
      default:
        launch.template operator()<T, 5>();
    }
  };
  if (dtype == DType::bfloat16) return choose.template operator()<bfloat16>();
  choose.template operator()<float16>();
}

}  // namespace tapedeck::cu::conv_strip
