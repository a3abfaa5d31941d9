#include "op_support.h"
#include "sanitizers.h"

namespace tapedeck {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

using namespace test;

/// The elements of x that each result of a reduction over `dims` stands for, in row-major order of both.
std::vector<std::vector<double>> groups(const Tensor& x, const std::vector<int>& dims) {
  const std::vector<double> values = x.to_vector<double>();
  std::vector<bool> reduced(static_cast<std::size_t>(x.rank()), dims.empty());
  for (int d : dims) reduced[static_cast<std::size_t>(d < 0 ? d + x.rank() : d)] = true;
  std::int64_t outputs = 1;
  for (int d = 0; d < x.rank(); ++d) outputs *= reduced[static_cast<std::size_t>(d)] ? 1 : x.size(d);
  std::vector<std::vector<double>> result(static_cast<std::size_t>(outputs));
  for (std::int64_t i = 0; i < x.count(); ++i) {
    std::int64_t rest = i, out = 0, weight = 1;
    for (int d = x.rank() - 1; d >= 0; --d) {
      const std::int64_t at = rest % x.size(d);
      rest /= x.size(d);
      if (reduced[static_cast<std::size_t>(d)]) continue;
      out += at * weight;
      weight *= x.size(d);
    }
    result[static_cast<std::size_t>(out)].push_back(values[static_cast<std::size_t>(i)]);
  }
  return result;
}

template <class F>
std::vector<double> reference(const Tensor& x, const std::vector<int>& dims, F f) {
  std::vector<double> result;
  for (const auto& group : groups(x, dims)) result.push_back(f(group));
  return result;
}

double sum_of(const std::vector<double>& v) {
  long double total = 0;
  for (double a : v) total += a;
  return static_cast<double>(total);
}
double mean_of(const std::vector<double>& v) {
  return sum_of(v) / static_cast<double>(v.size());
}
double var_of(const std::vector<double>& v) {
  const double m = mean_of(v);
  long double total = 0;
  for (double a : v) total += (a - m) * (a - m);
  return static_cast<double>(total) / (static_cast<double>(v.size()) - 1);
}

void expect_near(const Variable& y, const std::vector<double>& expected, double tolerance) {
  const auto values = y.tensor().to_vector<double>();
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i]))) << "element " << i;
  }
}

struct Case {
  Shape shape;
  std::vector<int> dims;
};

/// Inner, outer and mixed patterns; sizes around the widths of lanes, tiles and chunks.
const std::vector<Case>& cases() {
  static const std::vector<Case> list = {
      {{}, {}},
      {{1}, {0}},
      {{7}, {0}},
      {{3, 5}, {}},
      {{3, 5}, {0}},
      {{3, 5}, {-1}},
      {{2, 3, 5}, {1}},
      {{2, 3, 5, 7}, {0, 2, 3}},
      {{2, 3, 5, 7}, {1}},
      {{2, 3, 5, 7}, {0, 2}},
      {{2, 3, 5, 7}, {1, 3}},
      {{2, 3, 5, 7}, {2, 3}},
      {{3, 66, 4, 5}, {0, 2, 3}},
      {{2, 1, 9, 11}, {0, 2, 3}},
      {{2, 130, 3, 3}, {1}},
      {{129, 1030}, {0}},
      {{1030, 129}, {1}},
      {{3, 70001}, {1}},
      {{70001, 3}, {0}},
      {{2, 3, 2, 3, 2, 3}, {0, 2, 4}},
      {{2, 3, 2, 3, 2, 3}, {1, 3, 5}},
  };
  return list;
}

/// Each case for each dtype and layout that it allows; under sanitizers some of them, others each time.
template <class F>
void for_each_case(F f) {
  static int calls = 0;
  for (const Case& c : cases()) {
    for (DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        if (layout == Layout::nhwc && c.shape.rank() != 4) continue;
        if (calls++ % test::kFewer != 0) continue;
        Generator generator(7);
        const Tensor x = randn(c.shape, {dtype, {}, layout}, generator);
        const double tolerance = dtype == DType::float64    ? 1e-13
                                 : dtype == DType::float32  ? 1e-6
                                 : dtype == DType::bfloat16 ? 0.01
                                                            : 0.001;
        SCOPED_TRACE(concat(x, " over ", c.dims.size(), " dims from ", c.dims.empty() ? -1 : c.dims[0]));
        f(x, c.dims, tolerance);
      }
    }
  }
}

