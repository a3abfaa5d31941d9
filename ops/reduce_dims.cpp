#include <tapedeck/ops/reduce_dims.h>

namespace tapedeck {

ReduceDims ReduceDims::of(const char* op, const Shape& x, const std::vector<int>& dims, bool keepdim) {
  std::vector<bool> reduced(x.rank(), dims.empty());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    check(dims[i] >= -x.rank() && dims[i] < x.rank(), op, ": dims[", i, "] is ", dims[i], "; legal for x ", x,
          " is ", -x.rank(), " to ", x.rank() - 1);
    auto at = reduced[x.dim(dims[i])];
    check(!at, op, ": dims[", i, "] names dimension ", x.dim(dims[i]), " a second time");
    at = true;
  }
  std::vector<std::int64_t> kept, result;
  for (int d = 0; d < x.rank(); ++d) {
    kept.push_back(reduced[d] ? 1 : x[d]);
    if (!reduced[d] || keepdim) result.push_back(kept.back());
  }
  return {Shape(std::span<const std::int64_t>(kept)), Shape(std::span<const std::int64_t>(result))};
}

ReduceDims ReduceDims::to(const Shape& shape, int rank) {
  std::vector<std::int64_t> kept(rank - shape.rank(), 1);
  kept.insert(kept.end(), shape.begin(), shape.end());
  return {Shape(std::span<const std::int64_t>(kept)), shape};
}

Tensor ReduceDims::empty_result(const Tensor& x, DType dtype) const {
  return Tensor::empty(result, {dtype, x.device(), kept == result ? x.layout() : Layout::nchw});
}

int checked_dim(const char* op, const Shape& x, int dim) {
  check(dim >= -x.rank() && dim < x.rank(), op, ": dim ", dim, " is out of range for x ", x, "; legal is ",
        -x.rank(), " to ", x.rank() - 1);
  return x.dim(dim);
}

}  // namespace tapedeck
