// The rectifier at the end of other ops, and its gradient with the bias's, in one pass over each element.
#include <tapedeck/ops/rectify.h>

#include <tapedeck/ops/rectifier.h>
#include <tapedeck/ops/channels.cuh>

namespace tapedeck::cu {

namespace {

struct Rectify {
  Rectifier rectifier;
  template <class V>
  __device__ __host__ V operator()(V u) const {
    return rectifier.value(u);
  }
};

/// The sums of gu over a channel. Each element is read once, and gu is stored on the way.
template <class V>
struct RectifiedSum {
  using Value = V;
  struct Total {
    double sum;
    unsigned most;  // the largest magnitude
  };
  struct Center {};

  Reader<V> y, gy;
  Writer<V> gu, gb;
  Rectifier rectifier;
  unsigned* largest;  // of gu, or null

  bool is_plain() const requires std::same_as<V, float> {
    return cu::is_plain(y) && cu::is_plain(gy) && gu.dtype == y.dtype;
  }
  __device__ RectifiedSum plain() const {
    RectifiedSum known = *this;
    known.y = cu::plain(y), known.gy = cu::plain(gy), known.gu.dtype = known.y.dtype;
    return known;
  }
  __device__ void read(std::int64_t at, int n, std::int64_t step, bool packed, V (&values)[kVector]) const {
    V ys[kVector];
    read_run(y, at, n, step, packed, ys);
    read_run(gy, at, n, step, packed, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = rectifier.gradient(ys[j], values[j]);
    if (packed) return gu.write(at, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (j < n) gu.write(at + j * step, values[j]);
    }
  }
  __device__ Center center(std::int64_t) const {
    return {};
  }
  __device__ Total start() const {
    return {0, 0};
  }
  __device__ Total add(const Total& total, V value, Center) const {
    return merge(total, {static_cast<double>(value), magnitude(static_cast<float>(value))});
  }
  __device__ Total merge(const Total& a, const Total& b) const {
    return {a.sum + b.sum, ::max(a.most, b.most)};
  }
  __device__ void finish(std::int64_t c, const Total& total) const {
    gb.write(c, static_cast<V>(total.sum));
    if (largest != nullptr) atomicMax(largest, total.most);
  }
};

template <class V>
void gradients(const Tensor& gy, const Tensor& y, double negative_slope, int dim, const Tensor& gu,
               const Tensor& gb) {
  const ChannelLoops loops(Axis::of(y, dim));
  bool aligned = true;
  for (const Tensor* x : {&gy, &y, &gu}) aligned = aligned && is_aligned(x->read(), size_of(x->dtype()));
  const std::shared_ptr<unsigned> largest = new_largest(gu);
  reduce("rectified_gradients", y.device(), loops.kept, loops.reduced, aligned,
         RectifiedSum<V>{
             Reader<V>(y), Reader<V>(gy), Writer<V>(gu), Writer<V>(gb), {negative_slope}, largest.get()});
  keep_largest(gu, largest);
}

}  // namespace

void rectify(const Tensor& y, double negative_slope) {
  map_floating("rectify", Rectify{{negative_slope}}, y, y);
}

void rectified_gradients(const Tensor& gy, const Tensor& y, double negative_slope, int dim, const Tensor& gu,
                         const Tensor& gb) {
  y.dtype() == DType::float64 ? gradients<double>(gy, y, negative_slope, dim, gu, gb)
                              : gradients<float>(gy, y, negative_slope, dim, gu, gb);
}

}  // namespace tapedeck::cu
