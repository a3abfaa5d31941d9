#include <tapedeck/core/random.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/random_math.h>

namespace tapedeck {

namespace {

/// Fills x by `fill(row_major, draw)`. Elements count in row-major order, so that a tensor holds the same
/// numbers in every layout.
template <class F>
void fill_row_major(const Tensor& x, Generator& generator, F fill) {
  check(!is_capturing() || x.device().is_cuda(),
        "random: a captured step draws numbers on the CPU, which its replays would not repeat");
  x.bump_version();
  const std::uint64_t draw = generator.next();
  if (x.count() == 0) return;
  if (x.layout() == Layout::nchw) return fill(x, draw);
  const Tensor row_major = Tensor::empty(x.shape(), {x.dtype(), x.device()});
  fill(row_major, draw);
  x.copy_(row_major);
}

void check_floating(const char* name, const Tensor& x) {
  check(x.defined(), name, ": x is undefined");
  check(is_floating(x.dtype()), name, ": x is ", x.dtype(),
        "; legal are float64, float32, bfloat16 and float16");
}

/// Whether `value` is finite as an element of `dtype`.
bool is_finite_in(DType dtype, double value) {
  return visit_floating("random", dtype,
                        [&]<class T>() { return std::isfinite(convert<double>(convert<T>(value))); });
}

}  // namespace

std::uint64_t Generator::next() {
  return is_capturing() ? detail::captured_draw(*this) : offset_++;
}

Generator& default_generator() {
  thread_local Generator generator;
  return generator;
}

void manual_seed(std::uint64_t seed) {
  default_generator().set_state(seed, 0);
}

void uniform_(const Tensor& x, double low, double high, Generator& generator) {
  check_floating("uniform_", x);
  check(is_finite_in(x.dtype(), low) && is_finite_in(x.dtype(), high) && low <= high &&
            std::isfinite(high - low),
        "uniform_: low ", low, " and high ", high, " are not legal; legal are low <= high, finite in ",
        x.dtype());
  fill_row_major(x, generator, [&](const Tensor& out, std::uint64_t draw) {
    TAPEDECK_KERNEL(out.device(), uniform)(out, low, high, generator.seed(), draw);
  });
}

void normal_(const Tensor& x, double mean, double stddev, Generator& generator) {
  check_floating("normal_", x);
  check(is_finite_in(x.dtype(), mean), "normal_: mean ", mean, " is not legal; legal are numbers finite in ",
        x.dtype());
  check(is_finite_in(x.dtype(), stddev) && stddev >= 0, "normal_: stddev ", stddev,
        " is not legal; legal are numbers from 0, finite in ", x.dtype());
  fill_row_major(x, generator, [&](const Tensor& out, std::uint64_t draw) {
    TAPEDECK_KERNEL(out.device(), normal)(out, mean, stddev, generator.seed(), draw);
  });
}

void randint_(const Tensor& x, std::int64_t low, std::int64_t high, Generator& generator) {
  check(x.defined(), "randint_: x is undefined");
  check(x.dtype() == DType::int64, "randint_: x is ", x.dtype(), "; legal is int64");
  check(low < high, "randint_: low ", low, " and high ", high, " are not legal; legal are low < high");
  fill_row_major(x, generator, [&](const Tensor& out, std::uint64_t draw) {
    TAPEDECK_KERNEL(out.device(), randint)(out, low, high, generator.seed(), draw);
  });
}

Tensor rand(const Shape& shape, const TensorOptions& options, Generator& generator) {
  Tensor x = Tensor::empty(shape, options);
  uniform_(x, 0, 1, generator);
  return x;
}

Tensor randn(const Shape& shape, const TensorOptions& options, Generator& generator) {
  Tensor x = Tensor::empty(shape, options);
  normal_(x, 0, 1, generator);
  return x;
}

Tensor randperm(std::int64_t count, Generator& generator) {
  check(count >= 0, "randperm: count ", count, " is not legal; legal is 0 or more");
  check(!is_capturing(),
        "randperm: a captured step draws numbers on the CPU, which its replays would not repeat");
  const std::uint64_t draw = generator.next();
  Tensor order = Tensor::empty({count}, {.dtype = DType::int64});
  if (count == 0) return order;
  std::int64_t* values = order.data<std::int64_t>();
  std::iota(values, values + count, 0);
  RandomBlock block{};
  for (std::int64_t i = 0; i < count; ++i) {  // Fisher and Yates
    if (i % 4 == 0) block = RandomBlock::at(generator.seed(), draw, i / 4, true);
    std::swap(values[i], values[integer_below(static_cast<std::uint64_t>(i) + 1, block.bits[i % 4])]);
  }
  return order;
}

namespace cpu {

namespace {

/// Calls `fill(bits, out)` for every four neighbouring elements: it makes four numbers of T from the four
/// of `bits`.
template <class T, class F>
void for_each_block(const Tensor& x, std::uint64_t seed, std::uint64_t draw, F fill) {
  T* out = x.data<T>();
  const std::int64_t count = x.count();
  parallel_for((count + 3) / 4, 1 << 10, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      T made[4];
      fill(RandomBlock::at(seed, draw, block, takes_wide_bits<T>).bits, made);
      std::copy_n(made, std::min<std::int64_t>(4, count - 4 * block), out + 4 * block);
    }
  });
}

}  // namespace

void uniform(const Tensor& x, double low, double high, std::uint64_t seed, std::uint64_t draw) {
  visit_floating("uniform_", x.dtype(), [&]<class T>() {
    for_each_block<T>(x, seed, draw, [&](const std::uint64_t* bits, T* out) {
      for (int i = 0; i < 4; ++i) out[i] = uniform_between<T>(low, high, bits[i]);
    });
  });
}

void normal(const Tensor& x, double mean, double stddev, std::uint64_t seed, std::uint64_t draw) {
  visit_floating("normal_", x.dtype(), [&]<class T>() {
    for_each_block<T>(x, seed, draw, [&](const std::uint64_t* bits, T* out) {
      for (int i = 0; i < 4; i += 2) {
        double even, odd;
        normal_pair(bits[i], bits[i + 1], even, odd);
        out[i] = convert<T>(mean + stddev * even);
        out[i + 1] = convert<T>(mean + stddev * odd);
      }
    });
  });
}

void randint(const Tensor& x, std::int64_t low, std::int64_t high, std::uint64_t seed, std::uint64_t draw) {
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  for_each_block<std::int64_t>(x, seed, draw, [&](const std::uint64_t* bits, std::int64_t* out) {
    for (int i = 0; i < 4; ++i) {
      out[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + integer_below(range, bits[i]));
    }
  });
}

}  // namespace cpu
}  // namespace tapedeck
