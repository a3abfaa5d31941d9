// conv2d, the gradient of conv_transpose2d's input, where reading y takes most of the time: few channels a
// group, or a large stride.
//
//   x[n, ci, ih, iw] = bias[ci] + sum over co and taps: y[n, co, oh, ow] * w[ci, co, kh, kw]
//
// A block keeps the weights of a group in shared memory and goes down strips of x. The rows of y that a row
// of x meets first (strip_plan.h: a group of slots), some channels at a time, come through a ring of stages:
// while one is multiplied, the next are on their way, and each row of y is read once. A warp has 16 or 32
// pixels of a row of x and 8 or 16 channels, and sums for the kH rows of x that a row of y can meet; a step
// of k multiplies 8 (channel of y, tap along w) for each of these rows. When all of a row's taps are added it
// is written, and the sums of the others move up:
//
//   group q of y:   taps of result q | of q-1 | of q-2       sums[0] sums[1] sums[2] -> result q-2 is written
//   group q+1:      taps of q+1      | of q   | of q-1               (moved up)
//
// Where each row of y meets one row of x and rows are long, Hopper has strip_ahead.cu.
//
// Elements of neighbouring pixels are `stride` apart: an odd stride meets all banks. What bounds it should be
// the reading; it is how long a stage takes from its barrier to the next, of loads and products that wait for
// each other.
//
// On an H200 (bench/compare_gpu.py --shapes kb75) in float32, TF32 and bfloat16: 0.23, 0.22 and 0.12 ms, 48,
// 50 and 45% of a copy's bandwidth for the rows that are read. (kb81 took 0.22, 0.22 and 0.12 here.) What
// helped: copies of whole rows in bulk, by one warp (kb75 0.244 to 0.226 and 0.132 to 0.123; kb81, whose rows
// are 8 bytes from multiples of 16, 0.242 to 0.219, 0.230 to 0.217 and 0.132 to 0.117 since the rows of a
// step's taps may be shifted differently: with the taps along h in a loop TF32 had taken 0.252), reading a
// row once for all rows of x that it meets, steps four at a time without branches (0.40 to 0.26 and 0.29 to
// 0.26 ms), 32 pixels a warp in bfloat16 (kb75 0.156 to 0.134), stages of many channels (2 of y: 0.65, 4:
// 0.38, 8: 0.29, 16: 0.26). A tile of several rows, whose rows of y other tiles read again, took 0.55. What
// did not: bulk copies of short rows, which one warp has to begin (1.3 to 1.9 times as long).
//
// Where the weights of all channels of y take more than kMostWeights, channels of float32 in nchw come in
// parts: a block has the weights of one, sums of parts go to a workspace of x's size each, and are added in
// order (256 to 8 channels, 24 taps: 0.42 instead of 0.74 ms by other kernels). x is small beside y, or it
// would not be for strips. A launch for each part takes 0.55; with channels last the kernel of two rows of x
// (kb75 in TF32) took 1.16 times as long with it.
#include <optional>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/parts.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/strip_tile.cuh>

