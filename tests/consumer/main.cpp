#include <cstdio>

#include <tapedeck/tapedeck.h>
using namespace tapedeck;

int main() {
  const Tensor images = data::in_memory(data::Sprites({.count = 64, .size = 32})).images();
  const Variable codes = Variable::parameter(randn({64, 16}));  // each image owns a latent code
  nn::Sequential decoder(
      nn::Linear({.in_features = 16, .out_features = 64 * 8 * 8}), nn::ReLU(), nn::Unflatten({64, 8, 8}),
      nn::ConvTranspose2d({.in_channels = 64, .out_channels = 32, .kernel_size = 2, .stride = 2}), nn::ReLU(),
      nn::ConvTranspose2d({.in_channels = 32, .out_channels = 3, .kernel_size = 2, .stride = 2}));
  optim::Adam adam({{.parameters = decoder.parameters()}, {.parameters = {codes}}}, {.lr = 0.002});
  for (int step = 0; step < 300; ++step) {
    Tape tape;
    tape.backward(nn::mse_loss(decoder(codes), images));
    adam.step();
    adam.zero_grad();
  }
  std::printf("mean squared error %.4f\n", nn::mse_loss(decoder(codes), images).item());
  data::save_png("sprites.png", data::make_grid(decoder(codes).tensor()));
}
