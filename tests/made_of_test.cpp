// Packed weights that are kept: made once for elements that stay, never used for others.
#include <tapedeck/tapedeck.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <tapedeck/core/caching_allocator.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/micro/made_of.h>

#include "conv_cases.h"
#include "conv_paths.h"

namespace tapedeck::test {
namespace {

using cpu::Maker;
using cpu::Scratch;

/// A sum of w's bytes with a weight for each, kept, and how often it was made.
struct Sum {
  int made = 0;

  double operator()(const Tensor& w, std::int64_t size = 1) {
    return *cpu::made_of<double>(w, {Maker::planes, {size}}, [&] {
              ++made;
              const Scratch<double> sum(1);
              const auto* bytes = static_cast<const unsigned char*>(w.read());
              sum.data()[0] = 0;
              for (std::size_t i = 0; i < w.bytes(); ++i)
                sum.data()[0] += static_cast<double>((i + 1) * bytes[i]);
              return sum;
            }).data();
  }
};

double sum_of(const Tensor& w) {
  return Sum()(w.clone());
}

TEST(MadeOf, NothingIsKeptWhileWeightsChange) {
  const Tensor w = randn({4, 33});
  Sum sum;
  const std::size_t before = memory_stats().in_use;
  for (int step = 1; step <= 3; ++step) {
    w.copy_(randn({4, 33}));
    EXPECT_EQ(sum(w), sum_of(w));
    EXPECT_EQ(sum(w, 2), sum_of(w));
    EXPECT_EQ(sum.made, 2 * step);
    EXPECT_EQ(memory_stats().in_use, before);
  }
}

TEST(MadeOf, ItIsKeptFromTheSecondUseOnUntilTheNextVersion) {
  const Tensor w = randn({4, 33});
  const std::size_t before = memory_stats().in_use;
  Sum sum;
  for (int call = 0; call < 4; ++call) EXPECT_EQ(sum(w), sum_of(w));
  EXPECT_EQ(sum.made, 2);
  EXPECT_GT(memory_stats().in_use, before);
  EXPECT_EQ(sum(w, 2), sum_of(w));  // another key
  EXPECT_EQ(sum.made, 3);
  EXPECT_EQ(sum(w), sum_of(w));
  EXPECT_EQ(sum.made, 3);
  w.bump_version();
  EXPECT_EQ(sum(w, 2), sum_of(w));
  EXPECT_EQ(memory_stats().in_use, before);  // of other keys, too
  EXPECT_EQ(sum(w), sum_of(w));
  EXPECT_EQ(sum.made, 5);
}

TEST(MadeOf, ADifferentElementIsSeenWherever) {
  for (const std::int64_t bytes : {1, 7, 255, 257, 65537}) {
    const Tensor w = Tensor::empty({bytes}, {DType::uint8});
    auto* const pointer = w.data<std::uint8_t>();
    for (std::int64_t i = 0; i < bytes; ++i) pointer[i] = static_cast<std::uint8_t>(i * i * i >> 4);
    Sum sum;
    for (int call = 0; call < 3; ++call) EXPECT_EQ(sum(w), sum_of(w));
    const std::int64_t far = std::max<std::int64_t>(3, bytes / 9);
    for (std::int64_t at = 0; at < bytes; at += far) {
      pointer[at] ^= 0x80;
      const int before = sum.made;
      ASSERT_EQ(sum(w), sum_of(w)) << at << " of " << bytes;
      ASSERT_EQ(sum.made, before + 1);
      ASSERT_EQ(sum(w), sum_of(w));
      ASSERT_EQ(sum.made, before + 1);
    }
    pointer[bytes - 1] ^= 1;
    EXPECT_EQ(sum(w), sum_of(w));
    if (bytes < 16) continue;
    for (std::int64_t step : {8, 16, 128, 256}) {  // two changes, which must not undo each other
      for (std::int64_t from = 0; from + step < std::min<std::int64_t>(bytes, 600); from += 41) {
        pointer[from] ^= 0x80;
        pointer[from + step] ^= 0x80;
        ASSERT_EQ(sum(w), sum_of(w)) << from << " and " << step;
      }
    }
  }
}

TEST(MadeOf, SlicesHaveTheirOwn) {
  const Tensor w = randn({6, 5});
  Sum sum;
  for (int call = 0; call < 3; ++call) {
    for (std::int64_t row = 0; row < 6; ++row) {
      const Tensor slice = w.slice(row, row + 1);
      ASSERT_EQ(sum(slice), sum_of(slice));
    }
  }
  EXPECT_EQ(sum.made, 12);
}

TEST(MadeOf, DiesWithTheStorage) {
  const std::size_t before = memory_stats().in_use;
  {
    const Tensor w = randn({8});
    Sum sum;
    for (int call = 0; call < 3; ++call) (void)sum(w);
    EXPECT_GT(memory_stats().in_use, before + w.bytes());
  }
  EXPECT_EQ(memory_stats().in_use, before);
}

TEST(MadeOf, NothingIsKeptUnderAMemoryLimit) {
  const Tensor w = randn({4, 33});
  const std::size_t before = memory_stats().in_use, limit = memory_stats().limit;
  Sum sum;
  for (int call = 0; call < 3; ++call) EXPECT_EQ(sum(w), sum_of(w));
  EXPECT_EQ(sum.made, 2);
  EXPECT_GT(memory_stats().in_use, before);
  set_memory_limit({}, std::size_t{1} << 30);
  for (int call = 0; call < 3; ++call) EXPECT_EQ(sum(w), sum_of(w));
  EXPECT_EQ(sum.made, 5);
  EXPECT_EQ(memory_stats().in_use, before);  // of earlier calls, too
  set_memory_limit({}, limit);
}

/// Counts what it has handed out.
class CountingAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes, Stream stream) override {
    return ++count, below_.allocate(bytes, stream);
  }
  void record_stream(void* pointer, Stream stream) override { below_.record_stream(pointer, stream); }
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept override {
    --count;
    below_.deallocate(pointer, bytes, stream);
  }
  int count = 0;

