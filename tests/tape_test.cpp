#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(Tape, AnomalyModeNamesTheOp) {
  set_anomaly_mode(true);
  const Variable x = leaf({0});
  try {
    (void)(x / x);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("div: forward made a NaN or Inf in result 0 of shape [1]"));
  }
  set_anomaly_mode(false);
}

TEST(Tape, PrintsItself) {
  const Variable x = leaf({2, 1});
  Tape tape;
  tape.backward(sum_to(x * x, {}));
  EXPECT_THAT(tape.to_text(), HasSubstr("mul"));
  EXPECT_THAT(tape.to_dot(), HasSubstr("op0 -> op1"));
}

}  // namespace
}  // namespace tapedeck
