#include <tapedeck/tapedeck.h>

#include <cmath>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "errors.h"

namespace tapedeck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Variable leaf(std::initializer_list<double> values) {
  return Variable::parameter(Tensor::from(values, {static_cast<std::int64_t>(values.size())}));
}

TEST(Tape, WithoutOneNothingIsRecorded) {
  const Variable x = leaf({1, 2});
  EXPECT_FALSE((x * x).requires_grad());
}

TEST(Tape, SumsTheGradientsOfEveryUse) {
  const Variable x = leaf({2, 3});
  Tape tape;
  tape.backward(sum_to(x * x + x * 4.0, {}));
  EXPECT_THAT(x.grad().tensor().to_vector<double>(), ElementsAre(8, 10));
}

TEST(Tape, AddsToTheGradientOfEarlierWalks) {
  const Variable x = leaf({2});
  for (int i = 0; i < 2; ++i) {
    Tape tape;
    tape.backward(x * 3.0);
  }
  EXPECT_THAT(x.grad().tensor().to_vector<double>(), ElementsAre(6));
}

TEST(Tape, NestedTapesGiveSecondAndThirdDerivatives) {
  const Variable x = leaf({2});
  Tape outermost;
  Variable second;
  {
    Tape outer;
    Variable first;
    {
      Tape inner;
      first = inner.gradient(x * x * x * x, {x})[0];
    }
    EXPECT_DOUBLE_EQ(first.item(), 32);
    second = outer.gradient(first, {x})[0];
  }
  EXPECT_DOUBLE_EQ(second.item(), 48);
  outermost.backward(second);
  EXPECT_DOUBLE_EQ(x.grad().item(), 48);
}

TEST(Tape, GradientOfAnIntermediateLeavesGradAlone) {
  const Variable x = leaf({2});
  Tape tape;
  const Variable h = x * 5.0;
  const Variables g = tape.gradient(h * h, {h, x});
  EXPECT_DOUBLE_EQ(g[0].item(), 20);
  EXPECT_DOUBLE_EQ(g[1].item(), 100);
  EXPECT_FALSE(x.grad().defined());
}

TEST(Tape, WalkingTwiceNeedsRetain) {
  const Variable x = leaf({2});
  Tape tape;
  const Variable y = x * x;
  tape.backward(y, {.retain = true});
  tape.backward(y);
  EXPECT_DOUBLE_EQ(x.grad().item(), 8);
  EXPECT_THROW(tape.backward(y), Error);
}

TEST(Tape, DropsWhatWasSavedWhenWalked) {
  const Variable x = leaf({2});
  Tape tape;
  const Variable y = x * x;
  EXPECT_GT(tape.saved_bytes(), 0u);
  tape.backward(y);
  EXPECT_EQ(tape.saved_bytes(), 0u);
}

TEST(Tape, HooksSeeAndReplaceCompleteGradients) {
  const Variable x = leaf({2});
  double seen = 0;
  Tape tape;
  {
    const Variable h = x * 3.0;
    h.register_hook([&](const Variable& g) {
      seen = g.item();
      return g * 10.0;
    });
    tape.backward(h + h * h);
  }
  EXPECT_DOUBLE_EQ(seen, 13);
  EXPECT_DOUBLE_EQ(x.grad().item(), 390);
}

TEST(Tape, HooksOfLeavesSeeTheWholeGradientOnce) {
  const Variable x = leaf({2});
  int calls = 0;
  x.register_hook([&](const Variable& g) {
    ++calls;
    EXPECT_DOUBLE_EQ(g.item(), 7);
    return g * 2.0;
  });
  x.register_hook([&](const Variable& g) {  // the next one sees what the first returned
    EXPECT_DOUBLE_EQ(g.item(), 14);
    return Variable();
  });
  Tape tape;
  const Variable y = x * 3.0 + x * x;
  EXPECT_DOUBLE_EQ(tape.gradient(y, {x}, {.retain = true})[0].item(), 14);
  tape.backward(y);
  EXPECT_EQ(calls, 2);
  EXPECT_DOUBLE_EQ(x.grad().item(), 14);
}

TEST(Tape, AddsManyUsesWithoutTouchingWhatIsShared) {
  const Variable a = leaf({1, 2}), b = leaf({5, 6});
  Tape outer;
  Variables g;
  {
    Tape tape;
    const Variable s = a + b;  // both gradients of an add are one tensor
    const Variable y = s + a + a * b + a * a + b;
    tape.backward(y, {.gradient = Tensor::from({1., 10.}, {2}), .retain = true});
    EXPECT_THAT(a.grad().tensor().to_vector<double>(), ElementsAre(2 + 5 + 2, 10 * (2 + 6 + 4)));
    EXPECT_THAT(b.grad().tensor().to_vector<double>(), ElementsAre(2 + 1, 10 * (2 + 2)));
    g = tape.gradient(y, {a, b}, {.gradient = Tensor::from({1., 10.}, {2})});
  }
  EXPECT_EQ(g[0].tensor().to_vector<double>(), a.grad().tensor().to_vector<double>());
  EXPECT_THAT(outer.gradient(sum_to(g[0], {}), {a})[0].tensor().to_vector<double>(), ElementsAre(2, 20));
}

