// Random parameter sets of the whole family against the definition: values and every gradient, for equality.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tapedeck::test
