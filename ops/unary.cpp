#include <tapedeck/ops/unary.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/map.h>
#include <tapedeck/ops/unary_formulas.h>

namespace tapedeck {

Tensors UnaryOp::forward(OpContext& context, const Tensors& x) {
  check_defined(name_, "x", x[0]);
  const bool integers = formula::visit(call_, []<class F>(const F&) { return formula::takes_integers<F>; });
  if (!integers) check_floating(name_, "x", x[0]);
  if (saved_ == Saved::input) {
    context.save_input(0);
  } else {
    context.save_output(0);
  }
  Tensor out = Tensor::empty_like(x[0]);
  if (out.count() > 0) TAPEDECK_KERNEL(out.device(), unary)(call_, x[0], out);
  return {out};
}

Variables UnaryOp::backward(const OpContext& context, const Variables& gy) {
  const Variable& saved = saved_ == Saved::input ? context.input(0) : context.output(0);
  if (recording()) return {gy[0] * derivative(saved)};
  return {gradient(saved.tensor(), gy[0].tensor())};
}

Variable UnaryOp::derivative(const Variable& saved) const {
  return gradient(saved.tensor(), Tensor::ones(saved.shape(), saved.tensor().options()));
}

Tensor UnaryOp::gradient(const Tensor& saved, const Tensor& gy) const {
  Tensor gx = Tensor::empty_like(saved);
  if (gx.count() > 0) {
    TAPEDECK_KERNEL(gx.device(), unary_gradient)(call_, saved, gy.to(saved.layout()), gx);
  }
  return gx;
}

namespace cpu {

using formula::Gradient;
using formula::Value;

void unary(const UnaryCall& call, const Tensor& x, const Tensor& out) {
  formula::visit(call, [&]<class F>(const F& f) {
    if constexpr (formula::takes_integers<F>) {
      map_any(Value<F>{f}, out, x);
    } else {
      map_floating(Value<F>{f}, out, x);
    }
  });
}

void unary_gradient(const UnaryCall& call, const Tensor& saved, const Tensor& gy, const Tensor& gx) {
  formula::visit(call, [&]<class F>(const F& f) { map_floating(Gradient<F>{f}, gx, saved, gy); });
}

}  // namespace cpu
}  // namespace tapedeck
