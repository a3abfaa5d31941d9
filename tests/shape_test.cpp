#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace tapedeck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// 0, 1, 2, ... in row-major order.
Tensor counting(const Shape& shape, DType dtype = DType::float64) {
  std::vector<double> values(static_cast<std::size_t>(shape.count()));
  std::iota(values.begin(), values.end(), 0);
  return Tensor::from(values, shape).to(dtype);
}

std::vector<double> values(const Variable& x) {
  return x.tensor().to_vector<double>();
}

/// Position of (n, c, h, w) in row-major order.
std::size_t at(const Shape& shape, std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w) {
  return static_cast<std::size_t>(((n * shape[1] + c) * shape[2] + h) * shape[3] + w);
}

/// The gradient of sum(gy * f(x)), in f's variable x.
Variable gradient(const std::function<Variable(const Variable&)>& f, const Tensor& x, const Tensor& gy) {
  const Variable leaf = Variable::parameter(x);
  Tape tape;
  return tape.gradient(f(leaf), {leaf}, {.gradient = gy})[0];
}

const std::vector<DType> kDTypes = {DType::float64, DType::float32, DType::bfloat16,
                                    DType::float16, DType::int64,   DType::uint8};

TEST(Reshape, KeepsRowMajorOrderFromBothLayouts) {
  const Tensor x = counting({2, 3, 4, 5});
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const Variable y = reshape(x.to(layout), {6, -1});
    EXPECT_EQ(y.shape(), Shape({6, 20}));
    EXPECT_EQ(values(y), values(x));
  }
  EXPECT_TRUE(reshape(x, {-1}).tensor().shares_storage(x));
  EXPECT_EQ(flatten(x).shape(), Shape({120}));
  EXPECT_EQ(flatten(x, 1, -2).shape(), Shape({2, 12, 5}));
  EXPECT_EQ(flatten(Tensor::full({}, 7)).shape(), Shape({1}));
  EXPECT_EQ(unsqueeze(x, 0).shape(), Shape({1, 2, 3, 4, 5}));
  EXPECT_EQ(unsqueeze(x, -1).shape(), Shape({2, 3, 4, 5, 1}));
  EXPECT_EQ(squeeze(counting({1, 3, 1})).shape(), Shape({3}));
  EXPECT_EQ(squeeze(counting({1, 3, 1}), -1).shape(), Shape({1, 3}));
  EXPECT_EQ(squeeze(counting({1, 3, 1}), 1).shape(), Shape({1, 3, 1}));
}

TEST(Reshape, GradientHasTheLayoutOfTheInput) {
  const Tensor x = counting({2, 3, 4, 5}).to(Layout::nhwc), gy = counting({24, 5});
  const Variable gx = gradient([](const Variable& v) { return reshape(v, {24, 5}); }, x, gy);
  EXPECT_EQ(gx.tensor().layout(), Layout::nhwc);
  EXPECT_EQ(values(gx), values(gy));
}

TEST(Reshape, ErrorsNameShapesAndRanges) {
  const Variable x = counting({2, 3});
  EXPECT_THAT(
      [&] {
        reshape(x, {4, 2});
      },
      ThrowsMessage<Error>(HasSubstr("[2,3] has 6 elements but [4,2] has 8")));
  EXPECT_THAT([&] { reshape(x, {-1, -1}); }, ThrowsMessage<Error>(HasSubstr("only one size may be -1")));
  EXPECT_THAT([&] { reshape(x, {-1, 4}); }, ThrowsMessage<Error>(HasSubstr("which 4 does not divide")));
  EXPECT_THAT([&] { flatten(x, 1, 0); }, ThrowsMessage<Error>(HasSubstr("start_dim 1 is behind end_dim 0")));
  EXPECT_THAT([&] { unsqueeze(x, 4); },
              ThrowsMessage<Error>(HasSubstr("dim 4 is out of range for x [2,3]; legal is -3 to 2")));
  EXPECT_THAT([&] { to_layout(x, Layout::nhwc); },
              ThrowsMessage<Error>(HasSubstr("nhwc needs rank 4, but x has shape [2,3]")));
}

TEST(Permute, MovesEveryElementInEveryOrderTypeAndLayout) {
  // Sizes beyond one tile of the transposing kernel in two dimensions.
  const Shape shape = {2, 3, 37, 41};
  for (DType dtype : kDTypes) {
    Tensor x = counting(shape, dtype);
    std::vector<int> dims = {0, 1, 2, 3};
    do {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        const Variable y = permute(x.to(layout), dims);
        const auto in = x.to_vector<double>(), out = values(y);
        std::int64_t i[4];
        for (i[0] = 0; i[0] < shape[0]; ++i[0])
          for (i[1] = 0; i[1] < shape[1]; ++i[1])
            for (i[2] = 0; i[2] < shape[2]; ++i[2])
              for (i[3] = 0; i[3] < shape[3]; ++i[3])
                ASSERT_EQ(out[at(y.shape(), i[dims[0]], i[dims[1]], i[dims[2]], i[dims[3]])],
                          in[at(shape, i[0], i[1], i[2], i[3])]);
      }
    } while (std::next_permutation(dims.begin(), dims.end()));
  }
}

