#include <tapedeck/ops/index.h>

#include <algorithm>
#include <numeric>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/ops/axis.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/shape.h>
#include <tapedeck/ops/strided.h>

namespace tapedeck {

namespace {

/// `index` in row-major order. Throws Error unless it is int64, on x's device, and in [0, size).
Tensor checked_index(const char* op, const Tensor& x, const Tensor& index, std::int64_t size) {
  check_defined(op, "x", x);
  check_defined(op, "index", index);
  check(index.dtype() == DType::int64, op, ": index is ", index.dtype(), "; legal is int64");
  check(index.device() == x.device(), op, ": index is on ", index.device(), " but x is on ", x.device());
  Tensor dense = index.to(Layout::nchw);
  if (dense.device().is_cuda()) return dense;
  const std::int64_t* values = dense.data<std::int64_t>();
  for (std::int64_t i = 0; i < dense.count(); ++i) {
    if (values[i] >= 0 && values[i] < size) continue;
    std::string position;
    for (std::int64_t d = dense.rank() - 1, rest = i; d >= 0; rest /= dense.size(static_cast<int>(d)), --d) {
      position = concat(rest % dense.size(static_cast<int>(d)), position.empty() ? "" : ",", position);
    }
    throw Error(concat(op, ": index[", position, "] is ", values[i], "; legal is 0 to ", size - 1));
  }
  return dense;
}

struct IndexSelect final : Op {
  explicit IndexSelect(int dim) : dim_(dim) {}
  const char* name() const override { return "index_select"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    const Tensor index = checked_index(name(), x[0], x[1], x[0].size(dim_));
    c.save_input(1);
    Tensor y = Tensor::empty(x[0].shape().with(dim_, index.count()), x[0].options());
    if (y.count() > 0) TAPEDECK_KERNEL(y.device(), index_select)(x[0], dim_, index, y);
    return {y};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    const Variable gx = index_add(gy[0], dim_, c.input(1), c.input_shape(0)[dim_]);
    return {to_layout(gx, c.input_options(0).layout), {}};
  }

 private:
  int dim_;
};

struct IndexAdd final : Op {
  IndexAdd(int dim, std::int64_t size) : dim_(dim), size_(size) {}
  const char* name() const override { return "index_add"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    const Tensor index = checked_index(name(), x[0], x[1], size_);
    c.save_input(1);
    Tensor y = Tensor::empty(x[0].shape().with(dim_, size_), x[0].options());
    if (y.count() > 0) TAPEDECK_KERNEL(y.device(), index_add)(x[0], dim_, index, y);
    return {y};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {to_layout(index_select(gy[0], dim_, c.input(1)), c.input_options(0).layout), {}};
  }

 private:
  int dim_;
  std::int64_t size_;
};

struct Gather final : Op {
  explicit Gather(int dim) : dim_(dim) {}
  const char* name() const override { return "gather"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    const Tensor index = checked_index(name(), x[0], x[1], x[0].size(dim_));
    c.save_input(1);
    Tensor y = Tensor::empty(index.shape(), x[0].options());
    if (y.count() > 0) TAPEDECK_KERNEL(y.device(), gather)(x[0], dim_, index, y);
    return {y};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    const Variable gx = scatter_add(gy[0], dim_, c.input(1), c.input_shape(0));
    return {to_layout(gx, c.input_options(0).layout), {}};
  }

 private:
  int dim_;
};

struct ScatterAdd final : Op {
  ScatterAdd(int dim, const Shape& shape) : dim_(dim), shape_(shape) {}
  const char* name() const override { return "scatter_add"; }
  Tensors forward(OpContext& c, const Tensors& x) override {
    const Tensor index = checked_index(name(), x[0], x[1], shape_[dim_]);
    c.save_input(1);
    Tensor y = Tensor::empty(shape_, x[0].options());
    if (y.count() > 0) TAPEDECK_KERNEL(y.device(), scatter_add)(x[0], dim_, index, y);
    return {y};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {to_layout(gather(gy[0], dim_, c.input(1)), c.input_options(0).layout), {}};
  }