namespace tapedeck::cu {

namespace {

using namespace conv_strip;

constexpr int kMostStages = 4, kMostRows = 3;
constexpr int kFlush = 4;                // steps whose sums tensor cores add
constexpr int kMostWeights = 128 << 10;  // bytes that a block keeps
/// Copies of 16 bytes of a row that pay for one warp that copies all rows, where these are shifted by what is
/// no multiple of 4 bytes, or differently for taps.
constexpr int kLeastOfBulk = 64;
/// For the estimate, a guess: bytes that a multiprocessor could read while the kernel begins that adds parts.
constexpr double kAddingBytes = 80e3;

struct PlainArguments {
  Strip strip;
  const void *y, *w, *bias;
  void* x;
  float* sums;                          // of parts of channels of y, where there are several
  std::int64_t count;                   // elements of x
  int blocks, columns;                  // of channels of x of a group; warps side by side in a block of them
  int length, strips, items;            // rows of x of a strip; strips of a column tile; of all
  bool bulk;                            // rows of y are copied in bulk
  int steps, stages, stage_bytes;       // steps of k of a row of y
  int parts, part_chunks;               // of channels of y, and chunks of a part
  int tap[kMaxPhases * kMostRows];      // of (row of a group, row of x), or -1
  int offsets, weights, bias_at, ring;  // bytes from the start of shared memory
};

/// Where a row of y meets one row of x only, its taps along h are steps, too. Rows of different taps are
/// shifted differently: there is a table of offsets for each shift of the first one.
constexpr bool is_merged(int rows) {
  return rows == 1;
}

/// Whether channels of y may come in parts: there are registers for it.
constexpr bool may_part(std::size_t bytes, bool last) {
  return bytes == sizeof(float) && !last;
}

/// Blocks that a multiprocessor has registers for: the more, the less waiting for loads and products.
constexpr int most_blocks(std::size_t bytes, bool last, int m, int n) {
  return bytes == 2 && !last && m * n == 1 ? 3 : 2;
}

/// Whether warps may have 32 pixels where a row of y meets several of x: their weights are loaded half as
/// often, where registers allow it.
constexpr bool takes_two(int bytes, bool last, int n) {
  return bytes == 2 && !last && n == 1;
}

/// What a block goes down: results [begin, end) of column tile b of an image.
struct Item {
  __device__ Item(const PlainArguments& call, int index) {
    const int rest = index / call.strip.tiles_w;
    b = (index - rest * call.strip.tiles_w) * call.strip.columns;
    image = rest / call.strips;
    begin = (rest - image * call.strips) * call.length;
    end = min(call.strip.to_h, begin + call.length) + call.strip.slot_of.groups;  // of groups
  }
  int image, b, begin, end;
};

/// kRows: of x that a row of y can meet.
template <class T, int kParts, bool kLast, int kRows, int kM, int kN>
__global__ void __launch_bounds__(kThreads, most_blocks(sizeof(T), kLast, kM, kN))
    strip_plain_kernel(const __grid_constant__ PlainArguments call) {
  constexpr bool kSplit = kParts == 3 && kRows > 1, kMerged = is_merged(kRows);
  using P = Product<T, kParts, kLast, kSplit>;
  extern __shared__ uint4 shared[];
  __shared__ int slot_rows[kMaxPhases], taps_of[kMaxPhases * kMostRows];
  __shared__ float* sums_of_part;  // a register less
  __shared__ conv_gemm::Barrier arrived[kMostStages];
  char* const memory = reinterpret_cast<char*>(shared);
  const bool bulk = !kLast && call.bulk;
  const Strip& p = call.strip;
  const Plan& plan = p.plan;
  int* const offsets = reinterpret_cast<int*>(memory + call.offsets);
  typename P::Stored* const weights = reinterpret_cast<typename P::Stored*>(memory + call.weights);
  float* const bias = reinterpret_cast<float*>(memory + call.bias_at);

  constexpr bool kParted = may_part(sizeof(T), kLast);
  const int of_group = (kParted ? call.parts : 1) * call.blocks, combinations = plan.groups * of_group,
            combination = static_cast<int>(blockIdx.x) % combinations;
  const int first_item = static_cast<int>(blockIdx.x) / combinations,
            item_step = static_cast<int>(gridDim.x) / combinations;
  const int group = combination / of_group, of_parts = combination - group * of_group,
            part = kParted ? of_parts / call.blocks : 0, all_n = call.columns * kN;
  const int first = (of_parts - part * call.blocks) * all_n * 8, first_chunk = part * call.part_chunks;
  const int channels = min(all_n * 8, plan.to_channels - first), channel = group * plan.to_channels + first;
  const T* const from =
      static_cast<const T*>(call.y) +
      (static_cast<std::int64_t>(group) * plan.from_channels + first_chunk * p.chunk) * plan.from.c;

  // What is copied next.
  const int chunk_channels = kept(p.chunk),
            chunks = kept(kParted ? min(call.part_chunks, p.chunks - first_chunk) : p.chunks),
            stages = kept(call.stages), stage_bytes = kept(call.stage_bytes);
  auto copy = copy_of<T, kLast>(p, 0, p.slot_of.count);
  const int step_h = kept(p.reach_h.step), step_w = kept(p.reach_w.step), low_w = kept(p.low_w);
  const std::int64_t chunk_stride = static_cast<std::int64_t>(chunk_channels) * plan.from.c;
  int next_index = first_item, next_chunk = 0, next_stage = 0;
  Item next(call, next_index);
  const T* next_from = from + next.image * plan.from.n;
  const auto copy_next = [&] {
    if (next_index < call.items) {
      copy.exist = min(chunk_channels, plan.from_channels - (first_chunk + next_chunk) * chunk_channels);
      T* const to = reinterpret_cast<T*>(memory + call.ring + next_stage * stage_bytes);
      const T* const rows = next_from + next_chunk * chunk_stride;
      const int first_column = next.b * step_w + low_w;
      const auto row = [&](int slot) { return next.begin * step_h + slot_rows[slot]; };
      if constexpr (kLast) {
        copy.start(to, rows, first_column, row);
      } else if (!bulk) {
        copy.start(to, rows, first_column, row);
      } else {
        copy.start_bulk(to, rows, first_column, row, arrived[next_stage]);
      }
      if (++next_chunk == chunks) {
        next_chunk = 0;
        if (++next.begin == next.end) {
          next = Item(call, next_index += item_step);
          next_from = from + next.image * plan.from.n;
        }
      }
      if (++next_stage == stages) next_stage = 0;
    }
    commit_copies();
  };
  for (int slot = threadIdx.x; slot < kMaxPhases; slot += kThreads) slot_rows[slot] = p.slot_of.row(slot);
  for (int e = threadIdx.x; e < kMaxPhases * kMostRows; e += kThreads) taps_of[e] = call.tap[e];
  if (bulk) initialise(arrived, p.slot_of.count * p.chunk);
  if (kParted && threadIdx.x == 0) sums_of_part = call.sums + part * call.count;
  __syncthreads();
  for (int i = 1; i < call.stages; ++i) copy_next();

  const int table_size = call.steps * kStep;
  for (int e = threadIdx.x; e < table_size * (kMerged ? p.shifts + 1 : 1); e += kThreads) {
    const int first_shift = e / table_size, at = e - first_shift * table_size,
              k = p.element_of(at / kStep, at % kStep / 2, at % 2);
    offsets[e] =
        (kMerged ? p.offset(0, 0, k) + p.shift_of_element(k, first_shift) : p.row_offset(k)) * p.bytes;
  }
  // [chunk][tap along h][step][8 channels][thread]; where a row of x meets one group of y's only, its taps
  // along h are steps, too.
  const int steps = kept(call.steps), of_tap = kept(steps / P::kSteps * all_n * 32),
            taps = kept(kMerged ? 1 : plan.kernel_h);
#pragma unroll 4
  for (int e = threadIdx.x; e < chunks * taps * of_tap; e += kThreads) {
    const int lane = e % 32, tap = e / of_tap, rest = (e - tap * of_tap) / 32, chunk = tap / taps;
    weights[e] = P::make([&](int s, int half) {
      const int k = p.element_of(rest / all_n * P::kSteps + s, lane % 4, half),
                m = first + channel_of<kN, kLast>(rest % all_n, lane / 4);
      const std::int64_t at = kMerged ? p.weight(group, first_chunk + chunk, 0, 0, k, m)
                                      : p.row_weight(group, first_chunk + chunk, tap - chunk * taps, k, m);
      return at < 0 ? 0.0f : convert<float>(static_cast<const T*>(call.w)[at]);
    });
  }
  if (static_cast<int>(threadIdx.x) < all_n * 8) {
    const bool exists = call.bias != nullptr && part == 0 && static_cast<int>(threadIdx.x) < channels;
    bias[threadIdx.x] =
        exists ? convert<float>(static_cast<const T*>(call.bias)[channel + static_cast<int>(threadIdx.x)])
               : 0.0f;
  }

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4;
  const int warp_n = warp % call.columns * kN, pixel = warp / call.columns * (kM * kPixels) + g;
  const int step_bytes = step_w * (kLast ? kStep : 1) * static_cast<int>(sizeof(T)), half = 8 * step_bytes;
  const int slot_bytes = kept(p.slot_pitch * static_cast<int>(sizeof(T))),
            slots = kept(kMerged ? 1 : p.slot_of.count), groups = kept(p.slot_of.groups),
            weight_step = kept(all_n * 32);
  const unsigned ring = shared_address(memory + call.ring) + pixel * step_bytes;
  const int2* const table = reinterpret_cast<const int2*>(offsets) + t;
  const typename P::Stored* const my_weights = weights + warp_n * 32 + lane;

  const int shifts = kept(p.shifts), row_pitch = kept(plan.from.h), plane = kept(plan.from.c);
  const int y_base = static_cast<int>(reinterpret_cast<std::uintptr_t>(from) / sizeof(T));

  int stage = 0;
  unsigned phase = 0;
  for (int index = first_item; index < call.items; index += item_step) {
    const Item item(call, index);
    // Of this thread's first channel, or of channel 0, in the tile's first column and row 0 of y.
    const int shift_of_item = p.shift(y_base + static_cast<int>(item.image * plan.from.n), kMerged ? 0 : t, 0,
                                      item.b * step_w + low_w);
    Sums<kM, kN> sums[kRows] = {};
    for (int q = item.begin; q < item.end; ++q) {
      for (int chunk = 0; chunk < chunks; ++chunk) {
        if (stages == 2) {
          wait_for_copies<0>();
        } else if (stages == 3) {
          wait_for_copies<1>();
        } else {
          wait_for_copies<2>();
        }
        if (bulk) wait(arrived[stage], phase);
        __syncthreads();
        copy_next();
        unsigned pixels = ring + stage * stage_bytes;
        if (++stage == stages) stage = 0, phase ^= 1;
        for (int slot = 0; slot < slots; ++slot, pixels += slot_bytes) {
          const int shift = shift_of_item + (q * step_h + slot_rows[slot]) * row_pitch;
          const unsigned first =
                             kMerged ? pixels : pixels + static_cast<unsigned>(shift & shifts) * sizeof(T),
                         second = kMerged ? pixels
                                          : pixels + static_cast<unsigned>((shift + 4 * plane) & shifts) *
                                                         sizeof(T);
          const int2* const of_shift = kMerged ? table + (shift & shifts) * steps * 4 : table;
          const typename P::Stored* of_row[kRows];
          bool meets[kRows], all = true;
#pragma unroll
          for (int r = 0; r < kRows; ++r) {
            const int tap = taps_of[slot * kMostRows + r];
            meets[r] = tap >= 0;
            all = all && meets[r];
            of_row[r] = my_weights + (chunk * taps + max(tap, 0)) * of_tap;
          }
          // kAll: without branches, so that loads of later steps are under way.
          const auto add = [&]<bool kAll>(Sums<kM, kN>(&to)[kRows], int s) {
            typename P::A a[kM];
#pragma unroll
            for (int m = 0; m < kM; ++m)
              a[m] = P::load(first + m * 2 * half, second + m * 2 * half, half, of_shift + s * 4);
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              if (!kAll && !meets[r]) continue;
#pragma unroll
              for (int n = 0; n < kN; ++n) {
                const auto b = P::read(of_row[r][s / P::kSteps * weight_step + n * 32]);
#pragma unroll
                for (int m = 0; m < kM; ++m) P::multiply(to[r].values[m][n], a[m], b);
              }
            }
          };
          for (int begin = 0; begin < steps; begin += kFlush) {
            Sums<kM, kN> flushed[kRows] = {};
            Sums<kM, kN>(&to)[kRows] = kParts == 3 ? flushed : sums;
            const int count = min(steps - begin, kFlush);
            const auto add_all = [&]<int kCount>() {
#pragma unroll
              for (int s = 0; s < kCount; s += P::kSteps) add.template operator()<true>(to, begin + s);
            };
            // Where registers allow it.
            constexpr bool kAllCounts = kParts == 3 && kRows == 1;
            if (all && count == 4) {
              add_all.template operator()<4>();
            } else if (kAllCounts && all && count == 3) {
              add_all.template operator()<3>();
            } else if (all && count == 2) {
              add_all.template operator()<2>();
            } else if (kAllCounts && all) {
              add_all.template operator()<1>();
            } else if (all) {
              for (int s = 0; s < count; s += P::kSteps) add.template operator()<true>(to, begin + s);
            } else {
              for (int s = 0; s < count; s += P::kSteps) add.template operator()<false>(to, begin + s);
            }
            if constexpr (kParts == 3) {
#pragma unroll
              for (int r = 0; r < kRows; ++r) add_sums(sums[r], flushed[r]);
            }
          }
        }
      }
      const int row = q - groups;
      if (row >= item.begin) {
        T* to = static_cast<T*>(call.x);
        if constexpr (kParted) {
          if (call.parts > 1) to = sums_of_part;
        }
        to += item.image * plan.to.n + static_cast<std::int64_t>(channel) * plan.to.c +
              static_cast<std::int64_t>(row) * plan.to.h +
              static_cast<std::int64_t>(item.b + pixel) * plan.to.w;
        if constexpr (kLast) {
          // Neighbouring channels of a thread's are written at once: 32 bytes and more of four threads.
          constexpr int kVector = kN % 2 == 0 ? 4 : 2;
#pragma unroll
          for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int k = 0; k < 2; ++k) {
              const int b = m * kPixels + k * 8;
              if (item.b + pixel + b >= p.to_w) continue;
#pragma unroll
              for (int n = 0; n < kN; n += kVector / 2) {
                const int c = (warp_n + n) * 8 + t * kVector;
                if (c >= channels) continue;
                Pack<T, kVector> pack;
#pragma unroll
                for (int v = 0; v < kVector; ++v)
                  pack.values[v] =
                      convert<T>(sums[kRows - 1].values[m][n + v / 2][k * 2 + v % 2] + bias[c + v]);
                store(to + b * plan.to.w + c, pack);
              }
            }
        } else {
#pragma unroll
          for (int m = 0; m < kM; ++m)
#pragma unroll
            for (int n = 0; n < kN; ++n)
#pragma unroll
              for (int k = 0; k < 4; ++k) {
                const int c = (warp_n + n) * 8 + t * 2 + k % 2, b = m * kPixels + k / 2 * 8;
                if (c >= channels || item.b + pixel + b >= p.to_w) continue;
                to[static_cast<std::int64_t>(c) * plan.to.c + b * plan.to.w] =
                    convert<T>(sums[kRows - 1].values[m][n][k] + bias[c]);
              }
        }
      }
#pragma unroll
      for (int r = kRows - 1; r > 0; --r) sums[r] = sums[r - 1];
      sums[0] = {};
    }
  }
}

