// Elements in the type that formulas are computed in.
//
// A loop is written and compiled for float64, float32 and int64 only. Other types, and elements that are
// not neighbours, go through a block that stays in the first-level cache: bfloat16 and float16 are
// computed in float32, uint8 in int64.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <tapedeck/core/convert.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck::cpu {

template <class T>
using compute_t = std::conditional_t<std::is_same_v<T, std::uint8_t>, std::int64_t, accumulate_t<T>>;

/// The number of elements that are staged at a time.
inline constexpr std::int64_t kStageBlock = 512;

/// out[i] = in[i], converted.
template <class From, class To>
void convert_run(const From* in, To* out, std::int64_t n) {
  const From* __restrict from = in;
  To* __restrict to = out;
  simd([=] {
    for (std::int64_t i = 0; i < n; ++i) to[i] = convert<To>(from[i]);
  });
}

/// The `n` elements in[i * step] in compute type: where they are if they can be used there, else in
/// `buffer`.
template <class T>
const compute_t<T>* stage(const T* in, std::int64_t step, std::int64_t n, compute_t<T>* buffer) {
  if (step == 1) {
    if constexpr (std::is_same_v<T, compute_t<T>>) {
      return in;
    } else {
      convert_run(in, buffer, n);
    }
  } else if (step == 0) {
    std::fill_n(buffer, n, convert<compute_t<T>>(*in));
  } else {
    for (std::int64_t i = 0; i < n; ++i) buffer[i] = convert<compute_t<T>>(in[i * step]);
  }
  return buffer;
}

/// A tensor's elements as the compute type V of its dtype, whatever that is.
template <class V>
class StagedReader {
 public:
  explicit StagedReader(const Tensor& x) : data_(x.raw()), in_place_(dtype_of<V> == x.dtype()) {
    visit(x.dtype(), [&]<class T>() {
      if constexpr (std::is_same_v<compute_t<T>, V>) {
        read_ = [](const void* data, std::int64_t at, std::int64_t step, std::int64_t n, V* buffer) {
          return stage(static_cast<const T*>(data) + at, step, n, buffer);
        };
      }
    });
  }

  /// Whether neighbours are read without a copy, so that read() can take more than kStageBlock of them.
  bool in_place() const { return in_place_; }

  /// Elements at, at + step, ...; `buffer` has room for kStageBlock of them.
  const V* read(std::int64_t at, std::int64_t n, V* buffer, std::int64_t step = 1) const {
    return read_(data_, at, step, n, buffer);
  }

 private:
  const void* data_;
  bool in_place_;
  const V* (*read_)(const void*, std::int64_t, std::int64_t, std::int64_t, V*) = nullptr;
};

/// The way back: V into a tensor of a dtype whose compute type is V.
template <class V>
class StagedWriter {
 public:
  explicit StagedWriter(const Tensor& x) : data_(x.raw()), in_place_(dtype_of<V> == x.dtype()) {
    visit(x.dtype(), [&]<class T>() {
      if constexpr (std::is_same_v<compute_t<T>, V>) {
        write_ = [](void* data, std::int64_t at, std::int64_t n, const V* values) {
          convert_run(values, static_cast<T*>(data) + at, n);
        };
      }
    });
  }

  /// Where elements from `at` on are to be computed: in the tensor itself, or in `buffer`.
  V* begin(std::int64_t at, V* buffer) const { return in_place_ ? static_cast<V*>(data_) + at : buffer; }
  /// Ends what begin() began.
  void end(std::int64_t at, std::int64_t n, const V* buffer) const {
    if (!in_place_) write_(data_, at, n, buffer);
  }
  bool in_place() const { return in_place_; }

 private:
  void* data_;
  bool in_place_;
  void (*write_)(void*, std::int64_t, std::int64_t, const V*) = nullptr;
};

/// Calls `f.template operator()<V>()` with the compute type of `dtype`.
template <class F>
decltype(auto) visit_compute(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float64:
      return f.template operator()<double>();
    case DType::float32:
    case DType::bfloat16:
    case DType::float16:
      return f.template operator()<float>();
    default:
      return f.template operator()<std::int64_t>();
  }
}

}  // namespace tapedeck::cpu
