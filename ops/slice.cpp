// Parts and joins (declared in ops/shape.h). Cutting a box out and embedding a box in a constant are each
// other's gradient; slice, pad and the gradients of cat and split are made of these two.
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/shape.h>
#include <tapedeck/ops/view.h>

namespace tapedeck {

namespace {

/// The elements begin, begin + step, ... of one dimension, `count` of them.
struct Range {
  std::int64_t begin, count, step;
};

/// Some elements of each dimension.
struct Box {
  std::vector<Range> ranges;

  explicit Box(const Shape& whole) {
    for (std::int64_t size : whole) ranges.push_back({0, size, 1});
  }
  View of(const Tensor& x) const {
    View view(x);
    for (int d = 0; d < x.rank(); ++d) view = view.slice(d, ranges[d].begin, ranges[d].count, ranges[d].step);
    return view;
  }
  /// Whether only the leading dimension is cut, without gaps: then the elements are contiguous.
  bool contiguous_in(const Shape& whole) const {
    for (int d = 0; d < whole.rank(); ++d) {
      if (ranges[d].step != 1 || (d > 0 && ranges[d].count != whole[d])) return false;
    }
    return true;
  }
};

Variable cut(const Variable& x, const Box& box);
Variable embed(const Variable& x, const Box& box, const Shape& shape, double value);

/// y = the elements of x in the box.
struct Slice final : Op {
  explicit Slice(const Box& box) : box_(box) {}
  const char* name() const override { return "slice"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    if (x[0].rank() > 0 && box_.contiguous_in(x[0].shape())) {
      const Range& rows = box_.ranges[0];
      return {x[0].slice(rows.begin, rows.begin + rows.count)};
    }
    const View view = box_.of(x[0]);
    Tensor y = Tensor::empty(view.shape, x[0].options());
    copy_view(view, View(y));
    return {y};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {embed(gy[0], box_, c.input_shape(0), 0)};
  }

 private:
  Box box_;
};

/// y is x in the box and `value` elsewhere.
struct Pad final : Op {
  Pad(const Box& box, const Shape& shape, double value) : box_(box), shape_(shape), value_(value) {}
  const char* name() const override { return "pad"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    Tensor y = Tensor::full(shape_, value_, x[0].options());
    copy_view(View(x[0]), box_.of(y));
    return {y};
  }
  Variables backward(const OpContext&, const Variables& gy) override { return {cut(gy[0], box_)}; }

 private:
  Box box_;
  Shape shape_;
  double value_;
};

struct Cat final : Op {
  explicit Cat(int dim) : dim_(dim) {}
  const char* name() const override { return "cat"; }
  Tensors forward(OpContext&, const Tensors& xs) override {
    const Shape& first = xs[0].shape();
    std::int64_t size = 0;
    Layout layout = Layout::nhwc;
    for (std::size_t i = 0; i < xs.size(); ++i) {
      check_same_kind(name(), "xs[0]", xs[0], concat("xs[", i, "]"), xs[i]);
      const Shape& shape = xs[i].shape();
      check(shape.rank() == first.rank() && shape.with(dim_, first[dim_]) == first, "cat: xs[", i, "] is ",
            shape, " but xs[0] is ", first, "; only the sizes of dimension ", dim_, " may differ");
      size += shape[dim_];
      if (xs[i].layout() != Layout::nhwc) layout = Layout::nchw;
    }
    Tensor y = Tensor::empty(first.with(dim_, size), {xs[0].dtype(), xs[0].device(), layout});
    std::int64_t at = 0;
    for (const Tensor& x : xs) {
      copy_view(View(x), View(y).slice(dim_, at, x.size(dim_)));
      at += x.size(dim_);
    }
    return {y};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    Variables gradients;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < c.input_shapes().size(); ++i) {
      const std::int64_t size = c.input_shape(i)[dim_];
      gradients.push_back(c.needs_grad(i)
                              ? to_layout(slice(gy[0], dim_, at, at + size), c.input_options(i).layout)
                              : Variable());
      at += size;
    }
    return gradients;
  }

 private:
  int dim_;
};

struct Split final : Op {
  Split(const std::vector<std::int64_t>& sizes, int dim) : sizes_(sizes), dim_(dim) {}
  const char* name() const override { return "split"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    Tensors parts;
    std::int64_t at = 0;
    for (std::int64_t size : sizes_) {
      parts.push_back(Tensor::empty(x[0].shape().with(dim_, size), x[0].options()));
      copy_view(View(x[0]).slice(dim_, at, size), View(parts.back()));
      at += size;
    }
    return parts;
  }
  Variables backward(const OpContext&, const Variables& gy) override { return {cat(gy, dim_)}; }

