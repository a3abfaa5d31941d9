#include "op_support.h"

namespace tapedeck {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Binary = std::function<Variable(const Variable&, const Variable&)>;

struct Kind {
  const char* name;
  Binary op;
  std::function<double(double, double)> definition;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> list = {
      {"add", [](const auto& a, const auto& b) { return a + b; }, std::plus<>()},
      {"sub", [](const auto& a, const auto& b) { return a - b; }, std::minus<>()},
      {"mul", [](const auto& a, const auto& b) { return a * b; }, std::multiplies<>()},
      {"div", [](const auto& a, const auto& b) { return a / b; }, std::divides<>()},
      {"minimum", [](const auto& a, const auto& b) { return minimum(a, b); },
       [](double a, double b) { return std::min(a, b); }},
      {"maximum", [](const auto& a, const auto& b) { return maximum(a, b); },
       [](double a, double b) { return std::max(a, b); }},
      {"pow", [](const auto& a, const auto& b) { return pow(a, b); },
       [](double a, double b) { return std::pow(a, b); }},
  };
  return list;
}

/// Pairs that broadcast: equal, a scalar, missing dimensions, both sides widened, channels, nothing; long
/// runs and short ones.
const std::vector<std::pair<Shape, Shape>>& shapes() {
  static const std::vector<std::pair<Shape, Shape>> list = {
      {{2053}, {2053}},
      {{}, {}},
      {{2, 3}, {}},
      {{}, {3, 700}},
      {{4, 1}, {1, 5}},
      {{3, 1}, {1100}},
      {{2, 3, 4, 5}, {3, 1, 1}},
      {{2, 3, 4, 5}, {2, 3, 4, 5}},
      {{2, 1, 4, 1}, {1, 3, 1, 5}},
      {{1, 3, 1, 1}, {2, 3, 4, 5}},
      {{0, 3}, {1, 3}},
      {{2, 1, 2, 1, 2}, {1, 3, 2, 3, 1}},
  };
  return list;
}

/// a op b by definition: a loop over the result's indices, in row-major order.
std::vector<double> define(const Tensor& a, const Tensor& b, const Shape& shape,
                           const std::function<double(double, double)>& f) {
  const auto va = a.to_vector<double>(), vb = b.to_vector<double>();
  const auto at = [&](const Tensor& x, const std::vector<double>& values, std::int64_t i) {
    std::int64_t offset = 0, weight = 1;
    for (int d = 1; d <= x.rank(); ++d) {
      const std::int64_t index = i % shape[-d];
      i /= shape[-d];
      offset += x.size(-d) == 1 ? 0 : index * weight;
      weight *= x.size(-d);
    }
    return values[static_cast<std::size_t>(offset)];
  };
  std::vector<double> result;
  for (std::int64_t i = 0; i < shape.count(); ++i) result.push_back(f(at(a, va, i), at(b, vb, i)));
  return result;
}

TEST(Arithmetic, BroadcastsForEveryTypeAndLayout) {
  for (const auto& [left, right] : shapes()) {
    const Shape shape = broadcast("test", left, right);
    for (Layout la : {Layout::nchw, Layout::nhwc}) {
      for (Layout lb : {Layout::nchw, Layout::nhwc}) {
        if ((la == Layout::nhwc && left.rank() != 4) || (lb == Layout::nhwc && right.rank() != 4)) continue;
        for (DType dtype : kFloatingTypes) {
          const Tensor a = random_tensor(left, {dtype, {}, la}, 0.5, 3, 1);
          const Tensor b = random_tensor(right, {dtype, {}, lb}, 0.5, 3, 2);
          for (const Kind& kind : kinds()) {
            SCOPED_TRACE(concat(kind.name, " ", a, ", ", b));
            const Tensor y = kind.op(a, b).tensor();
            ASSERT_EQ(y.dtype(), dtype);
            const bool nhwc = (left == shape && la == Layout::nhwc) || (right == shape && lb == Layout::nhwc);
            ASSERT_EQ(y.layout(), nhwc ? Layout::nhwc : Layout::nchw);
            expect_values(y, define(a, b, shape, kind.definition), tolerance(dtype));
          }
        }
      }
    }
  }
}

TEST(Arithmetic, Integers) {
  for (DType dtype : {DType::int64, DType::uint8}) {
    const Tensor a = random_tensor({2, 3, 700}, {.dtype = dtype}, 5, 11, 1);
    const Tensor b = random_tensor({3, 1}, {.dtype = dtype}, 0, 5, 2);
    for (const Kind& kind : kinds()) {
      if (std::string(kind.name) == "div" || std::string(kind.name) == "pow") continue;
      const Tensor y = kind.op(a, b).tensor();
      ASSERT_EQ(y.dtype(), dtype);
      EXPECT_EQ(y.to_vector<double>(), define(a, b, a.shape(), kind.definition)) << kind.name;
    }
  }
  const Tensor big = Tensor::from({(std::int64_t{1} << 60) + 1}, {1});  // more digits than float64 has
  EXPECT_EQ(add(big, big).tensor().data<std::int64_t>()[0], (std::int64_t{1} << 61) + 2);
  EXPECT_EQ(affine(big, 2, -1).tensor().data<std::int64_t>()[0], (std::int64_t{1} << 61) + 1);
  const Tensor bytes = Tensor::full({2}, 200, {.dtype = DType::uint8});
  EXPECT_THAT(add(bytes, bytes).tensor().to_vector<std::uint8_t>(), ElementsAre(144, 144));
}

TEST(Arithmetic, GradientsOfFirstAndSecondOrder) {
  for (const auto& [left, right] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3, 2, 3}, {3, 1, 1}}, {{2, 1, 2, 1}, {1, 3, 1, 2}}, {{3}, {}}, {{2, 3}, {2, 3}}}) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      if (layout == Layout::nhwc && left.rank() != 4) continue;
      const Variable a = random_leaf(left, 0.5, 2, 1, layout), b = random_leaf(right, 0.5, 2, 2);
      for (const Kind& kind : kinds()) {
        SCOPED_TRACE(concat(kind.name, " ", left, " ", right));
        const auto f = [&](const Variables& v) { return kind.op(v[0] * v[1], v[1]); };
        gradcheck(f, {a, b});
        gradgradcheck(f, {a, b});
      }
    }
  }
}