 private:
  int dim_;
  Shape shape_;
};

/// Throws Error unless `index` fits `whole` in all dimensions but `dim`.
void check_fits(const char* op, const Shape& index, const char* name, const Shape& whole, int dim) {
  check(index.rank() == whole.rank(), op, ": index ", index, " must have the rank of ", name, " ", whole);
  for (int d = 0; d < whole.rank(); ++d) {
    check(d == dim || index[d] <= whole[d], op, ": index ", index, " is larger than ", name, " ", whole,
          " in dimension ", d, "; legal is only in dimension ", dim);
  }
}

}  // namespace

Variable index_select(const Variable& x, int dim, const Variable& index) {
  check(index.rank() == 1, "index_select: index has shape ", index.shape(), "; legal is rank 1");
  return call<IndexSelect>({x, index}, x.shape().dim(dim));
}

Variable index_add(const Variable& x, int dim, const Variable& index, std::int64_t size) {
  const int d = x.shape().dim(dim);
  check(index.rank() == 1 && index.count() == x.size(d), "index_add: index has shape ", index.shape(),
        "; legal is [", x.size(d), "], the size of dimension ", d, " of x ", x.shape());
  return call<IndexAdd>({x, index}, d, size);
}

Variable embedding(const Variable& table, const Variable& index) {
  check(table.rank() >= 1, "embedding: table has shape ", table.shape(), "; legal is rank 1 or more");
  std::vector<std::int64_t> sizes(index.shape().begin(), index.shape().end());
  sizes.insert(sizes.end(), table.shape().begin() + 1, table.shape().end());
  return reshape(index_select(table, 0, reshape(index, {index.count()})), sizes);
}

Variable gather(const Variable& x, int dim, const Variable& index) {
  const int d = x.shape().dim(dim);
  check_fits("gather", index.shape(), "x", x.shape(), d);
  return call<Gather>({x, index}, d);
}

Variable scatter_add(const Variable& x, int dim, const Variable& index, const Shape& shape) {
  const int d = shape.dim(dim);
  check(index.shape() == x.shape(), "scatter_add: index has shape ", index.shape(), " but x has ", x.shape());
  check_fits("scatter_add", index.shape(), "shape", shape, d);
  return call<ScatterAdd>({x, index}, d, shape);
}

namespace cpu {

namespace {

/// The positions of an index with values in [0, size), ordered by value and, for equal ones, by position.
std::vector<std::int64_t> order_by_row(const std::int64_t* rows, std::int64_t count, std::int64_t size) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  if (count < size / 16) {
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [=](std::int64_t i, std::int64_t j) { return rows[i] < rows[j]; });
  } else {
    std::vector<std::int64_t> next(static_cast<std::size_t>(size) + 1);  // where the next of each value goes
    for (std::int64_t j = 0; j < count; ++j) ++next[rows[j] + 1];
    std::partial_sum(next.begin(), next.end(), next.begin());
    for (std::int64_t j = 0; j < count; ++j) order[next[rows[j]]++] = j;
  }
  return order;
}

Strides strides_of(const Tensor& x) {
  Strides strides{};
  const auto own = x.strides();
  std::copy(own.begin(), own.end(), strides.begin());
  return strides;
}

}  // namespace

void index_select(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  const Axis from = Axis::of(x, dim), to = Axis::of(out, dim);
  const std::int64_t* rows = index.data<std::int64_t>();
  visit(out.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* y = out.data<T>();
    parallel_for(to.outer * to.size, (1 << 15) / to.inner, [&](std::int64_t begin, std::int64_t end) {
      std::int64_t o = begin / to.size, j = begin % to.size;
      for (std::int64_t i = begin; i < end; ++i) {
        std::copy_n(in + (o * from.size + rows[j]) * from.inner, to.inner, y + i * to.inner);
        if (++j == to.size) j = 0, ++o;
      }
    });
  });
}

