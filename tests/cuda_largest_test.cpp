// Largest magnitudes that tensors remember from the kernels that made them (ops/largest.cuh): products of
// scaled halves read them, and overflow with one that is too small. A clone remembers nothing, so that
// products of it tell what is right.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>

#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/memory.h>
#include <tapedeck/core/precision.h>
#include <tapedeck/core/random.h>
#include <tapedeck/nn/optim/sgd.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/row_grad_plan.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/reduce.h>

#include "cuda_support.h"

namespace tapedeck::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                kNaN = std::numeric_limits<float>::quiet_NaN();

class CudaLargest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    set_conv_algorithm(ConvAlgorithm::halves);
    set_float32_precision(Precision::high);
  }
  void TearDown() override {
    set_conv_algorithm(ConvAlgorithm::automatic);
    set_float32_precision(Precision::highest);
  }

  /// A convolution of scaled halves where the GPU has them.
  static std::vector<float> products(const Tensor& x) {
    manual_seed(5);
    const Tensor w = randn({x.size(1), 16, 3, 3}, {.device = kCuda});
    return conv_transpose2d(x, w, {}, {}).tensor().to_vector<float>();
  }
  static bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }
  static bool is_known(const Tensor& x) { return x.largest(0) != nullptr; }

  /// Images that know their largest magnitude on a GPU with products of halves, else false.
  static Tensor normalised(const Shape& shape, Layout layout = Layout::nchw) {
    return batch_norm(randn(shape, {.device = kCuda}).to(layout), {}, {}, {}, {}, {.training = true})
        .tensor();
  }
};

const Shape kShape{9, 17, 43, 47}, kRows{9, 20, 40, 44};

TEST_F(CudaLargest, IsWhatItsMakerFound) {
  if (!is_known(normalised(kRows))) GTEST_SKIP() << "this GPU has no products of halves";
  for (const Shape& shape : {kShape, kRows}) {
    for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
      for (const float bad : {1e5F, kInfinity, kNaN}) {
        SCOPED_TRACE(concat(shape, " ", layout, " ", bad));
        const auto random = [&] { return randn(shape, {.device = kCuda}).to(layout); };
        const auto check = [&](const char* what, const Tensor& made) {
          EXPECT_TRUE(is_known(made)) << what;
          EXPECT_TRUE(same(products(made), products(made.clone()))) << what;
        };
        Tensor gy = random();
        gy.slice(4, 5).copy_((Variable(gy.slice(4, 5)) * 100.0).tensor());
        const Tensor host = gy.to(Device{});
        host.data<float>()[host.count() - 1] = bad;
        gy = host.to(kCuda);
        for (const double slope : {0.0, 0.25, 1.0}) {
          const Variable x = Variable::parameter(random());
          Tape tape;
          const Variable y = batch_norm(x, {}, {}, {}, {}, {.training = true, .negative_slope = slope});
          check("batch norm", y.tensor());
          check("its gradient", tape.gradient(y, {x}, {.gradient = gy})[0].tensor());
        }
      }
    }
  }
}

// The gradient before the rectifier: with a bias, one kernel makes it and finds its magnitude; without,
// another one makes it, and it is read again.
TEST_F(CudaLargest, OfRectifiedGradientsIsWhatTheirKernelFound) {
  for (const Layout layout : {Layout::nchw, Layout::nhwc}) {
    for (const float bad : {1e5F, kInfinity}) {
      for (const double slope : {0.0, 0.25}) {
        SCOPED_TRACE(concat(layout, " ", bad, " ", slope));
        const Tensor x = randn({9, 16, 41, 45}, {.device = kCuda}).to(layout),
                     w = randn({16, 17, 3, 3}, {.device = kCuda}), b = Tensor::zeros({17}, {.device = kCuda});
        const Tensor gy = randn(kShape).to(layout);
        gy.data<float>()[gy.count() - 1] = bad;
        const auto gradients = [&](const Tensor& bias) {
          const Variable a = Variable::parameter(x), v = Variable::parameter(w),
                         c = bias.defined() ? Variable::parameter(bias) : Variable();
          Tape tape;
          const Variable y = conv_transpose2d(a, v, c, {}, slope);
          Variables leaves{a, v};
          if (bias.defined()) leaves.push_back(c);
          const Variables g = tape.gradient(y, leaves, {.gradient = gy.to(kCuda)});
          return std::pair(g[0].tensor().to_vector<float>(), g[1].tensor().to_vector<float>());
        };
        const auto found = gradients(b), read = gradients({});
        EXPECT_TRUE(same(found.first, read.first));
        EXPECT_TRUE(same(found.second, read.second));
      }
    }
  }
}

