// The policy against a fake device: it has a capacity, streams whose work the test lets go on, and a
// journal. It owns no bytes, so a policy that touched the memory would crash.
#include <tapedeck/core/caching_allocator.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/error.h>

namespace tapedeck {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

class FakeDevice final : public DeviceMemory {
 public:
  explicit FakeDevice(std::size_t capacity) : capacity_(capacity) {}
  ~FakeDevice() override { EXPECT_THAT(events_, IsEmpty()) << "an event was not released"; }

  void* take(std::size_t bytes) override {
    journal.push_back("take " + format_bytes(bytes) + (taken_ + bytes > capacity_ ? " refused" : ""));
    if (taken_ + bytes > capacity_) return nullptr;
    taken_ += bytes;
    auto* address = reinterpret_cast<std::byte*>(next_);
    next_ += (bytes + 511) / 512 * 512;  // neighbours, so that merging across segments would show
    segments_[address] = bytes;
    return address;
  }

  void give_back(void* pointer, std::size_t bytes) noexcept override {
    journal.push_back("give " + format_bytes(bytes));
    const auto found = segments_.find(static_cast<std::byte*>(pointer));
    ASSERT_NE(found, segments_.end()) << "a segment that was not taken";
    EXPECT_EQ(found->second, bytes);
    expect_no_work(static_cast<std::byte*>(pointer), bytes, nullptr);
    segments_.erase(found);
    taken_ -= bytes;
  }

  Event record_event(Stream stream) override {
    journal.emplace_back("record");
    auto* event = new Mark{stream, issued_[stream]};
    events_.insert(event);
    return event;
  }
  bool is_done(Event event) override {
    EXPECT_TRUE(events_.contains(event));
    const Mark& mark = *static_cast<Mark*>(event);
    return done_[mark.stream] >= mark.position;
  }
  void wait(Event event) noexcept override {
    const Mark& mark = *static_cast<Mark*>(event);
    if (!is_done(event)) {
      journal.emplace_back("wait");
      done_[mark.stream] = mark.position;
    }
  }
  void release_event(Event event) noexcept override {
    EXPECT_TRUE(is_done(event));
    events_.erase(event);
    delete static_cast<Mark*>(event);
  }

  /// Queues work on `stream` that uses these bytes.
  void use(void* pointer, std::size_t bytes, Stream stream) {
    work_.push_back({static_cast<std::byte*>(pointer), bytes, stream, ++issued_[stream]});
  }
  /// Lets the work queued on `stream` finish, up to the last `left` pieces.
  void run(Stream stream, std::uint64_t left = 0) {
    done_[stream] = std::max(done_[stream], issued_[stream] - std::min(issued_[stream], left));
  }
  /// Fails when work of a stream other than `user` is left that uses these bytes.
  void expect_no_work(std::byte* pointer, std::size_t bytes, const Stream* user) {
    std::erase_if(work_, [&](const Work& work) { return work.position <= done_[work.stream]; });
    for (const Work& work : work_) {
      const bool overlaps = work.pointer < pointer + bytes && pointer < work.pointer + work.bytes;
      EXPECT_TRUE(!overlaps || (user != nullptr && work.stream == *user))
          << "memory is in use by queued work";
    }
  }

  std::size_t taken() const { return taken_; }
  std::size_t segments() const { return segments_.size(); }
  std::vector<std::string> read_journal() { return std::exchange(journal, {}); }

 private:
  struct Mark {
    Stream stream;
    std::uint64_t position;
  };
  struct Work {
    std::byte* pointer;
    std::size_t bytes;
    Stream stream;
    std::uint64_t position;
  };

  std::size_t capacity_, taken_ = 0;
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
  std::map<std::byte*, std::size_t> segments_;
  std::map<Stream, std::uint64_t> issued_, done_;
  std::set<void*> events_;
  std::vector<Work> work_;
  std::vector<std::string> journal;
};

int marks[4];
const Stream kA = &marks[0], kB = &marks[1], kC = &marks[2];

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::ptrdiff_t distance(void* from, void* to) {
  return static_cast<std::byte*>(to) - static_cast<std::byte*>(from);
}

struct CachingAllocatorTest : ::testing::Test {
  FakeDevice device{64 * kMiB};
  CachingAllocator allocator{"fake", device};

