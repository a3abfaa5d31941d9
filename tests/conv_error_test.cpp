// Every row of the error table, in the words that the user reads. Nothing may be computed before the check.
#include <tapedeck/tapedeck.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tapedeck/core/memory.h>

#include "conv_paths.h"
#include "cuda_support.h"

namespace tapedeck::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const Shape kX{2, 4, 5, 6}, kW{4, 3, 3, 3};

class ConvErrors : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam().is_cuda()) require_cuda();
  }

  static Tensor t(const Shape& shape, DType dtype = DType::float32) {
    return Tensor::zeros(shape, {dtype, GetParam()});
  }

  static std::string transposed(const Variable& x, const Variable& w, const ConvTranspose2dOptions& o = {},
                                const Variable& bias = {}) {
    return text_of([&] { conv_transpose2d(x, w, bias, o); });
  }
  static std::string plain(const Variable& x, const Variable& w, const Conv2dOptions& o = {},
                           const Variable& bias = {}) {
    return text_of([&] { conv2d(x, w, bias, o); });
  }
  static std::string weight_grad(const Variable& x, const Variable& gy, Size2 kernel,
                                 const ConvTranspose2dOptions& o = {}) {
    return text_of([&] { conv_transpose2d_weight_grad(x, gy, kernel, o); });
  }

 private:
  /// f's error; expects that nothing was taken on the device before it.
  template <class F>
  static std::string text_of(F f) {
    const std::uint64_t allocations = memory_stats(GetParam()).allocations;
    std::string text = error_of(f);
    if (text != "no error") {
      EXPECT_EQ(memory_stats(GetParam()).allocations, allocations) << text;
    }
    return text;
  }
};

TEST_P(ConvErrors, Ranks) {
  EXPECT_EQ(transposed(t({4, 5}), t(kW)),
            "conv_transpose2d: x [4,5] has rank 2; legal are 4, [n,c,h,w], and 3, [c,h,w]");
  EXPECT_EQ(transposed(t({1, 2, 4, 5, 6}), t(kW)),
            "conv_transpose2d: x [1,2,4,5,6] has rank 5; legal are 4, [n,c,h,w], and 3, [c,h,w]");
  EXPECT_EQ(transposed(t(kX), t({4, 3, 3})),
            "conv_transpose2d: weight [4,3,3] has rank 3; legal is 4, [ci,co/groups,kh,kw]");
  EXPECT_EQ(plain(t({4, 5}), t(kW)), "conv2d: x [4,5] has rank 2; legal are 4, [n,c,h,w], and 3, [c,h,w]");
  EXPECT_EQ(plain(t(kX), t({4, 3})), "conv2d: weight [4,3] has rank 2; legal is 4, [co,ci/groups,kh,kw]");
  EXPECT_THAT(weight_grad(t(kX), t({3, 7}), 3),
              StartsWith("conv_transpose2d_weight_grad: gy [3,7] has rank 2"));
}

TEST_P(ConvErrors, GroupsAndChannels) {
  EXPECT_EQ(transposed(t(kX), t(kW), {.groups = 0}),
            "conv_transpose2d: groups 0 is not legal; legal is 1 or more");
  EXPECT_EQ(transposed(t(kX), t(kW), {.groups = -2}),
            "conv_transpose2d: groups -2 is not legal; legal is 1 or more");
  EXPECT_EQ(transposed(t(kX), t(kW), {.groups = 3}),
            "conv_transpose2d: groups 3 does not divide the 4 channels of x [2,4,5,6]");
  EXPECT_EQ(transposed(t({2, 0, 5, 6}), t({0, 3, 3, 3})),
            "conv_transpose2d: x [2,0,5,6] has 0 channels; legal is 1 or more");
  EXPECT_EQ(transposed(t(kX), t({4, 0, 3, 3})),
            "conv_transpose2d: weight [4,0,3,3] has 0 channels; legal is 1 or more, as "
            "[ci,co/groups,kh,kw]");
  EXPECT_EQ(transposed(t({2, 16, 7, 5}), t({8, 4, 3, 3})),
            "conv_transpose2d: weight has 8 input channels but x has 16 (x [2,16,7,5], weight [8,4,3,3])");
  EXPECT_EQ(plain(t(kX), t({6, 2, 3, 3})),
            "conv2d: weight has 2 input channels a group but x has 4 (x [2,4,5,6], weight [6,2,3,3], "
            "groups 1)");
  EXPECT_EQ(plain(t(kX), t({5, 2, 3, 3}), {.groups = 2}),
            "conv2d: groups 2 does not divide the 5 channels of the result of weight [5,2,3,3]");
  EXPECT_THAT(weight_grad(t(kX), t({2, 3, 7, 8}), 3, {.groups = 2}),
              HasSubstr("groups 2 does not divide the 3 channels of gy [2,3,7,8]"));
}

