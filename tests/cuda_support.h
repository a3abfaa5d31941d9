// What the tests on a GPU share.
#pragma once

#include <cstdlib>
#include <string_view>

#include <gtest/gtest.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/device.h>

namespace tapedeck::test {

inline const Device kCuda{DeviceType::cuda};

/// Tests that need a GPU: skipped, visibly, where there is none, and failed there when
/// TAPEDECK_REQUIRE_CUDA=1.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() > 0) return;
    const char* required = std::getenv("TAPEDECK_REQUIRE_CUDA");
    ASSERT_FALSE(required != nullptr && std::string_view(required) == "1")
        << "TAPEDECK_REQUIRE_CUDA=1, but there is no CUDA device";
    GTEST_SKIP() << "there is no CUDA device";
  }
};

}  // namespace tapedeck::test
