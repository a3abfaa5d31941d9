#include <tapedeck/ops/loss.h>

#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/ops/activation.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/block_sum.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/elementwise.h>
#include <tapedeck/ops/loss_formulas.h>
#include <tapedeck/ops/map.h>
#include <tapedeck/ops/reduce.h>

namespace tapedeck {

namespace {

const char* name_of(PointwiseLoss kind) {
  switch (kind) {
    case PointwiseLoss::squared:
      return "mse_loss";
    case PointwiseLoss::absolute:
      return "l1_loss";
    case PointwiseLoss::huber:
      return "huber_loss";
    case PointwiseLoss::logistic:
      break;
  }
  return "binary_cross_entropy_with_logits";
}

/// Both kinds of the op: elementwise, and the scaled sum.
struct LossOp final : Op {
  LossOp(const PointwiseLossCall& call, double scale, bool summed)
      : call_(call), scale_(scale), summed_(summed) {}
  const char* name() const override { return name_of(call_.kind); }

  Tensors forward(OpContext& c, const Tensors& in) override {
    const Tensor &x = in[0], &target = in[1];
    check_same_kind(name(), "input", x, "target", target);
    check(is_floating(x.dtype()), name(), ": dtype ", x.dtype(),
          " is not legal; legal are the floating types");
    check(x.shape() == target.shape(), name(), ": input has shape ", x.shape(), " but target has ",
          target.shape());
    check(call_.delta > 0, name(), ": delta ", call_.delta, " is not legal; legal is above 0");
    if (c.needs_grad(0) || c.needs_grad(1)) {
      c.save_input(0);
      c.save_input(1);
    }
    const Tensor t = target.to(x.layout());
    Tensor y = summed_ ? Tensor::empty({}, {x.dtype(), x.device()}) : Tensor::empty_like(x);
    if (summed_) {
      TAPEDECK_KERNEL(x.device(), pointwise_loss_sum)(call_, scale_, x, t, y);
    } else if (y.count() > 0) {
      TAPEDECK_KERNEL(x.device(), pointwise_loss)(call_, x, t, y);
    }
    return {y};
  }

  Variables backward(const OpContext& c, const Variables& gy) override {
    const Variable &x = c.input(0), &t = c.input(1);
    if (!recording()) return fused(c, x.tensor(), t.tensor(), gy[0].tensor());
    const Variable gx = gy[0] * slope(x, t) * scale_;
    return {gx, call_.kind == PointwiseLoss::logistic ? gy[0] * x * -scale_ : -gx};
  }

 private:
  Variables fused(const OpContext& c, const Tensor& x, const Tensor& target, const Tensor& gradient) const {
    const Tensor gx = c.needs_grad(0) ? Tensor::empty_like(x) : Tensor();
    const Tensor gt = c.needs_grad(1) ? Tensor::empty_like(x) : Tensor();
    if (x.count() > 0) {
      const Tensor gy = summed_ ? gradient : gradient.to(x.layout());
      TAPEDECK_KERNEL(x.device(), pointwise_loss_gradient)
      (call_, scale_, x, target.to(x.layout()), gy, gx, gt);
    }
    return {gx, gt};
  }

  /// df/dx in differentiable functions.
  Variable slope(const Variable& x, const Variable& t) const {
    switch (call_.kind) {
      case PointwiseLoss::squared:
        return (x - t) * 2.0;
      case PointwiseLoss::absolute: {  // a sign: a constant to outer tapes
        const Variable d = (x - t).detach();
        return cast(gt(d, 0.0), x.dtype()) - cast(lt(d, 0.0), x.dtype());
      }
      case PointwiseLoss::huber:
        return clamp(x - t, -call_.delta, call_.delta);
      case PointwiseLoss::logistic:
        break;
    }
    return sigmoid(x) - t;
  }

  PointwiseLossCall call_;
  double scale_;
  bool summed_;
};

}  // namespace

Variable pointwise_loss(const PointwiseLossCall& call, const Variable& x, const Variable& t) {
  return tapedeck::call<LossOp>({detail::widened(x), detail::widened(t)}, call, 1.0, false);
}

Variable pointwise_loss_sum(const PointwiseLossCall& call, double scale, const Variable& x,
                            const Variable& t) {
  return tapedeck::call<LossOp>({detail::widened(x), detail::widened(t)}, call, scale, true);
}

namespace cpu {

using namespace formula;

namespace {

/// The sum of formula.value over n neighbours.
template <class T, class Formula>
double sum_run(const Formula& formula, const T* x, const T* t, std::int64_t n) {
  using A = compute_t<T>;
  A x_buffer[kStageBlock], t_buffer[kStageBlock], values[kStageBlock];
  double sum = 0;
  for (std::int64_t done = 0; done < n; done += kStageBlock) {
    const std::int64_t m = std::min(kStageBlock, n - done);
    const A* xs = stage(x + done, 1, m, x_buffer);
    const A* ts = stage(t + done, 1, m, t_buffer);
    simd([=, &values] {
      A* __restrict to = values;
      for (std::int64_t i = 0; i < m; ++i) to[i] = formula.value(xs[i], ts[i]);
    });
    sum += lane_sum(0, m, [&values](std::int64_t i) { return static_cast<double>(values[i]); });
  }
  return sum;
}

}  // namespace

void pointwise_loss(const PointwiseLossCall& call, const Tensor& x, const Tensor& t, const Tensor& y) {
  with_formula(call, [&](auto formula) { map_floating(ValueOf<decltype(formula)>{formula}, y, x, t); });
}

void pointwise_loss_sum(const PointwiseLossCall& call, double scale, const Tensor& x, const Tensor& t,
                        const Tensor& y) {
  visit_floating("loss", x.dtype(), [&]<class T>() {
    with_formula(call, [&](auto formula) {
      const T *px = x.data<T>(), *pt = t.data<T>();
      const double sum = block_sum(x.count(), [&](std::int64_t begin, std::int64_t end) {
        return sum_run(formula, px + begin, pt + begin, end - begin);
      });
      *y.data<T>() = convert<T>(scale * sum);
    });
  });
}

void pointwise_loss_gradient(const PointwiseLossCall& call, double scale, const Tensor& x, const Tensor& t,
                             const Tensor& gy, const Tensor& gx, const Tensor& gt) {
  with_formula(call, [&](auto formula) {
    using Formula = decltype(formula);
    if (gx.defined()) map_floating(SlopeOf<Formula>{formula, scale}, gx, x, t, gy);
    if (gt.defined()) map_floating(TargetSlopeOf<Formula>{formula, scale}, gt, x, t, gy);
  });
}

}  // namespace cpu
}  // namespace tapedeck