TEST(Reduce, SumAndMeanMatchTheDefinition) {
  for_each_case([](const Tensor& x, const std::vector<int>& dims, double tolerance) {
    expect_near(sum(x, dims), reference(x, dims, sum_of), tolerance);
    expect_near(mean(x, dims), reference(x, dims, mean_of), tolerance);
  });
}

TEST(Reduce, VarMatchesTheDefinition) {
  for_each_case([](const Tensor& x, const std::vector<int>& dims, double tolerance) {
    if (groups(x, dims)[0].size() > 1) expect_near(var(x, dims), reference(x, dims, var_of), tolerance);
  });
}

TEST(Reduce, MaxAndMinMatchTheDefinition) {
  for_each_case([](const Tensor& x, const std::vector<int>& dims, double) {
    const auto largest = [](const auto& v) { return *std::max_element(v.begin(), v.end()); };
    const auto smallest = [](const auto& v) { return *std::min_element(v.begin(), v.end()); };
    EXPECT_EQ(max(x, dims).tensor().to_vector<double>(), reference(x, dims, largest));
    EXPECT_EQ(min(x, dims).tensor().to_vector<double>(), reference(x, dims, smallest));
  });
}

TEST(Reduce, ArgmaxMatchesTheDefinition) {
  for_each_case([](const Tensor& x, const std::vector<int>& dims, double) {
    const auto first = [](const auto& v) {
      return static_cast<double>(std::max_element(v.begin(), v.end()) - v.begin());
    };
    if (dims.size() == 1) {
      EXPECT_EQ(argmax(x, dims[0]).tensor().to_vector<double>(), reference(x, dims, first));
      EXPECT_EQ(argmax(x, dims[0], true).shape(), x.shape().with(dims[0], 1));
    } else if (dims.empty()) {
      EXPECT_EQ(argmax(x).item(), reference(x, {}, first)[0]);
    }
  });
}

TEST(Reduce, ShapesWithAndWithoutKeepdim) {
  const Tensor x = Tensor::zeros({2, 3, 4, 5}, {.layout = Layout::nhwc});
  EXPECT_EQ(sum(x).shape(), Shape({}));
  EXPECT_EQ(sum(x, {1, -1}).shape(), Shape({2, 4}));
  EXPECT_EQ(sum(x, {-1, 1}, true).shape(), Shape({2, 1, 4, 1}));
  EXPECT_EQ(sum(x, {1}, true).tensor().layout(), Layout::nhwc);
  EXPECT_EQ(max(x, {0}).shape(), Shape({3, 4, 5}));
  EXPECT_EQ(var(x, {0, 1, 2, 3}, {.keepdim = true}).shape(), Shape({1, 1, 1, 1}));
  EXPECT_EQ(argmax(x, 1).shape(), Shape({2, 4, 5}));
}

TEST(Reduce, IntegersSumToInt64) {
  const Tensor bytes = Tensor::full({3, 1000}, 200, {.dtype = DType::uint8});
  const Tensor total = sum(bytes, {1}).tensor();
  EXPECT_EQ(total.dtype(), DType::int64);
  EXPECT_THAT(total.to_vector<std::int64_t>(), ElementsAre(200000, 200000, 200000));
  const Tensor big = Tensor::from({std::int64_t{1} << 62, std::int64_t{1}, -(std::int64_t{1} << 61)}, {3});
  EXPECT_EQ(sum(big).tensor().data<std::int64_t>()[0], (std::int64_t{1} << 61) + 1);
  EXPECT_EQ(max(big).tensor().data<std::int64_t>()[0], std::int64_t{1} << 62);
  EXPECT_EQ(max(bytes).dtype(), DType::uint8);
  EXPECT_EQ(argmax(big).item(), 0);
}

