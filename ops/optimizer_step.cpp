#include <tapedeck/ops/optimizer_step.h>

#include <algorithm>
#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/block_sum.h>
#include <tapedeck/ops/checks.h>

namespace tapedeck {

namespace {

DType slot_dtype(DType parameter) {
  return size_of(parameter) == 2 ? DType::float32 : parameter;
}

void check_like(const char* op, const char* name, const Tensor& tensor, DType dtype,
                const Tensor& parameter) {
  check_defined(op, name, tensor);
  check(tensor.shape() == parameter.shape() && tensor.layout() == parameter.layout() &&
            tensor.dtype() == dtype && tensor.device() == parameter.device(),
        op, ": the ", name, " is ", tensor, " but its parameter is ", parameter);
}

/// Throws Error unless the batch fits together and has `slots` slots. False when there is nothing to do.
bool check_batch(const char* op, const OptimizerBatch& batch, std::size_t slots) {
  const std::size_t count = batch.parameters.size();
  check(batch.slots.size() == slots, op, ": ", batch.slots.size(), " slots are given; legal is ", slots);
  check(batch.gradients.size() == count && batch.steps.size() == count, op, ": ", count, " parameters but ",
        batch.gradients.size(), " gradients and ", batch.steps.size(), " counters are given");
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& parameter = batch.parameters[i];
    check_same_kind(op, "parameter 0", batch.parameters[0], "another parameter", parameter);
    check_like(op, "gradient", batch.gradients[i], parameter.dtype(), parameter);
    const Tensor& step = batch.steps[i];
    check(step.defined() && step.dtype() == DType::int64 && step.count() == 1 &&
              step.device() == parameter.device(),
          op, ": a counter is ", step, "; legal is one int64 on ", parameter.device());
    for (const Tensors& slot : batch.slots) {
      check(slot.size() == count, op, ": ", count, " parameters but a slot of ", slot.size(), " is given");
      check_like(op, "slot", slot[i], slot_dtype(parameter.dtype()), parameter);
    }
  }
  return count > 0;
}

}  // namespace

void sgd_step(const OptimizerBatch& batch, const SgdSettings& settings) {
  if (!check_batch("sgd", batch, settings.momentum != 0 ? 1 : 0)) return;
  TAPEDECK_KERNEL(batch.parameters[0].device(), sgd)(batch, settings);
}

void adam_step(const OptimizerBatch& batch, const AdamSettings& settings) {
  if (!check_batch("adam", batch, batch.slots.size() == 3 ? 3 : 2)) return;
  TAPEDECK_KERNEL(batch.parameters[0].device(), adam)(batch, settings);
}

void rmsprop_step(const OptimizerBatch& batch, const RmspropSettings& settings) {
  const std::size_t slots = 1u + (settings.centered ? 1 : 0) + (settings.momentum != 0 ? 1 : 0);
  if (!check_batch("rmsprop", batch, slots)) return;
  TAPEDECK_KERNEL(batch.parameters[0].device(), rmsprop)(batch, settings);
}

Tensor global_norm(const Tensors& xs) {
  const Device device = xs.empty() ? Device{} : xs[0].device();
  for (const Tensor& x : xs) {
    check_same_kind("global_norm", "tensor 0", xs[0], "another tensor", x);
    check(is_floating(x.dtype()), "global_norm: dtype ", x.dtype(),
          " is not legal; legal are the floating types");
  }
  Tensor norm = Tensor::empty({}, {.dtype = DType::float64, .device = device});
  TAPEDECK_KERNEL(device, global_norm)(xs, norm);
  return norm;
}

Tensors scale_to_norm(const Tensors& xs, const Tensor& norm, double max_norm) {
  check(max_norm >= 0, "scale_to_norm: max_norm ", max_norm, " is not legal; legal is 0 or more");
  check(norm.defined() && norm.dtype() == DType::float64 && norm.count() == 1, "scale_to_norm: norm is ",
        norm, "; legal is one float64");
  Tensors out;
  for (const Tensor& x : xs) out.push_back(Tensor::empty_like(x));
  TAPEDECK_KERNEL(norm.device(), scale_to_norm)(xs, norm, max_norm, out);
  return out;
}

