// Pairs of words come from blocks that are cleared at once: a clear for each word would take longer than what
// it saves in small steps. A block lives as long as a tensor remembers words of it, so for about a step.
#include <tapedeck/ops/largest.cuh>

#include <algorithm>

#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/preparations.cuh>

namespace tapedeck::cu {

namespace {

constexpr int kAtOnce = 4;                             // loads
constexpr int kWords = kThreads;                       // of a block
constexpr std::int64_t kMostSoonRead = (1 << 18) - 1;  // elements
// A sample: vectors of four elements by warps.
constexpr std::int64_t kSample = 1 << 18, kWarp = 32;
static_assert(kLeastSampled >= 4 * kSample);
constexpr unsigned kLogRoom = 4;

/// Vectors that warps read, their first ones `spacing` apart, and other elements.
struct Operand {
  /// All elements.
  explicit Operand(const Tensor& x)
      : data(static_cast<const float*>(x.read())),
        vectors(is_aligned(data, sizeof(float)) ? x.count() / 4 : 0),
        first(vectors * 4),
        count(x.count()) {}
  Operand() = default;
  bool can_be_sampled() const { return vectors * 4 >= kLeastSampled; }
  void sample() {
    spacing = (vectors / (kSample / kWarp) - 1) | 1;  // odd: in turn all parts of rows, planes and pixels
    vectors = kSample;
    first = count;
    room = kLogRoom << 23;
  }

