// The gradients of nchw tensors with y read where it lies, one element at a time (in_place.h):
//
//   x[n,ci,ih,iw]  = bias[ci] + sum over co, kh, kw of y[n,co,oh,ow] * w[ci,co,kh,kw]
//   w[ci,co,kh,kw] = sum over n, ih, iw of x[n,ci,ih,iw] * y[n,co,oh,ow]
//
// Both go over the rows of y, some channels at a time. A row meets all rows of x that a tap takes to it; each
// of these has vectors of its own, so that an element that was loaded meets several. What is read next is
// asked for meanwhile. Only some channels: where planes are of a power of two, their rows share the sets of
// the caches.
//
// Sums of x are made in the cache, for a band of rows, as pixels with their channels side by side, and are
// transposed to where they belong; for the weight gradient x is copied to such pixels. There, bands of rows
// of y are dealt to a fixed number of parts, each of which sums its own in order; the parts are then added in
// order, so that results do not depend on the threads.
//
// Pixels beside the columns of x that share a vector with some of it are zeros: what is not finite in y can
// spoil sums of weights at the border.
#include <tapedeck/ops/conv/in_place.h>

#include <algorithm>
#include <vector>

#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/micro/made_of.h>

namespace tapedeck::cpu {

namespace {

/// Part i of n nearly equal ones begins here.
constexpr std::int64_t part(std::int64_t whole, std::int64_t i, std::int64_t n) {
  return whole * i / n;
}
constexpr std::int64_t parts_of(std::int64_t whole, std::int64_t most) {
  return std::max<std::int64_t>(1, (whole + most - 1) / most);
}

/// What both gradients know. Weights, and their sums, are in the order
///   [group][class][tap of a place][co][slot of the class][lane]
/// where a class is the taps along h that meet the same rows of y: slots that follow each other (plan.h).
template <class T>
class InPlace {
 protected:
  explicit InPlace(const ConvTranspose2dGeometry& g)
      : g_(g),
        kernels_(micro::kernels<T>()),
        fold_(g.w, g.group_ci(), kernels_.lanes),
        h_(transposed_plan(g.h)),
        plane_(g.h.out * g.w.out),
        lanes_of_place_(fold_.width / kernels_.lanes),
        group_count_(g.h.kernel * fold_.axis.kernel * g.group_co() * fold_.width) {
    const std::int64_t step = g.h.tap_step();
    for (std::int64_t k = 0; k < std::min(step, g.h.kernel); ++k) {
      const auto slot = static_cast<std::int64_t>(classes_.size()),
                 count = ConvAxis::ceil_div(g.h.kernel - k, step);
      classes_.insert(classes_.end(), static_cast<std::size_t>(count), {slot, count});
    }
  }

  struct Class {
    std::int64_t slot, count;
  };

  /// What a row of y meets of rows [begin, end) of x: slots [slot, slot + slots) of their class, the first at
  /// row `from`.
  Window window(std::int64_t o, std::int64_t begin, std::int64_t end) const {
    Window w = h_.windows[static_cast<std::size_t>(o)];
    const std::int64_t step = h_.slot_step;
    const std::int64_t skipped = std::max<std::int64_t>(0, ConvAxis::ceil_div(begin - w.from, step));
    w.slots = std::min(w.slots, ConvAxis::ceil_div(end - w.from, step)) - skipped;
    w.slot += skipped;
    w.from += skipped * step;
    return w.slots > 0 ? w : Window{};
  }

  /// Where the elements of a slot, a place's tap and channel t of y are.
  std::int64_t index(std::int64_t group, std::int64_t slot, std::int64_t r, std::int64_t t) const {
    const Class& taps = classes_[static_cast<std::size_t>(slot)];
    const std::int64_t before = taps.slot * fold_.axis.kernel * g_.group_co();
    return group * group_count_ +
           (before + (r * g_.group_co() + t) * taps.count + slot - taps.slot) * fold_.width;
  }
  /// From channel to channel of y.
  std::int64_t channel_step(std::int64_t slot) const {
    return classes_[static_cast<std::size_t>(slot)].count * fold_.width;
  }
  /// Calls f(kh, k, r, lane) for each tap and the element of a place's tap r that it is.
  template <class F>
  void for_each_tap(F f) const {
    for (std::int64_t kh = 0; kh < g_.h.kernel; ++kh) {
      for (std::int64_t r = 0; r < fold_.axis.kernel; ++r) {
        for (std::int64_t j = 0; j < fold_.columns; ++j) {
          const std::int64_t k = fold_.tap(r, j);
          if (k >= 0) f(kh, k, r, j * g_.group_ci());
        }
      }
    }
  }