void update_averages(const Tensors& averages, const Tensors& values, double decay) {
  check(averages.size() == values.size(), "update_averages: ", averages.size(), " averages but ",
        values.size(), " values are given");
  if (values.empty()) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    check_same_kind("update_averages", "value 0", values[0], "another value", values[i]);
    check_like("update_averages", "average", averages[i], slot_dtype(values[i].dtype()), values[i]);
  }
  TAPEDECK_KERNEL(values[0].device(), update_averages)(averages, values, decay);
}

namespace cpu {

namespace {

/// Calls `f(i, begin, end)` for pieces of all tensors, in parallel.
template <class F>
void for_each_piece(const Tensors& tensors, const F& f) {
  constexpr std::int64_t kPiece = 8192;
  struct Piece {
    std::size_t tensor;
    std::int64_t begin, end;
  };
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::int64_t at = 0; at < tensors[i].count(); at += kPiece) {
      pieces.push_back({i, at, std::min(at + kPiece, tensors[i].count())});
    }
  }
  parallel_for(static_cast<std::int64_t>(pieces.size()), 2, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      const Piece& piece = pieces[static_cast<std::size_t>(k)];
      f(piece.tensor, piece.begin, piece.end);
    }
  });
}

void count_step(const OptimizerBatch& batch) {
  for (const Tensor& step : batch.steps) ++*step.data<std::int64_t>();
}

/// p[k] = rule(p[k], g[k], slot[k]...) for n neighbours; the rule changes the slots.
template <class T, class Rule, class... A>
void update_run(const Rule& rule, std::int64_t n, T* p, const T* g, A*... slots) {
  const auto loop = [n, rule](T* __restrict w, const T* __restrict grad, A* __restrict... slot) {
    for (std::int64_t k = 0; k < n; ++k) {
      w[k] = convert<T>(rule(convert<accumulate_t<T>>(w[k]), convert<accumulate_t<T>>(grad[k]), slot[k]...));
    }
  };
  simd([&] { loop(p, g, slots...); });
}

/// The same for the elements [begin, end) of parameter i, with the batch's slots `kSlots`.
template <class T, int... kSlots, class Rule>
void update(const OptimizerBatch& batch, std::size_t i, std::int64_t begin, std::int64_t end,
            const Rule& rule) {
  update_run(rule, end - begin, batch.parameters[i].data<T>() + begin, batch.gradients[i].data<T>() + begin,
             batch.slots[kSlots][i].template data<accumulate_t<T>>() + begin...);
}

}  // namespace

void sgd(const OptimizerBatch& batch, const SgdSettings& s) {
  count_step(batch);
  visit_floating("sgd", batch.parameters[0].dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const A lr = static_cast<A>(s.lr), decay = static_cast<A>(s.weight_decay);
    const A momentum = static_cast<A>(s.momentum);
    for_each_piece(batch.parameters, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      if (s.momentum == 0) {
        return update<T>(batch, i, begin, end, [=](A w, A g) { return w - lr * (g + decay * w); });
      }
      const bool first = *batch.steps[i].data<std::int64_t>() == 1;
      const A take = static_cast<A>(first ? 1 : 1 - s.dampening);
      if (s.nesterov) {
        return update<T, 0>(batch, i, begin, end, [=](A w, A g, A& b) {
          g += decay * w;
          b = momentum * b + take * g;
          return w - lr * (g + momentum * b);
        });
      }
      update<T, 0>(batch, i, begin, end, [=](A w, A g, A& b) {
        b = momentum * b + take * (g + decay * w);
        return w - lr * b;
      });
    });
  });
}

void adam(const OptimizerBatch& batch, const AdamSettings& s) {
  count_step(batch);
  visit_floating("adam", batch.parameters[0].dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const A beta1 = static_cast<A>(s.beta1), rest1 = static_cast<A>(1 - s.beta1);
    const A beta2 = static_cast<A>(s.beta2), rest2 = static_cast<A>(1 - s.beta2);
    const A eps = static_cast<A>(s.eps);
    const A keep = static_cast<A>(s.decoupled_weight_decay ? 1 - s.lr * s.weight_decay : 1);
    const A decay = static_cast<A>(s.decoupled_weight_decay ? 0 : s.weight_decay);
    for_each_piece(batch.parameters, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      const auto t = static_cast<double>(*batch.steps[i].data<std::int64_t>());
      const A rate = static_cast<A>(s.lr / (1 - std::pow(s.beta1, t)));
      const A correction = static_cast<A>(std::sqrt(1 - std::pow(s.beta2, t)));
      const auto moments = [=](A w, A g, A& m, A& v) {
        g += decay * w;
        m = beta1 * m + rest1 * g;
        v = beta2 * v + rest2 * g * g;
      };
      const auto step = [=](A w, A m, A v) {
        return keep * w - rate * m / (std::sqrt(v) / correction + eps);
      };
      if (batch.slots.size() == 2) {
        return update<T, 0, 1>(batch, i, begin, end, [=](A w, A g, A& m, A& v) {
          moments(w, g, m, v);
          return step(w, m, v);
        });
      }
      update<T, 0, 1, 2>(batch, i, begin, end, [=](A w, A g, A& m, A& v, A& largest) {
        moments(w, g, m, v);
        largest = largest > v ? largest : v;
        return step(w, m, largest);
      });
    });
  });
}

