// Which kernel computes the convolution family on a GPU, as kernels.h states.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/explain.h>
#include <tapedeck/ops/conv/gpu_estimate.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/tiled.h>
#include <tapedeck/ops/conv/wgmma_choice.h>
#include <tapedeck/ops/conv/workspace.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/rectify.h>
#include <tapedeck/ops/conv/autotune.cuh>
#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/columns.cuh>
#include <tapedeck/ops/conv/depthwise.cuh>
#include <tapedeck/ops/conv/depthwise_rows.cuh>
#include <tapedeck/ops/conv/direct.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/matrix.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/thin.cuh>
#include <tapedeck/ops/conv/thin_products.cuh>
#include <tapedeck/ops/largest.cuh>

namespace tapedeck::cu {

namespace {

using conv_estimate::ConvCall;
using conv_estimate::ConvPass;

struct Choice {
  ConvAlgorithm algorithm = ConvAlgorithm::automatic;
  const char* reason = "";
  double microseconds = std::numeric_limits<double>::infinity();  // where these are estimated
};

constexpr Choice kGroupsOfOne{ConvAlgorithm::depthwise, "groups of one channel"},
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
      constexpr std::int64_t kMostCopied = std::int64_t{4} << 30;  // bytes of y, for as long as it is copied
      channels_last = transposed && has_wgmma && tiles && x == Layout::nchw && y == Layout::nchw &&
                      dtype != DType::float64 && g.n > 0 && !matrix &&
                      g.y_shape().count() * static_cast<std::int64_t>(size_of(dtype)) <= kMostCopied;
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

bool is_accurate(DType dtype) {
  return conv_estimate::operands_of(dtype).parts == 3;
}

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
Choice choose_for_float64(const ConvCall& c, const Offer& offer) {
  const ConvTranspose2dGeometry& g = c.g;
  const Choice few{ConvAlgorithm::direct, "few channels"},
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
Choice choose_freely(const ConvCall& c, DType dtype, Layout y, const Offer& offer) {
  const ConvTranspose2dGeometry& g = c.g;
  if (offer.matrix && takes_matrix(g, dtype, y, c.pass == ConvPass::input_gradient)) return kOnePixel;
  const bool may_take = may_take_depthwise(c, offer);
  if (may_take && g.group_ci() == 1 && g.group_co() == 1)
    return prefers_direct(c, dtype, offer) ? kPlanesDoNotPay : kGroupsOfOne;
  if (offer.thin_direct) return offer.thin && prefers_thin(c, dtype, offer) ? kThin : kThinDirect;
  if (g.n == 0) return kNoImages;
  if (!conv_gemm::fits(g)) return offer.depthwise ? kGroupsOfOne : kNoTiles;
  if (dtype == DType::float64) return choose_for_float64(c, offer);
  Choice best{};
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

/// Whether x or y of an nchw call has its elements in the same order with channels last: nothing is copied.
bool has_same_order(const ConvTranspose2dGeometry& g, bool x) {
  return (x ? g.ci : g.co) == 1 || (x ? g.h.in * g.w.in : g.h.out * g.w.out) == 1;
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
Choice choose(const ConvTranspose2dGeometry& g, ConvPass pass, DType dtype, Layout x, Layout y,
              bool has_wgmma) {
  const ConvCall call(g, pass, dtype, pass == ConvPass::input_gradient ? y : x);
  const Offer offer(call, dtype, x, y, has_wgmma);
  ConvAlgorithm a = conv_algorithm();
  if (is_way_of_wgmma(a)) a = ConvAlgorithm::wgmma;  // which asks again
  const bool known = offer.has(a) || (a == ConvAlgorithm::wgmma && offer.tiles);
  Choice c = known ? Choice{a, "forced"} : choose_freely(call, dtype, y, offer);
  if ((c.algorithm == ConvAlgorithm::tensor || c.algorithm == ConvAlgorithm::wgmma) &&
      dtype == DType::float64)
    c = {ConvAlgorithm::simt, "products of float64 have no tensor cores here"};
  if (c.algorithm == ConvAlgorithm::wgmma && !has_wgmma)
    c = {ConvAlgorithm::tensor, "the device does not have Hopper's instructions"};
  if (c.algorithm == ConvAlgorithm::simt && (dtype == DType::bfloat16 || dtype == DType::float16))
    c = {ConvAlgorithm::tensor, "products of half types have tensor cores only"};
  return c;
}
Choice known_choice(const ConvTranspose2dGeometry& g, ConvPass pass, DType dtype, Layout x, Layout y,
                    bool has_wgmma) {
  return remembered(ConvQuestion(g, pass, dtype, x, y, float32_precision(), has_wgmma, conv_algorithm()),
                    [&] { return choose(g, pass, dtype, x, y, has_wgmma); });
}
/// Whether thin products can read x: most by whole vectors, which a view may begin beside.
bool reads_vectors(const Tensor& x) {
  return reinterpret_cast<std::uintptr_t>(x.read()) % 16 == 0;
}
Choice known_choice(const ConvTranspose2dGeometry& g, ConvPass pass, const Tensor& x, const Tensor& y) {
  const Choice c = known_choice(g, pass, y.dtype(), x.layout(), y.layout(), conv_gemm::has_wgmma(y.device()));
  if (c.algorithm == ConvAlgorithm::thin && !reads_vectors(x))
    return {ConvAlgorithm::tensor, "x does not begin at a multiple of 16 bytes"};
  return c;
}

/// Whether what a map copies for boxes serves the weight's gradient, too: a tape wants both, and that is
/// computed over boxes, as far as is known before its choice is measured.
bool shares_copy(const ConvTranspose2dGeometry& g, DType dtype, Layout x, Layout y, bool has_wgmma) {
  return OperandCopies::serve_both() &&
         known_choice(g, ConvPass::weight_gradient, dtype, x, y, has_wgmma).algorithm ==
             ConvAlgorithm::wgmma &&
         conv_gemm::weight_grad_way(g, x, y, conv_estimate::operands_of(dtype)).kind ==
             conv_gemm::GradKind::boxes;
}
bool shares_copy(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y) {
  return shares_copy(g, y.dtype(), x.layout(), y.layout(), conv_gemm::has_wgmma(y.device()));
}

/// Whether an algorithm applies a prologue to x as it reads it, of images copied for boxes or of thin
/// products. `is_bounded()`: whether a bound is known of what that makes, which scaled halves ask for.
template <class F>
bool applies(ConvAlgorithm a, const ConvTranspose2dGeometry& g, ConvPass pass, const Tensor& x, Layout y,
             const F& is_bounded, bool shared) {
  if (a == ConvAlgorithm::thin) return reads_vectors(x);
  if (a != ConvAlgorithm::wgmma) return false;
  using namespace conv_gemm;
  const Factors f = conv_estimate::operands_of(x.dtype());
  const auto can_apply = [&](int groups, bool scaled) {
    return (!scaled || is_bounded()) && ChannelsLast::can_apply(x, groups, scaled);
  };
  if (pass == ConvPass::weight_gradient) {
    // Rows have no prologue, and are taken only if they are forced.
    const WeightGradWay& way = weight_grad_way(g, x.layout(), y, f, conv_algorithm() == ConvAlgorithm::rows);
    return way.kind == GradKind::boxes && can_apply(way.boxes.plan.planes.groups, f.are_float());
  }
  const MapWay way = map_way(g, true, x.layout(), box_results(y, g.w.out, f.element_bytes, 0), f, shared);
  return way.kind != MapKind::windows && !way.gathers() &&
         can_apply(way.boxes.plan.groups, way.kind == MapKind::halves);
}

/// x as an algorithm reads it, and what it is to do then.
struct Operand {
  Operand(ConvAlgorithm a, const ConvTranspose2dGeometry& g, ConvPass pass, const Tensor& of, Layout y,
          const Prologue& given, bool shared)
      : x(of) {
    if (!given.exists()) return;
    const auto is_bounded = [&] { return bound_of(given) != nullptr; };
    if (applies(a, g, pass, x, y, is_bounded, shared)) {
      prologue = given;
    } else {
      x = detail::applied(given, x);
    }
  }
  Tensor x;
  Prologue prologue;
};

/// Calls f with the Math of a tensor's type.
template <class F>
void visit_math(const char* op, DType dtype, ConvAlgorithm algorithm, F f) {
  using namespace conv_gemm;
  if (dtype == DType::float64) return f.template operator()<Simt<double>>();
  if (dtype == DType::bfloat16) return f.template operator()<Half<bfloat16>>();
  if (dtype == DType::float16) return f.template operator()<Half<float16>>();
  check(dtype == DType::float32, op, ": dtype ", dtype, " is not supported; legal are float64, float32, ",
        "bfloat16 and float16");
  if (algorithm == ConvAlgorithm::simt) return f.template operator()<Simt<float>>();
  if (float32_precision() != Precision::highest) return f.template operator()<Tf32>();
  f.template operator()<Tf32x3>();
}

/// The weight as an algorithm reads it: some want it row-major.
Tensor weight_for(ConvAlgorithm a, const Tensor& w) {
  switch (a) {
    case ConvAlgorithm::matrix:
    case ConvAlgorithm::thin:
    case ConvAlgorithm::simt:
    case ConvAlgorithm::tensor:
    case ConvAlgorithm::wgmma:
    case ConvAlgorithm::channels_last:
      return w;
    default:
      return w.to(Layout::nchw);
  }
}
/// Where an algorithm writes the weight's gradient: some want it row-major.
Tensor result_for(ConvAlgorithm a, const Tensor& w) {
  const bool either = a == ConvAlgorithm::matrix || a == ConvAlgorithm::columns ||
                      a == ConvAlgorithm::strip || a == ConvAlgorithm::thin || a == ConvAlgorithm::wgmma;
  if (either || w.layout() == Layout::nchw) return w;
  const bool same_order = w.size(1) == 1 || w.size(2) * w.size(3) == 1;
  return same_order ? w.to(Layout::nchw) : Tensor::empty(w.shape(), {w.dtype(), w.device()});
}

/// Variants in words and what they take, for tensors that start where tensors of their own do.
struct Variants {
  const ConvTranspose2dGeometry& g;
  DType dtype;
  Layout layout;
  bool has_wgmma;
  std::optional<Device> device;  // if there is one

  ConvChoice of_map(const Choice& c, bool transposed, bool shared) const {
    if (g.n == 0) return {to_string(c.algorithm), c.reason, ""};
    using namespace conv_gemm;
    std::string variant;
    std::int64_t bytes = 0;
    if (c.algorithm == ConvAlgorithm::channels_last) {
      const Variants last{g, dtype, Layout::nhwc, has_wgmma, device};
      const ConvChoice inner = last.of_map(
          known_choice(g, ConvPass::forward, dtype, Layout::nhwc, Layout::nhwc, has_wgmma), true, shared);
      const std::int64_t copied = (has_same_order(g, true) ? 0 : g.x_shape().count()) +
                                  (has_same_order(g, false) ? 0 : g.y_shape().count());
      return {to_string(c.algorithm), c.reason, to_string(inner),
              inner.workspace + static_cast<double>(copied * element_bytes())};
    }
    if (c.algorithm == ConvAlgorithm::matrix && device)
      bytes = matrix_workspace(g, transposed, dtype, layout, *device);
    if (c.algorithm == ConvAlgorithm::columns) {
      const Factors f = factors();
      if (!transposed && conv_columns::gathers(g, layout, f.element_bytes, f.parts))
        variant = "gathered pixels";
      else if (has_wgmma && conv_columns::is_convolved(g, transposed, layout, f.parts))
        variant = "products by a convolution";
      if (device) bytes = columns_workspace(g, transposed, dtype, layout, *device);
    }
    if (c.algorithm == ConvAlgorithm::simt || c.algorithm == ConvAlgorithm::tensor)
      bytes = map_workspace(g, transposed, element_bytes(), c.algorithm == ConvAlgorithm::tensor);
    if (c.algorithm == ConvAlgorithm::depthwise) variant = depthwise(transposed);
    if (c.algorithm == ConvAlgorithm::direct && thin_fits(g, dtype, layout, layout)) variant = "thin";
    if (c.algorithm == ConvAlgorithm::thin)
      variant = of_bands(transposed ? conv_thin::ThinPass::transposed : conv_thin::ThinPass::plain);
    if (c.algorithm == ConvAlgorithm::strip && last()) variant = "channels last";
    if (c.algorithm == ConvAlgorithm::strip && !transposed)
      bytes =
          strip_plain_parts(g, dtype, layout, has_wgmma) * g.x_shape().count() * std::int64_t{sizeof(float)};
    if (c.algorithm == ConvAlgorithm::wgmma) {
      const BoxResults results = box_results(layout, transposed ? g.w.out : g.w.in, element_bytes(), 0);
      const MapWay way = map_way(g, transposed, layout, results, factors(), shared);
      variant = products(way.kind != MapKind::windows, way.kind == MapKind::halves);
      if (way.kind != MapKind::windows && way.boxes.plan.joined == 2)
        variant += ", both phases of columns in a tile";
      if (way.kind != MapKind::windows && way.boxes.choice.results == BoxResults::swapped)
        variant += ", phases of columns swapped by two blocks";
      if (way.kind != MapKind::windows) variant += folded(way.boxes.fold);
      if (way.gathers()) variant += ", gathered from nchw";
      bytes = wgmma_map_workspace(g, transposed, way, layout, factors());
    }
    return {to_string(c.algorithm), c.reason, variant, static_cast<double>(bytes)};
  }

  /// What thin products are of.
  std::string of_bands(conv_thin::ThinPass pass) const {
    const auto f = factors();
    return conv_thin::band_pixels(g, pass, layout, f.element_bytes, f.halves()) > 0 ? "bands of rows" : "";
  }

  ConvChoice of_weight_grad(const Choice& c) const {
    if (g.n == 0) return {to_string(c.algorithm), c.reason, ""};
    using namespace conv_gemm;
    std::string variant;
    std::int64_t bytes = 0, splits = 0;  // of sums of the weight's size
    if (c.algorithm == ConvAlgorithm::matrix && device)
      bytes = matrix_weight_grad_workspace(g, dtype, layout, *device);
    if (c.algorithm == ConvAlgorithm::columns) {
      variant = "gathered pixels";
      if (device) bytes = columns_weight_grad_workspace(g, dtype, *device);
    }
    if (c.algorithm == ConvAlgorithm::simt || c.algorithm == ConvAlgorithm::tensor)
      bytes = weight_grad_workspace(g, element_bytes(), c.algorithm == ConvAlgorithm::tensor);
    if (c.algorithm == ConvAlgorithm::depthwise) {
      variant = depthwise_weight_grad();
      splits = last() ? depthwise_channels_last_weight_grad_splits(g, dtype, has_wgmma)
                      : depthwise_weight_grad_splits(g, dtype, has_wgmma);
    }
    if (c.algorithm == ConvAlgorithm::direct) {
      if (thin_weight_grad_fits(g, dtype, layout, layout)) variant = "thin";
      splits = direct_weight_grad_splits(g, dtype, layout, layout);
    }
    if (c.algorithm == ConvAlgorithm::thin) {
      variant = of_bands(conv_thin::ThinPass::weight);
      splits = thin_products_weight_grad_splits(g, dtype, layout);
    }
    if (c.algorithm == ConvAlgorithm::strip) {
      if (strip_weight_grad_rows_effort(g, dtype, layout)) variant = "rows of y read once";
      splits = strip_weight_grad_splits(g, dtype, layout, has_wgmma);
    }
    if (c.algorithm == ConvAlgorithm::wgmma) {
      const Factors f = factors();
      const WeightGradWay& way = weight_grad_way(g, layout, layout, f);
      if (way.kind == GradKind::rows) {
        variant = are_pairs(g)    ? "rows as they lie, pairs of columns"
                  : f.are_float() ? "rows as they lie, of scaled halves"
                                  : "rows as they lie";
      } else {
        const bool boxes = way.kind == GradKind::boxes;
        variant = products(boxes, boxes && f.are_float());
        if (boxes) variant += folded(way.boxes.fold);
      }
      bytes = wgmma_weight_grad_workspace(g, layout, f);
    }
    bytes += splits * g.weight_shape().count() * std::max(element_bytes(), 4);
    return {to_string(c.algorithm), c.reason, variant, static_cast<double>(bytes)};
  }

 private:
  bool last() const { return layout == Layout::nhwc; }
  int element_bytes() const { return static_cast<int>(size_of(dtype)); }
  conv_gemm::Factors factors() const { return conv_estimate::operands_of(dtype); }
  const char* depthwise(bool transposed) const {
    if (last()) return has_wgmma && depthwise_ring_fits(g, dtype) ? "rows through a ring" : "channels last";
    return depthwise_rows_fits(g, transposed, dtype) ? "rows in registers" : "planes in shared memory";
  }
  const char* depthwise_weight_grad() const {
    if (!last() && has_wgmma && depthwise_planes_fits(g, dtype)) return "whole planes in shared memory";
    return depthwise(false);
  }
  static std::string folded(const conv_gemm::Fold& fold) {
    return fold.exists() ? concat(", columns folded by ", fold.x, " and ", fold.y) : "";
  }
  const char* products(bool boxes, bool halves) const {
    if (!boxes) return "windows gathered for each tap";
    if (!halves) return "boxes of pixels";
    return factors().halves() == 1 ? "boxes of scaled halves" : "boxes of scaled halves in two parts";
  }
};

}  // namespace

bool applies_prologue(const ConvTranspose2dGeometry& g, const Tensor& x, bool is_bounded, bool trains) {
  const Device device = x.device();
  const Layout layout = x.layout();
  const auto applied = [&](ConvPass pass) {
    const auto known = known_tuned(g, pass, x.dtype(), layout, layout, device);
    const ConvAlgorithmScope scope(known ? std::optional(known->candidate) : std::nullopt);
    const Choice c = known_choice(g, pass, x.dtype(), layout, layout, conv_gemm::has_wgmma(device));
    return applies(
        c.algorithm, g, pass, x, layout, [&] { return is_bounded; }, false);
  };
  return g.n > 0 && applied(ConvPass::forward) && (!trains || applied(ConvPass::weight_gradient));
}

void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& input, const Tensor& weight,
                      const Tensor& bias, const Tensor& y, double negative_slope, const Prologue& before) {
  const bool shared = shares_copy(g, input, y);
  const ConvAlgorithmScope scope(tuned(g, ConvPass::forward, input, y, weight));
  const ConvAlgorithm algorithm = known_choice(g, ConvPass::forward, input, y).algorithm;
  const auto [x, prologue] = Operand(algorithm, g, ConvPass::forward, input, y.layout(), before, shared);
  if (algorithm == ConvAlgorithm::channels_last) {
    const bool copies = !has_same_order(g, false);
    const Tensor last =
        copies ? Tensor::empty(y.shape(), {y.dtype(), y.device(), Layout::nhwc}) : y.to(Layout::nhwc);
    conv_transpose2d(g, x.to(Layout::nhwc), weight, bias, last, negative_slope, {});
    if (copies) y.copy_(last);
    return;
  }
  const Tensor w = weight_for(algorithm, weight);
  bool rectified = negative_slope == 1;
  visit_math("conv_transpose2d", y.dtype(), algorithm, [&]<class Math>() {
    if (algorithm == ConvAlgorithm::reference) return reference::conv_transpose2d(g, x, w, bias, y);
    if (algorithm == ConvAlgorithm::matrix) {
      rectified = true;
      return matrix(g, true, x, w, bias, y, negative_slope);
    }
    if (algorithm == ConvAlgorithm::columns) {
      rectified = true;
      return columns(g, true, x, w, bias, y, negative_slope);
    }
    if (algorithm == ConvAlgorithm::thin) {
      rectified = true;
      return thin_products(g, true, x, w, bias, y, negative_slope, prologue);
    }
    if (algorithm == ConvAlgorithm::depthwise) {
      return x.layout() == Layout::nhwc ? depthwise_channels_last(g, true, x, w, bias, y)
                                        : depthwise(g, true, x, w, bias, y);
    }
    if (algorithm == ConvAlgorithm::direct) return direct(g, true, x, w, bias, y);
    if (algorithm == ConvAlgorithm::strip) {
      return x.layout() == Layout::nhwc ? strip_transposed_channels_last(g, x, w, bias, y)
                                        : strip_transposed(g, x, w, bias, y);
    }
    if constexpr (Math::kParts > 0) {
      if (algorithm == ConvAlgorithm::wgmma) {
        const bool whole =
            conv_gemm::wgmma_map<Math>(g, true, x, w, bias, y, negative_slope, shared, prologue);
        rectified = rectified || whole;
        return;
      }
    }
    conv_gemm::map<Math>(g, true, x, w, bias, y);
  });
  if (!rectified) rectify(y, negative_slope);
}

void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& weight, const Tensor& bias,
            const Tensor& x, double negative_slope) {
  const bool shared = shares_copy(g, x, y);
  const ConvAlgorithmScope scope(tuned(g, ConvPass::input_gradient, x, y, weight));
  const ConvAlgorithm algorithm = known_choice(g, ConvPass::input_gradient, x, y).algorithm;
  const Tensor w = weight_for(algorithm, weight);
  bool rectified = negative_slope == 1;
  visit_math("conv2d", x.dtype(), algorithm, [&]<class Math>() {
    if (algorithm == ConvAlgorithm::reference) return reference::conv2d(g, y, w, bias, x);
    if (algorithm == ConvAlgorithm::matrix) {
      rectified = true;
      return matrix(g, false, y, w, bias, x, negative_slope);
    }
    if (algorithm == ConvAlgorithm::columns) {
      rectified = true;
      return columns(g, false, y, w, bias, x, negative_slope);
    }
    if (algorithm == ConvAlgorithm::thin) {
      rectified = true;
      return thin_products(g, false, y, w, bias, x, negative_slope);
    }
    if (algorithm == ConvAlgorithm::depthwise) {
      return y.layout() == Layout::nhwc ? depthwise_channels_last(g, false, y, w, bias, x)
                                        : depthwise(g, false, y, w, bias, x);
    }
    if (algorithm == ConvAlgorithm::direct) return direct(g, false, y, w, bias, x);
    if (algorithm == ConvAlgorithm::strip) return strip_plain(g, y, w, bias, x);
    if constexpr (Math::kParts > 0) {
      if (algorithm == ConvAlgorithm::wgmma) {
        const bool whole = conv_gemm::wgmma_map<Math>(g, false, y, w, bias, x, negative_slope, shared);
        rectified = rectified || whole;
        return;
      }
    }
    conv_gemm::map<Math>(g, false, y, w, bias, x);
  });
  if (!rectified) rectify(x, negative_slope);
}

void conv_transpose2d_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& input, const Tensor& y,
                                  const Tensor& result, const Prologue& before) {
  const ConvAlgorithmScope scope(tuned(g, ConvPass::weight_gradient, input, y, result));
  const ConvAlgorithm algorithm = known_choice(g, ConvPass::weight_gradient, input, y).algorithm;
  const auto [x, prologue] =
      Operand(algorithm, g, ConvPass::weight_gradient, input, y.layout(), before, false);
  const Tensor w = result_for(algorithm, result);
  visit_math("conv_transpose2d_weight_grad", w.dtype(), algorithm, [&]<class Math>() {
    if (algorithm == ConvAlgorithm::reference) return reference::weight_grad(g, x, y, w);
    if (algorithm == ConvAlgorithm::matrix) return matrix_weight_grad(g, x, y, w);
    if (algorithm == ConvAlgorithm::columns) return columns_weight_grad(g, x, y, w);
    if (algorithm == ConvAlgorithm::thin) return thin_products_weight_grad(g, x, y, w, prologue);
    if (algorithm == ConvAlgorithm::depthwise) {
      return x.layout() == Layout::nhwc ? depthwise_channels_last_weight_grad(g, x, y, w)
                                        : depthwise_weight_grad(g, x, y, w);
    }
    if (algorithm == ConvAlgorithm::direct) return direct_weight_grad(g, x, y, w);
    if (algorithm == ConvAlgorithm::strip) return strip_weight_grad(g, x, y, w);
    if constexpr (Math::kParts > 0) {
      if (algorithm == ConvAlgorithm::wgmma) return conv_gemm::wgmma_weight_grad<Math>(g, x, y, w, prologue);
    }
    conv_gemm::weight_grad<Math>(g, x, y, w);
  });
  if (w.read() != result.read()) result.copy_(w);
}

std::vector<ConvCandidate> conv_candidates(const ConvTranspose2dGeometry& g, ConvPass pass, const Tensor& x,
                                           const Tensor& y) {
  using namespace conv_gemm;
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
        ConvAlgorithm::rows, ConvAlgorithm::matrix, ConvAlgorithm::simt, ConvAlgorithm::channels_last})
    add(a);
  if (offer.has(ConvAlgorithm::wgmma) && y.dtype() != DType::float64) {
    for (const ConvCandidate& c : of_weight ? tiled_weight_grads(g, factors)
                                            : tiled_maps(g, transposed, from.layout(), results, factors))
      if (std::find(ways.begin(), ways.end(), c) == ways.end()) found.push_back(c);
  }
  return found;
}

