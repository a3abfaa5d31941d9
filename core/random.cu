// Random tensors: the numbers of core/random.cpp, bit for bit. Compiled without fused multiply-add.
#include <tapedeck/core/random.h>

#include <tapedeck/core/random_math.h>
#include <tapedeck/core/draw.cuh>
#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

namespace {

/// Calls `fill(bits, out)` in a kernel for every four neighbouring elements: it makes four numbers of T from
/// the four of `bits`.
template <class T, class F>
void for_each_block(const char* op, const Tensor& x, std::uint64_t seed, std::uint64_t draw, const F& fill) {
  T* const out = x.data<T>();
  const std::int64_t count = x.count();
  const Draw source(seed, draw);
  const bool aligned = is_aligned(out, sizeof(T));
  for_each(op, x.device(), ceil_div(count, 4), [=] __device__(std::int64_t block) {
    Pack<T, 4> made;
    fill(RandomBlock::at(source.seed(), source.draw(), block, takes_wide_bits<T>).bits, made.values);
    if (aligned && 4 * block + 4 <= count) {
      reinterpret_cast<Pack<T, 4>*>(out)[block] = made;
    } else {
      for (std::int64_t i = 0; i < 4 && 4 * block + i < count; ++i) out[4 * block + i] = made.values[i];
    }
  });
}

template <class T>
struct Uniform {
  double low, high;
  __device__ void operator()(const std::uint64_t* bits, T* out) const {
    for (int i = 0; i < 4; ++i) out[i] = uniform_between<T>(low, high, bits[i]);
  }
};

template <class T>
struct Normal {
  double mean, stddev;
  __device__ void operator()(const std::uint64_t* bits, T* out) const {
    for (int i = 0; i < 4; i += 2) {
      double even, odd;
      normal_pair(bits[i], bits[i + 1], even, odd);
      out[i] = convert<T>(mean + stddev * even);
      out[i + 1] = convert<T>(mean + stddev * odd);
    }
  }
};

struct Integers {
  std::uint64_t low, range;
  __device__ void operator()(const std::uint64_t* bits, std::int64_t* out) const {
    for (int i = 0; i < 4; ++i) out[i] = static_cast<std::int64_t>(low + integer_below(range, bits[i]));
  }
};

}  // namespace

void uniform(const Tensor& x, double low, double high, std::uint64_t seed, std::uint64_t draw) {
  visit_floating("uniform_", x.dtype(), [&]<class T>() {
    for_each_block<T>("uniform_", x, seed, draw, Uniform<T>{low, high});
  });
}

void normal(const Tensor& x, double mean, double stddev, std::uint64_t seed, std::uint64_t draw) {
  visit_floating("normal_", x.dtype(), [&]<class T>() {
    for_each_block<T>("normal_", x, seed, draw, Normal<T>{mean, stddev});
  });
}

void randint(const Tensor& x, std::int64_t low, std::int64_t high, std::uint64_t seed, std::uint64_t draw) {
  const auto first = static_cast<std::uint64_t>(low);
  for_each_block<std::int64_t>("randint_", x, seed, draw,
                               Integers{first, static_cast<std::uint64_t>(high) - first});
}

}  // namespace tapedeck::cu
