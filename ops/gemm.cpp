// c = a b + bias: b is packed into panels as wide as a tile of registers, [panel][k][width]; rows of a are
// read as they are, or from a copy if a is transposed. A thread takes one panel at a time, and a band of rows
// where panels are few, and goes along k in blocks, so that a block of the panel stays in its cache while the
// rows pass. Sums along k have one order.
//
// A c that is too small to be shared among threads is computed in parts of k, as many as the sizes ask for:
// a part packs the blocks of b that it multiplies, while they are in the cache, and has sums of its own. The
// parts are added in order. Where the rows of c fill vectors badly, its transpose is computed.
#include <tapedeck/ops/gemm.h>

#include <algorithm>

#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/micro/kernels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kDepth = 512;                 // of a block along k
constexpr std::int64_t kBand = 96, kLeastBand = 24;  // rows
constexpr std::int64_t kItems = 16;                  // panels of bands that keep many threads busy
constexpr std::int64_t kLeastPart = 256;             // of k

/// The number of parallel items that one thread should have at least, for items of so many operations.
std::int64_t grain(double flops) {
  return 1 + static_cast<std::int64_t>(2e5 / std::max(flops, 1.0));
}

template <class T>
class Gemm {
 public:
  Gemm(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView<T>& a, const MatrixView<T>& b,
       const T* bias, T* c, std::int64_t step, double negative_slope)
      : m_(m),
        n_(n),
        k_(k),
        a_(a),
        b_(b),
        c_(c),
        step_(step),
        negative_slope_(static_cast<T>(negative_slope)),
        kernels_(micro::kernels<T>()),
        vectors_((n + kernels_.lanes - 1) / kernels_.lanes),
        panels_((vectors_ + kernels_.max_vectors - 1) / kernels_.max_vectors),
        start_(bias != nullptr ? columns() : 0),
        has_start_(bias != nullptr) {
    if (!has_start_) return;
    std::copy_n(bias, n, start_.data());
    std::fill(start_.data() + n, start_.data() + columns(), T(0));
  }

  void run() {
    if (m_ == 0 || n_ == 0) return;
    const bool is_small = panels_ * ((m_ + kLeastBand - 1) / kLeastBand) < kItems;
    const std::int64_t parts = is_small ? std::min(kItems, k_ / kLeastPart) : 1;
    if (parts < 2) return by_panels();
    const MatrixView<T> left{b_.data, b_.step, !b_.transposed}, right{a_.data, a_.step, !a_.transposed};
    const Gemm turned(n_, m_, k_, left, right, nullptr, c_, step_, negative_slope_);
    if (turned.cost() < 0.95 * cost()) {
      turned.by_parts(parts, 1, step_, has_start_ ? start_.data() : nullptr);
    } else {
      by_parts(parts, step_, 1, nullptr);
    }
  }

 private:
  std::int64_t columns() const { return vectors_ * kernels_.lanes; }  // of all panels
  std::int64_t first_column(std::int64_t panel) const { return vectors_ * panel / panels_ * kernels_.lanes; }
  std::int64_t width(std::int64_t panel) const { return first_column(panel + 1) - first_column(panel); }

  /// Of parts of k: cycles for each k.
  double cost() const {
    constexpr double kTransposed = 0.5;  // of an element
    return static_cast<double>(m_ * vectors_) +
           kTransposed * static_cast<double>(n_ + (a_.transposed ? m_ : 0));
  }

  /// Rows [k0, k0 + depth) of a panel.
  void pack(std::int64_t panel, std::int64_t k0, std::int64_t depth, T* to) const {
    const std::int64_t column = first_column(panel), wide = width(panel), count = std::min(wide, n_ - column);
    if (b_.transposed) {
      kernels_.transpose({b_.data + column * b_.step + k0, b_.step, count, depth, to, wide, nullptr});
    }
    for (std::int64_t l = 0; l < depth; ++l) {
      if (!b_.transposed) std::copy_n(b_.data + (k0 + l) * b_.step + column, count, to + l * wide);
      std::fill(to + l * wide + count, to + (l + 1) * wide, T(0));
    }
  }

  /// c = start + a b, or c += a b, for `rows` rows and a block of a panel. c is the first row and column 0.
  void multiply(std::int64_t panel, std::int64_t depth, const MatrixView<T>& rows_of_a, const T* packed,
                bool begins, bool accumulate, T* c, std::int64_t step, std::int64_t rows) const {
    const std::int64_t column = first_column(panel);
    const micro::Run run{0, 0, depth};
    micro::Rows<T> task{};
    task.a = rows_of_a.data;
    task.a_step = rows_of_a.step;
    task.panel = packed;
    task.runs = &run;
    task.run_count = 1;
    task.start = begins && has_start_ ? start_.data() + column : nullptr;
    task.accumulate = accumulate;
    task.c = c + column;
    task.c_step = step;
    task.rows = rows;
    task.columns = std::min(width(panel), n_ - column);
    kernels_.rows(task);
  }

  void rectify(T* c, std::int64_t rows, std::int64_t columns) const {
    if (negative_slope_ != 1) kernels_.rectify({c, rows, columns, step_, negative_slope_});
  }

