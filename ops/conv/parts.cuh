// Sums that several blocks have made, added in order.
#pragma once

#include <tapedeck/core/convert.h>
#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

/// w = the sum of `splits` tensors of its size, one after another from `parts` on.
template <class T, class V>
void add_parts(const V* parts, std::int64_t splits, const Tensor& w) {
  T* const to = static_cast<T*>(w.raw());
  const std::int64_t count = w.count();
  for_each("conv: sum of parts", w.device(), count, [=] __device__(std::int64_t i) {
    V sum = parts[i];
    // There are few threads: many loads of each are under way.
#pragma unroll 16
    for (std::int64_t s = 1; s < splits; ++s) sum += parts[s * count + i];
    to[i] = convert<T>(sum);
  });
}

}  // namespace tapedeck::cu