TEST(Tape, AddsInPlaceOnlyWhatItMadeItself) {
  const Variable a = leaf({1, 2}), b = leaf({5, 6});
  const Tensor gy = Tensor::from({1., 10.}, {2});
  Tape tape;
  const Variable cube = a * a * a;
  tape.backward(cube + (a + b), {.gradient = gy});  // gy itself is the first gradient of a, b and cube
  EXPECT_THAT(a.grad().tensor().to_vector<double>(), ElementsAre(3 + 1, 10 * (12 + 1)));
  EXPECT_THAT(b.grad().tensor().to_vector<double>(), ElementsAre(1, 10));
  EXPECT_THAT(gy.to_vector<double>(), ElementsAre(1, 10));
}

TEST(Tape, AddsInPlaceWhereNothingRecords) {
  const Variable x = Variable::parameter(Tensor::ones({1000}));
  const auto allocations = [&](int uses) {
    Tape tape;
    Variable y = x * 1.0;
    for (int i = 1; i < uses; ++i) y = y + x;
    const auto before = memory_stats().allocations;
    (void)tape.gradient(y, {x}, {.gradient = Tensor::ones({1000})});
    return memory_stats().allocations - before;
  };
  EXPECT_EQ(allocations(3), allocations(20));
}

struct Halves final : Op {  // the two rows of x
  const char* name() const override { return "halves"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    return {x[0].slice(0, 1).clone(), x[0].slice(1, 2).clone()};
  }
  Variables backward(const OpContext&, const Variables& gy) override {
    const Tensor top = Tensor::from({1., 0.}, {2, 1}), bottom = Tensor::from({0., 1.}, {2, 1});
    return {gy[0] * top + gy[1] * bottom};
  }
};

TEST(Tape, OutputsWithoutAGradientCountAsZero) {
  const Variable x = Variable::parameter(Tensor::from({1., 2., 3., 4.}, {2, 2}));
  Tape tape;
  const Variables y = call(std::make_shared<Halves>(), {x});
  int calls = 0;
  y[0].register_hook([&](const Variable&) {
    ++calls;
    return Variable();
  });
  tape.backward(sum_to(y[1] * y[1], {}), {.retain = true});
  EXPECT_THAT(x.grad().tensor().to_vector<double>(), ElementsAre(0, 0, 6, 8));
  EXPECT_EQ(calls, 0);
  const Variables g = tape.gradient(sum_to(y[0] * y[1], {}), {x, y[0]});
  EXPECT_THAT(g[0].tensor().to_vector<double>(), ElementsAre(3, 4, 1, 2));
  EXPECT_THAT(g[1].tensor().to_vector<double>(), ElementsAre(3, 4));
  EXPECT_EQ(calls, 1);
}

TEST(Tape, GradientComputesOnlyWhatIsWanted) {
  struct Probe final : Op {
    const char* name() const override { return "probe"; }
    Tensors forward(OpContext&, const Tensors& x) override { return {add(x[0], x[1]).tensor()}; }
    Variables backward(const OpContext& c, const Variables& gy) override {
      EXPECT_FALSE(c.needs_grad(0));
      EXPECT_TRUE(c.needs_grad(1));
      return {Variable(), gy[0]};
    }
  };
  const Variable a = leaf({1}), b = leaf({2});
  Tape tape;
  const Variable y = call<Probe>({a * 2.0, b});
  EXPECT_DOUBLE_EQ(tape.gradient(y, {b})[0].item(), 1);
}

TEST(Tape, ScopesMayEndInAnyOrder) {
  const Variable x = leaf({2});
  auto first = std::make_unique<Tape>();
  auto second = std::make_unique<Tape>();
  auto third = std::make_unique<Tape>();
  const Variable y = x * x;
  second.reset();
  const Variable z = y * x;
  EXPECT_EQ(first->size(), 2u);
  EXPECT_EQ(third->size(), 2u);
  first.reset();
  (void)(z * x);
  EXPECT_EQ(third->size(), 3u);
  third.reset();
  EXPECT_FALSE((x * x).requires_grad());
}

