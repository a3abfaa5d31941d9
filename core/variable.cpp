#include <tapedeck/core/variable.h>

namespace tapedeck {

Variable::Variable(Tensor tensor) {
  if (tensor.defined()) state_ = std::make_shared<State>(State{std::move(tensor), nullptr});
}

Variable Variable::parameter(Tensor tensor) {
  Variable variable(std::move(tensor));
  variable.set_requires_grad(true);
  return variable;
}

const Tensor& Variable::tensor() const {
  check(defined(), "variable: the variable is undefined");
  return state_->tensor;
}

void Variable::set_tensor(Tensor tensor) const {
  check(defined(), "variable: the variable is undefined");
  state_->tensor = std::move(tensor);
}

bool Variable::requires_grad() const {
  return defined() && state_->identity != nullptr;
}

Variable& Variable::set_requires_grad(bool value) {
  check(is_floating(tensor().dtype()) || !value, "set_requires_grad: a ", tensor().dtype(),
        " tensor has no gradient; legal are the floating types");
  check(!state_->identity || state_->identity->leaf,
        "set_requires_grad: the variable is the result of an op");
  if (value && !state_->identity) {
    state_->identity = std::make_shared<detail::Identity>();
    state_->identity->leaf = true;
  } else if (!value) {
    state_->identity = nullptr;
  }
  return *this;
}

Variable Variable::grad() const {
  return requires_grad() && state_->identity->gradient ? *state_->identity->gradient : Variable();
}

void Variable::set_grad(const Variable& gradient) const {
  check(requires_grad() || !gradient.defined(), "set_grad: the variable does not require a gradient");
  if (!requires_grad()) return;
  check(!gradient.defined() || gradient.shape() == shape(), "set_grad: the gradient has shape ",
        gradient.defined() ? gradient.shape() : Shape(), " but the variable has ", shape());
  state_->identity->gradient = gradient.defined() ? std::make_shared<Variable>(gradient) : nullptr;
}

Variable Variable::detach() const {
  return Variable(tensor());
}

void Variable::register_hook(GradientHook hook) const {
  check(requires_grad(), "register_hook: the variable does not require a gradient");
  state_->identity->hooks.push_back(std::move(hook));
}

const std::shared_ptr<detail::Identity>& Variable::identity() const {
  static const std::shared_ptr<detail::Identity> none;
  return defined() ? state_->identity : none;
}

void Variable::set_recorded() const {
  state_->identity = std::make_shared<detail::Identity>();
}

}  // namespace tapedeck
