// The weight gradient by minimal filtering (winograd.h): for each phase,
//
//   w = weight_adjoint(sum over tiles of input(x) * output_adjoint(y)).
//
// Both tensors are read as channels-last pixels (nhwc tensors in place, others copied). A phase is gone over
// a chunk of tiles at a time:
//
//   points of both sides   [point][tile][channel]        maps of each tile
//   sums                   [point][group][row][lane]     += rows x tiles times tiles x lanes
//
// where the lanes of vectors are the channels of whichever side wastes fewer of them, and the other side is
// mapped for some rows at a time.
//
// Where the sums fit the cache of a core, work is split into parts of the images. A part copies a band of
// rows at a time to that cache, goes over all phases there, and has sums of its own, which are added in order
// at the end. Otherwise all threads copy a block of images, and a unit of work is a phase with some rows of
// the sums. How much there is of each depends on the sizes alone.
#include <algorithm>
#include <bit>

#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/pixels.h>
#include <tapedeck/ops/conv/winograd.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kSize = sizeof(float);
constexpr std::int64_t kItemBytes = 384 << 10;   // of pixels that a part copies at a time
constexpr std::int64_t kChunkBytes = 320 << 10;  // of points of a chunk
constexpr std::int64_t kPartSumBytes = 1280 << 10, kAllSumBytes = 12 << 20;  // of parts' sums
constexpr std::int64_t kUnitSumBytes = 1280 << 10;  // of sums that a thread adds to, chunk by chunk
constexpr std::int64_t kParts = 16;
constexpr std::int64_t kRows = 64;  // that are mapped at a time

