#include <tapedeck/core/caching_allocator.h>

#include <algorithm>
#include <utility>

#include <tapedeck/core/error.h>

namespace tapedeck {

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kLargestSmall = kMiB;
constexpr std::size_t kSmallSegment = 2 * kMiB;
constexpr std::size_t kLargeSegment = 20 * kMiB;
constexpr std::size_t kOwnSegment = 10 * kMiB;  // from here on a request has a segment of its own
constexpr std::size_t kLargestRequest = std::numeric_limits<std::size_t>::max() / 2;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

std::size_t segment_bytes(std::size_t bytes) {
  if (bytes <= kLargestSmall) return kSmallSegment;
  return bytes < kOwnSegment ? kLargeSegment : round_up(bytes, 2 * kMiB);
}

}  // namespace

CachingAllocator::CachingAllocator(std::string name, DeviceMemory& device, bool cache)
    : name_(std::move(name)), device_(device), cache_(cache) {}

CachingAllocator::~CachingAllocator() {
  try {
    finish_all();
    trim();
  } catch (...) {  // a device that fails keeps its memory
  }
}

void* CachingAllocator::allocate(std::size_t bytes, Stream stream) {
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  StreamCache& own = cache_of(stream);
  const std::size_t rounded =
      cache_ && bytes <= kLargestRequest ? round_up(bytes, detail::FreeBlocks::kUnit) : bytes;
  detail::BlockTag& tag = journal_.present_tag();
  Block* block = bytes <= kLargestRequest ? find_or_take(own, rounded, rounded <= kLargestSmall) : nullptr;
  if (block == nullptr) throw Error(out_of_memory(bytes));
  hand_out(*block, rounded, bytes);
  block->tag = &tag;
  block->shape = detail::activity.shape != nullptr ? *detail::activity.shape : Shape();
  journal_.hand_out(*block);
  return block->data;
}

void CachingAllocator::record_stream(void* pointer, Stream stream) {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  Block* const block = used_.find(pointer);
  check(block != nullptr, name_, " allocator: a stream was recorded for a pointer that is not in use");
  const StreamCache& cache = cache_of(stream);
  if (&cache != block->cache) block->others |= cache.bit;
}

void CachingAllocator::deallocate(void* pointer, std::size_t bytes, Stream) noexcept {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  Block* const found = used_.extract(pointer);
  check(found != nullptr, name_, " allocator: a pointer was freed that is not in use");
  Block& block = *found;
  check(block.requested == bytes, name_, " allocator: ", bytes, " bytes were freed of a block of ",
        block.requested);
  block.freed_at = block.cache->clock = ++clock_;
  if (block.others != 0) [[unlikely]] {
    for (auto& [stream, cache] : caches_) {
      if ((block.others & cache.bit) != 0 && !cache.retired) cache.clock = clock_;
    }
    block.next = std::exchange(lingering_, &block);
  } else {
    take_back(block);
  }
}

/// Makes a block that was in use a free one.
void CachingAllocator::take_back(Block& block) {
  journal_.take_back(block);
  stats_.in_use -= block.bytes;
  stats_.requested -= block.requested;
  ++stats_.deallocations;
  --block.segment->blocks_in_use;
  block.in_use = false;
  block.others = 0;
  const Block* merged = insert_merged(block);
  if (cache_) return;
  try {
    release(merged->data);
  } catch (...) {  // a device that fails keeps its memory; the block stays cached
  }
}

/// Takes back what other streams have used, where they are done with it.
void CachingAllocator::collect() {
  for (auto& [stream, cache] : caches_) advance(cache);
  const auto used = [&](const Block& block) {
    return std::any_of(caches_.begin(), caches_.end(), [&](const auto& of) {
      const StreamCache& cache = of.second;
      return (block.others & cache.bit) != 0 && cache.done < std::min(cache.clock, block.freed_at);
    });
  };
  for (Block** link = &lingering_; *link != nullptr;) {
    if (used(**link)) {
      link = &(*link)->next;
    } else {
      take_back(*std::exchange(*link, (*link)->next));
    }
  }
}

// ---- the retry ladder ----

