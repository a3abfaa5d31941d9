// Sums over all but the channels, and their way back.
#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv/family.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck {

namespace {

struct ChannelBroadcast final : Op {
  ChannelBroadcast(const Shape& shape, Layout layout) : shape_(shape), layout_(layout) {}
  const char* name() const override { return "channel_broadcast"; }
  Tensors forward(OpContext&, const Tensors& in) override {
    Tensor out = Tensor::empty(shape_, {in[0].dtype(), in[0].device(), layout_});
    if (out.count() > 0) {
      TAPEDECK_KERNEL(out.device(), expand)(in[0].reshape({in[0].count(), 1, 1}), 1, out);
    }
    return {out};
  }
  Variables backward(const OpContext&, const Variables& g) override { return {detail::channel_sum(g[0])}; }

 private:
  Shape shape_;
  Layout layout_;
};

struct ChannelSum final : Op {
  const char* name() const override { return "channel_sum"; }
  Tensors forward(OpContext&, const Tensors& in) override {
    const std::int64_t channels = in[0].size(-3);
    const TensorOptions options{in[0].dtype(), in[0].device()};
    if (in[0].count() == 0) return {Tensor::zeros({channels}, options)};
    Tensor out = Tensor::empty({channels}, options);
    TAPEDECK_KERNEL(out.device(), channel_sum)(detail::images(in[0], in[0].layout()), out);
    return {out};
  }
  Variables backward(const OpContext& c, const Variables& g) override {
    return {call<ChannelBroadcast>({g[0]}, c.input_shape(0), c.input_options(0).layout)};
  }
};

}  // namespace

Variable detail::channel_sum(const Variable& x) {
  return call<ChannelSum>({x});
}

namespace cpu {

void channel_sum(const Tensor& x, const Tensor& out) {
  visit_floating("channel_sum", x.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* to = out.data<T>();
    const std::int64_t images = x.size(0), channels = x.size(1), pixels = x.size(2) * x.size(3);
    const bool planar = x.layout() == Layout::nchw;
    const std::int64_t step = planar ? 1 : channels;
    parallel_for(channels, 1 + (1 << 14) / (images * pixels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        constexpr int kLanes = 8;  // independent sums, so that additions need not wait for each other
        double sums[kLanes] = {};
        for (std::int64_t n = 0; n < images; ++n) {
          const T* from = in + n * channels * pixels + c * (planar ? pixels : 1);
          std::int64_t p = 0;
          for (; p + kLanes <= pixels; p += kLanes) {
            for (int lane = 0; lane < kLanes; ++lane) sums[lane] += convert<double>(from[(p + lane) * step]);
          }
          for (; p < pixels; ++p) sums[0] += convert<double>(from[p * step]);
        }
        double sum = 0;
        for (double s : sums) sum += s;
        to[c] = convert<T>(sum);
      }
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
