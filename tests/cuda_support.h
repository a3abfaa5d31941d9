// What the tests on a GPU share.
#pragma once

#include <cstdlib>
#include <limits>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/device.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck::test {

inline const Device kCuda{DeviceType::cuda};

/// In SetUp(): skips the test, visibly, where there is no GPU, and fails it there when
/// TAPEDECK_REQUIRE_CUDA=1.
inline void require_cuda() {
  if (cuda_device_count() > 0) return;
  const char* required = std::getenv("TAPEDECK_REQUIRE_CUDA");
  ASSERT_FALSE(required != nullptr && std::string_view(required) == "1")
      << "TAPEDECK_REQUIRE_CUDA=1, but there is no CUDA device";
  GTEST_SKIP() << "there is no CUDA device";
}

class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override { require_cuda(); }
};

/// Leaves NaN in the memory that the cache hands out next, in blocks of up to `largest` floats.
inline void poison_memory(std::int64_t largest = 3000000) {
  std::vector<Tensor> blocks;
  for (int i = 0; i < 20; ++i) {
    for (std::int64_t count : {200, 5000, 100000, 3000000}) {
      if (count > largest) continue;
      blocks.push_back(Tensor::full({count}, std::numeric_limits<double>::quiet_NaN(), {.device = kCuda}));
    }
  }
}

}  // namespace tapedeck::test
