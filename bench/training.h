// The training steps that PyTorch's were timed beside (bench/compare_gpu_train.py), for benchmarks and tests:
// a VAE's decoder and a DCGAN's generator.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include <tapedeck/tapedeck.h>

namespace tapedeck::bench {

inline nn::ConvTranspose2d up(std::int64_t from, std::int64_t to, std::int64_t kernel, std::int64_t stride,
                              std::int64_t padding, std::int64_t output_padding, bool bias) {
  return nn::ConvTranspose2d({.in_channels = from,
                              .out_channels = to,
                              .kernel_size = kernel,
                              .stride = stride,
                              .padding = padding,
                              .output_padding = output_padding,
                              .bias = bias});
}

inline nn::Sequential make_vae() {
  return nn::Sequential(nn::Linear({.in_features = 20, .out_features = 64 * 7 * 7}), nn::ReLU(),
                        nn::Unflatten({64, 7, 7}), up(64, 64, 3, 2, 1, 1, true), nn::ReLU(),
                        up(64, 32, 3, 2, 1, 1, true), nn::ReLU(), up(32, 1, 3, 1, 1, 0, true));
}

inline nn::Sequential make_dcgan() {
  return nn::Sequential(
      up(100, 512, 4, 1, 0, 0, false), nn::BatchNorm2d({.num_features = 512}), nn::ReLU(),  //
      up(512, 256, 4, 2, 1, 0, false), nn::BatchNorm2d({.num_features = 256}), nn::ReLU(),  //
      up(256, 128, 4, 2, 1, 0, false), nn::BatchNorm2d({.num_features = 128}), nn::ReLU(),  //
      up(128, 64, 4, 2, 1, 0, false), nn::BatchNorm2d({.num_features = 64}), nn::ReLU(),    //
      up(64, 3, 4, 2, 1, 0, false), nn::Tanh());
}

/// Steps of Adam, with parameters of the default generator and random data.
struct Training {
  bool vae;
  nn::Sequential model;
  optim::Adam adam;
  Tensor codes, images;

  Training(const std::string& name, std::int64_t batch, Device device)
      : vae(name == "vae"), model(on(device, vae ? make_vae() : make_dcgan())), adam(model.parameters(), {}) {
    codes = randn(vae ? Shape{batch, 20} : Shape{batch, 100, 1, 1}, {.device = device});
    images = rand(vae ? Shape{batch, 1, 28, 28} : Shape{batch, 3, 64, 64}, {.device = device});
  }
  static nn::Sequential on(Device device, nn::Sequential made) {
    made.to(device);
    return made;
  }

  /// The loss of a step on codes and images; the step's tape goes to `text`.
  Tensors step(const Tensors& batch, std::ostream* text = nullptr) {
    adam.zero_grad();
    Tape tape;
    const Variable y = model(batch[0]);
    const Variable loss = vae ? nn::binary_cross_entropy_with_logits(y, batch[1]) : nn::mse_loss(y, batch[1]);
    tape.backward(loss);
    adam.step();
    if (text != nullptr) *text << tape.to_text();
    return {loss.tensor()};
  }
};

}  // namespace tapedeck::bench
