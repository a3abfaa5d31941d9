#include "op_support.h"

namespace tapedeck {
namespace {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Calls `f(line)` for each line of x along `dim`, which it may change; the values in row-major order.
template <class F>
std::vector<double> for_each_line(const Tensor& x, int dim, F f) {
  std::vector<double> values = x.to_vector<double>();
  std::int64_t inner = 1;
  for (int d = dim + 1; d < x.rank(); ++d) inner *= x.size(d);
  const std::int64_t size = x.size(dim);
  for (std::int64_t start = 0; start < x.count(); ++start) {
    if (start / inner % size != 0) continue;
    std::vector<double> line;
    for (std::int64_t k = 0; k < size; ++k) line.push_back(values[start + k * inner]);
    f(line);
    for (std::int64_t k = 0; k < size; ++k) values[start + k * inner] = line[k];
  }
  return values;
}

double log_sum_exp(const std::vector<double>& line) {
  const double largest = *std::max_element(line.begin(), line.end());
  double total = 0;
  for (double v : line) total += std::exp(v - largest);
  return largest + std::log(total);
}

TEST(Softmax, MatchesTheDefinition) {
  for (const Shape& shape :
       {Shape{1}, Shape{7}, Shape{3, 1000}, Shape{70, 3}, Shape{2, 3, 5, 7}, Shape{2, 130, 3, 4}}) {
    for (int dim = 0; dim < shape.rank(); ++dim) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        if (layout == Layout::nhwc && shape.rank() != 4) continue;
        for (DType dtype : kFloatingTypes) {
          SCOPED_TRACE(concat(shape, " ", dim, " ", dtype, " ", layout));
          const Tensor x = random_tensor(shape, {dtype, {}, layout}, -5, 5);
          const auto log_probabilities = for_each_line(x, dim, [](std::vector<double>& line) {
            const double y = log_sum_exp(line);
            for (double& v : line) v -= y;
          });
          auto probabilities = log_probabilities;
          for (double& v : probabilities) v = std::exp(v);
          const Tensor y = softmax(x, dim).tensor(), log_y = log_softmax(x, dim - shape.rank()).tensor();
          EXPECT_EQ(y.layout(), layout);
          EXPECT_EQ(y.dtype(), dtype);
          expect_values(y, probabilities, 2 * tolerance(dtype));
          expect_values(log_y, log_probabilities, tolerance(dtype), 5);
        }
      }
    }
  }
}

TEST(LogSumExp, MatchesTheDefinition) {
  for (DType dtype : kFloatingTypes) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Tensor x = random_tensor({3, 4, 5, 6}, {dtype, {}, layout}, -5, 5);
      for (int dim : {0, 1, 3}) {
        std::vector<double> expected;
        for_each_line(x, dim, [&](std::vector<double>& line) { expected.push_back(log_sum_exp(line)); });
        expect_values(logsumexp(x, {dim}).tensor(), expected, tolerance(dtype), 1);
        EXPECT_EQ(logsumexp(x, {dim}, true).shape(), x.shape().with(dim, 1));
      }
      expect_values(logsumexp(x, {}).tensor(), {log_sum_exp(x.to_vector<double>())}, tolerance(dtype), 1);
    }
  }
}

TEST(Softmax, GradientsOfFirstAndSecondOrder) {
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const Variable x = random_leaf({2, 3, 2, 4}, -2, 2, 3, layout);
    for (int dim : {0, 1, -1}) {
      const std::vector<std::function<Variable(const Variables&)>> functions = {
          [=](const Variables& v) { return softmax(v[0], dim); },
          [=](const Variables& v) { return log_softmax(v[0], dim); },
          [=](const Variables& v) { return logsumexp(v[0], {dim}); },
          [=](const Variables& v) {
            return logsumexp(v[0], {dim, 2}, true) * v[0];
          },
      };
      for (const auto& f : functions) {
        gradcheck(f, {x});
        gradgradcheck(f, {x});
      }
    }
  }
}

TEST(Softmax, LargeInputs) {
  const Tensor x = Tensor::from({1e4f, 1e4f + 1, -1e30f, 3e38f, 3e38f, -3e38f}, {2, 3});
  const double lse = std::log1p(std::exp(-1.0));
  expect_values(softmax(x, 1).tensor(), {std::exp(-1 - lse), std::exp(-lse), 0, 0.5, 0.5, 0}, 1e-6);
  const auto logs = log_softmax(x, 1).tensor().to_vector<float>();
  EXPECT_FLOAT_EQ(logs[0], static_cast<float>(-1 - lse));
  EXPECT_FLOAT_EQ(logs[1], static_cast<float>(-lse));
  EXPECT_FLOAT_EQ(logs[3], static_cast<float>(-std::log(2.0)));
  EXPECT_FLOAT_EQ(static_cast<float>(logsumexp(x, {1}).tensor().to_vector<float>()[0]),
                  static_cast<float>(10001 + lse));
}

