#include <tapedeck/ops/matmul.h>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/arithmetic.h>
#include <tapedeck/ops/autocast.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/gemm.h>
#include <tapedeck/ops/rectify.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

Transpose other(Transpose t) {
  return t == Transpose::no ? Transpose::yes : Transpose::no;
}

/// The leading sizes of matrices.
Shape batch(const Shape& shape) {
  return Shape(std::span(shape.begin(), shape.end() - 2));
}

/// `lead` with more sizes behind.
Shape join(const Shape& lead, std::initializer_list<std::int64_t> rest) {
  std::vector<std::int64_t> sizes(lead.begin(), lead.end());
  sizes.insert(sizes.end(), rest);
  return Shape(sizes);
}

/// op(a) op(b) + bias for matrices with leading sizes that broadcast, rectified; op transposes or not. Its
/// gradients are products of the same kind.
struct Matmul final : Op {
  Matmul(const char* name, Transpose ta, Transpose tb, double negative_slope = 1)
      : name_(name), ta_(ta), tb_(tb), negative_slope_(negative_slope) {}
  const char* name() const override { return name_; }

  Tensors forward(OpContext& c, const Tensors& in) override {
    if (c.needs_grad(1)) c.save_input(0);
    if (c.needs_grad(0)) c.save_input(1);
    check_negative_slope(name_, negative_slope_);
    if (negative_slope_ != 1) c.save_output(0);
    const Shape &sa = in[0].shape(), &sb = in[1].shape();
    const std::int64_t m = sa[ta_ == Transpose::no ? -2 : -1], n = sb[tb_ == Transpose::no ? -1 : -2];
    Tensor out =
        Tensor::empty(join(broadcast(name_, batch(sa), batch(sb)), {m, n}), {in[0].dtype(), in[0].device()});
    if (out.count() > 0) {
      TAPEDECK_KERNEL(out.device(), matmul)
      (in[0].to(Layout::nchw), ta_, in[1].to(Layout::nchw), tb_, in[2], out, negative_slope_);
    }
    return {out};
  }

  Variables backward(const OpContext& c, const Variables& gy) override {
    const auto [g, of_bias] = rectified_gradients(c, gy[0], negative_slope_, gy[0].rank() - 1);
    Variable ga, gb;
    if (c.needs_grad(0)) {
      ga = ta_ == Transpose::no ? product(g, Transpose::no, c.input(1), other(tb_))
                                : product(c.input(1), tb_, g, Transpose::yes);
    }
    if (c.needs_grad(1)) {
      gb = tb_ == Transpose::no ? product(c.input(0), other(ta_), g, Transpose::no)
                                : product(g, Transpose::yes, c.input(0), ta_);
    }
    return {c.needs_grad(0) ? sum_to(ga, c.input_shape(0)) : Variable(),
            c.needs_grad(1) ? sum_to(gb, c.input_shape(1)) : Variable(), of_bias};
  }

 private:
  Variable product(const Variable& a, Transpose ta, const Variable& b, Transpose tb) const {
    return call<Matmul>({a, b, Variable()}, name_, ta, tb);
  }

  const char* name_;
  Transpose ta_, tb_;
  double negative_slope_;
};

/// x as one matrix of its last dimension.
Variable rows_of(const Variable& x) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < x.rank(); ++i) rows *= x.size(i);
  return x.rank() == 2 ? x : reshape(x, {rows, x.size(-1)});
}

Tensor tensor_of(const Variable& x) {
  return x.defined() ? x.tensor() : Tensor();
}

void check_kinds(const char* op, const char* name_a, const Tensor& a, const char* name_b, const Tensor& b) {
  check_same_kind(op, name_a, a, name_b, b);
  check(is_floating(a.dtype()), op, ": ", name_a, " is ", a.dtype(),
        "; legal are float64, float32, bfloat16 and float16");
}

}  // namespace