TEST_F(CudaLargest, IsForgottenWhenTheTensorMayBeWritten) {
  using Write = std::function<void(const Tensor&)>;
  const Tensor large = (Variable(randn(kShape, {.device = kCuda})) * 1e6).tensor();
  const std::vector<Write> ways = {
      [&](const Tensor& y) { y.copy_(large); },
      [&](const Tensor& y) { y.copy_(large.to(Device{})); },
      [&](const Tensor& y) { y.slice(3, 4).copy_(large.slice(3, 4)); },
      [&](const Tensor& y) {
        y.reshape({-1, 47}).slice(0, 5).fill_(1e6);
      },
      [&](const Tensor& y) { y.fill_(-1e7); },
      [&](const Tensor& y) {
        const Variable parameter = Variable::parameter(y);
        optim::SGD sgd({parameter}, {.lr = 1});
        Tape tape;
        tape.backward(sum(parameter * Variable(large)));
        sgd.step();
      },
  };
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const Tensor y = normalised(kShape);
    ways[i](y);
    EXPECT_FALSE(is_known(y)) << i;
    EXPECT_TRUE(same(products(y), products(y.clone()))) << i;
  }
  const std::vector<Write> pointers = {[](const Tensor& y) { (void)y.raw(); },
                                       [](const Tensor& y) { (void)y.data<float>(); },
                                       [](const Tensor& y) { (void)y.slice(1, 1).raw(); }};
  for (const Write& pointer : pointers) {
    const Tensor y = normalised(kShape);
    pointer(y);
    EXPECT_FALSE(is_known(y));
  }
}

// A part of a tensor has another largest magnitude; whoever only reads leaves it.
TEST_F(CudaLargest, IsOfWholeTensors) {
  const Tensor y = normalised(kShape);
  const bool known = is_known(y);
  EXPECT_FALSE(is_known(y.slice(2, 3)));
  EXPECT_EQ(is_known(y.reshape({1, 9 * 17, 43, 47})), known);
  EXPECT_TRUE(same(products(y.slice(2, 3)), products(y.slice(2, 3).clone())));
  (void)y.to_vector<float>();
  (void)sum(Variable(y)).item();
  EXPECT_EQ(is_known(y), known);
  EXPECT_FALSE(is_known(normalised({1, 3, 5, 7}))) << "small tensors are not worth it";
}

TEST_F(CudaLargest, IsFoundAnewByEachReplay) {
  const auto f = [](const std::vector<Tensor>& in) -> std::vector<Tensor> {
    const Variable x = Variable::parameter(in[0]), w(in[2]), b = Variable::parameter(in[3]);
    Tape tape;
    const Variable between = batch_norm(x, in[4], {}, {}, {}, {.training = true});
    const Variable y = conv_transpose2d(between, w, b, {}, 0.5);
    return {y.tensor(), tape.gradient(y, {x}, {.gradient = in[1]})[0].tensor(), between.tensor()};
  };
  CapturedStep step(kCuda, f);
  const auto normal = [](const Shape& shape) { return randn(shape, {.device = kCuda}); };
  const Tensor x = normal(kShape), gy = normal({9, 16, 45, 49}), w = normal({17, 16, 3, 3}), b = normal({16}),
               ones = Tensor::ones({17}, {.device = kCuda});
  for (const double factor : {1.0, 1e6, 1e-6, 1.0, 1e12}) {
    const auto scaled = [&](const Tensor& t) { return (Variable(t) * factor).tensor(); };
    const std::vector<Tensor> in{x, scaled(gy), w, b, scaled(ones)}, made = step(in), eager = f(in);
    for (std::size_t i = 0; i < made.size(); ++i)
      EXPECT_TRUE(same(made[i].to_vector<float>(), eager[i].to_vector<float>())) << i << " " << factor;
    EXPECT_TRUE(same(products(made[2]), products(made[2].clone()))) << factor;
  }
  if (!is_sanitized()) {  // without a cache nothing is captured
    EXPECT_EQ(step.graphs(), 1U);
  }
}

