// Layers whose y has 1 to 4 channels, and x many: the images that decoders make. Products are made on tensor
// cores, with all channels of y and all taps, r = (m, tap), of which there are up to 80:
//
//   transposed   z[r, i] = sum over c: w[c, r] x[c, i]          in shared memory; then each y is the sum of
//                y[m, o] = bias[m] + sum over taps: z[(m, tap), the pixel of o's tap]
//   plain        x[c, i] = bias[c] + sum over r: w[c, r] y[r, i]          y[r, i]: what pixel i meets of y by
//   weight       w[c, r] = sum over pixels i: x[c, i] y[r, i]             m and tap
//
// x is the large side: it is read (of up to 48 products), or written, once, by whole vectors, and y's part of
// a tile (thin_products.h) and weights are in shared memory, from where words are gathered. Where rows of
// nchw are no whole vectors, as those of 14 pixels that MNIST's decoders have, it is by words of 4 bytes; but
// not for float32's forward and input gradient, most of which then took up to 2.5 and 5 times as long as by
// others, nor of an odd number of 16-bit pixels. Each kernel is in a file of its own; thin_products_tile.cuh
// has what they share. Float32 is rounded to TF32 or, at float32's accuracy, made of two TF32 numbers, of
// which three products are added, to float32's sums every two steps: an infinity makes NaN of all that it
// reaches. So do infinities in x of gradients of weights, of taps outside y, which are multiplied as zeros.
//
// In nchw the usual kernels and strides of decoders have kernels of their own (thin_bands.h).
//
// On an H200, dcgan5 (64 to 3 channels, kernel 4, stride 2, x of 128 x 64 x 32 x 32), without these, forward,
// input and weight gradient in us; in brackets what computed it before:
//   float32         28.7 24.8 33.3 (threads' own sums 47.6, 34.9; strips 40.8)
//   TF32            27.8 16.9 27.9 (47.5, 35.0; 31.3)        channels last 21.6 16.0 29.3
//   bfloat16        17.3 10.9 15.6                           channels last 16.4 10.4 17.0
// reading or writing x takes 8 us in float32, 4 in 16 bits. Instructions bound these kernels, and what hides
// their latencies, 12 to 16 warps of a multiprocessor. What mattered, each 10 to 40%: weights in the order
// of operands' registers, which are read by vectors and need no moves; as many bands and tiles as make equal
// shares (thin_products.h: here one wave of blocks); outputs' taps as a first place and a
// count, found once a row and a column; z's pitch, such that stores meet all banks; rings of x for each
// thread, which need no barrier.
#include <tapedeck/ops/conv/thin_products_tile.cuh>

namespace tapedeck::cu {

using namespace conv_thin;

bool thin_products_fit(const ConvTranspose2dGeometry& g, bool transposed, DType dtype, Layout layout) {
  return plan_of(g, transposed ? ThinPass::transposed : ThinPass::plain, dtype, layout).has_value();
}
bool thin_products_weight_grad_fit(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  return plan_of(g, ThinPass::weight, dtype, layout).has_value();
}

void thin_products(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
                   const Tensor& bias, const Tensor& to, double negative_slope, const Prologue& prologue) {
  const DeviceScope scope(to.device());
  if (transposed ? launch_bands(g, from, w, bias, to, negative_slope, prologue)
                 : launch_bands_plain(g, from, w, bias, to, negative_slope))
    return;
  ThinArguments a(*plan_of(g, transposed ? ThinPass::transposed : ThinPass::plain, to.dtype(), to.layout()));
  a.from = from.raw(), a.w = w.raw(), a.to = to.raw();
  a.weight_is_last = w.layout() == Layout::nhwc;
  a.by_taps = Divider(a.plan.taps);
  a.bias = bias.defined() ? bias.raw() : nullptr;
  a.slope = static_cast<float>(negative_slope);
  if (prologue.exists()) a.prologue = ChannelPrologue(prologue);
  transposed ? launch_transposed(a, to, prologue.exists()) : launch_plain(a, to);
}

std::int64_t thin_products_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  const int of_bands = band_splits(g, layout, static_cast<int>(size_of(dtype)), operand_parts_of(dtype));
  return of_bands > 0 ? of_bands : plan_of(g, ThinPass::weight, dtype, layout)->blocks();
}

void thin_products_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                               const Tensor& w, const Prologue& prologue) {
  const DeviceScope scope(w.device());
  if (launch_bands_weight_grad(g, x, y, w, prologue)) return;
  ThinArguments a(*plan_of(g, ThinPass::weight, w.dtype(), x.layout()));
  const std::int64_t blocks = a.plan.blocks();
  const Workspace<float> parts(w.device(), blocks * w.count());
  a.from = x.raw(), a.w = y.raw(), a.sums = parts.data();
  if (prologue.exists()) a.prologue = ChannelPrologue(prologue);
  launch_weight_grad(a, x, w, prologue.exists());
  add_sums(parts.data(), blocks, w);
}

}  // namespace tapedeck::cu
