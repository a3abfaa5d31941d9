// Batch normalisation; the formulas are those of ops/batch_norm.cpp.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/rectifier.h>
#include <tapedeck/ops/channels.cuh>
#include <tapedeck/ops/prologue.cuh>

namespace tapedeck::cu {

namespace {

/// The rows of a statistics tensor: what is known of each channel; of `const V` to be read, so that the
/// tensor remembers what it does (core/tensor.h).
template <class V>
struct Channels {
  V *mean, *var, *scale, *bias;

  explicit Channels(const Tensor& statistics)
      : mean(first_of(statistics)),
        var(mean + statistics.size(1)),
        scale(var + statistics.size(1)),
        bias(scale + statistics.size(1)) {}

 private:
  static V* first_of(const Tensor& statistics) {
    if constexpr (std::is_const_v<V>) {
      return static_cast<V*>(statistics.read());
    } else {
      return statistics.data<V>();
    }
  }
};

/// The parameters that its numbers follow from, besides mean and variance.
template <class V>
struct Parameters {
  Parameter<V> weight, bias;
  double eps;

  __device__ void store(const Channels<V>& to, std::int64_t c, double m, double v) const {
    to.mean[c] = static_cast<V>(m);
    to.var[c] = static_cast<V>(v);
    to.scale[c] = static_cast<V>(static_cast<double>(weight[c]) / sqrt(static_cast<double>(to.var[c]) + eps));
    to.bias[c] = bias[c];
  }
};

/// What becomes of an element: one formula, so that both directions know the same signs.
template <class V>
struct Normalize {
  Channels<const V> channels;
  Rectifier rectifier;

  using Channel = NormalizedChannel<V>;
  __device__ Channel of(std::int64_t c) const {
    return {channels.mean[c], channels.scale[c], channels.bias[c]};
  }
  __device__ V operator()(std::int64_t, std::int64_t c, const V (&in)[1]) const {
    return rectifier.value(of(c)(in[0]));
  }
};

struct FirstOfChannel {
  std::int64_t inner;
  __device__ std::int64_t operator()(std::int64_t c) const { return c * inner; }
};

template <class V>
struct StoreStatistics {
  Channels<V> channels;
  Parameters<V> parameters;
  double momentum, count, steepest;  // the last: of the rectifier
  Reader<V> running_mean = {}, running_var = {};
  Writer<V> new_mean = {}, new_var = {};  // null data: there are none
  std::int64_t* batches = nullptr;        // or null
  unsigned* largest = nullptr;            // of results, or null

  __device__ void operator()(std::int64_t c, double m, double v) const {
    parameters.store(channels, c, m, v);
    if (largest != nullptr) raise_to_bound(c, m, v);
    if (c == 0 && batches != nullptr) ++*batches;
    if (new_mean.data == nullptr) return;
    const auto moved = [&](V old, double value) {
      return static_cast<V>((1 - momentum) * static_cast<double>(old) + momentum * value);
    };
    new_mean.write(c, moved(running_mean[c], m));
    new_var.write(c, moved(running_var[c], v * count / (count - 1)));
  }
  /// One of n values is less than sqrt(n * var) away from the mean, and that, rounded, a little from itself.
  __device__ void raise_to_bound(std::int64_t c, double m, double v) const {
    const double away = 1.001 * sqrt(count * v) + 1e-6 * abs(m),
                 most = steepest * (abs(static_cast<double>(channels.scale[c])) * away +
                                    abs(static_cast<double>(channels.bias[c])));
    if (!isfinite(most)) return;  // neither are the channel's results
    atomicMax(largest, __float_as_uint(static_cast<float>(::min(1.001 * most, 3e38))));
  }
};

template <class V>
void batch_statistics(const Tensor& x, const BatchNormOptions& options, const Channels<V>& channels,
                      const Parameters<V>& parameters, const Tensor& running_mean, const Tensor& running_var,
                      unsigned* largest) {
  const Axis axis = Axis::of(x, 1);
  const double n = static_cast<double>(x.count() / axis.size);
  StoreStatistics<V> store{channels, parameters, options.momentum, n,
                           std::max(1.0, std::abs(options.negative_slope))};
  store.largest = largest;
  if (running_mean.defined()) {
    store.running_mean = Reader<V>(running_mean);
    store.running_var = Reader<V>(running_var);
    store.new_mean = Writer<V>(running_mean);
    store.new_var = Writer<V>(running_var);
  }
  if (options.batches.defined()) store.batches = options.batches.data<std::int64_t>();
  const ChannelLoops loops(axis);
  reduce("batch_norm", x.device(), loops.kept, loops.reduced, is_aligned(x.read(), size_of(x.dtype())),
         Moments<V, FirstOfChannel, StoreStatistics<V>>{{}, Reader<V>(x), {axis.inner}, n, store});
}

template <class V>
void statistics_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                   const Tensor& running_var, const BatchNormOptions& options, const Tensor& statistics,
                   unsigned* largest) {
  const Channels<V> channels(statistics);
  const Parameters<V> parameters{Parameter<V>(weight, 1), Parameter<V>(bias, 0), options.eps};
  if (options.training)
    return batch_statistics(x, options, channels, parameters, running_mean, running_var, largest);
  const Reader<V> mean(running_mean), var(running_var);
  for_each("batch_norm", x.device(), x.size(1), [=] __device__(std::int64_t c) {
    parameters.store(channels, c, static_cast<double>(mean[c]), static_cast<double>(var[c]));
  });
}

/// The sums of gu and gu * (x - mean) over a channel, and what follows from them.
template <class V>
struct GradientSums : SumsReduction {
  struct Value {
    V x, g;
  };
  using Center = typename Normalize<V>::Channel;

