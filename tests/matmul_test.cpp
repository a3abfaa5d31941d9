#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

#include <tapedeck/core/simd.h>

#include "errors.h"

namespace tapedeck {
namespace {

using ::testing::HasSubstr;

/// Whole numbers: products and sums are exact, so results are compared for equality.
Tensor integers(const Shape& shape, std::uint64_t seed, DType dtype = DType::float64) {
  std::mt19937_64 engine(seed);
  std::vector<double> values(static_cast<std::size_t>(shape.count()));
  for (double& v : values) v = static_cast<double>(engine() % 9) - 4;
  return Tensor::from(values, shape).to(dtype);
}

/// out[m,n] of batches that are given by index maps, by the definition.
std::vector<double> define(const std::vector<double>& a, const std::vector<double>& b, std::size_t batches,
                           std::size_t m, std::size_t k, std::size_t n, bool repeat_a, bool repeat_b) {
  std::vector<double> out(batches * m * n, 0.0);
  for (std::size_t t = 0; t < batches; ++t)
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < n; ++j)
        for (std::size_t l = 0; l < k; ++l) {
          out[(t * m + i) * n + j] +=
              a[((repeat_a ? 0 : t) * m + i) * k + l] * b[((repeat_b ? 0 : t) * k + l) * n + j];
        }
  return out;
}

TEST(Matmul, EqualsTheDefinitionForManySizes) {
  std::mt19937_64 engine(5);
  for (int i = 0; i < 300; ++i) {
    const auto size = [&](std::uint64_t most) { return static_cast<std::int64_t>(engine() % most + 1); };
    const std::int64_t most = i % 10 == 0 ? 140 : 20, m = size(static_cast<std::uint64_t>(most)),
                       k = size(static_cast<std::uint64_t>(most)), n = size(static_cast<std::uint64_t>(most));
    const std::int64_t batches = size(3);
    const bool repeat_a = i % 3 == 1, repeat_b = i % 3 == 2;
    const DType dtype = i % 2 == 0 ? DType::float32 : DType::float64;
    const Tensor a = integers(repeat_a ? Shape{m, k} : Shape{batches, m, k}, engine(), dtype);
    const Tensor b = integers(repeat_b ? Shape{k, n} : Shape{batches, k, n}, engine(), dtype);
    const Variable y = matmul(a, b);
    EXPECT_EQ(y.shape(), (Shape{batches, m, n}));
    ASSERT_EQ(y.tensor().to_vector<double>(),
              define(a.to_vector<double>(), b.to_vector<double>(), static_cast<std::size_t>(batches),
                     static_cast<std::size_t>(m), static_cast<std::size_t>(k), static_cast<std::size_t>(n),
                     repeat_a, repeat_b))
        << m << "x" << k << "x" << n << " of " << batches;
  }
}

TEST(Matmul, EqualsTheDefinitionInBlocks) {
  for (const auto& [m, k, n] : {std::array<std::int64_t, 3>{101, 1100, 150},
                                {45, 2100, 70},
                                {16, 1100, 17},
                                {7, 9300, 100},
                                {13, 1100, 1030},
                                {1, 600, 1}}) {
    const Tensor a = integers({m, k}, 1, DType::float32), b = integers({k, n}, 2, DType::float32);
    const auto size = [](std::int64_t count) { return static_cast<std::size_t>(count); };
    const auto expected =
        define(a.to_vector<double>(), b.to_vector<double>(), 1, size(m), size(k), size(n), false, false);
    for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
      limit_instruction_set(set);
      for (int threads : {1, 3}) {
        set_num_threads(threads);
        EXPECT_EQ(matmul(a, b).tensor().to_vector<double>(), expected) << m << "x" << k << "x" << n;
      }
    }
  }
}

TEST(Matmul, TheBitsDoNotDependOnTheThreads) {
  for (const auto& [m, k, n] : {std::array<std::int64_t, 3>{101, 1100, 150},
                                {45, 2100, 70},
                                {16, 1100, 17},
                                {13, 1100, 1030},
                                {97, 600, 1030},
                                {97, 601, 16},
                                {1, 600, 1}}) {
    const Variable a = randn({m, k}), b = randn({k, n});
    set_num_threads(1);
    const auto alone = matmul(a, b).tensor().to_vector<float>();
    for (int threads : {2, 3, 5}) {
      set_num_threads(threads);
      EXPECT_EQ(matmul(a, b).tensor().to_vector<float>(), alone) << m << "x" << k << "x" << n;
    }
  }
}