  const float* data = nullptr;
  std::int64_t vectors = 0, spacing = kWarp, first = 0, count = 0;
  unsigned room = 0;  // for larger ones
};

__global__ void __launch_bounds__(kWords) clear_kernel(unsigned* words) {
  begin_preparation(false);
  words[threadIdx.x] = 0;
}

/// Block (x, i) has a share of operand i. `beside`: the kernel that clears the words, which is needed last.
__global__ void __launch_bounds__(kThreads)
    largest_kernel(const __grid_constant__ Operand a, const __grid_constant__ Operand b, unsigned* largest_a,
                   unsigned* largest_b, bool beside) {
  begin_preparation(beside);
  const Operand& operand = blockIdx.y == 0 ? a : b;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                     threads = std::int64_t{gridDim.x} * kThreads;
  unsigned most = 0;
  const auto* const data = reinterpret_cast<const float4*>(operand.data);
  for (std::int64_t i = thread; i < operand.vectors; i += threads * kAtOnce) {
    float4 x[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const std::int64_t at = i + k * threads;
      x[k] = at < operand.vectors ? load_fresh(data + at / kWarp * operand.spacing + at % kWarp) : float4{};
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      most = max(most,
                 max(max(magnitude(x[k].x), magnitude(x[k].y)), max(magnitude(x[k].z), magnitude(x[k].w))));
    }
  }
  for (std::int64_t i = operand.first + thread; i < operand.count; i += threads)
    most = max(most, magnitude(load_fresh(operand.data + i)));
  if (most > 0) most = min(most + operand.room, 0x7f7fffffu);
  end_preparation(beside);
  raise_largest<kThreads>(blockIdx.y == 0 ? largest_a : largest_b, most);
}

/// The capture of a CUDA graph that the current stream is in, or 0.
std::uint64_t current_capture(Device device) {
  cudaStreamCaptureStatus status{};
  unsigned long long id = 0;
  check_cuda(cudaStreamGetCaptureInfo(stream_of(device), &status, &id), "cudaStreamGetCaptureInfo");
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

/// Cleared words for kernels on one stream, eager or of one capture.
struct Words {
  Words(const Context& c, std::uint64_t of_capture)
      : context(c), capture(of_capture), storage(kWords * sizeof(unsigned), c) {
    launch_kernel("conv: clear", c.device(), clear_kernel, 1, kWords, static_cast<unsigned*>(storage.data()));
  }
  bool serves(const Context& c, std::uint64_t of_capture) const {
    return used < kWords && context.device() == c.device() && context.stream() == c.stream() &&
           &context.allocator() == &c.allocator() && capture == of_capture;
  }

  Context context;
  std::uint64_t capture;
  Storage storage;
  int used = 0;
};

/// `cleared`: becomes true where a kernel was queued that clears them.
std::shared_ptr<unsigned> next_words(Device device, std::uint64_t capture, bool& cleared) {
  // Not its owner: then memory would outlive its allocator.
  thread_local std::weak_ptr<Words> current;
  const Context& context = Context::current(device);
  std::shared_ptr<Words> words = current.lock();
  if (words == nullptr || !words->serves(context, capture)) {
    words = std::make_shared<Words>(context, capture);
    current = words, cleared = true;
  }
  auto* const first = static_cast<unsigned*>(words->storage.data()) + words->used;
  words->used += 2;
  return {words, first};
}

}  // namespace

std::shared_ptr<unsigned> new_largest(const Tensor& y) {
  return y.count() > kMostSoonRead ? new_bound(y) : nullptr;
}

std::shared_ptr<unsigned> new_bound(const Tensor& x) {
  if (x.dtype() != DType::float32 || !conv_gemm::has_wgmma(x.device())) return nullptr;
  bool cleared = false;
  return next_words(x.device(), current_capture(x.device()), cleared);
}

void keep_largest(const Tensor& y, const std::shared_ptr<unsigned>& words) {
  if (words != nullptr) y.set_largest(words, current_capture(y.device()));
}

std::shared_ptr<unsigned> bound_of(const Prologue& prologue) {
  return prologue.statistics.largest(current_capture(prologue.statistics.device()));
}

Largest::Largest(const Tensor& a, Next next_a, const Tensor& b, Next next_b, const Prologue& prologue_a) {
  Operand operands[2];
  unsigned* found[2] = {};
  unsigned count = 0;
  std::int64_t most = 1;
  bool cleared = false;
  const std::uint64_t capture = current_capture(a.device());  // one question to the driver
  const bool apart = a.read() != b.read();  // else copies of both, at once, share their words
  const auto find = [&](const Tensor& x, Next next, int i) {
    // A kept copy goes with the words that it was scaled by, even if the tensor has forgotten them.
    words_[i] = OperandCopies::find(x, {});
    if (words_[i] == nullptr) {
      words_[i] = x.largest(capture);
      if (words_[i] != nullptr) OperandCopies::keep(x, {}, words_[i]);
    }
    if (words_[i] == nullptr) {
      const std::shared_ptr<unsigned> words = next_words(x.device(), capture, cleared);
      OperandCopies::keep(x, {}, words);
      words_[i] = words;
      Operand operand(x);
      magnitudes_[i].is_guess = apart && next == Next::copies && operand.can_be_sampled();
      if (magnitudes_[i].is_guess) operand.sample();
      most = std::max({most, operand.vectors * 4, operand.count - operand.first});
      found[count] = words.get();
      operands[count++] = operand;
    }
    magnitudes_[i].words = static_cast<const unsigned*>(words_[i].get());
  };
  if (prologue_a.exists()) {
    const std::shared_ptr<unsigned> bound = prologue_a.statistics.largest(capture);
    check(bound != nullptr, "conv: nothing bounds what this prologue makes");
    words_[0] = bound, magnitudes_[0].words = bound.get();
  } else {
    find(a, next_a, 0);
  }
  find(b, next_b, 1);
  if (count == 0) return;
  const std::int64_t blocks =
      std::clamp<std::int64_t>(ceil_div(most, kThreads * 4 * kAtOnce), 1, 8 * multiprocessors(a.device()));
  launch_kernel("conv: largest magnitudes", a.device(), largest_kernel,
                dim3(grid_size("conv", blocks), count), kThreads, operands[0], operands[1], found[0],
                found[1], cleared);
}

}  // namespace tapedeck::cu
