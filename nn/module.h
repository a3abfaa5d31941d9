// Modules: named parameters and one call.
//
//   struct Decoder final : nn::Module {
//     nn::Linear fc = register_module("fc", nn::Linear({.in_features = 20, .out_features = 3136}));
//     nn::ConvTranspose2d up = register_module("up", nn::ConvTranspose2d({...}));
//     Variable forward(const Variable& z) override { return up(relu(fc(z)).reshape(...)); }
//   };
//
// A module is a handle, like a tensor and a variable: copies share parameters, buffers and mode.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tapedeck/core/op.h>
#include <tapedeck/ops/norm.h>

namespace tapedeck::nn {

class Module;

/// Names and tensors, in the order of registration.
using StateDict = std::vector<std::pair<std::string, Tensor>>;
using NamedVariables = std::vector<std::pair<std::string, Variable>>;
using NamedModules = std::vector<std::pair<std::string, std::shared_ptr<Module>>>;

using ForwardPreHook = std::function<void(const Module&, const Variable& input)>;
/// May return a variable that takes the output's place, or an undefined one.
using ForwardHook = std::function<Variable(const Module&, const Variable& input, const Variable& output)>;

class Module {
 public:
  Module();
  virtual ~Module() = default;

  /// What the module computes. The default throws Error: a module with another signature defines its own
  /// call.
  virtual Variable forward(const Variable& x);
  /// forward(), with hooks around it.
  Variable operator()(const Variable& x);

  /// The kind of module for messages, e.g. "ConvTranspose2d".
  virtual const char* kind() const { return "Module"; }
  /// What the module multiplies negative elements by if it does nothing else, as ReLU (0) and LeakyReLU do.
  virtual std::optional<double> negative_slope() const { return {}; }
  /// next((*this)(x)), computed at once where both modules can do that and have no hooks that would see what
  /// is between them; undefined, with nothing done, where not.
  Variable call_fused(const Variable& x, const Module& next);
  /// The same of a normalisation and a convolution, each with its negative results multiplied by a slope, as
  /// by a module without hooks after it.
  Variable call_fused(const Variable& x, double negative_slope, Module& next, double next_negative_slope);
  /// Whether hooks would see what forward() is given and returns.
  bool has_hooks() const { return !state_->pre_hooks.empty() || !state_->hooks.empty(); }

  /// What to_string() says of it besides, e.g. "64 -> 32, kernel 4x4".
  virtual std::string details() const { return ""; }

  /// All parameters, those of children included, named "child.weight", in the order of registration.
  /// One that several modules share comes once, under its first name.
  NamedVariables named_parameters() const;
  Variables parameters() const;
  /// All buffers: tensors that are state but are not trained, such as running means.
  NamedVariables named_buffers() const;
  /// Direct children.
  const NamedModules& named_children() const { return state_->children; }
  /// The number of elements of all parameters.
  std::int64_t parameter_count() const;
  /// Calls `f` with every module below this one, children before their parents, and then with this one.
  void apply(const std::function<void(Module&)>& f);

  /// Parameters and buffers under PyTorch's names and in its order; the tensors are the module's own, not
  /// copies.
  StateDict state_dict() const;
  /// Copies `state` into the module's tensors. Throws Error, before anything changes, for a name that is
  /// missing or unknown and a shape that differs, naming all of them.
  void load_state_dict(const StateDict& state);

  /// Training mode: what batch normalisation and dropout look at. On for a new module.
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const;

  void zero_grad() const;
  /// Freezes all parameters, or makes them trainable again.
  void set_requires_grad(bool value) const;
  /// Moves all parameters, gradients and buffers.
  void to(Device device) const;
  /// Converts all floating parameters, gradients and buffers. Throws Error for an integer type.
  void to(DType dtype) const;
  /// Converts all parameters, gradients and buffers of rank 4: weights of convolutions, which with the
  /// channels last need fewer copies beside images with the channels last.
  void to(Layout layout) const;

  /// Hooks run in the order in which they were added, around forward(). One that adds or clears hooks changes
  /// the next call.
  void register_forward_pre_hook(ForwardPreHook hook);
  void register_forward_hook(ForwardHook hook);
  void clear_hooks();

 protected:
  /// Whether forward_rectified() is defined: it is faster than two steps.
  virtual bool can_rectify() const { return false; }
  /// forward() with negative results multiplied by `negative_slope`.
  virtual Variable forward_rectified(const Variable& x, double negative_slope);
  /// What forward_rectified() would call, if that is batch_norm().
  virtual std::optional<BatchNormCall> batch_norm_call(const Variable& x, double negative_slope) const;
  /// forward_rectified() of what batch_norm() would make of x, if that can be computed with it, else
  /// undefined.
  virtual Variable forward_normalized(const BatchNormCall& x, double negative_slope);

  /// Makes `tensor` a parameter. Throws Error when the name is taken or contains a dot.
  Variable register_parameter(const std::string& name, Tensor tensor);
  /// Makes `tensor` a buffer; the returned variable is a constant whose tensor load_state_dict() and
  /// to() replace or overwrite.
  Variable register_buffer(const std::string& name, Tensor tensor);
  /// Makes `module` a child and returns it.
  template <std::derived_from<Module> M>
  M register_module(const std::string& name, M module) {
    add_child(name, std::make_shared<M>(module));
    return module;
  }
  void add_child(const std::string& name, std::shared_ptr<Module> module);

 private:
  struct State {
    NamedVariables parameters, buffers;
    NamedModules children;
    std::vector<ForwardPreHook> pre_hooks;
    std::vector<ForwardHook> hooks;
    bool training = true;
  };
  void check_free(const std::string& name) const;
  /// Calls `f(path of the module with a trailing dot, its state)` for this module and all below it.
  template <class F>
  void walk(const std::string& path, const F& f) const;
  /// Replaces each tensor t of parameters, gradients and buffers by convert(t).
  template <class F>
  void convert(const F& convert) const;

  std::shared_ptr<State> state_;
};

/// The tree of modules, one a line: name, kind and details, shapes of its own parameters, their count.
std::string to_string(const Module& module);

/// Modules called one after the other, some at once where they can be (Module::call_fused).
class Sequential final : public Module {
 public:
  Sequential() = default;
  template <std::derived_from<Module>... M>
  explicit Sequential(const M&... modules) {
    (push_back(modules), ...);
  }

  /// Appends a module; its parameters are named by its position.
  template <std::derived_from<Module> M>
  void push_back(const M& module) {
    push_back(std::make_shared<M>(module));
  }
  void push_back(std::shared_ptr<Module> module) { add_child(std::to_string(size()), std::move(module)); }

  std::size_t size() const { return named_children().size(); }
  Module& operator[](std::size_t i) const { return *named_children().at(i).second; }

  Variable forward(const Variable& x) override;
  const char* kind() const override { return "Sequential"; }
};

}  // namespace tapedeck::nn
