#include <tapedeck/ops/conv2d.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/conv/family.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/rectify.h>

namespace tapedeck {

namespace {

using detail::ConvCall;
using detail::images;
using detail::tensor_of;

struct Conv2d final : Op {
  explicit Conv2d(const ConvCall& call, double negative_slope = 1)
      : call_(call), negative_slope_(negative_slope) {}
  const char* name() const override { return "conv2d"; }

  Tensors forward(OpContext& c, const Tensors& in) override {
    check_negative_slope(name(), negative_slope_);
    if (negative_slope_ != 1) c.save_output(0);
    if (c.needs_grad(1)) c.save_input(0);
    if (c.needs_grad(0)) c.save_input(1);
    const auto& [g, layout, weight_layout, algorithm] = call_;
    const ConvAlgorithmScope scope(algorithm);
    const Tensor& y = in[0];
    Tensor x = Tensor::empty(g.x_shape(), {y.dtype(), y.device(), g.batched ? layout : Layout::nchw});
    if (x.count() > 0) {
      TAPEDECK_KERNEL(x.device(), conv2d)
      (g, images(y, layout), in[1], in[2], images(x, layout), negative_slope_);
    }
    return {x};
  }

  Variables backward(const OpContext& c, const Variables& gx) override {
    const auto [gu, gb] = rectified_gradients(c, gx[0], negative_slope_, detail::channel_dim(gx[0]));
    const bool both = c.needs_grad(0) && c.needs_grad(1);
    const OperandCopies copies(both ? ReadByBoth::x : ReadByBoth::none);  // of gu
    return {c.needs_grad(0) ? detail::transposed(call_, gu, c.input(1)) : Variable(),
            c.needs_grad(1) ? detail::correlation(call_, gu, c.input(0)) : Variable(), gb};
  }

 private:
  ConvCall call_;
  double negative_slope_;
};

}  // namespace

Variable detail::plain(const ConvCall& c, const Variable& y, const Variable& w, const Variable& bias) {
  return call<Conv2d>({y, w, bias}, c.with(w.tensor().layout()));
}

Variable conv2d(const Variable& input, const Variable& weight, const Variable& bias,
                const Conv2dOptions& options, double negative_slope) {
  const Variable x = detail::lowered(input), w = detail::lowered(weight), b = detail::lowered(bias);
  const auto geometry = conv2d_geometry(tensor_of(x), tensor_of(w), tensor_of(b), options);
  return call<Conv2d>({x, w, b}, ConvCall{geometry, x.tensor().layout(), w.tensor().layout()},
                      negative_slope);
}

}  // namespace tapedeck
