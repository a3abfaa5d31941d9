// What tests of convolutions on a GPU share.
#pragma once

#include "conv_cases.h"
#include "conv_checks.h"
#include "conv_geometry.h"
#include "cuda_support.h"

#include <cmath>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/kernels.h>

namespace tapedeck::test {

/// Chooses what computes convolutions; the next test begins as if it had not.
class CudaConvTest : public CudaTest {
 protected:
  void TearDown() override {
    set_conv_algorithm(ConvAlgorithm::automatic);
    set_float32_precision(Precision::highest);
  }
};

/// All that can be forced on a GPU.
inline constexpr ConvAlgorithm kGpuAlgorithms[] = {
    ConvAlgorithm::reference, ConvAlgorithm::matrix,   ConvAlgorithm::columns, ConvAlgorithm::depthwise,
    ConvAlgorithm::direct,    ConvAlgorithm::thin,     ConvAlgorithm::strip,   ConvAlgorithm::simt,
    ConvAlgorithm::tensor,    ConvAlgorithm::wgmma,    ConvAlgorithm::windows, ConvAlgorithm::boxes,
    ConvAlgorithm::halves,    ConvAlgorithm::gathered, ConvAlgorithm::rows,    ConvAlgorithm::channels_last,
    ConvAlgorithm::automatic};

/// The root of the mean square of a - b in units of that of b, which parts of a that are wrong hardly change.
inline double relative_error(const Tensor& a, const Tensor& b) {
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  double error = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(error / size);
}

/// Within `tolerance` by the mean square, and each element within `room` times that of the largest.
inline void expect_near(const char* what, const Tensor& got, const Tensor& exact, double tolerance,
                        double room = 2) {
  EXPECT_LT(relative_error(got, exact), tolerance) << what;
  EXPECT_LT(difference(got, exact), room * tolerance) << what;
}

}  // namespace tapedeck::test
