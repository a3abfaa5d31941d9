// The fast kernels against the reference with real numbers; the same bits for every number of threads; half
// types; what is written and what is not.
#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <thread>
#include <vector>

#include <tapedeck/ops/conv/sum_parts.h>

#include "conv_cases.h"
#include "conv_paths.h"
#include "op_support.h"

namespace tapedeck::test {
namespace {

/// Hands out memory full of NaNs, and looks whether what lies behind it is still as it was.
class PoisonAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes, Stream stream) override {
    if (bytes == 0) return nullptr;
    void* memory = below_.allocate(bytes + kBehind, stream);
    std::memset(memory, 0xff, bytes + kBehind);
    return memory;
  }
  void record_stream(void* pointer, Stream stream) override { below_.record_stream(pointer, stream); }
  void deallocate(void* pointer, std::size_t bytes, Stream stream) noexcept override {
    if (pointer == nullptr) return;
    const auto* behind = static_cast<const unsigned char*>(pointer) + bytes;
    EXPECT_TRUE(std::all_of(behind, behind + kBehind, [](unsigned char byte) { return byte == 0xff; }));
    below_.deallocate(pointer, bytes + kBehind, stream);
  }

 private:
  static constexpr std::size_t kBehind = 1 << 14;
  Allocator& below_ = Context::current(Device{}).allocator();
};

/// The reference's loops would take most of the time under sanitizers: fast ones stand for them there.
constexpr ConvAlgorithm kExpected = kSanitized ? ConvAlgorithm::automatic : ConvAlgorithm::reference;

void expect_fast_equals_reference(const LayerCase& c) {
  set_conv_algorithm(kExpected);
  const Results expected = run(c, Layout::nchw, DType::float64);
  for (DType dtype : {DType::float32, DType::float64}) {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      const double tolerance = dtype == DType::float32 ? 1e-5 : 1e-13;
      for_each_path_of_many_cases([&] {
        SCOPED_TRACE(std::string(c.name) + " " + to_string(layout) + " " + to_string(dtype));
        const Results got = run(c, layout, dtype);
        EXPECT_LT(difference(got.y, expected.y), tolerance);
        EXPECT_LT(difference(got.gx, expected.gx), tolerance);
        EXPECT_LT(difference(got.gw, expected.gw), tolerance);
        EXPECT_LT(difference(got.gb, expected.gb), tolerance);
      });
    }
  }
}

TEST(ConvKernels, FastEqualsReference) {
  for (const LayerCase& c : kLayerCases) expect_fast_equals_reference(c);
}

TEST(ConvKernels, RowsThatNoTapReachesAreLeftOut) {  // each third at least, of 32 pixels and more
  for (const LayerCase& c :
       {LayerCase{
            "", {2, 24, 5, 13}, {24, 10, 3, 3}, {.stride = 3, .padding = {4, 2}, .dilation = 3, .groups = 2}},
        LayerCase{"", {2, 20, 70, 16}, {20, 18, 1, 3}, {.stride = {4, 3}, .padding = {0, 1}}},
        LayerCase{
            "", {2, 40, 7, 40}, {40, 3, 2, 1}, {.stride = {6, 1}, .padding = {2, 0}, .dilation = {3, 1}}},
        LayerCase{"",
                  {3, 8, 5, 12},
                  {8, 2, 2, 3},
                  {.stride = 3, .padding = {1, 0}, .dilation = {6, 1}, .groups = 4}}})
    expect_fast_equals_reference(c);
}

TEST(ConvKernels, RowsOfPlanesAreWholeVectors) {  // where widths are odd and borders wide; of several images
  for (const LayerCase& c :
       {LayerCase{"",
                  {3, 16, 9, 137},
                  {16, 2, 3, 5},
                  {.stride = {2, 1}, .padding = {1, 8}, .dilation = {1, 4}, .groups = 16}},
        LayerCase{
            "", {2, 6, 5, 131}, {6, 3, 3, 4}, {.stride = {1, 2}, .padding = {1, 5}, .dilation = {1, 3}}}})
    expect_fast_equals_reference(c);
}