Variable matmul(const Variable& given_a, const Variable& given_b) {
  const Variable a = detail::lowered(given_a), b = detail::lowered(given_b);
  check_kinds("matmul", "a", tensor_of(a), "b", tensor_of(b));
  const Shape &sa = a.shape(), &sb = b.shape();
  check(sa.rank() >= 1 && sb.rank() >= 1, "matmul: a ", sa, " or b ", sb,
        " is a scalar; legal are vectors, matrices and batches of them");
  const std::int64_t rows = sb[sb.rank() == 1 ? -1 : -2];
  check(sa[-1] == rows, "matmul: a has ", sa[-1], " columns but b has ", rows, " rows (a ", sa, ", b ", sb,
        ")");
  const Shape batch_a = sa.rank() > 2 ? batch(sa) : Shape(), batch_b = sb.rank() > 2 ? batch(sb) : Shape();
  (void)broadcast("matmul", batch_a, batch_b);

  // One matrix b takes all rows of a at once.
  const Variable left = sa.rank() == 1 || sb.rank() <= 2 ? rows_of(a) : a;
  const Variable right = sb.rank() == 1 ? reshape(b, {sb[0], 1}) : b;
  const Variable y = call<Matmul>({left, right, Variable()}, "matmul", Transpose::no, Transpose::no);
  Shape shape = broadcast("matmul", batch_a, batch_b);
  if (sa.rank() > 1) shape = join(shape, {sa[-2]});
  if (sb.rank() > 1) shape = join(shape, {sb[-1]});
  return y.shape() == shape ? y : reshape(y, shape);
}

Variable linear(const Variable& input, const Variable& given_weight, const Variable& given_bias,
                double negative_slope) {
  const Variable x = detail::lowered(input), weight = detail::lowered(given_weight);
  const Variable bias = detail::lowered(given_bias);
  check_kinds("linear", "x", tensor_of(x), "weight", tensor_of(weight));
  const Shape &sx = x.shape(), &sw = weight.shape();
  check(sw.rank() == 2, "linear: weight ", sw, " has rank ", sw.rank(), "; legal is 2, [out,in]");
  check(sx.rank() >= 1 && sx[-1] == sw[1], "linear: x ", sx, " does not fit weight ", sw, "; legal is [...,",
        sw[1], "]");
  if (bias.defined()) {
    check_same_kind("linear", "x", x.tensor(), "bias", bias.tensor());
    check(bias.shape() == Shape{sw[0]}, "linear: bias ", bias.shape(), " does not fit weight ", sw,
          "; legal is [", sw[0], "]");
  }
  const Variable y =
      call<Matmul>({rows_of(x), weight, bias}, "linear", Transpose::no, Transpose::yes, negative_slope);
  return sx.rank() == 2 ? y : reshape(y, sx.with(-1, sw[0]));
}

namespace cpu {

namespace {

/// The matrices of a and b that make matrix i of out, as numbers of matrices.
std::pair<std::int64_t, std::int64_t> operands(const Shape& a, const Shape& b, const Shape& out,
                                               std::int64_t i) {
  std::int64_t at_a = 0, at_b = 0, step_a = 1, step_b = 1;
  for (int d = -3; d >= -out.rank(); --d) {
    const std::int64_t position = i % out[d];
    i /= out[d];
    if (-d <= a.rank()) {
      at_a += a[d] == 1 ? 0 : position * step_a;
      step_a *= a[d];
    }
    if (-d <= b.rank()) {
      at_b += b[d] == 1 ? 0 : position * step_b;
      step_b *= b[d];
    }
  }
  return {at_a, at_b};
}

}  // namespace

void matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& bias,
            const Tensor& out, double negative_slope) {
  if (size_of(out.dtype()) < 4) {  // half types: computed in float32
    const Tensor wide = Tensor::empty(out.shape(), {DType::float32});
    matmul(a.to(DType::float32), ta, b.to(DType::float32), tb,
           bias.defined() ? bias.to(DType::float32) : Tensor(), wide, negative_slope);
    out.copy_(wide);
    return;
  }
  const std::int64_t m = out.size(-2), n = out.size(-1), k = a.size(ta == Transpose::no ? -1 : -2);
  const bool left = ta == Transpose::yes, right = tb == Transpose::yes;
  const std::int64_t batches = out.count() / (m * n);
  const auto multiply = [&]<class T>() {
    // Small products are shared out whole; the product itself shares out large ones.
    const std::int64_t grain = 1 + (1 << 18) / (m * n * std::max<std::int64_t>(k, 1));
    parallel_for(batches, m * n * k > (1 << 20) ? batches : grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto [at_a, at_b] = operands(a.shape(), b.shape(), out.shape(), i);
        gemm<T>(m, n, k, {a.data<T>() + at_a * m * k, left ? m : k, left},
                {b.data<T>() + at_b * k * n, right ? k : n, right}, bias.defined() ? bias.data<T>() : nullptr,
                out.data<T>() + i * m * n, n, negative_slope);
      }
    });
  };
  if (out.dtype() == DType::float64) {
    multiply.template operator()<double>();
  } else {
    multiply.template operator()<float>();
  }
}

}  // namespace cpu
}  // namespace tapedeck
