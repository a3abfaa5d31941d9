// Whose memory an allocator has handed out, and, when asked, what happened to it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <tapedeck/core/activity.h>
#include <tapedeck/core/memory.h>
#include <tapedeck/core/memory_blocks.h>

namespace tapedeck::detail {

/// What blocks of one op and module have in common.
struct BlockTag {
  std::string op, module;
  std::size_t number = 0;  // in the order of first use
  std::size_t in_use = 0, peak_in_use = 0;
  std::uint64_t allocations = 0;
};

/// Not locked: the allocator's lock holds.
class MemoryJournal {
 public:
  /// The tag of what the calling thread does.
  BlockTag& present_tag() {
    Recent& recent = recent_[slot_of(activity.op, activity.module)];
    if (recent.op == activity.op && recent.module == activity.module) [[likely]]
      return *recent.tag;
    return find_tag(recent);
  }

  /// Counts a block that was handed out to its tag.
  void hand_out(const Block& block) {
    BlockTag& tag = *block.tag;
    tag.in_use += block.bytes;
    tag.peak_in_use = std::max(tag.peak_in_use, tag.in_use);
    ++tag.allocations;
    if (recording_) remember(block, static_cast<std::int64_t>(block.bytes));
  }
  /// The same for one that was taken back.
  void take_back(const Block& block) {
    block.tag->in_use -= block.bytes;
    if (recording_) remember(block, -static_cast<std::int64_t>(block.bytes));
  }

  /// Starts a history with the blocks that are in use, or ends it.
  void start(const std::vector<const Block*>& in_use);
  void stop() { recording_ = false; }
  bool recording() const { return recording_; }

  std::vector<MemoryTag> by_tag() const;
  void reset_peaks();

  /// `"tags": [...], "history": [...]` of memory_snapshot().
  std::string to_json() const;

 private:
  struct Recent {
    const char *op = nullptr, *module = nullptr;
    BlockTag* tag = nullptr;
  };
  struct Event {
    std::int64_t nanoseconds;
    const std::byte* address;
    std::int64_t bytes;  // below 0: taken back
    const BlockTag* tag;
    std::uint64_t step;
    Shape shape;
  };

  /// Names are known by their addresses first.
  static std::size_t slot_of(const char* op, const char* module) {
    const auto mixed = reinterpret_cast<std::uintptr_t>(op) * 31 + reinterpret_cast<std::uintptr_t>(module);
    return (mixed * 0x9e3779b97f4a7c15u) >> 58;
  }
  BlockTag& find_tag(Recent& recent);
  void remember(const Block& block, std::int64_t bytes);
  void forget_half();

  std::map<std::pair<std::string, std::string>, BlockTag> tags_;
  std::array<Recent, 64> recent_{};
  bool recording_ = false;
  std::size_t most_events_ = 0;
  std::vector<Event> history_;
};

/// Steps that ended since the program started.
inline std::atomic<std::uint64_t> memory_step = 0;

}  // namespace tapedeck::detail
