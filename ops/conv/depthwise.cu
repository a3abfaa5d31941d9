// Depthwise convolutions: a plane of `to` is made of one plane of `from`.
//
//   to[n, c, o] = bias[c] + sum over taps k that meet o: from[n, c / multiplier, i(o, k)] * w[c, k]
//
// The work is to read and write memory once. A block brings the rows of `from` that a strip of `to` needs
// into shared memory, with zeros around, so that no tap asks whether it is inside; phases (gemm_plan.h) leave
// only taps that count. A thread has one column and kRows rows of a phase:
//
//   from, in shared memory          to
//   0 0 0 0 0 0                     phase 0  | thread 0 | thread 1 | ...   rows 0, s, 2s, ...
//   0 x x x x 0    --- taps --->    phase 1  | ...                         rows 1, s+1, ...
//   0 0 0 0 0 0
//
// so a weight that it reads is multiplied by kRows elements, and neighbouring threads write neighbours. For
// the common kernels, whose phases all have the same taps, loops are unrolled, and an element is read once
// for all results of a thread that it meets.
//
// On an H200, 256 channels of 56x56, kernel 4, stride 2: 0.147 ms (82% of a copy's bandwidth; 0.24 before the
// loops were unrolled), the input's gradient 0.22 ms (54%; depthwise_rows.cu, where it can: 0.135). What
// failed: a row for each warp, which saves the division for an element that is brought, but has fewer loads
// under way (0.17 and 0.39 ms); columns a stride apart side by side, so that the gradient's threads meet
// different banks (0.17 and 0.28 ms, for the divisions).
#include <algorithm>

#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/depthwise.cuh>
#include <tapedeck/ops/conv/depthwise_rows.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::Divider;
using conv_gemm::PhaseAxes;
using conv_gemm::PhaseAxis;
using conv_gemm::Plan;

constexpr int kRows = 8, kBlock = 256, kMostBytes = 44 << 10;

/// The positions of `from` that the taps of an axis reach from result 0 of every phase.
struct Reach {
  explicit Reach(const PhaseAxes& axis) {
    for (int i = 0; i < axis.count; ++i) {
      const PhaseAxis& p = axis.phase[i];
      most = std::max(most, p.count);
      if (p.taps == 0) continue;
      const int end = p.from + (p.taps - 1) * p.tap_from_step;
      low = std::min({low, p.from, end});
      high = std::max({high, p.from, end});
    }
    if (high < low) low = high = 0;
    step = axis.phase[0].from_step;
  }
  int size(int count) const { return high - low + 1 + (count - 1) * step; }
  int low = 1 << 30, high = -(1 << 30), most = 0, step = 1;
};

struct DepthwiseArguments {
  Plan plan;
  const void *from, *w, *bias;
  void* to;
  int to_channels, multiplier, to_w, low_h, low_w;
  int strip, strips;  // results of a phase along h, of a block; blocks
  int pitch, rows;    // of `from` in shared memory
  Divider by_pitch, by_columns;
};

struct Column {
  int from, tap, taps;  // in a row of shared memory; the first tap; their number
};

/// What an item of a thread reads: from `row` down kRows results of kStep rows each, taps kTap rows apart.
template <class V>
struct Window {
  const V *row, *weight;
  int pitch, kernel_w;     // of the plane and of weights
  int tap_w, weight_step;  // between taps along w, in each
  int weight_step_h;       // between taps along h
};

/// sums += the products with kH x kW taps. An element is read once for all results and taps that meet it.
template <int kH, int kW, int kStep, int kTap, class V>
__device__ __forceinline__ void accumulate(const Window<V>& window, V (&sums)[kRows]) {
  constexpr int kFirst = kTap < 0 ? (kH - 1) * kTap : 0,
                kLast = (kRows - 1) * kStep + (kTap > 0 ? (kH - 1) * kTap : 0);
#pragma unroll
  for (int jw = 0; jw < kW; ++jw) {
    V factors[kH];
#pragma unroll
    for (int jh = 0; jh < kH; ++jh)
      factors[jh] = window.weight[jh * window.weight_step_h * window.kernel_w + jw * window.weight_step];
    const V* const source = window.row + jw * window.tap_w;
#pragma unroll
    for (int q = kFirst; q <= kLast; ++q) {
      const V value = source[q * window.pitch];
#pragma unroll
      for (int jh = 0; jh < kH; ++jh) {
        const int r = (q - jh * kTap) / kStep;
        if (q - jh * kTap == r * kStep && r >= 0 && r < kRows) sums[r] += value * factors[jh];
      }
    }
  }
}

