// The tape: what was recorded, walked backwards.
//
//   Tape tape;
//   Variable loss = mse_loss(model(x), y);
//   tape.backward(loss);      // parameters now have grad()
//
// Ops record themselves on every tape of the thread whose scope they run in. The order of recording
// is already a valid order for the walk: no recursion and no sorting. What a record saved is dropped
// as soon as it has been walked. A tape does not record its own walk, but tapes around it do, which
// is all that gradients of gradients need:
//
//   Tape outer;
//   Variable gx;
//   { Tape inner; gx = inner.gradient(f(x), {x})[0]; }
//   outer.backward(sum(square(gx)));
//
// A record saves tensors, not copies of them. When one that a walk needs was overwritten in place after its
// op ran (Tensor::version()), or replaced by Variable::set_tensor(), the walk throws Error, which names the
// op. As in PyTorch, the count is the storage's, so that a write to one slice counts for all, and writes
// through data() and raw() are not seen unless followed by bump_version().
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <tapedeck/core/op.h>

namespace tapedeck {

struct BackwardOptions {
  Variable gradient = {};  ///< of y, of y's shape; 1 when undefined, and then y must have one element
  bool retain = false;     ///< keep what was saved, so that the tape can be walked again
  /// Run the hooks of what the tape did not record, such as leaves. checkpoint() leaves them to the walk
  /// around it, which has the whole gradient.
  bool leaf_hooks = true;
};

class Tape final : private Recorder {
 public:
  /// Starts recording what this thread runs, until the tape is destroyed, in this thread.
  Tape() : scope_(this) {}
  ~Tape() override = default;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// Adds the gradient of y to grad() of every leaf that y depends on by what was recorded here. Throws
  /// Error when y was not recorded here, or when a record that it needs was walked before without `retain`.
  /// When it throws, no grad() has changed.
  void backward(const Variable& y, const BackwardOptions& options = {});

  /// The gradients of y with respect to `xs`, which may be leaves or results; grad() is not touched.
  /// Zeros where y does not depend on x; y may be one of xs, also a leaf. Throws Error as backward() does.
  Variables gradient(const Variable& y, const Variables& xs, const BackwardOptions& options = {});

  /// The number of recorded ops.
  std::size_t size() const { return entries_.size(); }
  /// Bytes that records keep for the walk, each tensor counted once per record.
  std::size_t saved_bytes() const;

  /// One line an op: name, shapes, bytes saved, milliseconds forward and backward.
  std::string to_text() const;
  /// The same as a Graphviz DOT graph.
  std::string to_dot() const;

 private:
  struct Entry {
    Record record;
    std::size_t saved_bytes = 0;  // when recorded; the record lets go of them when walked
    std::chrono::nanoseconds backward_time{-1};
    bool walked = false;
  };
  struct Sum {
    Variable value;
    bool own = false;  // made by adding, so that nobody else has it
    void add(const Variable& gradient);
  };
  using Gradients = std::unordered_map<const detail::Identity*, Sum>;
  using Identities = std::unordered_set<const detail::Identity*>;

  bool listening() const override { return !walking_; }
  void record(Record record, const Variables& inputs) override;
  Gradients walk(const Variable& y, const BackwardOptions& options, const Identities& wanted);
  Identities between(const Identities& wanted, std::size_t last) const;
  Variables take_output_gradients(const Record& record, Gradients& gradients, const Identities& wanted) const;

  std::vector<Entry> entries_;
  std::unordered_map<const detail::Identity*, std::size_t> producers_;
  bool walking_ = false;
  RecorderScope scope_;
};

}  // namespace tapedeck
