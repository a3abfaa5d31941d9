// What pad_lines.cuh declares. A thread has some columns of a line.
#include <tapedeck/ops/conv/pad_lines.cuh>

#include <algorithm>

#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/bulk_writes.cuh>

namespace tapedeck::cu {

namespace {

struct LineArguments {
  const void* from;  // nullptr: what is there stays
  void* to;
  std::int64_t from_pitch, to_pitch, lines;
  int width, columns;      // columns: of `to`, of which those from `width` on are cleared
  std::int64_t rows, all;  // lines from `rows` on of every `all` are cleared
};

template <class From, class T>
__global__ void __launch_bounds__(kThreads) copy_lines_kernel(const __grid_constant__ LineArguments call) {
  await_previous();
  for (std::int64_t line = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y; line < call.lines;
       line += std::int64_t{gridDim.x} * blockDim.y) {
    const bool is_row = line % call.all < call.rows;
    const From* const from = static_cast<const From*>(call.from) + line * call.from_pitch;
    T* const to = static_cast<T*>(call.to) + line * call.to_pitch;
    const bool stays = call.from == nullptr && is_row;
    for (int column = static_cast<int>(threadIdx.x) + (stays ? call.width : 0); column < call.columns;
         column += static_cast<int>(blockDim.x))
      to[column] = is_row && column < call.width ? convert<T>(from[column]) : T(0);
  }
}

template <class From, class T>
void launch_of(const Tensor& to, const LineArguments& call) {
  if (call.lines == 0) return;
  const int across = std::clamp(call.columns, 32, kThreads) / 32 * 32;
  const dim3 block(static_cast<unsigned>(across), static_cast<unsigned>(kThreads / across));
  constexpr std::int64_t kMostBlocks = 132 * 32;
  launch_kernel("conv: lines with room", to.device(), copy_lines_kernel<From, T>,
                grid_size("conv", std::min(ceil_div(call.lines, block.y), kMostBlocks)), block, call);
}
/// Of one type, of 2 or 4 bytes.
void launch(const Tensor& to, const LineArguments& call) {
  if (size_of(to.dtype()) == 2) return launch_of<std::uint16_t, std::uint16_t>(to, call);
  launch_of<std::uint32_t, std::uint32_t>(to, call);
}

}  // namespace

void copy_lines(const Tensor& from, std::int64_t from_pitch, const Tensor& to, std::int64_t to_pitch,
                std::int64_t width) {
  announce_bulk_writes(to);
  LineArguments call{};
  call.from = from.raw(), call.to = to.raw();
  call.from_pitch = from_pitch, call.to_pitch = to_pitch;
  call.lines = to.count() / to_pitch;
  call.width = static_cast<int>(width), call.columns = static_cast<int>(to_pitch);
  call.rows = call.all = 1;
  if (from.dtype() == to.dtype()) return launch(to, call);
  visit_floating("conv", to.dtype(), [&]<class T>() {
    if constexpr (sizeof(T) == 2) launch_of<float, T>(to, call);
  });
}

void clear_beside(const Tensor& to, std::int64_t rows, std::int64_t width, std::int64_t all_rows,
                  std::int64_t pitch) {
  if (rows == all_rows && width == pitch) return;
  announce_bulk_writes(to);
  launch(to, {nullptr, to.raw(), 0, pitch, to.count() / pitch, static_cast<int>(width),
              static_cast<int>(pitch), rows, all_rows});
}

}  // namespace tapedeck::cu
