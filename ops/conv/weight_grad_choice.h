// How the weight's gradient is computed with Hopper's instructions: with operands gathered for each tap
// (wgmma_weight_grad.cuh), over boxes of pixels (wgmma_box_weight_grad.cuh), of the tensors' own type or for
// float32 of scaled halves (scaled_half.cuh), or over rows of nchw as they lie (of stride 1 along w
// wgmma_row_weight_grad.cuh, of stride 2 wgmma_pairs.cu). Host arithmetic.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include <tapedeck/ops/conv/box_grad_plan.h>
#include <tapedeck/ops/conv/gpu_terms.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck::conv_gemm {

/// Whether the strides of copies of 16 bits, of so many parts, are 32-bit numbers.
inline bool halves_fit(const ConvTranspose2dGeometry& g, int parts) {
  const auto row = [&](std::int64_t columns, std::int64_t channels) {
    return columns * g.groups * (channels + 8) * parts;
  };
  return std::max(row(g.w.in, g.group_ci()), row(g.w.out, g.group_co())) < std::int64_t{1} << 31;
}

enum class GradKind : std::uint8_t { windows, boxes, rows };

struct WeightGradWay {
  GradKind kind = GradKind::windows;
  BoxGradWay boxes;                                               // which has a plan where the kind is that
  double microseconds = std::numeric_limits<double>::infinity();  // an estimate
};

/// What is estimated to take the least time for images of these layouts, or what is forced, of what computes
/// the layer. Rows are left out where `rows` says so: tensors may begin where they cannot be read, and rows
/// have no prologue. Until the thread's next call.
const WeightGradWay& weight_grad_way(const ConvTranspose2dGeometry& g, Layout x, Layout y, const Factors& f,
                                     bool rows = true);

/// Over rows, where these are taken: whether as pairs of columns (pair_grad_plan.h), and how many sums of
/// each weight are written.
bool are_pairs(const ConvTranspose2dGeometry& g);
int written_sums(const ConvTranspose2dGeometry& g, const Factors& f);

/// Which algorithm computes it over boxes.
inline ConvAlgorithm boxes_of_weight_grad(const Factors& f) {
  return f.are_float() ? ConvAlgorithm::halves : ConvAlgorithm::boxes;
}

/// What estimates are made of (gpu_estimate.h); of boxes and rows, zeros where there is no plan.
conv_estimate::Terms of_windows_weight_grad(const conv_estimate::ConvCall& c);
conv_estimate::Terms of_boxes_weight_grad(const conv_estimate::ConvCall& c);
conv_estimate::Terms of_rows_weight_grad(const conv_estimate::ConvCall& c);

}  // namespace tapedeck::conv_gemm
