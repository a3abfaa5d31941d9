// What the normalisations' kernels share: elements with their channel.
#pragma once

#include <tapedeck/ops/axis.h>
#include <tapedeck/ops/conv/gemm_plan.h>  // Divider
#include <tapedeck/ops/largest.cuh>
#include <tapedeck/ops/reduce.cuh>

namespace tapedeck::cu {

/// A weight or bias, which may be undefined.
template <class V>
struct Parameter {
  Reader<V> values;
  bool defined;
  V none;  // what stands for an undefined one

  Parameter(const Tensor& x, V otherwise)
      : values(x.defined() ? Reader<V>(x) : Reader<V>()), defined(x.defined()), none(otherwise) {}
  __device__ V operator[](std::int64_t c) const { return defined ? values[c] : none; }
};

/// Where an element is: its outer index and its channel (Axis::of(x, 1)).
struct ChannelPlace {
  std::int64_t row, channel;
};

/// What channel_map_kernel() is told of a tensor.
struct ChannelMapCall {
  std::int64_t count, channels, inner;
  conv_gemm::Divider by_channels, by_inner;
  bool packed;  // all vectors are aligned, and of one channel or of neighbouring ones
  bool small;   // the count fits 31 bits
  int vectors;  // of a thread

  __device__ ChannelPlace place(std::int64_t i) const {
    if (small) {  // divisions are slow
      const int line = by_inner.divide(static_cast<int>(i)), row = by_channels.divide(line);
      return {row, by_channels.modulo(line, row)};
    }
    const std::int64_t line = i / inner, row = line / channels;
    return {row, line - row * channels};
  }
};

/// What a thread has of channel_map_kernel(): elements from `first` on. Returns their largest magnitude.
template <class V, int kInputs, class F>
__device__ __forceinline__ unsigned channel_map_vector(const ChannelMapCall& call,
                                                       const std::array<Reader<V>, kInputs>& in,
                                                       const Writer<V>& out, const F& f, std::int64_t first) {
  const int n = call.packed ? kVector : static_cast<int>(::min(call.count - first, std::int64_t{kVector}));
  V values[kInputs][kVector];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) read_run(in.data()[k], first, n, 1, call.packed, values[k]);
  V results[kVector];
  ChannelPlace at = call.place(first);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (!call.packed && j > 0) at = call.place(::min(first + j, call.count - 1));
    V inputs[kInputs];
#pragma unroll
    for (int k = 0; k < kInputs; ++k) inputs[k] = values[k][j];
    results[j] = f(at.row, at.channel + (call.packed && call.inner == 1 ? j : 0), inputs);
  }
  unsigned most = 0;
  if constexpr (std::same_as<V, float>) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) most = j < n ? ::max(most, magnitude(results[j])) : most;
  }
  if (call.packed) {
    out.write(first, results);
    return most;
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (j < n) out.write(first + j, results[j]);
  }
  return most;
}

template <class V, int kInputs, class F>
__global__ void __launch_bounds__(kThreads)
    channel_map_kernel(const __grid_constant__ ChannelMapCall call,
                       const __grid_constant__ std::array<Reader<V>, kInputs> in, Writer<V> out, const F f,
                       unsigned* largest) {
  await_previous();
  unsigned most = 0;
#pragma unroll 1
  for (int k = 0; k < call.vectors; ++k) {
    const std::int64_t first =
        ((std::int64_t{blockIdx.x} * call.vectors + k) * kThreads + threadIdx.x) * kVector;
    if (first < call.count) most = ::max(most, channel_map_vector<V, kInputs>(call, in, out, f, first));
  }
  if (largest != nullptr) raise_largest<kThreads>(largest, most);
}

