// The classic mistakes of transposed convolutions, each caught by a test of its name. Values are written out
// by hand from o + padding = i*stride + k*dilation. docs/mutations.md has what happened when each mistake was
// made.
#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "conv_paths.h"

namespace tapedeck::test {
namespace {

using ::testing::ElementsAre;

Tensor row(std::initializer_list<float> values) {
  return Tensor::from(values, {1, 1, 1, static_cast<std::int64_t>(values.size())});
}
Tensor column(std::initializer_list<float> values) {
  return Tensor::from(values, {1, 1, static_cast<std::int64_t>(values.size()), 1});
}
std::vector<float> values(const Variable& x) {
  return x.tensor().to_vector<float>();
}

/// Forward and both gradients of a call with the cotangent gy, along w and, turned by 90 degrees, along h.
void expect_call(std::initializer_list<float> x, std::initializer_list<float> w, ConvTranspose2dOptions o,
                 std::initializer_list<float> gy, const std::vector<float>& y, const std::vector<float>& gx,
                 const std::vector<float>& gw) {
  for_each_path([&] {
    for (const bool turned : {false, true}) {
      const auto make = turned ? column : row;
      const auto turn = [&](Size2& s) { s = turned ? Size2(s.w, s.h) : s; };
      ConvTranspose2dOptions options = o;
      for (Size2* s : {&options.stride, &options.padding, &options.output_padding, &options.dilation})
        turn(*s);
      const Variable vx = Variable::parameter(make(x)), vw = Variable::parameter(make(w));
      Tape tape;
      const Variable result = conv_transpose2d(vx, vw, {}, options);
      EXPECT_EQ(values(result), y) << (turned ? "h" : "w");
      const Variables g = tape.gradient(result, {vx, vw}, {.gradient = make(gy)});
      EXPECT_EQ(values(g[0]), gx) << (turned ? "h" : "w");
      EXPECT_EQ(values(g[1]), gw) << (turned ? "h" : "w");
    }
  });
}

TEST(ClassicMistake, FlippedKernel) {
  // One pixel paints the kernel as it stands.
  expect_call({2}, {1, 3, 5}, {}, {7, 11, 13}, {2, 6, 10}, {7 + 33 + 65}, {14, 22, 26});
  expect_call({2, 0}, {1, 3, 5}, {}, {7, 11, 13, 17}, {2, 6, 10, 0}, {7 + 33 + 65, 11 + 39 + 85},
              {14, 22, 26});
}

TEST(ClassicMistake, DroppedTap) {
  // Taps 1 and 3 reach the outputs between the strides: y = x0*w0, x0*w1, x0*w2 + x1*w0, x0*w3 + x1*w1, ...
  expect_call({1, 10}, {1, 2, 3, 4}, {.stride = {1, 2}}, {1, 2, 3, 4, 5, 6}, {1, 2, 13, 24, 30, 40},
              {1 + 4 + 9 + 16, 3 + 8 + 15 + 24}, {1 + 30, 2 + 40, 3 + 50, 4 + 60});
}

TEST(ClassicMistake, TruncatedDivision) {
  // One output, o = 0: tap k meets input i where 1 = 2i + k. Tap 2 would meet i = -1/2, which truncates to 0.
  expect_call({3}, {2, 5, 7}, {.stride = {1, 2}, .padding = {0, 1}}, {4}, {15}, {20}, {0, 12, 0});
  // Phase 1 of stride 2, dilation 3 has tap 1 at i = (o - 3)/2: o = 1 asks for i = -1, which there is not.
  expect_call({3, 4}, {2, 5}, {.stride = {1, 2}, .dilation = {1, 3}}, {1, 2, 3, 4, 5, 6},
              {6, 0, 8, 15, 0, 20}, {2 + 20, 6 + 30}, {3 + 12, 12 + 24});
  // Padding cuts off what lies before the first output: o = -2 and -1 are nowhere.
  expect_call({1, 10, 100}, {1, 2, 3}, {.padding = {0, 2}}, {1}, {1 * 3 + 10 * 2 + 100 * 1}, {3, 2, 1},
              {100, 10, 1});
  // The same i = -1 where the row or the image before lies in memory.
  for_each_path([] {
    const Tensor x = Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f, 8.f}, {2, 1, 2, 2});
    EXPECT_THAT(
        values(conv_transpose2d(x, row({2, 5}), {}, {.stride = {1, 2}, .dilation = {1, 3}})),
        ElementsAre(2, 0, 4, 5, 0, 10, 6, 0, 8, 15, 0, 20, 10, 0, 12, 25, 0, 30, 14, 0, 16, 35, 0, 40));
    EXPECT_THAT(
        values(conv_transpose2d(x, column({2, 5}), {}, {.stride = {2, 1}, .dilation = {3, 1}})),
        ElementsAre(2, 4, 0, 0, 6, 8, 5, 10, 0, 0, 15, 20, 10, 12, 0, 0, 14, 16, 25, 30, 0, 0, 35, 40));
  });
}

