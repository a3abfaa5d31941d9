// GEMM and col2im (Caffe's and PyTorch's names): each pixel of `from` times the weights of all taps is a
// product of matrices, by cuBLASLt,
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
// channels last, of one group, it is [(m, tap), n, pixel]. Float32 and float64: z in 16 bits would round each
// tap's part. conv2d has at most 16 channels of x.
//
// On an H200, of random layers (bench/fit_conv_estimates.py) in float32 the fastest in every fifth forward
// and every third input gradient that it can compute, by up to 8.5 times: x [16,96,128,128] to one channel by
// kernels of 8x8, stride (1,2): 0.15 ms (direct 1.08, wgmma 1.05); [64,384,31,32] to 4 by 9x8, stride (1,5),
// 4 groups: 0.28 (1.40); dcgan5 with channels last in TF32: 0.049 (0.107).
#include <tapedeck/ops/conv/columns.cuh>

#include <algorithm>

#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/ops/conv/bulk_writes.cuh>

namespace tapedeck::cu {

namespace {

using conv_columns::Products;
using conv_gemm::Divider;
using conv_gemm::ImageStrides;
using conv_gemm::PhaseAxes;
using conv_gemm::PhaseAxis;
using conv_gemm::Plan;

constexpr int kBlock = 256;

struct SumArguments {
  Plan plan;  // `to`: strides of the result
  const void *z, *bias;
  void* to;
  std::int64_t z_image;  // elements of z between images
  std::int64_t z_tap;    // and between taps
  Divider by_height, by_channels;
  int to_w, to_h;
  std::int64_t count;  // of results
  double slope;
};

/// An axis of a result: the taps of its phase, and where the first one reads.
struct Reads {
  __device__ Reads(const PhaseAxes& axis, int at) {
    const int step = axis.phase[0].to_step, index = at / step, residue = at - index * step;
    for (int i = 0; i < axis.count; ++i) {
      const PhaseAxis& p = axis.phase[i];
      if (p.to != residue) continue;
      taps = p.taps, tap = p.tap, from = p.from + index * p.from_step;
    }
    tap_step = axis.phase[0].tap_step, from_step = axis.phase[0].tap_from_step;
  }
  int taps = 0, tap = 0, from = 0, tap_step, from_step;
};

/// One result a thread.
template <class T>
__global__ void __launch_bounds__(kBlock) sum_taps_kernel(const __grid_constant__ SumArguments call) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (thread >= call.count) return;
  const Plan& p = call.plan;
  // Rows of all images are fewer than 2^31.
  const int line = static_cast<int>(thread / call.to_w),
            column = static_cast<int>(thread - std::int64_t{line} * call.to_w);
  const int plane = call.by_height.divide(line), row = call.by_height.modulo(line, plane);
  const int image = call.by_channels.divide(plane), channel = call.by_channels.modulo(plane, image);
  const Reads h(p.h, row), w(p.w, column);
  const T* const z = static_cast<const T*>(call.z) + image * call.z_image +
                     static_cast<std::int64_t>(channel) * (p.kernel_h * p.kernel_w) * call.z_tap;
  T sum = call.bias == nullptr ? T(0) : static_cast<const T*>(call.bias)[channel];
  for (int jh = 0; jh < h.taps; ++jh) {
    const int y = h.from + jh * h.from_step;
    if (static_cast<unsigned>(y) >= static_cast<unsigned>(p.from_h)) continue;
    const T* const of_row = z + (h.tap + jh * h.tap_step) * p.kernel_w * call.z_tap + y * p.from_w;
    for (int jw = 0; jw < w.taps; ++jw) {
      const int x = w.from + jw * w.from_step;
      if (static_cast<unsigned>(x) < static_cast<unsigned>(p.from_w))
        sum += of_row[(w.tap + jw * w.tap_step) * call.z_tap + x];
    }
  }
  if (sum < T(0)) sum *= static_cast<T>(call.slope);
  static_cast<T*>(
      call.to)[image * p.to.n + static_cast<std::int64_t>(channel) * p.to.c +
               static_cast<std::int64_t>(row) * p.to.h + static_cast<std::int64_t>(column) * p.to.w] = sum;
}

/// Shapes of the product for so many images: weights of a group are [channels of `from`, (channel of `to`,
/// tap)], or, of conv2d, [channels of `from`, tap] of one channel of `to`.
struct Shapes {
  Shapes(const ConvTranspose2dGeometry& g, bool transposed, bool last, const Products& z,
         std::int64_t images) {
    const std::int64_t from_channels = transposed ? g.group_ci() : g.group_co();
    weight = {g.groups, z.sets, from_channels, z.rows()};
    from =
        last ? Shape{images * z.pixels, from_channels} : Shape{images, g.groups, 1, from_channels, z.pixels};
    product = last ? Shape{1, z.sets, z.rows(), images * z.pixels}
                   : Shape{images, g.groups, z.sets, z.rows(), z.pixels};
    order = last ? Transpose::yes : Transpose::no;
  }
  Shape weight, from, product;
  Transpose order;  // of `from`
};

}  // namespace

