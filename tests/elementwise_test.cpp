#include "op_support.h"

namespace tapedeck {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Unary1 = std::function<Variable(const Variable&)>;

std::vector<double> slopes(const Unary1& f, const std::vector<double>& at) {
  const Variable x = Variable::parameter(Tensor::from(at, {static_cast<std::int64_t>(at.size())}));
  Tape tape;
  tape.backward(sum(f(x)));
  return x.grad().tensor().to_vector<double>();
}

TEST(Elementwise, FunctionsOfOneTensor) {
  check_unary([](const Variable& x) { return exp(x); }, [](double x) { return std::exp(x); }, -3, 3);
  check_unary([](const Variable& x) { return log(x); }, [](double x) { return std::log(x); }, 0.1, 4);
  check_unary([](const Variable& x) { return sqrt(x); }, [](double x) { return std::sqrt(x); }, 0.1, 4);
  check_unary([](const Variable& x) { return square(x); }, [](double x) { return x * x; }, -2, 2);
  check_unary([](const Variable& x) { return abs(x); }, [](double x) { return std::abs(x); }, -2, 2);
  check_unary([](const Variable& x) { return sin(x); }, [](double x) { return std::sin(x); }, -3, 3);
  check_unary([](const Variable& x) { return cos(x); }, [](double x) { return std::cos(x); }, -3, 3);
  check_unary([](const Variable& x) { return erf(x); }, [](double x) { return std::erf(x); }, -2, 2);
  check_unary([](const Variable& x) { return clamp(x, -0.5, 1); },
              [](double x) { return std::min(1.0, std::max(-0.5, x)); }, -2, 2);
}

TEST(Elementwise, PowersOfOneTensor) {
  for (double p : {2.0, 3.0, -1.0, 0.5, 1.0, -2.5, 0.3}) {
    check_unary([=](const Variable& x) { return pow(x, p); }, [=](double x) { return std::pow(x, p); }, 0.2,
                3);
  }
  check_unary([](const Variable& x) { return pow(x, 3); }, [](double x) { return x * x * x; }, -2, 2);
}

TEST(Elementwise, PowersAtZero) {
  const Tensor x = Tensor::from({-2.0, 0.0, kInf}, {3});
  EXPECT_THAT(pow(x, 0).tensor().to_vector<double>(), ElementsAre(1, 1, 1));
  EXPECT_THAT(pow(x, -1).tensor().to_vector<double>(), ElementsAre(-0.5, kInf, 0));
  EXPECT_THAT(slopes([](const Variable& v) { return pow(v, 0); }, {-2, 0, 3}), ElementsAre(0, 0, 0));
  EXPECT_THAT(slopes([](const Variable& v) { return pow(v, 2); }, {-2, 0, 3}), ElementsAre(-4, 0, 6));
  EXPECT_THAT(slopes([](const Variable& v) { return pow(v, 1); }, {-2, 0, 3}), ElementsAre(1, 1, 1));
  // The same with the exponent a tensor, and for the exponent.
  const Variable base = Variable::parameter(Tensor::from({0.0, 0.0, 0.0, 2.0}, {4}));
  const Variable exponent = Variable::parameter(Tensor::from({0.0, 2.0, 1.0, 0.0}, {4}));
  Tape tape;
  tape.backward(sum(pow(base, exponent)));
  EXPECT_THAT(base.grad().tensor().to_vector<double>(), ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(exponent.grad().tensor().to_vector<double>(), ElementsAre(0, 0, 0, std::log(2.0)));
}

TEST(Elementwise, Float32IsAccurateEverywhere) {
  EXPECT_LT(worst_ulp([](const Variable& x) { return exp(x); }, [](double x) { return std::exp(x); }), 1);
  EXPECT_LT(worst_ulp([](const Variable& x) { return log(x); }, [](double x) { return std::log(x); }), 1);
  EXPECT_LT(worst_ulp([](const Variable& x) { return erf(x); }, [](double x) { return std::erf(x); }), 2.5);
  EXPECT_LE(worst_ulp([](const Variable& x) { return sqrt(x); }, [](double x) { return std::sqrt(x); }), 0.5);
}

TEST(Elementwise, SlopesAtTheCorners) {
  EXPECT_THAT(slopes([](const Variable& x) { return abs(x); }, {-2, -0.0, 0, 3}), ElementsAre(-1, 0, 0, 1));
  EXPECT_THAT(slopes([](const Variable& x) { return clamp(x, -1, 2); }, {-1.5, -1, 0, 2, 2.5}),
              ElementsAre(0, 1, 1, 1, 0));
}

TEST(Elementwise, NanStays) {
  const Tensor x = Tensor::from({kNan, 1.0, kNan}, {3}), y = Tensor::from({1.0, kNan, kNan}, {3});
  for (const Variable& z : {minimum(x, y), maximum(x, y), clamp(Tensor::full({3}, kNan), 0, 1)}) {
    for (double v : z.tensor().to_vector<double>()) EXPECT_TRUE(std::isnan(v));
  }
  EXPECT_THAT(eq(x, x).tensor().to_vector<std::uint8_t>(), ElementsAre(0, 1, 0));
  EXPECT_THAT(ne(x, x).tensor().to_vector<std::uint8_t>(), ElementsAre(1, 0, 1));
}

TEST(Elementwise, ExtremesShareTheGradientOfTies) {
  const Variable a = Variable::parameter(Tensor::from({1.0, 2.0, 3.0}, {3}));
  const Variable b = Variable::parameter(Tensor::from({2.0, 2.0, 2.0}, {3}));
  Tape tape;
  tape.backward(sum(maximum(a, b) * 4.0 + minimum(a, b)));
  EXPECT_THAT(a.grad().tensor().to_vector<double>(), ElementsAre(1, 2.5, 4));
  EXPECT_THAT(b.grad().tensor().to_vector<double>(), ElementsAre(4, 2.5, 1));
}

TEST(Elementwise, GradientsOfTwoTensorsBroadcast) {
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const Variable a = random_leaf({2, 3, 2, 3}, 0.2, 2, 1, layout), b = random_leaf({3, 1, 1}, 0.2, 2, 2);
    const Tensor mask = random_tensor({2, 1, 2, 3}, {.dtype = DType::uint8}, 0, 2);
    const std::vector<std::function<Variable(const Variables&)>> functions = {
        [](const Variables& v) { return maximum(v[0], v[1]) * v[0]; },
        [](const Variables& v) { return minimum(v[1], v[0]) * v[0]; },
        [](const Variables& v) { return pow(v[0], v[1]); },
        [](const Variables& v) { return pow(v[1], v[0]); },
        [&](const Variables& v) { return where(mask, v[0] * v[0], v[1] * v[1]); },
        [&](const Variables& v) { return where(mask, v[1], v[0]) * v[0]; },
    };
    for (const auto& f : functions) {
      gradcheck(f, {a, b});
      gradgradcheck(f, {a, b});
    }
  }
}

/// Element i (row-major) of x broadcast to `shape`.
double broadcast_at(const Tensor& x, const std::vector<double>& values, const Shape& shape, std::int64_t i) {
  std::int64_t at = 0, weight = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    const std::int64_t index = i % shape[d];
    i /= shape[d];
    const int own = d - shape.rank() + x.rank();
    if (own < 0) break;
    if (x.size(own) != 1) at += index * weight;
    weight *= x.size(own);
  }
  return values[static_cast<std::size_t>(at)];
}

