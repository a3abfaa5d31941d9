#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tapedeck {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr TensorOptions kDouble = {.dtype = DType::float64};

Tensor index(const std::vector<std::int64_t>& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

/// Random integers in [0, high).
Tensor random_index(const Shape& shape, std::int64_t high, Generator& generator) {
  Tensor x = Tensor::empty(shape, {.dtype = DType::int64});
  randint_(x, 0, high, generator);
  return x;
}

std::vector<double> values(const Variable& x) {
  return x.tensor().to_vector<double>();
}

/// Calls f(coordinates, position in row-major order) for every element of a rank 4 shape.
template <class F>
void for_each(const Shape& shape, F f) {
  std::int64_t i[4], position = 0;
  for (i[0] = 0; i[0] < shape[0]; ++i[0])
    for (i[1] = 0; i[1] < shape[1]; ++i[1])
      for (i[2] = 0; i[2] < shape[2]; ++i[2])
        for (i[3] = 0; i[3] < shape[3]; ++i[3]) f(i, position++);
}

std::int64_t at(const Shape& shape, const std::int64_t* i) {
  return ((i[0] * shape[1] + i[1]) * shape[2] + i[2]) * shape[3] + i[3];
}

const std::vector<DType> kDTypes = {DType::float64, DType::float32, DType::bfloat16,
                                    DType::float16, DType::int64,   DType::uint8};

/// Small integers, which every type holds exactly, sums of a few of them included.
Tensor small_integers(const Shape& shape, DType dtype, Generator& generator) {
  return random_index(shape, 8, generator).to(dtype);
}

TEST(IndexSelect, TakesAndAddsAlongEveryDimensionTypeAndLayout) {
  Generator generator(1);
  const Shape shape = {5, 6, 7, 4};
  for (DType dtype : kDTypes) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (int dim = 0; dim < 4; ++dim) {
        const Tensor x = small_integers(shape, dtype, generator);
        const Tensor rows = random_index({9}, shape[dim], generator);
        const auto in = x.to_vector<double>();
        const auto row = rows.to_vector<std::int64_t>();

        const Variable y = index_select(x.to(layout), dim - 4, rows);
        ASSERT_EQ(y.shape(), shape.with(dim, 9));
        EXPECT_EQ(y.tensor().layout(), layout);
        const auto out = values(y);
        for_each(y.shape(), [&](const std::int64_t* i, std::int64_t position) {
          std::int64_t from[] = {i[0], i[1], i[2], i[3]};
          from[dim] = row[i[dim]];
          ASSERT_EQ(out[position], in[at(shape, from)]);
        });

        const Variable z = index_add(y, dim, rows, shape[dim] + 2);
        EXPECT_EQ(z.tensor().layout(), layout);
        std::vector<double> expected(z.count(), 0.0);
        for_each(y.shape(), [&](const std::int64_t* i, std::int64_t position) {
          std::int64_t to[] = {i[0], i[1], i[2], i[3]};
          to[dim] = row[i[dim]];
          expected[at(z.shape(), to)] += out[position];
        });
        ASSERT_EQ(values(z), expected);
      }
    }
  }
}

TEST(IndexSelect, GradientSumsDuplicatesWideRowsIncluded) {
  Generator generator(2);
  const std::int64_t columns = 1300;  // more than one block of the kernel
  const Variable codes = Variable::parameter(randn({4, columns}, kDouble, generator));
  const Tensor gy = randn({5, columns}, kDouble, generator);
  Tape tape;
  tape.backward(index_select(codes, 0, index({3, 1, 3, 3, 0})), {.gradient = gy});
  const auto g = gy.to_vector<double>(), got = values(codes.grad());
  for (std::int64_t c = 0; c < columns; ++c) {
    ASSERT_EQ(got[c], g[4 * columns + c]);
    ASSERT_EQ(got[columns + c], g[columns + c]);
    ASSERT_EQ(got[2 * columns + c], 0);
    ASSERT_EQ(got[3 * columns + c], g[c] + g[2 * columns + c] + g[3 * columns + c]);
  }
}

