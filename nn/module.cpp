#include <tapedeck/nn/module.h>

#include <algorithm>
#include <array>
#include <map>

#include <tapedeck/core/activity.h>

namespace tapedeck::nn {

Module::Module() : state_(std::make_shared<State>()) {}

Variable Module::forward(const Variable&) {
  throw Error(concat(kind(), ": forward with one argument is not defined for this module"));
}

Variable Module::operator()(const Variable& x) {
  const auto scope = ActivityScope::module(kind());
  const auto pre_hooks = state_->pre_hooks;  // copies: a hook may add or clear hooks
  const auto hooks = state_->hooks;
  for (const auto& hook : pre_hooks) hook(*this, x);
  Variable y = forward(x);
  for (const auto& hook : hooks) {
    if (Variable replaced = hook(*this, x, y); replaced.defined()) y = replaced;
  }
  return y;
}

Variable Module::call_fused(const Variable& x, const Module& next) {
  const std::optional<double> slope = next.negative_slope();
  if (!slope || !can_rectify() || has_hooks() || next.has_hooks()) return {};
  const auto scope = ActivityScope::module(kind());
  return forward_rectified(x, *slope);
}

Variable Module::call_fused(const Variable& x, double negative_slope, Module& next,
                            double next_negative_slope) {
  if (has_hooks() || next.has_hooks()) return {};
  const std::optional<BatchNormCall> normalized = batch_norm_call(x, negative_slope);
  if (!normalized) return {};
  const auto scope = ActivityScope::module(next.kind());
  return next.forward_normalized(*normalized, next_negative_slope);
}

Variable Module::forward_rectified(const Variable&, double) {
  throw Error(concat(kind(), ": forward_rectified is not defined for this module"));
}

std::optional<BatchNormCall> Module::batch_norm_call(const Variable&, double) const {
  return {};
}

Variable Module::forward_normalized(const BatchNormCall&, double) {
  return {};
}

template <class F>
void Module::walk(const std::string& path, const F& f) const {
  f(path, *state_);
  for (const auto& [name, child] : state_->children) child->walk(path + name + ".", f);
}

NamedVariables Module::named_parameters() const {
  NamedVariables all;
  walk("", [&](const std::string& path, const State& state) {
    for (const auto& [name, parameter] : state.parameters) {
      const auto same = [&parameter = parameter](const auto& seen) { return seen.second.is(parameter); };
      if (std::none_of(all.begin(), all.end(), same)) all.emplace_back(path + name, parameter);
    }
  });
  return all;
}

NamedVariables Module::named_buffers() const {
  NamedVariables all;
  walk("", [&](const std::string& path, const State& state) {
    for (const auto& [name, buffer] : state.buffers) all.emplace_back(path + name, buffer);
  });
  return all;
}

Variables Module::parameters() const {
  Variables all;
  for (auto& [name, parameter] : named_parameters()) all.push_back(parameter);
  return all;
}

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  for (const Variable& parameter : parameters()) count += parameter.count();
  return count;
}

void Module::apply(const std::function<void(Module&)>& f) {
  for (const auto& [name, child] : state_->children) child->apply(f);
  f(*this);
}

StateDict Module::state_dict() const {
  StateDict all;
  walk("", [&](const std::string& path, const State& state) {
    for (const NamedVariables* list : {&state.parameters, &state.buffers}) {
      for (const auto& [name, variable] : *list) all.emplace_back(path + name, variable.tensor());
    }
  });
  return all;
}

void Module::load_state_dict(const StateDict& state) {
  const StateDict own = state_dict();
  const std::map<std::string, Tensor> given(state.begin(), state.end());
  std::map<std::string, Tensor> unknown = given;
  std::string problems;
  for (const auto& [name, tensor] : own) {
    unknown.erase(name);
    const auto found = given.find(name);
    if (found == given.end()) {
      problems += concat("; ", name, " is missing");
    } else if (!found->second.defined()) {
      problems += concat("; ", name, " is undefined");
    } else if (found->second.shape() != tensor.shape()) {
      problems +=
          concat("; ", name, " has shape ", found->second.shape(), " but the module's has ", tensor.shape());
    }
  }
  for (const auto& [name, tensor] : unknown) problems += concat("; ", name, " is unknown");
  check(problems.empty(), "load_state_dict: the state does not fit", problems);
  for (const auto& [name, tensor] : own) tensor.copy_(given.at(name));
}

