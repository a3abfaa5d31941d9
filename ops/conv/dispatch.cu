// Which kernel computes the convolution family on a GPU, as kernels.h states.
#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/conv/gemm.cuh>

namespace tapedeck::cu {

namespace {

bool wants_reference(const ConvTranspose2dGeometry& g) {
  return conv_algorithm() == ConvAlgorithm::reference || !conv_gemm::fits(g);
}

/// Calls f with the Math of a tensor's type.
template <class F>
void visit_math(const char* op, DType dtype, F f) {
  using namespace conv_gemm;
  if (dtype == DType::float64) return f.template operator()<Simt<double>>();
  if (dtype == DType::bfloat16) return f.template operator()<Half<bfloat16>>();
  if (dtype == DType::float16) return f.template operator()<Half<float16>>();
  check(dtype == DType::float32, op, ": dtype ", dtype, " is not supported; legal are float64, float32, ",
        "bfloat16 and float16");
  if (conv_algorithm() == ConvAlgorithm::simt) return f.template operator()<Simt<float>>();
  if (float32_precision() != Precision::highest) return f.template operator()<Tf32>();
  f.template operator()<Tf32x3>();
}

}  // namespace

void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y) {
  visit_math("conv_transpose2d", y.dtype(), [&]<class Math>() {
    if (wants_reference(g)) return reference::conv_transpose2d(g, x, w, bias, y);
    conv_gemm::map<Math>(g, true, x, w, bias, y);
  });
}

void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x) {
  visit_math("conv2d", x.dtype(), [&]<class Math>() {
    if (wants_reference(g)) return reference::conv2d(g, y, w, bias, x);
    conv_gemm::map<Math>(g, false, y, w, bias, x);
  });
}

void conv_transpose2d_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                                  const Tensor& w) {
  visit_math("conv_transpose2d_weight_grad", w.dtype(), [&]<class Math>() {
    if (wants_reference(g)) return reference::weight_grad(g, x, y, w);
    conv_gemm::weight_grad<Math>(g, x, y, w);
  });
}

}  // namespace tapedeck::cu
