// Layers and ways over boxes, for tests of convolutions on a GPU.
#pragma once

#include "cuda_conv_support.h"

#include <cstdint>
#include <limits>
#include <string>

namespace tapedeck::test {

struct Layer {
  Shape x;
  std::int64_t co;
  Size2 kernel;
  ConvTranspose2dOptions options;
};

/// A way over boxes, and how far its results may be from the exact ones.
struct OverBoxes {
  DType dtype;
  Precision precision;
  ConvAlgorithm algorithm;
  double tolerance;
};
inline constexpr OverBoxes kOverBoxes[] = {
    {DType::bfloat16, Precision::highest, ConvAlgorithm::boxes, 3e-3},
    {DType::float32, Precision::high, ConvAlgorithm::boxes, 6e-4},
    {DType::float32, Precision::high, ConvAlgorithm::halves, 6e-4},
    {DType::float32, Precision::highest, ConvAlgorithm::halves, 1e-6},
    {DType::bfloat16, Precision::highest, ConvAlgorithm::gathered, 3e-3},
    {DType::float32, Precision::high, ConvAlgorithm::gathered, 6e-4},
    {DType::float32, Precision::highest, ConvAlgorithm::gathered, 1e-6}};

inline std::string to_string(const OverBoxes& way) {
  return concat(way.dtype, " ", way.algorithm, way.precision == Precision::high ? " high" : " highest");
}

/// A weight gradient, of multiprocessors whose shared memory is full of NaN, and to poisoned memory.
inline Tensor weight_grad_after_nan(const Tensor& x, const Tensor& gy, Size2 kernel,
                                    const ConvTranspose2dOptions& o, Layout weight = Layout::nchw) {
  {
    // Fills it from another kernel's stages: what the same kernel leaves would be its own zeros.
    const ConvAlgorithmScope boxes(ConvAlgorithm::boxes);
    const auto nan = [](const Shape& shape) {
      return Tensor::full(shape, std::numeric_limits<double>::quiet_NaN(), {DType::bfloat16, kCuda});
    };
    (void)conv_transpose2d(nan({16, 128, 40, 40}), nan({128, 128, 3, 3}), {}, {});
  }
  poison_memory();
  return conv_transpose2d_weight_grad(x, gy, kernel, o, weight).tensor();
}

/// A layer's weight gradient after NaN is that of `tensor`, and has the same bits again.
inline void expect_weight_grad_as_tensor(const ConvCandidate& way, Precision precision, const Tensor& x,
                                         const Tensor& gy, Size2 kernel, const ConvTranspose2dOptions& o,
                                         Layout weight, double tolerance) {
  set_conv_algorithm(ConvAlgorithm::tensor);
  set_float32_precision(Precision::highest);
  const Tensor expected = conv_transpose2d_weight_grad(x, gy, kernel, o, weight).tensor();
  const ConvAlgorithmScope scope(way);
  set_float32_precision(precision);
  const Tensor gw = weight_grad_after_nan(x, gy, kernel, o, weight);
  expect_near("gw", gw.to(Device{}), expected.to(Device{}), tolerance, 3);
  poison_memory();
  EXPECT_EQ(conv_transpose2d_weight_grad(x, gy, kernel, o, weight).tensor().to_vector<float>(),
            gw.to_vector<float>());
}

}  // namespace tapedeck::test
