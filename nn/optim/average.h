// Averages of weights.
#pragma once

#include <tapedeck/nn/module.h>

namespace tapedeck::optim {

/// Exponential moving averages of parameters: often better weights than the last ones. Buffers, such as
/// the running statistics of BatchNorm, are not averaged: with the averages swapped in, a module goes on
/// with its own present ones (as torch's AveragedModel does with use_buffers=False). They belong to the last
/// weights; a model for which that matters runs some batches in training mode while the averages are in.
///
///   optim::ExponentialMovingAverage average(model.parameters(), {.decay = 0.999});
///   for (...) { ...; optimizer.step(); average.update(); }
///   { const auto averaged = average.swap_in(); evaluate(model); }
class ExponentialMovingAverage {
 public:
  struct Options {
    double decay = 0.999;  ///< in [0, 1]
    /// Update t, from 1, decays by min(decay, (1 + t) / (10 + t)), so that the start is soon forgotten.
    bool warmup = false;
  };

  /// The averages start as copies of the parameters. Throws Error when `decay` is out of range.
  ExponentialMovingAverage(Variables parameters, const Options& options);
  ExponentialMovingAverage(const ExponentialMovingAverage&) = delete;
  ExponentialMovingAverage& operator=(const ExponentialMovingAverage&) = delete;

  /// average = decay average + (1 - decay) parameter. Throws Error while they are swapped in.
  void update();

  /// While it lives, the parameters hold copies of the averages; then, however the scope is left, they hold
  /// again what they held before. What is written to them meanwhile is lost.
  class Scope {
   public:
    explicit Scope(ExponentialMovingAverage& average);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ExponentialMovingAverage& average_;
    Tensors held_;
  };
  /// Throws Error while they are swapped in already.
  [[nodiscard]] Scope swap_in() { return Scope(*this); }

  /// "updates" (int64), and the average of parameter i as "average.i". The tensors are its own, not copies.
  nn::StateDict state_dict() const;
  /// Throws Error, before anything changes, when `state` does not fit.
  void load_state_dict(const nn::StateDict& state);

 private:
  Variables parameters_;
  Tensors averages_;
  Options options_;
  std::int64_t updates_ = 0;
  bool swapped_ = false;
};

}  // namespace tapedeck::optim
