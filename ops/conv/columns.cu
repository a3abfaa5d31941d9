// GEMM and col2im (Caffe's and PyTorch's names): each pixel of `from` times the weights of all taps is a
// product of matrices, by matmul(),
//
//   z[n, group, (m, tap), pixel] = sum over channels c of `from`: w[c, m, tap] * from[n, group, c, pixel]
//
// and a result is the sum of what its taps bring of z, in their order:
//
//   to[n, m, i] = bias[m] + sum over taps: z[n, (m, tap), the pixel of i's tap]
//
// Other products of matrices have tiles of 32 channels of `to` and more; here taps fill them, too. That is
// for few channels of `to` and large kernels, of which every product with a pixel is wanted: any stride of
// conv_transpose2d, a small one of conv2d. z is made of some images at a time, which stay in the cache. With
// channels last, of one group, it is [(m, tap), n, pixel]. Of 16 bits it is float32, so that results are
// rounded once. conv2d has at most 16 channels of x, and strides that leave less to add than to gather
// (columns_gathered.cu).
//
// Where rows of matrices are no whole vectors, they get room behind them (columns.h).
//
// At float32's accuracy cuBLASLt has no tensor cores. Where it would take long, z is the result of a
// convolution by kernels of 1x1, to as many channels as there are taps of channels, whose products are
// Hopper's (wgmma.cuh).
//
// On an H200, of 360 random layers (bench/fit_conv_estimates.py) the fastest in every third forward, and
// in half (bfloat16: every third) of the input gradients that are not of gathered pixels: x [16,96,128,128]
// to one channel by kernels of 8x8, stride (1,2): 0.15 ms (direct 1.08, wgmma 1.05); [64,256,64,1] to 68 by
// 9x8, 4 groups: 0.17 (0.44). A convolution in place of cuBLASLt's products, where it is taken: 0.40 to 1.18
// of the time.
//
// What mattered in the sums: threads with four columns of several rows find what to add once, and taps that
// read nothing are left out by arithmetic. A result a thread, with a check for each tap, took 1.5 times as
// long for all forwards in TF32, products included, and up to 4.4. Where finding it takes most of a thread's
// time, it serves several lines, of all phases: forward to 40 x 253 results of 33 channels by kernels of 6 x
// 1, stride (3,4), with its products, went from 20.2 to 15.1 us in float32.
#include <tapedeck/ops/conv/columns.cuh>

#include <algorithm>

#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/ops/conv/gpu_estimate.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/conv/workspace.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/bulk_writes.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/pad_lines.cuh>

