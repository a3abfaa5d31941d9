// Averages of weights.
#include <tapedeck/nn/norm.h>
#include <tapedeck/nn/optim/average.h>

#include <algorithm>

#include <gtest/gtest.h>

namespace tapedeck::optim {
namespace {

TEST(ExponentialMovingAverage, FollowsAndSwaps) {
  const Variable p = Variable::parameter(Tensor::full({3}, 2));
  ExponentialMovingAverage average({p}, {.decay = 0.75});
  p.tensor().fill_(6);
  average.update();
  {
    const auto averaged = average.swap_in();
    EXPECT_EQ(p.tensor().to_vector<float>()[2], 3.0f);
    EXPECT_THROW(average.update(), Error);
    EXPECT_THROW((void)average.swap_in(), Error);
  }
  EXPECT_EQ(p.tensor().to_vector<float>()[2], 6.0f);
  average.update();
  const auto averaged = average.swap_in();
  EXPECT_EQ(p.tensor().to_vector<float>()[0], 3.75f);
}

TEST(ExponentialMovingAverage, StaysItselfWhateverHappensInTheScope) {
  const Variable p = Variable::parameter(Tensor::full({3}, 2)), q = Variable::parameter(Tensor::full({1}, 5));
  ExponentialMovingAverage average({p, q}, {.decay = 0.5});
  p.tensor().fill_(6);
  try {
    const auto averaged = average.swap_in();
    p.tensor().fill_(-1);  // a copy: the average itself stays
    q.set_tensor(Tensor::zeros({1}));
    throw Error("evaluation failed");
  } catch (const Error&) {
  }
  EXPECT_EQ(p.tensor().to_vector<float>()[1], 6.0f);
  EXPECT_EQ(q.item(), 5);
  const auto averaged = average.swap_in();
  EXPECT_EQ(p.tensor().to_vector<float>()[1], 2.0f);
}

TEST(ExponentialMovingAverage, AScopeThatFailsToOpenChangesNothing) {
  const Variable p = Variable::parameter(Tensor::full({2}, 1)), q = Variable::parameter(Tensor::full({2}, 1));
  ExponentialMovingAverage average({p, q}, {.decay = 0.5});
  p.tensor().fill_(3);
  q.set_tensor(Tensor::zeros({5}));
  EXPECT_THROW((void)average.swap_in(), Error);
  EXPECT_EQ(p.tensor().to_vector<float>()[1], 3.0f);
  q.set_tensor(Tensor::zeros({2}));
  const auto averaged = average.swap_in();  // and it is not swapped in already
  EXPECT_EQ(p.tensor().to_vector<float>()[1], 1.0f);
}

TEST(ExponentialMovingAverage, LeavesBuffersToTheModule) {
  nn::BatchNorm1d norm({.num_features = 1});
  ExponentialMovingAverage average(norm.parameters(), {.decay = 0.5});
  norm(Tensor::from<float>({1, 3}, {2, 1}));
  const float mean = norm.running_mean.tensor().to_vector<float>()[0];
  EXPECT_NE(mean, 0);
  {
    const auto averaged = average.swap_in();
    EXPECT_EQ(norm.running_mean.tensor().to_vector<float>()[0], mean);
    norm(Tensor::from<float>({5, 7}, {2, 1}));
  }
  EXPECT_GT(norm.running_mean.tensor().to_vector<float>()[0], mean);  // moved in the scope, and stays so
}

TEST(ExponentialMovingAverage, WarmsUpAndContinuesFromItsState) {
  const Variable p = Variable::parameter(Tensor::zeros({2}, {.dtype = DType::float64}));
  ExponentialMovingAverage average({p}, {.decay = 0.9, .warmup = true});
  double expected = 0;
  nn::StateDict checkpoint;
  for (int t = 1; t <= 100; ++t) {
    p.tensor().fill_(t);
    average.update();
    const double decay = std::min(0.9, (1.0 + t) / (10.0 + t));
    expected = decay * expected + (1 - decay) * t;
    if (t == 50) {
      for (const auto& [name, tensor] : average.state_dict()) checkpoint.emplace_back(name, tensor.clone());
    }
  }
  EXPECT_NEAR(average.state_dict()[1].second.to_vector<double>()[1], expected, 1e-12);

  ExponentialMovingAverage resumed({p}, {.decay = 0.9, .warmup = true});
  resumed.load_state_dict(checkpoint);
  for (int t = 51; t <= 100; ++t) {
    p.tensor().fill_(t);
    resumed.update();
  }
  EXPECT_EQ(resumed.state_dict()[1].second.to_vector<double>(),
            average.state_dict()[1].second.to_vector<double>());
  EXPECT_THROW(resumed.load_state_dict({}), Error);
}

}  // namespace
}  // namespace tapedeck::optim
