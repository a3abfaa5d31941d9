// What the autotuner tries beyond algorithms: ways over boxes that are estimated to be nearly as fast as the
// one that is estimated to be the fastest.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <tapedeck/ops/conv/wgmma_choice.h>

namespace tapedeck::conv_gemm {

/// Of an estimate, and microseconds that estimates miss in small layers.
inline constexpr double kMostOfBest = 1.5, kMissed = 3.5;
inline constexpr int kMostOfKind = 3, kMostTiled = 28;

/// As a scope would force what is taken.
inline ConvCandidate map_taken(const MapWay& way) {
  if (way.kind == MapKind::windows) return ConvAlgorithm::windows;
  return {way.gathers()                 ? ConvAlgorithm::gathered
          : way.kind == MapKind::halves ? ConvAlgorithm::halves
                                        : ConvAlgorithm::boxes,
          way.boxes.tiling()};
}
inline ConvCandidate weight_grad_taken(const ConvTranspose2dGeometry& g, Layout x, Layout y,
                                       const Factors& f) {
  const WeightGradWay& way = weight_grad_way(g, x, y, f);
  if (way.kind == GradKind::rows) return ConvAlgorithm::rows;
  if (way.kind == GradKind::windows) return ConvAlgorithm::windows;
  return {boxes_of_weight_grad(f), way.boxes.tiling()};
}

/// Of a map: a few of each kind of boxes, fold, split, joined phases, results, blocks and turns. (Of the
/// layers of bench/conv_shapes.h on an H100, the fastest took 0.73 to 1 of the time of the one that was
/// estimated to be it.)
inline std::vector<ConvCandidate> tiled_maps(const ConvTranspose2dGeometry& g, bool transposed, Layout from,
                                             BoxResults results, const Factors& f) {
  struct Tiled {
    double microseconds;
    ConvCandidate candidate;
    std::vector<int> kind;
  };
  std::vector<Tiled> all;
  const conv_estimate::ConvCall c(g, map_pass(transposed), f, from);
  const Plan plan(g, transposed, f.element_bytes);
  for_box_kinds(g, from, results, f, false, [&](const BoxKind& k) {
    for (const BoxWay& way :
         box_ways(g, transposed, k.element_bytes, k.parts, results, f.element_bytes, k.gathers())) {
      all.push_back({map_microseconds(c, k, way, plan),
                     {k.name, way.tiling()},
                     {static_cast<int>(k.name), way.fold.x, way.fold.y, static_cast<int>(way.plan.split),
                      way.plan.joined(), static_cast<int>(way.choice.results), way.choice.blocks,
                      way.choice.in_turns ? 1 : 0}});
    }
  });
  std::stable_sort(all.begin(), all.end(),
                   [](const Tiled& a, const Tiled& b) { return a.microseconds < b.microseconds; });
  std::map<std::vector<int>, int> of_kind;
  std::vector<ConvCandidate> some;
  for (const Tiled& t : all) {
    if (t.microseconds > kMostOfBest * all.front().microseconds + kMissed || some.size() == kMostTiled) break;
    if (++of_kind[t.kind] <= kMostOfKind) some.push_back(t.candidate);
  }
  return some;
}

/// Of the weight's gradient: a few tiles of each fold and number of atoms.
inline std::vector<ConvCandidate> tiled_weight_grads(const ConvTranspose2dGeometry& g, const Factors& f) {
  std::vector<ConvCandidate> some;
  if (!halves_fit(g, f.of_boxes())) return some;
  std::vector<BoxGradWay> ways = grad_ways(g, f.of_boxes(), kMostOfKind);
  std::stable_sort(ways.begin(), ways.end(), [](const BoxGradWay& a, const BoxGradWay& b) {
    return a.plan.clocks() < b.plan.clocks();
  });
  for (const BoxGradWay& way : ways) {
    if (way.plan.clocks() > kMostOfBest * ways.front().plan.clocks() + kMissed * kClocksOfMicrosecond ||
        some.size() == kMostTiled)
      break;
    some.emplace_back(boxes_of_weight_grad(f), way.tiling());
  }
  return some;
}

}  // namespace tapedeck::conv_gemm
