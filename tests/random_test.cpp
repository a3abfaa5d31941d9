#include <tapedeck/core/random.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/parallel.h>
#include <tapedeck/core/random_math.h>

#include "errors.h"

namespace tapedeck {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DType kFloating[] = {DType::float64, DType::float32, DType::bfloat16, DType::float16};

/// FNV-1a of a tensor's bytes.
std::uint64_t hash(const Tensor& x) {
  std::uint64_t h = 0xcbf29ce484222325u;
  const auto* bytes = static_cast<const unsigned char*>(x.raw());
  for (std::size_t i = 0; i < x.bytes(); ++i) h = (h ^ bytes[i]) * 0x100000001b3u;
  return h;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

/// The largest distance between the empirical distribution of `values` and `cdf`, times sqrt(n): above
/// 1.95 in one of 1000 samples (Kolmogorov and Smirnov).
template <class F>
double kolmogorov_smirnov(std::vector<double> values, F cdf) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  double distance = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double expected = cdf(values[i]), i_ = static_cast<double>(i);
    distance = std::max({distance, (i_ + 1) / n - expected, expected - i_ / n});
  }
  return distance * std::sqrt(n);
}

double normal_cdf(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0));
}

template <class F>
double mean_of(const std::vector<double>& values, F f) {
  double sum = 0;
  for (double value : values) sum += f(value);
  return sum / static_cast<double>(values.size());
}

TEST(Philox, KnownAnswers) {  // kat_vectors of Random123: counter and key zero, all ones, digits of pi
  EXPECT_THAT(Philox::at(0, 0, 0).words, ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_THAT(Philox::at(ones, ones, ones).words,
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(Philox::at(0x299f31d0a4093822u, 0x85a308d3243f6a88u, 0x0370734413198a2eu).words,
              ElementsAre(0xd16cfe09u, 0x94fdcceb, 0x5001e420u, 0x24126ea1u));
}

TEST(RandomMath, LogAgreesWithTheLibrary) {
  Generator generator(1);
  for (double u : rand({20000}, {.dtype = DType::float64}, generator).to_vector<double>()) {
    for (double x : {u + 0x1p-60, 1 - u * 0x1p-20, std::ldexp(u + 0.5, -40), 1 + u * 0x1p-30, u * 1e6 + 1}) {
      EXPECT_NEAR(portable_log(x), std::log(x), 4e-16 * std::abs(std::log(x)) + 1e-300) << x;
    }
  }
  EXPECT_EQ(portable_log(1), 0);
}

TEST(RandomMath, CosAndSinAgreeWithTheLibrary) {
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const std::uint64_t bits = i * 0x9e3779b97f4a7c15u;
    const long double angle = static_cast<long double>(bits) * 0x1.921fb54442d18469898p-62L;
    double cosine, sine;
    portable_cos_sin(bits, cosine, sine);
    EXPECT_NEAR(cosine, static_cast<double>(std::cos(angle)), 3e-16);
    EXPECT_NEAR(sine, static_cast<double>(std::sin(angle)), 3e-16);
  }
  for (std::uint64_t quarter = 0; quarter < 4; ++quarter) {
    double cosine, sine;
    portable_cos_sin(quarter << 62, cosine, sine);
    EXPECT_EQ(cosine, quarter == 0 ? 1 : quarter == 2 ? -1 : 0);
    EXPECT_EQ(sine, quarter == 1 ? 1 : quarter == 3 ? -1 : 0);
  }
}

TEST(RandomMath, MultiplyHigh) {
  const std::uint64_t ones = ~std::uint64_t{0};
  EXPECT_EQ(multiply_high(ones, ones), ones - 1);
  EXPECT_EQ(multiply_high(ones, 2), 1u);
  for (std::uint64_t i = 1; i < 1000; ++i) {
    const std::uint64_t a = i * 0x9e3779b97f4a7c15u, b = i * i * 0xd1b54a32d192ed03u;
    EXPECT_EQ(multiply_high(a, b), static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64));
  }
}

