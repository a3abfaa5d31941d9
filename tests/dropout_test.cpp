#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tapedeck {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<double> values(const Variable& x) {
  return x.tensor().to_vector<double>();
}

TEST(Dropout, KeepsAShareOfOneMinusPAndScalesIt) {
  for (DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    for (double p : {0.5, 0.75}) {
      Generator generator(7);
      const Tensor x = Tensor::full({100001}, 3, {.dtype = dtype});
      const double kept = Tensor::full({}, 3 / (1 - p), {.dtype = dtype}).item();
      double count = 0;
      for (double y : values(dropout(x, p, true, generator))) {
        ASSERT_TRUE(y == 0 || y == kept) << y;
        count += y != 0;
      }
      EXPECT_NEAR(count / 100001, 1 - p, 4 * std::sqrt(p * (1 - p) / 100001));
    }
  }
}

TEST(Dropout, FollowsTheWordsOfTheGenerator) {
  Generator generator(11);
  generator.next();  // the mask is that of the second draw
  const auto y = values(dropout(Tensor::ones({10}), 0.3, true, generator));
  EXPECT_EQ(generator.offset(), 2u);
  for (std::uint64_t i = 0; i < 10; ++i) {
    const bool kept = Philox::at(11, i / 4, 1).words[i % 4] >= 0.3 * 4294967296.0;
    EXPECT_EQ(y[i], kept ? 1 / 0.7f : 0.f) << i;
  }
}

TEST(Dropout, IsTheIdentityInEvaluationAndForZero) {
  Generator generator(1);
  const Variable x = Tensor::ones({4});
  EXPECT_TRUE(dropout(x, 0.9, false, generator).tensor().shares_storage(x.tensor()));
  EXPECT_TRUE(dropout(x, 0, true, generator).tensor().shares_storage(x.tensor()));
  EXPECT_EQ(generator.offset(), 0u);
}

TEST(Dropout, DropsAllForOneEvenInfinityAndNaN) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Variable x = Variable::parameter(Tensor::from({1.f, inf, nan, -inf}, {4}));
  Tape tape;
  const Variable y = dropout(x, 1, true);
  EXPECT_THAT(values(y), Each(0));
  tape.backward(y, {.gradient = Tensor::ones({4})});
  EXPECT_THAT(values(x.grad()), Each(0));
}

TEST(Dropout, SameBitsForEveryThreadCountAndLayout) {
  const Tensor x = randn({5, 7, 31, 29});
  std::vector<float> results[3];
  const int before = num_threads();
  for (int i : {0, 1, 2}) {
    set_num_threads(i == 0 ? 1 : 5);
    Generator generator(3);
    results[i] =
        dropout(x.to(i == 2 ? Layout::nhwc : Layout::nchw), 0.4, true, generator).tensor().to_vector<float>();
  }
  set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Dropout, GradientHasTheMaskOfTheResult) {
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    Generator generator(5);
    const Variable x = Variable::parameter(Tensor::ones({2, 3, 4, 5}).to(layout));
    Tape tape;
    const Variable y = dropout(x, 0.5, true, generator);
    generator.next();  // what is drawn in between does not matter
    EXPECT_EQ(tape.saved_bytes(), 0u);
    tape.backward(y, {.gradient = Tensor::ones({2, 3, 4, 5})});
    EXPECT_EQ(values(x.grad()), values(y));
    EXPECT_EQ(x.grad().tensor().layout(), layout);
  }
}

TEST(Dropout, FirstAndSecondDerivatives) {
  const Variable x = Variable::parameter(randn({3, 5}, {.dtype = DType::float64}));
  const auto f = [](const Variables& in) {
    Generator generator(9);
    const Variable y = dropout(in[0], 0.5, true, generator);
    return y * y;
  };
  gradcheck(f, {x});
  gradgradcheck(f, {x});
}

TEST(Dropout, RejectsWhatIsNoProbability) {
  EXPECT_THAT([] { dropout(Tensor::ones({2}), 1.5, true); },
              ThrowsMessage<Error>(HasSubstr("dropout: p 1.5 is not legal; legal is 0 to 1")));
  EXPECT_THAT([] { dropout(Tensor::ones({2}), std::nan(""), false); },
              ThrowsMessage<Error>(HasSubstr("legal is 0 to 1")));
  EXPECT_THAT([] { dropout(Tensor::ones({2}, {.dtype = DType::int64}), 0.5, true); },
              ThrowsMessage<Error>(HasSubstr("x is int64; legal are the floating types")));
}

}  // namespace
}  // namespace tapedeck
