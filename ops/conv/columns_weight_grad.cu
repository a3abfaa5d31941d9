// The weight's gradient as products of matrices, by cuBLASLt: what each tap reads of y is gathered (im2col),
//
//   z[n, co, tap, pixel of x] = y[n, co, the pixel of y that x's reaches through the tap], 0 outside,
//
// multiplied for each image and group with x,
//
//   parts[n, ci, co, tap] = sum over pixels: x[n, ci, pixel] * z[n, co, tap, pixel]
//
// and the parts of images are added in their order. For few channels that meet many, of which other products
// have tiles that are mostly padding; for small kernels, as z is written and read. It is made of some images
// at a time, which stay in the cache. Of 16 bits parts are float32.
#include <algorithm>

#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/bulk_writes.cuh>
#include <tapedeck/ops/conv/columns.cuh>
#include <tapedeck/ops/conv/parts.cuh>

namespace tapedeck::cu {

namespace {

using conv_columns::Gathered;
using conv_gemm::Divider;

struct GatherArguments {
  ConvAxis32 h, w;
  const void* y;
  void* z;
  Divider by_tiles, by_height, by_kernel;
  int lines, lines_of_block;  // a line: a row of x's pixels, of a channel of y and a row of taps
};

/// A thread has a column of x of some lines, and of each all taps of a row.
template <class T>
__global__ void __launch_bounds__(kLineThreads)
    gather_taps_kernel(const __grid_constant__ GatherArguments call) {
  const ConvAxis32 &h = call.h, &w = call.w;
  const int group = call.by_tiles.divide(blockIdx.x),
            column = call.by_tiles.modulo(blockIdx.x, group) * blockDim.x + threadIdx.x;
  await_previous();
  if (column >= w.in) return;
  const int end = min((group + 1) * call.lines_of_block, call.lines), first = column * w.stride - w.padding,
            pixels = h.in * w.in;
  for (int line = group * call.lines_of_block + threadIdx.y; line < end; line += blockDim.y) {
    const int rows = call.by_height.divide(line), row = call.by_height.modulo(line, rows),
              plane = call.by_kernel.divide(rows), kh = call.by_kernel.modulo(rows, plane);
    const int from_row = row * h.stride - h.padding + kh * h.dilation;
    const bool is_inside = static_cast<unsigned>(from_row) < static_cast<unsigned>(h.out);
    const T* const from = static_cast<const T*>(call.y) + (std::int64_t{plane} * h.out + from_row) * w.out;
    T* to = static_cast<T*>(call.z) + std::int64_t{rows} * w.kernel * pixels + row * w.in + column;
    int at = first;
#pragma unroll 4
    for (int kw = 0; kw < w.kernel; ++kw, at += w.dilation, to += pixels)
      *to = is_inside && static_cast<unsigned>(at) < static_cast<unsigned>(w.out) ? from[at] : T(0);
  }
}

void gather(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& z) {
  GatherArguments call{};
  call.h = ConvAxis32(g.h), call.w = ConvAxis32(g.w);
  call.y = y.raw(), call.z = z.raw();
  call.by_height = Divider(g.h.in), call.by_kernel = Divider(g.h.kernel);
  call.lines = static_cast<int>(y.size(0) * g.co * g.h.kernel * g.h.in);
  const LineTiles tiles(g.w.in, call.lines, 1);
  call.by_tiles = Divider(tiles.tiles);
  call.lines_of_block = tiles.lines_of_block;
  const auto launch = [&]<class T>() {
    launch_kernel("conv: gather taps", y.device(), gather_taps_kernel<T>, grid_size("conv", tiles.blocks),
                  tiles.block, call);
  };
  switch (size_of(y.dtype())) {
    case 2:
      return launch.template operator()<std::uint16_t>();
    case 4:
      return launch.template operator()<std::uint32_t>();
    default:
      return launch.template operator()<std::uint64_t>();
  }
}

/// Shapes of the product of some images.
struct Shapes {
  Shapes(const ConvTranspose2dGeometry& g, const Gathered& sizes, std::int64_t images)
      : x{images * g.groups, g.group_ci(), sizes.pixels},
        z{images * g.groups, g.group_co() * sizes.taps, sizes.pixels},
        parts{images * g.groups, g.group_ci(), g.group_co() * sizes.taps} {}
  Shape x, z, parts;
};

}  // namespace

bool columns_weight_grad_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y) {
  if (!is_floating(dtype) || x != Layout::nchw || y != Layout::nchw || !conv_gemm::fits(g) || g.n == 0)
    return false;
  const int bytes = static_cast<int>(size_of(dtype));
  const Gathered z(g, bytes);
  const std::int64_t parts = g.n * g.weight_shape().count();
  return z.of_image <= conv_columns::kMostBytes / bytes &&
         parts <= conv_columns::kMostBytes / std::max(bytes, 4) &&
         g.n * g.co * g.h.kernel * g.h.in < std::int64_t{1} << 31;
}

void columns_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                         const Tensor& w) {
  const DeviceScope scope(w.device());
  const Gathered sizes(g, static_cast<int>(size_of(y.dtype())));
  const Tensor all = Tensor::empty({sizes.lies ? 0 : sizes.images * sizes.of_image}, {y.dtype(), y.device()}),
               parts = Tensor::empty({g.n, w.count()}, {type_of_products(y.dtype()), y.device()});
  announce_bulk_writes(parts);
  for (std::int64_t begin = 0; begin < g.n; begin += sizes.images) {
    const std::int64_t end = std::min(g.n, begin + sizes.images), images = end - begin;
    const Tensor of_y = y.slice(begin, end);
    const Tensor z = sizes.lies ? of_y.flat() : all.slice(0, images * sizes.of_image);
    if (!sizes.lies) gather(g, of_y, z);
    const Shapes shapes(g, sizes, images);
    matmul(x.slice(begin, end).flat().reshape(shapes.x), Transpose::no, z.reshape(shapes.z), Transpose::yes,
           {}, parts.slice(begin, end).flat().reshape(shapes.parts));
  }
  const auto add = [&]<class V, class T>() { add_parts<T>(static_cast<const V*>(parts.raw()), g.n, w); };
  if (w.dtype() == DType::float64) {
    add.template operator()<double, double>();
  } else if (w.dtype() == DType::float32) {
    add.template operator()<float, float>();
  } else if (w.dtype() == DType::bfloat16) {
    add.template operator()<float, bfloat16>();
  } else {
    add.template operator()<float, float16>();
  }
}

std::int64_t columns_weight_grad_workspace(const ConvTranspose2dGeometry& g, DType dtype, Device device) {
  const Gathered z(g, static_cast<int>(size_of(dtype)));
  const DType of_parts = type_of_products(dtype);
  const auto of_product = [&](std::int64_t images) {
    const Shapes shapes(g, z, images);
    return matmul_workspace(device, dtype, shapes.x, Transpose::no, shapes.z, Transpose::yes, of_parts,
                            shapes.parts, false);
  };
  const std::int64_t rest = g.n % z.images;
  return (z.lies ? 0 : z.images * z.of_image * static_cast<std::int64_t>(size_of(dtype))) +
         g.n * g.weight_shape().count() * static_cast<std::int64_t>(size_of(of_parts)) +
         std::max(of_product(z.images), rest > 0 ? of_product(rest) : 0);
}

}  // namespace tapedeck::cu
