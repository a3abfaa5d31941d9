#include "norm_definition.h"

#include <gmock/gmock.h>

namespace tapedeck {
namespace {

using namespace test;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(BatchNorm, TrainingEqualsItsDefinition) {
  for (const Shape& shape : kShapes) {
    const std::int64_t c = shape[1];
    const double n = static_cast<double>(shape.count() / c), momentum = 0.3;
    const Tensor x = (randn(shape, kDouble) * 2.0 + 5.0).tensor(), gy = randn(shape, kDouble);
    const Tensor w = randn({c}, kDouble), b = randn({c}, kDouble);
    Reference reference{channels(shape), channels(shape), {}, {}, {}, {}, {}, {}};
    expect_norm(
        reference, x, w, b, gy, [&](const Variable& in, const Variable& weight, const Variable& bias) {
          const Tensor mean = Tensor::full({c}, 2, kDouble), var = Tensor::full({c}, 3, kDouble);
          const Variable y =
              batch_norm(in, weight, bias, mean, var, {.training = true, .momentum = momentum, .eps = kEps});
          std::vector<double> moved_mean, moved_var;
          for (std::size_t i = 0; i < static_cast<std::size_t>(c); ++i) {
            moved_mean.push_back((1 - momentum) * 2 + momentum * reference.mean[i]);
            moved_var.push_back((1 - momentum) * 3 + momentum * reference.var[i] * n / (n - 1));
          }
          expect_near(mean, moved_mean);
          expect_near(var, moved_var);
          return y;
        });
  }
}

TEST(BatchNorm, EvaluationUsesTheRunningStatistics) {
  for (const Shape& shape : kShapes) {
    const std::int64_t c = shape[1];
    const Tensor x = randn(shape, kDouble), gy = randn(shape, kDouble);
    const Tensor w = randn({c}, kDouble), b = randn({c}, kDouble);
    const Tensor mean = randn({c}, kDouble), var = (rand({c}, kDouble) + 0.5).tensor();
    Reference reference{
        channels(shape), channels(shape), mean.to_vector<double>(), var.to_vector<double>(), {}, {}, {}, {}};
    const Tensor before = mean.clone();
    expect_norm(
        reference, x, w, b, gy,
        [&](const Variable& in, const Variable& weight, const Variable& bias) {
          return batch_norm(in, weight, bias, mean, var, {.eps = kEps});
        },
        true);
    EXPECT_EQ(values(mean), values(before));
  }
}

TEST(BatchNorm, RectifiesNegativeResults) {
  for (const Shape& shape : kShapes) {
    const std::int64_t c = shape[1];
    const Tensor x = randn(shape, kDouble), gy = randn(shape, kDouble);
    const Tensor w = randn({c}, kDouble), b = randn({c}, kDouble);
    const Tensor mean = randn({c}, kDouble), var = (rand({c}, kDouble) + 0.5).tensor();
    for (double slope : {0.0, 0.2}) {
      for (bool training : {true, false}) {
        SCOPED_TRACE(concat(shape, " slope ", slope, training ? " in training" : ""));
        Reference reference{channels(shape), channels(shape), {}, {}, {}, {}, {}, {}, slope};
        if (!training) reference.mean = mean.to_vector<double>(), reference.var = var.to_vector<double>();
        expect_norm(
            reference, x, w, b, gy,
            [&](const Variable& in, const Variable& weight, const Variable& bias) {
              return batch_norm(in, weight, bias, mean.clone(), var.clone(),
                                {.training = training, .eps = kEps, .negative_slope = slope});
            },
            !training);
      }
    }
  }
}

TEST(BatchNorm, RectifyingEqualsTheActivationBehindItToTheBit) {
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    const Tensor x = randn({3, 5, 7, 9}).to(layout), gy = randn({3, 5, 7, 9}).to(layout);
    const Tensor w = randn({5}), b = randn({5});
    for (double slope : {0.0, 0.2, 1.0}) {
      const auto run = [&](bool fused) {
        const Variables leaves{Variable::parameter(x), Variable::parameter(w), Variable::parameter(b)};
        Tape tape;
        Variable y = batch_norm(leaves[0], leaves[1], leaves[2], {}, {},
                                {.training = true, .negative_slope = fused ? slope : 1});
        if (!fused) y = slope == 0 ? relu(y) : leaky_relu(y, slope);
        tape.backward(y, {.gradient = gy});
        std::vector<std::vector<float>> results{y.tensor().to_vector<float>()};
        for (const Variable& leaf : leaves) results.push_back(leaf.grad().tensor().to_vector<float>());
        return results;
      };
      EXPECT_EQ(run(true), run(false)) << to_string(layout) << " slope " << slope;
    }
  }
}

TEST(BatchNorm, CountsBatchesOfTraining) {
  const Tensor x = randn({4, 2}), mean = Tensor::zeros({2}), var = Tensor::ones({2});
  const Tensor batches = Tensor::full({}, 5, {.dtype = DType::int64});
  for (bool training : {true, false, true}) {
    batch_norm(x, {}, {}, mean, var, {.training = training, .batches = batches});
  }
  EXPECT_EQ(batches.item(), 7);
}

TEST(BatchNorm, ValuesOfPyTorch) {
  // torch.nn.functional.batch_norm(x, rm, rv, w, b, training=True, momentum=0.1, eps=1e-5)
  const Tensor x = Tensor::from({1., 2., 3., 4., 10., 30.}, {3, 2});
  const Tensor mean = Tensor::zeros({2}, kDouble), var = Tensor::ones({2}, kDouble);
  const Variable y =
      batch_norm(x, Tensor::from({2., 1.}, {2}), Tensor::from({0., 1.}, {2}), mean, var, {.training = true});
  expect_near(y,
              {-1.90050989805, 0.215937463866, -0.863868135476, 0.372749971093, 2.76437803352, 2.41131256504},
              1e-9);
  expect_near(mean, {0.466666666667, 1.2}, 1e-9);
  expect_near(var, {3.13333333333, 25.3}, 1e-9);
}

TEST(BatchNorm, StatisticsSurviveALargeMean) {
  // float32 leaves 3 bits of x's spread around 1e6; the result is still normalised exactly.
  const Shape shape = {4, 3, 8, 8};
  const Tensor x = (randn(shape) * 2.0 + 1e6).tensor();
  for (Layout layout : layouts(shape)) {
    const auto y = values(batch_norm(x.to(layout), {}, {}, {}, {}, {.training = true}));
    const auto owner = channels(shape);
    double mean[3] = {}, square[3] = {};
    for (std::size_t i = 0; i < y.size(); ++i) {
      mean[owner[i]] += y[i] / 256;
      square[owner[i]] += y[i] * y[i] / 256;
    }
    for (int c = 0; c < 3; ++c) {
      EXPECT_NEAR(mean[c], 0, 0.02);  // the mean itself is rounded to float32's 1/16
      EXPECT_NEAR(square[c], 1, 0.01);
    }
  }
}

TEST(BatchNorm, ConstantChannelsAreTheBias) {
  const Tensor x = Tensor::full({4, 2, 3, 3}, 0.1);
  EXPECT_THAT(values(batch_norm(x, {}, Tensor::full({2}, 7), {}, {}, {.training = true})), Each(7));
}

TEST(BatchNorm, NaNIsNotHidden) {
  const Tensor x = Tensor::from({1.f, 2.f, std::nanf(""), 4.f}, {4, 1});
  const Tensor mean = Tensor::zeros({1}), var = Tensor::zeros({1});
  EXPECT_THAT(values(batch_norm(x, {}, {}, mean, var, {.training = true})), Each(testing::IsNan()));
  EXPECT_THAT(values(mean), Each(testing::IsNan()));
  EXPECT_THAT(values(var), Each(testing::IsNan()));
}

TEST(BatchNorm, HalfTypesAreComputedInFloat32) {
  const Shape shape = {4, 3, 5, 5};
  for (DType dtype : {DType::bfloat16, DType::float16}) {
    const Tensor x = randn(shape).to(dtype), gy = randn(shape).to(dtype);
    const double tolerance = dtype == DType::bfloat16 ? 1.0 / 128 : 1.0 / 1024;
    const auto run = [&](DType type, Variables& gradients) {
      const Variable leaf = Variable::parameter(x.to(type)),
                     w = Variable::parameter(Tensor::full({3}, 1.5, {.dtype = type}));
      Tape tape;
      const Variable y = batch_norm(leaf, w, {}, {}, {}, {.training = true});
      gradients = tape.gradient(y, {leaf, w}, {.gradient = gy.to(type)});
      return y;
    };
    Variables half, wide;
    const Variable y = run(dtype, half);
    EXPECT_EQ(y.dtype(), dtype);
    expect_near(y, values(run(DType::float64, wide)), tolerance);
    for (int i : {0, 1}) expect_near(half[i], values(wide[i]), tolerance);
  }
}

TEST(BatchNorm, AnEmptyBatchChangesNothing) {
  const Variable x = Variable::parameter(Tensor::zeros({0, 3, 2, 2})),
                 w = Variable::parameter(Tensor::ones({3}));
  const Tensor mean = Tensor::full({3}, 5), var = Tensor::full({3}, 6);
  Tape tape;
  const Variable y = batch_norm(x, w, {}, mean, var, {.training = true});
  EXPECT_EQ(y.shape(), Shape({0, 3, 2, 2}));
  tape.backward(y, {.gradient = Tensor::zeros({0, 3, 2, 2})});
  EXPECT_EQ(x.grad().shape(), x.shape());
  EXPECT_THAT(values(w.grad()), Each(0));
  EXPECT_THAT(values(mean), Each(5));
  EXPECT_THAT(values(var), Each(6));
}

TEST(BatchNorm, SameBitsForEveryThreadCountAndInstructionSet) {
  const int threads = num_threads();
  for (const Shape& shape : {Shape{37, 50, 9, 7}, Shape{3000, 33}}) {
    for (Layout layout : layouts(shape)) {
      const Tensor x = randn(shape).to(layout), gy = randn(shape).to(layout);
      std::vector<std::vector<float>> results;
      for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
        for (int count : {1, 5}) {
          set_num_threads(count);
          limit_instruction_set(set);
          const Variable leaf = Variable::parameter(x), w = Variable::parameter(Tensor::ones({shape[1]}));
          Tape tape;
          const Variable y = batch_norm(leaf, w, {}, {}, {}, {.training = true});
          tape.backward(y, {.gradient = gy});
          results.emplace_back();
          for (const Variable& v : {y, leaf.grad(), w.grad()}) {
            const auto list = v.tensor().to_vector<float>();
            results.back().insert(results.back().end(), list.begin(), list.end());
          }
        }
      }
      for (const auto& result : results) EXPECT_EQ(result, results[0]);
    }
  }
  set_num_threads(threads);
  limit_instruction_set(InstructionSet::avx512);
}

