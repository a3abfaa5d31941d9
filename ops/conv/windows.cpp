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
        packed_(pack<T>(map, w, bias)),
        planar_(to.layout() == Layout::nchw) {}

  void run() {
    const std::int64_t channels = packed_.pixel;
    const bool in_place = from_.layout() == Layout::nhwc && channels == from_.size(1) && !for_lanes();
    const std::int64_t image = channels * from_.size(2) * from_.size(3);
    const std::int64_t block =
        in_place ? map_.n : std::clamp<std::int64_t>(kBlockBytes / (image * sizeof(T)), 1, map_.n);
    across_images_ = across_images(block);
    const Scratch<T> copied(in_place ? 0 : block * image);
    for (std::int64_t begin = 0; begin < map_.n; begin += block) {
      const std::int64_t images = std::min(block, map_.n - begin);
      pixels_ = pixels_of<T>(from_);
      if (in_place) {
        pixels_.data += begin * pixels_.image_step;
      } else {
        const std::int64_t w_step = across_images_ ? images * channels : channels;
        pixels_ = {copied.data(), across_images_ ? channels : image, from_.size(3) * w_step, w_step};
        copy(begin, begin + images, copied.data());
      }
      results(begin, images);
    }
  }

 private:
  static constexpr std::int64_t kBlockBytes = 4 << 20;  // of copied images: they stay in cache
  static constexpr std::int64_t kItemPixels = 256;      // for which a thread goes through a panel

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

  /// Channels-last copies of images; channelwise ones have the channels that each lane reads, one after the
  /// other.
  void copy(std::int64_t begin, std::int64_t end, T* to) const {
    if (for_lanes()) {
      return copy_for_lanes(from_, begin, end, pixels_, map_.from_channels, map_.to_channels, packed_.pixel,
                            to);
    }
    copy_pixels(from_, begin, end, pixels_, packed_.pixel, to);
  }

  /// What one thread does at a time: one panel, `images` images, `rows` rows of results.
  struct Item {
    const Panel& panel;
    std::int64_t image, images, row, rows;
  };

  void results(std::int64_t first_image, std::int64_t images) {
    const std::int64_t height = map_.h.to, width = map_.w.to;
    const std::int64_t groups = across_images_ ? (images + 23) / 24 : images;
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
                   const Scratch<T> block(planar_ ? pixels * rows * packed_.width : 0);
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t group = i / bands % groups, row = i % bands * rows;
                     const std::int64_t image = images * group / groups;
                     const Item item{packed_.panels[static_cast<std::size_t>(i / bands / groups)], image,
                                     images * (group + 1) / groups - image, row,
                                     std::min(rows, height - row)};
                     compute(item, first_image, block.data());
                   }
                 });
  }

  void compute(const Item& item, std::int64_t first_image, T* block) {
    const Panel& p = item.panel;
    const std::int64_t channels = map_.groups * map_.to_channels, height = map_.h.to, width = map_.w.to;
    const std::int64_t first_channel = p.group * map_.to_channels + p.channel;
    // Where results go: the block, [image][row][w][p.width], or the nhwc tensor itself.
    const std::int64_t pixel = planar_ ? p.width : channels;
    const std::int64_t image = planar_ ? item.rows * width * pixel : height * width * pixel;
    T* to = to_.data<T>() + (first_image + item.image) * height * width * channels;
    T* out = planar_ ? block : to + item.row * width * pixel + first_channel;

    micro::Rows<T> task{};
    task.panel = packed_.weights.data() + p.offset;
    task.panel_step = map_.taps() * packed_.depth;
    task.start = packed_.has_start ? packed_.start.data() + first_channel : nullptr;
    task.columns = p.columns;
    std::vector<micro::Run> runs;
    const bool channelwise = packed_.lanes == Lanes::channelwise;
    const T* from = pixels_.data + item.image * pixels_.image_step +
                    (channelwise ? p.channel : p.group * map_.from_channels);
    const auto kernel = channelwise                    ? kernels_.products
                        : packed_.lanes == Lanes::thin ? kernels_.dots
                                                       : kernels_.rows;
    for (std::int64_t row = 0; row < item.rows; ++row, out += width * pixel) {
      const Window& h = map_.h.windows[static_cast<std::size_t>(item.row + row)];
      for (const Segment& s : map_.w.segments) {
        set_runs(h, s.slot, s.slots, p.width, runs);
        task.runs = runs.data();
        task.run_count = static_cast<std::int64_t>(runs.size());
        task.a = from + h.from * pixels_.h_step + s.from * pixels_.w_step;
        task.c = out + s.to * pixel;
        if (across_images_) {
          task.a_step = pixels_.image_step;
          task.c_step = image;
          task.rows = item.images;
          for (std::int64_t i = 0; i < s.count; ++i) {
            kernel(task);
            task.a += s.from_step * pixels_.w_step;
            task.c += s.to_step * pixel;
          }
        } else {
          task.a_step = s.from_step * pixels_.w_step;
          task.c_step = s.to_step * pixel;
          task.rows = s.count;
          kernel(task);
        }
      }
    }
    if (!planar_) return;
    to += first_channel * height * width + item.row * width;
    for (std::int64_t n = 0; n < item.images; ++n) {
      kernels_.transpose({block + n * image, pixel, item.rows * width, p.columns,
                          to + n * channels * height * width, height * width, nullptr});
    }
  }

  /// The runs of a window: one for each row of taps if its channels follow each other, else one a tap, or one
  /// for each channel of a tap that lanes read.
  void set_runs(const Window& h, std::int64_t slot, std::int64_t slots, std::int64_t width,
                std::vector<micro::Run>& runs) const {
    const auto kernel_w = static_cast<std::int64_t>(map_.w.slot_of_tap.size());
    const std::int64_t step = map_.w.slot_step * pixels_.w_step, depth = packed_.depth;
    const std::int64_t slot_step = packed_.lanes == Lanes::thin ? depth : depth * width;
    const bool channelwise = packed_.lanes == Lanes::channelwise;
    runs.clear();
    for (std::int64_t i = 0; i < h.slots && slots > 0; ++i) {
      const std::int64_t a = i * map_.h.slot_step * pixels_.h_step;
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
  bool across_images_ = false;
  Pixels<T> pixels_;
};

}  // namespace

template <class T>
void windows(const ConvMap& map, const Tensor& from, const Tensor& w, const Tensor& bias, const Tensor& to) {
  Windows<T>(map, from, w, bias, to).run();
}

template void windows<float>(const ConvMap&, const Tensor&, const Tensor&, const Tensor&, const Tensor&);
template void windows<double>(const ConvMap&, const Tensor&, const Tensor&, const Tensor&, const Tensor&);

}  // namespace tapedeck::cpu
