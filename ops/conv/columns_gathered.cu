// Both gradients as products of matrices, by matmul(): what each tap reads of y is gathered (im2col),
//
//   z[n, co, tap, pixel of x] = y[n, co, the pixel of y that x's reaches through the tap], 0 outside,
//
// and multiplied for each image and group with the weight, or with x:
//
//   x[n, ci, pixel]       = bias[ci] + sum over co and taps: w[ci, co, tap] * z[n, co, tap, pixel]
//   parts[n, ci, co, tap] = sum over pixels: x[n, ci, pixel] * z[n, co, tap, pixel]
//
// The parts of images are added in their order; of 16 bits they are float32. For few channels that meet many,
// of which other products have tiles that are mostly padding; for small kernels, as z is written and read. It
// is made of some images at a time, which stay in the cache.
//
// On an H200, of 360 random layers (bench/fit_conv_estimates.py) the fastest of weights' gradients in every
// eleventh in float32, every fifth in TF32 and every fourth in bfloat16: [64,512,56,13] by one channel of
// 3x2, stride (3,4): 0.05, 0.04 and 0.03 ms (others 0.15, 0.10, 0.06); of inputs' gradients (with those of
// columns.cu) in every sixth, fifth and third: [128,192,64,31] of 2 channels in 2 groups of 8x3 in bfloat16
// 0.07 (0.18).
//
// Where rows of matrices are no whole vectors, cuBLASLt's products in bfloat16 take 1.7 to 6 times as long,
// of odd sizes up to 14 (512 x 900, 3584 of k: 54 us, 904 columns 11). So z has room behind its rows and
// after the last, and weights, x and results are copied to such lines where it pays. At float32's accuracy,
// and of batches with long sums and few results, products are tiles' (matmul_tiles.cu), or z could not be
// shared along k.
//
// What is gathered: a thread has two pixels of x and goes over channels and rows of taps, instead of one
// column and all rows. With four, weights' gradients of 141 layers took 1.02 times as long in bfloat16, 1.01
// in float32.
#include <algorithm>

#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/ops/conv/gpu_terms.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/rectify.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/bulk_writes.cuh>
#include <tapedeck/ops/conv/columns.cuh>
#include <tapedeck/ops/conv/pad_lines.cuh>
#include <tapedeck/ops/conv/parts.cuh>

