// conv_transpose2d and conv2d: each result pixel's window is a row times packed weights.
//
//   to[n,t,p] = bias[t] + sum over slots s and channels f of from[n,f,p's position of s] * w[s,f,t]
//
// for both directions of a ConvMap. `from` is read as channels-last pixels (in place, or a copy of a block of
// images), so the channels of a position are a stretch of memory and a window is a few such runs; nothing is
// padded, nothing is gathered. A tile of results are pixels with equal slots: neighbours of a phase along w,
// or, where maps are tiny, the same position of several images. The weights are packed (pack.h) so that the
// runs of a window are stretches of a panel too. Results of an nchw tensor go through a block in cache and
// are transposed out.
//
// Work is split over panels, images and rows of results, each of which is computed by one thread in one
// order.
#include <algorithm>

#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/pack.h>
#include <tapedeck/ops/conv/pixels.h>

namespace tapedeck::cpu {

namespace {

template <class T>
class Windows {
 public:
  Windows(const ConvMap& map, Lanes lanes, const Images& from, const Tensor& w, const Tensor& bias,
          const Tensor& to, double negative_slope)
      : map_(map),
        from_(from),
        to_(to),
        kernels_(micro::kernels<T>()),
        packed_(pack<T>(map, lanes, w, bias)),
        groups_(packed_.depth > map.from_channels ? map.groups
                : lanes == Lanes::channelwise     ? 1
                                                  : groups_apart(map.groups, from.tensor.size(1))),
        pixel_(packed_.pixel / groups_),
        planar_(to.layout() == Layout::nchw),
        negative_slope_(static_cast<T>(negative_slope)) {}

  void run() {
    if (from_.tensor.layout() == Layout::nhwc && packed_.pixel == from_.tensor.size(1) && !for_lanes()) {
      return results(
          {pixels_of<T>(from_, map_.groups), 0, map_.n, 0, map_.h.to, across_images(map_.n), false}, nullptr);
    }
    // Best, threads copy some rows of a few images each and compute from their own cache. Without enough such
    // parts they copy larger blocks together.
    choose_part();
    if (parts_ >= 4 * num_threads() && (bands_ == 1 || !across_)) return run_parts();
    const Scratch<T> copied(shared_ * from_.rows * from_.width() * packed_.pixel);
    for (std::int64_t begin = 0; begin < map_.n; begin += shared_) {
      results(copy(begin, std::min(shared_, map_.n - begin), copied.data()), nullptr);
    }
  }

 private:
  static constexpr std::int64_t kSharedBytes = 4 << 20;  // of copied rows, in the caches of all cores
  static constexpr std::int64_t kItemPixels = 256;       // for which a thread goes through a panel
  // Where tiles go over images, an item has few of them, but several rows that are transposed together.
  static constexpr std::int64_t kItemPixelsAcross = 1024;

  std::int64_t tiles(std::int64_t results) const { return (results + packed_.tile - 1) / packed_.tile; }

  /// Whether tiles over images waste less than tiles along rows or columns.
  bool across_images(std::int64_t images) const {
    std::int64_t along = 0;
    for (const Segment& h : map_.h.segments) {
      for (const Segment& w : map_.w.segments) {
        along += std::min(h.count * tiles(w.count), w.count * tiles(h.count));
      }
    }
    return tiles(images) * map_.h.to * map_.w.to * 10 < along * images * 9;
  }

  /// Whether pixels have to be rearranged, since lanes read several channels or several lanes one.
  bool for_lanes() const {
    return packed_.lanes == Lanes::channelwise && map_.from_channels * map_.to_channels > 1;
  }

  /// Rows [row, row + rows) of the results of images [first, first + images), and the pixels that they read.
  struct Block {
    Pixels<T> pixels;
    std::int64_t first, images, row, rows;
    bool across;    // whether tiles go over images
    bool is_apart;  // whether neighbouring pixels are, by the number of images, on which no sum may depend
  };

  /// The rows that rows [row, row + rows) of results read.
  RowRange reads(std::int64_t row, std::int64_t rows) const {
    RowRange range{from_.rows, 0};
    for (std::int64_t i = row; i < row + rows; ++i) {
      const Window& w = map_.h.windows[static_cast<std::size_t>(i)];
      if (w.slots == 0) continue;
      const std::int64_t last = w.from + (w.slots - 1) * map_.h.slot_step;
      range = {std::min({range.begin, w.from, last}), std::max({range.end, w.from + 1, last + 1})};
    }
    return range.end == 0 ? RowRange{} : range;
  }
  std::int64_t bytes_of(const RowRange& rows) const {
    return std::max<std::int64_t>(
        1, rows.size() * from_.width() * packed_.pixel * static_cast<std::int64_t>(sizeof(T)));
  }