  void by_panels() const {
    const Scratch<T> copied(a_.transposed ? m_ * k_ : 0);
    const std::int64_t blocks = (k_ + kDepth - 1) / kDepth;
    if (a_.transposed) {
      parallel_for(blocks, 1 + (1 << 15) / (m_ * kDepth), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t k0 = begin * kDepth; k0 < std::min(k_, end * kDepth); k0 += kDepth) {
          kernels_.transpose({a_.data + k0 * a_.step, a_.step, std::min(kDepth, k_ - k0), m_,
                              copied.data() + k0, k_, nullptr});
        }
      });
    }

    const MatrixView<T> left{a_.transposed ? copied.data() : a_.data, a_.transposed ? k_ : a_.step, false};
    if (panels_ >= std::max<std::int64_t>(kItems, 8 * num_threads())) return each_panel(left);
    const Scratch<T> packed(columns() * k_);
    parallel_for(panels_ * blocks, 1 + (1 << 15) / (kernels_.lanes * kDepth),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t panel = i / blocks, k0 = i % blocks * kDepth;
                     pack(panel, k0, std::min(kDepth, k_ - k0),
                          packed.data() + first_column(panel) * k_ + k0 * width(panel));
                   }
                 });
    std::int64_t band = kBand;
    while (band > kLeastBand && panels_ * ((m_ + band - 1) / band) < kItems) band /= 2;
    const std::int64_t bands = (m_ + band - 1) / band;
    const double flops = 2.0 * static_cast<double>(band * k_) * static_cast<double>(width(0));
    parallel_for(panels_ * bands, grain(flops), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t panel = i / bands, row = i % bands * band;
        std::int64_t k0 = 0;
        do {  // once even if k is 0: c is the bias then
          multiply(panel, std::min(kDepth, k_ - k0), {left.data + row * left.step + k0, left.step, false},
                   packed.data() + first_column(panel) * k_ + k0 * width(panel), true, k0 > 0,
                   c_ + row * step_, step_, std::min(band, m_ - row));
          k0 += kDepth;
        } while (k0 < k_);
        const std::int64_t column = first_column(panel);
        rectify(c_ + row * step_ + column, std::min(band, m_ - row), std::min(width(panel), n_ - column));
      }
    });
  }

  /// Where panels are many for each thread, which has whole ones, it packs a block of a panel just before it
  /// multiplies it.
  void each_panel(const MatrixView<T>& left) const {
    const double flops = 2.0 * static_cast<double>(m_ * k_) * static_cast<double>(width(0));
    parallel_for(panels_, grain(flops), [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> packed(width(panels_ - 1) * kDepth);
      for (std::int64_t panel = begin; panel < end; ++panel) {
        std::int64_t k0 = 0;
        do {  // once even if k is 0: c is the bias then
          const std::int64_t depth = std::min(kDepth, k_ - k0);
          pack(panel, k0, depth, packed.data());
          multiply(panel, depth, {left.data + k0, left.step, false}, packed.data(), true, k0 > 0, c_, step_,
                   m_);
          k0 += kDepth;
        } while (k0 < k_);
        const std::int64_t column = first_column(panel);
        rectify(c_ + column, m_, std::min(width(panel), n_ - column));
      }
    });
  }

  /// c has such steps between rows and columns. `of_rows`, unless it is null, is added to each column.
  void by_parts(std::int64_t parts, std::int64_t row_step, std::int64_t column_step, const T* of_rows) const {
    const Scratch<T> sums(parts * m_ * n_);
    const double flops = 2.0 * static_cast<double>(m_ * n_) * static_cast<double>(k_ / parts);
    parallel_for(parts, grain(flops), [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> packed(columns() * kDepth), copied(m_ * kDepth);
      for (std::int64_t part = begin; part < end; ++part) {
        const std::int64_t first = k_ * part / parts, last = k_ * (part + 1) / parts;
        T* const to = sums.data() + part * m_ * n_;
        for (std::int64_t k0 = first; k0 < last; k0 += kDepth) {
          const std::int64_t depth = std::min(kDepth, last - k0);
          MatrixView<T> left{a_.data + k0, a_.step, false};
          if (a_.transposed) {
            kernels_.transpose({a_.data + k0 * a_.step, a_.step, depth, m_, copied.data(), kDepth, nullptr});
            left = {copied.data(), kDepth, false};
          }
          for (std::int64_t panel = 0; panel < panels_; ++panel) {
            pack(panel, k0, depth, packed.data());
            multiply(panel, depth, left, packed.data(), part == 0, k0 > first, to, n_, m_);
          }
        }
      }
    });
    // To wake threads for less takes longer.
    parallel_for(m_, 1 + (1 << 17) / (n_ * parts), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        T* const sum = sums.data() + i * n_;
        for (std::int64_t part = 1; part < parts; ++part) {
          const T* const add = sums.data() + (part * m_ + i) * n_;
          for (std::int64_t j = 0; j < n_; ++j) sum[j] += add[j];
        }
        for (std::int64_t j = 0; of_rows != nullptr && j < n_; ++j) sum[j] += of_rows[i];
        rectify(sum, 1, n_);
        for (std::int64_t j = 0; j < n_; ++j) c_[i * row_step + j * column_step] = sum[j];
      }
    });
  }

  const std::int64_t m_, n_, k_;
  const MatrixView<T>&a_, &b_;
  T* const c_;
  const std::int64_t step_;
  const T negative_slope_;
  const micro::Kernels<T>& kernels_;
  const std::int64_t vectors_, panels_;
  const Scratch<T> start_;  // the bias and some zeros
  const bool has_start_;
};

}  // namespace

template <class T>
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, const MatrixView<T>& a, const MatrixView<T>& b,
          const T* bias, T* c, std::int64_t step, double negative_slope) {
  Gemm<T>(m, n, k, a, b, bias, c, step, negative_slope).run();
}

template void gemm<float>(std::int64_t, std::int64_t, std::int64_t, const MatrixView<float>&,
                          const MatrixView<float>&, const float*, float*, std::int64_t, double);
template void gemm<double>(std::int64_t, std::int64_t, std::int64_t, const MatrixView<double>&,
                           const MatrixView<double>&, const double*, double*, std::int64_t, double);

}  // namespace tapedeck::cpu
