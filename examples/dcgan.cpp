// A generative adversarial network of transposed convolutions (DCGAN: Radford et al. 2016,
// arXiv 1511.06434).
//
//   dcgan [data] [steps] [picture.png]
//
// `data` is anything that train_decoder's --data takes, with sides divisible by 8; sprites by default.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <tapedeck/tapedeck.h>

using namespace tapedeck;

namespace {

constexpr std::int64_t kCode = 64;

nn::ConvTranspose2d up(std::int64_t from, std::int64_t to) {
  return nn::ConvTranspose2d(
      {.in_channels = from, .out_channels = to, .kernel_size = 4, .stride = 2, .padding = 1});
}

nn::Conv2d down(std::int64_t from, std::int64_t to) {
  return nn::Conv2d({.in_channels = from, .out_channels = to, .kernel_size = 4, .stride = 2, .padding = 1});
}

nn::Sequential make_generator(const Shape& image) {
  const std::int64_t h = image[1] / 8, w = image[2] / 8;
  return nn::Sequential(nn::Linear({.in_features = kCode, .out_features = 128 * h * w}),
                        nn::Unflatten({128, h, w}), nn::BatchNorm2d({.num_features = 128}), nn::ReLU(),
                        up(128, 64), nn::BatchNorm2d({.num_features = 64}), nn::ReLU(),  //
                        up(64, 32), nn::BatchNorm2d({.num_features = 32}), nn::ReLU(),   //
                        up(32, image[0]), nn::Sigmoid());
}

nn::Sequential make_discriminator(const Shape& image) {
  return nn::Sequential(
      down(image[0], 32), nn::LeakyReLU({.negative_slope = 0.2}),  //
      down(32, 64), nn::BatchNorm2d({.num_features = 64}), nn::LeakyReLU({.negative_slope = 0.2}),
      down(64, 128), nn::BatchNorm2d({.num_features = 128}), nn::LeakyReLU({.negative_slope = 0.2}),
      nn::Flatten(), nn::Linear({.in_features = 128 * (image[1] / 8) * (image[2] / 8), .out_features = 1}));
}

/// How surprised the discriminator is that all of these are `real`.
Variable surprise(const Variable& logits, bool real) {
  return nn::binary_cross_entropy_with_logits(logits, Tensor::full(logits.shape(), real ? 1 : 0));
}

void run(const std::string& source, int steps, const std::string& picture) {
  const auto dataset = data::open_dataset(source);
  const Shape image = dataset->image_shape();
  check(image[1] % 8 == 0 && image[2] % 8 == 0, source, ": images are ", image,
        "; sides must be multiples of 8");
  manual_seed(1);
  nn::Sequential generator = make_generator(image), discriminator = make_discriminator(image);
  optim::Adam generator_optimizer(generator.parameters(), {.lr = 2e-4, .betas = {0.5, 0.999}});
  optim::Adam discriminator_optimizer(discriminator.parameters(), {.lr = 2e-4, .betas = {0.5, 0.999}});
  const Tensor shown = randn({64, kCode});

  data::DataLoader loader(dataset, {.batch_size = 64, .shuffle = true, .seed = 1, .drop_last = true});
  check(loader.size() > 0, source, ": fewer than 64 images");
  for (int step = 0; step < steps;) {
    for (const data::Batch& batch : loader) {
      // The discriminator learns to tell images from forgeries ...
      const Variable codes = randn({batch.images.size(0), kCode});
      Variable forged;
      discriminator_optimizer.zero_grad();
      {
        NoTape no_tape;
        forged = generator(codes);
      }
      double caught = 0, fooled = 0;
      {
        Tape tape;
        const Variable loss =
            surprise(discriminator(batch.images), true) + surprise(discriminator(forged), false);
        tape.backward(loss);
        caught = loss.item();
      }
      discriminator_optimizer.step();

      // ... and the generator to make forgeries that it takes for images.
      generator_optimizer.zero_grad();
      {
        Tape tape;
        const Variable loss = surprise(discriminator(generator(codes)), true);
        tape.backward(loss);
        fooled = loss.item();
      }
      generator_optimizer.step();

      if (++step % 50 == 0 || step == steps) {
        std::printf("step %4d  discriminator %.3f  generator %.3f\n", step, caught, fooled);
      }
      if (step == steps) break;
    }
  }
  generator.eval();
  data::save_png(picture, data::make_grid(generator(shown).tensor()));
  std::printf("images from random codes: %s\n", picture.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "sprites", argc > 2 ? std::atoi(argv[2]) : 2000,
        argc > 3 ? argv[3] : "dcgan.png");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dcgan: %s\n", error.what());
    return 1;
  }
}
