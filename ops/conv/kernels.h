// Which kernel computes the convolution family.
//
// On the CPU a call takes the first of these that fits (ConvPath):
//   reference    if it is forced. The definition, one output at a time, for every dtype and layout. Slow;
//                what the others are tested against and timed beside.
//   matrix       x is one pixel and y a row-major map of the kernel's size: matrix products. (matrix.cpp)
// and else the cheapest by a model of the costs (cost.h):
//   planes       nchw tensors: the lanes of vectors are pixels. (correlate.cpp, pixel_sums.cpp)
//   depthwise    nchw tensors, groups of one channel, stride 2 along w; float32 with AVX-512. (depthwise.cpp)
//   winograd     dilation 1, not in float64: minimal filtering (winograd.h), for many channels.
//   thin         few result channels, and more channels that are read: the lanes are the latter.
//   channelwise  groups of few result channels: the lanes are the result channels of all groups.
//   wide         the lanes are the result channels of a group.
// The last three are windows.cpp with weights packed as in pack.h. The weight gradient is matrix.cpp,
// channelwise_weight_grad.cpp, or for both others weight_grad.cpp. Half types are computed in float32.
//
// On a GPU (dispatch.cu):
//   reference    as above, one thread a result. Also where sizes leave 32-bit arithmetic, or strides are
//                above 8.
//   tensor       matrix products of tiles on tensor cores (gemm_plan.h, gemm_tile.cuh): float32 by products
//                of three TF32 parts at Precision::highest, else in TF32; bfloat16 and float16.
//   wgmma        the same by Hopper's instructions, where these are: not float64. Over boxes of pixels, which
//                `boxes` forces; over boxes of scaled halves for float32, which `halves` forces, and weight
//                gradients may take then, too; or with operands gathered for each tap (wgmma_choice.cuh).
//   simt         the same by fused multiply-adds: float64, and float32 if it is forced.
//   depthwise    groups of one channel: planes in shared memory (depthwise.cu, depthwise_weight_grad.cu), or
//                with channels last vectors of channels (depthwise_channels_last.cu,
//                depthwise_channels_last_weight_grad.cu).
//   strip        little work a byte: rows in shared memory, products on tensor cores, whole rows are written
//                (strip_plan.h); channels last multiples of 8 channels a group; not float64.
//   direct       few channels or little work a byte: sums in registers (direct.cu, direct_weight_grad.cu).
//
// TAPEDECK_CONV_ALGORITHM in the environment, or set_conv_algorithm(), forces kernels: `reference`; on the
// CPU `planes` wherever tensors are nchw, `depthwise` and `winograd` wherever these can, `windows`, which is
// none of these; on a GPU `depthwise`, `direct`, `strip`, `simt`, `tensor`, `wgmma`, `boxes` and `halves`.
// What a device does not have, or what cannot compute a call, counts as `automatic`.
#pragma once

#include <string>
#include <string_view>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

enum class ConvAlgorithm : std::uint8_t {
  automatic,
  reference,
  planes,
  windows,
  winograd,
  depthwise,
  direct,
  strip,
  simt,
  tensor,
  wgmma,
  boxes,
  halves
};

/// Which kernels the convolution family uses from now on, in every thread. The default is `automatic`, or
/// what TAPEDECK_CONV_ALGORITHM names.
void set_conv_algorithm(ConvAlgorithm algorithm);
/// Throws Error when TAPEDECK_CONV_ALGORITHM names none.
ConvAlgorithm conv_algorithm();
std::string to_string(ConvAlgorithm algorithm);
/// The algorithm of a name. Throws Error for an unknown one.
ConvAlgorithm parse_conv_algorithm(std::string_view name);

enum class ConvPath : std::uint8_t {
  reference,
  depthwise,
  matrix,
  planes,
  winograd,
  thin,
  channelwise,
  wide
};

std::string to_string(ConvPath path);

/// What a call of conv_transpose2d and its gradients would do on the CPU.
struct ConvExplanation {
  ConvPath forward, input_gradient, weight_gradient;
  std::int64_t phases = 0;        ///< that have outputs
  std::int64_t empty_phases = 0;  ///< of these, the ones without taps, whose outputs are the bias
  double flops = 0;               ///< of each of the three, taps that reach no output left out
  double bytes = 0;               ///< of x, weight and y, each once
  /// Seconds that each takes at least by num_threads() cores of a Zen 4 server: `bytes` at the bandwidth of a
  /// copy (28 GB/s of a core, 36 GB/s of more), or `flops` at a core's rate of fused multiply-adds (115
  /// GFLOP/s in float32, half of it in float64; a quarter without AVX2). bench/compare_cpu.py measures both.
  /// Minimal filtering multiplies less, and caches are faster than memory: a call can have more than its
  /// share.
  double limit = 0;
  /// The share of the limit that a call of so many seconds has.
  double share(double seconds) const { return limit / seconds; }
};

/// "forward wide, input gradient wide, weight gradient wide; 4 phases, 0 empty; 0.110 GFLOP, 4.9 MB, at least
/// 0.478 ms".
std::string to_string(const ConvExplanation& e);

/// For tensors of this geometry, whose x and y have the given dtype and layout.
ConvExplanation explain(const ConvTranspose2dGeometry& g, DType dtype = DType::float32,
                        Layout layout = Layout::nchw);

/// What they would do on a GPU, and what that takes at least.
struct ConvGpuExplanation {
  ConvAlgorithm forward, input_gradient, weight_gradient;
  std::int64_t phases = 0, empty_phases = 0;
  double flops = 0, bytes = 0;  ///< as above
  double workspace = 0;         ///< about how many bytes the one takes that takes most, beside its tensors
  /// Seconds that each takes at least on an H200: `bytes` at the bandwidth of a copy (4.27 TB/s), or `flops`
  /// at the rate of a library's matrix products (TF32 353 TFLOP/s and a third of it for float32's accuracy,
  /// 680 in 16 bits).
  double limit = 0;
};

/// "forward wgmma, input gradient wgmma, weight gradient wgmma; 4 phases, 0 empty; 550.000 GFLOP, 805.3 MB,
/// workspace 537.0 MB, at least 1.558 ms".
std::string to_string(const ConvGpuExplanation& e);

namespace cu {
/// `has_wgmma`: whether the GPU has Hopper's instructions. In builds with CUDA; needs no GPU.
ConvGpuExplanation explain(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_wgmma);
}  // namespace cu

namespace cpu::reference {
// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h.
void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y);
void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x);
void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);
}  // namespace cpu::reference
namespace cu::reference {
void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y);
void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x);
void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);
}  // namespace cu::reference

}  // namespace tapedeck
