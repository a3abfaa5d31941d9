// Which algorithm computes a call of the convolution family on a GPU: what is forced, else the one with the
// least estimated time (gpu_estimate.h). Who calls asks the tuner before (autotune.cuh).
#pragma once

#include <limits>
#include <optional>

#include <tapedeck/ops/conv/gpu_terms.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck::cu {

/// An algorithm, and why that one.
struct ConvTaken {
  ConvAlgorithm algorithm = ConvAlgorithm::automatic;
  const char* reason = "";
  double microseconds = std::numeric_limits<double>::infinity();  // where these are estimated
};

/// What computes a call with x and y of these layouts, or with these tensors; as ConvAlgorithmScope forces
/// it.
ConvTaken known_choice(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass, DType dtype, Layout x,
                       Layout y, bool has_wgmma);
ConvTaken known_choice(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass, const Tensor& x,
                       const Tensor& y);
/// Whether thin products can read x: most by whole vectors, which a view may begin beside.
bool reads_vectors(const Tensor& x);

/// What computes the weight's gradient where a map reads an operand of it, too (ReadByBoth), and nothing is
/// forced: boxes, if both are estimated to take less time with one copy of that. Nothing: as it is alone.
std::optional<ConvCandidate> choice_beside(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y,
                                           bool has_wgmma);
std::optional<ConvCandidate> choice_beside(const ConvTranspose2dGeometry& g, const Tensor& x,
                                           const Tensor& y);

/// Whether what a map copies for boxes serves the weight's gradient, too: a tape wants both, and that is
/// computed over boxes, as far as is known before its choice is measured.
bool shares_copy(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y, bool has_wgmma);
bool shares_copy(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y);

/// Whether x or y of an nchw call has its elements in the same order with channels last: nothing is copied.
bool has_same_order(const ConvTranspose2dGeometry& g, bool x);
/// Whether float32 is multiplied at its own accuracy.
bool is_accurate(DType dtype);

}  // namespace tapedeck::cu
