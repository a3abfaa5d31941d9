// Depthwise convolutions with channels last: a vector of channels a thread.
//
//   to[n, o, c] = bias[c] + sum over taps k that meet o: from[n, i(o, k), c / multiplier] * w[c, k]
//
// Neighbouring threads have neighbouring channels, so that every load and store is of whole lines. A thread
// has a column of `to` and goes down its rows; the weights of a column's taps are in registers for the common
// kernels, else they are read from shared memory. What threads of a block read of `from`, they read again for
// other taps and columns: the first-level cache has it, as a block's columns are few. On an H200, 256
// channels of 56x56 to 112x112: 0.18 ms and 0.16 back (67 and 74% of a copy's bandwidth; 0.26 and 0.19 with a
// phase after the other and 128 channels a block in both), in bfloat16 0.16 and 0.18.
//
//   block:  | column 0: channels 0 1 2 3 ... | column 1: ... | ...     each goes down `strip` rows
#include <algorithm>

#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/depthwise.cuh>
#include <tapedeck/ops/conv/depthwise_rows.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::ImageStrides;
using conv_gemm::PhaseAxis;
using conv_gemm::Plan;

constexpr int kBlock = 256, kMostBytes = 48 << 10;

struct Arguments {
  Plan plan;
  const void *from, *w, *bias;
  void* to;
  int channels, from_per_to, to_per_from;  // of `to`; one of the last two is the multiplier, the other 1
  int vectors, vector_blocks;              // of a block's channels; blocks that share all channels
  int to_w, tiles_w, strip, strips;        // rows of a phase of a block
};

template <class T, int V>
__device__ __forceinline__ void read(const T* from, float (&values)[V]) {
  const auto pack = *reinterpret_cast<const Pack<T, V>*>(from);
#pragma unroll
  for (int k = 0; k < V; ++k) values[k] = convert<float>(pack.values[k]);
}

