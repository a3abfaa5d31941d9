// Batches on a device are the loader's, whatever is still queued on the ones before.
#include "cuda_support.h"
#include "op_support.h"

namespace tapedeck::data {
namespace {

using namespace test;
using ::testing::HasSubstr;

/// Image i is filled with i; its label is i / 2.
class Numbers final : public Dataset {
 public:
  explicit Numbers(std::int64_t count, std::int64_t side = 2, std::int64_t bad = -1)
      : count_(count), side_(side), bad_(bad) {}
  std::int64_t size() const override { return count_; }
  Shape image_shape() const override { return {1, side_, side_}; }
  void read(std::int64_t i, std::span<float> out) const override {
    check(i != bad_, "image", i, ".png: is broken");
    std::fill(out.begin(), out.end(), static_cast<float>(i));
  }
  std::optional<std::int64_t> label(std::int64_t i) const override { return i / 2; }

 private:
  std::int64_t count_, side_, bad_;
};

using Order = std::vector<std::vector<std::int64_t>>;

Order expected(const DataLoaderOptions& options, std::int64_t count, int epochs) {
  DataLoader loader(Numbers(count), options);
  Order order;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const Batch& batch : loader) order.push_back(batch.indices.to_vector<std::int64_t>());
  }
  return order;
}

void expect_loops(Device device, int workers, bool pinned) {
  SCOPED_TRACE(concat(device, ", ", workers, " workers", pinned ? ", pinned" : ""));
  const DataLoaderOptions options{
      .batch_size = 4, .shuffle = true, .seed = 3, .workers = workers, .pinned = pinned};
  DataLoader source(Numbers(11), options);
  DeviceLoader loader(source, device);
  EXPECT_EQ(loader.size(), 3);
  Order order;
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::int64_t position = 0;
    for (const Batch& batch : loader) {
      EXPECT_EQ(batch.images.device(), device);
      EXPECT_EQ(loader.epoch(), epoch);
      EXPECT_EQ(loader.position(), ++position);
      order.push_back(batch.indices.to_vector<std::int64_t>());
      const auto images = batch.images.to_vector<float>();
      const auto labels = batch.labels.to_vector<std::int64_t>();
      for (std::size_t k = 0; k < order.back().size(); ++k) {
        EXPECT_EQ(images[4 * k + 3], order.back()[k]);
        EXPECT_EQ(labels[k], order.back()[k] / 2);
      }
    }
    EXPECT_EQ(position, 3);
  }
  EXPECT_EQ(order, expected(options, 11, 3));

  // Going on in the middle of an epoch, and leaving one.
  loader.seek(1, 2);
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(loader.position(), 2);
  for (const Batch& batch : loader) EXPECT_EQ(batch.indices.to_vector<std::int64_t>(), order[5]);
  loader.seek(2);
  for (const Batch& batch : loader) {
    EXPECT_EQ(batch.indices.to_vector<std::int64_t>(), order[6]);
    break;
  }
  loader.seek(0, 3);
  for (const Batch& batch : loader) ADD_FAILURE() << batch.images.size(0);
  EXPECT_EQ(loader.position(), 3);
}

void expect_errors_in_their_place(Device device) {
  DataLoader source(Numbers(9, 2, 5), {.batch_size = 2});
  DeviceLoader loader(source, device);
  int batches = 0;
  EXPECT_THAT(error_of([&] {
                for (const Batch& batch : loader) batches += batch.images.defined() ? 1 : 0;
              }),
              HasSubstr("image5.png: is broken"));
  EXPECT_EQ(batches, 2);
}

TEST(DeviceLoader, OnTheCpuHandsOutTheLoadersBatches) {
  for (int workers : {0, 2}) expect_loops(Device{}, workers, false);
  expect_loops(Device{}, 1, true);
  expect_errors_in_their_place(Device{});
}

TEST(PinnedContext, ItsTensorsAreOnTheCpu) {
  const ContextScope scope(pinned_context());
  const Tensor x = Tensor::full({3}, 2);
  EXPECT_TRUE(x.device().is_cpu());
  EXPECT_EQ((Variable(x) + 1.0).tensor().to_vector<float>(), std::vector<float>(3, 3));
}

class CudaDeviceLoader : public CudaTest {};

TEST_F(CudaDeviceLoader, HandsOutTheLoadersBatches) {
  for (int workers : {0, 1, 3}) {
    for (bool pinned : {false, true}) expect_loops(kCuda, workers, pinned);
  }
  expect_errors_in_their_place(kCuda);
}

TEST_F(CudaDeviceLoader, QueuedWorkSeesItsOwnBatch) {
  // Each batch is read only after long work that was queued before, and the CPU waits for nothing.
  DataLoader source(Numbers(64, 256), {.batch_size = 2, .workers = 2, .pinned = true});
  DeviceLoader loader(source, kCuda);
  const int side = is_sanitized() ? 128 : 2048;
  const Tensor large = Tensor::full({side, side}, 1.0 / side, {.device = kCuda});
  Tensors sums;
  for (const Batch& batch : loader) {
    Variable product = large;
    for (int i = 0; i < 5; ++i) product = matmul(product, large);
    sums.push_back((sum(batch.images) + product.tensor().reshape({side * side}).slice(0, 1) * 0.0).tensor());
  }
  ASSERT_EQ(sums.size(), 32u);
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_EQ(sums[i].item(), (4.0 * static_cast<double>(i) + 1) * 256 * 256) << i;
  }
}

TEST_F(CudaDeviceLoader, TheSourceOfAPinnedCopyMayChangeAtOnce) {
  const ContextScope scope(pinned_context());
  const Tensor x = Tensor::empty({4000000});
  std::vector<Tensor> copies;
  for (int i = 0; i < 5; ++i) {
    x.fill_(i);
    copies.push_back(x.to(kCuda));
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(copies[i].slice(3999999, 4000000).item(), i);
}

}  // namespace
}  // namespace tapedeck::data