TEST(Matmul, TransposedFactorsOfEveryShape) {
  // The gradients multiply with transposed factors: a's is gy b^T, b's is a^T gy.
  for (const auto& [m, k, n] : {std::array<std::int64_t, 3>{3, 5, 7},
                                {70, 33, 17},
                                {17, 600, 40},
                                {1, 9, 100},
                                {20, 30, 1100},
                                {1100, 30, 20},
                                {16, 17, 1100},
                                {1100, 16, 17}}) {
    const Variable a = Variable::parameter(integers({m, k}, 3)), b = Variable::parameter(integers({k, n}, 4));
    const Tensor gy = integers({m, n}, 5);
    Tape tape;
    const Variables g = tape.gradient(matmul(a, b), {a, b}, {.gradient = gy});
    EXPECT_EQ(g[0].tensor().to_vector<double>(), matmul(gy, transpose(b, 0, 1)).tensor().to_vector<double>());
    EXPECT_EQ(g[1].tensor().to_vector<double>(), matmul(transpose(a, 0, 1), gy).tensor().to_vector<double>());
  }
}

TEST(Matmul, BroadcastsLeadingSizes) {
  const Tensor a = integers({2, 1, 3, 4}, 1), b = integers({5, 4, 2}, 2);
  const Variable y = matmul(a, b);
  ASSERT_EQ(y.shape(), (Shape{2, 5, 3, 2}));
  const auto va = a.to_vector<double>(), vb = b.to_vector<double>(), vy = y.tensor().to_vector<double>();
  for (std::size_t s = 0; s < 2; ++s)
    for (std::size_t t = 0; t < 5; ++t)
      for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < 2; ++j) {
          double sum = 0;
          for (std::size_t l = 0; l < 4; ++l) sum += va[(s * 3 + i) * 4 + l] * vb[(t * 4 + l) * 2 + j];
          EXPECT_EQ(vy[((s * 5 + t) * 3 + i) * 2 + j], sum);
        }
}

TEST(Matmul, VectorsLoseTheirDimension) {
  EXPECT_EQ(matmul(integers({4}, 1), integers({4}, 2)).shape(), Shape{});
  EXPECT_EQ(matmul(integers({4}, 1), integers({4, 3}, 2)).shape(), Shape{3});
  EXPECT_EQ(matmul(integers({2, 4}, 1), integers({4}, 2)).shape(), Shape{2});
  EXPECT_EQ(matmul(integers({4}, 1), integers({5, 4, 3}, 2)).shape(), (Shape{5, 3}));
  EXPECT_EQ(matmul(integers({5, 2, 4}, 1), integers({4}, 2)).shape(), (Shape{5, 2}));
  EXPECT_EQ(matmul(Tensor::from({1.0, 2.0, 3.0}, {3}), Tensor::from({4.0, 5.0, 6.0}, {3})).item(), 32);
  EXPECT_EQ(matmul(integers({0, 4}, 1), integers({4, 3}, 2)).shape(), (Shape{0, 3}));
  EXPECT_EQ(matmul(integers({2, 0}, 1), integers({0, 3}, 2)).tensor().to_vector<double>(),
            std::vector<double>(6, 0.0));
  EXPECT_EQ(matmul(integers({2, 3, 0}, 1), integers({0, 2}, 2)).tensor().to_vector<double>(),
            std::vector<double>(12, 0.0));
}

TEST(Matmul, HalfTypesAreSummedInFloat32) {
  // 300 ones: a bfloat16 sum would stick at 256.
  const Tensor a = Tensor::ones({1, 300}, {DType::bfloat16}), b = Tensor::ones({300, 1}, {DType::bfloat16});
  EXPECT_EQ(matmul(a, b).item(), 300);
}

TEST(Matmul, GradientsOfEveryKind) {
  manual_seed(3);
  const auto input = [](const Shape& shape) {
    return Variable::parameter(randn(shape, {.dtype = DType::float64}));
  };
  const auto product = [](const Variables& x) { return matmul(x[0], x[1]); };
  const std::vector<std::pair<Shape, Shape>> cases = {
      {{3, 4}, {4, 2}},          {{4}, {4}},          {{4}, {4, 3}},    {{3, 4}, {4}},   {{2, 3, 4}, {4, 2}},
      {{2, 1, 3, 2}, {3, 2, 2}}, {{3, 2}, {2, 2, 3}}, {{2}, {3, 2, 2}}, {{2, 3, 2}, {2}}};
  for (const auto& [a, b] : cases) {
    gradcheck(product, {input(a), input(b)});
    gradgradcheck(product, {input(a), input(b)});
  }
}

