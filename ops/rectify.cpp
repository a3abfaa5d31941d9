#include <tapedeck/ops/rectify.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/rectifier.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/unary.h>

namespace tapedeck {

namespace {

UnaryCall rectifier_call(double negative_slope) {
  return {negative_slope == 0 ? Unary::relu : Unary::leaky_relu, negative_slope};
}

}  // namespace

RectifiedGradients rectified_gradients(const OpContext& context, const Variable& gy, double negative_slope,
                                       int dim) {
  const bool rectified = !Rectifier{negative_slope}.does_nothing(), biased = context.needs_grad(2);
  Variable gu = gy;
  if (rectified && (recording() || gy.count() == 0)) {
    gu = where(le(context.output(0).detach(), 0), gy * negative_slope, gy);
  } else if (rectified) {
    const Tensor &y = context.output(0).tensor(), given = gy.tensor().to(y.layout());
    const Tensor made = Tensor::empty_like(y);
#ifdef TAPEDECK_CUDA
    if (biased && y.device().is_cuda()) {
      const Tensor gb = Tensor::empty(context.input_shape(2), context.input_options(2));
      cu::rectified_gradients(given, y, negative_slope, dim, made, gb);
      return {made, gb};
    }
#endif
    TAPEDECK_KERNEL(y.device(), unary_gradient)(rectifier_call(negative_slope), y, given, made);
    gu = made;
  }
  std::vector<int> others;
  for (int d = 0; d < gy.rank(); ++d) {
    if (d != dim) others.push_back(d);
  }
  return {gu, biased ? sum(gu, others) : Variable()};
}

void check_negative_slope(const char* op, double negative_slope) {
  check(negative_slope >= 0, op, ": negative_slope ", negative_slope, " is not legal; legal is 0 or more");
}

namespace cpu {

void rectify(const Tensor& y, double negative_slope) {
  unary(rectifier_call(negative_slope), y, y);
}

}  // namespace cpu
}  // namespace tapedeck
