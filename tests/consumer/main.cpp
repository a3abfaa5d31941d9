#include <cstdio>

#include <tapedeck/tapedeck.h>
using namespace tapedeck;

int main() {
  const Tensor images = data::in_memory(data::Sprites({.count = 64, .size = 32})).images();
  const Variable codes = Variable::parameter(randn({64, 16}));  // each image owns a latent code
  const auto up = [](int in, int out) {
    return nn::ConvTranspose2d(
        {.in_channels = in, .out_channels = out, .kernel_size = 4, .stride = 2, .padding = 1});
  };
  nn::Sequential decoder(nn::Linear({.in_features = 16, .out_features = 64 * 8 * 8}), nn::ReLU(),
                         nn::Unflatten({64, 8, 8}), up(64, 32), nn::ReLU(), up(32, 3));
  optim::Adam adam({{.parameters = decoder.parameters()}, {.parameters = {codes}}}, {.lr = 0.002});
  for (int step = 0; step <= 300; ++step) {
    Tape tape;
    const Variable loss = nn::mse_loss(decoder(codes), images);
    tape.backward(loss);
    adam.step();
    adam.zero_grad();
    if (step % 50 == 0) std::printf("step %3d  loss %.4f\n", step, loss.item());
  }
  data::save_png("sprites.png", data::make_grid(decoder(codes).tensor()));
}
