// Batch normalisation; the formulas are those of ops/batch_norm.cpp.
#include <cmath>

#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/channels.cuh>

namespace tapedeck::cu {

namespace {

struct FirstOfChannel {
  std::int64_t inner;
  __device__ std::int64_t operator()(std::int64_t c) const { return c * inner; }
};

template <class V>
struct StoreStatistics {
  V *mean, *var;
  Reader<V> running_mean, running_var;
  Writer<V> new_mean, new_var;
  bool moves;
  double momentum, unbiased;  // the latter: n / (n - 1)

  __device__ void operator()(std::int64_t c, double m, double v) const {
    mean[c] = static_cast<V>(m);
    var[c] = static_cast<V>(v);
    if (!moves) return;
    const auto moved = [&](V old, double value) {
      return static_cast<V>((1 - momentum) * static_cast<double>(old) + momentum * value);
    };
    new_mean.write(c, moved(running_mean[c], m));
    new_var.write(c, moved(running_var[c], v * unbiased));
  }
};

template <class V>
void statistics(const Tensor& x, const BatchNormOptions& options, const Tensor& running_mean,
                const Tensor& running_var, const Tensor& mean, const Tensor& var) {
  const Axis axis = Axis::of(x, 1);
  const double n = static_cast<double>(x.count() / axis.size);
  StoreStatistics<V> store{mean.data<V>(),         var.data<V>(),    {},         {}, {}, {},
                           running_mean.defined(), options.momentum, n / (n - 1)};
  if (running_mean.defined()) {
    store.running_mean = Reader<V>(running_mean);
    store.running_var = Reader<V>(running_var);
    store.new_mean = Writer<V>(running_mean);
    store.new_var = Writer<V>(running_var);
  }
  const ChannelLoops loops(axis);
  reduce("batch_norm", x.device(), loops.kept, loops.reduced, is_aligned(x.raw(), size_of(x.dtype())),
         Moments<V, FirstOfChannel, StoreStatistics<V>>{{}, Reader<V>(x), {axis.inner}, n, store});
}

/// coefficients[c] = weight / sqrt(var + eps).
template <class V>
void make_scales(const Tensor& var, double eps, const Tensor& weight, V* scales) {
  const Parameter<V> w(weight, 1);
  const V* const v = var.data<V>();
  for_each("batch_norm", var.device(), var.count(), [=] __device__(std::int64_t c) {
    scales[c] = static_cast<V>(static_cast<double>(w[c]) / sqrt(v[c] + eps));
  });
}

template <class V>
struct Apply {
  const V *mean, *scale;
  Parameter<V> bias;
  __device__ V operator()(std::int64_t, std::int64_t c, const V (&in)[1]) const {
    return (in[0] - mean[c]) * scale[c] + bias[c];
  }
};

template <class V>
void apply(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& var,
           double eps, const Tensor& y) {
  const Workspace<V> scales(x.device(), var.count());
  make_scales<V>(var, eps, weight, scales.data());
  channel_map<V, 1>("batch_norm", {x}, y, Apply<V>{mean.data<V>(), scales.data(), Parameter<V>(bias, 0)});
}

/// The sums of gy and gy * (x - mean) over a channel, and what follows from them.
template <class V>
struct GradientSums : SumsReduction {
  struct Value {
    V x, g;
  };
  using Center = V;

  Reader<V> x, gy;
  const V *mean, *var;
  double count, eps;
  V *mean_g, *slope;  // both null without training
  Writer<V> gw, gb;   // null data: not wanted

  __device__ void read(std::int64_t at, int n, std::int64_t step, bool packed,
                       Value (&values)[kVector]) const {
    V xs[kVector], gs[kVector];
    read_run(x, at, n, step, packed, xs);
    read_run(gy, at, n, step, packed, gs);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = {xs[j], gs[j]};
  }
  __device__ V center(std::int64_t c) const {
    return mean[c];
  }
  __device__ Sums add(const Sums& total, const Value& value, V m) const {
    const double g = static_cast<double>(value.g);
    return {total.a + g, total.b + g * static_cast<double>(value.x - m)};
  }
  __device__ void finish(std::int64_t c, const Sums& total) const {
    const double v = static_cast<double>(var[c]) + eps;
    if (gb.data != nullptr) gb.write(c, static_cast<V>(total.a));
    if (gw.data != nullptr) gw.write(c, static_cast<V>(total.b / sqrt(v)));
    if (mean_g == nullptr) return;
    mean_g[c] = static_cast<V>(total.a / count);
    slope[c] = static_cast<V>(total.b / (count * v));
  }
};

template <class V>
struct InputGradient {
  const V *mean, *scale, *mean_g, *slope;
  __device__ V operator()(std::int64_t, std::int64_t c, const V (&in)[2]) const {
    if (mean_g == nullptr) return in[0] * scale[c];
    return (in[0] - mean_g[c] - (in[1] - mean[c]) * slope[c]) * scale[c];
  }
};

template <class V>
void backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& var,
              const BatchNormOptions& options, const Tensor& gx, const Tensor& gw, const Tensor& gb) {
  const Axis axis = Axis::of(x, 1);
  const Workspace<V> sums(x.device(), 2 * axis.size), scales(x.device(), axis.size);
  V* const mean_g = options.training ? sums.data() : nullptr;
  V* const slope = options.training ? sums.data() + axis.size : nullptr;
  if (options.training || gw.defined() || gb.defined()) {
    const ChannelLoops loops(axis);
    const bool aligned = is_aligned(x.raw(), size_of(x.dtype())) && is_aligned(gy.raw(), size_of(gy.dtype()));
    reduce("batch_norm", x.device(), loops.kept, loops.reduced, aligned,
           GradientSums<V>{{},
                           Reader<V>(x),
                           Reader<V>(gy),
                           mean.data<V>(),
                           var.data<V>(),
                           static_cast<double>(x.count() / axis.size),
                           options.eps,
                           mean_g,
                           slope,
                           gw.defined() ? Writer<V>(gw) : Writer<V>(),
                           gb.defined() ? Writer<V>(gb) : Writer<V>()});
  }
  if (!gx.defined()) return;
  make_scales<V>(var, options.eps, weight, scales.data());
  channel_map<V, 2>("batch_norm", {gy, x}, gx,
                    InputGradient<V>{mean.data<V>(), scales.data(), mean_g, slope});
}

}  // namespace

void batch_norm_statistics(const Tensor& x, const BatchNormOptions& options, const Tensor& running_mean,
                           const Tensor& running_var, const Tensor& mean, const Tensor& var) {
  x.dtype() == DType::float64 ? statistics<double>(x, options, running_mean, running_var, mean, var)
                              : statistics<float>(x, options, running_mean, running_var, mean, var);
}

void batch_norm_apply(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& mean,
                      const Tensor& var, double eps, const Tensor& y) {
  x.dtype() == DType::float64 ? apply<double>(x, weight, bias, mean, var, eps, y)
                              : apply<float>(x, weight, bias, mean, var, eps, y);
}

void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& var, const BatchNormOptions& options, const Tensor& gx,
                         const Tensor& gw, const Tensor& gb) {
  x.dtype() == DType::float64 ? backward<double>(gy, x, weight, mean, var, options, gx, gw, gb)
                              : backward<float>(gy, x, weight, mean, var, options, gx, gw, gb);
}

}  // namespace tapedeck::cu
