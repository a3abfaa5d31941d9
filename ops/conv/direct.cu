// Direct kernels, for few channels a group or little work a byte: sums in registers, weights in shared
// memory. (What direct_plain_fits() tells of conv2d of nchw images has kernels of its own, direct_plain.cu.)
//
// Phases are those of gemm_plan.h. A block has rows of one row phase and all column phases side by side, so
// that neighbouring threads write neighbouring elements of an nchw result. A thread has one column, kRows
// rows and kChannels channels of `to`: an element that it reads is multiplied by kChannels weights, a weight
// by kRows elements.
#include <tapedeck/ops/conv/gemm_plan.h>
#include <algorithm>

#include <tapedeck/ops/conv/direct_plain.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/direct.cuh>
#include <tapedeck/ops/conv/thin.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::PhaseAxis;
using conv_gemm::Plan;

constexpr int kRows = 4, kBlock = 256;

struct DirectArguments {
  Plan plan;
  const void *from, *w, *bias;
  void* to;
  int to_h, to_w;
  int columns, rows;              // threads of a block along each: columns * rows = kBlock
  int tiles_w, tiles_h, tiles_c;  // of a phase and a group
  int chunk;                      // channels of `from` whose weights are in shared memory at once
};

template <class T, int kChannels>
__global__ void __launch_bounds__(kBlock, sizeof(accumulate_t<T>) == 4 ? 2 : 1)
    direct_kernel(const __grid_constant__ DirectArguments call) {
  using V = accumulate_t<T>;
  using Weights = Pack<V, kChannels>;
  extern __shared__ uint4 shared[];
  await_previous<false>();
  Weights* const weights = reinterpret_cast<Weights*>(shared);
  const Plan& p = call.plan;

  int rest = blockIdx.x;
  const auto next = [&rest](int count) {
    const int quotient = rest / count, index = rest - quotient * count;
    rest = quotient;
    return index;
  };
  const int i = next(p.h.count), tile_w = next(call.tiles_w), tile_h = next(call.tiles_h);
  const int first_channel = next(call.tiles_c) * kChannels, group = next(p.groups), image = rest;
  const PhaseAxis& h = p.h.phase[i];
  const int first_row = tile_h * call.rows * kRows;
  if (first_row >= h.count) return;

  // This thread's column, the phase it belongs to, and its first row.
  const int column = tile_w * call.columns + static_cast<int>(threadIdx.x) % call.columns;
  const int row = first_row + static_cast<int>(threadIdx.x) / call.columns;
  const int step = p.w.phase[0].to_step, at = column / step, residue = column - at * step;
  int taps_w = 0, from_w = 0, tap_w = 0;
  for (int j = 0; j < p.w.count; ++j) {
    const PhaseAxis& w = p.w.phase[j];
    if (w.to == residue && column < call.to_w) {
      taps_w = w.taps;
      tap_w = w.tap;
      from_w = w.from + at * w.from_step;
    }
  }
  const int tap_from_step_w = p.w.phase[0].tap_from_step, tap_step_w = p.w.phase[0].tap_step;

  const T* const from = static_cast<const T*>(call.from) + image * p.from.n +
                        static_cast<std::int64_t>(group) * p.from_channels * p.from.c;
  V sums[kRows][kChannels] = {};
  if (h.taps > 0) {
    for (int begin = 0; begin < p.from_channels; begin += call.chunk) {
      const int channels = min(call.chunk, p.from_channels - begin);
      if (begin > 0) __syncthreads();
      for (int k = threadIdx.x; k < channels * h.taps * p.kernel_w; k += kBlock) {
        const int kw = k % p.kernel_w, c = k / p.kernel_w % channels, jh = k / p.kernel_w / channels;
        Weights pack;
#pragma unroll
        for (int m = 0; m < kChannels; ++m) {
          const bool inside = first_channel + m < p.to_channels;
          pack.values[m] = inside ? convert<V>(static_cast<const T*>(call.w)[p.weight_index(
                                        group, begin + c, first_channel + m, h.tap + jh * h.tap_step, kw)])
                                  : V(0);
        }
        weights[(jh * p.kernel_w + kw) * channels + c] = pack;
      }
      __syncthreads();
      for (int jh = 0; jh < h.taps; ++jh) {
        int place[kRows];  // of the row in an image of `from`, or -1
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          const int y = h.from + (row + r * call.rows) * h.from_step + jh * h.tap_from_step;
          const bool inside = row + r * call.rows < h.count && y >= 0 && y < p.from_h;
          place[r] = inside ? y * p.from.h + begin * p.from.c : -1;
        }
        for (int jw = 0; jw < taps_w; ++jw) {
          const int x = from_w + jw * tap_from_step_w;
          if (x < 0 || x >= p.from_w) continue;
          const Weights* const of_tap = weights + (jh * p.kernel_w + tap_w + jw * tap_step_w) * channels;
          const T* const source = from + x * p.from.w;
          // Several loads are under way at once.
#pragma unroll 4
          for (int c = 0; c < channels; ++c) {
            V values[kRows];
#pragma unroll
            for (int r = 0; r < kRows; ++r) {
              values[r] = place[r] >= 0 ? convert<V>(source[place[r] + c * p.from.c]) : V(0);
            }
            const Weights weight = of_tap[c];
#pragma unroll
            for (int r = 0; r < kRows; ++r)
#pragma unroll
              for (int m = 0; m < kChannels; ++m) sums[r][m] += values[r] * weight.values[m];
          }
        }
      }
    }
  }

  if (column >= call.to_w) return;
  const int channel = group * p.to_channels + first_channel,
            channels = min(kChannels, p.to_channels - first_channel);
  T* const to = static_cast<T*>(call.to) + image * p.to.n + static_cast<std::int64_t>(channel) * p.to.c +
                static_cast<std::int64_t>(column) * p.to.w;
