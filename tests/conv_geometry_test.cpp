// The geometry's formulas against searches over all positions.
#include <tapedeck/ops/conv_transpose2d_geometry.h>

#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace tapedeck {
namespace {

using Ints = std::vector<std::int64_t>;

/// Calls f for every small axis with results, and some of the sizes below zero left out.
template <class F>
void for_each_axis(F f) {
  for (std::int64_t in = 1; in <= 4; ++in)
    for (std::int64_t kernel = 1; kernel <= 5; ++kernel)
      for (std::int64_t stride = 1; stride <= 6; ++stride)
        for (std::int64_t dilation = 1; dilation <= 6; ++dilation)
          for (std::int64_t padding = 0; padding <= 5; ++padding)
            for (std::int64_t extra : {std::int64_t{0}, std::int64_t{1}, std::max(stride, dilation) - 1}) {
              const std::int64_t out = (in - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1;
              if (out < 1) continue;
              f(ConvAxis{in, out, kernel, stride, padding, dilation});
            }
}

TEST(ConvGeometry, PositionsMeetWhereTheRelationHolds) {
  for_each_axis([](const ConvAxis& a) {
    std::int64_t pairs = 0;
    for (std::int64_t k = 0; k < a.kernel; ++k) {
      Ints inputs;  // that tap k takes to an output
      for (std::int64_t i = 0; i < a.in; ++i) {
        for (std::int64_t o = 0; o < a.out; ++o) {
          if (o + a.padding != i * a.stride + k * a.dilation) continue;
          inputs.push_back(i);
          ASSERT_EQ(a.output(i, k), o);
          ASSERT_EQ(a.input(o, k), i);
        }
      }
      pairs += static_cast<std::int64_t>(inputs.size());
      ASSERT_EQ(a.input_end(k) - a.input_begin(k), static_cast<std::int64_t>(inputs.size()));
      if (!inputs.empty()) {
        ASSERT_EQ(a.input_begin(k), inputs.front());
        ASSERT_EQ(a.input_end(k), inputs.back() + 1);
      }
    }
    ASSERT_EQ(a.pairs(), pairs);
    for (std::int64_t i = 0; i < a.in; ++i) {
      Ints taps;
      for (std::int64_t k = 0; k < a.kernel; ++k) {
        const std::int64_t o = i * a.stride + k * a.dilation - a.padding;
        if (o >= 0 && o < a.out) taps.push_back(k);
      }
      ASSERT_EQ(a.tap_end(i) - a.tap_begin(i), static_cast<std::int64_t>(taps.size()));
      if (!taps.empty()) {
        ASSERT_EQ(a.tap_begin(i), taps.front());
      }
    }
  });
}

TEST(ConvGeometry, OutputsThatNothingReachesHaveNoInput) {
  for_each_axis([](const ConvAxis& a) {
    for (std::int64_t o = 0; o < a.out; ++o) {
      for (std::int64_t k = 0; k < a.kernel; ++k) {
        bool reached = false;
        for (std::int64_t i = 0; i < a.in; ++i) reached |= o + a.padding == i * a.stride + k * a.dilation;
        ASSERT_EQ(a.input(o, k) >= 0, reached);
      }
    }
  });
}

TEST(ConvGeometry, PhasesPartitionOutputsAndTaps) {
  for_each_axis([](const ConvAxis& a) {
    std::multiset<std::int64_t> outputs, taps;
    for (std::int64_t phase = 0; phase < a.stride; ++phase) {
      for (std::int64_t q = a.q_begin(phase); q < a.q_end(phase); ++q) {
        const std::int64_t o = a.output_at(q, phase);
        outputs.insert(o);
        ASSERT_EQ(o + a.padding, q * a.stride + phase);
        ASSERT_EQ(a.phase_of_output(o), phase);
      }
      Ints expected;  // taps that lead to outputs of the phase from some integer input, even one outside
      for (std::int64_t k = 0; k < a.kernel; ++k) {
        for (std::int64_t i = -40; i <= 40; ++i) {
          if (i * a.stride + k * a.dilation == phase) expected.push_back(k);
        }
      }
      ASSERT_EQ(a.taps(phase), static_cast<std::int64_t>(expected.size()));
      for (std::size_t j = 0; j < expected.size(); ++j) {
        const std::int64_t k = a.first_tap(phase) + static_cast<std::int64_t>(j) * a.tap_step();
        ASSERT_EQ(k, expected[j]);
        ASSERT_EQ(a.phase_of_tap(k), phase);
        ASSERT_EQ(k * a.dilation, a.delta(k) * a.stride + phase);  // tap k reads input q - delta(k)
        if (j > 0) {
          ASSERT_EQ(a.delta(k) - a.delta(k - a.tap_step()), a.input_step());
        }
        taps.insert(k);
      }
      if (phase % std::gcd(a.stride, a.dilation) != 0) {
        ASSERT_EQ(a.taps(phase), 0);
      }
    }
    ASSERT_EQ(outputs.size(), static_cast<std::size_t>(a.out));
    ASSERT_EQ(*outputs.begin(), 0);
    ASSERT_EQ(*outputs.rbegin(), a.out - 1);
    ASSERT_EQ(std::set<std::int64_t>(outputs.begin(), outputs.end()).size(), outputs.size());
    ASSERT_EQ(taps.size(), static_cast<std::size_t>(a.kernel));
    ASSERT_EQ(std::set<std::int64_t>(taps.begin(), taps.end()).size(), taps.size());
  });
}

TEST(ConvGeometry, LargeParametersDoNotOverflow) {
  const std::int64_t large = 2147483647;
  const ConvAxis a{.in = 2, .out = 3, .kernel = 2, .stride = large, .padding = 0, .dilation = large - 1};
  EXPECT_EQ(a.common(), 1);
  EXPECT_EQ(a.first_tap(large - 1), 1);
  EXPECT_EQ(a.first_tap(1), 2);  // none
  EXPECT_EQ(a.output(1, 1), 2 * large - 1);
}

Tensor tensor(const Shape& shape) {
  return Tensor::zeros(shape);
}

TEST(ConvGeometry, SizesAreThoseOfTheFormula) {
  const auto g = conv_transpose2d_geometry(
      tensor({2, 6, 7, 5}), tensor({6, 4, 3, 2}), tensor({8}),
      {.stride = {2, 3}, .padding = {1, 0}, .output_padding = {1, 2}, .dilation = {2, 1}, .groups = 2});
  EXPECT_EQ(g.y_shape(), (Shape{2, 8, 16, 16}));  // 6*2 - 2 + 2*2 + 1 + 1, 4*3 + 1*1 + 2 + 1
  EXPECT_EQ(g.x_shape(), (Shape{2, 6, 7, 5}));
  EXPECT_EQ(g.weight_shape(), (Shape{6, 4, 3, 2}));
  EXPECT_EQ(conv_transpose2d_geometry(tensor({6, 7, 5}), tensor({6, 4, 3, 2}), {}, {}).y_shape(),
            (Shape{4, 9, 6}));
  EXPECT_EQ(conv2d_geometry(tensor({2, 8, 16, 16}), tensor({6, 4, 3, 2}), {},
                            {.stride = {2, 3}, .padding = {1, 0}, .dilation = {2, 1}, .groups = 2})
                .x_shape(),
            (Shape{2, 6, 7, 5}));
}

TEST(ConvGeometry, OutputSizeTakesThePlaceOfOutputPadding) {
  const Tensor x = tensor({2, 4, 5, 5}), w = tensor({4, 3, 3, 3});
  ConvTranspose2dOptions o{.stride = 2, .padding = 1, .output_padding = 7, .dilation = 2};
  for (const Ints& size : {Ints{12, 11}, Ints{2, 3, 12, 11}, Ints{9, 9, 12, 11}}) {
    o.output_size = size;  // least is 4*2 - 2 + 2*2 + 1 = 11
    EXPECT_EQ(conv_transpose2d_geometry(x, w, {}, o).y_shape(), (Shape{2, 3, 12, 11}));
  }
  o.output_size = {11, 12};
  EXPECT_EQ(conv_transpose2d_geometry(tensor({4, 5, 5}), w, {}, o).y_shape(), (Shape{3, 11, 12}));
}

}  // namespace
}  // namespace tapedeck
