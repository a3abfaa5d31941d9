#include <tapedeck/nn/data/loader.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "files.h"

namespace tapedeck::data {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Image i is [i, -i]; its label is i / 2. Reading takes longer now and then, fails at `bad`, and is counted.
class Numbers final : public Dataset {
 public:
  explicit Numbers(std::int64_t count, std::int64_t bad = -1) : count_(count), bad_(bad) {}

  std::int64_t size() const override { return count_; }
  Shape image_shape() const override { return {1, 1, 2}; }
  void read(std::int64_t i, std::span<float> out) const override {
    ++*reads_;
    check(i != bad_, "image", i, ".png: is broken");
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
    out[0] = static_cast<float>(i);
    out[1] = -static_cast<float>(i);
  }
  std::optional<std::int64_t> label(std::int64_t i) const override { return i / 2; }

  const std::atomic<int>& reads() const { return *reads_; }

 private:
  std::int64_t count_, bad_;
  std::shared_ptr<std::atomic<int>> reads_ = std::make_shared<std::atomic<int>>(0);
};

using Order = std::vector<std::vector<std::int64_t>>;

/// The indices of one loop's batches; checks that images and labels are theirs.
Order loop(DataLoader& loader) {
  Order order;
  for (const Batch& batch : loader) {
    order.push_back(batch.indices.to_vector<std::int64_t>());
    const std::size_t count = order.back().size();
    EXPECT_EQ(batch.images.shape(), (Shape{static_cast<std::int64_t>(count), 1, 1, 2}));
    for (std::size_t k = 0; k < count; ++k) {
      EXPECT_EQ(batch.images.data<float>()[2 * k], order.back()[k]);
      EXPECT_EQ(batch.images.data<float>()[2 * k + 1], -order.back()[k]);
      EXPECT_EQ(batch.labels.data<std::int64_t>()[k], order.back()[k] / 2);
    }
    EXPECT_EQ(loader.position(), static_cast<std::int64_t>(order.size()));
  }
  return order;
}

std::set<std::int64_t> all_of(const Order& order) {
  std::set<std::int64_t> all;
  for (const auto& batch : order) all.insert(batch.begin(), batch.end());
  return all;
}

TEST(DataLoader, KeepsTheOrderWithoutShuffling) {
  DataLoader loader(Numbers(7), {.batch_size = 3});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_EQ(loop(loader), (Order{{0, 1, 2}, {3, 4, 5}, {6}}));
  DataLoader dropping(Numbers(7), {.batch_size = 3, .drop_last = true});
  EXPECT_EQ(dropping.size(), 2);
  EXPECT_EQ(loop(dropping), (Order{{0, 1, 2}, {3, 4, 5}}));
}

TEST(DataLoader, IsTheSameForAnyNumberOfWorkers) {
  std::vector<Order> expected;
  for (const int workers : {0, 1, 2, 5}) {
    for (const int prefetch : {1, 2, 7}) {
      DataLoader loader(
          Numbers(101),
          {.batch_size = 4, .shuffle = true, .seed = 3, .workers = workers, .prefetch = prefetch});
      std::vector<Order> orders;
      for (int epoch = 0; epoch < 3; ++epoch) orders.push_back(loop(loader));
      if (expected.empty()) expected = orders;
      EXPECT_EQ(orders, expected) << workers << " workers, prefetch " << prefetch;
    }
  }
  for (const Order& order : expected) EXPECT_EQ(all_of(order).size(), 101u);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_NE(expected[1], expected[2]);
}

TEST(DataLoader, ShufflesDifferentlyForEachSeed) {
  DataLoader a(Numbers(50), {.shuffle = true, .seed = 1}), b(Numbers(50), {.shuffle = true, .seed = 2});
  EXPECT_NE(loop(a), loop(b));
}

TEST(Shuffled, IsUniform) {
  // Each of 5 elements lands on each of 5 places 1/5 of the time: 5 sigma of 5000 trials is 141.
  int counts[5][5] = {};
  for (std::int64_t epoch = 0; epoch < 5000; ++epoch) {
    const std::vector<std::int64_t> order = shuffled(5, 17, epoch);
    for (std::size_t i = 0; i < 5; ++i) ++counts[i][order[i]];
  }
  for (const auto& row : counts)
    EXPECT_THAT(row, Each(::testing::AllOf(::testing::Gt(859), ::testing::Lt(1141))));
}

TEST(DataLoader, ResumesAnywhere) {
  const DataLoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 9, .workers = 2};
  DataLoader whole(Numbers(30), options);
  Order expected;
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : loop(whole)) expected.push_back(batch);
  }
  const auto per_epoch = static_cast<std::size_t>(whole.size());
  for (std::size_t done = 0; done <= 2 * per_epoch; ++done) {
    DataLoader resumed(Numbers(30), options);
    resumed.seek(static_cast<std::int64_t>(done / per_epoch), static_cast<std::int64_t>(done % per_epoch));
    Order rest;
    while (rest.size() + done < expected.size()) {
      for (const Batch& batch : resumed) rest.push_back(batch.indices.to_vector<std::int64_t>());
    }
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), expected.begin() + static_cast<std::ptrdiff_t>(done)))
        << done;
  }
}