struct Configuration {
  int rows = 0, m = 0, n = 0;  // kRows, kM, kN
  StripEffort effort;
};

/// The arguments but for tensors and strides, and the kernel; `m` is 0 where nothing fits.
Configuration arguments_of(const ConvTranspose2dGeometry& g, DType dtype, bool last, int copy, bool has_bulk,
                           PlainArguments& best) {
  const int bytes = static_cast<int>(size_of(dtype));
  const bool three = dtype == DType::float32 && float32_precision() == Precision::highest;
  const Strip start(g, false, bytes, last);
  const int channels = start.plan.to_channels, taps = start.plan.kernel_h, met = start.slot_of.groups + 1;
  Configuration chosen;
  if (met > kMostRows) return chosen;
  const bool merged = is_merged(met);
  chosen.rows = met;
  chosen.n = channels <= 8 ? 1 : 2;
  int side = 1;  // warps side by side
  while (side < 4 && side * chosen.n * 8 < channels) side *= 2;
  double least = 0;
  int best_blocks = 1;  // of a multiprocessor
  for (int choice = 0; choice < 14; ++choice) {
    constexpr int kChunks[] = {1, 2, 3, 4, 8, 16, 32};
    const int chunk = kChunks[choice / 2], m = choice % 2 + 1, columns = kPixels * m * kWarps / side;
    if (m == 2 && chosen.rows > 1 && !takes_two(bytes, last, chosen.n)) continue;
    if (chunk > start.plan.from_channels) break;
    if (last && chunk % kStep != 0) continue;
    PlainArguments a{};
    Strip& p = a.strip;
    p = start;
    // Rows of channels that exist, whose copies have 16 bytes, by a shift if need be. Short rows of float32
    // are shifted slower than they are copied by fewer bytes at once.
    p.set_tile(1, columns, chunk, copy, 16, 8, true);
    const bool are_long = std::min(p.copies, p.plan.from_w * bytes / 16) >= kLeastOfBulk;
    if (merged && bytes == 4 && !are_long) p.set_tile(1, columns, chunk, copy, 16, 8);
    a.bulk = has_bulk && !last && start.plan.from_channels % chunk == 0 &&
             (copy == 16 || (p.shifts > 0 && ((copy >= 4 && !merged) || are_long)));
    a.columns = side;
    a.blocks = static_cast<int>(ceil_div(channels, side * chosen.n * 8));
    a.steps = merged ? p.steps : p.row_steps();
    a.stage_bytes = p.slot_of.count * p.slot_pitch * bytes;
    const auto align = [](int n) { return (n + 127) / 128 * 128; };
    const std::int64_t of_chunk = std::int64_t{merged ? 1 : taps} * a.steps * side * chosen.n * 64 * bytes *
                                  (three && chosen.rows > 1 ? 2 : 1);
    const auto most = static_cast<int>(kMostWeights / of_chunk);
    if (most == 0) continue;
    a.part_chunks = static_cast<int>(ceil_div(p.chunks, ceil_div(p.chunks, most)));
    a.parts = static_cast<int>(ceil_div(p.chunks, a.part_chunks));
    if (a.parts > 1 && !may_part(size_of(dtype), last)) continue;
    const std::int64_t weights = a.part_chunks * of_chunk;
    a.weights = align(a.steps * kStep * 4 * (merged ? p.shifts + 1 : 1));
    a.bias_at = a.weights + static_cast<int>(weights);
    a.ring = align(a.bias_at + side * chosen.n * 32);
    // As many blocks a multiprocessor as that leaves two stages.
    int blocks = most_blocks(size_of(dtype), last, m, chosen.n) + 1;
    do {
      --blocks;
      a.stages = (kMostShared / blocks - 1024 - a.ring) / a.stage_bytes;
    } while (blocks > 1 && a.stages < 2);
    if (a.stages < 2) continue;
    a.stages = std::min(a.stages, kMostStages);
    const double row = p.copies * p.copy + (last ? 0 : 64.0 / bytes);
    const double read = row / columns * p.slot_of.count * waiting(a.stage_bytes, blocks * (a.stages - 1));
    const double work =
        static_cast<double>(a.steps) / chunk * (merged ? 1 : p.slot_of.count) * (m == 1 ? 4 : 3.5);
    // What a stage takes besides, mostly waiting.
    const double fixed = (a.bulk ? 5000.0 : 12000.0) / (blocks * chunk * columns);
    const double added = a.parts == 1 ? 0 : 2.0 * a.parts * channels / p.plan.from_channels;
    const double slow = p.pixel == 1 && p.copy * bytes < 4 ? 3 : 1;  // elements that threads copy one by one
    const double cost =
        (std::max(read, work) + 0.3 * std::min(read, work)) * (blocks == 1 ? 1.1 : 1) * slow + fixed + added;
    if (chosen.m > 0 && cost >= least) continue;
    least = cost;
    best = a;
    best_blocks = blocks;
    chosen.m = m;
  }
  if (chosen.m == 0) return chosen;
  Strip& p = best.strip;
  for (int& tap : best.tap) tap = -1;
  for (int kh = 0; kh < taps; ++kh) {
    const int slot = p.tap_slot(kh);
    best.tap[slot % p.slot_of.count * kMostRows + slot / p.slot_of.count + chosen.rows - met] = kh;
  }
  // Strips that give an H100's blocks equal work: the fewest rows of y that one of them goes down.
  const std::int64_t tiles = std::int64_t{p.plan.n} * p.tiles_w,
                     combinations = std::int64_t{p.plan.groups} * best.parts * best.blocks,
                     resident = std::max<std::int64_t>(1, 132 * best_blocks / combinations);
  std::int64_t fewest = 0;
  for (int strips = 1; strips <= p.to_h; ++strips) {
    const std::int64_t length = ceil_div(p.to_h, strips),
                       rows = ceil_div(tiles * strips, resident) * (length + met - 1);
    if (fewest > 0 && rows >= fewest) continue;
    fewest = rows;
    best.length = static_cast<int>(length);
  }
  best.strips = static_cast<int>(ceil_div(p.to_h, best.length));
  best.items = static_cast<int>(tiles * best.strips);
  const double turns = static_cast<double>(ceil_div(combinations, 132 * best_blocks)),
               down = turns * static_cast<double>(fewest) * best.part_chunks, together = down * best_blocks,
               copied = together * p.slot_of.count * p.chunk;
  // Sums of parts are written, and read once more by a kernel that comes after.
  best.count = g.x_shape().count();
  const double added =
      best.parts == 1 ? 0 : 8.0 / 132 * best.parts * static_cast<double>(best.count) + kAddingBytes;
  chosen.effort = {bytes_of_rows(p, copied) + added,
                   together * (merged ? 1 : p.slot_of.count) * best.steps *
                       (8 * chosen.m + chosen.rows * chosen.n * (2 + chosen.m)),
                   down, copies_of_rows(p, copied)};
  return chosen;
}