/// kPhases = 0: any; else there are kPhases along h, each phase has kH x kW taps, and the multiplier is 1.
template <class T, int V, int kPhases, int kH, int kW>
__global__ void __launch_bounds__(kBlock, 2)
    depthwise_channels_last_kernel(const __grid_constant__ Arguments call) {
  extern __shared__ float4 shared[];
  await_previous<false>();
  float* const weights = reinterpret_cast<float*>(shared);  // [tap][member][channel]
  const Plan& p = call.plan;
  int rest = static_cast<int>(blockIdx.x);
  const auto next = [&rest](int count) {
    const int quotient = rest / count, index = rest - quotient * count;
    rest = quotient;
    return index;
  };
  const int vector_block = next(call.vector_blocks), tile_w = next(call.tiles_w), strip = next(call.strips),
            image = rest;
  const int columns = kBlock / call.vectors, vector = static_cast<int>(threadIdx.x) % call.vectors;
  const int first_channel = vector_block * call.vectors * V, channel = first_channel + vector * V;
  const int x = tile_w * columns + static_cast<int>(threadIdx.x) / call.vectors;

  const int taps = p.kernel_h * p.kernel_w, pitch = call.vectors * V;
  for (int e = threadIdx.x; e < taps * call.from_per_to * pitch; e += kBlock) {
    // Neighbouring threads read neighbouring weights.
    const int k = e % taps, at = e / taps, member = at % call.from_per_to, c = at / call.from_per_to;
    weights[(k * call.from_per_to + member) * pitch + c] =
        first_channel + c < call.channels
            ? convert<float>(static_cast<const T*>(
                  call.w)[(static_cast<std::int64_t>(first_channel + c) * call.from_per_to + member) * taps +
                          k])
            : 0.0f;
  }
  __syncthreads();
  if (channel >= call.channels || x >= call.to_w) return;

  const int step = p.w.phase[0].to_step, b = x / step;
  int j = -1;
  for (int i = 0; i < p.w.count; ++i) {
    if (p.w.phase[i].to == x - b * step) j = i;
  }
  const PhaseAxis& w = p.w.phase[j];
  const int from_w = w.from + b * w.from_step, tap_w = w.tap_from_step;
  float start[V];
#pragma unroll
  for (int k = 0; k < V; ++k)
    start[k] = call.bias == nullptr ? 0.0f : convert<float>(static_cast<const T*>(call.bias)[channel + k]);
  const T* const from = static_cast<const T*>(call.from) + image * p.from.n;
  T* const to = static_cast<T*>(call.to) + image * p.to.n + static_cast<std::int64_t>(x) * p.to.w + channel;

  if constexpr (kPhases > 0) {
    const T* const mine = from + channel;
    float factors[kPhases][kH][kW][V];
    int first_row[kPhases], count[kPhases], to_row[kPhases], most = 0;
#pragma unroll
    for (int i = 0; i < kPhases; ++i) {
      const PhaseAxis& h = p.h.phase[i];
      first_row[i] = h.from, count[i] = h.count, to_row[i] = h.to;
      most = max(most, h.count);
#pragma unroll
      for (int jh = 0; jh < kH; ++jh)
#pragma unroll
        for (int jw = 0; jw < kW; ++jw) {
          const int tap = (h.tap + jh * h.tap_step) * p.kernel_w + w.tap + jw * w.tap_step;
#pragma unroll
          for (int k = 0; k < V; ++k) factors[i][jh][jw][k] = weights[tap * pitch + vector * V + k];
        }
    }
    const int from_step = p.h.phase[0].from_step, tap_step = p.h.phase[0].tap_from_step,
              to_step = p.h.phase[0].to_step, end = min(most, (strip + 1) * call.strip);
#pragma unroll(kH* kW <= 4 ? 2 : 1)
    for (int a = strip * call.strip; a < end; ++a) {
#pragma unroll
      for (int i = 0; i < kPhases; ++i) {
        if (a >= count[i]) continue;
        float sums[V];
#pragma unroll
        for (int k = 0; k < V; ++k) sums[k] = start[k];
#pragma unroll
        for (int jh = 0; jh < kH; ++jh) {
          const int row = first_row[i] + a * from_step + jh * tap_step;
          Pack<T, V> values[kW] = {};
#pragma unroll
          for (int jw = 0; jw < kW; ++jw) {
            const int column = from_w + jw * tap_w;
            if (static_cast<unsigned>(row) < static_cast<unsigned>(p.from_h) &&
                static_cast<unsigned>(column) < static_cast<unsigned>(p.from_w)) {
              values[jw] = *reinterpret_cast<const Pack<T, V>*>(mine + row * p.from.h + column * p.from.w);
            }
          }
#pragma unroll
          for (int jw = 0; jw < kW; ++jw)
#pragma unroll
            for (int k = 0; k < V; ++k)
              sums[k] += convert<float>(values[jw].values[k]) * factors[i][jh][jw][k];
        }
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; ++k) result.values[k] = convert<T>(sums[k]);
        *reinterpret_cast<Pack<T, V>*>(to + static_cast<std::int64_t>(to_row[i] + a * to_step) * p.to.h) =
            result;
      }
    }
  } else {
    for (int i = 0; i < p.h.count; ++i) {
      const PhaseAxis& h = p.h.phase[i];
      const int end = min(h.count, (strip + 1) * call.strip);
      for (int a = strip * call.strip; a < end; ++a) {
        float sums[V];
#pragma unroll
        for (int k = 0; k < V; ++k) sums[k] = start[k];
        for (int jh = 0; jh < h.taps; ++jh) {
          const int row = h.from + a * h.from_step + jh * h.tap_from_step;
          if (static_cast<unsigned>(row) >= static_cast<unsigned>(p.from_h)) continue;
          for (int jw = 0; jw < w.taps; ++jw) {
            const int column = from_w + jw * tap_w;
            if (static_cast<unsigned>(column) >= static_cast<unsigned>(p.from_w)) continue;
            const int tap = (h.tap + jh * h.tap_step) * p.kernel_w + w.tap + jw * w.tap_step;
            const T* const pixel = from + row * p.from.h + column * p.from.w;
            for (int member = 0; member < call.from_per_to; ++member) {
              const float* const factors = weights + (tap * call.from_per_to + member) * pitch + vector * V;
              if (call.from_per_to == 1 && call.to_per_from == 1) {
                float values[V];
                read<T, V>(pixel + channel, values);
#pragma unroll
                for (int k = 0; k < V; ++k) sums[k] += values[k] * factors[k];
              } else {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                  const int of_from = call.to_per_from > 1 ? (channel + k) / call.to_per_from
                                                           : (channel + k) * call.from_per_to + member;
                  sums[k] += convert<float>(pixel[of_from]) * factors[k];
                }
              }
            }
          }
        }
        Pack<T, V> result;
#pragma unroll
        for (int k = 0; k < V; ++k) result.values[k] = convert<T>(sums[k]);
        *reinterpret_cast<Pack<T, V>*>(to + static_cast<std::int64_t>(h.to + a * h.to_step) * p.to.h) =
            result;
      }
    }
  }
}