TEST(LogSumExp, TheGradientOfLargeInputsIsTheirSoftmax) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    for (const double offset : {0.0, -512.0, 1024.0, 60000.0}) {
      // The logarithm is lost when the result is rounded, and the neighbours of `offset` are far apart.
      const double step = dtype == DType::bfloat16  ? offset / 128
                          : dtype == DType::float16 ? offset / 1024
                                                    : 1;
      const Tensor x =
          Tensor::from<double>({offset, offset, offset + step, offset, offset - 3 * step, offset}, {2, 3});
      const Variable v = Variable::parameter(x.to(dtype));
      const auto gradient = [&](const std::vector<int>& dims) {
        Tape tape;
        return tape.gradient(sum(logsumexp(v, dims)), {v})[0].tensor().to_vector<double>();
      };
      const auto softmax_of = [](std::vector<double>& line) {
        const double total = log_sum_exp(line);
        for (double& value : line) value = std::exp(value - total);
      };
      const Tensor rounded = v.tensor().to(DType::float64);
      const auto rows = for_each_line(rounded, 1, softmax_of),
                 columns = for_each_line(rounded, 0, softmax_of);
      const auto all = for_each_line(rounded.reshape({1, 6}), 1, softmax_of);
      const double close = size_of(dtype) == 2 ? 4e-3 : 1e-6;
      for (std::size_t i = 0; i < 6; ++i) {
        EXPECT_NEAR(gradient({1})[i], rows[i], close) << to_string(dtype) << " " << offset << " " << i;
        EXPECT_NEAR(gradient({0})[i], columns[i], close) << to_string(dtype) << " " << offset << " " << i;
        EXPECT_NEAR(gradient({})[i], all[i], close) << to_string(dtype) << " " << offset << " " << i;
      }
    }
  }
}

TEST(Softmax, InfinitiesAndNan) {
  const Tensor x = Tensor::from({-kInf, -kInf, 1.0, -kInf, kInf, 1.0, kNan, 0.0}, {4, 2});
  expect_values(logsumexp(x, {1}).tensor(), {-kInf, 1, kInf, kNan}, 0);
  const auto y = softmax(x, 1).tensor().to_vector<double>();
  EXPECT_TRUE(std::isnan(y[0]));
  EXPECT_EQ(y[2], 1);
  EXPECT_EQ(y[3], 0);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_TRUE(std::isnan(y[7]));
  const Variable rows = Variable::parameter(Tensor::from({-kInf, -kInf, 0.0, 0.0}, {2, 2}));
  Tape tape;
  tape.backward(sum(logsumexp(rows, {1})), {});
  EXPECT_THAT(rows.grad().tensor().to_vector<double>(), ElementsAre(0, 0, 0.5, 0.5));
}

TEST(Softmax, Nothing) {
  EXPECT_EQ(softmax(Tensor::zeros({0, 3}), 1).shape(), Shape({0, 3}));
  EXPECT_EQ(softmax(Tensor::zeros({3, 0}), 1).shape(), Shape({3, 0}));
  expect_values(logsumexp(Tensor::zeros({2, 0}), {1}).tensor(), {-kInf, -kInf}, 0);
  EXPECT_EQ(logsumexp(Tensor::full({}, 3), {}).item(), 3);
}

TEST(LogSumExp, OfNothingHasAGradientOfNothing) {
  const Variable x = Variable::parameter(Tensor::zeros({0, 3}));
  Tape tape;
  const Variable y = logsumexp(x, {1});
  EXPECT_EQ(tape.gradient(sum(y), {x})[0].shape(), (Shape{0, 3}));
}

TEST(Softmax, SameBitsForEveryThreadCountAndInstructionSet) {
  const int threads = num_threads();
  for (const Shape& shape : {Shape{301, 1009}, Shape{20001, 10}}) {
    const Tensor x = random_tensor(shape, {}, -9, 9);
    for (int dim : {0, 1}) {
      const auto both = [&] {
        auto bits = softmax(x, dim).tensor().to_vector<float>();
        const auto more = logsumexp(x, {dim}).tensor().to_vector<float>();
        bits.insert(bits.end(), more.begin(), more.end());
        return bits;
      };
      set_num_threads(1);
      limit_instruction_set(InstructionSet::baseline);
      const auto expected = both();
      for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
        limit_instruction_set(set);
        set_num_threads(3);
        EXPECT_EQ(both(), expected);
      }
    }
  }
  set_num_threads(threads);
}

TEST(Softmax, Errors) {
  const Tensor x = Tensor::zeros({2, 3}), whole = Tensor::zeros({2}, {.dtype = DType::int64});
  EXPECT_THAT(error_of([&] { softmax(x, 2); }),
              HasSubstr("softmax: dim 2 is out of range for x [2,3]; legal is -2 to 1"));
  EXPECT_THAT(error_of([&] { log_softmax(x, -3); }), HasSubstr("log_softmax: dim -3 is out of range"));
  EXPECT_THAT(error_of([&] { softmax(whole, 0); }),
              HasSubstr("softmax: x is int64; legal are the floating types"));
  EXPECT_THAT(error_of([&] { logsumexp(x, {5}); }),
              HasSubstr("logsumexp: dims[0] is 5; legal for x [2,3] is -2 to 1"));
  EXPECT_THAT(error_of([&] { logsumexp(whole, {0}); }), HasSubstr("logsumexp: x is int64"));
}

}  // namespace
}  // namespace tapedeck
