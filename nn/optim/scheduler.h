// Schedulers: the learning rate as a function of the step.
//
//   optim::CosineAnnealingLR schedule(optimizer, {.t_max = 100});
//   for (int epoch = 0; epoch < 100; ++epoch) { train_one_epoch(); schedule.step(); }
//
// Names and definitions are those of torch.optim.lr_scheduler. Each is a closed formula of the number of
// steps t and the group's learning rate at the start, lr0, so nothing drifts and a schedule continues
// anywhere. Making a scheduler sets the optimizer to t = 0.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <tapedeck/nn/optim/optimizer.h>

namespace tapedeck::optim {

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Counts a step and sets the optimizer's groups for it.
  void step();
  /// The number of steps so far.
  std::int64_t steps() const { return steps_; }

  /// Sets the optimizer's groups for step t, without counting.
  virtual void apply(std::int64_t t) const;

  /// "steps" and "initial_lr"; of the i-th scheduler that this one is made of, "scheduler.i.steps" and so on.
  nn::StateDict state_dict() const;
  /// Continues from `state`: the learning rates are from then on those of an unbroken run, whatever they
  /// were when this scheduler was made. Also sets the optimizer's groups. Throws Error, before anything
  /// changes, when `state` does not fit.
  void load_state_dict(const nn::StateDict& state);

 protected:
  explicit Scheduler(Optimizer& optimizer);
  /// The learning rate at step t of a group that started with lr0.
  virtual double lr(double lr0, std::int64_t t) const = 0;
  /// The schedulers that this one is made of; their state is part of its own.
  virtual std::vector<Scheduler*> parts() const { return {}; }
  Optimizer& optimizer() const { return optimizer_; }

 private:
  /// A state that has been read and waits to take its scheduler's place.
  struct Read {
    Scheduler* scheduler;
    std::vector<double> initial_lr;
    std::int64_t steps;
  };
  void add_state(const std::string& path, nn::StateDict& all) const;
  void read(const nn::StateDict& state, const std::string& path, std::vector<Read>& all);

  Optimizer& optimizer_;
  std::vector<double> initial_lr_;  // by group
  std::int64_t steps_ = 0;
};

/// lr0 gamma^floor(t / step_size).
class StepLR final : public Scheduler {
 public:
  struct Options {
    std::int64_t step_size;
    double gamma = 0.1;
  };
  StepLR(Optimizer& optimizer, const Options& options);

 private:
  double lr(double lr0, std::int64_t t) const override;
  Options options_;
};

/// lr0 gamma^(how many of `milestones` are <= t).
class MultiStepLR final : public Scheduler {
 public:
  struct Options {
    std::vector<std::int64_t> milestones;
    double gamma = 0.1;
  };
  MultiStepLR(Optimizer& optimizer, const Options& options);

 private:
  double lr(double lr0, std::int64_t t) const override;
  Options options_;
};

/// lr0 gamma^t.
class ExponentialLR final : public Scheduler {
 public:
  struct Options {
    double gamma;
  };
  ExponentialLR(Optimizer& optimizer, const Options& options);

 private:
  double lr(double lr0, std::int64_t t) const override;
  Options options_;
};

/// eta_min + (lr0 - eta_min) (1 + cos(pi t / t_max)) / 2: down until t_max, then up again.
class CosineAnnealingLR final : public Scheduler {
 public:
  struct Options {
    std::int64_t t_max;
    double eta_min = 0;
  };
  CosineAnnealingLR(Optimizer& optimizer, const Options& options);

 private:
  double lr(double lr0, std::int64_t t) const override;
  Options options_;
};

/// The cosine's way down in cycles of t_0, t_0 t_mult, t_0 t_mult^2 ... steps (Loshchilov and Hutter, 2017).
class CosineAnnealingWarmRestarts final : public Scheduler {
 public:
  struct Options {
    std::int64_t t_0;
    std::int64_t t_mult = 1;
    double eta_min = 0;
  };
  CosineAnnealingWarmRestarts(Optimizer& optimizer, const Options& options);

