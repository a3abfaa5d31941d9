// The optimizers' updates of one element, for every device (formulas: ops/optimizer_step.h).
//
// A rule is made from the settings and the number t of the parameter's updates, this one included;
// rule(w, g, slots...) changes the slots and returns the new w. A is what parameters are computed in.
#pragma once

#include <cmath>

#include <tapedeck/core/host_device.h>
#include <tapedeck/ops/optimizer_step.h>

namespace tapedeck::formula {

template <class A>
struct Sgd {
  A lr, decay;
  TAPEDECK_HD Sgd(const SgdSettings& s, double)
      : lr(static_cast<A>(s.lr)), decay(static_cast<A>(s.weight_decay)) {}
  TAPEDECK_HD A operator()(A w, A g) const { return w - lr * (g + decay * w); }
};

template <class A>
struct MomentumSgd {
  A lr, decay, momentum, take;
  TAPEDECK_HD MomentumSgd(const SgdSettings& s, double t)
      : lr(static_cast<A>(s.lr)),
        decay(static_cast<A>(s.weight_decay)),
        momentum(static_cast<A>(s.momentum)),
        take(static_cast<A>(t == 1 ? 1 : 1 - s.dampening)) {}
  TAPEDECK_HD A operator()(A w, A g, A& b) const {
    b = momentum * b + take * (g + decay * w);
    return w - lr * b;
  }
};

template <class A>
struct NesterovSgd : MomentumSgd<A> {
  using MomentumSgd<A>::MomentumSgd;
  TAPEDECK_HD A operator()(A w, A g, A& b) const {
    g += this->decay * w;
    b = this->momentum * b + this->take * g;
    return w - this->lr * (g + this->momentum * b);
  }
};

template <class A>
struct Adam {
  A beta1, rest1, beta2, rest2, eps, keep, decay, rate, correction;
  TAPEDECK_HD Adam(const AdamSettings& s, double t)
      : beta1(static_cast<A>(s.beta1)),
        rest1(static_cast<A>(1 - s.beta1)),
        beta2(static_cast<A>(s.beta2)),
        rest2(static_cast<A>(1 - s.beta2)),
        eps(static_cast<A>(s.eps)),
        keep(static_cast<A>(s.decoupled_weight_decay ? 1 - s.lr * s.weight_decay : 1)),
        decay(static_cast<A>(s.decoupled_weight_decay ? 0 : s.weight_decay)),
        rate(static_cast<A>(s.lr / (1 - std::pow(s.beta1, t)))),
        correction(static_cast<A>(std::sqrt(1 - std::pow(s.beta2, t)))) {}
  TAPEDECK_HD void moments(A w, A g, A& m, A& v) const {
    g += decay * w;
    m = beta1 * m + rest1 * g;
    v = beta2 * v + rest2 * g * g;
  }
  TAPEDECK_HD A step(A w, A m, A v) const { return keep * w - rate * m / (std::sqrt(v) / correction + eps); }
  TAPEDECK_HD A operator()(A w, A g, A& m, A& v) const {
    moments(w, g, m, v);
    return step(w, m, v);
  }
};

template <class A>
struct AmsgradAdam : Adam<A> {
  using Adam<A>::Adam;
  TAPEDECK_HD A operator()(A w, A g, A& m, A& v, A& largest) const {
    this->moments(w, g, m, v);
    largest = largest > v ? largest : v;
    return this->step(w, m, largest);
  }
};

template <class A>
struct Rmsprop {
  A lr, eps, decay, alpha, rest, momentum;
  TAPEDECK_HD Rmsprop(const RmspropSettings& s, double)
      : lr(static_cast<A>(s.lr)),
        eps(static_cast<A>(s.eps)),
        decay(static_cast<A>(s.weight_decay)),
        alpha(static_cast<A>(s.alpha)),
        rest(static_cast<A>(1 - s.alpha)),
        momentum(static_cast<A>(s.momentum)) {}
  TAPEDECK_HD A direction(A w, A g, A& v) const {
    g += decay * w;
    v = alpha * v + rest * g * g;
    return g / (std::sqrt(v) + eps);
  }
  TAPEDECK_HD A centered_direction(A w, A g, A& v, A& a) const {
    g += decay * w;
    v = alpha * v + rest * g * g;
    a = alpha * a + rest * g;
    const A variance = v - a * a;  // rounding may leave it negative where the gradient hardly varies
    return g / (std::sqrt(variance > 0 ? variance : 0) + eps);
  }
  TAPEDECK_HD A operator()(A w, A g, A& v) const { return w - lr * direction(w, g, v); }
};

template <class A>
struct MomentumRmsprop : Rmsprop<A> {
  using Rmsprop<A>::Rmsprop;
  TAPEDECK_HD A operator()(A w, A g, A& v, A& b) const {
    b = this->momentum * b + this->direction(w, g, v);
    return w - this->lr * b;
  }
};

template <class A>
struct CenteredRmsprop : Rmsprop<A> {
  using Rmsprop<A>::Rmsprop;
  TAPEDECK_HD A operator()(A w, A g, A& v, A& a) const {
    return w - this->lr * this->centered_direction(w, g, v, a);
  }
};

template <class A>
struct CenteredMomentumRmsprop : Rmsprop<A> {
  using Rmsprop<A>::Rmsprop;
  TAPEDECK_HD A operator()(A w, A g, A& v, A& a, A& b) const {
    b = this->momentum * b + this->centered_direction(w, g, v, a);
    return w - this->lr * b;
  }
};

/// The settings that OptimizerBatch::live holds.
TAPEDECK_HD inline void set_live(SgdSettings& s, const double* live) {
  s.lr = live[0], s.momentum = live[1], s.weight_decay = live[2];
}
TAPEDECK_HD inline void set_live(AdamSettings& s, const double* live) {
  s.lr = live[0], s.beta1 = live[1], s.weight_decay = live[2];
}
TAPEDECK_HD inline void set_live(RmspropSettings& s, const double* live) {
  s.lr = live[0], s.momentum = live[1], s.weight_decay = live[2];
}

/// Calls f.template operator()<Rule, slots>() with the rule for the settings and a batch with so many slots.
template <class A, class F>
void visit_rule(const SgdSettings& s, std::size_t, const F& f) {
  if (s.momentum == 0) return f.template operator()<Sgd<A>, 0>();
  if (s.nesterov) return f.template operator()<NesterovSgd<A>, 1>();
  f.template operator()<MomentumSgd<A>, 1>();
}
template <class A, class F>
void visit_rule(const AdamSettings&, std::size_t slots, const F& f) {
  if (slots == 2) return f.template operator()<Adam<A>, 2>();
  f.template operator()<AmsgradAdam<A>, 3>();
}
template <class A, class F>
void visit_rule(const RmspropSettings& s, std::size_t, const F& f) {
  if (!s.centered && s.momentum == 0) return f.template operator()<Rmsprop<A>, 1>();
  if (!s.centered) return f.template operator()<MomentumRmsprop<A>, 2>();
  if (s.momentum == 0) return f.template operator()<CenteredRmsprop<A>, 2>();
  f.template operator()<CenteredMomentumRmsprop<A>, 3>();
}

/// update_scale() of ops/optimizer_step.h.
TAPEDECK_HD inline void update_scale(float& scale, std::int64_t& updates, std::uint8_t& overflow,
                                     double growth, double backoff, std::int64_t interval) {
  constexpr double kLargest = 3.4e38;
  if (overflow != 0) {
    scale = static_cast<float>(scale * backoff);
    updates = 0;
  } else if (++updates == interval) {
    if (scale * growth < kLargest) scale = static_cast<float>(scale * growth);
    updates = 0;
  }
  overflow = 0;
}

}  // namespace tapedeck::formula