 private:
  std::vector<std::int64_t> sizes_;
  int dim_;
};

Variable cut(const Variable& x, const Box& box) {
  return call<Slice>({x}, box);
}
Variable embed(const Variable& x, const Box& box, const Shape& shape, double value) {
  return call<Pad>({x}, box, shape, value);
}

}  // namespace

Variable cat(const Variables& xs, int dim) {
  check(!xs.empty(), "cat: xs is empty; legal is 1 tensor or more");
  return call<Cat>(xs, xs[0].shape().dim(dim));
}

Variable stack(const Variables& xs, int dim) {
  check(!xs.empty(), "stack: xs is empty; legal is 1 tensor or more");
  Variables parts;
  for (std::size_t i = 0; i < xs.size(); ++i) {
    check(xs[i].shape() == xs[0].shape(), "stack: xs[", i, "] is ", xs[i].shape(), " but xs[0] is ",
          xs[0].shape());
    parts.push_back(unsqueeze(xs[i], dim));
  }
  return cat(parts, dim < 0 ? dim + xs[0].rank() + 1 : dim);
}

Variable slice(const Variable& x, int dim, std::int64_t begin, std::int64_t end, std::int64_t step) {
  const int d = x.shape().dim(dim);
  const std::int64_t size = x.size(d), first = begin < 0 ? begin + size : begin;
  const std::int64_t last = end < 0 ? end + size : end;
  check(step >= 1, "slice: step ", step, " is not legal; legal is 1 or more");
  check(0 <= first && first <= last && last <= size, "slice: begin ", begin, " and end ", end,
        " of dimension ", dim, " of x ", x.shape(), "; legal is 0 <= begin <= end <= ", size);
  Box box(x.shape());
  box.ranges[d] = {first, (last - first + step - 1) / step, step};
  return cut(x, box);
}

Variables split(const Variable& x, std::int64_t size, int dim) {
  check(size >= 1, "split: size ", size, " is not legal; legal is 1 or more");
  std::vector<std::int64_t> sizes;
  std::int64_t rest = x.size(dim);
  do {
    sizes.push_back(std::min(rest, size));
    rest -= size;
  } while (rest > 0);
  return split(x, sizes, dim);
}

Variables split(const Variable& x, const std::vector<std::int64_t>& sizes, int dim) {
  const int d = x.shape().dim(dim);
  std::int64_t sum = 0;
  for (std::int64_t size : sizes) {
    check(size >= 0, "split: size ", size, " is not legal; legal is 0 or more");
    sum += size;
  }
  check(sum == x.size(d), "split: the sizes sum to ", sum, " but dimension ", dim, " of x ", x.shape(),
        " has ", x.size(d));
  return call(std::make_shared<Split>(sizes, d), {x});
}

Variable pad(const Variable& x, const std::vector<std::int64_t>& widths, double value) {
  const int dims = static_cast<int>(widths.size()) / 2;
  check(widths.size() % 2 == 0 && dims <= x.rank(), "pad: ", widths.size(), " widths for x ", x.shape(),
        "; legal are two for each of the last dimensions, at most ", 2 * x.rank());
  Box kept(x.shape());  // what negative widths leave of x
  Shape small = x.shape(), shape = small;
  for (int i = 0; i < dims; ++i) {
    const int d = x.rank() - 1 - i;
    const std::int64_t before = widths[2 * i], after = widths[2 * i + 1], size = x.size(d);
    const std::int64_t rest = size + std::min<std::int64_t>(before, 0) + std::min<std::int64_t>(after, 0);
    check(rest >= 0, "pad: widths ", before, " and ", after, " cut off more of dimension ", d, " of x ",
          x.shape(), " than there is; legal is ", size, " in all");
    kept.ranges[d] = {std::max<std::int64_t>(-before, 0), rest, 1};
    small = small.with(d, rest);
    shape = shape.with(d, size + before + after);
  }
  Box place(small);
  for (int i = 0; i < dims; ++i)
    place.ranges[x.rank() - 1 - i].begin = std::max<std::int64_t>(widths[2 * i], 0);
  const Variable inner = small == x.shape() ? x : cut(x, kept);
  return shape == small ? inner : embed(inner, place, shape, value);
}

}  // namespace tapedeck
