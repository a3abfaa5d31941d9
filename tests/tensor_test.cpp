#include <tapedeck/core/tensor.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/simd.h>

namespace tapedeck {
namespace {

using ::testing::ElementsAre;

TEST(Tensor, LayoutChangesTheBytesAndNotTheValues) {
  const Tensor x = Tensor::from({0.f, 1.f, 2.f, 3.f, 4.f, 5.f}, {1, 2, 1, 3});
  const Tensor y = x.to(Layout::nhwc);
  EXPECT_EQ(y.data<float>()[1], 3.f);
  EXPECT_EQ(y.to_vector<float>(), x.to_vector<float>());
  EXPECT_EQ(y.reshape({6}).to_vector<float>(), x.to_vector<float>());
  EXPECT_THAT(y.flat().to_vector<float>(), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_TRUE(y.flat().shares_storage(y));
}

TEST(Tensor, SliceAndReshapeShareBytes) {
  const Tensor x = Tensor::zeros({4, 3});
  const Tensor row = x.slice(1, 2).reshape({3});
  row.fill_(7);
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 0, 0, 7, 7, 7, 0, 0, 0, 0, 0, 0));
}

TEST(Tensor, RefusesBadShapes) {
  EXPECT_THROW(Shape({2, -1}), Error);
  EXPECT_THROW(Shape({std::int64_t{1} << 40, std::int64_t{1} << 40}), Error);
  EXPECT_THROW(Shape({0, std::int64_t{1} << 40, std::int64_t{1} << 40}), Error);
  EXPECT_THROW(Tensor::zeros({2, 3}).reshape({4, -1}), Error);
  EXPECT_THROW(Tensor::empty({2, 3}, {.layout = Layout::nhwc}), Error);
  EXPECT_THROW(Tensor::zeros({2}).data<double>(), Error);
}

TEST(Tensor, ReshapeRefusesSizesWhoseProductOverflows) {
  const Tensor x = Tensor::ones({2, 3});
  constexpr std::int64_t kHalf = std::int64_t{1} << 32;
  EXPECT_THROW((void)x.reshape({kHalf, kHalf, -1}), Error);          // 2^64 would be 0
  EXPECT_THROW((void)x.reshape({kHalf, kHalf + 1, 0, -1}), Error);   // hidden by a zero
  EXPECT_THROW((void)x.reshape({(kHalf << 30) + 3, 4, -1}), Error);  // 12 modulo 2^64
  EXPECT_THROW((void)Tensor::ones({12}).reshape({(kHalf << 30) + 3, 4, -1}), Error);
  EXPECT_THROW((void)x.reshape({-2, -3, -1}), Error);  // their product is 6
  EXPECT_THROW((void)x.reshape({-1, -1}), Error);
  EXPECT_EQ(x.reshape({3, -1}).shape(), Shape({3, 2}));
  EXPECT_EQ(x.reshape({-1, 6}).shape(), Shape({1, 6}));
}

/// What a pattern of bits of T is as a float.
template <class T>
float value_of(std::uint32_t bits) {
  T x;
  x.bits = static_cast<std::uint16_t>(bits);
  return static_cast<float>(x);
}

TEST(HalfTypes, EveryPatternSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float fh = value_of<float16>(bits), fb = value_of<bfloat16>(bits);
    if (!std::isnan(fh)) {
      EXPECT_EQ(float16(fh).bits, bits);
    }
    if (!std::isnan(fb)) {
      EXPECT_EQ(bfloat16(fb).bits, bits);
    }
    EXPECT_EQ(std::isnan(fh), std::isnan(static_cast<float>(float16(fh))));
    EXPECT_EQ(std::isnan(fb), std::isnan(static_cast<float>(bfloat16(fb))));
  }
}

TEST(HalfTypes, RoundToNearestEven) {
  EXPECT_EQ(static_cast<float>(float16(2049.f)), 2048.f);
  EXPECT_EQ(static_cast<float>(float16(2051.f)), 2052.f);
  EXPECT_EQ(static_cast<float>(float16(65519.f)), 65504.f);
  EXPECT_TRUE(std::isinf(static_cast<float>(float16(65520.f))));
  EXPECT_EQ(static_cast<float>(bfloat16(257.f)), 256.f);
  EXPECT_EQ(static_cast<float>(bfloat16(259.f)), 260.f);
}

