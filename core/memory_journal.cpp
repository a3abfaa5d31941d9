#include <tapedeck/core/memory_journal.h>

#include <chrono>
#include <new>
#include <tuple>
#include <unordered_map>

#include <tapedeck/core/error.h>

namespace tapedeck::detail {

namespace {

constexpr std::size_t kMostEvents = 1 << 17;

/// The text as a string of JSON that may stand in a page.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\' || c == '<' || static_cast<unsigned char>(c) < ' ') {
      constexpr const char* kDigits = "0123456789abcdef";
      out += concat("\\u00", kDigits[c >> 4], kDigits[c & 15]);
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

BlockTag& MemoryJournal::find_tag(Recent& recent) {
  const auto [found, fresh] = tags_.try_emplace({activity.op, activity.module});
  BlockTag& tag = found->second;
  if (fresh) {
    tag.op = activity.op;
    tag.module = activity.module;
    tag.number = tags_.size() - 1;
  }
  recent = {activity.op, activity.module, &tag};
  return tag;
}

std::vector<MemoryTag> MemoryJournal::by_tag() const {
  std::vector<MemoryTag> tags;
  for (const auto& [names, tag] : tags_) {
    tags.push_back({tag.op, tag.module, tag.in_use, tag.peak_in_use, tag.allocations});
  }
  std::sort(tags.begin(), tags.end(), [](const MemoryTag& a, const MemoryTag& b) {
    return std::tie(b.in_use, b.peak_in_use, a.op, a.module) <
           std::tie(a.in_use, a.peak_in_use, b.op, b.module);
  });
  return tags;
}

void MemoryJournal::reset_peaks() {
  for (auto& [names, tag] : tags_) tag.peak_in_use = tag.in_use;
}

// ---- history ----

void MemoryJournal::start(const std::vector<const Block*>& in_use) {
  history_.clear();
  most_events_ = std::max(kMostEvents, 2 * in_use.size());
  recording_ = true;
  for (const Block* block : in_use) remember(*block, static_cast<std::int64_t>(block->bytes));
}

void MemoryJournal::remember(const Block& block, std::int64_t bytes) {
  try {
    if (history_.size() >= most_events_) forget_half();
    history_.push_back({std::chrono::steady_clock::now().time_since_epoch().count(), block.data, bytes,
                        block.tag, memory_step.load(std::memory_order_relaxed), block.shape});
  } catch (const std::bad_alloc&) {  // then it ends here
    recording_ = false;
  }
}

/// Of the older half only what is still in use stays.
void MemoryJournal::forget_half() {
  const std::size_t half = history_.size() / 2;
  std::unordered_map<const std::byte*, std::size_t> in_use;
  for (std::size_t i = 0; i < half; ++i) {
    if (history_[i].bytes > 0) {
      in_use[history_[i].address] = i;
    } else {
      in_use.erase(history_[i].address);
    }
  }
  const std::int64_t now = history_[half].nanoseconds;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < half; ++i) {
    const auto found = in_use.find(history_[i].address);
    if (found == in_use.end() || found->second != i) continue;
    history_[kept] = history_[i];
    history_[kept++].nanoseconds = now;
  }
  history_.erase(history_.begin() + static_cast<std::ptrdiff_t>(kept),
                 history_.begin() + static_cast<std::ptrdiff_t>(half));
  most_events_ = std::max(kMostEvents, 2 * history_.size());
}

std::string MemoryJournal::to_json() const {
  std::vector<const BlockTag*> tags(tags_.size());
  for (const auto& [names, tag] : tags_) tags[tag.number] = &tag;
  std::string text = "\"tags\": [";
  const char* separator = "\n";
  for (const BlockTag* tag : tags) {
    text += concat(std::exchange(separator, ",\n"), "  {\"op\": ", quoted(tag->op),
                   ", \"module\": ", quoted(tag->module), ", \"in_use\": ", tag->in_use,
                   ", \"peak\": ", tag->peak_in_use, ", \"allocations\": ", tag->allocations, "}");
  }
  text += "],\n\"history\": [";
  separator = "\n";
  for (const Event& event : history_) {
    text += concat(
        std::exchange(separator, ",\n"), "  [", (event.nanoseconds - history_.front().nanoseconds) / 1000,
        ", ", reinterpret_cast<std::uintptr_t>(event.address), ", ", event.bytes, ", ", event.tag->number,
        ", ", event.step, ", \"", event.shape.rank() > 0 ? to_string(event.shape) : "", "\"]");
  }
  return text + "]";
}

}  // namespace tapedeck::detail
