// Launching loops: for_each() over indices, and elements whose dtype is known when the kernel runs.
//
// As on the CPU, a formula is compiled for float64, float32 and, where it makes sense, int64 only: loads
// and stores convert. All threads of a kernel take the same branch there, which costs next to nothing
// beside the memory access.
#pragma once

#include <cstdint>

#include <tapedeck/core/convert.h>
#include <tapedeck/core/tensor.h>
#include <tapedeck/core/cuda.cuh>

namespace tapedeck::cu {

inline constexpr int kThreads = 256;  // of a block, where nothing else decides

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// A number of blocks for a launch. Throws Error for more than a grid has.
unsigned grid_size(const char* op, std::int64_t blocks);

template <class F>
__global__ void __launch_bounds__(kThreads) for_each_kernel(std::int64_t n, F f) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) f(i);
}

/// Queues f(i) for each i in [0, n), one thread each, on the current stream of `device`. f is called in a
/// kernel: an extended lambda or a function object, copied by value.
template <class F>
void for_each(const char* op, Device device, std::int64_t n, const F& f) {
  if (n == 0) return;
  const DeviceScope scope(device);
  for_each_kernel<<<grid_size(op, ceil_div(n, kThreads)), kThreads, 0, stream_of(device)>>>(n, f);
  check_launch(op);
}

/// N neighbours that one instruction moves.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T values[N];
};

/// How many elements a thread takes at once in elementwise kernels.
inline constexpr int kVector = 4;

/// Whether the element at `pointer` starts a Pack of kVector elements of `bytes` each.
inline bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % (kVector * bytes) == 0;
}

/// Calls `f.template operator()<T>()` with the types T whose compute type is V: float64 for double,
/// float32, bfloat16 and float16 for float, int64 and uint8 for std::int64_t.
template <class V, class F>
__device__ __forceinline__ void visit_stored(DType dtype, F&& f) {
  if constexpr (std::is_same_v<V, double>) {
    f.template operator()<double>();
  } else if constexpr (std::is_same_v<V, float>) {
    if (dtype == DType::float32) {
      f.template operator()<float>();
    } else if (dtype == DType::bfloat16) {
      f.template operator()<bfloat16>();
    } else {
      f.template operator()<float16>();
    }
  } else {
    if (dtype == DType::int64) {
      f.template operator()<std::int64_t>();
    } else {
      f.template operator()<std::uint8_t>();
    }
  }
}

/// Reads the elements of a tensor as the compute type V of its dtype (ops/staging.h).
template <class V>
struct Reader {
  const void* data = nullptr;
  DType dtype = DType::float32;

  Reader() = default;
  explicit Reader(const Tensor& x) : data(x.read()), dtype(x.dtype()) {}

  __device__ __forceinline__ V operator[](std::int64_t i) const {
    V value;
    visit_stored<V>(dtype, [&]<class T>() { value = convert<V>(static_cast<const T*>(data)[i]); });
    return value;
  }
  /// Elements i to i + kVector - 1, aligned.
  __device__ __forceinline__ void read(std::int64_t i, V (&values)[kVector]) const {
    visit_stored<V>(dtype, [&]<class T>() {
      const auto pack = *reinterpret_cast<const Pack<T, kVector>*>(static_cast<const T*>(data) + i);
#pragma unroll
      for (int k = 0; k < kVector; ++k) values[k] = convert<V>(pack.values[k]);
    });
  }
};

/// The way back.
template <class V>
struct Writer {
  void* data = nullptr;
  DType dtype = DType::float32;

  Writer() = default;
  explicit Writer(const Tensor& x) : data(x.raw()), dtype(x.dtype()) {}

  __device__ __forceinline__ void write(std::int64_t i, V value) const {
    visit_stored<V>(dtype, [&]<class T>() { static_cast<T*>(data)[i] = convert<T>(value); });
  }
  /// Elements i to i + kVector - 1, aligned.
  __device__ __forceinline__ void write(std::int64_t i, const V (&values)[kVector]) const {
    visit_stored<V>(dtype, [&]<class T>() {
      Pack<T, kVector> pack;
#pragma unroll
      for (int k = 0; k < kVector; ++k) pack.values[k] = convert<T>(values[k]);
      *reinterpret_cast<Pack<T, kVector>*>(static_cast<T*>(data) + i) = pack;
    });
  }
};

}  // namespace tapedeck::cu
