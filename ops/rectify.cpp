#include <tapedeck/ops/rectify.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/channel_sums.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/rectifier.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/unary.h>

namespace tapedeck {

RectifiedGradients rectified_gradients(const OpContext& context, const Variable& gy, double negative_slope,
                                       int dim) {
  const bool rectified = !Rectifier{negative_slope}.does_nothing(), biased = context.needs_grad(2);
  Variable gu = gy;
  if (rectified && (recording() || gy.count() == 0)) {
    gu = where(le(context.output(0).detach(), 0), gy * negative_slope, gy);
  } else if (rectified) {
    const Tensor &y = context.output(0).tensor(), given = gy.tensor().to(y.layout());
    const Tensor made = Tensor::empty_like(y);
    if (biased) {
      const Tensor gb = Tensor::empty(context.input_shape(2), context.input_options(2));
      TAPEDECK_KERNEL(y.device(), rectified_gradients)(given, y, negative_slope, dim, made, gb);
      return {made, gb};
    }
    const UnaryCall call{negative_slope == 0 ? Unary::relu : Unary::leaky_relu, negative_slope};
    TAPEDECK_KERNEL(y.device(), unary_gradient)(call, y, given, made);
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
  visit_floating("rectify", y.dtype(), [&]<class T>() {
    parallel_for(y.count(), 1 << 14, [=, data = y.data<T>()](std::int64_t begin, std::int64_t end) {
      simd([=, rectifier = Rectifier{negative_slope}] {
        for (std::int64_t i = begin; i < end; ++i) {
          data[i] = convert<T>(rectifier.value(convert<accumulate_t<T>>(data[i])));
        }
      });
    });
  });
}

void rectified_gradients(const Tensor& gy, const Tensor& y, double negative_slope, int dim, const Tensor& gu,
                         const Tensor& gb) {
  visit_floating("rectified_gradients", y.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const auto step = [in = y.data<T>(), g = gy.data<T>(), out = gu.data<T>(),
                       rectifier = Rectifier{negative_slope}](std::int64_t i) {
      const A gradient = rectifier.gradient(convert<A>(in[i]), convert<A>(g[i]));
      out[i] = convert<T>(gradient);
      return std::array{static_cast<double>(gradient)};
    };
    const auto sums = channel_sums<1>(Axis::of(y, dim), [=](std::int64_t, std::int64_t) { return step; })[0];
    for (std::size_t c = 0; c < sums.size(); ++c) gb.data<T>()[c] = convert<T>(sums[c]);
  });
}

}  // namespace cpu
}  // namespace tapedeck
