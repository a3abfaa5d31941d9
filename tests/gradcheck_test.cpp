#include <tapedeck/autograd/gradcheck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/random.h>
#include <tapedeck/ops/arithmetic.h>

#include "errors.h"

namespace tapedeck {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Function = std::function<Variable(const Variables&)>;

Variable leaf(const Shape& shape, Layout layout = Layout::nchw) {
  static Generator generator(17);
  return Variable::parameter(randn(shape, {.dtype = DType::float64, .layout = layout}, generator));
}

/// a * b, with a mistake to be found in its backward.
enum class Mistake { none, factor, one_element, constant, mask, not_saved };

struct Faulty final : Op {
  explicit Faulty(Mistake mistake) : mistake_(mistake) {}
  const char* name() const override { return "faulty"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    if (mistake_ != Mistake::not_saved || c.needs_grad(0)) c.save_input(0);
    c.save_input(1);
    return {mul(x[0], x[1]).tensor()};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    Variable ga = gy[0] * (mistake_ == Mistake::constant ? c.input(1).detach() : c.input(1));
    Variable gb = gy[0] * c.input(0);
    if (mistake_ == Mistake::factor) ga = ga * 1.001;
    if (mistake_ == Mistake::one_element) {
      std::vector<double> factors(6, 1.0);
      factors[4] = -1;
      gb = gb * Tensor::from(factors, {2, 3});
    }
    if (mistake_ == Mistake::mask && !c.needs_grad(0)) gb = gb * 2.0;
    return {ga, gb};
  }

 private:
  Mistake mistake_;
};

Function faulty(Mistake mistake) {
  return [=](const Variables& x) { return call<Faulty>({x[0], x[1]}, mistake); };
}

TEST(Gradcheck, AcceptsRightGradients) {
  const Function f = [](const Variables& x) { return x[0] * x[1] / (x[2] * x[2] + 1.0) - x[0]; };
  const Variables inputs{leaf({2, 3, 1, 4}), leaf({3, 2, 1}, Layout::nchw), leaf({2, 3, 2, 4}, Layout::nhwc)};
  gradcheck(f, inputs);
  gradgradcheck(f, inputs);
  gradcheck(faulty(Mistake::none), {leaf({2, 3}), leaf({2, 3})});
  gradgradcheck(faulty(Mistake::none), {leaf({2, 3}), leaf({2, 3})});
}

TEST(Gradcheck, MovesAsManyElementsAsWanted) {
  int calls = 0;
  const auto counted = [&](const Function& f) -> Function {
    return [&calls, f](const Variables& x) { return ++calls, f(x); };
  };
  const auto calls_of = [&](std::int64_t elements) {
    calls = 0;
    gradcheck(counted(faulty(Mistake::none)), {leaf({2, 3}), leaf({2, 3})}, {.elements = elements});
    return calls;
  };
  const int none_moved = calls_of(0) - 2 * 6 * 2;  // inputs, elements, sides
  EXPECT_EQ(calls_of(1), none_moved + 2 * 1 * 2);
  EXPECT_EQ(calls_of(4), none_moved + 2 * 4 * 2);
  EXPECT_EQ(calls_of(100), none_moved + 2 * 6 * 2);
  EXPECT_THAT(error_of([] {
                gradcheck(faulty(Mistake::factor), {leaf({2, 3}), leaf({2, 3})}, {.elements = 1});
              }),
              HasSubstr("the gradient for input 0 [2,3]"));
  // Whether the one that is wrong is among two of six depends on the seed.
  int found = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    found += error_of([&] {
               gradcheck(faulty(Mistake::one_element), {leaf({2, 3}), leaf({2, 3})},
                         {.seed = seed, .elements = 2});
             }) == "no error"
                 ? 0
                 : 1;
  }
  EXPECT_GT(found, 5);
  EXPECT_LT(found, 40);
  gradgradcheck(faulty(Mistake::none), {leaf({2, 3}), leaf({2, 3})}, {.elements = 2});
  EXPECT_THAT(error_of([] {
                gradgradcheck(faulty(Mistake::constant), {leaf({2, 3}), leaf({2, 3})}, {.elements = 2});
              }),
              HasSubstr("gradgradcheck"));
}

TEST(Gradcheck, LeavesConstantsInputsAndGradientsAlone) {
  const Variable x = leaf({3}), c = randn({3}, {.dtype = DType::float64});
  const auto before = x.tensor().to_vector<double>();
  const Function f = [&](const Variables& in) { return in[0] * in[0] * in[1]; };
  gradcheck(f, {x, c});
  gradgradcheck(f, {x, c});
  EXPECT_EQ(x.tensor().to_vector<double>(), before);
  EXPECT_FALSE(x.grad().defined());
  gradcheck([&](const Variables& in) { return in[0] * in[0]; }, {x, leaf({2})});  // an unused input
}