  void* take(std::size_t bytes, Stream stream = kA) { return allocator.allocate(bytes, stream); }
  void free(void* pointer, std::size_t bytes, Stream stream = kA) {
    allocator.deallocate(pointer, bytes, stream);
  }
};

TEST_F(CachingAllocatorTest, SizesDecideTheSegment) {
  (void)take(1);
  (void)take(kMiB - 512);
  (void)take(kMiB);  // the first segment is full: 512 + (1 MiB - 512) + 1 MiB
  EXPECT_THAT(device.read_journal(), ElementsAre("take 2.00 MiB"));
  (void)take(512);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 2.00 MiB"));
  (void)take(kMiB + 1);
  (void)take(10 * kMiB - 512);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 20.00 MiB"));
  (void)take(10 * kMiB);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 10.00 MiB"));
  (void)take(11 * kMiB);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 12.00 MiB"));
  EXPECT_EQ(take(0), nullptr);
  allocator.deallocate(nullptr, 0, kA);
}

TEST_F(CachingAllocatorTest, SizesAreRoundedTo512Bytes) {
  void* a = take(1);
  void* b = take(513);
  void* c = take(512);
  EXPECT_EQ(distance(a, b), 512);
  EXPECT_EQ(distance(b, c), 1024);
  EXPECT_EQ(allocator.stats().in_use, 2048u);
  EXPECT_EQ(allocator.stats().requested, 1026u);
}

TEST_F(CachingAllocatorTest, TakesTheSmallestBlockThatFits) {
  std::vector<void*> blocks, walls;
  for (std::size_t units : {40, 20, 90, 21, 33, 300}) {
    blocks.push_back(take(512 * units));
    walls.push_back(take(512));
  }
  const std::size_t freed[] = {40, 20, 90, 21, 33, 300};
  for (std::size_t i = 0; i < 6; ++i) free(blocks[i], 512 * freed[i]);
  EXPECT_EQ(take(512 * 20), blocks[1]);
  EXPECT_EQ(take(512 * 20), blocks[3]);  // and one unit is left over
  EXPECT_EQ(take(512), static_cast<std::byte*>(blocks[3]) + 512 * 20);
  EXPECT_EQ(take(512 * 34), blocks[0]);
  EXPECT_EQ(take(512 * 65), blocks[2]);
}

TEST_F(CachingAllocatorTest, SortsSizesThatShareABin) {
  std::vector<void*> blocks;
  for (std::size_t units : {526, 520, 523, 520}) {  // one bin holds 512 to 527
    blocks.push_back(take(512 * units));
    (void)take(512);
  }
  const std::size_t units[] = {526, 520, 523, 520};
  for (std::size_t i : {2, 3, 1, 0}) free(blocks[i], 512 * units[i]);
  EXPECT_EQ(take(512 * 521), blocks[2]);
  EXPECT_EQ(take(512 * 519), blocks[1]);  // of equal ones the one freed last
  EXPECT_EQ(take(512 * 520), blocks[3]);
  EXPECT_EQ(take(512 * 521), blocks[0]);
}

TEST_F(CachingAllocatorTest, ALargeBlockKeepsAtMostOneMiBTooMuch) {
  void* a = take(19 * kMiB - 512);  // a segment of its own of 20 MiB
  EXPECT_EQ(allocator.stats().in_use, 19 * kMiB - 512);
  free(a, 19 * kMiB - 512);
  (void)take(19 * kMiB);
  EXPECT_EQ(allocator.stats().in_use, 20 * kMiB);
}

TEST_F(CachingAllocatorTest, FreedNeighboursMergeIntoTheWholeSegment) {
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(take(256 * kKiB));
  for (int i : {1, 5, 3, 0, 7, 2, 6, 4}) free(blocks[static_cast<std::size_t>(i)], 256 * kKiB);
  EXPECT_EQ(allocator.stats().largest_free, 2 * kMiB);
  EXPECT_EQ(allocator.stats().fragmentation(), 0);
  EXPECT_EQ(device.segments(), 1u);
}

TEST_F(CachingAllocatorTest, SteadyStateLeavesTheDeviceAlone) {
  for (int step = 0; step < 3; ++step) {
    std::vector<std::pair<void*, std::size_t>> live;
    for (std::size_t bytes : {100 * kKiB, 3 * kMiB, std::size_t{7}, 12 * kMiB, 5 * kMiB, 600 * kKiB}) {
      live.emplace_back(take(bytes), bytes);
    }
    for (auto [pointer, bytes] : live) free(pointer, bytes);
    if (step > 0) {
      EXPECT_THAT(device.read_journal(), IsEmpty());
    }
    (void)device.read_journal();
  }
  EXPECT_EQ(allocator.stats().allocations, 18u);
  EXPECT_EQ(allocator.stats().deallocations, 18u);
  EXPECT_EQ(allocator.stats().device_allocations, 2u);
}

TEST_F(CachingAllocatorTest, ItsOwnStreamReusesABlockAtOnce) {
  void* a = take(kMiB);
  device.use(a, kMiB, kA);
  free(a, kMiB);
  EXPECT_EQ(take(kMiB), a);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 2.00 MiB"));  // and no event
}

TEST_F(CachingAllocatorTest, AnotherStreamReusesABlockOnlyBehindAnEvent) {
  void* a = take(2 * kMiB);
  device.use(a, 2 * kMiB, kA);
  free(a, 2 * kMiB);
  void* b = take(2 * kMiB, kB);
  EXPECT_NE(b, a);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 20.00 MiB", "record", "take 20.00 MiB"));
  device.run(kA);
  EXPECT_EQ(take(18 * kMiB, kB), static_cast<std::byte*>(b) + 2 * kMiB);
  void* c = take(2 * kMiB, kB);  // the merged segment of stream A
  EXPECT_EQ(c, a);
  EXPECT_THAT(device.read_journal(), IsEmpty());
}

TEST_F(CachingAllocatorTest, AnEventCoversOnlyWhatWasFreedBeforeIt) {
  void* early = take(10 * kMiB);
  void* late = take(14 * kMiB);
  device.use(early, 10 * kMiB, kA);
  free(early, 10 * kMiB);
  (void)take(12 * kMiB, kB);  // records the event
  device.use(late, 14 * kMiB, kA);
  free(late, 14 * kMiB);
  device.run(kA, 1);  // the event is done, the later work is not
  (void)device.read_journal();
  EXPECT_EQ(take(10 * kMiB, kB), early);
  EXPECT_NE(take(12 * kMiB, kB), late);
  device.run(kA);
  EXPECT_EQ(take(14 * kMiB, kB), late);
}

TEST_F(CachingAllocatorTest, WaitsForOtherStreamsBeforeItGivesUp) {
  void* a = take(40 * kMiB);
  void* pin = take(1);  // not a whole free segment: waiting is the only way
  void* b = take(10 * kMiB, kB);
  device.use(a, 40 * kMiB, kA);
  free(a, 40 * kMiB);
  (void)device.read_journal();
  EXPECT_EQ(take(30 * kMiB, kB), a);
  EXPECT_THAT(device.read_journal(), ElementsAre("record", "take 30.00 MiB refused", "wait"));
  free(pin, 1);
  free(b, 10 * kMiB, kB);
}

TEST_F(CachingAllocatorTest, WaitingMergesBlocksOfDifferentStreams) {
  void* a = take(8 * kMiB);
  void* b = take(8 * kMiB);
  EXPECT_EQ(distance(a, b), std::ptrdiff_t{8 * kMiB});
  void* full = take(42 * kMiB);
  free(a, 8 * kMiB);
  device.run(kA);
  ASSERT_EQ(take(8 * kMiB, kB), a);
  device.use(a, 8 * kMiB, kB);
  free(a, 8 * kMiB, kB);
  device.use(b, 8 * kMiB, kA);
  free(b, 8 * kMiB, kA);
  (void)device.read_journal();
  EXPECT_EQ(take(18 * kMiB, kC), a);  // no part of it alone would do
  device.expect_no_work(static_cast<std::byte*>(a), 18 * kMiB, nullptr);
  free(full, 42 * kMiB);
}

TEST_F(CachingAllocatorTest, GivesCachedSegmentsBackBeforeItGivesUp) {
  void* a = take(20 * kMiB);
  void* b = take(22 * kMiB);
  void* kept = take(100);
  device.use(b, 22 * kMiB, kA);
  free(a, 20 * kMiB);
  free(b, 22 * kMiB);
  (void)device.read_journal();
  EXPECT_NE(take(50 * kMiB), nullptr);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 50.00 MiB refused", "record", "wait", "give 20.00 MiB",
                                                 "give 22.00 MiB", "take 50.00 MiB"));
  free(kept, 100);
}

