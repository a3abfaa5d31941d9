#include <tapedeck/core/caching_allocator.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <tuple>
#include <utility>

#include <tapedeck/core/activity.h>
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
    for (auto& [stream, cache] : caches_) finish(cache);
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
  Block* block = bytes <= kLargestRequest ? find_or_take(own, rounded, rounded <= kLargestSmall) : nullptr;
  if (block == nullptr) throw Error(out_of_memory(bytes));
  hand_out(*block, rounded, bytes);
  detail::BlockTag& tag = present_tag();
  block->tag = &tag;
  tag.in_use += block->bytes;
  tag.peak_in_use = std::max(tag.peak_in_use, tag.in_use);
  ++tag.allocations;
  if (remembers_) remember(static_cast<std::int64_t>(block->bytes), tag, detail::activity().allocates);
  return block->data;
}

void CachingAllocator::deallocate(void* pointer, std::size_t bytes, Stream) noexcept {
  if (pointer == nullptr) return;
  const std::lock_guard lock(mutex_);
  Block* const found = used_.extract(pointer);
  check(found != nullptr, name_, " allocator: a pointer was freed that is not in use");
  Block& block = *found;
  check(block.requested == bytes, name_, " allocator: ", bytes, " bytes were freed of a block of ",
        block.requested);
  stats_.in_use -= block.bytes;
  block.tag->in_use -= block.bytes;
  if (remembers_) remember(-static_cast<std::int64_t>(block.bytes), *block.tag, nullptr);
  stats_.requested -= block.requested;
  ++stats_.deallocations;
  --block.segment->blocks_in_use;
  block.in_use = false;
  block.freed_at = ++block.cache->clock;

  const Block* merged = insert_merged(block);
  if (cache_) return;
  try {
    release(merged->data);
  } catch (...) {  // a device that fails keeps its memory; the block stays cached
  }
}

// ---- the retry ladder ----