namespace tapedeck::cu {

namespace {

using conv_columns::Products;
using conv_columns::TapAxis;
using conv_gemm::Divider;
using conv_gemm::ImageStrides;
using conv_gemm::Plan;

constexpr int kMostColumns = 4;
constexpr int kMostFewTaps = 4;  // of a result

struct SumArguments {
  TapAxis h, w;
  ImageStrides to;
  const void *z, *bias;
  void* result;
  int z_image;    // elements of z between images,
  int z_channel;  // channels,
  int z_row;      // taps of neighbouring rows of the kernel
  int z_tap;      // and of neighbouring columns
  int from_w, to_w;
  Divider by_height, by_channels;
  LineTiles tiles;  // of rows of all channels of all images
  double slope;
};

/// What a line of results adds: `rows` rows of taps, of which the first one's products begin at `from` in z.
template <class Z>
struct LineOfResults {
  std::int64_t to;
  int from, rows;
  Z bias;
};
template <class Z, class T>
__device__ __forceinline__ LineOfResults<Z> line_of(const SumArguments& call, int line) {
  const int plane = call.by_height.divide(line), row = call.by_height.modulo(line, plane),
            image = call.by_channels.divide(plane), channel = call.by_channels.modulo(plane, image);
  const TapAxis::Reads h = call.h.at(row);
  return {image * call.to.n + std::int64_t{channel} * call.to.c + std::int64_t{row} * call.to.h,
          image * call.z_image + channel * call.z_channel + h.tap * call.z_row + h.from * call.from_w,
          h.count, call.bias == nullptr ? Z(0) : convert<Z>(static_cast<const T*>(call.bias)[channel])};
}

/// Has a number be in a register from here on, not found again wherever it is used.
__device__ __forceinline__ void keep(int& x) {
  asm volatile("" : "+r"(x));
}
__device__ __forceinline__ void keep(float& x) {
  asm volatile("" : "+f"(x));
}
__device__ __forceinline__ void keep(double& x) {
  asm volatile("" : "+d"(x));
}

/// Thread blocks that a multiprocessor should have, so that many loads are under way.
template <class Z, int kColumns, bool kFewTaps>
constexpr int kSumBlocks = kColumns == 1 ? 8 : (kFewTaps ? 24 : 20) / static_cast<int>(sizeof(Z));

/// A thread has kColumns columns of some lines. What it adds is found once for each column, and for each
/// line: of few taps by one thread for all. (Found by all, that was two of three instructions: sums of 64
/// channels of 156 x 68 by 1 x 6, stride 5, took 85 us on an H200. Forwards of fewer taps than phases
/// took 1.2 to 1.3 times as long, of 2 to 4 taps 1.03 to 1.07 times, of 4 to 8 0.96 to 1.01; of more 0.85 to
/// 0.98, as all wait for one, and there are fewer registers for loads.)
template <class Z, class T, int kColumns, bool kFewTaps>
__global__ void __launch_bounds__(kLineThreads, kSumBlocks<Z, kColumns, kFewTaps>)
    sum_taps_kernel(const __grid_constant__ SumArguments call) {
  const LineTiles::Block block = call.tiles.of(blockIdx.x);
  const int first = block.tile * (blockDim.x * kColumns) + threadIdx.x;
  const int next_column = call.w.tap_step * call.z_tap + call.w.gap,
            next_row = call.h.tap_step * call.z_row + call.h.gap * call.from_w;
  int counts[kColumns], offsets[kColumns], places[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = first + c * static_cast<int>(blockDim.x);
    const TapAxis::Reads w = call.w.at(min(column, call.to_w - 1));
    counts[c] = w.count, offsets[c] = w.tap * call.z_tap + w.from;
    places[c] = column < call.to_w ? column * call.to.w : -1;
    if (kFewTaps) keep(places[c]);
  }
  int most = counts[0];
#pragma unroll
  for (int c = 1; c < kColumns; ++c) most = max(most, counts[c]);
  auto slope = static_cast<Z>(call.slope);
  if (kFewTaps) keep(slope);
  const auto add = [&](const LineOfResults<Z>& line) {
    T* results = static_cast<T*>(call.result) + line.to;
    asm("" : "+l"(results));  // else it is found again for each column
    Z sums[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sums[c] = line.bias;
    const Z* of_row = static_cast<const Z*>(call.z) + line.from;
    for (int i = 0; i < line.rows; ++i, of_row += next_row) {
      const Z* from = of_row;
#pragma unroll(kColumns == 1 ? 4 : 1)
      for (int j = 0; j < most; ++j, from += next_column) {
        Z products[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          if (kColumns == 1 || j < counts[c]) products[c] = from[offsets[c]];
#pragma unroll
        for (int c = 0; c < kColumns; ++c)
          if (kColumns == 1 || j < counts[c]) sums[c] += products[c];
      }
    }
    if (slope != Z(1)) {
#pragma unroll
      for (Z& sum : sums)
        if (sum < Z(0)) sum = slope == Z(0) ? Z(0) : sum * slope;
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (places[c] >= 0) results[places[c]] = convert<T>(sums[c]);
  };
  await_previous();
  if constexpr (kFewTaps) {
    __shared__ LineOfResults<Z> lines[kLineThreads];
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    for (int begin = block.begin; begin < block.end; begin += kLineThreads) {
      const int count = min(block.end - begin, kLineThreads);
      __syncthreads();
      for (int i = thread; i < count; i += threads) lines[i] = line_of<Z, T>(call, begin + i);
      __syncthreads();
      for (int i = threadIdx.y; i < count; i += blockDim.y) add(lines[i]);
    }
  } else {
    for (int line = block.begin + threadIdx.y; line < block.end; line += blockDim.y)
      add(line_of<Z, T>(call, line));
  }
}

/// Shapes of the product for so many images: weights of a group are [channels of `from`, (channel of `to`,
/// tap)], or, of conv2d, [channels of `from`, tap] of one channel of `to`.
struct Shapes {
  Shapes(const ConvTranspose2dGeometry& g, bool transposed, bool last, const Products& z,
         std::int64_t images) {
    const std::int64_t from_channels = transposed ? g.group_ci() : g.group_co();
    weight = {g.groups, z.sets, from_channels, z.padded.rows};
    from = last ? Shape{images * z.pixels, from_channels}
                : Shape{images, g.groups, 1, from_channels, z.padded.line};
    product = last ? Shape{1, z.sets, z.rows(), images * z.pixels}
                   : Shape{images, g.groups, z.sets, z.padded.rows, z.padded.line};
    order = last ? Transpose::yes : Transpose::no;
  }
  Shape weight, from, product;
  Transpose order;  // of `from`
};

Products sizes_of(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from) {
  const conv_gemm::Factors f = conv_estimate::operands_of(dtype);
  return {g, transposed, static_cast<int>(size_of(type_of_products(dtype))),
          from == Layout::nchw ? conv_columns::multiple_of(f.element_bytes, f.parts) : 1};
}
/// Elements of copies with room behind their rows: of weights, and of what is read of all images at once.
std::int64_t padded_weight(const Products& z, std::int64_t from_channels) {
  return z.padded.rows == z.rows() ? 0 : from_channels * z.padded.rows;
}
std::int64_t padded_from(const Products& z, std::int64_t from_channels) {
  return z.padded.line == z.pixels ? 0 : z.images * from_channels * z.padded.line;
}

/// Whether x's gradient is of gathered pixels.
bool gathers(const ConvTranspose2dGeometry& g, DType dtype, Layout y, Layout x) {
  const conv_gemm::Factors f = conv_estimate::operands_of(dtype);
  return x == y && conv_columns::gathers(g, y, f.element_bytes, f.parts);
}

/// Whether z is made by a convolution.
bool convolves(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from, Device device) {
  return conv_gemm::has_wgmma(device) &&
         conv_columns::is_convolved(g, transposed, from, conv_estimate::operands_of(dtype).parts);
}

/// How many columns of such results a thread has. `last`: channels, so that neighbouring columns are not
/// neighbours in memory.
int columns_of_thread(std::int64_t width, std::int64_t lines, bool last) {
  const bool are_many = width >= 8 * kMostColumns && width * lines >= kBusy * kMostColumns;
  return are_many && !last ? kMostColumns : 1;
}

}  // namespace

bool columns_fits(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from, Layout to) {
  if (!is_floating(dtype) || !conv_gemm::fits(g) || g.n == 0) return false;
  if (!transposed && gathers(g, dtype, from, to)) return gathered_columns_fit(g, dtype);
  if (from == Layout::nhwc && g.groups > 1) return false;
  const int bytes = static_cast<int>(size_of(type_of_products(dtype)));
  const Products z = sizes_of(g, transposed, dtype, from);
  const std::int64_t lines = g.n * (transposed ? g.co * g.h.out : g.ci * g.h.in);
  return z.of_image <= conv_columns::kMostBytes / bytes && lines <= conv_columns::kMostLines &&
         (transposed || g.ci <= conv_columns::kMostChannels) &&
         z.calls(from == Layout::nhwc) <= conv_columns::kMostCalls;
}

void columns(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
             const Tensor& bias, const Tensor& to, double negative_slope) {
  if (!transposed && gathers(g, to.dtype(), from.layout(), to.layout()))
    return gathered_columns(g, from, w, bias, to, negative_slope);
  const DeviceScope scope(to.device());
  const DType of_products = type_of_products(to.dtype());
  const Products sizes = sizes_of(g, transposed, to.dtype(), from.layout());
  const bool last = from.layout() == Layout::nhwc;
  const bool convolved = convolves(g, transposed, to.dtype(), from.layout(), to.device());
  const Plan plan(g, transposed, static_cast<int>(size_of(to.dtype())));
  SumArguments call{};
  call.h = TapAxis(plan.h, plan.from_h), call.w = TapAxis(plan.w, plan.from_w);
  call.to = ImageStrides(to.strides());
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.from_w = plan.from_w, call.to_w = static_cast<int>(to.size(3));
  call.by_height = Divider(to.size(2)), call.by_channels = Divider(to.size(1));
  call.slope = negative_slope;
  const bool few_taps = plan.h.most_taps() * plan.w.most_taps() <= kMostFewTaps;
  // Weights of sets, of which each has taps of all channels: for a convolution channels have taps of all
  // sets.
  const bool in_sets = convolved && sizes.sets > 1;
  const std::int64_t from_channels = transposed ? g.ci : g.co,
                     of_weight = padded_weight(sizes, from_channels),
                     of_from = padded_from(sizes, from_channels);
  const Tensor own_weight = Tensor::empty({of_weight}, {w.dtype(), w.device()}),
               own_from = Tensor::empty({of_from}, {from.dtype(), from.device()});
  if (of_weight > 0) copy_lines(w, sizes.rows(), own_weight, sizes.padded.rows, sizes.rows());
  const Tensor weight = in_sets         ? w.reshape({1, sizes.sets, g.co, sizes.taps}).to(Layout::nhwc)
                        : of_weight > 0 ? own_weight
                                        : w.flat();
  const Tensor all = Tensor::empty({sizes.images * sizes.of_image}, {of_products, to.device()});
  announce_bulk_writes(all);
  for (std::int64_t begin = 0; begin < g.n; begin += sizes.images) {
    const std::int64_t end = std::min(g.n, begin + sizes.images), images = end - begin;
    const Tensor z = all.slice(0, images * sizes.of_image);
    if (convolved) {
      const OperandCopies own;  // of these images, which nobody reads again
      const ConvTranspose2dGeometry one = conv_columns::convolution(g, transposed, images);
      conv_gemm::wgmma_map<conv_gemm::Tf32x3>(one, true, from.slice(begin, end),
                                              weight.flat().reshape(one.weight_shape()), {},
                                              z.reshape(one.y_shape()), 1);
    } else {
      const Shapes shapes(g, transposed, last, sizes, images);
      const Tensor part = from.slice(begin, end),
                   pixels = of_from > 0 ? own_from.slice(0, images * from_channels * sizes.padded.line)
                                        : part.flat();
      if (of_from > 0) copy_lines(part, sizes.pixels, pixels, sizes.padded.line, sizes.pixels);
      matmul(weight.reshape(shapes.weight), Transpose::yes, pixels.reshape(shapes.from), shapes.order, {},
             z.reshape(shapes.product));
    }
    call.z = z.raw();
    call.z_image = static_cast<int>(last ? sizes.pixels : sizes.of_image);
    call.z_tap = static_cast<int>((last ? images : in_sets ? sizes.sets : 1) * sizes.padded.line);
    call.z_row = plan.kernel_w * call.z_tap;
    call.z_channel = in_sets ? static_cast<int>(sizes.pixels) : plan.kernel_h * call.z_row;
    const Tensor result = to.slice(begin, end);
    call.result = result.raw();
    const std::int64_t lines = images * to.size(1) * to.size(2);
    const int columns = columns_of_thread(call.to_w, lines, last);
    visit_floating("conv", to.dtype(), [&]<class T>() {
      using Z = ProductOf<T>;
      const auto kernel_of = [&]<int kColumns>() {
        return few_taps ? sum_taps_kernel<Z, T, kColumns, true> : sum_taps_kernel<Z, T, kColumns, false>;
      };
      const auto kernel =
          columns == 1 ? kernel_of.template operator()<1>() : kernel_of.template operator()<kMostColumns>();
      call.tiles = line_tiles(to.device(), call.to_w, lines, columns, plan.h.count, few_taps ? 6 : 1, kernel);
      launch_kernel("conv: sums of taps", to.device(), kernel, grid_size("conv", call.tiles.blocks),
                    dim3(call.tiles.threads_x, call.tiles.threads_y), call);
    });
  }
}

std::int64_t columns_workspace(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from,
                               Device device) {
  if (!transposed && gathers(g, dtype, from, from)) return gathered_columns_workspace(g, dtype, device);
  const DType of_products = type_of_products(dtype);
  const Products z = sizes_of(g, transposed, dtype, from);
  const std::int64_t from_channels = transposed ? g.ci : g.co,
                     copies = padded_weight(z, from_channels) + padded_from(z, from_channels);
  const bool convolved = convolves(g, transposed, dtype, from, device);
  const auto of_product = [&](std::int64_t images) {
    if (convolved) {
      const OperandCopies own;
      const ConvTranspose2dGeometry one = conv_columns::convolution(g, transposed, images);
      const conv_gemm::Factors factors = conv_estimate::operands_of(dtype);
      const conv_gemm::BoxResults results = conv_gemm::box_results(from, one.w.out, factors.element_bytes, 0);
      return conv_gemm::wgmma_map_workspace(one, true, conv_gemm::map_way(one, true, from, results, factors),
                                            from, factors) +
             (z.sets > 1 ? one.weight_shape().count() * factors.element_bytes : 0);
    }
    const Shapes shapes(g, transposed, from == Layout::nhwc, z, images);
    return matmul_workspace(device, dtype, shapes.weight, Transpose::yes, shapes.from, shapes.order,
                            of_products, shapes.product, false);
  };
  const std::int64_t rest = g.n % z.images;
  return z.images * z.of_image * static_cast<std::int64_t>(size_of(of_products)) +
         copies * static_cast<std::int64_t>(size_of(dtype)) +
         std::max(of_product(z.images), rest > 0 ? of_product(rest) : 0);
}

}  // namespace tapedeck::cu
