#include <tapedeck/ops/loss.h>

#include <tapedeck/ops/loss_formulas.h>
#include <tapedeck/ops/reduce_policies.h>
#include <tapedeck/ops/reduce.cuh>

namespace tapedeck::cu {

namespace {

/// The sum of formula.value(x, t), in float64.
template <class V, class Formula>
struct LossSum {
  struct Value {
    V x, t;
  };
  using Total = double;
  struct Center {};

  Reader<V> x, t;
  Formula formula;
  StoreScaled store;

  bool is_plain() const requires std::same_as<V, float> { return cu::is_plain(x) && cu::is_plain(t); }
  __device__ LossSum plain() const { return {cu::plain(x), cu::plain(t), formula, store}; }
  __device__ void read(std::int64_t at, int n, std::int64_t step, bool packed,
                       Value (&values)[kVector]) const {
    V xs[kVector], ts[kVector];
    read_run(x, at, n, step, packed, xs);
    read_run(t, at, n, step, packed, ts);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = {xs[j], ts[j]};
  }
  __device__ Center center(std::int64_t) const {
    return {};
  }
  __device__ double start() const {
    return 0;
  }
  __device__ double add(double total, const Value& v, Center) const {
    return total + static_cast<double>(formula.value(v.x, v.t));
  }
  __device__ double merge(double a, double b) const {
    return a + b;
  }
  __device__ void finish(std::int64_t out, double total) const {
    store(out, total);
  }
};

template <class V, class Formula>
void sum_of(const Formula& formula, double scale, const Tensor& x, const Tensor& t, const Tensor& y) {
  const auto one = StridedLoop<2>::over(Shape{}, std::array<Strides, 2>{});
  const auto all = StridedLoop<1>::over(Shape{x.count()}, std::array<Strides, 1>{Strides{1}});
  const bool aligned = is_aligned(x.read(), size_of(x.dtype())) && is_aligned(t.read(), size_of(t.dtype()));
  reduce("loss", x.device(), one, all, aligned,
         LossSum<V, Formula>{Reader<V>(x), Reader<V>(t), formula, StoreScaled(y, scale)});
}

}  // namespace

void pointwise_loss(const PointwiseLossCall& call, const Tensor& x, const Tensor& t, const Tensor& y) {
  formula::with_formula(call, [&](auto formula) {
    map_floating("loss", formula::ValueOf<decltype(formula)>{formula}, y, x, t);
  });
}

void pointwise_loss_sum(const PointwiseLossCall& call, double scale, const Tensor& x, const Tensor& t,
                        const Tensor& y) {
  formula::with_formula(call, [&](auto formula) {
    x.dtype() == DType::float64 ? sum_of<double>(formula, scale, x, t, y)
                                : sum_of<float>(formula, scale, x, t, y);
  });
}

void pointwise_loss_gradient(const PointwiseLossCall& call, double scale, const Tensor& x, const Tensor& t,
                             const Tensor& gy, const Tensor& gx, const Tensor& gt) {
  formula::with_formula(call, [&](auto formula) {
    using Formula = decltype(formula);
    if (gx.defined()) map_floating("loss", formula::SlopeOf<Formula>{formula, scale}, gx, x, t, gy);
    if (gt.defined()) map_floating("loss", formula::TargetSlopeOf<Formula>{formula, scale}, gt, x, t, gy);
  });
}

}  // namespace tapedeck::cu