  const T* row_of(const Tensor& y, std::int64_t n, std::int64_t group, std::int64_t t, std::int64_t o) const {
    return y.data<T>() + ((n * g_.groups + group) * g_.group_co() + t) * plane_ + o * g_.w.out;
  }
  /// Appends the lines of a row of channels [t, end) of y that places [first, last) read.
  void append(const Tensor& y, std::int64_t n, std::int64_t group, std::int64_t t, std::int64_t end,
              std::int64_t o, std::int64_t first, std::int64_t last, LineList& lines) const {
    const std::int64_t left = std::clamp<std::int64_t>(fold_.axis.output(first, 0), 0, g_.w.out);
    const std::int64_t right =
        std::clamp<std::int64_t>(fold_.axis.output(last - 1, fold_.axis.kernel - 1) + 1, left, g_.w.out);
    const T* const rows = row_of(y, n, group, t, o) + left;
    for (std::int64_t i = 0; i < end - t; ++i) append_lines(rows + i * plane_, right - left, lines);
  }

  /// Calls f(first, vectors, offsets) for vectors of slots that follow each other: vectors [first, first +
  /// vectors) of them, offsets[i] being where that of i lies in rows `row` elements apart.
  template <class F>
  void for_each_panel(std::int64_t slots, std::int64_t row, F f) const {
    const std::int64_t all = slots * lanes_of_place_, panels = parts_of(all, kernels_.max_vectors);
    std::int64_t offsets[8];
    for (std::int64_t i = 0; i < panels; ++i) {
      const std::int64_t first = part(all, i, panels), count = part(all, i + 1, panels) - first;
      for (std::int64_t v = 0; v < count; ++v) {
        offsets[v] = (first + v) / lanes_of_place_ * row + (first + v) % lanes_of_place_ * kernels_.lanes;
      }
      f(first, count, offsets);
    }
  }

  const ConvTranspose2dGeometry& g_;
  const micro::Kernels<T>& kernels_;
  const FoldedAxis fold_;
  const AxisPlan h_;                   // of rows of y
  const std::int64_t plane_;           // elements of a channel of y
  const std::int64_t lanes_of_place_;  // vectors
  const std::int64_t group_count_;     // weights of a group
  std::vector<Class> classes_;         // of each slot
};

/// The input gradient. An item of work is a band of rows of x, of an image and a group, and some of its
/// columns.
template <class T>
class InputGrad : InPlace<T> {
 public:
  InputGrad(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
            const Tensor& x, double negative_slope)
      : InPlace<T>(g),
        y_(y),
        x_(x),
        bias_(bias.defined() ? bias.data<T>() : nullptr),
        negative_slope_(static_cast<T>(negative_slope)),
        w_(plain_plan(fold_.axis)),
        chunks_(parts_of(g.w.in, kPlaces)),
        places_(parts_of(g.w.in, chunks_) + fold_.columns - 1),
        bands_(std::min(g.h.in, std::max(parts_of(g.h.in, kBandRows),
                                         kItems / std::max<std::int64_t>(1, g.n * g.groups * chunks_)))),
        blocks_(parts_of(g.group_co(), in_place_channels<T>(g))),
        weights_(packed(w)) {}

  void run() {
    parallel_for(g_.n * g_.groups * bands_ * chunks_, 1, [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> sums(parts_of(g_.h.in, bands_) * places_ * fold_.width + fold_.width);
      std::vector<micro::Run> runs;
      std::vector<Step> steps, next;
      if (begin < end) list_steps(item_at(begin), steps);
      for (std::int64_t i = begin; i < end; ++i, steps.swap(next)) {
        const Item item = item_at(i);
        next.clear();
        if (i + 1 < end) list_steps(item_at(i + 1), next);
        std::int64_t begun = item.row, written = item.row;
        for (std::size_t k = 0; k < steps.size(); ++k) {
          const Step& step = steps[k];
          for (; begun < step.x_end; ++begun) begin_row(item, begun, sums.data());
          add(item, step,
              k + 1 < steps.size() ? &steps[k + 1]
              : next.empty()       ? nullptr
                                   : next.data(),
              sums.data(), runs);
          for (; written < step.x_done; ++written) write(item, written, sums.data());
        }
        for (; begun < item.row_end; ++begun) begin_row(item, begun, sums.data());
        for (; written < item.row_end; ++written) write(item, written, sums.data());
      }
    });
  }

