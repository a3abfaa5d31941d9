// Layers beside the reference kernels (ops/conv/reference.cpp) in float64.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include <tapedeck/core/simd.h>
#include <tapedeck/ops/conv/kernels.h>

#include "conv_cases.h"
#include "op_support.h"
#include "sanitizers.h"

namespace tapedeck::test {

/// Results of `algorithm` beside the reference's, with each instruction set, the same bits for any number of
/// threads. Under sanitizers only every second is computed, and not compared: the reference would take the
/// most of the time there.
inline void expect_reference(const LayerCase& c, ConvAlgorithm algorithm,
                             std::initializer_list<DType> dtypes = {DType::float32, DType::float64}) {
  static int calls = 0;
  Results expected;
  if (!kSanitized) {
    set_conv_algorithm(ConvAlgorithm::reference);
    expected = run(c, Layout::nchw, DType::float64);
  }
  set_conv_algorithm(algorithm);
  const int threads = num_threads();
  for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
    limit_instruction_set(set);
    if (instruction_set() != set) continue;
    for (DType dtype : dtypes) {
      if (kSanitized && calls++ % 2 != 0) continue;
      SCOPED_TRACE(std::string(c.name) + ", " + to_string(set) + ", " + to_string(dtype));
      set_num_threads(3);
      const Results three = run(c, Layout::nchw, dtype);
      if (kSanitized) continue;
      const double tolerance = dtype == DType::float32 ? 1e-5 : 1e-13;
      EXPECT_LT(difference(three.y, expected.y), tolerance);
      EXPECT_LT(difference(three.gx, expected.gx), tolerance);
      EXPECT_LT(difference(three.gw, expected.gw), tolerance);
      set_num_threads(1);
      const Results one = run(c, Layout::nchw, dtype);
      EXPECT_TRUE(same_bits(one.y, three.y));
      EXPECT_TRUE(same_bits(one.gx, three.gx));
      EXPECT_TRUE(same_bits(one.gw, three.gw));
    }
  }
  set_num_threads(threads);
  limit_instruction_set(InstructionSet::avx512);
  set_conv_algorithm(ConvAlgorithm::automatic);
}

}  // namespace tapedeck::test
