// Rows of results that go past the caches (micro/stream.inl): every phase, width and place in memory, without
// the large tensors that convolutions take it for.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include <tapedeck/core/simd.h>
#include <tapedeck/ops/micro/kernels.h>

namespace tapedeck::test {
namespace {

struct RowCase {
  std::int64_t step, rows, width, begin;  // begin: elements from an aligned one
  unsigned taken;                         // phases that have taps
  bool has_start;
  double slope;
  bool in_pairs;  // rows with taps, those that follow each other
};

/// Rows of results that follow each other, of which the first, the last ones and one between have taps.
template <class T>
void expect_rows(const RowCase& c, std::mt19937& random) {
  const auto& kernels = micro::kernels<T>();
  const auto numbers = [&](std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (T& v : values) v = static_cast<T>(std::uniform_real_distribution<double>(-1, 1)(random));
    return values;
  };
  constexpr std::int64_t kDepth = 3, kLines = 14, kGuard = 64;
  const T guard = -77;
  const std::int64_t count = (c.width + c.step - 1) / c.step, plane = kLines * c.width + 5, pitch = count + 8;
  const std::int64_t parts = c.in_pairs ? 4 : 1;
  const std::vector<T> weights = numbers(parts * c.step * kDepth * c.rows), start = numbers(c.rows),
                       pixels = numbers((kLines + parts) * pitch + kernels.plane_slack);
  const std::vector<std::int64_t> offsets{0, 3, 7};

  std::vector<T> memory(static_cast<std::size_t>(c.rows * plane + 4 * kGuard), guard);
  T* aligned = memory.data() + kGuard;
  while (reinterpret_cast<std::uintptr_t>(aligned) % 64 != 0) ++aligned;
  T* const to = aligned + c.begin;
  std::vector<T> expected = memory, waiting(static_cast<std::size_t>(kernels.queue_elements), guard);
  micro::RowQueue<T> queue;
  queue.memory = waiting.data();
  std::int64_t with_taps = 0, first_of_pair = 0;
  for (std::int64_t line = 0; line < kLines; ++line) {
    const bool is_empty = line == 1 || (line > 2 && line + 2 < kLines),
               is_second = c.in_pairs && with_taps % 2 == 1;
    if (!is_empty && with_taps++ % 2 == 0) first_of_pair = line;
    const T* const b = pixels.data() + (c.in_pairs ? first_of_pair : line) * pitch;
    std::vector<micro::Correlation<T>> phases(static_cast<std::size_t>(c.step));
    for (std::int64_t r = 0; r < c.step; ++r) {
      micro::Correlation<T>& phase = phases[static_cast<std::size_t>(r)];
      phase.a = weights.data() + parts * r * kDepth * c.rows;
      phase.b = b;
      phase.offsets = offsets.data();
      phase.depth = (c.taken >> r & 1) != 0 ? kDepth : 0;
      phase.pitch = pitch;
    }
    kernels.stream_row(queue, {is_empty ? nullptr : phases.data(),
                               c.step,
                               c.has_start ? start.data() : nullptr,
                               static_cast<T>(c.slope),
                               to + line * c.width,
                               plane,
                               c.rows,
                               count,
                               c.width,
                               line == 0,
                               line + 1 == kLines,
                               {},
                               c.in_pairs,
                               is_second});
    for (std::int64_t m = 0; m < c.rows; ++m) {
      for (std::int64_t i = 0; i < c.width; ++i) {
        const std::int64_t r = i % c.step;
        const auto product = [&](std::int64_t part) {
          double sum = 0;
          for (std::int64_t k = 0; k < kDepth; ++k) {
            sum += static_cast<double>(
                       weights[static_cast<std::size_t>(((parts * r + part) * kDepth + k) * c.rows + m)]) *
                   static_cast<double>(b[part * pitch + offsets[static_cast<std::size_t>(k)] + i / c.step]);
          }
          return sum;
        };
        double sum = c.has_start ? static_cast<double>(start[static_cast<std::size_t>(m)]) : 0;
        if (!is_empty && (c.taken >> r & 1) != 0) {
          sum += !c.in_pairs ? product(0)
                 : is_second ? product(0) - product(1) + product(3)
                             : product(0) + product(1) + product(2);
        }
        expected[static_cast<std::size_t>(to - memory.data() + m * plane + line * c.width + i)] =
            static_cast<T>(sum > 0 ? sum : sum * c.slope);
      }
    }
  }
  kernels.write_rows(queue);
  ASSERT_EQ(queue.count, 0);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    ASSERT_NEAR(memory[i], expected[i], (sizeof(T) == 4 ? 1e-6 : 1e-14) * (c.in_pairs ? 3 : 1))
        << i << ": step " << c.step << ", " << c.rows << " rows of " << c.width << " from " << c.begin
        << ", taken " << c.taken << (c.in_pairs ? ", in pairs" : "");
  }
}

template <class T>
void expect_all() {
  std::mt19937 random(7);
  const std::int64_t lanes = micro::kernels<T>().lanes;
  if (micro::kernels<T>().stream_row == nullptr) GTEST_SKIP() << "a build for size";
  for (std::int64_t step = 1; step <= micro::kernels<T>().max_stream_step; ++step) {
    const unsigned all = (1U << step) - 1;
    for (unsigned taken : {all, all & ~1U, all & ~(1U << (step - 1)), 1U, 0U}) {
      for (std::int64_t rows : {std::int64_t{1}, std::int64_t{3}, micro::kernels<T>().plane_rows}) {
        for (std::int64_t width : {lanes, lanes + 1, 2 * lanes - 1, 5 * lanes + 3, std::int64_t{1200}}) {
          const auto begin = static_cast<std::int64_t>(random() % (64 / sizeof(T)));
          const bool fits = width * static_cast<std::int64_t>(sizeof(T)) <= micro::kStretchBytes;
          expect_rows<T>({step, rows, width, begin, taken, random() % 2 == 0, random() % 2 == 0 ? 1 : 0.2,
                          fits && random() % 2 == 0},
                         random);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(StreamRow, JoinsPhasesToRowsThatFollowEachOther) {
  for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
    limit_instruction_set(set);
    if (instruction_set() != set) continue;
    SCOPED_TRACE(to_string(set));
    expect_all<float>();
    expect_all<double>();
  }
  limit_instruction_set(InstructionSet::avx512);
}

}  // namespace
}  // namespace tapedeck::test
