#include <tapedeck/core/memory.h>

#include <cstdint>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/tensor.h>

namespace tapedeck {
namespace {

using ::testing::HasSubstr;

TEST(Memory, CountsTensors) {
  const MemoryStats before = memory_stats();
  {
    const Tensor x = Tensor::empty({1000});
    EXPECT_EQ(memory_stats().requested, before.requested + 4000);
    EXPECT_EQ(memory_stats().allocations, before.allocations + 1);
    EXPECT_THAT(memory_snapshot(), HasSubstr("\"requested\": 4000, \"state\": \"in use\""));
  }
  EXPECT_EQ(memory_stats().requested, before.requested);
  EXPECT_GE(memory_stats().peak_in_use, before.in_use + 4000);
  reset_peak_memory_stats();
  EXPECT_EQ(memory_stats().peak_in_use, before.in_use);
}

TEST(Memory, TensorsAreAligned) {
  for (std::int64_t count : {1, 3, 17, 1000, 1000003}) {
    const Tensor x = Tensor::empty({count}, {.dtype = DType::uint8});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.raw()) % 64, 0u);
  }
}

TEST(Memory, EmptyingTheCacheGivesEverythingBack) {
  { const Tensor x = Tensor::empty({3000000}); }
  empty_cache();
  EXPECT_EQ(memory_stats().reserved, 0u);
  const Tensor y = Tensor::full({5}, 3);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(5, 3.f));
}

TEST(Memory, TheLimitHolds) {
  empty_cache();
  set_memory_limit(Device{}, 1 << 20);
  try {
    (void)Tensor::empty({1 << 20});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cpu allocator: out of memory: requested 4.00 MiB"));
  }
  EXPECT_NO_THROW((void)Tensor::empty({1 << 10}));
  set_memory_limit(Device{}, ~std::size_t{0});
  EXPECT_NO_THROW((void)Tensor::empty({1 << 20}));
}

TEST(Memory, RefusesADeviceThatIsNotThere) {
  try {
    (void)memory_stats({DeviceType::cuda, 99});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cuda:99"));
  }
}

TEST(Memory, FormatsSizes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(std::size_t{5} << 30), "5.00 GiB");
  EXPECT_EQ(format_bytes(~std::size_t{0}), "16.00 EiB");
}

}  // namespace
}  // namespace tapedeck
