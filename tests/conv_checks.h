// The whole convolution family with random parameters against the definition: values and every gradient of
// integers, for equality.
#pragma once

#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>

#include "conv_definition.h"
#include "sanitizers.h"

namespace tapedeck::test {

inline Tensor images(const ConvCase& c, const Values& values, std::int64_t channels, std::int64_t h,
                     std::int64_t w, const TensorOptions& to) {
  const Shape shape = c.batched ? Shape{c.n, channels, h, w} : Shape{channels, h, w};
  return Tensor::from(values, shape).to(to.dtype).to(c.nhwc ? Layout::nhwc : Layout::nchw).to(to.device);
}

/// `want` is rounded to the type.
inline void expect_equal(const char* what, const Variable& got, const Values& want,
                         const TensorOptions& options, const Shape& shape) {
  ASSERT_TRUE(got.defined()) << what;
  EXPECT_EQ(got.shape(), shape) << what;
  EXPECT_EQ(to_string(got.dtype()), to_string(options.dtype)) << what;
  EXPECT_EQ(to_string(got.tensor().layout()), to_string(options.layout)) << what;
  const Values values = got.tensor().to_vector<double>();
  ASSERT_EQ(values.size(), want.size()) << what;
  const Values rounded =
      Tensor::from(want, {static_cast<std::int64_t>(want.size())}).to(options.dtype).to_vector<double>();
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(values[i], rounded[i]) << what << " element " << i << " of " << shape.count();
  }
}

struct Operands {
  Operands(const ConvCase& c, ConvRandom& random, const TensorOptions& to)
      : x(random.integers(c.x_count())),
        w(random.integers(c.w_count())),
        y(random.integers(c.y_count())),
        x_tensor(Variable::parameter(images(c, x, c.ci, c.in[0], c.in[1], to))),
        y_tensor(Variable::parameter(images(c, y, c.co, c.out(0), c.out(1), to))),
        w_tensor(Variable::parameter(Tensor::from(w, {c.ci, c.co / c.groups, c.kernel[0], c.kernel[1]})
                                         .to(to.dtype)
                                         .to(c.weight_nhwc ? Layout::nhwc : Layout::nchw)
                                         .to(to.device))) {}
  Values x, w, y;
  Variable x_tensor, y_tensor, w_tensor;
};

inline void check_transposed(const ConvCase& c, ConvRandom& random, const TensorOptions& to) {
  const Operands in(c, random, to);
  const Values bias = c.bias ? random.integers(static_cast<std::size_t>(c.co)) : Values();
  const Variable b =
      c.bias ? Variable::parameter(Tensor::from(bias, {c.co}).to(to.dtype).to(to.device)) : Variable();
  const Tensor &x = in.x_tensor.tensor(), &gy = in.y_tensor.tensor(), &w = in.w_tensor.tensor();
  Tape tape;
  const Variable y = conv_transpose2d(in.x_tensor, in.w_tensor, b,
                                      {.stride = {c.stride[0], c.stride[1]},
                                       .padding = {c.padding[0], c.padding[1]},
                                       .output_padding = {c.output_padding[0], c.output_padding[1]},
                                       .dilation = {c.dilation[0], c.dilation[1]},
                                       .groups = c.groups});
  expect_equal("y", y, define_y(c, in.x, in.w, bias), gy.options(), gy.shape());
  Variables wanted{in.x_tensor, in.w_tensor};
  if (c.bias) wanted.push_back(b);
  const Variables g = tape.gradient(y, wanted, {.gradient = gy});
  expect_equal("gx", g[0], define_x(c, in.y, in.w), x.options(), x.shape());
  expect_equal("gw", g[1], define_w(c, in.x, in.y), w.options(), w.shape());
  if (c.bias) {
    expect_equal("gb", g[2], define_channel_sum(in.y, c.n, c.co), b.tensor().options(), b.shape());
  }
}

/// conv2d reads y; its result has floor sizes, so only cases whose surplus is below the stride are conv2ds.
inline void check_plain(ConvCase c, ConvRandom& random, const TensorOptions& to) {
  for (int a = 0; a < 2; ++a) c.output_padding[a] = std::min(c.output_padding[a], c.stride[a] - 1);
  if (c.out(0) < 1 || c.out(1) < 1) return;
  const Operands in(c, random, to);
  const Values bias = c.bias ? random.integers(static_cast<std::size_t>(c.ci)) : Values();
  const Variable b =
      c.bias ? Variable::parameter(Tensor::from(bias, {c.ci}).to(to.dtype).to(to.device)) : Variable();
  const Tensor &gx = in.x_tensor.tensor(), &y = in.y_tensor.tensor(), &w = in.w_tensor.tensor();
  Tape tape;
  const Variable x = conv2d(in.y_tensor, in.w_tensor, b,
                            {.stride = {c.stride[0], c.stride[1]},
                             .padding = {c.padding[0], c.padding[1]},
                             .dilation = {c.dilation[0], c.dilation[1]},
                             .groups = c.groups});
  expect_equal("x", x, define_x(c, in.y, in.w, bias), gx.options(), gx.shape());
  Variables wanted{in.y_tensor, in.w_tensor};
  if (c.bias) wanted.push_back(b);
  const Variables g = tape.gradient(x, wanted, {.gradient = gx});
  expect_equal("gy", g[0], define_y(c, in.x, in.w, {}), y.options(), y.shape());
  expect_equal("gw", g[1], define_w(c, in.x, in.y), w.options(), w.shape());
  if (c.bias) {
    expect_equal("gb", g[2], define_channel_sum(in.x, c.n, c.ci), b.tensor().options(), b.shape());
  }
}

/// Random cases from a seed, with sizes up to about `size`, channels up to `channels` times `unit` a group,
/// of `dtypes`.
template <class Check>
void sweep(std::uint64_t seed, int cases, std::int64_t size, std::int64_t channels, Check check_case,
           const std::vector<DType>& dtypes = {DType::float32, DType::float32, DType::float64},
           Device device = {}, std::int64_t unit = 1) {
  ConvRandom random(seed);
  for (int i = 0; i < cases / kFewer; ++i) {
    const ConvCase c = random.conv_case(size, channels, unit);
    const DType dtype =
        dtypes[static_cast<std::size_t>(random.in(0, static_cast<std::int64_t>(dtypes.size()) - 1))];
    SCOPED_TRACE("case " + std::to_string(i) + ", " + to_string(dtype) + ": " + c.text());
    check_case(c, random, TensorOptions{dtype, device});
    if (::testing::Test::HasFailure()) return;  // one case is enough to look at
  }
}

}  // namespace tapedeck::test
