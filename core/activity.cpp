#include <tapedeck/core/activity.h>

#include <cstdlib>

#include <tapedeck/core/backend.h>

namespace tapedeck {

namespace {

/// Profilers that want ranges say so before the program starts.
bool is_profiled() {
  static const bool profiled = std::getenv("NVTX_INJECTION64_PATH") != nullptr && cuda_device_count() > 0;
  return profiled;
}

constexpr Device kProfiled{DeviceType::cuda};

}  // namespace

Activity& detail::activity() {
  thread_local Activity present;
  return present;
}

detail::ActivityScope::ActivityScope(const char* op, const char* module, const char* range)
    : outer_(activity()), range_(is_profiled()) {
  activity() = {op, module, nullptr};
  if (range_) TAPEDECK_KERNEL(kProfiled, push_range)(range);
}

detail::ActivityScope::~ActivityScope() {
  if (range_) TAPEDECK_KERNEL(kProfiled, pop_range)();
  activity() = outer_;
}

void cpu::push_range(const char*) {}
void cpu::pop_range() {}

}  // namespace tapedeck
