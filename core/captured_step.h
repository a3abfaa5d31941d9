// Steps that a GPU repeats without the host: CUDA graphs.
//
// Queuing a training step takes the host longer than a small model takes the GPU. A captured step is queued
// once, into a graph; from then on one call repeats all of it, to the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tapedeck/core/memory.h>
#include <tapedeck/core/random.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck {

namespace detail {
struct CapturedGraph;
struct Replayed;
}  // namespace detail

/// A function of tensors that runs on one device, captured where that is a GPU:
///
///   CapturedStep step(device, [&](const std::vector<Tensor>& batch) -> std::vector<Tensor> {
///     optimizer.zero_grad();
///     Tape tape;
///     const Variable loss = nn::mse_loss(model(batch[0]), batch[1]);
///     tape.backward(loss);
///     optimizer.step();
///     return {loss.tensor()};
///   });
///   for (const auto& [codes, images] : batches) losses.push_back(step({codes, images})[0].clone());
///
/// For inputs of shapes, dtypes and layouts that it has not seen the first call runs the function as it is,
/// the second captures it, and this and all later ones replay the graph. On the CPU every call runs it.
///
/// What a replay repeats is the work on the GPU. So the function
/// - must not wait for the GPU, nor copy between it and the CPU: Error says so when it is captured. What
///   changes from call to call comes as an input, from a Generator, or from replayed_number();
/// - may change tensors in place, as optimizers do, but what it replaces (a gradient, a Variable's tensor) is
///   not there for the next replay to read: begin with zero_grad();
/// - must not depend on anything else on the host, whose code does not run: schedulers are stepped outside.
///   What may change in the groups of optimizers (lr, momentum, weight_decay) and the states of generators
///   are read anew at each replay.
/// What it uses, generators and optimizers included, must live as long as the captured step.
///
/// The graph's memory is its own, and is used by nothing else until the captured step is destroyed: results,
/// gradients included, stay there and are overwritten by the next call.
class CapturedStep {
 public:
  using Function = std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)>;

  /// Work is queued on the calling thread's stream of `device`.
  CapturedStep(Device device, Function function);
  /// Waits for the device where there are graphs.
  ~CapturedStep();
  CapturedStep(const CapturedStep&) = delete;
  CapturedStep& operator=(const CapturedStep&) = delete;

  /// Copies the inputs to the device where they are not there, and runs the step. Throws Error when it is
  /// captured and cannot be; the generators' states are then what they were.
  std::vector<Tensor> operator()(const std::vector<Tensor>& inputs);

  /// Where the graph for such inputs reads them; `inputs` themselves as long as there is none. What is passed
  /// from there is not copied, and passed in this order, or the call throws Error: whoever writes each batch
  /// into these saves the copies.
  std::vector<Tensor> own_inputs(const std::vector<Tensor>& inputs) const;

  /// How many graphs there are: one for each kind of inputs.
  std::size_t graphs() const;
  /// What the graphs' own memory holds. It is not part of the device's (core/memory.h).
  MemoryStats memory_stats() const;
  /// The same as JSON, with what was allocated while steps were captured if the device's history was recorded
  /// then: memory_snapshot() of core/memory.h. Empty where there is no graph.
  std::string memory_snapshot() const;

 private:
  struct Entry;
  void capture(Entry& entry, const std::vector<Tensor>& inputs);
  std::vector<Tensor> replay(Entry& entry, const std::vector<Tensor>& inputs);

  Context context_;
  Function function_;
  std::map<std::string, std::unique_ptr<Entry>> entries_;
  std::unique_ptr<detail::CapturedGraph> memory_;
};

/// Whether the calling thread is inside of a step that is being captured.
bool is_capturing();

/// While a step is captured: a float64 tensor on `device`, of one element, that holds `number()`, called
/// once before each replay, which may change what it likes on the host. Undefined else.
Tensor replayed_number(Device device, std::function<double()> number);
/// The same for several: a tensor of as many elements.
Tensor replayed_numbers(Device device, std::vector<std::function<double()>> numbers);

namespace detail {

/// The bits of a draw that was made while a step is captured: which generator's, and its number there. What
/// kernels make of it: core/draw.cuh.
inline constexpr std::uint64_t kCapturedDraw = std::uint64_t{1} << 63;
inline constexpr int kDrawBits = 48;

/// The next draw of a generator, while a step is captured.
std::uint64_t captured_draw(Generator& generator);
/// How many draws of a generator the step that is captured has made; who sets it back has them made again.
std::uint64_t& captured_draws(Generator& generator);
/// Where the numbers of the step that is captured are on the device; null outside.
const double* captured_numbers();

/// Numbers that a replay reads.
inline constexpr std::size_t kNumbers = 256;

/// A graph on a device, and the memory that it lives in.
struct CapturedGraph {
  virtual ~CapturedGraph() = default;
  /// A graph beside this one, in the same memory. They are launched one after the other.
  virtual std::unique_ptr<CapturedGraph> another() = 0;
  virtual const Context& context() const = 0;
  virtual MemoryStats memory_stats() const = 0;
  virtual std::string memory_snapshot() const = 0;

  virtual void begin() = 0;
  virtual void end() = 0;
  /// Instead of end(), when capturing failed.
  virtual void abandon() noexcept = 0;
  virtual void launch() = 0;
  /// Queues to[i] = numbers[i] for i < kNumbers.
  virtual void set(const double* numbers, double* to) = 0;
};

}  // namespace detail

namespace cpu {
/// Null: steps on the CPU are not captured.
std::unique_ptr<detail::CapturedGraph> new_graph(const Context& context);
}  // namespace cpu
namespace cu {
/// Null where the caching allocator is off.
std::unique_ptr<detail::CapturedGraph> new_graph(const Context& context);
}  // namespace cu

}  // namespace tapedeck
