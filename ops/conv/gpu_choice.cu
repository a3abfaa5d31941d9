// As gpu_choice.cuh states.
#include <tapedeck/ops/conv/gpu_choice.cuh>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/gpu_estimate.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/tiled.h>
#include <tapedeck/ops/conv/wgmma_choice.h>
#include <tapedeck/ops/conv/autotune.cuh>
#include <tapedeck/ops/conv/columns.cuh>
#include <tapedeck/ops/conv/depthwise.cuh>
#include <tapedeck/ops/conv/depthwise_rows.cuh>
#include <tapedeck/ops/conv/direct.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/matrix.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/thin.cuh>
#include <tapedeck/ops/conv/thin_products.cuh>

namespace tapedeck::cu {

using conv_estimate::ConvCall;
using conv_estimate::ConvPass;

namespace {

constexpr ConvTaken kGroupsOfOne{ConvAlgorithm::depthwise, "groups of one channel"},
    kPlanesDoNotPay{ConvAlgorithm::direct,
                    "groups of one channel whose planes do not pay: small, few, long steps or few taps"},
    kThin{ConvAlgorithm::thin, "y has few channels"},
    kThinDirect{ConvAlgorithm::direct, "few channels of y, and a size that has a kernel of its own"},
    kOnePixel{ConvAlgorithm::matrix, "x is one pixel, and y of the kernel's size"},
    kNoImages{ConvAlgorithm::reference, "no images"},
    kNoTiles{ConvAlgorithm::reference, "sizes beyond 32-bit arithmetic, strides above 8, or too many groups"};

/// Which algorithms can compute a call; of strips what they would do.
struct Offer {
  Offer(const ConvCall& c, DType dtype, Layout x, Layout y, bool has_wgmma)
      : tiles(conv_gemm::fits(c.g)), wgmma(has_wgmma), matrix(matrix_fits(c.g)) {
    const ConvTranspose2dGeometry& g = c.g;
    // Strips and thin products take up to 227 KB of a multiprocessor's shared memory: Hopper's, and more than
    // others have.
    const bool strips = has_wgmma && x == y;
    if (c.pass == ConvPass::weight_gradient) {
      direct = direct_weight_grad_fits(g);
      thin_direct = direct && thin_weight_grad_fits(g, dtype, x, y);
      depthwise = depthwise_weight_grad_fits(g, x, y, dtype) ||
                  depthwise_channels_last_weight_grad_fits(g, dtype, x, y);
      columns = columns_weight_grad_fits(g, dtype, x, y);
      if (strips) strip = strip_weight_grad_effort(g, dtype, x);
      thin = strips && thin_products_weight_grad_fit(g, dtype, x);
    } else {
      const bool transposed = c.pass == ConvPass::forward;
      const Layout from = transposed ? x : y, to = transposed ? y : x;
      columns = columns_fits(g, transposed, dtype, from, to);
      direct = direct_fits(g);
      thin_direct = direct && thin_fits(g, dtype, from, to);
      depthwise =
          depthwise_fits(g, transposed, from, dtype) || depthwise_channels_last_fits(g, dtype, from, to);
      if (strips) strip = strip_effort(g, transposed, dtype, x);
      thin = strips && thin_products_fit(g, transposed, dtype, x);
      // Bytes of x and y, both of which are copied.
      constexpr auto kMostCopied = std::int64_t{4} << 30;
      channels_last =
          transposed && has_wgmma && tiles && x == Layout::nchw && y == Layout::nchw &&
          dtype != DType::float64 && !matrix &&
          (g.x_shape().count() + g.y_shape().count()) * static_cast<std::int64_t>(size_of(dtype)) <=
              kMostCopied;
    }
  }
  bool has(ConvAlgorithm a) const {
    switch (a) {
      case ConvAlgorithm::simt:
      case ConvAlgorithm::tensor:
        return tiles;
      case ConvAlgorithm::wgmma:
        return tiles && wgmma;
      case ConvAlgorithm::matrix:
        return matrix;
      case ConvAlgorithm::columns:
        return columns;
      case ConvAlgorithm::direct:
        return direct;
      case ConvAlgorithm::depthwise:
        return depthwise;
      case ConvAlgorithm::strip:
        return strip.has_value();
      case ConvAlgorithm::thin:
        return thin;
      case ConvAlgorithm::channels_last:
        return channels_last;
      default:
        return a == ConvAlgorithm::reference;
    }
  }
  bool tiles, wgmma;  // products of these; by Hopper's instructions, too
  bool matrix, columns = false, direct, thin_direct, depthwise, thin = false;  // thin_direct: as direct
  bool channels_last = false;
  std::optional<StripEffort> strip;
};

}  // namespace

bool is_accurate(DType dtype) {
  return conv_estimate::operands_of(dtype).parts == 3;
}
bool has_same_order(const ConvTranspose2dGeometry& g, bool x) {
  return (x ? g.ci : g.co) == 1 || (x ? g.h.in * g.w.in : g.h.out * g.w.out) == 1;
}

namespace {

/// Whether matrix products are faster than tiles. Much work is not that cuBLASLt does without tensor cores,
/// at float32's accuracy, and where y has its channels last, for which a weight is copied and tiles are
/// faster. `long_sums`: over y, for the input's gradient.
bool takes_matrix(const ConvTranspose2dGeometry& g, DType dtype, Layout y, bool long_sums) {
  const bool last = y == Layout::nhwc;
  const bool tiles = is_accurate(dtype) ? long_sums || last : long_sums && last && size_of(dtype) == 2;
  return !tiles || g.flops() < (last ? 0.5e9 : 1.5e9);
}

/// float64, which has no estimates: direct kernels where tiles would be mostly padding, or memory bounds
/// them.
ConvTaken choose_for_float64(const ConvCall& c, const Offer& offer) {
  const ConvTranspose2dGeometry& g = c.g;
  const ConvTaken few{ConvAlgorithm::direct, "few channels"},
      tiles{ConvAlgorithm::simt, "products of float64 have no tensor cores here"};
  if (offer.depthwise) return kGroupsOfOne;
  if (!offer.direct) return tiles;
  if (c.pass == ConvPass::weight_gradient) return g.group_ci() * g.group_co() <= 8 ? few : tiles;
  const bool transposed = c.pass == ConvPass::forward;
  const std::int64_t to_channels = transposed ? g.group_co() : g.group_ci();
  const double bytes =
      8.0 * static_cast<double>(g.x_shape().count() + g.weight_shape().count() + g.y_shape().count());
  const bool little = to_channels <= 4 || g.flops() < 24 * bytes;
  const bool direct =
      (transposed || to_channels <= 16) && (to_channels == 1 || (c.layout == Layout::nchw && little));
  return direct ? few : tiles;
}

/// Whether thin products are faster than direct kernels of a size of their own, which have no estimates
/// (H200): not where an output adds up many of them, nor where there are few of a pixel and threads' own sums
/// do as well, or strips. (Rows of float32 that are no whole vectors, of 7 and 14 pixels: 0.74 to 0.80 of the
/// time with 16 products, of 31 and 50 with 4 and 9: 0.98 to 1.31. Over bands, 128 images 16 to 64 wide, 16
/// to 64 channels to 1 to 3: forward 0.47 of the time in TF32 and 0.60 in float32 where this is true, 1.18
/// and 1.16 where not, x's gradient 0.67 and 0.85, or 1.07 and 1.14.)
bool prefers_thin(const ConvCall& c, DType dtype, const Offer& offer) {
  const ConvTranspose2dGeometry& g = c.g;
  const std::int64_t taps = g.h.kernel * g.w.kernel, products = g.co * taps;
  if (c.pass == ConvPass::forward) {
    const std::int64_t of_output = ceil_div(taps, g.h.stride * g.w.stride);
    if (dtype == DType::float32 ? of_output > 9 : g.co * of_output > 64) return false;
  }
  if (c.layout == Layout::nhwc) return true;
  if (c.pass == ConvPass::weight_gradient) {
    if (dtype == DType::float32 && g.w.in % 4 != 0 && products < 16) return false;
    return !offer.strip || (products <= 48 && g.ci >= 32);
  }
  const bool accurate = is_accurate(dtype), forward = c.pass == ConvPass::forward;
  if (conv_thin::band_pixels(g, conv_estimate::thin_pass(c.pass), c.layout, c.operands.element_bytes,
                             c.operands.halves()) > 0) {
    if (forward) return accurate ? g.ci >= 64 || g.co * g.ci >= 96 : g.ci >= 32 || products >= 32;
    return products >= (accurate ? 32 : 27);
  }
  if (forward) return g.co * g.ci >= 128;
  return products >= (accurate ? 48 : 27) && g.ci >= 32;
}

/// Whether kernels for groups of one channel may be taken: their lanes are channels where these are last. (An
/// H200's times: two to four groups, or more than 16 channels for one, took 1.8 to 15 times as long as
/// others; five to 15 groups were not timed.)
bool may_take_depthwise(const ConvCall& c, const Offer& offer) {
  const ConvTranspose2dGeometry& g = c.g;
  return offer.depthwise &&
         (c.layout == Layout::nchw || (g.groups >= 16 && std::max(g.group_ci(), g.group_co()) <= 16));
}

/// Whether direct kernels are faster for groups of one channel each than planes in shared memory, for
/// gradients: where steps are so long that a plane is brought for few sums, or planes so small that threads
/// are idle; for x's also where there are too few for all multiprocessors; for the weight's also where many
/// planes of shorter steps meet few taps. (An H200, 70 layers in float32 and bfloat16, of those that this is
/// true of: x's gradient takes 0.48 to 1.15 of the time, the weight's 0.31 to 1.07; of the others direct
/// kernels take 0.93 to 3 and 0.75 to 2.2 times as long.)
bool prefers_direct(const ConvCall& c, DType dtype, const Offer& offer) {
  const ConvTranspose2dGeometry& g = c.g;
  if (c.pass == ConvPass::forward || c.layout == Layout::nhwc || dtype == DType::float64 || !offer.direct ||
      depthwise_rows_fits(g, false, dtype))
    return false;
  const std::int64_t planes = g.n * g.co, steps = g.h.stride * g.w.stride, taps = g.h.kernel * g.w.kernel;
  if (g.h.in * g.w.in < 256) return true;
  if (c.pass == ConvPass::input_gradient) return steps >= 16 || planes < 264;
  return !(offer.wgmma && depthwise_planes_fits(g, dtype)) &&
         (steps >= 9 || (steps >= 3 && taps <= 9 && planes >= 264));
}

/// Whether products with all taps may be taken: what was timed of 16 bits, of gathered pixels and where they
/// are a convolution are Hopper's products.
bool may_take_columns(const ConvCall& c, DType dtype, const Offer& offer) {
  if (!offer.columns || offer.wgmma) return offer.columns;
  if (dtype != DType::float32 || c.pass == ConvPass::weight_gradient) return false;
  const bool transposed = c.pass == ConvPass::forward;
  return !conv_columns::is_convolved(c.g, transposed, c.layout, c.operands.parts) &&
         (transposed || !conv_columns::gathers(c.g, c.layout, c.operands.element_bytes, c.operands.parts));
}

double by_channels_last(const ConvCall& c, DType dtype);

/// What is taken unless an algorithm is forced.
ConvTaken choose_freely(const ConvCall& c, DType dtype, Layout y, const Offer& offer) {
  const ConvTranspose2dGeometry& g = c.g;
  if (offer.matrix && takes_matrix(g, dtype, y, c.pass == ConvPass::input_gradient)) return kOnePixel;
  const bool may_take = may_take_depthwise(c, offer);
  if (may_take && g.group_ci() == 1 && g.group_co() == 1)
    return prefers_direct(c, dtype, offer) ? kPlanesDoNotPay : kGroupsOfOne;
  if (offer.thin_direct) return offer.thin && prefers_thin(c, dtype, offer) ? kThin : kThinDirect;
  if (!conv_gemm::fits(g)) return offer.depthwise ? kGroupsOfOne : kNoTiles;
  if (dtype == DType::float64) return choose_for_float64(c, offer);
  ConvTaken best{};
  const auto compare = [&](ConvAlgorithm a, double time) {
    if (time < best.microseconds) best = {a, "the least estimated time", time};
  };
  for (const ConvAlgorithm a : conv_estimate::kEstimated) {
    if (!offer.has(a) || (a == ConvAlgorithm::depthwise && !may_take)) continue;
    if (a == ConvAlgorithm::columns && !may_take_columns(c, dtype, offer)) continue;
    const double time = conv_estimate::estimate(a, c, offer.strip.value_or(StripEffort{}));
    // The few layers that depthwise kernels are for, unless they were measured.
    if (a == ConvAlgorithm::depthwise && std::isinf(time)) return kGroupsOfOne;
    compare(a, time);
  }
  if (offer.channels_last) compare(ConvAlgorithm::channels_last, by_channels_last(c, dtype));
  return best;
}

/// The estimated time of a forward call in nchw if it is computed with channels last, and images are copied.
double by_channels_last(const ConvCall& c, DType dtype) {
  const ConvTranspose2dGeometry& g = c.g;
  // Of 300 layers on an H200, in three precisions: choices by these numbers take 1.007 to 1.011 times as long
  // as the faster way, and without this way 1.02 to 1.03.
  constexpr double kLaunch = 4, kShare = 0.85, kShareOfOdd = 0.4;  // microseconds; of a copy's bandwidth
  const auto copied = [&](bool x) {
    if (has_same_order(g, x)) return 0.0;
    const std::int64_t channels = x ? g.ci : g.co, plane = x ? g.h.in * g.w.in : g.h.out * g.w.out;
    const bool by_elements = size_of(dtype) == 2 && (channels % 2 != 0 || plane % 2 != 0);
    return kLaunch + 2 * conv_estimate::images_moved(c, x) / (by_elements ? kShareOfOdd : kShare);
  };
  const ConvCall last(g, c.pass, c.operands, Layout::nhwc);
  const Offer offer(last, dtype, Layout::nhwc, Layout::nhwc, true);
  return choose_freely(last, dtype, Layout::nhwc, offer).microseconds + copied(true) + copied(false);
}

/// x and y of these layouts.
ConvTaken choose(const ConvTranspose2dGeometry& g, ConvPass pass, DType dtype, Layout x, Layout y,
                 bool has_wgmma) {
  if (g.n == 0) return kNoImages;
  const ConvCall call(g, pass, dtype, pass == ConvPass::input_gradient ? y : x);
  const Offer offer(call, dtype, x, y, has_wgmma);
  ConvAlgorithm a = conv_algorithm();
  if (is_way_of_wgmma(a)) a = ConvAlgorithm::wgmma;  // which asks again
  const bool known = offer.has(a) || (a == ConvAlgorithm::wgmma && offer.tiles);
  ConvTaken c = known ? ConvTaken{a, "forced"} : choose_freely(call, dtype, y, offer);
  if ((c.algorithm == ConvAlgorithm::tensor || c.algorithm == ConvAlgorithm::wgmma) &&
      dtype == DType::float64)
    c = {ConvAlgorithm::simt, "products of float64 have no tensor cores here"};
  if (c.algorithm == ConvAlgorithm::wgmma && !has_wgmma)
    c = {ConvAlgorithm::tensor, "the device does not have Hopper's instructions"};
  if (c.algorithm == ConvAlgorithm::simt && (dtype == DType::bfloat16 || dtype == DType::float16))
    c = {ConvAlgorithm::tensor, "products of half types have tensor cores only"};
  return c;
}

}  // namespace

ConvTaken known_choice(const ConvTranspose2dGeometry& g, ConvPass pass, DType dtype, Layout x, Layout y,
                       bool has_wgmma) {
  return remembered(ConvQuestion(g, pass, dtype, x, y, float32_precision(), has_wgmma, conv_algorithm()),
                    [&] { return choose(g, pass, dtype, x, y, has_wgmma); });
}
bool reads_vectors(const Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.read()) % 16 == 0;
}
ConvTaken known_choice(const ConvTranspose2dGeometry& g, ConvPass pass, const Tensor& x, const Tensor& y) {
  const ConvTaken c =
      known_choice(g, pass, y.dtype(), x.layout(), y.layout(), conv_gemm::has_wgmma(y.device()));
  if (c.algorithm == ConvAlgorithm::thin && !reads_vectors(x))
    return {ConvAlgorithm::tensor, "x does not begin at a multiple of 16 bytes"};
  return c;
}