TEST_P(ConvErrors, Parameters) {
  EXPECT_EQ(transposed(t(kX), t(kW), {.stride = {0, 1}}),
            "conv_transpose2d: stride_h 0 is not legal; legal is 1 to 2147483647");
  EXPECT_EQ(transposed(t(kX), t(kW), {.stride = {1, -1}}),
            "conv_transpose2d: stride_w -1 is not legal; legal is 1 to 2147483647");
  EXPECT_EQ(transposed(t(kX), t(kW), {.padding = {0, -1}}),
            "conv_transpose2d: padding_w -1 is not legal; legal is 0 to 2147483647");
  EXPECT_EQ(transposed(t(kX), t(kW), {.dilation = {0, 1}}),
            "conv_transpose2d: dilation_h 0 is not legal; legal is 1 to 2147483647");
  EXPECT_EQ(transposed(t(kX), t({4, 3, 3, 0})),
            "conv_transpose2d: kernel_w 0 is not legal; legal is 1 to 2147483647");
  EXPECT_EQ(weight_grad(t(kX), t({2, 3, 7, 8}), {0, 3}),
            "conv_transpose2d_weight_grad: kernel_h 0 is not legal; legal is 1 to 2147483647");
  EXPECT_EQ(plain(t(kX), t({3, 4, 0, 3})), "conv2d: kernel_h 0 is not legal; legal is 1 to 2147483647");
  EXPECT_EQ(plain(t(kX), t({3, 4, 3, 3}), {.stride = 0}),
            "conv2d: stride_h 0 is not legal; legal is 1 to 2147483647");
  EXPECT_EQ(plain(t(kX), t({3, 4, 3, 3}), {.padding = -1}),
            "conv2d: padding_h -1 is not legal; legal is 0 to 2147483647");
  EXPECT_EQ(plain(t(kX), t({3, 4, 3, 3}), {.dilation = {1, 0}}),
            "conv2d: dilation_w 0 is not legal; legal is 1 to 2147483647");
}

TEST_P(ConvErrors, OutputPadding) {
  EXPECT_EQ(transposed(t(kX), t(kW), {.stride = {3, 2}, .output_padding = {2, 2}}),
            "conv_transpose2d: output_padding_w 2 is not legal with stride_w 2 and dilation_w 1; legal is 0 "
            "to 1");
  EXPECT_EQ(transposed(t(kX), t(kW), {.stride = 2, .output_padding = {-1, 0}}),
            "conv_transpose2d: output_padding_h -1 is not legal with stride_h 2 and dilation_h 1; legal is 0 "
            "to 1");
  // One of the two is enough.
  EXPECT_EQ(transposed(t(kX), t(kW), {.stride = 2, .output_padding = 2, .dilation = 3}), "no error");
  EXPECT_THAT(transposed(t(kX), t(kW), {.stride = 2, .output_padding = 3, .dilation = 3}),
              HasSubstr("legal is 0 to 2"));
}

