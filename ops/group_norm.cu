// Group and layer normalisation; the formulas are those of ops/group_norm.cpp.
#include <cmath>

#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/channels.cuh>

namespace tapedeck::cu {

namespace {

/// x as [samples, groups, width, pixels], in the strides of its layout.
struct Groups {
  std::int64_t samples, groups, width, pixels;
  std::int64_t channels, channel_step, pixel_step;  // steps in memory

  Groups(const Tensor& x, std::int64_t count)
      : samples(x.size(0)), groups(count), width(x.size(1) / count), channels(x.size(1)) {
    const Axis axis = Axis::of(x, 1);
    pixels = x.count() / (samples * channels);
    channel_step = axis.inner;
    pixel_step = axis.inner > 1 ? 1 : channels;
  }

  std::int64_t sample_size() const { return channels * pixels; }
  double size() const { return static_cast<double>(width * pixels); }

  /// Results [samples, groups], terms [width, pixels].
  StridedLoop<2> kept_groups() const {
    return StridedLoop<2>::over(Shape{samples, groups},
                                {Strides{sample_size(), width * channel_step}, Strides{groups, 1}});
  }
  StridedLoop<1> group_terms() const {
    return StridedLoop<1>::over(Shape{width, pixels}, {Strides{channel_step, pixel_step}});
  }
  /// Results [channels], terms [samples, pixels].
  StridedLoop<2> kept_channels() const {
    return StridedLoop<2>::over(Shape{channels}, {Strides{channel_step}, Strides{1}});
  }
  StridedLoop<1> channel_terms() const {
    return StridedLoop<1>::over(Shape{samples, pixels}, {Strides{sample_size(), pixel_step}});
  }

  __device__ std::int64_t sample_of(std::int64_t at) const { return at / (channels * pixels); }
  __device__ std::int64_t channel_of(std::int64_t at) const {
    return channel_step > 1 ? at / pixels % channels : at % channels;
  }
};

struct FirstOfGroup {
  std::int64_t groups, sample_size, group_step;
  __device__ std::int64_t operator()(std::int64_t i) const {
    return i / groups * sample_size + i % groups * group_step;
  }
};

template <class V>
struct StoreMoments {
  V *mean, *var, *scale;  // scale: 1 / sqrt(var + eps)
  double eps;
  __device__ void operator()(std::int64_t i, double m, double v) const {
    mean[i] = static_cast<V>(m);
    var[i] = static_cast<V>(v);
    scale[i] = static_cast<V>(1 / sqrt(static_cast<double>(static_cast<V>(v)) + eps));
  }
};

template <class V>
struct Apply {
  Groups groups;
  const V *mean, *scale;
  Parameter<V> weight, bias;
  std::int64_t rows;  // outer indices of a sample: 1, or in NHWC its pixels

  __device__ V operator()(std::int64_t row, std::int64_t c, const V (&in)[1]) const {
    const std::int64_t i = row / rows * groups.groups + c / groups.width;
    return (in[0] - mean[i]) * (scale[i] * weight[c]) + bias[c];
  }
};

template <class V>
void forward(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& mean,
             const Tensor& var, const Tensor& y) {
  const Groups groups(x, mean.size(1));
  const Workspace<V> scales(x.device(), mean.count());
  reduce("group_norm", x.device(), groups.kept_groups(), groups.group_terms(),
         is_aligned(x.read(), size_of(x.dtype())),
         Moments<V, FirstOfGroup, StoreMoments<V>>{
             {},
             Reader<V>(x),
             {groups.groups, groups.sample_size(), groups.width * groups.channel_step},
             groups.size(),
             {mean.data<V>(), var.data<V>(), scales.data(), eps}});
  channel_map<V, 1>("group_norm", {x}, y,
                    Apply<V>{groups, mean.data<V>(), scales.data(), Parameter<V>(weight, 1),
                             Parameter<V>(bias, 0), Axis::of(x, 1).outer / groups.samples});
}

/// What a term of the gradients' sums is made of.
template <class V>
struct Term {
  V x, g;
  std::int64_t at;
};

template <class V>
__device__ __forceinline__ void read_terms(const Reader<V>& x, const Reader<V>& gy, std::int64_t at, int n,
                                           std::int64_t step, bool packed, Term<V> (&values)[kVector]) {
  V xs[kVector], gs[kVector];
  read_run(x, at, n, step, packed, xs);
  read_run(gy, at, n, step, packed, gs);
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] = {xs[j], gs[j], at + j * step};
}

/// For each group the sums of t and t * (x - mean), t = gy * w.
template <class V>
struct GroupSums : SumsReduction {
  using Value = Term<V>;
  using Center = V;

  Reader<V> x, gy;
  Groups groups;
  Parameter<V> weight;
  const V *mean, *var;
  double eps;
  V *mean_t, *slope, *scale;

