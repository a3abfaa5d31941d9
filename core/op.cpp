#include <tapedeck/core/op.h>

#include <algorithm>

#include <tapedeck/core/activity.h>
#include <tapedeck/core/backend.h>
#include <tapedeck/core/finite.h>

namespace tapedeck {

namespace {
thread_local RecorderScope* innermost = nullptr;
thread_local bool anomaly = false;

const Variable& kept(const Variables& variables, std::size_t i, const char* what) {
  check(i < variables.size() && variables[i].defined(), "op: ", what, " ", i, " was not saved in forward");
  return variables[i];
}
}  // namespace

const Variable& OpContext::input(std::size_t i) const {
  return kept(inputs_, i, "input");
}
const Variable& OpContext::output(std::size_t i) const {
  return kept(outputs_, i, "output");
}

template <class F>
void OpContext::for_each_saved(const F& f) const {
  const std::pair<const char*, const Variables*> lists[] = {
      {"input", &inputs_}, {"output", &outputs_}, {"saved tensor", &extra_}};
  for (const auto& [what, list] : lists) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      if ((*list)[i].defined()) f(what, i, (*list)[i].tensor());
    }
  }
}

std::size_t OpContext::saved_bytes() const {
  std::size_t bytes = 0;
  for_each_saved([&](const char*, std::size_t, const Tensor& tensor) { bytes += tensor.bytes(); });
  return bytes;
}

void OpContext::check_saved(const char* op) const {
  std::size_t k = 0;
  for_each_saved([&](const char* what, std::size_t i, const Tensor& tensor) {
    const Seen& then = seen_[k++];
    check(tensor.read() == then.data, op, ": ", what, " ", i, ", which backward reads, was replaced by ",
          tensor, " after forward");
    check(tensor.version() == then.version, op, ": ", what, " ", i, ", ", tensor,
          ", which backward reads, was changed in place after forward: it is at version ", tensor.version(),
          " and was at ", then.version, "; change it after backward, or change a clone() of it");
  });
}

void OpContext::drop_saved() {
  seen_.clear();
  inputs_.clear();
  outputs_.clear();
  extra_.clear();
}

RecorderScope::RecorderScope(Recorder* recorder) : recorder_(recorder), outer_(innermost) {
  innermost = this;
}

RecorderScope::~RecorderScope() {
  RecorderScope** link = &innermost;  // usually the innermost itself, unless scopes ended out of order
  while (*link != nullptr && *link != this) link = &(*link)->outer_;
  if (*link == this) *link = outer_;
}

/// Has the access that call() needs and users do not.
struct OpRunner {
  template <class F>
  static void for_each_listener(F f) {
    for (RecorderScope* scope = innermost; scope != nullptr && scope->recorder_ != nullptr;
         scope = scope->outer_) {
      if (scope->recorder_->listening()) f(*scope->recorder_);
    }
  }

  static Variables run(const std::shared_ptr<Op>& op, const Variables& inputs) {
    OpContext context;
    Tensors tensors;
    tensors.reserve(inputs.size());
    bool wanted = false;
    const bool listened = recording();
    for (const Variable& input : inputs) {
      tensors.push_back(input.defined() ? input.tensor() : Tensor());
      if (listened) context.needs_.push_back(input.requires_grad());
      wanted = wanted || (listened && input.requires_grad());
    }

    const auto start = wanted ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
    const auto scope = ActivityScope::op(op->name());
    Tensors results = op->forward(context, tensors);
    Variables outputs(std::make_move_iterator(results.begin()), std::make_move_iterator(results.end()));
    const bool differentiable =
        std::any_of(outputs.begin(), outputs.end(), [](const Variable& y) { return is_floating(y.dtype()); });

    if (wanted && differentiable) {
      Record record;
      record.forward_time = std::chrono::steady_clock::now() - start;
      for (const Variable& output : outputs) {
        if (is_floating(output.dtype())) output.set_recorded();
        record.outputs.push_back(output.identity());
        record.output_shapes.push_back(output.shape());
        record.output_options.push_back(output.tensor().options());
      }
      for (const Variable& input : inputs) {
        record.inputs.push_back(input.identity());
        context.shapes_.push_back(input.defined() ? input.shape() : Shape());
        context.options_.push_back(input.defined() ? input.tensor().options() : TensorOptions());
      }
      context.inputs_.resize(inputs.size());
      for (std::size_t i : context.kept_inputs_) context.inputs_.at(i) = inputs.at(i);
      context.outputs_.resize(outputs.size());
      for (std::size_t i : context.kept_outputs_) context.outputs_.at(i) = outputs.at(i);
      context.for_each_saved([&](const char*, std::size_t, const Tensor& tensor) {
        context.seen_.push_back({tensor.read(), tensor.version()});
      });
      record.op_name = op->name();
      record.module = detail::activity.module;
      record.op = op;
      record.context = std::move(context);
      Recorder* last = nullptr;  // which may have the record itself instead of a copy
      for_each_listener([&](Recorder& recorder) {
        if (last != nullptr) last->record(record, inputs);
        last = &recorder;
      });
      last->record(std::move(record), inputs);
    }

    if (anomaly) {
      std::vector<Shape> shapes;
      for (const Tensor& tensor : tensors) shapes.push_back(tensor.shape());
      detail::check_finite(op->name(), "forward", outputs, "inputs", shapes);
    }
    return outputs;
  }
};

bool recording() {
  bool any = false;
  OpRunner::for_each_listener([&](Recorder&) { any = true; });
  return any;
}

Variables call(const std::shared_ptr<Op>& op, const Variables& inputs) {
  return OpRunner::run(op, inputs);
}

void set_anomaly_mode(bool on) {
  anomaly = on;
}
bool anomaly_mode() {
  return anomaly;
}

void detail::check_finite(const char* op, const char* direction, const Variables& results, const char* from,
                          const std::vector<Shape>& shapes) {
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i].defined() || !is_floating(results[i].dtype()) || all_finite(results[i].tensor()))
      continue;
    std::string list;
    for (const Shape& shape : shapes) list += concat(list.empty() ? "" : ", ", shape);
    throw Error(concat(op, ": ", direction, " made a NaN or Inf in result ", i, " of shape ",
                       results[i].shape(), " from ", from, " of shapes ", list));
  }
}

}  // namespace tapedeck