TEST(Reduce, NothingAndScalars) {
  EXPECT_EQ(sum(Tensor::zeros({0})).item(), 0);
  EXPECT_THAT(sum(Tensor::zeros({0, 2}), {0}).tensor().to_vector<float>(), ElementsAre(0, 0));
  EXPECT_EQ(sum(Tensor::zeros({0, 2}), {1}).shape(), Shape({0}));
  EXPECT_TRUE(std::isnan(mean(Tensor::zeros({0})).item()));
  EXPECT_TRUE(std::isnan(var(Tensor::ones({1})).item()));
  EXPECT_TRUE(std::isnan(var(Tensor::ones({0})).item()));
  EXPECT_EQ(var(Tensor::ones({1}), {}, {.correction = 0}).item(), 0);
  EXPECT_EQ(max(Tensor::zeros({2, 0}), {0}).shape(), Shape({0}));
  EXPECT_EQ(sum(Tensor::full({}, 3)).item(), 3);
  EXPECT_EQ(argmax(Tensor::full({}, 3)).item(), 0);
}

TEST(Reduce, NanAndInfinity) {
  const Tensor x = Tensor::from({1.0, kNan, kInf, -kInf, -kInf, -kInf, 2.0, 3.0, 3.0}, {3, 3});
  const auto largest = max(x, {1}).tensor().to_vector<double>();
  EXPECT_TRUE(std::isnan(largest[0]));
  EXPECT_EQ(largest[1], -kInf);
  EXPECT_EQ(largest[2], 3);
  EXPECT_TRUE(std::isnan(min(x).item()));
  EXPECT_THAT(argmax(x, 1).tensor().to_vector<std::int64_t>(), ElementsAre(1, 0, 1));
  EXPECT_EQ(sum(Tensor::from({kInf, 1.0}, {2})).item(), kInf);
  // A NaN anywhere in a run, whatever lane it falls in.
  for (std::int64_t at : {0, 63, 64, 99, 100}) {
    const Tensor run = Tensor::zeros({101});
    run.data<float>()[at] = static_cast<float>(kNan);
    EXPECT_TRUE(std::isnan(max(run).item())) << at;
  }
}

TEST(Reduce, LongFloat32SumsStayExact) {
  const Tensor x = Tensor::full({5'000'000}, 0.1f);
  EXPECT_FLOAT_EQ(static_cast<float>(sum(x).item()), static_cast<float>(5e6 * static_cast<double>(0.1f)));
  EXPECT_FLOAT_EQ(static_cast<float>(mean(x).item()), 0.1f);
  const Tensor shifted = Tensor::full({1'000'001}, 10000);  // the mean is far from 0, the variance is small
  for (std::int64_t i = 0; i < shifted.count(); i += 2) shifted.data<float>()[i] += 0.25f;
  EXPECT_NEAR(var(shifted).item(), 0.015625, 1e-6);
}

TEST(Reduce, SameBitsForEveryThreadCountAndInstructionSet) {
  const int threads = num_threads();
  Generator generator(3);
  for (const Shape& shape : {Shape{1'000'003}, Shape{300, 17, 13, 11}, Shape{4099, 31}}) {
    const Tensor x = randn(shape, {.dtype = DType::float64}, generator);
    const int last = shape.rank() - 1;
    const auto all = [&] {
      std::vector<double> results;
      for (const Variable& y : {sum(x), var(x), sum(x, {0}), sum(x, {last}), mean(x, {last / 2})}) {
        const auto values = y.tensor().to_vector<double>();
        results.insert(results.end(), values.begin(), values.end());
      }
      return results;
    };
    set_num_threads(1);
    const auto expected = all();
    for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
      limit_instruction_set(set);
      for (int count : {2, 3, 5}) {
        set_num_threads(count);
        EXPECT_EQ(all(), expected) << count << " threads, " << to_string(set);
      }
    }
  }
  set_num_threads(threads);
}

