// Ops: name, forward and backward side by side, and the one function that runs them.
//
// An op is written once, as a small class, and called through call():
//
//   struct Square final : Op {
//     const char* name() const override { return "square"; }
//     Tensors forward(OpContext& context, const Tensors& x) override {
//       context.save_input(0);
//       return {square_kernel(x[0])};
//     }
//     Variables backward(const OpContext& context, const Variables& gy) override {
//       return {gy[0] * context.input(0) * 2.0};
//     }
//   };
//   Variable square(const Variable& x) { return call<Square>({x}); }
//
// Construct an op with arguments through call<Op>(inputs, arguments...).
// backward() is written with the same differentiable functions as everything else, so that an outer
// tape records it and gradients of gradients need no formulas of their own. Where a fused kernel is
// much faster than the composed formula, use it while `recording()` is false, and only then.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include <tapedeck/core/variable.h>

namespace tapedeck {

using Tensors = std::vector<Tensor>;
using Variables = std::vector<Variable>;

/// What an op knows of one call: which gradients are wanted, and what its backward will need.
class OpContext {
 public:
  /// Whether the gradient of input `i` is wanted. False for all without a tape.
  bool needs_grad(std::size_t i) const { return i < needs_.size() && needs_[i]; }
  /// How many inputs there are, in backward.
  std::size_t input_count() const { return shapes_.size(); }

  /// In forward: what backward will read. Without a tape nothing is kept.
  void save_input(std::size_t i) { kept_inputs_.push_back(i); }
  void save_output(std::size_t i) { kept_outputs_.push_back(i); }
  /// Keeps a tensor that is neither (a mask, a statistic); it is a constant to outer tapes.
  void save(Tensor tensor) { extra_.emplace_back(std::move(tensor)); }

  /// In backward: what was saved. Throws Error for an input or output that was not.
  const Variable& input(std::size_t i) const;
  const Variable& output(std::size_t i) const;
  const Tensor& saved(std::size_t i) const { return extra_.at(i).tensor(); }
  /// Always known: shape, dtype, device and layout of the inputs.
  const Shape& input_shape(std::size_t i) const { return shapes_.at(i); }
  const TensorOptions& input_options(std::size_t i) const { return options_.at(i); }

  const std::vector<Shape>& input_shapes() const { return shapes_; }

  /// Bytes of what is saved.
  std::size_t saved_bytes() const;

  /// For tapes: throws Error, naming `op`, when something saved has been overwritten or replaced since.
  void check_saved(const char* op) const;
  /// For tapes: lets go of what is saved; shapes stay known.
  void drop_saved();
  /// For tapes: a copy that wants the gradient of input `i` only where `wanted(i)`.
  template <class F>
  OpContext restricted(F wanted) const {
    OpContext copy = *this;
    for (std::size_t i = 0; i < copy.needs_.size(); ++i) copy.needs_[i] = copy.needs_[i] && wanted(i);
    return copy;
  }

 private:
  friend struct OpRunner;
  std::vector<bool> needs_;
  std::vector<std::size_t> kept_inputs_, kept_outputs_;
  Variables inputs_, outputs_, extra_;  // inputs_ and outputs_ are undefined where not kept
  std::vector<Shape> shapes_;
  std::vector<TensorOptions> options_;

  /// Calls f(what, i, tensor) for everything saved, e.g. with "input" and its number.
  template <class F>
  void for_each_saved(const F& f) const;
  struct Seen {
    const void* data;
    std::uint64_t version;
  };
  std::vector<Seen> seen_;  // everything saved, as it was when forward had run
};

/// A differentiable function of tensors. One object serves one call.
class Op {
 public:
  virtual ~Op() = default;
  /// A string literal: records outlive the op.
  virtual const char* name() const = 0;
  /// The outputs, freshly allocated. Optional inputs may be undefined. Throws Error on bad arguments
  /// before anything is computed.
  virtual Tensors forward(OpContext& context, const Tensors& inputs) = 0;
  /// The gradient of each input, given that of each output (all defined). It may be undefined where
  /// needs_grad() is false, and for a gradient of zero.
  virtual Variables backward(const OpContext& context, const Variables& gradients) = 0;
};

/// One executed op, as a tape keeps it.
struct Record {
  const char* op_name = "";
  const char* module = "";  // the kind of the one that called it, if one did
  std::shared_ptr<Op> op;
  OpContext context;
  std::vector<std::shared_ptr<detail::Identity>> inputs, outputs;  // null: no gradient flows there
  std::vector<Shape> output_shapes;
  std::vector<TensorOptions> output_options;
  std::chrono::nanoseconds forward_time{};
};

/// What hears of executed ops. The innermost of a thread comes first; each passes on to the outer ones.
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// False while it must not hear: a tape does not record its own walk.
  virtual bool listening() const = 0;
  /// `inputs` are the variables that the op was called with.
  virtual void record(Record record, const Variables& inputs) = 0;
};

/// Makes `recorder` the innermost of this thread until the scope ends, in this thread, too; scopes may end
/// in any order. With a null recorder nothing further out hears anything either.
class RecorderScope {
 public:
  explicit RecorderScope(Recorder* recorder);
  ~RecorderScope();
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  friend struct OpRunner;
  friend bool recording();
  Recorder* recorder_;
  RecorderScope* outer_;
};

/// Whether any tape of this thread listens.
bool recording();

/// Within this scope, no tape of the thread listens.
class NoTape {
 public:
  NoTape() : scope_(nullptr) {}

 private:
  RecorderScope scope_;
};

/// Runs an op: forward, and a record of it for each listening tape when an input's gradient is wanted.
Variables call(const std::shared_ptr<Op>& op, const Variables& inputs);

/// The same for an op with one output, made from `arguments`.
template <class O, class... Args>
Variable call(const Variables& inputs, Args&&... arguments) {
  return std::move(call(std::make_shared<O>(std::forward<Args>(arguments)...), inputs).at(0));
}

/// While set on this thread, every op and every backward step checks its results and throws Error at
/// the first NaN or Inf, with the op's name and shapes.
void set_anomaly_mode(bool on);
bool anomaly_mode();

namespace detail {
/// For anomaly mode: throws Error when one of `results` holds a NaN or an Inf. `from` says what has the
/// shapes, e.g. "inputs".
void check_finite(const char* op, const char* direction, const Variables& results, const char* from,
                  const std::vector<Shape>& shapes);
}  // namespace detail

}  // namespace tapedeck
