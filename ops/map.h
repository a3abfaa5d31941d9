// The CPU's elementwise loops: out[i] = f(a[i], b[i], ...) over dense or broadcast tensors of any dtype.
//
// f takes and returns compute types (ops/staging.h), so that each formula is compiled for float32, float64
// and, where it makes sense, int64; only float32 loops are compiled for each instruction set. What leads
// to the innermost loop knows of f no more than a pointer, and is compiled once.
#pragma once

#include <array>
#include <concepts>
#include <utility>

#include <tapedeck/ops/staging.h>
#include <tapedeck/ops/strided.h>

namespace tapedeck::cpu {

/// A loop out[i] = f(in[0][i], in[1][i], ...) over n neighbours, with its f.
template <class V, class R, std::size_t N>
struct MapLoop {
  const void* f;
  void (*run)(const void* f, std::int64_t n, R* out, const std::array<const V*, N>& in);
};

template <class F, class V, class R, std::size_t... k>
void map_run(const void* f, std::int64_t n, R* out, const std::array<const V*, sizeof...(k)>& in) {
  const F function = *static_cast<const F*>(f);
  const auto loop = [=](R* __restrict to, const auto* __restrict... from) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = function(from[i]...);
  };
  if constexpr (std::is_same_v<V, float>) {
    simd([&] { loop(out, in[k]...); });
  } else {
    loop(out, in[k]...);
  }
}

/// Runs `loop` over tensors that broadcast to `out`, in parallel.
template <class V, class R, std::size_t N>
void run_map(const MapLoop<V, R, N>& loop, const Tensor& out, const std::array<const Tensor*, N>& x) {
  const auto nest = [&]<std::size_t... k>(std::index_sequence<k...>) {
    return StridedLoop<N + 1>::over(out.shape(), {&out, x[k]...});
  }
  (std::make_index_sequence<N>());
  const auto readers = [&]<std::size_t... k>(std::index_sequence<k...>) {
    return std::array<StagedReader<V>, N>{StagedReader<V>(*x[k])...};
  }
  (std::make_index_sequence<N>());
  const StagedWriter<R> writer(out);
  std::array<std::int64_t, N> step;
  bool in_place = writer.in_place();
  for (std::size_t k = 0; k < N; ++k) {
    step[k] = nest.strides[k + 1][nest.rank - 1];
    in_place = in_place && readers[k].in_place() && step[k] == 1;
  }
  nest.for_each_run([&](const auto& at, std::int64_t n) {
    V in_buffer[N][kStageBlock];
    R out_buffer[kStageBlock];
    std::array<const V*, N> values;
    const std::int64_t block = in_place ? n : kStageBlock;
    for (std::int64_t done = 0; done < n; done += block) {
      const std::int64_t m = std::min(block, n - done);
      for (std::size_t k = 0; k < N; ++k) {
        if (done > 0 && step[k] == 0) continue;  // staged already
        values[k] = readers[k].read(at[k + 1] + done * step[k], m, in_buffer[k], step[k]);
      }
      loop.run(loop.f, m, writer.begin(at[0] + done, out_buffer), values);
      writer.end(at[0] + done, m, out_buffer);
    }
  });
}

/// out = f(x...) elementwise. The x are of one dtype, whose compute type is V, and broadcast to out's
/// shape. f is a function object of a named type; it returns V, and out is of the x's dtype, or
/// std::uint8_t, and out is of that type.
template <class V, class F, std::same_as<Tensor>... In>
void map(const F& f, const Tensor& out, const In&... x) {
  constexpr std::size_t kInputs = sizeof...(In);
  const auto loop = [&]<std::size_t... k>(std::index_sequence<k...>) {
    using R = decltype(f(((void)k, V())...));
    return MapLoop<V, R, kInputs>{&f, &map_run<F, V, R, k...>};
  }
  (std::make_index_sequence<kInputs>());
  run_map(loop, out, std::array<const Tensor*, kInputs>{&x...});
}

/// The same with V chosen by the inputs' dtype; float64 and float32 only.
template <class F, std::same_as<Tensor>... In>
void map_floating(const F& f, const Tensor& out, const Tensor& x, const In&... more) {
  if (x.dtype() == DType::float64) {
    map<double>(f, out, x, more...);
  } else {
    map<float>(f, out, x, more...);
  }
}

/// The same, int64 included.
template <class F, std::same_as<Tensor>... In>
void map_any(const F& f, const Tensor& out, const Tensor& x, const In&... more) {
  if (is_floating(x.dtype())) {
    map_floating(f, out, x, more...);
  } else {
    map<std::int64_t>(f, out, x, more...);
  }
}

}  // namespace tapedeck::cpu
