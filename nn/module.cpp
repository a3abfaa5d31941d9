#include <tapedeck/nn/module.h>

#include <algorithm>

namespace tapedeck::nn {

Module::Module() : state_(std::make_shared<State>()) {}

Variable Module::forward(const Variable&) {
  throw Error(concat(kind(), ": forward with one argument is not defined for this module"));
}

Variable Module::operator()(const Variable& x) {
  for (const auto& hook : state_->pre_hooks) hook(*this, x);
  Variable y = forward(x);
  for (const auto& hook : state_->hooks) {
    if (Variable replaced = hook(*this, x, y); replaced.defined()) y = replaced;
  }
  return y;
}

void Module::collect(const std::string& prefix, NamedVariables State::*list, NamedVariables& out) const {
  for (const auto& [name, variable] : (*state_).*list) out.emplace_back(prefix + name, variable);
  for (const auto& [name, child] : state_->children) child.collect(prefix + name + ".", list, out);
}

NamedVariables Module::named_parameters() const {
  NamedVariables all;
  collect("", &State::parameters, all);
  return all;
}

NamedVariables Module::named_buffers() const {
  NamedVariables all;
  collect("", &State::buffers, all);
  return all;
}

Variables Module::parameters() const {
  Variables all;
  for (auto& [name, variable] : named_parameters()) all.push_back(variable);
  return all;
}

std::vector<std::pair<std::string, Module>> Module::named_children() const {
  return state_->children;
}

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  for (const Variable& parameter : parameters()) count += parameter.count();
  return count;
}

StateDict Module::state_dict() const {
  StateDict state;
  for (const auto& list : {named_parameters(), named_buffers()}) {
    for (const auto& [name, variable] : list) state.emplace_back(name, variable.tensor());
  }
  return state;
}

void Module::load_state_dict(const StateDict& state) {
  const StateDict own = state_dict();
  std::map<std::string, Tensor> given(state.begin(), state.end());
  std::string problems;
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    if (found == given.end()) {
      problems += concat("; ", name, " is missing");
    } else if (found->second.shape() != tensor.shape()) {
      problems +=
          concat("; ", name, " has shape ", found->second.shape(), " but the module's has ", tensor.shape());
    }
    if (found != given.end()) given.erase(found);
  }
  for (const auto& [name, tensor] : given) problems += concat("; ", name, " is unknown");
  check(problems.empty(), "load_state_dict: the state does not fit", problems);
  given = {state.begin(), state.end()};
  for (const auto& [name, tensor] : own) tensor.copy_(given.at(name));
}

void Module::train(bool on) {
  state_->training = on;
  for (auto& [name, child] : state_->children) child.train(on);
}

bool Module::is_training() const {
  return state_->training;
}

void Module::zero_grad() const {
  for (const Variable& parameter : parameters()) parameter.zero_grad();
}

void Module::to(Device device) const {
  for (const auto& list : {named_parameters(), named_buffers()}) {
    for (const auto& [name, variable] : list) variable.set_tensor(variable.tensor().to(device));
  }
}

void Module::to(DType dtype) const {
  check(is_floating(dtype), "to: dtype ", dtype, " is not legal for a module; legal are the floating types");
  for (const auto& list : {named_parameters(), named_buffers()}) {
    for (const auto& [name, variable] : list) {
      if (is_floating(variable.dtype())) variable.set_tensor(variable.tensor().to(dtype));
    }
  }
}

void Module::register_forward_pre_hook(ForwardPreHook hook) {
  state_->pre_hooks.push_back(std::move(hook));
}
void Module::register_forward_hook(ForwardHook hook) {
  state_->hooks.push_back(std::move(hook));
}

void Module::check_free(const std::string& name) const {
  check(!name.empty() && name.find('.') == std::string::npos, "module: name \"", name,
        "\" is not legal; it must not be empty or contain a dot");
  const auto taken = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const auto& entry) { return entry.first == name; });
  };
  check(!taken(state_->parameters) && !taken(state_->buffers) && !taken(state_->children), "module: name \"",
        name, "\" is taken");
}

Variable Module::register_parameter(const std::string& name, Tensor tensor) {
  check_free(name);
  state_->parameters.emplace_back(name, Variable::parameter(std::move(tensor)));
  return state_->parameters.back().second;
}

Variable Module::register_buffer(const std::string& name, Tensor tensor) {
  check_free(name);
  state_->buffers.emplace_back(name, Variable(std::move(tensor)));
  return state_->buffers.back().second;
}

void Module::add_child(const std::string& name, const Module& module) {
  check_free(name);
  state_->children.emplace_back(name, module);  // the handle alone: names and state, not the call
}

void Sequential::push_back(std::shared_ptr<Module> module) {
  add_child(std::to_string(modules_->size()), *module);
  modules_->push_back(std::move(module));
}

Variable Sequential::forward(const Variable& x) {
  Variable y = x;
  for (const auto& module : *modules_) y = (*module)(y);
  return y;
}

}  // namespace tapedeck::nn
