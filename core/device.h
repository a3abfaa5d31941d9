// Devices: where bytes live and work runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace tapedeck {

enum class DeviceType { cpu, cuda };

/// A device. `Device()` is the CPU.
struct Device {
  DeviceType type = DeviceType::cpu;
  int index = 0;

  bool is_cpu() const { return type == DeviceType::cpu; }
  bool is_cuda() const { return type == DeviceType::cuda; }
  bool operator==(const Device&) const = default;
};

/// Parses "cpu", "cuda" or "cuda:N". Throws Error on anything else, and on a CUDA device that this
/// build or this machine does not have.
Device device(std::string_view name);

/// "cpu" or "cuda:N".
std::string to_string(Device device);

/// Returns when all work that was queued on the device is done. Work on the CPU always is.
void synchronize(Device device);
/// How often the program has waited for a GPU so far, or may have, as copies of pageable memory do.
std::uint64_t synchronizations();

namespace detail {
inline std::atomic<std::uint64_t> synchronizations = 0;
}

namespace cpu {
void synchronize(Device device);
}
namespace cu {
void synchronize(Device device);
}

}  // namespace tapedeck
