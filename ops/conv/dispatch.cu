// The convolution family on a GPU, by the kernels that kernels.h names.
#include <tapedeck/core/precision.h>
#include <tapedeck/ops/conv/operand_copies.h>
#include <tapedeck/ops/conv/wgmma_choice.h>
#include <tapedeck/ops/conv2d.h>
#include <tapedeck/ops/conv_transpose2d.h>
#include <tapedeck/ops/norm.h>
#include <tapedeck/ops/rectify.h>
#include <tapedeck/ops/conv/autotune.cuh>
#include <tapedeck/ops/conv/channels_last.cuh>
#include <tapedeck/ops/conv/columns.cuh>
#include <tapedeck/ops/conv/depthwise.cuh>
#include <tapedeck/ops/conv/direct.cuh>
#include <tapedeck/ops/conv/gemm.cuh>
#include <tapedeck/ops/conv/gpu_choice.cuh>
#include <tapedeck/ops/conv/matrix.cuh>
#include <tapedeck/ops/conv/strip.cuh>
#include <tapedeck/ops/conv/thin_products.cuh>
#include <tapedeck/ops/largest.cuh>

namespace tapedeck::cu {

namespace {

using conv_estimate::ConvPass;

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

}  // namespace

bool applies_prologue(const ConvTranspose2dGeometry& g, const Tensor& x, bool is_bounded, bool trains) {
  const Device device = x.device();
  const Layout layout = x.layout();
  const auto applied = [&](ConvPass pass) {
    const KnownChoiceScope scope(g, pass, x.dtype(), layout, device);
    const ConvTaken c = known_choice(g, pass, x.dtype(), layout, layout, conv_gemm::has_wgmma(device));
    return applies(
        c.algorithm, g, pass, x, layout, [&] { return is_bounded; }, false);
  };
  return applied(ConvPass::forward) && (!trains || applied(ConvPass::weight_gradient));
}

void conv_transpose2d(const ConvTranspose2dGeometry& g, const Tensor& input, const Tensor& weight,
                      const Tensor& bias, const Tensor& y, double negative_slope, const Prologue& before) {
  const bool shared = shares_copy(g, input, y);
  const ConvAlgorithmScope scope(tuned(g, ConvPass::forward, input, y, weight));
  const ConvAlgorithm algorithm = known_choice(g, ConvPass::forward, input, y).algorithm;
  const auto [x, prologue] = Operand(algorithm, g, ConvPass::forward, input, y.layout(), before, shared);
  if (algorithm == ConvAlgorithm::channels_last) {
    const OperandCopies own;  // of copies that nobody reads again
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
  const ConvAlgorithmScope scope(tuned(g, ConvPass::weight_gradient, input, y, result)),
      beside(choice_beside(g, input, y));
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

}  // namespace tapedeck::cu