TEST_P(ConvErrors, OutputSize) {
  EXPECT_EQ(transposed(t(kX), t(kW), {.stride = 2, .output_size = {11, 15}}),
            "conv_transpose2d: output_size_w 15 is not legal for x [2,4,5,6]; legal is 13 to 14");
  EXPECT_EQ(transposed(t(kX), t(kW), {.stride = 2, .output_size = {10, 13}}),
            "conv_transpose2d: output_size_h 10 is not legal for x [2,4,5,6]; legal is 11 to 12");
  EXPECT_EQ(transposed(t(kX), t(kW), {.stride = 2, .output_size = {3, 11, 13}}),
            "conv_transpose2d: output_size has 3 sizes; legal are 2, {h, w}, or the 4 of y");
  EXPECT_EQ(transposed(t(kX), t(kW), {.output_size = {-1, 8}}),
            "conv_transpose2d: output_size has a size of -1; legal is 0 or more");
}

TEST_P(ConvErrors, Bias) {
  EXPECT_EQ(transposed(t(kX), t({4, 3, 3, 3}), {.groups = 2}, t({3})),
            "conv_transpose2d: bias [3] does not fit 6 output channels; legal is [6]");
  EXPECT_EQ(transposed(t(kX), t(kW), {}, t({1, 3})),
            "conv_transpose2d: bias [1,3] does not fit 3 output channels; legal is [3]");
  EXPECT_EQ(plain(t(kX), t({3, 4, 3, 3}), {}, t({4})),
            "conv2d: bias [4] does not fit 3 output channels; legal is [3]");
}

TEST_P(ConvErrors, ResultsWithoutPositions) {
  EXPECT_EQ(transposed(t({1, 4, 1, 6}), t(kW), {.padding = {2, 0}}),
            "conv_transpose2d: the output size_h of x [1,4,1,6] would be -1; legal is 1 or more: lower "
            "padding_h 2");
  EXPECT_THAT(transposed(t({1, 4, 2, 6}), t(kW), {.padding = {2, 0}}),
              HasSubstr("the output size_h of x [1,4,2,6] would be 0"));
  EXPECT_EQ(plain(t({1, 4, 2, 9}), t({3, 4, 3, 3}), {.dilation = {1, 3}}),
            "conv2d: the output size_h of x [1,4,2,9] would be 0; legal is 1 or more: kernel_h 3 with "
            "dilation_h 1 spans 3 of 2 padded positions");
}

TEST_P(ConvErrors, Pixels) {
  for (const Shape& shape : {Shape{2, 4, 0, 6}, Shape{2, 4, 5, 0}, Shape{4, 0, 6}}) {
    EXPECT_EQ(
        transposed(t(shape), t(kW)),
        concat("conv_transpose2d: x ", shape, " has no pixels; legal are a height and width of 1 or more"));
    EXPECT_THAT(plain(t(shape), t({3, 4, 3, 3})), HasSubstr("has no pixels"));
  }
}

TEST_P(ConvErrors, Kinds) {
  EXPECT_EQ(transposed(t(kX), t(kW, DType::float64)), "conv_transpose2d: x is float32 but weight is float64");
  EXPECT_EQ(transposed(t(kX), t(kW), {}, t({3}, DType::bfloat16)),
            "conv_transpose2d: x is float32 but bias is bfloat16");
  EXPECT_EQ(transposed(t(kX, DType::int64), t(kW, DType::int64)),
            "conv_transpose2d: x is int64; legal are float64, float32, bfloat16 and float16");
  EXPECT_EQ(plain(t(kX), t({3, 4, 3, 3}, DType::float16)), "conv2d: x is float32 but weight is float16");
  EXPECT_EQ(weight_grad(t(kX), t({2, 3, 7, 8}, DType::float64), 3),
            "conv_transpose2d_weight_grad: x is float32 but gy is float64");
  EXPECT_EQ(transposed({}, t(kW)), "conv_transpose2d: x is undefined");
  EXPECT_EQ(transposed(t(kX), {}), "conv_transpose2d: weight is undefined");
  EXPECT_EQ(plain(t(kX), {}), "conv2d: weight is undefined");
}