TEST(Tape, HearsItsOwnThreadOnly) {
  const Variable x = leaf({2});
  Tape tape;
  std::thread([&] {
    EXPECT_FALSE((x * x).requires_grad());
    Tape own;
    own.backward(x * x);
  }).join();
  EXPECT_EQ(tape.size(), 0u);
  EXPECT_DOUBLE_EQ(x.grad().item(), 4);
}

TEST(Tape, NoTapeHidesTheTapesAroundIt) {
  const Variable x = leaf({2});
  Tape tape;
  const NoTape hidden;
  EXPECT_FALSE((x * x).requires_grad());
  Tape inner;
  EXPECT_TRUE((x * x).requires_grad());
  EXPECT_EQ(tape.size(), 0u);
  EXPECT_EQ(inner.size(), 1u);
}

TEST(Tape, TheGradientOfALeafByItselfIsOne) {
  const Variable x = leaf({2}), other = leaf({3, 4}), wide = leaf({1, 2});
  Tape tape;
  const Variables gradients = tape.gradient(x, {other, x});
  EXPECT_THAT(gradients[0].tensor().to_vector<double>(), ElementsAre(0, 0));
  EXPECT_EQ(gradients[1].item(), 1);
  const Tensor seed = Tensor::from<double>({5, 6}, {2});
  EXPECT_THAT(tape.gradient(wide, {wide}, {.gradient = seed})[0].tensor().to_vector<double>(),
              ElementsAre(5, 6));
  EXPECT_THAT(error_of([&] { (void)tape.gradient(wide, {wide}); }), HasSubstr("its gradient must be given"));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Tape, PrintsItself) {
  const Variable x = leaf({2, 1});
  Tape tape;
  tape.backward(sum_to(x * x, {}));
  std::istringstream lines(tape.to_text());
  std::string header, mul, sum;
  ASSERT_TRUE(std::getline(lines, header) && std::getline(lines, mul) && std::getline(lines, sum));
  EXPECT_THAT(header,
              ::testing::MatchesRegex("# +op +inputs +outputs +saved bytes +forward ms +backward ms"));
  EXPECT_THAT(mul, ::testing::MatchesRegex("0 +mul +\\[2\\] \\[2\\] +\\[2\\] +32 +[0-9.]+ +[0-9.]+"));
  EXPECT_THAT(sum, ::testing::MatchesRegex("1 +sum_to +\\[2\\] +\\[\\] +0 +[0-9.]+ +[0-9.]+"));
  EXPECT_EQ(header.size(), mul.size());
  EXPECT_EQ(header.size(), sum.size());
  EXPECT_THAT(tape.to_dot(), HasSubstr("op0 -> op1"));
}

TEST(Tape, PrintsLongLinesWhole) {
  struct Long final : Op {
    const char* name() const override { return "an_op_with_a_name_that_is_longer_than_any_column_would_be"; }
    Tensors forward(OpContext&, const Tensors& x) override { return {x[0].clone()}; }
    Variables backward(const OpContext&, const Variables& gy) override { return {gy[0]}; }
  };
  const Variable x = Variable::parameter(Tensor::zeros({1, 1, 1, 1, 1, 1, 1, 1}));
  Tape tape;
  (void)call<Long>(Variables(40, x));
  const std::string text = tape.to_text();
  EXPECT_THAT(text, HasSubstr("an_op_with_a_name_that_is_longer_than_any_column_would_be"));
  std::size_t shapes = 0;
  for (std::size_t at = 0; (at = text.find("[1,1,1,1,1,1,1,1]", at)) != std::string::npos; ++at) ++shapes;
  EXPECT_EQ(shapes, 41u);
}

// What a user writes for a differentiable function of their own: y = x / (1 + |s| x^2), s a number.
struct Rational final : Op {
  explicit Rational(double s) : s_(s) {}
  const char* name() const override { return "rational"; }

  Tensors forward(OpContext& context, const Tensors& x) override {
    context.save_input(0);
    Tensor y = Tensor::empty_like(x[0]);
    const double* in = x[0].data<double>();
    for (std::int64_t i = 0; i < y.count(); ++i) y.data<double>()[i] = in[i] / (1 + s_ * in[i] * in[i]);
    return {y};
  }
  Variables backward(const OpContext& context, const Variables& gy) override {
    const Variable x = context.input(0), q = 1 + s_ * x * x;
    return {gy[0] * (2.0 - q) / (q * q)};
  }

 private:
  double s_;
};
Variable rational(const Variable& x, double s) {
  return call<Rational>({x}, s);
}

TEST(Tape, TakesOpsFromUserCode) {
  const auto f = [](const Variables& x) { return rational(x[0], 0.7); };
  gradcheck(f, {leaf({-1.5, 0.2, 2})});
  gradgradcheck(f, {leaf({-1.5, 0.2, 2})});
}

}  // namespace
}  // namespace tapedeck