TEST(Elementwise, ComparisonsAndChoicesBroadcastForEveryType) {
  struct Kind {
    std::function<Variable(const Variable&, const Variable&)> op;
    std::function<bool(double, double)> definition;
  };
  const std::vector<Kind> kinds = {
      {[](const auto& a, const auto& b) { return eq(a, b); }, std::equal_to<>()},
      {[](const auto& a, const auto& b) { return ne(a, b); }, std::not_equal_to<>()},
      {[](const auto& a, const auto& b) { return lt(a, b); }, std::less<>()},
      {[](const auto& a, const auto& b) { return le(a, b); }, std::less_equal<>()},
      {[](const auto& a, const auto& b) { return gt(a, b); }, std::greater<>()},
      {[](const auto& a, const auto& b) { return ge(a, b); }, std::greater_equal<>()},
  };
  const std::vector<std::pair<Shape, Shape>> shapes = {
      {{1031}, {1031}}, {{2, 3, 4, 5}, {3, 1, 1}},    {{2, 1, 4, 1}, {1, 3, 1, 5}},
      {{}, {2, 3}},     {{2, 3, 4, 5}, {2, 3, 4, 5}}, {{0, 3}, {1, 3}},
      {{7, 1}, {600}}};
  for (const auto& [left, right] : shapes) {
    for (DType dtype :
         {DType::float64, DType::float32, DType::bfloat16, DType::float16, DType::int64, DType::uint8}) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        if (layout == Layout::nhwc && left.rank() != 4) continue;
        SCOPED_TRACE(concat(left, " ", right, " ", dtype, " ", layout));
        // Few different values, so that some are equal.
        const Tensor a = random_tensor(left, {DType::uint8, {}, layout}, 0, 3, 1).to(dtype);
        const Tensor b = random_tensor(right, {DType::uint8}, 0, 3, 2).to(dtype);
        const auto va = a.to_vector<double>(), vb = b.to_vector<double>();
        const Shape shape = broadcast("test", left, right);
        for (const Kind& kind : kinds) {
          const Tensor mask = kind.op(a, b).tensor();
          ASSERT_EQ(mask.dtype(), DType::uint8);
          ASSERT_EQ(mask.layout(), a.shape() == shape ? layout : Layout::nchw);
          const Tensor chosen = where(mask, a, b).tensor();
          std::vector<double> expected, picks;
          for (std::int64_t i = 0; i < shape.count(); ++i) {
            const double x = broadcast_at(a, va, shape, i), y = broadcast_at(b, vb, shape, i);
            expected.push_back(kind.definition(x, y));
            picks.push_back(kind.definition(x, y) ? x : y);
          }
          ASSERT_EQ(mask.to_vector<double>(), expected);
          ASSERT_EQ(chosen.to_vector<double>(), picks);
          ASSERT_EQ(chosen.dtype(), dtype);
        }
      }
    }
  }
}