TEST(Permute, GradientIsTheInversePermutation) {
  const Tensor x = counting({2, 3, 4}), gy = counting({4, 2, 3});
  const Variable gx = gradient([](const Variable& v) { return permute(v, {2, 0, -2}); }, x, gy);
  EXPECT_EQ(values(gx), values(permute(gy, {1, 2, 0})));
  EXPECT_EQ(values(transpose(counting({2, 3}), 0, -1)), (std::vector<double>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(permute(Tensor::zeros({0, 3}), {1, 0}).shape(), Shape({3, 0}));
}

TEST(Permute, RejectsWhatIsNoPermutation) {
  const Variable x = counting({2, 3});
  const auto message = [](const char* dims) {
    return ThrowsMessage<Error>(
        HasSubstr(concat("permute: dims {", dims, "} of x [2,3]; legal is each of 0 to 1 once")));
  };
  EXPECT_THAT([&] { permute(x, {0, 0}); }, message("0,0"));
  EXPECT_THAT([&] { permute(x, {0, -2}); }, message("0,-2"));
  EXPECT_THAT([&] { permute(x, {0, 2}); }, message("0,2"));
  EXPECT_THAT([&] { permute(x, {0}); }, message("0"));
}

TEST(ToLayout, KeepsValuesAndGivesGradientsBackInTheOldLayout) {
  const Tensor x = counting({2, 3, 4, 5}), gy = counting({2, 3, 4, 5}).to(Layout::nhwc);
  EXPECT_EQ(to_layout(x, Layout::nhwc).tensor().layout(), Layout::nhwc);
  EXPECT_EQ(values(to_layout(x, Layout::nhwc)), values(x));
  const Variable gx = gradient([](const Variable& v) { return to_layout(v, Layout::nhwc); }, x, gy);
  EXPECT_EQ(gx.tensor().layout(), Layout::nchw);
  EXPECT_EQ(values(gx), values(gy));
}

TEST(Slice, TakesStepsAlongEveryDimensionOfBothLayouts) {
  const Shape shape = {5, 6, 7, 8};
  const Tensor x = counting(shape);
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    for (int dim = -4; dim < 4; ++dim) {
      for (std::int64_t step : {1, 2, 3}) {
        const Variable y = slice(x.to(layout), dim, 1, -1, step);
        EXPECT_EQ(y.tensor().layout(), layout);
        const Shape expected = shape.with(dim, (shape[dim] - 2 + step - 1) / step);
        ASSERT_EQ(y.shape(), expected);
        const auto in = values(x), out = values(y);
        for (std::int64_t i = 0, n = 0; n < expected[0]; ++n)
          for (std::int64_t c = 0; c < expected[1]; ++c)
            for (std::int64_t h = 0; h < expected[2]; ++h)
              for (std::int64_t w = 0; w < expected[3]; ++w, ++i) {
                std::int64_t from[] = {n, c, h, w};
                std::int64_t& moved = from[shape.dim(dim)];
                moved = 1 + moved * step;
                ASSERT_EQ(out[i], in[at(shape, from[0], from[1], from[2], from[3])]);
              }
      }
    }
  }
  EXPECT_TRUE(slice(x, 0, 1, 3).tensor().shares_storage(x));
  EXPECT_EQ(slice(x, 1, 2, 2).shape(), Shape({5, 0, 7, 8}));
}

TEST(Slice, GradientIsZeroOutside) {
  const Variable gx = gradient([](const Variable& v) { return slice(v, 1, 1, 5, 2); }, counting({2, 5}),
                               Tensor::from({1., 2., 3., 4.}, {2, 2}));
  EXPECT_THAT(values(gx), ElementsAre(0, 1, 0, 2, 0, 0, 3, 0, 4, 0));
}

TEST(Slice, RejectsWhatIsOutOfRange) {
  const Variable x = counting({2, 5});
  const char* legal = "of dimension 1 of x [2,5]; legal is 0 <= begin <= end <= 5";
  EXPECT_THAT([&] { slice(x, 1, 0, 6); },
              ThrowsMessage<Error>(HasSubstr(concat("begin 0 and end 6 ", legal))));
  EXPECT_THAT([&] { slice(x, 1, -6, 5); },
              ThrowsMessage<Error>(HasSubstr(concat("begin -6 and end 5 ", legal))));
  EXPECT_THAT([&] { slice(x, 1, 3, 2); },
              ThrowsMessage<Error>(HasSubstr(concat("begin 3 and end 2 ", legal))));
  EXPECT_THAT([&] { slice(x, 1, 0, 5, 0); },
              ThrowsMessage<Error>(HasSubstr("step 0 is not legal; legal is 1 or more")));
  EXPECT_THAT([&] { slice(x, 2, 0, 1); },
              ThrowsMessage<Error>(HasSubstr("dimension 2 is out of range for [2,5]")));
}

TEST(Cat, JoinsAlongEveryDimensionOfBothLayouts) {
  const Shape shape = {2, 3, 4, 5};
  for (int dim = 0; dim < 4; ++dim) {
    for (bool nhwc : {false, true}) {
      const Layout layout = nhwc ? Layout::nhwc : Layout::nchw;
      const Tensor a = counting(shape), b = counting(shape.with(dim, 2)), c = counting(shape.with(dim, 0));
      const Variable y = cat({a.to(layout), c.to(layout), b.to(layout)}, dim);
      EXPECT_EQ(y.tensor().layout(), layout);
      ASSERT_EQ(y.shape(), shape.with(dim, shape[dim] + 2));
      const auto out = values(y), in_a = values(a), in_b = values(b);
      for (std::int64_t i = 0, n = 0; n < y.size(0); ++n)
        for (std::int64_t c2 = 0; c2 < y.size(1); ++c2)
          for (std::int64_t h = 0; h < y.size(2); ++h)
            for (std::int64_t w = 0; w < y.size(3); ++w, ++i) {
              std::int64_t from[] = {n, c2, h, w};
              const bool second = from[dim] >= shape[dim];
              if (second) from[dim] -= shape[dim];
              ASSERT_EQ(out[i], second ? in_b[at(b.shape(), from[0], from[1], from[2], from[3])]
                                       : in_a[at(shape, from[0], from[1], from[2], from[3])]);
            }
    }
  }
  EXPECT_THAT(values(stack({counting({2}), counting({2}) * 10.}, 1)), ElementsAre(0, 0, 1, 10));
  EXPECT_EQ(stack({counting({2}), counting({2})}, -2).shape(), Shape({2, 2}));
  EXPECT_EQ(cat({counting({2}, DType::uint8), counting({1}, DType::uint8)}, -1).dtype(), DType::uint8);
}

TEST(Cat, GradientsAreTheParts) {
  const Variable a = Variable::parameter(counting({2, 1})), b = Variable::parameter(counting({2, 2}));
  Tape tape;
  tape.backward(cat({a, counting({2, 1}), b, a}, 1), {.gradient = counting({2, 5})});
  EXPECT_THAT(values(a.grad()), ElementsAre(0 + 4, 5 + 9));
  EXPECT_THAT(values(b.grad()), ElementsAre(2, 3, 7, 8));
}

TEST(Cat, RejectsWhatDoesNotFit) {
  const Variable x = counting({2, 3});
  EXPECT_THAT([&] { cat({}, 0); }, ThrowsMessage<Error>(HasSubstr("xs is empty")));
  EXPECT_THAT(
      [&] {
        cat({x, counting({3, 3})}, 1);
      },
      ThrowsMessage<Error>(
          HasSubstr("xs[1] is [3,3] but xs[0] is [2,3]; only the sizes of dimension 1 may differ")));
  EXPECT_THAT(
      [&] {
        cat({x, counting({2})}, 0);
      },
      ThrowsMessage<Error>(HasSubstr("xs[1] is [2] but xs[0] is [2,3]")));
  EXPECT_THAT(
      [&] {
        cat({x, counting({2, 3}, DType::float32)}, 0);
      },
      ThrowsMessage<Error>(HasSubstr("xs[0] is float64 but xs[1] is float32")));
  EXPECT_THAT([&] { cat({x, Variable()}, 0); }, ThrowsMessage<Error>(HasSubstr("xs[1] is undefined")));
  EXPECT_THAT(
      [&] {
        stack({x, counting({2})});
      },
      ThrowsMessage<Error>(HasSubstr("xs[1] is [2] but xs[0] is [2,3]")));
}

TEST(Split, CutsIntoPartsWhoseGradientsAreJoined) {
  const Variable x = Variable::parameter(counting({2, 5}));
  Tape tape;
  const Variables parts = split(x, 2, 1);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_THAT(values(parts[0]), ElementsAre(0, 1, 5, 6));
  EXPECT_THAT(values(parts[2]), ElementsAre(4, 9));
  tape.backward(cat({parts[2], parts[0] * 10.}, 1), {.gradient = counting({2, 3})});
  EXPECT_THAT(values(x.grad()), ElementsAre(10, 20, 0, 0, 0, 40, 50, 0, 0, 3));

  EXPECT_THAT(values(split(x, {4, 0, 1}, -1)[2]), ElementsAre(4, 9));
  EXPECT_EQ(split(counting({0, 2}), 3).size(), 1u);
  EXPECT_THAT([&] { split(x, 0, 1); },
              ThrowsMessage<Error>(HasSubstr("size 0 is not legal; legal is 1 or more")));
  EXPECT_THAT(
      [&] {
        split(x, {4, 2}, 1);
      },
      ThrowsMessage<Error>(HasSubstr("the sizes sum to 6 but dimension 1 of x [2,5] has 5")));
}

TEST(Pad, AddsAndCutsOnEverySide) {
  const Shape shape = {2, 3, 4, 5};
  const Tensor x = counting(shape);
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    // width 5: 1 more left, 2 off right; height 4: 2 off top, 3 more below; channels: 1 more behind.
    const Variable y = pad(x.to(layout), {1, -2, -2, 3, 0, 1}, -7);
    EXPECT_EQ(y.tensor().layout(), layout);
    ASSERT_EQ(y.shape(), Shape({2, 4, 5, 4}));
    const auto in = values(x), out = values(y);
    for (std::int64_t i = 0, n = 0; n < 2; ++n)
      for (std::int64_t c = 0; c < 4; ++c)
        for (std::int64_t h = 0; h < 5; ++h)
          for (std::int64_t w = 0; w < 4; ++w, ++i) {
            const bool inside = c < 3 && h + 2 < 4 && w >= 1;
            ASSERT_EQ(out[i], inside ? in[at(shape, n, c, h + 2, w - 1)] : -7);
          }
  }
  EXPECT_THAT(values(pad(counting({2}, DType::uint8), {1, 0}, 255)), ElementsAre(255, 0, 1));
}