template <class T>
void check_stays_below(double low, double high) {
  const double made = convert<double>(uniform_between<T>(low, high, ~std::uint64_t{0}));
  EXPECT_LT(made, high);
  EXPECT_GE(made, low);
  EXPECT_EQ(convert<double>(uniform_between<T>(low, high, 0)), low);
}

TEST(RandomMath, UniformNeverReachesTheUpperBound) {
  for (auto [low, high] : {std::pair{0., 1.}, {1., 2.}, {-1., 0.}, {-4., -2.}, {-1., 1.}, {-0.5, 0.125}}) {
    check_stays_below<double>(low, high);
    check_stays_below<float>(low, high);
    check_stays_below<bfloat16>(low, high);
    check_stays_below<float16>(low, high);
  }
  EXPECT_EQ(uniform_between<float>(3, 3, ~std::uint64_t{0}), 3);
}

// The numbers are part of the library's behaviour: every compiler, device and version makes these bits.
TEST(Random, BitsArePinned) {
  std::map<DType, std::pair<std::uint64_t, std::uint64_t>> expected{
      {DType::float64, {0x995657ebbdfb2cf3u, 0x68976f7449c60f66u}},
      {DType::float32, {0x2fdd5486dcb2747bu, 0xef1d190bdcaad590u}},
      {DType::bfloat16, {0xb19efd8e9a532ae1u, 0xc2ed5dd913f03985u}},
      {DType::float16, {0xeddd3fc8755a9faeu, 0x90dac4492e4c44abu}}};
  for (DType dtype : kFloating) {
    Generator generator(12345);
    const Tensor u = Tensor::empty({4099}, {.dtype = dtype}), z = Tensor::empty({4099}, {.dtype = dtype});
    uniform_(u, -0.75, 1.5, generator);
    normal_(z, 0.25, 2, generator);
    EXPECT_EQ(hash(u), expected[dtype].first) << "uniform " << to_string(dtype);
    EXPECT_EQ(hash(z), expected[dtype].second) << "normal " << to_string(dtype);
  }
}

TEST(Random, SameBitsForEveryThreadCount) {
  const int before = num_threads();
  for (DType dtype : kFloating) {
    std::vector<Tensor> first;
    for (int threads : {1, 2, 3, 7}) {
      set_num_threads(threads);
      Generator generator(5);
      const std::vector<Tensor> made{rand({100003}, {.dtype = dtype}, generator),
                                     randn({100003}, {.dtype = dtype}, generator)};
      if (first.empty()) first = made;
      EXPECT_TRUE(same_bits(made[0], first[0]) && same_bits(made[1], first[1])) << threads;
    }
  }
  set_num_threads(before);
}

TEST(Random, AnElementDependsOnItsIndexAlone) {
  for (DType dtype : kFloating) {
    Generator a(3), b(3);
    const Tensor small = randn({5}, {.dtype = dtype}, a), large = randn({7, 9}, {.dtype = dtype}, b);
    EXPECT_TRUE(same_bits(small, large.reshape({63}).slice(0, 5)));
    Generator c(3), d(3);
    const Tensor nchw = randn({2, 3, 5, 4}, {.dtype = dtype}, c);
    const Tensor nhwc = randn({2, 3, 5, 4}, {.dtype = dtype, .layout = Layout::nhwc}, d);
    EXPECT_EQ(nhwc.layout(), Layout::nhwc);
    EXPECT_EQ(nhwc.to_vector<double>(), nchw.to_vector<double>());
  }
}