/// kH = 0: any taps, else as many in every phase, kStep and kTap as in accumulate().
template <class T, int kH, int kW, int kStep, int kTap>
__global__ void __launch_bounds__(kBlock) depthwise_kernel(const __grid_constant__ DepthwiseArguments call) {
  using V = accumulate_t<T>;
  extern __shared__ uint4 shared[];
  await_previous<false>();
  const Plan& p = call.plan;
  V* const plane = reinterpret_cast<V*>(shared);
  V* const weights = plane + call.rows * call.pitch;
  Column* const columns = reinterpret_cast<Column*>(weights + p.kernel_h * p.kernel_w);

  const int strip = static_cast<int>(blockIdx.x % call.strips);
  const std::int64_t image_channel = blockIdx.x / call.strips;
  const int image = static_cast<int>(image_channel / call.to_channels),
            channel = static_cast<int>(image_channel - std::int64_t{image} * call.to_channels);
  const int begin = strip * call.strip, taps = p.kernel_h * p.kernel_w;
  const int step_h = p.h.phase[0].from_step, tap_h = p.h.phase[0].tap_from_step;
  const int tap_w = p.w.phase[0].tap_from_step, tap_step_w = p.w.phase[0].tap_step;

  const T* const from = static_cast<const T*>(call.from) + image * p.from.n +
                        static_cast<std::int64_t>(channel / call.multiplier) * p.from.c;
  const int first_h = call.low_h + begin * step_h;
#pragma unroll 8
  for (int i = threadIdx.x; i < call.rows * call.pitch; i += kBlock) {
    const int row = call.by_pitch.divide(i), h = first_h + row, w = call.low_w + call.by_pitch.modulo(i, row);
    const bool inside = static_cast<unsigned>(h) < static_cast<unsigned>(p.from_h) &&
                        static_cast<unsigned>(w) < static_cast<unsigned>(p.from_w);
    plane[i] = inside ? convert<V>(from[h * p.from.h + w]) : V(0);
  }
  for (int k = threadIdx.x; k < taps; k += kBlock) {
    weights[k] = convert<V>(static_cast<const T*>(call.w)[static_cast<std::int64_t>(channel) * taps + k]);
  }
  for (int x = threadIdx.x; x < call.to_w; x += kBlock) {
    const int step = p.w.phase[0].to_step, at = x / step;
    Column column{0, 0, 0};
    for (int j = 0; j < p.w.count; ++j) {
      const PhaseAxis& w = p.w.phase[j];
      if (w.to == x - at * step) column = {w.from + at * w.from_step - call.low_w, w.tap, w.taps};
    }
    columns[x] = column;
  }
  __syncthreads();

  const V start = call.bias == nullptr ? V(0) : convert<V>(static_cast<const T*>(call.bias)[channel]);
  T* const to = static_cast<T*>(call.to) + image * p.to.n + static_cast<std::int64_t>(channel) * p.to.c;
  const int groups = (call.strip + kRows - 1) / kRows;
  for (int item = threadIdx.x; item < call.to_w * groups * p.h.count; item += kBlock) {
    const int rest = call.by_columns.divide(item), x = call.by_columns.modulo(item, rest);
    const int i = rest % p.h.count, first = begin + rest / p.h.count * kRows;
    const PhaseAxis& h = p.h.phase[i];
    const Column column = columns[x];
    V sums[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] = start;
    const V* row = plane + (h.from + first * step_h - first_h) * call.pitch + column.from;
    const V* weight = weights + h.tap * p.kernel_w + column.tap;
    if constexpr (kH > 0) {
      accumulate<kH, kW, kStep, kTap>(
          Window<V>{row, weight, call.pitch, p.kernel_w, tap_w, tap_step_w, h.tap_step}, sums);
    } else {
      for (int jh = 0; jh < h.taps; ++jh) {
        for (int jw = 0; jw < column.taps; ++jw) {
          const V factor = weight[jw * tap_step_w];
          const V* const source = row + jw * tap_w;
#pragma unroll
          for (int r = 0; r < kRows; ++r) sums[r] += source[r * step_h * call.pitch] * factor;
        }
        row += tap_h * call.pitch;
        weight += h.tap_step * p.kernel_w;
      }
    }
    const int rows = min(h.count, begin + call.strip) - first;
    T* out = to + static_cast<std::int64_t>(h.to + first * h.to_step) * p.to.h +
             static_cast<std::int64_t>(x) * p.to.w;
    const std::int64_t step = static_cast<std::int64_t>(h.to_step) * p.to.h;
#pragma unroll
    for (int r = 0; r < kRows; ++r, out += step) {
      if (r < rows) *out = convert<T>(sums[r]);
    }
  }
}

