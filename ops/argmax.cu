#include <bit>

#include <tapedeck/ops/axis.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

namespace {

template <class V>
struct Best {
  V value;
  std::int64_t position;  // -1: none
};

/// The larger; of equal ones the first; the first NaN before all.
template <class V>
__device__ __forceinline__ Best<V> better(const Best<V>& a, const Best<V>& b) {
  if (a.position < 0 || b.position < 0) return a.position < 0 ? b : a;
  const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
  const bool tied = nan_a || nan_b ? nan_a == nan_b : a.value == b.value;
  if (tied) return a.position < b.position ? a : b;
  return nan_a || (!nan_b && a.value > b.value) ? a : b;
}

/// `lanes` threads of a block share a line along the axis. Neighbouring threads read neighbours.
template <class V>
__global__ void __launch_bounds__(kThreads)
    argmax_kernel(Reader<V> x, Axis axis, int lanes, std::int64_t* out) {
  __shared__ Best<V> shared[kThreads];
  const int lines = kThreads / lanes, thread = static_cast<int>(threadIdx.x);
  const bool across = axis.inner > 1;
  const int lane = across ? thread / lines : thread % lanes, apart = across ? lines : 1;
  const std::int64_t line = std::int64_t{blockIdx.x} * lines + (across ? thread % lines : thread / lanes);
  const bool exists = line < axis.outer * axis.inner;
  const std::int64_t first = line / axis.inner * axis.size * axis.inner + line % axis.inner;
  Best<V> best{V(0), -1};
  for (std::int64_t k = lane; exists && k < axis.size; k += lanes) {
    best = better(best, Best<V>{x[first + k * axis.inner], k});
  }
  shared[thread] = best;
  for (int half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) shared[thread] = better(shared[thread], shared[thread + half * apart]);
  }
  if (lane == 0 && exists) out[line] = shared[thread].position;
}

template <class V>
void argmax_of(const Tensor& x, int dim, const Tensor& out) {
  const Axis axis = Axis::of(x, dim);
  const std::int64_t lines = axis.outer * axis.inner;
  // Lines beside each other need no lanes to read whole memory lines, but few of them keep few threads busy.
  const std::int64_t wanted = axis.inner > 1 ? kThreads * 256 / lines : axis.size / 4;
  const int lanes = static_cast<int>(
      std::bit_floor(static_cast<std::uint64_t>(std::clamp<std::int64_t>(wanted, 1, kThreads))));
  const DeviceScope scope(x.device());
  argmax_kernel<<<grid_size("argmax", ceil_div(lines, kThreads / lanes)), kThreads, 0,
                  stream_of(x.device())>>>(Reader<V>(x), axis, lanes, out.data<std::int64_t>());
  check_launch("argmax");
}

}  // namespace

void argmax(const Tensor& x, int dim, const Tensor& out) {
  if (x.dtype() == DType::float64) return argmax_of<double>(x, dim, out);
  if (is_floating(x.dtype())) return argmax_of<float>(x, dim, out);
  argmax_of<std::int64_t>(x, dim, out);
}

}  // namespace tapedeck::cu
