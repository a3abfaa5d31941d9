// Copies between devices, dtypes and layouts, and fills.
#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/core/pinned.cuh>

#include <cstring>

namespace tapedeck::cu {

namespace {

/// out[i] = in[i], converted, in memory order. V is in's compute type.
template <class V>
void convert_elements(const Tensor& in, const Tensor& out) {
  const Reader<V> from(in);
  const DType dtype = out.dtype();
  void* const to = out.raw();
  for_each("copy", out.device(), in.count(), [=] __device__(std::int64_t i) {
    const V value = from[i];
    switch (dtype) {
      case DType::float64:
        static_cast<double*>(to)[i] = convert<double>(value);
        break;
      case DType::float32:
        static_cast<float*>(to)[i] = convert<float>(value);
        break;
      case DType::bfloat16:
        static_cast<bfloat16*>(to)[i] = convert<bfloat16>(value);
        break;
      case DType::float16:
        static_cast<float16*>(to)[i] = convert<float16>(value);
        break;
      case DType::int64:
        static_cast<std::int64_t*>(to)[i] = convert<std::int64_t>(value);
        break;
      case DType::uint8:
        static_cast<std::uint8_t*>(to)[i] = convert<std::uint8_t>(value);
        break;
    }
  });
}

void convert_elements(const Tensor& in, const Tensor& out) {
  if (in.dtype() == DType::float64) return convert_elements<double>(in, out);
  if (is_floating(in.dtype())) return convert_elements<float>(in, out);
  convert_elements<std::int64_t>(in, out);
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;  // rows of a tile that a block's threads cover at once

/// Per image, out[column][row] = in[row][column], by tiles that are read and written in whole lines. Tiles
/// of all images count in one dimension.
template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_kernel(const T* in, T* out, std::int64_t rows, std::int64_t columns, std::int64_t tiles_down,
                     std::int64_t tiles_across) {
  __shared__ T tile[kTile][kTile + 1];
  await_previous();
  const std::int64_t block = blockIdx.x, across = block % tiles_across;
  const std::int64_t down = block / tiles_across % tiles_down, image = block / tiles_across / tiles_down;
  in += image * rows * columns;
  out += image * rows * columns;
  const std::int64_t row0 = down * kTile, column0 = across * kTile;
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    const int r = i + static_cast<int>(threadIdx.y);
    if (row0 + r < rows && column0 + threadIdx.x < columns) {
      tile[r][threadIdx.x] = in[(row0 + r) * columns + column0 + threadIdx.x];
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    const int c = i + static_cast<int>(threadIdx.y);
    if (column0 + c < columns && row0 + threadIdx.x < rows) {
      out[(column0 + c) * rows + row0 + threadIdx.x] = tile[threadIdx.x][c];
    }
  }
}

/// The same of 16-bit elements, by words of two neighbours: `rows` and `columns` are even, and all begins at
/// words. Of two words below each other one of a column and one of the next column are made.
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_pairs_kernel(const std::uint32_t* in, std::uint32_t* out, std::int64_t rows,
                           std::int64_t columns, std::int64_t tiles_down, std::int64_t tiles_across) {
  __shared__ std::uint32_t tile[2][kTile][kTile + 1];
  await_previous();
  const std::int64_t block = blockIdx.x, across = block % tiles_across;
  const std::int64_t down = block / tiles_across % tiles_down, image = block / tiles_across / tiles_down;
  const std::int64_t all_down = rows / 2, all_across = columns / 2;  // pairs
  in += image * rows * all_across;
  out += image * columns * all_down;
  const std::int64_t down0 = down * kTile, across0 = across * kTile;
#pragma unroll
  for (int r = 0; r < kTile; r += kTileRows) {
    const int of_tile = r + static_cast<int>(threadIdx.y);
    const std::int64_t row = down0 + of_tile, column = across0 + threadIdx.x;
    if (row >= all_down || column >= all_across) continue;
    const std::uint32_t above = in[2 * row * all_across + column],
                        below = in[(2 * row + 1) * all_across + column];
    tile[0][of_tile][threadIdx.x] = __byte_perm(above, below, 0x5410);
    tile[1][of_tile][threadIdx.x] = __byte_perm(above, below, 0x7632);
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kTile; c += kTileRows) {
    const int of_tile = c + static_cast<int>(threadIdx.y);
    const std::int64_t column = across0 + of_tile, row = down0 + threadIdx.x;
    if (row >= all_down || column >= all_across) continue;
    out[2 * column * all_down + row] = tile[0][threadIdx.x][of_tile];
    out[(2 * column + 1) * all_down + row] = tile[1][threadIdx.x][of_tile];
  }
}

/// Changes the layout; both tensors are of one dtype.
template <class Bits>
void transpose(const Tensor& in, const Tensor& out) {
  const std::int64_t channels = in.size(1), pixels = in.size(2) * in.size(3);
  const bool to_nhwc = out.layout() == Layout::nhwc;
  const std::int64_t rows = to_nhwc ? channels : pixels, columns = to_nhwc ? pixels : channels;
  if constexpr (sizeof(Bits) == 2) {
    const auto are_words = [](const void* at) {
      return reinterpret_cast<std::uintptr_t>(at) % sizeof(std::uint32_t) == 0;
    };
    if (rows % 2 == 0 && columns % 2 == 0 && are_words(in.read()) && are_words(out.raw())) {
      const std::int64_t down = ceil_div(rows / 2, kTile), across = ceil_div(columns / 2, kTile);
      return launch_kernel("copy", out.device(), transpose_pairs_kernel,
                           grid_size("copy", in.size(0) * down * across), dim3(kTile, kTileRows),
                           static_cast<const std::uint32_t*>(in.read()),
                           static_cast<std::uint32_t*>(out.raw()), rows, columns, down, across);
    }
  }
  const std::int64_t down = ceil_div(rows, kTile), across = ceil_div(columns, kTile);
  launch_kernel("copy", out.device(), transpose_kernel<Bits>, grid_size("copy", in.size(0) * down * across),
                dim3(kTile, kTileRows), static_cast<const Bits*>(in.read()), static_cast<Bits*>(out.raw()),
                rows, columns, down, across);
}

void transpose(const Tensor& in, const Tensor& out) {
  switch (size_of(in.dtype())) {
    case 8:
      return transpose<std::uint64_t>(in, out);
    case 4:
      return transpose<std::uint32_t>(in, out);
    case 2:
      return transpose<std::uint16_t>(in, out);
    default:
      return transpose<std::uint8_t>(in, out);
  }
}

bool same_bytes(const Tensor& in, const Tensor& out) {
  return in.dtype() == out.dtype() && in.layout() == out.layout();
}

/// Copies bytes that are the same on both sides. The CPU's side may be reused when this returns: CUDA copies
/// pageable memory to a buffer of its own first, for which it may wait for the stream; what is read back, or
/// page-locked, is waited for here.
void copy_bytes(const Tensor& in, const Tensor& out) {
  const Device device = in.device().is_cuda() ? in.device() : out.device();
  const DeviceScope scope(device);
  const cudaStream_t stream = stream_of(device);
  check_cuda(cudaMemcpyAsync(out.raw(), in.read(), in.bytes(), cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  if (in.device().is_cuda() && out.device().is_cuda()) return;
  ++detail::synchronizations;
  if (in.device().is_cpu() && !is_pinned(in)) return;
  check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

/// What is queued on the second device's stream from now on begins after what is queued on the first's.
void order(Device first, Device second) {
  const DeviceScope scope(first);
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  const cudaError_t recorded = cudaEventRecord(event, stream_of(first));
  const cudaError_t waits = cudaStreamWaitEvent(stream_of(second), event);
  (void)cudaEventDestroy(event);  // when it is done
  check_cuda(recorded, "cudaEventRecord");
  check_cuda(waits, "cudaStreamWaitEvent");
}

/// The same between two GPUs, on `in`'s stream: after what `out`'s stream does with that memory, and before
/// what it does next.
void copy_across(const Tensor& in, const Tensor& out) {
  order(out.device(), in.device());
  copy_bytes(in, out);
  order(in.device(), out.device());
}

}  // namespace

bool is_pinned(const Tensor& x) {
  cudaPointerAttributes attributes{};
  check_cuda(cudaPointerGetAttributes(&attributes, x.read()), "cudaPointerGetAttributes");
  return attributes.type == cudaMemoryTypeHost;
}

void copy(const Tensor& in, const Tensor& out) {
  if (in.device() != out.device()) {
    check(!is_capturing(), "captured step: it copies from ", in.device(), " to ", out.device(),
          ", which its replays would not repeat; what changes from call to call comes as an input");
    // Bytes travel as they are, and are converted on the GPU: on the way down before, up after.
    if (out.device().is_cpu()) {
      const Tensor converted =
          same_bytes(in, out) ? in : Tensor::empty(in.shape(), {out.dtype(), in.device(), out.layout()});
      if (!same_bytes(in, out)) copy(in, converted);
      return copy_bytes(converted, out);
    }
    const Tensor arrived =
        same_bytes(in, out) ? out : Tensor::empty(in.shape(), {in.dtype(), out.device(), in.layout()});
    in.device().is_cuda() ? copy_across(in, arrived) : copy_bytes(in, arrived);
    if (!same_bytes(in, out)) copy(arrived, out);
    return;
  }
  if (same_bytes(in, out)) return copy_bytes(in, out);
  if (in.layout() == out.layout()) return convert_elements(in, out);
  if (in.dtype() == out.dtype()) return transpose(in, out);
  const Tensor converted = Tensor::empty(in.shape(), {out.dtype(), in.device(), in.layout()});
  convert_elements(in, converted);
  transpose(converted, out);
}

void fill(const Tensor& out, double value) {
  const std::size_t size = size_of(out.dtype());
  Pack<std::uint8_t, 16> pattern;  // the element, repeated
  visit(out.dtype(), [&]<class T>() {
    const T element = convert<T>(value);
    for (std::size_t at = 0; at < sizeof pattern; at += size)
      std::memcpy(pattern.values + at, &element, size);
  });
  // A tensor's first element is aligned to its own size only; its block ends at a multiple of 16.
  auto* const first = static_cast<std::uint8_t*>(out.raw());
  const auto address = reinterpret_cast<std::uintptr_t>(first);
  const std::int64_t bytes = static_cast<std::int64_t>(out.bytes());
  const std::int64_t head = static_cast<std::int64_t>(16 - address % 16) % 16;
  const std::int64_t packs = bytes > head ? (bytes - head) / 16 : 0, tail = head + packs * 16;
  for_each("fill", out.device(), packs, [=] __device__(std::int64_t i) {
    *reinterpret_cast<Pack<std::uint8_t, 16>*>(first + head + 16 * i) = pattern;
  });
  if (packs * 16 == bytes) return;
  for_each("fill", out.device(), 32, [=] __device__(std::int64_t i) {
    const std::int64_t at = i < 16 ? i : tail + i - 16;
    if ((at < head || at >= tail) && at < bytes) first[at] = pattern.values[at % sizeof(std::uint64_t)];
  });
}

}  // namespace tapedeck::cu
