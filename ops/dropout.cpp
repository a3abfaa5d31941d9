#include <tapedeck/ops/dropout.h>

#include <algorithm>
#include <cmath>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

/// Linear in x, with a mask that a counter-based generator repeats: its own gradient.
struct Dropout final : Op {
  Dropout(double p, std::uint64_t seed, std::uint64_t draw) : p_(p), seed_(seed), draw_(draw) {}
  const char* name() const override { return "dropout"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    const Tensor row_major = x[0].to(Layout::nchw), y = Tensor::empty_like(row_major);
    if (y.count() > 0) TAPEDECK_KERNEL(y.device(), dropout)(row_major, p_, seed_, draw_, y);
    return {y.to(x[0].layout())};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    return {to_layout(call<Dropout>({gy[0]}, p_, seed_, draw_), context.input_options(0).layout)};
  }

 private:
  double p_;
  std::uint64_t seed_, draw_;
};

}  // namespace

Variable dropout(const Variable& x, double p, bool training, Generator& generator) {
  check(p >= 0 && p <= 1, "dropout: p ", p, " is not legal; legal is 0 to 1");
  check(is_floating(x.dtype()), "dropout: x is ", x.dtype(), "; legal are the floating types");
  if (!training || p == 0) return x;
  const std::uint64_t draw = generator.next();
  return call<Dropout>({x}, p, generator.seed(), draw);
}

namespace cpu {

void dropout(const Tensor& x, double p, std::uint64_t seed, std::uint64_t draw, const Tensor& y) {
  const std::int64_t count = x.count();
  const auto limit = static_cast<std::uint32_t>(std::ceil(p * 0x1p32) - 1);  // words above it keep an element
  visit_floating("dropout", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const A scale = static_cast<A>(p < 1 ? 1 / (1 - p) : 0);
    const T* in = x.data<T>();
    T* out = y.data<T>();
    constexpr std::int64_t kBlock = 256;  // elements whose words are made at a time
    parallel_for((count + kBlock - 1) / kBlock, 16, [=](std::int64_t begin, std::int64_t end) {
      simd([=] {
        std::uint32_t words[kBlock];
        for (std::int64_t first = begin * kBlock; first < end * kBlock; first += kBlock) {
          for (std::int64_t i = 0; i < kBlock; i += 4) {
            const Philox made = Philox::at(seed, static_cast<std::uint64_t>(first + i) / 4, draw);
            for (std::int64_t k = 0; k < 4; ++k) words[i + k] = made.words[k];
          }
          const std::int64_t n = std::min(count - first, kBlock);
          for (std::int64_t i = 0; i < n; ++i) {
            const A value = convert<A>(in[first + i]) * scale;
            out[first + i] = convert<T>(words[i] > limit ? value : A(0));  // 0 even for infinity and NaN
          }
        }
      });
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
