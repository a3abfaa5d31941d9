// How the family is computed with Hopper's instructions: over boxes of pixels (wgmma_box.cuh,
// wgmma_box_weight_grad.cuh), or with operands gathered for each tap (wgmma_map.cuh, wgmma_weight_grad.cuh):
// where products have three parts, where images are so small that boxes are mostly padding, and for weight
// gradients of 32-bit types, whose operands the tensor cores do not transpose.
#pragma once

#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/wgmma_box.cuh>
#include <tapedeck/ops/conv/wgmma_box_weight_grad.cuh>
#include <tapedeck/ops/conv/wgmma_map.cuh>
#include <tapedeck/ops/conv/wgmma_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

template <class Math>
void wgmma_map(const ConvTranspose2dGeometry& g, bool transposed, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to) {
  const Plan plan(g, transposed, sizeof(typename Math::Element));
  const WindowsChoice<Math> windows(plan);
  if constexpr (Math::kParts == 1) {
    const BoxPlan boxes(g, transposed, sizeof(typename Math::Element));
    const BoxChoice choice = best_box_choice(boxes);
    const bool forced = conv_algorithm() == ConvAlgorithm::boxes;
    if (choice.places > 0 && (forced || choice.clocks < windows.clocks))
      return box_map<Math>(g, transposed, boxes, choice, from, w, bias, to);
  }
  windows_map<Math>(g, transposed, plan, windows, from, w, bias, to);
}

template <class Math>
void wgmma_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  if constexpr (sizeof(typename Math::Element) == 2) {
    // Measured on an H200: boxes are faster but for little work a call or a byte, and images of less than
    // 6x6.
    const auto bytes = static_cast<double>((g.x_shape().count() + g.y_shape().count()) * 2);
    const bool much = g.flops() >= 2e9 && g.flops() >= 24 * bytes && g.h.in * g.w.in >= 36;
    const bool forced = conv_algorithm() == ConvAlgorithm::boxes;
    if ((much || forced) && box_weight_grad<Math>(g, x, y, w)) return;
  }
  gathered_weight_grad<Math>(g, x, y, w);
}

}  // namespace tapedeck::cu::conv_gemm
