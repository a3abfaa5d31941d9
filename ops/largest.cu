// Words come from blocks that are cleared at once: a clear for each word would take longer than what it saves
// in small steps. A block lives as long as a tensor remembers a word of it, so for about a step.
#include <tapedeck/ops/largest.cuh>

#include <algorithm>

#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>

namespace tapedeck::cu {

namespace {

constexpr int kAtOnce = 4;                             // loads
constexpr int kWords = kThreads;                       // of a block
constexpr std::int64_t kMostSoonRead = (1 << 18) - 1;  // elements

struct Operand {
  const float* data;
  std::int64_t count;
};

__global__ void __launch_bounds__(kWords) clear_kernel(unsigned* words) {
  await_previous();
  words[threadIdx.x] = 0;
}

/// Block (x, i) has a share of operand i.
__global__ void __launch_bounds__(kThreads)
    largest_kernel(Operand a, Operand b, unsigned* largest_a, unsigned* largest_b) {
  await_previous();
  const Operand operand = blockIdx.y == 0 ? a : b;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x,
                     threads = std::int64_t{gridDim.x} * kThreads;
  unsigned most = 0;
  const bool aligned = reinterpret_cast<std::uintptr_t>(operand.data) % sizeof(float4) == 0;
  const std::int64_t vectors = aligned ? operand.count / 4 : 0;
  const auto* const data = reinterpret_cast<const float4*>(operand.data);
  for (std::int64_t i = thread; i < vectors; i += threads * kAtOnce) {
    float4 x[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) x[k] = i + k * threads < vectors ? data[i + k * threads] : float4{};
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      most = max(most,
                 max(max(magnitude(x[k].x), magnitude(x[k].y)), max(magnitude(x[k].z), magnitude(x[k].w))));
    }
  }
  for (std::int64_t i = vectors * 4 + thread; i < operand.count; i += threads)
    most = max(most, magnitude(operand.data[i]));
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

std::shared_ptr<unsigned> next_word(Device device, std::uint64_t capture) {
  // Not its owner: then memory would outlive its allocator.
  thread_local std::weak_ptr<Words> current;
  const Context& context = Context::current(device);
  std::shared_ptr<Words> words = current.lock();
  if (words == nullptr || !words->serves(context, capture)) {
    words = std::make_shared<Words>(context, capture);
    current = words;
  }
  auto* const word = static_cast<unsigned*>(words->storage.data()) + words->used++;
  return {words, word};
}

}  // namespace

std::shared_ptr<unsigned> new_largest(const Tensor& y) {
  const bool is_asked_for = y.dtype() == DType::float32 && conv_gemm::has_wgmma(y.device());
  return is_asked_for && y.count() > kMostSoonRead ? next_word(y.device(), current_capture(y.device()))
                                                   : nullptr;
}

void keep_largest(const Tensor& y, const std::shared_ptr<unsigned>& word) {
  if (word != nullptr) y.set_largest(word, current_capture(y.device()));
}

Largest::Largest(const Tensor& a, const Tensor& b) {
  Operand operands[2] = {};
  unsigned* words[2] = {};
  unsigned count = 0;
  std::int64_t most = 1;
  const std::uint64_t capture = current_capture(a.device());  // one question to the driver
  const auto find = [&](const Tensor& x) {
    std::shared_ptr<void> known = x.largest(capture);
    if (known == nullptr) known = OperandCopies::find(x, {});
    if (known != nullptr) return known;
    const std::shared_ptr<unsigned> word = next_word(x.device(), capture);
    OperandCopies::keep(x, {}, word);
    words[count] = word.get();
    operands[count++] = {static_cast<const float*>(x.read()), x.count()};
    most = std::max(most, x.count());
    return std::shared_ptr<void>(word);
  };
  a_ = find(a), b_ = find(b);
  if (count == 0) return;
  const std::int64_t blocks =
      std::clamp<std::int64_t>(ceil_div(most, kThreads * 4 * kAtOnce), 1, 8 * multiprocessors(a.device()));
  launch_kernel("conv: largest magnitudes", a.device(), largest_kernel,
                dim3(grid_size("conv", blocks), count), kThreads, operands[0], operands[1], words[0],
                words[1]);
}

}  // namespace tapedeck::cu
