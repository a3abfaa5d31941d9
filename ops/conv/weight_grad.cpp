// The weight gradient: for each tap, the sum over pixels of an outer product of channels.
//
//   w[ci,co,kh,kw] = sum over n, ih, iw of x[n,ci,ih,iw] * y[n,co,oh,ow],
//   oh = ih*stride - padding + kh*dilation, and likewise ow.
//
// Both tensors are read as channels-last pixels (in place, or copies of a block of images). One side's
// channels are the lanes of vectors, the other's the rows that they are multiplied with; both advance by
// constant steps along n, ih and iw, so all awkwardness of stride and dilation is a step; rows of y that no
// tap reaches are left out. Sums are kept as [group][kh][kw][row][lane] until the end. Where the row side is
// y with few channels and dilation_w is 1, the taps of a row of the kernel follow each other in memory and
// are rows together.
//
// Where the sums are small, work is split into a number of parts of the pixels that depends on the sizes
// alone. A part copies a chunk of rows at a time to the cache of its core and has sums of its own, which are
// added in order at the end. Groups of many channels are taken one after the other, so that sums of one and
// its pixels stay in the cache; many of them are enough to share without parts. Otherwise work is split over
// the sums: each is added up by one thread, block by block of images that all threads copy together, and
// chunk by chunk of pixels that fit its cache.
#include <algorithm>

#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/sum_parts.h>
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

/// Rows of x of some images of a block.
struct Chunk {
  std::int64_t image, images, row, rows;
};

/// What is read and added to. Rows and images count from those of a chunk.
template <class T>
struct Block {
  Pixels<T> x, y;
  T* sums;
};