/// Between each two positive neighbours, the last of which is infinity, which would be `overflow`.
template <class T>
void expect_nearest(std::uint32_t infinity, double overflow) {
  for (std::uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = value_of<T>(bits), high = bits + 1 == infinity ? overflow : value_of<T>(bits + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float sign : {1.f, -1.f}) {
      const std::uint32_t minus = sign < 0 ? 0x8000u : 0;
      EXPECT_EQ(T(sign * std::nextafter(middle, 0.f)).bits, bits | minus);
      EXPECT_EQ(T(sign * middle).bits, (bits + bits % 2) | minus);
      EXPECT_EQ(T(sign * std::nextafter(middle, std::numeric_limits<float>::infinity())).bits,
                (bits + 1) | minus);
    }
  }
}

TEST(HalfTypes, RoundToTheNearestOfEachTwoNeighbours) {
  expect_nearest<float16>(0x7c00, 0x1p16);
  expect_nearest<bfloat16>(0x7f80, 0x1p128);
}

TEST(HalfTypes, TensorsAreConvertedToTheSameBitsByEveryInstructionSet) {
  constexpr std::int64_t kCount = 65536 + 13;  // each pattern, and some that fill no vector
  const auto expect = [&]<class T>() {
    const Tensor half = Tensor::empty({kCount}, {.dtype = dtype_of<T>});
    const Tensor close = Tensor::empty({kCount});  // to halves: what is rounded
    std::vector<std::uint32_t> as_floats, as_halves;
    for (std::int64_t i = 0; i < kCount; ++i) {
      half.data<T>()[i].bits = static_cast<std::uint16_t>(i);
      const float value = static_cast<float>(half.data<T>()[i]);
      close.data<float>()[i] = value * 1.0007f;
      as_floats.push_back(std::bit_cast<std::uint32_t>(value));
      as_halves.push_back(T(close.data<float>()[i]).bits);
    }
    for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
      limit_instruction_set(set);
      if (instruction_set() != set) continue;  // the machine has less
      SCOPED_TRACE(to_string(set) + ", " + to_string(dtype_of<T>));
      const Tensor floats = half.to(DType::float32), halves = close.to(dtype_of<T>);
      for (std::size_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(floats.data<float>()[i]), as_floats[i]) << i;
        ASSERT_EQ(halves.data<T>()[i].bits, as_halves[i]) << i;
      }
    }
    limit_instruction_set(InstructionSet::avx512);
  };
  expect.operator()<float16>();
  expect.operator()<bfloat16>();
}

TEST(Tensor, RemembersItsLargestMagnitudeUntilItMayBeWritten) {
  const auto word = std::make_shared<unsigned>(7);
  const auto made = [&] {
    const Tensor x = Tensor::zeros({3, 4});
    x.set_largest(word, 0);
    return x;
  };
  const Tensor read = made();
  EXPECT_EQ(read.largest(0), word);
  EXPECT_EQ(read.read(), read.slice(0, 1).read());
  EXPECT_EQ(read.to_vector<float>(), std::vector<float>(12, 0));
  EXPECT_EQ(read.reshape({12}).largest(0), word);
  EXPECT_EQ(read.slice(0, 2).largest(0), nullptr);
  EXPECT_EQ(read.largest(1), nullptr) << "in a capture";
  EXPECT_EQ(read.largest(0), word);
  const std::vector<std::function<void(const Tensor&)>> writes = {
      [](const Tensor& x) { x.fill_(1); },
      [](const Tensor& x) {
        x.copy_(Tensor::ones({3, 4}));
      },
      [](const Tensor& x) { x.slice(1, 2).fill_(1); },
      [](const Tensor& x) {
        x.reshape({4, 3}).fill_(1);
      },
      [](const Tensor& x) { x.data<float>()[5] = 1; },
      [](const Tensor& x) { static_cast<float*>(x.slice(2, 3).raw())[0] = 1; }};
  for (const auto& write : writes) {
    const Tensor x = made();
    write(x);
    EXPECT_EQ(x.largest(0), nullptr);
  }
  EXPECT_EQ(read.clone().largest(0), nullptr);
  EXPECT_THROW(read.slice(0, 1).set_largest(word, 0), Error);
  EXPECT_THROW(Tensor::zeros({2}, {.dtype = DType::float64}).set_largest(word, 0), Error);
  EXPECT_EQ(Tensor().largest(0), nullptr);
}

}  // namespace
}  // namespace tapedeck