void rmsprop(const OptimizerBatch& batch, const RmspropSettings& s) {
  count_step(batch);
  visit_floating("rmsprop", batch.parameters[0].dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const A lr = static_cast<A>(s.lr), eps = static_cast<A>(s.eps), decay = static_cast<A>(s.weight_decay);
    const A alpha = static_cast<A>(s.alpha), rest = static_cast<A>(1 - s.alpha);
    const A momentum = static_cast<A>(s.momentum);
    const auto plain = [=](A w, A g, A& v) {
      g += decay * w;
      v = alpha * v + rest * g * g;
      return g / (std::sqrt(v) + eps);
    };
    const auto centered = [=](A w, A g, A& v, A& a) {
      g += decay * w;
      v = alpha * v + rest * g * g;
      a = alpha * a + rest * g;
      const A variance = v - a * a;  // rounding may leave it negative where the gradient hardly varies
      return g / (std::sqrt(variance > 0 ? variance : 0) + eps);
    };
    for_each_piece(batch.parameters, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      if (!s.centered && s.momentum == 0) {
        return update<T, 0>(batch, i, begin, end, [=](A w, A g, A& v) { return w - lr * plain(w, g, v); });
      }
      if (!s.centered) {
        return update<T, 0, 1>(batch, i, begin, end, [=](A w, A g, A& v, A& b) {
          b = momentum * b + plain(w, g, v);
          return w - lr * b;
        });
      }
      if (s.momentum == 0) {
        return update<T, 0, 1>(batch, i, begin, end,
                               [=](A w, A g, A& v, A& a) { return w - lr * centered(w, g, v, a); });
      }
      update<T, 0, 1, 2>(batch, i, begin, end, [=](A w, A g, A& v, A& a, A& b) {
        b = momentum * b + centered(w, g, v, a);
        return w - lr * b;
      });
    });
  });
}

void global_norm(const Tensors& xs, const Tensor& out) {
  double sum = 0;
  for (const Tensor& x : xs) {
    visit_floating("global_norm", x.dtype(), [&]<class T>() {
      const T* in = x.data<T>();
      sum += block_sum(x.count(), [in](std::int64_t begin, std::int64_t end) {
        return lane_sum(begin, end, [in](std::int64_t i) {
          const double value = convert<double>(in[i]);
          return value * value;
        });
      });
    });
  }
  *out.data<double>() = std::sqrt(sum);
}

void scale_to_norm(const Tensors& xs, const Tensor& norm, double max_norm, const Tensors& out) {
  const double ratio = max_norm / (*norm.data<double>() + 1e-6);
  const double scale = ratio > 1 ? 1 : ratio;  // a NaN stays one
  for_each_piece(xs, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    visit_floating("scale_to_norm", xs[i].dtype(), [&]<class T>() {
      using A = accumulate_t<T>;
      const A factor = static_cast<A>(scale);
      const T* in = xs[i].data<T>();
      T* to = out[i].data<T>();
      for (std::int64_t k = begin; k < end; ++k) to[k] = convert<T>(convert<A>(in[k]) * factor);
    });
  });
}

void update_averages(const Tensors& averages, const Tensors& values, double decay) {
  for_each_piece(values, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    visit_floating("update_averages", values[i].dtype(), [&]<class T>() {
      using A = accumulate_t<T>;
      const A keep = static_cast<A>(decay), take = static_cast<A>(1 - decay);
      A* average = averages[i].data<A>();
      const T* value = values[i].data<T>();
      for (std::int64_t k = begin; k < end; ++k) average[k] = keep * average[k] + take * convert<A>(value[k]);
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
