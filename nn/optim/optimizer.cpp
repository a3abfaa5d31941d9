#include <tapedeck/nn/optim/optimizer.h>

#include <algorithm>
#include <map>

#include <tapedeck/core/activity.h>
#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/memory.h>

namespace tapedeck::optim {

Optimizer::Optimizer(const char* kind, const std::vector<ParamGroup>& groups, const Group& defaults,
                     std::vector<std::string> slots)
    : kind_(kind), slot_names_(std::move(slots)) {
  for (const ParamGroup& given : groups) {
    const Group group{given.parameters, given.lr.value_or(defaults.lr),
                      given.momentum.value_or(defaults.momentum),
                      given.weight_decay.value_or(defaults.weight_decay)};
    check(group.lr >= 0, kind, ": lr ", group.lr, " is not legal; legal is 0 or more");
    check(group.momentum >= 0, kind, ": momentum ", group.momentum, " is not legal; legal is 0 or more");
    check(group.weight_decay >= 0, kind, ": weight_decay ", group.weight_decay,
          " is not legal; legal is 0 or more");
    for (const Variable& parameter : group.parameters) {
      check(parameter.defined(), kind, ": parameter ", states_.size(), " is undefined");
      check(!parameter.requires_grad() || parameter.identity()->leaf, kind, ": parameter ", states_.size(),
            " is the result of an op; legal are leaves");
      const auto same = [&](const State& state) { return state.parameter.is(parameter); };
      check(std::none_of(states_.begin(), states_.end(), same), kind, ": parameter ", states_.size(),
            " is given twice");
      states_.push_back({parameter, {}, {}});
    }
    groups_.push_back(group);
  }
  check(!states_.empty(), kind, ": there are no parameters");
}

std::size_t Optimizer::slots_of(const Group& group) const {
  const bool optional = !slot_names_.empty() && slot_names_.back() == kMomentumBuffer;
  return slot_names_.size() - (optional && group.momentum == 0 ? 1 : 0);
}

void Optimizer::complete(State& state, std::size_t slots) {
  const Tensor& p = state.parameter.tensor();
  if (!state.step.defined()) state.step = Tensor::zeros({}, {.dtype = DType::int64, .device = p.device()});
  const DType dtype = size_of(p.dtype()) == 2 ? DType::float32 : p.dtype();
  while (state.slots.size() < slots) {
    state.slots.push_back(Tensor::zeros(p.shape(), {dtype, p.device(), p.layout()}));
  }
  for (Tensor& slot : state.slots) slot = slot.to(p.layout());  // which a module may have changed
}

void Optimizer::step(const Tensor& skip) {
  const auto scope = ActivityScope::op(kind_);
  std::vector<std::vector<OptimizerBatch>> all;  // of each group, one for each dtype and device
  std::size_t at = 0;
  for (const Group& group : groups_) {
    const std::size_t slots = slots_of(group);
    std::vector<OptimizerBatch>& batches = all.emplace_back();
    for (const Variable& parameter : group.parameters) {
      State& state = states_[at++];
      const Variable gradient = parameter.grad();
      if (!gradient.defined()) continue;
      complete(state, slots);
      const Tensor& p = parameter.tensor();
      auto batch = std::find_if(batches.begin(), batches.end(), [&](const OptimizerBatch& other) {
        return other.parameters[0].dtype() == p.dtype() && other.parameters[0].device() == p.device();
      });
      if (batch == batches.end()) {
        batch = batches.insert(batches.end(), OptimizerBatch{{}, {}, {}, {slots, Tensors()}});
      }
      batch->parameters.push_back(p);
      batch->gradients.push_back(gradient.tensor().to(p.layout()));
      batch->steps.push_back(state.step);
      for (std::size_t k = 0; k < slots; ++k) batch->slots[k].push_back(state.slots[k]);
    }
    for (OptimizerBatch& batch : batches) {
      batch.skip = skip;
      check_optimizer_batch(kind_, batch);
    }
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (OptimizerBatch& batch : all[g]) {
      const auto momentum = [this, g, slots = slots_of(groups_[g])] {
        check(slots_of(groups_[g]) == slots, kind_, ": momentum of group ", g, " has become ",
              groups_[g].momentum, " since its step was captured; from or to 0 it cannot change then");
        return groups_[g].momentum;
      };
      batch.live = replayed_numbers(
          batch.parameters[0].device(),
          {[this, g] { return groups_[g].lr; }, momentum, [this, g] { return groups_[g].weight_decay; }});
      update(groups_[g], batch);
    }
  }
  count_memory_step();
}

void Optimizer::zero_grad() const {
  for (const State& state : states_) state.parameter.zero_grad();
}

nn::StateDict Optimizer::state_dict() const {
  nn::StateDict all;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const std::string path = concat("group.", i, ".");
    const auto add = [&](const char* name, double value) {
      all.emplace_back(path + name, Tensor::full({}, value, {.dtype = DType::float64}));
    };
    add("lr", groups_[i].lr);
    add("momentum", groups_[i].momentum);
    add("weight_decay", groups_[i].weight_decay);
  }
  for (std::size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].step.defined()) continue;
    const std::string path = concat("state.", i, ".");
    all.emplace_back(path + "step", states_[i].step);
    for (std::size_t k = 0; k < states_[i].slots.size(); ++k) {
      all.emplace_back(path + slot_names_[k], states_[i].slots[k]);
    }
  }
  return all;
}

void Optimizer::load_state_dict(const nn::StateDict& state) {
  std::map<std::string, Tensor> given(state.begin(), state.end());
  std::string problems;
  const auto take = [&](const std::string& name, const Shape& shape) {
    const auto found = given.find(name);
    if (found == given.end() || !found->second.defined()) {
      problems += concat("; ", name, " is missing");
      return Tensor();
    }
    Tensor tensor = found->second;
    given.erase(found);
    if (tensor.shape() == shape) return tensor;
    problems += concat("; ", name, " has shape ", tensor.shape(), "; legal is ", shape);
    return Tensor();
  };

  std::vector<Group> groups = groups_;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string path = concat("group.", i, ".");
    const auto read = [&](const char* name, double& value) {
      if (const Tensor tensor = take(path + name, {}); tensor.defined()) value = tensor.item();
    };
    read("lr", groups[i].lr);
    read("momentum", groups[i].momentum);
    read("weight_decay", groups[i].weight_decay);
  }
  std::vector<State> states;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    State& fresh = states.emplace_back(State{states_[i].parameter, {}, {}});
    const std::string path = concat("state.", i, ".");
    std::size_t slots = slot_names_.size();
    if (slots > 0 && slot_names_.back() == kMomentumBuffer && !given.contains(path + kMomentumBuffer))
      --slots;
    const bool any = std::any_of(given.begin(), given.end(),
                                 [&](const auto& entry) { return entry.first.starts_with(path); });
    if (!any) continue;
    complete(fresh, slots);
    const auto read = [&](const std::string& name, const Tensor& to) {
      if (const Tensor tensor = take(path + name, to.shape()); tensor.defined()) to.copy_(tensor);
    };
    read("step", fresh.step);
    for (std::size_t k = 0; k < slots; ++k) read(slot_names_[k], fresh.slots[k]);
  }
  for (const auto& [name, tensor] : given) problems += concat("; ", name, " is unknown");
  check(problems.empty(), kind_, ": the state does not fit", problems);
  groups_ = std::move(groups);
  states_ = std::move(states);
}

}  // namespace tapedeck::optim