 private:
  using InPlace<T>::g_;
  using InPlace<T>::kernels_;
  using InPlace<T>::fold_;
  using InPlace<T>::plane_;

  static constexpr std::int64_t kPlaces = 160;  // of a row whose sums stay in the nearest cache
  static constexpr std::int64_t kBandRows = 32;
  static constexpr std::int64_t kItems = 32;  // that keep many threads busy

  /// Rows [row, row_end) and columns [first, last) of x.
  struct Item {
    std::int64_t n, group, row, row_end, first, last;
  };
  Item item_at(std::int64_t i) const {
    const std::int64_t chunk = i % chunks_, band = i / chunks_ % bands_, image = i / chunks_ / bands_;
    return {image / g_.groups,
            image % g_.groups,
            part(g_.h.in, band, bands_),
            part(g_.h.in, band + 1, bands_),
            part(g_.w.in, chunk, chunks_),
            part(g_.w.in, chunk + 1, chunks_)};
  }
  /// Channels [t, t_end) of a row of y, which meets rows of x before x_end; no later one meets those before
  /// x_done.
  struct Step {
    Item item;
    std::int64_t o, t, t_end, x_end, x_done;
    Window window;
  };
  void list_steps(const Item& item, std::vector<Step>& steps) const {
    const std::int64_t begin = std::max<std::int64_t>(0, g_.h.output(item.row, 0)),
                       end = std::min(g_.h.out, g_.h.output(item.row_end - 1, g_.h.kernel - 1) + 1);
    for (std::int64_t o = begin; o < end; ++o) {
      const Window window = this->window(o, item.row, item.row_end);
      for (std::int64_t block = 0; window.slots > 0 && block < blocks_; ++block) {
        const bool last = block + 1 == blocks_;
        steps.push_back({item, o, part(g_.group_co(), block, blocks_),
                         part(g_.group_co(), block + 1, blocks_),
                         window.from + (window.slots - 1) * this->h_.slot_step + 1,
                         last ? done_with(o, item) : item.row, window});
      }
    }
  }

  /// The first row of an item that a row of y behind o meets.
  std::int64_t done_with(std::int64_t o, const Item& item) const {
    const std::int64_t last = (g_.h.kernel - 1) * g_.h.dilation - g_.h.padding;  // that row 0 of x meets
    return std::clamp(ConvAxis::floor_div(o - last, g_.h.stride) + 1, item.row, item.row_end);
  }

  Scratch<T> packed(const Tensor& w) const {
    MadeKey key{Maker::in_place,
                {g_.groups, g_.group_ci(), g_.group_co(), g_.h.kernel, g_.w.kernel, g_.h.tap_step(),
                 g_.w.stride, fold_.columns}};
    return made_of<T>(w, std::move(key), [&] {
      constexpr std::int64_t kTogether = 16;  // channels of y
      const std::int64_t ci = g_.group_ci(), co = g_.group_co(), taps = g_.h.kernel * g_.w.kernel,
                         steps = parts_of(co, kTogether);
      const Scratch<T> to(g_.groups * this->group_count_);
      parallel_for(
          g_.groups * steps, 1 + (1 << 13) / (this->group_count_ / steps),
          [&](std::int64_t begin, std::int64_t end) {
            std::vector<std::int64_t> offsets(static_cast<std::size_t>(kTogether * taps));
            for (std::int64_t i = begin; i < end; ++i) {
              const std::int64_t group = i / steps, first = part(co, i % steps, steps),
                                 count = part(co, i % steps + 1, steps) - first;
              for (std::int64_t t = first; t < first + count; ++t) {
                for (std::int64_t slot = 0; slot < g_.h.kernel; ++slot) {
                  for (std::int64_t r = 0; r < fold_.axis.kernel; ++r) {
                    std::fill_n(to.data() + this->index(group, slot, r, t), fold_.width, T(0));
                  }
                }
                this->for_each_tap([&](std::int64_t kh, std::int64_t k, std::int64_t r, std::int64_t lane) {
                  offsets[static_cast<std::size_t>((t - first) * taps + kh * g_.w.kernel + k)] =
                      this->index(group, this->h_.slot_of_tap[static_cast<std::size_t>(kh)], r, t) + lane;
                });
              }
              kernels_.transpose({w.data<T>() + (group * ci * co + first) * taps, co * taps, ci, count * taps,
                                  to.data(), 0, offsets.data()});
            }
          });
      return to;
    });
  }

