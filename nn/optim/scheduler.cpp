#include <tapedeck/nn/optim/scheduler.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace tapedeck::optim {

namespace {

/// From `start` (at 0) to `end` (at 1) along half a cosine.
double cosine(double start, double end, double part) {
  return end + (start - end) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

/// The entry `name` with `count` elements. Throws Error when there is none.
Tensor entry(const nn::StateDict& state, const std::string& name, std::int64_t count) {
  const auto found = std::find_if(state.begin(), state.end(), [&](const auto& e) { return e.first == name; });
  check(found != state.end() && found->second.defined(), "scheduler: ", name, " is missing");
  check(found->second.count() == count, "scheduler: ", name, " has ", found->second.count(),
        " elements; legal is ", count);
  return found->second;
}

void check_at_least(const char* kind, const char* name, std::int64_t value, std::int64_t least) {
  check(value >= least, kind, ": ", name, " ", value, " is not legal; legal is ", least, " or more");
}

}  // namespace

Scheduler::Scheduler(Optimizer& optimizer) : optimizer_(optimizer) {
  for (auto& group : optimizer.groups()) {
    if (!group.initial_lr) group.initial_lr = group.lr;
    initial_lr_.push_back(*group.initial_lr);
  }
}

void Scheduler::step() {
  apply(steps_ + 1);
  ++steps_;
}

void Scheduler::apply(std::int64_t t) const {
  for (std::size_t i = 0; i < initial_lr_.size(); ++i) optimizer_.groups()[i].lr = lr(initial_lr_[i], t);
}

nn::StateDict Scheduler::state_dict() const {
  nn::StateDict all;
  add_state("", all);
  return all;
}

void Scheduler::add_state(const std::string& path, nn::StateDict& all) const {
  all.emplace_back(path + "steps", Tensor::from<std::int64_t>({steps_}, {}));
  all.emplace_back(path + "initial_lr",
                   Tensor::from(initial_lr_, {static_cast<std::int64_t>(initial_lr_.size())}));
  const std::vector<Scheduler*> inner = parts();
  for (std::size_t i = 0; i < inner.size(); ++i) inner[i]->add_state(concat(path, "scheduler.", i, "."), all);
}

void Scheduler::read(const nn::StateDict& state, const std::string& path, std::vector<Read>& all) {
  const Tensor initial_lr = entry(state, path + "initial_lr", static_cast<std::int64_t>(initial_lr_.size()));
  const std::int64_t steps = entry(state, path + "steps", 1).to_vector<std::int64_t>()[0];
  check(steps >= 0, "scheduler: ", path, "steps is ", steps, "; legal is 0 or more");
  all.push_back({this, initial_lr.to_vector<double>(), steps});
  const std::vector<Scheduler*> inner = parts();
  for (std::size_t i = 0; i < inner.size(); ++i)
    inner[i]->read(state, concat(path, "scheduler.", i, "."), all);
}

void Scheduler::load_state_dict(const nn::StateDict& state) {
  std::vector<Read> all;
  read(state, "", all);
  const auto exchange = [&all] {
    for (Read& read : all) {
      std::swap(read.scheduler->initial_lr_, read.initial_lr);
      std::swap(read.scheduler->steps_, read.steps);
    }
  };
  exchange();
  try {
    apply(steps_);
  } catch (...) {  // there is no such step
    exchange();
    throw;
  }
  for (std::size_t i = 0; i < initial_lr_.size(); ++i) optimizer_.groups()[i].initial_lr = initial_lr_[i];
}

StepLR::StepLR(Optimizer& optimizer, const Options& options) : Scheduler(optimizer), options_(options) {
  check_at_least("StepLR", "step_size", options.step_size, 1);
  Scheduler::apply(0);
}

double StepLR::lr(double lr0, std::int64_t t) const {
  const std::int64_t drops = t / options_.step_size;
  return lr0 * std::pow(options_.gamma, static_cast<double>(drops));
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  Scheduler::apply(0);
}

double MultiStepLR::lr(double lr0, std::int64_t t) const {
  const auto passed = std::count_if(options_.milestones.begin(), options_.milestones.end(),
                                    [&](std::int64_t milestone) { return milestone <= t; });
  return lr0 * std::pow(options_.gamma, static_cast<double>(passed));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  Scheduler::apply(0);
}

double ExponentialLR::lr(double lr0, std::int64_t t) const {
  return lr0 * std::pow(options_.gamma, static_cast<double>(t));
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  check_at_least("CosineAnnealingLR", "t_max", options.t_max, 1);
  Scheduler::apply(0);
}

double CosineAnnealingLR::lr(double lr0, std::int64_t t) const {
  return cosine(lr0, options_.eta_min, static_cast<double>(t) / static_cast<double>(options_.t_max));
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  check_at_least("CosineAnnealingWarmRestarts", "t_0", options.t_0, 1);
  check_at_least("CosineAnnealingWarmRestarts", "t_mult", options.t_mult, 1);
  Scheduler::apply(0);
}

double CosineAnnealingWarmRestarts::lr(double lr0, std::int64_t t) const {
  std::int64_t cycle = options_.t_0;
  if (options_.t_mult == 1) t %= cycle;
  for (; t >= cycle; cycle *= options_.t_mult) t -= cycle;
  return cosine(lr0, options_.eta_min, static_cast<double>(t) / static_cast<double>(cycle));
}

LinearWarmup::LinearWarmup(Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  check_at_least("LinearWarmup", "total_iters", options.total_iters, 1);
  check(options.start_factor >= 0, "LinearWarmup: start_factor ", options.start_factor,
        " is not legal; legal is 0 or more");
  check(options.end_factor >= 0, "LinearWarmup: end_factor ", options.end_factor,
        " is not legal; legal is 0 or more");
  Scheduler::apply(0);
}

double LinearWarmup::lr(double lr0, std::int64_t t) const {
  const double part =
      static_cast<double>(std::min(t, options_.total_iters)) / static_cast<double>(options_.total_iters);
  return lr0 * (options_.start_factor + (options_.end_factor - options_.start_factor) * part);
}

OneCycleLR::OneCycleLR(Optimizer& optimizer, const Options& options)
    : Scheduler(optimizer), options_(options) {
  check_at_least("OneCycleLR", "total_steps", options.total_steps, 1);
  check(options.pct_start >= 0 && options.pct_start <= 1, "OneCycleLR: pct_start ", options.pct_start,
        " is not legal; legal is [0, 1]");
  check(options.div_factor > 0 && options.final_div_factor > 0, "OneCycleLR: div_factor ", options.div_factor,
        " and final_div_factor ", options.final_div_factor, " are not legal; legal is above 0");
  apply(0);
}

double OneCycleLR::cycle(double low, double high, double last, std::int64_t t) const {
  const auto steps = static_cast<double>(options_.total_steps), now = static_cast<double>(t);
  const double up = options_.pct_start * steps - 1, down = 2 * options_.pct_start * steps - 2;
  const auto between = [&](double from, double to, double begin, double end) {
    const double part = now < end ? (now - begin) / (end - begin) : 1;
    return options_.anneal == Anneal::cosine ? cosine(from, to, part) : from + (to - from) * part;
  };
  if (now <= up) return between(low, high, 0, up);
  if (!options_.three_phase) return between(high, last, up, steps - 1);
  if (now <= down) return between(high, low, up, down);
  return between(low, last, down, steps - 1);
}

double OneCycleLR::lr(double, std::int64_t t) const {
  const double low = options_.max_lr / options_.div_factor;
  return cycle(low, options_.max_lr, low / options_.final_div_factor, t);
}

void OneCycleLR::apply(std::int64_t t) const {
  check(t <= options_.total_steps, "OneCycleLR: step ", t, " is beyond the last; legal is at most ",
        options_.total_steps);
  Scheduler::apply(t);
  if (!options_.cycle_momentum) return;
  for (auto& group : optimizer().groups()) {
    group.momentum = cycle(options_.max_momentum, options_.base_momentum, options_.max_momentum, t);
  }
}

SequentialLR::SequentialLR(Optimizer& optimizer, std::vector<std::shared_ptr<Scheduler>> schedulers,
                           std::vector<std::int64_t> milestones)
    : Scheduler(optimizer), schedulers_(std::move(schedulers)), milestones_(std::move(milestones)) {
  check(!schedulers_.empty() && schedulers_.size() == milestones_.size() + 1,
        "SequentialLR: ", schedulers_.size(), " schedulers and ", milestones_.size(),
        " milestones are given; legal is one milestone less than schedulers");
  check(std::is_sorted(milestones_.begin(), milestones_.end()),
        "SequentialLR: the milestones do not increase");
  apply(0);
}

void SequentialLR::apply(std::int64_t t) const {
  const auto passed = std::upper_bound(milestones_.begin(), milestones_.end(), t) - milestones_.begin();
  const auto now = static_cast<std::size_t>(passed);
  const auto begin = [&](std::size_t i) { return i == 0 ? 0 : milestones_[i - 1]; };
  schedulers_[now]->apply(t - begin(now));  // throws before anything changes, if there is no such step
  if (now == 0) return;
  // What those before left behind, such as a momentum, may still stand, also in a run that starts here.
  for (std::size_t i = 0; i < now; ++i) {
    if (begin(i + 1) > begin(i)) schedulers_[i]->apply(begin(i + 1) - 1 - begin(i));
  }
  schedulers_[now]->apply(t - begin(now));
}

std::vector<Scheduler*> SequentialLR::parts() const {
  std::vector<Scheduler*> all;
  for (const auto& scheduler : schedulers_) all.push_back(scheduler.get());
  return all;
}

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const Options& options)
    : optimizer_(optimizer),
      options_(options),
      best_(options.mode == Mode::min ? std::numeric_limits<double>::infinity()
                                      : -std::numeric_limits<double>::infinity()) {
  check(options.factor > 0 && options.factor < 1, "ReduceLROnPlateau: factor ", options.factor,
        " is not legal; legal is (0, 1)");
  check_at_least("ReduceLROnPlateau", "patience", options.patience, 0);
  check_at_least("ReduceLROnPlateau", "cooldown", options.cooldown, 0);
}

