// What estimates of a GPU's times (gpu_estimate.h) are made of: a call, what it moves, and the factors of
// terms.
#pragma once

#include <array>
#include <cstdint>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/operand_copies.h>

namespace tapedeck::conv_gemm {

/// What is multiplied: elements of so many bytes; float32 as it is, one TF32 number, or in three products of
/// such parts at its own accuracy.
struct Factors {
  int element_bytes = 4, parts = 1;

  bool are_float() const { return element_bytes == 4; }
  /// Of the scaled halves that are as accurate.
  int halves() const { return parts == 3 ? 2 : 1; }
  /// Of what boxes of the weight's gradient have: these, or the 16-bit operands themselves.
  int of_boxes() const { return are_float() ? halves() : 1; }
};

}  // namespace tapedeck::conv_gemm

namespace tapedeck::conv_estimate {

using conv_gemm::count;
using conv_gemm::Factors;

inline constexpr int kTerms = 23;
using Terms = std::array<double, kTerms>;

/// The algorithms that have estimates; wgmma that of the way that it takes (is_way_of_wgmma()).
inline constexpr ConvAlgorithm kEstimated[] = {
    ConvAlgorithm::wgmma,     ConvAlgorithm::tensor,   ConvAlgorithm::strip,   ConvAlgorithm::direct,
    ConvAlgorithm::depthwise, ConvAlgorithm::columns,  ConvAlgorithm::windows, ConvAlgorithm::boxes,
    ConvAlgorithm::halves,    ConvAlgorithm::gathered, ConvAlgorithm::rows,    ConvAlgorithm::thin};

enum class ConvPass : std::uint8_t { forward, input_gradient, weight_gradient };

/// What is multiplied, of float32 at the precision that is set now.
inline Factors operands_of(DType dtype) {
  return {static_cast<int>(size_of(dtype)),
          dtype == DType::float32 && float32_precision() == Precision::highest ? 3 : 1};
}

/// What is computed, if of a dtype, float32 at the precision that is set now. The layout is that of what is
/// read, and of both images where they have one.
struct ConvCall {
  ConvCall(const ConvTranspose2dGeometry& geometry, ConvPass of_pass, const Factors& of, Layout of_images)
      : g(geometry), pass(of_pass), operands(of), layout(of_images) {}
  ConvCall(const ConvTranspose2dGeometry& geometry, ConvPass of_pass, DType dtype, Layout of_images)
      : ConvCall(geometry, of_pass, operands_of(dtype), of_images) {}
  const ConvTranspose2dGeometry& g;
  ConvPass pass;
  Factors operands;
  Layout layout;
};

/// Microseconds in which an H200 copies so many elements, reading or writing.
inline double moved(double elements, int bytes) {
  return elements * bytes / 4.1e6;
}
/// The part of an axis of y that taps reach.
inline double reached(const ConvAxis& axis) {
  std::int64_t reached = 0;
  for (std::int64_t r = 0; r < axis.stride; ++r) reached += axis.taps(r) > 0;
  return static_cast<double>(reached) / static_cast<double>(axis.stride);
}
/// Of x or y, in microseconds, of which gradients read what taps reach.
inline double images_moved(const ConvCall& c, bool x) {
  const Shape shape = x ? c.g.x_shape() : c.g.y_shape();
  double part = 1;
  if (!x && c.pass != ConvPass::forward)
    part = reached(c.g.h) * (c.layout == Layout::nhwc ? reached(c.g.w) : 1);
  return moved(part * static_cast<double>(shape.count()), c.operands.element_bytes);
}
/// What it takes to copy channels of x or y last (channels_last.cu), reading and writing, each as `parts`
/// numbers of so many bytes: of y only rows that taps reach, though in nhwc more are copied where few rows
/// are a tile. Nothing where they lie as kernels read them.
inline double channels_copied(const ConvCall& c, bool x, int bytes, int parts = 1) {
  const std::int64_t of_group = x ? c.g.group_ci() : c.g.group_co(), vector = 16 / bytes,
                     padded = count(of_group, vector) * vector;
  if (c.layout == Layout::nhwc && padded == of_group && bytes == c.operands.element_bytes) return 0;
  const auto of = static_cast<double>((x ? c.g.x_shape() : c.g.y_shape()).count());
  const bool all = x || c.pass == ConvPass::forward || c.g.h.stride > conv_gemm::kMaxPhases;
  const double read = moved(of, c.operands.element_bytes),
               written =
                   moved(of * static_cast<double>(padded) / static_cast<double>(of_group), parts * bytes);
  return (all ? 1 : reached(c.g.h)) * (read + written);
}
/// Whether images of x or y have planes that are no whole vectors, of which such copies may read fewer
/// elements at once.
inline bool has_odd_planes(const ConvCall& c, bool x) {
  const std::int64_t plane = x ? c.g.h.in * c.g.w.in : c.g.h.out * c.g.w.out;
  return c.layout == Layout::nchw && plane * c.operands.element_bytes % 16 != 0;
}
/// moved() results of a forward pass in nchw, times the rows of x that 32 pixels meet beyond the first: rows
/// of results are written in parts.
inline double in_short_rows(const ConvCall& c, double results) {
  if (c.pass != ConvPass::forward || c.layout == Layout::nhwc) return 0;
  return results * (32 / static_cast<double>(std::min<std::int64_t>(c.g.w.in, 32)) - 1);
}
inline double weight_moved(const ConvCall& c) {
  return moved(static_cast<double>(c.g.weight_shape().count()), c.operands.element_bytes);
}

/// The part of two reads and a write of halves that it takes to make them of a float32 tensor of so many
/// elements: large ones are read once (ops/largest.cuh).
inline double halves_made(const conv_gemm::Factors& f, std::int64_t count) {
  const double made = 4 + 2 * f.halves();
  return count < kLeastSampled ? 1 : made / (4 + made);
}

/// Of tables by precision: float32, TF32, 16 bits.
inline int precision_index(const Factors& f) {
  return f.element_bytes == 2 ? 2 : f.parts == 3 ? 0 : 1;
}

/// The microseconds of terms; infinity where there are none, or too few calls of the kind were measured.
double microseconds(ConvAlgorithm algorithm, const ConvCall& c, const Terms& terms);

}  // namespace tapedeck::conv_estimate
