#include <tapedeck/autograd/tape.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include <tapedeck/core/activity.h>
#include <tapedeck/core/backend.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/autocast.h>

namespace tapedeck {

namespace {

/// Sets a flag for a scope.
class FlagScope {
 public:
  explicit FlagScope(bool& flag) : flag_(flag) { flag_ = true; }
  ~FlagScope() { flag_ = false; }

 private:
  bool& flag_;
};

Variable run_hooks(const detail::Identity& identity, Variable gradient) {
  const auto hooks = identity.hooks;  // a hook may register others
  for (const GradientHook& hook : hooks) {
    const Variable replaced = hook(gradient);
    if (!replaced.defined()) continue;
    check(replaced.shape() == gradient.shape() && replaced.dtype() == gradient.dtype(),
          "register_hook: a hook returned ", replaced.dtype(), " ", replaced.shape(), " for a gradient ",
          gradient.dtype(), " ", gradient.shape());
    gradient = replaced;
  }
  return gradient;
}

Variable seed(const Variable& y, const Variable& gradient) {
  if (!gradient.defined()) {
    check(y.count() == 1, "backward: y has shape ", y.shape(),
          ", so its gradient must be given; without one, y must have one element");
    return Tensor::ones(y.shape(), y.tensor().options());
  }
  check(gradient.shape() == y.shape() && gradient.dtype() == y.dtype(), "backward: the gradient is ",
        gradient.dtype(), " ", gradient.shape(), " but y is ", y.dtype(), " ", y.shape());
  return gradient;
}

}  // namespace

void Tape::record(Record record, const Variables&) {
  for (const auto& output : record.outputs) {
    if (output) producers_[output.get()] = entries_.size();
  }
  const std::size_t saved = record.context.saved_bytes();
  entries_.push_back({std::move(record), saved});
}

void Tape::Sum::add(const Variable& gradient) {
  if (!value.defined()) {
    value = gradient;
  } else if (own && !recording()) {
    const Tensor& sum = value.tensor();
    if (sum.count() > 0)
      TAPEDECK_KERNEL(sum.device(), arithmetic)(Arithmetic::add, sum, gradient.tensor(), sum);
  } else {
    value = tapedeck::add(value, gradient);
    own = true;
  }
}

/// What depends on `wanted`, up to entry `last`: only its gradients are needed.
Tape::Identities Tape::between(const Identities& wanted, std::size_t last) const {
  Identities reached = wanted;
  for (std::size_t i = 0; i <= last; ++i) {
    const Record& record = entries_[i].record;
    const bool depends = std::any_of(record.inputs.begin(), record.inputs.end(), [&](const auto& input) {
      return input && reached.contains(input.get());
    });
    for (const auto& output : record.outputs) {
      if (depends && output) reached.insert(output.get());
    }
  }
  return reached;
}

/// The gradients of an op's outputs, which are complete: hooks see them, and those not wanted are dropped.
/// None when no output has a gradient.
Variables Tape::take_output_gradients(const Record& record, Gradients& gradients,
                                      const Identities& wanted) const {
  const bool any = std::any_of(record.outputs.begin(), record.outputs.end(), [&](const auto& output) {
    return output && gradients.contains(output.get());
  });
  Variables outputs;
  for (std::size_t k = 0; any && k < record.outputs.size(); ++k) {
    const detail::Identity* identity = record.outputs[k].get();
    const auto found = identity != nullptr ? gradients.find(identity) : gradients.end();
    if (found == gradients.end()) {
      outputs.push_back(Tensor::zeros(record.output_shapes[k], record.output_options[k]));
      continue;
    }
    outputs.push_back(found->second.value = run_hooks(*identity, found->second.value));
    if (!wanted.contains(identity)) gradients.erase(found);
  }
  return outputs;
}

Tape::Gradients Tape::walk(const Variable& y, const BackwardOptions& options, const Identities& wanted) {
  check(!walking_, "backward: the tape is being walked already");
  if (y.identity()->leaf && wanted.contains(y.identity().get())) {  // gradient(x, {x})
    Gradients gradients;
    gradients[y.identity().get()].value = seed(y, options.gradient);
    return gradients;
  }
  const auto producer = producers_.find(y.identity().get());
  check(producer != producers_.end(), "backward: y was not recorded on this tape");
  const FlagScope walking(walking_);
  const auto scope = ActivityScope::op("backward");
  const Autocast off(DType::float32);  // gradients have the types of what they are of
  const bool all = wanted.empty();
  const Identities reached = all ? Identities() : between(wanted, producer->second);
  Gradients gradients;
  gradients[y.identity().get()].value = seed(y, options.gradient);
  for (std::size_t i = producer->second + 1; i-- > 0;) {
    Entry& entry = entries_[i];
    Record& record = entry.record;
    const Variables outputs = take_output_gradients(record, gradients, wanted);
    const auto is_needed = [&](std::size_t k) {
      return record.inputs[k] && (all || reached.contains(record.inputs[k].get()));
    };
    bool needed = false, restricted = false;
    for (std::size_t k = 0; k < record.inputs.size(); ++k) {
      needed = needed || is_needed(k);
      restricted = restricted || (record.inputs[k] && !is_needed(k));
    }
    if (outputs.empty() || !needed) continue;

    check(!entry.walked, record.op_name, ": the tape was walked before and what this op saved is gone; pass ",
          "{.retain = true} to the first walk");
    record.context.check_saved(record.op_name);
    const OpContext fewer = restricted ? record.context.restricted(is_needed) : OpContext();
    const OpContext& context = restricted ? fewer : record.context;
    const auto start = std::chrono::steady_clock::now();
    const auto module = ActivityScope::module(record.module);
    const auto op = ActivityScope::op(record.op_name);
    const Variables results = record.op->backward(context, outputs);
    entry.backward_time = std::chrono::steady_clock::now() - start;
    if (anomaly_mode()) {
      detail::check_finite(record.op_name, "backward", results, "output gradients", record.output_shapes);
    }
    check(results.size() <= record.inputs.size(), record.op_name, ": backward made ", results.size(),
          " gradients for ", record.inputs.size(), " inputs");
    for (std::size_t k = 0; k < results.size(); ++k) {
      if (!results[k].defined() || !context.needs_grad(k)) continue;
      const DType dtype = context.input_options(k).dtype;
      check(results[k].shape() == context.input_shape(k) && results[k].dtype() == dtype, record.op_name,
            ": backward made a gradient ", results[k].dtype(), " ", results[k].shape(), " for input ", k,
            ", which is ", dtype, " ", context.input_shape(k));
      gradients[record.inputs[k].get()].add(results[k]);
    }
    if (!options.retain) {
      entry.walked = true;
      record.op.reset();
      record.context.drop_saved();
    }
  }
  return gradients;
}

void Tape::backward(const Variable& y, const BackwardOptions& options) {
  check(y.requires_grad(), "backward: y does not require a gradient, or was made outside of every tape");
  Gradients gradients = walk(y, options, {});
  const FlagScope walking(walking_);
  std::vector<std::pair<detail::Identity*, Variable>> sums;
  for (const Entry& entry : entries_) {  // in order of first use: a fixed order
    for (const auto& input : entry.record.inputs) {
      if (!input || !input->leaf) continue;
      const auto found = gradients.find(input.get());
      if (found == gradients.end()) continue;
      Variable gradient = options.leaf_hooks ? run_hooks(*input, found->second.value) : found->second.value;
      if (input->gradient) gradient = add(*input->gradient, gradient);
      sums.emplace_back(input.get(), std::move(gradient));
      gradients.erase(found);
    }
  }
  for (auto& [leaf, gradient] : sums) leaf->gradient = std::make_shared<Variable>(std::move(gradient));
}

Variables Tape::gradient(const Variable& y, const Variables& xs, const BackwardOptions& options) {
  check(y.requires_grad(), "gradient: y does not require a gradient, or was made outside of every tape");
  check(!xs.empty(), "gradient: xs is empty");
  Identities wanted;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    check(xs[i].requires_grad(), "gradient: xs[", i, "] does not require a gradient");
    wanted.insert(xs[i].identity().get());
  }
  const Gradients gradients = walk(y, options, wanted);
  const FlagScope walking(walking_);
  Variables results;
  for (const Variable& x : xs) {
    const auto found = gradients.find(x.identity().get());
    if (found == gradients.end()) {
      results.push_back(Tensor::zeros_like(x.tensor()));
    } else {
      const bool hooked = producers_.contains(x.identity().get()) || !options.leaf_hooks;
      results.push_back(hooked ? found->second.value : run_hooks(*x.identity(), found->second.value));
    }
  }
  return results;
}