bool ReduceLROnPlateau::improves(double metric) const {
  const double margin =
      options_.threshold_mode == Threshold::relative ? options_.threshold * best_ : options_.threshold;
  if (std::isinf(best_)) return options_.mode == Mode::min ? metric < best_ : metric > best_;
  return options_.mode == Mode::min ? metric < best_ - margin : metric > best_ + margin;
}

void ReduceLROnPlateau::step(double metric) {
  if (improves(metric)) {
    best_ = metric;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_steps_ = 0;
  }
  if (bad_steps_ <= options_.patience) return;
  for (auto& group : optimizer_.groups()) {
    const double reduced = std::max(group.lr * options_.factor, options_.min_lr);
    if (group.lr - reduced > options_.eps) group.lr = reduced;
  }
  cooldown_ = options_.cooldown;
  bad_steps_ = 0;
}

nn::StateDict ReduceLROnPlateau::state_dict() const {
  return {{"best", Tensor::from<double>({best_}, {})},
          {"bad_steps", Tensor::from<std::int64_t>({bad_steps_}, {})},
          {"cooldown", Tensor::from<std::int64_t>({cooldown_}, {})}};
}

void ReduceLROnPlateau::load_state_dict(const nn::StateDict& state) {
  const Tensor best = entry(state, "best", 1), bad_steps = entry(state, "bad_steps", 1);
  const Tensor cooldown = entry(state, "cooldown", 1);
  best_ = best.item();
  bad_steps_ = bad_steps.to_vector<std::int64_t>()[0];
  cooldown_ = cooldown.to_vector<std::int64_t>()[0];
}

}  // namespace tapedeck::optim
