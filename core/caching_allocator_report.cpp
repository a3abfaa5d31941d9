// What the caching allocator tells of itself: its errors, and its snapshots.
#include <algorithm>
#include <tuple>
#include <utility>

#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/error.h>

namespace tapedeck {

namespace {

/// " of relu in ReLU [16,64]", as far as it is known.
std::string whose(const std::string& op, const std::string& module, const Shape& shape) {
  std::string text;
  if (!op.empty()) text += concat(" of ", op);
  if (!module.empty()) text += concat(" in ", module);
  if (shape.rank() > 0) text += concat(" ", shape);
  return text;
}

}  // namespace

std::vector<const CachingAllocator::Block*> CachingAllocator::blocks_in_use() const {
  std::vector<const Block*> blocks;
  for (const auto& [address, segment] : segments_) {
    for (const Block* block = segment.first; block != nullptr; block = block->after) {
      if (block->in_use) blocks.push_back(block);
    }
  }
  return blocks;
}

std::string CachingAllocator::out_of_memory(std::size_t bytes) {
  ++stats_.out_of_memory;
  const MemoryStats stats = stats_locked();
  const bool limited = stats.limit != std::numeric_limits<std::size_t>::max();
  const auto left = device_.left();

  std::vector<const Block*> blocks = blocks_in_use();
  constexpr std::ptrdiff_t kMost = 5;
  const auto shown = blocks.begin() + std::min<std::ptrdiff_t>(kMost, std::ssize(blocks));
  std::partial_sort(blocks.begin(), shown, blocks.end(), [](const Block* a, const Block* b) {
    return std::tie(b->bytes, a->data) < std::tie(a->bytes, b->data);
  });
  std::string largest;
  for (auto it = blocks.begin(); it != shown; ++it) {
    const Block& block = **it;
    largest += concat(largest.empty() ? "; largest in use: " : ", ", format_bytes(block.bytes),
                      whose(block.tag->op, block.tag->module, block.shape));
  }

  const Activity& now = detail::activity;
  const char* help = stats.cached() >= bytes
                         ? "enough is cached but in pieces: use fewer different sizes, or free long-lived "
                           "tensors and call empty_cache()"
                     : limited && stats.limit - std::min(stats.limit, stats.in_use) < bytes
                         ? "raise the limit with set_memory_limit(), or use smaller batches or checkpoint()"
                         : "use smaller batches, checkpoint(), or free tensors";
  return concat(name_, " allocator: out of memory: requested ", format_bytes(bytes),
                whose(now.op, now.module, now.shape != nullptr ? *now.shape : Shape()), ", in use ",
                format_bytes(stats.in_use), ", free ", format_bytes(stats.cached()), " of reserved ",
                format_bytes(stats.reserved), ", limit ", limited ? format_bytes(stats.limit) : "none",
                left ? concat(", left on the device ", format_bytes(*left)) : "", ", largest free block ",
                format_bytes(stats.largest_free), ", fragmentation ",
                static_cast<int>(100 * stats.fragmentation()), "%", largest, "; ", help);
}

std::vector<MemoryTag> CachingAllocator::by_tag() const {
  const std::lock_guard lock(mutex_);
  return journal_.by_tag();
}

void CachingAllocator::record_history(bool on) {
  const std::lock_guard lock(mutex_);
  if (on) {
    journal_.start(blocks_in_use());
  } else {
    journal_.stop();
  }
}

bool CachingAllocator::records_history() const {
  const std::lock_guard lock(mutex_);
  return journal_.recording();
}

std::string CachingAllocator::snapshot() const {
  const std::lock_guard lock(mutex_);
  const MemoryStats stats = stats_locked();
  std::string text = concat("{\"device\": \"", name_, "\", \"in_use\": ", stats.in_use,
                            ", \"peak\": ", stats.peak_in_use, ", \"reserved\": ", stats.reserved,
                            ", \"fragmentation\": ", stats.fragmentation(), ", \"segments\": [");
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
      if (block->in_use) {
        text += concat(", \"tag\": ", block->tag->number, ", \"shape\": \"",
                       block->shape.rank() > 0 ? to_string(block->shape) : "", "\"");
      }
      text += "}";
    }
    text += "]}";
  }
  return text + "],\n" + journal_.to_json() + "}\n";
}

}  // namespace tapedeck