  T* row_of_sums(const Item& item, std::int64_t row, T* sums) const {
    return sums + (row - item.row) * places_ * fold_.width;
  }
  /// [place][lane]: the bias, which each pixel has once, as the first of a place.
  void begin_row(const Item& item, std::int64_t row, T* sums) const {
    T* const to = row_of_sums(item, row, sums);
    const std::int64_t ci = g_.group_ci();
    std::fill_n(to, places_ * fold_.width, T(0));
    for (std::int64_t i = 0; i < places_ && bias_ != nullptr; ++i) {
      std::copy_n(bias_ + item.group * ci, ci, to + i * fold_.width);
    }
  }

  void add(const Item& item, const Step& step, const Step* next, T* sums,
           std::vector<micro::Run>& runs) const {
    const Window& h = step.window;
    Dealer& dealer = Dealer::of_this_thread(y_.bytes() + x_.bytes());
    LineList& lines = dealer.begin(static_cast<double>(h.slots * this->lanes_of_place_) *
                                   static_cast<double>(item.last - item.first + fold_.columns - 1));
    if (dealer.asks() && next != nullptr) {
      this->append(y_, next->item.n, next->item.group, next->t, next->t_end, next->o, next->item.first,
                   next->item.last + fold_.columns - 1, lines);
    }
    const T* const row = this->row_of(y_, item.n, item.group, step.t, step.o);
    T* const first_row = row_of_sums(item, h.from, sums);
    this->for_each_panel(
        h.slots, h_step(), [&](std::int64_t first, std::int64_t vectors, const std::int64_t* offsets) {
          for (const Segment& s : w_.segments) {
            const std::int64_t begin = std::max(item.first, s.to),
                               count = std::min(item.last + fold_.columns - 1, s.to + s.count) - begin;
            if (count <= 0 || s.slots == 0) continue;
            runs.clear();
            for (std::int64_t k = 0; k < s.slots; ++k) {
              runs.push_back({k * w_.slot_step,
                              this->index(item.group, h.slot, s.slot + k, step.t) + first * kernels_.lanes,
                              step.t_end - step.t});
            }
            kernels_.rows_apart({row + s.from + (begin - s.to) * s.from_step, s.from_step, plane_,
                                 weights_.data(), this->channel_step(h.slot), runs.data(),
                                 static_cast<std::int64_t>(runs.size()),
                                 first_row + (begin - item.first) * fold_.width, fold_.width, offsets,
                                 vectors, count, dealer.deal(static_cast<double>(vectors * count))});
          }
        });
  }
  /// Elements of sums between the rows of x that a row of y meets.
  std::int64_t h_step() const { return this->h_.slot_step * places_ * fold_.width; }

  /// A row of x from the sums of its places.
  void write(const Item& item, std::int64_t row, T* sums) const {
    const std::int64_t ci = g_.group_ci(), count = item.last - item.first, image = g_.h.in * g_.w.in;
    T* const from = row_of_sums(item, row, sums);
    T* const to =
        x_.data<T>() + ((item.n * g_.groups + item.group) * ci * g_.h.in + row) * g_.w.in + item.first;
    if (fold_.columns > 1) kernels_.unfold(from, count, fold_.columns, ci);
    kernels_.transpose({from, fold_.width, count, ci, to, image, nullptr});
    if (negative_slope_ != 1) kernels_.rectify({to, ci, count, image, negative_slope_});
  }