/// The same for tensors that start at multiples of 16 bytes.
Configuration arguments_of_own(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_bulk,
                               PlainArguments& a) {
  return arguments_of(g, dtype, layout == Layout::nhwc,
                      copy_bytes(nullptr, g.w.out, static_cast<int>(size_of(dtype))), has_bulk, a);
}

template <class T, int kParts, bool kLast, int kRows, int kM, int kN>
void launch(const PlainArguments& a, Device device) {
  const int bytes = a.ring + a.stages * a.stage_bytes;
  conv_gemm::allow_shared_memory(strip_plain_kernel<T, kParts, kLast, kRows, kM, kN>, bytes);
  const std::int64_t combinations = std::int64_t{a.strip.plan.groups} * a.parts * a.blocks;
  const std::int64_t resident =
      multiprocessors(device) *
      std::int64_t{std::min(most_blocks(sizeof(T), kLast, kM, kN), kMostShared / (bytes + 1024))};
  const std::int64_t most = std::clamp<std::int64_t>(resident / combinations, 1, a.items);
  const std::int64_t turns = ceil_div(a.items, most);  // equal ones
  strip_plain_kernel<T, kParts, kLast, kRows, kM, kN>
      <<<grid_size("conv", ceil_div(a.items, turns) * combinations), kThreads,
         static_cast<std::size_t>(bytes), stream_of(device)>>>(a);
  check_launch("conv: strip");
}

}  // namespace

