// What results add of products with all taps (ops/conv/columns.h), against the definition, and how threads
// share lines of them.
#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tapedeck/core/error.h>
#include <tapedeck/ops/conv/columns.h>

namespace tapedeck::test {
namespace {

using conv_columns::kLineThreads;
using conv_columns::LineTiles;
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

// Each column of each line has one thread, of which a row has lines of all kinds.
TEST(ConvColumns, LinesAreShared) {
  std::mt19937_64 engine(std::random_device{}());
  const auto any = [&](std::int64_t least, std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(least, most)(engine);
  };
  for (int i = 0; i < 300; ++i) {
    const std::int64_t width = any(1, any(0, 1) == 0 ? 40 : 1500), columns = any(0, 1) == 0 ? 1 : 4,
                       lines = any(1, 600), period = any(1, 8), at_once = any(1, 900);
    const double setup = static_cast<double>(any(1, 8));
    SCOPED_TRACE(concat(lines, " lines of ", width, " columns, ", columns, " of a thread, period ", period,
                        ", ", at_once, " blocks, setup ", setup));
    LineTiles tiles(width, columns, period);
    tiles.share(lines, at_once, setup);
    EXPECT_LE(tiles.threads_x * tiles.threads_y, kLineThreads);
    EXPECT_EQ(std::gcd(std::int64_t{tiles.threads_y}, period), 1);
    std::vector<int> times(static_cast<std::size_t>(lines * width));
    for (int b = 0; b < tiles.blocks; ++b) {
      const LineTiles::Block block = tiles.of(b);
      ASSERT_LT(block.begin, block.end);
      EXPECT_LE(block.end - block.begin, 24 * tiles.threads_y);
      for (int line = block.begin; line < block.end; ++line)
        for (std::int64_t c = 0; c < columns; ++c)
          for (int x = 0; x < tiles.threads_x; ++x) {
            const std::int64_t column = block.tile * tiles.threads_x * columns + c * tiles.threads_x + x;
            if (column < width) ++times[static_cast<std::size_t>(line * width + column)];
          }
    }
    EXPECT_TRUE(std::ranges::all_of(times, [](int n) { return n == 1; }));
  }
}

// Few lines for a thread are one each; many come in whole turns of blocks.
TEST(ConvColumns, BlocksComeInWholeTurns) {
  const auto blocks = [](std::int64_t lines, double setup) {
    LineTiles tiles(256, 1, 1);
    tiles.share(lines, 792, setup);
    return tiles.blocks;
  };
  EXPECT_EQ(blocks(1584, 6), 1584);
  EXPECT_EQ(blocks(792 * 4, 6), 792);
  EXPECT_EQ(blocks(792 * 3, 1), 792 * 3);
  EXPECT_EQ(blocks(792 * 64, 6), 792 * 4);
}

}  // namespace
}  // namespace tapedeck::test
