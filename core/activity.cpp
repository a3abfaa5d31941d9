#include <tapedeck/core/activity.h>

#include <tapedeck/core/backend.h>

namespace tapedeck {

namespace {
constexpr Device kProfiled{DeviceType::cuda};
}

ActivityScope::ActivityScope(const char* op, const char* module, const char* range)
    : outer_op_(detail::activity.op), outer_module_(detail::activity.module), has_range_(*range != 0) {
  detail::activity.op = op;
  detail::activity.module = module;
  if (has_range_) TAPEDECK_KERNEL(kProfiled, push_range)(range);
}

ActivityScope::~ActivityScope() {
  if (has_range_) TAPEDECK_KERNEL(kProfiled, pop_range)();
  detail::activity.op = outer_op_;
  detail::activity.module = outer_module_;
}

void cpu::push_range(const char*) {}
void cpu::pop_range() {}

}  // namespace tapedeck
