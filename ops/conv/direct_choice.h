// How blocks of threads share the weight's gradient by direct kernels (direct_weight_grad.cu). Host
// arithmetic.
#pragma once

#include <algorithm>

#include <tapedeck/ops/conv/gemm_plan.h>

namespace tapedeck::conv_direct {

inline constexpr int kGradThreads = 256;  // of a block, that share the pixels of an image of x

/// Images of a block: eight blocks for each multiprocessor of an H100.
inline std::int64_t grad_images(const ConvTranspose2dGeometry& g) {
  const std::int64_t wanted =
      std::clamp<std::int64_t>(132 * 8 / (g.ci * g.group_co()), 1, std::min<std::int64_t>(g.n, 65535));
  return conv_gemm::count(g.n, wanted);
}

}  // namespace tapedeck::conv_direct
