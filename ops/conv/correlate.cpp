// conv_transpose2d and conv2d on planes, for nchw tensors: the lanes of vectors are pixels.
//
//   to[n,t,(m + r)...] = bias[t] + sum over channels f and the taps k of phase r of
//                        from[n,f,m + shift(k)] * w[f,t,k]
//
// (planes.h has the phases). An item of work is a band of rows of an image and a group: its planes are copied
// to a core's cache, results of each phase are computed there for a few channels at a time, and then the
// phases are joined to rows of the result. Where that is large, it goes past the caches, row after row
// (micro/stream.inl). Nothing is transposed, and a tensor of a group is read and written once: the path of
// few channels, whose cost is memory, and of maps that are much larger than the kernel.
#include <algorithm>

#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/planes.h>
#include <tapedeck/ops/micro/made_of.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kPlaneBytes = 384 << 10;  // that are read, in the cache of a core
constexpr std::int64_t kResultBytes = 12 << 10;  // of a channel, beside them
constexpr std::int64_t kStreamBytes = 16 << 20;  // of results from which on they go past the caches
constexpr std::int64_t kStreamRow = 1 << 10;     // bytes of a row of them: of shorter ones tiles waste more
constexpr std::int64_t kAskedBytes = 2 << 20;    // of results from which on no near cache has them
constexpr std::int64_t kItems = 16;              // that keep many threads busy
constexpr std::int64_t kRollingVectors = 4;      // of a row of results, at least

template <class T>
class Correlate {
 public:
  Correlate(const ConvTranspose2dGeometry& g, Direction direction, const Tensor& from, const Tensor& w,
            const Tensor& bias, const Tensor& to, double negative_slope)
      : map_(g, direction),
        h_(g.h, direction),
        w_(g.w, direction),
        kernel_w_(g.w.kernel),
        from_(from),
        to_(to),
        bias_(bias.defined() ? bias.data<T>() : nullptr),
        negative_slope_(static_cast<T>(negative_slope)),
        kernels_(micro::kernels<T>()),
        panels_((map_.to_channels + kernels_.plane_rows - 1) / kernels_.plane_rows),
        past_caches_(to.bytes() >= kStreamBytes &&
                     w_.to * static_cast<std::int64_t>(sizeof(T)) >= kStreamRow &&
                     w_.to_step <= kernels_.max_stream_step),
        is_far_(!past_caches_ && to.bytes() >= kAskedBytes),
        is_dense_(DenseBand::is_worth_it(h_, w_, map_.from_channels, map_.to_channels)),
        has_pairs_(past_caches_ && !is_dense_ &&
                   w_.to * static_cast<std::int64_t>(sizeof(T)) <= micro::kStretchBytes &&
                   PairBand::is_worth_it(h_, w_, map_.from_channels, map_.to_channels)),
        band_(h_, w_, band_rows(), kernels_.lanes),
        dense_(band_),
        pairs_(band_),
        newest_(newest_rows(h_)),
        one_(newest_, w_, 1, kernels_.lanes),
        kept_(rows_of_window(h_)),
        is_rolling_(can_roll()),
        pitch_(is_dense_ ? w_.count : band_.pitch),
        bands_((h_.count + band_.rows - 1) / band_.rows),
        step_rows_(step_rows()) {
    for (std::int64_t r = 0; r < w_.to_step; ++r) {
      phases_.push_back(w_.phases[static_cast<std::size_t>(r)].taps.empty() ? -1 : r * result_phase());
    }
    pack(w);
  }