// Depthwise rows of stride 2 in columns of one vector or two, the last of which may meet those before; in
// bands, if large; rows of x that share rows of y and those that do not; several images in a part of the
// sums.
TEST(ConvKernels, DepthwiseRowsOfAllWidthsAndHeights) {
  const ConvTranspose2dOptions two{.stride = 2, .padding = 1, .groups = 2};
  for (std::int64_t width = 1; width < 70; width += width < 34 ? 1 : 5) {
    expect_fast_equals_reference({"widths", {1, 2, 5, width}, {2, 1, 4, 4}, two});
  }
  for (const LayerCase& c :
       {LayerCase{"bands", {2, 2, 71, 151}, {2, 1, 4, 4}, two},
        LayerCase{"5 taps", {2, 2, 33, 56}, {2, 1, 5, 5}, {.stride = 2, .padding = 2, .groups = 2}},
        LayerCase{"images", {35, 2, 9, 20}, {2, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 2}},
        LayerCase{
            "stride 1", {1, 2, 20, 40}, {2, 1, 4, 4}, {.stride = {1, 2}, .padding = {2, 1}, .groups = 2}},
        LayerCase{"stride 3", {1, 2, 20, 40}, {2, 1, 4, 4}, {.stride = {3, 2}, .padding = 1, .groups = 2}},
        LayerCase{"apart", {1, 2, 9, 30}, {2, 1, 2, 4}, {.stride = {3, 2}, .padding = {0, 1}, .groups = 2}},
        LayerCase{"dilation 2, shared",
                  {1, 2, 17, 37},
                  {2, 1, 4, 3},
                  {.stride = 2, .padding = {3, 1}, .dilation = {2, 1}, .groups = 2}},
        LayerCase{"dilation 3, not shared",
                  {1, 2, 17, 37},
                  {2, 1, 3, 3},
                  {.stride = 2, .padding = {2, 1}, .dilation = {3, 1}, .groups = 2}}}) {
    expect_fast_equals_reference(c);
  }
}

TEST(ConvKernels, DeepLayersTakeManyTilesAtATime) {  // of several images, or of fewer for many threads
  const LayerCase c{"", {13, 256, 4, 3}, {256, 224, 4, 4}, {.stride = 2, .padding = 1}};
  const int before = num_threads();
  set_conv_algorithm(kExpected);
  const Results expected = run(c, Layout::nchw, DType::float64);
  set_conv_algorithm(ConvAlgorithm::winograd);
  Results alone;
  for (int threads : {1, 2, 5}) {
    set_num_threads(threads);
    const Results got = run(c, Layout::nchw, DType::float32);
    EXPECT_LT(difference(got.y, expected.y), 1e-5);
    EXPECT_LT(difference(got.gx, expected.gx), 1e-5);
    if (threads == 1) alone = got;
    EXPECT_TRUE(same_bits(got.y, alone.y));
    EXPECT_TRUE(same_bits(got.gx, alone.gx));
  }
  set_conv_algorithm(ConvAlgorithm::automatic);
  set_num_threads(before);
}

// Tiny maps of many images: tiles go over images, of which few threads have parts of their own and many share
// copies. Of the last two, one image is left to share after the first 47, and bands are copied.
const LayerCase kTilesOverImages[] = {
    {"over images", {67, 20, 3, 4}, {20, 24, 3, 3}, {.stride = 2, .padding = 1}},
    {"of groups", {131, 32, 2, 2}, {32, 20, 3, 2}, {.groups = 2}},
    {"thin", {70, 48, 3, 3}, {48, 2, 4, 4}, {.stride = 2, .padding = 1}},
    {"channelwise", {66, 24, 3, 3}, {24, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 24}},
    {"one is left", {48, 16, 7, 7}, {16, 113, 2, 2}, {.stride = 2}},
    {"bands", {8, 16, 7, 7}, {16, 651, 2, 2}, {.stride = 2}}};

TEST(ConvKernels, TilesOverImages) {
  const int before = num_threads();
  for (const int threads : {1, 8}) {
    if (kSanitized && threads == 1) continue;  // what many threads do is more
    set_num_threads(threads);
    for (const LayerCase& c : kTilesOverImages) expect_fast_equals_reference(c);
  }
  set_num_threads(before);
}

