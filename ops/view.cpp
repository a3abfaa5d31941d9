#include <tapedeck/ops/view.h>

#include <cstring>

#include <tapedeck/core/backend.h>

namespace tapedeck {

View::View(const Tensor& whole) : tensor(whole), shape(whole.shape()) {
  const std::vector<std::int64_t> own = whole.strides();
  std::copy(own.begin(), own.end(), strides.begin());
}

View View::permute(std::span<const int> dims) const {
  View view = *this;
  for (int i = 0; i < shape.rank(); ++i) {
    view.shape = view.shape.with(i, shape[dims[i]]);
    view.strides[i] = strides[dims[i]];
  }
  return view;
}

View View::slice(int dim, std::int64_t begin, std::int64_t count, std::int64_t step) const {
  View view = *this;
  view.shape = shape.with(dim, count);
  view.offset += begin * strides[dim];
  view.strides[dim] *= step;
  return view;
}

void copy_view(const View& in, const View& out) {
  if (out.shape.count() > 0) TAPEDECK_KERNEL(out.tensor.device(), copy_view)(in, out);
}

namespace cpu {

namespace {

using Loop = StridedLoop<2>;  // tensor 0 is out, tensor 1 is in

/// out runs along the innermost dimension of the loop, in along dimension `across`. Tiles of the two
/// dimensions keep the lines that are read and written in cache.
template <class T>
void copy_transposed(const T* in, T* out, const Loop& loop, int across) {
  constexpr std::int64_t kTile = 32;
  const int along = loop.rank - 1;
  const std::int64_t columns = loop.sizes[along], rows = loop.sizes[across];
  const std::int64_t width = std::min(columns, kTile), height = kTile * kTile / width;
  const std::int64_t bands = (rows + height - 1) / height, tiles = (columns + width - 1) / width;
  std::int64_t outer = 1;
  for (int d = 0; d < along; ++d) outer *= d == across ? 1 : loop.sizes[d];

  parallel_for(outer * bands * tiles, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t c0 = task % tiles * width, c1 = std::min(columns, c0 + width);
      const std::int64_t r0 = task / tiles % bands * height, r1 = std::min(rows, r0 + height);
      const T* from = in;
      T* to = out;
      std::int64_t rest = task / tiles / bands;
      for (int d = along - 1; d >= 0; --d) {
        if (d == across) continue;
        to += rest % loop.sizes[d] * loop.strides[0][d];
        from += rest % loop.sizes[d] * loop.strides[1][d];
        rest /= loop.sizes[d];
      }
      const std::int64_t step = loop.strides[1][along];
      for (std::int64_t r = r0; r < r1; ++r) {
        T* line = to + r * loop.strides[0][across];
        for (std::int64_t c = c0; c < c1; ++c) line[c] = from[r + c * step];
      }
    }
  });
}

template <class T>
void copy_elements(const T* in, const Strides& in_strides, T* out, const Strides& out_strides,
                   const Shape& shape) {
  const Loop loop = Loop::over(shape, {out_strides, in_strides});
  const int along = loop.rank - 1;
  const std::int64_t out_step = loop.strides[0][along], in_step = loop.strides[1][along];
  if (out_step == 1 && in_step != 1) {
    for (int d = 0; d < along; ++d) {
      if (loop.strides[1][d] == 1) return copy_transposed(in, out, loop, d);
    }
  }
  loop.for_each_run([&](const auto& at, std::int64_t n) {
    T* to = out + at[0];
    const T* from = in + at[1];
    if (out_step == 1 && in_step == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(T));
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i * out_step] = from[i * in_step];
    }
  });
}

}  // namespace

void copy_view(const View& in, const View& out) {
  visit(out.tensor.dtype(), [&]<class T>() {
    copy_elements(in.tensor.data<T>() + in.offset, in.strides, out.tensor.data<T>() + out.offset, out.strides,
                  out.shape);
  });
}

}  // namespace cpu
}  // namespace tapedeck