class WinogradWeightGrad {
 public:
  WinogradWeightGrad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w)
      : g_(g),
        x_(x),
        y_(y),
        w_(w),
        kernels_(micro::kernels<float>()),
        axis_h_(winograd_phases(g.h, Direction::transposed)),
        axis_w_(winograd_phases(g.w, Direction::transposed)),
        x_in_place_(is_in_place(x, g.group_ci(), kernels_.lanes)),
        y_in_place_(is_in_place(y, g.group_co(), kernels_.lanes)) {
    const std::int64_t cx = g.group_ci(), cy = g.group_co();
    lanes_are_x_ = padded(cx) * cy < padded(cy) * cx;
    rows_ = lanes_are_x_ ? cy : cx;
    columns_ = lanes_are_x_ ? cx : cy;
    width_ = padded(columns_);
    for (const WinogradPhase& h : axis_h_) {
      tile_rows_ = std::max(tile_rows_, h.tiles);
      for (const WinogradPhase& w_phase : axis_w_) {
        for (const WinogradSource& source_h : h.sources) {
          for (const WinogradSource& source_w : w_phase.sources) {
            phases_.push_back({&h, &w_phase, &source_h, &source_w, points_});
            points_ += phases_.back().points();
            most_points_ = std::max(most_points_, phases_.back().points());
          }
        }
      }
    }
    sum_ = points_ * g.groups * rows_ * width_;
    depth_ = std::min(kRows, padded(rows_));
    chunk_ = std::clamp<std::int64_t>(kChunkBytes / (kSize * most_points_ * (depth_ + width_)), 64, 256);
    if (!phases_.empty()) choose_parts();
  }

  void run() {
    sums_ = Scratch<float>(parts_ * sum_);
    parallel_for(parts_ * sum_, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      std::fill(sums_.data() + begin, sums_.data() + end, 0.0F);
    });
    if (phases_.empty()) return write();  // no tap reaches an output
    if (parts_ > 1) {
      add_parts();
    } else {
      for_each_block<float>({x_, x_in_place_, 1}, {y_, y_in_place_, 1}, kernels_.lanes, sum_ * kSize,
                            [&](const Pixels<float>& x, const Pixels<float>& y, std::int64_t images) {
                              add_block({x, y, images, 0, tile_rows_});
                            });
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

  /// Rows of tiles [row, row + rows) of some images. Rows of pixels count from the top of an image.
  struct Block {
    Pixels<float> x, y;
    std::int64_t images, row, rows;
  };
  std::int64_t tile_rows(const Phase& phase, const Block& block) const {
    return std::clamp<std::int64_t>(phase.h->tiles - block.row, 0, block.rows);
  }
  std::int64_t tiles(const Phase& phase, const Block& block) const {
    return block.images * tile_rows(phase, block) * phase.w->tiles;
  }

  /// The working memory of a thread: points of the rows' side and of the lanes', and zeros.
  struct Memory {
    explicit Memory(const WinogradWeightGrad& w)
        : a(w.point_step(w.chunk_, w.depth_) * w.most_points_),
          b(w.point_step(w.chunk_, w.width_) * w.most_points_),
          zeros(std::max(w.depth_, w.width_)) {
      std::fill_n(zeros.data(), std::max(w.depth_, w.width_), 0.0F);
    }
    const Scratch<float> a, b, zeros;
  };

  /// Between points; not a power of two, or they would meet in a few lines of the first cache.
  std::int64_t point_step(std::int64_t tiles, std::int64_t depth) const {
    return tiles * depth + kernels_.lanes;
  }
  std::int64_t padded(std::int64_t channels) const {
    return (channels + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
  }

  /// How many parts there are, and the items of a part: bands of rows, or several images.
  void choose_parts() {
    const std::int64_t x_row = g_.ci * g_.w.in, y_row = g_.co * g_.w.out;
    const auto bytes = [&](std::int64_t rows) {
      return kSize * (winograd_most_reads(axis_h_, g_.h.in, rows) * x_row +
                      winograd_writes(axis_h_, g_.h.out, 0, rows).size() * y_row);
    };
    band_ = tile_rows_;
    while (band_ > 1 && bytes(band_) > kItemBytes) band_ = (band_ + 1) / 2;
    bands_ = (tile_rows_ + band_ - 1) / band_;
    images_ = bands_ > 1 ? 1 : std::clamp<std::int64_t>(kItemBytes / bytes(band_), 1, g_.n);
    const std::int64_t items = bands_ > 1 ? g_.n * bands_ : (g_.n + images_ - 1) / images_;
    const std::int64_t most = std::min({kParts, items, kAllSumBytes / (sum_ * kSize)});
    const bool fits = sum_ * kSize <= kPartSumBytes && bytes(band_) <= 2 * kItemBytes;
    parts_ = fits && most >= kParts / 2
                 ? static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most)))
                 : 1;
  }

  struct Item {
    std::int64_t image, images, row, rows;
    RowRange x, y;  // rows of pixels
  };
  Item item(std::int64_t i) const {
    Item item{i / bands_ * images_, 0, i % bands_ * band_, 0, {}, {}};
    item.images = std::min(images_, g_.n - item.image);
    item.rows = std::min(band_, tile_rows_ - item.row);
    item.x = winograd_reads(axis_h_, g_.h.in, item.row, item.rows);
    item.y = winograd_writes(axis_h_, g_.h.out, item.row, item.rows);
    return item;
  }

  void add_parts() {
    const std::int64_t items = (g_.n + images_ - 1) / images_ * bands_;
    const std::int64_t x_row = g_.ci * g_.w.in, y_row = g_.co * g_.w.out, slack = kernels_.lanes;
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t x_rows = winograd_most_reads(axis_h_, g_.h.in, band_);
      const std::int64_t y_rows = winograd_writes(axis_h_, g_.h.out, 0, band_).size();
      const Scratch<float> x_copy(x_in_place_ ? 0 : images_ * x_rows * x_row + slack);
      const Scratch<float> y_copy(y_in_place_ ? 0 : images_ * y_rows * y_row + slack);
      const Memory memory(*this);
      Dealer& dealer = Dealer::of_this_thread(x_.bytes() + y_.bytes());
      RowRange copied;  // rows of x of the item before
      for (std::int64_t part = begin; part < end; ++part) {
        for (std::int64_t i = items * part / parts_; i < items * (part + 1) / parts_; ++i) {
          const Item now = item(i);
          Block block{pixels_of<float>(x_), pixels_of<float>(y_), now.images, now.row, now.rows};
          block.x.data += now.image * block.x.image_step;
          block.y.data += now.image * block.y.image_step;
          if (!x_in_place_) {
            if (now.row == 0) copied = {};
            copy_bands(x_, now.image, now.images, now.x, copied, x_copy.data());
            copied = now.x;
            block.x.image_step = now.x.size() * x_row;
            block.x.data = x_copy.data() - now.x.begin * x_row;
          }
          if (!y_in_place_) {
            copy_bands(y_, now.image, now.images, now.y, {}, y_copy.data());
            block.y.image_step = now.y.size() * y_row;
            block.y.data = y_copy.data() - now.y.begin * y_row;
          }
          double work = 0;
          for (const Phase& phase : phases_)
            work += static_cast<double>(tiles(phase, block) * phase.points());
          LineList& lines = dealer.begin(work * static_cast<double>(g_.groups));
          if (dealer.asks() && i + 1 < items * end / parts_) {
            const Item next = item(i + 1);
            const std::int64_t known =
                next.row == 0 ? 0 : std::max<std::int64_t>(0, now.x.end - next.x.begin);
            for (std::int64_t n = next.image; n < next.image + next.images; ++n) {
              if (!x_in_place_)
                lines_of_rows<float>(x_, n, next.x.begin + known, next.x.size() - known, lines);
              if (!y_in_place_) lines_of_rows<float>(y_, n, next.y.begin, next.y.size(), lines);
            }
          }
          for (const Phase& phase : phases_) {
            for (std::int64_t group = 0; group < g_.groups; ++group) {
              add(block, phase, group, 0, rows_, memory, sums_.data() + part * sum_, &dealer);
            }
          }
        }
      }
    });
  }

  /// Adds the products of a block of images to the sums. A thread maps the lanes' side once for all rows of a
  /// phase that are its own, as far as caches hold their sums.
  void add_block(const Block& block) {
    const std::int64_t parts = (rows_ + kRows - 1) / kRows;  // of the rows of a phase and group
    const std::int64_t units = static_cast<std::int64_t>(phases_.size()) * g_.groups * parts;
    const std::int64_t together =
        std::max<std::int64_t>(1, kUnitSumBytes / (kSize * most_points_ * kRows * width_));
    parallel_for(units, 1, [&](std::int64_t begin, std::int64_t end) {
      const Memory memory(*this);
      for (std::int64_t unit = begin, next = unit; unit < end; unit = next) {
        const std::int64_t which = unit / parts;
        next = std::min({end, (which + 1) * parts, unit + together});
        add(block, phases_[static_cast<std::size_t>(which / g_.groups)], which % g_.groups,
            unit % parts * kRows, std::min(rows_, (next - which * parts) * kRows), memory, sums_.data(),
            nullptr);
      }
    });
  }

  /// Tiles [first, first + count) of a phase in a block.
  struct Chunk {
    const Block& block;
    const Phase& phase;
    std::int64_t group, first, count;
  };

  /// Adds the products of a phase to rows [row, end) of a group's sums.
  void add(const Block& block, const Phase& phase, std::int64_t group, std::int64_t row, std::int64_t end,
           const Memory& memory, float* sums, Dealer* dealer) const {
    const std::int64_t all = tiles(phase, block);
    for (std::int64_t tile = 0; tile < all; tile += chunk_) {
      const Chunk chunk{block, phase, group, tile, std::min(chunk_, all - tile)};
      if (lanes_are_x_) {
        map_x(chunk, 0, width_, memory.zeros.data(), memory.b.data());
      } else {
        map_y(chunk, 0, width_, memory.zeros.data(), memory.b.data());
      }
      for (std::int64_t first = row; first < end; first += kRows) {
        const std::int64_t rows = std::min(kRows, end - first), depth = padded(rows);
        if (lanes_are_x_) {
          map_y(chunk, first, depth, memory.zeros.data(), memory.a.data());
        } else {
          map_x(chunk, first, depth, memory.zeros.data(), memory.a.data());
        }
        multiply(chunk, first, rows, depth, memory, sums, dealer);
      }
    }
  }

  WinogradTileRange range(const Chunk& chunk) const {
    return {chunk.first, chunk.count, chunk.block.row, tile_rows(chunk.phase, chunk.block),
            chunk.phase.w->tiles};
  }

  /// The points of x, channels [channel, channel + depth) of the group.
  void map_x(const Chunk& chunk, std::int64_t channel, std::int64_t depth, const float* zeros,
             float* points) const {
    const WinogradSource &sh = *chunk.phase.source_h, &sw = *chunk.phase.source_w;
    const Pixels<float>& x = chunk.block.x;
    const float* pixels = x.data + chunk.group * g_.group_ci() + channel;
    const RowRange inside_h = winograd_inside(sh.base, sh.step, sh.points(), g_.h.in),
                   inside_w = winograd_inside(sw.base, sw.step, sw.points(), g_.w.in);
    for_each_stretch(
        range(chunk), inside_h, inside_w,
        [&](std::int64_t i, std::int64_t n, std::int64_t row, std::int64_t column, std::int64_t tiles) {
          const float* from[kMostPoints];
          const float** next = from;
          for (std::int64_t v = 0; v < sh.points(); ++v) {
            const std::int64_t h = sh.base + (2 * row + v) * sh.step;
            const bool inside = h >= 0 && h < g_.h.in;
            const float* line = pixels + n * x.image_step + h * x.h_step;
            for (std::int64_t u = 0; u < sw.points(); ++u) {
              const std::int64_t w = sw.base + (2 * column + u) * sw.step;
              *next++ = inside && w >= 0 && w < g_.w.in ? line + w * x.w_step : zeros;
            }
          }
          map(micro::WinogradMap::input, chunk,
              {from, nullptr, nullptr, depth, tiles, 2 * sw.step * x.w_step, depth}, points + i * depth);
        });
  }

  /// The points of y, likewise.
  void map_y(const Chunk& chunk, std::int64_t channel, std::int64_t depth, const float* zeros,
             float* points) const {
    const WinogradPhase &ph = *chunk.phase.h, &pw = *chunk.phase.w;
    const Pixels<float>& y = chunk.block.y;
    const float* pixels = y.data + chunk.group * g_.group_co() + channel;
    const RowRange inside_h = winograd_inside(ph.base, ph.step, 2, g_.h.out),
                   inside_w = winograd_inside(pw.base, pw.step, 2, g_.w.out);
    for_each_stretch(
        range(chunk), inside_h, inside_w,
        [&](std::int64_t i, std::int64_t n, std::int64_t row, std::int64_t column, std::int64_t tiles) {
          const float* from[4];
          for (std::int64_t k = 0; k < 4; ++k) {
            const std::int64_t h = ph.base + (2 * row + k / 2) * ph.step;
            const std::int64_t w = pw.base + (2 * column + k % 2) * pw.step;
            from[k] = h < g_.h.out && w < g_.w.out ? pixels + n * y.image_step + h * y.h_step + w * y.w_step
                                                   : zeros;
          }
          map(micro::WinogradMap::output_adjoint, chunk,
              {from, nullptr, nullptr, depth, tiles, 2 * pw.step * y.w_step, depth}, points + i * depth);
        });
  }

  /// `tiles.to` is set here.
  void map(micro::WinogradMap kind, const Chunk& chunk, micro::WinogradTiles<float> tiles,
           float* points) const {
    float* to[kMostPoints];
    const std::int64_t step = point_step(chunk.count, tiles.count);
    for (std::int64_t k = 0; k < chunk.phase.points(); ++k) to[k] = points + k * step;
    tiles.to = to;
    kernels_.winograd(kind, chunk.phase.source_h->count(), chunk.phase.source_w->count(), tiles);
  }

  void multiply(const Chunk& chunk, std::int64_t row, std::int64_t rows, std::int64_t depth,
                const Memory& memory, float* sums, Dealer* dealer) const {
    const std::int64_t vectors = width_ / kernels_.lanes;
    const std::int64_t panels = (vectors + kernels_.max_vectors - 1) / kernels_.max_vectors;
    for (std::int64_t k = 0; k < chunk.phase.points(); ++k) {
      float* c = sums + (((chunk.phase.first + k) * g_.groups + chunk.group) * rows_ + row) * width_;
      for (std::int64_t p = 0; p < panels; ++p) {
        const std::int64_t first = vectors * p / panels, last = vectors * (p + 1) / panels;
        const std::int64_t lane = first * kernels_.lanes;
        const double share =
            static_cast<double>(rows * (last - first)) / static_cast<double>(rows_ * vectors);
        kernels_.outer(
            {memory.a.data() + k * point_step(chunk.count, depth),
             memory.b.data() + k * point_step(chunk.count, width_) + lane,
             {1, 1, chunk.count},
             {0, 0, depth},
             {0, 0, width_},
             c + lane,
             width_,
             rows,
             last - first,
             0,
             dealer == nullptr ? micro::Ahead{} : dealer->deal(static_cast<double>(chunk.count) * share)});
      }
    }
  }

  /// w from the sums: parts in order, then weight_adjoint, then [row][tap][lane] to [ci][co][tap].
  void write() {
    const std::int64_t taps = g_.h.kernel * g_.w.kernel;
    const std::int64_t grain = 1 + (1 << 14) / ((points_ + 1) * width_);
    parallel_for(g_.groups * rows_, grain, [&](std::int64_t begin, std::int64_t end) {
      const Scratch<float> weights(taps * width_);
      std::fill_n(weights.data(), taps * width_, 0.0F);  // of taps that reach no output
      for (std::int64_t i = begin; i < end; ++i) {
        for (const Phase& phase : phases_) {
          const float* from[kMostPoints];
          float* to[kMostTaps * kMostTaps];
          for (std::int64_t k = 0; k < phase.points(); ++k) {
            float* sum = sums_.data() + ((phase.first + k) * g_.groups * rows_ + i) * width_;
            for (std::int64_t part = 1; part < parts_; ++part) {
              for (std::int64_t lane = 0; lane < width_; ++lane) sum[lane] += sum[part * sum_ + lane];
            }
            from[k] = sum;
          }
          float** next = to;
          for (std::int64_t kh : phase.source_h->taps) {
            for (std::int64_t kw : phase.source_w->taps) {
              *next++ = weights.data() + (kh * g_.w.kernel + kw) * width_;
            }
          }
          kernels_.winograd(micro::WinogradMap::weight_adjoint, phase.source_h->count(),
                            phase.source_w->count(), {from, to, nullptr, width_});
        }
        const std::int64_t group = i / rows_, row = i % rows_;
        float* to = w_.data<float>() + (lanes_are_x_ ? group * columns_ * rows_ + row : i * columns_) * taps;
        kernels_.transpose(
            {weights.data(), width_, taps, columns_, to, (lanes_are_x_ ? rows_ : 1) * taps, nullptr});
      }
    });
  }

  const ConvTranspose2dGeometry& g_;
  const Tensor &x_, &y_, &w_;
  const micro::Kernels<float>& kernels_;
  const std::vector<WinogradPhase> axis_h_, axis_w_;
  const bool x_in_place_, y_in_place_;
  std::vector<Phase> phases_;
  bool lanes_are_x_ = false;
  std::int64_t rows_ = 0, columns_ = 0, width_ = 0;  // channels of a group; width_: columns_ in whole vectors
  std::int64_t points_ = 0, most_points_ = 1, tile_rows_ = 0;
  std::int64_t sum_ = 0;                // elements of a part's sums
  std::int64_t depth_ = 0, chunk_ = 1;  // rows and tiles that are mapped at a time
  std::int64_t parts_ = 1, images_ = 1, band_ = 1, bands_ = 1;
  Scratch<float> sums_;
};

}  // namespace

void winograd_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                          const Tensor& w) {
  WinogradWeightGrad(g, x, y, w).run();
}

}  // namespace tapedeck::cpu
