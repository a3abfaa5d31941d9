// In the steady state convolutions take no memory from the system: their tensors and all of their working
// memory come from the caching allocator, which has enough after a few steps, and what else they keep in
// lists is small.
#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <new>

#include <tapedeck/core/memory.h>
#include <tapedeck/ops/conv/kernels.h>

// AddressSanitizer has operators of its own, and with it nothing is cached (core/host_memory.cpp).
#if defined(__SANITIZE_ADDRESS__)
#define TAPEDECK_TEST_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TAPEDECK_TEST_ASAN
#endif
#endif

namespace {

std::atomic<std::size_t> largest{0}, calls{0};

#if !defined(TAPEDECK_TEST_ASAN)
void* counted(std::size_t bytes) {
  ++calls;
  for (std::size_t seen = largest; bytes > seen && !largest.compare_exchange_weak(seen, bytes);) {
  }
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
#endif

}  // namespace

#if !defined(TAPEDECK_TEST_ASAN)

void* operator new(std::size_t bytes) {
  return counted(bytes);
}
void* operator new[](std::size_t bytes) {
  return counted(bytes);
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete[](void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  std::free(p);
}
#endif

namespace tapedeck::test {
namespace {

nn::ConvTranspose2d up(std::int64_t from, std::int64_t to, Size2 kernel, Size2 stride, Size2 padding,
                       std::int64_t groups = 1) {
  return nn::ConvTranspose2d({.in_channels = from,
                              .out_channels = to,
                              .kernel_size = kernel,
                              .stride = stride,
                              .padding = padding,
                              .groups = groups});
}

TEST(ConvAllocation, StepsTakeNothingFromTheSystem) {
#if defined(TAPEDECK_TEST_ASAN)
  GTEST_SKIP() << "nothing is cached";
#endif
  for (ConvAlgorithm algorithm :
       {ConvAlgorithm::automatic, ConvAlgorithm::planes, ConvAlgorithm::windows, ConvAlgorithm::winograd}) {
    set_conv_algorithm(algorithm);
    nn::Sequential model(up(20, 64, 4, 1, 0), nn::ReLU(), up(64, 64, 4, 2, 1), nn::ReLU(),
                         up(64, 64, 2, 2, 0), nn::ReLU(), up(64, 64, 3, 1, 1, 64), nn::ReLU(),
                         up(64, 16, {3, 5}, {2, 3}, {1, 2}, 4), nn::ReLU(), up(16, 3, 4, 2, 1));
    const Tensor codes = randn({16, 20, 1, 1});
    optim::Adam adam(model.parameters(), {});
    const auto step = [&] {
      adam.zero_grad();
      Tape tape;
      const Variable y = model(codes);
      tape.backward(sum(y * y));
      adam.step();
    };
    for (const std::function<void()>& call : {std::function<void()>(step), {[&] { (void)model(codes); }}}) {
      for (int i = 0; i < 5; ++i) call();
      const MemoryStats before = memory_stats();
      largest = 0;
      for (int i = 0; i < 5; ++i) call();
      const MemoryStats after = memory_stats();
      EXPECT_GT(after.allocations, before.allocations);
      EXPECT_EQ(after.device_allocations, before.device_allocations) << to_string(algorithm);
      EXPECT_LT(largest, std::size_t{64} << 10) << "bytes outside of the caching allocator";
    }
  }
  set_conv_algorithm(ConvAlgorithm::automatic);
}

TEST(ConvAllocation, WorkingMemoryIsNotTakenPieceByPiece) {
#if defined(TAPEDECK_TEST_ASAN)
  GTEST_SKIP() << "nothing is counted";
#endif
  // What grows with the tensors is one block each; lists grow with the kernel, the strides and the threads.
  for (std::int64_t images : {4, 256}) {
    const Variable x = randn({images, 64, 14, 14}), w = randn({64, 32, 4, 4});
    const ConvTranspose2dOptions options{.stride = 2, .padding = 1};
    const auto call = [&] { return conv_transpose2d(x, w, {}, options); };
    (void)call();
    calls = 0;
    (void)call();
    EXPECT_LT(calls, 400U) << images << " images";
  }
}

}  // namespace
}  // namespace tapedeck::test
