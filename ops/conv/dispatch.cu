// Which kernel computes the convolution family on a GPU.
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>

namespace tapedeck::cu {

namespace {

void check_floating(const char* op, const Tensor& out) {
  check(is_floating(out.dtype()), op, ": dtype ", out.dtype(), " is not supported; legal are float64, ",
        "float32, bfloat16 and float16");
}

}  // namespace

void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y) {
  check_floating("conv_transpose2d", y);
  reference::conv_transpose2d(g, x, w, bias, y);
}

void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x) {
  check_floating("conv2d", x);
  reference::conv2d(g, y, w, bias, x);
}

void conv_transpose2d_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                  const Tensor& w) {
  check_floating("conv_transpose2d_weight_grad", w);
  reference::weight_grad(g, x, y, w);
}

}  // namespace tapedeck::cu
