#include <tapedeck/ops/conv_transpose2d_geometry.h>

#include <algorithm>
#include <array>
#include <limits>
#include <tuple>

#include <tapedeck/ops/checks.h>

namespace tapedeck {

namespace {

constexpr std::int64_t kMaxParameter = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int64_t>::max();

/// a*b + c; the largest number if it does not fit.
std::int64_t multiply_add(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t product = 0, sum = 0;
  const bool overflow = __builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(product, c, &sum);
  return overflow ? kMaxCount : sum;
}

void check_range(const char* op, const char* name, const char* axis, std::int64_t value, std::int64_t least) {
  check(value >= least && value <= kMaxParameter, op, ": ", name, axis, " ", value,
        " is not legal; legal is ", least, " to ", kMaxParameter);
}

void check_axis(const char* op, const char* axis, const ConvAxis& a) {
  check_range(op, "kernel", axis, a.kernel, 1);
  check_range(op, "stride", axis, a.stride, 1);
  check_range(op, "padding", axis, a.padding, 0);
  check_range(op, "dilation", axis, a.dilation, 1);
}

/// Kinds and ranks of the two tensors of a call, and of its bias.
void check_kinds(const char* op, const char* name_a, const Tensor& a, const char* name_b, const Tensor& b,
                 const Tensor& bias) {
  check_same_kind(op, name_a, a, name_b, b);
  if (bias.defined()) check_same_kind(op, name_a, a, "bias", bias);
  check(is_floating(a.dtype()), op, ": ", name_a, " is ", a.dtype(),
        "; legal are float64, float32, bfloat16 and float16");
}

void check_images(const char* op, const char* name, const Shape& shape) {
  check(shape.rank() == 3 || shape.rank() == 4, op, ": ", name, " ", shape, " has rank ", shape.rank(),
        "; legal are 4, [n,c,h,w], and 3, [c,h,w]");
  check(shape[-3] >= 1, op, ": ", name, " ", shape, " has 0 channels; legal is 1 or more");
  check(shape[-2] >= 1 && shape[-1] >= 1, op, ": ", name, " ", shape,
        " has no pixels; legal are a height and width of 1 or more");
}

void check_groups(const char* op, const char* name, std::int64_t channels, const Shape& shape,
                  std::int64_t groups) {
  check(groups >= 1, op, ": groups ", groups, " is not legal; legal is 1 or more");
  check(channels % groups == 0, op, ": groups ", groups, " does not divide the ", channels, " channels of ",
        name, " ", shape);
}

void check_weight(const char* op, const Shape& weight, const char* meaning) {
  check(weight.rank() == 4, op, ": weight ", weight, " has rank ", weight.rank(), "; legal is 4, ", meaning);
  check(weight[0] >= 1 && weight[1] >= 1, op, ": weight ", weight, " has 0 channels; legal is 1 or more, as ",
        meaning);
}

void check_bias(const char* op, const Tensor& bias, std::int64_t channels) {
  if (!bias.defined()) return;
  check(bias.shape() == Shape{channels}, op, ": bias ", bias.shape(), " does not fit ", channels,
        " output channels; legal is [", channels, "]");
}

void check_counts(const char* op, const ConvTranspose2dGeometry& g) {
  for (const auto& [h, w, c] : {std::array{g.h.out, g.w.out, g.co}, std::array{g.h.in, g.w.in, g.ci}}) {
    std::int64_t count = std::max<std::int64_t>(g.n, 1);
    for (std::int64_t size : {c, h, w}) {
      check(!__builtin_mul_overflow(count, size, &count), op, ": the result [", g.n, ",", c, ",", h, ",", w,
            "] has more elements than the legal ", kMaxCount);
    }
  }
}

/// Sets out, given the rest, and the wanted size or -1.
void set_out(const char* op, const char* axis, const Shape& x, std::int64_t output_padding,
             std::int64_t wanted, ConvAxis& a) {
  const std::int64_t reach = a.dilation * (a.kernel - 1) + 1 - 2 * a.padding;
  const std::int64_t least = multiply_add(a.in - 1, a.stride, reach);
  check(least <= kMaxCount - kMaxParameter, op, ": output", axis, " of x ", x, " with stride", axis, " ",
        a.stride, " has more elements than the legal ", kMaxCount);
  if (wanted >= 0) {
    check(wanted >= std::max<std::int64_t>(least, 1) && wanted <= least + a.stride - 1, op, ": output_size",
          axis, " ", wanted, " is not legal for x ", x, "; legal is ", std::max<std::int64_t>(least, 1),
          " to ", least + a.stride - 1);
    a.out = wanted;
    return;
  }
  const std::int64_t limit = std::max(a.stride, a.dilation);
  check(output_padding >= 0 && output_padding < limit, op, ": output_padding", axis, " ", output_padding,
        " is not legal with stride", axis, " ", a.stride, " and dilation", axis, " ", a.dilation,
        "; legal is 0 to ", limit - 1);
  a.out = least + output_padding;
  check(a.out >= 1, op, ": the output size", axis, " of x ", x, " would be ", a.out,
        "; legal is 1 or more: lower padding", axis, " ", a.padding);
}

void set_outs(const char* op, const Shape& x, const ConvTranspose2dOptions& o, ConvTranspose2dGeometry& g) {
  const auto& wanted = o.output_size;
  const bool given = !wanted.empty();
  check(!given || wanted.size() == 2 || static_cast<int>(wanted.size()) == x.rank(), op, ": output_size has ",
        wanted.size(), " sizes; legal are 2, {h, w}, or the ", x.rank(), " of y");
  for (std::int64_t size : wanted) {
    check(size >= 0, op, ": output_size has a size of ", size, "; legal is 0 or more");
  }
  set_out(op, "_h", x, o.output_padding.h, given ? wanted[wanted.size() - 2] : -1, g.h);
  set_out(op, "_w", x, o.output_padding.w, given ? wanted[wanted.size() - 1] : -1, g.w);
  check_counts(op, g);
}

template <class Options>
ConvAxis axis_h(const Options& o, std::int64_t kernel) {
  return {.kernel = kernel, .stride = o.stride.h, .padding = o.padding.h, .dilation = o.dilation.h};
}
template <class Options>
ConvAxis axis_w(const Options& o, std::int64_t kernel) {
  return {.kernel = kernel, .stride = o.stride.w, .padding = o.padding.w, .dilation = o.dilation.w};
}

/// What x and the options say, with axes checked; the caller adds co and the output sizes.
template <class Options>
ConvTranspose2dGeometry begin(const char* op, const Shape& images, Size2 kernel, const Options& o) {
  ConvTranspose2dGeometry g;
  g.batched = images.rank() == 4;
  g.n = g.batched ? images[0] : 1;
  g.groups = o.groups;
  g.h = axis_h(o, kernel.h);
  g.w = axis_w(o, kernel.w);
  check_axis(op, "_h", g.h);
  check_axis(op, "_w", g.w);
  return g;
}

}  // namespace

ConvTranspose2dGeometry conv_transpose2d_geometry(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                                  const ConvTranspose2dOptions& o) {
  constexpr const char* op = "conv_transpose2d";
  check_kinds(op, "x", x, "weight", weight, bias);
  const Shape &xs = x.shape(), &ws = weight.shape();
  check_images(op, "x", xs);
  check_weight(op, ws, "[ci,co/groups,kh,kw]");
  check_groups(op, "x", xs[-3], xs, o.groups);
  check(ws[0] == xs[-3], op, ": weight has ", ws[0], " input channels but x has ", xs[-3], " (x ", xs,
        ", weight ", ws, ")");
  ConvTranspose2dGeometry g = begin(op, xs, {ws[2], ws[3]}, o);
  g.ci = xs[-3];
  check(!__builtin_mul_overflow(ws[1], o.groups, &g.co), op, ": groups ", o.groups, " times the ", ws[1],
        " channels of weight ", ws, " does not fit 64 bits");
  g.h.in = xs[-2];
  g.w.in = xs[-1];
  check_bias(op, bias, g.co);
  set_outs(op, xs, o, g);
  return g;
}

ConvTranspose2dGeometry conv_transpose2d_weight_grad_geometry(const Tensor& x, const Tensor& gy, Size2 kernel,
                                                              const ConvTranspose2dOptions& o) {
  constexpr const char* op = "conv_transpose2d_weight_grad";
  check_kinds(op, "x", x, "gy", gy, {});
  const Shape &xs = x.shape(), &ys = gy.shape();
  check_images(op, "x", xs);
  check_images(op, "gy", ys);
  check_groups(op, "x", xs[-3], xs, o.groups);
  check_groups(op, "gy", ys[-3], ys, o.groups);
  ConvTranspose2dGeometry g = begin(op, xs, kernel, o);
  g.ci = xs[-3];
  g.co = ys[-3];
  g.h.in = xs[-2];
  g.w.in = xs[-1];
  set_outs(op, xs, o, g);
  check(ys == g.y_shape(), op, ": gy ", ys, " does not fit x ", xs, "; legal is ", g.y_shape());
  check_counts(op, g);
  std::int64_t count = g.ci;
  for (std::int64_t size : {g.group_co(), kernel.h, kernel.w}) {
    check(!__builtin_mul_overflow(count, size, &count), op, ": the result has more elements than the legal ",
          kMaxCount);
  }
  return g;
}

ConvTranspose2dGeometry conv2d_geometry(const Tensor& y, const Tensor& weight, const Tensor& bias,
                                        const Conv2dOptions& o) {
  constexpr const char* op = "conv2d";
  check_kinds(op, "x", y, "weight", weight, bias);  // to the user it is x
  const Shape &ys = y.shape(), &ws = weight.shape();
  check_images(op, "x", ys);
  check_weight(op, ws, "[co,ci/groups,kh,kw]");
  check_groups(op, "x", ys[-3], ys, o.groups);
  check_groups(op, "the result of weight", ws[0], ws, o.groups);
  check(ws[1] == ys[-3] / o.groups, op, ": weight has ", ws[1], " input channels a group but x has ",
        ys[-3] / o.groups, " (x ", ys, ", weight ", ws, ", groups ", o.groups, ")");
  ConvTranspose2dGeometry g = begin(op, ys, {ws[2], ws[3]}, o);
  g.ci = ws[0];
  g.co = ys[-3];
  check_bias(op, bias, g.ci);
  for (auto [axis, name, out] : {std::tuple{&g.h, "_h", ys[-2]}, std::tuple{&g.w, "_w", ys[-1]}}) {
    axis->out = out;
    const std::int64_t padded = multiply_add(2, axis->padding, out);
    axis->in = ConvAxis::floor_div(padded - axis->dilation * (axis->kernel - 1) - 1, axis->stride) + 1;
    check(axis->in >= 1, op, ": the output size", name, " of x ", ys, " would be ", axis->in,
          "; legal is 1 or more: kernel", name, " ", axis->kernel, " with dilation", name, " ",
          axis->dilation, " spans ", axis->dilation * (axis->kernel - 1) + 1, " of ", padded,
          " padded positions");
  }
  check_counts(op, g);
  return g;
}

}  // namespace tapedeck
