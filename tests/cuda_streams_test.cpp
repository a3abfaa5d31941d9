// Streams, contexts and allocators that are the user's own; in builds with CUDA.
#include "cuda_support.h"
#include "decoder.h"
#include "op_support.h"

#include <cuda_runtime_api.h>

#include <tapedeck/core/caching_allocator.h>

namespace tapedeck {
namespace {

using namespace test;

class CudaStreams : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (cuda_device_count() == 0) return;
    for (cudaStream_t& stream : streams_) {
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    }
  }
  void TearDown() override {
    for (cudaStream_t stream : streams_) {
      if (stream == nullptr) continue;
      retire_stream(kCuda, stream);
      cudaStreamDestroy(stream);
    }
  }

  Context context(int k) const { return Context(kCuda, streams_[k]); }

  cudaStream_t streams_[2] = {};
  /// Of matrices whose products take so long that the CPU is far ahead; small ones for a sanitizer.
  const int side_ = is_sanitized() ? 128 : 4096;
  const int repeats_ = is_sanitized() ? 4 : 10;
};

TEST_F(CudaStreams, BlocksGoToAnotherStreamOnlyBehindEvents) {
  // Long work on the first stream reads what was freed there; if the second stream wrote into it at once, the
  // first would see that.
  empty_cache(kCuda);
  const Context first = context(0), second = context(1);
  for (int repeat = 0; repeat < repeats_; ++repeat) {
    Tensor result;
    {
      const ContextScope scope(first);
      const Variable x = Tensor::full({side_, side_}, 1.0 / side_, {.device = kCuda});
      Variable product = x;
      for (int i = 0; i < 10; ++i) product = matmul(product, x);
      result = product.tensor();
    }
    {
      const ContextScope scope(second);
      for (int i = 0; i < 20; ++i) Tensor::full({side_, side_}, kNan, {.device = kCuda});
    }
    const ContextScope scope(first);
    EXPECT_NEAR(sum(result).item(), side_, 1);
  }
}

TEST_F(CudaStreams, ATensorThatIsDroppedWhileAnotherStreamReadsItStays) {
  // The second stream reads x long after the first, whose it is, has had reason to use its memory again.
  empty_cache(kCuda);
  const Context first = context(0), second = context(1);
  const ContextScope scope(first);
  const Variable work = Tensor::full({side_, side_}, 1.0 / side_, {.device = kCuda});
  std::uint64_t taken = 0;
  for (int repeat = 0; repeat < repeats_; ++repeat) {
    Variable x = Tensor::full({side_, side_}, 2, {.device = kCuda});
    ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
    Variable total;
    {
      const ContextScope scope_of_second(second);
      Variable product = work;
      for (int i = 0; i < 10; ++i) product = matmul(product, work);
      total = sum(x) + 0.0 * sum(product);
    }
    x = {};
    for (int i = 0; i < 20; ++i) Tensor::full({side_, side_}, kNan, {.device = kCuda});
    const ContextScope scope_of_second(second);
    EXPECT_EQ(total.item(), 2.0 * side_ * side_);
    if (repeat == 2) taken = memory_stats(kCuda).device_allocations;
  }
  EXPECT_EQ(memory_stats(kCuda).device_allocations, taken) << "what was waited for was not used again";
}

TEST_F(CudaStreams, ATensorThatIsDroppedWhileItIsCopiedToStays) {
  const Context first = context(0);
  const ContextScope scope(first);
  Tensor from;
  {
    const ContextScope pinned(pinned_context());
    from = Tensor::full({side_, side_}, 3);
  }
  const auto copies = CopyStream::make(kCuda);
  Variable product = Tensor::full({side_, side_}, 1.0 / side_, {.device = kCuda});
  for (int i = 0; i < 10; ++i) product = matmul(product, product);
  Tensor to = Tensor::empty({side_, side_}, {.device = kCuda});
  copies->copy(from, to);  // begins after the products
  to = {};
  const Tensor ones = Tensor::full({side_, side_}, 1, {.device = kCuda});
  copies->join();
  EXPECT_EQ(sum(ones).item(), side_ * side_);
}