// From 16 MB on, by whole lines, wherever rows begin; stream_row_test.cpp has the rest of what rows can be.
TEST(ConvKernels, LargeResultsGoPastTheCaches) {
  PoisonAllocator poison;
  const Context context(Device{}, nullptr, poison);
  for (const LayerCase& c :
       {LayerCase{"", {2, 4, 400, 400}, {4, 1, 4, 4}, {.stride = 2, .padding = 1, .groups = 4}},
        LayerCase{"", {2, 4, 400, 397}, {4, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 4}},
        LayerCase{"", {2, 3, 400, 399}, {3, 4, 3, 3}, {.stride = 2}},
        LayerCase{"",
                  {3, 8, 130, 130},
                  {8, 8, 3, 5},
                  {.stride = {2, 3}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2}},
        LayerCase{"", {4, 3, 80, 81}, {3, 9, 3, 3}, {.stride = 5, .padding = 1, .dilation = 2}},
        LayerCase{"", {7, 5, 300, 517}, {5, 4, 3, 3}, {.padding = 1}},
        LayerCase{"", {8, 1, 300, 301}, {1, 6, 3, 3}, {}}}) {
    manual_seed(3);
    const Variable x = randn(c.x), w = randn(c.w), b = randn({c.w[1] * c.options.groups});
    const auto forward = [&](ConvAlgorithm algorithm) {
      set_conv_algorithm(algorithm);
      return conv_transpose2d(x, w, b, c.options, 0.2).tensor();
    };
    const Tensor expected = kSanitized ? Tensor() : forward(ConvAlgorithm::reference);
    const ContextScope scope(context);
    const auto expect = [&](ConvAlgorithm algorithm) {
      const Tensor y = forward(algorithm);
      EXPECT_GE(y.bytes(), 16U << 20);
      if (kSanitized) return;
      EXPECT_LT(difference(y, expected), 1e-5)
          << to_string(instruction_set()) << ", " << to_string(algorithm) << ", " << to_string(c.x);
    };
    for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
      limit_instruction_set(set);
      if (instruction_set() != set) continue;
      expect(ConvAlgorithm::planes);
      expect(ConvAlgorithm::automatic);
    }
    set_conv_algorithm(ConvAlgorithm::automatic);
  }
}

TEST(ConvKernels, EachRectifiesItsResults) {
  const auto expect = [](const Variable& fused, const Variable& bare, double slope) {
    const Variable apart = slope == 0 ? relu(bare) : leaky_relu(bare, slope);
    EXPECT_TRUE(same_bits(fused.tensor(), apart.tensor()));
  };
  for (const LayerCase& c : kLayerCases) {
    const ConvTranspose2dOptions& o = c.options;
    const Conv2dOptions plain{o.stride, o.padding, o.dilation, o.groups};
    for (DType dtype : {DType::float32, DType::float64}) {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        for_each_path_of_many_cases([&] {
          SCOPED_TRACE(std::string(c.name) + " " + to_string(layout) + " " + to_string(dtype));
          const Variable x = random_tensor(c.x, {dtype, {}, layout}, -1, 1, 1),
                         w = random_tensor(c.w, {dtype}, -1, 1, 2),
                         b = random_tensor({c.w[1] * o.groups}, {dtype}, -1, 1, 3),
                         start = random_tensor({c.x[1]}, {dtype}, -1, 1, 4);
          b.tensor().slice(0, 1).fill_(std::numeric_limits<double>::quiet_NaN());  // which stays
          const Variable y = conv_transpose2d(x, w, b, o);
          expect(conv_transpose2d(x, w, b, o, 0), y, 0);
          expect(conv_transpose2d(x, w, b, o, 0.2), y, 0.2);
          const Variable from = random_tensor(y.shape(), {dtype, {}, layout}, -1, 1, 5);
          expect(conv2d(from, w, start, plain, 0.2), conv2d(from, w, start, plain), 0.2);
        });
      }
    }
  }
}

void expect_same_bits_for_every_number_of_threads(const LayerCase& c) {
  const int before = num_threads();
  for (Layout layout : {Layout::nchw, Layout::nhwc}) {
    set_num_threads(1);
    const Results one = run(c, layout, DType::float32);
    for (int threads : {2, 3, 5, 8}) {
      if (kSanitized && threads != 5) continue;
      set_num_threads(threads);
      const Results many = run(c, layout, DType::float32);
      EXPECT_TRUE(same_bits(one.y, many.y)) << c.name << " y with " << threads;
      EXPECT_TRUE(same_bits(one.gx, many.gx)) << c.name << " gx with " << threads;
      EXPECT_TRUE(same_bits(one.gw, many.gw)) << c.name << " gw with " << threads;
      EXPECT_TRUE(same_bits(one.gb, many.gb)) << c.name << " gb with " << threads;
    }
  }
  set_num_threads(before);
}

