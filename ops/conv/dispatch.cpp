// The choice of kernels that kernels.h states.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/conv/cost.h>
#include <tapedeck/ops/conv/explain.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/kernels.h>
#include <tapedeck/ops/conv/matrix.h>
#include <tapedeck/ops/conv/pack.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/rectify.h>

namespace tapedeck {

namespace {

constexpr ConvAlgorithm kAlgorithms[] = {
    ConvAlgorithm::automatic, ConvAlgorithm::reference, ConvAlgorithm::planes, ConvAlgorithm::windows,
    ConvAlgorithm::winograd,  ConvAlgorithm::in_place,  ConvAlgorithm::matrix, ConvAlgorithm::columns,
    ConvAlgorithm::depthwise, ConvAlgorithm::direct,    ConvAlgorithm::thin,   ConvAlgorithm::strip,
    ConvAlgorithm::simt,      ConvAlgorithm::tensor,    ConvAlgorithm::wgmma,  ConvAlgorithm::boxes,
    ConvAlgorithm::halves,    ConvAlgorithm::gathered,  ConvAlgorithm::rows,   ConvAlgorithm::channels_last};

std::atomic<int> forced{-1};  // a ConvAlgorithm, or -1: as the environment says
thread_local std::optional<ConvCandidate> forced_here;

ConvAlgorithm from_environment() {
  const char* name = std::getenv("TAPEDECK_CONV_ALGORITHM");
  return name == nullptr || *name == '\0' ? ConvAlgorithm::automatic : parse_conv_algorithm(name);
}

}  // namespace

std::string to_string(ConvAlgorithm algorithm) {
  switch (algorithm) {
    case ConvAlgorithm::reference:
      return "reference";
    case ConvAlgorithm::planes:
      return "planes";
    case ConvAlgorithm::windows:
      return "windows";
    case ConvAlgorithm::winograd:
      return "winograd";
    case ConvAlgorithm::in_place:
      return "in_place";
    case ConvAlgorithm::matrix:
      return "matrix";
    case ConvAlgorithm::columns:
      return "columns";
    case ConvAlgorithm::depthwise:
      return "depthwise";
    case ConvAlgorithm::direct:
      return "direct";
    case ConvAlgorithm::thin:
      return "thin";
    case ConvAlgorithm::strip:
      return "strip";
    case ConvAlgorithm::simt:
      return "simt";
    case ConvAlgorithm::tensor:
      return "tensor";
    case ConvAlgorithm::wgmma:
      return "wgmma";
    case ConvAlgorithm::boxes:
      return "boxes";
    case ConvAlgorithm::halves:
      return "halves";
    case ConvAlgorithm::gathered:
      return "gathered";
    case ConvAlgorithm::rows:
      return "rows";
    case ConvAlgorithm::channels_last:
      return "channels_last";
    case ConvAlgorithm::automatic:
      break;
  }
  return "automatic";
}

ConvAlgorithm parse_conv_algorithm(std::string_view name) {
  std::string legal;
  for (ConvAlgorithm algorithm : kAlgorithms) {
    if (name == to_string(algorithm)) return algorithm;
    legal += concat(legal.empty() ? "" : algorithm == std::end(kAlgorithms)[-1] ? " and " : ", ", algorithm);
  }
  throw Error(concat("conv algorithm: \"", name, "\" is unknown; legal are ", legal));
}

void set_conv_algorithm(ConvAlgorithm algorithm) {
  forced = static_cast<int>(algorithm);
}

ConvAlgorithm conv_algorithm() {
  if (forced_here) return forced_here->algorithm;
  const int algorithm = forced;
  return algorithm < 0 ? from_environment() : static_cast<ConvAlgorithm>(algorithm);
}

std::string to_string(const ConvCandidate& c) {
  return c.tiling.exists() ? concat(c.algorithm, ' ', c.tiling.to_string()) : to_string(c.algorithm);
}

ConvAlgorithmScope::ConvAlgorithmScope(const std::optional<ConvCandidate>& candidate) : outer_(forced_here) {
  if (candidate) forced_here = candidate;
}

ConvAlgorithmScope::~ConvAlgorithmScope() {
  forced_here = outer_;
}

ConvTiling ConvAlgorithmScope::tiling() {
  return forced_here ? forced_here->tiling : ConvTiling();
}

std::optional<ConvAlgorithm> ConvAlgorithmScope::current() {
  return forced_here ? std::optional(forced_here->algorithm) : std::nullopt;
}

namespace cpu {

namespace {

enum class ConvPath : std::uint8_t {
  reference,
  depthwise,
  matrix,
  planes,
  winograd,
  in_place,
  thin,
  channelwise,
  wide
};

const char* name_of(ConvPath path) {
  switch (path) {
    case ConvPath::reference:
      return "reference";
    case ConvPath::depthwise:
      return "depthwise";
    case ConvPath::matrix:
      return "matrix";
    case ConvPath::planes:
      return "planes";
    case ConvPath::winograd:
      return "winograd";
    case ConvPath::in_place:
      return "in_place";
    case ConvPath::thin:
      return "thin";
    case ConvPath::channelwise:
      return "channelwise";
    case ConvPath::wide:
      break;
  }
  return "wide";
}

Lanes lanes_of(ConvPath path) {
  return path == ConvPath::thin          ? Lanes::thin
         : path == ConvPath::channelwise ? Lanes::channelwise
                                         : Lanes::wide;
}

/// The cheapest of the paths that a call may take, or of those that are forced.
ConvPath cheapest(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, const Costs& costs) {
  const bool can_planes = layout == Layout::nchw,
             can_winograd = dtype != DType::float64 && is_winograd(g.h) && is_winograd(g.w);
  const ConvAlgorithm algorithm = conv_algorithm();
  if (algorithm == ConvAlgorithm::planes && can_planes) return ConvPath::planes;
  if (algorithm == ConvAlgorithm::depthwise && can_planes && costs.depthwise < kNever)
    return ConvPath::depthwise;
  if (algorithm == ConvAlgorithm::winograd && can_winograd) return ConvPath::winograd;
  if (algorithm == ConvAlgorithm::in_place && can_planes && costs.in_place < kNever)
    return ConvPath::in_place;
  const bool windows = algorithm == ConvAlgorithm::windows;
  const std::pair<double, ConvPath> paths[] = {
      {costs.wide, ConvPath::wide},
      {costs.thin, ConvPath::thin},
      {costs.channelwise, ConvPath::channelwise},
      {can_winograd && !windows ? costs.winograd : kNever, ConvPath::winograd},
      {can_planes && !windows ? costs.in_place : kNever, ConvPath::in_place},
      {can_planes && !windows ? costs.depthwise : kNever, ConvPath::depthwise},
      {can_planes && !windows ? costs.planes : kNever, ConvPath::planes}};
  return std::min_element(std::begin(paths), std::end(paths),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

/// The path of a call with results of `dtype`, x and y having the layout.
ConvPath choose(const ConvTranspose2dGeometry& g, Direction direction, DType dtype, Layout layout) {
  if (conv_algorithm() == ConvAlgorithm::reference) return ConvPath::reference;
  if (is_matrix(g, layout)) return ConvPath::matrix;
  return cheapest(
      g, dtype, layout,
      dtype == DType::float64 ? costs<double>(g, direction, layout) : costs<float>(g, direction, layout));
}

ConvPath choose_weight_grad(const ConvTranspose2dGeometry& g, DType dtype, Layout layout) {
  if (conv_algorithm() == ConvAlgorithm::reference) return ConvPath::reference;
  if (is_matrix(g, layout)) return ConvPath::matrix;
  return cheapest(
      g, dtype, layout,
      dtype == DType::float64 ? weight_grad_costs<double>(g, layout) : weight_grad_costs<float>(g, layout));
}

/// Half types are computed in float32, in nearly equal parts of so many images: whose float32 copies of x and
/// y have kPartBytes, or four times the weight's, which each part reads or adds to; one at least. Products of
/// one pixel's channels have all images as their rows.
std::int64_t images_at_once(const ConvTranspose2dGeometry& g, ConvPath path) {
  constexpr std::int64_t kPartBytes = 8 << 20, kWeights = 4;
  const std::int64_t of_image = std::max<std::int64_t>(1, g.ci * g.h.in * g.w.in + g.co * g.h.out * g.w.out),
                     of_part = std::max<std::int64_t>(kPartBytes / static_cast<std::int64_t>(sizeof(float)),
                                                      kWeights * g.weight_shape().count()),
                     all = std::max<std::int64_t>(1, g.n);
  if (path == ConvPath::matrix) return all;
  const std::int64_t parts = ConvAxis::ceil_div(all, std::clamp<std::int64_t>(of_part / of_image, 1, all));
  return ConvAxis::ceil_div(all, parts);
}
/// Calls f with the geometry of each part, and its first image and the one behind its last; at least once.
template <class F>
void for_parts(const ConvTranspose2dGeometry& g, ConvPath path, const F& f) {
  const std::int64_t most = images_at_once(g, path);
  std::int64_t begin = 0;
  do {
    ConvTranspose2dGeometry part = g;
    part.n = std::min(most, g.n - begin);
    f(part, begin, begin + part.n);
    begin += part.n;
  } while (begin < g.n);
}
Tensor floats(const Tensor& x) {
  return x.defined() ? x.to(DType::float32) : x;
}
Tensor empty_floats(const Tensor& like) {
  return Tensor::empty(like.shape(), {DType::float32, like.device(), like.layout()});
}

template <class T>
void convolve_as(ConvPath path, Direction direction, const ConvTranspose2dGeometry& g, const Tensor& from,
                 const Tensor& w, const Tensor& bias, const Tensor& to, double slope) {
  if (path == ConvPath::matrix) return matrix<T>(g, direction, from, w, bias, to, slope);
  if (path == ConvPath::planes) return correlate<T>(g, direction, from, w, bias, to, slope);
  if constexpr (kHasInPlace) {
    if (path == ConvPath::in_place) return in_place_plain<T>(g, from, w, bias, to, slope);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (path == ConvPath::winograd) return winograd(g, direction, from, w, bias, to, slope);
    if (kHasDepthwise && path == ConvPath::depthwise) {
      return direction == Direction::plain ? depthwise_plain(g, from, w, bias, to, slope)
                                           : depthwise_transposed(g, from, w, bias, to, slope);
    }
  }
  windows<T>(g, direction, lanes_of(path), from, w, bias, to, slope);
}

void convolve(ConvPath path, Direction direction, const ConvTranspose2dGeometry& g, const Tensor& from,
              const Tensor& weight, const Tensor& bias, const Tensor& to, double slope) {
  const Tensor w = weight.to(Layout::nchw);
  if (to.dtype() == DType::float64) return convolve_as<double>(path, direction, g, from, w, bias, to, slope);
  if (size_of(to.dtype()) != 2) return convolve_as<float>(path, direction, g, from, w, bias, to, slope);
  const Tensor wide_w = floats(w), wide_bias = floats(bias);
  const Tensor wide = empty_floats(to.slice(0, std::min(g.n, images_at_once(g, path))));
  for_parts(g, path, [&](const ConvTranspose2dGeometry& part, std::int64_t begin, std::int64_t end) {
    const Tensor results = wide.slice(0, part.n);
    convolve_as<float>(path, direction, part, floats(from.slice(begin, end)), wide_w, wide_bias, results,
                       slope);
    to.slice(begin, end).copy_(results);
  });
}

template <class T>
void weight_grad_as(ConvPath path, const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                    const Tensor& w) {
  if (path == ConvPath::matrix) return matrix_weight_grad<T>(g, x, y, w);
  if (path == ConvPath::planes) return pixel_sums<T>(g, x, y, w);
  if constexpr (kHasInPlace) {
    if (path == ConvPath::in_place) return in_place_weight_grad<T>(g, x, y, w);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (path == ConvPath::winograd) return winograd_weight_grad(g, x, y, w);
    if (kHasDepthwise && path == ConvPath::depthwise) return depthwise_weight_grad(g, x, y, w);
  }
  if (path == ConvPath::channelwise) return channelwise_weight_grad<T>(g, x, y, w);
  weight_grad<T>(g, x, y, w);
}

}  // namespace

bool applies_prologue(const ConvTranspose2dGeometry&, const Tensor&, bool, bool) {
  return false;
}

void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& input, const Tensor& w,
                      const Tensor& bias, const Tensor& y, double negative_slope, const Prologue& prologue) {
  const Tensor x = detail::applied(prologue, input);
  const ConvPath path = choose(g, Direction::transposed, y.dtype(), y.layout());
  if (path == ConvPath::reference) {
    reference::conv_transpose2d(g, x, w.to(Layout::nchw), bias, y);
    if (negative_slope != 1) rectify(y, negative_slope);
    return;
  }
  convolve(path, Direction::transposed, g, x, w, bias, y, negative_slope);
}

void conv2d(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x, double negative_slope) {
  const ConvPath path = choose(g, Direction::plain, x.dtype(), y.layout());
  if (path == ConvPath::reference) {
    reference::conv2d(g, y, w.to(Layout::nchw), bias, x);
    if (negative_slope != 1) rectify(x, negative_slope);
    return;
  }
  convolve(path, Direction::plain, g, y, w, bias, x, negative_slope);
}

void conv_transpose2d_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& input, const Tensor& y,
                                  const Tensor& w, const Prologue& prologue) {
  const Tensor x = detail::applied(prologue, input);
  if (w.layout() != Layout::nchw) {
    const Tensor row_major = Tensor::empty(w.shape(), {w.dtype(), w.device()});
    conv_transpose2d_weight_grad(g, x, y, row_major);
    return w.copy_(row_major);
  }
  const ConvPath path = choose_weight_grad(g, w.dtype(), y.layout());
  if (path == ConvPath::reference) return reference::weight_grad(g, x, y, w);
  if (w.dtype() == DType::float64) return weight_grad_as<double>(path, g, x, y, w);
  if (size_of(w.dtype()) != 2) return weight_grad_as<float>(path, g, x, y, w);
  const Tensor sum = empty_floats(w), of_part = g.n > images_at_once(g, path) ? empty_floats(w) : Tensor();
  for_parts(g, path, [&](const ConvTranspose2dGeometry& part, std::int64_t begin, std::int64_t end) {
    const Tensor& to = begin == 0 ? sum : of_part;
    weight_grad_as<float>(path, part, floats(x.slice(begin, end)), floats(y.slice(begin, end)), to);
    if (begin > 0) arithmetic(Arithmetic::add, sum, to, sum);
  });
  w.copy_(sum);
}

}  // namespace cpu

std::string to_string(const ConvChoice& c) {
  return c.variant.empty() ? c.kernel : concat(c.kernel, " (", c.variant, ")");
}

std::string to_string(const ConvExplanation& e) {
  char numbers[160], workspace[60] = "";
  if (e.workspace > 0) std::snprintf(workspace, sizeof workspace, "workspace %.1f MB, ", e.workspace * 1e-6);
  std::snprintf(numbers, sizeof numbers, "%.3f GFLOP, %.1f MB, %sat least %.3f ms", e.flops * 1e-9,
                e.bytes * 1e-6, workspace, e.limit * 1e3);
  return concat("forward ", to_string(e.forward), ", input gradient ", to_string(e.input_gradient),
                ", weight gradient ", to_string(e.weight_gradient), "; ", e.phases, " phases, ",
                e.empty_phases, " empty; ", numbers);
}

ConvExplanation explain(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, Device device) {
  return TAPEDECK_KERNEL(device, explain_conv)(g, dtype, layout, device);
}

ConvExplanation cpu::explain_conv(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, Device) {
  const auto choice = [&](ConvPath path) -> ConvChoice {
    const bool is_forced = conv_algorithm() != ConvAlgorithm::automatic;
    return {name_of(path),
            path == ConvPath::matrix      ? "x is one pixel, and y of the kernel's size"
            : path == ConvPath::reference ? "forced"
            : is_forced                   ? "forced, or the least estimated time of what is left"
                                          : "least estimated time",
            ""};
  };
  ConvExplanation e{choice(choose(g, Direction::transposed, dtype, layout)),
                    choice(choose(g, Direction::plain, dtype, layout)),
                    choice(choose_weight_grad(g, dtype, layout))};
  const auto count = [](const ConvAxis& a, bool with_taps) {
    std::int64_t phases = 0;
    for (std::int64_t o = 0; o < std::min(a.stride, a.out); ++o) {
      phases += !with_taps || a.taps(a.phase_of_output(o)) > 0 ? 1 : 0;
    }
    return phases;
  };
  e.phases = count(g.h, false) * count(g.w, false);
  e.empty_phases = e.phases - count(g.h, true) * count(g.w, true);
  e.flops = g.flops();
  e.bytes = static_cast<double>(g.x_shape().count() + g.weight_shape().count() + g.y_shape().count()) *
            static_cast<double>(size_of(dtype));
  const int threads = num_threads();
  const double core =
      (instruction_set() == InstructionSet::baseline ? 29e9 : 115e9) / (dtype == DType::float64 ? 2 : 1);
  e.limit = std::max(e.bytes / (threads == 1 ? 28e9 : 36e9), e.flops / (core * threads));
  return e;
}

}  // namespace tapedeck
