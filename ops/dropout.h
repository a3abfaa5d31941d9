// Dropout.
#pragma once

#include <tapedeck/core/op.h>
#include <tapedeck/core/random.h>

namespace tapedeck {

/// In training, each element is 0 with probability p and else x / (1 - p); x itself otherwise and for p = 0.
/// Takes one draw of `generator`, which is the same for every layout of x. The mask is not stored: the
/// gradient draws it again. Throws Error unless 0 <= p <= 1 and x is floating.
Variable dropout(const Variable& x, double p, bool training, Generator& generator = default_generator());

namespace cpu {
/// y = x / (1 - p) where 32 bits of draw `draw` of `seed` are at least p * 2^32, else 0. Element i takes word
/// i % 4 of counter i / 4. x and y are row-major.
void dropout(const Tensor& x, double p, std::uint64_t seed, std::uint64_t draw, const Tensor& y);
}  // namespace cpu
namespace cu {
void dropout(const Tensor& x, double p, std::uint64_t seed, std::uint64_t draw, const Tensor& y);
}  // namespace cu

}  // namespace tapedeck
