// Products of matrices by tiles, where these are matmul_tiles::tiled().
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/matmul_tiles.h>

namespace tapedeck::cu {

using matmul_tiles::TileMath;

/// A product of matrices, as in matmul_tiles.h. Steps are words of 4 bytes between matrices of a batch, 0 for
/// one that all share.
struct TiledProduct {
  TileMath math;
  matmul_tiles::Sizes sizes;
  bool transposed_a, transposed_b;
  const void *a, *b;  // at words
  std::int64_t step_a, step_b;
  const float* bias;  // [n] or nullptr
  float beta;         // of what `to` holds
  bool relu;
  float* to;
  std::int64_t step_to;
};

/// Bytes that it takes beside its matrices.
std::int64_t tiles_workspace(const matmul_tiles::Sizes& sizes);
/// to = a b, plus beta times what it holds, plus the bias, negative results set to 0 if `relu`.
void multiply_tiles(Device device, const TiledProduct& product);

}  // namespace tapedeck::cu
