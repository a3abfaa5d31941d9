#include <tapedeck/core/captured_step.h>

#include <algorithm>
#include <array>
#include <bit>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/memory_journal.h>

namespace tapedeck {

namespace detail {

/// What a captured step reads of the host at each replay.
struct Replayed {
  struct Draws {
    Generator* generator;
    std::size_t at;      // of its two numbers, seed and offset
    std::uint64_t made;  // in one run of the step
  };

  Tensor place;                                  // float64 [kNumbers] on the device
  std::vector<std::function<double()>> sources;  // of each number in use
  std::vector<Draws> draws;
  std::array<double, kNumbers> last{};  // what the device holds
  bool written = false;

  std::size_t add(std::function<double()> source) {
    check(sources.size() < kNumbers, "captured step: it reads more than ", kNumbers,
          " numbers: three for each group of an optimizer, two for each generator, and what "
          "replayed_number() gives");
    sources.push_back(std::move(source));
    return sources.size() - 1;
  }
};

}  // namespace detail

namespace {

thread_local detail::Replayed* capturing = nullptr;

/// For a scope, the calling thread captures.
class CapturingScope {
 public:
  explicit CapturingScope(detail::Replayed& replayed) { capturing = &replayed; }
  ~CapturingScope() { capturing = nullptr; }
  CapturingScope(const CapturingScope&) = delete;
  CapturingScope& operator=(const CapturingScope&) = delete;
};

std::string key_of(const std::vector<Tensor>& inputs) {
  std::string key;
  for (const Tensor& x : inputs) {
    check(x.defined(), "captured step: an input is undefined");
    key += concat(x.dtype(), x.shape(), x.layout(), ";");
  }
  return key;
}

}  // namespace

bool is_capturing() {
  return capturing != nullptr;
}

Tensor replayed_number(Device device, std::function<double()> number) {
  return replayed_numbers(device, {std::move(number)});
}

Tensor replayed_numbers(Device device, std::vector<std::function<double()>> numbers) {
  if (capturing == nullptr) return {};
  check(device == capturing->place.device(), "captured step: it runs on ", capturing->place.device(),
        " but a number is wanted on ", device);
  const auto begin = static_cast<std::int64_t>(capturing->sources.size());
  for (auto& number : numbers) capturing->add(std::move(number));
  return capturing->place.slice(begin, static_cast<std::int64_t>(capturing->sources.size()));
}

/// What is captured of a generator, from its first draw on.
static detail::Replayed::Draws& captured_generator(Generator& generator) {
  auto& all = capturing->draws;
  auto found = std::find_if(all.begin(), all.end(), [&](const auto& d) { return d.generator == &generator; });
  if (found == all.end()) {
    const std::size_t at = capturing->add([g = &generator] { return std::bit_cast<double>(g->seed()); });
    capturing->add([g = &generator] { return std::bit_cast<double>(g->offset()); });
    found = all.insert(all.end(), {&generator, at, 0});
  }
  return *found;
}

std::uint64_t& detail::captured_draws(Generator& generator) {
  return captured_generator(generator).made;
}

std::uint64_t detail::captured_draw(Generator& generator) {
  Replayed::Draws& draws = captured_generator(generator);
  return kCapturedDraw | std::uint64_t{draws.at} << kDrawBits | draws.made++;
}

const double* detail::captured_numbers() {
  return capturing != nullptr ? capturing->place.data<double>() : nullptr;
}

/// One kind of inputs.
struct CapturedStep::Entry {
  std::unique_ptr<detail::CapturedGraph> graph;  // null until it is captured
  std::vector<Tensor> inputs, outputs;           // where the graph reads and writes
  std::uint64_t memory_steps = 0;                // that one run counts
  detail::Replayed replayed;
};

CapturedStep::CapturedStep(Device device, Function function)
    : context_(Context::current(device)), function_(std::move(function)) {}

CapturedStep::~CapturedStep() {
  entries_.clear();  // before the memory that they live in
}

std::vector<Tensor> CapturedStep::operator()(const std::vector<Tensor>& inputs) {
  const Device device = context_.device();
  check(Context::current(device).stream() == context_.stream(),
        "captured step: it was made with another stream of ", device, " than the current one");
  check(!is_capturing(), "captured step: it is called inside of another");
  const std::string key = key_of(inputs);
  const auto seen = entries_.find(key);
  if (seen != entries_.end() && memory_ == nullptr) memory_ = TAPEDECK_KERNEL(device, new_graph)(context_);
  if (seen == entries_.end() || memory_ == nullptr) {
    std::vector<Tensor> there;
    there.reserve(inputs.size());
    for (const Tensor& x : inputs) there.push_back(x.to(device));
    std::vector<Tensor> outputs = function_(there);
    entries_.try_emplace(key);
    return outputs;
  }
  std::unique_ptr<Entry>& entry = seen->second;
  if (entry == nullptr) {
    auto captured = std::make_unique<Entry>();
    capture(*captured, inputs);
    entry = std::move(captured);
  }
  return replay(*entry, inputs);
}

void CapturedStep::capture(Entry& entry, const std::vector<Tensor>& inputs) {
  empty_cache(context_.device());  // what the first run used is not needed beside the graph's own memory
  auto graph = memory_->another();
  const ContextScope scope(graph->context());
  for (const Tensor& x : inputs) {
    entry.inputs.push_back(Tensor::empty(x.shape(), {x.dtype(), context_.device(), x.layout()}));
  }
  entry.replayed.place =
      Tensor::empty({static_cast<std::int64_t>(detail::kNumbers)}, {DType::float64, context_.device()});
  {
    const CapturingScope scope_of_numbers(entry.replayed);
    const std::uint64_t steps = detail::memory_step;
    graph->begin();
    try {
      entry.outputs = function_(entry.inputs);
    } catch (...) {
      graph->abandon();
      throw;
    }
    graph->end();
    entry.memory_steps = detail::memory_step - steps;
    detail::memory_step -= entry.memory_steps;  // each replay is one
  }
  entry.graph = std::move(graph);
}

std::vector<Tensor> CapturedStep::replay(Entry& entry, const std::vector<Tensor>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      check(i == j || !inputs[i].shares_storage(entry.inputs[j]), "captured step: input ", i,
            " is own_inputs()[", j, "], which would be overwritten before it is read");
    }
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].shares_storage(entry.inputs[i])) entry.inputs[i].copy_(inputs[i]);
  }
  detail::Replayed& replayed = entry.replayed;
  std::array<double, detail::kNumbers> now{};
  for (std::size_t i = 0; i < replayed.sources.size(); ++i) now[i] = replayed.sources[i]();
  const bool same = std::equal(now.begin(), now.end(), replayed.last.begin(), [](double a, double b) {
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  });
  if (!replayed.sources.empty() && (!replayed.written || !same)) {
    entry.graph->set(now.data(), replayed.place.data<double>());
    replayed.last = now;
    replayed.written = true;
  }
  entry.graph->launch();
  detail::memory_step += entry.memory_steps;
  for (const auto& d : replayed.draws) {
    d.generator->set_state(d.generator->seed(), d.generator->offset() + d.made);
  }
  return entry.outputs;
}

std::vector<Tensor> CapturedStep::own_inputs(const std::vector<Tensor>& inputs) const {
  const auto seen = entries_.find(key_of(inputs));
  return seen != entries_.end() && seen->second != nullptr ? seen->second->inputs : inputs;
}

std::size_t CapturedStep::graphs() const {
  return static_cast<std::size_t>(
      std::count_if(entries_.begin(), entries_.end(), [](const auto& e) { return e.second != nullptr; }));
}

MemoryStats CapturedStep::memory_stats() const {
  return memory_ != nullptr ? memory_->memory_stats() : MemoryStats();
}

std::string CapturedStep::memory_snapshot() const {
  return memory_ != nullptr ? memory_->memory_snapshot() : "";
}

std::unique_ptr<detail::CapturedGraph> cpu::new_graph(const Context&) {
  return nullptr;
}

}  // namespace tapedeck
