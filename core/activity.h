// What a thread is doing at present: allocators count memory by it, and NVIDIA's profilers show it (NVTX).
#pragma once

#include <tapedeck/core/shape.h>

namespace tapedeck {

/// Names are string literals; "" where there is none.
struct Activity {
  const char* op = "";           ///< that runs, forward or backward
  const char* module = "";       ///< the kind of the innermost that runs, or whose op is walked
  const Shape* shape = nullptr;  ///< of the tensor that is being made
};

namespace detail {
inline constinit thread_local Activity activity;
}  // namespace detail

/// Names what the calling thread does until the scope ends; also a range for profilers.
class ActivityScope {
 public:
  static ActivityScope op(const char* name) { return {name, detail::activity.module, name}; }
  static ActivityScope module(const char* kind) { return {detail::activity.op, kind, kind}; }
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  ActivityScope(const char* op, const char* module, const char* range);

  const char *outer_op_, *outer_module_;
  bool has_range_;
};

namespace cpu {
void push_range(const char* name);
void pop_range();
}  // namespace cpu
namespace cu {
void push_range(const char* name);
void pop_range();
}  // namespace cu

}  // namespace tapedeck