TEST(Reduce, GradientsOfFirstAndSecondOrder) {
  const GradcheckOptions some{.elements = test::kSanitized ? 3 : 0};
  Generator generator(5);
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const Variable x = Variable::parameter(randn({2, 3, 2, 5}, {DType::float64, {}, layout}, generator));
    for (const std::vector<int>& dims : {std::vector<int>{}, {1}, {0, 2, 3}, {1, -1}}) {
      for (bool keepdim : {false, true}) {
        const std::vector<std::function<Variable(const Variables&)>> functions = {
            [&](const Variables& v) { return sum(v[0] * v[0] * v[0], dims, keepdim); },
            [&](const Variables& v) { return mean(v[0] * v[0], dims, keepdim); },
            [&](const Variables& v) { return max(v[0] * v[0] * v[0], dims, keepdim); },
            [&](const Variables& v) { return min(v[0] * v[0] * v[0], dims, keepdim); },
            [&](const Variables& v) { return var(v[0], dims, {.keepdim = keepdim}); },
            [&](const Variables& v) { return var(v[0], dims, {.correction = 0, .keepdim = keepdim}); },
        };
        for (const auto& f : functions) {
          gradcheck(f, {x}, some);
          gradgradcheck(f, {x}, some);
        }
      }
    }
    gradcheck([](const Variables& v) { return sum_to(v[0] * v[0], {3, 1, 5}); }, {x});
    gradgradcheck([](const Variables& v) { return sum_to(v[0] * v[0], {3, 1, 5}); }, {x});
  }
  const Variable small = Variable::parameter(randn({3, 1, 2}, {.dtype = DType::float64}, generator));
  const auto widen = [](const Variables& v) { return broadcast_to(v[0] * v[0], {2, 3, 4, 2}); };
  gradcheck(widen, {small});
  gradgradcheck(widen, {small});
}

TEST(Reduce, GradientHasTheLayoutOfX) {
  const Variable x = Variable::parameter(rand({2, 3, 4, 5}, {.layout = Layout::nhwc}));
  Tape tape;
  tape.backward(sum(mean(x, {2, 3})));
  EXPECT_EQ(x.grad().tensor().layout(), Layout::nhwc);
  EXPECT_FLOAT_EQ(x.grad().tensor().to_vector<float>()[0], 1.f / 20);
}

TEST(Reduce, EqualExtremesShareTheGradient) {
  const Variable x = Variable::parameter(Tensor::from({3.0, 1.0, 3.0, kNan, 2.0, kNan}, {2, 3}));
  Tape tape;
  tape.backward(sum(max(x, {1})));
  EXPECT_THAT(x.grad().tensor().to_vector<double>(), ElementsAre(0.5, 0, 0.5, 0.5, 0, 0.5));
}

TEST(Reduce, GradientOfNothing) {
  const Variable x = Variable::parameter(Tensor::zeros({0, 2}));
  Tape tape;
  tape.backward(sum(x) + sum(var(x, {1})));
  EXPECT_EQ(x.grad().shape(), Shape({0, 2}));
}

TEST(Reduce, Errors) {
  const Tensor x = Tensor::zeros({2, 3}), i = Tensor::zeros({2}, {.dtype = DType::int64});
  EXPECT_THAT(error_of([&] { sum(x, {2}); }), HasSubstr("sum: dims[0] is 2; legal for x [2,3] is -2 to 1"));
  EXPECT_THAT(error_of([&] {
                mean(x, {1, -1});
              }),
              HasSubstr("mean: dims[1] names dimension 1 a second time"));
  EXPECT_THAT(error_of([&] { mean(i); }), HasSubstr("mean: x is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] { var(i); }), HasSubstr("var: x is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] {
                max(Tensor::zeros({2, 0}), {1});
              }),
              HasSubstr("max: x [2,0] has no elements along the reduced dimensions"));
  EXPECT_THAT(error_of([&] { argmax(x, 2); }),
              HasSubstr("argmax: dim 2 is out of range for x [2,3]; legal is -2 to 1"));
  EXPECT_THAT(error_of([&] { argmax(Tensor::zeros({0})); }),
              HasSubstr("argmax: x [0] has no elements along dimension 0"));
  EXPECT_THAT(error_of([&] { broadcast_to(x, {3, 2}); }), HasSubstr("broadcast_to: "));
  EXPECT_THAT(error_of([&] { sum_to(x, {4, 3}); }), HasSubstr("sum_to: "));
  EXPECT_THAT(error_of([&] { sum(Variable()); }), HasSubstr("undefined"));
}

}  // namespace
}  // namespace tapedeck