/// out[i] = f(o, c, {in[0][i], in[1][i], ...}) for elements of equal layout: c is the element's channel, o
/// its outer index (Axis::of(x, 1)). V is the compute type. `out` is new or one of `in`, and remembers its
/// largest magnitude.
template <class V, int kInputs, class F>
void channel_map(const char* op, const std::array<Tensor, kInputs>& in, const Tensor& out, const F& f) {
  const Axis axis = Axis::of(out, 1);
  bool packed = (axis.inner == 1 ? axis.size : axis.inner) % kVector == 0 &&
                is_aligned(out.read(), size_of(out.dtype()));
  std::array<Reader<V>, kInputs> readers;
  for (int k = 0; k < kInputs; ++k) {
    readers[k] = Reader<V>(in[k]);
    packed = packed && is_aligned(in[k].read(), size_of(in[k].dtype()));
  }
  const std::int64_t blocks = ceil_div(out.count(), kThreads * kVector);
  const std::shared_ptr<unsigned> largest = new_largest(out);
  // Blocks wait for each other at the word: few have to, as long as all multiprocessors are full.
  const std::int64_t vectors =
      largest == nullptr ? 1 : std::clamp<std::int64_t>(blocks / (8 * multiprocessors(out.device())), 1, 8);
  ChannelMapCall call{out.count(),
                      axis.size,
                      axis.inner,
                      {},
                      {},
                      packed,
                      out.count() < (std::int64_t{1} << 31),
                      static_cast<int>(vectors)};
  if (call.small) {
    call.by_channels = conv_gemm::Divider(axis.size);
    call.by_inner = conv_gemm::Divider(axis.inner);
  }
  launch_kernel(op, out.device(), channel_map_kernel<V, kInputs, F>, grid_size(op, ceil_div(blocks, vectors)),
                kThreads, call, readers, Writer<V>(out), f, largest.get());
  keep_largest(out, largest);
}

/// Two sums in float64.
struct Sums {
  double a, b;
};

/// What the reductions of norms have in common: pairs of sums.
struct SumsReduction {
  using Total = Sums;
  __device__ Sums start() const { return {0, 0}; }
  __device__ Sums merge(const Sums& x, const Sums& y) const { return {x.a + y.a, x.b + y.b}; }
};

/// The sums of x - k and (x - k)^2 over the elements of each result, with k the first of them; store(out,
/// mean, variance). The variance is E[(x - k)^2] - E[x - k]^2. As k is one of the n values, it is at most
/// sqrt(n * var) away from the mean, so that the difference loses no more than a factor n of float64's
/// precision.
template <class V, class First, class Store>
struct Moments : SumsReduction {
  using Value = V;
  using Center = double;

  Reader<V> x;
  First first;  // where the first element of a result is
  double count;
  Store store;

  bool is_plain() const requires std::same_as<V, float> { return cu::is_plain(x); }
  __device__ Moments plain() const { return {{}, cu::plain(x), first, count, store}; }

  __device__ void read(std::int64_t at, int n, std::int64_t step, bool packed, V (&values)[kVector]) const {
    read_run(x, at, n, step, packed, values);
  }
  __device__ double center(std::int64_t out) const { return static_cast<double>(x[first(out)]); }
  __device__ Sums add(const Sums& total, V value, double k) const {
    const double d = static_cast<double>(value) - k;
    return {total.a + d, total.b + d * d};
  }
  __device__ void finish(std::int64_t out, const Sums& total) const {
    const double shift = total.a / count, variance = total.b / count - shift * shift;
    store(out, center(out) + shift, variance < 0 ? 0 : variance);  // rounding; NaN stays
  }
};

/// The two loops of a reduction to channels.
struct ChannelLoops {
  StridedLoop<2> kept;
  StridedLoop<1> reduced;

  explicit ChannelLoops(const Axis& axis) {
    const std::int64_t row = axis.size * axis.inner;
    kept = StridedLoop<2>::over(Shape{axis.size}, {Strides{axis.inner}, Strides{1}});
    reduced = StridedLoop<1>::over(Shape{axis.outer, axis.inner}, {Strides{row, 1}});
  }
};

}  // namespace tapedeck::cu
