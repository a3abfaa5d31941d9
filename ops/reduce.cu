#include <tapedeck/ops/reduce.h>

#include <tapedeck/ops/arithmetic_formulas.h>
#include <tapedeck/ops/reduce_policies.h>
#include <tapedeck/ops/reduce.cuh>

namespace tapedeck::cu {

namespace {

/// out[i] = total.
template <class V>
struct Store {
  Writer<V> out;
  __device__ void operator()(std::int64_t i, V total) const { out.write(i, total); }
};

struct StoreDouble {
  double* out;
  double scale;
  __device__ void operator()(std::int64_t i, double total) const { out[i] = total * scale; }
};

template <class V>
void extreme_of(Extreme kind, const Tensor& x, const Tensor& out) {
  const Store<V> store{Writer<V>(out)};
  kind == Extreme::max ? reduce<V>("max", x, out, policy::Extreme<V, Extreme::max>{}, store)
                       : reduce<V>("min", x, out, policy::Extreme<V, Extreme::min>{}, store);
}

/// 1 / ties where x equals the extreme or is NaN like it, else 0.
struct Share {
  template <class V>
  __host__ __device__ V operator()(V x, V extreme, V ties) const {
    return x == extreme || (x != x && extreme != extreme) ? V(1) / ties : V(0);
  }
};

}  // namespace

void sum(const Tensor& x, double scale, const Tensor& out) {
  if (is_floating(x.dtype())) {
    return reduce_floating("sum", x, out, policy::Sum{}, StoreScaled(out, scale));
  }
  reduce<std::int64_t>("sum", x, out, policy::IntegerSum{}, Store<std::int64_t>{Writer<std::int64_t>(out)});
}

void extreme(Extreme kind, const Tensor& x, const Tensor& out) {
  if (x.dtype() == DType::float64) return extreme_of<double>(kind, x, out);
  if (is_floating(x.dtype())) return extreme_of<float>(kind, x, out);
  extreme_of<std::int64_t>(kind, x, out);
}

void extreme_share(const Tensor& x, const Tensor& y, const Tensor& share) {
  const Tensor centers = y.to(DType::float64);
  const DType computed = x.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const Tensor ties = Tensor::empty(y.shape(), {computed, y.device(), y.layout()});
  reduce_floating("max", x, ties, policy::Ties{}, StoreScaled(ties, 1), centers.data<double>());
  map_floating("max", Share{}, share, x, y, ties);
}

void squared_deviation(const Tensor& x, double scale, const Tensor& out) {
  const Tensor means = Tensor::empty(out.shape(), {DType::float64, out.device(), out.layout()});
  const double n = static_cast<double>(x.count()) / static_cast<double>(out.count());
  reduce_floating("var", x, means, policy::Sum{}, StoreDouble{means.data<double>(), 1 / n});
  reduce_floating("var", x, out, policy::Squares{}, StoreScaled(out, scale), means.data<double>());
}

void expand(const Tensor& x, double scale, const Tensor& out) {
  map_any("broadcast_to", formula::Scaled{scale}, out, x);
}

}  // namespace tapedeck::cu