TEST(Elementwise, ComparesWithNumbers) {
  const Tensor whole = Tensor::from({std::int64_t{1}, std::int64_t{2}, std::int64_t{300}}, {3});
  EXPECT_THAT(lt(whole, 1.5).tensor().to_vector<std::uint8_t>(), ElementsAre(1, 0, 0));
  EXPECT_THAT(eq(whole, 2).tensor().to_vector<std::uint8_t>(), ElementsAre(0, 1, 0));
  EXPECT_THAT(ge(whole.to(DType::uint8), 300).tensor().to_vector<std::uint8_t>(), ElementsAre(0, 0, 0));
  for (DType dtype : kFloatingTypes) {
    EXPECT_EQ(eq(Tensor::full({}, 0.1, {.dtype = dtype}), 0.1).item(), 1) << to_string(dtype);
  }
  const Tensor x = Tensor::from({1.f, 2.f, 3.f}, {3});
  EXPECT_THAT(ne(x, 2).tensor().to_vector<std::uint8_t>(), ElementsAre(1, 0, 1));
  EXPECT_THAT(le(x, 2).tensor().to_vector<std::uint8_t>(), ElementsAre(1, 1, 0));
  EXPECT_THAT(gt(x, 2).tensor().to_vector<std::uint8_t>(), ElementsAre(0, 0, 1));
}

