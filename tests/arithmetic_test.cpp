#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tapedeck {
namespace {

using ::testing::ElementsAre;

TEST(Arithmetic, Broadcasts) {
  const Tensor a = Tensor::from({1.f, 2.f}, {2, 1}), b = Tensor::from({10.f, 20.f, 30.f}, {3});
  EXPECT_THAT(add(a, b).tensor().to_vector<float>(), ElementsAre(11, 21, 31, 12, 22, 32));
  EXPECT_THAT(sub(b, a).tensor().to_vector<float>(), ElementsAre(9, 19, 29, 8, 18, 28));
  EXPECT_THAT(sum_to(add(a, b), {2, 1}).tensor().to_vector<float>(), ElementsAre(63, 66));
  EXPECT_THROW(add(a, Tensor::zeros({3, 2})), Error);
}

TEST(Arithmetic, MixedLayoutsAgree) {
  const Tensor a = Tensor::from({0.f, 1.f, 2.f, 3.f, 4.f, 5.f}, {1, 2, 1, 3});
  const Tensor b = Tensor::from({10.f, 20.f}, {1, 2, 1, 1});
  const Variable y = mul(a.to(Layout::nhwc), b);
  EXPECT_EQ(y.tensor().layout(), Layout::nhwc);
  EXPECT_EQ(y.tensor().to_vector<float>(), mul(a, b).tensor().to_vector<float>());
}

}  // namespace
}  // namespace tapedeck
