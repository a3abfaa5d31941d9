#include <tapedeck/autograd/checkpoint.h>

#include <algorithm>
#include <unordered_set>

#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/random.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck {

namespace {

using Function = std::function<Variable(const Variables&)>;

/// Hears what f runs and collects the variables that it uses but neither made nor was given.
class Collector final : public Recorder {
 public:
  explicit Collector(const Variables& given) : scope_(this) {
    for (const Variable& variable : given) known_.insert(variable.identity().get());
  }
  bool listening() const override { return true; }
  void record(Record record, const Variables& inputs) override {
    for (const Variable& input : inputs) add(input);
    for (auto& output : record.outputs) {
      known_.insert(output.get());
      made_.push_back(std::move(output));  // kept, so that no address is used twice
    }
  }
  /// f uses `variable`.
  void add(const Variable& variable) {
    if (!variable.requires_grad() || !known_.insert(variable.identity().get()).second) return;
    found_.push_back(variable);
  }
  const Variables& found() const { return found_; }

 private:
  std::unordered_set<const detail::Identity*> known_;
  std::vector<std::shared_ptr<detail::Identity>> made_;
  Variables found_;
  NoTape alone_;  // no tape further out hears f
  RecorderScope scope_;
};

/// What the default generator draws next; of a step that is captured, too.
struct DrawState {
  std::uint64_t seed, offset, captured;

  static DrawState present() {
    Generator& generator = default_generator();
    return {generator.seed(), generator.offset(), is_capturing() ? detail::captured_draws(generator) : 0};
  }
};

/// Sets the default generator back for a scope.
class ReplayScope {
 public:
  explicit ReplayScope(const DrawState& state)
      : generator_(default_generator()), draws_(DrawState::present()) {
    default_generator().set_state(state.seed, state.offset);
    if (is_capturing()) detail::captured_draws(default_generator()) = state.captured;
  }
  ~ReplayScope() {
    default_generator() = generator_;
    if (is_capturing()) {
      std::uint64_t& made = detail::captured_draws(default_generator());
      made = std::max(made, draws_.captured);
    }
  }
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  const Generator generator_;
  const DrawState draws_;
};

/// The inputs are f's own and then what it reaches by captured handles.
class Checkpoint final : public Op {
 public:
  Checkpoint(Function f, std::size_t own_inputs, Tensor result, const DrawState& before)
      : f_(std::move(f)),
        own_inputs_(own_inputs),
        result_(std::move(result)),
        draws_(before),
        autocast_(Autocast::dtype()),
        algorithm_(ConvAlgorithmScope::current()) {}

  const char* name() const override { return "checkpoint"; }

  Tensors forward(OpContext& context, const Tensors& inputs) override {
    for (std::size_t i = 0; i < inputs.size(); ++i) context.save_input(i);
    return {std::move(result_)};
  }

  Variables backward(const OpContext& context, const Variables& gy) override {
    Variables inputs, gradients(context.input_count());
    for (std::size_t i = 0; i < own_inputs_; ++i) inputs.push_back(context.input(i));
    Tape tape;
    Variable y;
    {
      const ReplayScope replay(draws_);
      const Autocast as_then(autocast_);
      const ConvAlgorithmScope by_then(algorithm_);
      y = f_(inputs);
    }
    // An input that is there twice has the sum of its gradients, which only the first of them passes on.
    const auto is_wanted = [&](std::size_t i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (context.input(j).identity() == context.input(i).identity()) return false;
      }
      return context.needs_grad(i);
    };
    Variables wanted;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (is_wanted(i)) wanted.push_back(context.input(i));
      if (y.requires_grad() && y.identity() == context.input(i).identity()) {  // f returns what it got
        gradients[i] = gy[0];
        return gradients;
      }
    }
    if (!y.requires_grad()) return gradients;
    // The walk around this one has the whole gradients of leaves and runs their hooks.
    const Variables found = tape.gradient(y, wanted, {.gradient = gy[0], .leaf_hooks = false});
    for (std::size_t i = 0, k = 0; i < gradients.size(); ++i) {
      if (is_wanted(i)) gradients[i] = found[k++];
    }
    return gradients;
  }

 private:
  Function f_;
  std::size_t own_inputs_;
  Tensor result_;
  DrawState draws_;
  DType autocast_;
  std::optional<ConvAlgorithm> algorithm_;
};

}  // namespace

Variable checkpoint(const Function& f, const Variables& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check(inputs[i].defined(), "checkpoint: inputs[", i, "] is undefined");
  }
  if (!recording()) return f(inputs);
  const DrawState before = DrawState::present();
  Variables all = inputs;
  Tensor result;
  {
    Collector collector(inputs);
    const Variable y = f(inputs);
    collector.add(y);  // f may return what it reaches by a captured handle
    result = y.tensor();
    all.insert(all.end(), collector.found().begin(), collector.found().end());
  }
  return call<Checkpoint>(all, f, inputs.size(), std::move(result), before);
}

}  // namespace tapedeck
