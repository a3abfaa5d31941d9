// What the kernels of strip_transposed.cu and strip_transposed_halves.cu share: arguments, and rows of y.
#pragma once

#include <tapedeck/ops/conv/strip_stage.h>
#include <tapedeck/ops/conv/strip_passes.cuh>

namespace tapedeck::cu::conv_strip {

struct TransposedArguments {
  Strip strip;
  Passes passes;
  Stage stage;
  const void *x, *w, *bias;
  void* y;
  int blocks;  // of channels of y of a group
  int tiles;   // of all images
  int parts;   // of 16 pixels, of a tile's row
  Divider by_parts;
  int buffers, stages;                                 // of a tile of x; of rows of y
  int offsets, weights, bias_at, entries, tile, ring;  // bytes from the start of shared memory
  int tile_bytes, stage_bytes;
  bool sectors;  // that rows with and without taps share are written whole, with the rows that taps reach
  // Of 16-bit types:
  int octets;  // where x is with 8 channels of a pixel together,
  int pitch;   // elements between rows of x as they are copied,
  int pairs;   // and of columns in such a row
  Divider by_pairs;
};

/// A row of a tile of y.
struct RowEntry {
  int pass;  // its phase's first
  int x;     // bytes from the tile's start to its result's window
  int row;   // of y, from the tile's
  // Whether the row before it, and the next, is of the other kind: taps reach either.
  bool before, next;

  /// The sectors at its ends that are written whole.
  __device__ __forceinline__ Shares shares(int y_row, unsigned to_h, bool sectors) const {
    return {before && sectors && y_row > 0, next && sectors && y_row + 1 < static_cast<int>(to_h)};
  }
};

/// x or y, for one store, where the compiler otherwise makes two: a sector is to be written at once.
template <class T>
__device__ __forceinline__ T one_of(bool first, T x, T y) {
  if constexpr (sizeof(T) == 4) {
    return __int_as_float(kept(__float_as_int(first ? x : y)));
  } else {
    x.bits = static_cast<std::uint16_t>(kept(first ? x.bits : y.bits));
    return x;
  }
}

/// Writes a line from where it lies in shared memory, and what is `around` it. Sixteen threads: the first
/// starts its bulk copy.
template <class T>
__device__ __forceinline__ void write_line(T* to, const T* lies, T around, const Stage::Span& columns,
                                           const Ends& ends) {
  const int e = static_cast<int>(threadIdx.x) % 16, before = ends.first + e, behind = ends.end + e;
  if (before < ends.begin) to[before] = one_of(before < columns.begin, around, lies[before]);
  if (behind < ends.last) to[behind] = one_of(behind < columns.end, lies[behind], around);
  if (e == 0 && ends.begin < ends.end) {
    start_bulk_copy(to + ends.begin, shared_address(lies + ends.begin),
                    (ends.end - ends.begin) * static_cast<int>(sizeof(T)));
  }
}

/// A tile's rows, those that taps reach, whose number it returns, first. Of a phase that ends before others
/// do, rows past its end are past y's end, too.
__device__ __forceinline__ int make_row_entries(const Strip& p, const Passes& passes, RowEntry* entries) {
  const PhaseAxes& axis = p.plan.h;
  const int rows = p.rows * axis.count;
  int live_phases = 0;
  for (int i = 0; i < axis.count; ++i) live_phases += axis.phase[i].taps > 0;
  const int live_rows = kept(p.rows * live_phases);
  for (int r = threadIdx.x; r < rows; r += kThreads) {
    const int a = r / axis.count, i = r - a * axis.count;
    const PhaseAxis& h = axis.phase[i];
    int before = 0;
    for (int j = 0; j < i; ++j) before += axis.phase[j].taps > 0;
    const int at =
        h.taps > 0 ? a * live_phases + before : live_rows + a * (axis.count - live_phases) + i - before;
    const auto differs = [&](int from_row) {
      bool differs = false;
      for (int j = 0; j < axis.count; ++j) {
        const PhaseAxis& other = axis.phase[j];
        if ((other.to - h.to - from_row) % h.to_step == 0) differs = (other.taps > 0) != (h.taps > 0);
      }
      return differs;
    };
    entries[at] = {i * passes.count, p.result_offset(a, 0) * p.bytes, h.to + a * h.to_step, differs(-1),
                   differs(1)};
  }
  return live_rows;
}

/// Fills a line with a value. A warp, which begins at a multiple of 128 bytes, so that no store of 512 meets
/// five lines of the cache for four.
template <class T>
__device__ __forceinline__ void fill_row(T* to, T value, const Ends& ends) {
  constexpr int kElements = kStoreBytes / static_cast<int>(sizeof(T));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = (ends.end - ends.begin) / kElements;
  Pack<T, kElements> pack;
#pragma unroll
  for (T& element : pack.values) element = value;
  const uint4 vector = __builtin_bit_cast(uint4, pack);
  uint4* const vectors_to = reinterpret_cast<uint4*>(to + ends.begin);
  const int skip = static_cast<int>(reinterpret_cast<std::uintptr_t>(vectors_to) / kStoreBytes % 8);
  if (lane >= skip && lane - skip < vectors) vectors_to[lane - skip] = vector;
#pragma unroll 4
  for (int v = lane + 32 - skip; v < vectors; v += 32) vectors_to[v] = vector;
  const int edge = lane < kElements ? ends.first + lane : ends.end + lane - kElements;
  if (lane < kElements ? edge < ends.begin : edge < ends.last) to[edge] = value;
}

/// Starts a kernel of blocks that stay on their multiprocessors, and have equal numbers of tiles.
template <class Kernel>
void launch_transposed(Kernel* kernel, const TransposedArguments& a, Device device) {
  const int bytes = a.ring + a.stages * a.stage_bytes;
  conv_gemm::allow_shared_memory(kernel, bytes);
  const std::int64_t combinations = static_cast<std::int64_t>(a.strip.plan.groups) * a.blocks;
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

/// The kernel of 16-bit types, of y's type.
void launch_transposed_halves(const TransposedArguments& a, DType dtype, Device device);

}  // namespace tapedeck::cu::conv_strip
