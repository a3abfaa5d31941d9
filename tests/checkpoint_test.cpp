#include <tapedeck/autograd/checkpoint.h>

#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/autograd/gradcheck.h>
#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/random.h>
#include <tapedeck/ops/arithmetic.h>

#include "errors.h"

namespace tapedeck {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Pointwise;
using Function = std::function<Variable(const Variables&)>;

Variable leaf(const Shape& shape, std::uint64_t seed) {
  Generator generator(seed);
  return Variable::parameter(randn(shape, {.dtype = DType::float64}, generator));
}

std::vector<double> values(const Variable& x) {
  return x.tensor().to_vector<double>();
}

struct Checkpoint : ::testing::Test {
  const Variable x = leaf({2, 3}, 1), w = leaf({3}, 2), b = leaf({2, 1}, 3);
  int runs = 0;
  const Function f = [this](const Variables& in) {
    ++runs;
    Variable h = in[0] * w;
    for (int i = 0; i < 5; ++i) h = h / (h * h + 1.0) * w + in[1];
    return h * h;
  };
};

TEST_F(Checkpoint, GivesTheGradientsOfFForInputsAndParameters) {
  const Tensor gy = leaf({2, 3}, 4).tensor();
  Variables plain, recomputed;
  {
    Tape tape;
    plain = tape.gradient(f({x, b}) * w, {x, w, b}, {.gradient = gy});
  }
  {
    Tape tape;
    recomputed = tape.gradient(checkpoint(f, {x, b}) * w, {x, w, b}, {.gradient = gy});
  }
  Tape tape;
  tape.backward(checkpoint(f, {x, b}) * w, {.gradient = gy});
  // To a rounding: the uses of w are added in another order.
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_THAT(values(recomputed[i]), Pointwise(DoubleNear(1e-14), values(plain[i])));
  EXPECT_EQ(values(x.grad()), values(recomputed[0]));
  EXPECT_EQ(values(w.grad()), values(recomputed[1]));
  EXPECT_EQ(values(b.grad()), values(recomputed[2]));
}

TEST_F(Checkpoint, KeepsTheInputsOnly) {
  Tape tape;
  const Variable y = checkpoint(f, {x, b});
  EXPECT_EQ(tape.size(), 1u);
  EXPECT_EQ(tape.saved_bytes(), (6 + 2 + 3) * sizeof(double));
  EXPECT_EQ(runs, 1);
  tape.backward(sum_to(y, {}));
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(tape.saved_bytes(), 0u);
}

TEST_F(Checkpoint, IsPlainFWithoutATape) {
  EXPECT_EQ(values(checkpoint(f, {x, b})), values(f({x, b})));
  EXPECT_FALSE(checkpoint(f, {x, b}).requires_grad());
  EXPECT_EQ(runs, 3);
}

TEST_F(Checkpoint, HasGradientsOfEveryOrder) {
  const Function checkpointed = [&](const Variables& in) { return checkpoint(f, {in[0], in[1]}); };
  gradcheck(checkpointed, {x, b, w});
  gradgradcheck(checkpointed, {x, b, w});
}

TEST_F(Checkpoint, Nests) {
  const Function nested = [&](const Variables& in) {
    return checkpoint([&](const Variables& v) { return checkpoint(f, {v[0] * w, v[1]}) * v[0]; }, in);
  };
  gradcheck(nested, {x, b});
  gradgradcheck(nested, {x, b});
  Tape tape;
  tape.backward(sum_to(nested({x, b}), {}));
  const std::vector<double> gw = values(w.grad());
  w.zero_grad();
  Tape plain;
  plain.backward(sum_to(f({x * w, b}) * x, {}));
  EXPECT_EQ(values(w.grad()), gw);
}

TEST_F(Checkpoint, FollowsResultsOfOtherOpsThatFReaches) {
  Tape tape;
  const Variable h = x * x;  // neither an input nor a leaf
  const Variable y = checkpoint([&](const Variables& in) { return in[0] * h; }, {b});
  tape.backward(sum_to(y, {}));
  EXPECT_EQ(values(x.grad()), values(x * broadcast_to(b, {2, 3}) * 2.0));
}

TEST_F(Checkpoint, DrawsTheSameRandomNumbersAgain) {
  const Function noisy = [](const Variables& in) {
    const Variable noise = randn(in[0].shape(), in[0].tensor().options());
    return in[0] * noise * noise;
  };
  manual_seed(5);
  std::vector<double> plain, recomputed;
  {
    Tape tape;
    const Variable y = noisy({x}) + noisy({x});
    plain = values(tape.gradient(sum_to(y, {}), {x})[0]);
  }
  manual_seed(5);
  Tape tape;
  const Variable y = checkpoint(noisy, {x}) + checkpoint(noisy, {x});
  (void)rand({7});
  const std::uint64_t offset = default_generator().offset();
  EXPECT_EQ(values(tape.gradient(sum_to(y, {}), {x})[0]), plain);
  EXPECT_EQ(default_generator().offset(), offset);
  manual_seed(0);
}

TEST_F(Checkpoint, HooksRunOnceWithTheWholeGradient) {
  std::vector<double> seen;
  w.register_hook([&](const Variable& g) {
    EXPECT_TRUE(seen.empty());
    seen = values(g);
    return g * 2.0;
  });
  Tape tape;
  const Variable h = x * w;
  int calls = 0;
  h.register_hook([&](const Variable&) {
    ++calls;
    return Variable();
  });
  tape.backward(sum_to(checkpoint(f, {h, b}) + h, {}));
  EXPECT_EQ(calls, 1);
  ASSERT_EQ(seen.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(values(w.grad())[i], 2 * seen[i]);
}

TEST_F(Checkpoint, TakesAFunctionThatReturnsItsInputOrAConstant) {
  Tape tape;
  const Variable same = checkpoint([](const Variables& in) { return in[1]; }, {x, b});
  EXPECT_THAT(values(tape.gradient(sum_to(same, {}), {b}, {.retain = true})[0]), Each(1));
  EXPECT_THAT(values(tape.gradient(sum_to(same, {}), {x})[0]), Each(0));
  const Variable constant = checkpoint([](const Variables& in) { return in[0].detach(); }, {x, b});
  EXPECT_THAT(values(tape.gradient(sum_to(constant, {}), {x})[0]), Each(0));
}

TEST_F(Checkpoint, TakesAFunctionThatReturnsWhatItReachesByAHandle) {
  Tape tape;
  const Variable parameter = checkpoint([&](const Variables&) { return w; }, {x});
  EXPECT_THAT(values(tape.gradient(sum_to(parameter * 3.0, {}), {w})[0]), Each(3));
  const Variable result = w * 2.0;
  const Variable same = checkpoint(
      [&](const Variables& in) {
        (void)(in[0] * w);
        return result;
      },
      {x});
  EXPECT_THAT(values(tape.gradient(sum_to(same, {}), {w})[0]), Each(2));
}

TEST_F(Checkpoint, NoticesAnInputThatChanged) {
  Tape tape;
  const Variable y = sum_to(checkpoint(f, {x, b}), {});
  x.tensor().fill_(0);
  EXPECT_THAT(error_of([&] { tape.backward(y); }), HasSubstr("checkpoint: input 0"));
}

TEST_F(Checkpoint, PassesErrorsOn) {
  bool fail = false;
  Tape tape;
  const Variable y = sum_to(checkpoint(
                                [&](const Variables& in) {
                                  if (fail) throw Error("the second run fails");
                                  return in[0] * w;
                                },
                                {x}),
                            {});
  fail = true;
  EXPECT_THAT(error_of([&] { tape.backward(y, {.retain = true}); }), HasSubstr("the second run fails"));
  EXPECT_FALSE(x.grad().defined());
  fail = false;
  tape.backward(y);
  EXPECT_TRUE(x.grad().defined());
  EXPECT_THAT(error_of([&] {
                (void)checkpoint(f, {x, Variable()});
              }),
              HasSubstr("checkpoint: inputs[1] is undefined"));
}

TEST_F(Checkpoint, AnInputGivenTwiceHasItsGradientOnce) {
  const Variable twice = Variable::parameter(Tensor::full({1}, 3));
  Tape tape;
  tape.backward(checkpoint([](const Variables& v) { return v[0] * v[1]; }, {twice, twice}));
  EXPECT_EQ(twice.grad().item(), 6);
}

}  // namespace
}  // namespace tapedeck
