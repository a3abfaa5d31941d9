// The weight gradient: for each tap, the sum over pixels of an outer product of channels.
//
//   w[ci,co,kh,kw] = sum over n, ih, iw of x[n,ci,ih,iw] * y[n,co,oh,ow],
//   oh = ih*stride - padding + kh*dilation, and likewise ow.
//
// Both tensors are read as channels-last pixels (in place, or copies of a block of images). One side's
// channels are the lanes of vectors, the other's the rows that they are multiplied with; both advance by
// constant steps along n, ih and iw, so all awkwardness of stride and dilation is a step. Sums are kept as
// [group][kh][kw][row][lane] until the end. Where the row side is y with few channels and dilation_w is 1,
// the taps of a row of the kernel follow each other in memory and are rows together.
//
// Work is split over the sums. Each is added up by one thread, block by block and chunk by chunk of pixels
// that fit its cache, in an order that depends on the sizes alone.
#include <algorithm>

#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/pixels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

namespace {

/// Rows [first, first + count) of the sums of a tap, or of a row of taps where they are joined.
struct Unit {
  std::int64_t panel, kh, kw, first, count;
};

/// Lanes [first, first + columns) of a group with rows of the same group.
struct LanePanel {
  std::int64_t group, first, vectors, row, rows;
};

/// Part of the images of a block.
struct Chunk {
  std::int64_t image, images, row, rows;
};

template <class T>
class WeightGrad {
 public:
  WeightGrad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w)
      : g_(g), x_(x), y_(y), w_(w), kernels_(micro::kernels<T>()), segments_(plain_plan(g.w).segments) {
    const std::int64_t lanes = kernels_.lanes, cx = g.group_ci(), cy = g.group_co();
    const auto padded = [&](std::int64_t c) { return (c + lanes - 1) / lanes * lanes; };
    lanes_are_x_ =
        padded(cx) * cy <= padded(cy) * cx;  // wastes fewer lanes; if equal, y's taps may be joined
    rows_ = lanes_are_x_ ? cy : cx;
    columns_ = lanes_are_x_ ? cx : cy;
    width_ = padded(columns_);
    joined_ = lanes_are_x_ && rows_ < 8 && g.groups == 1 && g.w.dilation == 1 && g.w.kernel > 1;
    make_units();
  }

