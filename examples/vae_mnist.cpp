// A variational autoencoder (Kingma and Welling, 2014, arXiv 1312.6114) on MNIST.
//
//   vae_mnist images [steps] [picture.png]
//
// `images` is MNIST's train-images-idx3-ubyte.gz, or anything that train_decoder's --data takes. The
// picture shows digits that were never seen: decoded from random codes.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <tapedeck/tapedeck.h>

using namespace tapedeck;

namespace {

constexpr std::int64_t kCode = 16, kHidden = 256;

struct Vae final : nn::Module {
  explicit Vae(const Shape& image)
      : pixels(image.count()),
        hidden(register_module("hidden", nn::Linear({.in_features = pixels, .out_features = kHidden}))),
        mean(register_module("mean", nn::Linear({.in_features = kHidden, .out_features = kCode}))),
        log_variance(
            register_module("log_variance", nn::Linear({.in_features = kHidden, .out_features = kCode}))),
        decoder(register_module(
            "decoder", nn::Sequential(nn::Linear({.in_features = kCode, .out_features = kHidden}), nn::ReLU(),
                                      nn::Linear({.in_features = kHidden, .out_features = pixels}),
                                      nn::Unflatten({image[0], image[1], image[2]})))) {}

  /// The negative evidence lower bound, per image: how badly the image comes back, plus how far its
  /// distribution of codes is from a standard normal one.
  Variable loss(const Variable& x) {
    const Variable h = relu(hidden(flatten(x, 1)));
    const Variable mu = mean(h), logvar = log_variance(h);
    const Variable z = mu + exp(logvar * 0.5) * Variable(randn(mu.shape()));
    const Variable lost = nn::binary_cross_entropy_with_logits(decoder(z), x, nn::Reduction::sum);
    return (lost + nn::kl_divergence_gaussian(mu, logvar, nn::Reduction::sum)) /
           static_cast<double>(x.size(0));
  }

  std::int64_t pixels;
  nn::Linear hidden, mean, log_variance;
  nn::Sequential decoder;  // to logits
};

void run(const std::string& source, int steps, const std::string& picture) {
  const auto dataset = data::open_dataset(source);
  manual_seed(1);
  Vae vae(dataset->image_shape());
  optim::Adam optimizer(vae.parameters(), {.lr = 1e-3});

  data::DataLoader loader(dataset, {.batch_size = 128, .shuffle = true, .seed = 1});
  for (int step = 0; step < steps;) {
    for (const data::Batch& batch : loader) {
      optimizer.zero_grad();
      Tape tape;
      const Variable loss = vae.loss(batch.images);
      tape.backward(loss);
      optimizer.step();
      if (++step % 100 == 0 || step == steps) std::printf("step %4d  loss %.3f\n", step, loss.item());
      if (step == steps) break;
    }
  }
  data::save_png(picture, data::make_grid(sigmoid(vae.decoder(randn({64, kCode}))).tensor()));
  std::printf("images from random codes: %s\n", picture.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: vae_mnist images [steps] [picture.png]\n");
    return 2;
  }
  try {
    run(argv[1], argc > 2 ? std::atoi(argv[2]) : 2000, argc > 3 ? argv[3] : "vae_mnist.png");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vae_mnist: %s\n", error.what());
    return 1;
  }
}
