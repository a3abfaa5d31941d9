#include <tapedeck/core/context.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/error.h>

namespace tapedeck {

namespace {
thread_local ContextScope* innermost = nullptr;
}

Context::Context(Device device, Stream stream)
    : Context(device, stream, TAPEDECK_KERNEL(device, caching_allocator)(device)) {}

const Context& Context::current(Device device) {
  for (const ContextScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    if (scope->context_->device() == device) return *scope->context_;
  }
  return TAPEDECK_KERNEL(device, default_context)(device);
}

const Context& cpu::default_context(Device device) {
  static const Context cpu{Device{}};
  check(device.is_cpu(), "context: ", device, " is not available in this build");
  return cpu;
}

ContextScope::ContextScope(const Context& context) : context_(&context), outer_(innermost) {
  innermost = this;
}

ContextScope::~ContextScope() {
  innermost = outer_;
}

}  // namespace tapedeck