  void run() {
    const std::int64_t count = g_.groups * g_.h.kernel * g_.w.kernel * rows_ * width_;
    sums_ = Scratch<T>(count);
    parallel_for(count, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      std::fill(sums_.data() + begin, sums_.data() + end, T(0));
    });
    const std::int64_t x_image = x_.count() / g_.n, y_image = y_.count() / g_.n;
    const bool x_in_place = in_place(x_, lanes_are_x_), y_in_place = in_place(y_, !lanes_are_x_);
    const std::int64_t copied = (x_in_place ? 0 : x_image) + (y_in_place ? 0 : y_image);
    const std::int64_t block =
        copied == 0 ? g_.n : std::clamp<std::int64_t>(kBlockBytes / (copied * sizeof(T)), 1, g_.n);
    const Scratch<T> x_copy(x_in_place ? 0 : block * x_image + slack());
    const Scratch<T> y_copy(y_in_place ? 0 : block * y_image + slack());
    for (std::int64_t begin = 0; begin < g_.n; begin += block) {
      const std::int64_t images = std::min(block, g_.n - begin);
      x_pixels_ = pixels(x_, begin, images, x_in_place, x_copy.data());
      y_pixels_ = pixels(y_, begin, images, y_in_place, y_copy.data());
      add(images);
    }
    write();
  }

 private:
  static constexpr std::int64_t kBlockBytes = 8 << 20;  // of copied images
  static constexpr std::int64_t kChunkBytes = 384
                                              << 10;  // of pixels that a thread goes over for all its sums
  static constexpr std::int64_t kPanelRows = 64;
  static constexpr std::int64_t kUnitRows = 24;

  /// Vectors of lanes may reach beyond the last pixel's channels.
  std::int64_t slack() const { return kernels_.lanes * kernels_.max_vectors; }
  bool in_place(const Tensor& images, bool lanes) const {
    return images.layout() == Layout::nhwc && (!lanes || columns_ % kernels_.lanes == 0);
  }

  Pixels<T> pixels(const Tensor& images, std::int64_t begin, std::int64_t count, bool in_place,
                   T* copy) const {
    const std::int64_t c = images.size(1), h = images.size(2), w = images.size(3);
    Pixels<T> p{images.data<T>() + begin * c * h * w, c * h * w, c * w, c};
    if (!in_place) {
      p.data = copy;
      copy_pixels(images, begin, begin + count, p, c, copy);
    }
    return p;
  }

  void make_units() {
    const std::int64_t lanes = kernels_.lanes, vectors = width_ / lanes;
    const std::int64_t panels = (vectors + kernels_.max_vectors - 1) / kernels_.max_vectors;
    const std::int64_t all_rows = joined_ ? rows_ * g_.w.kernel : rows_;
    for (std::int64_t g = 0; g < g_.groups; ++g) {
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::int64_t first = vectors * p / panels, last = vectors * (p + 1) / panels;
        for (std::int64_t row = 0; row < all_rows; row += kPanelRows) {
          const std::int64_t rows = std::min(kPanelRows, all_rows - row);
          panels_.push_back({g, first * lanes, last - first, row, rows});
          const std::int64_t parts = (rows + kUnitRows - 1) / kUnitRows;
          for (std::int64_t kh = 0; kh < g_.h.kernel; ++kh) {
            for (std::int64_t kw = 0; kw < (joined_ ? 1 : g_.w.kernel); ++kw) {
              for (std::int64_t part = 0; part < parts; ++part) {
                const std::int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
                units_.push_back(
                    {static_cast<std::int64_t>(panels_.size()) - 1, kh, kw, row + begin, end - begin});
              }
            }
          }
        }
      }
    }
  }

  /// Adds the products of a block of images to the sums.
  void add(std::int64_t images) {
    const double flops = g_.flops() / static_cast<double>(g_.n) * static_cast<double>(images) /
                         static_cast<double>(units_.size());
    parallel_for(static_cast<std::int64_t>(units_.size()), 1 + static_cast<std::int64_t>(2e5 / (flops + 1)),
                 [&](std::int64_t begin, std::int64_t end) {
                   while (begin < end) {  // the units of one panel share the pixels of a chunk
                     const std::int64_t panel = units_[static_cast<std::size_t>(begin)].panel;
                     std::int64_t last = begin;
                     while (last < end && units_[static_cast<std::size_t>(last)].panel == panel) ++last;
                     for_each_chunk(images, panels_[static_cast<std::size_t>(panel)],
                                    [&](const Chunk& chunk) {
                                      for (std::int64_t u = begin; u < last; ++u) {
                                        add_chunk(chunk, panels_[static_cast<std::size_t>(panel)],
                                                  units_[static_cast<std::size_t>(u)]);
                                      }
                                    });
                     begin = last;
                   }
                 });
  }

  template <class F>
  void for_each_chunk(std::int64_t images, const LanePanel& panel, F f) const {
    const std::int64_t lanes = panel.vectors * kernels_.lanes, rows = std::min(panel.rows, rows_);
    const std::int64_t x_bytes = g_.h.in * g_.w.in * (lanes_are_x_ ? lanes : rows) * sizeof(T);
    const std::int64_t y_bytes = g_.h.out * g_.w.out * (lanes_are_x_ ? rows : lanes) * sizeof(T);
    const std::int64_t fits = kChunkBytes / (x_bytes + y_bytes);
    const std::int64_t step = std::clamp<std::int64_t>(fits, 1, images);
    const std::int64_t bands = fits > 0 ? 1 : std::min(g_.h.in, (x_bytes + y_bytes) / kChunkBytes + 1);
    for (std::int64_t image = 0; image < images; image += step) {
      for (std::int64_t band = 0; band < bands; ++band) {
        const std::int64_t row = g_.h.in * band / bands, end = g_.h.in * (band + 1) / bands;
        f(Chunk{image, std::min(step, images - image), row, end - row});
      }
    }
  }

  void add_chunk(const Chunk& chunk, const LanePanel& panel, const Unit& unit) {
    const std::int64_t begin = std::max(chunk.row, g_.h.input_begin(unit.kh));
    const std::int64_t end = std::min(chunk.row + chunk.rows, g_.h.input_end(unit.kh));
    if (begin >= end) return;
    const std::int64_t taps = (panel.group * g_.h.kernel + unit.kh) * g_.w.kernel;
    const auto add_columns = [&](std::int64_t iw, std::int64_t count, std::int64_t kw, std::int64_t row,
                                 std::int64_t rows) {
      if (count == 0 || rows <= 0) return;
      const std::int64_t cx = panel.group * g_.group_ci(), cy = panel.group * g_.group_co();
      const T* x = x_pixels_.data + chunk.image * x_pixels_.image_step + begin * x_pixels_.h_step +
                   iw * x_pixels_.w_step + cx + (lanes_are_x_ ? panel.first : row);
      const T* y = y_pixels_.data + chunk.image * y_pixels_.image_step +
                   g_.h.output(begin, unit.kh) * y_pixels_.h_step + g_.w.output(iw, kw) * y_pixels_.w_step +
                   cy + (lanes_are_x_ ? row : panel.first);
      const std::int64_t x_step[3] = {x_pixels_.image_step, x_pixels_.h_step, x_pixels_.w_step};
      const std::int64_t y_step[3] = {y_pixels_.image_step, g_.h.stride * y_pixels_.h_step,
                                      g_.w.stride * y_pixels_.w_step};
      micro::Outer<T> task{lanes_are_x_ ? y : x,
                           lanes_are_x_ ? x : y,
                           {chunk.images, end - begin, count},
                           {},
                           {},
                           sums_.data() + ((taps + kw) * rows_ + row) * width_ + panel.first,
                           width_,
                           rows,
                           panel.vectors,
                           0};
      std::copy_n(lanes_are_x_ ? y_step : x_step, 3, task.a_step);
      std::copy_n(lanes_are_x_ ? x_step : y_step, 3, task.b_step);
      kernels_.outer(task);
    };
    if (!joined_) {
      const std::int64_t iw = g_.w.input_begin(unit.kw);
      add_columns(iw, g_.w.input_end(unit.kw) - iw, unit.kw, unit.first, unit.count);
      return;
    }
    for (const Segment& s : segments_) {  // rows are (kw, channel), from the first tap of the segment on
      const std::int64_t row = std::max(unit.first, s.slot * rows_);
      const std::int64_t last = std::min(unit.first + unit.count, (s.slot + s.slots) * rows_);
      add_columns(s.to, s.count, s.slot, row - s.slot * rows_, last - row);
    }
  }

  /// w from the sums: [group][tap][row][lane] to [ci][co][tap].
  void write() {
    const std::int64_t taps = g_.h.kernel * g_.w.kernel;
    parallel_for(
        g_.groups * rows_, 1 + (1 << 14) / (taps * columns_), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t group = i / rows_, row = i % rows_;
            const T* from = sums_.data() + (group * taps * rows_ + row) * width_;
            T* to = w_.data<T>() + (lanes_are_x_ ? group * columns_ * rows_ + row : i * columns_) * taps;
            kernels_.transpose(
                {from, rows_ * width_, taps, columns_, to, (lanes_are_x_ ? rows_ : 1) * taps, nullptr});
          }
        });
  }

  const ConvTranspose2dGeometry& g_;
  const Tensor &x_, &y_, &w_;
  const micro::Kernels<T>& kernels_;
  const std::vector<Segment> segments_;
  bool lanes_are_x_ = true, joined_ = false;
  std::int64_t rows_ = 0, columns_ = 0, width_ = 0;  // channels of a group; width_: columns_ in whole vectors
  std::vector<LanePanel> panels_;
  std::vector<Unit> units_;
  Scratch<T> sums_;
  Pixels<T> x_pixels_, y_pixels_;
};

}  // namespace

template <class T>
void weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  WeightGrad<T>(g, x, y, w).run();
}

template void weight_grad<float>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&, const Tensor&);
template void weight_grad<double>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                  const Tensor&);

}  // namespace tapedeck::cpu