// Destination rows that occur in the index gather their sources, in the order of the index.
void index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  const Axis from = Axis::of(x, dim), to = Axis::of(out, dim);
  const std::int64_t* rows = index.data<std::int64_t>();
  const std::vector<std::int64_t> sources = order_by_row(rows, from.size, to.size);
  std::vector<std::int64_t> starts;  // in `sources`: where each destination row's begin, and the end
  for (std::int64_t j = 0; j < from.size; ++j) {
    if (j == 0 || rows[sources[j]] != rows[sources[j - 1]]) starts.push_back(j);
  }
  const auto touched = static_cast<std::int64_t>(starts.size());
  starts.push_back(from.size);
  if (touched < to.size) fill(out, 0);
  if (x.count() == 0) return;

  constexpr std::int64_t kBlock = 512;  // columns that are summed at a time
  const std::int64_t width = std::min(to.inner, kBlock), blocks = (to.inner + width - 1) / width;
  visit(out.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const T* in = x.data<T>();
    T* y = out.data<T>();
    parallel_for(to.outer * blocks * touched, (1 << 14) / width, [&](std::int64_t begin, std::int64_t end) {
      A sums[kBlock];
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t r = task % touched, block = task / touched % blocks, o = task / touched / blocks;
        const std::int64_t c0 = block * width, n = std::min(width, to.inner - c0);
        const T* source = in + o * from.size * from.inner + c0;
        std::fill_n(sums, n, A(0));
        for (std::int64_t k = starts[r]; k < starts[r + 1]; ++k) {
          const T* term = source + sources[k] * from.inner;
          for (std::int64_t c = 0; c < n; ++c) sums[c] = static_cast<A>(sums[c] + convert<A>(term[c]));
        }
        T* line = y + (o * to.size + rows[sources[starts[r]]]) * to.inner + c0;
        for (std::int64_t c = 0; c < n; ++c) line[c] = convert<T>(sums[c]);
      }
    });
  });
}

void gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  Strides base = strides_of(x);
  const std::int64_t step = base[dim];
  base[dim] = 0;
  const auto loop = StridedLoop<3>::over(out.shape(), {strides_of(out), strides_of(index), base});
  const std::int64_t index_step = loop.strides[1][loop.rank - 1], base_step = loop.strides[2][loop.rank - 1];
  const std::int64_t* rows = index.data<std::int64_t>();
  visit(out.dtype(), [&]<class T>() {
    const T* in = x.data<T>();
    T* y = out.data<T>();
    loop.for_each_run([&](const auto& at, std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        y[at[0] + i] = in[at[2] + i * base_step + rows[at[1] + i * index_step] * step];
      }
    });
  });
}

// A line of out along `dim` receives from the line of x at the same place, and from no other.
void scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  const Strides xs = strides_of(x), is = strides_of(index), os = strides_of(out);
  const Shape lines = out.shape().with(dim, 1);
  const std::int64_t size = out.size(dim), terms = x.size(dim);
  const std::int64_t* rows = index.data<std::int64_t>();
  visit(out.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const T* in = x.data<T>();
    T* y = out.data<T>();
    parallel_for(lines.count(), (1 << 14) / (size + terms) + 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<A> sums(static_cast<std::size_t>(size));
      for (std::int64_t i = begin; i < end; ++i) {
        std::int64_t x_at = 0, index_at = 0, out_at = 0, rest = i;
        bool receives = true;
        for (int d = lines.rank() - 1; d >= 0; --d) {
          const std::int64_t at = rest % lines[d];
          rest /= lines[d];
          receives = receives && (d == dim || at < x.size(d));
          x_at += at * xs[d];
          index_at += at * is[d];
          out_at += at * os[d];
        }
        std::fill(sums.begin(), sums.end(), A(0));
        for (std::int64_t j = 0; receives && j < terms; ++j) {
          A& sum = sums[rows[index_at + j * is[dim]]];
          sum = static_cast<A>(sum + convert<A>(in[x_at + j * xs[dim]]));
        }
        for (std::int64_t r = 0; r < size; ++r) y[out_at + r * os[dim]] = convert<T>(sums[r]);
      }
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