CachingAllocator::Block* CachingAllocator::find_or_take(StreamCache& own, std::size_t bytes, bool small) {
  const auto find_here = [&] { return own.blocks(small).best_fit(bytes, own.clock); };
  const std::size_t preferred = cache_ ? segment_bytes(bytes) : bytes;
  if (Block* block = find_here()) return block;
  if (lingering_ != nullptr) {
    collect();
    if (Block* block = find_here()) return block;
  }
  if (Block* block = find_elsewhere(own, bytes, small)) return block;
  if (Block* block = take(own, preferred, small)) return block;
  gather(own);
  if (Block* block = find_here()) return block;
  release_free_segments();
  if (Block* block = take(own, preferred, small)) return block;
  return take(own, bytes, small);
}

/// A block of another stream whose work is done, made the caller's.
CachingAllocator::Block* CachingAllocator::find_elsewhere(StreamCache& own, std::size_t bytes, bool small) {
  for (auto& [stream, cache] : caches_) {
    if (&cache == &own) continue;
    advance(cache);
    if (Block* block = cache.blocks(small).best_fit(bytes, cache.done)) {
      erase_free(*block);
      block->cache = &own;
      block->freed_at = 0;
      return insert_merged(*block);
    }
  }
  return nullptr;
}

/// A new segment, as one free block; null when the limit or the device says no.
CachingAllocator::Block* CachingAllocator::take(StreamCache& own, std::size_t bytes, bool small) {
  if (stats_.reserved > stats_.limit || bytes > stats_.limit - stats_.reserved) return nullptr;
  auto* address = static_cast<std::byte*>(device_.take(bytes));
  if (address == nullptr) return nullptr;
  Segment& segment = segments_[address];
  Block* block = new_block();
  segment = {.bytes = bytes, .small = small, .first = block};
  block->data = address;
  block->bytes = bytes;
  block->segment = &segment;
  block->cache = &own;
  insert_free(*block);
  stats_.reserved += bytes;
  stats_.peak_reserved = std::max(stats_.peak_reserved, stats_.reserved);
  ++stats_.device_allocations;
  return block;
}

/// Waits for all streams and makes every free block the caller's, where no graph is captured on its stream.
void CachingAllocator::gather(StreamCache& own) {
  finish_all();
  const auto idle = [](const Block& block) { return !block.in_use && block.freed_at <= block.cache->done; };
  for (auto& [address, segment] : segments_) {
    for (Block* block = segment.first; block != nullptr; block = block->after) {
      if (!idle(*block)) continue;
      erase_free(*block);
      while (block->after != nullptr && idle(*block->after)) {
        erase_free(*block->after);
        absorb_next(*block);
      }
      block->cache = &own;
      block->freed_at = 0;
      insert_free(*block);
    }
  }
}

std::size_t CachingAllocator::release_free_segments() {
  if (lingering_ != nullptr) finish_all();
  std::size_t released = 0;
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto& [address, segment] = *it++;
    if (segment.blocks_in_use == 0) released += release(address);
  }
  return released;
}

/// Gives a segment without a block in use back to the device, unless a graph is captured on a stream of it.
std::size_t CachingAllocator::release(std::byte* address) {
  const auto found = segments_.find(address);
  const Segment segment = found->second;
  for (Block* block = segment.first; block != nullptr; block = block->after) {
    if (block->freed_at > block->cache->done && !finish(*block->cache)) return 0;
  }
  for (Block* block = segment.first; block != nullptr;) {
    Block* next = block->after;
    erase_free(*block);
    delete_block(block);
    block = next;
  }
  segments_.erase(found);
  device_.give_back(address, segment.bytes);
  stats_.reserved -= segment.bytes;
  ++stats_.device_deallocations;
  return segment.bytes;
}

// ---- blocks ----

CachingAllocator::Block* CachingAllocator::new_block() {
  if (spare_ == nullptr) return &nodes_.emplace_back();
  Block* block = std::exchange(spare_, spare_->next);
  *block = {};
  return block;
}

void CachingAllocator::delete_block(Block* block) {
  block->next = std::exchange(spare_, block);
}

/// Makes a free block one in use of `bytes` bytes; what is left over becomes a free block.
void CachingAllocator::hand_out(Block& block, std::size_t bytes, std::size_t requested) {
  const std::size_t left_over = block.bytes - bytes;
  Block* rest = left_over > (block.segment->small ? 0 : kLargestSmall) ? new_block() : nullptr;
  used_.reserve_one();
  erase_free(block);
  if (rest != nullptr) {
    *rest = block;
    rest->data += bytes;
    rest->bytes = left_over;
    rest->before = &block;
    if (rest->after != nullptr) rest->after->before = rest;
    block.after = rest;
    block.bytes = bytes;
    insert_free(*rest);
  }
  block.in_use = true;
  block.requested = requested;
  used_.insert(block);
  ++block.segment->blocks_in_use;
  stats_.in_use += block.bytes;
  stats_.requested += requested;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  ++stats_.allocations;
}

