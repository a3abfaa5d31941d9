// The policy against a fake device.
#include "fake_device.h"

#include <optional>

#include <tapedeck/core/tensor.h>

namespace tapedeck {
namespace {

using namespace test;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::ptrdiff_t distance(void* from, void* to) {
  return static_cast<std::byte*>(to) - static_cast<std::byte*>(from);
}

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

TEST_F(CachingAllocatorTest, WhatASecondStreamUsedIsReusedWhenItIsDone) {
  void* a = take(20 * kMiB);
  allocator.record_stream(a, kB);
  device.use(a, 20 * kMiB, kA);
  device.use(a, 20 * kMiB, kB);
  free(a, 20 * kMiB);
  EXPECT_NE(take(20 * kMiB), a);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 20.00 MiB", "record", "record", "take 20.00 MiB"));
  device.run(kA);  // which used it, too, but is not what is waited for
  EXPECT_NE(take(20 * kMiB), a);
  EXPECT_EQ(allocator.stats().in_use, 60 * kMiB);
  device.run(kB);
  EXPECT_EQ(take(20 * kMiB), a);
  EXPECT_EQ(allocator.stats().in_use, 60 * kMiB);
}

TEST_F(CachingAllocatorTest, WorkAfterAFreeIsNotWaitedFor) {
  void* a = take(10 * kMiB);
  allocator.record_stream(a, kB);
  device.use(a, 10 * kMiB, kB);
  free(a, 10 * kMiB);
  void* b = take(10 * kMiB);  // records the event
  allocator.record_stream(b, kB);
  device.use(b, 10 * kMiB, kB);
  free(b, 10 * kMiB);
  device.run(kB, 1);
  EXPECT_EQ(take(10 * kMiB), a);
  EXPECT_NE(take(10 * kMiB), b);
}

TEST_F(CachingAllocatorTest, ItsOwnStreamIsNoSecondOne) {
  void* a = take(kMiB);
  allocator.record_stream(a, kA);
  allocator.record_stream(nullptr, kB);
  device.use(a, kMiB, kA);
  free(a, kMiB);
  EXPECT_EQ(take(kMiB), a);
  EXPECT_THAT(device.read_journal(), ElementsAre("take 2.00 MiB"));
  void* b = take(kMiB);  // nor is a use of what was there before
  allocator.record_stream(b, kB);
  free(b, kMiB);
  device.run(kB);
  EXPECT_EQ(take(kMiB), b);
  device.use(b, kMiB, kB);
  free(b, kMiB);
  EXPECT_EQ(take(kMiB), b);
}

TEST_F(CachingAllocatorTest, WaitsForSecondStreamsBeforeItGivesUp) {
  void* a = take(40 * kMiB);
  for (const Stream other : {kB, kC}) {
    allocator.record_stream(a, other);
    device.use(a, 40 * kMiB, other);
  }
  free(a, 40 * kMiB);
  (void)device.read_journal();
  EXPECT_EQ(take(30 * kMiB), a);
  EXPECT_THAT(device.read_journal(),
              ElementsAre("record", "record", "record", "take 30.00 MiB refused", "wait", "wait"));
  device.expect_no_work(static_cast<std::byte*>(a), 40 * kMiB, nullptr);
}

TEST_F(CachingAllocatorTest, TrimWaitsForSecondStreams) {
  void* a = take(10 * kMiB);
  allocator.record_stream(a, kB);
  device.use(a, 10 * kMiB, kB);
  free(a, 10 * kMiB);
  EXPECT_EQ(allocator.trim(), 10 * kMiB);  // the device looks whether it is still used
  EXPECT_EQ(device.taken(), 0u);
}

TEST_F(CachingAllocatorTest, MoreStreamsThanItCanTellApart) {
  std::vector<int> many(200);
  for (int& stream : many) {
    void* a = take(kMiB);
    allocator.record_stream(a, &stream);
    device.use(a, kMiB, &stream);
    free(a, kMiB);
    void* b = take(kMiB);
    EXPECT_NE(b, a);
    device.run(&stream);
    EXPECT_EQ(take(kMiB), a);
    free(a, kMiB);
    free(b, kMiB);
  }
}

TEST_F(CachingAllocatorTest, NoEventIsRecordedWhileAGraphIsCaptured) {
  void* a = take(40 * kMiB);
  void* b = take(22 * kMiB, kB);
  allocator.record_stream(a, kB);
  device.use(a, 40 * kMiB, kB);
  device.use(b, 22 * kMiB, kB);
  free(a, 40 * kMiB);
  free(b, 22 * kMiB, kB);
  device.capturing = kB;
  (void)device.read_journal();
  EXPECT_THAT(error_of([&] { take(22 * kMiB); }), HasSubstr("out of memory"));
  EXPECT_EQ(allocator.trim(), 0u);
  EXPECT_EQ(take(22 * kMiB, kB), b);
  device.capturing = nullptr;
  EXPECT_EQ(take(22 * kMiB), a);
}

TEST_F(CachingAllocatorTest, TensorsTellWhichStreamsUseThem) {
  const Device gpu{DeviceType::cuda, 7};
  const Context on_a(gpu, kA, allocator), on_b(gpu, kB, allocator);
  const ContextScope a(on_a);
  constexpr std::int64_t kBytes = 2 * kMiB;
  const TensorOptions options{.dtype = DType::uint8, .device = gpu};
  auto x = std::make_optional(Tensor::empty({kBytes}, options));
  void* const place = x->raw();
  {
    const ContextScope b(on_b);
    device.use(x->slice(1, kBytes).data<std::uint8_t>(), kBytes - 1, kB);
  }
  x.reset();
  EXPECT_NE(Tensor::empty({kBytes}, options).raw(), place);
  device.run(kB);
  const Tensor rest = Tensor::empty({18 * kBytes / 2}, options);  // the rest of the segment
  EXPECT_EQ(Tensor::empty({kBytes}, options).raw(), place);
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
  EXPECT_THAT(
      error_of([&] { take(8 * kMiB); }),
      AllOf(HasSubstr("fake allocator: out of memory: requested 8.00 MiB, in use 60.00 MiB, free 0 B of "
                      "reserved 60.00 MiB, limit none, largest free block 0 B, fragmentation 0%"),
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

TEST_F(CachingAllocatorTest, AsksNothingOfARetiredStream) {
  void* a = take(5 * kMiB, kA);
  device.use(a, 5 * kMiB, kA);
  free(a, 5 * kMiB, kA);
  device.read_journal();
  allocator.retire(kA);
  EXPECT_THAT(device.read_journal(), ElementsAre("record", "wait"));
  allocator.retire(kA);
  allocator.retire(kC);  // where nothing was allocated
  EXPECT_EQ(take(6 * kMiB, kB), a);
  EXPECT_THAT(device.read_journal(), IsEmpty());
}

TEST_F(CachingAllocatorTest, AsksNothingOfARetiredStreamThatWasASecondOne) {
  void* a = take(10 * kMiB);
  void* b = take(10 * kMiB);
  for (void* both : {a, b}) {
    allocator.record_stream(both, kB);
    device.use(both, 10 * kMiB, kB);
  }
  free(a, 10 * kMiB);
  device.read_journal();
  allocator.retire(kB);
  EXPECT_THAT(device.read_journal(), ElementsAre("record", "wait"));
  free(b, 10 * kMiB);
  device.capturing = kA;  // so that its own events do not show
  EXPECT_EQ(take(10 * kMiB), a);
  EXPECT_EQ(take(10 * kMiB), b);
  EXPECT_THAT(device.read_journal(), IsEmpty());
  device.capturing = nullptr;
  allocator.record_stream(a, kB);  // a new stream in its place
  device.use(a, 10 * kMiB, kB);
  free(a, 10 * kMiB);
  EXPECT_NE(take(10 * kMiB), a);
  allocator.record_stream(b, kB);
  allocator.retire(kB);
  allocator.record_stream(b, kB);  // and one more
  device.use(b, 10 * kMiB, kB);
  free(b, 10 * kMiB);
  EXPECT_NE(take(10 * kMiB), b);
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

}  // namespace
}  // namespace tapedeck
