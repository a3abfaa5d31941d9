// Random parameter sets of the whole family against the definition: values and every gradient, for equality.
#include <gtest/gtest.h>

#include <tapedeck/core/simd.h>
#include <tapedeck/ops/conv/kernels.h>

#include "conv_checks.h"

namespace tapedeck::test {
namespace {

TEST(ConvSweep, TransposedAtTheEdges) {
  sweep(1, 19000, 6, 3, check_transposed);
}
TEST(ConvSweep, TransposedWithBlocks) {
  sweep(2, 1000, 12, 24, check_transposed);
}
TEST(ConvSweep, TransposedWithPanels) {
  sweep(5, 100, 5, 90, check_transposed);
}
TEST(ConvSweep, PlainWithPanels) {
  sweep(6, 100, 5, 90, check_plain);
}
TEST(ConvSweep, PlainAtTheEdges) {
  sweep(3, 19000, 6, 3, check_plain);
}
TEST(ConvSweep, PlainWithBlocks) {
  sweep(4, 1000, 12, 24, check_plain);
}
TEST(ConvSweep, OnPlanesOnly) {
  set_conv_algorithm(ConvAlgorithm::planes);
  sweep(7, 4000, 6, 3, check_transposed);
  sweep(8, 300, 40, 12, check_transposed);
  sweep(9, 300, 40, 12, check_plain);
  sweep(19, 30, 170, 4, check_transposed);
  sweep(20, 30, 170, 4, check_plain);
  set_conv_algorithm(ConvAlgorithm::automatic);
}
TEST(ConvSweep, WithMinimalFilteringWhereItCan) {
  set_conv_algorithm(ConvAlgorithm::winograd);
  sweep(12, 4000, 6, 3, check_transposed);
  sweep(13, 300, 12, 24, check_transposed);
  sweep(14, 300, 40, 12, check_plain);
  sweep(15, 20, 8, 90, check_transposed);
  set_conv_algorithm(ConvAlgorithm::automatic);
}
TEST(ConvSweep, WithRowsOfSingleChannelsWhereItCan) {
  set_conv_algorithm(ConvAlgorithm::depthwise);
  for (InstructionSet set : {InstructionSet::avx2, InstructionSet::avx512}) {
    limit_instruction_set(set);
    if (instruction_set() != set) continue;
    sweep(16, 4000, 6, 3, check_transposed);
    sweep(17, 3000, 40, 3, check_transposed);
    sweep(18, 3000, 40, 3, check_plain);
  }
  set_conv_algorithm(ConvAlgorithm::automatic);
}
TEST(ConvSweep, WithWindowsOnly) {
  set_conv_algorithm(ConvAlgorithm::windows);
  sweep(10, 4000, 6, 3, check_transposed);
  sweep(11, 300, 12, 24, check_plain);
  set_conv_algorithm(ConvAlgorithm::automatic);
}

}  // namespace
}  // namespace tapedeck::test
