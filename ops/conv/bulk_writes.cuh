// What memory checkers are told of bulk copies and of the tensor memory accelerator's stores.
#pragma once

#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

/// compute-sanitizer's initcheck does not see what such copies write. Where a checker runs, with
/// TAPEDECK_CUDA_CACHE=0, fills a result with NaN before they do.
inline void announce_bulk_writes(const Tensor& result) {
  static const bool checked = !caches_memory();
  if (!checked) return;
  check_cuda(cudaMemsetAsync(result.raw(), 0xff, result.bytes(), stream_of(result.device())),
             "cudaMemsetAsync");
}

}  // namespace tapedeck::cu