/// A step from x[0] towards x[1]; its loss.
template <class Model>
Tensors regress(Model& model, optim::Adam& adam, const Tensors& x) {
  adam.zero_grad();
  Tape tape;
  const Variable loss = nn::mse_loss(model(x[0]), x[1]);
  tape.backward(loss);
  adam.step();
  return {loss.tensor()};
}

TEST_F(CudaStreams, AModelOfOneStreamIsCapturedOnAnother) {
  // The gradients of the first, eager step are those of one stream; while the other is captured they are
  // freed, and events cannot be recorded there. A twin stays on its stream, and is not captured.
  const auto train = [&](bool moves) {
    Generator generator(4);
    nn::Linear model({.in_features = 200, .out_features = 100}, generator);
    model.to(kCuda);
    optim::Adam adam(model.parameters(), {.lr = 1e-3});
    const auto run = [&](const Tensors& x) { return regress(model, adam, x); };
    const Tensors x{random_tensor({7, 200}, {}, -1, 1).to(kCuda),
                    random_tensor({7, 100}, {}, -1, 1).to(kCuda)};
    std::vector<double> losses{run(x)[0].item()};
    synchronize(kCuda);
    const Context where = moves ? context(1) : Context::current(kCuda);
    const ContextScope scope(where);
    CapturedStep step(kCuda, run);
    for (int i = 0; i < 20; ++i) losses.push_back((moves ? step(x) : run(x))[0].item());
    EXPECT_EQ(step.graphs(), moves ? 1u : 0u);
    synchronize(kCuda);
    return std::pair(losses, model.parameters()[0].tensor().to_vector<float>());
  };
  const auto expected = train(false);
  EXPECT_EQ(train(true), expected);
  EXPECT_LT(expected.first.back(), expected.first.front());
}

TEST_F(CudaStreams, TrainingOnOneIsTrainingOnAnother) {
  const auto train = [](const Context& where, bool captured) {
    const ContextScope scope(where);
    Generator generator(4);
    SmallDecoder model(generator);
    model.to(kCuda);
    optim::Adam adam(model.parameters(), {.lr = 1e-2});
    const auto run = [&](const Tensors& x) { return regress(model, adam, x); };
    CapturedStep step(kCuda, run);
    std::vector<double> losses;
    for (int i = 0; i < (is_sanitized() ? 3 : 20); ++i) {
      const Tensors x{random_tensor({7, 6}, {}, -1, 1).to(kCuda),
                      random_tensor({7, 3, 6, 6}, {}, -1, 1).to(kCuda)};
      losses.push_back((captured ? step(x) : run(x))[0].item());
    }
    return losses;
  };
  const auto expected = train(Context::current(kCuda), false);
  for (const bool captured : {false, true}) {
    EXPECT_EQ(train(context(0), captured), expected);
    EXPECT_EQ(train(context(1), captured), expected);
  }
}

/// Memory of CUDA's own pool, in the order of a stream.
class AsyncAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes, Stream stream) override {
    if (bytes == 0) return nullptr;
    void* pointer = nullptr;
    check(cudaMallocAsync(&pointer, bytes, static_cast<cudaStream_t>(stream)) == cudaSuccess,
          "cudaMallocAsync failed");
    ++live;
    return pointer;
  }
  void record_stream(void*, Stream) override { FAIL() << "there is one stream"; }
  void deallocate(void* pointer, std::size_t, Stream stream) noexcept override {
    cudaFreeAsync(pointer, static_cast<cudaStream_t>(stream));
    --live;
  }
  int live = 0;
};

TEST_F(CudaStreams, AnAllocatorOfTheUser) {
  AsyncAllocator allocator;
  {
    const Context own(kCuda, streams_[0], allocator);
    const ContextScope scope(own);
    const MemoryStats before = memory_stats(kCuda);
    const Variable x = Tensor::full({1000}, 2, {.device = kCuda});
    EXPECT_EQ(sum(x * x).item(), 4000);
    EXPECT_GT(allocator.live, 0);
    EXPECT_EQ(memory_stats(kCuda).allocations, before.allocations);
  }
  cudaStreamSynchronize(streams_[0]);
  EXPECT_EQ(allocator.live, 0);
}

}  // namespace
}  // namespace tapedeck
