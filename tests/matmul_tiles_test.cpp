// How products of matrices are shared out among blocks, and what threads of a block copy and read
// (ops/matmul_tiles.h): the kernel's arithmetic, without a GPU.
#include <array>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include <tapedeck/core/error.h>
#include <tapedeck/ops/matmul_tiles.h>

namespace tapedeck::matmul_tiles {
namespace {

TEST(MatmulTiles, SplitsAndTilesCoverAProduct) {
  for (std::int64_t m : {1, 16, 33, 64, 100, 128, 1000})
    for (std::int64_t n : {1, 31, 72, 128, 8192})
      for (std::int64_t k : {1, 32, 200, 256, 257, 513, 784, 8192, 65537})
        for (std::int64_t batch : {0, 1, 6, 64}) {
          SCOPED_TRACE(concat(m, "x", n, "x", k, " of ", batch));
          const Plan plan({m, n, k, batch});
          EXPECT_EQ(plan.tile_m * plan.tile_n, kTiles * kTile * kTile);
          EXPECT_GE(plan.tiles_m * plan.tile_m, m);
          EXPECT_LT((plan.tiles_m - 1) * plan.tile_m, m);
          EXPECT_GE(plan.tiles_n * plan.tile_n, n);
          EXPECT_LT((plan.tiles_n - 1) * plan.tile_n, n);
          EXPECT_EQ(plan.split_depth % kDepth, 0);
          EXPECT_GE(plan.splits * plan.split_depth, k);
          EXPECT_LT((plan.splits - 1) * plan.split_depth, k) << "the last split has nothing";
          if (k <= 256) {
            EXPECT_EQ(plan.splits, 1);
          }
          EXPECT_LE(plan.splits, 264);
        }
}

TEST(MatmulTiles, LongSumsOfFewBlocksAreShared) {
  EXPECT_EQ(Plan({128, 100, 8192, 1}).splits, 64);   // 4 blocks
  EXPECT_EQ(Plan({96, 64, 16384, 6}).splits, 22);    // 12
  EXPECT_EQ(Plan({2048, 2048, 8192, 1}).splits, 1);  // 1024
  EXPECT_EQ(Plan({32, 168, 16384, 2}).tile_m, 32);
  EXPECT_EQ(Plan({100, 30, 16384, 2}).tile_m, 128);
  EXPECT_EQ(Plan({64, 64, 16384, 2}).tile_m, 64);
}

bool takes(const Sizes& p, bool transposed_a, bool transposed_b, TileMath math = TileMath::float32,
           std::int64_t calls = 1) {
  return tiled(p, transposed_a, transposed_b, math, calls).has_value();
}

TEST(MatmulTiles, TakesWhatCublasIsSlowAt) {
  EXPECT_TRUE(takes({96, 64, 16384, 6}, false, true));
  EXPECT_TRUE(takes({16, 96, 112, 1}, false, true));
  EXPECT_FALSE(takes({16, 96, 56, 1}, false, true));
  EXPECT_FALSE(takes({128, 8192, 100, 1}, false, false));
  EXPECT_TRUE(takes({1023, 1024, 3136, 1}, false, true));
  EXPECT_FALSE(takes({1023, 1024, 3136, 1}, true, true)) << "lines of a begin at odd words";
  EXPECT_FALSE(takes({1024, 1024, 3135, 1}, false, true)) << "and of both";
  EXPECT_TRUE(takes({95, 71, 3135, 16}, false, true)) << "but cuBLASLt would not share them";
  EXPECT_FALSE(takes({1, 528, 7168, 2}, false, true)) << "a tile has 32 rows";
  EXPECT_FALSE(takes({64, 64, 0, 2}, false, true));
  EXPECT_FALSE(takes({96, 64, 1024, 65536}, false, true));
  EXPECT_FALSE(takes({1 << 16, 64, 1 << 16, 1}, false, true));
}

TEST(MatmulTiles, TakesWhatTestsOfMatmulMultiply) {  // CudaReductions.MatrixProducts
  EXPECT_TRUE(takes({33, 72, 700, 5}, false, false));
  EXPECT_TRUE(takes({33, 72, 701, 3}, false, false, TileMath::float32, 2));
  EXPECT_TRUE(takes({33, 72, 704, 5}, false, false));
}

TEST(MatmulTiles, TakesSomeCallsInOne) {
  const Sizes short_sums{96, 992, 72, 22};
  EXPECT_FALSE(takes(short_sums, false, false));
  EXPECT_TRUE(takes(short_sums, false, false, TileMath::float32, 4));
  EXPECT_FALSE(takes(short_sums, false, false, TileMath::float32, 2)) << "with too few sums for each";
  EXPECT_FALSE(takes({96, 992, 40, 22}, false, false, TileMath::float32, 16)) << "most of a stage is none";
  EXPECT_FALSE(takes(short_sums, false, false, TileMath::tf32, 4)) << "of which cuBLASLt has Hopper's";
  EXPECT_EQ(tiled(short_sums, false, false, TileMath::float32, 4)->batch, 88);
  EXPECT_FALSE(takes({96, 992, 72, 32768}, false, false, TileMath::float32, 4)) << "more than a grid has";
}

TEST(MatmulTiles, TakesBatchesThatCublasDoesNotShare) {
  for (TileMath math : {TileMath::tf32, TileMath::bfloat16, TileMath::float16}) {
    EXPECT_TRUE(takes({96, 72, 16384, 2}, false, true, math));
    EXPECT_FALSE(takes({96, 72, 16384, 1}, false, true, math));
    EXPECT_FALSE(takes({96, 72, 16384, 64}, false, true, math));
    EXPECT_EQ(takes({96, 72, 16384, 2}, false, false, math), math == TileMath::tf32) << "lines along k";
    EXPECT_EQ(takes({96, 72, 16383, 2}, false, true, math), math == TileMath::tf32) << "at words";
  }
  EXPECT_EQ(tiled({96, 72, 16384, 2}, false, true, TileMath::float16)->k, 8192);
  EXPECT_EQ(tiled({96, 72, 16384, 2}, false, true, TileMath::tf32)->k, 16384);
}

/// Threads of a warp of which each accesses so many neighbouring words do so without waiting: those of a
/// turn, 32 words in all, meet each bank once.
void expect_free(const std::vector<int>& words, int each) {
  for (std::size_t turn = 0; turn < words.size(); turn += static_cast<std::size_t>(32 / each)) {
    std::set<int> banks;
    for (std::size_t t = turn; t < turn + static_cast<std::size_t>(32 / each); ++t)
      for (int e = 0; e < each; ++e) banks.insert((words[t] + e) % 32);
    EXPECT_EQ(banks.size(), 32U);
  }
}

template <class S, int kCopied>
void check_copies() {
  using Share = typename S::template Share<kCopied>;
  std::vector<int> copies(static_cast<std::size_t>(S::kWords));
  for (int thread = 0; thread < kThreads; ++thread) {
    const Share mine(thread);
    for (int n = 0; n < S::kLines; n += Share::kLinesAtOnce) {
      const int line = mine.line + n, word = mine.word() + n * S::kPitch;
      ASSERT_LT(line, S::kLines);
      ASSERT_LE(mine.at + kCopied, S::kLine);
      ASSERT_EQ(word % kCopied, 0);
      ASSERT_EQ(word, S::kLine == S::kPitch - 4 ? S::word_of(line, mine.at) : S::word_of(mine.at, line));
      for (int e = 0; e < kCopied; ++e) ++copies[static_cast<std::size_t>(word + e)];
    }
  }
  for (int line = 0; line < S::kLines; ++line)
    for (int at = 0; at < S::kPitch; ++at)
      ASSERT_EQ(copies[static_cast<std::size_t>(line * S::kPitch + at)], at < S::kLine ? 1 : 0);
  for (int first = 0; first < kThreads; first += 32) {
    std::vector<int> words;
    for (int lane = 0; lane < 32; ++lane) words.push_back(Share(first + lane).word());
    expect_free(words, kCopied);
  }
}

template <int kRows, bool kAlongK>
void check_stage() {
  using S = Stage<kRows, kAlongK>;
  SCOPED_TRACE(concat(kRows, kAlongK ? " along k" : " rows"));
  static_assert(S::kPitch * 4 % 16 == 0);  // for copies and reads of 16 bytes
  check_copies<S, 1>();
  check_copies<S, 2>();
  check_copies<S, 4>();
  // What the kernel reads: 16 bytes of eight rows, or a word of eight rows and four of k each.
  for (int row = 0; row < kRows; row += 8)
    for (int k = 0; k < kDepth; k += 4) {
      std::vector<int> words;
      for (int lane = 0; lane < (kAlongK ? 8 : 32); ++lane)
        words.push_back(kAlongK ? S::word_of(row + lane, k) : S::word_of(row + lane / 4, k + lane % 4));
      expect_free(words, kAlongK ? 4 : 1);
    }
}

TEST(MatmulTiles, StagesAreCopiedOnceAndReadWithoutBankConflicts) {
  check_stage<32, true>();
  check_stage<32, false>();
  check_stage<64, true>();
  check_stage<64, false>();
  check_stage<128, true>();
  check_stage<128, false>();
}

}  // namespace
}  // namespace tapedeck::matmul_tiles
