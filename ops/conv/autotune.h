// Which algorithms compute the convolution family on a GPU, measured instead of estimated (kernels.h).
//
// The first call of its kind (geometry, pass, dtype, layouts, float32 precision) is tried on random numbers
// with each algorithm that can compute it, but the definition and those that are estimated to take more than
// 8 times the least estimate, and with other tilings of boxes (tiled.h). What is then taken has results like
// those of the estimated choice, and is that one unless another is 3% faster. The library has such choices of
// its own, of layers that were measured on an H200 or an H100 (shipped_choices.h), for calls that a tuner
// knows nothing of, or where there is none. Two runs can choose differently, and their results differ as
// algorithms do; pinned choices do not change. Trials take memory for a second set of the call's tensors and
// for two more results, and wait for the GPU. None is made while a stream is captured: a step that is
// captured (core/captured_step.h) has run once before. A bias, a rectifier and copies that both gradients
// share are not thought of: with these, the algorithm that was chosen may take another of its forms.
#pragma once

#include <optional>
#include <string>

namespace tapedeck {

struct ConvAutotuneOptions {
  /// Of choices, of any GPUs: read at once, and replaced after each new one. Empty: for this process only.
  std::string file = {};
  /// Only what the file says: nothing is measured or written. Unknown calls are computed as without a tuner.
  bool pinned = false;
  /// What trials may take in all: half a second to two a call. What is then unknown is computed as without a
  /// tuner.
  double budget_seconds = 30;
};

/// Begins with no other choices than the file's, in every thread; nothing: without a tuner, as estimated or
/// as the library's own choices say. The default is nothing, or the file that TAPEDECK_CONV_AUTOTUNE_PINNED
/// or TAPEDECK_CONV_AUTOTUNE names, the former first. An algorithm that is forced (kernels.h) goes before.
/// Throws Error when the options are not legal, the file is damaged, or not there and `pinned`; then nothing
/// changes. A file that cannot be written fails the call that would have been the first to use it.
void set_conv_autotune(std::optional<ConvAutotuneOptions> options);

}  // namespace tapedeck
