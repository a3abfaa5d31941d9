// The weight gradient by minimal filtering (winograd.h): for each phase,
//
//   w = weight_adjoint(sum over tiles of input(x) * output_adjoint(y)).
//
// Both tensors are read as channels-last pixels (in place, or copies of a block of images). A unit of work is
// a phase, some channels of the row side and a part of the block's tiles. It goes over these a chunk at a
// time:
//
//   points of both sides   [point][tile][channel]        maps of each tile
//   sums                   [point][group][row][lane]     += rows x tiles times tiles x lanes
//
// where the lanes of vectors are the channels of whichever side wastes fewer of them. Parts have sums of
// their own, which are added in order at the end. How much there is of each depends on the sizes alone.
#include <algorithm>

#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/pixels.h>
#include <tapedeck/ops/conv/winograd.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kBlockBytes = 8 << 20;    // of copied images
constexpr std::int64_t kChunkBytes = 512 << 10;  // of points of a chunk
constexpr std::int64_t kSumBytes = 32 << 20;     // of the sums of all parts, beyond the first
constexpr std::int64_t kUnitRows = 64;
constexpr std::int64_t kUnits = 16;  // so many, or more
constexpr std::int64_t kMostPoints = 16;

template <class T>
class WinogradWeightGrad {
 public:
  WinogradWeightGrad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w)
      : g_(g),
        x_(x),
        y_(y),
        w_(w),
        kernels_(micro::kernels<T>()),
        axis_h_(winograd_phases(g.h, Direction::transposed)),
        axis_w_(winograd_phases(g.w, Direction::transposed)) {
    const std::int64_t cx = g.group_ci(), cy = g.group_co();
    lanes_are_x_ = padded(cx) * cy < padded(cy) * cx;
    rows_ = lanes_are_x_ ? cy : cx;
    columns_ = lanes_are_x_ ? cx : cy;
    width_ = padded(columns_);
    for (const WinogradPhase& h : axis_h_) {
      for (const WinogradPhase& w_phase : axis_w_) {
        for (const WinogradSource& source_h : h.sources) {
          for (const WinogradSource& source_w : w_phase.sources) {
            phases_.push_back({&h, &w_phase, &source_h, &source_w, points_});
            points_ += phases_.back().points();
          }
        }
      }
    }
    if (phases_.empty()) return;  // no tap reaches an output
    sum_ = points_ * g.groups * rows_ * width_;
    unit_rows_ = (rows_ + kUnitRows - 1) / kUnitRows;
    const auto units = static_cast<std::int64_t>(phases_.size()) * g.groups * unit_rows_;
    parts_ = units >= kUnits ? 1 : (kUnits + units - 1) / units;
    parts_ = std::clamp<std::int64_t>(kSumBytes / (sum_ * static_cast<std::int64_t>(sizeof(T))), 1, parts_);
  }

  void run() {
    sums_ = Scratch<T>(parts_ * sum_);
    parallel_for(parts_ * sum_, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      std::fill(sums_.data() + begin, sums_.data() + end, T(0));
    });
    if (phases_.empty()) return write();
    const std::int64_t x_image = x_.count() / g_.n, y_image = y_.count() / g_.n, slack = kernels_.lanes;
    const bool x_in_place = in_place(x_, g_.group_ci()), y_in_place = in_place(y_, g_.group_co());
    const std::int64_t copied = (x_in_place ? 0 : x_image) + (y_in_place ? 0 : y_image);
    const std::int64_t block =
        copied == 0 ? g_.n
                    : std::clamp<std::int64_t>(kBlockBytes / (copied * static_cast<std::int64_t>(sizeof(T))),
                                               1, g_.n);
    const Scratch<T> x_copy(x_in_place ? 0 : block * x_image + slack);
    const Scratch<T> y_copy(y_in_place ? 0 : block * y_image + slack);
    for (std::int64_t begin = 0; begin < g_.n; begin += block) {
      const std::int64_t images = std::min(block, g_.n - begin);
      x_pixels_ = pixels(x_, begin, images, x_in_place, x_copy.data());
      y_pixels_ = pixels(y_, begin, images, y_in_place, y_copy.data());
      add(images);
    }
    write();
  }

 private:
  /// A phase with some of its taps. Its points come `first` after those of others.
  struct Phase {
    const WinogradPhase *h, *w;
    const WinogradSource *source_h, *source_w;
    std::int64_t first;

    std::int64_t points() const { return source_h->points() * source_w->points(); }
  };

  /// Between points; not a power of two, or they would meet in a few lines of the first cache.
  std::int64_t point_step(std::int64_t tiles, std::int64_t depth) const {
    return tiles * depth + kernels_.lanes;
  }
  std::int64_t padded(std::int64_t channels) const {
    return (channels + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
  }
  bool in_place(const Tensor& images, std::int64_t channels) const {
    return images.layout() == Layout::nhwc && channels % kernels_.lanes == 0;
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

  /// Adds the products of a block of images to the sums.
  void add(std::int64_t images) {
    const auto phases = static_cast<std::int64_t>(phases_.size());
    const std::int64_t a_depth = std::min(kUnitRows, padded(rows_)),
                       of_tile = kMostPoints * (a_depth + width_);
    const std::int64_t most =
        std::clamp<std::int64_t>(kChunkBytes / (of_tile * static_cast<std::int64_t>(sizeof(T))), 64, 256);
    parallel_for(parts_ * phases * g_.groups * unit_rows_, 1, [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> a(point_step(most, a_depth) * kMostPoints), b(point_step(most, width_) * kMostPoints),
          zeros(width_ + a_depth);
      std::fill_n(zeros.data(), width_ + a_depth, T(0));
      for (std::int64_t unit = begin; unit < end; ++unit) {
        const std::int64_t row = unit % unit_rows_ * kUnitRows, group = unit / unit_rows_ % g_.groups;
        const Phase& phase = phases_[static_cast<std::size_t>(unit / unit_rows_ / g_.groups % phases)];
        const std::int64_t part = unit / unit_rows_ / g_.groups / phases;
        const std::int64_t tiles = images * phase.h->tiles * phase.w->tiles;
        const std::int64_t last = tiles * (part + 1) / parts_;
        for (std::int64_t tile = tiles * part / parts_; tile < last; tile += most) {
          const Chunk chunk{phase, group, tile, std::min(most, last - tile)};
          const std::int64_t rows = std::min(kUnitRows, rows_ - row), depth = padded(rows);
          map_x(chunk, lanes_are_x_ ? 0 : row, lanes_are_x_ ? width_ : depth, zeros.data(),
                lanes_are_x_ ? b.data() : a.data());
          map_y(chunk, lanes_are_x_ ? row : 0, lanes_are_x_ ? depth : width_, zeros.data(),
                lanes_are_x_ ? a.data() : b.data());
          multiply(chunk, row, rows, depth, a.data(), b.data(), sums_.data() + part * sum_);
        }
      }
    });
  }

  /// Tiles [first, first + count) of a phase in a block.
  struct Chunk {
    const Phase& phase;
    std::int64_t group, first, count;
  };

  template <class F>
  static void for_each_tile(const Chunk& chunk, F f) {
    const std::int64_t wide = chunk.phase.w->tiles, high = chunk.phase.h->tiles;
    for (std::int64_t i = 0; i < chunk.count; ++i) {
      const std::int64_t tile = chunk.first + i;
      f(i, tile / wide / high, tile / wide % high, tile % wide);
    }
  }

  /// The points of x, channels [channel, channel + depth) of the group.
  void map_x(const Chunk& chunk, std::int64_t channel, std::int64_t depth, const T* zeros, T* points) const {
    const WinogradSource &sh = *chunk.phase.source_h, &sw = *chunk.phase.source_w;
    const T* pixels = x_pixels_.data + chunk.group * g_.group_ci() + channel;
    for_each_tile(chunk, [&](std::int64_t i, std::int64_t n, std::int64_t row, std::int64_t column) {
      const T* from[kMostPoints];
      const T** next = from;
      for (std::int64_t v = 0; v < sh.points(); ++v) {
        const std::int64_t h = sh.base + (2 * row + v) * sh.step;
        for (std::int64_t u = 0; u < sw.points(); ++u) {
          const std::int64_t w = sw.base + (2 * column + u) * sw.step;
          *next++ = h >= 0 && h < g_.h.in && w >= 0 && w < g_.w.in ? at(x_pixels_, pixels, n, h, w) : zeros;
        }
      }
      map(micro::WinogradMap::input, chunk, from, depth, points + i * depth);
    });
  }

  /// The points of y, likewise.
  void map_y(const Chunk& chunk, std::int64_t channel, std::int64_t depth, const T* zeros, T* points) const {
    const T* pixels = y_pixels_.data + chunk.group * g_.group_co() + channel;
    for_each_tile(chunk, [&](std::int64_t i, std::int64_t n, std::int64_t row, std::int64_t column) {
      const T* from[4];
      for (std::int64_t k = 0; k < 4; ++k) {
        const std::int64_t h = chunk.phase.h->base + (2 * row + k / 2) * chunk.phase.h->step;
        const std::int64_t w = chunk.phase.w->base + (2 * column + k % 2) * chunk.phase.w->step;
        from[k] = h < g_.h.out && w < g_.w.out ? at(y_pixels_, pixels, n, h, w) : zeros;
      }
      map(micro::WinogradMap::output_adjoint, chunk, from, depth, points + i * depth);
    });
  }

  static const T* at(const Pixels<T>& p, const T* data, std::int64_t n, std::int64_t h, std::int64_t w) {
    return data + n * p.image_step + h * p.h_step + w * p.w_step;
  }

  void map(micro::WinogradMap kind, const Chunk& chunk, const T* const* from, std::int64_t depth,
           T* points) const {
    T* to[kMostPoints];
    for (std::int64_t k = 0; k < chunk.phase.points(); ++k)
      to[k] = points + k * point_step(chunk.count, depth);
    kernels_.winograd(kind, chunk.phase.source_h->count(), chunk.phase.source_w->count(),
                      {from, to, nullptr, depth});
  }

  void multiply(const Chunk& chunk, std::int64_t row, std::int64_t rows, std::int64_t depth, const T* a,
                const T* b, T* sums) const {
    const std::int64_t vectors = width_ / kernels_.lanes;
    const std::int64_t panels = (vectors + kernels_.max_vectors - 1) / kernels_.max_vectors;
    for (std::int64_t k = 0; k < chunk.phase.points(); ++k) {
      T* c = sums + ((chunk.phase.first + k) * g_.groups + chunk.group) * rows_ * width_ + row * width_;
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::int64_t first = vectors * p / panels, last = vectors * (p + 1) / panels;
        const std::int64_t lane = first * kernels_.lanes;
        kernels_.outer({a + k * point_step(chunk.count, depth),
                        b + k * point_step(chunk.count, width_) + lane,
                        {1, 1, chunk.count},
                        {0, 0, depth},
                        {0, 0, width_},
                        c + lane,
                        width_,
                        rows,
                        last - first,
                        0});
      }
    }
  }

  /// w from the sums: parts in order, then weight_adjoint, then [row][tap][lane] to [ci][co][tap].
  void write() {
    const std::int64_t taps = g_.h.kernel * g_.w.kernel;
    const std::int64_t grain = 1 + (1 << 14) / ((points_ + 1) * width_);
    parallel_for(g_.groups * rows_, grain, [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> weights(taps * width_);
      std::fill_n(weights.data(), taps * width_, T(0));  // of taps that reach no output
      for (std::int64_t i = begin; i < end; ++i) {
        for (const Phase& phase : phases_) {
          const T* from[kMostPoints];
          T* to[9];
          for (std::int64_t k = 0; k < phase.points(); ++k) {
            T* sum = sums_.data() + ((phase.first + k) * g_.groups * rows_ + i) * width_;
            for (std::int64_t part = 1; part < parts_; ++part) {
              for (std::int64_t lane = 0; lane < width_; ++lane) sum[lane] += sum[part * sum_ + lane];
            }
            from[k] = sum;
          }
          T** next = to;
          for (std::int64_t kh : phase.source_h->taps) {
            for (std::int64_t kw : phase.source_w->taps) {
              *next++ = weights.data() + (kh * g_.w.kernel + kw) * width_;
            }
          }
          kernels_.winograd(micro::WinogradMap::weight_adjoint, phase.source_h->count(),
                            phase.source_w->count(), {from, to, nullptr, width_});
        }
        const std::int64_t group = i / rows_, row = i % rows_;
        T* to = w_.data<T>() + (lanes_are_x_ ? group * columns_ * rows_ + row : i * columns_) * taps;
        kernels_.transpose(
            {weights.data(), width_, taps, columns_, to, (lanes_are_x_ ? rows_ : 1) * taps, nullptr});
      }
    });
  }

  const ConvTranspose2dGeometry& g_;
  const Tensor &x_, &y_, &w_;
  const micro::Kernels<T>& kernels_;
  const std::vector<WinogradPhase> axis_h_, axis_w_;
  std::vector<Phase> phases_;
  bool lanes_are_x_ = false;
  std::int64_t rows_ = 0, columns_ = 0, width_ = 0;  // channels of a group; width_: columns_ in whole vectors
  std::int64_t points_ = 0, unit_rows_ = 1, parts_ = 1;
  std::int64_t sum_ = 0;  // elements of a part's sums
  Scratch<T> sums_;
  Pixels<T> x_pixels_, y_pixels_;
};

}  // namespace

template <class T>
void winograd_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                          const Tensor& w) {
  WinogradWeightGrad<T>(g, x, y, w).run();
}

template void winograd_weight_grad<float>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                          const Tensor&);

}  // namespace tapedeck::cpu
