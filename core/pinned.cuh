// Page-locked memory.
#pragma once

#include <tapedeck/core/tensor.h>

namespace tapedeck::cu {

/// Whether a tensor on the CPU is in page-locked memory, which copies take without waiting for their stream.
bool is_pinned(const Tensor& x);

}  // namespace tapedeck::cu
