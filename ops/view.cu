// Copies between views: by tiles through shared memory where both sides are read and written in lines only
// along different dimensions, else element by element.
#include <tapedeck/ops/view.h>

#include <cstdint>

#include <tapedeck/ops/map.cuh>

namespace tapedeck::cu {

namespace {

using Loop = StridedLoop<2>;  // tensor 0 is out, tensor 1 is in

constexpr int kTile = 32;
constexpr int kTileRows = 8;

/// out runs along the innermost dimension of the loop, in along dimension `across`; `outer` are the others.
template <class T>
__global__ void __launch_bounds__(kTile* kTileRows)
    transpose_view_kernel(const T* in, T* out, const __grid_constant__ Loop outer, std::int64_t columns,
                          std::int64_t rows, std::int64_t out_step, std::int64_t in_step) {
  __shared__ T tile[kTile][kTile + 1];
  const std::int64_t tiles = (columns + kTile - 1) / kTile, bands = (rows + kTile - 1) / kTile;
  const std::int64_t block = blockIdx.x, c0 = block % tiles * kTile, r0 = block / tiles % bands * kTile;
  std::int64_t at[2];
  locate(outer, block / tiles / bands, at);
  const std::int64_t x = threadIdx.x;
  for (std::int64_t y = threadIdx.y; y < kTile; y += kTileRows) {
    if (c0 + y < columns && r0 + x < rows) tile[y][x] = in[at[1] + r0 + x + (c0 + y) * in_step];
  }
  __syncthreads();
  for (std::int64_t y = threadIdx.y; y < kTile; y += kTileRows) {
    if (r0 + y < rows && c0 + x < columns) out[at[0] + (r0 + y) * out_step + c0 + x] = tile[x][y];
  }
}

template <class T>
void transpose_view(const T* in, T* out, const Loop& loop, int across, Device device) {
  const int along = loop.rank - 1;
  Loop outer;
  for (int d = 0; d < along; ++d) {
    if (d == across) continue;
    outer.sizes[outer.rank] = loop.sizes[d];
    for (int k = 0; k < 2; ++k) outer.strides[k][outer.rank] = loop.strides[k][d];
    ++outer.rank;
  }
  const std::int64_t columns = loop.sizes[along], rows = loop.sizes[across];
  const std::int64_t blocks = outer.count() * ceil_div(columns, kTile) * ceil_div(rows, kTile);
  transpose_view_kernel<<<grid_size("copy_view", blocks), dim3(kTile, kTileRows), 0, stream_of(device)>>>(
      in, out, outer, columns, rows, loop.strides[0][across], loop.strides[1][along]);
  check_launch("copy_view");
}

template <class T>
void copy_elements(const View& in, const View& out) {
  const Device device = out.tensor.device();
  const DeviceScope scope(device);
  const T* const from = static_cast<const T*>(in.tensor.read()) + in.offset;
  T* const to = static_cast<T*>(out.tensor.raw()) + out.offset;
  const Loop loop = Loop::over(out.shape, {out.strides, in.strides});
  const int along = loop.rank - 1;
  if (loop.strides[0][along] == 1 && loop.strides[1][along] != 1 && loop.sizes[along] >= 8) {
    for (int d = 0; d < along; ++d) {
      if (loop.strides[1][d] == 1 && loop.sizes[d] >= 8) return transpose_view(from, to, loop, d, device);
    }
  }
  for_each("copy_view", device, loop.count(), [=] __device__(std::int64_t i) {
    std::int64_t at[2];
    locate(loop, i, at);
    to[at[0]] = from[at[1]];
  });
}

/// The same box in elements of `times` the size; false where it is not made of such.
bool widen(const View& in, const View& out, std::int64_t times, View& wide_in, View& wide_out) {
  const auto fits = [&](const View& v, int inner) {
    bool all = v.strides[inner] == 1 && v.offset % times == 0 &&
               reinterpret_cast<std::uintptr_t>(v.tensor.read()) % 16 == 0;
    for (int d = 0; d < v.shape.rank(); ++d) {
      all = all && (d == inner || v.shape[d] == 1 || v.strides[d] % times == 0);
    }
    return all;
  };
  for (int inner = 0; inner < out.shape.rank(); ++inner) {
    if (out.shape[inner] % times != 0 || !fits(in, inner) || !fits(out, inner)) continue;
    for (View* v : {&wide_in, &wide_out}) {
      v->shape = v->shape.with(inner, v->shape[inner] / times);
      v->offset /= times;
      for (int d = 0; d < v->shape.rank(); ++d) v->strides[d] = d == inner ? 1 : v->strides[d] / times;
    }
    return true;
  }
  return false;
}

}  // namespace

void copy_view(const View& in, const View& out) {
  const std::size_t size = size_of(out.tensor.dtype());
  View wide_in = in, wide_out = out;
  if (size < 16 && widen(in, out, static_cast<std::int64_t>(16 / size), wide_in, wide_out)) {
    return copy_elements<Pack<std::uint32_t, 4>>(wide_in, wide_out);
  }
  switch (size) {
    case 8:
      return copy_elements<std::uint64_t>(in, out);
    case 4:
      return copy_elements<std::uint32_t>(in, out);
    case 2:
      return copy_elements<std::uint16_t>(in, out);
    default:
      return copy_elements<std::uint8_t>(in, out);
  }
}

}  // namespace tapedeck::cu
