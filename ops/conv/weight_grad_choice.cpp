// Of 255 to 324 layers of bench/fit_conv_estimates.py on an H200, boxes were the fastest of 125 in float32,
// 204 in TF32 and 212 in bfloat16 (rows of 3 and 11), and with channels last of 100, 164 and 249, windows of
// the others. Choices by estimates that were fitted to these times take 1.01 to 1.02 times as long as the
// fastest, by geometric means; windows alone would have taken 1.12 to 1.40 times. [64,1,16,56] to 512
// channels, 4x9 taps, in bfloat16: 219 us over boxes, 863 by windows.
#include <tapedeck/ops/conv/weight_grad_choice.h>

#include <cmath>

#include <tapedeck/ops/conv/gemm_choice.h>
#include <tapedeck/ops/conv/pair_grad_plan.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/row_grad_plan.h>

namespace tapedeck::conv_gemm {

namespace {

using conv_estimate::channels_copied;
using conv_estimate::ConvCall;
using conv_estimate::ConvPass;
using conv_estimate::images_moved;
using conv_estimate::Terms;
using conv_estimate::weight_moved;

/// Of a tiling, if one is forced that the layer has; without a plan where boxes cannot be.
const BoxGradWay& boxes_of(const ConvTranspose2dGeometry& g, const Factors& f) {
  static const BoxGradWay none;
  if (!halves_fit(g, f.of_boxes())) return none;
  const BoxGradWay& tiled = box_grad_way(g, f.of_boxes(), ConvAlgorithmScope::tiling());
  return tiled.plan.exists() ? tiled : box_grad_way(g, f.of_boxes());
}

/// Of images in nchw; without stages where they cannot be used.
RowGradPlan rows_of(const ConvTranspose2dGeometry& g, const Factors& f) {
  return f.are_float() && (f.parts > 1 || !halves_fit(g, 1)) ? RowGradPlan()
                                                             : row_grad_plan(g, f.are_float());
}

/// The same of stride 2 along w.
PairGradPlan pairs_of(const ConvTranspose2dGeometry& g, const Factors& f) {
  return f.parts == 1 ? pair_grad_plan(g, f.element_bytes) : PairGradPlan();
}

Terms of_boxes(const ConvCall& c, const BoxGradPlan& p) {
  const auto copied = [&](bool x) {
    const std::int64_t count = (x ? c.g.x_shape() : c.g.y_shape()).count();
    return c.operands.are_float()
               ? channels_copied(c, x, 2, c.operands.halves()) * conv_estimate::halves_made(c.operands, count)
               : channels_copied(c, x, 2);
  };
  const double tiles =
      std::ceil(static_cast<double>(p.works() * p.splits()) / 132) * static_cast<double>(p.split_tiles());
  return {1,
          p.clocks() / 1e3,
          images_moved(c, true) + images_moved(c, false),
          copied(true) + copied(false),
          (has_odd_planes(c, true) ? copied(true) : 0) + (has_odd_planes(c, false) ? copied(false) : 0),
          weight_moved(c) * p.splits() / p.cluster(),
          tiles * p.tile.steps * p.x_blocks * p.atoms * p.units / 1e2,
          tiles / 10};
}

/// Of rows as they lie, of either stride.
Terms of_rows(const ConvCall& c) {
  const double images = images_moved(c, true) + images_moved(c, false);
  if (const RowGradPlan rows = rows_of(c.g, c.operands); rows.exists())
    return {1, rows.clocks() / 1e3, images, weight_moved(c) * rows.sums()};
  if (const PairGradPlan pairs = pairs_of(c.g, c.operands); pairs.exists())
    return {1, pairs.clocks() / 1e3, images, weight_moved(c) * pairs.splits};
  return {};
}

WeightGradWay find_way(const ConvTranspose2dGeometry& g, Layout x, Layout y, const Factors& f,
                       bool may_be_rows) {
  const ConvAlgorithm forced = conv_algorithm(), of_boxes_only = boxes_of_weight_grad(f);
  const ConvCall c(g, ConvPass::weight_gradient, f,
                   x == Layout::nhwc && y == Layout::nhwc ? Layout::nhwc : Layout::nchw);
  WeightGradWay way;
  way.microseconds = microseconds(ConvAlgorithm::windows, c, of_windows_weight_grad(c));
  if (forced == ConvAlgorithm::windows) return way;
  if (const BoxGradWay& boxes = boxes_of(g, f); boxes.plan.exists()) {
    const double time = microseconds(of_boxes_only, c, of_boxes(c, boxes.plan));
    if (time < way.microseconds || forced == of_boxes_only) way = {GradKind::boxes, boxes, time};
  }
  if (!may_be_rows || x != Layout::nchw || y != Layout::nchw || forced == ConvAlgorithm::boxes ||
      forced == of_boxes_only)
    return way;
  if (const Terms rows = of_rows(c); rows != Terms{}) {
    const double time = microseconds(ConvAlgorithm::rows, c, rows);
    if (time < way.microseconds || forced == ConvAlgorithm::rows) way = {GradKind::rows, {}, time};
  }
  return way;
}

}  // namespace

const WeightGradWay& weight_grad_way(const ConvTranspose2dGeometry& g, Layout x, Layout y, const Factors& f,
                                     bool rows) {
  const auto [a, b] = ConvAlgorithmScope::tiling().code();
  return remembered(ConvQuestion(g, f.element_bytes, f.parts, x == y ? static_cast<int>(x) : 2, rows,
                                 conv_algorithm(), a, b),
                    [&] { return find_way(g, x, y, f, rows); });
}

bool are_pairs(const ConvTranspose2dGeometry& g) {
  return g.w.stride == 2;
}

int written_sums(const ConvTranspose2dGeometry& g, const Factors& f) {
  return are_pairs(g) ? pairs_of(g, f).splits : rows_of(g, f).sums();
}

Terms of_windows_weight_grad(const ConvCall& c) {
  const int n = gathered_channels(c.g.group_ci()), vector = 16 / c.operands.element_bytes;
  const double tiles = static_cast<double>(
      count(c.g.group_ci(), n) *
      count(count(c.g.group_co(), vector) * vector * c.g.h.kernel * c.g.w.kernel, 128) * c.g.groups);
  const PixelSplits share(c.g.n * c.g.h.in * c.g.w.in, static_cast<std::int64_t>(tiles), 132,
                          128 / c.operands.element_bytes, 8);
  const double chunks = std::ceil(tiles * share.splits / 132) * share.split_chunks;
  const bool vectors =
      c.layout == Layout::nhwc && c.g.group_ci() % vector == 0 && c.g.group_co() % vector == 0;
  Terms t{1, 0, 0, 0, 0, images_moved(c, true) + images_moved(c, false)};
  t[vectors ? 2 : 1] = chunks * 128 * n / 1e5;
  t[vectors ? 4 : 3] = chunks / 10;
  t[6] = channels_copied(c, false, c.operands.element_bytes);
  t[7] = weight_moved(c) * share.splits;
  t[8] = weight_moved(c);
  if (has_odd_planes(c, false)) t[9] = t[6];
  return t;
}

Terms of_boxes_weight_grad(const ConvCall& c) {
  const BoxGradPlan& p = boxes_of(c.g, c.operands).plan;
  return p.exists() ? of_boxes(c, p) : Terms{};
}

Terms of_rows_weight_grad(const ConvCall& c) {
  return c.layout == Layout::nchw ? of_rows(c) : Terms{};
}

}  // namespace tapedeck::conv_gemm
