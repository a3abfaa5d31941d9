#include <tapedeck/core/backend.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/axis.h>
#include <tapedeck/ops/checks.h>
#include <tapedeck/ops/reduce.h>
#include <tapedeck/ops/reduce_dims.h>
#include <tapedeck/ops/staging.h>

namespace tapedeck {

namespace {

struct ArgMax final : Op {
  ArgMax(int dim, bool keepdim) : dim_(dim), keepdim_(keepdim) {}
  const char* name() const override { return "argmax"; }
  Tensors forward(OpContext&, const Tensors& x) override {
    check_defined(name(), "x", x[0]);
    const int dim = checked_dim(name(), x[0].shape(), dim_);
    check(x[0].size(dim) > 0, "argmax: x ", x[0].shape(), " has no elements along dimension ", dim);
    const Tensor out = Tensor::empty(x[0].shape().with(dim, 1), {DType::int64, x[0].device(), x[0].layout()});
    if (out.count() > 0) TAPEDECK_KERNEL(out.device(), argmax)(x[0], dim, out);
    return {keepdim_ ? out : out.reshape(x[0].shape().without(dim))};
  }
  Variables backward(const OpContext&, const Variables&) override { return {}; }

 private:
  int dim_;
  bool keepdim_;
};

}  // namespace

Variable argmax(const Variable& x) {
  return argmax(x.tensor().reshape({-1}), 0);
}
Variable argmax(const Variable& x, int dim, bool keepdim) {
  return call<ArgMax>({x}, dim, keepdim);
}

void cpu::argmax(const Tensor& x, int dim, const Tensor& out) {
  const Axis axis = Axis::of(x, dim);
  std::int64_t* const to = out.data<std::int64_t>();
  cpu::visit_compute(x.dtype(), [&]<class V>() {
    const StagedReader<V> reader(x);
    // Of the lines along the axis, those that start next to each other are walked together.
    const std::int64_t tile = std::min(axis.inner, kStageBlock), tiles = (axis.inner + tile - 1) / tile;
    const std::int64_t grain = std::max<std::int64_t>(1, (1 << 14) / (axis.size * tile));
    parallel_for(axis.outer * tiles, grain, [&](std::int64_t begin, std::int64_t end) {
      V buffer[kStageBlock], best[kStageBlock];
      for (std::int64_t task = begin; task < end; ++task) {
        const std::int64_t outer = task / tiles, first = task % tiles * tile;
        const std::int64_t width = std::min(tile, axis.inner - first);
        const std::int64_t start = outer * axis.size * axis.inner + first;
        std::int64_t* position = to + outer * axis.inner + first;
        const auto take = [&](V value, std::int64_t k, std::int64_t i) {  // the first NaN is never replaced
          const bool better = value > best[i] || (value != value && best[i] == best[i]);
          best[i] = better ? value : best[i];
          position[i] = better ? k : position[i];
        };
        std::fill_n(position, width, 0);
        std::copy_n(reader.read(start, width, buffer), width, best);
        if (axis.inner == 1) {
          for (std::int64_t k = 0; k < axis.size; k += kStageBlock) {
            const std::int64_t n = std::min(kStageBlock, axis.size - k);
            const V* values = reader.read(start + k, n, buffer);
            for (std::int64_t i = 0; i < n; ++i) take(values[i], k + i, 0);
          }
        } else {
          for (std::int64_t k = 1; k < axis.size; ++k) {
            const V* values = reader.read(start + k * axis.inner, width, buffer);
            for (std::int64_t i = 0; i < width; ++i) take(values[i], k, i);
          }
        }
      }
    });
  });
}

}  // namespace tapedeck