TEST(ConvKernels, TheSameBitsForEveryNumberOfThreads) {
  set_conv_algorithm(ConvAlgorithm::automatic);
  for (const LayerCase& c : kLayerCases) expect_same_bits_for_every_number_of_threads(c);
  set_conv_algorithm(ConvAlgorithm::windows);
  for (const LayerCase& c : kTilesOverImages) expect_same_bits_for_every_number_of_threads(c);
  set_conv_algorithm(ConvAlgorithm::automatic);
}

// Sums of a group, and the pixels that are copied for them, fit a second cache of 512 KiB together; not where
// smaller bands would copy rows of y twice.
TEST(ConvKernels, PixelsLeaveSumsTheirPlace) {
  for (const std::int64_t kernel_h : {1, 2}) {
    const auto g =
        conv_transpose2d_geometry(Tensor::empty({16, 256, 32, 4}), Tensor::empty({256, 128, kernel_h, 3}), {},
                                  {.stride = {1, 3}, .groups = 2});
    const cpu::ReadRows read(g);
    const cpu::SumParts parts(read.geometry, cpu::sums_of(read.geometry, 8), sizeof(float));
    EXPECT_EQ(parts.passes, 2);
    const std::int64_t sums = 128 * 128 * 3 * kernel_h,
                       pixels = 128 * (parts.band * 4 + parts.rows_of_y(parts.band) * read.geometry.w.out);
    EXPECT_EQ((sums + pixels) * 4 <= 448 << 10, kernel_h == 1);
  }
}

// The weight gradient takes one group after the other where each has many channels: in bands, in parts of
// images, with steps that leave rows of y out, and where groups are the only items that threads can share.
TEST(ConvKernels, GroupsAreAddedOneAfterTheOther) {
  const int before = num_threads();
  std::int64_t most_bands = 0, most_parts = 0, largest_step = 0;
  for (const LayerCase& c :
       {LayerCase{"bands", {2, 32, 52, 50}, {32, 8, 3, 3}, {.stride = 2, .padding = 1, .groups = 4}},
        LayerCase{"two groups", {9, 32, 12, 10}, {32, 24, 3, 3}, {.stride = 2, .padding = 1, .groups = 2}},
        LayerCase{
            "far rows", {8, 32, 16, 10}, {32, 12, 1, 3}, {.stride = {4, 3}, .dilation = {1, 3}, .groups = 4}},
        LayerCase{"far rows of a line",
                  {24, 32, 16, 4},
                  {32, 12, 1, 3},
                  {.stride = {4, 3}, .dilation = {1, 3}, .groups = 4}},
        LayerCase{"an image",
                  {1, 128, 9, 11},
                  {128, 16, 1, 5},
                  {.stride = {1, 3}, .dilation = {2, 1}, .groups = 8}},
        LayerCase{"odd", {20, 45, 7, 9}, {45, 11, 2, 3}, {.stride = {1, 2}, .groups = 5}}}) {
    const auto g = conv_transpose2d_geometry(Tensor::empty(c.x), Tensor::empty(c.w), {}, c.options);
    const cpu::ReadRows read(g);
    for (int lanes : {4, 8, 16}) {  // of whatever machine
      const cpu::SumParts parts(read.geometry, cpu::sums_of(read.geometry, lanes), sizeof(float));
      EXPECT_EQ(parts.passes, g.groups) << c.name << " " << lanes;
      most_bands = std::max(most_bands, parts.bands);
      most_parts = std::max(most_parts, parts.count);
    }
    largest_step = std::max(largest_step, read.step);
    set_conv_algorithm(kExpected);
    const Results expected = run(c, Layout::nchw, DType::float64);
    set_conv_algorithm(ConvAlgorithm::windows);
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      Results alone;
      for (int threads : {1, 2, 3, 7}) {
        if (kSanitized && threads == 2) continue;
        SCOPED_TRACE(std::string(c.name) + " " + to_string(layout) + " " + std::to_string(threads));
        set_num_threads(threads);
        const Results got = run(c, layout, DType::float32);
        EXPECT_LT(difference(got.gw, expected.gw), 1e-5);
        if (threads == 1) alone = got;
        EXPECT_TRUE(same_bits(got.gw, alone.gw));
      }
    }
    EXPECT_LT(difference(run(c, Layout::nchw, DType::float64).gw, expected.gw), 1e-13);
  }
  set_conv_algorithm(ConvAlgorithm::automatic);
  EXPECT_GT(most_bands, 1);
  EXPECT_GT(most_parts, 1);
  EXPECT_GT(largest_step, 1);
  set_num_threads(before);
}

