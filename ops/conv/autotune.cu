// Trials of a GPU's algorithms: times and results of calls on tensors of their own.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <thread>

#include <tapedeck/core/random.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/core/cuda.cuh>
#include <tapedeck/ops/conv/autotune.cuh>

namespace tapedeck::cu {

namespace {

using conv_estimate::ConvPass;

/// Keeps the stream busy, so that what is queued meanwhile runs without waiting for the host.
__global__ void wait_kernel(std::uint64_t nanoseconds) {
  const auto now = [] {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  for (const std::uint64_t begin = now(); now() - begin < nanoseconds;) {
  }
}

/// Times work on the calling thread's stream by the device's clock.
class Stopwatch {
 public:
  explicit Stopwatch(Device device) : scope_(device), stream_(stream_of(device)) {
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate");
    if (const cudaError_t status = cudaEventCreate(&end_); status != cudaSuccess) {
      (void)cudaEventDestroy(begin_);
      check_cuda(status, "cudaEventCreate");
    }
  }
  ~Stopwatch() {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// Of one of so many calls of f, which the host queues in about 50 microseconds each.
  template <class F>
  double seconds(int calls, const F& f) {
    wait_kernel<<<1, 1, 0, stream_>>>(static_cast<std::uint64_t>(calls) * 50000);
    check_launch("conv autotune");
    check_cuda(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    for (int i = 0; i < calls; ++i) f();
    check_cuda(cudaEventRecord(end_, stream_), "cudaEventRecord");
    ++detail::synchronizations;
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return std::max(1e-9, static_cast<double>(ms) * 1e-3 / calls);
  }

 private:
  DeviceScope scope_;
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// By how much the norm of a difference may differ, relative to that of the results: what roundings of sums
/// in other orders make of the types, and what is wrong not.
double tolerance(DType dtype) {
  if (dtype == DType::float64) return 1e-10;
  if (dtype == DType::float32) return float32_precision() == Precision::highest ? 1e-5 : 2e-3;
  return 1e-2;
}

/// Of the elements, squared.
double squared_norm(const Tensor& x) {
  const Tensor flat = x.flat(), squares = Tensor::empty_like(flat);
  const Tensor total = Tensor::empty({1}, flat.options());
  cu::arithmetic(Arithmetic::mul, flat, flat, squares);
  cu::sum(squares, 1, total);
  return total.item();
}

/// Tensors like those of a call, random, and what computes it.
class Trial final : public ConvTrial {
 public:
  Trial(const ConvTranspose2dGeometry& g, ConvPass pass, const Tensor& x, const Tensor& y, const Tensor& w)
      : g_(g), pass_(pass), like_x_(x), like_y_(y), like_w_(w) {}

  std::vector<ConvCandidate> candidates() override {
    const OperandCopies none;  // not those that a tape's gradients share, which a call alone does not have
    candidates_ = conv_candidates(g_, pass_, like_x_, like_y_);
    return candidates_;
  }

  double seconds(const ConvCandidate& candidate, double best) override {
    make_tensors();
    const auto call = [&] { compute(candidate, result()); };
    call();  // loads kernels, and has the cache take workspaces
    Stopwatch watch(x_.device());
    const double first = watch.seconds(1, call);
    if (first > 3 * best) return first;
    // Large calls are slower on a GPU that was busy, and not all by the same: of 58 choices that an H200 made
    // without a rest, 15 gained less than 1.5% in the benchmark, which rests, or lost up to 8%. So each
    // begins alike.
    constexpr double kShort = 1e-4;
    if (first > kShort) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    constexpr double kBatch = 3e-4;
    const int calls = std::clamp(static_cast<int>(kBatch / first), 1, 20);
    std::array<double, 5> times;
    for (double& time : times) time = watch.seconds(calls, call);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  bool matches(const ConvCandidate& candidate) override {
    make_tensors();
    const DType wide = x_.dtype() == DType::float64 ? DType::float64 : DType::float32;
    if (!expected_.defined()) {
      compute(candidates_.front(), result());
      expected_ = result().clone().to(wide);
    }
    result().fill_(std::numeric_limits<double>::quiet_NaN());  // which what is not written stays
    compute(candidate, result());
    const Tensor found = result().to(wide), difference = Tensor::empty_like(expected_);
    cu::arithmetic(Arithmetic::sub, found, expected_, difference);
    const double most = tolerance(x_.dtype());
    return squared_norm(difference) <= most * most * squared_norm(expected_);
  }

 private:
  /// By a generator of its own: the user's draws stay theirs.
  void make_tensors() {
    if (w_.defined()) return;
    Generator generator(1);
    const TensorOptions options = like_x_.options();
    x_ = randn(g_.x_shape(), options, generator);
    y_ = randn(g_.y_shape(), like_y_.options(), generator);
    w_ = randn(g_.weight_shape(), like_w_.options(), generator);
  }
  const Tensor& result() const {
    return pass_ == ConvPass::forward ? y_ : pass_ == ConvPass::input_gradient ? x_ : w_;
  }
  void compute(const ConvCandidate& candidate, const Tensor& to) const {
    const ConvAlgorithmScope forced(candidate);
    const OperandCopies of_this_call;
    if (pass_ == ConvPass::forward) return cu::conv_transpose2d(g_, x_, w_, {}, to, 1);
    if (pass_ == ConvPass::input_gradient) return cu::conv2d(g_, y_, w_, {}, to, 1);
    cu::conv_transpose2d_weight_grad(g_, x_, y_, to);
  }

  const ConvTranspose2dGeometry& g_;
  ConvPass pass_;
  Tensor like_x_, like_y_, like_w_, x_, y_, w_, expected_;
  std::vector<ConvCandidate> candidates_;
};

const std::string& name_of(Device device) {
  thread_local std::map<int, std::string> known;
  std::string& name = known[device.index];
  if (name.empty()) {
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, device.index), "cudaGetDeviceProperties");
    name = properties.name;
  }
  return name;
}

std::string question(const ConvTranspose2dGeometry& g, ConvPass pass, DType dtype, Layout x, Layout y,
                     Device device) {
  return conv_tuner_question(name_of(device), kConvPassNames[static_cast<std::size_t>(pass)], dtype,
                             float32_precision(), x, y, g);
}

/// Whether the library's own table has choices for a GPU like it.
bool has_choices(Device device) {
  thread_local std::map<int, bool> known;
  const auto [at, is_new] = known.try_emplace(device.index);
  if (is_new) at->second = has_shipped_choices(name_of(device));
  return at->second;
}

bool is_captured(Device device) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream_of(device), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

std::optional<KnownChoice> known_tuned(const ConvTranspose2dGeometry& g, ConvPass pass, DType dtype, Layout x,
                                       Layout y, Device device) {
  if (conv_algorithm() != ConvAlgorithm::automatic) return {};
  const std::string asked = question(g, pass, dtype, x, y, device);
  if (const auto tuner = conv_tuner())
    if (const auto known = tuner->known(asked)) return KnownChoice{*known, false};
  const auto shipped = shipped_choice(asked);
  if (!shipped) return {};
  // Measured alone: not where both gradients read a copy that this would not make.
  const ConvAlgorithm a = shipped->candidate.algorithm;
  const bool floats = a == ConvAlgorithm::boxes || a == ConvAlgorithm::windows,
             reads_operand = a == ConvAlgorithm::gathered || (dtype == DType::float32 && floats);
  const ReadByBoth both = OperandCopies::read_by_both();
  const bool is_beside = (pass == ConvPass::input_gradient && both == ReadByBoth::y) ||
                         (pass == ConvPass::forward && both == ReadByBoth::x);
  if (is_beside && reads_operand) return {};
  return KnownChoice{*shipped, true};
}

std::optional<ConvCandidate> tuned(const ConvTranspose2dGeometry& g, ConvPass pass, const Tensor& x,
                                   const Tensor& y, const Tensor& w) {
  if (g.n == 0 || conv_algorithm() != ConvAlgorithm::automatic) return {};
  const Device device = y.device();
  const std::int64_t number = conv_tuner_number();
  if (number == 0 && !has_choices(device)) return {};
  const auto known = [&]() -> std::optional<ConvCandidate> {
    const auto choice = known_tuned(g, pass, y.dtype(), x.layout(), y.layout(), device);
    return choice ? std::optional(choice->candidate) : std::nullopt;
  };
  if (number != 0 && is_captured(device)) return known();
  return remembered(ConvQuestion(g, pass, y.dtype(), x.layout(), y.layout(), float32_precision(),
                                 device.index, number, OperandCopies::read_by_both()),
                    [&]() -> std::optional<ConvCandidate> {
                      if (const auto tuner = number == 0 ? nullptr : conv_tuner()) {
                        Trial trial(g, pass, x, y, w);
                        const auto chosen = tuner->choose(
                            question(g, pass, y.dtype(), x.layout(), y.layout(), device), trial);
                        if (chosen) return chosen;
                      }
                      return known();
                    });
}

}  // namespace tapedeck::cu