/// Whether each phase has kH x kW taps, and their steps are as depthwise_kernel wants them.
bool is_regular(const Plan& p, int kh, int kw, int step, int tap) {
  for (int i = 0; i < p.h.count; ++i) {
    const PhaseAxis& a = p.h.phase[i];
    if (a.taps != kh || a.from_step != step || a.tap_from_step != tap) return false;
  }
  for (int j = 0; j < p.w.count; ++j) {
    if (p.w.phase[j].taps != kw) return false;
  }
  return true;
}

/// The arguments but for tensors and strides, or `strip` 0 where shared memory is too small.
DepthwiseArguments arguments_of(const ConvTranspose2dGeometry& g, bool transposed, DType dtype) {
  DepthwiseArguments a{};
  a.plan = Plan(g, transposed, static_cast<int>(size_of(dtype)));
  a.to_channels = static_cast<int>(transposed ? g.co : g.ci);
  a.multiplier = transposed ? static_cast<int>(g.group_co()) : 1;
  a.to_w = static_cast<int>(transposed ? g.w.out : g.w.in);
  const Reach h(a.plan.h), w(a.plan.w);
  a.low_h = h.low, a.low_w = w.low;
  const std::int64_t bytes = dtype == DType::float64 ? 8 : 4;
  const std::int64_t rest = bytes * g.h.kernel * g.w.kernel + std::int64_t{sizeof(Column)} * a.to_w;
  const std::int64_t pitch = w.high - w.low + 1 + (std::int64_t{w.most} - 1) * w.step;
  // Rows that a thread has beyond the strip's last are computed, too, and forgotten.
  const auto padded = [](int strip) { return static_cast<int>(ceil_div(strip, kRows) * kRows); };
  int strip = h.most;
  while (strip > 0 && h.size(padded(strip)) * pitch * bytes + rest > kMostBytes)
    strip = strip <= kRows ? 0 : padded(strip / 2);
  if (strip == 0) return a;
  a.strip = strip;
  a.strips = static_cast<int>(ceil_div(h.most, strip));
  a.pitch = static_cast<int>(pitch);
  a.rows = h.size(padded(strip));
  a.by_pitch = Divider(a.pitch);
  a.by_columns = Divider(a.to_w);
  return a;
}

}  // namespace

bool depthwise_fits(const ConvTranspose2dGeometry& g, bool transposed, Layout from, DType dtype) {
  return conv_gemm::positions_fit(g) && g.group_ci() == 1 && (transposed || g.group_co() == 1) &&
         from == Layout::nchw && g.n > 0 && arguments_of(g, transposed, dtype).strip > 0;
}

void depthwise(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to) {
  const DeviceScope scope(to.device());
  if (depthwise_rows(g, transposed, from, w, bias, to)) return;
  DepthwiseArguments call = arguments_of(g, transposed, to.dtype());
  call.plan.from = conv_gemm::ImageStrides(from.strides());
  call.plan.to = conv_gemm::ImageStrides(to.strides());
  call.from = from.raw();
  call.w = w.raw();
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.to = to.raw();
  visit_floating("conv", to.dtype(), [&]<class T>() {
    const std::size_t bytes =
        sizeof(accumulate_t<T>) *
            static_cast<std::size_t>(call.rows * call.pitch + call.plan.kernel_h * call.plan.kernel_w) +
        sizeof(Column) * static_cast<std::size_t>(call.to_w);
    const auto launch = [&]<int kH, int kW, int kStep, int kTap>() {
      launch_kernel_with_shared("conv: depthwise", to.device(), depthwise_kernel<T, kH, kW, kStep, kTap>,
                                grid_size("conv", to.size(0) * to.size(1) * call.strips), kBlock,
                                static_cast<int>(bytes), call);
    };
    if (is_regular(call.plan, 2, 2, 1, -1))
      return launch.template operator()<2, 2, 1, -1>();                                      // 4x4, stride 2
    if (is_regular(call.plan, 4, 4, 2, 1)) return launch.template operator()<4, 4, 2, 1>();  // its gradient
    if (is_regular(call.plan, 3, 3, 1, -1))
      return launch.template operator()<3, 3, 1, -1>();  // 3x3, stride 1
    if (is_regular(call.plan, 3, 3, 1, 1)) return launch.template operator()<3, 3, 1, 1>();
    launch.template operator()<0, 0, 1, 1>();
  });
}

}  // namespace tapedeck::cu