TEST_F(CachingAllocatorTest, NearTheLimitASegmentIsJustTheRequest) {
  (void)take(60 * kMiB);
  (void)device.read_journal();
  EXPECT_NE(take(3 * kMiB), nullptr);
  EXPECT_THAT(device.read_journal(),
              ElementsAre("take 20.00 MiB refused", "take 20.00 MiB refused", "take 3.00 MiB"));
  EXPECT_NE(take(100 * kKiB), nullptr);
  EXPECT_EQ(device.taken(), 63 * kMiB + 100 * kKiB);
}

TEST_F(CachingAllocatorTest, OutOfMemoryTellsTheNumbersAndGoesOn) {
  void* a = take(30 * kMiB);
  void* b = take(30 * kMiB);
  EXPECT_THAT(error_of([&] { take(8 * kMiB); }),
              AllOf(HasSubstr("fake allocator: out of memory: requested 8.00 MiB, in use 60.00 MiB, reserved "
                              "60.00 MiB, limit none, largest free block 0 B, fragmentation 0%"),
                    HasSubstr("smaller batches")));
  EXPECT_EQ(allocator.stats().in_use, 60 * kMiB);
  EXPECT_EQ(allocator.stats().out_of_memory, 1u);
  free(a, 30 * kMiB);
  EXPECT_EQ(take(20 * kMiB), a);
  free(b, 30 * kMiB);
  EXPECT_THAT(error_of([&] { take(~std::size_t{0}); }), HasSubstr("out of memory: requested"));
  EXPECT_THAT(error_of([&] { take(~std::size_t{0} - 100); }), HasSubstr("out of memory: requested"));
}

