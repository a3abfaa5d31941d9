// Lines of matrices with room behind them, so that each begins at a whole vector (columns.h).
#pragma once

#include <tapedeck/core/tensor.h>

namespace tapedeck::cu {

/// Copies lines of `width` elements that begin `from_pitch` apart to where they begin `to_pitch` apart, with
/// zeros behind them. All of `to` is written. Elements are of one type, or rounded from float32 to 16 bits.
void copy_lines(const Tensor& from, std::int64_t from_pitch, const Tensor& to, std::int64_t to_pitch,
                std::int64_t width);
/// Zeros beside matrices of `rows` x `width` in those of `all_rows` x `pitch` that `to` holds.
void clear_beside(const Tensor& to, std::int64_t rows, std::int64_t width, std::int64_t all_rows,
                  std::int64_t pitch);

}  // namespace tapedeck::cu
