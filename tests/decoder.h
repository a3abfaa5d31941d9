// The small decoder that tests of training share.
#pragma once

#include <tapedeck/tapedeck.h>

namespace tapedeck::test {

/// From codes [n,6] to images [n,3,6,6].
class SmallDecoder final : public nn::Module {
 public:
  explicit SmallDecoder(Generator& g)
      : fc(register_module("fc", nn::Linear({.in_features = 6, .out_features = 8 * 3 * 3}, g))),
        norm(register_module("norm", nn::BatchNorm2d({.num_features = 8}))),
        up(register_module(
            "up",
            nn::ConvTranspose2d(
                {.in_channels = 8, .out_channels = 3, .kernel_size = 4, .stride = 2, .padding = 1}, g))) {}
  Variable forward(const Variable& z) override { return up(relu(norm(reshape(fc(z), {-1, 8, 3, 3})))); }

  nn::Linear fc;
  nn::BatchNorm2d norm;
  nn::ConvTranspose2d up;
};

}  // namespace tapedeck::test
