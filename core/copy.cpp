// CPU copies between dtypes and layouts, and fills.
#include <algorithm>
#include <cstring>

#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>
#include <tapedeck/core/simd.h>
#include <tapedeck/core/tensor.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kGrain = 1 << 15;

/// Both tensors hold their elements in the same order.
template <class In, class Out>
void copy_flat(const In* in, Out* out, std::int64_t count) {
  parallel_for(count, kGrain, [&](std::int64_t begin, std::int64_t end) {
    if constexpr (std::is_same_v<In, Out>) {
      std::memmove(out + begin, in + begin, static_cast<std::size_t>(end - begin) * sizeof(In));
    } else if constexpr ((is_half<In> && std::is_same_v<Out, float>) ||
                         (std::is_same_v<In, float> && is_half<Out>)) {
      // Whole operands of kernels that compute in float32.
      simd<std::conditional_t<is_half<In>, In, Out>>([&] {
        for (std::int64_t i = begin; i < end; ++i) out[i] = convert<Out>(in[i]);
      });
    } else {
      for (std::int64_t i = begin; i < end; ++i) out[i] = convert<Out>(in[i]);
    }
  });
}

/// Per image, out[column][row] = in[row][column]: both NCHW to NHWC and back. Square blocks keep the
/// lines that are read and written in cache.
template <class In, class Out>
void copy_transposed(const In* in, Out* out, std::int64_t images, std::int64_t rows, std::int64_t columns) {
  constexpr std::int64_t kBlock = 32;
  const std::int64_t bands = (columns + kBlock - 1) / kBlock;
  parallel_for(images * bands, std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(1, rows * kBlock)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t task = begin; task < end; ++task) {
                   const std::int64_t image = task / bands, c0 = task % bands * kBlock;
                   const std::int64_t c1 = std::min(columns, c0 + kBlock);
                   const In* from = in + image * rows * columns;
                   Out* to = out + image * rows * columns;
                   for (std::int64_t r0 = 0; r0 < rows; r0 += kBlock) {
                     const std::int64_t r1 = std::min(rows, r0 + kBlock);
                     for (std::int64_t c = c0; c < c1; ++c) {
                       for (std::int64_t r = r0; r < r1; ++r) {
                         to[c * rows + r] = convert<Out>(from[r * columns + c]);
                       }
                     }
                   }
                 }
               });
}

}  // namespace

void copy(const Tensor& in, const Tensor& out) {
  visit(in.dtype(), [&]<class In>() {
    visit(out.dtype(), [&]<class Out>() {
      const In* from = static_cast<const In*>(in.read());
      Out* to = out.data<Out>();
      if (in.layout() == out.layout()) return copy_flat(from, to, in.count());
      const std::int64_t channels = in.size(1), pixels = in.size(2) * in.size(3);
      const bool to_nhwc = out.layout() == Layout::nhwc;
      copy_transposed(from, to, in.size(0), to_nhwc ? channels : pixels, to_nhwc ? pixels : channels);
    });
  });
}

void fill(const Tensor& out, double value) {
  visit(out.dtype(), [&]<class T>() {
    T* to = out.data<T>();
    const T element = convert<T>(value);
    parallel_for(out.count(), kGrain,
                 [&](std::int64_t begin, std::int64_t end) { std::fill(to + begin, to + end, element); });
  });
}

}  // namespace tapedeck::cpu