#pragma unroll
  for (int m = 0; m < kChannels; ++m) {
    if (m >= channels) break;
    const V start = call.bias == nullptr ? V(0) : convert<V>(static_cast<const T*>(call.bias)[channel + m]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int a = row + r * call.rows;
      if (a < h.count) to[m * p.to.c + (h.to + a * h.to_step) * p.to.h] = convert<T>(sums[r][m] + start);
    }
  }
}

template <class T, int kChannels>
void launch(DirectArguments& call, const Tensor& to) {
  const Plan& p = call.plan;
  const int most_taps = p.h.most_taps();
  int most_rows = 0;
  for (int i = 0; i < p.h.count; ++i) most_rows = std::max(most_rows, p.h.phase[i].count);
  // Few columns beyond the last, and no fewer than a warp has threads.
  call.columns = 32;
  while (call.columns < 128 &&
         ceil_div(call.to_w, 2 * call.columns) * 2 * call.columns <= call.to_w + call.to_w / 8) {
    call.columns *= 2;
  }
  call.rows = kBlock / call.columns;
  call.tiles_w = static_cast<int>(ceil_div(call.to_w, call.columns));
  call.tiles_h = static_cast<int>(ceil_div(most_rows, call.rows * kRows));
  call.tiles_c = static_cast<int>(ceil_div(p.to_channels, kChannels));
  const int channel_bytes =
      std::max(1, most_taps * p.kernel_w) * static_cast<int>(sizeof(accumulate_t<T>)) * kChannels;
  constexpr int kMostBytes = 32 << 10;
  call.chunk = std::clamp(kMostBytes / channel_bytes, 1, p.from_channels);
  const std::int64_t blocks =
      static_cast<std::int64_t>(p.h.count) * call.tiles_w * call.tiles_h * call.tiles_c * p.groups * p.n;
  launch_kernel_with_shared("conv: direct", to.device(), direct_kernel<T, kChannels>,
                            grid_size("conv", blocks), kBlock, call.chunk * channel_bytes, call);
}

}  // namespace

bool direct_fits(const ConvTranspose2dGeometry& g) {
  return conv_gemm::fits(g) &&
         g.h.kernel * g.w.kernel <= conv_direct::kMostTaps;  // a channel's weights are in shared memory
}

void direct(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
            const Tensor& bias, const Tensor& to) {
  if (thin_fits(g, to.dtype(), from.layout(), to.layout())) return thin(g, transposed, from, w, bias, to);
  if (!transposed && direct_plain_fits(g, to.dtype(), from.layout()))
    return direct_plain(g, from, w, bias, to);
  const DeviceScope scope(to.device());
  DirectArguments call{};
  call.plan = Plan(g, transposed, static_cast<int>(size_of(to.dtype())));
  call.plan.from = conv_gemm::ImageStrides(from.strides());
  call.plan.to = conv_gemm::ImageStrides(to.strides());
  call.from = from.raw();
  call.w = w.raw();
  call.bias = bias.defined() ? bias.raw() : nullptr;
  call.to = to.raw();
  call.to_h = static_cast<int>(to.size(2));
  call.to_w = static_cast<int>(to.size(3));
  visit_floating("conv", to.dtype(), [&]<class T>() {
    const int channels = call.plan.to_channels;
    if (channels == 1) return launch<T, 1>(call, to);
    if (channels <= 4) return launch<T, 4>(call, to);
    if (channels <= 8) return launch<T, 8>(call, to);
    launch<T, 16>(call, to);
  });
}

}  // namespace tapedeck::cu