  const Tensor &y_, &x_;
  const T* const bias_;
  const T negative_slope_;
  const AxisPlan w_;           // of places
  const std::int64_t chunks_;  // of a row of x
  const std::int64_t places_;  // of a row of a band, at most
  const std::int64_t bands_;   // of an image
  const std::int64_t blocks_;  // of channels of y
  const Scratch<T> weights_;
};

/// The weight gradient. Its bands are of rows of y.
template <class T>
class WeightGrad : InPlace<T> {
 public:
  WeightGrad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w)
      : InPlace<T>(g),
        x_(x),
        y_(y),
        w_(w),
        pixel_(fold_.columns > 1 ? g.group_ci() : fold_.width),
        row_((g.w.in + 2 * (fold_.columns - 1)) * pixel_),
        bands_(parts_of(g.h.in, in_place_band<T>(g, tile()))),
        count_(g.groups * this->group_count_),
        parts_(in_place_parts<T>(count_, g.n * bands_)) {
    for (std::int64_t i = 0; i < bands_; ++i)
      make_band(part(g.h.out, i, bands_), part(g.h.out, i + 1, bands_));
  }

  void run() {
    const Scratch<T> sums(parts_ * count_);
    std::int64_t rows = 0;
    for (const Band& band : band_) rows = std::max(rows, band.x_end - band.x);
    parallel_for(parts_, 1, [&](std::int64_t begin, std::int64_t end) {
      const Scratch<T> pixels(rows * row_ + fold_.width);  // vectors may reach beyond the last
      std::fill_n(pixels.data(), rows * row_ + fold_.width, T(0));
      std::vector<micro::Run> runs;
      for (std::int64_t i = begin; i < end; ++i) {
        T* const to = sums.data() + i * count_;
        std::fill_n(to, count_, T(0));
        const std::int64_t all = g_.n * bands_, first = part(all, i, parts_) * g_.groups,
                           last = part(all, i + 1, parts_) * g_.groups;
        for (std::int64_t k = first; k < last; ++k)
          add(item_at(k), item_at(std::min(k + 1, last - 1)), pixels.data(), to, runs);
      }
    });
    write(sums.data());
  }

 private:
  using InPlace<T>::g_;
  using InPlace<T>::kernels_;
  using InPlace<T>::fold_;
  using InPlace<T>::plane_;

  /// Rows of y that meet equally many rows of x: first, first + step, ..., the first at row `from` of x,
  /// where each next one is a row further.
  struct Rows {
    std::int64_t first, count;
    Window window;
  };
  /// Rows [x, x_end) of x are what they meet.
  struct Band {
    std::vector<Rows> rows;
    std::vector<std::int64_t> all;  // rows of y
    std::int64_t x, x_end;
  };
  void make_band(std::int64_t begin, std::int64_t end) {
    Band band{{}, {}, g_.h.in, 0};
    for (std::int64_t o = begin; o < end; ++o) {
      const Window& w = this->h_.windows[static_cast<std::size_t>(o)];
      if (w.slots == 0) continue;
      band.x = std::min(band.x, w.from);
      band.x_end = std::max(band.x_end, w.from + (w.slots - 1) * this->h_.slot_step + 1);
      band.all.push_back(o);
      const auto follows = [&](const Rows& r) {
        return r.first + r.count * g_.h.stride == o && r.window.slot == w.slot && r.window.slots == w.slots &&
               r.window.from + r.count == w.from;
      };
      const auto before = std::find_if(band.rows.begin(), band.rows.end(), follows);
      if (before != band.rows.end()) {
        ++before->count;
      } else {
        band.rows.push_back({o, 1, w});
      }
    }
    band.x = std::min(band.x, band.x_end);
    band_.push_back(std::move(band));
  }

  struct Item {
    std::int64_t n, group;
    const Band& band;
  };
  Item item_at(std::int64_t i) const {
    return {i / g_.groups / bands_, i % g_.groups, band_[static_cast<std::size_t>(i / g_.groups % bands_)]};
  }

