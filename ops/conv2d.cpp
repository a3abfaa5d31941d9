#include <tapedeck/ops/conv2d.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/conv/family.h>

namespace tapedeck {

namespace {

using detail::ConvCall;
using detail::images;

struct Conv2d final : Op {
  explicit Conv2d(const ConvCall& call) : call_(call) {}
  const char* name() const override { return "conv2d"; }

  Tensors forward(OpContext& c, const Tensors& in) override {
    if (c.needs_grad(1)) c.save_input(0);
    if (c.needs_grad(0)) c.save_input(1);
    const auto& [g, layout] = call_;
    const Tensor& y = in[0];
    Tensor x = Tensor::empty(g.x_shape(), {y.dtype(), y.device(), g.batched ? layout : Layout::nchw});
    if (x.count() > 0) {
      TAPEDECK_KERNEL(x.device(), conv2d)
      (g, images(y, layout), in[1].to(Layout::nchw), in[2], images(x, layout));
    }
    return {x};
  }

  Variables backward(const OpContext& c, const Variables& gx) override {
    return {c.needs_grad(0) ? detail::transposed(call_, gx[0], c.input(1)) : Variable(),
            c.needs_grad(1) ? detail::correlation(call_, gx[0], c.input(0)) : Variable(),
            c.needs_grad(2) ? detail::channel_sum(gx[0]) : Variable()};
  }

 private:
  ConvCall call_;
};

Tensor tensor_of(const Variable& x) {
  return x.defined() ? x.tensor() : Tensor();
}

}  // namespace

Variable detail::plain(const ConvCall& c, const Variable& y, const Variable& w, const Variable& bias) {
  return call<Conv2d>({y, w, bias}, c);
}

Variable conv2d(const Variable& input, const Variable& weight, const Variable& bias,
                const Conv2dOptions& options) {
  const Variable x = detail::lowered(input), w = detail::lowered(weight), b = detail::lowered(bias);
  const auto geometry = conv2d_geometry(tensor_of(x), tensor_of(w), tensor_of(b), options);
  return detail::plain({geometry, x.tensor().layout()}, x, w, b);
}

}  // namespace tapedeck