TEST(Random, FewerBitsAreTheSameNumbersRounded) {
  for (bool normal : {false, true}) {
    std::map<DType, std::vector<double>> made;
    for (DType dtype : kFloating) {
      Generator generator(11);
      const Tensor x = Tensor::empty({9999}, {.dtype = dtype});
      normal ? normal_(x, 0, 1, generator) : uniform_(x, -2, 1, generator);
      made[dtype] = x.to_vector<double>();
    }
    for (std::size_t i = 0; i < 9999; ++i) {
      const double x = made[DType::float64][i], y = made[DType::float32][i];
      EXPECT_NEAR(y, x, 1.5e-6);
      EXPECT_NEAR(made[DType::bfloat16][i], y, std::abs(y) * 0x1p-8);
      EXPECT_NEAR(made[DType::float16][i], y, std::abs(y) * 0x1p-11 + 0x1p-25);
    }
  }
}

TEST(Random, UniformIsUniform) {
  for (DType dtype : kFloating) {
    Generator generator(2);
    const std::vector<double> u = rand({1 << 16}, {.dtype = dtype}, generator).to_vector<double>();
    EXPECT_GE(*std::min_element(u.begin(), u.end()), 0);
    EXPECT_LT(*std::max_element(u.begin(), u.end()), 1);
    EXPECT_NEAR(mean_of(u, [](double x) { return x; }), 0.5, 4e-3);
    EXPECT_NEAR(mean_of(u, [](double x) { return (x - 0.5) * (x - 0.5); }), 1. / 12, 2e-3);
    // The steps of the half types are visible at this sample size; they are rounded float32 numbers.
    if (size_of(dtype) >= 4) {
      EXPECT_LT(kolmogorov_smirnov(u, [](double x) { return x; }), 1.95);
    }
  }
}

TEST(Random, NormalIsNormal) {
  for (DType dtype : kFloating) {
    Generator generator(4);
    const std::vector<double> z = randn({1 << 17}, {.dtype = dtype}, generator).to_vector<double>();
    const auto moment = [&](int k) { return mean_of(z, [k](double x) { return std::pow(x, k); }); };
    EXPECT_NEAR(moment(1), 0, 0.01);
    EXPECT_NEAR(moment(2), 1, 0.015);
    EXPECT_NEAR(moment(3), 0, 0.04);
    EXPECT_NEAR(moment(4), 3, 0.12);
    EXPECT_NEAR(mean_of(z, [](double x) { return std::abs(x) > 3; }), 0.0027, 5e-4);
    if (size_of(dtype) >= 4) {
      EXPECT_LT(kolmogorov_smirnov(z, normal_cdf), 1.95);
    }
  }
  Generator generator(4);
  const Tensor x = Tensor::empty({1 << 16});
  normal_(x, -3, 0.5, generator);
  EXPECT_LT(kolmogorov_smirnov(x.to_vector<double>(), [](double v) { return normal_cdf((v + 3) / 0.5); }),
            1.95);
}

TEST(Random, NeighboursDrawsAndSeedsAreUncorrelated) {
  constexpr std::int64_t kCount = 1 << 16;
  const auto correlation = [](const std::vector<double>& a, const std::vector<double>& b, std::size_t lag) {
    double sum = 0;
    for (std::size_t i = lag; i < a.size(); ++i) sum += a[i] * b[i - lag];
    return sum / static_cast<double>(a.size());
  };
  Generator one(1), two(2);
  const auto a = randn({kCount}, {}, one).to_vector<double>(),
             next = randn({kCount}, {}, one).to_vector<double>();
  const auto other = randn({kCount}, {}, two).to_vector<double>();
  const auto squares = [](std::vector<double> x) {
    for (double& v : x) v = (v * v - 1) / std::sqrt(2.0);
    return x;
  };
  for (std::size_t lag = 1; lag <= 5; ++lag) {
    EXPECT_NEAR(correlation(a, a, lag), 0, 0.016);
    EXPECT_NEAR(correlation(squares(a), squares(a), lag), 0, 0.016);
  }
  EXPECT_NEAR(correlation(a, next, 0), 0, 0.016);
  EXPECT_NEAR(correlation(a, other, 0), 0, 0.016);
}