  Reader<V> x, gy;
  Normalize<V> normalize;
  double count, eps;
  V *mean_g, *slope;  // both null without training
  Writer<V> gw, gb;   // null data: not wanted

  bool is_plain() const requires std::same_as<V, float> { return cu::is_plain(x) && cu::is_plain(gy); }
  __device__ GradientSums plain() const {
    GradientSums known = *this;
    known.x = cu::plain(x), known.gy = cu::plain(gy);
    return known;
  }
  __device__ void read(std::int64_t at, int n, std::int64_t step, bool packed,
                       Value (&values)[kVector]) const {
    V xs[kVector], gs[kVector];
    read_run(x, at, n, step, packed, xs);
    read_run(gy, at, n, step, packed, gs);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = {xs[j], gs[j]};
  }
  __device__ Center center(std::int64_t c) const {
    return normalize.of(c);
  }
  __device__ Sums add(const Sums& total, const Value& value, const Center& channel) const {
    const double g = static_cast<double>(normalize.rectifier.gradient(channel(value.x), value.g));
    return {total.a + g, total.b + g * static_cast<double>(value.x - channel.mean)};
  }
  __device__ void finish(std::int64_t c, const Sums& total) const {
    const double v = static_cast<double>(normalize.channels.var[c]) + eps;
    if (gb.data != nullptr) gb.write(c, static_cast<V>(total.a));
    if (gw.data != nullptr) gw.write(c, static_cast<V>(total.b / sqrt(v)));
    if (mean_g == nullptr) return;
    mean_g[c] = static_cast<V>(total.a / count);
    slope[c] = static_cast<V>(total.b / (count * v));
  }
};

template <class V>
struct InputGradient {
  Normalize<V> normalize;
  const V *mean_g, *slope;
  __device__ V operator()(std::int64_t, std::int64_t c, const V (&in)[2]) const {
    const auto channel = normalize.of(c);
    const V gu = normalize.rectifier.gradient(channel(in[1]), in[0]);
    if (mean_g == nullptr) return gu * channel.scale;
    return (gu - mean_g[c] - (in[1] - channel.mean) * slope[c]) * channel.scale;
  }
};

template <class V>
void backward(const Tensor& gy, const Tensor& x, const Tensor& statistics, const BatchNormOptions& options,
              const Tensor& gx, const Tensor& gw, const Tensor& gb) {
  const Axis axis = Axis::of(x, 1);
  const Normalize<V> normalize{Channels<const V>(statistics), {options.negative_slope}};
  const Workspace<V> sums(x.device(), 2 * axis.size);
  V* const mean_g = options.training ? sums.data() : nullptr;
  V* const slope = options.training ? sums.data() + axis.size : nullptr;
  if (options.training || gw.defined() || gb.defined()) {
    const ChannelLoops loops(axis);
    const bool aligned =
        is_aligned(x.read(), size_of(x.dtype())) && is_aligned(gy.read(), size_of(gy.dtype()));
    reduce("batch_norm", x.device(), loops.kept, loops.reduced, aligned,
           GradientSums<V>{{},
                           Reader<V>(x),
                           Reader<V>(gy),
                           normalize,
                           static_cast<double>(x.count() / axis.size),
                           options.eps,
                           mean_g,
                           slope,
                           gw.defined() ? Writer<V>(gw) : Writer<V>(),
                           gb.defined() ? Writer<V>(gb) : Writer<V>()});
  }
  if (gx.defined()) channel_map<V, 2>("batch_norm", {gy, x}, gx, InputGradient<V>{normalize, mean_g, slope});
}

}  // namespace

void batch_norm_statistics(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var,
                           const BatchNormOptions& options, const Tensor& statistics, bool bounds) {
  const std::shared_ptr<unsigned> largest = bounds && options.training ? new_bound(x) : nullptr;
  x.dtype() == DType::float64
      ? statistics_of<double>(x, weight, bias, running_mean, running_var, options, statistics, nullptr)
      : statistics_of<float>(x, weight, bias, running_mean, running_var, options, statistics, largest.get());
  keep_largest(statistics, largest);
}

void normalize(const Tensor& x, const Prologue& known, const Tensor& y) {
  const auto map = [&]<class V>() {
    channel_map<V, 1>("batch_norm", {x}, y,
                      Normalize<V>{Channels<const V>(known.statistics), {known.negative_slope}});
  };
  x.dtype() == DType::float64 ? map.template operator()<double>() : map.template operator()<float>();
}

void batch_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& statistics,
                         const BatchNormOptions& options, const Tensor& gx, const Tensor& gw,
                         const Tensor& gb) {
  x.dtype() == DType::float64 ? backward<double>(gy, x, statistics, options, gx, gw, gb)
                              : backward<float>(gy, x, statistics, options, gx, gw, gb);
}

}  // namespace tapedeck::cu
