// Trials of a GPU's algorithms, for the tuner (tuner.h).
#pragma once

#include <optional>
#include <vector>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/gpu_estimate.h>
#include <tapedeck/ops/conv/tuner.h>

namespace tapedeck::cu {

/// The algorithm that the tuner takes for a call with tensors like x and y, after a trial if need be.
/// Nothing: as estimated, also where there is no tuner, an algorithm is forced, or there are no images. While
/// the stream is captured there are no trials.
std::optional<ConvAlgorithm> tuned_algorithm(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass,
                                             const Tensor& x, const Tensor& y);

/// The same without a trial, for tensors of these layouts, with the times.
std::optional<ConvTuner::Choice> known_tuned(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass,
                                             DType dtype, Layout x, Layout y, Device device);

/// What can compute a call in ways that differ, the estimated choice first; as ConvAlgorithmScope forces
/// them. (dispatch.cu)
std::vector<ConvAlgorithm> conv_candidates(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass,
                                           const Tensor& x, const Tensor& y);

}  // namespace tapedeck::cu
