// Largest magnitudes that tensors remember from the kernels that made them (ops/largest.cuh): products of
// scaled halves read them, and overflow with one that is too small. A clone remembers nothing, so that
// products of it tell what is right.
#include <cstring>
#include <functional>

#include <tapedeck/autograd/tape.h>
#include <tapedeck/core/captured_step.h>
#include <tapedeck/core/memory.h>
#include <tapedeck/core/precision.h>
#include <tapedeck/core/random.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/rectify.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/unary.h>

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
          const Tensor gu = Tensor::empty_like(gy), gb = Tensor::empty({gy.size(1)}, {.device = kCuda});
          TAPEDECK_KERNEL(kCuda, rectified_gradients)(gy, y.tensor(), slope, 1, gu, gb);
          check("rectified gradient", gu);
        }
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
      [&](const Tensor& y) { TAPEDECK_KERNEL(kCuda, unary)
                             ({Unary::exp}, y, y); },
      [&](const Tensor& y) { TAPEDECK_KERNEL(kCuda, rectify)
                             (y, 1e5); },
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
    const Tensor gu = Tensor::empty_like(in[0]), gb = Tensor::empty({in[0].size(1)}, {.device = kCuda});
    TAPEDECK_KERNEL(kCuda, rectified_gradients)(in[0], in[1], 0.5, 1, gu, gb);
    return {conv_transpose2d(gu, in[2], {}, {}).tensor(), gu};
  };
  CapturedStep step(kCuda, f);
  const Tensor gy = randn(kShape, {.device = kCuda}), y = randn(kShape, {.device = kCuda}),
               w = randn({17, 16, 3, 3}, {.device = kCuda});
  for (const double factor : {1.0, 1e6, 1e-6, 1.0, 1e12}) {
    const Tensor scaled = (Variable(gy) * factor).tensor();
    const std::vector<Tensor> made = step({scaled, y, w});
    EXPECT_TRUE(same(made[0].to_vector<float>(), f({scaled, y, w})[0].to_vector<float>())) << factor;
    EXPECT_TRUE(same(products(made[1]), products(made[1].clone()))) << factor;
  }
  EXPECT_EQ(step.graphs(), 1U);
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