/// Whether each phase has kh x kw taps.
bool is_regular(const Plan& p, int kh, int kw) {
  for (int i = 0; i < p.h.count; ++i) {
    if (p.h.phase[i].taps != kh) return false;
  }
  for (int j = 0; j < p.w.count; ++j) {
    if (p.w.phase[j].taps != kw) return false;
  }
  return true;
}

/// Channels of a thread: 4 where they are aligned, else 1.
int vector_of(int channels, const void* from, const void* to, int bytes) {
  const auto aligned = [&](const void* p) {
    return reinterpret_cast<std::uintptr_t>(p) % static_cast<unsigned>(4 * bytes) == 0;
  };
  return channels % 4 == 0 && aligned(from) && aligned(to) ? 4 : 1;
}

}  // namespace

bool depthwise_channels_last_fits(const ConvTranspose2dGeometry& g, DType dtype, Layout from, Layout to) {
  return conv_gemm::positions_fit(g) && g.group_ci() == 1 && from == Layout::nhwc && to == Layout::nhwc &&
         dtype != DType::float64 && g.n > 0 && g.h.kernel * g.w.kernel * g.group_co() * 256 * 4 <= kMostBytes;
}

void depthwise_channels_last(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from,
                             const Tensor& w, const Tensor& bias, const Tensor& to) {
  const DeviceScope scope(to.device());
  if (depthwise_ring(g, transposed, from, w, bias, to)) return;
  const int bytes = static_cast<int>(size_of(to.dtype()));
  Arguments a{};
  a.plan = Plan(g, transposed, bytes);
  a.plan.from = ImageStrides(from.strides());
  a.plan.to = ImageStrides(to.strides());
  a.from = from.raw();
  a.w = w.raw();
  a.bias = bias.defined() ? bias.raw() : nullptr;
  a.to = to.raw();
  a.channels = static_cast<int>(transposed ? g.co : g.ci);
  const int multiplier = static_cast<int>(g.group_co());
  a.from_per_to = transposed ? 1 : multiplier;
  a.to_per_from = transposed ? multiplier : 1;
  a.to_w = static_cast<int>(to.size(3));
  const int v = vector_of(a.channels, a.from, a.to, bytes);
  a.vectors = 1;
  // What is written is contiguous where a block has all channels; what is read again shares more columns.
  const int most = (transposed ? 256 : 128) / v;
  while (a.vectors < most && a.vectors * v < a.channels) a.vectors *= 2;
  a.vector_blocks = static_cast<int>(ceil_div(a.channels, a.vectors * v));
  a.tiles_w = static_cast<int>(ceil_div(a.to_w, kBlock / a.vectors));
  int rows = 0;
  for (int i = 0; i < a.plan.h.count; ++i) rows = std::max(rows, a.plan.h.phase[i].count);
  // Strips as short as multiprocessors need to have work.
  const std::int64_t blocks = g.n * a.tiles_w * a.vector_blocks;
  a.strips = static_cast<int>(std::clamp<std::int64_t>(132 * 16 / blocks, 1, std::max(1, rows / 4)));
  a.strip = static_cast<int>(ceil_div(rows, a.strips));
  a.strips = static_cast<int>(ceil_div(rows, a.strip));
  const std::size_t shared =
      static_cast<std::size_t>(g.h.kernel * g.w.kernel * a.from_per_to * a.vectors * v) * sizeof(float);
  visit_floating("conv", to.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      const auto launch = [&]<int V, int kPhases, int kH, int kW>() {
        launch_kernel_with_shared("conv: depthwise", to.device(),
                                  depthwise_channels_last_kernel<T, V, kPhases, kH, kW>,
                                  grid_size("conv", blocks * a.strips), kBlock, static_cast<int>(shared), a);
      };
      const auto is = [&](int phases, int kh, int kw) {
        return multiplier == 1 && a.plan.h.count == phases && is_regular(a.plan, kh, kw);
      };
      if (v == 1) return launch.template operator()<1, 0, 0, 0>();
      if (is(2, 2, 2)) return launch.template operator()<4, 2, 2, 2>();
      if (is(1, 3, 3)) return launch.template operator()<4, 1, 3, 3>();
      if (is(1, 4, 4)) return launch.template operator()<4, 1, 4, 4>();
      launch.template operator()<4, 0, 0, 0>();
    }
  });
}

}  // namespace tapedeck::cu
