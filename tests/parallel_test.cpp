#include <tapedeck/core/parallel.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/error.h>

namespace tapedeck {
namespace {

using ::testing::Each;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

struct Parallel : ::testing::Test {
  void TearDown() override { set_num_threads(before); }
  const int before = num_threads();
};

TEST_F(Parallel, VisitsEveryIndexOnce) {
  for (int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    EXPECT_EQ(num_threads(), threads);
    for (std::int64_t count : {0, 1, 2, 6, 7, 8, 100, 1001}) {
      for (std::int64_t grain : {0, 1, 3, 50, 5000}) {
        std::vector<int> visits(static_cast<std::size_t>(count));
        parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
          EXPECT_LT(begin, end);
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        EXPECT_THAT(visits, Each(1)) << threads << " threads, count " << count << ", grain " << grain;
      }
    }
  }
}

TEST_F(Parallel, UsesSeveralThreadsAboveTheGrainOnly) {
  set_num_threads(3);
  std::atomic<int> ranges = 0;
  const auto count_ranges = [&](std::int64_t, std::int64_t) { ++ranges; };
  parallel_for(100, 100, count_ranges);
  EXPECT_EQ(ranges.exchange(0), 1);
  parallel_for(101, 100, count_ranges);
  EXPECT_EQ(ranges.exchange(0), 2);
  parallel_for(1000, 100, count_ranges);
  EXPECT_EQ(ranges.exchange(0), 3);
  parallel_for(std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::max() - 1,
               count_ranges);
  EXPECT_EQ(ranges.exchange(0), 2);
}

// The caller takes shares that no worker has begun; here it is busy until one has.
TEST_F(Parallel, WorkersBeginSharesWhileTheCallerIsBusy) {
  set_num_threads(2);
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> begun = false;
    bool in_time = false;
    std::thread::id second;
    parallel_for(2, 1, [&](std::int64_t begin, std::int64_t) {
      if (begin == 1) {
        second = std::this_thread::get_id();
        begun = true;
        return;
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!begun && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      in_time = begun;
    });
    ASSERT_TRUE(in_time) << "round " << round;
    EXPECT_NE(second, std::this_thread::get_id());
  }
}

TEST_F(Parallel, TheCallerRunsSharesThatNoWorkerHasBegun) {  // of 200, which cannot all be awake at once
  set_num_threads(200);
  const auto caller = std::this_thread::get_id();
  std::atomic<int> taken = 0;  // and in each round the caller's own
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int> visits(1000);
    parallel_for(1000, 1, [&](std::int64_t begin, std::int64_t end) {
      if (std::this_thread::get_id() == caller) ++taken;
      for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
    });
    ASSERT_THAT(visits, Each(1)) << "round " << round;
  }
  EXPECT_GT(taken, kRounds);
}

TEST_F(Parallel, ResultsDoNotDependOnTheNumberOfThreads) {
  std::vector<double> first;
  for (int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    std::vector<double> sums(501);
    parallel_for(501, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        for (int k = 1; k < 100; ++k)
          sums[static_cast<std::size_t>(i)] += std::sin(static_cast<double>(i * k)) / k;
      }
    });
    if (first.empty()) first = sums;
    EXPECT_EQ(sums, first);
  }
}

TEST_F(Parallel, RethrowsTheFirstSharesErrorWhenAllHaveReturned) {
  set_num_threads(3);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> returned = 0;
    try {
      parallel_for(3, 1, [&](std::int64_t begin, std::int64_t) {
        ++returned;
        if (begin > 0) throw Error(concat("index ", begin));
      });
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "index 1");
      EXPECT_EQ(returned, 3);
    }
  }
  std::atomic<std::int64_t> sum = 0;  // and goes on
  parallel_for(10, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 10);
}

TEST_F(Parallel, InsideABodyItRunsOnTheCallingThread) {
  set_num_threads(3);
  std::atomic<std::int64_t> sum = 0;
  parallel_for(6, 1, [&](std::int64_t begin, std::int64_t end) {
    const auto outer = std::this_thread::get_id();
    parallel_for(100, 1, [&](std::int64_t from, std::int64_t to) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      EXPECT_EQ(to - from, 100);
    });
    sum += end - begin;
  });
  EXPECT_EQ(sum, 6);
}

TEST_F(Parallel, ServesSeveralCallersAndChangesOfTheirNumber) {
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([t] {
      for (int round = 0; round < 200; ++round) {
        if (t == 0 && round % 20 == 0) set_num_threads(1 + round / 20 % 4);
        std::vector<int> visits(37);
        parallel_for(37, 1, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        EXPECT_THAT(visits, Each(1));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(Parallel, RefusesBadNumbers) {
  for (int count : {0, -1, 1025}) {
    try {
      set_num_threads(count);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("set_num_threads: count " + std::to_string(count) + " is not legal"));
    }
  }
  EXPECT_EQ(num_threads(), before);
}

struct ParallelDeathTest : ::testing::Test {
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ParallelDeathTest, ReadsTheEnvironment) {
  const auto with = [](const char* text) {
    setenv("TAPEDECK_NUM_THREADS", text, 1);
    try {
      std::fprintf(stderr, "threads: %d\n", num_threads());
    } catch (const Error& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    std::_Exit(0);
  };
  EXPECT_EXIT(with("5"), ExitedWithCode(0), "threads: 5");
  for (const char* bad : {"0", "four", "4x", "", "99999999999999", "1025"}) {
    EXPECT_EXIT(with(bad), ExitedWithCode(0), "is not a number of threads; legal is 1 to 1024") << bad;
  }
}

TEST_F(ParallelDeathTest, AProgramMayEndInAnyThread) {
  const auto exit_in_body = [](std::int64_t where) {
    set_num_threads(3);
    parallel_for(3, 1, [&](std::int64_t begin, std::int64_t) {
      if (begin == where) std::exit(7);
      for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
    });
  };
  EXPECT_EXIT(exit_in_body(0), ExitedWithCode(7), "");
  EXPECT_EXIT(exit_in_body(2), ExitedWithCode(7), "");
}

TEST_F(ParallelDeathTest, ServesStaticDestructors) {
  struct Late {
    ~Late() {
      std::atomic<int> sum = 0;
      parallel_for(10, 1,
                   [&](std::int64_t begin, std::int64_t end) { sum += static_cast<int>(end - begin); });
      std::fprintf(stderr, "late sum %d\n", sum.load());
    }
  };
  const auto end_program = [] {
    static Late late;
    set_num_threads(3);
    parallel_for(10, 1, [](std::int64_t, std::int64_t) {});
    std::exit(0);
  };
  EXPECT_EXIT(end_program(), ExitedWithCode(0), "late sum 10");
}

#if !defined(__SANITIZE_THREAD__)  // which forbids threads in the child
TEST_F(Parallel, AForkedChildStartsItsOwnThreads) {
  set_num_threads(3);
  parallel_for(10, 1, [](std::int64_t, std::int64_t) {});
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang fails, too
    std::atomic<int> sum = 0;
    for (int round = 0; round < 10; ++round) {
      parallel_for(10, 1,
                   [&](std::int64_t begin, std::int64_t end) { sum += static_cast<int>(end - begin); });
    }
    std::_Exit(sum == 100 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::atomic<int> sum = 0;
  parallel_for(10, 1, [&](std::int64_t begin, std::int64_t end) { sum += static_cast<int>(end - begin); });
  EXPECT_EQ(sum, 10);
}
#endif

}  // namespace
}  // namespace tapedeck
