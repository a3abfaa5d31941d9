// How the family is computed with Hopper's instructions: over boxes of pixels (wgmma_box.cuh,
// wgmma_box_weight_grad.cuh), of the tensors' own type, or for float32 of scaled halves (scaled_half.cuh); or
// with operands gathered for each tap (wgmma_map.cuh, wgmma_weight_grad.cuh), where images are so small that
// boxes are mostly padding, or there is little work.
#pragma once

#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/conv/wgmma_box_launch.cuh>
#include <tapedeck/ops/conv/wgmma_box_weight_grad.cuh>
#include <tapedeck/ops/conv/wgmma_map.cuh>
#include <tapedeck/ops/conv/wgmma_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

/// The scaled halves that are as accurate as Math's products of float32.
template <class Math>
using HalvesOf = ScaledHalf<Math::kParts == 3 ? 2 : 1>;

/// Whether the strides of images of halves are 32-bit numbers.
inline bool halves_fit(const ConvTranspose2dGeometry& g, int parts) {
  const auto row = [&](std::int64_t columns, std::int64_t channels) {
    return columns * g.groups * (channels + 8) * parts;
  };
  return std::max(row(g.w.in, g.group_ci()), row(g.w.out, g.group_co())) < std::int64_t{1} << 31;
}

/// About how many clocks it takes to make halves of images, beyond what is copied with any kernel: they are
/// read once more, and where these copy nothing, twice, and written. Halves that the weight's gradient needs
/// anyway save that copy.
inline double halves_clocks(const Tensor& images, int parts, bool for_weight_grad) {
  constexpr double kBytes = 1700;  // a clock
  const double copied = images.layout() == Layout::nchw ? 8 : 0, count = static_cast<double>(images.count());
  if (for_weight_grad) return -count * copied / kBytes;
  return count * (2 * parts + (copied > 0 ? 0 : 8)) / kBytes + 8000;
}

/// Whether the weight's gradient is computed over boxes, if there are tiles for them. Measured on an H200:
/// they are faster but for little work a call or a byte, and images of less than 6x6, or 4x4 where halves of
/// one part are there already.
template <class Math>
bool weight_grad_over_boxes(const ConvTranspose2dGeometry& g) {
  constexpr bool kFloat = std::is_same_v<typename Math::Element, float>;
  const auto bytes = static_cast<double>((g.x_shape().count() + g.y_shape().count()) * 2);
  const std::int64_t least = kFloat && Math::kParts == 1 && OperandCopies::serve_both() ? 16 : 36;
  const bool much = g.flops() >= 2e9 && g.flops() >= 24 * bytes && g.h.in * g.w.in >= least;
  const bool forced = conv_algorithm() == (kFloat ? ConvAlgorithm::halves : ConvAlgorithm::boxes);
  return (much || forced) && (!kFloat || halves_fit(g, HalvesOf<Math>::kOperandParts));
}

inline BoxResults box_results(const Tensor& to) {
  if (to.layout() != Layout::nchw) return BoxResults::channels;
  const std::size_t pair = 2 * size_of(to.dtype());
  return to.size(3) % 2 == 0 && reinterpret_cast<std::uintptr_t>(to.raw()) % pair == 0 ? BoxResults::pairs
                                                                                       : BoxResults::rows;
}

template <class Math>
bool wgmma_map(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to, double negative_slope) {
  const ConvAlgorithm forced = conv_algorithm();
  const Plan plan(g, transposed, sizeof(typename Math::Element));
  const WindowsChoice<Math> windows(plan);
  const BoxResults results = box_results(to);
  const bool gaps = results != BoxResults::channels && transposed && g.w.stride > 1;
  const double windows_clocks =
      windows.clocks + (gaps ? static_cast<double>(to.count()) * kGapClocks / 132 : 0);
  double clocks = windows_clocks;  // the least so far
  BoxWay boxes;
  if constexpr (Math::kParts == 1) {
    boxes = best_box_way(g, transposed, sizeof(typename Math::Element), 1, results);
    if (boxes.choice.places > 0) clocks = std::min(clocks, boxes.choice.clocks);
  }
  if constexpr (std::is_same_v<typename Math::Element, float>) {
    using Halves = HalvesOf<Math>;
    const BoxWay halves =
        best_box_way(g, transposed, sizeof(typename Halves::Element), Halves::kOperandParts, results);
    const bool shared = OperandCopies::serve_both() && weight_grad_over_boxes<Math>(g);
    const double estimate = halves.choice.clocks + halves_clocks(from, Halves::kOperandParts, shared);
    const bool best = estimate < clocks && forced != ConvAlgorithm::boxes;
    if (halves.choice.places > 0 && halves_fit(g, Halves::kOperandParts) &&
        (best || forced == ConvAlgorithm::halves))
      return box_map<Halves>(g, transposed, halves, from, w, bias, to, negative_slope), true;
  }
  if constexpr (Math::kParts == 1) {
    if (boxes.choice.places > 0 && (boxes.choice.clocks < windows_clocks || forced == ConvAlgorithm::boxes))
      return box_map<Math>(g, transposed, boxes, from, w, bias, to, negative_slope), true;
  }
  windows_map<Math>(g, transposed, plan, windows, from, w, bias, to);
  return false;
}

template <class Math>
void wgmma_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  using Boxes = std::conditional_t<std::is_same_v<typename Math::Element, float>, HalvesOf<Math>, Math>;
  if (weight_grad_over_boxes<Math>(g) && box_weight_grad<Boxes>(g, x, y, w)) return;
  gathered_weight_grad<Math>(g, x, y, w);
}

}  // namespace tapedeck::cu::conv_gemm