bool columns_fits(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from) {
  if ((dtype != DType::float32 && dtype != DType::float64) || !conv_gemm::fits(g) || g.n == 0) return false;
  if (from == Layout::nhwc && g.groups > 1) return false;
  const int bytes = static_cast<int>(size_of(dtype));
  const Products z(g, transposed, bytes);
  const std::int64_t lines = g.n * (transposed ? g.co * g.h.out : g.ci * g.h.in);
  // More channels of x fill tiles; and each call of matmul() has a launch.
  return z.of_image <= conv_columns::kMostBytes / bytes && lines < std::int64_t{1} << 31 &&
         (transposed || g.ci <= 16) && z.calls(from == Layout::nhwc) <= 16;
}

void columns(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
             const Tensor& bias, const Tensor& to, double negative_slope) {
  const DeviceScope scope(to.device());
  const Products sizes(g, transposed, static_cast<int>(size_of(to.dtype())));
  const bool last = from.layout() == Layout::nhwc;
  SumArguments call{};
  call.plan = Plan(g, transposed, static_cast<int>(size_of(to.dtype())));
  call.plan.to = ImageStrides(to.strides());
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.to_h = static_cast<int>(to.size(2));
  call.to_w = static_cast<int>(to.size(3));
  call.by_height = Divider(call.to_h);
  call.by_channels = Divider(to.size(1));
  call.slope = negative_slope;
  const Tensor all = Tensor::empty({sizes.images * sizes.of_image}, {to.dtype(), to.device()});
  announce_bulk_writes(all);
  for (std::int64_t begin = 0; begin < g.n; begin += sizes.images) {
    const std::int64_t end = std::min(g.n, begin + sizes.images), images = end - begin;
    const Tensor z = all.slice(0, images * sizes.of_image), part = from.slice(begin, end).flat();
    const Shapes shapes(g, transposed, last, sizes, images);
    matmul(w.reshape(shapes.weight), Transpose::yes, part.reshape(shapes.from), shapes.order, {},
           z.reshape(shapes.product));
    call.z = z.raw();
    call.z_image = last ? sizes.pixels : sizes.of_image;
    call.z_tap = last ? images * sizes.pixels : sizes.pixels;
    const Tensor result = to.slice(begin, end);
    call.to = result.raw();
    call.count = result.count();
    const auto launch = [&]<class T>() {
      sum_taps_kernel<T>
          <<<grid_size("conv", ceil_div(call.count, kBlock)), kBlock, 0, stream_of(to.device())>>>(call);
    };
    to.dtype() == DType::float64 ? launch.template operator()<double>() : launch.template operator()<float>();
    check_launch("conv: sums of taps");
  }
}

std::int64_t columns_workspace(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout from,
                               Device device) {
  const Products z(g, transposed, static_cast<int>(size_of(dtype)));
  const auto of_product = [&](std::int64_t images) {
    const Shapes shapes(g, transposed, from == Layout::nhwc, z, images);
    return matmul_workspace(device, dtype, shapes.weight, Transpose::yes, shapes.from, shapes.order,
                            shapes.product, false);
  };
  const std::int64_t rest = g.n % z.images;
  return z.images * z.of_image * static_cast<std::int64_t>(size_of(dtype)) +
         std::max(of_product(z.images), rest > 0 ? of_product(rest) : 0);
}

}  // namespace tapedeck::cu
