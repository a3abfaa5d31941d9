// Gradients of gradients: a Wasserstein critic with gradient penalty (Gulrajani et al. 2017,
// arXiv 1704.00028).
//
//   gradient_penalty [steps]
//
// A critic D that changes by at most 1 per unit of distance, and otherwise is as much larger on one
// cloud of points than on another as it can be, measures how far the clouds are apart. The penalty
// (|grad D| - 1)^2 keeps the slope near 1; training it needs the derivative of a derivative. Here the
// clouds are one cloud and a copy of it moved by (3, 4), so the distance must come out as 5.
#include <cstdio>
#include <cstdlib>

#include <tapedeck/tapedeck.h>

using namespace tapedeck;

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::atoi(argv[1]) : 500;
  constexpr std::int64_t kPoints = 256;
  constexpr double kPenalty = 100;
  manual_seed(1);

  nn::Sequential critic(nn::Linear({.in_features = 2, .out_features = 64}), nn::SiLU(),
                        nn::Linear({.in_features = 64, .out_features = 64}), nn::SiLU(),
                        nn::Linear({.in_features = 64, .out_features = 1}));
  optim::Adam optimizer(critic.parameters(), {.lr = 2e-3, .betas = {0.5, 0.9}});
  const Variable shift = Tensor::from({3.0f, 4.0f}, {1, 2});

  for (int step = 1; step <= steps; ++step) {
    const Variable near = randn({kPoints, 2}), far = Variable(randn({kPoints, 2})) + shift;
    const Variable t = rand({kPoints, 1});
    const Variable between = Variable::parameter((near * t + far * (1.0 - t)).tensor());

    optimizer.zero_grad();
    Tape outer;
    Variable slope;
    {
      // The walk of the inner tape is recorded on the outer one, as any other computation.
      Tape inner;
      slope = inner.gradient(sum(critic(between)), {between})[0];
    }
    const Variable norm = sqrt(sum(square(slope), {1}) + 1e-12);
    const Variable distance = mean(critic(far)) - mean(critic(near));
    outer.backward(mean(square(norm - 1.0)) * kPenalty - distance);
    optimizer.step();

    if (step % 100 == 0 || step == steps) {
      std::printf("step %4d  distance %.3f (true: 5)  mean slope %.3f\n", step, distance.item(),
                  mean(norm).item());
    }
  }
}
