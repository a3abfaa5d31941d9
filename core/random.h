// Random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
//
// Element i of a draw (in row-major order, whatever the layout) depends only on (seed, draw, i): the bits
// are the same on every device and for every thread count. A tensor of fewer bits holds the numbers of
// the float64 one, rounded (core/random_math.h).
#pragma once

#include <cstdint>

#include <tapedeck/core/host_device.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck {

/// The four words of counter (counter, stream) under `seed`.
struct Philox {
  std::uint32_t words[4];

  TAPEDECK_HD static Philox at(std::uint64_t seed, std::uint64_t counter, std::uint64_t stream) {
    std::uint32_t c0 = static_cast<std::uint32_t>(counter), c1 = static_cast<std::uint32_t>(counter >> 32);
    std::uint32_t c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
    std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(p1);
      c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
  }
};

/// A seed and how many draws were made from it. Each tensor that is filled takes one draw, so the
/// state is two numbers, which a checkpoint can keep.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) : seed_(seed) {}

  std::uint64_t seed() const { return seed_; }
  std::uint64_t offset() const { return offset_; }
  void set_state(std::uint64_t seed, std::uint64_t offset) {
    seed_ = seed;
    offset_ = offset;
  }
  /// The index of the next draw, which is then taken. In a step that is being captured
  /// (core/captured_step.h) it stands for those that its replays will take.
  std::uint64_t next();

 private:
  std::uint64_t seed_;
  std::uint64_t offset_ = 0;
};

/// The calling thread's generator, for calls that name none; seed 0 until manual_seed().
Generator& default_generator();
void manual_seed(std::uint64_t seed);

/// Fills x (floating) with numbers uniform in [low, high), the bounds rounded to x's dtype. Throws Error
/// unless low <= high and both are finite in x's dtype.
void uniform_(const Tensor& x, double low, double high, Generator& generator = default_generator());
/// Fills x (floating) with normal numbers. Throws Error when `stddev` is negative or a value not finite.
void normal_(const Tensor& x, double mean, double stddev, Generator& generator = default_generator());
/// Fills x (int64) with integers uniform in [low, high). Throws Error unless low < high.
void randint_(const Tensor& x, std::int64_t low, std::int64_t high,
              Generator& generator = default_generator());

/// New tensors, uniform in [0, 1) and normal with mean 0 and deviation 1.
Tensor rand(const Shape& shape, const TensorOptions& options = {},
            Generator& generator = default_generator());
Tensor randn(const Shape& shape, const TensorOptions& options = {},
             Generator& generator = default_generator());
/// A random order of 0 .. count-1 (int64).
Tensor randperm(std::int64_t count, Generator& generator = default_generator());

namespace cpu {
/// Draw `draw` of `seed` into x.
void uniform(const Tensor& x, double low, double high, std::uint64_t seed, std::uint64_t draw);
void normal(const Tensor& x, double mean, double stddev, std::uint64_t seed, std::uint64_t draw);
void randint(const Tensor& x, std::int64_t low, std::int64_t high, std::uint64_t seed, std::uint64_t draw);
}  // namespace cpu
namespace cu {
void uniform(const Tensor& x, double low, double high, std::uint64_t seed, std::uint64_t draw);
void normal(const Tensor& x, double mean, double stddev, std::uint64_t seed, std::uint64_t draw);
void randint(const Tensor& x, std::int64_t low, std::int64_t high, std::uint64_t seed, std::uint64_t draw);
}  // namespace cu

}  // namespace tapedeck
