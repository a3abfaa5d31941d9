#include <tapedeck/core/finite.h>

#include <atomic>
#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>

namespace tapedeck {

bool all_finite(const Tensor& x) {
  return !is_floating(x.dtype()) || x.count() == 0 || TAPEDECK_KERNEL(x.device(), all_finite)(x);
}

bool cpu::all_finite(const Tensor& x) {
  std::atomic<bool> finite = true;
  visit_floating("all_finite", x.dtype(), [&]<class T>() {
    const T* values = x.data<T>();
    parallel_for(x.count(), 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      bool all = true;
      for (std::int64_t i = begin; i < end; ++i) all &= std::isfinite(convert<accumulate_t<T>>(values[i]));
      if (!all) finite = false;
    });
  });
  return finite;
}

}  // namespace tapedeck