namespace {

bool is_over_boxes(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y, bool has_wgmma) {
  return known_choice(g, ConvPass::weight_gradient, dtype, x, y, has_wgmma).algorithm ==
             ConvAlgorithm::wgmma &&
         conv_gemm::weight_grad_way(g, x, y, conv_estimate::operands_of(dtype)).kind ==
             conv_gemm::GradKind::boxes;
}

/// choice_beside() where nothing is forced: a map of this pass and the weight's gradient read one operand.
std::optional<ConvCandidate> find_beside(const ConvTranspose2dGeometry& g, ConvPass pass, DType dtype,
                                         Layout x, Layout y) {
  using namespace conv_gemm;
  const ConvTaken of_weight = known_choice(g, ConvPass::weight_gradient, dtype, x, y, true),
                  of_map = known_choice(g, pass, dtype, x, y, true);
  if (of_map.algorithm != ConvAlgorithm::wgmma || !std::isfinite(of_weight.microseconds) ||
      is_over_boxes(g, dtype, x, y, true))
    return {};
  const Factors f = conv_estimate::operands_of(dtype);
  const ConvCandidate boxes = boxes_of_weight_grad(f);
  const WeightGradWay over_boxes = [&] {
    const ConvAlgorithmScope scope(boxes);
    return weight_grad_way(g, x, y, f);
  }();
  const bool transposed = pass == ConvPass::forward;
  const auto map = [&](bool shared) {
    const BoxResults results =
        box_results(transposed ? y : x, transposed ? g.w.out : g.w.in, f.element_bytes, 0);
    return map_way(g, transposed, transposed ? x : y, results, f, shared);
  };
  const MapWay beside = map(true);
  // Two parts of folded columns lie in another order than of others (ChannelsLast).
  const auto fold_of = [&](const Fold& fold) { return transposed ? fold.x : fold.y; };
  const bool is_same = f.halves() == 1 || fold_of(beside.boxes.fold) == fold_of(over_boxes.boxes.fold);
  const bool pays =
      over_boxes.kind == GradKind::boxes && is_same &&
      over_boxes.microseconds + beside.microseconds < of_weight.microseconds + map(false).microseconds;
  return pays ? std::optional(boxes) : std::nullopt;
}

}  // namespace

