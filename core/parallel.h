// The CPU's threads.
#pragma once

#include <cstdint>
#include <type_traits>

namespace tapedeck {

/// Sets how many threads CPU kernels use, the caller included; the default is one per core, or
/// TAPEDECK_NUM_THREADS. Results do not depend on it. Throws Error unless it is 1 to 1024.
void set_num_threads(int count);
int num_threads();

namespace detail {
void parallel_for(std::int64_t count, std::int64_t grain, void (*body)(void*, std::int64_t, std::int64_t),
                  void* state);
}

/// Calls `body(begin, end)` on disjoint ranges that cover [0, count), on several threads when there
/// is more than `grain` to do. The split is static, though not which thread has what of it. Where it falls
/// depends on the number of threads, so `body` must give the same result for any split: reduce inside one
/// index, never across. Called from inside a body it runs on the calling thread; of several callers one runs
/// at a time. An exception in a body is rethrown here, when all bodies have returned.
template <class F>
void parallel_for(std::int64_t count, std::int64_t grain, F&& body) {
  using Body = std::remove_reference_t<F>;
  detail::parallel_for(
      count, grain,
      [](void* state, std::int64_t begin, std::int64_t end) { (*static_cast<Body*>(state))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace tapedeck