TEST(DataLoader, TheStateInsideALoopIsWhereToGoOn) {
  DataLoader loader(Numbers(10), {.batch_size = 4, .workers = 1});
  std::int64_t epoch = -1, position = -1;
  (void)loop(loader);
  for (const Batch& batch : loader) {
    if (batch.indices.data<std::int64_t>()[0] == 4) {
      epoch = loader.epoch(), position = loader.position();
      break;
    }
  }
  EXPECT_EQ(epoch, 1);
  EXPECT_EQ(position, 2);
  EXPECT_EQ(loop(loader).size(), 3u);  // a loop that was left is over: the next epoch is whole
  EXPECT_EQ(loader.epoch(), 2);
  loader.seek(epoch, 3);  // at the end of an epoch: an empty loop, then the next one
  EXPECT_TRUE(loop(loader).empty());
  EXPECT_EQ(loop(loader).size(), 3u);
  EXPECT_EQ(loader.epoch(), 2);
}

TEST(DataLoader, ErrorsArriveInPlaceOfTheirBatch) {
  for (const int workers : {0, 1, 3}) {
    DataLoader loader(Numbers(40, 13), {.batch_size = 4, .workers = workers});
    int batches = 0;
    EXPECT_EQ(message_of<Error>([&] {
                for ([[maybe_unused]] const Batch& batch : loader) ++batches;
              }),
              "image13.png: is broken");
    EXPECT_EQ(batches, 3) << workers;
  }
}

TEST(DataLoader, PrefetchIsBounded) {
  const Numbers numbers(1000);
  DataLoader loader(numbers, {.batch_size = 2, .workers = 3, .prefetch = 4});
  auto iterator = loader.begin();
  for (int handed = 1; handed < 20; ++handed, ++iterator) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_LE(numbers.reads(), 2 * (handed + 4));
  }
}

TEST(DataLoader, MayBeLeftAtAnyTime) {
  for (int stop = 0; stop < 12; ++stop) {
    const Numbers numbers(1000);
    {
      DataLoader loader(numbers, {.batch_size = 5, .workers = 4});
      int batches = 0;
      for ([[maybe_unused]] const Batch& batch : loader) {
        if (batches++ == stop) break;
      }
    }
    const int reads = numbers.reads();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(numbers.reads(), reads) << "a worker still runs";
    EXPECT_LT(reads, 200);
  }
}

TEST(DataLoader, AnEmptyDatasetHasNoBatches) {
  DataLoader loader(Numbers(0), {.workers = 2});
  EXPECT_EQ(loader.size(), 0);
  EXPECT_TRUE(loop(loader).empty());
}

TEST(DataLoader, ChecksItsOptions) {
  const auto error = [](const DataLoaderOptions& options) {
    return message_of<Error>([&] { DataLoader(Numbers(3), options); });
  };
  EXPECT_EQ(error({.batch_size = 0}), "data_loader: batch_size 0 is not legal; legal is 1 or more");
  EXPECT_EQ(error({.workers = -1}), "data_loader: workers -1 is not legal; legal is 0 or more");
  EXPECT_EQ(error({.prefetch = 0}), "data_loader: prefetch 0 is not legal; legal is 1 or more");
  DataLoader loader(Numbers(3));
  EXPECT_EQ(message_of<Error>([&] { loader.seek(0, 2); }),
            "data_loader: position 2 is not legal; legal is 0 to 1");
  EXPECT_EQ(message_of<Error>([&] { loader.seek(-1); }),
            "data_loader: epoch -1 is not legal; legal is 0 or more");
}

TEST(TensorDataset, ConvertsEveryType) {
  for (const DType dtype : {DType::float64, DType::float32, DType::bfloat16, DType::float16}) {
    const Tensor images = Tensor::from<double>({0, 0.25, 0.5, 1, 0.75, 0.125, 0, 1}, {2, 2, 1, 2}).to(dtype);
    for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
      const TensorDataset dataset(images.to(layout));
      EXPECT_THAT(dataset.get(1).to_vector<float>(), ElementsAre(0.75f, 0.125f, 0.0f, 1.0f))
          << to_string(dtype);
    }
  }
  const TensorDataset bytes(Tensor::from<std::uint8_t>({0, 51, 255}, {1, 3, 1, 1}),
                            Tensor::from<std::int64_t>({5}, {1}));
  EXPECT_THAT(bytes.get(0).to_vector<float>(), ElementsAre(0.0f, 0.2f, 1.0f));
  EXPECT_EQ(bytes.label(0), 5);
  EXPECT_THAT(message_of<Error>([] {
                TensorDataset(Tensor::zeros({2, 2}));
              }),
              HasSubstr("legal is [n,c,h,w]"));
  EXPECT_THAT(message_of<Error>([] {
                TensorDataset(Tensor::zeros({2, 1, 2, 2}), Tensor::zeros({2}));
              }),
              HasSubstr("legal is int64 [2]"));
}

TEST(InMemory, HoldsTheSameImagesAndLabels) {
  const Numbers numbers(33);
  const TensorDataset copy = in_memory(numbers);
  EXPECT_EQ(numbers.reads(), 33);
  EXPECT_EQ(copy.size(), 33);
  for (std::int64_t i = 0; i < 33; ++i) {
    EXPECT_EQ(copy.get(i).to_vector<float>(), numbers.get(i).to_vector<float>());
    EXPECT_EQ(copy.label(i), numbers.label(i));
  }
}

}  // namespace
}  // namespace tapedeck::data
