// Of 474 to 477 layers of bench/fit_conv_estimates.py on an H200, windows were the fastest forward of 65 in
// float32, 18 in TF32 and 47 in bfloat16, and with channels last of 116, 49 and 118; of input gradients, of
// 258, 127 and 192, and of 336, 137 and 188. Choices by estimates that were fitted to these times would have
// taken 1.01 to 1.04 times as long as the fastest, by geometric means; windows alone 1.36 to 1.66 times
// forward, and 1.08 to 1.29 times. (What was compared before, clocks that no times had been fitted to, took
// windows forward for 29 and 35 of 96 and 97 random layers in nchw, in bfloat16 and float32: 1.2 times as
// long as the best of the others.)
#include <tapedeck/ops/conv/wgmma_choice.h>

#include <algorithm>

#include <tapedeck/ops/conv/question.h>

namespace tapedeck::conv_gemm {

namespace {

using conv_estimate::channels_copied;
using conv_estimate::ConvCall;
using conv_estimate::ConvPass;
using conv_estimate::images_moved;
using conv_estimate::Terms;
using conv_estimate::weight_moved;

constexpr std::size_t kOfClocks = 1;  // the term that is a kernel's clocks

bool is_transposed(const ConvCall& c) {
  return c.pass == ConvPass::forward;
}

/// The terms that all kernels have: of their clocks, and images that they read, or that are copied for them.
/// Writing results takes more than their bytes: a phase's neighbours, `apart` where each is written alone,
/// are a stride apart, the farther, the more sectors are written in parts; and so are short rows. The phase
/// of most taps ends last.
Terms of_any(const ConvCall& c, const Plan& p, double clocks, double read, double copied, bool apart,
             BoxResults results) {
  const bool transposed = is_transposed(c), to_rows = transposed && !have_channels_last(results),
             has_gaps = to_rows && apart && c.g.w.stride > 1;
  const double out = images_moved(c, !transposed);
  return {1,
          clocks / kClocksOfMicrosecond,
          read,
          out,
          weight_moved(c),
          copied,
          has_odd_planes(c, transposed) ? copied : 0,
          has_gaps ? out : 0,
          has_gaps ? out * static_cast<double>(c.g.w.stride - 1) : 0,
          to_rows && results != BoxResults::runs ? conv_estimate::in_short_rows(c, out) : 0,
          to_rows ? p.most_chunks() / 10.0 : 0};
}
constexpr std::size_t kOfAny = 11;

/// Channels last, results of incomplete vectors are written one or two elements at a time: these, of whole
/// eights of channels, in millions.
double written_in_parts(const ConvCall& c, BoxResults results) {
  const std::int64_t channels = is_transposed(c) ? c.g.group_co() : c.g.group_ci();
  if (!have_channels_last(results) || channels % (16 / c.operands.element_bytes) == 0) return 0;
  return static_cast<double>((is_transposed(c) ? c.g.y_shape() : c.g.x_shape()).count()) /
         static_cast<double>(channels) * static_cast<double>(count(channels, 8) * 8) / 1e6;
}

Terms of_windows(const ConvCall& c, const Plan& p, const WindowsTile& tile, BoxResults results) {
  const bool transposed = is_transposed(c);
  Terms t = of_any(c, p, tile.clocks, images_moved(c, transposed),
                   channels_copied(c, transposed, c.operands.element_bytes), true, results);
  if (have_channels_last(results) && transposed && c.g.w.stride > 1) t[kOfAny] = images_moved(c, false);
  // Rows that a multiprocessor's tiles gather, and what it writes.
  const int bm = 128 * tile.m;
  const std::int64_t tiles = count(p.most_rows(), bm) * p.phases() * count(p.to_channels, tile.n) * p.groups;
  const int splits = map_splits(p, tiles);
  const auto turns = static_cast<double>(count(tiles * splits, 132));
  const double chunks = turns * p.chunks / p.phases() / splits;
  // What taps read of a pixel's channels, at least a sector where neighbours are a stride apart.
  if (!transposed) {
    const std::int64_t bytes = count(p.from_channels * c.operands.element_bytes, 16) * 16,
                       of_tap = c.g.w.stride > 1 ? std::max<std::int64_t>(bytes, 32) : bytes;
    t[kOfAny + 1] =
        static_cast<double>(c.g.n * c.g.h.in * c.g.w.in * c.g.groups * c.g.h.kernel * c.g.w.kernel * of_tap) /
        1e9;
  }
  t[kOfAny + 2] = chunks * bm / 1e4;
  t[kOfAny + 3] = chunks / 10;
  t[kOfAny + 4] = turns * bm * tile.n / 1e5;
  t[kOfAny + 5] = written_in_parts(c, results);
  // Memory seems to bring 64 bytes of a pixel where a group has fewer, and again for each group's tiles,
  // unless all of the copy stays in the second-level cache (50 MB): 16 groups of 3 channels took twice as
  // long as other terms say.
  const std::int64_t vectors = count(std::int64_t{p.from_channels} * c.operands.element_bytes, 16),
                     pixels = c.g.n * (transposed ? c.g.h.in * c.g.w.in : c.g.h.out * c.g.w.out) * c.g.groups;
  if (c.g.groups > 1 && vectors < 4 && static_cast<double>(pixels * vectors * 16) > kCachedBytes)
    t[kOfAny + 6] = conv_estimate::moved(static_cast<double>(pixels), 64);
  return t;
}

/// `shared`: whether the weight's gradient needs a copy anyway: of halves, or of 16-bit images.
Terms of_boxes(const ConvCall& c, const BoxKind& k, const BoxWay& way, const Plan& p, bool shared) {
  const bool transposed = is_transposed(c), gathers = k.gathers();
  const std::int64_t count_read = (transposed ? c.g.x_shape() : c.g.y_shape()).count();
  const double in = images_moved(c, transposed);
  const double copy = k.kind == MapKind::halves ? channels_copied(c, transposed, 2, c.operands.halves()) *
                                                      conv_estimate::halves_made(c.operands, count_read)
                                                : channels_copied(c, transposed, c.operands.element_bytes);
  // Where nothing is copied, nothing can serve.
  const bool serves =
      shared && !gathers && copy > 0 && (k.kind == MapKind::halves || !c.operands.are_float());
  double clocks = way.choice.clocks, copied = 0, searched = 0;
  if (!packs_weights(way, transposed, k.element_bytes, c.operands.element_bytes))
    clocks -= packing_clocks(way.plan, way.choice.blocks, k.parts);
  if (gathers) {
    constexpr double kBytes = 2100;  // of memory in a clock
    clocks = std::max(clocks, static_cast<double>(c.g.x_shape().count() + c.g.y_shape().count()) *
                                  c.operands.element_bytes / kBytes);
    const bool sampled = may_be_sampled(way.plan) && count_read >= kLeastSampled;
    if (c.operands.are_float() && !sampled) searched = in;  // for its largest magnitude
  } else if (!serves) {
    copied = copy;
  }
  Terms t = of_any(c, p, clocks, serves ? 0 : in, copied,
                   way.plan.joined_w < c.g.w.stride && !way.fold.exists(), way.choice.results);
  t[kOfAny] = written_in_parts(c, way.choice.results);
  t[kOfAny + 1] = searched;
  t[kOfAny + 2] = way.choice.multiplied / kClocksOfMicrosecond;
  t[kOfAny + 3] = way.choice.brought / kClocksOfMicrosecond;
  return t;
}

MapWay find_way(const ConvTranspose2dGeometry& g, bool transposed, Layout from, BoxResults results,
                const Factors& f, bool shared) {
  const ConvAlgorithm forced = conv_algorithm();
  const ConvTiling tiling = ConvAlgorithmScope::tiling();
  const ConvCall c(g, map_pass(transposed), f, from);
  MapWay way;
  way.plan = Plan(g, transposed, f.element_bytes);
  way.windows = windows_tile(way.plan, f.parts);
  const Terms of_all_windows = of_windows(c, way.plan, way.windows, results);
  way.microseconds = microseconds(ConvAlgorithm::windows, c, of_all_windows);
  if (forced == ConvAlgorithm::windows) return way;
  double least = way.microseconds;
  for_box_kinds(g, from, results, f, shared, [&](const BoxKind& k) {
    const bool is_forced = forced == k.name;
    const auto find = [&](const ConvTiling& of) {
      return known_box_way(g, transposed, k.element_bytes, k.parts, results, f.element_bytes, k.gathers(),
                           of);
    };
    BoxWay boxes = find(is_forced ? tiling : ConvTiling());
    if (is_forced && tiling.exists() && boxes.choice.places == 0) boxes = find({});
    if (boxes.choice.places == 0) return;
    const Terms terms = of_boxes(c, k, boxes, way.plan, shared);
    const double time = microseconds(k.name, c, terms);
    // Windows are left out if by the kernels' clocks alone the tensors' own boxes are faster. (Of the times
    // above, choices with this take 1 to 1.003 times as long. But input gradients of a U-Net's layer, 1024 to
    // 512 channels with a kernel of 2 and stride 2, take 0.71 and 0.82 of the time over boxes in bfloat16,
    // and estimates alone say windows.)
    const bool sooner = k.name == ConvAlgorithm::boxes && terms[kOfClocks] < of_all_windows[kOfClocks];
    if (time >= least && !sooner && !is_forced) return;
    way.kind = k.kind, way.boxes = boxes, way.microseconds = time;
    least = is_forced ? -std::numeric_limits<double>::infinity() : time;
  });
  return way;
}

}  // namespace

BoxResults map_results(const ConvCall& c) {
  return box_results(c.layout, is_transposed(c) ? c.g.w.out : c.g.w.in, c.operands.element_bytes, 0);
}

double map_microseconds(const ConvCall& c, const BoxKind& kind, const BoxWay& way, const Plan& plan) {
  return microseconds(kind.name, c, of_boxes(c, kind, way, plan, false));
}

MapWay map_way(const ConvTranspose2dGeometry& g, bool transposed, Layout from, BoxResults results,
               const Factors& f, bool shared) {
  const auto [a, b] = ConvAlgorithmScope::tiling().code();
  return remembered(ConvQuestion(g, 2 * transposed + shared, from, results, f.element_bytes, f.parts,
                                 conv_algorithm(), a, b),
                    [&] { return find_way(g, transposed, from, results, f, shared); });
}

Terms of_map(ConvAlgorithm algorithm, const ConvCall& c) {
  const bool transposed = is_transposed(c);
  const Plan plan(c.g, transposed, c.operands.element_bytes);
  const BoxResults results = map_results(c);
  if (algorithm == ConvAlgorithm::windows)
    return of_windows(c, plan, windows_tile(plan, c.operands.parts), results);
  Terms terms{};
  for_box_kinds(c.g, c.layout, results, c.operands, false, [&](const BoxKind& k) {
    if (k.name != algorithm) return;
    const BoxWay way = known_box_way(c.g, transposed, k.element_bytes, k.parts, results,
                                     c.operands.element_bytes, k.gathers());
    if (way.choice.places > 0) terms = of_boxes(c, k, way, plan, false);
  });
  return terms;
}

}  // namespace tapedeck::conv_gemm