 private:
  Allocator& below_ = Context::current(Device{}).allocator();
};

TEST(MadeOf, WeightsOutliveTheAllocatorOfACall) {
  const Tensor w = randn({8});
  const double expected = sum_of(w);
  CountingAllocator allocator;
  {
    const Context context(Device{}, nullptr, allocator);
    const ContextScope scope(context);
    Sum sum;
    for (int call = 0; call < 3; ++call) EXPECT_EQ(sum(w), expected);
    EXPECT_EQ(sum.made, 2);
  }
  EXPECT_EQ(allocator.count, 0);
}

const LayerCase kLayers[] = {{"", {2, 20, 5, 6}, {20, 18, 4, 4}, {.stride = 2, .padding = 1}},
                             {"", {2, 20, 5, 6}, {20, 2, 3, 3}, {.padding = 1}},
                             {"", {2, 18, 4, 4}, {18, 1, 4, 3}, {.stride = 2, .padding = 1, .groups = 18}},
                             {"", {2, 12, 4, 5}, {12, 2, 3, 3}, {.stride = {2, 3}, .groups = 4}},
                             {"", {3, 20, 1, 1}, {20, 18, 4, 4}, {}}};

/// What weights are used for: each layer's results and its input gradient; and products, which keep nothing.
struct Network {
  Tensors x, images, rows;
  Variables w, b, matrix;

  Network() {
    for (const LayerCase& c : kLayers) {
      const Shape weight = c.w, bias{c.w[1] * c.options.groups};
      w.push_back(Variable::parameter(randn(weight)));
      b.push_back(Variable::parameter(randn(bias)));
      x.push_back(randn(c.x));
      images.push_back(conv_transpose2d(x.back(), w.back(), b.back(), c.options).tensor());
    }
    for (const Shape& shape : {Shape{70, 600}, {33, 1000}, {1000, 50}}) {
      matrix.push_back(Variable::parameter(randn(shape)));
      rows.push_back(randn({3, shape[1]}));
    }
  }

  Variables parameters() const {
    Variables all = w;
    all.insert(all.end(), b.begin(), b.end());
    all.insert(all.end(), matrix.begin(), matrix.end());
    return all;
  }

  Tensors results() const {
    Tensors all;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const ConvTranspose2dOptions& o = kLayers[i].options;
      all.push_back(conv_transpose2d(x[i], w[i], b[i], o).tensor());
      all.push_back(conv2d(images[i], w[i], {}, {o.stride, o.padding, o.dilation, o.groups}).tensor());
    }
    for (std::size_t i = 0; i < matrix.size(); ++i) {
      const Variable y = linear(rows[i], matrix[i]);
      all.push_back(y.tensor());
      all.push_back(matmul(y, matrix[i]).tensor());
    }
    return all;
  }

  /// The same with weights that nobody has used before.
  Tensors expected() const {
    Network fresh = *this;
    for (Variables* list : {&fresh.w, &fresh.b, &fresh.matrix}) {
      for (Variable& v : *list) v = Variable::parameter(v.tensor().clone());
    }
    return fresh.results();
  }
};

