#include <tapedeck/autograd/tape.h>

#include <cstdio>
#include <unordered_set>

#include <tapedeck/ops/arithmetic.h>

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
  for (const GradientHook& hook : identity.hooks) {
    if (Variable replaced = hook(gradient); replaced.defined()) gradient = replaced;
  }
  return gradient;
}

Variable seed(const Variable& y, const Variable& gradient) {
  if (!gradient.defined()) {
    check(y.count() == 1, "backward: y has shape ", y.shape(),
          ", so its gradient must be given; without one, y ", "must have one element");
    return Tensor::ones(y.shape(), y.tensor().options());
  }
  check(gradient.shape() == y.shape(), "backward: the gradient has shape ", gradient.shape(), " but y has ",
        y.shape());
  return gradient;
}

}  // namespace

void Tape::record(const Record& record) {
  for (const auto& output : record.outputs) {
    if (output) producers_[output.get()] = entries_.size();
  }
  entries_.push_back({record, record.context.saved_bytes()});
}

Tape::Gradients Tape::walk(const Variable& y, const BackwardOptions& options, const Variables& wanted) {
  check(!walking_, "backward: the tape is being walked already");
  const auto last = producers_.find(y.identity().get());
  check(y.requires_grad() && last != producers_.end(), "backward: y was not recorded on this tape");
  const FlagScope walking(walking_);

  // With a list of what is wanted, only what lies between it and y is computed.
  std::unordered_set<const detail::Identity*> reached;
  const bool all = wanted.empty();
  if (!all) {
    for (const Variable& x : wanted) reached.insert(x.identity().get());
    for (std::size_t i = 0; i <= last->second; ++i) {
      const Record& record = entries_[i].record;
      bool any = false;
      for (const auto& input : record.inputs) any = any || (input && reached.contains(input.get()));
      for (const auto& output : record.outputs) {
        if (any && output) reached.insert(output.get());
      }
    }
  }
  const auto is_wanted = [&](const detail::Identity* identity) {
    for (const Variable& x : wanted) {
      if (x.identity().get() == identity) return true;
    }
    return false;
  };

  Gradients gradients;
  gradients[y.identity().get()] = seed(y, options.gradient);
  for (std::size_t i = last->second + 1; i-- > 0;) {
    Entry& entry = entries_[i];
    Record& record = entry.record;
    bool used = false, needed = all;
    for (const auto& output : record.outputs) used = used || (output && gradients.contains(output.get()));
    for (const auto& input : record.inputs) needed = needed || (input && reached.contains(input.get()));
    if (!used) continue;

    // The gradients of this op's outputs are complete: hooks may see them.
    Variables outputs;
    for (std::size_t k = 0; k < record.outputs.size(); ++k) {
      const detail::Identity* identity = record.outputs[k].get();
      const auto found = identity ? gradients.find(identity) : gradients.end();
      if (found == gradients.end()) {
        outputs.push_back(Tensor::zeros(record.output_shapes[k], record.output_options[k]));
        continue;
      }
      outputs.push_back(found->second = run_hooks(*identity, found->second));
      if (!is_wanted(identity)) gradients.erase(found);
    }
    if (!needed) continue;

    check(!entry.walked, record.op_name, ": the tape was walked before and what this op saved is gone; pass ",
          "{.retain = true} to the first walk");
    OpContext context = all ? record.context : record.context.restricted([&](std::size_t k) {
      return record.inputs[k] && reached.contains(record.inputs[k].get());
    });
    const auto start = std::chrono::steady_clock::now();
    const Variables results = record.op->backward(context, outputs);
    entry.backward_time = std::chrono::steady_clock::now() - start;
    if (anomaly_mode()) detail::check_finite(record.op_name, "backward", results, record.output_shapes);

    for (std::size_t k = 0; k < results.size(); ++k) {
      if (!results[k].defined() || !context.needs_grad(k)) continue;
      check(results[k].shape() == context.input_shape(k), record.op_name,
            ": backward made a gradient of shape ", results[k].shape(), " for input ", k, " of shape ",
            context.input_shape(k));
      Variable& sum = gradients[record.inputs[k].get()];
      sum = sum.defined() ? add(sum, results[k]) : results[k];
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
  Gradients gradients = walk(y, options, {});
  const FlagScope walking(walking_);
  for (const Entry& entry : entries_) {  // in order of first use: a fixed order
    for (const auto& input : entry.record.inputs) {
      if (!input || !input->leaf) continue;
      const auto found = gradients.find(input.get());
      if (found == gradients.end()) continue;
      Variable gradient = run_hooks(*input, found->second);
      if (input->gradient) gradient = add(*input->gradient, gradient);
      input->gradient = std::make_shared<Variable>(std::move(gradient));
      gradients.erase(found);
    }
  }
}

Variables Tape::gradient(const Variable& y, const Variables& xs, const BackwardOptions& options) {
  for (std::size_t i = 0; i < xs.size(); ++i) {
    check(xs[i].requires_grad(), "gradient: xs[", i, "] does not require a gradient");
  }
  check(!xs.empty(), "gradient: xs is empty");
  Gradients gradients = walk(y, options, xs);
  Variables results;
  for (const Variable& x : xs) {
    const auto found = gradients.find(x.identity().get());
    if (found == gradients.end()) {
      results.push_back(Tensor::zeros_like(x.tensor()));
    } else {
      results.push_back(producers_.contains(x.identity().get()) ? found->second
                                                                : run_hooks(*x.identity(), found->second));
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
  std::string text;
  char line[256];
  std::snprintf(line, sizeof line, "%4s  %-28s %-36s %-20s %12s %9s %9s\n", "#", "op", "inputs", "outputs",
                "saved bytes", "fwd ms", "bwd ms");
  text += line;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    std::snprintf(line, sizeof line, "%4zu  %-28s %-36s %-20s %12zu %9s %9s\n", i, entry.record.op_name,
                  shapes(entry.record.context.input_shapes()).c_str(),
                  shapes(entry.record.output_shapes).c_str(), entry.saved_bytes,
                  milliseconds(entry.record.forward_time).c_str(), milliseconds(entry.backward_time).c_str());
    text += line;
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
