// Every way in which this machine can compute a convolution, for tests that must hold on each.
#pragma once

#include <tapedeck/core/simd.h>
#include <tapedeck/tapedeck.h>

#include <gtest/gtest.h>

#include <string>

#include <tapedeck/ops/conv/kernels.h>

#include "errors.h"
#include "sanitizers.h"

namespace tapedeck::test {

/// Calls f on the reference kernels and on the fast ones with each instruction set that the machine has.
template <class F>
void for_each_path(F f) {
  set_conv_algorithm(ConvAlgorithm::reference);
  {
    SCOPED_TRACE("reference");
    f();
  }
  for (InstructionSet set : {InstructionSet::baseline, InstructionSet::avx2, InstructionSet::avx512}) {
    limit_instruction_set(set);
    if (instruction_set() != set) continue;  // the machine has less
    for (ConvAlgorithm algorithm :
         {ConvAlgorithm::automatic, ConvAlgorithm::planes, ConvAlgorithm::windows, ConvAlgorithm::winograd,
          ConvAlgorithm::in_place, ConvAlgorithm::depthwise}) {
      if (algorithm == ConvAlgorithm::depthwise && set == InstructionSet::baseline) continue;  // has none
      set_conv_algorithm(algorithm);
      SCOPED_TRACE(to_string(set) + ", " + to_string(algorithm));
      f();
    }
  }
  set_conv_algorithm(ConvAlgorithm::automatic);
  limit_instruction_set(InstructionSet::avx512);
}

/// for_each_path() for long tests of many cases: under sanitizers some of the paths, others each time.
template <class F>
void for_each_path_of_many_cases(F f) {
  static int calls = 0;
  for_each_path([&] {
    if (calls++ % kFewer == 0) f();
  });
}

}  // namespace tapedeck::test
