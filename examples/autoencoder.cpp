// An autoencoder: images through a narrow code and back.
//
//   autoencoder [data] [steps] [picture.png]
//
// `data` is anything that train_decoder's --data takes, with sides divisible by 4; sprites by default.
// The picture shows pairs: an image and what came back.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include <tapedeck/tapedeck.h>

using namespace tapedeck;

namespace {

constexpr std::int64_t kCode = 32;

nn::Sequential make_encoder(const Shape& image) {
  return nn::Sequential(
      nn::Conv2d({.in_channels = image[0], .out_channels = 32, .kernel_size = 4, .stride = 2, .padding = 1}),
      nn::LeakyReLU({.negative_slope = 0.1}),
      nn::Conv2d({.in_channels = 32, .out_channels = 64, .kernel_size = 4, .stride = 2, .padding = 1}),
      nn::LeakyReLU({.negative_slope = 0.1}), nn::Flatten(),
      nn::Linear({.in_features = 64 * (image[1] / 4) * (image[2] / 4), .out_features = kCode}));
}

nn::Sequential make_decoder(const Shape& image) {
  const std::int64_t h = image[1] / 4, w = image[2] / 4;
  return nn::Sequential(
      nn::Linear({.in_features = kCode, .out_features = 64 * h * w}), nn::Unflatten({64, h, w}),
      nn::LeakyReLU({.negative_slope = 0.1}),
      nn::ConvTranspose2d(
          {.in_channels = 64, .out_channels = 32, .kernel_size = 4, .stride = 2, .padding = 1}),
      nn::LeakyReLU({.negative_slope = 0.1}),
      nn::ConvTranspose2d(
          {.in_channels = 32, .out_channels = image[0], .kernel_size = 4, .stride = 2, .padding = 1}));
}

void run(const std::string& source, int steps, const std::string& picture) {
  const auto dataset = data::open_dataset(source);
  const Shape image = dataset->image_shape();
  check(image[1] % 4 == 0 && image[2] % 4 == 0, source, ": images are ", image,
        "; sides must be multiples of 4");
  manual_seed(1);
  nn::Sequential encoder = make_encoder(image), decoder = make_decoder(image);
  Variables parameters = encoder.parameters();
  for (const Variable& parameter : decoder.parameters()) parameters.push_back(parameter);
  optim::Adam optimizer(parameters, {.lr = 1e-3});

  data::DataLoader loader(dataset, {.batch_size = 64, .shuffle = true, .seed = 1});
  for (int step = 0; step < steps;) {
    for (const data::Batch& batch : loader) {
      optimizer.zero_grad();
      Tape tape;
      const Variable loss = nn::mse_loss(decoder(encoder(batch.images)), batch.images);
      tape.backward(loss);
      optimizer.step();
      if (++step % 50 == 0 || step == steps) std::printf("step %4d  loss %.5f\n", step, loss.item());
      if (step == steps) break;
    }
  }

  Variables pairs;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(32, dataset->size()); ++i) {
    const Variable original = unsqueeze(dataset->get(i), 0);
    pairs.push_back(original);
    pairs.push_back(decoder(encoder(original)));
  }
  data::save_png(picture, data::make_grid(cat(pairs, 0).tensor()));
  std::printf("pairs of originals and copies: %s\n", picture.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "sprites", argc > 2 ? std::atoi(argv[2]) : 500,
        argc > 3 ? argv[3] : "autoencoder.png");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "autoencoder: %s\n", error.what());
    return 1;
  }
}