TEST(Random, IntegersCoverTheirRangeEvenly) {
  Generator generator(6);
  const Tensor x = Tensor::empty({70000}, {.dtype = DType::int64});
  randint_(x, -3, 4, generator);
  std::map<std::int64_t, double> counts;
  for (std::int64_t v : x.to_vector<std::int64_t>()) ++counts[v];
  ASSERT_EQ(counts.size(), 7u);
  EXPECT_EQ(counts.begin()->first, -3);
  EXPECT_EQ(counts.rbegin()->first, 3);
  double chi2 = 0;
  for (auto [value, n] : counts) chi2 += (n - 10000) * (n - 10000) / 10000;
  EXPECT_LT(chi2, 22.5);  // 6 degrees of freedom, 1 in 1000

  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHigh = std::numeric_limits<std::int64_t>::max();
  randint_(x, kLow, kHigh, generator);
  std::vector<double> scaled;
  for (std::int64_t v : x.to_vector<std::int64_t>()) scaled.push_back(static_cast<double>(v) * 0x1p-64 + 0.5);
  EXPECT_LT(kolmogorov_smirnov(scaled, [](double v) { return v; }), 1.95);
}

TEST(Random, EveryOrderIsEquallyLikely) {
  Generator generator(7);
  std::map<std::vector<std::int64_t>, double> counts;
  for (int i = 0; i < 24000; ++i) ++counts[randperm(4, generator).to_vector<std::int64_t>()];
  ASSERT_EQ(counts.size(), 24u);
  double chi2 = 0;
  for (auto [order, n] : counts) chi2 += (n - 1000) * (n - 1000) / 1000;
  EXPECT_LT(chi2, 49.7);  // 23 degrees of freedom, 1 in 1000

  auto order = randperm(1001, generator).to_vector<std::int64_t>();
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < 1001; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  EXPECT_EQ(randperm(0, generator).count(), 0);
}

TEST(Random, EachFilledTensorTakesOneDraw) {
  Generator generator(8);
  (void)rand({3, 0}, {}, generator);
  (void)randn({100}, {}, generator);
  (void)randperm(5, generator);
  EXPECT_EQ(generator.offset(), 3u);
  const Tensor a = randn({4}, {}, generator);
  generator.set_state(8, 3);
  EXPECT_TRUE(same_bits(randn({4}, {}, generator), a));

  manual_seed(8);
  default_generator().set_state(8, 3);
  EXPECT_TRUE(same_bits(randn({4}), a));
  manual_seed(0);
  EXPECT_EQ(default_generator().offset(), 0u);
}

TEST(Random, RefusesBadArguments) {
  const Tensor x = Tensor::zeros({3}), half = Tensor::zeros({3}, {.dtype = DType::float16});
  const Tensor integers = Tensor::zeros({3}, {.dtype = DType::int64});
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_THAT(error_of([&] { uniform_(integers, 0, 1); }),
              HasSubstr("uniform_: x is int64; legal are float64"));
  EXPECT_THAT(error_of([&] { uniform_(Tensor(), 0, 1); }), HasSubstr("uniform_: x is undefined"));
  EXPECT_THAT(error_of([&] { uniform_(x, 2, 1); }), HasSubstr("uniform_: low 2 and high 1 are not legal"));
  EXPECT_THAT(error_of([&] { uniform_(half, 0, 1e5); }), HasSubstr("finite in float16"));
  EXPECT_THAT(error_of([&] { normal_(x, 0, -1); }), HasSubstr("normal_: stddev -1 is not legal"));
  EXPECT_THAT(error_of([&] { normal_(x, inf, 1); }), HasSubstr("normal_: mean inf is not legal"));
  EXPECT_THAT(error_of([&] { randint_(x, 0, 2); }), HasSubstr("randint_: x is float32; legal is int64"));
  EXPECT_THAT(error_of([&] { randint_(integers, 2, 2); }), HasSubstr("low 2 and high 2"));
  EXPECT_THAT(error_of([&] { randperm(-1); }), HasSubstr("randperm: count -1"));
  EXPECT_THAT(x.to_vector<float>(), ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace tapedeck
