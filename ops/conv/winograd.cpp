// conv_transpose2d and conv2d by minimal filtering (winograd.h), for both directions of a ConvMap.
//
// An item of work is a band of rows of some images. One thread copies what it reads as channels-last pixels
// (nhwc tensors are read in place), and then goes over the phases of its results, a chunk of tiles at a time:
//
//   points of pixels   [source's point][tile][channel]   input map of each tile
//   products           [point][tile][lane]               tiles x channels times channels x a panel of weights
//   results            [panel][pixel][lane]              output map and bias
//
// The products of sources of unlike taps meet in the points that they share. Everything lies in the cache of
// a core, but for layers of large weights, which ask for many tiles. At last the results are transposed to
// planes. Weights are packed as for windows.cpp and mapped, and kept so. Each result is computed by one
// thread in one order.
#include <algorithm>

#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/pack.h>
#include <tapedeck/ops/conv/pixels.h>
#include <tapedeck/ops/conv/winograd.h>
#include <tapedeck/ops/micro/made_of.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kSize = sizeof(float);
constexpr std::int64_t kItemBytes = 512 << 10;   // of pixels and results of an item
constexpr std::int64_t kChunkBytes = 384 << 10;  // of points and products of a chunk, if weights are small
constexpr std::int64_t kItems = 16;              // that keep many threads busy
constexpr std::int64_t kItemTiles = 48;          // that are enough for an item, to have more of them
// Tiles of a chunk: the weights of a phase pass through the caches once for all of them, so that many bytes
// of weights ask for many tiles.
constexpr std::int64_t kWeightBytesOfTile = 16 << 10;
constexpr std::int64_t kFewTiles = 24, kManyTiles = 128, kMostTiles = 192;

/// A source on both axes. Its points come `first` after those of others, in all and of its phase.
struct Part {
  const WinogradSource *h, *w;
  std::int64_t first, first_of_phase;

  std::int64_t points() const { return h->points() * w->points(); }
};

struct Phase {
  const WinogradPhase *h, *w;
  std::vector<Part> parts;
  std::int64_t points = 0;  // of all parts
  std::int64_t most_taps_h = 1, most_taps_w = 1;

  std::int64_t products() const { return (most_taps_h + 1) * (most_taps_w + 1); }
};

class Winograd {
 public:
  Winograd(const ConvTranspose2dGeometry& g, Direction direction, const Tensor& from, const Tensor& w,
           const Tensor& bias, const Tensor& to, double negative_slope)
      : map_(g, direction),
        from_(from),
        to_(to),
        kernels_(micro::kernels<float>()),
        packed_(without_weights<float>(map_, Lanes::wide, bias)),
        axis_h_(winograd_phases(g.h, direction)),
        axis_w_(winograd_phases(g.w, direction)),
        depth_((map_.from_channels + kernels_.lanes - 1) / kernels_.lanes * kernels_.lanes),
        zeros_(depth_),
        in_place_(from.layout() == Layout::nhwc && depth_ == map_.from_channels),
        negative_slope_(static_cast<float>(negative_slope)) {
    std::fill_n(zeros_.data(), depth_, 0.0F);
    make_phases();
    if (all_points_ > 0) weights_ = made_of<float>(w, key(), [&] { return map_weights(w); });
    choose_item();
  }

