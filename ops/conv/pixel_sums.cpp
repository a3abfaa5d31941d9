// The weight gradient on planes, for nchw tensors: the lanes of vectors are pixels.
//
//   w[(g,f),t,kh,kw] = sum over n, ih, iw of x[n,(g,f),ih,iw] * y[n,(g,t),ih*stride - padding + kh*dilation,
//   ...]
//
// y is split into the phases of its plain direction (planes.h), x is copied with zeros between its rows, and
// both then have one pitch: the sum of a tap over a band of rows is one dot product, or one a row, whose y
// begins at the tap's offset. A tile is a few channels of x with some (t, kh, kw). The zeros of x meet
// elements of y that its tap does not reach, so what is not finite there spoils the sums.
//
// Several images that fit the cache are summed together. Bands of rows of all images are dealt to a fixed
// number of parts, each of which sums its own in order; the parts are then added in order, so that results do
// not depend on the threads.
#include <algorithm>

#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/planes.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kPlaneBytes = 384 << 10;     // of x and y, in the cache of a core
constexpr std::int64_t kTogetherBytes = 128 << 10;  // of images that are summed together
constexpr std::int64_t kParts = 16;                 // of each sum, if there is one group
constexpr std::int64_t kLongSum = 1024;             // pixels
constexpr std::int64_t kFewChannels = 4;
constexpr std::int64_t kPartBytes = 8 << 20;  // of all parts

/// Bands of so many rows, for which so many channels of y are copied at a time: all of them, if sums over as
/// many pixels as fit the cache beside them are long enough to pay for their ends.
struct Blocks {
  std::int64_t rows, channels;
};

template <class T>
Blocks blocks(const ConvTranspose2dGeometry& g, const PlaneAxis& h, const PlaneAxis& w, bool is_dense) {
  Blocks b{1, g.group_co()};
  const auto fit = [&](std::int64_t rows) {
    const PlaneBand band(h, w, rows, micro::kernels<T>().lanes);
    const std::int64_t y_channel = is_dense ? DenseBand(band).channel : band.channel;
    return (b.channels * y_channel + g.group_ci() * rows * band.pitch) *
               static_cast<std::int64_t>(sizeof(T)) <=
           kPlaneBytes;
  };
  for (;; b.channels = (b.channels + 1) / 2) {
    while (b.rows < g.h.in && fit(b.rows + 1)) ++b.rows;
    if (b.rows == g.h.in || b.rows * g.w.in >= kLongSum || b.channels <= kFewChannels) break;
  }
  const std::int64_t bands = (g.h.in + b.rows - 1) / b.rows;
  b.rows = (g.h.in + bands - 1) / bands;
  return b;
}

}  // namespace

