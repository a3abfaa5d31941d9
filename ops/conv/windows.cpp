// conv_transpose2d and conv2d: each result pixel's window is a row times packed weights.
//
//   to[n,t,p] = bias[t] + sum over slots s and channels f of from[n,f,p's position of s] * w[s,f,t]
//
// for both directions of a ConvMap. `from` is read as channels-last pixels (in place, or a copy of a block of
// images), so the channels of a position are a stretch of memory and a window is a few such runs; nothing is
// padded, nothing is gathered. A tile of results are pixels with equal slots: neighbours of a phase along w,
// or, where maps are tiny, the same position of several images. The weights are packed once per call (pack.h)
// so that the runs of a window are stretches of a panel too. Results of an nchw tensor go through a block in
// cache and are transposed out.
//
// Work is split over panels, images and rows of results, each of which is computed by one thread in one
// order.
#include <algorithm>

#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/pack.h>
#include <tapedeck/ops/conv/pixels.h>

namespace tapedeck::cpu {

namespace {

template <class T>
class Windows {
 public:
  Windows(const ConvMap& map, const Tensor& from, const Tensor& w, const Tensor& bias, const Tensor& to)
      : map_(map),
        from_(from),
        to_(to),
        kernels_(micro::kernels<T>()),
        packed_(pack<T>(map, lanes_of<T>(map.groups, map.from_channels, map.to_channels), w, bias)),
        planar_(to.layout() == Layout::nchw) {}

  void run() {
    const std::int64_t image = packed_.pixel * from_.size(2) * from_.size(3);
    if (from_.layout() == Layout::nhwc && packed_.pixel == from_.size(1) && !for_lanes()) {
      return results({pixels_of<T>(from_), 0, map_.n, across_images(map_.n)});
    }
    const auto fitting = [&](std::int64_t bytes) {
      return std::clamp<std::int64_t>(bytes / static_cast<std::int64_t>(image * sizeof(T)), 1, map_.n);
    };
    // Best, threads copy a few images each and compute from their own cache. Without enough such parts they
    // copy larger blocks together.
    const std::int64_t own = fitting(kOwnBytes), shared = fitting(kSharedBytes);
    const std::int64_t parts = (map_.n + own - 1) / own;
    const bool across = across_images(shared);
    if (!across && parts >= 4 * num_threads()) {
      parallel_for(parts, 1 + (1 << 14) / (own * image), [&](std::int64_t begin, std::int64_t end) {
        const Scratch<T> copied(own * image);
        for (std::int64_t i = begin; i < end; ++i) {
          results(copy(i * own, std::min(own, map_.n - i * own), across, copied.data()));
        }
      });
      return;
    }
    const Scratch<T> copied(shared * image);
    for (std::int64_t begin = 0; begin < map_.n; begin += shared) {
      results(copy(begin, std::min(shared, map_.n - begin), across, copied.data()));
    }
  }

 private:
  static constexpr std::int64_t kOwnBytes = 384 << 10;   // of copied images, in the cache of a core
  static constexpr std::int64_t kSharedBytes = 4 << 20;  // and of all cores
  static constexpr std::int64_t kItemPixels = 256;       // for which a thread goes through a panel

  /// Whether tiles over images waste less than tiles along rows.
  bool across_images(std::int64_t images) const {
    std::int64_t tiles = 0;
    for (const Segment& s : map_.w.segments) tiles += (s.count + packed_.tile - 1) / packed_.tile;
    return (images + packed_.tile - 1) / packed_.tile * map_.w.to * 10 < tiles * images * 9;
  }

  /// Whether pixels have to be rearranged, since lanes read several channels or several lanes one.
  bool for_lanes() const {
    return packed_.lanes == Lanes::channelwise && map_.from_channels * map_.to_channels > 1;
  }

  /// Images [first, first + count) as pixels to read.
  struct Block {
    Pixels<T> pixels;
    std::int64_t first, images;
    bool across;  // whether tiles go over images
  };

  /// Channels-last copies of images; channelwise ones have the channels that each lane reads, one after the
  /// other. Where tiles go over images, images lie side by side.
  Block copy(std::int64_t first, std::int64_t images, bool across, T* to) const {
    const std::int64_t pixel = packed_.pixel, w_step = across ? images * pixel : pixel;
    const std::int64_t h_step = from_.size(3) * w_step;
    const Pixels<T> pixels{to, across ? pixel : from_.size(2) * h_step, h_step, w_step};
    if (for_lanes()) {
      copy_for_lanes(from_, first, first + images, pixels, map_.from_channels, map_.to_channels, pixel, to);
    } else {
      copy_pixels(from_, first, first + images, pixels, pixel, to);
    }
    return {pixels, first, images, across};
  }