namespace tapedeck::cu {

namespace {

using conv_columns::Gathered;
using conv_gemm::Divider;

struct GatherArguments {
  ConvAxis32 h, w;
  const void* y;
  void* z;
  Divider by_width, by_kernel, by_channels;
  int pixels, z_line, z_room;  // of x; elements of a row of z, and behind those of a group
  LineTiles tiles;             // of all pixels of x, of a channel of y and a row of taps
};

constexpr int kMostPixels = 2;

/// A thread has kPixels pixels of x of some lines, and of each all taps of a row. What does not change from
/// line to line is found once for each pixel.
template <class T, int kPixels>
__global__ void __launch_bounds__(kLineThreads)
    gather_taps_kernel(const __grid_constant__ GatherArguments call) {
  const ConvAxis32 &h = call.h, &w = call.w;
  const LineTiles::Block block = call.tiles.of(blockIdx.x);
  const int apart = static_cast<int>(blockDim.x), first = block.tile * (apart * kPixels) + threadIdx.x;
  int rows[kPixels], columns[kPixels];  // of y, through the first taps
#pragma unroll
  for (int p = 0; p < kPixels; ++p) {
    const int pixel = first + p * apart, row = call.by_width.divide(pixel);
    rows[p] = row * h.stride - h.padding;
    columns[p] = call.by_width.modulo(pixel, row) * w.stride - w.padding;
  }
  await_previous();
  for (int line = block.begin + threadIdx.y; line < block.end; line += blockDim.y) {
    const int plane = call.by_kernel.divide(line), kh = call.by_kernel.modulo(line, plane);
    const T* const from = static_cast<const T*>(call.y) + std::int64_t{plane} * h.out * w.out;
    T* to = static_cast<T*>(call.z) + std::int64_t{line} * w.kernel * call.z_line + first;
    if (call.z_room > 0) to += std::int64_t{call.by_channels.divide(plane)} * call.z_room;
    bool is_inside[kPixels];
    int at[kPixels];
#pragma unroll
    for (int p = 0; p < kPixels; ++p) {
      const int row = rows[p] + kh * h.dilation;
      is_inside[p] = static_cast<unsigned>(row) < static_cast<unsigned>(h.out);
      at[p] = is_inside[p] ? row * w.out + columns[p] : 0;
    }
#pragma unroll(4 / kPixels)
    for (int kw = 0, shift = 0; kw < w.kernel; ++kw, shift += w.dilation, to += call.z_line) {
      T values[kPixels];
#pragma unroll
      for (int p = 0; p < kPixels; ++p) {
        values[p] = 0;
        if (is_inside[p] && static_cast<unsigned>(columns[p] + shift) < static_cast<unsigned>(w.out))
          values[p] = from[at[p] + shift];
      }
#pragma unroll
      for (int p = 0; p < kPixels; ++p)
        if (first + p * apart < call.pixels) to[p * apart] = values[p];
    }
  }
}

void gather(const ConvTranspose2dGeometry& g, const Gathered& sizes, const Tensor& y, const Tensor& z) {
  GatherArguments call{};
  call.h = ConvAxis32(g.h), call.w = ConvAxis32(g.w);
  call.y = y.raw(), call.z = z.raw();
  call.by_width = Divider(g.w.in), call.by_kernel = Divider(g.h.kernel);
  call.by_channels = Divider(g.group_co());
  call.pixels = static_cast<int>(sizes.pixels);
  call.z_line = static_cast<int>(sizes.padded.line);
  call.z_room = static_cast<int>((sizes.padded.rows - sizes.rows(g)) * sizes.padded.line);
  const std::int64_t lines = y.size(0) * g.co * g.h.kernel;
  const bool are_many = sizes.pixels >= 32 * kMostPixels && sizes.pixels * lines >= kBusy * kMostPixels;
  const auto launch = [&]<class T>() {
    const auto kernel = are_many ? gather_taps_kernel<T, kMostPixels> : gather_taps_kernel<T, 1>;
    call.tiles = line_tiles(y.device(), sizes.pixels, lines, are_many ? kMostPixels : 1, 1, 8, kernel);
    launch_kernel("conv: gather taps", y.device(), kernel, grid_size("conv", call.tiles.blocks),
                  dim3(call.tiles.threads_x, call.tiles.threads_y), call);
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

/// What taps read of some images of y, in `room` or in y itself.
Tensor gathered(const ConvTranspose2dGeometry& g, const Gathered& sizes, const Tensor& y,
                const Tensor& room) {
  if (sizes.lies) return y.flat();
  const Tensor z = room.slice(0, y.size(0) * sizes.of_image);
  gather(g, sizes, y, z);
  return z;
}
/// Room for that of all images that are gathered at once; what is not gathered is zero.
Tensor room_of(const ConvTranspose2dGeometry& g, const Gathered& sizes, const Tensor& y) {
  const Tensor room =
      Tensor::empty({sizes.lies ? 0 : sizes.images * sizes.of_image}, {y.dtype(), y.device()});
  clear_beside(room, sizes.rows(g), sizes.pixels, sizes.padded.rows, sizes.padded.line);
  return room;
}
Gathered sizes_of(const ConvTranspose2dGeometry& g, DType dtype) {
  const conv_gemm::Factors f = conv_estimate::operands_of(dtype);
  return {g, f.element_bytes, conv_columns::multiple_of(f.element_bytes, f.parts)};
}
/// Of x, or x's gradient, of all images that are multiplied at once with room behind its rows.
std::int64_t padded_x(const ConvTranspose2dGeometry& g, const Gathered& sizes) {
  return sizes.padded.line == sizes.pixels ? 0 : sizes.images * g.ci * sizes.padded.line;
}
std::int64_t padded_weight(const ConvTranspose2dGeometry& g, const Gathered& sizes) {
  return sizes.padded.rows == sizes.rows(g) ? 0 : g.ci * sizes.padded.rows;
}
std::int64_t room_bytes(const Gathered& sizes, DType dtype) {
  return sizes.lies ? 0 : sizes.images * sizes.of_image * static_cast<std::int64_t>(size_of(dtype));
}
bool can_be_gathered(const ConvTranspose2dGeometry& g, DType dtype) {
  if (!is_floating(dtype) || !conv_gemm::fits(g) || g.n == 0) return false;
  const Gathered sizes = sizes_of(g, dtype);
  return sizes.of_image <= conv_columns::kMostBytes / static_cast<std::int64_t>(size_of(dtype)) &&
         g.n * g.co * g.h.kernel <= conv_columns::kMostLines;
}
/// The most of f(images) for the numbers of images that are computed at once.
template <class F>
std::int64_t most_of_parts(const ConvTranspose2dGeometry& g, const Gathered& sizes, const F& f) {
  const std::int64_t rest = g.n % sizes.images;
  return std::max(f(sizes.images), rest > 0 ? f(rest) : 0);
}

/// Shapes of x's product of some images.
struct InputShapes {
  InputShapes(const ConvTranspose2dGeometry& g, const Gathered& sizes, std::int64_t images)
      : weight{g.groups, g.group_ci(), sizes.padded.rows},
        z{images, g.groups, sizes.padded.rows, sizes.padded.line},
        x{images, g.groups, g.group_ci(), sizes.padded.line} {}
  Shape weight, z, x;
};

/// And of the weight's.
struct WeightShapes {
  WeightShapes(const ConvTranspose2dGeometry& g, const Gathered& sizes, std::int64_t images)
      : x{images * g.groups, g.group_ci(), sizes.padded.line},
        z{images * g.groups, sizes.padded.rows, sizes.padded.line},
        parts{images * g.groups, g.group_ci(), sizes.padded.rows} {}
  Shape x, z, parts;
};

}  // namespace

bool gathered_columns_fit(const ConvTranspose2dGeometry& g, DType dtype) {
  return can_be_gathered(g, dtype) && sizes_of(g, dtype).calls(g.groups) <= conv_columns::kMostCalls;
}

void gathered_columns(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                      const Tensor& x, double negative_slope) {
  const DeviceScope scope(x.device());
  const Gathered sizes = sizes_of(g, y.dtype());
  const Tensor room = room_of(g, sizes, y);
  announce_bulk_writes(x);
  // cuBLASLt rounds products of 16 bits before it adds them to something.
  const bool is_wide = bias.defined() && size_of(x.dtype()) == 2;
  const std::int64_t of_image = g.ci * sizes.padded.line,
                     images =
                         is_wide && sizes.lies
                             ? std::clamp<std::int64_t>(conv_columns::kBytes / 4 / of_image, 1, sizes.images)
                             : sizes.images;
  const std::int64_t of_weight = padded_weight(g, sizes),
                     of_x = is_wide ? images * of_image : padded_x(g, sizes);
  const Tensor own_weight = Tensor::empty({of_weight}, {w.dtype(), w.device()}),
               own_x = Tensor::empty({of_x}, {is_wide ? DType::float32 : x.dtype(), x.device()});
  if (of_weight > 0) copy_lines(w, sizes.rows(g), own_weight, sizes.padded.rows, sizes.rows(g));
  const Tensor all_weights = of_weight > 0 ? own_weight : w.flat();
  const Tensor offset =
      bias.defined() ? bias.to(is_wide ? DType::float32 : x.dtype()).reshape({1, g.ci, 1}) : Tensor();
  for (std::int64_t begin = 0; begin < g.n; begin += images) {
    const std::int64_t end = std::min(g.n, begin + images);
    const Tensor z = gathered(g, sizes, y.slice(begin, end), room);
    const InputShapes shapes(g, sizes, end - begin);
    const Tensor weight = all_weights.reshape(shapes.weight), pixels = z.reshape(shapes.z),
                 part = x.slice(begin, end),
                 to = of_x > 0 ? own_x.slice(0, (end - begin) * of_image) : part.flat(),
                 result = to.reshape(shapes.x);
    if (bias.defined()) {
      expand(offset, 1, to.reshape({end - begin, g.ci, sizes.padded.line}));
      add_matmul(weight, Transpose::no, pixels, Transpose::no, result);
    } else {
      matmul(weight, Transpose::no, pixels, Transpose::no, {}, result);
    }
    if (of_x > 0) copy_lines(to, sizes.padded.line, part, sizes.pixels, sizes.pixels);
  }
  if (negative_slope != 1) rectify(x, negative_slope);
}

std::int64_t gathered_columns_workspace(const ConvTranspose2dGeometry& g, DType dtype, Device device) {
  const Gathered sizes = sizes_of(g, dtype);
  const std::int64_t copies =
      (padded_weight(g, sizes) + padded_x(g, sizes)) * static_cast<std::int64_t>(size_of(dtype));
  return room_bytes(sizes, dtype) + copies + most_of_parts(g, sizes, [&](std::int64_t images) {
           const InputShapes shapes(g, sizes, images);
           return matmul_workspace(device, dtype, shapes.weight, Transpose::no, shapes.z, Transpose::no,
                                   dtype, shapes.x, false);
         });
}

bool columns_weight_grad_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y) {
  if (x != Layout::nchw || y != Layout::nchw || !can_be_gathered(g, dtype)) return false;
  const std::int64_t parts = g.n * g.ci * sizes_of(g, dtype).padded.rows;
  return parts <= conv_columns::kMostBytes / static_cast<std::int64_t>(size_of(type_of_products(dtype)));
}

void columns_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                         const Tensor& w) {
  const DeviceScope scope(w.device());
  const Gathered sizes = sizes_of(g, y.dtype());
  const std::int64_t of_part = g.ci * sizes.padded.rows, of_x = padded_x(g, sizes);
  const Tensor room = room_of(g, sizes, y), own_x = Tensor::empty({of_x}, {x.dtype(), x.device()}),
               parts = Tensor::empty({g.n, of_part}, {type_of_products(y.dtype()), y.device()});
  announce_bulk_writes(parts);
  for (std::int64_t begin = 0; begin < g.n; begin += sizes.images) {
    const std::int64_t end = std::min(g.n, begin + sizes.images);
    const Tensor z = gathered(g, sizes, y.slice(begin, end), room), part = x.slice(begin, end);
    const Tensor pixels = of_x > 0 ? own_x.slice(0, (end - begin) * g.ci * sizes.padded.line) : part.flat();
    if (of_x > 0) copy_lines(part, sizes.pixels, pixels, sizes.padded.line, sizes.pixels);
    const WeightShapes shapes(g, sizes, end - begin);
    matmul(pixels.reshape(shapes.x), Transpose::no, z.reshape(shapes.z), Transpose::yes, {},
           parts.slice(begin, end).flat().reshape(shapes.parts));
  }
  visit_floating("conv", w.dtype(), [&]<class T>() {
    add_parts<T>(static_cast<const ProductOf<T>*>(parts.raw()), g.n, w, WeightPlaces(w),
                 PartLines{sizes.rows(g), sizes.padded.rows});
  });
}

std::int64_t columns_weight_grad_workspace(const ConvTranspose2dGeometry& g, DType dtype, Device device) {
  const Gathered sizes = sizes_of(g, dtype);
  const DType of_parts = type_of_products(dtype);
  return room_bytes(sizes, dtype) + padded_x(g, sizes) * static_cast<std::int64_t>(size_of(dtype)) +
         g.n * g.ci * sizes.padded.rows * static_cast<std::int64_t>(size_of(of_parts)) +
         most_of_parts(g, sizes, [&](std::int64_t images) {
           const WeightShapes shapes(g, sizes, images);
           return matmul_workspace(device, dtype, shapes.x, Transpose::no, shapes.z, Transpose::yes, of_parts,
                                   shapes.parts, false);
         });
}

}  // namespace tapedeck::cu