TEST(Arithmetic, NumbersOnEitherSide) {
  const Variable x = random_leaf({5}, 0.5, 2);
  const auto f = [](const Variables& v) {
    return (2 * v[0] + 1 - v[0] / 4.0) * (3 - v[0]) * (1 + v[0]) * (v[0] - 5) * (-v[0]);
  };
  const auto values = x.tensor().to_vector<double>(), results = f({x}).tensor().to_vector<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double v = values[i];
    EXPECT_NEAR(results[i], (2 * v + 1 - v / 4) * (3 - v) * (1 + v) * (v - 5) * (-v), 1e-12);
  }
  gradcheck(f, {x});
  gradgradcheck(f, {x});
}

TEST(Arithmetic, FrozenOperandsCostNothing) {
  const Variable x = Variable::parameter(Tensor::ones({1000})), constant = Tensor::ones({1000});
  Tape tape;
  (void)(x + constant);
  EXPECT_EQ(tape.saved_bytes(), 0u);
  (void)(x * constant);
  EXPECT_EQ(tape.saved_bytes(), 4000u);
  (void)(x / constant);
  EXPECT_EQ(tape.saved_bytes(), 8000u);
}

TEST(Arithmetic, SameBitsForEveryThreadCountAndInstructionSet) {
  const int threads = num_threads();
  const Tensor a = random_tensor({3, 5, 61, 67}, {.layout = Layout::nhwc}, 0.5, 2, 1);
  const Tensor b = random_tensor({5, 1, 1}, {}, 0.5, 2, 2);
  for (const Kind& kind : kinds()) {
    set_num_threads(1);
    limit_instruction_set(InstructionSet::baseline);
    const auto expected = kind.op(a, b).tensor().to_vector<float>();
    for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
      limit_instruction_set(set);
      set_num_threads(3);
      EXPECT_EQ(kind.op(a, b).tensor().to_vector<float>(), expected) << kind.name;
    }
  }
  set_num_threads(threads);
}

TEST(Arithmetic, Errors) {
  const Tensor a = Tensor::zeros({2, 1}), whole = Tensor::zeros({3}, {.dtype = DType::int64});
  EXPECT_THAT(error_of([&] {
                add(a, Tensor::zeros({3, 2}));
              }),
              HasSubstr("add: shapes [2,1] and [3,2] do not broadcast"));
  EXPECT_THAT(error_of([&] { mul(a, whole); }), HasSubstr("mul: a is float32 but b is int64"));
  EXPECT_THAT(error_of([&] { div(whole, whole); }),
              HasSubstr("div: a is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] { sub(Variable(), a); }), HasSubstr("sub: a is undefined"));
  EXPECT_THAT(error_of([&] { (void)(whole * 0.5); }),
              HasSubstr("affine: x is int64 but 0.5 is not a whole number"));
}

}  // namespace
}  // namespace tapedeck