namespace {

/// With what a clock can tell.
double rounded(double microseconds) {
  return std::round(microseconds * 10) / 10;
}

ConvExplanation explained(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_wgmma,
                          std::optional<Device> device) {
  const Variants variants{g, dtype, layout, has_wgmma, device};
  const auto choice = [&](ConvPass pass) {
    const bool shared = shares_copy(g, dtype, layout, layout, has_wgmma);
    const auto known = device ? known_tuned(g, pass, dtype, layout, layout, *device) : std::nullopt;
    const ConvAlgorithmScope scope(known ? std::optional(known->candidate) : std::nullopt);
    const Choice taken = known_choice(g, pass, dtype, layout, layout, has_wgmma);
    ConvChoice c = pass == ConvPass::weight_gradient
                       ? variants.of_weight_grad(taken)
                       : variants.of_map(taken, pass == ConvPass::forward, shared);
    if (known) {
      c.reason = concat(known->is_shipped ? "measured before: " : "measured: ", rounded(known->microseconds),
                        " microseconds");
      if (known->microseconds < known->estimated)
        c.reason += concat(", the estimated choice ", rounded(known->estimated));
    }
    return c;
  };
  ConvExplanation e = cpu::explain_conv(g, dtype, layout, {});
  e.forward = choice(ConvPass::forward);
  {
    const OperandCopies both(true);  // which decides how the gradients are computed
    e.input_gradient = choice(ConvPass::input_gradient);
    e.weight_gradient = choice(ConvPass::weight_gradient);
  }
  e.workspace = std::max({e.forward.workspace, e.input_gradient.workspace, e.weight_gradient.workspace});
  const double rate = dtype == DType::float64 ? 60e12 : is_accurate(dtype) ? 267e12 : 680e12;
  e.limit = std::max(e.bytes / 4.27e12, e.flops / rate);
  return e;
}

}  // namespace

ConvExplanation explain_conv(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, Device device) {
  return explained(g, dtype, layout, conv_gemm::has_wgmma(device), device);
}

ConvExplanation explain_on(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_wgmma) {
  return explained(g, dtype, layout, has_wgmma, std::nullopt);
}

}  // namespace tapedeck::cu