void expect_same(const Tensors& got, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(same_bits(got[i], expected[i])) << what << " " << i;
}

TEST(MadeOf, ResultsAreThoseOfFreshWeightsAfterEveryKindOfChange) {
  for (const ConvAlgorithm algorithm :
       {ConvAlgorithm::automatic, ConvAlgorithm::planes, ConvAlgorithm::windows, ConvAlgorithm::winograd}) {
    const ConvAlgorithmScope scope(algorithm);
    Network network;
    const auto each = [&](const std::function<void(const Tensor&)>& change) {
      return [&, change] {
        for (const Variable& v : network.parameters()) change(v.tensor());
      };
    };
    std::vector<float*> pointers;
    for (const Variable& v : network.parameters()) pointers.push_back(v.tensor().data<float>());
    const std::pair<const char*, std::function<void()>> changes[] = {
        {"nothing", [] {}},
        {"copy_", each([](const Tensor& w) { w.copy_(randn(w.shape())); })},
        {"one element by data()", each([](const Tensor& w) { w.data<float>()[w.count() / 2] += 1; })},
        {"the last by an old pointer",
         [&] {
           const Variables all = network.parameters();
           for (std::size_t i = 0; i < all.size(); ++i) pointers[i][all[i].tensor().count() - 1] -= 1;
         }},
        {"signs by data()", each([](const Tensor& w) {
           for (std::int64_t i = 0; i < w.count(); ++i) w.data<float>()[i] *= -1;
         })},
        {"two elements that change places", each([](const Tensor& w) {
           if (w.count() > 16) std::swap(w.data<float>()[0], w.data<float>()[16]);
         })},
        {"a slice", each([](const Tensor& w) { w.slice(0, 1).fill_(0.25); })},
        {"a reshaped view", each([](const Tensor& w) { normal_(w.reshape({-1}), 0, 1); })},
        {"an optimizer",
         [&] {
           optim::Adam adam(network.parameters(), {});
           Tape tape;
           Variable loss;
           for (std::size_t i = 0; i < network.w.size(); ++i) {
             const Variable y =
                 mean(square(conv_transpose2d(network.x[i], network.w[i], network.b[i], kLayers[i].options)));
             loss = loss.defined() ? loss + y : y;
           }
           for (std::size_t i = 0; i < network.matrix.size(); ++i)
             loss = loss + mean(square(linear(network.rows[i], network.matrix[i])));
           tape.backward(loss);
           adam.step();
         }},
        {"another tensor", [&] {
           for (Variables* list : {&network.w, &network.b, &network.matrix})
             for (Variable& v : *list) v.set_tensor(randn(v.shape()));
         }}};
    for (const auto& [name, change] : changes) {
      change();
      const Tensors expected = network.expected();
      for (int call = 0; call < 3; ++call)
        expect_same(network.results(), expected, concat(name, ", ", algorithm));
    }
  }
}

TEST(MadeOf, EachPathHasItsOwn) {
  const Network network;
  for (int round = 0; round < 2; ++round) {
    for_each_path([&] {
      const Tensors expected = network.expected();
      for (int call = 0; call < 3; ++call) expect_same(network.results(), expected, "");
    });
  }
}

TEST(MadeOf, TheSteadyStateTakesNoMemory) {
  const Network network;
  for (int call = 0; call < 3; ++call) (void)network.results();
  const MemoryStats before = memory_stats();
  for (int call = 0; call < 3; ++call) (void)network.results();
  EXPECT_EQ(memory_stats().in_use, before.in_use);
  EXPECT_EQ(memory_stats().peak_in_use, before.peak_in_use);
}

TEST(MadeOf, ThreadsShareWeights) {
  const int threads_before = num_threads();
  set_num_threads(2);
  const Network network;
  for (int round = 0; round < 2; ++round) {
    const Tensors expected = network.expected();
    std::vector<std::vector<Tensors>> got(3);
    std::vector<std::thread> threads;
    for (std::vector<Tensors>& mine : got) {
      threads.emplace_back([&] {
        for (int call = 0; call < 3; ++call) mine.push_back(network.results());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<Tensors>& calls : got) {
      for (const Tensors& results : calls) expect_same(results, expected, "threads");
    }
    for (const Variable& v : network.parameters()) v.tensor().copy_(randn(v.shape()));
  }
  set_num_threads(threads_before);
}

}  // namespace
}  // namespace tapedeck::test
