// Which of Hopper's ways computes a map (ops/conv/wgmma_choice.h).
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include <tapedeck/ops/conv/wgmma_choice.h>

#include "conv_geometry.h"

namespace tapedeck::test {
namespace {

using namespace conv_gemm;
using conv_estimate::ConvCall;

constexpr Factors kAll[] = {{4, 3}, {4, 1}, {2, 1}};
constexpr ConvAlgorithm kWays[] = {ConvAlgorithm::windows, ConvAlgorithm::boxes, ConvAlgorithm::halves,
                                   ConvAlgorithm::gathered};

ConvTranspose2dGeometry layer(std::int64_t n, std::int64_t ci, std::int64_t size, std::int64_t co,
                              std::int64_t kernel, std::int64_t stride) {
  const ConvAxis axis{size, (size - 1) * stride + kernel, kernel, stride, 0, 1};
  return {.n = n, .ci = ci, .co = co, .h = axis, .w = axis};
}
const ConvTranspose2dGeometry kLayers[] = {layer(1, 4, 8, 4, 3, 1),      layer(128, 64, 7, 64, 3, 2),
                                           layer(8, 64, 1024, 64, 3, 1), layer(128, 512, 4, 256, 4, 2),
                                           layer(2, 512, 1, 512, 4, 1),  layer(8, 64, 256, 64, 7, 1)};

ConvAlgorithm name_of(const MapWay& way) {
  if (way.gathers()) return ConvAlgorithm::gathered;
  return way.kind == MapKind::windows ? ConvAlgorithm::windows
         : way.kind == MapKind::boxes ? ConvAlgorithm::boxes
                                      : ConvAlgorithm::halves;
}
void for_calls(const std::function<void(const ConvCall&)>& f) {
  for (const ConvTranspose2dGeometry& g : kLayers)
    for (const Factors& factors : kAll)
      for (const Layout layout : {Layout::nchw, Layout::nhwc})
        for (const bool transposed : {true, false}) {
          SCOPED_TRACE(concat(g.x_shape(), g.weight_shape(), factors.element_bytes * 10 + factors.parts,
                              layout, transposed ? " forward" : " input gradient"));
          f(ConvCall(g, map_pass(transposed), factors, layout));
        }
}
MapWay way_of(const ConvCall& c, bool shared = false) {
  return map_way(c.g, c.pass == conv_estimate::ConvPass::forward, c.layout, map_results(c), c.operands,
                 shared);
}
double estimate(ConvAlgorithm a, const ConvCall& c) {
  return microseconds(a, c, of_map(a, c));
}

TEST(ConvMapChoice, TakesTheLeastEstimate) {
  std::map<ConvAlgorithm, int> taken;
  for_calls([&](const ConvCall& c) {
    double least = std::numeric_limits<double>::infinity();
    for (const ConvAlgorithm a : kWays) least = std::min(least, estimate(a, c));
    const MapWay way = way_of(c);
    EXPECT_TRUE(std::isfinite(way.microseconds) && way.microseconds > 0);
    EXPECT_EQ(way.microseconds, estimate(name_of(way), c));
    // But windows only if clocks of products alone say so, too.
    if (way.microseconds > least) {
      EXPECT_NE(name_of(way), ConvAlgorithm::windows);
      EXPECT_EQ(estimate(ConvAlgorithm::windows, c), least);
      EXPECT_LT(of_map(ConvAlgorithm::boxes, c)[1], of_map(ConvAlgorithm::windows, c)[1]);
    }
    EXPECT_EQ(way.boxes.choice.places > 0, way.kind != MapKind::windows);
    ++taken[name_of(way)];
  });
  for (const ConvAlgorithm a : kWays) EXPECT_GT(taken[a], 0) << to_string(a);
}

TEST(ConvMapChoice, TakesWhatIsForced) {
  std::map<ConvAlgorithm, int> forced;
  for_calls([&](const ConvCall& c) {
    for (const ConvAlgorithm a : kWays) {
      const bool exists = of_map(a, c) != conv_estimate::Terms{};
      const ConvAlgorithmScope scope(a);
      EXPECT_EQ(name_of(way_of(c)) == a, exists) << to_string(a);
      forced[a] += exists;
    }
  });
  for (const ConvAlgorithm a : kWays) EXPECT_GT(forced[a], 10) << to_string(a);
}

// A copy that the weight's gradient needs anyway is not counted, and so nothing is gathered in its place.
TEST(ConvMapChoice, OfSharedCopies) {
  int sooner = 0;
  for_calls([&](const ConvCall& c) {
    const MapWay shared = way_of(c, true), alone = way_of(c);
    EXPECT_FALSE(shared.gathers());
    if (!alone.gathers()) {
      EXPECT_LE(shared.microseconds, alone.microseconds);
    }
    if (shared.kind == alone.kind && shared.microseconds < alone.microseconds) ++sooner;
  });
  EXPECT_GT(sooner, 10);

  // Of TF32, what is shared are halves.
  const ConvTranspose2dGeometry& g = kLayers[1];
  const ConvCall tf32(g, map_pass(false), {4, 1}, Layout::nchw);
  for (const ConvAlgorithm a : {ConvAlgorithm::boxes, ConvAlgorithm::halves}) {
    const ConvAlgorithmScope scope(a);
    EXPECT_EQ(way_of(tf32, true).microseconds < way_of(tf32).microseconds, a == ConvAlgorithm::halves);
  }
}

}  // namespace
}  // namespace tapedeck::test