TEST(ConvKernels, BothLayoutsAgree) {
  for (const LayerCase& c : kLayerCases) {
    const Results a = run(c, Layout::nchw, DType::float32), b = run(c, Layout::nhwc, DType::float32);
    EXPECT_LT(difference(b.y, a.y), 1e-5) << c.name;
    EXPECT_LT(difference(b.gw, a.gw), 1e-5) << c.name;
  }
}

TEST(ConvKernels, HalfTypesAreSummedInFloat32) {
  for_each_path([] {
    for (DType dtype : {DType::bfloat16, DType::float16}) {
      // 3000 products of 1: a half sum would stop growing at 256 (bfloat16) or 2048 (float16).
      const Variable x = Variable::parameter(Tensor::ones({1, 3000, 1, 1}, {dtype})),
                     w = Variable::parameter(Tensor::ones({3000, 2, 1, 1}, {dtype}));
      Tape tape;
      const Variable y = conv_transpose2d(x, w);
      EXPECT_EQ(y.dtype(), dtype);
      EXPECT_EQ(y.tensor().to_vector<double>(),
                std::vector<double>(2, Tensor::full({}, 3000, {dtype}).item()));
      const Variables g = tape.gradient(y, {x, w}, {.gradient = Tensor::ones(y.shape(), {dtype})});
      EXPECT_EQ(g[0].dtype(), dtype);
      EXPECT_EQ(g[1].tensor().to_vector<double>(), std::vector<double>(6000, 1.0));
    }
  });
}

// Of three times as many images as are converted at once: the same bits as of all in float32, which are not
// copied at once.
TEST(ConvKernels, HalfTypesAreConvertedInParts) {
  const ConvTranspose2dOptions options{.stride = 2, .padding = 1};
  const Conv2dOptions plain{.stride = 2, .padding = 1};
  const auto agrees = [&](DType dtype, Layout layout) {
    const TensorOptions of_images{.dtype = dtype, .layout = layout};
    const Tensor x = randn({96, 4, 64, 64}, of_images), w = randn({4, 2, 4, 4}, {dtype}),
                 bias = randn({2}, {dtype}), gy = randn({96, 2, 128, 128}, of_images);
    const auto floats = [](const Tensor& t) { return t.to(DType::float32); };
    const auto halves = [&](const Variable& v) { return v.tensor().to(dtype).to_vector<float>(); };
    EXPECT_EQ(halves(conv_transpose2d(x, w, bias, options)),
              halves(conv_transpose2d(floats(x), floats(w), floats(bias), options)));
    EXPECT_EQ(halves(conv2d(gy, w, {}, plain)), halves(conv2d(floats(gy), floats(w), {}, plain)));
    EXPECT_LT(difference(conv_transpose2d_weight_grad(x, gy, 4, options).tensor(),
                         conv_transpose2d_weight_grad(floats(x), floats(gy), 4, options).tensor()),
              dtype == DType::float16 ? 1e-3 : 1e-2);
  };
  if (!kSanitized) for_each_path([&] { agrees(DType::bfloat16, Layout::nchw); });
  agrees(DType::float16, Layout::nchw);
  agrees(DType::float16, Layout::nhwc);

  const int threads = num_threads();
  set_num_threads(2);  // which have memory of their own
  const Tensor x = randn({100, 8, 64, 64}, {DType::float16}), w = randn({8, 4, 4, 4}, {DType::float16});
  reset_peak_memory_stats();
  const std::size_t before = memory_stats().in_use;
  const Variable y = conv_transpose2d(x, w, {}, options);
  EXPECT_LT(memory_stats().peak_in_use - before, y.tensor().bytes() + (12u << 20));  // in float32 39 MB
  set_num_threads(threads);
}

