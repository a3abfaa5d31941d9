#include <tapedeck/ops/optimizer_step.h>

#include <algorithm>
#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
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

/// Picks `true` or `false` at compile time, so that loops have no branches.
template <class F>
void with_flag(bool flag, const F& f) {
  flag ? f(std::true_type{}) : f(std::false_type{});
}

}  // namespace

void sgd(const OptimizerBatch& batch, const SgdSettings& s) {
  count_step(batch);
  visit_floating("sgd", batch.parameters[0].dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const A lr = static_cast<A>(s.lr), decay = static_cast<A>(s.weight_decay);
    const A momentum = static_cast<A>(s.momentum);
    for_each_piece(batch.parameters, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      T* p = batch.parameters[i].data<T>();
      const T* g = batch.gradients[i].data<T>();
      if (batch.slots.empty()) {
        for (std::int64_t k = begin; k < end; ++k) {
          const A w = convert<A>(p[k]);
          p[k] = convert<T>(w - lr * (convert<A>(g[k]) + decay * w));
        }
        return;
      }
      A* b = batch.slots[0][i].data<A>();
      const bool first = *batch.steps[i].data<std::int64_t>() == 1;
      const A take = static_cast<A>(first ? 1 : 1 - s.dampening);
      with_flag(s.nesterov, [&](auto nesterov) {
        for (std::int64_t k = begin; k < end; ++k) {
          const A w = convert<A>(p[k]), grad = convert<A>(g[k]) + decay * w;
          const A velocity = momentum * b[k] + take * grad;
          b[k] = velocity;
          p[k] = convert<T>(w - lr * (nesterov ? grad + momentum * velocity : velocity));
        }
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
    const A shrink = static_cast<A>(s.decoupled_weight_decay ? 1 - s.lr * s.weight_decay : 1);
    const A decay = static_cast<A>(s.decoupled_weight_decay ? 0 : s.weight_decay);
    for_each_piece(batch.parameters, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      const auto t = static_cast<double>(*batch.steps[i].data<std::int64_t>());
      const A rate = static_cast<A>(s.lr / (1 - std::pow(s.beta1, t)));
      const A correction = static_cast<A>(std::sqrt(1 - std::pow(s.beta2, t)));
      T* p = batch.parameters[i].data<T>();
      const T* g = batch.gradients[i].data<T>();
      A* m = batch.slots[0][i].data<A>();
      A* v = batch.slots[1][i].data<A>();
      const bool has_maximum = batch.slots.size() == 3;
      A* maximum = has_maximum ? batch.slots[2][i].data<A>() : v;
      with_flag(has_maximum, [&](auto amsgrad) {
        for (std::int64_t k = begin; k < end; ++k) {
          const A w = convert<A>(p[k]) * shrink, grad = convert<A>(g[k]) + decay * w;
          const A first = beta1 * m[k] + rest1 * grad;
          A second = beta2 * v[k] + rest2 * grad * grad;
          m[k] = first;
          v[k] = second;
          if constexpr (amsgrad) maximum[k] = second = maximum[k] > second ? maximum[k] : second;
          p[k] = convert<T>(w - rate * first / (std::sqrt(second) / correction + eps));
        }
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
    for_each_piece(batch.parameters, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
      T* p = batch.parameters[i].data<T>();
      const T* g = batch.gradients[i].data<T>();
      A* v = batch.slots[0][i].data<A>();
      A* mean = s.centered ? batch.slots[1][i].data<A>() : nullptr;
      A* b = s.momentum != 0 ? batch.slots.back()[i].data<A>() : nullptr;
      with_flag(s.centered, [&](auto centered) {
        with_flag(s.momentum != 0, [&](auto has_momentum) {
          for (std::int64_t k = begin; k < end; ++k) {
            const A w = convert<A>(p[k]), grad = convert<A>(g[k]) + decay * w;
            A second = alpha * v[k] + rest * grad * grad;
            v[k] = second;
            if constexpr (centered) {
              mean[k] = alpha * mean[k] + rest * grad;
              second -= mean[k] * mean[k];
              second = second > 0 ? second : 0;  // rounding, where the gradient hardly varies
            }
            A step = grad / (std::sqrt(second) + eps);
            if constexpr (has_momentum) b[k] = step = momentum * b[k] + step;
            p[k] = convert<T>(w - lr * step);
          }
        });
      });
    });
  });
}

void global_norm(const Tensors& xs, const Tensor& out) {
  double sum = 0;
  for (const Tensor& x : xs) {
    visit_floating("global_norm", x.dtype(), [&]<class T>() {
      const T* in = x.data<T>();
      sum += block_sum(x.count(), [in](std::int64_t i) {
        const double value = convert<double>(in[i]);
        return value * value;
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