template <class T>
void pixel_sums(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  const auto& kernels = micro::kernels<T>();
  const PlaneAxis h_axis(g.h, Direction::plain), w_axis(g.w, Direction::plain);
  const bool is_dense = DenseBand::is_worth_it(h_axis, w_axis, g.group_co(), g.group_ci());
  const Blocks chosen = blocks<T>(g, h_axis, w_axis, is_dense);
  const std::int64_t block = chosen.channels;
  const PlaneBand band(h_axis, w_axis, chosen.rows, kernels.lanes);
  const DenseBand dense(band);
  const std::int64_t bands = (g.h.in + band.rows - 1) / band.rows;
  const std::int64_t read = g.group_ci(), taps = g.h.kernel * g.w.kernel, columns = g.group_co() * taps;
  const std::int64_t x_channel = band.in_vectors(band.rows * band.pitch);
  std::vector<std::int64_t> offsets;
  for (std::int64_t t = 0; t < block; ++t) {
    for (const PlaneTap& kh : h_axis.phases[0].taps) {
      for (const PlaneTap& kw : w_axis.phases[0].taps) {
        offsets.push_back(is_dense ? t * dense.channel + dense.offset(kh, &kw - dense.taps.data())
                                   : t * band.channel + band.offset(kh, kw));
      }
    }
  }

  const std::int64_t y_planes = band.template elements<T>(block);
  const std::int64_t y_image = is_dense ? block * dense.channel : y_planes;
  const std::int64_t x_image = read * x_channel, x_plane = g.h.in * g.w.in;
  const std::int64_t most_parts = std::max<std::int64_t>(
      1, std::min(kParts / g.groups, kPartBytes / static_cast<std::int64_t>(w.bytes())));
  const std::int64_t together =  // images of an item
      bands > 1 ? 1
                : std::clamp<std::int64_t>(
                      kTogetherBytes / ((x_image + y_image) * static_cast<std::int64_t>(sizeof(T))), 1,
                      std::max<std::int64_t>(1, g.n / most_parts));
  const std::int64_t items = (g.n + together - 1) / together * bands, parts = std::min(most_parts, items);
  const Scratch<T> partial(parts == 1 ? 0 : parts * w.count());
  T* const sums = parts == 1 ? w.data<T>() : partial.data();
  const std::int64_t nowhere_else = 0;  // the one phase of x
  parallel_for(parts * g.groups, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<T> planes(is_dense ? y_planes : together * y_planes);
    const Scratch<T> rows(is_dense ? together * y_image : together * x_image);  // of dense y, or of x
    std::fill_n(planes.data(), is_dense ? y_planes : together * y_planes, T(0));
    if (!is_dense) std::fill_n(rows.data(), together * x_image, T(0));
    Dealer& dealer = Dealer::of_this_thread(x.bytes() + y.bytes());
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t part = i / g.groups, group = i % g.groups;
      T* const out = sums + part * w.count() + group * read * columns;
      std::fill_n(out, read * columns, T(0));
      for (std::int64_t item = items * part / parts; item < items * (part + 1) / parts; ++item) {
        const std::int64_t first = item / bands * together, row = item % bands * band.rows;
        const std::int64_t images = std::min(together, g.n - first),
                           count = std::min(band.rows, g.h.in - row);
        for (std::int64_t k = 0; !is_dense && k < images * read; ++k) {
          const std::int64_t n = k / read, f = k % read;
          const T* in = x.data<T>() + ((first + n) * g.ci + group * read + f) * x_plane + row * g.w.in;
          T* to = rows.data() + n * x_image + f * x_channel;
          kernels.split({in, to, &nowhere_else, 1, g.w.in, count, g.w.in, band.pitch});
        }
        for (std::int64_t t = 0; t < g.group_co(); t += block) {
          const std::int64_t channels = std::min(block, g.group_co() - t);
          for (std::int64_t n = 0; n < images; ++n) {
            T* const image = planes.data() + (is_dense ? 0 : n * y_image);
            band.load(y, first + n, group * g.group_co() + t, channels, row, image);
            if (is_dense) dense.load(image, channels, rows.data() + n * y_image);
          }
          LineList& lines = dealer.begin(1);
          const bool last = t + block >= g.group_co();
          const std::int64_t next = last ? item + 1 : item, next_t = last ? 0 : t + block;
          if (dealer.asks() && together == 1 && next < items * (part + 1) / parts) {
            band.template lines<T>(y, next / bands, group * g.group_co() + next_t,
                                   std::min(block, g.group_co() - next_t), next % bands * band.rows, lines);
          }
          const PlaneBand::Runs runs = is_dense ? PlaneBand::Runs{count * g.w.in, 1} : band.runs(count);
          micro::PixelSums<T> task{rows.data(), x_channel, planes.data(),   offsets.data(), out + t * taps,
                                   columns,     read,      channels * taps, runs.count,     runs.runs,
                                   band.pitch,  images,    x_image,         y_image};
          if (is_dense) {
            task.a = x.data<T>() + (first * g.ci + group * read) * x_plane + row * g.w.in;
            task.a_step = x_plane;
            task.a_image = g.ci * x_plane;
            task.b = rows.data();
          }
          task.ahead = dealer.deal(1);
          kernels.pixel_sums(task);
        }
      }
    }
  });
  if (parts == 1) return;
  parallel_for(w.count(), 1 << 12, [&](std::int64_t begin, std::int64_t end) {
    T* out = w.data<T>();
    std::copy(sums + begin, sums + end, out + begin);
    for (std::int64_t part = 1; part < parts; ++part) {
      const T* add = sums + part * w.count();
      for (std::int64_t i = begin; i < end; ++i) out[i] += add[i];
    }
  });
}

template void pixel_sums<float>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&, const Tensor&);
template void pixel_sums<double>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&, const Tensor&);

}  // namespace tapedeck::cpu
