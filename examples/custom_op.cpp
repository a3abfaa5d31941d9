// An op of one's own: softsign(x) = x / (1 + |x|), with its derivative 1 / (1 + |x|)^2.
//
// forward() computes on plain numbers. backward() is written with differentiable functions, so the op
// has derivatives of every order; gradcheck and gradgradcheck compare them with central differences.
#include <cmath>
#include <cstdio>

#include <tapedeck/tapedeck.h>

using namespace tapedeck;

namespace {

struct Softsign final : Op {
  const char* name() const override { return "softsign"; }

  Tensors forward(OpContext& context, const Tensors& x) override {
    context.save_input(0);
    const Tensor y = Tensor::empty_like(x[0]);
    visit_floating(name(), y.dtype(), [&]<class T>() {
      using A = accumulate_t<T>;
      const T* in = x[0].data<T>();
      T* out = y.data<T>();
      for (std::int64_t i = 0; i < y.count(); ++i) {
        const A value = static_cast<A>(in[i]);
        out[i] = static_cast<T>(value / (1 + std::abs(value)));
      }
    });
    return {y};
  }

  Variables backward(const OpContext& context, const Variables& gy) override {
    return {gy[0] / square(abs(context.input(0)) + 1.0)};
  }
};

Variable softsign(const Variable& x) {
  return call<Softsign>({x});
}

}  // namespace

int main() {
  const Variable x = Variable::parameter(Tensor::from({-2.0, -0.5, 0.25, 1.0, 3.0}, {5}));
  const auto f = [](const Variables& inputs) { return softsign(inputs[0]); };
  gradcheck(f, {x});
  gradgradcheck(f, {x});

  Tape tape;
  const Variable y = softsign(x);
  tape.backward(sum(y));
  const auto xs = x.tensor().to_vector<double>(), ys = y.tensor().to_vector<double>(),
             gradient = x.grad().tensor().to_vector<double>();
  std::printf("%6s  %12s  %12s\n", "x", "softsign(x)", "derivative");
  for (std::size_t i = 0; i < xs.size(); ++i)
    std::printf("%6.2f  %12.6f  %12.6f\n", xs[i], ys[i], gradient[i]);
  std::printf("first and second derivatives agree with central differences\n");
}
