// What the policy promises, under random use of a fake device and from several threads.
#include <mutex>
#include <random>
#include <thread>

#include <tapedeck/core/error.h>

#include "fake_device.h"

namespace tapedeck {
namespace {

using namespace test;

/// What a snapshot tells, read back.
struct Parsed {
  std::size_t free = 0, used = 0, segments = 0, blocks = 0;
};

/// Reads the numbers of a snapshot and checks that blocks tile their segments and that no two free
/// neighbours of one stream are left unmerged.
Parsed check_snapshot(const std::string& text) {
  Parsed parsed;
  const auto number_after = [&](const char* key, std::size_t from) {
    return std::stoull(text.substr(text.find(key, from) + std::string(key).size()));
  };
  for (std::size_t at = text.find("{\"address\": "); at != std::string::npos;) {
    const std::size_t next = text.find("{\"address\": ", at + 1);
    const std::size_t bytes = number_after("\"bytes\": ", at);
    std::size_t expected_offset = 0;
    std::string last_free = "none";
    for (std::size_t block = text.find("{\"offset\": ", at); block < next;
         block = text.find("{\"offset\": ", block + 1)) {
      EXPECT_EQ(number_after("{\"offset\": ", block), expected_offset);
      const std::size_t size = number_after("\"bytes\": ", block);
      EXPECT_GT(size, 0u);
      expected_offset += size;
      const bool is_free = text.find("\"free\"", block) < text.find('}', block);
      const std::string stream = std::to_string(number_after("\"stream\": ", block));
      EXPECT_FALSE(is_free && stream == last_free) << "free neighbours";
      last_free = is_free ? stream : "none";
      (is_free ? parsed.free : parsed.used) += size;
      ++parsed.blocks;
      if (text.find("{\"offset\": ", block + 1) == std::string::npos) break;
    }
    EXPECT_EQ(expected_offset, bytes);
    ++parsed.segments;
    at = next;
  }
  return parsed;
}

struct Random : ::testing::TestWithParam<int> {};

TEST_P(Random, KeepsItsPromises) {
  const int streams = GetParam() % 3 + 1;
  const bool shares = GetParam() >= 6;  // blocks among streams
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  const auto random_bytes = [&] {
    switch (below(4)) {
      case 0:
        return 1 + below(2000);
      case 1:
        return 1 + below(kMiB);
      case 2:
        return kMiB + 1 + below(9 * kMiB);
      default:
        return 512 * (1 + below(8));
    }
  };

  FakeDevice device(96 * kMiB);
  CachingAllocator allocator("fake", device);
  struct Live {
    std::byte* pointer;
    std::size_t bytes;
    Stream stream;
  };
  std::vector<Live> live;
  std::size_t requested = 0;
  int refused = 0;
  for (int step = 0; step < 6000; ++step) {
    const bool growing = step / 500 % 2 == 0;
    if (live.empty() || below(10) < (growing ? 6u : 4u)) {
      const Stream stream = &marks[below(static_cast<std::size_t>(streams))];
      const std::size_t bytes = random_bytes();
      try {
        auto* pointer = static_cast<std::byte*>(allocator.allocate(bytes, stream));
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pointer) % 512, 0u);
        for (const Live& other : live) {
          EXPECT_TRUE(pointer + bytes <= other.pointer || other.pointer + other.bytes <= pointer)
              << "overlap";
        }
        device.expect_no_work(pointer, bytes, &stream);
        live.push_back({pointer, bytes, stream});
        requested += bytes;
        device.use(pointer, bytes, stream);
        while (shares && below(2) == 0) {
          const Stream other = &marks[below(static_cast<std::size_t>(streams))];
          allocator.record_stream(pointer, other);
          device.use(pointer, bytes, other);
        }
      } catch (const Error&) {
        ++refused;
      }
    } else {
      std::swap(live[below(live.size())], live.back());
      const Live freed = live.back();
      live.pop_back();
      requested -= freed.bytes;
      allocator.deallocate(freed.pointer, freed.bytes, freed.stream);
    }
    if (below(8) == 0) device.run(&marks[below(static_cast<std::size_t>(streams))], below(4));
    if (below(500) == 0) allocator.trim();
    if (below(700) == 0) allocator.set_limit((40 + below(80)) * kMiB);

    const MemoryStats stats = allocator.stats();
    ASSERT_GE(stats.requested, requested);  // more: what other streams still use
    ASSERT_GE(stats.in_use, stats.requested);
    ASSERT_EQ(stats.reserved, device.taken());
    ASSERT_GE(stats.allocations - stats.deallocations, live.size());
    if (!shares) {
      ASSERT_EQ(stats.requested, requested);
      ASSERT_EQ(stats.allocations - stats.deallocations, live.size());
    }
    ASSERT_LE(stats.largest_free, stats.cached());
    if (step % 50 == 0) {
      const Parsed parsed = check_snapshot(allocator.snapshot());
      ASSERT_EQ(parsed.used, stats.in_use);
      ASSERT_EQ(parsed.free, stats.cached());
      ASSERT_EQ(parsed.segments, device.segments());
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 0) << "the device was never full: the ladder was not tried";

  for (const Live& block : live) allocator.deallocate(block.pointer, block.bytes, block.stream);
  if (shares) allocator.trim();
  EXPECT_EQ(allocator.stats().in_use, 0u);
  const Parsed parsed = check_snapshot(allocator.snapshot());
  if (streams == 1) {
    EXPECT_EQ(parsed.blocks, parsed.segments) << "not merged to whole segments";
  }
  allocator.trim();
  EXPECT_EQ(device.taken(), 0u);
  EXPECT_EQ(allocator.stats().device_allocations, allocator.stats().device_deallocations);
}

INSTANTIATE_TEST_SUITE_P(CachingAllocator, Random, ::testing::Range(0, 9));

TEST(CachingAllocator, ServesManyThreads) {
  FakeDevice device(std::size_t{1} << 40);
  CachingAllocator allocator("fake", device);
  std::mutex mutex;
  std::map<std::byte*, std::size_t> live;  // of all threads
  const auto work = [&](int t) {
    std::mt19937 random(static_cast<unsigned>(t));
    std::vector<std::pair<std::byte*, std::size_t>> mine;
    const auto give_back = [&](std::pair<std::byte*, std::size_t> block) {
      {
        const std::lock_guard lock(mutex);
        live.erase(block.first);
      }
      allocator.deallocate(block.first, block.second, &marks[t % 2]);
    };
    for (int step = 0; step < 4000; ++step) {
      if (mine.empty() || random() % 5 < 3) {
        const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? 3 * kMiB : 5000);
        auto* pointer = static_cast<std::byte*>(allocator.allocate(bytes, &marks[t % 2]));
        mine.emplace_back(pointer, bytes);
        const std::lock_guard lock(mutex);
        const auto next = live.lower_bound(pointer);
        EXPECT_TRUE(next == live.end() || pointer + bytes <= next->first);
        EXPECT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= pointer);
        live.emplace(pointer, bytes);
      } else {
        std::swap(mine[random() % mine.size()], mine.back());
        give_back(mine.back());
        mine.pop_back();
      }
      if (step % 1000 == 0) (void)allocator.stats();
    }
    for (const auto& block : mine) give_back(block);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.stats().in_use, 0u);
  allocator.trim();
  EXPECT_EQ(device.taken(), 0u);
}

}  // namespace
}  // namespace tapedeck
