// Copies of operands: found only in their scope, of the same tensor and form.
#include <gtest/gtest.h>

#include <tapedeck/ops/conv/operand_copies.h>

namespace tapedeck::test {
namespace {

TEST(OperandCopies, AreFoundInTheirScope) {
  const Tensor x = Tensor::zeros({1, 2, 3, 3}), y = Tensor::zeros({1, 2, 3, 3});
  const auto bytes = std::make_shared<int>(1);
  const OperandForm form{2, 2, 1, 0};
  OperandCopies::keep(x, form, bytes);
  EXPECT_EQ(OperandCopies::find(x, form), nullptr) << "kept without a scope";
  {
    const OperandCopies scope;
    OperandCopies::keep(x, form, bytes);
    EXPECT_EQ(OperandCopies::find(x, form), bytes);
    EXPECT_EQ(OperandCopies::find(y, form), nullptr);
    EXPECT_EQ(OperandCopies::find(x, {1, 2, 1, 0}), nullptr);
    EXPECT_EQ(OperandCopies::find(x, {2, 2, 1, 3}), nullptr);
    EXPECT_EQ(OperandCopies::find(x, {2, 4, 1, 0}), nullptr);
    EXPECT_EQ(OperandCopies::find(x.reshape({1, 2, 9, 1}), form), nullptr);
    {
      const OperandCopies inner;
      EXPECT_EQ(OperandCopies::find(x, form), nullptr);
    }
    EXPECT_EQ(OperandCopies::find(x, form), bytes);
  }
  EXPECT_EQ(OperandCopies::find(x, form), nullptr);
  EXPECT_EQ(bytes.use_count(), 1);
}

// Or else its memory could become another tensor's, which would be taken for it.
TEST(OperandCopies, KeepTheirSource) {
  const OperandCopies scope;
  const void* place = nullptr;
  {
    const Tensor x = Tensor::zeros({1, 1, 64, 64});
    place = x.raw();
    OperandCopies::keep(x, {1, 2, 1, 0}, std::make_shared<int>(1));
  }
  EXPECT_NE(Tensor::zeros({1, 1, 64, 64}).raw(), place);
}

}  // namespace
}  // namespace tapedeck::test