 private:
  double lr(double lr0, std::int64_t t) const override;
  Options options_;
};

/// lr0 times a factor that goes from start_factor to end_factor in total_iters steps and stays there
/// (torch's LinearLR).
class LinearWarmup final : public Scheduler {
 public:
  struct Options {
    std::int64_t total_iters = 5;
    double start_factor = 1.0 / 3;
    double end_factor = 1;
  };
  LinearWarmup(Optimizer& optimizer, const Options& options);

 private:
  double lr(double lr0, std::int64_t t) const override;
  Options options_;
};

/// Up to max_lr and down to almost nothing, with the momentum (Adam's beta1) going the other way (Smith and
/// Topin, 2019). lr0 does not count. A step beyond `total_steps` throws Error.
class OneCycleLR final : public Scheduler {
 public:
  enum class Anneal { cosine, linear };
  struct Options {
    double max_lr;
    std::int64_t total_steps;
    double pct_start = 0.3;  ///< the part of the steps that goes up
    Anneal anneal = Anneal::cosine;
    bool cycle_momentum = true;
    double base_momentum = 0.85, max_momentum = 0.95;
    double div_factor = 25;         ///< the first learning rate is max_lr / div_factor,
    double final_div_factor = 1e4;  ///< and the last that / final_div_factor
    bool three_phase = false;       ///< down to the first learning rate as fast as up, and then to the last
  };
  OneCycleLR(Optimizer& optimizer, const Options& options);
  void apply(std::int64_t t) const override;

 private:
  double lr(double lr0, std::int64_t t) const override;
  /// The value at step t that is `low` first, `high` at the top and `last` at the end.
  double cycle(double low, double high, double last, std::int64_t t) const;
  Options options_;
};

/// Schedulers of one optimizer one after the other: number i from milestones[i - 1] on, where it starts
/// from its own step 0. For example a warm-up and then a cosine.
class SequentialLR final : public Scheduler {
 public:
  SequentialLR(Optimizer& optimizer, std::vector<std::shared_ptr<Scheduler>> schedulers,
               std::vector<std::int64_t> milestones);
  void apply(std::int64_t t) const override;

 private:
  double lr(double lr0, std::int64_t) const override { return lr0; }
  std::vector<Scheduler*> parts() const override;
  std::vector<std::shared_ptr<Scheduler>> schedulers_;
  std::vector<std::int64_t> milestones_;
};

/// Multiplies the learning rates by `factor` when a metric has not improved for more than `patience` steps.
class ReduceLROnPlateau {
 public:
  enum class Mode { min, max };
  enum class Threshold { relative, absolute };
  struct Options {
    Mode mode = Mode::min;  ///< whether a smaller or a larger metric is better
    double factor = 0.1;    ///< in (0, 1)
    std::int64_t patience = 10;
    double threshold = 1e-4;  ///< how much better counts: of the best so far, or absolute
    Threshold threshold_mode = Threshold::relative;
    std::int64_t cooldown = 0;  ///< steps after a reduction in which nothing is counted
    double min_lr = 0;
    double eps = 1e-8;  ///< a smaller reduction is not made
  };
  ReduceLROnPlateau(Optimizer& optimizer, const Options& options);
  ReduceLROnPlateau(const ReduceLROnPlateau&) = delete;
  ReduceLROnPlateau& operator=(const ReduceLROnPlateau&) = delete;

  void step(double metric);

  /// "best", "bad_steps" and "cooldown". The learning rates are in the optimizer's state.
  nn::StateDict state_dict() const;
  /// Throws Error, before anything changes, when `state` does not fit.
  void load_state_dict(const nn::StateDict& state);

 private:
  bool improves(double metric) const;

  Optimizer& optimizer_;
  Options options_;
  double best_;
  std::int64_t bad_steps_ = 0, cooldown_ = 0;
};

}  // namespace tapedeck::optim
