// The caching allocator: keeps what it took from a device and hands it out again.
//
// Why: a call to a driver costs microseconds to milliseconds, and giving memory back waits for the
// device. A training step asks for the same sizes every time, so after the first one nothing is taken
// from the device any more.
//
// Sizes. A request is rounded up to 512 bytes. Requests up to 1 MiB are small and are cut from segments
// of 2 MiB; larger ones are cut from segments of 20 MiB, or from 10 MiB on have a segment of their own,
// rounded up to 2 MiB. Small and large blocks never share a segment, so that a small tensor that lives long
// does not pin a large segment.
//
// Blocks. A segment is a row of blocks. A request takes the smallest free block that fits (best fit), and
// of equal ones the one freed last, whose lines may still be in cache. What is left over becomes a block
// of its own when it is worth it: 512 bytes of a small block, more than 1 MiB of a large one. A block that
// is freed merges with free neighbours of its stream, so a segment of which everything is freed
// is one block again.
//
// Streams. Work that was queued on a stream before a block was freed there may still use it, so a free
// block belongs to its stream: only there it may be handed out at once. Another stream may have it
// after an event, recorded on the owner after the block was freed, is done. Events are recorded only when
// another stream looks for a block: every free is stamped with its stream's clock, and one event
// covers all frees before it.
// What streams besides its own have used (record_stream) stays in use after its free until events on those,
// recorded later, are done: no stream waits for another.
//
// When nothing free fits on the caller's stream, in this order:
//   1. a block that other streams are done with, then one of another stream whose event is done;
//   2. a new segment from the device, within the limit;
//   3. wait for the other streams; then all free blocks are the caller's and merge;
//   4. give every segment without a block in use back, then ask the device again, and if need be
//      for no more than the request itself;
//   5. Error, with the numbers and what would help. Nothing has changed; the allocator can go on.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <tapedeck/core/allocator.h>
#include <tapedeck/core/memory.h>
#include <tapedeck/core/memory_blocks.h>
#include <tapedeck/core/memory_journal.h>

namespace tapedeck {

/// What the policy needs of a device.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  /// `bytes` bytes, aligned for any use; null when there are not enough.
  virtual void* take(std::size_t bytes) = 0;
  /// Takes back what take() returned; no queued work uses it any more.
  virtual void give_back(void* pointer, std::size_t bytes) noexcept = 0;
  /// How much there is left to take; nothing where that is not known. For messages.
  virtual std::optional<std::size_t> left() { return {}; }

  /// An event that is done when all work queued on `stream` so far is; null while a graph is captured there,
  /// when none can be recorded.
  virtual Event record_event(Stream stream) = 0;
  virtual bool is_done(Event event) = 0;
  /// Returns when the event is done.
  virtual void wait(Event event) noexcept = 0;
  /// Takes back an event that is done.
  virtual void release_event(Event event) noexcept = 0;
};

/// The policy above over one device. Safe to use from several threads.
class CachingAllocator final : public Allocator {
 public:
  /// `name` is for messages. `device` must outlive the allocator. With `cache` false every request goes to
  /// the device and every free back to it, with the same limit and statistics: for memory checkers.
  CachingAllocator(std::string name, DeviceMemory& device, bool cache = true);
  /// Waits for all streams and gives back what is cached. What is still in use is left to the device.
  ~CachingAllocator() override;
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  void* allocate(std::size_t bytes, Stream stream) override;
  /// Throws Error when `pointer` is not in use.
  void record_stream(void* pointer, Stream stream) override;
  /// Ends the program when `pointer` is not in use or `bytes` is not what was asked for.
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept override;

  /// Before a stream is destroyed, when all that was allocated there has been freed: waits for its work.
  /// Everybody may have its memory then.
  void retire(Stream stream);
  /// Gives every segment without a block in use back to the device; returns how many bytes.
  std::size_t trim();
  /// At most this many bytes are taken from the device; trims when there are more.
  void set_limit(std::size_t bytes);

  MemoryStats stats() const;
  void reset_peak();
  /// Each op and module (core/activity.h) that has allocated; the largest holder first.
  std::vector<MemoryTag> by_tag() const;
  /// Starts a history, or ends it.
  void record_history(bool on);
  bool records_history() const;
  /// All segments and blocks, and the history, as JSON (core/memory.h).
  std::string snapshot() const;

 private:
  using Block = detail::Block;
  using Segment = detail::Segment;
  using StreamCache = detail::StreamCache;

  StreamCache& cache_of(Stream stream);
  Block* find_or_take(StreamCache& own, std::size_t bytes, bool small);
  Block* find_elsewhere(StreamCache& own, std::size_t bytes, bool small);
  Block* take(StreamCache& own, std::size_t bytes, bool small);
  Block* new_block();
  void delete_block(Block* block);
  void hand_out(Block& block, std::size_t bytes, std::size_t requested);
  void insert_free(Block& block);
  Block* insert_merged(Block& block);
  void take_back(Block& block);
  void collect();
  void erase_free(Block& block);
  void absorb_next(Block& block);
  void advance(StreamCache& cache);
  bool finish(StreamCache& cache);
  void finish_all();
  void settle(StreamCache& cache);
  void gather(StreamCache& own);
  std::size_t release_free_segments();
  std::size_t release(std::byte* address);
  MemoryStats stats_locked() const;
  std::string out_of_memory(std::size_t bytes);
  std::vector<const Block*> blocks_in_use() const;

  const std::string name_;
  DeviceMemory& device_;
  const bool cache_;
  mutable std::mutex mutex_;
  std::map<std::byte*, Segment> segments_;
  std::map<Stream, StreamCache> caches_;
  StreamCache* last_cache_ = nullptr;  // that was asked for: usually the next, too
  detail::BlocksInUse used_;
  detail::MemoryJournal journal_;
  std::deque<Block> nodes_;
  Block* spare_ = nullptr;      // list of nodes without a block
  Block* lingering_ = nullptr;  // list of blocks freed while other streams used them
  std::uint64_t clock_ = 0;     // counts the frees
  MemoryStats stats_;
};

namespace cpu {
/// The default allocator of `device`.
CachingAllocator& caching_allocator(Device device);
}  // namespace cpu
namespace cu {
CachingAllocator& caching_allocator(Device device);
}  // namespace cu

}  // namespace tapedeck
