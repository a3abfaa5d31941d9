// Trials of a GPU's algorithms, for the tuner (tuner.h).
#pragma once

#include <optional>
#include <vector>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/gpu_estimate.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/tuner.h>

namespace tapedeck::cu {

/// What the tuner takes for a call with tensors like these, after a trial if need be; where it knows nothing
/// or there is none, what the library's own table says. Nothing: as estimated, also where an algorithm is
/// forced, or there are no images. While the stream is captured there are no trials.
std::optional<ConvCandidate> tuned(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass,
                                   const Tensor& x, const Tensor& y, const Tensor& w);

/// What that takes, with times, for tensors of these layouts without a trial; where it was measured.
struct KnownChoice : ConvTuner::Choice {
  bool is_shipped = false;
};
std::optional<KnownChoice> known_tuned(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass,
                                       DType dtype, Layout x, Layout y, Device device);
/// Lets the thread's known_choice() be what a call takes without a trial, for images of one layout, on a
/// device if there is one.
class KnownChoiceScope {
 public:
  KnownChoiceScope(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass, DType dtype, Layout layout,
                   std::optional<Device> device)
      : known(device ? known_tuned(g, pass, dtype, layout, layout, *device) : std::nullopt),
        scope_(known ? std::optional<ConvCandidate>(known->candidate) : std::nullopt) {}

  const std::optional<KnownChoice> known;

 private:
  ConvAlgorithmScope scope_;
};

/// What can compute a call in ways that differ, the estimated choice first, tilings that are estimated to be
/// nearly as fast last; as ConvAlgorithmScope forces them. (gpu_choice.cu)
std::vector<ConvCandidate> conv_candidates(const ConvTranspose2dGeometry& g, conv_estimate::ConvPass pass,
                                           const Tensor& x, const Tensor& y);

}  // namespace tapedeck::cu