TEST(IndexSelect, HalfTypesSumInFloat32) {
  // 256 + 1 is 256 in bfloat16: 64 ones one by one would be lost.
  std::vector<float> terms(65, 1.f);
  terms[0] = 256.f;
  const Variable y = index_add(Tensor::from(terms, {65}).to(DType::bfloat16), 0,
                               Tensor::zeros({65}, {.dtype = DType::int64}), 1);
  EXPECT_EQ(y.item(), 320);
  const Variable z = scatter_add(Tensor::from(terms, {65}).to(DType::bfloat16), 0,
                                 Tensor::zeros({65}, {.dtype = DType::int64}), {1});
  EXPECT_EQ(z.item(), 320);
}

TEST(IndexSelect, SameBitsForEveryThreadCount) {
  Generator generator(3);
  const Tensor x = randn({3, 700, 33}, {}, generator), rows = random_index({700}, 50, generator);
  const Tensor columns = random_index({3, 700, 33}, 20, generator);
  const int before = num_threads();
  std::vector<float> sums[2], scattered[2];
  for (int i : {0, 1}) {
    set_num_threads(i == 0 ? 1 : 5);
    sums[i] = index_add(x, 1, rows, 50).tensor().to_vector<float>();
    scattered[i] = scatter_add(x, 1, columns, {3, 20, 33}).tensor().to_vector<float>();
  }
  set_num_threads(before);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(scattered[0], scattered[1]);
}

TEST(IndexSelect, EmptyIndicesAndTensors) {
  EXPECT_EQ(index_select(Tensor::zeros({3, 2}), 0, index({})).shape(), Shape({0, 2}));
  EXPECT_EQ(values(index_add(Tensor::zeros({0, 2}), 0, index({}), 2)), std::vector<double>(4, 0.0));
  EXPECT_EQ(index_select(Tensor::zeros({3, 0}), 0, index({2, 2})).shape(), Shape({2, 0}));
}

TEST(IndexSelect, ErrorsNamePositionValueAndRange) {
  const Variable x = Tensor::zeros({4, 3});
  EXPECT_THAT(
      [&] {
        index_select(x, 0, index({0, 3, 4}));
      },
      ThrowsMessage<Error>(HasSubstr("index_select: index[2] is 4; legal is 0 to 3")));
  EXPECT_THAT([&] { index_select(x, 1, index({-1})); },
              ThrowsMessage<Error>(HasSubstr("index_select: index[0] is -1; legal is 0 to 2")));
  EXPECT_THAT([&] { index_select(x, 0, Tensor::zeros({2})); },
              ThrowsMessage<Error>(HasSubstr("index is float32; legal is int64")));
  EXPECT_THAT(
      [&] {
        index_select(x, 0, Tensor::zeros({2, 2}, {.dtype = DType::int64}));
      },
      ThrowsMessage<Error>(HasSubstr("index has shape [2,2]; legal is rank 1")));
  EXPECT_THAT(
      [&] {
        index_add(x, 0, index({1, 1}), 4);
      },
      ThrowsMessage<Error>(
          HasSubstr("index has shape [2]; legal is [4], the size of dimension 0 of x [4,3]")));
  EXPECT_THAT(
      [&] {
        index_add(x, 0, index({0, 1, 2, 2}), 2);
      },
      ThrowsMessage<Error>(HasSubstr("index_add: index[2] is 2; legal is 0 to 1")));
}

TEST(Embedding, HasTheShapeOfTheIndexThenTheFeatures) {
  const Tensor table = Tensor::from({0., 1., 10., 11., 20., 21.}, {3, 2});
  const Variable y = embedding(table, Tensor::from(std::vector<std::int64_t>{2, 0, 1, 2}, {2, 2}));
  EXPECT_EQ(y.shape(), Shape({2, 2, 2}));
  EXPECT_EQ(values(y), (std::vector<double>{20, 21, 0, 1, 10, 11, 20, 21}));
}