void Module::train(bool on) {
  state_->training = on;
  for (auto& [name, child] : state_->children) child->train(on);
}

bool Module::is_training() const {
  return state_->training;
}

void Module::zero_grad() const {
  for (const Variable& parameter : parameters()) parameter.zero_grad();
}

void Module::set_requires_grad(bool value) const {
  for (Variable parameter : parameters()) parameter.set_requires_grad(value);
}

template <class F>
void Module::convert(const F& convert) const {
  for (const auto& [name, buffer] : named_buffers()) buffer.set_tensor(convert(buffer.tensor()));
  for (const auto& [name, parameter] : named_parameters()) {
    parameter.set_tensor(convert(parameter.tensor()));
    if (const Variable gradient = parameter.grad(); gradient.defined()) {
      parameter.set_grad(convert(gradient.tensor()));
    }
  }
}

void Module::to(Device device) const {
  convert([&](const Tensor& tensor) { return tensor.to(device); });
}

void Module::to(DType dtype) const {
  check(is_floating(dtype), "to: dtype ", dtype, " is not legal for a module; legal are the floating types");
  convert([&](const Tensor& tensor) { return is_floating(tensor.dtype()) ? tensor.to(dtype) : tensor; });
}

void Module::to(Layout layout) const {
  convert([&](const Tensor& tensor) { return tensor.rank() == 4 ? tensor.to(layout) : tensor; });
}

void Module::register_forward_pre_hook(ForwardPreHook hook) {
  state_->pre_hooks.push_back(std::move(hook));
}
void Module::register_forward_hook(ForwardHook hook) {
  state_->hooks.push_back(std::move(hook));
}
void Module::clear_hooks() {
  state_->pre_hooks.clear();
  state_->hooks.clear();
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

void Module::add_child(const std::string& name, std::shared_ptr<Module> module) {
  check_free(name);
  check(module != nullptr, "module: child \"", name, "\" is null");
  state_->children.emplace_back(name, std::move(module));
}

Variable Sequential::forward(const Variable& x) {
  Variable y = x;
  // What module i multiplies negative elements by, if it does nothing else.
  const auto slope_of = [&](std::size_t i) {
    return i < size() && !(*this)[i].has_hooks() ? (*this)[i].negative_slope() : std::nullopt;
  };
  for (std::size_t i = 0; i < size(); ++i) {
    Module& module = (*this)[i];
    const std::optional<double> slope = slope_of(i + 1);
    const std::size_t next = slope ? i + 2 : i + 1;
    if (next < size()) {
      const std::optional<double> next_slope = slope_of(next + 1);
      const Variable all = module.call_fused(y, slope.value_or(1), (*this)[next], next_slope.value_or(1));
      if (all.defined()) {
        y = all;
        i = next_slope ? next + 1 : next;
        continue;
      }
    }
    if (slope) {
      if (const Variable both = module.call_fused(y, (*this)[i + 1]); both.defined()) {
        y = both;
        ++i;
        continue;
      }
    }
    y = module(y);
  }
  return y;
}

namespace {

using Row = std::array<std::string, 3>;  // what, shapes, count

void add_rows(const std::string& indent, const std::string& name, const Module& module,
              std::vector<Row>& rows) {
  const std::string details = module.details();
  std::string what = concat(indent, name, name.empty() ? "" : ": ", module.kind());
  if (!details.empty()) what += concat("(", details, ")");
  std::string shapes;
  std::int64_t count = 0;
  for (const auto& [path, parameter] : module.named_parameters()) {
    if (path.find('.') != std::string::npos) continue;  // a child's
    shapes += concat(shapes.empty() ? "" : ", ", path, " ", parameter.shape());
    count += parameter.count();
  }
  rows.push_back({what, shapes, count > 0 ? std::to_string(count) : ""});
  for (const auto& [child_name, child] : module.named_children()) {
    add_rows(concat(indent, "  "), child_name, *child, rows);
  }
}

}  // namespace

std::string to_string(const Module& module) {
  std::vector<Row> rows;
  add_rows("", "", module, rows);
  rows.push_back({"parameters", "", std::to_string(module.parameter_count())});
  std::array<std::size_t, 3> widths{};
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& [what, shapes, count] : rows) {
    std::string line = what;
    line.resize(widths[0] + 2, ' ');
    line += shapes;
    line.resize(widths[0] + widths[1] + widths[2] + 4 - count.size(), ' ');
    line += count;
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace tapedeck::nn
