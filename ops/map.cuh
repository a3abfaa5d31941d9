// CUDA's elementwise loops: out[i] = f(a[i], b[i], ...) over dense or broadcast tensors of any dtype.
//
// The same interface as the CPU's (ops/map.h): f takes and returns compute types, so that each formula is
// compiled for float32, float64 and, where it makes sense, int64. A thread makes kVector neighbours.
#pragma once

#include <array>
#include <concepts>
#include <utility>

#include <tapedeck/ops/strided.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>

namespace tapedeck::cu {

/// Whose elements a thread reads or writes together.
struct MapAccess {
  std::int64_t step = 0;  // between neighbours: 0 or 1 where `packed`
  bool packed = false;    // whether kVector neighbours are one aligned load or store, or one element
};

template <class V, class R, int N>
struct MapCall {
  Writer<R> out;
  Reader<V> in[N];
  MapAccess access[N + 1];  // of out, and of each in
  StridedLoop<N + 1> loop;
  bool small;  // all counts fit 32 bits
};

/// values[j] = x[at + j * step] for j < n.
template <class V>
__device__ __forceinline__ void map_read(const Reader<V>& x, const MapAccess& access, std::int64_t at, int n,
                                         V (&values)[kVector]) {
  if (access.packed && access.step == 1 && n == kVector) return x.read(at, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (j < n) values[j] = j > 0 && access.step == 0 ? values[0] : x[at + j * access.step];
  }
}

/// Adds the place of index `row` of the loop's `outer` outermost dimensions to each tensor's offset.
template <class Index, int N>
__device__ __forceinline__ void add_place(const StridedLoop<N>& loop, int outer, Index row,
                                          std::int64_t (&at)[N]) {
  for (int d = outer - 1; d > 0; --d) {
    const Index size = static_cast<Index>(loop.sizes[d]), next = row / size, position = row - next * size;
    row = next;
#pragma unroll
    for (int k = 0; k < N; ++k) at[k] += static_cast<std::int64_t>(position) * loop.strides[k][d];
  }
  if (outer == 0) return;
#pragma unroll
  for (int k = 0; k < N; ++k) at[k] += static_cast<std::int64_t>(row) * loop.strides[k][0];
}

/// Where element i of the loop is in each tensor.
template <int N>
__device__ __forceinline__ void locate(const StridedLoop<N>& loop, std::int64_t i, std::int64_t (&at)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) at[k] = 0;
  if (i >> 32 == 0) {  // 64-bit divisions are slow
    add_place(loop, loop.rank, static_cast<std::uint32_t>(i), at);
  } else {
    add_place(loop, loop.rank, i, at);
  }
}

/// Thread i makes neighbours kVector * i, ... of the innermost dimension; rows of it begin anew.
template <class V, class R, int N, class F, std::size_t... k>
__device__ __forceinline__ void map_thread(const MapCall<V, R, N>& call, const F& f, std::int64_t i,
                                           std::index_sequence<k...>) {
  const StridedLoop<N + 1>& loop = call.loop;
  const std::int64_t inner = loop.sizes[loop.rank - 1], vectors = (inner + kVector - 1) / kVector;
  std::int64_t at[N + 1] = {};
  std::int64_t vector = i;
  if (loop.rank > 1) {
    if (call.small) {  // 64-bit divisions are slow
      const auto row = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(vectors);
      vector = i - row * vectors;
      add_place(loop, loop.rank - 1, row, at);
    } else {
      const std::int64_t row = i / vectors;
      vector = i - row * vectors;
      add_place(loop, loop.rank - 1, row, at);
    }
  }
  const std::int64_t first = vector * kVector;
  const int n = inner - first < kVector ? static_cast<int>(inner - first) : kVector;
  V values[N][kVector];
  (map_read(call.in[k], call.access[k + 1], at[k + 1] + first * call.access[k + 1].step, n, values[k]), ...);
  R results[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (j < n) results[j] = f(values[k][j]...);
  }
  const std::int64_t to = at[0] + first;
  if (call.access[0].packed && n == kVector) return call.out.write(to, results);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (j < n) call.out.write(to + j, results[j]);
  }
}

template <class V, class R, int N, class F>
__global__ void __launch_bounds__(kThreads)
    map_kernel(const __grid_constant__ MapCall<V, R, N> call, const F f, std::int64_t n) {
  await_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) map_thread(call, f, i, std::make_index_sequence<N>());
}

/// Whether tensor k's vectors are aligned wherever a row of the loop begins.
template <int N>
bool packs(const StridedLoop<N>& loop, int k, const Tensor& x) {
  if (loop.strides[k][loop.rank - 1] == 0) return true;
  bool aligned = loop.strides[k][loop.rank - 1] == 1 && is_aligned(x.read(), size_of(x.dtype()));
  for (int d = 0; d < loop.rank - 1; ++d) aligned = aligned && loop.strides[k][d] % kVector == 0;
  return aligned;
}

/// out = f(x...) elementwise. The x are of one dtype, whose compute type is V, and broadcast to out's
/// shape. f is a function object of a named type; it returns V, and out is of a dtype of that compute type,
/// or std::uint8_t, and out is of that type.
template <class V, class F, std::same_as<Tensor>... In>
void map(const char* op, const F& f, const Tensor& out, const In&... x) {
  constexpr int kInputs = sizeof...(In);
  using Result = decltype(f(((void)x, V())...));
  // A byte is stored as it is; the writer of its compute type does that.
  using R = std::conditional_t<std::is_same_v<Result, std::uint8_t>, std::int64_t, Result>;
  const Tensor* const tensors[] = {&out, &x...};
  MapCall<V, R, kInputs> call{Writer<R>(out), {Reader<V>(x)...}, {}, {}, false};
  call.loop = StridedLoop<kInputs + 1>::over(out.shape(), {&out, &x...});
  const auto& loop = call.loop;
  for (int k = 0; k <= kInputs; ++k) {
    call.access[k] = {loop.strides[k][loop.rank - 1], packs(loop, k, *tensors[k])};
  }
  const std::int64_t inner = loop.sizes[loop.rank - 1];
  const std::int64_t threads = out.count() / inner * ceil_div(inner, kVector);
  call.small = out.count() < (std::int64_t{1} << 31);
  launch_kernel(op, out.device(), map_kernel<V, R, kInputs, F>, grid_size(op, ceil_div(threads, kThreads)),
                kThreads, call, f, threads);
}

/// The same with V chosen by the inputs' dtype; floating types only.
template <class F, std::same_as<Tensor>... In>
void map_floating(const char* op, const F& f, const Tensor& out, const Tensor& x, const In&... more) {
  if (x.dtype() == DType::float64) {
    map<double>(op, f, out, x, more...);
  } else {
    map<float>(op, f, out, x, more...);
  }
}

/// The same, integers included.
template <class F, std::same_as<Tensor>... In>
void map_any(const char* op, const F& f, const Tensor& out, const Tensor& x, const In&... more) {
  if (is_floating(x.dtype())) {
    map_floating(op, f, out, x, more...);
  } else {
    map<std::int64_t>(op, f, out, x, more...);
  }
}

}  // namespace tapedeck::cu