TEST(BatchNorm, FirstAndSecondDerivatives) {
  const Variable w = Variable::parameter(randn({3}, kDouble)), b = Variable::parameter(randn({3}, kDouble));
  const Tensor mean = randn({3}, kDouble), var = (rand({3}, kDouble) + 0.5).tensor();
  for (const Shape& shape : {Shape{5, 3}, Shape{2, 3, 2, 3}}) {
    for (Layout layout : layouts(shape)) {
      const Variable x = Variable::parameter(randn(shape, kDouble).to(layout));
      for (bool training : {true, false}) {
        const auto f = [&](const Variables& in) {
          // Fresh running statistics: gradcheck calls f often.
          return batch_norm(in[0], in[1], in[2], mean.clone(), var.clone(),
                            {.training = training, .eps = kEps});
        };
        gradcheck(f, {x, w, b});
        gradgradcheck(f, {x, w, b});
        const auto rectified = [&](const Variables& in) {
          return batch_norm(in[0], in[1], in[2], mean.clone(), var.clone(),
                            {.training = training, .eps = kEps, .negative_slope = 0.3});
        };
        gradcheck(rectified, {x, w, b});
        gradgradcheck(rectified, {x, w, b});
      }
      const auto plain = [&](const Variables& in) {
        return batch_norm(in[0], {}, {}, {}, {}, {.training = true});
      };
      gradcheck(plain, {x});
      gradgradcheck(plain, {x});
    }
  }
}

