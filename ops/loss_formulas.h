// The formulas of losses that compare tensors element by element, for every device.
#pragma once

#include <cmath>

#include <tapedeck/ops/loss.h>
#include <tapedeck/ops/scalar_math.h>

namespace tapedeck::formula {

// Each: the loss, its derivative by x, and minus its derivative by t.
struct Squared {
  template <class A>
  TAPEDECK_HD A value(A x, A t) const {
    return (x - t) * (x - t);
  }
  template <class A>
  TAPEDECK_HD A slope(A x, A t) const {
    return 2 * (x - t);
  }
  template <class A>
  TAPEDECK_HD A target_slope(A x, A t) const {
    return slope(x, t);
  }
};

struct Absolute {
  template <class A>
  TAPEDECK_HD A value(A x, A t) const {
    return std::fabs(x - t);
  }
  template <class A>
  TAPEDECK_HD A slope(A x, A t) const {
    const A positive = x > t ? A(1) : A(0), negative = x < t ? A(1) : A(0);
    return positive - negative;
  }
  template <class A>
  TAPEDECK_HD A target_slope(A x, A t) const {
    return slope(x, t);
  }
};

struct Huber {
  double delta;
  template <class A>
  TAPEDECK_HD A value(A x, A t) const {
    const A limit = static_cast<A>(delta), d = std::fabs(x - t);
    const A near = d * d / 2, far = limit * (d - limit / 2);
    return d < limit ? near : far;
  }
  template <class A>
  TAPEDECK_HD A slope(A x, A t) const {
    const A limit = static_cast<A>(delta), d = x - t;
    const A above = d < -limit ? -limit : d;
    return above > limit ? limit : above;
  }
  template <class A>
  TAPEDECK_HD A target_slope(A x, A t) const {
    return slope(x, t);
  }
};

struct Logistic {
  template <class A>
  TAPEDECK_HD A value(A x, A t) const {
    const A least = x > 0 ? x : A(0);
    return least - t * x + math::log1p_of_unit(math::exp(-std::fabs(x)));
  }
  template <class A>
  TAPEDECK_HD A slope(A x, A t) const {
    return math::sigmoid(x) - t;
  }
  template <class A>
  TAPEDECK_HD A target_slope(A x, A) const {
    return x;
  }
};

template <class F>
void with_formula(const PointwiseLossCall& call, const F& f) {
  switch (call.kind) {
    case PointwiseLoss::squared:
      return f(Squared{});
    case PointwiseLoss::absolute:
      return f(Absolute{});
    case PointwiseLoss::huber:
      return f(Huber{call.delta});
    case PointwiseLoss::logistic:
      return f(Logistic{});
  }
}

// What map_floating() takes: the loss, and its gradients.
template <class Formula>
struct ValueOf {
  Formula formula;
  template <class A>
  TAPEDECK_HD A operator()(A x, A t) const {
    return formula.value(x, t);
  }
};
template <class Formula>
struct SlopeOf {
  Formula formula;
  double scale;
  template <class A>
  TAPEDECK_HD A operator()(A x, A t, A gy) const {
    return gy * static_cast<A>(scale) * formula.slope(x, t);
  }
};
template <class Formula>
struct TargetSlopeOf {
  Formula formula;
  double scale;
  template <class A>
  TAPEDECK_HD A operator()(A x, A t, A gy) const {
    return -(gy * static_cast<A>(scale) * formula.target_slope(x, t));
  }
};

}  // namespace tapedeck::formula