TEST_F(CachingAllocatorTest, OutOfMemoryNamesFragmentation) {
  std::vector<void*> blocks;
  for (int i = 0; i < 30; ++i) blocks.push_back(take(2 * kMiB));
  allocator.set_limit(allocator.stats().reserved);
  for (std::size_t i = 0; i < 30; i += 2) free(blocks[i], 2 * kMiB);
  EXPECT_THAT(error_of([&] { take(9 * kMiB); }),
              AllOf(HasSubstr("limit 60.00 MiB, largest free block 2.00 MiB, fragmentation 93%"),
                    HasSubstr("in pieces")));
}

TEST_F(CachingAllocatorTest, KeepsToItsLimit) {
  allocator.set_limit(30 * kMiB);
  void* a = take(20 * kMiB);
  EXPECT_THAT(error_of([&] { take(11 * kMiB); }), HasSubstr("raise the limit with set_memory_limit()"));
  EXPECT_LE(device.taken(), 30 * kMiB);
  free(a, 20 * kMiB);
  EXPECT_NE(a = take(28 * kMiB), nullptr);  // the cached segment makes room
  EXPECT_EQ(device.taken(), 28 * kMiB);
  free(a, 28 * kMiB);
  allocator.set_limit(10 * kMiB);
  EXPECT_EQ(device.taken(), 0u);
  EXPECT_EQ(allocator.stats().limit, 10 * kMiB);
}

