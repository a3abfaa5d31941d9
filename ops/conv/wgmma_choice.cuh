// The family with Hopper's instructions, as wgmma_choice.h and weight_grad_choice.h choose.
#pragma once

#include <tapedeck/ops/conv/wgmma_choice.h>
#include <tapedeck/ops/conv/fold.cuh>
#include <tapedeck/ops/conv/wgmma_box_launch.cuh>
#include <tapedeck/ops/conv/wgmma_box_weight_grad.cuh>
#include <tapedeck/ops/conv/wgmma_map.cuh>
#include <tapedeck/ops/conv/wgmma_row_weight_grad.cuh>
#include <tapedeck/ops/conv/wgmma_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

template <class Math>
constexpr Factors factors_of{sizeof(typename Math::Element), Math::kParts};
template <class Math>
constexpr bool multiplies_float = std::is_same_v<typename Math::Element, float>;

/// The scaled halves that are as accurate as Math's products of float32.
template <class Math>
using HalvesOf = ScaledHalf<Math::kParts == 3 ? 2 : 1>;

template <class Math>
bool wgmma_map(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to, double negative_slope, bool shared,
               const Prologue& prologue) {
  const BoxResults results = box_results(to.layout(), to.size(3), factors_of<Math>.element_bytes,
                                         reinterpret_cast<std::uintptr_t>(to.raw()));
  const MapWay way = map_way(g, transposed, from.layout(), results, factors_of<Math>, shared);
  const Fold& fold = way.boxes.fold;
  const auto over_boxes = [&]<class Of>() {
    const auto map = [&](const ConvTranspose2dGeometry& of, const Tensor& weight, const Tensor& shift) {
      box_map<Of>(of, transposed, way.boxes, from, weight, shift, to, negative_slope, prologue);
      return true;
    };
    if (!fold.exists()) return map(g, w, bias);
    const bool last = to.layout() == Layout::nhwc;
    const FoldedWeight folded(g, fold, transposed,
                              last ? FoldedChannels::by_columns : FoldedChannels::by_channels, w, bias);
    return map(fold.of(g), folded.weight, folded.bias);
  };
  if constexpr (multiplies_float<Math>) {
    if (way.kind == MapKind::halves) return over_boxes.template operator()<HalvesOf<Math>>();
  }
  if constexpr (Math::kParts == 1) {
    if (way.kind == MapKind::boxes) return over_boxes.template operator()<Math>();
  }
  check(!prologue.exists(), "conv: only boxes have a prologue");
  windows_map<Math>(g, transposed, way.plan, way.windows, from, w, bias, to);
  return false;
}

template <class Math>
void wgmma_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w,
                       const Prologue& prologue) {
  using Boxes = std::conditional_t<multiplies_float<Math>, HalvesOf<Math>, Math>;
  const WeightGradWay* way =
      &weight_grad_way(g, x.layout(), y.layout(), factors_of<Math>, !prologue.exists());
  check(way->kind == GradKind::boxes || !prologue.exists(), "conv: only boxes have a prologue");
  if constexpr (Math::kParts == 1) {
    if (way->kind == GradKind::rows) {
      if (row_weight_grad<Boxes>(g, x, y, w) || pair_weight_grad<Math>(g, x, y, w)) return;
      way = &weight_grad_way(g, x.layout(), y.layout(), factors_of<Math>, false);
    }
  }
  if (way->kind == GradKind::boxes) return box_weight_grad<Boxes>(g, way->boxes, x, y, w, prologue);
  gathered_weight_grad<Math>(g, x, y, w);
}

}  // namespace tapedeck::cu::conv_gemm