std::size_t Tape::saved_bytes() const {
  std::size_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.record.context.saved_bytes();
  return bytes;
}

namespace {

std::string shapes(const std::vector<Shape>& list) {
  std::string text;
  for (const Shape& shape : list) text += concat(text.empty() ? "" : " ", shape);
  return text;
}

std::string milliseconds(std::chrono::nanoseconds time) {
  if (time.count() < 0) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", static_cast<double>(time.count()) * 1e-6);
  return text;
}

}  // namespace

std::string Tape::to_text() const {
  using Row = std::array<std::string, 7>;
  std::vector<Row> rows{{"#", "op", "inputs", "outputs", "saved bytes", "forward ms", "backward ms"}};
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    rows.push_back({std::to_string(i), entry.record.op_name, shapes(entry.record.context.input_shapes()),
                    shapes(entry.record.output_shapes), std::to_string(entry.saved_bytes),
                    milliseconds(entry.record.forward_time), milliseconds(entry.backward_time)});
  }
  std::array<std::size_t, 7> widths{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      const bool number = c == 0 || c >= 4;
      text += (c == 0 ? "" : "  ") + (number ? padding + row[c] : row[c] + padding);
    }
    text += '\n';
  }
  return text;
}

std::string Tape::to_dot() const {
  std::string text = "digraph tape {\n  rankdir=TB;\n  node [shape=box, fontname=\"monospace\"];\n";
  std::unordered_map<const detail::Identity*, std::size_t> leaves;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Record& record = entries_[i].record;
    text += concat("  op", i, " [label=\"", record.op_name, "\\n", shapes(record.output_shapes), "\\nsaved ",
                   entries_[i].saved_bytes, " B\\nfwd ", milliseconds(record.forward_time), " ms, bwd ",
                   milliseconds(entries_[i].backward_time), " ms\"];\n");
    for (std::size_t k = 0; k < record.inputs.size(); ++k) {
      const detail::Identity* input = record.inputs[k].get();
      if (input == nullptr) continue;
      const auto producer = producers_.find(input);
      const std::string label = to_string(record.context.input_shape(k));
      if (producer != producers_.end()) {
        text += concat("  op", producer->second, " -> op", i, " [label=\"", label, "\"];\n");
        continue;
      }
      const auto [leaf, fresh] = leaves.try_emplace(input, leaves.size());
      if (fresh) {
        text += concat("  leaf", leaf->second, " [label=\"leaf\\n", label, "\", shape=ellipse];\n");
      }
      text += concat("  leaf", leaf->second, " -> op", i, ";\n");
    }
  }
  return text + "}\n";
}

}  // namespace tapedeck
