// What a thread is doing at present: for statistics of memory, and as ranges for profilers (NVTX).
#pragma once

#include <tapedeck/core/shape.h>

namespace tapedeck {

/// Names are string literals, "" where there is none.
struct Activity {
  const char* op = "";               ///< that runs, forward or backward
  const char* module = "";           ///< the innermost, by its kind, that runs or whose op is walked
  const Shape* allocates = nullptr;  ///< the shape of the tensor that is being made, if it is one
};

namespace detail {

/// Of the calling thread.
Activity& activity();

/// Names an op, or a module, until the scope ends.
class ActivityScope {
 public:
  static ActivityScope op(const char* name) { return {name, activity().module, name}; }
  static ActivityScope op(const char* name, const char* module) { return {name, module, name}; }
  static ActivityScope module(const char* kind) { return {activity().op, kind, kind}; }
  ~ActivityScope();
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  ActivityScope(const char* op, const char* module, const char* range);

  Activity outer_;
  bool range_;
};

}  // namespace detail

namespace cpu {
void push_range(const char* name);
void pop_range();
}  // namespace cpu
namespace cu {
void push_range(const char* name);
void pop_range();
}  // namespace cu

}  // namespace tapedeck