  /// What one thread does at a time: one panel, `images` images, `rows` rows of results.
  struct Item {
    const Panel& panel;
    std::int64_t image, images, row, rows;
  };

  void results(const Block& block) {
    const std::int64_t height = map_.h.to, width = map_.w.to, images = block.images;
    const std::int64_t groups = block.across ? (images + 23) / 24 : images;
    const std::int64_t pixels = width * ((images + groups - 1) / groups);
    const auto panels = static_cast<std::int64_t>(packed_.panels.size());
    // Rows of an item: enough that a panel is worth its way through the cache, few enough for many items.
    std::int64_t rows = std::clamp<std::int64_t>(kItemPixels / pixels, 1, height);
    while (rows > 1 && panels * groups * ((height + rows - 1) / rows) < 16) --rows;
    const std::int64_t bands = (height + rows - 1) / rows;
    const double flops = 2.0 * static_cast<double>(pixels * rows * map_.from_channels * packed_.width) *
                         static_cast<double>(map_.taps() / (map_.h.phases * map_.w.phases) + 1);
    parallel_for(panels * groups * bands, 1 + static_cast<std::int64_t>(2e5 / flops),
                 [&](std::int64_t begin, std::int64_t end) {
                   const Scratch<T> planes(planar_ ? pixels * rows * packed_.width : 0);
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t group = i / bands % groups, row = i % bands * rows;
                     const std::int64_t image = images * group / groups;
                     const Item item{packed_.panels[static_cast<std::size_t>(i / bands / groups)], image,
                                     images * (group + 1) / groups - image, row,
                                     std::min(rows, height - row)};
                     compute(item, block, planes.data());
                   }
                 });
  }

  void compute(const Item& item, const Block& block, T* planes) {
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
    std::vector<micro::Run> runs;
    const bool channelwise = packed_.lanes == Lanes::channelwise;
    const T* from = pixels.data + item.image * pixels.image_step +
                    (channelwise ? p.channel : p.group * map_.from_channels);
    const auto kernel = channelwise                    ? kernels_.products
                        : packed_.lanes == Lanes::thin ? kernels_.dots
                                                       : kernels_.rows;
    for (std::int64_t row = 0; row < item.rows; ++row, out += width * pixel) {
      const Window& h = map_.h.windows[static_cast<std::size_t>(item.row + row)];
      for (const Segment& s : map_.w.segments) {
        set_runs(pixels, h, s.slot, s.slots, p.width, runs);
        task.runs = runs.data();
        task.run_count = static_cast<std::int64_t>(runs.size());
        task.a = from + h.from * pixels.h_step + s.from * pixels.w_step;
        task.c = out + s.to * pixel;
        if (block.across) {
          task.a_step = pixels.image_step;
          task.c_step = image;
          task.rows = item.images;
          for (std::int64_t i = 0; i < s.count; ++i) {
            kernel(task);
            task.a += s.from_step * pixels.w_step;
            task.c += s.to_step * pixel;
          }
        } else {
          task.a_step = s.from_step * pixels.w_step;
          task.c_step = s.to_step * pixel;
          task.rows = s.count;
          kernel(task);
        }
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
  void set_runs(const Pixels<T>& pixels, const Window& h, std::int64_t slot, std::int64_t slots,
                std::int64_t width, std::vector<micro::Run>& runs) const {
    const auto kernel_w = static_cast<std::int64_t>(map_.w.slot_of_tap.size());
    const std::int64_t step = map_.w.slot_step * pixels.w_step, depth = packed_.depth;
    const std::int64_t slot_step = packed_.lanes == Lanes::thin ? depth : depth * width;
    const bool channelwise = packed_.lanes == Lanes::channelwise;
    runs.clear();
    for (std::int64_t i = 0; i < h.slots && slots > 0; ++i) {
      const std::int64_t a = i * map_.h.slot_step * pixels.h_step;
      const std::int64_t b = ((h.slot + i) * kernel_w + slot) * slot_step;
      if (!channelwise && step == depth) {
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
  const Tensor &from_, &to_;
  const micro::Kernels<T>& kernels_;
  const Packed<T> packed_;
  const bool planar_;
};

}  // namespace

template <class T>
void windows(const ConvMap& map, const Tensor& from, const Tensor& w, const Tensor& bias, const Tensor& to) {
  Windows<T>(map, from, w, bias, to).run();
}

template void windows<float>(const ConvMap&, const Tensor&, const Tensor&, const Tensor&, const Tensor&);
template void windows<double>(const ConvMap&, const Tensor&, const Tensor&, const Tensor&, const Tensor&);

}  // namespace tapedeck::cpu
