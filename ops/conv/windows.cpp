// conv_transpose2d and conv2d: each result pixel's window is a row times packed weights.
//
//   to[n,t,p] = bias[t] + sum over slots s and channels f of from[n,f,p's position of s] * w[s,f,t]
//
// for both directions of a ConvMap. `from` is read as channels-last pixels (in place, or a copy of a block of
// images), so the channels of a position are a stretch of memory and a window is a few such runs; nothing is
// padded, nothing is gathered. A tile of results are pixels with equal slots: neighbours of a phase along w,
// or, where maps are tiny, the same position of several images. The weights are packed once per call:
//   wide: panels of up to max_vectors vectors of result channels, [slot_h][slot_w][f][t];
//   thin: where result channels are too few to fill vectors, [t][slot_h][slot_w][f], f in whole vectors.
// In both the runs of a window are stretches too. Results of an nchw tensor go through a block in cache and
// are transposed out.
//
// Work is split over panels, images and rows of results, each of which is computed by one thread in one
// order.
#include <algorithm>

#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/pixels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

namespace {

/// Result channels [channel, channel + columns) of a group, and where their weights are packed. The last one
/// is the widest.
struct Panel {
  std::int64_t group, channel, columns, width, offset;
};

/// Panels of up to `most` units of `unit` channels, as equal as can be.
std::vector<Panel> panels_of(const ConvMap& map, std::int64_t unit, std::int64_t most, std::int64_t depth) {
  const std::int64_t units = (map.to_channels + unit - 1) / unit, count = (units + most - 1) / most;
  std::vector<Panel> panels;
  std::int64_t offset = 0;
  for (std::int64_t g = 0; g < map.groups; ++g) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t first = units * i / count * unit, width = units * (i + 1) / count * unit - first;
      panels.push_back({g, first, std::min(width, map.to_channels - first), width, offset});
      offset += width * map.taps() * depth;
    }
  }
  return panels;
}

template <class T>
class Windows {
 public:
  Windows(const ConvMap& map, const Tensor& from, const Tensor& w, const Tensor& bias, const Tensor& to)
      : map_(map),
        from_(from),
        to_(to),
        kernels_(micro::kernels<T>()),
        thin_(is_thin()),
        depth_(thin_ ? padded(map.from_channels) : map.from_channels),
        panels_(thin_ ? panels_of(map, 1, kernels_.max_dots, depth_)
                      : panels_of(map, kernels_.lanes, kernels_.max_vectors, depth_)),
        width_(panels_.back().width),
        tile_(thin_ ? std::min<std::int64_t>(8, kernels_.lanes / width_)
                    : kernels_.tile_rows[width_ / kernels_.lanes]),
        planar_(to.layout() == Layout::nchw) {
    weights_ = Scratch<T>(panels_.back().offset + width_ * map.taps() * depth_);
    pack(w);
    pack_bias(bias);
  }