CachingAllocator::Block* CachingAllocator::find_or_take(StreamCache& own, std::size_t bytes, bool small) {
  const auto find_here = [&] { return own.blocks(small).best_fit(bytes, own.clock); };
  const std::size_t preferred = cache_ ? segment_bytes(bytes) : bytes;
  if (Block* block = find_here()) return block;
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

/// Waits for all streams and makes every free block the caller's.
void CachingAllocator::gather(StreamCache& own) {
  for (auto& [stream, cache] : caches_) finish(cache);
  for (auto& [address, segment] : segments_) {
    for (Block* block = segment.first; block != nullptr; block = block->after) {
      if (block->in_use) continue;
      erase_free(*block);
      while (block->after != nullptr && !block->after->in_use) {
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
  std::size_t released = 0;
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto& [address, segment] = *it++;
    if (segment.blocks_in_use == 0) released += release(address);
  }
  return released;
}

/// Gives a segment without a block in use back to the device.
std::size_t CachingAllocator::release(std::byte* address) {
  const auto found = segments_.find(address);
  const Segment segment = found->second;
  for (Block* block = segment.first; block != nullptr; block = block->after) {
    if (block->freed_at > block->cache->done) finish(*block->cache);
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
  }
  return *last_cache_;
}

/// Looks, without waiting, how far a stream has come; records an event if frees wait for one.
void CachingAllocator::advance(StreamCache& cache) {
  if (cache.pending && device_.is_done(cache.event)) settle(cache);
  if (cache.pending || cache.done == cache.clock) return;
  cache.event = device_.record_event(cache.stream);
  cache.covered = cache.clock;
  cache.pending = true;
  if (device_.is_done(cache.event)) settle(cache);
}

/// Waits until nothing that was queued before the last free of a stream is left to do.
void CachingAllocator::finish(StreamCache& cache) {
  while (cache.done < cache.clock) {
    if (cache.pending) {
      device_.wait(cache.event);
      settle(cache);
    } else {
      advance(cache);
    }
  }
}

void CachingAllocator::settle(StreamCache& cache) {
  device_.release_event(std::exchange(cache.event, nullptr));
  cache.done = cache.covered;
  cache.pending = false;
}

// ---- tags ----

/// What the calling thread allocates for.
detail::BlockTag& CachingAllocator::present_tag() {
  const Activity& now = detail::activity();
  const auto mixed =
      reinterpret_cast<std::uintptr_t>(now.op) * 31 + reinterpret_cast<std::uintptr_t>(now.module);
  detail::BlockTag*& recent = recent_tags_[(mixed * 0x9e3779b97f4a7c15u) >> 58];
  if (recent != nullptr && recent->op == now.op && recent->module == now.module) return *recent;
  const auto [found, fresh] = tags_.try_emplace({now.op, now.module}, detail::BlockTag{now.op, now.module});
  if (fresh) found->second.number = tags_.size() - 1;
  return *(recent = &found->second);
}

std::vector<MemoryTag> CachingAllocator::by_tag() const {
  const std::lock_guard lock(mutex_);
  std::vector<MemoryTag> tags;
  for (const auto& [names, tag] : tags_) {
    // Equal names may have several addresses; the peak of their sum is not known then.
    const auto same = std::find_if(tags.begin(), tags.end(), [&](const MemoryTag& t) {
      return t.op == tag.op && t.module == tag.module;
    });
    MemoryTag& to = same != tags.end() ? *same : tags.emplace_back(MemoryTag{tag.op, tag.module});
    to.in_use += tag.in_use;
    to.peak_in_use = std::max(to.in_use, to.peak_in_use + tag.peak_in_use);
    to.allocations += tag.allocations;
  }
  std::sort(tags.begin(), tags.end(), [](const MemoryTag& a, const MemoryTag& b) {
    return std::tie(b.in_use, b.peak_in_use, a.op, a.module) <
           std::tie(a.in_use, a.peak_in_use, b.op, b.module);
  });
  return tags;
}

void CachingAllocator::record_history(bool on) {
  const std::lock_guard lock(mutex_);
  remembers_ = on;
  if (!on) return;
  history_.clear();
  history_.reserve(1 << 12);
  for (const auto& [names, tag] : tags_) {  // what is there already
    if (tag.in_use > 0) remember(static_cast<std::int64_t>(tag.in_use), tag, nullptr);
  }
}

void CachingAllocator::remember(std::int64_t bytes, const detail::BlockTag& tag, const Shape* shape) {
  constexpr std::size_t kMost = 1 << 20;
  if (history_.size() == kMost) return;
  try {
    history_.push_back({std::chrono::steady_clock::now().time_since_epoch().count(), bytes, &tag,
                        detail::memory_step.load(std::memory_order_relaxed),
                        shape != nullptr ? to_string(*shape) : std::string()});
  } catch (const std::bad_alloc&) {  // then it ends here
    remembers_ = false;
  }
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
}

std::string CachingAllocator::out_of_memory(std::size_t bytes) {
  ++stats_.out_of_memory;
  const MemoryStats stats = stats_locked();
  const bool limited = stats.limit != std::numeric_limits<std::size_t>::max();
  const char* help = stats.cached() >= bytes
                         ? "enough is cached but in pieces: use fewer different sizes, or free long-lived "
                           "tensors and call empty_cache()"
                     : limited
                         ? "raise the limit with set_memory_limit(), or use smaller batches or checkpoint()"
                         : "use smaller batches, checkpoint(), or free tensors";
  return concat(name_, " allocator: out of memory: requested ", format_bytes(bytes), ", in use ",
                format_bytes(stats.in_use), ", reserved ", format_bytes(stats.reserved), ", limit ",
                limited ? format_bytes(stats.limit) : "none", ", largest free block ",
                format_bytes(stats.largest_free), ", fragmentation ",
                static_cast<int>(100 * stats.fragmentation()), "%", largest_in_use(), "; ", help);
}

/// "; largest in use: 1.00 MiB of linear in Linear, ...", or nothing.
std::string CachingAllocator::largest_in_use() const {
  std::vector<const Block*> blocks;
  for (const auto& [address, segment] : segments_) {
    for (const Block* block = segment.first; block != nullptr; block = block->after) {
      if (block->in_use) blocks.push_back(block);
    }
  }
  constexpr std::ptrdiff_t kMost = 5;
  const auto shown = blocks.begin() + std::min<std::ptrdiff_t>(kMost, std::ssize(blocks));
  std::partial_sort(blocks.begin(), shown, blocks.end(), [](const Block* a, const Block* b) {
    return std::tie(b->bytes, a->data) < std::tie(a->bytes, b->data);
  });
  std::string text;
  for (auto it = blocks.begin(); it != shown; ++it) {
    const detail::BlockTag& tag = *(*it)->tag;
    text += concat(text.empty() ? "; largest in use: " : ", ", format_bytes((*it)->bytes));
    if (*tag.op != 0) text += concat(" of ", tag.op);
    if (*tag.module != 0) text += concat(" in ", tag.module);
  }
  return text;
}

std::string CachingAllocator::snapshot() const {
  const std::lock_guard lock(mutex_);
  std::string text = concat("{\"device\": \"", name_, "\", \"in_use\": ", stats_.in_use,
                            ", \"reserved\": ", stats_.reserved, ", \"segments\": [");
  const char* segment_separator = "\n";
  for (const auto& [address, segment] : segments_) {
    text +=
        concat(std::exchange(segment_separator, ",\n"),
               "  {\"address\": ", reinterpret_cast<std::uintptr_t>(address), ", \"bytes\": ", segment.bytes,
               ", \"pool\": \"", segment.small ? "small" : "large", "\", \"blocks\": [");
    const char* separator = "\n";
    for (const Block* block = segment.first; block != nullptr; block = block->after) {
      text += concat(std::exchange(separator, ",\n"), "    {\"offset\": ", block->data - address,
                     ", \"bytes\": ", block->bytes, ", \"requested\": ", block->in_use ? block->requested : 0,
                     ", \"state\": \"", block->in_use ? "in use" : "free",
                     "\", \"stream\": ", reinterpret_cast<std::uintptr_t>(block->cache->stream));
      if (block->in_use)
        text += concat(", \"op\": \"", block->tag->op, "\", \"module\": \"", block->tag->module, "\"");
      text += "}";
    }
    text += "]}";
  }
  std::vector<const detail::BlockTag*> tags(tags_.size());
  for (const auto& [names, tag] : tags_) tags[tag.number] = &tag;
  text += "],\n\"tags\": [";
  const char* separator = "\n";
  for (const detail::BlockTag* tag : tags) {
    text += concat(std::exchange(separator, ",\n"), "  {\"op\": \"", tag->op, "\", \"module\": \"",
                   tag->module, "\", \"in_use\": ", tag->in_use, ", \"peak\": ", tag->peak_in_use,
                   ", \"allocations\": ", tag->allocations, "}");
  }
  text += "],\n\"history\": [";
  separator = "\n";
  for (const detail::BlockEvent& event : history_) {
    text += concat(std::exchange(separator, ",\n"), "  [",
                   (event.nanoseconds - history_.front().nanoseconds) / 1000, ", ", event.bytes, ", ",
                   event.tag->number, ", ", event.step, ", \"", event.shape, "\"]");
  }
  return text + "]}\n";
}

}  // namespace tapedeck
