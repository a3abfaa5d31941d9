// c = a b + bias: b is packed into panels as wide as a tile of registers, [panel][k][width]; rows of a are
// read as they are, or from a copy if a is transposed. A thread takes one panel and a band of rows at a time
// and goes along k in blocks, so that a block of the panel stays in its cache while the band passes. Sums
// along k have one order, that of k.
#include <tapedeck/ops/gemm.h>

#include <algorithm>

#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/micro/kernels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kDepth = 512;  // of a block along k
constexpr std::int64_t kBand = 96;    // rows

/// The number of parallel items that one thread should have at least, for items of so many operations.
std::int64_t grain(double flops) {
  return 1 + static_cast<std::int64_t>(2e5 / std::max(flops, 1.0));
}

}  // namespace

template <class T>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView<T>& a, const MatrixView<T>& b,
          const T* bias, T* c, std::int64_t step, double negative_slope) {
  const auto& kernels = micro::kernels<T>();
  const std::int64_t lanes = kernels.lanes, vectors = (n + lanes - 1) / lanes;
  const std::int64_t panels = (vectors + kernels.max_vectors - 1) / kernels.max_vectors;
  const auto first_column = [&](std::int64_t panel) { return vectors * panel / panels * lanes; };

  const Scratch<T> packed(vectors * lanes * k), rows(a.transposed ? m * k : 0);
  const Scratch<T> start(bias != nullptr ? vectors * lanes : 0);
  if (bias != nullptr) {
    std::copy_n(bias, n, start.data());
    std::fill(start.data() + n, start.data() + vectors * lanes, T(0));
  }
  const std::int64_t blocks = (k + kDepth - 1) / kDepth;
  parallel_for(panels * blocks, 1 + (1 << 15) / (lanes * kDepth), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t panel = i / blocks, k0 = i % blocks * kDepth, depth = std::min(kDepth, k - k0);
      const std::int64_t column = first_column(panel), width = first_column(panel + 1) - column;
      const std::int64_t columns = std::min(width, n - column);
      T* to = packed.data() + column * k + k0 * width;
      if (b.transposed) {
        kernels.transpose({b.data + column * b.step + k0, b.step, columns, depth, to, width, nullptr});
      }
      for (std::int64_t l = 0; l < depth; ++l) {
        if (!b.transposed) std::copy_n(b.data + (k0 + l) * b.step + column, columns, to + l * width);
        std::fill(to + l * width + columns, to + (l + 1) * width, T(0));
      }
    }
  });
  if (a.transposed) {
    parallel_for(blocks, 1 + (1 << 15) / (m * kDepth), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k0 = begin * kDepth; k0 < std::min(k, end * kDepth); k0 += kDepth) {
        kernels.transpose(
            {a.data + k0 * a.step, a.step, std::min(kDepth, k - k0), m, rows.data() + k0, k, nullptr});
      }
    });
  }

  const T* left = a.transposed ? rows.data() : a.data;
  const std::int64_t left_step = a.transposed ? k : a.step;
  std::int64_t band = kBand;
  while (band > 24 && panels * ((m + band - 1) / band) < 16) band /= 2;
  const std::int64_t bands = (m + band - 1) / band;
  const double flops = 2.0 * static_cast<double>(band * k) * static_cast<double>(first_column(1));
  parallel_for(panels * bands, grain(flops), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t panel = i / bands, row = i % bands * band;
      const std::int64_t column = first_column(panel), width = first_column(panel + 1) - column;
      micro::Rows<T> task{};
      task.a_step = left_step;
      task.start = bias != nullptr ? start.data() + column : nullptr;
      task.c = c + row * step + column;
      task.c_step = step;
      task.rows = std::min(band, m - row);
      task.columns = std::min(width, n - column);
      std::int64_t k0 = 0;
      do {  // once even if k is 0: c is the bias then
        const micro::Run run{0, 0, std::min(kDepth, k - k0)};
        task.a = left + row * left_step + k0;
        task.panel = packed.data() + column * k + k0 * width;
        task.runs = &run;
        task.run_count = 1;
        task.accumulate = k0 > 0;
        kernels.rows(task);
        k0 += kDepth;
      } while (k0 < k);
      if (negative_slope != 1) {
        kernels.rectify({task.c, task.rows, task.columns, step, static_cast<T>(negative_slope)});
      }
    }
  });
}

template void gemm<float>(std::int64_t, std::int64_t, std::int64_t, const MatrixView<float>&,
                          const MatrixView<float>&, const float*, float*, std::int64_t, double);
template void gemm<double>(std::int64_t, std::int64_t, std::int64_t, const MatrixView<double>&,
                           const MatrixView<double>&, const double*, double*, std::int64_t, double);

}  // namespace tapedeck::cpu
