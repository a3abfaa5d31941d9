// Tensors of more than 2^31 elements: every index and every byte count needs 64 bits. An element is a hash of
// its position, so that one that went elsewhere shows.
#include <tapedeck/tapedeck.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "cuda_support.h"

namespace tapedeck {
namespace {

constexpr std::int64_t kRow = 44'003, kRows = 49'003, kCount = kRow * kRows;  // 2.16e9
static_assert(kCount > std::int64_t{1} << 31);

/// Bytes that may be taken without swapping; all there are where Linux does not say.
std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  for (std::int64_t kib = 0; file >> key >> kib; file.ignore(256, '\n')) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return std::numeric_limits<std::int64_t>::max();
}

/// 7 bits of a hash of i.
std::uint8_t pattern(std::int64_t i) {
  return static_cast<std::uint8_t>(static_cast<std::uint64_t>(i) * 0x9E3779B97F4A7C15u >> 57);
}

/// f(i) for each i, in parallel, until it is false; the first or another position where it is, or -1.
template <class F>
std::int64_t find_false(std::int64_t count, const F& f, std::int64_t grain = 1 << 20) {
  std::atomic<std::int64_t> found = -1;
  parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      if (f(i)) continue;
      found = i;
      return;
    }
  });
  return found;
}

/// A position at which x[i] is not expected(i), or -1.
template <class F>
std::int64_t difference(const Tensor& x, const F& expected) {
  const Tensor host = x.to(Device{});
  const auto* data = host.data<std::uint8_t>();
  return find_false(x.count(), [=](std::int64_t i) { return data[i] == expected(i); });
}

class LargeTensor : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam().is_cuda()) test::require_cuda();
    constexpr std::int64_t kNeeded = std::int64_t{8} << 30;
    if (available_memory() < kNeeded) {
      GTEST_SKIP() << "only " << format_bytes(static_cast<std::size_t>(available_memory()))
                   << " are free; needed are " << format_bytes(static_cast<std::size_t>(kNeeded));
    }
  }
  void TearDown() override {
    if (!GetParam().is_cuda() || cuda_device_count() > 0) empty_cache(GetParam());
  }
  static void TearDownTestSuite() {
    made_ = Tensor();
    empty_cache();
  }

  /// x[i] = pattern(i), made once.
  static Tensor pattern_tensor() {
    if (made_.defined()) return made_.to(GetParam());
    made_ = Tensor::empty({kRows, kRow}, {.dtype = DType::uint8});
    auto* data = made_.data<std::uint8_t>();
    find_false(kCount, [=](std::int64_t i) {
      data[i] = pattern(i);
      return true;
    });
    return made_.to(GetParam());
  }

 private:
  static inline Tensor made_;
};

TEST_P(LargeTensor, CopiesFillsAndConverts) {
  const Tensor x = pattern_tensor(), copy = x.clone();
  EXPECT_EQ(difference(copy, pattern), -1);
  copy.fill_(7);
  EXPECT_EQ(difference(copy.slice(kRows - 9, kRows), [](std::int64_t) { return 7; }), -1);
  const Tensor half = x.slice(kRows / 2, kRows).to(DType::bfloat16);  // which holds such numbers exactly
  const Tensor last = half.slice(half.size(0) - 9, half.size(0)).to(DType::uint8);
  EXPECT_EQ(difference(last, [](std::int64_t i) { return pattern((kRows - 9) * kRow + i); }), -1);
}

TEST_P(LargeTensor, ElementwiseAndBroadcast) {
  const Tensor x = pattern_tensor(), row = x.slice(kRows - 1, kRows);
  EXPECT_EQ(
      difference(le(x, row).tensor(),
                 [](std::int64_t i) { return pattern(i) <= pattern((kRows - 1) * kRow + i % kRow) ? 1 : 0; }),
      -1);
}

TEST_P(LargeTensor, Reductions) {
  const Tensor x = pattern_tensor(), rows = sum(x, {1}).tensor().to(Device{}), host = x.to(Device{});
  const auto* sums = rows.data<std::int64_t>();
  std::atomic<std::int64_t> total = 0;
  EXPECT_EQ(find_false(
                kRows,
                [&](std::int64_t row) {
                  std::int64_t expected = 0;
                  for (std::int64_t i = row * kRow; i < (row + 1) * kRow; ++i) expected += pattern(i);
                  total += expected;
                  return sums[row] == expected;
                },
                16),
            -1);
  EXPECT_EQ(sum(x).tensor().to_vector<std::int64_t>()[0], total);
  const Tensor last = x.reshape({kCount}).slice(kCount - 2, kCount - 1);
  last.fill_(255);
  EXPECT_EQ(argmax(x).tensor().to_vector<std::int64_t>()[0], kCount - 2);
  last.fill_(pattern(kCount - 2));
}

TEST_P(LargeTensor, ReductionsOfHalfPrecision) {
  empty_cache(GetParam());  // of blocks that are too small for this
  const Tensor x = Tensor::full({kRows, kRow}, 0.5, {.dtype = DType::bfloat16, .device = GetParam()});
  x.reshape({kCount}).slice(kCount - 1, kCount).fill_(64);
  EXPECT_EQ(mean(x).item(), 0.5);
  EXPECT_EQ(max(x).item(), 64);
}

TEST_P(LargeTensor, SlicesAndConcatenations) {
  const Tensor x = pattern_tensor();
  // Columns, and rows from the far end, which lie beyond 2^31.
  const Tensor columns = slice(x, 1, kRow - 3, kRow).tensor(),
               rows = slice(x, 0, kRows - 5, kRows, 2).tensor();
  EXPECT_EQ(difference(columns, [](std::int64_t i) { return pattern(i / 3 * kRow + kRow - 3 + i % 3); }), -1);
  EXPECT_EQ(
      difference(rows, [](std::int64_t i) { return pattern((kRows - 5 + i / kRow * 2) * kRow + i % kRow); }),
      -1);
  const Tensor joined = cat({x, columns}, 1).tensor();
  ASSERT_EQ(joined.shape(), Shape({kRows, kRow + 3}));
  EXPECT_EQ(difference(joined,
                       [](std::int64_t i) {
                         const std::int64_t row = i / (kRow + 3), k = i % (kRow + 3);
                         return pattern(row * kRow + (k < kRow ? k : k - 3));
                       }),
            -1);
}

TEST_P(LargeTensor, Draws) {
  Generator generator(3);
  const Tensor x = rand({kCount}, {.dtype = DType::bfloat16, .device = GetParam()}, generator);
  const auto eight = [&](std::int64_t begin) { return x.slice(begin, begin + 8).to_vector<float>(); };
  EXPECT_NE(eight(kCount - 8), eight(kCount - 8 - (std::int64_t{1} << 31)));  // where 32 bits would point to
  EXPECT_NE(eight(kCount - 8), std::vector<float>(8, eight(kCount - 8)[0]));
  EXPECT_NEAR(mean(x).item(), 0.5, 0.01);
}

INSTANTIATE_TEST_SUITE_P(Devices, LargeTensor, ::testing::Values(Device{}, test::kCuda),
                         [](const auto& instance) { return instance.param.is_cpu() ? "cpu" : "cuda"; });

}  // namespace
}  // namespace tapedeck
