// The built-in decoders, as model descriptions sized from the data.
#pragma once

#include <cstdint>
#include <string>

#include <tapedeck/core/shape.h>

namespace train_decoder {

/// The description (see nn/model_description.h) of a decoder from [n, latent] to [n, c, h, w] in [0, 1],
/// for images [c, h, w] of any size. `kind` is "small" (a linear layer and transposed convolutions) or
/// "dcgan" (wider, with batch normalisation). Throws Error for another kind.
std::string decoder_description(const std::string& kind, std::int64_t latent, const tapedeck::Shape& image);

}  // namespace train_decoder
