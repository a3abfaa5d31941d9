#include <tapedeck/ops/shape.h>

#include <numeric>

#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/view.h>

namespace tapedeck {

namespace {

struct Reshape final : Op {
  explicit Reshape(std::span<const std::int64_t> sizes) : sizes_(sizes.begin(), sizes.end()) {}
  const char* name() const override { return "reshape"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    return {x[0].reshape(sizes_)};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {to_layout(reshape(gy[0], c.input_shape(0)), c.input_options(0).layout)};
  }

 private:
  std::vector<std::int64_t> sizes_;
};

struct Permute final : Op {
  explicit Permute(const std::vector<int>& dims) : dims_(dims) {}
  const char* name() const override { return "permute"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    const View view = View(x[0]).permute(dims_);
    Tensor y = Tensor::empty(view.shape, {x[0].dtype(), x[0].device()});
    copy_view(view, View(y));
    return {y};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    std::vector<int> inverse(dims_.size());
    for (int i = 0; i < static_cast<int>(dims_.size()); ++i) inverse[dims_[i]] = i;
    return {to_layout(permute(gy[0], inverse), c.input_options(0).layout)};
  }

 private:
  std::vector<int> dims_;
};

struct ToLayout final : Op {
  explicit ToLayout(Layout layout) : layout_(layout) {}
  const char* name() const override { return "to_layout"; }
  Tensors forward(OpContext&, const Tensors& x) override { return {x[0].to(layout_)}; }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {to_layout(gy[0], c.input_options(0).layout)};
  }

 private:
  Layout layout_;
};

}  // namespace

Variable reshape(const Variable& x, std::span<const std::int64_t> sizes) {
  return call<Reshape>({x}, sizes);
}

Variable flatten(const Variable& x, int start_dim, int end_dim) {
  if (x.rank() == 0) return reshape(x, {1});
  const int first = x.shape().dim(start_dim), last = x.shape().dim(end_dim);
  check(first <= last, "flatten: start_dim ", start_dim, " is behind end_dim ", end_dim, " of x ", x.shape());
  std::vector<std::int64_t> sizes(x.shape().begin(), x.shape().begin() + first + 1);
  for (int i = first + 1; i <= last; ++i) sizes.back() *= x.size(i);
  sizes.insert(sizes.end(), x.shape().begin() + last + 1, x.shape().end());
  return reshape(x, sizes);
}

Variable unsqueeze(const Variable& x, int dim) {
  check(dim >= -x.rank() - 1 && dim <= x.rank(), "unsqueeze: dim ", dim, " is out of range for x ", x.shape(),
        "; legal is ", -x.rank() - 1, " to ", x.rank());
  std::vector<std::int64_t> sizes(x.shape().begin(), x.shape().end());
  sizes.insert(sizes.begin() + (dim < 0 ? dim + x.rank() + 1 : dim), 1);
  return reshape(x, sizes);
}

Variable squeeze(const Variable& x) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size : x.shape()) {
    if (size != 1) sizes.push_back(size);
  }
  return reshape(x, sizes);
}

Variable squeeze(const Variable& x, int dim) {
  return x.size(dim) == 1 ? reshape(x, x.shape().without(dim)) : x;
}

Variable permute(const Variable& x, const std::vector<int>& dims) {
  const int rank = x.rank();
  std::vector<int> resolved;
  std::vector<bool> seen(static_cast<std::size_t>(rank));
  bool legal = static_cast<int>(dims.size()) == rank;
  std::string text;
  for (int dim : dims) {
    text += concat(text.empty() ? "" : ",", dim);
    const int d = dim < 0 ? dim + rank : dim;
    legal = legal && d >= 0 && d < rank && !seen[d];
    if (legal) seen[d] = true;
    resolved.push_back(d);
  }
  check(legal, "permute: dims {", text, "} of x ", x.shape(), "; legal is each of 0 to ", rank - 1, " once");
  return call<Permute>({x}, resolved);
}

Variable transpose(const Variable& x, int dim0, int dim1) {
  std::vector<int> dims(static_cast<std::size_t>(x.rank()));
  std::iota(dims.begin(), dims.end(), 0);
  std::swap(dims[x.shape().dim(dim0)], dims[x.shape().dim(dim1)]);
  return permute(x, dims);
}

Variable to_layout(const Variable& x, Layout layout) {
  check(layout == Layout::nchw || x.rank() == 4, "to_layout: layout nhwc needs rank 4, but x has shape ",
        x.shape());
  return x.tensor().layout() == layout ? x : call<ToLayout>({x}, layout);
}

}  // namespace tapedeck
