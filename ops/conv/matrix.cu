// A bias for each channel of y becomes one for each column of the product, which its epilogue adds and
// rectifies. Where y has its channels last, so does the weight, or a copy of it.
//
// What there is to do is too little for tiles of pixels, which gather one pixel for each tap. On an H200 (us,
// dcgan1 of bench/compare_gpu.py, before: wgmma kernels): float32 forward 8.5 (36.9), input gradient 10.4
// (26.9), weight gradient 9.5 (23.5); TF32 5.8 (33.0), 7.9 (23.6), 5.5 (21.5); bfloat16 4.8 (26.6), 8.2
// (19.6), 5.0 (20.1); of 8192 images in float32 371 (1255), 356 (339), 336 (339).
// Channels last in bfloat16 10.3 (20.1), 13.5 (15.4); with such weights 4.8 and 8.2.
#include <tapedeck/ops/conv/matrix.cuh>

#include <limits>

#include <tapedeck/ops/conv/matrix.h>
#include <tapedeck/ops/matmul.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/conv/bulk_writes.cuh>

namespace tapedeck::cu {

namespace {

/// A tensor's memory as matrix of so many columns.
Tensor of_columns(const Tensor& x, std::int64_t columns) {
  return x.flat().reshape({-1, columns});
}

/// Columns of y: channels and taps, in the order of y's memory.
std::int64_t columns_of(const ConvTranspose2dGeometry& g) {
  return g.co * g.h.kernel * g.w.kernel;
}
Layout order_of(const ConvTranspose2dGeometry& g, Layout y) {
  return g.h.kernel * g.w.kernel == 1 ? Layout::nchw : y;
}

/// Of the copy of the weight in that order.
std::int64_t weight_bytes(const ConvTranspose2dGeometry& g, DType dtype, Layout y) {
  return order_of(g, y) == Layout::nchw
             ? 0
             : g.weight_shape().count() * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

bool matrix_fits(const ConvTranspose2dGeometry& g) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  return is_matrix(g, Layout::nchw) && g.n > 0 && g.n <= most && g.ci <= most && columns_of(g) <= most;
}

void matrix(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
            const Tensor& bias, const Tensor& to, double negative_slope) {
  announce_bulk_writes(to);
  const std::int64_t m = columns_of(g);
  const Layout order = order_of(g, transposed ? to.layout() : from.layout());
  const Tensor weight = of_columns(w.to(order), m);
  if (!transposed) {
    return matmul(of_columns(from, m), Transpose::no, weight, Transpose::yes, bias, of_columns(to, g.ci),
                  negative_slope);
  }
  Tensor spread;
  if (bias.defined()) {
    const std::int64_t taps = m / g.co;
    const bool last = order == Layout::nhwc;
    spread = Tensor::empty(last ? Shape{taps, g.co} : Shape{g.co, taps}, bias.options());
    expand(bias.reshape(last ? Shape{1, g.co} : Shape{g.co, 1}), 1, spread);
    spread = spread.flat();
  }
  matmul(of_columns(from, g.ci), Transpose::no, weight, Transpose::no, spread, of_columns(to, m),
         negative_slope);
}

void matrix_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  const std::int64_t m = columns_of(g);
  const Layout order = order_of(g, y.layout());
  const Tensor result = g.h.kernel * g.w.kernel == 1 ? w.to(order) : w;  // one memory, if in either order
  const Tensor product =
      order == result.layout() ? result : Tensor::empty(w.shape(), {w.dtype(), w.device(), order});
  announce_bulk_writes(product);
  matmul(of_columns(x, g.ci), Transpose::yes, of_columns(y, m), Transpose::no, {}, of_columns(product, m));
  if (order != result.layout()) result.copy_(product);
}

std::int64_t matrix_workspace(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout layout,
                              Device device) {
  const std::int64_t m = columns_of(g), weight = weight_bytes(g, dtype, layout);
  if (!transposed)
    return weight + matmul_workspace(device, dtype, {g.n, m}, Transpose::no, {g.ci, m}, Transpose::yes, dtype,
                                     {g.n, g.ci}, false);
  return weight +
         matmul_workspace(device, dtype, {g.n, g.ci}, Transpose::no, {g.ci, m}, Transpose::no, dtype,
                          {g.n, m}, true) +
         m * static_cast<std::int64_t>(size_of(dtype));
}

std::int64_t matrix_weight_grad_workspace(const ConvTranspose2dGeometry& g, DType dtype, Layout layout,
                                          Device device) {
  return weight_bytes(g, dtype, layout) + matmul_workspace(device, dtype, {g.n, g.ci}, Transpose::yes,
                                                           {g.n, columns_of(g)}, Transpose::no, dtype,
                                                           {g.ci, columns_of(g)}, false);
}

}  // namespace tapedeck::cu