TEST(Pad, GradientIsWhatWasKept) {
  const Variable gx = gradient(
      [](const Variable& v) {
        return pad(v, {-1, 2}, 5);
      },
      counting({2, 3}), counting({2, 4}));
  EXPECT_THAT(values(gx), ElementsAre(0, 0, 1, 0, 4, 5));
}

TEST(Pad, RejectsWhatIsOutOfRange) {
  const Variable x = counting({2, 3});
  EXPECT_THAT([&] { pad(x, {1}); },
              ThrowsMessage<Error>(HasSubstr("1 widths for x [2,3]; legal are two for each")));
  EXPECT_THAT([&] { pad(x, {0, 0, 0, 0, 0, 0}); }, ThrowsMessage<Error>(HasSubstr("at most 4")));
  EXPECT_THAT(
      [&] {
        pad(x, {-2, -2});
      },
      ThrowsMessage<Error>(HasSubstr(
          "widths -2 and -2 cut off more of dimension 1 of x [2,3] than there is; legal is 3 in all")));
}

TEST(ShapeOps, FirstAndSecondDerivatives) {
  const TensorOptions wide = {.dtype = DType::float64};
  const Variable x = Variable::parameter(randn({2, 3, 4, 2}, wide));
  const Variable nhwc = Variable::parameter(randn({2, 3, 4, 2}, wide).to(Layout::nhwc));
  const auto both = [&](auto f) {  // squared, so that there is a second derivative to be wrong
    const auto squared = [f](const Variables& in) {
      const Variable y = f(in[0], in[1]);
      return y * y;
    };
    gradcheck(squared, {x, nhwc});
    gradgradcheck(squared, {x, nhwc});
  };
  both([](const Variable& a, const Variable& b) { return reshape(a, {6, 8}) + reshape(b, {-1, 8}); });
  both([](const Variable& a, const Variable& b) {
    return permute(a, {3, 1, 0, 2}) + permute(b, {3, 1, 0, 2});
  });
  both([](const Variable& a, const Variable& b) {
    return to_layout(a, Layout::nhwc) + to_layout(b, Layout::nchw);
  });
  both([](const Variable& a, const Variable& b) { return slice(a, 2, 1, 4, 2) + slice(b, 2, 0, 2); });
  both([](const Variable& a, const Variable& b) { return cat({a, b, a}, 1); });
  both([](const Variable& a, const Variable& b) { return stack({a, b}, 2); });
  both([](const Variable& a, const Variable& b) { return split(a, {2, 2}, 2)[1] + split(b, 2, 2)[0]; });
  both([](const Variable& a, const Variable& b) { return pad(a, {1, 0, -1, 2}, 3) + pad(b, {0, 1, 2, -1}); });
}

}  // namespace
}  // namespace tapedeck