void CachingAllocator::insert_free(Block& block) {
  block.cache->blocks(block.segment->small).insert(block);
}

/// The same for a block that may have free neighbours of its stream; returns what it has become.
CachingAllocator::Block* CachingAllocator::insert_merged(Block& block) {
  const auto mergeable = [&](const Block* neighbour) {
    return neighbour != nullptr && !neighbour->in_use && neighbour->cache == block.cache;
  };
  if (mergeable(block.after)) {
    erase_free(*block.after);
    absorb_next(block);
  }
  Block* merged = &block;
  if (mergeable(block.before)) {
    merged = block.before;
    erase_free(*merged);
    absorb_next(*merged);
  }
  insert_free(*merged);
  return merged;
}

void CachingAllocator::erase_free(Block& block) {
  block.cache->blocks(block.segment->small).erase(block);
}

/// Joins a block with the one after it, which is in no free list.
void CachingAllocator::absorb_next(Block& block) {
  Block* next = block.after;
  block.bytes += next->bytes;
  block.freed_at = std::max(block.freed_at, next->freed_at);
  block.after = next->after;
  if (block.after != nullptr) block.after->before = &block;
  delete_block(next);
}

// ---- streams ----

CachingAllocator::StreamCache& CachingAllocator::cache_of(Stream stream) {
  if (last_cache_ == nullptr || last_cache_->stream != stream) {
    last_cache_ = &caches_[stream];
    last_cache_->stream = stream;
    last_cache_->retired = false;
    if (last_cache_->bit == 0) last_cache_->bit = std::uint64_t{1} << (caches_.size() - 1) % 64;
  }
  return *last_cache_;
}

/// Looks, without waiting, how far a stream has come; records an event if frees wait for one.
void CachingAllocator::advance(StreamCache& cache) {
  if (cache.pending && device_.is_done(cache.event)) settle(cache);
  if (cache.pending || cache.done == cache.clock) return;
  cache.event = device_.record_event(cache.stream);
  if (cache.event == nullptr) return;
  cache.covered = cache.clock;
  cache.pending = true;
  if (device_.is_done(cache.event)) settle(cache);
}

/// Waits until nothing that was queued before the last free of a stream is left to do; false when a graph is
/// captured there.
bool CachingAllocator::finish(StreamCache& cache) {
  while (cache.done < cache.clock) {
    if (!cache.pending) advance(cache);
    if (cache.done == cache.clock) break;
    if (!cache.pending) return false;
    device_.wait(cache.event);
    settle(cache);
  }
  return true;
}

void CachingAllocator::finish_all() {
  for (auto& [stream, cache] : caches_) finish(cache);
  collect();
}

void CachingAllocator::settle(StreamCache& cache) {
  device_.release_event(std::exchange(cache.event, nullptr));
  cache.done = cache.covered;
  cache.pending = false;
}

void CachingAllocator::retire(Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto found = caches_.find(stream);
  if (found == caches_.end() || found->second.retired) return;
  found->second.clock = ++clock_;
  finish(found->second);
  found->second.retired = true;
  last_cache_ = nullptr;
}

// ---- limit, statistics ----

std::size_t CachingAllocator::trim() {
  const std::lock_guard lock(mutex_);
  return release_free_segments();
}

void CachingAllocator::set_limit(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  stats_.limit = bytes;
  if (stats_.reserved > bytes) release_free_segments();
}

MemoryStats CachingAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_locked();
}

MemoryStats CachingAllocator::stats_locked() const {
  MemoryStats stats = stats_;
  for (const auto& [stream, cache] : caches_) {
    stats.largest_free = std::max({stats.largest_free, cache.small.largest(), cache.large.largest()});
  }
  return stats;
}

void CachingAllocator::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.peak_in_use = stats_.in_use;
  stats_.peak_reserved = stats_.reserved;
  journal_.reset_peaks();
}

}  // namespace tapedeck
