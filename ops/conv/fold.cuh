// Weights of folded images (fold.h). fold.cu.
#pragma once

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/fold.h>

namespace tapedeck::cu::conv_gemm {

using namespace tapedeck::conv_gemm;

/// The order of a folded image's channels: [column][channel], as pixels with the channels last lie; or
/// [channel][column], whose neighbours are neighbours in an nchw row.
enum class FoldedChannels { by_columns, by_channels };

/// A weight as that of folded images, with its channels last, and the bias, if there is one, as their
/// results': of y, or of x where `transposed` is false. `to`: the order of these.
struct FoldedWeight {
  FoldedWeight(const ConvTranspose2dGeometry& g, const Fold& fold, bool transposed, FoldedChannels to,
               const Tensor& w, const Tensor& bias);
  Tensor weight, bias;
};

/// The weight's gradient from that of folded images, float32 in nchw, both by columns.
void unfold_weight_grad(const Fold& fold, const Tensor& folded, const Tensor& w);

}  // namespace tapedeck::cu::conv_gemm