std::optional<StripEffort> strip_plain_effort(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  if (!strips_serve(g, dtype, layout)) return {};
  PlainArguments a;
  const Configuration chosen = arguments_of_own(g, dtype, layout, true, a);
  if (chosen.m == 0) return {};
  return chosen.effort;
}

std::int64_t strip_plain_parts(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_bulk) {
  if (strip_ahead_serves(g, dtype, layout, has_bulk)) return 0;
  PlainArguments a;
  const Configuration chosen = arguments_of_own(g, dtype, layout, has_bulk, a);
  return chosen.m == 0 || a.parts == 1 ? 0 : a.parts;
}

void strip_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                 const Tensor& x) {
  if (strip_ahead(g, y, w, bias, x)) return;
  const DeviceScope scope(x.device());
  PlainArguments a;
  const bool last = y.layout() == Layout::nhwc;
  const Configuration chosen =
      arguments_of(g, x.dtype(), last, copy_bytes(y.raw(), g.w.out, static_cast<int>(size_of(x.dtype()))),
                   conv_gemm::has_wgmma(x.device()), a);
  check(chosen.m > 0, "conv: strips do not fit shared memory");
  a.strip.plan.from = ImageStrides(y.strides());
  a.strip.plan.to = ImageStrides(x.strides());
  a.y = y.raw();
  a.w = w.raw();
  a.bias = bias.defined() ? bias.raw() : nullptr;
  a.x = x.raw();
  std::optional<Workspace<float>> sums;
  if (a.parts > 1) a.sums = sums.emplace(x.device(), a.parts * a.count).data();
  const auto choose_rows = [&]<class T, int kParts, bool kLast, int kN>() {
    if (chosen.rows == 1 && chosen.m == 1) return launch<T, kParts, kLast, 1, 1, kN>(a, x.device());
    if (chosen.rows == 1) return launch<T, kParts, kLast, 1, 2, kN>(a, x.device());
    if constexpr (takes_two(sizeof(T), kLast, kN)) {
      if (chosen.rows == 2 && chosen.m == 2) return launch<T, kParts, kLast, 2, 2, kN>(a, x.device());
      if (chosen.m == 2) return launch<T, kParts, kLast, 3, 2, kN>(a, x.device());
    }
    if (chosen.rows == 2) return launch<T, kParts, kLast, 2, 1, kN>(a, x.device());
    launch<T, kParts, kLast, 3, 1, kN>(a, x.device());
  };
  const auto choose_columns = [&]<class T, int kParts>() {
    if (last && chosen.n == 1) return choose_rows.template operator()<T, kParts, true, 1>();
    if (last) return choose_rows.template operator()<T, kParts, true, 2>();
    if (chosen.n == 1) return choose_rows.template operator()<T, kParts, false, 1>();
    choose_rows.template operator()<T, kParts, false, 2>();
  };
  visit_strip(x.dtype(), [&]<class T, int kParts>() {
    choose_columns.template operator()<T, kParts>();
    if constexpr (may_part(sizeof(T), false)) {
      if (a.parts > 1) add_parts_as_they_lie<T>(a.sums, a.parts, x);
    }
  });
}

}  // namespace tapedeck::cu