  /// How images are copied: for run_parts(), bands of rows of results or several images. Whether tiles go
  /// over images, which sums may depend on, is a matter of sizes alone.
  void choose_part() {
    const std::int64_t height = map_.h.to;
    const auto bytes = [&](std::int64_t band) {  // a band in the middle reads most
      const std::int64_t row = std::min(height - band, height / 2);
      return bytes_of(reads(row, band));
    };
    band_ = for_lanes() ? height : band_of(height, map_.h.phases, kWindowBytes, bytes);
    bands_ = (height + band_ - 1) / band_;
    images_ = bands_ > 1 ? 1 : std::clamp<std::int64_t>(kWindowBytes / bytes(band_), 1, map_.n);
    const std::int64_t threads = num_threads();
    shared_ = std::clamp<std::int64_t>(kSharedBytes / bytes_of({0, from_.rows}), 1, map_.n);
    across_ = across_images(shared_);
    if (across_ && bands_ == 1) {
      // About whole tiles of images, whose results stay in the cache, too, for enough parts.
      const std::int64_t written =
          height * map_.w.to * map_.groups * map_.to_channels * static_cast<std::int64_t>(sizeof(T));
      const std::int64_t most = std::min(kWindowBytes / (bytes(height) + written), map_.n / (4 * threads));
      images_ = std::min(map_.n, std::max<std::int64_t>(1, most / packed_.tile) * packed_.tile);
    }
    blocks_ = (map_.n + images_ - 1) / images_;
    if (blocks_ * bands_ > threads && bands_ == 1) {  // as many for each thread
      blocks_ = std::min(map_.n, (blocks_ + threads - 1) / threads * threads);
      images_ = (map_.n + blocks_ - 1) / blocks_;
    }
    parts_ = blocks_ * bands_;
  }

  void run_parts() {
    struct Part {
      std::int64_t first, images, row, rows;
      RowRange read;
    };
    const auto part = [&](std::int64_t i) {
      const std::int64_t block = i / bands_;
      Part p{map_.n * block / blocks_, 0, i % bands_ * band_, 0, {}};
      p.images = map_.n * (block + 1) / blocks_ - p.first;
      p.rows = std::min(band_, map_.h.to - p.row);
      p.read = bands_ == 1 ? RowRange{0, from_.rows} : reads(p.row, p.rows);
      return p;
    };
    std::int64_t most = 0;
    for (std::int64_t i = 0; i < bands_; ++i) most = std::max(most, part(i).read.size());
    const std::int64_t line = from_.width() * packed_.pixel;
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> memory(images_ * most * line);
      Dealer& dealer = Dealer::of_this_thread(from_.tensor.bytes() + to_.bytes());
      for (std::int64_t i = begin; i < end; ++i) {
        const Part now = part(i);
        Block block;
        if (for_lanes() || across_) {
          block = copy(now.first, now.images, memory.data());
        } else {
          Pixels<T> pixels = copied_pixels<T>(memory.data(), now.images, now.read.size(), from_.width(),
                                              pixel_, packed_.depth, pixel_);
          for (std::int64_t n = 0; n < now.images; ++n) {
            copy_rows(from_, now.first + n, now.read.begin, now.read.size(), pixel_,
                      memory.data() + n * pixels.image_step, pixels, {0, groups_, groups_});
          }
          pixels.data -= now.read.begin * pixels.h_step;
          block = {pixels, now.first, now.images, now.row, now.rows, false, false};
        }
        const auto work =
            static_cast<double>(packed_.panels.size()) * static_cast<double>(now.images * now.rows);
        LineList& lines = dealer.begin(work);
        if (packed_.lanes == Lanes::wide && dealer.asks()) {  // what is written, and what is read next
          for (std::int64_t n = now.first; n < now.first + now.images; ++n) {
            lines_of_rows<T>(to_, n, now.row, now.rows, lines);
          }
          const Part next = part(std::min(i + 1, parts_ - 1));
          for (std::int64_t n = next.first; i + 1 < end && n < next.first + next.images; ++n) {
            lines_of_rows<T>(from_, n, next.read.begin, next.read.size(), lines);
          }
        }
        results(block, &dealer);
      }
    });
  }

