// What the kernels over bands (thin_bands.h) share.
#pragma once

#include <tapedeck/ops/conv/thin_bands.h>
#include <tapedeck/ops/conv/thin_products_tile.cuh>
#include <tapedeck/ops/conv/wgmma.cuh>

namespace tapedeck::cu::conv_thin {

using conv_gemm::Barrier;

struct BandDividers {
  explicit BandDividers(const BandPlan& p) : parts(p.parts), width(p.w) {}
  Divider parts, width;
};

/// Has all kThreads of a block copy rows of `count` channels, from `channel` on, to a stage; zeros behind
/// them.
template <class T, int kThreads, int kPixels>
__device__ __forceinline__ void bring_band(const BandPlan& p, const void* all, const BandAt& band,
                                           int channel, int count, char* stage, Barrier& full) {
  constexpr int kElements = 16 / sizeof(T), kOfChannel = kPixels / kElements,
                kAtOnce = kThreads / kOfChannel;  // vectors, and channels
  const int vector = threadIdx.x % kOfChannel, first = threadIdx.x / kOfChannel, plane = p.h * p.w;
  const bool exists = vector * kElements < band.rows(p) * p.w;
  const T* from = static_cast<const T*>(all) +
                  (static_cast<std::int64_t>(band.image) * p.ci + channel + first) * plane + band.row * p.w +
                  (exists ? vector * kElements : 0);
  unsigned to = shared_address(stage) + first * p.channel_bytes + vector * 16;
#pragma unroll 4
  for (int c = first; c < count; c += kAtOnce) {
    conv_gemm::copy_async_or_zero<false>(to, from, exists);
    from += kAtOnce * static_cast<std::int64_t>(plane), to += kAtOnce * p.channel_bytes;
  }
  full.arrive_after_copies();
}

/// Has all threads apply a prologue to a stage of `count` channels, from `channel` on, where it has pixels.
template <class T, int kThreads, int kPixels>
__device__ __forceinline__ void normalize_band(const BandPlan& p, const ChannelPrologue& prologue,
                                               int channel, int count, int pixels, char* stage) {
  constexpr int kElements = 16 / sizeof(T), kOfChannel = kPixels / kElements,
                kAtOnce = kThreads / kOfChannel;  // vectors, and channels
  const int vector = threadIdx.x % kOfChannel;
  if (vector * kElements < pixels) {
#pragma unroll 1
    for (int c = threadIdx.x / kOfChannel; c < count; c += kAtOnce) {
      const NormalizedChannel<float> of_channel = prologue.of(channel + c);
      uint4& values = *reinterpret_cast<uint4*>(stage + c * p.channel_bytes + vector * 16);
      uint4 x = values;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        for_elements<T>(word_of(x, i), [&](float value, int) { return prologue(of_channel, value); });
      values = x;
    }
  }
  __syncthreads();
}

/// What a band meets of y, of kOfY channels: rows S*row - P on, by vectors, of which a thread has some.
template <class T, class Taps, int kOfY, ThinPass kPass, int kPixels>
class BandRegion {
 public:
  static constexpr int kVector = 16 / sizeof(T), kMost = band_vectors(kPass, sizeof(T)),
                       kThreads = band_threads(kPass, kPixels);

  BandRegion() = default;
  struct Dividers {
    Dividers(const BandPlan& p, int region_rows)
        : vectors(Taps::kStride * p.w / kVector), rows(region_rows) {}
    Divider vectors, rows;  // of a row, and of a region
  };
  /// Zeros outside.
  __device__ __forceinline__ void load(const BandPlan& p, const Dividers& by, const void* all,
                                       const BandAt& band) {
    constexpr int S = Taps::kStride;
    const T* const y =
        static_cast<const T*>(all) + static_cast<std::int64_t>(band.image) * kOfY * (S * S) * p.h * p.w;
    for_vectors(by, [&](int k, int m, int of_region, int column) {
      const int row = S * band.row - Taps::kPadding + of_region;
      vectors_[k] = static_cast<unsigned>(row) < static_cast<unsigned>(S * p.h)
                        ? *reinterpret_cast<const uint4*>(y + ((m * S * p.h + row) * S) * p.w + column)
                        : uint4{};
    });
  }
  /// Calls f with a vector's elements, their channel, row and first column of y.
  template <class F>
  __device__ __forceinline__ void for_each(const Dividers& by, const F& f) const {
    for_vectors(by, [&](int k, int m, int row, int column) {
      f(__builtin_bit_cast(Pack<T, kVector>, vectors_[k]), m, row, column);
    });
  }

 private:
  template <class F>
  __device__ __forceinline__ static void for_vectors(const Dividers& by, const F& f) {
    const int all = kOfY * static_cast<int>(by.rows.divisor * by.vectors.divisor);
#pragma unroll
    for (int k = 0; k < kMost; ++k) {
      const int i = threadIdx.x + k * kThreads;
      if (i >= all) break;
      const int line = by.vectors.divide(i), m = by.rows.divide(line);
      f(k, m, by.rows.modulo(line, m), by.vectors.modulo(i, line) * kVector);
    }
  }
  uint4 vectors_[kMost];
};

/// Calls f with the number of y's channels, of 1 to 4.
template <class F>
bool with_channels(std::int64_t co, const F& f) {
  switch (co) {
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    case 4:
      return f.template operator()<4>();
    default:
      return false;
  }
}

/// Calls f with Math, taps, channels of y and a band's pixels, if there is a kernel for a pass of a layer and
/// these tensors, and returns whether there is. The precision of float32 is asked once: another thread may
/// set it.
template <ThinPass kPass, class F>
bool visit_bands(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w,
                 const F& f) {
  const auto is_aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.raw()) % 16 == 0; };
  const DType dtype = x.dtype();
  if (x.layout() != y.layout() || w.layout() != Layout::nchw || !is_aligned(x) || !is_aligned(y))
    return false;
  const int operand_parts = operand_parts_of(dtype),
            pixels = band_pixels(g, kPass, x.layout(), static_cast<int>(size_of(dtype)), operand_parts);
  if (pixels == 0) return false;
  return visit_taps(g, [&]<class Taps>() {
    return with_channels(g.co, [&]<int kChannels>() {
      const auto visit = [&]<class Math>() {
        const auto visit_pixels = [&]<int kPixels>() {
          if constexpr (are_bands_compiled(kPass, kPixels, kChannels * Taps::kTaps,
                                           Math::kParts == 3 ? 2 : 1)) {
            if (pixels != kPixels) return false;
            f.template operator()<Math, Taps, kChannels, kPixels>();
            return true;
          } else {
            return false;
          }
        };
        return visit_pixels.template operator()<256>() || visit_pixels.template operator()<128>();
      };
      if (dtype == DType::bfloat16) return visit.template operator()<Half<bfloat16>>();
      if (dtype == DType::float16) return visit.template operator()<Half<float16>>();
      if (operand_parts == 2) return visit.template operator()<Tf32x3>();
      return visit.template operator()<Tf32>();
    });
  });
}

template <class K, class A>
__global__ void __launch_bounds__(K::kThreads) thin_bands_kernel(const __grid_constant__ A a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ uint4 memory[];
  K::run(a, reinterpret_cast<char*>(memory));
#endif
}

template <class K, class A>
void launch_bands_kernel(const A& a, dim3 grid, Device device) {
  allow_shared_memory(thin_bands_kernel<K, A>, a.plan.shared_bytes());
  launch_kernel_with_shared("conv: thin", device, thin_bands_kernel<K, A>, grid, K::kThreads,
                            a.plan.shared_bytes(), a);
}

}  // namespace tapedeck::cu::conv_thin
