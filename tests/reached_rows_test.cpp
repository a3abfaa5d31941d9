// The rows of y that taps reach (ops/conv/reached_rows.h).
#include <vector>

#include <gtest/gtest.h>

#include <tapedeck/ops/conv/reached_rows.h>

namespace tapedeck::test {
namespace {

TEST(ReachedRows, AreThoseOfWhichATapHasThePhase) {
  int partial = 0, none = 0;
  for (std::int64_t stride = 1; stride <= conv_gemm::kMaxPhases; ++stride)
    for (std::int64_t kernel = 1; kernel <= 5; ++kernel)
      for (std::int64_t dilation = 1; dilation <= 4; ++dilation)
        for (std::int64_t padding = 0; padding <= dilation * (kernel - 1) + 2 * stride; ++padding)
          for (const std::int64_t in : {1, 2, 7}) {
            ConvAxis a;
            a.in = in, a.kernel = kernel, a.stride = stride, a.padding = padding, a.dilation = dilation;
            a.out = (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + stride;
            if (a.out < 1) continue;
            SCOPED_TRACE(testing::Message() << "in " << in << " kernel " << kernel << " stride " << stride
                                            << " dilation " << dilation << " padding " << padding);
            std::vector<int> expected;
            for (int h = 0; h < a.out; ++h) {
              bool reached = false;
              for (std::int64_t k = 0; k < kernel; ++k)
                reached = reached || (h + padding - k * dilation) % stride == 0;
              if (reached) expected.push_back(h);
            }
            const conv_gemm::ReachedRows rows(a);
            std::vector<int> found;
            for (int i = 0; i < rows.count; ++i) found.push_back(rows.row(i));
            ASSERT_EQ(found, expected);
            for (int h = 0, i = 0; h < a.out; ++h) {
              const bool has =
                  i < static_cast<int>(expected.size()) && expected[static_cast<std::size_t>(i)] == h;
              ASSERT_EQ(rows.has(h), has) << h;
              i += has ? 1 : 0;
            }
            none += rows.count == 0 ? 1 : 0;
            if (rows.are_all()) {
              ASSERT_EQ(rows.count, a.out);
            } else {
              ++partial;
            }
          }
  EXPECT_GT(partial, 100);
  EXPECT_GT(none, 100);
}

TEST(ReachedRows, AreAllWithoutAnAxis) {
  EXPECT_TRUE(conv_gemm::ReachedRows().are_all());
}

}  // namespace
}  // namespace tapedeck::test
