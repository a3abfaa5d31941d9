#include <tapedeck/core/memory.h>

#include <cstdio>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/memory_limit.h>

namespace tapedeck {

namespace {
CachingAllocator& allocator_of(Device device) {
  return TAPEDECK_KERNEL(device, caching_allocator)(device);
}
}  // namespace

MemoryStats memory_stats(Device device) {
  return allocator_of(device).stats();
}
void reset_peak_memory_stats(Device device) {
  allocator_of(device).reset_peak();
}
std::size_t empty_cache(Device device) {
  return allocator_of(device).trim();
}
void retire_stream(Device device, Stream stream) {
  allocator_of(device).retire(stream);
}
void set_memory_limit(Device device, std::size_t bytes) {
  allocator_of(device).set_limit(bytes);
  TAPEDECK_KERNEL(device, limit_device_memory)(device, bytes);
}
void cpu::limit_device_memory(Device, std::size_t) {}
std::vector<MemoryTag> memory_by_tag(Device device) {
  return allocator_of(device).by_tag();
}
void record_memory_history(Device device, bool on) {
  allocator_of(device).record_history(on);
}
void count_memory_step() {
  detail::memory_step.fetch_add(1, std::memory_order_relaxed);
}
std::string memory_snapshot(Device device) {
  return allocator_of(device).snapshot();
}

std::string format_bytes(std::size_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1024) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", value, kUnits[unit]);
  return text;
}

}  // namespace tapedeck
