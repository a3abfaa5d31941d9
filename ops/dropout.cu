#include <tapedeck/ops/dropout.h>

#include <cmath>

#include <tapedeck/core/draw.cuh>
#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

namespace {

template <class V>
void dropout_of(const Tensor& x, double p, std::uint64_t seed, std::uint64_t draw, const Tensor& y) {
  const Reader<V> in(x);
  const Writer<V> out(y);
  const auto limit = static_cast<std::uint32_t>(std::ceil(p * 0x1p32) - 1);  // words above it keep an element
  const V scale = static_cast<V>(p < 1 ? 1 / (1 - p) : 0);
  const Draw source(seed, draw);
  const std::int64_t count = x.count();
  const bool aligned = is_aligned(x.read(), size_of(x.dtype())) && is_aligned(y.read(), size_of(y.dtype()));
  for_each("dropout", x.device(), ceil_div(count, 4), [=] __device__(std::int64_t block) {
    const Philox made = Philox::at(source.seed(), static_cast<std::uint64_t>(block), source.draw());
    const std::int64_t first = 4 * block;
    if (aligned && first + 4 <= count) {
      V values[4];
      in.read(first, values);
      for (int i = 0; i < 4; ++i) values[i] = made.words[i] > limit ? values[i] * scale : V(0);
      out.write(first, values);
    } else {
      for (int i = 0; i < 4 && first + i < count; ++i) {
        out.write(first + i, made.words[i] > limit ? in[first + i] * scale : V(0));
      }
    }
  });
}

}  // namespace

void dropout(const Tensor& x, double p, std::uint64_t seed, std::uint64_t draw, const Tensor& y) {
  if (x.dtype() == DType::float64) return dropout_of<double>(x, p, seed, draw, y);
  dropout_of<float>(x, p, seed, draw, y);
}

}  // namespace tapedeck::cu
