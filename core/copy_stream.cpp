#include <tapedeck/core/copy_stream.h>

#include <tapedeck/core/backend.h>

namespace tapedeck {

const Context& pinned_context() {
  const Device device{cuda_device_count() > 0 ? DeviceType::cuda : DeviceType::cpu};
  return TAPEDECK_KERNEL(device, pinned_context)();
}

std::unique_ptr<CopyStream> CopyStream::make(Device device) {
  return TAPEDECK_KERNEL(device, new_copy_stream)(device);
}

const Context& cpu::pinned_context() {
  return cpu::default_context(Device{});
}

std::unique_ptr<CopyStream> cpu::new_copy_stream(Device) {
  return nullptr;
}

}  // namespace tapedeck
