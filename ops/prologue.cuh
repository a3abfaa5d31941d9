// What kernels do to elements that have a prologue (ops/prologue.h).
#pragma once

#include <tapedeck/ops/prologue.h>
#include <tapedeck/ops/rectifier.h>

namespace tapedeck::cu {

/// One channel's numbers: one formula, so that all who compute a result know the same sign.
template <class V>
struct NormalizedChannel {
  V mean, scale, bias;
  __device__ V operator()(V x) const { return fma(x - mean, scale, bias); }
};

/// As Rectifier's value, without its comparisons of doubles.
__device__ __forceinline__ float rectified(float u, float slope) {
  return u <= 0 ? slope == 0 ? 0.0f : u * slope : u;
}

/// A prologue of float32 numbers, of all channels.
struct ChannelPrologue {
  const float *mean = nullptr, *scale = nullptr, *bias = nullptr;
  float slope = 1;

  ChannelPrologue() = default;
  explicit ChannelPrologue(const Prologue& p) : slope(static_cast<float>(p.negative_slope)) {
    const std::int64_t channels = p.statistics.size(1);
    mean = static_cast<const float*>(p.statistics.read());
    scale = mean + 2 * channels, bias = scale + channels;
  }
  __device__ NormalizedChannel<float> of(int channel) const {
    return {mean[channel], scale[channel], bias[channel]};
  }
  __device__ float operator()(const NormalizedChannel<float>& channel, float x) const {
    return rectified(channel(x), slope);
  }
};

}  // namespace tapedeck::cu