  void run() {
    const std::int64_t bands = (tile_rows_ + band_ - 1) / band_, blocks = (map_.n + images_ - 1) / images_;
    parallel_for(blocks * bands, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t slack = kernels_.lanes;
      const Scratch<float> pixels(
          in_place_ ? 0
                    : images_ * winograd_most_reads(axis_h_, map_.h.from, band_) * row_elements() + slack);
      const Scratch<float> results(images_ * band_ * 2 * axis_h_[0].step * map_.w.to * result_width());
      const Scratch<float> points(most_points_ * point_step(chunk_));
      const Scratch<float> products(kMostPoints * product_step(chunk_, packed_.width));
      const Scratch<float> nowhere(packed_.width);
      std::vector<micro::Run> runs;
      const Memory memory{pixels.data(),   results.data(), points.data(),
                          products.data(), nowhere.data(), runs};
      Dealer& dealer = Dealer::of_this_thread(from_.bytes() + to_.bytes());
      RowRange copied;  // rows that were read for the item before
      const auto item = [&](std::int64_t i) {
        const std::int64_t n = map_.n * (i / bands) / blocks, row = i % bands * band_;
        const std::int64_t rows = std::min(band_, tile_rows_ - row);
        return Item{n, map_.n * (i / bands + 1) / blocks - n, row, rows,
                    winograd_reads(axis_h_, map_.h.from, row, rows)};
      };
      for (std::int64_t i = begin; i < end; ++i) {
        const Item now = item(i);
        LineList& lines = dealer.begin(work(now));
        if (!in_place_) {
          if (now.row == 0) copied = {};
          copy_bands(from_, now.image, now.images, now.read, copied, memory.pixels);
          copied = now.read;
        }
        if (dealer.asks() && !in_place_ && i + 1 < end) {
          const Item next = item(i + 1);
          const std::int64_t first = next.row == 0 ? next.read.begin : std::max(next.read.begin, copied.end);
          for (std::int64_t n = next.image; n < next.image + next.images; ++n) {
            lines_of_rows<float>(from_, n, first, next.read.end - first, lines);
          }
        }
        for (std::int64_t n = now.image; dealer.asks() && n < now.image + now.images; ++n) {
          const RowRange rows = winograd_writes(axis_h_, map_.h.to, now.row, now.rows);
          lines_of_rows<float>(to_, n, rows.begin, rows.size(), lines);
        }
        compute(now, memory, dealer);
      }
    });
  }

 private:
  struct Item {
    std::int64_t image, images, row, rows;  // rows of tiles
    RowRange read;
  };
  struct Memory {
    float *pixels, *results, *points, *products, *nowhere;
    std::vector<micro::Run>& runs;
  };
  /// Between points; not powers of two, or they would meet in a few lines of the first cache.
  std::int64_t point_step(std::int64_t tiles) const { return tiles * depth_ + kernels_.lanes; }
  std::int64_t product_step(std::int64_t tiles, std::int64_t width) const {
    return tiles * width + kernels_.lanes;
  }

  void make_phases() {
    std::int64_t first = 0;
    for (const WinogradPhase& h : axis_h_) {
      tile_rows_ = std::max(tile_rows_, h.tiles);
      for (const WinogradPhase& w : axis_w_) {
        Phase phase{&h, &w, {}};
        for (const WinogradSource& sh : h.sources) {
          for (const WinogradSource& sw : w.sources) {
            phase.parts.push_back({&sh, &sw, first, phase.points});
            first += phase.parts.back().points();
            phase.points += phase.parts.back().points();
          }
        }
        phase.most_taps_h = h.most_taps();
        phase.most_taps_w = w.most_taps();
        most_points_ = std::max(most_points_, phase.points);
        phases_.push_back(phase);
      }
    }
    all_points_ = first;
  }

  /// Panels of mapped weights: [point of a source][channel][lane]. Some channels are packed and mapped at a
  /// time.
  Scratch<float> map_weights(const Tensor& w) const {
    const std::int64_t channels = map_.from_channels, taps = map_.taps(),
                       together = channels_at_once(map_, packed_.panels);
    const std::int64_t steps = (channels + together - 1) / together;
    const auto kernel_w = static_cast<std::int64_t>(map_.w.slot_of_tap.size());
    const Scratch<float> mapped(panel_offset(packed_.panels.back()) +
                                weight_step(packed_.panels.back()) * all_points_);
    parallel_for(
        static_cast<std::int64_t>(packed_.panels.size()) * steps,
        1 + (1 << 12) / (taps * together * packed_.width), [&](std::int64_t begin, std::int64_t end) {
          const Scratch<float> packed(taps * together * packed_.width);
          for (std::int64_t i = begin; i < end; ++i) {
            const Panel& p = packed_.panels[static_cast<std::size_t>(i / steps)];
            const std::int64_t f = i % steps * together, count = std::min(together, channels - f);
            const std::int64_t slot_step = count * p.width;
            pack_channels(map_, p, w.data<float>(), f, count, packed.data(), slot_step);
            float* out = mapped.data() + panel_offset(p) + f * p.width;
            for (const Phase& phase : phases_) {
              for (const Part& part : phase.parts) {
                const float* from[9];
                float* to[kMostPoints];
                std::size_t taps_of_part = 0;
                for (std::int64_t kh : part.h->taps) {
                  for (std::int64_t kw : part.w->taps) {
                    from[taps_of_part++] = packed.data() + slot_of(map_, kh * kernel_w + kw) * slot_step;
                  }
                }
                for (std::int64_t k = 0; k < part.points(); ++k) {
                  to[k] = out + (part.first + k) * weight_step(p);
                }
                kernels_.winograd(micro::WinogradMap::weight, part.h->count(), part.w->count(),
                                  {from, to, nullptr, p.width, count, p.width, p.width});
              }
            }
          }
        });
    return mapped;
  }

  /// Of mapped weights: the channels, the kernel, and the taps of each source.
  MadeKey key() const {
    MadeKey key{Maker::winograd,
                {static_cast<std::int64_t>(map_.direction), map_.groups, map_.from_channels, map_.to_channels,
                 static_cast<std::int64_t>(map_.h.slot_of_tap.size()),
                 static_cast<std::int64_t>(map_.w.slot_of_tap.size())}};
    for (const Phase& phase : phases_) {
      for (const Part& part : phase.parts) {
        for (const std::vector<std::int64_t>* taps : {&part.h->taps, &part.w->taps}) {
          key.sizes.push_back(static_cast<std::int64_t>(taps->size()));
          key.sizes.insert(key.sizes.end(), taps->begin(), taps->end());
        }
      }
    }
    return key;
  }
  std::int64_t weight_step(const Panel& p) const { return map_.from_channels * p.width; }
  std::int64_t panel_offset(const Panel& p) const { return p.offset / map_.taps() * all_points_; }

  std::int64_t row_elements() const { return map_.w.from * map_.groups * map_.from_channels; }
  std::int64_t result_width() const {  // of all panels
    std::int64_t width = 0;
    for (const Panel& p : packed_.panels) width += p.width;
    return width;
  }

  void choose_item() {
    const std::int64_t result_row = 2 * axis_h_[0].step * map_.w.to * result_width();
    const auto bytes = [&](std::int64_t rows) {
      return kSize * ((in_place_ ? 0 : winograd_most_reads(axis_h_, map_.h.from, rows) * row_elements()) +
                      rows * result_row);
    };
    const std::int64_t wide = phases_[0].w->tiles;
    const std::int64_t weights = kSize * most_points_ * map_.from_channels * map_.to_channels;
    const std::int64_t least = std::clamp(weights / kWeightBytesOfTile, kFewTiles, kManyTiles);
    band_ = tile_rows_;
    while (band_ > 1 && band_ * wide >= 2 * least && bytes(band_) > kItemBytes) band_ = (band_ + 1) / 2;
    const std::int64_t images =
        std::max(kItemBytes / bytes(band_), least / std::max<std::int64_t>(1, band_ * wide));
    images_ = band_ < tile_rows_ ? 1 : std::clamp<std::int64_t>(images, 1, map_.n);
    const auto are_too_few = [&] {
      const std::int64_t items = (map_.n + images_ - 1) / images_ * ((tile_rows_ + band_ - 1) / band_);
      const std::int64_t tiles = images_ * band_ * wide;
      return (items < kItems && tiles > std::max(least, kItemTiles)) ||
             (items < num_threads() && tiles > kItemTiles);
    };
    while (images_ > 1 && are_too_few()) images_ = (images_ + 1) / 2;
    while (band_ > 1 && are_too_few()) band_ = (band_ + 1) / 2;
    if (images_ > 1) {  // items of few images are dealt out evenly
      const std::int64_t threads = num_threads();
      std::int64_t items = (map_.n + images_ - 1) / images_;
      if (items > threads) items = (items + threads - 1) / threads * threads;
      images_ = (map_.n + items - 1) / items;
    }
    const std::int64_t tile = kSize * (most_points_ * depth_ + kMostPoints * packed_.width);
    chunk_ = std::min(images_ * band_ * wide, std::clamp(kChunkBytes / tile, least, kMostTiles));
  }

  std::int64_t tile_rows(const Phase& phase, const Item& item) const {
    return std::clamp<std::int64_t>(phase.h->tiles - item.row, 0, item.rows);
  }
  /// Tiles times points of an item, for each panel.
  double work(const Item& item) const {
    std::int64_t points = 0;
    for (const Phase& p : phases_) points += item.images * tile_rows(p, item) * p.w->tiles * p.points;
    return static_cast<double>(points) * static_cast<double>(packed_.panels.size());
  }

  void compute(const Item& item, const Memory& memory, Dealer& dealer) {
    const RowRange rows = winograd_writes(axis_h_, map_.h.to, item.row, item.rows);
    const float* pixels = memory.pixels;
    std::int64_t image_step = item.read.size() * row_elements();
    if (in_place_) {
      image_step = map_.h.from * row_elements();
      pixels = from_.data<float>() + item.image * image_step + item.read.begin * row_elements();
    }
    for (const Phase& phase : phases_) {
      const std::int64_t high = tile_rows(phase, item), tiles = item.images * high * phase.w->tiles;
      for (std::int64_t group = 0; group < map_.groups; ++group) {
        for (std::int64_t tile = 0; tile < tiles; tile += chunk_) {
          const Chunk chunk{phase, group, tile, std::min(chunk_, tiles - tile), high};
          for (const Part& part : phase.parts) {
            map_pixels(item, chunk, part, item.read.begin, pixels, image_step, memory.points);
          }
          for (const Panel& p : packed_.panels) {
            if (p.group != group) continue;
            multiply(chunk, p, memory, dealer);
            map_products(item, chunk, p, rows, memory);
          }
        }
      }
    }
    write(item, rows, memory.results);
  }

  /// Tiles [first, first + count) of a phase in an item, `rows` rows of them in an image.
  struct Chunk {
    const Phase& phase;
    std::int64_t group, first, count, rows;
  };
  static WinogradTileRange range(const Item& item, const Chunk& chunk) {
    return {chunk.first, chunk.count, item.row, chunk.rows, chunk.phase.w->tiles};
  }

  void map_pixels(const Item& item, const Chunk& chunk, const Part& part, std::int64_t first_row,
                  const float* pixels, std::int64_t image_step, float* points) const {
    const std::int64_t pixel = map_.groups * map_.from_channels, step = point_step(chunk.count);
    const std::int64_t points_h = part.h->points(), points_w = part.w->points();
    const float* group = pixels + chunk.group * map_.from_channels;
    float* out = points + part.first_of_phase * step;
    const RowRange inside_h = winograd_inside(part.h->base, part.h->step, points_h, map_.h.from),
                   inside_w = winograd_inside(part.w->base, part.w->step, points_w, map_.w.from);
    for_each_stretch(
        range(item, chunk), inside_h, inside_w,
        [&](std::int64_t i, std::int64_t n, std::int64_t row, std::int64_t column, std::int64_t tiles) {
          const float* from[kMostPoints];
          float* to[kMostPoints];
          const float** next = from;
          const std::int64_t first = part.w->base + 2 * column * part.w->step,
                             last = first + (points_w - 1) * part.w->step;
          for (std::int64_t a = 0; a < points_h; ++a) {
            const std::int64_t h = part.h->base + (2 * row + a) * part.h->step;
            const bool inside = h >= 0 && h < map_.h.from;
            const float* line = group + n * image_step + (h - first_row) * row_elements() + first * pixel;
            if (inside && first >= 0 && last < map_.w.from) {
              for (std::int64_t b = 0; b < points_w; ++b, line += part.w->step * pixel) *next++ = line;
              continue;
            }
            for (std::int64_t w = first; w <= last; w += part.w->step, line += part.w->step * pixel) {
              *next++ = inside && w >= 0 && w < map_.w.from ? line : zeros_.data();
            }
          }
          float* point = out + i * depth_;
          for (std::int64_t k = 0; k < points_h * points_w; ++k, point += step) to[k] = point;
          kernels_.winograd(micro::WinogradMap::input, part.h->count(), part.w->count(),
                            {from, to, nullptr, depth_, tiles, 2 * part.w->step * pixel, depth_});
        });
  }

  void multiply(const Chunk& chunk, const Panel& p, const Memory& memory, Dealer& dealer) const {
    const Phase& phase = chunk.phase;
    const std::int64_t channels = map_.from_channels;
    if (phase.parts.empty()) {
      std::fill_n(memory.products, phase.products() * product_step(chunk.count, p.width), 0.0F);
      return;
    }
    micro::Rows<float> task{};
    task.a = memory.points;
    task.a_step = depth_;
    task.panel = weights_.data() + panel_offset(p);
    task.c_step = p.width;
    task.rows = chunk.count;
    task.columns = p.width;
    std::vector<micro::Run>& runs = memory.runs;
    for (std::int64_t h = 0; h <= phase.most_taps_h; ++h) {
      for (std::int64_t w = 0; w <= phase.most_taps_w; ++w) {
        runs.clear();
        for (const Part& part : phase.parts) {
          const std::int64_t taps_h = part.h->count(), taps_w = part.w->count();
          for (std::int64_t k = 0; k < part.points(); ++k) {
            if (winograd_point(k / part.w->points(), taps_h, phase.most_taps_h) != h) continue;
            if (winograd_point(k % part.w->points(), taps_w, phase.most_taps_w) != w) continue;
            runs.push_back({(part.first_of_phase + k) * point_step(chunk.count),
                            (part.first + k) * weight_step(p), channels});
          }
        }
        task.runs = runs.data();
        task.run_count = static_cast<std::int64_t>(runs.size());
        task.ahead = dealer.deal(static_cast<double>(chunk.count * task.run_count));
        task.c = memory.products + (h * (phase.most_taps_w + 1) + w) * product_step(chunk.count, p.width);
        kernels_.rows(task);
      }
    }
  }

  void map_products(const Item& item, const Chunk& chunk, const Panel& p, const RowRange& rows,
                    const Memory& memory) const {
    const Phase& phase = chunk.phase;
    const std::int64_t pixels = item.images * rows.size() * map_.w.to;
    float* results = memory.results + panel_results(p) * pixels;
    const float* start =
        packed_.has_start ? packed_.start.data() + p.group * map_.to_channels + p.channel : nullptr;
    const std::int64_t products = phase.products(), step = product_step(chunk.count, p.width);
    const RowRange inside_h = winograd_inside(phase.h->base, phase.h->step, 2, map_.h.to),
                   inside_w = winograd_inside(phase.w->base, phase.w->step, 2, map_.w.to);
    for_each_stretch(
        range(item, chunk), inside_h, inside_w,
        [&](std::int64_t i, std::int64_t n, std::int64_t row, std::int64_t column, std::int64_t tiles) {
          const float* from[kMostPoints];
          float* to[4];
          const float* product = memory.products + i * p.width;
          for (std::int64_t k = 0; k < products; ++k, product += step) from[k] = product;
          for (std::int64_t a = 0; a < 2; ++a) {
            const std::int64_t h = phase.h->base + (2 * row + a) * phase.h->step;
            for (std::int64_t b = 0; b < 2; ++b) {
              const std::int64_t w = phase.w->base + (2 * column + b) * phase.w->step;
              to[2 * a + b] = h < map_.h.to && w < map_.w.to
                                  ? results + ((n * rows.size() + h - rows.begin) * map_.w.to + w) * p.width
                                  : memory.nowhere;
            }
          }
          kernels_.winograd(micro::WinogradMap::output, phase.most_taps_h, phase.most_taps_w,
                            {from, to, start, p.width, tiles, p.width, 2 * phase.w->step * p.width});
        });
  }
  /// Lanes of all panels before this one.
  std::int64_t panel_results(const Panel& p) const { return p.offset / (map_.taps() * packed_.depth); }

  void write(const Item& item, const RowRange& rows, float* results) const {
    const std::int64_t channels = map_.groups * map_.to_channels, plane = map_.h.to * map_.w.to;
    const std::int64_t count = rows.size() * map_.w.to;
    for (const Panel& p : packed_.panels) {
      float* from = results + panel_results(p) * item.images * count;
      if (negative_slope_ != 1)
        kernels_.rectify({from, 1, item.images * count * p.width, 0, negative_slope_});
      for (std::int64_t n = 0; n < item.images; ++n, from += count * p.width) {
        const std::int64_t channel = p.group * map_.to_channels + p.channel;
        float* image = to_.data<float>() + (item.image + n) * plane * channels;
        if (to_.layout() == Layout::nchw) {
          kernels_.transpose({from, p.width, count, p.columns,
                              image + channel * plane + rows.begin * map_.w.to, plane, nullptr});
        } else {
          for (std::int64_t i = 0; i < count; ++i) {
            std::copy_n(from + i * p.width, p.columns,
                        image + (rows.begin * map_.w.to + i) * channels + channel);
          }
        }
      }
    }
  }

  const ConvMap map_;
  const Tensor &from_, &to_;
  const micro::Kernels<float>& kernels_;
  const Packed<float> packed_;
  const std::vector<WinogradPhase> axis_h_, axis_w_;
  const std::int64_t depth_;  // channels of a group that are read, in whole vectors
  const Scratch<float> zeros_;
  const bool in_place_;
  const float negative_slope_;
  std::vector<Phase> phases_;
  std::int64_t tile_rows_ = 0, all_points_ = 0, most_points_ = 0;
  Scratch<float> weights_;
  std::int64_t images_ = 1, band_ = 1, chunk_ = 1;
};

}  // namespace

void winograd(const ConvTranspose2dGeometry& g, Direction direction, const Tensor& from, const Tensor& w,
              const Tensor& bias, const Tensor& to, double negative_slope) {
  Winograd(g, direction, from, w, bias, to, negative_slope).run();
}

}  // namespace tapedeck::cpu