template <class T>
class WeightGrad {
 public:
  WeightGrad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w)
      : read_rows_(g),
        x_source_{x, false, g.groups},
        y_source_{{y, read_rows_}, false, g.groups},
        w_(w),
        kernels_(micro::kernels<T>()),
        segments_(plain_plan(g.w).segments),
        lanes_are_x_(lanes_are_of_x(g.group_ci(), g.group_co(), kernels_.lanes)),
        count_(sums_of(g_, kernels_.lanes)),
        parts_(g_, count_, sizeof(T)) {
    const std::int64_t lanes = kernels_.lanes, cx = g.group_ci(), cy = g.group_co();
    rows_ = lanes_are_x_ ? cy : cx;
    columns_ = lanes_are_x_ ? cx : cy;
    width_ = in_lanes(columns_, lanes);
    joined_ = lanes_are_x_ && rows_ < 8 && g.groups == 1 && g.w.dilation == 1 && g.w.kernel > 1;
    x_source_.in_place = is_in_place(x, columns_, lanes_are_x_ ? lanes : 1);
    y_source_.in_place = is_in_place(y, columns_, lanes_are_x_ ? 1 : lanes);
  }

  void run() {
    make_units(parts_.items() > 1 ? kPanelRows : kUnitRows);
    sums_ = Scratch<T>(parts_.count * count_);
    parallel_for(parts_.count * count_, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      std::fill(sums_.data() + begin, sums_.data() + end, T(0));
    });
    if (parts_.items() > 1) {
      add_parts();
    } else {
      for_each_block<T>(x_source_, y_source_, slack(), count_ * static_cast<std::int64_t>(sizeof(T)),
                        [&](const Pixels<T>& x, const Pixels<T>& y, std::int64_t images) {
                          add({x, y, sums_.data()}, images);
                        });
    }
    write();
  }

 private:
  static constexpr std::int64_t kChunkBytes = 384 << 10;  // of pixels for all sums of a thread
  static constexpr double kFlopsOfCopy = 8;               // in the time of a copied element
  static constexpr std::int64_t kPanelRows = 64;
  static constexpr std::int64_t kUnitRows = 24;  // without parts, for many threads

  /// Vectors of lanes may reach beyond the last pixel's channels.
  std::int64_t slack() const { return kernels_.lanes * kernels_.max_vectors; }
  /// Rows of y that rows [row, row + rows) of x meet.
  std::int64_t first_of_y(std::int64_t row) const {
    return std::clamp<std::int64_t>(row * g_.h.stride - g_.h.padding, 0, g_.h.out);
  }
  std::int64_t end_of_y(std::int64_t row, std::int64_t rows) const {
    const std::int64_t last = (row + rows - 1) * g_.h.stride - g_.h.padding;
    return std::clamp<std::int64_t>(last + (g_.h.kernel - 1) * g_.h.dilation + 1, first_of_y(row), g_.h.out);
  }

  void add_parts() {
    const std::int64_t passes = parts_.passes, x_row = x_source_.row<T>() / passes,
                       y_row = y_source_.row<T>() / passes;
    const std::int64_t band = parts_.band, bands = parts_.bands, together = parts_.together,
                       y_rows = parts_.rows_of_y(band);
    const auto units = static_cast<std::int64_t>(units_.size()) / passes;
    const std::int64_t items = parts_.items();
    const double copied = static_cast<double>(g_.x_shape().count() + g_.y_shape().count());
    const double cost = (g_.flops() + kFlopsOfCopy * copied) / static_cast<double>(items);
    parallel_for(
        items, 1 + static_cast<std::int64_t>(2e5 / (cost + 1)), [&](std::int64_t begin, std::int64_t end) {
          const Scratch<T> x_copy(x_source_.in_place ? 0 : together * band * x_row + slack());
          const Scratch<T> y_copy(y_source_.in_place ? 0 : together * y_rows * y_row + slack());
          Dealer& dealer =
              Dealer::of_this_thread(x_source_.images.tensor.bytes() + y_source_.images.tensor.bytes());
          for (std::int64_t k = begin; k < end; ++k) {
            const std::int64_t part = k / passes, pass = k % passes;
            const std::int64_t first = g_.n * bands * part / parts_.count,
                               last = g_.n * bands * (part + 1) / parts_.count;
            for (std::int64_t i = first; i < last; i += together) {
              const std::int64_t n = i / bands, row = i % bands * band;
              const Chunk chunk{0, std::min(together, last - i), row, std::min(band, g_.h.in - row)};
              const std::int64_t y_first = first_of_y(row), y_end = end_of_y(row, chunk.rows);
              const Block<T> block{
                  pixels(x_source_, pass, n, chunk.images, row, row + chunk.rows, x_copy.data()),
                  pixels(y_source_, pass, n, chunk.images, y_first, y_end, y_copy.data()),
                  sums_.data() + part * count_};
              LineList& lines = dealer.begin(static_cast<double>(units));
              const auto ask = [&](std::int64_t of_item, std::int64_t of_pass) {
                const std::int64_t image = of_item / bands, from = of_item % bands * band;
                const std::int64_t rows = std::min(band, g_.h.in - from), of_y = first_of_y(from);
                lines_of_rows<T>(x_source_.images, image, from, rows, lines, groups(x_source_, of_pass));
                lines_of_rows<T>(y_source_.images, image, of_y, end_of_y(from, rows) - of_y, lines,
                                 groups(y_source_, of_pass));
              };
              if (dealer.asks() && bands > 1) {
                if (i + 1 < last) {
                  ask(i + 1, pass);
                } else if (k + 1 < end) {
                  // The same part of the next group, or the next part of the first one.
                  pass + 1 < passes ? ask(first, pass + 1) : ask(last, 0);
                }
              }
              for (std::int64_t u = pass * units; u < (pass + 1) * units; ++u) {
                const Unit& unit = units_[static_cast<std::size_t>(u)];
                add_chunk(block, chunk, panels_[static_cast<std::size_t>(unit.panel)], unit, dealer.deal(1));
              }
            }
          }
        });
  }

  /// What a pass reads.
  GroupRange groups(const PixelSource& source, std::int64_t pass) const {
    return parts_.passes > 1 ? GroupRange{pass, 1, g_.groups} : GroupRange{0, source.apart(), source.apart()};
  }

  /// Images [n, n + images) of a source, of which rows [row, row_end) of the groups of a pass are copied to
  /// `copy` if it is not in place.
  Pixels<T> pixels(const PixelSource& source, std::int64_t pass, std::int64_t n, std::int64_t images,
                   std::int64_t row, std::int64_t row_end, T* copy) const {
    Pixels<T> p = pixels_of<T>(source.images, g_.groups);
    p.data += n * p.image_step;
    if (source.in_place) return p;
    p = source.copied<T>(copy, images, row_end - row);
    const GroupRange copied = groups(source, pass);
    for (std::int64_t k = 0; k < images; ++k) {
      copy_rows(source.images, n + k, row, row_end - row, source.pixel(), copy + k * p.image_step, p, copied);
    }
    p.data -= row * p.h_step + copied.first * p.group_step;
    return p;
  }

  void make_units(std::int64_t unit_rows) {
    const std::int64_t lanes = kernels_.lanes, vectors = width_ / lanes;
    const std::int64_t panels = (vectors + kernels_.max_vectors - 1) / kernels_.max_vectors;
    const std::int64_t all_rows = joined_ ? rows_ * g_.w.kernel : rows_;
    for (std::int64_t g = 0; g < g_.groups; ++g) {
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::int64_t first = vectors * p / panels, last = vectors * (p + 1) / panels;
        for (std::int64_t row = 0; row < all_rows; row += kPanelRows) {
          const std::int64_t rows = std::min(kPanelRows, all_rows - row);
          panels_.push_back({g, first * lanes, last - first, row, rows});
          const std::int64_t parts = (rows + unit_rows - 1) / unit_rows;
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
  void add(const Block<T>& block, std::int64_t images) {
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
                                        add_chunk(block, chunk, panels_[static_cast<std::size_t>(panel)],
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

  void add_chunk(const Block<T>& block, const Chunk& chunk, const LanePanel& panel, const Unit& unit,
                 const micro::Ahead& ahead = {}) const {
    const std::int64_t begin = std::max(chunk.row, g_.h.input_begin(unit.kh));
    const std::int64_t end = std::min(chunk.row + chunk.rows, g_.h.input_end(unit.kh));
    if (begin >= end) return;
    const std::int64_t taps = (panel.group * g_.h.kernel + unit.kh) * g_.w.kernel;
    const auto add_columns = [&](std::int64_t iw, std::int64_t count, std::int64_t kw, std::int64_t row,
                                 std::int64_t rows) {
      if (count == 0 || rows <= 0) return;
      const std::int64_t cx = panel.group * block.x.group_step, cy = panel.group * block.y.group_step;
      const T* x = block.x.data + chunk.image * block.x.image_step + begin * block.x.h_step +
                   iw * block.x.w_step + cx + (lanes_are_x_ ? panel.first : row);
      const T* y = block.y.data + chunk.image * block.y.image_step +
                   g_.h.output(begin, unit.kh) * block.y.h_step + g_.w.output(iw, kw) * block.y.w_step + cy +
                   (lanes_are_x_ ? row : panel.first);
      const std::int64_t x_step[3] = {block.x.image_step, block.x.h_step, block.x.w_step};
      const std::int64_t y_step[3] = {block.y.image_step, g_.h.stride * block.y.h_step,
                                      g_.w.stride * block.y.w_step};
      micro::Outer<T> task{lanes_are_x_ ? y : x,
                           lanes_are_x_ ? x : y,
                           {chunk.images, end - begin, count},
                           {},
                           {},
                           block.sums + ((taps + kw) * rows_ + row) * width_ + panel.first,
                           width_,
                           rows,
                           panel.vectors,
                           0,
                           ahead};
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

  /// w from the sums: parts in order, then [group][tap][row][lane] to [ci][co][tap].
  void write() {
    const std::int64_t taps = g_.h.kernel * g_.w.kernel;
    parallel_for(parts_.count > 1 ? count_ : 0, 1 << 12, [&](std::int64_t begin, std::int64_t end) {
      T* const sums = sums_.data();
      for (std::int64_t part = 1; part < parts_.count; ++part) {
        for (std::int64_t i = begin; i < end; ++i) sums[i] += sums[part * count_ + i];
      }
    });
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

  const ReadRows read_rows_;
  const ConvTranspose2dGeometry& g_ = read_rows_.geometry;
  PixelSource x_source_, y_source_;
  const Tensor& w_;
  const micro::Kernels<T>& kernels_;
  const std::vector<Segment> segments_;
  const bool lanes_are_x_;
  const std::int64_t count_;  // sums
  const SumParts parts_;
  bool joined_ = false;
  std::int64_t rows_ = 0, columns_ = 0, width_ = 0;  // channels of a group; width_: columns_ in whole vectors
  std::vector<LanePanel> panels_;
  std::vector<Unit> units_;
  Scratch<T> sums_;
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