TEST(Gradcheck, ReachesInputsByCapturedHandles) {
  const Variable x = leaf({3});
  gradcheck([&](const Variables&) { return x * x * x; }, {x});
  gradcheck([&](const Variables& in) { return in[0] * in[1]; }, {x, x});
  gradgradcheck([&](const Variables& in) { return in[0] * in[1] * in[1]; }, {x, x});
}

TEST(Gradcheck, IsHeardByNoTape) {
  const Variable x = leaf({3});
  Tape tape;
  gradcheck([](const Variables& in) { return in[0] * in[0]; }, {x});
  gradgradcheck([](const Variables& in) { return in[0] * in[0]; }, {x});
  EXPECT_EQ(tape.size(), 0u);
}

TEST(Gradcheck, NamesInputElementAndBothValues) {
  const Variable a = Variable::parameter(Tensor::from({1.0, 2.0}, {2, 1}));
  const Variable b = Variable::parameter(Tensor::from({100.0, 200.0}, {2, 1}));
  const std::string text = error_of([&] { gradcheck(faulty(Mistake::factor), {a, b}); });
  EXPECT_THAT(text, AllOf(HasSubstr("gradcheck: the gradient for input 0 [2,1], element 0 at [0,0], is "),
                          HasSubstr("(analytic) but "), HasSubstr("(numeric)")));
  EXPECT_THAT(a.tensor().to_vector<double>(), ::testing::ElementsAre(1, 2));
}

TEST(Gradcheck, FindsOneWrongElement) {
  EXPECT_THAT(error_of([] {
                gradcheck(faulty(Mistake::one_element), {leaf({2, 3}), leaf({2, 3})});
              }),
              HasSubstr("input 1 [2,3], element 4 at [1,1], is "));
}

TEST(Gradcheck, FindsAMaskThatChangesAGradient) {
  const Variables inputs{leaf({2, 3}), leaf({2, 3})};
  EXPECT_THAT(error_of([&] { gradcheck(faulty(Mistake::mask), inputs); }),
              AllOf(HasSubstr("input 1"), HasSubstr("(with the other inputs constant)")));
  EXPECT_THAT(error_of([&] { gradcheck(faulty(Mistake::not_saved), inputs); }),
              HasSubstr("input 0 was not saved in forward"));
}

TEST(Gradcheck, SecondOrderFindsABackwardThatIsNotDifferentiable) {
  const Variables inputs{leaf({2, 3}), leaf({2, 3})};
  gradcheck(faulty(Mistake::constant), inputs);
  EXPECT_THAT(error_of([&] { gradgradcheck(faulty(Mistake::constant), inputs); }),
              HasSubstr("gradgradcheck: the gradient for input 1"));
}

TEST(Gradcheck, SecondOrderChecksTheCotangent) {
  struct Detaching final : Op {  // 2x, right at first order; its gradient forgets that it depends on gy
    const char* name() const override { return "detaching"; }
    Tensors forward(OpContext&, const Tensors& x) override { return {affine(x[0], 2, 0).tensor()}; }
    Variables backward(const OpContext&, const Variables& gy) override { return {gy[0].detach() * 2.0}; }
  };
  const Function f = [](const Variables& x) { return x[0] * x[0] + call<Detaching>({x[0]}); };
  gradcheck(f, {leaf({3})});
  EXPECT_THAT(error_of([&] { gradgradcheck(f, {leaf({3})}); }),
              HasSubstr("gradgradcheck: the gradient for input 1 [3]"));
}

TEST(Gradcheck, FindsRandomnessAndARecordingThatChangesTheResult) {
  Generator generator(3);
  const Function random = [&](const Variables& x) {
    return x[0] * randn({3}, x[0].tensor().options(), generator);
  };
  EXPECT_THAT(error_of([&] { gradcheck(random, {leaf({3})}); }),
              HasSubstr("gradcheck: two runs of f differ"));
  const Function recorded = [](const Variables& x) { return recording() ? x[0] * 2.0 : x[0] * 3.0; };
  EXPECT_THAT(error_of([&] { gradcheck(recorded, {leaf({3})}); }), HasSubstr("when recorded but"));
}

TEST(Gradcheck, RefusesBadArguments) {
  const Function square = [](const Variables& x) { return x[0] * x[0]; };
  const Variable narrow = Variable::parameter(Tensor::ones({2}));
  EXPECT_THAT(error_of([&] { gradcheck(square, {narrow}); }),
              HasSubstr("input 0 is float32; legal is float64"));
  EXPECT_THAT(error_of([&] { gradcheck(square, {leaf({2}).detach()}); }),
              HasSubstr("gradcheck: no input requires a gradient"));
  EXPECT_THAT(error_of([&] { gradcheck([](const Variables& x) { return x[0].detach(); }, {leaf({2})}); }),
              HasSubstr("f's result does not require a gradient"));
}

}  // namespace
}  // namespace tapedeck