TEST(Gather, TakesAndAddsAlongEveryDimensionTypeAndLayout) {
  Generator generator(4);
  const Shape shape = {4, 5, 6, 3};
  for (DType dtype : kDTypes) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (int dim = 0; dim < 4; ++dim) {
        const Tensor x = small_integers(shape, dtype, generator);
        const Shape part = Shape({3, 4, 5, 2}).with(dim, 8);  // smaller than x but along dim
        const Tensor chosen = random_index(part, shape[dim], generator);
        const auto in = x.to_vector<double>();
        const auto choice = chosen.to_vector<std::int64_t>();

        const Variable y = gather(x.to(layout), dim - 4, chosen.to(layout));
        ASSERT_EQ(y.shape(), part);
        EXPECT_EQ(y.tensor().layout(), layout);
        const auto out = values(y);
        for_each(part, [&](const std::int64_t* i, std::int64_t position) {
          std::int64_t from[] = {i[0], i[1], i[2], i[3]};
          from[dim] = choice[position];
          ASSERT_EQ(out[position], in[at(shape, from)]);
        });

        const Variable z = scatter_add(y, dim, chosen, shape);
        EXPECT_EQ(z.tensor().layout(), layout);
        std::vector<double> expected(z.count(), 0.0);
        for_each(part, [&](const std::int64_t* i, std::int64_t position) {
          std::int64_t to[] = {i[0], i[1], i[2], i[3]};
          to[dim] = choice[position];
          expected[at(shape, to)] += out[position];
        });
        ASSERT_EQ(values(z), expected);
      }
    }
  }
}

TEST(Gather, ErrorsNamePositionValueAndRange) {
  const Variable x = Tensor::zeros({2, 3});
  const auto rows = [](std::initializer_list<std::int64_t> list, const Shape& shape) {
    return Tensor::from(std::vector<std::int64_t>(list), shape);
  };
  EXPECT_THAT(
      [&] {
        gather(x, 1, rows({0, 1, 2, 3}, {2, 2}));
      },
      ThrowsMessage<Error>(HasSubstr("gather: index[1,1] is 3; legal is 0 to 2")));
  EXPECT_THAT([&] { gather(x, 1, rows({0}, {1})); },
              ThrowsMessage<Error>(HasSubstr("index [1] must have the rank of x [2,3]")));
  EXPECT_THAT(
      [&] {
        gather(x, 1, rows({0, 0, 0}, {3, 1}));
      },
      ThrowsMessage<Error>(
          HasSubstr("index [3,1] is larger than x [2,3] in dimension 0; legal is only in dimension 1")));
  EXPECT_THAT(
      [&] {
        scatter_add(x, 1, rows({0, 0}, {2, 1}), {2, 3});
      },
      ThrowsMessage<Error>(HasSubstr("index has shape [2,1] but x has [2,3]")));
  EXPECT_THAT(
      [&] {
        scatter_add(x, 1, rows({0, 1, 2, 0, 5, 0}, {2, 3}), {2, 4});
      },
      ThrowsMessage<Error>(HasSubstr("scatter_add: index[1,1] is 5; legal is 0 to 3")));
}

TEST(Index, FirstAndSecondDerivatives) {
  Generator generator(5);
  const Variable x = Variable::parameter(randn({2, 4, 3, 2}, kDouble, generator));
  const Variable nhwc = Variable::parameter(x.tensor().to(Layout::nhwc));
  const Tensor rows = index({1, 0, 1, 2}), chosen = random_index({2, 5, 3, 1}, 4, generator);
  const Tensor spread = random_index({2, 4, 3, 2}, 3, generator);
  // Squares, so that there is a second derivative to be wrong.
  const auto squared = [](auto f) {
    return [f](const Variables& in) {
      const Variable y = f(in[0]);
      return y * y;
    };
  };
  for (const Variable& leaf : {x, nhwc}) {
    const auto both = [&](auto f) {
      gradcheck(squared(f), {leaf});
      gradgradcheck(squared(f), {leaf});
    };
    both([&](const Variable& v) { return index_select(v, 1, rows); });
    both([&](const Variable& v) { return index_add(v, 1, rows, 3); });
    both([&](const Variable& v) { return gather(v, 1, chosen); });
    both([&](const Variable& v) { return scatter_add(v, 2, spread, {2, 5, 4, 2}); });
  }
}

}  // namespace
}  // namespace tapedeck