TEST(Linear, EqualsTheDefinition) {
  for (DType dtype : {DType::float32, DType::float64}) {
    const Tensor x = integers({2, 3, 5}, 1, dtype), w = integers({4, 5}, 2, dtype),
                 b = integers({4}, 3, dtype);
    const auto vx = x.to_vector<double>(), vw = w.to_vector<double>(), vb = b.to_vector<double>();
    const Variable y = linear(x, w, b);
    ASSERT_EQ(y.shape(), (Shape{2, 3, 4}));
    const auto vy = y.tensor().to_vector<double>();
    for (std::size_t i = 0; i < 6; ++i)
      for (std::size_t o = 0; o < 4; ++o) {
        double sum = vb[o];
        for (std::size_t l = 0; l < 5; ++l) sum += vx[i * 5 + l] * vw[o * 5 + l];
        EXPECT_EQ(vy[i * 4 + o], sum);
      }
  }
  EXPECT_EQ(linear(integers({5}, 1), integers({4, 5}, 2)).shape(), Shape{4});
  EXPECT_EQ(linear(integers({0, 5}, 1), integers({4, 5}, 2)).shape(), (Shape{0, 4}));
}

TEST(Linear, RectifiesLongSumsOnce) {
  for (const auto& [m, n] : {std::array<std::int64_t, 2>{5, 9}, {16, 17}, {64, 100}}) {
    const Tensor x = integers({m, 2100}, 1, DType::float32), w = integers({n, 2100}, 2, DType::float32),
                 b = integers({n}, 3, DType::float32);
    const Variable y = linear(x, w, b);
    EXPECT_EQ(y.tensor().to_vector<double>(),
              (matmul(x, transpose(Variable(w), 0, 1)) + b).tensor().to_vector<double>());
    EXPECT_EQ(linear(x, w, b, 0.5).tensor().to_vector<double>(),
              leaky_relu(y, 0.5).tensor().to_vector<double>());
  }
}

TEST(Linear, Gradients) {
  manual_seed(4);
  const auto input = [](const Shape& shape) {
    return Variable::parameter(randn(shape, {.dtype = DType::float64}));
  };
  const auto f = [](const Variables& x) { return linear(x[0], x[1], x[2]); };
  gradcheck(f, {input({2, 3, 4}), input({5, 4}), input({5})});
  gradgradcheck(f, {input({2, 3, 4}), input({5, 4}), input({5})});
}

TEST(Linear, ZeroRowsGiveZeroGradients) {
  const Variable x = Variable::parameter(integers({0, 5}, 1)), w = Variable::parameter(integers({4, 5}, 2)),
                 b = Variable::parameter(integers({4}, 3));
  Tape tape;
  const Variable y = linear(x, w, b);
  const Variables g = tape.gradient(y, {x, w, b}, {.gradient = Tensor::zeros_like(y.tensor())});
  EXPECT_EQ(g[1].tensor().to_vector<double>(), std::vector<double>(20, 0.0));
  EXPECT_EQ(g[2].tensor().to_vector<double>(), std::vector<double>(4, 0.0));
}

TEST(Matmul, ErrorsNameWhatDoesNotFit) {
  EXPECT_THAT(error_of([] {
                matmul(integers({2, 3}, 1), integers({4, 5}, 2));
              }),
              HasSubstr("matmul: a has 3 columns but b has 4 rows (a [2,3], b [4,5])"));
  EXPECT_THAT(error_of([] { matmul(integers({}, 1), integers({4, 5}, 2)); }), HasSubstr("is a scalar"));
  EXPECT_THAT(error_of([] {
                matmul(integers({2, 3, 4}, 1), integers({3, 4, 5}, 2));
              }),
              HasSubstr("shapes [2] and [3] do not broadcast"));
  EXPECT_THAT(error_of([] {
                matmul(integers({2, 3}, 1), integers({3, 5}, 2, DType::float32));
              }),
              HasSubstr("a is float64 but b is float32"));
  EXPECT_THAT(error_of([] {
                matmul(integers({2, 3}, 1, DType::int64), integers({3, 5}, 2, DType::int64));
              }),
              HasSubstr("a is int64; legal are float64"));
  EXPECT_THAT(error_of([] {
                linear(integers({2, 3}, 1), integers({4, 5}, 2));
              }),
              HasSubstr("linear: x [2,3] does not fit weight [4,5]; legal is [...,5]"));
  EXPECT_THAT(error_of([] {
                linear(integers({2, 3}, 1), integers({3}, 2));
              }),
              HasSubstr("linear: weight [3] has rank 1; legal is 2, [out,in]"));
  EXPECT_THAT(error_of([] {
                linear(integers({2, 5}, 1), integers({4, 5}, 2), integers({5}, 2));
              }),
              HasSubstr("linear: bias [5] does not fit weight [4,5]; legal is [4]"));
}

}  // namespace
}  // namespace tapedeck
