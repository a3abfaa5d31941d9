// What the convolution family would do with a call, and what it could at best take.
#pragma once

#include <string>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

/// Which kernel (ops/conv/kernels.h) computes one of the three maps, and why that one.
struct ConvChoice {
  std::string kernel;   ///< "wide", "wgmma"
  std::string reason;   ///< "forced", "least estimated time"
  std::string variant;  ///< where a kernel has several: "boxes of scaled halves, both column phases at once"
  double workspace =
      0;  ///< on a GPU the bytes that it takes beside its tensors: copies, packs, parts of sums
};

/// "wgmma (boxes of pixels)"
std::string to_string(const ConvChoice& c);

/// conv_transpose2d and its gradients, both of which are wanted, on a device.
struct ConvExplanation {
  ConvChoice forward, input_gradient, weight_gradient;
  std::int64_t phases = 0;        ///< that have outputs
  std::int64_t empty_phases = 0;  ///< of these, the ones without taps, whose outputs are the bias
  double flops = 0;               ///< of each of the three, taps that reach no output left out
  double bytes = 0;               ///< of x, weight and y, each once
  double workspace = 0;           ///< of the one that takes most
  /// Seconds that each takes at least: `bytes` at the bandwidth of a copy, or `flops` at a rate.
  /// On the CPU those of num_threads() cores of a Zen 4 server: 28 GB/s of a core, 36 GB/s of more; a core's
  /// fused multiply-adds (115 GFLOP/s in float32, half of it in float64; a quarter without AVX2).
  /// bench/compare_cpu.py measures both. Minimal filtering multiplies less, and caches are faster than
  /// memory: a call can have more than its share. On a GPU those of an H200: 4.27 TB/s; products on tensor
  /// cores, in TFLOP/s 680 of 16 bits, which float32 at less than Precision::highest takes as halves, too,
  /// 267 for float32's accuracy, 60 of float64.
  double limit = 0;
  /// The share of the limit that a call of so many seconds has.
  double share(double seconds) const { return limit / seconds; }
};

/// "forward wide, input gradient wide, weight gradient wide; 4 phases, 0 empty; 0.110 GFLOP, 4.9 MB, at least
/// 0.478 ms"; with variants, and "workspace 537.0 MB", where there are any.
std::string to_string(const ConvExplanation& e);

/// For tensors of this geometry on a device, whose x and y have the given dtype and layout, and start where
/// tensors of their own do. On a GPU, asks that one which instructions it has.
/// It takes weights as row-major; with their channels last the kernels are the same, and some need no copy of
/// them, others one more.
ConvExplanation explain(const ConvTranspose2dGeometry& g, DType dtype = DType::float32,
                        Layout layout = Layout::nchw, Device device = {});

namespace cpu {
ConvExplanation explain_conv(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, Device device);
}  // namespace cpu
namespace cu {
/// Gradients as a tape has them computed that wants both: where that pays, they read one copy of y.
ConvExplanation explain_conv(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, Device device);
/// The same of calls that are each alone.
ConvExplanation explain_alone(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, Device device);
/// `has_wgmma`: whether the GPU has Hopper's instructions. In builds with CUDA; needs no GPU, and does not
/// know how much scratch cuBLASLt wants.
ConvExplanation explain_on(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_wgmma);
}  // namespace cu

}  // namespace tapedeck
