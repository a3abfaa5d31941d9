// Kernels that memory bounds: few channels a group or a large stride. strip_transposed.cu, with
// strip_transposed_halves.cu; strip_transposed_channels_last.cu, strip_plain.cu, with strip_ahead.cu;
// strip_weight_grad.cu, with strip_ahead_weight_grad.cu; strip_weight_grad_rows.cu.
#pragma once

#include <optional>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/strip_plan.h>

namespace tapedeck::cu {

using conv_strip::StripEffort;

/// Whether strips are for such tensors; they may not fit shared memory yet.
inline bool strips_serve(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  return dtype != DType::float64 && conv_gemm::fits(g) && g.n > 0 &&
         (layout == Layout::nchw || conv_strip::channels_last_fits(g));
}

/// What these do for a call on tensors of this type, all of one layout, that start at multiples of 16 bytes;
/// nothing where they cannot compute it.
std::optional<StripEffort> strip_transposed_effort(const ConvTranspose2dGeometry& g, DType dtype);
std::optional<StripEffort> strip_transposed_channels_last_effort(const ConvTranspose2dGeometry& g,
                                                                 DType dtype);
std::optional<StripEffort> strip_plain_effort(const ConvTranspose2dGeometry& g, DType dtype, Layout layout);
/// How many parts of x's size that adds, 0 if none; `has_bulk`: whether the device has bulk copies.
std::int64_t strip_plain_parts(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_bulk);
inline std::optional<StripEffort> strip_effort(const ConvTranspose2dGeometry& g, bool transposed, DType dtype,
                                               Layout layout) {
  if (!transposed) return strip_plain_effort(g, dtype, layout);
  return layout == Layout::nchw ? strip_transposed_effort(g, dtype)
                                : strip_transposed_channels_last_effort(g, dtype);
}
/// Contracts as in ops/conv_transpose2d.h and ops/conv2d.h.
void strip_transposed(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w, const Tensor& bias,
                      const Tensor& y);
void strip_transposed_channels_last(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w,
                                    const Tensor& bias, const Tensor& y);
void strip_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                 const Tensor& x);
/// The same where each row of y meets one row of x, and rows are long; whether it has done it. And whether it
/// does, for tensors that start at multiples of 16 bytes.
bool strip_ahead(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                 const Tensor& x);
bool strip_ahead_serves(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_bulk);

std::optional<StripEffort> strip_weight_grad_effort(const ConvTranspose2dGeometry& g, DType dtype,
                                                    Layout layout);
void strip_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w);
/// How many sums of the weight's size that makes before they are added, of tensors that start at multiples of
/// 16 bytes; `has_bulk`: whether the device has bulk copies.
std::int64_t strip_weight_grad_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout,
                                      bool has_bulk);
/// The same where each row of y meets one row of x, as strip_ahead() and strip_ahead_serves(); 0 splits where
/// it does not.
bool strip_weight_grad_ahead(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                             const Tensor& w);
std::int64_t strip_weight_grad_ahead_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout,
                                            bool has_bulk);
/// The same, where two or three rows of x meet a row of y.
std::optional<StripEffort> strip_weight_grad_rows_effort(const ConvTranspose2dGeometry& g, DType dtype,
                                                         Layout layout);
void strip_weight_grad_rows(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                            const Tensor& w);
std::int64_t strip_weight_grad_rows_splits(const ConvTranspose2dGeometry& g, DType dtype, Layout layout);

}  // namespace tapedeck::cu