// What was known when a step was captured is not when it is replayed.
TEST_F(CudaLargest, IsNotTakenIntoACapturedStep) {
  const Tensor y = normalised(kShape), w = randn({17, 16, 3, 3}, {.device = kCuda});
  CapturedStep step(kCuda, [&](const std::vector<Tensor>&) -> std::vector<Tensor> {
    return {conv_transpose2d(y, w, {}, {}).tensor()};
  });
  const std::vector<Tensor> none{Tensor::zeros({1}, {.device = kCuda})};
  for (int i = 0; i < 3; ++i) step(none);
  y.copy_((Variable(y) * 1e6).tensor());
  EXPECT_TRUE(same(step(none)[0].to_vector<float>(),
                   conv_transpose2d(y.clone(), w, {}, {}).tensor().to_vector<float>()));
}

/// Who reads a tensor and its clone that knows the magnitude, to compare.
Tensor knowing(const Tensor& x) {
  const std::vector<float> values = x.to_vector<float>();
  std::uint32_t most = 0;
  for (const float value : values)
    if (std::isfinite(value)) most = std::max(most, std::bit_cast<std::uint32_t>(std::abs(value)));
  const Tensor words = Tensor::full({1}, static_cast<double>(most), {DType::int64, kCuda});  // and a zero
  const Tensor y = x.clone();
  y.set_largest({std::make_shared<Tensor>(words), static_cast<unsigned*>(words.raw())}, 0);
  return y;
}

// Large tensors are scaled by a sample. Whatever it does not tell is found when they are copied: then results
// are those of an exact magnitude, to the bit.
TEST_F(CudaLargest, OfLargeTensorsIsGuessed) {
  if (!is_known(normalised(kRows))) GTEST_SKIP() << "this GPU has no products of halves";
  struct Kind {
    Layout layout;
    ConvAlgorithm algorithm;
    std::int64_t groups = 1, stride = 1;  // the latter of rows: of two, one is left out of copies
    Shape x() const { return {2, 32, stride == 1 ? 256 : 128, 304}; }
    Shape w() const { return {32, 32 / groups, stride == 1 ? 3 : 1, 3}; }
    Shape y() const { return {2, 32, stride == 1 ? 258 : 255, 306}; }  // more than 2^22 elements
  };
  const auto results = [&](const Tensor& x, const Tensor& gy, const Kind& k) {
    manual_seed(7);
    const Tensor w = randn(k.w(), {.device = kCuda});
    const Variable a = Variable::parameter(x), b = Variable::parameter(w);
    Tape tape;
    const Variable y = conv_transpose2d(a, b, {}, {.stride = {k.stride, 1}, .groups = k.groups});
    const Variables g = tape.gradient(y, {a, b}, {.gradient = gy});
    return std::array{y.tensor().to_vector<float>(), g[0].tensor().to_vector<float>(),
                      g[1].tensor().to_vector<float>()};
  };
  // Of the elements in memory, the sample has the first 128 of each 604 or 612. All are in even rows.
  constexpr std::int64_t kSeen = 612 * 5 + 50, kMissed = 612 * 5 + 200;
  static_assert(kSeen % 604 < 128 && kSeen % 612 < 128 && kMissed % 604 > 128 && kMissed % 612 > 128);
  struct Case {
    const char* name;
    float factor;  // of all elements
    float seen, missed;
    bool is_made_again;
  };
  const Case cases[] = {{"normal numbers", 1, 1, 1, false},
                        {"a large one, seen", 1, 1e5F, 1, false},
                        {"infinity, missed", 1, 1, kInfinity, false},
                        {"NaN and a large one", 1, 1e3F, kNaN, false},
                        {"nothing", 0, 0, 0, false},
                        {"missed", 1, 1, 1e5F, true},
                        {"missed, much larger", 1e-20F, 1, 1e10F, true},
                        {"a single one", 0, 0, -3, true}};
  EXPECT_TRUE(
      conv_gemm::row_grad_plan(
          conv_transpose2d_geometry(Tensor::empty(Kind{}.x()), Tensor::empty(Kind{}.w()), {}, {}), true)
          .exists());
  Share share(3);  // of eight cases in turn, those that are made again among them
  for (const Precision precision : {Precision::high, Precision::highest}) {
    set_float32_precision(precision);
    // Groups of four channels are put apart when they are copied.
    for (const Kind& k : {Kind{Layout::nchw, ConvAlgorithm::halves},
                          {Layout::nhwc, ConvAlgorithm::halves},
                          {Layout::nhwc, ConvAlgorithm::halves, 8},
                          {Layout::nchw, ConvAlgorithm::gathered},
                          {Layout::nchw, ConvAlgorithm::rows},
                          {Layout::nchw, ConvAlgorithm::halves, 1, 2},
                          {Layout::nhwc, ConvAlgorithm::halves, 8, 2},
                          {Layout::nchw, ConvAlgorithm::gathered, 1, 2}}) {  // which does not guess
      set_conv_algorithm(k.algorithm);
      for (const Case& c : cases) {
        if (!share.takes_next()) continue;
        SCOPED_TRACE(concat(precision == Precision::high ? "high " : "highest ", k.layout, " ", k.algorithm,
                            " in ", k.groups, " by ", k.stride, " ", c.name));
        const auto made = [&](const Shape& s) {
          const Tensor host = (randn(s) * c.factor).tensor().to(k.layout);
          host.data<float>()[kSeen] = c.seen;
          host.data<float>()[kMissed] = c.missed;
          return host.to(kCuda);
        };
        const Tensor x = made(k.x()), gy = made(k.y());
        const auto guessed = results(x, gy, k), again = results(x, gy, k),
                   known = results(knowing(x), knowing(gy), k);
        for (std::size_t i = 0; i < guessed.size(); ++i) {
          EXPECT_TRUE(same(guessed[i], again[i])) << i;
          if (c.is_made_again) {
            EXPECT_TRUE(same(guessed[i], known[i])) << i;
            continue;
          }
          double most = 0, error = 0;
          for (std::size_t at = 0; at < known[i].size(); ++at) {
            ASSERT_EQ(std::isfinite(known[i][at]), std::isfinite(guessed[i][at])) << i << " " << at;
            if (!std::isfinite(known[i][at])) continue;
            most = std::max(most, std::abs(double{known[i][at]}));
            error = std::max(error, std::abs(double{known[i][at]} - double{guessed[i][at]}));
          }
          EXPECT_LE(error, 2e-6 * most) << i;  // a guess leaves four bits of room
        }
      }
    }
  }
}