TEST(ConvKernels, ExplainSaysWhichKernelPhasesAndWork) {
  const auto explained = [](const LayerCase& c, Layout layout = Layout::nchw) {
    return explain(conv_transpose2d_geometry(Tensor::zeros(c.x), Tensor::zeros(c.w), {}, c.options),
                   DType::float32, layout);
  };
  const ConvExplanation a = explained({"", {2, 64, 4, 4}, {64, 3, 4, 4}, {.stride = 2, .padding = 1}});
  EXPECT_EQ(a.phases, 4);
  EXPECT_EQ(a.empty_phases, 0);
  EXPECT_EQ(a.flops, 2.0 * 2 * 64 * 3 * 14 * 14);  // of each axis' 16 pairs 2 lie outside
  EXPECT_EQ(a.bytes, 4.0 * (2 * 64 * 16 + 64 * 3 * 16 + 2 * 3 * 64));
  if (instruction_set() == InstructionSet::avx512) {
    EXPECT_EQ(explained({"", {2, 64, 4, 4}, {64, 3, 4, 4}, {.stride = 2, .padding = 1}}, Layout::nhwc)
                  .forward.kernel,
              "thin");
    EXPECT_EQ(explained({"", {2, 512, 4, 4}, {512, 256, 2, 2}, {.stride = 2}}).input_gradient.kernel, "wide");
    EXPECT_EQ(
        explained({"", {32, 512, 4, 4}, {512, 256, 4, 4}, {.stride = 2, .padding = 1}}).input_gradient.kernel,
        "winograd");
    EXPECT_EQ(explained({"", {2, 16, 64, 64}, {16, 8, 3, 3}, {.stride = 2}}).forward.kernel, "planes");
    EXPECT_EQ(explained({"", {2, 16, 64, 64}, {16, 1, 3, 3}, {.stride = 2, .groups = 16}}).forward.kernel,
              "depthwise");
  }
  EXPECT_EQ(explained(kLayerCases[0]).forward.kernel, "matrix");
  EXPECT_EQ(
      explained({"", {1, 64, 5, 5}, {64, 1, 3, 3}, {.groups = 64}}, Layout::nhwc).weight_gradient.kernel,
      "channelwise");
  const ConvExplanation b = explained({"", {1, 4, 7, 6}, {4, 4, 3, 3}, {.stride = 5, .dilation = 2}});
  EXPECT_EQ(b.phases, 25);
  EXPECT_EQ(b.empty_phases, 16);
  const int threads = num_threads();
  set_num_threads(1);
  const ConvExplanation d = explained({"", {16, 32, 14, 14}, {32, 32, 2, 2}, {.stride = 2}}, Layout::nhwc);
  EXPECT_EQ(d.limit, std::max(d.flops / (instruction_set() == InstructionSet::baseline ? 29e9 : 115e9),
                              d.bytes / 28e9));
  EXPECT_EQ(d.share(4 * d.limit), 0.25);
  ConvExplanation printed = d;
  printed.limit = 0.0125;
  EXPECT_EQ(
      to_string(printed),
      "forward wide, input gradient wide, weight gradient wide; 4 phases, 0 empty; 0.026 GFLOP, 2.0 MB, "
      "at least 12.500 ms");
  set_num_threads(threads);
  EXPECT_EQ(d.forward.reason, "least estimated time");
  set_conv_algorithm(ConvAlgorithm::reference);
  EXPECT_EQ(explained(kLayerCases[0]).forward.kernel, "reference");
  EXPECT_EQ(explained(kLayerCases[0]).forward.reason, "forced");
  set_conv_algorithm(ConvAlgorithm::automatic);
}

