// Variables: a tensor and, maybe, a gradient.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <tapedeck/core/tensor.h>

namespace tapedeck {

class Variable;

/// Called with the gradient of a variable when it is complete; what it returns takes its place, and
/// an undefined variable leaves it as it is.
using GradientHook = std::function<Variable(const Variable& gradient)>;

namespace detail {

/// The identity of a value on tapes. It outlives the tensor, so a tape that holds identities keeps
/// no activations alive.
struct Identity {
  bool leaf = false;  // the user's own: backward() leaves its gradient in `gradient`
  std::shared_ptr<Variable> gradient;
  std::vector<GradientHook> hooks;
};

}  // namespace detail

/// A handle on a tensor that tapes can follow. Copies are the same variable. A tensor converts to a
/// variable that is a constant: no gradient flows to it.
class Variable {
 public:
  Variable() = default;
  Variable(Tensor tensor);  // NOLINT(google-explicit-constructor): constants are written as they are

  /// A variable whose gradient is wanted: a parameter.
  static Variable parameter(Tensor tensor);

  bool defined() const { return state_ != nullptr; }
  /// Whether both handles are one variable.
  bool is(const Variable& other) const { return state_ == other.state_; }
  /// The tensor. Throws Error when undefined.
  const Tensor& tensor() const;
  /// Replaces the tensor, for every copy of this variable.
  void set_tensor(Tensor tensor) const;

  const Shape& shape() const { return tensor().shape(); }
  int rank() const { return tensor().rank(); }
  std::int64_t size(int dim) const { return tensor().size(dim); }
  std::int64_t count() const { return tensor().count(); }
  DType dtype() const { return tensor().dtype(); }
  Device device() const { return tensor().device(); }
  double item() const { return tensor().item(); }

  /// Whether gradients flow to this variable: it was declared so, or computed from one under a tape.
  bool requires_grad() const;
  /// Declares a leaf, or makes it a constant again. Throws Error on the result of an op.
  Variable& set_requires_grad(bool value);

  /// The gradient that backward() has summed up so far; undefined when there is none.
  Variable grad() const;
  void set_grad(const Variable& gradient) const;
  void zero_grad() const { set_grad({}); }

  /// The same tensor as a constant.
  Variable detach() const;

  /// Adds a hook. Hooks run in the order in which they were added. Throws Error unless requires_grad().
  void register_hook(GradientHook hook) const;

  /// For tapes: null unless gradients flow to this variable.
  const std::shared_ptr<detail::Identity>& identity() const;
  /// For tapes: makes this variable the result of a recorded op.
  void set_recorded() const;

 private:
  struct State {
    Tensor tensor;
    std::shared_ptr<detail::Identity> identity;
  };
  std::shared_ptr<State> state_;
};

}  // namespace tapedeck
