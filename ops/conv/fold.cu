// Weights of folded images, and back: they are small, a thread has one each.
#include <cstdint>

#include <tapedeck/core/convert.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/fold.cuh>

namespace tapedeck::cu::conv_gemm {

namespace {

/// Weights [ci][co][kh][kw] in memory.
struct Weights {
  explicit Weights(const Tensor& w)
      : ci(static_cast<int>(w.size(0))),
        co(static_cast<int>(w.size(1))),
        kh(static_cast<int>(w.size(2))),
        kw(static_cast<int>(w.size(3))),
        last(w.layout() == Layout::nhwc) {}
  __device__ std::int64_t at(int i, int o, int h, int k) const {
    return last ? ((static_cast<std::int64_t>(i) * kh + h) * kw + k) * co + o
                : ((static_cast<std::int64_t>(i) * co + o) * kh + h) * kw + k;
  }
  int ci, co, kh, kw;
  bool last;
};

struct FoldArguments {
  Fold fold;
  Weights w;  // as they are
  bool x_by_channels = false, y_by_channels = false, bias_by_channels = false;
  int count = 0, biases = 0, of_bias = 0;  // of all folded; `of_bias` as they are
};

/// T: an unsigned integer of an element's size.
template <class T>
__global__ void __launch_bounds__(kThreads)
    fold_weight_kernel(const __grid_constant__ FoldArguments a, const T* w, const T* bias, T* folded,
                       T* folded_bias) {
  await_previous();
  const Fold& fold = a.fold;
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i < a.count) {
    const int y_channels = fold.y * a.w.co, y = i % y_channels, t = i / y_channels % fold.taps,
              row = i / y_channels / fold.taps, h = row % a.w.kh, x = row / a.w.kh;
    const int f = a.x_by_channels ? x % fold.x : x / a.w.ci, ci = a.x_by_channels ? x / fold.x : x % a.w.ci,
              e = a.y_by_channels ? y % fold.y : y / a.w.co, co = a.y_by_channels ? y / fold.y : y % a.w.co;
    const int k = fold.tap_of(t, e, f);
    folded[i] = k < 0 ? T{0} : w[a.w.at(ci, co, h, k)];
  } else if (i < a.count + a.biases) {
    const int m = i - a.count;
    folded_bias[m] = bias[a.bias_by_channels ? m / (a.biases / a.of_bias) : m % a.of_bias];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    unfold_weight_grad_kernel(const __grid_constant__ FoldArguments a, const float* folded, T* w) {
  await_previous();
  const Fold& fold = a.fold;
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= a.count) return;
  const int k = i % a.w.kw, h = i / a.w.kw % a.w.kh, pair = i / a.w.kw / a.w.kh, co = pair % a.w.co,
            ci = pair / a.w.co;
  float sum = 0;
  for (int f = 0; f < fold.x; ++f)
    for (int e = 0; e < fold.y; ++e) {
      const int t = fold.folded_tap(k, e, f);
      if (t < 0) continue;
      const std::int64_t line =
          static_cast<std::int64_t>(f * a.w.ci + ci) * fold.y * a.w.co + e * a.w.co + co;
      sum += folded[(line * a.w.kh + h) * fold.taps + t];
    }
  w[a.w.at(ci, co, h, k)] = convert<T>(sum);
}

}  // namespace

FoldedWeight::FoldedWeight(const ConvTranspose2dGeometry& g, const Fold& fold, bool transposed,
                           FoldedChannels to, const Tensor& w, const Tensor& of_bias) {
  const Shape shape = fold.of(g).weight_shape();
  weight = Tensor::empty(shape, {.dtype = w.dtype(), .device = w.device(), .layout = Layout::nhwc});
  FoldArguments a{fold, Weights(w)};
  const bool by_channels = to == FoldedChannels::by_channels;
  a.x_by_channels = by_channels && !transposed, a.y_by_channels = by_channels && transposed;
  a.bias_by_channels = by_channels;
  a.count = static_cast<int>(shape.count());
  if (of_bias.defined()) {
    a.of_bias = static_cast<int>(of_bias.count());
    a.biases = a.of_bias * (transposed ? fold.y : fold.x);
    bias = Tensor::empty({a.biases}, {.dtype = w.dtype(), .device = w.device()});
  }
  const auto launch = [&]<class T>() {
    const auto elements = [](const Tensor& t) {
      return t.defined() ? static_cast<const T*>(t.read()) : nullptr;
    };
    launch_kernel("conv: fold weights", w.device(), fold_weight_kernel<T>,
                  grid_size("conv", ceil_div(a.count + a.biases, kThreads)), kThreads, a, elements(w),
                  elements(of_bias), static_cast<T*>(weight.raw()),
                  bias.defined() ? static_cast<T*>(bias.raw()) : nullptr);
  };
  size_of(w.dtype()) == 2 ? launch.template operator()<std::uint16_t>()
                          : launch.template operator()<std::uint32_t>();
}

void unfold_weight_grad(const Fold& fold, const Tensor& folded, const Tensor& w) {
  FoldArguments a{fold, Weights(w)};
  a.count = static_cast<int>(w.count());
  const auto launch = [&]<class T>() {
    launch_kernel("conv: unfold weights", w.device(), unfold_weight_grad_kernel<T>,
                  grid_size("conv", ceil_div(a.count, kThreads)), kThreads, a,
                  static_cast<const float*>(folded.read()), static_cast<T*>(w.raw()));
  };
  if (w.dtype() == DType::bfloat16) return launch.template operator()<bfloat16>();
  if (w.dtype() == DType::float16) return launch.template operator()<float16>();
  launch.template operator()<float>();
}

}  // namespace tapedeck::cu::conv_gemm
