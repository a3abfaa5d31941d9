// Softmax: a line along the dimension belongs to some threads of a block, which read it three times: for the
// largest element, for the sum of exponentials, and to write. A line that fits the caches comes from memory
// once.
#include <tapedeck/ops/softmax.h>

#include <bit>
#include <cmath>

#include <tapedeck/ops/axis.h>
#include <tapedeck/ops/reduce_policies.h>
#include <tapedeck/ops/reduce.cuh>

namespace tapedeck::cu {

namespace {

/// The total of a line's lanes, for each of them. `lanes` threads `apart` threads from each other share a
/// line.
template <class Policy>
__device__ typename Policy::Total share_total(const Policy& policy, typename Policy::Total total,
                                              typename Policy::Total* shared, int lane, int lanes,
                                              int apart) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[thread] = total;
  for (int half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) shared[thread] = policy.merge(shared[thread], shared[thread + half * apart]);
  }
  __syncthreads();
  return shared[thread - lane * apart];
}

template <class V>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(Reader<V> x, Writer<V> out, Axis axis, int lanes, bool logarithm) {
  __shared__ V largest[kThreads];
  __shared__ double sums[kThreads];
  const int lines = kThreads / lanes, thread = static_cast<int>(threadIdx.x);
  const bool across = axis.inner > 1;
  const int lane = across ? thread / lines : thread % lanes, apart = across ? lines : 1;
  const std::int64_t line = std::int64_t{blockIdx.x} * lines + (across ? thread % lines : thread / lanes);
  const std::int64_t size = line < axis.outer * axis.inner ? axis.size : 0;
  const std::int64_t first = line / axis.inner * axis.size * axis.inner + line % axis.inner;

  const policy::Extreme<V, Extreme::max> maximum;
  V m = maximum.start();
  for (std::int64_t k = lane; k < size; k += lanes) m = maximum.merge(m, x[first + k * axis.inner]);
  m = share_total(maximum, m, largest, lane, lanes, apart);
  m = isinf(m) ? V(0) : m;  // infinity - infinity would be NaN

  const policy::Exponentials exponentials;
  double s = 0;
  for (std::int64_t k = lane; k < size; k += lanes) {
    s = exponentials.add(s, x[first + k * axis.inner], static_cast<double>(m));
  }
  s = share_total(exponentials, s, sums, lane, lanes, apart);

  const V total = static_cast<V>(logarithm ? log(s) : s);
  for (std::int64_t k = lane; k < size; k += lanes) {
    const std::int64_t at = first + k * axis.inner;
    const V centered = x[at] - m;
    out.write(at, logarithm ? centered - total : math::exp(centered) / total);
  }
}

template <class V>
void softmax_of(const Tensor& x, int dim, bool logarithm, const Tensor& out) {
  const Axis axis = Axis::of(x, dim);
  const std::int64_t lines = axis.outer * axis.inner;
  const std::int64_t wanted = axis.inner > 1 ? kThreads * 256 / lines : axis.size / 4;
  const int lanes = static_cast<int>(
      std::bit_floor(static_cast<std::uint64_t>(std::clamp<std::int64_t>(wanted, 1, kThreads))));
  const DeviceScope scope(x.device());
  softmax_kernel<<<grid_size("softmax", ceil_div(lines, kThreads / lanes)), kThreads, 0,
                   stream_of(x.device())>>>(Reader<V>(x), Writer<V>(out), axis, lanes, logarithm);
  check_launch("softmax");
}

/// The largest elements, as centers.
template <class V>
struct StoreFinite {
  double* out;
  __device__ void operator()(std::int64_t i, V largest) const {
    out[i] = isinf(largest) ? 0 : static_cast<double>(largest);
  }
};

/// m + log s.
struct StoreLogarithm {
  const double* largest;
  StoreScaled store;
  __device__ void operator()(std::int64_t i, double total) const { store(i, largest[i] + log(total)); }
};

template <class V>
void logsumexp_of(const Tensor& x, const Tensor& out) {
  const Workspace<double> largest(x.device(), out.count());
  reduce<V>("logsumexp", x, out, policy::Extreme<V, Extreme::max>{}, StoreFinite<V>{largest.data()});
  reduce<V>("logsumexp", x, out, policy::Exponentials{}, StoreLogarithm{largest.data(), StoreScaled(out, 1)},
            largest.data());
}

}  // namespace

void softmax(const Tensor& x, int dim, bool logarithm, const Tensor& out) {
  if (x.dtype() == DType::float64) return softmax_of<double>(x, dim, logarithm, out);
  softmax_of<float>(x, dim, logarithm, out);
}

void logsumexp(const Tensor& x, const Tensor& out) {
  if (x.dtype() == DType::float64) return logsumexp_of<double>(x, out);
  logsumexp_of<float>(x, out);
}

}  // namespace tapedeck::cu