TEST(ClassicMistake, ShiftedByOutputPadding) {
  // The extra output is the last one, and gets the tap that reaches it.
  expect_call({1, 10}, {1, 2, 3}, {.stride = {1, 2}, .padding = {0, 1}, .output_padding = {0, 1}},
              {1, 2, 3, 4}, {2, 13, 20, 30}, {2 + 6, 2 + 6 + 12}, {20, 1 + 30, 2 + 40});
  expect_call({1}, {1, 2}, {.stride = {1, 3}, .output_padding = {0, 2}}, {1, 2, 3, 4}, {1, 2, 0, 0}, {5},
              {1, 2});
}

TEST(ClassicMistake, WeightReadAsOfAConvolution) {
  for_each_path([] {
    // w [ci=2,co=3]: y[co] = x0*w[0,co] + x1*w[1,co].
    const Tensor x = Tensor::from({1.f, 10.f}, {1, 2, 1, 1});
    const Tensor w = Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}, {2, 3, 1, 1});
    EXPECT_THAT(values(conv_transpose2d(x, w)), ElementsAre(41, 52, 63));
    // Two groups, w [ci=4,co/groups=1]: y0 from x0 and x1, y1 from x2 and x3.
    const Tensor x4 = Tensor::from({1.f, 10.f, 100.f, 1000.f}, {1, 4, 1, 1});
    const Tensor w4 = Tensor::from({1.f, 2.f, 3.f, 4.f}, {4, 1, 1, 1});
    EXPECT_THAT(values(conv_transpose2d(x4, w4, {}, {.groups = 2})), ElementsAre(21, 4300));
    // Two groups of one channel in and two out, w [ci=2,co/groups=2].
    const Tensor w2 = Tensor::from({1.f, 2.f, 3.f, 4.f}, {2, 2, 1, 1});
    EXPECT_THAT(values(conv_transpose2d(x, w2, {}, {.groups = 2})), ElementsAre(1, 2, 30, 40));
    // As square matrices both readings have legal shapes: only values tell.
    EXPECT_THAT(values(conv_transpose2d(x, w2)), ElementsAre(31, 42));
    EXPECT_THAT(values(conv2d(x, w2)), ElementsAre(21, 43));
    // The same of more than one pixel, in two groups: y0 = x0 + 10*3 and so on.
    const Tensor pixels = Tensor::from({1.f, 2.f, 10.f, 20.f, 100.f, 200.f, 1000.f, 2000.f}, {1, 4, 1, 2});
    const Tensor groups = Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f, 8.f}, {4, 2, 1, 1});
    const Variable vg = Variable::parameter(groups);
    Tape outer;
    const Variable many = conv_transpose2d(pixels, vg, {}, {.groups = 2});
    EXPECT_THAT(values(many), ElementsAre(31, 62, 42, 84, 7500, 15000, 8600, 17200));
    const Tensor ones = Tensor::from({1.f, 0.f, 0.f, 1.f, 1.f, 0.f, 0.f, 1.f}, {1, 4, 1, 2});
    EXPECT_THAT(values(outer.gradient(many, {vg}, {.gradient = ones})[0]),
                ElementsAre(1, 2, 10, 20, 100, 200, 1000, 2000));
    EXPECT_THAT(values(conv2d(pixels, groups, {}, {.groups = 2})),
                ElementsAre(21, 42, 43, 86, 6500, 13000, 8700, 17400));
    const Variable vw = Variable::parameter(w2);
    Tape tape;
    const Variable y = conv_transpose2d(x, vw);
    const Variables g = tape.gradient(y, {vw}, {.gradient = Tensor::from({3.f, 7.f}, {1, 2, 1, 1})});
    EXPECT_THAT(values(g[0]), ElementsAre(3, 7, 30, 70));
  });
}