std::optional<ConvCandidate> choice_beside(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y,
                                           bool has_wgmma) {
  const ReadByBoth both = OperandCopies::read_by_both();
  if (both == ReadByBoth::none || !has_wgmma || dtype == DType::float64 || g.n == 0 ||
      conv_algorithm() != ConvAlgorithm::automatic)
    return {};
  return remembered(ConvQuestion(g, both, dtype, x, y, float32_precision()), [&] {
    return find_beside(g, both == ReadByBoth::x ? ConvPass::forward : ConvPass::input_gradient, dtype, x, y);
  });
}
std::optional<ConvCandidate> choice_beside(const ConvTranspose2dGeometry& g, const Tensor& x,
                                           const Tensor& y) {
  return choice_beside(g, y.dtype(), x.layout(), y.layout(), conv_gemm::has_wgmma(y.device()));
}

bool shares_copy(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y, bool has_wgmma) {
  return OperandCopies::serve_both() &&
         (is_over_boxes(g, dtype, x, y, has_wgmma) || choice_beside(g, dtype, x, y, has_wgmma).has_value());
}
bool shares_copy(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y) {
  return shares_copy(g, y.dtype(), x.layout(), y.layout(), conv_gemm::has_wgmma(y.device()));
}

std::vector<ConvCandidate> conv_candidates(const ConvTranspose2dGeometry& g, ConvPass pass, const Tensor& x,
                                           const Tensor& y) {
  using namespace conv_gemm;
  if (g.n == 0) return {kNoImages.algorithm};
  // Direct kernels take seconds for large layers. What has no estimate (too few were measured) is tried
  // anyway, and so is simt, which computes some weight gradients of float32 faster than all others.
  constexpr double kHopeless = 8;  // times the least estimate
  const ConvCall call(g, pass, y.dtype(), pass == ConvPass::input_gradient ? y.layout() : x.layout());
  const Offer offer(call, y.dtype(), x.layout(), y.layout(), has_wgmma(y.device()));
  double least = std::numeric_limits<double>::infinity();
  const auto estimated = [&](ConvAlgorithm a) {
    return y.dtype() == DType::float64 || !fits(g) || !offer.has(a)
               ? 0
               : conv_estimate::estimate(a, call, offer.strip.value_or(StripEffort{}));
  };
  for (const ConvAlgorithm a : conv_estimate::kEstimated)
    if (offer.has(a)) least = std::min(least, estimated(a));
  const double last = offer.channels_last ? by_channels_last(call, y.dtype()) : least;
  least = std::min(least, last);
  const Factors factors = conv_estimate::operands_of(y.dtype());
  const bool transposed = pass == ConvPass::forward, of_weight = pass == ConvPass::weight_gradient;
  const Tensor &from = transposed ? x : y, &to = transposed ? y : x;
  const BoxResults results =
      box_results(to.layout(), transposed ? g.w.out : g.w.in, factors.element_bytes, 0);
  std::vector<ConvCandidate> found, ways;  // ways: what wgmma makes of these
  const auto add = [&](ConvAlgorithm a) {
    const ConvAlgorithmScope scope(a);
    // As estimated, and so found already, where `a` cannot compute the call.
    ConvCandidate way = known_choice(g, pass, x, y).algorithm;
    if (way.algorithm == ConvAlgorithm::wgmma) {
      way = of_weight ? weight_grad_taken(g, x.layout(), y.layout(), factors)
                      : map_taken(map_way(g, transposed, from.layout(), results, factors));
    }
    if (std::find(ways.begin(), ways.end(), way) != ways.end()) return;
    ways.push_back(way);
    found.push_back(a);
  };
  add(known_choice(g, pass, x, y).algorithm);
  for (const ConvAlgorithm a : conv_estimate::kEstimated) {
    if (is_way_of_wgmma(a)) continue;
    if (const double time = estimated(a); time <= kHopeless * least || std::isinf(time)) add(a);
  }
  for (const ConvAlgorithm a :
       {ConvAlgorithm::windows, ConvAlgorithm::boxes, ConvAlgorithm::halves, ConvAlgorithm::gathered,
        ConvAlgorithm::rows, ConvAlgorithm::matrix, ConvAlgorithm::simt})
    add(a);
  if (offer.channels_last && last <= kHopeless * least) add(ConvAlgorithm::channels_last);
  if (offer.has(ConvAlgorithm::wgmma) && y.dtype() != DType::float64) {
    for (const ConvCandidate& c : of_weight ? tiled_weight_grads(g, factors)
                                            : tiled_maps(g, transposed, from.layout(), results, factors))
      if (std::find(ways.begin(), ways.end(), c) == ways.end()) found.push_back(c);
  }
  return found;
}

}  // namespace tapedeck::cu
