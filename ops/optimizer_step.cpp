#include <tapedeck/ops/optimizer_step.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/block_sum.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/optimizer_formulas.h>

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

/// What each update starts with: throws Error unless the batch fits together and has `slots` slots, and
/// counts the new version of the parameters. False when there is nothing to do.
bool begin_update(const char* op, const OptimizerBatch& batch, std::size_t slots) {
  check(batch.slots.size() == slots, op, ": ", batch.slots.size(), " slots are given; legal is ", slots);
  check_optimizer_batch(op, batch);
  for (const Tensor& parameter : batch.parameters) parameter.bump_version();
  return !batch.parameters.empty();
}

}  // namespace

void check_optimizer_batch(const char* op, const OptimizerBatch& batch) {
  const std::size_t count = batch.parameters.size();
  check(batch.gradients.size() == count && batch.steps.size() == count, op, ": ", count, " parameters but ",
        batch.gradients.size(), " gradients and ", batch.steps.size(), " counters are given");
  for (std::size_t i = 0; i < count; ++i) {
    const Tensor& parameter = batch.parameters[i];
    check_same_kind(op, "parameter 0", batch.parameters[0], "another parameter", parameter);
    check_floating(op, "parameter", parameter);
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
  if (count == 0) return;
  const Device device = batch.parameters[0].device();
  const Tensor& live = batch.live;
  check(!live.defined() || (live.dtype() == DType::float64 && live.count() == 3 && live.device() == device),
        op, ": live is ", live, "; legal are three float64 on ", device);
  check(!batch.skip.defined() ||
            (batch.skip.dtype() == DType::uint8 && batch.skip.count() == 1 && batch.skip.device() == device),
        op, ": skip is ", batch.skip, "; legal is one uint8 on ", device);
}

void sgd_step(const OptimizerBatch& batch, const SgdSettings& settings) {
  if (!begin_update("sgd", batch, settings.momentum != 0 ? 1 : 0)) return;
  TAPEDECK_KERNEL(batch.parameters[0].device(), sgd)(batch, settings);
}

void adam_step(const OptimizerBatch& batch, const AdamSettings& settings) {
  if (!begin_update("adam", batch, batch.slots.size() == 3 ? 3 : 2)) return;
  TAPEDECK_KERNEL(batch.parameters[0].device(), adam)(batch, settings);
}

void rmsprop_step(const OptimizerBatch& batch, const RmspropSettings& settings) {
  const std::size_t slots = 1u + (settings.centered ? 1 : 0) + (settings.momentum != 0 ? 1 : 0);
  if (!begin_update("rmsprop", batch, slots)) return;
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

void update_averages(const Tensors& averages, const Tensors& values, double decay, const Tensor& live_decay) {
  check(averages.size() == values.size(), "update_averages: ", averages.size(), " averages but ",
        values.size(), " values are given");
  if (values.empty()) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    check_same_kind("update_averages", "value 0", values[0], "another value", values[i]);
    check_like("update_averages", "average", averages[i], slot_dtype(values[i].dtype()), values[i]);
    averages[i].bump_version();
  }
  TAPEDECK_KERNEL(values[0].device(), update_averages)(averages, values, decay, live_decay);
}

Tensors unscale(const Tensors& gradients, const LossScale& loss) {
  Tensors out;
  for (const Tensor& x : gradients) {
    check_same_kind("unscale", "gradient 0", gradients[0], "another gradient", x);
    check_floating("unscale", "a gradient", x);
    check(x.device() == loss.scale.device(), "unscale: a gradient is on ", x.device(),
          " but the scale is on ", loss.scale.device());
    out.push_back(Tensor::empty_like(x));
  }
  if (!out.empty()) TAPEDECK_KERNEL(loss.scale.device(), unscale)(gradients, loss, out);
  return out;
}

void update_scale(const LossScale& loss, double growth, double backoff, std::int64_t interval) {
  loss.scale.bump_version();
  TAPEDECK_KERNEL(loss.scale.device(), update_scale)(loss, growth, backoff, interval);
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

/// Updates all parameters by the rule for `settings`.
template <class Settings>
void update(const char* op, const OptimizerBatch& batch, Settings settings) {
  if (batch.skip.defined() && *batch.skip.data<std::uint8_t>() != 0) return;
  count_step(batch);
  if (batch.live.defined()) formula::set_live(settings, batch.live.data<double>());
  visit_floating(op, batch.parameters[0].dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    formula::visit_rule<A>(settings, batch.slots.size(), [&]<class Rule, std::size_t kSlots>() {
      for_each_piece(batch.parameters, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
        const Rule rule(settings, static_cast<double>(*batch.steps[i].data<std::int64_t>()));
        [&]<std::size_t... k>(std::index_sequence<k...>) {
          update_run(rule, end - begin, batch.parameters[i].data<T>() + begin,
                     batch.gradients[i].data<T>() + begin, batch.slots[k][i].template data<A>() + begin...);
        }
        (std::make_index_sequence<kSlots>());
      });
    });
  });
}

}  // namespace

void sgd(const OptimizerBatch& batch, const SgdSettings& s) {
  update("sgd", batch, s);
}
void adam(const OptimizerBatch& batch, const AdamSettings& s) {
  update("adam", batch, s);
}
void rmsprop(const OptimizerBatch& batch, const RmspropSettings& s) {
  update("rmsprop", batch, s);
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

void update_averages(const Tensors& averages, const Tensors& values, double fixed_decay,
                     const Tensor& live_decay) {
  const double decay = live_decay.defined() ? *live_decay.data<double>() : fixed_decay;
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

void unscale(const Tensors& gradients, const LossScale& loss, const Tensors& out) {
  const float scale = *loss.scale.data<float>();
  std::atomic<bool> overflow = false;
  for_each_piece(gradients, [&](std::size_t i, std::int64_t begin, std::int64_t end) {
    visit_floating("unscale", gradients[i].dtype(), [&]<class T>() {
      using A = accumulate_t<T>;
      const A factor = 1 / static_cast<A>(scale);
      const T* in = gradients[i].data<T>();
      T* to = out[i].data<T>();
      bool finite = true;
      for (std::int64_t k = begin; k < end; ++k) {
        const A value = convert<A>(in[k]) * factor;
        finite = finite && std::isfinite(value);
        to[k] = convert<T>(value);
      }
      if (!finite) overflow = true;
    });
  });
  if (overflow) *loss.overflow.data<std::uint8_t>() = 1;
}

void update_scale(const LossScale& loss, double growth, double backoff, std::int64_t interval) {
  formula::update_scale(*loss.scale.data<float>(), *loss.growth.data<std::int64_t>(),
                        *loss.overflow.data<std::uint8_t>(), growth, backoff, interval);
}

}  // namespace cpu
}  // namespace tapedeck