TEST_F(CachingAllocatorTest, TrimGivesBackWhatNoBlockUses) {
  void* a = take(100);
  void* b = take(2 * kMiB);
  void* c = take(3 * kMiB);
  EXPECT_EQ(allocator.trim(), 0u);
  free(a, 100);
  free(b, 2 * kMiB);
  EXPECT_EQ(allocator.trim(), 2 * kMiB);
  free(c, 3 * kMiB);
  EXPECT_EQ(allocator.trim(), 20 * kMiB);
  EXPECT_EQ(device.taken(), 0u);
  EXPECT_NE(take(100), nullptr);
}

TEST_F(CachingAllocatorTest, PeaksFollowAndReset) {
  void* a = take(20 * kMiB);
  free(a, 20 * kMiB);
  allocator.trim();
  (void)take(512);
  EXPECT_EQ(allocator.stats().peak_in_use, 20 * kMiB);
  EXPECT_EQ(allocator.stats().peak_reserved, 20 * kMiB);
  allocator.reset_peak();
  EXPECT_EQ(allocator.stats().peak_in_use, 512u);
  EXPECT_EQ(allocator.stats().peak_reserved, 2 * kMiB);
}

TEST_F(CachingAllocatorTest, SnapshotListsSegmentsAndBlocks) {
  void* a = take(1000, nullptr);
  (void)take(600 * kKiB, nullptr);
  free(a, 1000, nullptr);
  EXPECT_EQ(allocator.snapshot(),
            "{\"device\": \"fake\", \"in_use\": 614400, \"reserved\": 2097152, \"segments\": [\n"
            "  {\"address\": 1099511627776, \"bytes\": 2097152, \"pool\": \"small\", \"blocks\": [\n"
            "    {\"offset\": 0, \"bytes\": 1024, \"requested\": 0, \"state\": \"free\", \"stream\": 0},\n"
            "    {\"offset\": 1024, \"bytes\": 614400, \"requested\": 614400, \"state\": \"in use\", "
            "\"stream\": 0},\n"
            "    {\"offset\": 615424, \"bytes\": 1481728, \"requested\": 0, \"state\": \"free\", "
            "\"stream\": 0}]}]}\n");
}

TEST(CachingAllocator, DestructorGivesEverythingBack) {
  FakeDevice device(64 * kMiB);
  {
    CachingAllocator allocator("fake", device);
    for (Stream stream : {kA, kB}) {
      void* p = allocator.allocate(5 * kMiB, stream);
      device.use(p, 5 * kMiB, stream);
      allocator.deallocate(p, 5 * kMiB, stream);
    }
  }
  EXPECT_EQ(device.taken(), 0u);
}

TEST(CachingAllocator, WithoutCacheEveryRequestGoesToTheDevice) {
  FakeDevice device(10 * kMiB);
  CachingAllocator allocator("fake", device, false);
  void* a = allocator.allocate(1000, kA);
  void* b = allocator.allocate(9 * kMiB, kA);
  EXPECT_THAT(error_of([&] { (void)allocator.allocate(2 * kMiB, kA); }), HasSubstr("out of memory"));
  EXPECT_EQ(allocator.stats().reserved, 9 * kMiB + 1000);
  device.use(b, 9 * kMiB, kA);
  allocator.deallocate(b, 9 * kMiB, kA);
  allocator.deallocate(a, 1000, kA);
  EXPECT_EQ(device.taken(), 0u);
  EXPECT_EQ(allocator.stats().device_deallocations, 2u);
}

TEST(CachingAllocatorDeathTest, EndsTheProgramOnAWrongFree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  FakeDevice device(10 * kMiB);
  CachingAllocator allocator("fake", device);
  void* a = allocator.allocate(1000, kA);
  EXPECT_DEATH(allocator.deallocate(a, 999, kA), "999 bytes were freed of a block of 1000");
  allocator.deallocate(a, 1000, kA);
  EXPECT_DEATH(allocator.deallocate(a, 1000, kA), "a pointer was freed that is not in use");
}

// ---- properties, under random use ----

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
    ASSERT_EQ(stats.requested, requested);
    ASSERT_GE(stats.in_use, requested);
    ASSERT_EQ(stats.reserved, device.taken());
    ASSERT_EQ(stats.allocations - stats.deallocations, live.size());
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
