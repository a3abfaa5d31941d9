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

Variable channel_sum(const Variable& x, int dim) {
  std::vector<int> others;
  for (int d = 0; d < x.rank(); ++d) {
    if (d != dim) others.push_back(d);
  }
  return sum(x, others);
}

}  // namespace

RectifiedGradients rectified_gradients(const OpContext& context, const Variable& gy, double negative_slope,
                                       int dim, std::size_t bias) {
  const bool rectified = !Rectifier{negative_slope}.does_nothing(), biased = context.needs_grad(bias);
  Variable gu = gy;
  if (rectified && (recording() || gy.count() == 0)) {
    gu = where(le(context.output(0).detach(), 0), gy * negative_slope, gy);
  } else if (rectified) {
    const Tensor &y = context.output(0).tensor(), given = gy.tensor().to(y.layout());
    const Tensor made = Tensor::empty_like(y);
    if (biased) {
      const Tensor gb = Tensor::empty(context.input_shape(bias), context.input_options(bias));
      TAPEDECK_KERNEL(y.device(), rectified_gradients)(given, y, negative_slope, dim, made, gb);
      return {made, gb};
    }
    TAPEDECK_KERNEL(y.device(), unary_gradient)(rectifier_call(negative_slope), y, given, made);
    gu = made;
  }
  return {gu, biased ? channel_sum(gu, dim) : Variable()};
}

void check_negative_slope(const char* op, double negative_slope) {
  check(negative_slope >= 0, op, ": negative_slope ", negative_slope, " is not legal; legal is 0 or more");
}

namespace cpu {

void rectify(const Tensor& y, double negative_slope) {
  unary(rectifier_call(negative_slope), y, y);
}

void rectified_gradients(const Tensor& gy, const Tensor& y, double negative_slope, int dim, const Tensor& gu,
                         const Tensor& gb) {
  unary_gradient(rectifier_call(negative_slope), y, gy, gu);
  gb.copy_(channel_sum(gu, dim).tensor());
}

}  // namespace cpu
}  // namespace tapedeck
