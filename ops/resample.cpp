#include <tapedeck/ops/resample.h>

#include <cstring>

#include <tapedeck/core/backend.h>
#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/shape.h>

namespace tapedeck {

namespace {

struct Resample final : Op {
  Resample(const char* name, const ResampleAxis& h, const ResampleAxis& w, bool transposed)
      : name_(name), h_(h), w_(w), transposed_(transposed) {}
  const char* name() const override { return name_; }
  Tensors forward(OpContext&, const Tensors& x) override {
    const Shape shape =
        x[0].shape().with(2, transposed_ ? h_.in : h_.out).with(3, transposed_ ? w_.in : w_.out);
    const Tensor y = Tensor::empty(shape, x[0].options());
    if (y.count() > 0) TAPEDECK_KERNEL(y.device(), resample)(x[0], h_, w_, transposed_, y);
    return {y};
  }
  Variables backward(const OpContext& c, const Variables& gy) override {
    return {to_layout(call<Resample>({gy[0]}, name_, h_, w_, !transposed_), c.input_options(0).layout)};
  }

 private:
  const char* name_;
  ResampleAxis h_, w_;
  bool transposed_;
};

}  // namespace

void check_images(const char* op, const Variable& x) {
  check(is_floating(x.dtype()), op, ": x is ", x.dtype(), "; legal are the floating types");
  check(x.rank() == 3 || x.rank() == 4, op, ": x has shape ", x.shape(), "; legal is [n,c,h,w] or [c,h,w]");
  check(x.size(-2) >= 1 && x.size(-1) >= 1, op, ": x ", x.shape(),
        " has no pixels; legal are sizes of 1 or more");
}

Variable resample(const char* op, const Variable& x, const ResampleAxis& h, const ResampleAxis& w) {
  if (x.rank() == 3) return squeeze(resample(op, unsqueeze(x, 0), h, w), 0);
  return call<Resample>({x}, op, h, w, false);
}

namespace cpu {

namespace {

/// An axis as a list: output o reads inputs `index[k]` with `weight[k]`, k from start[o] to before start[o +
/// 1].
template <class A>
struct TapTable {
  std::vector<std::int64_t> start, index;
  std::vector<A> weight;

  TapTable(const ResampleAxis& axis, bool transposed)
      : start(static_cast<std::size_t>((transposed ? axis.in : axis.out) + 1)) {
    for_each(axis, [&](std::int64_t o, std::int64_t i, double) { ++start[(transposed ? i : o) + 1]; });
    for (std::size_t o = 1; o < start.size(); ++o) start[o] += start[o - 1];
    index.resize(static_cast<std::size_t>(start.back()));
    weight.resize(index.size());
    std::vector<std::int64_t> next = start;
    for_each(axis, [&](std::int64_t o, std::int64_t i, double value) {
      const std::int64_t at = next[transposed ? i : o]++;
      index[at] = transposed ? o : i;
      weight[at] = static_cast<A>(value);
    });
  }

  /// Whether outputs o and p read the same.
  bool same(std::int64_t o, std::int64_t p) const {
    const auto begin = [this](std::int64_t at, const auto& list) { return list.begin() + start[at]; };
    return std::equal(begin(o, index), begin(o + 1, index), begin(p, index), begin(p + 1, index)) &&
           std::equal(begin(o, weight), begin(o + 1, weight), begin(p, weight), begin(p + 1, weight));
  }

 private:
  template <class F>
  static void for_each(const ResampleAxis& axis, F f) {
    for (std::int64_t o = 0; o < axis.out; ++o) {
      const auto [first, count] = axis.taps(o);
      for (std::int64_t k = 0; k < count; ++k) f(o, first + k, axis.weight(o, k));
    }
  }
};

}  // namespace

// Each row of y: first the rows of x that it reads are summed into one, then that one is resampled. An
// "element" of a row is the `inner` channels of a pixel in NHWC, and one number in NCHW.
void resample(const Tensor& x, const ResampleAxis& h, const ResampleAxis& w, bool transposed,
              const Tensor& y) {
  const bool nhwc = x.layout() == Layout::nhwc;
  const std::int64_t planes = nhwc ? x.size(0) : x.size(0) * x.size(1), inner = nhwc ? x.size(1) : 1;
  const std::int64_t in_rows = x.size(2), in_row = x.size(3) * inner;
  const std::int64_t out_rows = y.size(2), columns = y.size(3), out_row = columns * inner;
  visit_floating("resample", x.dtype(), [&]<class T>() {
    using A = accumulate_t<T>;
    const TapTable<A> rows(h, transposed), cols(w, transposed);
    const T* in = x.data<T>();
    T* out = y.data<T>();
    const std::int64_t work = in_row + out_row;
    parallel_for(planes * out_rows, (1 << 14) / work, [&](std::int64_t begin, std::int64_t end) {
      std::vector<A> sum(static_cast<std::size_t>(in_row));
      A* const buffer = sum.data();
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t plane = task / out_rows, o = task % out_rows;
        T* to = out + task * out_row;
        if (task > begin && o > 0 && rows.same(o - 1, o)) {  // as in nearest upsampling
          std::memcpy(to, to - out_row, static_cast<std::size_t>(out_row) * sizeof(T));
          continue;
        }
        simd([&, buffer, to] {
          std::fill_n(buffer, in_row, A(0));
          for (std::int64_t k = rows.start[o]; k < rows.start[o + 1]; ++k) {
            const T* from = in + (plane * in_rows + rows.index[k]) * in_row;
            const A weight = rows.weight[k];
            for (std::int64_t i = 0; i < in_row; ++i) buffer[i] += convert<A>(from[i]) * weight;
          }
          const std::int64_t *start = cols.start.data(), *index = cols.index.data();
          const A* weights = cols.weight.data();
          if (inner == 1) {
            for (std::int64_t c = 0; c < columns; ++c) {
              A value = 0;
              for (std::int64_t k = start[c]; k < start[c + 1]; ++k) value += buffer[index[k]] * weights[k];
              to[c] = convert<T>(value);
            }
            return;
          }
          for (std::int64_t c = 0; c < columns; ++c) {
            for (std::int64_t j = 0; j < inner; ++j) {
              A value = 0;
              for (std::int64_t k = start[c]; k < start[c + 1]; ++k)
                value += buffer[index[k] * inner + j] * weights[k];
              to[c * inner + j] = convert<T>(value);
            }
          }
        });
      }
    });
  });
}

}  // namespace cpu
}  // namespace tapedeck
