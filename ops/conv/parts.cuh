// Sums that several blocks have made, added in an order that does not depend on the device.
#pragma once

#include <tapedeck/core/convert.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>

namespace tapedeck::cu {

/// Where elements of a row-major weight are in one of either layout.
struct WeightPlaces {
  explicit WeightPlaces(const Tensor& w, bool row_major = true)
      : channels(w.size(1)), taps(w.size(2) * w.size(3)), last(row_major && w.layout() == Layout::nhwc) {}
  __device__ std::int64_t of(std::int64_t i) const {
    if (!last) return i;
    const std::int64_t pair = i / taps, row = pair / channels;
    return (row * taps + i - pair * taps) * channels + pair - row * channels;
  }
  std::int64_t channels, taps;
  bool last;
};

/// Where elements of a part are: in lines, with or without room behind them.
struct PartLines {
  __device__ std::int64_t of(std::int64_t i) const {
    return width == pitch ? i : i / width * pitch + i % width;
  }
  std::int64_t width = 1, pitch = 1;
};

/// Element i of `to` is the sum over s of parts[s * stride + lines.of(i)]. kSlices threads share the parts of
/// an element, so that many loads are under way; their sums are added in order. A block has kLanes elements.
template <class T, class V, int kSlices, int kLanes, class Places>
__global__ void __launch_bounds__(kSlices* kLanes)
    add_parts_kernel(const V* parts, std::int64_t splits, std::int64_t stride, PartLines lines, T* to,
                     std::int64_t count, Places places) {
  __shared__ V sums[kSlices][kLanes];
  const int lane = static_cast<int>(threadIdx.x) % kLanes, slice = static_cast<int>(threadIdx.x) / kLanes;
  const std::int64_t i = std::int64_t{blockIdx.x} * kLanes + lane;
  await_previous();
  V sum = 0;
  if (i < count) {
    const V* const of_element = parts + lines.of(i);
#pragma unroll 8
    for (std::int64_t s = slice; s < splits; s += kSlices) sum += of_element[s * stride];
  }
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice > 0 || i >= count) return;
#pragma unroll
  for (int k = 1; k < kSlices; ++k) sum += sums[k][lane];
  to[places.of(i)] = convert<T>(sum);
}

/// to = the sum of `splits` tensors of its size, or of such lines, one after another from `parts` on: element
/// i is at places.of(i).
template <class T, class V, class Places>
void add_parts(const V* parts, std::int64_t splits, const Tensor& to, const Places& places,
               const PartLines& lines = {}) {
  if (to.count() == 0) return;
  const auto launch = [&]<int kSlices, int kLanes>() {
    launch_kernel("conv: sum of parts", to.device(), add_parts_kernel<T, V, kSlices, kLanes, Places>,
                  grid_size("conv: sum of parts", ceil_div(to.count(), kLanes)), kSlices * kLanes, parts,
                  splits, to.count() / lines.width * lines.pitch, lines, static_cast<T*>(to.raw()),
                  to.count(), places);
  };
  // Threads that share elements pay where these are few (weights' gradients took up to 1.15 times as long
  // otherwise), or parts many; 230,400 elements of 8 parts take 3.3 us with a thread each, shared by eight
  // 10.6 (others were not timed).
  if (splits > 64) return launch.template operator()<16, 32>();
  if (to.count() < 1 << 17) return launch.template operator()<8, 32>();
  launch.template operator()<1, 256>();
}
/// Of row-major weights.
template <class T, class V>
void add_parts(const V* parts, std::int64_t splits, const Tensor& w) {
  add_parts<T>(parts, splits, w, WeightPlaces(w));
}
/// Of tensors that lie as `to` does.
template <class T, class V>
void add_parts_as_they_lie(const V* parts, std::int64_t splits, const Tensor& to) {
  add_parts<T>(parts, splits, to, WeightPlaces(to, false));
}

}  // namespace tapedeck::cu
