// What the tests on a GPU share.
#pragma once

#include <algorithm>
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

/// Of how many cases of a test one is taken: scripts/gpu_test.sh sets this under the sanitizers, which take
/// milliseconds for each launch, and for which it matters which kernels run, not what comes of them.
inline int test_share() {
  const char* const share = std::getenv("TAPEDECK_TEST_SHARE");
  return share == nullptr ? 1 : std::max(1, std::atoi(share));
}
inline bool is_sanitized() {
  return test_share() > 1;
}

/// Takes of a test's cases the first, and then each that is so many further.
class Share {
 public:
  explicit Share(int most = std::numeric_limits<int>::max()) : of_(std::min(most, test_share())) {}
  bool takes_next() { return next_++ % of_ == 0; }

 private:
  int of_, next_ = 0;
};

/// Leaves NaN in the memory that the cache hands out next, in blocks of up to `largest` floats. A sanitizer
/// knows what was not written.
inline void poison_memory(std::int64_t largest = 3000000) {
  if (is_sanitized()) return;
  std::vector<Tensor> blocks;
  for (int i = 0; i < 20; ++i) {
    for (std::int64_t count : {200, 5000, 100000, 3000000}) {
      if (count > largest) continue;
      blocks.push_back(Tensor::full({count}, std::numeric_limits<double>::quiet_NaN(), {.device = kCuda}));
    }
  }
}

}  // namespace tapedeck::test
