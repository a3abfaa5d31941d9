// Optimizers: what turns gradients into better parameters.
//
//   optim::Adam optimizer(model.parameters(), {.lr = 1e-3});
//   for (...) {
//     optimizer.zero_grad();
//     { Tape tape; tape.backward(loss(...)); }
//     optimizer.step();
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tapedeck/nn/module.h>
#include <tapedeck/ops/optimizer_step.h>

namespace tapedeck::optim {

/// Parameters with settings of their own; what is left empty is the optimizer's.
struct ParamGroup {
  Variables parameters;
  std::optional<double> lr = {};
  std::optional<double> momentum = {};  ///< for Adam and AdamW: beta1
  std::optional<double> weight_decay = {};
};

class Optimizer {
 public:
  /// The settings of a group as they stand; they may be changed between steps, as schedulers do.
  struct Group {
    Variables parameters;
    double lr, momentum, weight_decay;
    std::optional<double> initial_lr = {};  ///< what schedulers start from: lr when the first one was made
  };

  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates every parameter that has a gradient. Runs under no tape. `skip`, one uint8 on the parameters'
  /// device, makes it do nothing where it is not 0: see GradScaler. Throws Error, before any parameter
  /// changes, when a gradient or a state does not fit its parameter.
  void step(const Tensor& skip = {});
  void zero_grad() const;

  std::vector<Group>& groups() { return groups_; }
  const std::vector<Group>& groups() const { return groups_; }

  /// All that the next steps depend on besides parameters and gradients: "group.0.lr" and so on, and of
  /// parameter i, counted over all groups, "state.i.step" and the optimizer's own, under PyTorch's names.
  /// The tensors of "state" are the optimizer's own, not copies.
  nn::StateDict state_dict() const;
  /// Continues from `state` to the same bits. Throws Error, before anything changes, when it does not fit,
  /// naming all that is missing or unknown.
  void load_state_dict(const nn::StateDict& state);

 protected:
  /// Keeps one tensor for each of `slots` for each parameter; one named kMomentumBuffer comes last and is
  /// left out while a group has no momentum. Throws Error for a parameter that is undefined, the result of
  /// an op, or given twice, and for a setting below 0.
  Optimizer(const char* kind, const std::vector<ParamGroup>& groups, const Group& defaults,
            std::vector<std::string> slots);

  static constexpr const char* kMomentumBuffer = "momentum_buffer";

  virtual void update(const Group& group, const OptimizerBatch& batch) const = 0;

 private:
  struct State {
    Variable parameter;
    Tensor step;    // undefined before the parameter's first update
    Tensors slots;  // in the order of slot_names_, without a momentum buffer that was never used
  };
  /// How many slots a parameter of `group` uses.
  std::size_t slots_of(const Group& group) const;
  /// Makes the counter and the first `slots` slots where there are none.
  static void complete(State& state, std::size_t slots);

  const char* kind_;
  std::vector<Group> groups_;
  std::vector<std::string> slot_names_;
  std::vector<State> states_;  // of all groups' parameters, one after the other
};

}  // namespace tapedeck::optim
