#include "models.h"

#include <algorithm>
#include <vector>

#include <tapedeck/core/error.h>

namespace train_decoder {

using tapedeck::check;
using tapedeck::concat;

namespace {

/// How one axis grows from a small grid to its full size: doubling where it can.
struct Growth {
  std::int64_t base = 0;            // the size at the start
  std::vector<std::int64_t> sizes;  // after each doubling
};

Growth growth_to(std::int64_t size) {
  Growth growth;
  for (; size >= 8; size /= 2) growth.sizes.insert(growth.sizes.begin(), size);
  growth.base = size;
  return growth;
}

/// One axis of one transposed convolution with padding 1: kernel 4, stride 2 gives 2n, and one more with
/// output_padding 1; kernel 3, stride 1 gives n.
struct Step {
  std::int64_t kernel, stride, output_padding;
};

Step step_at(const Growth& growth, std::size_t layer, std::size_t layers) {
  // The axis with fewer doublings waits for the other one.
  const std::size_t waits = layers - growth.sizes.size();
  if (layer < waits) return {3, 1, 0};
  return {4, 2, growth.sizes[layer - waits] % 2};
}

std::string size(std::int64_t h, std::int64_t w) {
  return h == w ? std::to_string(h) : concat(h, "x", w);
}

}  // namespace

std::string decoder_description(const std::string& kind, std::int64_t latent, const tapedeck::Shape& image) {
  check(kind == "small" || kind == "dcgan", "model ", kind, " is unknown; legal are small and dcgan");
  const bool dcgan = kind == "dcgan";
  const Growth rows = growth_to(image[1]), columns = growth_to(image[2]);
  const std::size_t layers = std::max<std::size_t>(1, std::max(rows.sizes.size(), columns.sizes.size()));

  // Channels halve as the picture grows, from `widest` at most to `narrowest` before the last layer.
  const std::int64_t narrowest = dcgan ? 64 : 32, widest = dcgan ? 256 : 128;
  const auto width = [&](std::size_t layer) {
    return std::min(widest, narrowest << std::min<std::size_t>(layers - 1 - layer, 20));
  };
  const std::string activation = dcgan ? concat("relu\n") : concat("silu\n");
  const auto hidden = [&](std::int64_t channels) {
    return (dcgan ? concat("batch_norm2d features=", channels, "\n") : "") + activation;
  };

  std::string text = concat("# ", kind, " decoder: ", latent, " numbers to ", image, "\n");
  text += concat("linear in=", latent, " out=", width(0) * rows.base * columns.base, "\n");
  text += concat("unflatten shape=", width(0), "x", rows.base, "x", columns.base, "\n", hidden(width(0)));
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const Step r = step_at(rows, layer, layers), c = step_at(columns, layer, layers);
    const bool last = layer + 1 == layers;
    const std::int64_t to = last ? image[0] : width(layer + 1);
    text += concat("conv_transpose2d in=", width(layer), " out=", to, " kernel=", size(r.kernel, c.kernel),
                   " stride=", size(r.stride, c.stride), " padding=1");
    if (r.output_padding + c.output_padding > 0) {
      text += " output_padding=" + size(r.output_padding, c.output_padding);
    }
    text += dcgan && !last ? " bias=false\n" : "\n";
    text += last ? "sigmoid\n" : hidden(to);
  }
  return text;
}

}  // namespace train_decoder
