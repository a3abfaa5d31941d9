// Tensors on a GPU: memory, copies, fills, conversions, random numbers. Nothing here is about ops.
#include "cuda_support.h"
#include "op_support.h"

#include <tapedeck/core/finite.h>
#include <tapedeck/core/memory.h>

namespace tapedeck {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr DType kAllTypes[] = {DType::float64, DType::float32, DType::bfloat16,
                               DType::float16, DType::int64,   DType::uint8};

class CudaCore : public CudaTest {};

/// The bytes of a tensor, wherever it is.
std::vector<std::uint8_t> bytes_of(const Tensor& x) {
  const Tensor host = x.to(Device{});
  const auto* first = static_cast<const std::uint8_t*>(host.raw());
  return {first, first + host.bytes()};
}

TEST_F(CudaCore, DevicesHaveNames) {
  EXPECT_EQ(device("cuda"), kCuda);
  EXPECT_EQ(device("cuda:0"), kCuda);
  EXPECT_THAT(error_of([] { device(concat("cuda:", cuda_device_count())); }), HasSubstr("is not available"));
  EXPECT_THAT(error_of([] {
                Tensor::empty({1}, {.device = {DeviceType::cuda, cuda_device_count()}});
              }),
              HasSubstr("is not available"));
}

TEST_F(CudaCore, CopiesThereAndBack) {
  for (DType dtype : kAllTypes) {
    for (const Shape& shape : {Shape{}, Shape{0, 3}, Shape{1031}, Shape{2, 3, 5, 7}, Shape{1 << 21}}) {
      SCOPED_TRACE(concat(dtype, " ", shape));
      const Tensor x = random_tensor(shape, {dtype}, 0, 100);
      const Tensor there = x.to(kCuda);
      EXPECT_EQ(there.device(), kCuda);
      EXPECT_EQ(bytes_of(there), bytes_of(x));
      EXPECT_EQ(bytes_of(there.clone()), bytes_of(x));
    }
  }
}

TEST_F(CudaCore, TheSourceOfACopyMayChangeAtOnce) {
  const Tensor x = Tensor::full({1 << 20}, 3);
  std::vector<Tensor> copies;
  for (int i = 0; i < 20; ++i) {
    x.fill_(i);
    copies.push_back(x.to(kCuda));
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(copies[i].slice((1 << 20) - 1, 1 << 20).item(), i);
}

TEST_F(CudaCore, ConvertsAsTheCpuDoes) {
  for (DType from : kAllTypes) {
    for (DType to : kAllTypes) {
      // Integers must fit; floats cover denormals, ties and overflow of the half types.
      const bool integer = !is_floating(to) || !is_floating(from);
      std::vector<double> values = {0, 1, 2, 100, 200.75, 255};
      if (!integer) {
        for (double v : {-0.0, 1e-7, 6e-8, 3e-8, 1.00048828125, 1.0009765625, 1.00390625, 65504., 65519.,
                         65520., 1e30, -1e39, kInf, -kInf, 1e-40, 0.1, 1 / 3.}) {
          values.push_back(v);
        }
      }
      const Tensor x = Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(from);
      EXPECT_EQ(bytes_of(x.to(kCuda).to(to)), bytes_of(x.to(to)))
          << to_string(from) << " to " << to_string(to);
      const Tensor random = random_tensor({4099}, {from}, integer ? 0 : -70000, integer ? 255 : 70000);
      EXPECT_EQ(bytes_of(random.to(kCuda).to(to)), bytes_of(random.to(to)))
          << to_string(from) << " to " << to_string(to);
    }
  }
  EXPECT_TRUE(std::isnan(Tensor::full({}, kNan, {.device = kCuda}).to(DType::float16).item()));
  EXPECT_TRUE(std::isnan(Tensor::full({}, kNan, {.device = kCuda}).to(DType::bfloat16).item()));
}

TEST_F(CudaCore, ChangesLayouts) {
  for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{3, 64, 33, 31}, Shape{3, 70, 18, 11}, Shape{1, 1, 4, 4},
                             Shape{5, 130, 1, 1}}) {
    for (DType dtype : kAllTypes) {
      SCOPED_TRACE(concat(dtype, " ", shape));
      const Tensor x = random_tensor(shape, {dtype}, 0, 200), there = x.to(kCuda);
      const Tensor nhwc = there.to(Layout::nhwc);
      EXPECT_EQ(bytes_of(nhwc), bytes_of(x.to(Layout::nhwc)));
      EXPECT_EQ(bytes_of(nhwc.to(Layout::nchw)), bytes_of(x));
      // Everything at once, in both directions.
      const Tensor up = Tensor::empty(shape, {DType::float32, kCuda, Layout::nhwc});
      up.copy_(x);
      EXPECT_EQ(up.to_vector<float>(), x.to_vector<float>());
      const Tensor down = Tensor::empty(shape, {DType::float64, {}, Layout::nhwc});
      down.copy_(there);
      EXPECT_EQ(down.to_vector<double>(), x.to_vector<double>());
    }
  }
}

