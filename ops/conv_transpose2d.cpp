#include <tapedeck/ops/conv_transpose2d.h>

#include <optional>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/conv/family.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/rectify.h>

namespace tapedeck {

namespace {

using detail::ConvCall;
using detail::images;
using detail::tensor_of;

struct ConvTranspose2d final : Op {
  explicit ConvTranspose2d(const ConvCall& call, double negative_slope = 1)
      : call_(call), negative_slope_(negative_slope) {}
  const char* name() const override { return "conv_transpose2d"; }

  Tensors forward(OpContext& c, const Tensors& in) override {
    check_negative_slope(name(), negative_slope_);
    if (negative_slope_ != 1) c.save_output(0);
    if (c.needs_grad(1)) c.save_input(0);
    if (c.needs_grad(0)) c.save_input(1);
    const auto& [g, layout, weight_layout, algorithm] = call_;
    const ConvAlgorithmScope scope(algorithm);
    const Tensor& x = in[0];
    Tensor y = Tensor::empty(g.y_shape(), {x.dtype(), x.device(), g.batched ? layout : Layout::nchw});
    if (y.count() > 0) {
      TAPEDECK_KERNEL(y.device(), conv_transpose2d)
      (g, images(x, layout), in[1], in[2], images(y, layout), negative_slope_, {});
    }
    return {y};
  }

  Variables backward(const OpContext& c, const Variables& gy) override {
    const auto [gu, gb] = rectified_gradients(c, gy[0], negative_slope_, detail::channel_dim(gy[0]));
    // They share what they make of gu; not if it is x, of which the weight's gradient reads rows that the
    // other one may leave out (ops/largest.cuh).
    const bool both = c.needs_grad(0) && c.needs_grad(1);
    std::optional<OperandCopies> copies;
    if (!both || gu.tensor().read() != c.input(0).tensor().read())
      copies.emplace(both ? ReadByBoth::y : ReadByBoth::none);
    return {c.needs_grad(0) ? detail::plain(call_, gu, c.input(1)) : Variable(),
            c.needs_grad(1) ? detail::correlation(call_, c.input(0), gu) : Variable(), gb};
  }

 private:
  ConvCall call_;
  double negative_slope_;
};

struct ConvTranspose2dWeightGrad final : Op {
  explicit ConvTranspose2dWeightGrad(const ConvCall& call) : call_(call) {}
  const char* name() const override { return "conv_transpose2d_weight_grad"; }

  Tensors forward(OpContext& c, const Tensors& in) override {
    if (c.needs_grad(1)) c.save_input(0);
    if (c.needs_grad(0)) c.save_input(1);
    const auto& [g, layout, weight_layout, algorithm] = call_;
    const ConvAlgorithmScope scope(algorithm);
    const TensorOptions options{in[0].dtype(), in[0].device(), weight_layout};
    if (g.n == 0) return {Tensor::zeros(g.weight_shape(), options)};
    Tensor w = Tensor::empty(g.weight_shape(), options);
    TAPEDECK_KERNEL(w.device(), conv_transpose2d_weight_grad)
    (g, images(in[0], layout), images(in[1], layout), w, {});
    return {w};
  }

  Variables backward(const OpContext& c, const Variables& gw) override {
    return {c.needs_grad(0) ? detail::plain(call_, c.input(1), gw[0]) : Variable(),
            c.needs_grad(1) ? detail::transposed(call_, c.input(0), gw[0]) : Variable()};
  }

 private:
  ConvCall call_;
};

}  // namespace

Variable detail::transposed(const ConvCall& c, const Variable& x, const Variable& w, const Variable& bias) {
  return call<ConvTranspose2d>({x, w, bias}, c.with(w.tensor().layout()));
}

Variable detail::correlation(const ConvCall& c, const Variable& x, const Variable& y) {
  return call<ConvTranspose2dWeightGrad>({x, y}, c);
}

Variable conv_transpose2d(const Variable& input, const Variable& weight, const Variable& bias,
                          const ConvTranspose2dOptions& options, double negative_slope) {
  const Variable x = detail::lowered(input), w = detail::lowered(weight), b = detail::lowered(bias);
  const auto geometry = conv_transpose2d_geometry(tensor_of(x), tensor_of(w), tensor_of(b), options);
  return call<ConvTranspose2d>({x, w, b}, ConvCall{geometry, x.tensor().layout(), w.tensor().layout()},
                               negative_slope);
}

Variable conv_transpose2d_weight_grad(const Variable& input, const Variable& gradient, Size2 kernel_size,
                                      const ConvTranspose2dOptions& options, Layout layout) {
  const Variable x = detail::lowered(input), gy = detail::lowered(gradient);
  const auto geometry =
      conv_transpose2d_weight_grad_geometry(tensor_of(x), tensor_of(gy), kernel_size, options);
  return detail::correlation({geometry, x.tensor().layout(), layout}, x, gy);
}

}  // namespace tapedeck
