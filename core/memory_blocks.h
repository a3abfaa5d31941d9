// What the caching allocator's policy is written in: blocks, segments and free lists.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tapedeck/core/allocator.h>
#include <tapedeck/core/shape.h>

namespace tapedeck::detail {

struct BlockTag;
struct Segment;
struct StreamCache;

/// A part of a segment, handed out or free.
struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t requested = 0;  // of what is handed out
  Segment* segment = nullptr;
  StreamCache* cache = nullptr;  // of the stream that may use it
  std::uint64_t others = 0;      // StreamCache::bit of other streams whose work uses it
  std::uint64_t freed_at = 0;    // on the allocator's clock
  bool in_use = false;
  Block *before = nullptr, *after = nullptr;   // neighbours in the segment
  Block *previous = nullptr, *next = nullptr;  // in the one list that it is in
  BlockTag* tag = nullptr;                     // what it was handed out for
  Shape shape{};                               // of the tensor there, if it is one
};

/// Blocks that are handed out, by address.
class BlocksInUse {
 public:
  /// Makes room for one more, so that insert() cannot fail.
  void reserve_one() {
    if (count_ < buckets_.size()) return;
    std::vector<Block*> old(std::max<std::size_t>(64, 2 * buckets_.size()));
    old.swap(buckets_);
    for (Block* block : old) {
      while (block != nullptr) push(*std::exchange(block, block->next));
    }
  }

  void insert(Block& block) {
    push(block);
    ++count_;
  }

  /// The block at `address`; null when there is none.
  Block* find(const void* address) {
    Block* block = count_ == 0 ? nullptr : bucket(address);
    while (block != nullptr && block->data != address) block = block->next;
    return block;
  }

  /// Takes it out.
  Block* extract(const void* address) {
    if (count_ == 0) return nullptr;
    for (Block** link = &bucket(address); *link != nullptr; link = &(*link)->next) {
      if ((*link)->data != address) continue;
      --count_;
      return std::exchange(*link, (*link)->next);
    }
    return nullptr;
  }

 private:
  void push(Block& block) { block.next = std::exchange(bucket(block.data), &block); }
  Block*& bucket(const void* address) {
    const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(address) * 0x9e3779b97f4a7c15u;
    return buckets_[(mixed >> 32) & (buckets_.size() - 1)];
  }

  std::vector<Block*> buckets_;  // heads of lists; their number is a power of two
  std::size_t count_ = 0;
};

/// Free blocks in bins by size: up to 32 KiB a bin holds one size, above, the sizes within 1/32 of a power
/// of two. A bin is a list with the smallest in front, and of equal ones the one that was freed last. A
/// bitmap finds the next bin that is not empty.
class FreeBlocks {
 public:
  static constexpr std::size_t kUnit = 512;  // sizes are multiples of this

  void insert(Block& block) {
    const std::size_t bin = bin_of(block.bytes);
    Block *before = nullptr, *after = bins_[bin];
    while (after != nullptr && after->bytes < block.bytes) before = std::exchange(after, after->next);
    block.previous = before;
    block.next = after;
    if (after != nullptr) after->previous = &block;
    (before != nullptr ? before->next : bins_[bin]) = &block;
    nonempty_[bin / 64] |= std::uint64_t{1} << bin % 64;
  }

  void erase(Block& block) {
    if (block.next != nullptr) block.next->previous = block.previous;
    if (block.previous != nullptr) {
      block.previous->next = block.next;
      return;
    }
    const std::size_t bin = bin_of(block.bytes);
    bins_[bin] = block.next;
    if (block.next == nullptr) nonempty_[bin / 64] &= ~(std::uint64_t{1} << bin % 64);
  }

  /// The bytes of the largest block, 0 without one.
  std::size_t largest() const {
    std::size_t most = 0;
    for (std::size_t bin = next_bin(0); bin < kBins; bin = next_bin(bin + 1)) {
      for (const Block* block = bins_[bin]; block != nullptr; block = block->next) most = block->bytes;
    }
    return most;
  }

  /// The smallest block of at least `bytes` that was freed no later than `freed_by`, or null.
  Block* best_fit(std::size_t bytes, std::uint64_t freed_by) const {
    for (std::size_t bin = next_bin(bin_of(bytes)); bin < kBins; bin = next_bin(bin + 1)) {
      for (Block* block = bins_[bin]; block != nullptr; block = block->next) {
        if (block->bytes >= bytes && block->freed_at <= freed_by) return block;
      }
    }
    return nullptr;
  }

 private:
  static constexpr std::size_t kBins = 32 * 50 + 64;  // for every size of 64 bits

  static std::size_t bin_of(std::size_t bytes) {
    const std::size_t units = bytes / kUnit;
    const std::size_t shift = units < 32 ? 0 : static_cast<std::size_t>(std::bit_width(units)) - 6;
    return 32 * shift + (units >> shift);
  }

  std::size_t next_bin(std::size_t bin) const {
    for (std::size_t word = bin / 64; word < nonempty_.size(); ++word, bin = word * 64) {
      const std::uint64_t bits = nonempty_[word] >> bin % 64;
      if (bits != 0) return bin + static_cast<std::size_t>(std::countr_zero(bits));
    }
    return kBins;
  }

  std::array<Block*, kBins> bins_{};
  std::array<std::uint64_t, (kBins + 63) / 64> nonempty_{};
};

/// Bytes taken from the device at once.
struct Segment {
  std::size_t bytes = 0;
  bool small = false;  // which of the two pools its blocks belong to
  std::size_t blocks_in_use = 0;
  Block* first = nullptr;
};

/// The free blocks of one stream, and how far its work is known to be done.
struct StreamCache {
  Stream stream = nullptr;
  std::uint64_t bit = 0;  // for sets of streams; from the 65th on they share bits
  bool retired = false;   // there is no such stream, until it is named again
  FreeBlocks small, large;
  std::uint64_t clock = 0;  // when a block that its work may use was freed last
  std::uint64_t done = 0;   // none of its work uses what was freed up to here
  Event event = nullptr;    // while pending: when it is done, `done` becomes `covered`
  std::uint64_t covered = 0;
  bool pending = false;

  FreeBlocks& blocks(bool of_small) { return of_small ? small : large; }
};

}  // namespace tapedeck::detail