  __device__ void read(std::int64_t at, int n, std::int64_t step, bool packed,
                       Value (&values)[kVector]) const {
    read_terms(x, gy, at, n, step, packed, values);
  }
  __device__ V center(std::int64_t i) const { return mean[i]; }
  __device__ Sums add(const Sums& total, const Value& value, V m) const {
    const V w = weight.defined ? weight[groups.channel_of(value.at)] : V(1);
    const double t = static_cast<double>(value.g) * static_cast<double>(w);
    return {total.a + t, total.b + t * static_cast<double>(value.x - m)};
  }
  __device__ void finish(std::int64_t i, const Sums& total) const {
    const double r = 1 / sqrt(static_cast<double>(var[i]) + eps);
    const double size = static_cast<double>(groups.width * groups.pixels);
    scale[i] = static_cast<V>(r);
    mean_t[i] = static_cast<V>(total.a / size);
    slope[i] = static_cast<V>(total.b / size * r * r);
  }
};

/// For each channel the sums of gy and gy * xhat.
template <class V>
struct ParameterSums : SumsReduction {
  using Value = Term<V>;
  using Center = std::int64_t;  // the channel's group

  Reader<V> x, gy;
  Groups groups;
  const V* mean;
  const double* scale;  // 1 / sqrt(var + eps)
  Writer<V> gw, gb;     // null data: not wanted

  __device__ void read(std::int64_t at, int n, std::int64_t step, bool packed,
                       Value (&values)[kVector]) const {
    read_terms(x, gy, at, n, step, packed, values);
  }
  __device__ std::int64_t center(std::int64_t c) const { return c / groups.width; }
  __device__ Sums add(const Sums& total, const Value& value, std::int64_t group) const {
    const std::int64_t i = groups.sample_of(value.at) * groups.groups + group;
    const double g = static_cast<double>(value.g);
    return {total.a + g, total.b + g * static_cast<double>(value.x - mean[i]) * scale[i]};
  }
  __device__ void finish(std::int64_t c, const Sums& total) const {
    if (gb.data != nullptr) gb.write(c, static_cast<V>(total.a));
    if (gw.data != nullptr) gw.write(c, static_cast<V>(total.b));
  }
};

template <class V>
void make_scales(const V* var, std::int64_t count, double eps, Device device, double* scales) {
  for_each("group_norm", device, count,
           [=] __device__(std::int64_t i) { scales[i] = 1 / sqrt(static_cast<double>(var[i]) + eps); });
}

template <class V>
struct InputGradient {
  Groups groups;
  Parameter<V> weight;
  const V *mean, *mean_t, *slope, *scale;
  std::int64_t rows;

  __device__ V operator()(std::int64_t row, std::int64_t c, const V (&in)[2]) const {
    const std::int64_t i = row / rows * groups.groups + c / groups.width;
    return (in[0] * weight[c] - mean_t[i] - (in[1] - mean[i]) * slope[i]) * scale[i];
  }
};

template <class V>
void backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& var,
              double eps, const Tensor& gx, const Tensor& gw, const Tensor& gb) {
  const Groups groups(x, mean.size(1));
  const bool aligned = is_aligned(x.read(), size_of(x.dtype())) && is_aligned(gy.read(), size_of(gy.dtype()));
  if (gw.defined() || gb.defined()) {
    const Workspace<double> scales(x.device(), mean.count());
    make_scales(var.data<V>(), var.count(), eps, x.device(), scales.data());
    reduce("group_norm", x.device(), groups.kept_channels(), groups.channel_terms(), aligned,
           ParameterSums<V>{{},
                            Reader<V>(x),
                            Reader<V>(gy),
                            groups,
                            mean.data<V>(),
                            scales.data(),
                            gw.defined() ? Writer<V>(gw) : Writer<V>(),
                            gb.defined() ? Writer<V>(gb) : Writer<V>()});
  }
  if (!gx.defined()) return;
  const std::int64_t count = mean.count();
  const Workspace<V> sums(x.device(), 3 * count);
  V *const mean_t = sums.data(), *const slope = mean_t + count, *const scale = slope + count;
  const Parameter<V> w(weight, 1);
  reduce("group_norm", x.device(), groups.kept_groups(), groups.group_terms(), aligned,
         GroupSums<V>{{},
                      Reader<V>(x),
                      Reader<V>(gy),
                      groups,
                      w,
                      mean.data<V>(),
                      var.data<V>(),
                      eps,
                      mean_t,
                      slope,
                      scale});
  channel_map<V, 2>("group_norm", {gy, x}, gx,
                    InputGradient<V>{groups, w, mean.data<V>(), mean_t, slope, scale,
                                     Axis::of(x, 1).outer / groups.samples});
}

}  // namespace

void group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps, const Tensor& mean,
                const Tensor& var, const Tensor& y) {
  x.dtype() == DType::float64 ? forward<double>(x, weight, bias, eps, mean, var, y)
                              : forward<float>(x, weight, bias, eps, mean, var, y);
}

void group_norm_backward(const Tensor& gy, const Tensor& x, const Tensor& weight, const Tensor& mean,
                         const Tensor& var, double eps, const Tensor& gx, const Tensor& gw,
                         const Tensor& gb) {
  x.dtype() == DType::float64 ? backward<double>(gy, x, weight, mean, var, eps, gx, gw, gb)
                              : backward<float>(gy, x, weight, mean, var, eps, gx, gw, gb);
}

}  // namespace tapedeck::cu
