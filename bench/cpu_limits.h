// What a CPU can do at best, measured: multiply-adds in registers, copies in memory, and both at once.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>

#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck::bench {

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class F>
double best(int runs, F f) {
  double seconds = 1e30;
  for (int i = 0; i < runs; ++i) {
    const double start = now();
    f();
    seconds = std::min(seconds, now() - start);
  }
  return seconds;
}

/// One thread's work: `rounds` multiply-adds of kSums vectors, spread evenly over as many lines of 64 bytes
/// as are read and written.
struct Stream {
  const char* from = nullptr;
  char* to = nullptr;
  std::int64_t read = 0, written = 0;  // lines
  std::int64_t rounds = 0;
  bool past_caches = false;  // the writes
};

constexpr int kSums = 12;
constexpr std::int64_t kLine = 64;

/// Part i of n equal ones of a whole: where it begins.
constexpr std::int64_t part(std::int64_t whole, std::int64_t i, std::int64_t n) {
  return whole / n * i + std::min(i, whole % n);
}

template <int Bytes>
struct VectorOf {
  typedef float type __attribute__((vector_size(Bytes)));
};

template <int Bytes>
[[gnu::always_inline]] inline float stream(const Stream& s) {
  using Vector = typename VectorOf<Bytes>::type;
  Vector sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = Vector{} + static_cast<float>(i);
  const std::int64_t blocks = std::max<std::int64_t>(1, std::max(s.read, s.written) / 8);
  std::int64_t read = 0, written = 0, round = 0;
  for (std::int64_t block = 1; block <= blocks; ++block) {
    for (const std::int64_t end = part(s.rounds, block, blocks); round < end; ++round) {
#pragma GCC unroll 16
      for (int i = 0; i < kSums; ++i) sums[i] = sums[i] * 0.999F + 0.5F;
    }
    for (const std::int64_t end = part(s.read, block, blocks) * kLine; read < end; read += kLine) {
#pragma GCC unroll 4
      for (int i = 0; i < kLine / Bytes; ++i) {
        sums[i] += *reinterpret_cast<const Vector*>(s.from + read + i * Bytes);
      }
    }
    for (const std::int64_t end = part(s.written, block, blocks) * kLine; written < end; written += Bytes) {
#if defined(__x86_64__)
      if (s.past_caches) {
        if constexpr (Bytes == 16) {
          asm volatile("movntps %1, %0" : "=m"(*reinterpret_cast<Vector*>(s.to + written)) : "x"(sums[0]));
        } else {
          asm volatile("vmovntps %1, %0" : "=m"(*reinterpret_cast<Vector*>(s.to + written)) : "v"(sums[0]));
        }
        continue;
      }
#endif
      *reinterpret_cast<Vector*>(s.to + written) = sums[0];
    }
  }
  for (int i = 1; i < kSums; ++i) sums[0] += sums[i];
  return sums[0][0];
}

#if defined(__x86_64__)
[[gnu::target("avx512f")]] inline float stream_avx512(const Stream& s) {
  return stream<64>(s);
}
[[gnu::target("avx2,fma")]] inline float stream_avx2(const Stream& s) {
  return stream<32>(s);
}
#endif

inline int vector_bytes() {
  const InstructionSet set = instruction_set();
  return set == InstructionSet::avx512 ? 64 : set == InstructionSet::avx2 ? 32 : 16;
}

/// The seconds that num_threads() threads take for so many floating-point operations (a multiply-add is two)
/// of float32 in registers, while they read so many bytes and write so many others, past the caches where the
/// library's kernels do.
inline double seconds_together(double flops, double bytes_read, double bytes_written) {
  const int threads = num_threads();
  const auto lines = [](double bytes) { return static_cast<std::int64_t>(bytes) / kLine; };
  const std::int64_t read = lines(bytes_read), written = lines(bytes_written),
                     rounds = static_cast<std::int64_t>(flops / (kSums * vector_bytes() / 2));
  const TensorOptions options{DType::uint8};
  const Tensor from = Tensor::zeros({read * kLine}, options), to = Tensor::zeros({written * kLine}, options);
  volatile float sink = 0;
  return best(5, [&] {
    parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto share = [&](std::int64_t whole) {
          return part(whole, i + 1, threads) - part(whole, i, threads);
        };
        const Stream s{
            reinterpret_cast<const char*>(from.data<std::uint8_t>()) + part(read, i, threads) * kLine,
            reinterpret_cast<char*>(to.data<std::uint8_t>()) + part(written, i, threads) * kLine,
            share(read),
            share(written),
            share(rounds),
            bytes_written >= 16 << 20};
#if defined(__x86_64__)
        sink = vector_bytes() == 64   ? stream_avx512(s)
               : vector_bytes() == 32 ? stream_avx2(s)
                                      : stream<16>(s);
#else
        sink = stream<16>(s);
#endif
      }
    });
  });
}

inline double peak_flops() {
  const double flops = 4e8 * vector_bytes() * num_threads();
  return flops / seconds_together(flops, 0, 0);
}

/// Bytes read and written a second by a copy that fits no cache.
inline double copy_bandwidth() {
  const std::int64_t bytes = 128 << 20;
  const Tensor from = Tensor::zeros({bytes}, {DType::uint8}), to = Tensor::zeros({bytes}, {DType::uint8});
  const double seconds = best(7, [&] {
    parallel_for(bytes, 1 << 20, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.data<std::uint8_t>() + begin, from.data<std::uint8_t>() + begin,
                  static_cast<std::size_t>(end - begin));
    });
  });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

}  // namespace tapedeck::bench
