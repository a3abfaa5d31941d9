#include <tapedeck/ops/micro/made_of.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>

#include <tapedeck/core/memory.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>

namespace tapedeck::cpu {

namespace {

constexpr std::size_t kMost = 8;  // of a storage: directions, slices

struct Entry {
  MadeKey key;
  std::uint64_t fingerprint = 0;
  Tensor made = {};  // undefined: only asked for
};

struct Entries {
  std::mutex mutex;
  std::uint64_t version = 0;        // of which all are
  std::vector<Entry> entries = {};  // the oldest first
};

Entry* find(Entries& all, std::uint64_t version, const MadeKey& key) {
  if (all.version != version) return nullptr;
  const auto found = std::find_if(all.entries.begin(), all.entries.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  return found == all.entries.end() ? nullptr : &*found;
}

/// A round of xxHash64: for either argument all values of the other give different results.
[[gnu::always_inline]] inline std::uint64_t round_of(std::uint64_t sum, std::uint64_t word) {
  return std::rotl(sum + word * 0xC2B2AE3D27D4EB4FU, 31) * 0x9E3779B185EBCA87U;
}

/// 64 bits of all elements: one changed word always shows. Parts of a fixed size, in each the words of
/// some lanes, so that it takes the time of reading.
std::uint64_t fingerprint(const Tensor& w) {
  constexpr std::size_t kLanes = 32, kStripe = kLanes * sizeof(std::uint64_t), kPart = 256 * kStripe;
  const auto* const bytes = static_cast<const unsigned char*>(w.read());
  const std::size_t count = w.bytes();
  std::vector<std::uint64_t> parts((count + kPart - 1) / kPart);
  parallel_for(static_cast<std::int64_t>(parts.size()), 16, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const unsigned char* at = bytes + i * kPart;
      const std::size_t size = std::min(kPart, count - i * kPart), whole = size / kStripe * kStripe;
      std::uint64_t sums[kLanes] = {};
      simd([&] {
        for (const unsigned char* const stop = at + whole; at != stop; at += kStripe) {
          std::uint64_t words[kLanes];
          std::memcpy(words, at, kStripe);
          for (std::size_t l = 0; l < kLanes; ++l) sums[l] = round_of(sums[l], words[l]);
        }
      });
      std::uint64_t rest[kLanes] = {}, sum = size;
      std::memcpy(rest, at, size - whole);
      for (std::size_t l = 0; l < kLanes; ++l) sum = round_of(round_of(sum, sums[l]), rest[l]);
      parts[i] = sum;
    }
  });
  std::uint64_t sum = 0;
  for (const std::uint64_t part : parts) sum = round_of(sum, part);
  return sum;
}

}  // namespace

Tensor detail::kept(const Tensor& w, const MadeKey& key, const std::function<Tensor()>& make) {
  const auto all = std::static_pointer_cast<Entries>(
      w.companion([]() -> std::shared_ptr<void> { return std::make_shared<Entries>(); }));
  const std::uint64_t version = w.version();
  const bool limited = memory_stats().limit != std::numeric_limits<std::size_t>::max();
  Tensor made;
  std::uint64_t before = 0;
  {
    const std::lock_guard lock(all->mutex);
    if (limited) {
      all->entries.clear();
      return {};
    }
    if (const Entry* const found = find(*all, version, key)) {
      made = found->made;
      before = found->fingerprint;
    } else {
      if (all->version != version) all->entries.clear();
      all->version = version;
      if (all->entries.size() == kMost) all->entries.erase(all->entries.begin());
      all->entries.push_back({key});
      return {};
    }
  }
  const std::uint64_t now = fingerprint(w);
  if (made.defined()) {
    if (before == now) return made;
    made = {};  // of other elements: not held while theirs is made
    const std::lock_guard lock(all->mutex);
    if (Entry* const found = find(*all, version, key)) found->made = {};
  }
  {
    const ContextScope scope(default_context({}));  // weights may outlive an allocator of the caller's
    made = make();
  }
  const std::lock_guard lock(all->mutex);
  if (Entry* const found = find(*all, version, key)) {
    found->fingerprint = now;
    found->made = made;
  }
  return made;
}

}  // namespace tapedeck::cpu
