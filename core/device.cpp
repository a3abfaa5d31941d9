#include <tapedeck/core/device.h>

#include <algorithm>
#include <charconv>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/error.h>

namespace tapedeck {

Device device(std::string_view name) {
  if (name == "cpu") return {};
  const std::string_view cuda = "cuda";
  int index = 0;
  bool legal = name.substr(0, cuda.size()) == cuda;
  if (legal && name.size() > cuda.size()) {
    const std::string_view number = name.substr(cuda.size());
    const auto end = number.data() + number.size();
    const auto [stop, code] = std::from_chars(number.data() + 1, end, index);
    legal = number.size() > 1 && number[0] == ':' && code == std::errc() && stop == end && index >= 0;
  }
  check(legal, "device: \"", name, "\" is not a device; legal are \"cpu\", \"cuda\" and \"cuda:N\"");
  const int count = cuda_device_count();
  check(index < count, "device: \"", name, "\" is not available; ",
        has_cuda_backend() ? "this machine has " : "this build leaves CUDA out and so has ", count,
        " CUDA devices");
  return {DeviceType::cuda, index};
}

int cpu::cuda_device_count() {
  return -1;
}

namespace {
int count_cuda_devices() {
  return TAPEDECK_KERNEL(Device{DeviceType::cuda}, cuda_device_count)();
}
}  // namespace

bool has_cuda_backend() {
  return count_cuda_devices() >= 0;
}

int cuda_device_count() {
  return std::max(0, count_cuda_devices());
}

void cpu::synchronize(Device) {}

void synchronize(Device device) {
  TAPEDECK_KERNEL(device, synchronize)(device);
}

std::uint64_t synchronizations() {
  return detail::synchronizations;
}

std::string to_string(Device device) {
  return device.is_cpu() ? "cpu" : concat("cuda:", device.index);
}

}  // namespace tapedeck