  void add(const Item& at, const Item& next, T* pixels, T* sums, std::vector<micro::Run>& runs) const {
    const Band& band = at.band;
    const std::int64_t ci = g_.group_ci(), co = g_.group_co(), image = g_.h.in * g_.w.in;
    const T* const x = x_.data<T>() + (at.n * g_.groups + at.group) * ci * image;
    for (std::int64_t i = band.x; i < band.x_end; ++i) {
      kernels_.transpose({x + i * g_.w.in, image, ci, g_.w.in,
                          pixels + (i - band.x) * row_ + (fold_.columns - 1) * pixel_, pixel_, nullptr});
    }
    Dealer& dealer = Dealer::of_this_thread(y_.bytes() + x_.bytes());
    const std::int64_t block = tile(), blocks = parts_of(co, block);
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::int64_t t = part(co, b, blocks), t_end = part(co, b + 1, blocks);
      LineList& lines = dealer.begin(static_cast<double>(band.all.size()));
      const Item& then = b + 1 < blocks ? at : next;
      const std::int64_t then_b = b + 1 < blocks ? b + 1 : 0;
      if (dealer.asks()) {
        for (const std::int64_t o : then.band.all) {
          this->append(y_, then.n, then.group, part(co, then_b, blocks), part(co, then_b + 1, blocks), o, 0,
                       fold_.axis.in, lines);
        }
      }
      for (const Rows& rows : band.rows) {
        const Window& h = rows.window;
        const T* const y = this->row_of(y_, at.n, at.group, t, rows.first);
        const double share =
            static_cast<double>(rows.count) / static_cast<double>(fold_.axis.kernel) /
            static_cast<double>(parts_of(h.slots * this->lanes_of_place_, kernels_.max_vectors));
        for (std::int64_t r = 0; r < fold_.axis.kernel; ++r) {
          const std::int64_t place = fold_.axis.input_begin(r), places = fold_.axis.input_end(r) - place;
          runs.clear();
          for (std::int64_t i = 0; i < rows.count && places > 0; ++i) {
            runs.push_back({i * g_.h.stride * g_.w.out + fold_.axis.output(place, r),
                            (h.from + i - band.x) * row_ + place * pixel_, places});
          }
          this->for_each_panel(
              h.slots, this->h_.slot_step * row_,
              [&](std::int64_t first, std::int64_t vectors, const std::int64_t* offsets) {
                kernels_.outer_apart({y, plane_, g_.w.stride, pixels, pixel_, runs.data(),
                                      static_cast<std::int64_t>(runs.size()),
                                      sums + this->index(at.group, h.slot, r, t) + first * kernels_.lanes,
                                      this->channel_step(h.slot), offsets, vectors, t_end - t,
                                      dealer.deal(share)});
              });
        }
      }
    }
  }
  /// Channels of y at a time: a tile, since each tap reads their rows anew.
  std::int64_t tile() const {
    const std::int64_t slots = std::max<std::int64_t>(1, this->classes_[0].count),
                       all = slots * this->lanes_of_place_;
    return kernels_.apart_rows[parts_of(all, parts_of(all, kernels_.max_vectors))];
  }

  /// w from the sums: parts in order, each lane to its tap.
  void write(T* sums) const {
    parallel_for(parts_ > 1 ? count_ : 0, 1 << 12, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 1; i < parts_; ++i) {
        for (std::int64_t k = begin; k < end; ++k) sums[k] += sums[i * count_ + k];
      }
    });
    const std::int64_t ci = g_.group_ci(), co = g_.group_co(), taps = g_.h.kernel * g_.w.kernel;
    parallel_for(g_.ci, 1 + (1 << 13) / (co * taps), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) {
        this->for_each_tap([&](std::int64_t kh, std::int64_t k, std::int64_t r, std::int64_t lane) {
          const std::int64_t slot = this->h_.slot_of_tap[static_cast<std::size_t>(kh)],
                             step = this->channel_step(slot);
          const T* const from = sums + this->index(c / ci, slot, r, 0) + lane + c % ci;
          T* const to = w_.data<T>() + c * co * taps + kh * g_.w.kernel + k;
          for (std::int64_t t = 0; t < co; ++t) to[t * taps] = from[t * step];
        });
      }
    });
  }

  const Tensor &x_, &y_, &w_;
  const std::int64_t pixel_, row_;    // elements, of copied x
  const std::int64_t bands_;          // of an image
  const std::int64_t count_, parts_;  // of sums
  std::vector<Band> band_;
};

}  // namespace

template <class T>
void in_place_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                    const Tensor& x, double negative_slope) {
  InputGrad<T>(g, y, w, bias, x, negative_slope).run();
}
template <class T>
void in_place_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                          const Tensor& w) {
  WeightGrad<T>(g, x, y, w).run();
}

template void in_place_plain<float>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                    const Tensor&, const Tensor&, double);
template void in_place_plain<double>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                     const Tensor&, const Tensor&, double);
template void in_place_weight_grad<float>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                          const Tensor&);
template void in_place_weight_grad<double>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                           const Tensor&);

}  // namespace tapedeck::cpu
