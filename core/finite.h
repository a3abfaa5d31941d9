// Whether a tensor holds only numbers.
#pragma once

#include <tapedeck/core/tensor.h>

namespace tapedeck {

/// Whether no element is NaN or infinite; true for integer types. Waits for the device.
bool all_finite(const Tensor& x);

namespace cpu {
bool all_finite(const Tensor& x);
}
namespace cu {
bool all_finite(const Tensor& x);
}

}  // namespace tapedeck