// Then the weight's gradient reads rows as x's that the other gradient leaves out as y's.
TEST_F(CudaLargest, OfImagesThatAreTheirResultsGradient) {
  if (!is_known(normalised(kRows))) GTEST_SKIP() << "this GPU has no products of halves";
  const Tensor host = randn({2, 32, 256, 304}), w = randn({32, 32, 1, 3}, {.device = kCuda});
  constexpr std::int64_t kOddRow = (3 * 256 + 101) * 304 + 10;
  static_assert(kOddRow % 604 > 128);  // not in the sample
  host.data<float>()[kOddRow] = 1e5F;
  const Tensor x = host.to(kCuda);
  const auto gradients = [&](const Tensor& gy) {
    const Variable a = Variable::parameter(x), b = Variable::parameter(w);
    Tape tape;
    const Variable y =
        conv_transpose2d(a, b, {}, {.stride = {2, 1}, .padding = {128, 1}, .output_padding = {1, 0}});
    const Variables g = tape.gradient(y, {a, b}, {.gradient = gy});
    return std::array{g[0].tensor().to_vector<float>(), g[1].tensor().to_vector<float>()};
  };
  const auto same_tensor = gradients(x), clone = gradients(x.clone());
  for (std::size_t i = 0; i < clone.size(); ++i) {
    double most = 0, error = 0;
    for (std::size_t at = 0; at < clone[i].size(); ++at) {
      ASSERT_TRUE(std::isfinite(same_tensor[i][at])) << i << " " << at;
      most = std::max(most, std::abs(double{clone[i][at]}));
      error = std::max(error, std::abs(double{clone[i][at]} - double{same_tensor[i][at]}));
    }
    EXPECT_LE(error, 2e-6 * most) << i;
  }
}

// Words are on the stream, and in the memory, of the tensors that remember them.
TEST_F(CudaLargest, LeavesNoMemoryInUse) {
  (void)products(normalised(kShape));
  const std::size_t before = memory_stats(kCuda).in_use;
  {
    const Tensor a = normalised(kShape), b = normalised(kShape);
    (void)products(a);
  }
  EXPECT_EQ(memory_stats(kCuda).in_use, before);
}

}  // namespace
}  // namespace tapedeck::test
