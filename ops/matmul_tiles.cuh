// Products of matrices by tiles, where these are matmul_tiles::tiled().
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/matmul_tiles.h>

namespace tapedeck::cu {

using matmul_tiles::TileMath;

/// Words of 4 bytes between matrices of a batch: of the `inner` of a call, 0 for one that these share, and
/// of calls.
struct BatchSteps {
  TAPEDECK_HD std::int64_t at(int matrix, int inner) const {
    const int call = matrix / inner;
    return call * of_calls + (matrix - call * inner) * of_inner;
  }
  std::int64_t of_inner, of_calls = 0;
};

/// A product of matrices, as in matmul_tiles.h.
struct TiledProduct {
  TileMath math;
  matmul_tiles::Sizes sizes;
  bool transposed_a, transposed_b;
  const void *a, *b;  // at words
  BatchSteps step_a, step_b;
  const float* bias;  // [n] or nullptr
  float beta;         // of what `to` holds
  bool relu;
  float* to;
  BatchSteps step_to;
  std::int64_t inner;  // matrices of a call
};

/// Bytes that it takes beside its matrices.
std::int64_t tiles_workspace(const matmul_tiles::Sizes& sizes);
/// to = a b, plus beta times what it holds, plus the bias, negative results set to 0 if `relu`.
void multiply_tiles(Device device, const TiledProduct& product);

}  // namespace tapedeck::cu
