// conv_transpose2d(batch_norm(x)) as one op. With z the normalised and rectified x:
//
//   y = conv_transpose2d(z, w) + b     gz = conv2d(gy, w), of which batch_norm()'s gradients follow
//   gw = the sum of z * gy             gb = the sum of gy
//
// z is a function of x and of a few numbers of each channel: kernels make it anew wherever they read x.
#include <algorithm>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/conv/family.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/rectify.h>

namespace tapedeck {

namespace {

using detail::ConvCall;

struct NormalizedConvTranspose2d final : Op {
  /// What the op is called with.
  enum Input : std::size_t { x, norm_weight, norm_bias, running_mean, running_var, weight, bias };

  NormalizedConvTranspose2d(const ConvCall& call, const BatchNormOptions& norm, double negative_slope)
      : call_(call), norm_(norm), negative_slope_(negative_slope) {}
  const char* name() const override { return "batch_norm_conv_transpose2d"; }

  Tensors forward(OpContext& c, const Tensors& in) override {
    check_negative_slope("conv_transpose2d", negative_slope_);
    const Prologue prologue = detail::batch_norm_prologue(in, norm_, true);
    if (negative_slope_ != 1) c.save_output(0);
    if (needs_normalized(c)) c.save_input(weight);
    if (needs_normalized(c) || c.needs_grad(weight)) {
      c.save_input(x);
      if (in[norm_weight].defined()) c.save_input(norm_weight);
      if (in[norm_bias].defined() && c.needs_grad(weight)) c.save_input(norm_bias);
      c.save(prologue.statistics);
    }
    const auto& [g, layout, weight_layout, algorithm] = call_;
    const ConvAlgorithmScope scope(algorithm);
    const Tensor y = Tensor::empty(g.y_shape(), {in[x].dtype(), in[x].device(), layout});
    TAPEDECK_KERNEL(y.device(), conv_transpose2d)
    (g, in[x], in[weight], in[bias], y, negative_slope_, prologue);
    return {y};
  }

  Variables backward(const OpContext& c, const Variables& gy) override {
    const auto [gu, gb] = rectified_gradients(c, gy[0], negative_slope_, 1, bias);
    const bool both = needs_normalized(c) && c.needs_grad(weight);
    const OperandCopies copies(both ? ReadByBoth::y : ReadByBoth::none);  // of gu
    Variables gradients(7);
    if (needs_normalized(c)) {
      const Variable gz = detail::plain(call_, gu, c.input(weight));
      const Variables of_norm = detail::batch_norm_gradients(c, gz, norm_, true);
      std::copy(of_norm.begin(), of_norm.end(), gradients.begin());
    }
    if (c.needs_grad(weight)) gradients[weight] = weight_gradient(c, gu);
    gradients[bias] = gb;
    return gradients;
  }

 private:
  static bool needs_normalized(const OpContext& c) {
    return c.needs_grad(x) || c.needs_grad(norm_weight) || c.needs_grad(norm_bias);
  }

  Variable weight_gradient(const OpContext& c, const Variable& gu) const {
    if (recording()) return detail::correlation(call_, normalized(c), gu);
    const auto& [g, layout, weight_layout, algorithm] = call_;
    const ConvAlgorithmScope scope(algorithm);
    const Tensor& from = c.input(x).tensor();
    const Tensor w = Tensor::empty(g.weight_shape(), {from.dtype(), from.device(), weight_layout});
    TAPEDECK_KERNEL(w.device(), conv_transpose2d_weight_grad)
    (g, from, gu.tensor().to(layout), w, Prologue{c.saved(0), norm_.negative_slope});
    return w;
  }

  /// z by a differentiable function of x, weight and bias.
  Variable normalized(const OpContext& c) const {
    const auto given = [&](Input i) { return c.input_shape(i).rank() == 1 ? c.input(i) : Variable(); };
    BatchNormOptions again = norm_;
    again.batches = {};
    const auto row = [&](int i) {
      return again.training ? Variable() : Variable(c.saved(0).slice(i, i + 1).reshape({c.saved(0).size(1)}));
    };
    return batch_norm(c.input(x), given(norm_weight), given(norm_bias), row(0), row(1), again);
  }

  ConvCall call_;
  BatchNormOptions norm_;
  double negative_slope_;
};

ConvTranspose2dGeometry geometry_of(const Variable& x, const Variable& w, const Variable& bias,
                                    const ConvTranspose2dOptions& options) {
  using detail::tensor_of;
  return conv_transpose2d_geometry(tensor_of(x), tensor_of(w), tensor_of(bias), options);
}

/// A parameter of the type that detail::lowered() would give it, to ask for a geometry.
Variable as_lowered(const Variable& v) {
  const bool casts = v.defined() && v.dtype() == DType::float32 && Autocast::dtype() != DType::float32;
  return casts ? Tensor::empty(v.shape(), {Autocast::dtype(), v.tensor().device()}) : v;
}

/// Whether kernels would apply the prologue.
bool is_worth_it(const BatchNormCall& call, const Variable& weight, const Variable& bias,
                 const ConvTranspose2dOptions& options) {
  const Variable& x = call.x;
  if (!x.defined() || x.rank() != 4 || x.count() == 0 || x.tensor().device().is_cpu()) return false;
  detail::check_batch_norm({x.tensor(), detail::tensor_of(call.weight), detail::tensor_of(call.bias),
                            detail::tensor_of(call.running_mean), detail::tensor_of(call.running_var)},
                           call.options);
  // Autocast wants the normalised x in another type.
  if (x.dtype() == DType::float32 && Autocast::dtype() != DType::float32) return false;
  const auto g = geometry_of(x, as_lowered(weight), as_lowered(bias), options);
  const bool trains = recording() && weight.requires_grad();
  return g.y_shape().count() > 0 &&
         TAPEDECK_KERNEL(x.tensor().device(), applies_prologue)(g, x.tensor(), call.options.training, trains);
}

}  // namespace

Variable detail::normalized_conv_transpose2d(const BatchNormCall& c, const Variable& w, const Variable& bias,
                                             const ConvTranspose2dOptions& options, double negative_slope) {
  const ConvCall call{geometry_of(c.x, w, bias, options), c.x.tensor().layout(), w.tensor().layout()};
  return tapedeck::call<NormalizedConvTranspose2d>(
      {c.x, c.weight, c.bias, c.running_mean, c.running_var, w, bias}, call, c.options, negative_slope);
}

Variable detail::normalized_at_once(const BatchNormCall& x, const Variable& weight, const Variable& bias,
                                    const ConvTranspose2dOptions& options, double negative_slope) {
  if (!is_worth_it(x, weight, bias, options)) return {};
  return normalized_conv_transpose2d(x, lowered(weight), lowered(bias), options, negative_slope);
}

Variable conv_transpose2d(const BatchNormCall& x, const Variable& weight, const Variable& bias,
                          const ConvTranspose2dOptions& options, double negative_slope) {
  check_negative_slope("conv_transpose2d", negative_slope);
  const Variable y = detail::normalized_at_once(x, weight, bias, options, negative_slope);
  return y.defined() ? y : conv_transpose2d(batch_norm(x), weight, bias, options, negative_slope);
}

}  // namespace tapedeck