  /// Channels-last copies of images; channelwise ones have the channels that each lane reads, one after the
  /// other. Where tiles go over images, images lie side by side.
  Block copy(std::int64_t first, std::int64_t images, T* to) const {
    Pixels<T> pixels = copied_pixels<T>(to, images, from_.rows, from_.width(), pixel_, packed_.depth, pixel_);
    if (across_) {
      pixels.image_step = pixel_;
      pixels.h_step *= images;
      pixels.w_step *= images;
    }
    if (for_lanes()) {
      copy_for_lanes(from_, first, first + images, pixels, map_.from_channels, map_.to_channels, pixel_, to);
    } else {
      copy_pixels(from_, first, first + images, pixels, pixel_, to, groups_);
    }
    return {pixels, first, images, 0, map_.h.to, across_, across_};
  }

  /// What one thread does at a time: one panel, `images` images, `rows` rows of results.
  struct Item {
    const Panel& panel;
    std::int64_t image, images, row, rows;
  };

  void results(const Block& block, Dealer* dealer) {
    const std::int64_t height = block.rows, width = map_.w.to, images = block.images;
    const std::int64_t groups = block.across ? (tiles(images) + 1) / 2 : images;
    const std::int64_t pixels = width * ((images + groups - 1) / groups);
    const auto panels = static_cast<std::int64_t>(packed_.panels.size());
    // Rows of an item: enough that a panel is worth its way through the cache, and few enough to share.
    std::int64_t rows =
        std::clamp<std::int64_t>((block.across ? kItemPixelsAcross : kItemPixels) / pixels, 1, height);
    while (dealer == nullptr && rows > 1 && panels * groups * ((height + rows - 1) / rows) < 16) --rows;
    const std::int64_t bands = (height + rows - 1) / rows;
    const double flops = 2.0 * static_cast<double>(pixels * rows * map_.from_channels * packed_.width) *
                         static_cast<double>(map_.taps() / (map_.h.phases * map_.w.phases) + 1);
    const auto items = [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> planes(planar_ ? pixels * rows * packed_.width : 0);
      std::vector<micro::Run> runs;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t group = i / bands % groups, row = i % bands * rows;
        const std::int64_t image = images * group / groups;
        const Item item{packed_.panels[static_cast<std::size_t>(i / bands / groups)], image,
                        images * (group + 1) / groups - image, block.row + row, std::min(rows, height - row)};
        compute(item, block, planes.data(), runs, dealer);
      }
    };
    const std::int64_t count = panels * groups * bands;
    if (dealer != nullptr) return items(0, count);
    parallel_for(count, 1 + static_cast<std::int64_t>(2e5 / flops), items);
  }

  void compute(const Item& item, const Block& block, T* planes, std::vector<micro::Run>& runs,
               Dealer* dealer) {
    const Panel& p = item.panel;
    const std::int64_t channels = map_.groups * map_.to_channels, height = map_.h.to, width = map_.w.to;
    const std::int64_t first_channel = p.group * map_.to_channels + p.channel;
    // Where results go: planes, [image][row][w][p.width], or the nhwc tensor itself.
    const std::int64_t pixel = planar_ ? p.width : channels;
    const std::int64_t image = planar_ ? item.rows * width * pixel : height * width * pixel;
    T* to = to_.data<T>() + (block.first + item.image) * height * width * channels;
    T* out = planar_ ? planes : to + item.row * width * pixel + first_channel;

    const Pixels<T>& pixels = block.pixels;
    micro::Rows<T> task{};
    task.panel = packed_.weights.data() + p.offset;
    task.panel_step = map_.taps() * packed_.depth;
    task.start = packed_.has_start ? packed_.start.data() + first_channel : nullptr;
    task.columns = p.columns;
    const bool channelwise = packed_.lanes == Lanes::channelwise;
    const T* from = pixels.data + item.image * pixels.image_step +
                    (channelwise ? p.channel : p.group * pixels.group_step);
    const auto kernel = channelwise                    ? kernels_.products
                        : packed_.lanes == Lanes::thin ? kernels_.dots
                                                       : kernels_.rows;
    // A task is a row of tiles: along w, along h where that takes fewer tiles, or over images.
    for (const Segment& h : map_.h.segments) {
      // Its results begin..end are those of the item.
      const std::int64_t begin = std::max<std::int64_t>(0, (item.row - h.to + h.to_step - 1) / h.to_step);
      const std::int64_t end = std::min(h.count, (item.row + item.rows - h.to + h.to_step - 1) / h.to_step);
      if (begin >= end) continue;
      const T* const read = from + (h.from + begin * h.from_step) * pixels.h_step;
      T* const written = out + (h.to + begin * h.to_step - item.row) * width * pixel;
      struct Step {
        std::int64_t count, a, c;
      };
      const Step down{end - begin, h.from_step * pixels.h_step, h.to_step * width * pixel};
      for (const Segment& s : map_.w.segments) {
        set_runs(block, h.slot, h.slots, s.slot, s.slots, p.width, runs);
        task.runs = runs.data();
        task.run_count = static_cast<std::int64_t>(runs.size());
        const Step right{s.count, s.from_step * pixels.w_step, s.to_step * pixel};
        const auto compute_all = [&](const Step& together, const Step& outer, const Step& inner) {
          task.rows = together.count;
          task.a_step = together.a;
          task.c_step = together.c;
          for (std::int64_t i = 0; i < outer.count; ++i) {
            for (std::int64_t k = 0; k < inner.count; ++k) {
              task.a = read + s.from * pixels.w_step + i * outer.a + k * inner.a;
              task.c = written + s.to * pixel + i * outer.c + k * inner.c;
              if (dealer != nullptr) {
                task.ahead = dealer->deal(static_cast<double>(together.count) / static_cast<double>(width));
              }
              kernel(task);
            }
          }
        };
        constexpr Step kOne{1, 0, 0};
        if (block.across) {
          compute_all({item.images, pixels.image_step, image}, down, right);
        } else if (right.count * tiles(down.count) < down.count * tiles(right.count)) {
          compute_all(down, kOne, right);
        } else {
          compute_all(right, down, kOne);
        }
      }
    }
    if (negative_slope_ != 1) {
      for (std::int64_t n = 0; n < item.images; ++n) {
        kernels_.rectify({out + n * image, item.rows * width, p.columns, pixel, negative_slope_});
      }
    }
    if (!planar_) return;
    to += first_channel * height * width + item.row * width;
    for (std::int64_t n = 0; n < item.images; ++n) {
      kernels_.transpose({planes + n * image, pixel, item.rows * width, p.columns,
                          to + n * channels * height * width, height * width, nullptr});
    }
  }

  /// The runs of a window: one for each row of taps if its channels follow each other, else one a tap, or one
  /// for each channel of a tap that lanes read.
  void set_runs(const Block& block, std::int64_t row_slot, std::int64_t row_slots, std::int64_t slot,
                std::int64_t slots, std::int64_t width, std::vector<micro::Run>& runs) const {
    const auto kernel_w = static_cast<std::int64_t>(map_.w.slot_of_tap.size());
    const Pixels<T>& pixels = block.pixels;
    const std::int64_t step = map_.w.slot_step * pixels.w_step, depth = packed_.depth;
    const std::int64_t slot_step = packed_.lanes == Lanes::thin ? depth : depth * width;
    const bool channelwise = packed_.lanes == Lanes::channelwise;
    runs.clear();
    for (std::int64_t i = 0; i < row_slots && slots > 0; ++i) {
      const std::int64_t a = i * map_.h.slot_step * pixels.h_step;
      const std::int64_t b = ((row_slot + i) * kernel_w + slot) * slot_step;
      if (!channelwise && step == depth && !block.is_apart) {
        runs.push_back({a, b, slots * depth});
        continue;
      }
      for (std::int64_t j = 0; j < slots; ++j) {
        if (!channelwise) runs.push_back({a + j * step, b + j * slot_step, depth});
        for (std::int64_t f = 0; channelwise && f < depth; ++f) {
          runs.push_back({a + j * step + f * (packed_.pixel / depth), b + j * slot_step + f * width, 1});
        }
      }
    }
  }

  const ConvMap& map_;
  const Images& from_;
  const Tensor& to_;
  const micro::Kernels<T>& kernels_;
  const Packed<T> packed_;
  const std::int64_t groups_, pixel_;  // that are copied apart, and elements of a pixel of one
  const bool planar_;
  const T negative_slope_;
  std::int64_t band_ = 1, bands_ = 1, images_ = 1, blocks_ = 1, parts_ = 1;  // blocks of images
  std::int64_t shared_ = 1;  // images that are copied together, without parts
  bool across_ = false;      // whether copies lie side by side, and tiles go over images
};

}  // namespace

template <class T>
void windows(const ConvTranspose2dGeometry& g, Direction direction, Lanes lanes, const Tensor& from,
             const Tensor& w, const Tensor& bias, const Tensor& to, double negative_slope) {
  if (direction == Direction::transposed) {
    return Windows<T>(ConvMap(g, direction), lanes, from, w, bias, to, negative_slope).run();
  }
  const ReadRows read(g);
  Windows<T>(ConvMap(read.geometry, direction), lanes, {from, read}, w, bias, to, negative_slope).run();
}

template void windows<float>(const ConvTranspose2dGeometry&, Direction, Lanes, const Tensor&, const Tensor&,
                             const Tensor&, const Tensor&, double);
template void windows<double>(const ConvTranspose2dGeometry&, Direction, Lanes, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, double);

}  // namespace tapedeck::cpu
