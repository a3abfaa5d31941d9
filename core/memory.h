// Memory of a device: what is in use, what is cached, and how much may be taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <tapedeck/core/allocator.h>
#include <tapedeck/core/device.h>

namespace tapedeck {

/// The state of a device's allocator. Sizes are bytes; counts are since the start of the process.
struct MemoryStats {
  std::size_t in_use = 0;     ///< in blocks handed out, rounding included
  std::size_t requested = 0;  ///< of these, what callers asked for
  std::size_t reserved = 0;   ///< taken from the device: in use or cached
  std::size_t peak_in_use = 0;
  std::size_t peak_reserved = 0;
  std::size_t largest_free = 0;  ///< the largest cached block
  std::size_t limit = std::numeric_limits<std::size_t>::max();

  std::uint64_t allocations = 0;
  std::uint64_t deallocations = 0;
  std::uint64_t device_allocations = 0;  ///< calls to the driver; none in the steady state
  std::uint64_t device_deallocations = 0;
  std::uint64_t out_of_memory = 0;  ///< errors thrown

  /// Cached bytes.
  std::size_t cached() const { return reserved - in_use; }
  /// The share of the cached bytes that lies outside the largest cached block, 0 to 1.
  double fragmentation() const {
    return cached() == 0 ? 0 : 1 - static_cast<double>(largest_free) / static_cast<double>(cached());
  }
};

/// What one op in one kind of module has allocated, forward and backward; "" stands for what neither did.
struct MemoryTag {
  std::string op, module;
  std::size_t in_use = 0, peak_in_use = 0;  ///< bytes, rounding included
  std::uint64_t allocations = 0;
};

/// What `device`'s default allocator holds.
MemoryStats memory_stats(Device device = {});
/// Sets the peaks to the present values.
void reset_peak_memory_stats(Device device = {});
/// Gives cached memory that no block uses back to the device; returns how many bytes.
std::size_t empty_cache(Device device = {});
/// Before a stream of the user's is destroyed, when all tensors that were made there are gone: waits until
/// its work has no use for their memory, which other streams may have then.
void retire_stream(Device device, Stream stream);
/// Lets the program reserve at most `bytes`, graphs of captured steps included; cached memory above it is
/// given back. Blocks in use stay, even above the limit.
void set_memory_limit(Device device, std::size_t bytes);
/// Who holds it, the largest first.
std::vector<MemoryTag> memory_by_tag(Device device = {});

/// From now on, or no longer, allocations and frees are remembered with op, module, shape and step: the last
/// hundred thousand or so. Starting forgets what was remembered before.
void record_memory_history(Device device, bool on);
/// Ends a step of the history; optimizers call it.
void count_memory_step();
/// All segments and blocks, and the history, as JSON: {"device", "in_use", "peak", "reserved",
/// "fragmentation", "segments": [{"address", "bytes", "pool", "blocks": [{"offset", "bytes", "requested",
/// "state", "stream", "tag", "shape"}]}], "tags": [{"op", "module", "in_use", "peak", "allocations"}],
/// "history": [[microseconds, address, bytes (below 0: freed), tag, step, shape]]}; a tag is its place in
/// "tags".
std::string memory_snapshot(Device device = {});
/// Snapshots, of any allocators, as one HTML page that needs nothing else: bytes over time by tag, what is
/// under the mouse, and the segments.
std::string memory_page(const std::vector<std::string>& snapshots);

/// "512 B", "1.50 MiB".
std::string format_bytes(std::size_t bytes);

}  // namespace tapedeck
