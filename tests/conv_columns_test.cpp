// What results add of products with all taps (ops/conv/columns.h), against the definition.
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tapedeck/ops/conv/columns.h>

namespace tapedeck::test {
namespace {

using conv_columns::TapAxis;
using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;  // a tap, and what it reads

Pairs read_by(const TapAxis& axis, int result) {
  const TapAxis::Reads reads = axis.at(result);
  Pairs all;
  for (int j = 0; j < reads.count; ++j)
    all.emplace_back(reads.tap + j * axis.tap_step, reads.from + j * axis.gap);
  return all;
}

TEST(ConvColumns, ResultsReadWhatTheirTapsReach) {
  int some = 0, none = 0;
  for (std::int64_t stride = 1; stride <= conv_gemm::kMaxPhases; ++stride)
    for (std::int64_t kernel = 1; kernel <= 6; ++kernel)
      for (std::int64_t dilation = 1; dilation <= 4; ++dilation)
        for (const std::int64_t in : {1, 2, 9})
          for (std::int64_t padding = 0; padding <= dilation * (kernel - 1) + 2 * stride; ++padding) {
            ConvAxis a;
            a.in = in, a.kernel = kernel, a.stride = stride, a.padding = padding, a.dilation = dilation;
            a.out = (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + stride;
            if (a.out < 1) continue;
            SCOPED_TRACE(testing::Message() << "in " << in << " kernel " << kernel << " stride " << stride
                                            << " dilation " << dilation << " padding " << padding);
            const TapAxis transposed(conv_gemm::transposed_phases(a), a.in),
                plain(conv_gemm::plain_phases(a), a.out);
            for (int o = 0; o < a.out; ++o) {
              Pairs expected;
              for (std::int64_t k = 0; k < kernel; ++k)
                if (a.input(o, k) >= 0) expected.emplace_back(k, a.input(o, k));
              ASSERT_EQ(read_by(transposed, o), expected) << o;
              ++(expected.empty() ? none : some);
            }
            for (int i = 0; i < in; ++i) {
              Pairs expected;
              for (std::int64_t k = 0; k < kernel; ++k)
                if (a.output(i, k) >= 0 && a.output(i, k) < a.out) expected.emplace_back(k, a.output(i, k));
              ASSERT_EQ(read_by(plain, i), expected) << i;
            }
          }
  EXPECT_GT(some, 10000);
  EXPECT_GT(none, 1000);
}

}  // namespace
}  // namespace tapedeck::test