TEST_F(CudaCore, FillsExactlyItsElements) {
  for (DType dtype : kAllTypes) {
    for (std::int64_t begin : {0, 1, 3, 8, 17}) {
      for (std::int64_t count : {1, 2, 7, 16, 33, 1000}) {
        const Tensor x = Tensor::full({1100}, 7, {dtype, kCuda});
        x.slice(begin, begin + count).fill_(3);
        const auto values = x.to_vector<double>();
        for (std::int64_t i = 0; i < 1100; ++i) {
          ASSERT_EQ(values[static_cast<std::size_t>(i)], i >= begin && i < begin + count ? 3 : 7)
              << to_string(dtype) << " [" << begin << ", " << begin + count << ") at " << i;
        }
      }
    }
  }
  EXPECT_EQ(Tensor::zeros({0}, {.device = kCuda}).to_vector<float>().size(), 0u);
}

TEST_F(CudaCore, RandomNumbersAreTheCpusBits) {
  for (const Shape& shape : {Shape{1}, Shape{3}, Shape{100003}, Shape{2, 3, 5, 7}}) {
    for (DType dtype : kFloatingTypes) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        if (layout == Layout::nhwc && shape.rank() != 4) continue;
        SCOPED_TRACE(concat(dtype, " ", shape, " ", layout));
        const auto draw = [&](Device device, auto f) {
          Generator generator(42);
          const Tensor x = Tensor::empty(shape, {dtype, device, layout});
          for (int i = 0; i < 3; ++i) f(x, generator);
          return bytes_of(x);
        };
        const auto both = [&](auto f) { EXPECT_EQ(draw(kCuda, f), draw(Device{}, f)); };
        both([](const Tensor& x, Generator& g) { uniform_(x, -0.3, 1.7, g); });
        both([](const Tensor& x, Generator& g) { normal_(x, 0.1, 2.3, g); });
      }
    }
  }
  const auto integers = [](Device device) {
    Generator generator(7);
    const Tensor x = Tensor::empty({10007}, {DType::int64, device});
    randint_(x, -1000, std::int64_t{1} << 40, generator);
    return bytes_of(x);
  };
  EXPECT_EQ(integers(kCuda), integers({}));
  // Elements that do not start at a multiple of four.
  const Tensor x = Tensor::zeros({1000}, {.device = kCuda}), y = Tensor::zeros({1000});
  Generator g(1), h(1);
  uniform_(x.slice(1, 998), 0, 1, g);
  uniform_(y.slice(1, 998), 0, 1, h);
  EXPECT_EQ(bytes_of(x), bytes_of(y));
}

TEST_F(CudaCore, FindsWhatIsNotFinite) {
  for (DType dtype : kFloatingTypes) {
    for (double bad : {kNan, kInf, -kInf}) {
      const Tensor x = Tensor::ones({70001}, {dtype, kCuda});
      EXPECT_TRUE(all_finite(x));
      x.slice(70000, 70001).fill_(bad);
      EXPECT_FALSE(all_finite(x));
    }
  }
}

TEST_F(CudaCore, MemoryIsCachedAndCounted) {
  { const Tensor warm = Tensor::empty({1 << 20}, {.device = kCuda}); }
  const MemoryStats before = memory_stats(kCuda);
  for (int i = 0; i < 100; ++i) {
    const Tensor x = Tensor::zeros({1 << 20}, {.device = kCuda});
    EXPECT_EQ(memory_stats(kCuda).in_use, before.in_use + (std::size_t{4} << 20));
  }
  const MemoryStats after = memory_stats(kCuda);
  EXPECT_EQ(after.device_allocations, before.device_allocations);
  EXPECT_EQ(after.allocations, before.allocations + 100);
  EXPECT_EQ(after.in_use, before.in_use);
}

TEST_F(CudaCore, GoesOnAfterRunningOutOfMemory) {
  const std::string error =
      error_of([] { Tensor::empty({std::int64_t{1} << 50}, {.dtype = DType::uint8, .device = kCuda}); });
  EXPECT_THAT(error, HasSubstr("cuda:0 allocator: out of memory: requested 1.00 PiB"));
  EXPECT_EQ(Tensor::full({3}, 2, {.device = kCuda}).to_vector<float>(), (std::vector<float>{2, 2, 2}));
}

TEST_F(CudaCore, StreamsOfTheUser) {
  const Context defaults(kCuda, nullptr);  // CUDA's default stream
  Tensor x;
  {
    const ContextScope scope(defaults);
    EXPECT_EQ(Context::current(kCuda).stream(), nullptr);
    x = Tensor::full({1000}, 5, {.device = kCuda});
    EXPECT_EQ(x.to_vector<float>()[999], 5);
  }
  EXPECT_NE(Context::current(kCuda).stream(), nullptr);
  synchronize(kCuda);
  EXPECT_EQ(x.to_vector<float>()[999], 5);
}

}  // namespace
}  // namespace tapedeck
