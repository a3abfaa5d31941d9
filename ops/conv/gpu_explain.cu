// What a GPU would do with a call of the convolution family, in words (explain.h).
#include <tapedeck/ops/conv/explain.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include <tapedeck/ops/conv/columns.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/conv/wgmma_choice.h>
#include <tapedeck/ops/conv/workspace.h>
#include <tapedeck/ops/conv/autotune.cuh>
#include <tapedeck/ops/conv/columns.cuh>
#include <tapedeck/ops/conv/depthwise.cuh>
#include <tapedeck/ops/conv/depthwise_rows.cuh>
#include <tapedeck/ops/conv/direct.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/gpu_choice.cuh>
#include <tapedeck/ops/conv/matrix.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/thin.cuh>
#include <tapedeck/ops/conv/thin_products.cuh>

namespace tapedeck::cu {

namespace {

using conv_estimate::ConvPass;

/// Variants in words and what they take, for tensors that start where tensors of their own do.
struct Variants {
  const ConvTranspose2dGeometry& g;
  DType dtype;
  Layout layout;
  bool has_wgmma;
  std::optional<Device> device;  // if there is one

  ConvChoice of_map(const ConvTaken& c, bool transposed, bool shared) const {
    using namespace conv_gemm;
    std::string variant;
    std::int64_t bytes = 0;
    if (c.algorithm == ConvAlgorithm::channels_last) {
      const Variants last{g, dtype, Layout::nhwc, has_wgmma, device};
      const KnownChoiceScope scope(g, ConvPass::forward, dtype, Layout::nhwc, device);
      const ConvChoice inner = last.of_map(
          known_choice(g, ConvPass::forward, dtype, Layout::nhwc, Layout::nhwc, has_wgmma), true, false);
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
      if (way.kind != MapKind::windows && way.boxes.plan.joined() == 2)
        variant += ", both phases of columns in a tile";
      if (way.kind != MapKind::windows && way.boxes.plan.joined() == 4) variant += ", all phases in a tile";
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

  ConvChoice of_weight_grad(const ConvTaken& c) const {
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

/// With what a clock can tell.
double rounded(double microseconds) {
  return std::round(microseconds * 10) / 10;
}

ConvExplanation explained(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_wgmma,
                          std::optional<Device> device, bool both) {
  const Variants variants{g, dtype, layout, has_wgmma, device};
  const auto choice = [&](ConvPass pass) {
    const bool shared = shares_copy(g, dtype, layout, layout, has_wgmma);
    const KnownChoiceScope scope(g, pass, dtype, layout, device);
    const auto of_both =
        pass == ConvPass::weight_gradient ? choice_beside(g, dtype, layout, layout, has_wgmma) : std::nullopt;
    const ConvAlgorithmScope beside(of_both);
    ConvTaken taken = known_choice(g, pass, dtype, layout, layout, has_wgmma);
    if (of_both) taken.reason = "the least estimated time of both gradients, which read one copy";
    ConvChoice c = pass == ConvPass::weight_gradient
                       ? variants.of_weight_grad(taken)
                       : variants.of_map(taken, pass == ConvPass::forward, shared);
    if (const auto& known = scope.known) {
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
    const OperandCopies copies(both ? ReadByBoth::y
                                    : ReadByBoth::none);  // which decides how the gradients are computed
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
  return explained(g, dtype, layout, conv_gemm::has_wgmma(device), device, true);
}

ConvExplanation explain_alone(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, Device device) {
  return explained(g, dtype, layout, conv_gemm::has_wgmma(device), device, false);
}

ConvExplanation explain_on(const ConvTranspose2dGeometry& g, DType dtype, Layout layout, bool has_wgmma) {
  return explained(g, dtype, layout, has_wgmma, std::nullopt, true);
}

}  // namespace tapedeck::cu
