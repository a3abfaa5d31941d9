// Where training starts: codes and the output's bias, taken from the images.
#pragma once

#include <tapedeck/tapedeck.h>

namespace train_decoder {

/// Codes [n, latent] along the principal components of the images, as Bojanowski et al. start them: close
/// images have close codes. Their standard deviation is `stddev`. Reads all images once and holds them in
/// memory. Components beyond the number of pixels or of images are small noise.
tapedeck::Tensor principal_codes(const tapedeck::data::Dataset& dataset, std::int64_t latent, double stddev);

/// Sets the bias of the last layer that has one, if it is one number a channel, so that the decoder starts
/// at the images' mean colour (estimated from a few) instead of at grey. Without this, a sigmoid that first
/// has to go a long way to a dark background can get stuck there.
void start_at_mean_colour(const tapedeck::nn::Sequential& decoder, const tapedeck::data::Dataset& dataset);

}  // namespace train_decoder