  void run() {
    const std::int64_t channels = thin_ && map_.groups == 1 ? depth_ : from_.size(1);
    const bool in_place = from_.layout() == Layout::nhwc && channels == from_.size(1);
    const std::int64_t image = channels * from_.size(2) * from_.size(3);
    const std::int64_t block =
        in_place ? map_.n : std::clamp<std::int64_t>(kBlockBytes / (image * sizeof(T)), 1, map_.n);
    across_images_ = across_images(block);
    const Scratch<T> copy(in_place ? 0 : block * image);
    for (std::int64_t begin = 0; begin < map_.n; begin += block) {
      const std::int64_t images = std::min(block, map_.n - begin);
      pixels_ = pixels_of<T>(from_);
      if (in_place) {
        pixels_.data += begin * pixels_.image_step;
      } else {
        const std::int64_t w_step = across_images_ ? images * channels : channels;
        pixels_ = {copy.data(), across_images_ ? channels : image, from_.size(3) * w_step, w_step};
        copy_pixels(from_, begin, begin + images, pixels_, channels, copy.data());
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
    for (const Segment& s : map_.w.segments) tiles += (s.count + tile_ - 1) / tile_;
    return (images + tile_ - 1) / tile_ * map_.w.to * 10 < tiles * images * 9;
  }

  std::int64_t padded(std::int64_t channels) const {
    return (channels + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes;
  }
  /// Whether result channels leave more lanes empty than the channels that are read.
  bool is_thin() const {
    const std::int64_t from = map_.from_channels, to = map_.to_channels;
    if (to > kernels_.lanes / 3 || (map_.groups > 1 && from % kernels_.lanes != 0)) return false;
    return to * padded(from) < from * padded(to);
  }

  /// Where tap k's slot lies in the packed weights, in slots.
  std::int64_t slot(std::int64_t k) const {
    const auto kernel_w = static_cast<std::int64_t>(map_.w.slot_of_tap.size());
    return map_.h.slot_of_tap[static_cast<std::size_t>(k / kernel_w)] * kernel_w +
           map_.w.slot_of_tap[static_cast<std::size_t>(k % kernel_w)];
  }

  void pack(const Tensor& w) {
    const std::int64_t taps = map_.taps(), channels = map_.from_channels;
    const T* from = w.data<T>();
    if (thin_) {
      for (const Panel& p : panels_) {
        for (std::int64_t i = 0; i < p.columns * taps; ++i) {
          const std::int64_t t = i / taps, k = i % taps;
          T* to = weights_.data() + p.offset + (t * taps + slot(k)) * depth_;
          for (std::int64_t f = 0; f < depth_; ++f) {
            to[f] = f < channels ? from[map_.weight_index(p.group, f, p.channel + t, k)] : T(0);
          }
        }
      }
      return;
    }
    parallel_for(static_cast<std::int64_t>(panels_.size()) * channels, 1 + (1 << 14) / (taps * width_),
                 [&](std::int64_t begin, std::int64_t end) {
                   std::vector<std::int64_t> offsets(static_cast<std::size_t>(taps));
                   for (std::int64_t i = begin; i < end; ++i) {
                     const Panel& p = panels_[static_cast<std::size_t>(i / channels)];
                     const std::int64_t f = i % channels;
                     T* to = weights_.data() + p.offset + f * p.width;
                     for (std::int64_t k = 0; k < taps; ++k) {
                       const std::int64_t at = offsets[static_cast<std::size_t>(k)] =
                           slot(k) * channels * p.width;
                       std::fill(to + at + p.columns, to + at + p.width, T(0));
                     }
                     const std::int64_t at = map_.weight_index(p.group, f, p.channel, 0);
                     const std::int64_t next = map_.weight_index(p.group, f, p.channel + 1, 0);
                     kernels_.transpose({from + at, next - at, p.columns, taps, to, 0, offsets.data()});
                   }
                 });
  }

  void pack_bias(const Tensor& bias) {
    if (!bias.defined()) return;
    const std::int64_t padding = kernels_.lanes * kernels_.max_vectors;
    bias_ = Scratch<T>(bias.count() + padding);
    std::copy_n(bias.data<T>(), bias.count(), bias_.data());
    std::fill_n(bias_.data() + bias.count(), padding, T(0));
    has_bias_ = true;
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
    const auto panels = static_cast<std::int64_t>(panels_.size());
    // Rows of an item: enough that a panel is worth its way through the cache, few enough for many items.
    std::int64_t rows = std::clamp<std::int64_t>(kItemPixels / pixels, 1, height);
    while (rows > 1 && panels * groups * ((height + rows - 1) / rows) < 16) --rows;
    const std::int64_t bands = (height + rows - 1) / rows;
    const double flops = 2.0 * static_cast<double>(pixels * rows * map_.from_channels * width_) *
                         static_cast<double>(map_.taps() / (map_.h.phases * map_.w.phases) + 1);
    parallel_for(panels * groups * bands, 1 + static_cast<std::int64_t>(2e5 / flops),
                 [&](std::int64_t begin, std::int64_t end) {
                   const Scratch<T> block(planar_ ? pixels * rows * width_ : 0);
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t group = i / bands % groups, row = i % bands * rows;
                     const std::int64_t image = images * group / groups;
                     const Item item{panels_[static_cast<std::size_t>(i / bands / groups)], image,
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
    task.panel = weights_.data() + p.offset;
    task.panel_step = map_.taps() * depth_;
    const auto kernel = thin_ ? kernels_.dots : kernels_.rows;
    const std::int64_t slot_step = depth_ * (thin_ ? 1 : p.width);  // between slots of the panel
    task.start = has_bias_ ? bias_.data() + first_channel : nullptr;
    task.columns = p.columns;
    std::vector<micro::Run> runs;
    const T* from = pixels_.data + item.image * pixels_.image_step + p.group * map_.from_channels;
    for (std::int64_t row = 0; row < item.rows; ++row, out += width * pixel) {
      const Window& h = map_.h.windows[static_cast<std::size_t>(item.row + row)];
      for (const Segment& s : map_.w.segments) {
        set_runs(h, s.slot, s.slots, slot_step, runs);
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

  /// The runs of a window: one for each row of taps if its channels follow each other, else one a tap.
  void set_runs(const Window& h, std::int64_t slot, std::int64_t slots, std::int64_t slot_step,
                std::vector<micro::Run>& runs) const {
    const std::int64_t step = map_.w.slot_step * pixels_.w_step;
    const auto kernel_w = static_cast<std::int64_t>(map_.w.slot_of_tap.size());
    const bool joined = step == depth_;
    runs.clear();
    for (std::int64_t i = 0; i < h.slots && slots > 0; ++i) {
      const std::int64_t a = i * map_.h.slot_step * pixels_.h_step;
      const std::int64_t b = ((h.slot + i) * kernel_w + slot) * slot_step;
      if (joined) {
        runs.push_back({a, b, slots * depth_});
      } else {
        for (std::int64_t j = 0; j < slots; ++j) runs.push_back({a + j * step, b + j * slot_step, depth_});
      }
    }
  }

  const ConvMap& map_;
  const Tensor &from_, &to_;
  const micro::Kernels<T>& kernels_;
  const bool thin_;
  const std::int64_t depth_;  // channels of a slot of packed weights
  const std::vector<Panel> panels_;
  const std::int64_t width_, tile_;  // of the widest panel, and the rows of its tile
  const bool planar_;
  Scratch<T> weights_, bias_;
  bool has_bias_ = false, across_images_ = false;
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