TEST(ConvKernels, ACallsAlgorithmIsThatOfItsGradients) {
  // Minimal filtering rounds what the reference does not: results are told apart by their bits.
  using Algorithm = std::optional<ConvAlgorithm>;
  constexpr ConvAlgorithm kReference = ConvAlgorithm::reference, kWinograd = ConvAlgorithm::winograd;
  set_conv_algorithm(kWinograd);  // where a call says nothing
  const Tensor values[] = {random_tensor({2, 40, 9, 8}, {}, -1, 1, 1),
                           random_tensor({40, 24, 3, 3}, {}, -1, 1, 2),
                           random_tensor({2, 24, 17, 15}, {}, -1, 1, 3)};
  const ConvTranspose2dOptions options{.stride = 2, .padding = 1};
  const auto run = [&](Algorithm forward, Algorithm backward, bool checkpointed) {
    const Variable x = Variable::parameter(values[0]), w = Variable::parameter(values[1]);
    Tape tape;
    Variable y;
    {
      const ConvAlgorithmScope scope(forward);
      const auto f = [&](const Variables& in) { return conv_transpose2d(in[0], in[1], {}, options); };
      y = checkpointed ? checkpoint(f, {x, w}) : f({x, w});
    }
    const ConvAlgorithmScope scope(backward);
    const Variables g = tape.gradient(y, {x, w}, {.gradient = values[2]});
    return Tensors{y.tensor(), g[0].tensor(), g[1].tensor()};
  };
  const auto equal = [](const Tensors& a, const Tensors& b, std::size_t i) {
    return a[i].to_vector<float>() == b[i].to_vector<float>();
  };
  const Tensors reference = run(kReference, kReference, false), winograd = run({}, {}, false);
  for (const bool checkpointed : {false, true}) {
    const Tensors called = run(kReference, kWinograd, checkpointed), bare = run({}, {}, checkpointed),
                  other = run(kWinograd, kReference, checkpointed),
                  walked = run({}, kReference, checkpointed);
    for (std::size_t i = 0; i < 3; ++i) {
      SCOPED_TRACE(concat(checkpointed, " ", i));
      EXPECT_FALSE(equal(reference, winograd, i));
      EXPECT_TRUE(equal(called, reference, i));
      EXPECT_TRUE(equal(bare, winograd, i));
      EXPECT_TRUE(equal(other, winograd, i));
      EXPECT_TRUE(equal(walked, i == 0 ? winograd : reference, i));  // where the call said nothing
    }
  }
  set_conv_algorithm(ConvAlgorithm::automatic);
}

TEST(ConvKernels, AScopesAlgorithmIsItsThreads) {
  set_conv_algorithm(ConvAlgorithm::planes);
  EXPECT_EQ(ConvAlgorithmScope::current(), std::nullopt);
  {
    const ConvAlgorithmScope outer(ConvAlgorithm::reference);
    EXPECT_EQ(conv_algorithm(), ConvAlgorithm::reference);
    {
      const ConvAlgorithmScope inner(ConvAlgorithm::automatic), none(std::nullopt);
      EXPECT_EQ(conv_algorithm(), ConvAlgorithm::automatic);
    }
    EXPECT_EQ(conv_algorithm(), ConvAlgorithm::reference);
    std::thread([] { EXPECT_EQ(conv_algorithm(), ConvAlgorithm::planes); }).join();
  }
  EXPECT_EQ(conv_algorithm(), ConvAlgorithm::planes);
  set_conv_algorithm(ConvAlgorithm::automatic);
}

TEST(ConvKernels, NothingUnwrittenIsReadAndNothingStaysUnwritten) {
  PoisonAllocator poison;
  const Context context(Device{}, nullptr, poison);
  for (const LayerCase& c : kLayerCases) {
    for_each_path_of_many_cases([&] {
      for (Layout layout : {Layout::nchw, Layout::nhwc}) {
        const Results clean = run(c, layout, DType::float32);
        const ContextScope scope(context);
        const Results poisoned = run(c, layout, DType::float32);
        EXPECT_TRUE(same_bits(clean.y, poisoned.y)) << c.name;
        EXPECT_TRUE(same_bits(clean.gx, poisoned.gx)) << c.name;
        EXPECT_TRUE(same_bits(clean.gw, poisoned.gw)) << c.name;
      }
    });
  }
}

