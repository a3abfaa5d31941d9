// Sums that several blocks have made, added in an order that does not depend on the device.
#pragma once

#include <tapedeck/core/convert.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>

namespace tapedeck::cu {

/// Where elements of a row-major weight are in one of either layout.
struct WeightPlaces {
  explicit WeightPlaces(const Tensor& w)
      : channels(w.size(1)), taps(w.size(2) * w.size(3)), last(w.layout() == Layout::nhwc) {}
  __device__ std::int64_t of(std::int64_t i) const {
    if (!last) return i;
    const std::int64_t pair = i / taps, row = pair / channels;
    return (row * taps + i - pair * taps) * channels + pair - row * channels;
  }
  std::int64_t channels, taps;
  bool last;
};

/// Element i of `to` is the sum over s of parts[s * count + i]. kSlices threads share the parts of an
/// element, so that many loads are under way; their sums are added in order.
template <class T, class V, int kSlices>
__global__ void __launch_bounds__(32 * kSlices)
    add_parts_kernel(const V* parts, std::int64_t splits, T* to, std::int64_t count, WeightPlaces places) {
  __shared__ V sums[kSlices][32];
  const int lane = static_cast<int>(threadIdx.x) % 32, slice = static_cast<int>(threadIdx.x) / 32;
  const std::int64_t i = std::int64_t{blockIdx.x} * 32 + lane;
  await_previous();
  V sum = 0;
  if (i < count) {
#pragma unroll 8
    for (std::int64_t s = slice; s < splits; s += kSlices) sum += parts[s * count + i];
  }
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice > 0 || i >= count) return;
#pragma unroll
  for (int k = 1; k < kSlices; ++k) sum += sums[k][lane];
  to[places.of(i)] = convert<T>(sum);
}

/// w = the sum of `splits` row-major tensors of its size, one after another from `parts` on.
template <class T, class V>
void add_parts(const V* parts, std::int64_t splits, const Tensor& w) {
  if (w.count() == 0) return;
  const auto launch = [&]<int kSlices>() {
    launch_kernel("conv: sum of parts", w.device(), add_parts_kernel<T, V, kSlices>,
                  grid_size("conv: sum of parts", ceil_div(w.count(), 32)), 32 * kSlices, parts, splits,
                  static_cast<T*>(w.raw()), w.count(), WeightPlaces(w));
  };
  splits > 64 ? launch.template operator()<16>() : launch.template operator()<8>();
}

}  // namespace tapedeck::cu