TEST(BatchNorm, ErrorsNameValuesAndRanges) {
  const Variable x = Tensor::zeros({2, 3, 4, 4}), three = Tensor::ones({3}), two = Tensor::ones({2});
  const auto error = [](auto f, const char* text) { EXPECT_THAT(f, ThrowsMessage<Error>(HasSubstr(text))); };
  error([&] { batch_norm(x, two, {}, three, three); },
        "batch_norm: weight has shape [2] but x [2,3,4,4] has 3 channels");
  error([&] { batch_norm(x, {}, {}, three, two); },
        "batch_norm: running_var has shape [2] but x [2,3,4,4] has 3 channels");
  error([&] { batch_norm(x, {}, {}, {}, {}); },
        "running_mean and running_var are undefined; legal only in training");
  error([&] { batch_norm(x, {}, {}, three, {}); },
        "running_mean is given but running_var is undefined; legal is both or neither");
  error([&] { batch_norm(x, {}, {}, {}, three); },
        "running_var is given but running_mean is undefined; legal is both or neither");
  error([&] { batch_norm(three, {}, {}, three, three); },
        "x has shape [3]; legal is rank 2 or more, [n,c,...]");
  error(
      [&] {
        batch_norm(Tensor::zeros({1, 3, 1, 1}), {}, {}, three, three, {.training = true});
      },
      "batch_norm: x [1,3,1,1] has 1 value a channel; legal in training is 2 or more");
  error([&] { batch_norm(x, {}, {}, three, three, {.momentum = 1.5}); },
        "momentum 1.5 is not legal; legal is 0 to 1");
  error([&] { batch_norm(x, {}, {}, three, three, {.batches = Tensor::ones({3})}); },
        "batch_norm: batches is float32 [3] on cpu; legal is one int64 on cpu");
  error([&] { batch_norm(x, {}, {}, three, three, {.eps = -1}); }, "eps -1 is not legal; legal is 0 or more");
  error([&] { batch_norm(x, Tensor::ones({3}, kDouble), {}, three, three); },
        "x is float32 but weight is float64");
}

}  // namespace
}  // namespace tapedeck