/// y[co] += x[ci] * w[ci,co] of all taps, one product after the other in float32: what users take for the
/// accuracy of float32.
Tensor plain_loop(const Tensor& x, const Tensor& w, const ConvTranspose2dOptions& options) {
  const ConvTranspose2dGeometry g = conv_transpose2d_geometry(x, w, {}, options);
  Tensor y = Tensor::zeros(g.y_shape());
  for (std::int64_t n = 0; n < g.n; ++n) {
    for (std::int64_t ci = 0; ci < g.ci; ++ci) {
      for (std::int64_t co = 0; co < g.co; ++co) {
        for (std::int64_t ih = 0; ih < g.h.in; ++ih) {
          for (std::int64_t kh = g.h.tap_begin(ih); kh < g.h.tap_end(ih); ++kh) {
            for (std::int64_t iw = 0; iw < g.w.in; ++iw) {
              const float v = x.data<float>()[((n * g.ci + ci) * g.h.in + ih) * g.w.in + iw];
              float* row = y.data<float>() + ((n * g.co + co) * g.h.out + g.h.output(ih, kh)) * g.w.out;
              const float* taps = w.data<float>() + ((ci * g.co + co) * g.h.kernel + kh) * g.w.kernel;
              for (std::int64_t kw = g.w.tap_begin(iw); kw < g.w.tap_end(iw); ++kw) {
                row[g.w.output(iw, kw)] += v * taps[kw];
              }
            }
          }
        }
      }
    }
  }
  return y;
}

TEST(ConvKernels, ErrorsAreNoLargerThanAPlainLoops) {  // but for chance
  if (kSanitized) GTEST_SKIP() << "about values only";
  struct Layer {
    int kernel, stride, padding;
  };
  for (const Layer& l : {Layer{4, 2, 1}, {3, 1, 1}, {3, 2, 1}, {7, 1, 3}, {5, 2, 2}}) {
    manual_seed(5);
    const ConvTranspose2dOptions options{.stride = l.stride, .padding = l.padding};
    const Tensor x = randn({2, 128, 9, 9}), w = randn({128, 64, l.kernel, l.kernel});
    set_conv_algorithm(ConvAlgorithm::reference);
    const Tensor exact = conv_transpose2d(x.to(DType::float64), w.to(DType::float64), {}, options).tensor();
    const auto rms = [&](const Tensor& y) {
      const auto a = y.to_vector<double>(), b = exact.to_vector<double>();
      double sum = 0;
      for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
      return std::sqrt(sum / static_cast<double>(a.size()));
    };
    const double plain = rms(plain_loop(x, w, options));
    for_each_path([&] {
      const double ours = rms(conv_transpose2d(x, w, {}, options).tensor());
      EXPECT_LT(ours, 1.1 * plain) << "kernel " << l.kernel << ", stride " << l.stride;
    });
  }
}

TEST(ConvKernels, NothingIsWrittenWhereNoTapReachesAnAxis) {
  // The output's only column lies beside what the only tap writes, but its rows are many.
  for_each_path([] {
    PoisonAllocator poison;
    const Context context(Device{}, nullptr, poison);
    const ContextScope scope(context);
    const Variable x = Variable::parameter(Tensor::ones({16, 2, 300, 1})),
                   w = Variable::parameter(Tensor::ones({2, 3, 1, 1}));
    Tape tape;
    const Variable y =
        conv_transpose2d(x, w, {}, {.stride = {1, 3}, .padding = {0, 1}, .output_padding = {0, 2}});
    ASSERT_EQ(y.shape(), (Shape{16, 3, 300, 1}));
    const Variables g = tape.gradient(y, {x, w}, {.gradient = Tensor::ones(y.shape())});
    for (const Tensor& t : {y.tensor(), g[0].tensor(), g[1].tensor()}) {
      for (double v : t.to_vector<double>()) ASSERT_EQ(v, 0);
    }
  });
}

TEST(ConvKernels, NotANumberStaysWhereTheKernelReaches) {
  // Zeros that pad vectors must not meet it, and neighbours in a vector must not see it.
  for_each_path([] {
    for (Layout layout : {Layout::nchw, Layout::nhwc}) {
      Tensor x = Tensor::ones({1, 5, 3, 3});
      x.data<float>()[4] = std::numeric_limits<float>::quiet_NaN();  // channel 0, the middle
      const Variable y = conv_transpose2d(x.to(layout), Tensor::ones({5, 3, 2, 2}), {}, {.stride = 2});
      const auto v = y.tensor().to_vector<float>();
      for (std::size_t i = 0; i < v.size(); ++i) {
        const std::size_t h = i / 6 % 6, w = i % 6;
        EXPECT_EQ(std::isnan(v[i]), h / 2 == 1 && w / 2 == 1) << i;
      }
    }
  });
}

}  // namespace
}  // namespace tapedeck::test
