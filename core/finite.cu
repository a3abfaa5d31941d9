#include <tapedeck/core/finite.h>

#include <cmath>

#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

namespace {

template <class V>
void find(const Tensor& x, const Tensor& found) {
  const Reader<V> values(x);
  std::uint8_t* const flag = found.data<std::uint8_t>();
  for_each("all_finite", x.device(), x.count(), [=] __device__(std::int64_t i) {
    if (!isfinite(values[i])) *flag = 1;  // all who write, write the same
  });
}

}  // namespace

bool all_finite(const Tensor& x) {
  const Tensor found = Tensor::zeros({}, {DType::uint8, x.device()});
  x.dtype() == DType::float64 ? find<double>(x, found) : find<float>(x, found);
  return found.item() == 0;
}

}  // namespace tapedeck::cu
