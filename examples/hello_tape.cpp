// Hello, tape: the gradient of a formula, and what the tape recorded.
//
//   hello_tape            prints values, gradients and the tape
//   hello_tape --dot      prints the tape as a graph: hello_tape --dot | dot -Tsvg > tape.svg
#include <cmath>
#include <cstdio>
#include <cstring>

#include <tapedeck/tapedeck.h>

using namespace tapedeck;

int main(int argc, char** argv) {
  // Parameters are variables whose gradient is wanted.
  const Variable x = Variable::parameter(Tensor::from({0.5, 1.0, 1.5}, {3}));
  const Variable a = Variable::parameter(Tensor::from({2.0}, {1}));

  // While a tape exists, ops record themselves on it.
  Tape tape;
  const Variable f = sum(a * sin(x) + square(x));
  tape.backward(f);

  if (argc > 1 && std::strcmp(argv[1], "--dot") == 0) {
    std::fputs(tape.to_dot().c_str(), stdout);
    return 0;
  }
  std::printf("f = sum(a sin(x) + x^2) = %.6f\n\n", f.item());
  std::printf("%6s  %12s  %12s\n", "x", "df/dx", "a cos x + 2x");
  const auto xs = x.tensor().to_vector<double>(), gradient = x.grad().tensor().to_vector<double>();
  for (std::size_t i = 0; i < xs.size(); ++i) {
    std::printf("%6.2f  %12.6f  %12.6f\n", xs[i], gradient[i], 2 * std::cos(xs[i]) + 2 * xs[i]);
  }
  std::printf("df/da = %.6f\n\n%s", a.grad().item(), tape.to_text().c_str());
}