TEST(Elementwise, ComparesIntegersWithNumbersExactly) {
  constexpr std::int64_t kBig = std::int64_t{1} << 53, kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::int64_t> whole = {-kMost - 1, -kBig - 1, -3,   -2,       -1,        0,    1,
                                           2,          3,         kBig, kBig + 1, kMost - 1, kMost};
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::from(whole, {static_cast<std::int64_t>(whole.size())});
  for (const double value :
       {-inf, -0x1p63, -0x1p53, -2.5, -2.0, -0.25, 0.0, 0.5, 2.0, 0x1p53, 0x1p63, inf, std::nan("")}) {
    std::vector<std::uint8_t> expected[6];
    for (const std::int64_t i : whole) {
      const auto v = static_cast<long double>(value), n = static_cast<long double>(i);  // 64 bits: exact
      const bool answers[] = {n == v, n != v, n<v, n <= v, n> v, n >= v};
      for (int k = 0; k < 6; ++k) expected[k].push_back(answers[k]);
    }
    EXPECT_EQ(eq(x, value).tensor().to_vector<std::uint8_t>(), expected[0]) << value;
    EXPECT_EQ(ne(x, value).tensor().to_vector<std::uint8_t>(), expected[1]) << value;
    EXPECT_EQ(lt(x, value).tensor().to_vector<std::uint8_t>(), expected[2]) << value;
    EXPECT_EQ(le(x, value).tensor().to_vector<std::uint8_t>(), expected[3]) << value;
    EXPECT_EQ(gt(x, value).tensor().to_vector<std::uint8_t>(), expected[4]) << value;
    EXPECT_EQ(ge(x, value).tensor().to_vector<std::uint8_t>(), expected[5]) << value;
  }
}

TEST(Elementwise, IntegersWhereTheyMakeSense) {
  const Tensor x = Tensor::from({std::int64_t{-3}, std::int64_t{0}, std::int64_t{5}}, {3});
  EXPECT_THAT(abs(x).tensor().to_vector<std::int64_t>(), ElementsAre(3, 0, 5));
  EXPECT_THAT(square(x).tensor().to_vector<std::int64_t>(), ElementsAre(9, 0, 25));
  EXPECT_THAT(clamp(x, -1, 2).tensor().to_vector<std::int64_t>(), ElementsAre(-1, 0, 2));
  EXPECT_THAT(minimum(x, Tensor::from({std::int64_t{1}}, {1})).tensor().to_vector<std::int64_t>(),
              ElementsAre(-3, 0, 1));
}

TEST(Elementwise, CastConvertsValuesAndGradients) {
  const Variable x = Variable::parameter(Tensor::from({1.0, 2.5, -3.25}, {3}));
  EXPECT_THAT(cast(x, DType::int64).tensor().to_vector<std::int64_t>(), ElementsAre(1, 2, -3));
  Tape tape;
  const Variable half = cast(x, DType::bfloat16);
  EXPECT_EQ(half.dtype(), DType::bfloat16);
  tape.backward(sum(half * half));
  EXPECT_EQ(x.grad().dtype(), DType::float64);
  EXPECT_THAT(x.grad().tensor().to_vector<double>(), ElementsAre(2, 5, -6.5));
  EXPECT_TRUE(cast(x, DType::float64).requires_grad());
  const auto both_ways = [](const Variables& v) { return cast(square(v[0]), DType::float64) * v[0]; };
  gradcheck(both_ways, {x});
  gradgradcheck(both_ways, {x});
}

TEST(Elementwise, Errors) {
  const Tensor x = Tensor::zeros({2, 3}), whole = Tensor::zeros({2}, {.dtype = DType::int64});
  EXPECT_THAT(error_of([&] { exp(whole); }), HasSubstr("exp: x is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] { pow(whole, 2); }), HasSubstr("pow: x is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] { pow(whole, whole); }),
              HasSubstr("pow: a is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] { clamp(x, 3, 1); }), HasSubstr("clamp: min 3 is above max 1"));
  EXPECT_THAT(error_of([&] { clamp(x, kNan, 1); }), HasSubstr("clamp: min nan is above max 1"));
  EXPECT_THAT(error_of([&] { eq(x, whole); }), HasSubstr("eq: a is float32 but b is int64"));
  EXPECT_THAT(error_of([&] { where(x, x, x); }), HasSubstr("where: condition is float32; legal is uint8"));
  EXPECT_THAT(error_of([&] { where(eq(x, 0), x, whole); }), HasSubstr("where: a is float32 but b is int64"));
  EXPECT_THAT(error_of([&] { where(eq(x, 0), x, Tensor::zeros({4, 3})); }), HasSubstr("do not broadcast"));
  EXPECT_THAT(error_of([&] { maximum(x, Tensor::zeros({4})); }), HasSubstr("maximum: shapes"));
  EXPECT_THAT(error_of([&] { log(Variable()); }), HasSubstr("log: x is undefined"));
}

}  // namespace
}  // namespace tapedeck