  void run() {
    if (is_rolling_) return roll();
    parallel_for(map_.n * map_.groups * bands_, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t elements = has_pairs_ ? pairs_.template elements<T>(map_.from_channels)
                                               : band_.template elements<T>(map_.from_channels);
      const Scratch<T> planes(elements);
      std::fill_n(planes.data(), elements, T(0));
      const Scratch<T> dense(is_dense_ ? map_.from_channels * dense_.channel + kernels_.plane_slack : 0);
      const Scratch<T> results(past_caches_ ? 0 : kernels_.plane_rows * result_channel());
      const Scratch<T> waiting(past_caches_ ? kernels_.queue_elements : 0);
      micro::RowQueue<T> queue;
      queue.memory = waiting.data();
      Dealer& dealer = Dealer::of_this_thread(from_.bytes() + to_.bytes());
      LineList next_lines;
      std::vector<micro::Correlation<T>> phases(static_cast<std::size_t>(w_.to_step));
      for (std::int64_t i = begin; i < end; ++i) {
        const Item item = item_at(i), next = item_at(std::min(i + 1, end - 1));
        const std::int64_t first_from = item.group * map_.from_channels;
        if (has_pairs_) {
          pairs_.load(from_, item.n, first_from, map_.from_channels, item.row, planes.data());
        } else {
          band_.load(from_, item.n, first_from, map_.from_channels, item.row, planes.data());
        }
        if (is_dense_) dense_.load(planes.data(), map_.from_channels, dense.data());
        const std::int64_t steps = (item.rows + step_rows_ - 1) / step_rows_, parts = panels_ * steps;
        LineList& lines = dealer.begin(static_cast<double>(parts * begins_.back()));
        next_lines.clear();
        if (dealer.asks() && i + 1 < end) {
          band_.template lines<T>(from_, next.n, next.group * map_.from_channels, map_.from_channels,
                                  next.row, is_far_ ? next_lines : lines);
        }
        if (dealer.asks() && is_far_) append_results(item, next_lines, lines);
        for (std::int64_t part = 0; part < parts; ++part) {
          const std::int64_t panel = part / steps, done = part % steps * step_rows_;
          const std::int64_t rows = std::min(step_rows_, item.rows - done), row = item.row + done;
          const std::int64_t first = first_channel(panel), channels = first_channel(panel + 1) - first;
          const std::int64_t channel = item.group * map_.to_channels + first;
          const T* read = (is_dense_ ? dense.data() : planes.data()) + done * pitch_;
          const std::int64_t plane = h_.to * w_.to;
          T* const to = to_.data<T>() + (item.n * to_.size(1) + channel) * plane;
          if (past_caches_) {
            stream(channel, channels, row, rows, read, dealer, to, queue, phases);
            continue;
          }
          if (is_dense_) {
            compute(0, channel, channels, rows, read, dealer, to + row * w_.to, plane);
            continue;
          }
          for (std::int64_t r = 0; r < h_.to_step; ++r) {
            const std::int64_t row_end = std::min(h_.to, (row + rows) * h_.to_step);
            const std::int64_t first_row = row * h_.to_step + r;
            const std::int64_t count = (row_end - first_row + h_.to_step - 1) / h_.to_step;
            compute(r, channel, channels, rows, read, dealer, results.data(), result_channel());
            for (std::int64_t t = 0; t < channels; ++t) {
              write(r, results.data() + t * result_channel(), channel + t, to + t * plane + first_row * w_.to,
                    count);
            }
          }
        }
      }
      if (past_caches_) kernels_.write_rows(queue);
    });
  }

 private:
  /// The planes' rows that a row of results is the first to need.
  static PlaneAxis newest_rows(PlaneAxis h) {
    for (Plane& p : h.planes) p.first = p.last;
    return h;
  }
  static std::int64_t rows_of_window(const PlaneAxis& h) {
    std::int64_t rows = 1;
    for (const Plane& p : h.planes) rows = std::max(rows, p.last - p.first + 1);
    return rows;
  }
  /// Whether rows of results are computed one by one, where they belong: bands would copy what two of them
  /// read twice. Long rows only, as they are runs of their own then.
  bool can_roll() const {
    return h_.to_step == 1 && w_.to_step == 1 && !past_caches_ && !is_dense_ && kept_ > 1 &&
           w_.count >= kRollingVectors * kernels_.lanes && 2 * kept_ > band_.rows;
  }

  /// Planes of one row of results after the other: the newest row of each plane is copied to a slab, which
  /// takes the place of the oldest.
  void roll() {
    const std::int64_t slab = slab_size(),
                       bands = std::clamp<std::int64_t>(kItems / (map_.n * map_.groups), 1, h_.count);
    parallel_for(map_.n * map_.groups * bands, 1, [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> slabs(kept_ * slab);
      std::fill_n(slabs.data(), kept_ * slab, T(0));
      Dealer& dealer = Dealer::of_this_thread(from_.bytes() + to_.bytes());
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t n = i / bands / map_.groups, group = i / bands % map_.groups;
        const std::int64_t first = h_.count * (i % bands) / bands, last = h_.count * (i % bands + 1) / bands;
        for (std::int64_t row = first - kept_ + 1; row < last; ++row) {
          const std::int64_t position = (row + kept_) % kept_, from = group * map_.from_channels;
          one_.load(from_, n, from, map_.from_channels, row, slabs.data() + position * slab);
          if (row < first) continue;
          LineList& lines = dealer.begin(static_cast<double>(panels_));
          if (dealer.asks() && row + 1 < last)
            one_.template lines<T>(from_, n, from, map_.from_channels, row + 1, lines);
          for (std::int64_t panel = 0; panel < panels_; ++panel) {
            const std::int64_t channels = first_channel(panel + 1) - first_channel(panel);
            const std::int64_t channel = group * map_.to_channels + first_channel(panel),
                               plane = h_.to * w_.to;
            T* const to = to_.data<T>() + (n * to_.size(1) + channel) * plane + row * w_.to;
            const std::int64_t depth = begins_.back();
            kernels_.correlate({weights_.data() + channel * depth, slabs.data(),
                                offsets_.data() + position * depth, depth,
                                bias_ == nullptr ? nullptr : bias_ + channel, to, plane, channels, w_.count,
                                1, 0, dealer.deal(1)});
            rectify(to, channels, w_.count, plane);
          }
        }
      }
    });
  }
  std::int64_t slab_size() const {
    const std::int64_t lanes = kernels_.lanes;
    return (one_.template elements<T>(map_.from_channels) + lanes - 1) / lanes * lanes;
  }
  /// Where a tap of a result is, if the newest rows are in that slab.
  std::int64_t offset(std::int64_t position, std::int64_t f, PlaneTap kh, const PlaneTap& kw) const {
    const std::int64_t newest = newest_.planes[static_cast<std::size_t>(kh.plane)].last;
    const std::int64_t slab = (position + kh.shift - newest + kept_) % kept_;
    kh.shift = newest;
    return slab * slab_size() + f * one_.channel + one_.offset(kh, kw);
  }

  /// A band of rows of results of each phase of a group.
  struct Item {
    std::int64_t n, group, row, rows;
  };
  Item item_at(std::int64_t i) const {
    const std::int64_t row = i % bands_ * band_.rows;
    return {i / bands_ / map_.groups, i / bands_ % map_.groups, row, std::min(band_.rows, h_.count - row)};
  }
  std::int64_t first_channel(std::int64_t panel) const { return map_.to_channels * panel / panels_; }
  /// Elements of a phase of rows of results of a channel and of a phase of columns of them.
  std::int64_t result_phase() const {
    const std::int64_t lanes = kernels_.lanes;  // aligned stores are cheaper
    return (step_rows_ * pitch_ + lanes - 1) / lanes * lanes + kernels_.plane_slack;
  }
  std::int64_t result_channel() const { return w_.to_step * result_phase(); }

  /// Rows of a band: as many as the caches hold, but enough bands for the threads, all nearly equal.
  std::int64_t band_rows() const {
    const auto fit = [&](std::int64_t rows) {
      const PlaneBand band(h_, w_, rows, kernels_.lanes);
      const std::int64_t channel =
          has_pairs_ ? PairBand(band).channel : band.channel + (is_dense_ ? DenseBand(band).channel : 0);
      return map_.from_channels * channel * static_cast<std::int64_t>(sizeof(T)) <= kPlaneBytes;
    };
    std::int64_t rows = 1;
    while (rows < h_.count && fit(rows + 1)) ++rows;
    const std::int64_t bands =
        std::max((h_.count + rows - 1) / rows, std::min(h_.count, kItems / (map_.n * map_.groups)));
    const std::int64_t even = (h_.count + bands - 1) / bands;
    return has_pairs_ ? (even + 1) / 2 * 2 : even;
  }

  std::int64_t step_rows() const {
    if (past_caches_) return band_.rows;
    const std::int64_t row = w_.to_step * pitch_ * static_cast<std::int64_t>(sizeof(T));
    return std::clamp<std::int64_t>(kResultBytes / row, 1, band_.rows);
  }

  /// For each phase the places of its taps in the planes, channel by channel, and in the same order the
  /// weights of each panel: [group][panel][phase][channel, tap][t]. In pairs of rows a phase has several
  /// parts, and tap is one of a row.
  void pack(const Tensor& w) {
    std::vector<std::int64_t> places;  // of a weight, in [f][tap]
    MadeKey key{Maker::planes,
                {static_cast<std::int64_t>(map_.direction), map_.groups, map_.from_channels, map_.to_channels,
                 map_.taps()}};
    if (has_pairs_) return pack_pairs(w, std::move(key));
    for (const PlanePhase& h : h_.phases) {
      for (const PlanePhase& v : w_.phases) {
        begins_.push_back(static_cast<std::int64_t>(offsets_.size()));
        for (const PlaneTap& kh : h.taps) {
          for (const PlaneTap& kw : v.taps) key.sizes.push_back(kh.tap * kernel_w_ + kw.tap);
        }
        key.sizes.push_back(-1);  // the end of a phase
        for (std::int64_t f = 0; f < map_.from_channels; ++f) {
          for (const PlaneTap& kh : h.taps) {
            for (const PlaneTap& kw : v.taps) {
              offsets_.push_back(is_dense_ ? f * dense_.channel + dense_.offset(kh, &kw - v.taps.data())
                                           : f * band_.channel + band_.offset(kh, kw));
              places.push_back(map_.weight_index(0, f, 0, kh.tap * kernel_w_ + kw.tap));
            }
          }
        }
      }
    }
    begins_.push_back(static_cast<std::int64_t>(offsets_.size()));
    if (is_rolling_) roll_offsets();
    weights_ = made_of<T>(w, std::move(key), [&] { return panels_of(w.data<T>(), places); });
  }

  void pack_pairs(const Tensor& w, MadeKey key) {
    const std::vector<PlaneTap> rows = PairBand::taps(h_);
    std::vector<std::int64_t> places;  // of the first row's weights, in [f][tap]
    key.sizes.push_back(-2);
    for (const PlaneTap& kh : rows) key.sizes.push_back(kh.tap);
    for (const PlanePhase& h : h_.phases) {
      for (const PlanePhase& v : w_.phases) {
        begins_.push_back(static_cast<std::int64_t>(offsets_.size()));
        key.sizes.push_back(-1);
        for (const PlaneTap& kw : v.taps) key.sizes.push_back(kw.tap);
        for (std::int64_t f = 0; !h.taps.empty() && f < map_.from_channels; ++f) {
          for (const PlaneTap& kw : v.taps) {
            offsets_.push_back(f * pairs_.channel + pairs_.offset(kw));
            places.push_back(map_.weight_index(0, f, 0, kw.tap));
          }
        }
      }
    }
    begins_.push_back(static_cast<std::int64_t>(offsets_.size()));
    weights_ = made_of<T>(w, std::move(key), [&] { return panels_of_pairs(w.data<T>(), places, rows); });
  }

  /// Those of each position, in the same order.
  void roll_offsets() {
    offsets_.clear();
    for (std::int64_t position = 0; position < kept_; ++position) {
      for (std::int64_t f = 0; f < map_.from_channels; ++f) {
        for (const PlaneTap& kh : h_.phases[0].taps) {
          for (const PlaneTap& kw : w_.phases[0].taps) offsets_.push_back(offset(position, f, kh, kw));
        }
      }
    }
  }

  Scratch<T> panels_of(const T* w, const std::vector<std::int64_t>& places) const {
    const auto depth = static_cast<std::int64_t>(places.size());
    const std::int64_t step = map_.weight_index(0, 0, 1, 0);
    return panels_of(depth, [&](std::int64_t group, std::int64_t first, std::int64_t rows, T* out) {
      const T* in = w + map_.weight_index(group, 0, first, 0);
      for (std::int64_t place : places) {
        for (std::int64_t t = 0; t < rows; ++t) *out++ = in[place + t * step];
      }
    });
  }
  Scratch<T> panels_of_pairs(const T* w, const std::vector<std::int64_t>& places,
                             const std::vector<PlaneTap>& taps) const {
    const auto depth = static_cast<std::int64_t>(places.size());
    const std::int64_t step = map_.weight_index(0, 0, 1, 0);
    const auto row = [&](std::size_t k) { return map_.weight_index(0, 0, 0, taps[k].tap * kernel_w_); };
    const std::int64_t row0 = row(0), row1 = row(1), row2 = row(2);
    return panels_of(
        PairBand::kParts * depth, [&](std::int64_t group, std::int64_t first, std::int64_t rows, T* out) {
          for (std::size_t phase = 0; phase + 1 < begins_.size(); ++phase) {
            for (std::int64_t part = 0; part < PairBand::kParts; ++part) {
              for (std::int64_t k = begins_[phase]; k < begins_[phase + 1]; ++k) {
                const T* in = w + map_.weight_index(group, 0, first, 0) + places[static_cast<std::size_t>(k)];
                for (std::int64_t t = 0; t < rows; ++t, in += step) {
                  *out++ = static_cast<T>(PairBand::weight(part, in[row0], in[row1], in[row2]));
                }
              }
            }
          }
        });
  }
  /// `depth` weights for each channel of results: fill(group, its first channel, channels, to) makes those
  /// of a panel.
  template <class F>
  Scratch<T> panels_of(std::int64_t depth, const F& fill) const {
    const Scratch<T> weights(map_.groups * map_.to_channels * depth);
    parallel_for(map_.groups * panels_, 1 + (1 << 14) / (1 + depth * kernels_.plane_rows),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t group = i / panels_, first = first_channel(i % panels_);
                     fill(group, first, first_channel(i % panels_ + 1) - first,
                          weights.data() + (group * map_.to_channels + first) * depth);
                   }
                 });
    return weights;
  }

  /// Appends the lines of an item's results in the order in which they are written, and between them
  /// `others`.
  void append_results(const Item& item, const LineList& others, LineList& to) const {
    const std::int64_t steps = (item.rows + step_rows_ - 1) / step_rows_, parts = panels_ * steps;
    const auto all = static_cast<std::int64_t>(others.size());
    for (std::int64_t part = 0; part < parts; ++part) {
      const std::int64_t begin = part % steps * step_rows_, end = std::min(item.rows, begin + step_rows_);
      const std::int64_t row = (item.row + begin) * h_.to_step,
                         row_end = std::min(h_.to, (item.row + end) * h_.to_step);
      for (std::int64_t t = first_channel(part / steps); t < first_channel(part / steps + 1); ++t) {
        const std::int64_t plane = (item.n * map_.groups + item.group) * map_.to_channels + t;
        append_lines(to_.data<T>() + (plane * h_.to + row) * w_.to, (row_end - row) * w_.to, to);
      }
      to.insert(to.end(), others.begin() + all * part / parts, others.begin() + all * (part + 1) / parts);
    }
  }

  bool is_empty(std::int64_t r) const { return h_.phases[static_cast<std::size_t>(r)].taps.empty(); }

  /// Results of phase r of rows: [t][phase of columns][row][pitch], channels `step` apart. Without taps there
  /// are none.
  void compute(std::int64_t r, std::int64_t channel, std::int64_t channels, std::int64_t rows,
               const T* planes, Dealer& dealer, T* results, std::int64_t step) const {
    const std::int64_t depth = begins_.back();
    const T* weights = weights_.data() + channel * depth;
    const PlaneBand::Runs runs = is_dense_ ? PlaneBand::Runs{rows * pitch_, 1} : band_.runs(rows);
    for (std::int64_t v = 0; v < w_.to_step; ++v) {
      const auto phase = static_cast<std::size_t>(r * w_.to_step + v);
      const std::int64_t begin = begins_[phase], end = begins_[phase + 1];
      if (begin == end) continue;
      kernels_.correlate({weights + begin * channels, planes, offsets_.data() + begin, end - begin,
                          bias_ == nullptr ? nullptr : bias_ + channel, results + v * result_phase(), step,
                          channels, runs.count, runs.runs, pitch_,
                          dealer.deal(static_cast<double>(end - begin))});
      for (std::int64_t run = 0; run < runs.runs; ++run) {
        rectify(results + v * result_phase() + run * pitch_, channels, runs.count, step);
      }
    }
  }

  /// Results for rows `row` to row + rows - 1 of each phase, past the caches.
  void stream(std::int64_t channel, std::int64_t channels, std::int64_t row, std::int64_t rows,
              const T* planes, Dealer& dealer, T* to, micro::RowQueue<T>& queue,
              std::vector<micro::Correlation<T>>& phases) const {
    const std::int64_t parts = has_pairs_ ? PairBand::kParts : 1, depth = parts * begins_.back(),
                       first = row * h_.to_step, end = std::min(h_.to, (row + rows) * h_.to_step);
    const std::int64_t at_once = is_dense_ ? end - first : 1;  // its rows of planes follow each other
    const double work =
        is_dense_ ? 1 : 1 / static_cast<double>(rows);  // of a row of a phase in that of a part
    for (std::int64_t at = first; at < end; at += at_once) {
      const std::int64_t r = at % h_.to_step, m = (at - first) / h_.to_step;
      const bool is_second = has_pairs_ && m % 2 == 1;
      std::int64_t taps = 0;
      for (std::int64_t v = 0; v < w_.to_step; ++v) {
        const auto phase = static_cast<std::size_t>(r * w_.to_step + v);
        const std::int64_t begin = begins_[phase], count = begins_[phase + 1] - begin;
        micro::Correlation<T>& of_phase = phases[static_cast<std::size_t>(v)];
        of_phase.a = weights_.data() + channel * depth + parts * begin * channels;
        of_phase.b = planes + (has_pairs_ ? m / 2 * PairBand::kParts : m) * pitch_;
        of_phase.offsets = offsets_.data() + begin;
        of_phase.depth = count;
        of_phase.pitch = pitch_;
        taps += count;
      }
      // A pair is computed with its first row.
      const double share = static_cast<double>(taps) * work * (has_pairs_ ? 2 : 1);
      kernels_.stream_row(
          queue,
          {taps == 0 ? nullptr : phases.data(), w_.to_step, bias_ == nullptr ? nullptr : bias_ + channel,
           negative_slope_, to + at * w_.to, h_.to * w_.to, channels, w_.count * at_once, w_.to * at_once,
           at == first, at + at_once == end, taps == 0 || is_second ? micro::Ahead{} : dealer.deal(share),
           has_pairs_, is_second});
    }
  }

  void rectify(T* x, std::int64_t rows, std::int64_t columns, std::int64_t step) const {
    if (negative_slope_ != 1) kernels_.rectify({x, rows, columns, step, negative_slope_});
  }

  /// `rows` rows of phase r of the result of a channel, from `to` on.
  void write(std::int64_t r, const T* in, std::int64_t channel, T* to, std::int64_t rows) const {
    const std::int64_t whole = w_.to / w_.to_step, rest = w_.to % w_.to_step, to_row = h_.to_step * w_.to;
    T start = bias_ == nullptr ? T(0) : bias_[channel];  // where there are no taps
    rectify(&start, 1, 1, 0);
    if (is_empty(r)) {
      for (std::int64_t m = 0; m < rows; ++m) std::fill_n(to + m * to_row, w_.to, start);
      return;
    }
    kernels_.join({in, to, phases_.data(), w_.to_step, whole, rows, pitch_, to_row, start});
    for (std::int64_t m = 0; m < rows && rest > 0; ++m) {
      add_rest(in + m * pitch_, to + m * to_row, whole, rest, start);
    }
  }
  /// The results of a row behind the last that all phases have.
  void add_rest(const T* in, T* out, std::int64_t whole, std::int64_t rest, T start) const {
    for (std::int64_t r = 0; r < rest; ++r) {
      const std::int64_t at = phases_[static_cast<std::size_t>(r)];
      out[whole * w_.to_step + r] = at < 0 ? start : in[at + whole];
    }
  }

  const ConvMap map_;
  const PlaneAxis h_, w_;
  const std::int64_t kernel_w_;
  const Tensor &from_, &to_;
  const T* const bias_;
  const T negative_slope_;
  const micro::Kernels<T>& kernels_;
  const std::int64_t panels_;        // of result channels of a group
  const bool past_caches_, is_far_;  // results: stored past the caches, or asked for before
  const bool is_dense_;
  const bool has_pairs_;  // rows of results are computed in pairs
  const PlaneBand band_;
  const DenseBand dense_;
  const PairBand pairs_;
  const PlaneAxis newest_;
  const PlaneBand one_;      // of the newest rows
  const std::int64_t kept_;  // rows of a plane that a row of results reads
  const bool is_rolling_;
  const std::int64_t pitch_;                    // of results
  const std::int64_t bands_;                    // of an image
  const std::int64_t step_rows_;                // of a part: computed before they are written, or streamed
  std::vector<std::int64_t> phases_;            // of a row of results; -1: no taps
  std::vector<std::int64_t> offsets_, begins_;  // begins_: of a phase
  Scratch<T> weights_;
};

}  // namespace

template <class T>
void correlate(const ConvTranspose2dGeometry& g, Direction direction, const Tensor& from, const Tensor& w,
               const Tensor& bias, const Tensor& to, double negative_slope) {
  Correlate<T>(g, direction, from, w, bias, to, negative_slope).run();
}

template void correlate<float>(const ConvTranspose2dGeometry&, Direction, const Tensor&, const Tensor&,
                               const Tensor&, const Tensor&, double);
template void correlate<double>(const ConvTranspose2dGeometry&, Direction, const Tensor&, const Tensor&,
                                const Tensor&, const Tensor&, double);

}  // namespace tapedeck::cpu
