// A device for tests of allocators: it has a capacity, streams whose work the test lets go on, and a journal.
// It owns no bytes, so a policy that touched the memory would crash.
#pragma once

#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/error.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "errors.h"

namespace tapedeck::test {

inline constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

class FakeDevice final : public DeviceMemory {
 public:
  explicit FakeDevice(std::size_t capacity) : capacity_(capacity) {}
  ~FakeDevice() override { EXPECT_THAT(events_, ::testing::IsEmpty()) << "an event was not released"; }

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
    if (stream == capturing) return nullptr;
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

  Stream capturing = nullptr;  // where a graph is captured

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

inline int marks[4];
inline const Stream kA = &marks[0], kB = &marks[1], kC = &marks[2];

/// A caching allocator over a fake device of 64 MiB.
struct CachingAllocatorTest : ::testing::Test {
  FakeDevice device{64 * kMiB};
  CachingAllocator allocator{"fake", device};

  void* take(std::size_t bytes, Stream stream = kA) { return allocator.allocate(bytes, stream); }
  void free(void* pointer, std::size_t bytes, Stream stream = kA) {
    allocator.deallocate(pointer, bytes, stream);
  }
};

}  // namespace tapedeck::test