TEST(ClassicMistake, IndexFormulaOfAConvolution) {
  // With stride 1 and padding 1 sizes agree; y[o] = sum of x[o + 1 - k]*w[k], not of x[o - 1 + k]*w[k].
  expect_call({1, 10, 100}, {1, 2, 3}, {.padding = {0, 1}}, {1, 2, 3}, {12, 123, 230}, {8, 14, 8},
              {10 + 200, 1 + 20 + 300, 2 + 30});
  // With stride 2 and a kernel of one tap the inputs lie at every second output.
  expect_call({1, 10, 100}, {2}, {.stride = {1, 2}}, {1, 2, 3, 4, 5}, {2, 0, 20, 0, 200}, {2, 6, 10},
              {1 + 30 + 500});
}

TEST(ClassicMistake, DilationLeftOutOfTheSize) {
  expect_call({1, 10}, {1, 2, 3}, {.dilation = {1, 3}}, {1, 2, 3, 4, 5, 6, 7, 8}, {1, 10, 0, 2, 20, 0, 3, 30},
              {1 + 8 + 21, 2 + 10 + 24}, {1 + 20, 4 + 50, 7 + 80});
  for_each_path([] {
    EXPECT_EQ(conv_transpose2d(Tensor::ones({1, 2, 3, 4}), Tensor::ones({2, 1, 2, 3}), {},
                               {.stride = {2, 1}, .dilation = {3, 2}})
                  .shape(),
              (Shape{1, 1, 8, 8}));
  });
}

TEST(ClassicMistake, OnlyBatchZero) {
  // Each image of a batch as it is alone, for few and many images, one pixel and many.
  for_each_path([] {
    for (std::int64_t n : {3, 30}) {
      for (std::int64_t width : {1, 2, 20}) {
        std::vector<float> v;
        for (std::int64_t i = 0; i < n * width; ++i) v.push_back(static_cast<float>(i * i % 17));
        const Tensor x = Tensor::from(v, {n, 1, 1, width});
        const ConvTranspose2dOptions options{.stride = {1, 2}, .padding = {0, 1}};
        const std::vector<float> y = values(conv_transpose2d(x, row({1, 2, 3}), {}, options));
        const Tensor gy = Tensor::from(y, {n, 1, 1, 2 * width - 1});
        const std::vector<float> gx =
            values(conv2d(gy, row({1, 2, 3}), {}, {.stride = {1, 2}, .padding = {0, 1}}));
        const std::vector<float> gw = values(conv_transpose2d_weight_grad(x, gy, {1, 3}, options));
        float middle = 0;  // tap 1 meets x[i] and y[2i]
        for (std::int64_t i = 0; i < n; ++i) {
          const std::size_t at = static_cast<std::size_t>(i * width),
                            to = static_cast<std::size_t>(i * (2 * width - 1));
          for (std::size_t p = 0; p < static_cast<std::size_t>(width); ++p) {
            ASSERT_EQ(y[to + 2 * p], 2 * v[at + p]) << i;
            const float left = p > 0 ? y[to + 2 * p - 1] : 0;
            const float right = p + 1 < static_cast<std::size_t>(width) ? y[to + 2 * p + 1] : 0;
            ASSERT_EQ(gx[at + p], left + 2 * y[to + 2 * p] + 3 * right) << i;
            middle += v[at + p] * y[to + 2 * p];
          }
        }
        EXPECT_EQ(gw[1], middle);
      }
    }
  });
  for_each_path([] {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const Tensor x = Tensor::from({1.f, 10.f, 100.f}, {3, 1, 1, 1}).to(layout);
      const Variable vx = Variable::parameter(x), w = Variable::parameter(row({1, 2}));
      Tape tape;
      const Variable y = conv_transpose2d(vx, w);
      EXPECT_THAT(values(y), ElementsAre(1, 2, 10, 20, 100, 200));
      const Variables g = tape.gradient(
          y, {vx, w}, {.gradient = Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}, {3, 1, 1, 2}).to(layout)});
      EXPECT_THAT(values(g[0]), ElementsAre(5, 11, 17));
      EXPECT_THAT(values(g[1]), ElementsAre(531, 642));
    }
  });
}

}  // namespace
}  // namespace tapedeck::test
