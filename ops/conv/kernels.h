// Which kernel computes the convolution family.
//
// On the CPU a call takes the first of these that fits:
//   reference    if it is forced. The definition, one output at a time, for every dtype and layout. Slow;
//                what the others are tested against and timed beside.
//   matrix       x is one pixel and y a row-major map of the kernel's size: matrix products. (matrix.cpp)
// and else the cheapest by a model of the costs (cost.h):
//   planes       nchw tensors: the lanes of vectors are pixels. (correlate.cpp, pixel_sums.cpp)
//   in_place     gradients of nchw tensors with y much larger than x: the lanes are x's channels, and y is
//                read where it lies. (in_place.cpp)
//   depthwise    nchw tensors, groups of one channel, stride 2 along w; float32 with AVX2. (depthwise.cpp)
//   winograd     dilation 1, not in float64: minimal filtering (winograd.h), for many channels.
//   thin         few result channels, and more channels that are read: the lanes are the latter.
//   channelwise  groups of few result channels: the lanes are the result channels of all groups.
//   wide         the lanes are the result channels of a group.
// The last three are windows.cpp with weights packed as in pack.h; their weight gradients are
// channelwise_weight_grad.cpp, or for both others weight_grad.cpp. Half types are computed in float32.
//
// On a GPU (dispatch.cu, gpu_choice.cu):
//   reference    as above, one thread a result. Also where sizes leave 32-bit arithmetic, or strides are
//                above 8.
//   tensor       matrix products of tiles on tensor cores (gemm_plan.h, gemm_tile.cuh): float32 by products
//                of three TF32 parts at Precision::highest, else in TF32; bfloat16 and float16.
//   wgmma        the same by Hopper's instructions, where these are: not float64. Over boxes of pixels, which
//                `boxes` forces; over boxes of scaled halves for float32, which `halves` forces; of nchw
//                images both without a copy (box_gather.h), which `gathered` forces; columns of few channels
//                are folded there (fold.h); or with operands gathered for each tap (wgmma_choice.cuh), which
//                `windows` forces. Weight gradients in nchw, of 16 bits or in TF32's accuracy, also over rows
//                as they lie (row_grad_plan.h; of stride 2 pair_grad_plan.h), which `rows` forces.
//   simt         the same by fused multiply-adds: float64, and float32 if it is forced or was tried.
//   matrix       x is one pixel, y of the kernel's size: matrix products by matmul() (matrix.cu).
//   depthwise    groups of one channel: planes in shared memory (depthwise.cu, depthwise_weight_grad.cu), or
//                with channels last vectors of channels (depthwise_channels_last.cu,
//                depthwise_channels_last_weight_grad.cu).
//   strip        little work a byte: rows in shared memory, products on tensor cores, whole rows are written
//                (strip_plan.h); channels last multiples of 8 channels a group; not float64.
//   direct       few channels or little work a byte: sums in registers (direct.cu, direct_plain.cu,
//                direct_weight_grad.cu); gradients of groups of one channel whose planes do not pay.
//   thin         one group, y has 1 to 4 channels, x 16 and more, in whole vectors or some rows of nchw that
//                are none, and products with all taps are few: tensor cores make them, x is read or written
//                once (thin_products.cu, thin_bands.h). On Hopper.
//   columns      few channels on one side: matrix products with all taps by matmul(), which are added up then
//                (columns.cu); or, gradients in nchw, with what all taps read, which is gathered before
//                (columns_gathered.cu).
//   channels_last forward in nchw, where results of phases would be written in parts of short rows: as for
//                images with their channels last, which are copied before and after. (What the layer before
//                left to it, ops/prologue.h, is done before that.)
// What matrix products of little work, depthwise or direct kernels of groups of one channel, and those of
// some thin layers (thin.cu), or thin ones beside these, are made for, they compute. Else the times of wgmma,
// tensor, strip, direct, depthwise, columns, thin and channels_last are estimated (gpu_estimate.h); float64
// takes direct or simt. Some layers take what was the fastest when they were measured (shipped_choices.h),
// and if wanted, what can compute a call is measured instead (autotune.h).
//
// The layer before may leave its end to these (ops/prologue.h): on a GPU, thin products and boxes of copied
// images normalise and rectify x as they read it, forward and in the weight's gradient, which takes them in
// place of rows then; others get it done.
//
// TAPEDECK_CONV_ALGORITHM in the environment, set_conv_algorithm(), or ConvAlgorithmScope for single calls
// and their gradients forces kernels: `reference`; on the CPU `planes` wherever tensors are nchw, `in_place`,
// `depthwise` and `winograd` wherever these can, `windows`, which is none of these; on a GPU `matrix`,
// `columns`, `depthwise`, `direct`, `thin`, `strip`, `simt`, `tensor`, `wgmma`, `windows`, `boxes`,
// `halves`, `gathered`, `rows` and `channels_last`.
// What a device does not have, or what cannot compute a call, counts as `automatic`; without Hopper's
// instructions wgmma and its ways count as `tensor`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/tiling.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

enum class ConvAlgorithm : std::uint8_t {
  automatic,
  reference,
  planes,
  windows,
  winograd,
  in_place,
  matrix,
  columns,
  depthwise,
  direct,
  thin,
  strip,
  simt,
  tensor,
  wgmma,
  boxes,
  halves,
  gathered,
  rows,
  channels_last
};

/// Which kernels the convolution family uses from now on, in every thread. The default is `automatic`, or
/// what TAPEDECK_CONV_ALGORITHM names.
void set_conv_algorithm(ConvAlgorithm algorithm);
/// Whether it is a way of a GPU's wgmma (`windows` are the CPU's, too).
constexpr bool is_way_of_wgmma(ConvAlgorithm a) {
  using enum ConvAlgorithm;
  return a == windows || a == boxes || a == halves || a == gathered || a == rows;
}
/// What the calling thread's next call uses. Throws Error when TAPEDECK_CONV_ALGORITHM names none.
ConvAlgorithm conv_algorithm();
std::string to_string(ConvAlgorithm algorithm);
/// The algorithm of a name. Throws Error for an unknown one.
ConvAlgorithm parse_conv_algorithm(std::string_view name);

/// An algorithm, and how it tiles boxes, if not as estimated.
struct ConvCandidate {
  ConvCandidate(ConvAlgorithm a = ConvAlgorithm::automatic, const ConvTiling& t = {})  // NOLINT(*-explicit-*)
      : algorithm(a), tiling(t) {}
  friend bool operator==(const ConvCandidate&, const ConvCandidate&) = default;

  ConvAlgorithm algorithm;
  ConvTiling tiling;
};
/// As the autotuner's choices name it: "boxes", "halves 1.1.0.2.4.144.1.0.0".
std::string to_string(const ConvCandidate& candidate);

/// Which kernels the calls of this thread use until the scope ends, whatever is set otherwise. Their
/// gradients use them, too, whenever they are computed, but tile as estimated. Nothing: as if there were no
/// scope.
class ConvAlgorithmScope {
 public:
  explicit ConvAlgorithmScope(const std::optional<ConvCandidate>& candidate);
  ~ConvAlgorithmScope();
  ConvAlgorithmScope(const ConvAlgorithmScope&) = delete;
  ConvAlgorithmScope& operator=(const ConvAlgorithmScope&) = delete;

  /// What the innermost scope of this thread says.
  static std::optional<ConvAlgorithm> current();
  static ConvTiling tiling();

 private:
  std::optional<ConvCandidate> outer_;
};

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