TEST_P(ConvErrors, Devices) {
  if (GetParam().is_cpu()) return;
  EXPECT_EQ(transposed(t(kX), Tensor::zeros(kW)), "conv_transpose2d: x is on cuda:0 but weight is on cpu");
  EXPECT_EQ(plain(Tensor::zeros(kX), t({3, 4, 3, 3})), "conv2d: x is on cpu but weight is on cuda:0");
  EXPECT_EQ(transposed(t(kX), t(kW), {}, Tensor::zeros({3})),
            "conv_transpose2d: x is on cuda:0 but bias is on cpu");
}

TEST_P(ConvErrors, WeightGradWantsTheShapeOfTheResult) {
  EXPECT_EQ(weight_grad(t(kX), t({2, 3, 7, 9}), 3),
            "conv_transpose2d_weight_grad: gy [2,3,7,9] does not fit x [2,4,5,6]; legal is [2,3,7,8]");
  EXPECT_THAT(weight_grad(t(kX), t({3, 3, 7, 8}), 3), HasSubstr("legal is [2,3,7,8]"));
}

TEST_P(ConvErrors, CountsBeyond64Bits) {
  // (3 - 1)*(2^31 - 1) + 1 rows and as many columns: about 2^64.
  EXPECT_THAT(
      transposed(t({1, 1, 3, 3}), t({1, 1, 1, 1}), {.stride = 2147483647}),
      StartsWith("conv_transpose2d: the result [1,1,4294967295,4294967295] has more elements than the "
                 "legal 9223372036854775807"));
  EXPECT_THAT(transposed(t({1, 1, 2, 2}), t({1, 3, 1, 1}), {.stride = 2147483647}),
              StartsWith("conv_transpose2d: the result [1,3,2147483648,2147483648] has more elements"));
  EXPECT_THAT(transposed(t({1, 1, 3, 3}), t({1, 1, 1, 1}), {.stride = 2147483648}),
              HasSubstr("stride_h 2147483648 is not legal; legal is 1 to 2147483647"));
}

TEST_P(ConvErrors, ZeroBatchIsNoError) {
  const auto check_zero_batch = [] {
    const TensorOptions options{.device = GetParam()};
    const Variable x = Variable::parameter(t({0, 4, 5, 6})),
                   w = Variable::parameter(Tensor::ones(kW, options)),
                   b = Variable::parameter(Tensor::ones({3}, options));
    Tape tape;
    const Variable y = conv_transpose2d(x, w, b, {.stride = 2});
    EXPECT_EQ(y.shape(), (Shape{0, 3, 11, 13}));
    const Variables g = tape.gradient(y, {x, w, b}, {.gradient = Tensor::zeros_like(y.tensor())});
    EXPECT_EQ(g[0].shape(), x.shape());
    EXPECT_EQ(g[1].tensor().to_vector<float>(), std::vector<float>(108, 0.f));
    EXPECT_EQ(g[2].tensor().to_vector<float>(), std::vector<float>(3, 0.f));
  };
  GetParam().is_cpu() ? for_each_path(check_zero_batch) : check_zero_batch();
}

INSTANTIATE_TEST_SUITE_P(Devices, ConvErrors, ::testing::Values(Device{}, kCuda),
                         [](const auto& instance) { return instance.param.is_cpu() ? "cpu" : "cuda"; });

TEST(ConvAlgorithms, UnknownOnesAreNamed) {
  EXPECT_EQ(parse_conv_algorithm("reference"), ConvAlgorithm::reference);
  EXPECT_EQ(parse_conv_algorithm("automatic"), ConvAlgorithm::automatic);
  EXPECT_EQ(error_of([] { (void)parse_conv_algorithm("fast"); }),
            "conv algorithm: \"fast\" is unknown; legal are automatic, reference, planes, windows, winograd, "
            "in_place, "
            "matrix, columns, depthwise, direct, thin, strip, simt, tensor, wgmma, boxes, halves, gathered, "
            "rows and channels_last");
}

}  // namespace
}  // namespace tapedeck::test
