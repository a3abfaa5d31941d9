// Groups of one channel at stride 2 along w, for nchw tensors: memory is what they cost, so each element of y
// is loaded or stored once, where it is.
//
//   y[n,c,oh,2m+r] = bias[c]
//                    + sum over the taps of row oh and of column phase r of x[n,c,ih,m+shift] * w[c,k]
//
// Kernels split and join the column phases of y in registers (micro/pairs.inl), and pixels of a row are
// lanes. In the transposed direction rows of x, which is the smaller, are copied between zeros; the other two
// read y in place. Work is split into bands of rows of a channel that the nearest caches hold, so that a tap
// finds there what another has read; for the weight gradient into channels and some parts of the images,
// whose sums are added in order. There a row of y serves two rows of taps at once.
//
// Zeros around a row meet weights, so that weights that are not finite spoil results at the border; likewise
// what y has behind the last element of x, in sums of the weight gradient.
#include <algorithm>

#include <tapedeck/core/parallel.h>
#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/conv/planes.h>

namespace tapedeck::cpu {

namespace {

constexpr std::int64_t kLine = 16;               // elements of a line of memory
constexpr std::int64_t kBandBytes = 64 << 10;    // of y, of a channel
constexpr std::int64_t kStreamBytes = 16 << 20;  // of results from which on they go past the caches
constexpr std::int64_t kParts = 16;              // of each sum of the weight gradient

std::int64_t lanes_of_vector() {
  return micro::kernels<float>().lanes;
}

/// Rows of x that kBandBytes of y meet, at most `rows`, in nearly equal bands.
std::int64_t band_rows(const ConvTranspose2dGeometry& g, std::int64_t rows) {
  const std::int64_t row = g.h.stride * g.w.out * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t most = std::clamp<std::int64_t>(kBandBytes / row, 1, rows),
                     bands = (rows + most - 1) / most;
  return (rows + bands - 1) / bands;
}

}  // namespace

bool is_depthwise(const ConvTranspose2dGeometry& g) {
  return micro::kernels<float>().spread_pairs != nullptr && g.group_ci() == 1 && g.group_co() == 1 &&
         g.w.stride == 2 && g.w.dilation == 1 && g.w.kernel >= 2 && g.w.kernel <= micro::kMaxPairTaps &&
         g.w.padding <= micro::kMaxPairPadding;
}

void depthwise_transposed(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& w,
                          const Tensor& bias, const Tensor& y, double negative_slope) {
  const auto& kernels = micro::kernels<float>();
  const PlaneAxis h(g.h, Direction::transposed);
  const std::int64_t band = band_rows(g, h.count), bands = (h.count + band - 1) / band;
  // Rows of x as kernels read them: a vector of zeros, what pairs of vectors of results need, and one more.
  const std::int64_t lanes = lanes_of_vector(), pairs = (g.w.out + 1) / 2,
                     pitch = (pairs + lanes - 1) / lanes * lanes + 3 * lanes;
  const std::int64_t copied = band + h.last - h.first, columns = std::min(g.w.in, pitch - lanes);
  const std::int64_t y_row = g.h.stride * g.w.out, taps = g.h.kernel * g.w.kernel;
  const bool past_caches = y.bytes() >= kStreamBytes;
  // Kernels store whole vectors past the caches, and rows of another phase follow later.
  const bool is_aligned = g.w.out % kLine == 0 && reinterpret_cast<std::uintptr_t>(y.raw()) % 64 == 0;
  const std::int64_t buffered = past_caches && !is_aligned ? band * y_row : 0;
  parallel_for(
      g.n * g.ci * bands, 1 + (1 << 14) / (1 + band * y_row), [&](std::int64_t begin, std::int64_t end) {
        const Scratch<float> rows(copied * pitch), buffer(buffered);
        std::fill_n(rows.data(), copied * pitch, 0.0F);
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t plane = i / bands, c = plane % g.ci, row = i % bands * band;
          for (std::int64_t k = 0; k < copied; ++k) {
            const std::int64_t ih = row + h.first + k;
            const bool inside = ih >= 0 && ih < g.h.in;
            float* const to = rows.data() + k * pitch + lanes;
            inside ? std::copy_n(x.data<float>() + (plane * g.h.in + ih) * g.w.in, columns, to)
                   : std::fill_n(to, columns, 0.0F);
          }
          float* const to = y.data<float>() + plane * g.h.out * g.w.out + row * y_row;
          float* const out = buffered > 0 ? buffer.data() : to;
          for (std::int64_t r = 0; r < g.h.stride; ++r) {
            const PlanePhase& phase = h.phases[static_cast<std::size_t>(r)];
            micro::PairTask task{};
            task.at = -g.w.padding;
            task.tap_count = g.w.kernel;
            task.tap_rows = static_cast<std::int64_t>(phase.taps.size());
            task.tap_row = -g.h.input_step() * pitch;
            task.weights = w.data<float>() + c * taps;
            task.weight_row = g.h.tap_step() * g.w.kernel;
            task.start = bias.defined() ? bias.data<float>()[c] : 0.0F;
            task.negative_slope = static_cast<float>(negative_slope);
            task.from = rows.data() + lanes;
            if (task.tap_rows > 0) {
              task.weights += phase.taps[0].tap * g.w.kernel;
              task.from += (phase.taps[0].shift - h.first) * pitch;
            }
            task.from_row = pitch;
            task.to = out + r * g.w.out;
            task.to_row = y_row;
            task.rows = std::min(band, phase.count - row);
            task.width = g.w.out;
            task.past_caches = past_caches && is_aligned;
            // The rows of x of the next item, a share for each phase.
            const std::int64_t share = band * g.w.in / g.h.stride;
            const std::int64_t next = (plane * g.h.in + row + band + h.last) * g.w.in + r * share;
            task.ahead = x.data<float>() + std::min(next, x.count());
            task.ahead_count = std::clamp<std::int64_t>(x.count() - next, 0, share);
            kernels.spread_pairs(task);
          }
          if (buffered > 0)
            kernels.stream(to, out, std::min(band * g.h.stride, g.h.out - row * g.h.stride) * g.w.out);
        }
      });
}

void depthwise_plain(const ConvTranspose2dGeometry& g, const Tensor& y, const Tensor& w, const Tensor& bias,
                     const Tensor& x, double negative_slope) {
  const std::int64_t band = band_rows(g, g.h.in), bands = (g.h.in + band - 1) / band,
                     y_row = g.h.stride * g.w.out;
  parallel_for(g.n * g.ci * bands, 1 + (1 << 14) / (1 + band * y_row),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t plane = i / bands, c = plane % g.ci,
                                      last = std::min(g.h.in, (i % bands + 1) * band);
                   for (std::int64_t row = i % bands * band, next = row; row < last;
                        row = next) {  // rows of the same taps
                     const std::int64_t kh = g.h.tap_begin(row), kh_end = g.h.tap_end(row);
                     while (next < last && g.h.tap_begin(next) == kh && g.h.tap_end(next) == kh_end) ++next;
                     micro::PairTask task{};
                     task.at = -g.w.padding;
                     task.tap_count = g.w.kernel;
                     task.tap_rows = kh_end - kh;
                     task.tap_row = g.h.dilation * g.w.out;
                     task.weights = w.data<float>() + (c * g.h.kernel + kh) * g.w.kernel;
                     task.weight_row = g.w.kernel;
                     task.start = bias.defined() ? bias.data<float>()[c] : 0.0F;
                     task.negative_slope = static_cast<float>(negative_slope);
                     task.from = y.data<float>() + (plane * g.h.out + g.h.output(row, kh)) * g.w.out;
                     task.from_row = y_row;
                     task.to = x.data<float>() + (plane * g.h.in + row) * g.w.in;
                     task.to_row = g.w.in;
                     task.rows = next - row;
                     task.count = g.w.in;
                     task.width = g.w.out;
                     const bool is_last = i % bands + 1 == bands;
                     task.next = is_last ? g.h.out * g.w.out - (bands - 1) * band * y_row : band * y_row;
                     task.x_next = is_last ? (g.h.in - (bands - 1) * band) * g.w.in : band * g.w.in;
                     micro::kernels<float>().gather_pairs(task);
                   }
                 }
               });
}

void depthwise_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y,
                           const Tensor& w) {
  const PlaneAxis h(g.h, Direction::transposed);
  const std::int64_t parts = std::min(kParts, g.n), taps = g.h.kernel * g.w.kernel,
                     band = band_rows(g, h.count);
  const Scratch<float> sums(parts * w.count());
  /// Rows `begin` to `end` of x of a plane, and the rows of each phase of y that are numbered so.
  struct Band {
    std::int64_t plane, begin, end;
    std::int64_t next, x_next;  // elements of y and of x to the next band's
  };
  // Adds rows m*stride + r of y, begin <= m < end, for one tap of h or two that follow each other.
  const auto add = [&](const Band& of, std::int64_t r, std::int64_t begin, std::int64_t end,
                       const PlaneTap* tap, std::int64_t count, float* to) {
    if (begin >= end) return;
    micro::PairTask task{};
    task.at = -g.w.padding;
    task.tap_count = g.w.kernel;
    task.tap_rows = count;
    task.from = y.data<float>() + (of.plane * g.h.out + begin * g.h.stride + r) * g.w.out;
    task.from_row = g.h.stride * g.w.out;
    task.to = to + tap->tap * g.w.kernel;
    task.weight_row = g.h.tap_step() * g.w.kernel;
    task.rows = end - begin;
    task.count = g.w.in;
    task.width = g.w.out;
    task.x = x.data<float>() + (of.plane * g.h.in + begin + tap->shift) * g.w.in;
    task.x_row = g.w.in;
    task.tap_row = -g.h.input_step() * g.w.in;
    task.next = of.next;
    task.x_next = of.x_next;
    micro::kernels<float>().pair_sums(task);
  };
  const auto add_band = [&](const Band& of, std::int64_t r, float* to) {
    const PlanePhase& phase = h.phases[static_cast<std::size_t>(r)];
    const std::int64_t end = std::min(phase.count, of.end);
    // The rows that meet rows of x by a tap; the next tap's begin and end later.
    const auto first = [&](const PlaneTap& tap) { return std::clamp(-tap.shift, of.begin, end); };
    const auto last = [&](const PlaneTap& tap) { return std::clamp(g.h.in - tap.shift, of.begin, end); };
    std::size_t k = 0;
    for (; k + 1 < phase.taps.size(); k += 2) {
      const PlaneTap *const a = &phase.taps[k], *const b = a + 1;
      add(of, r, first(*a), std::min(last(*a), first(*b)), a, 1, to);
      add(of, r, first(*b), last(*a), a, 2, to);
      add(of, r, std::max(last(*a), first(*b)), last(*b), b, 1, to);
    }
    if (k < phase.taps.size()) add(of, r, first(phase.taps[k]), last(phase.taps[k]), &phase.taps[k], 1, to);
  };
  const auto add_plane = [&](std::int64_t plane, std::int64_t next_plane, float* to) {
    for (std::int64_t row = 0; row < h.count; row += band) {
      const bool is_last = row + band >= h.count;
      const std::int64_t planes = is_last ? next_plane - plane : 0, rows = is_last ? -row : band;
      const Band of{plane, row, row + band, (planes * g.h.out + rows * g.h.stride) * g.w.out,
                    (planes * g.h.in + rows) * g.w.in};
      for (std::int64_t r = 0; r < g.h.stride; ++r) add_band(of, r, to);
    }
  };
  parallel_for(parts * g.ci, 1 + (1 << 14) / (1 + g.h.out * g.w.out),
               [&](std::int64_t begin, std::int64_t end) {
                 std::fill(sums.data() + begin * taps, sums.data() + end * taps, 0.0F);
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t part = i / g.ci, c = i % g.ci, first = g.n * part / parts,
                                      last = g.n * (part + 1) / parts;
                   for (std::int64_t n = first; n < last; ++n) {
                     const std::int64_t next = n + 1 < last ? (n + 1) * g.ci + c : first * g.ci + c + 1;
                     add_plane(n * g.ci + c, next, sums.data() + i * taps);
                   }
                 }
               });
  parallel_for(w.count(), 1 << 12, [&](std::int64_t begin, std::int64_t end) {
    float* const to = w.data<float>();
    std::copy(sums.data() + begin, sums.data() + end, to + begin);
    for (std::int64_t part = 1; part < parts; ++part) {
      const float* const of_part = sums.data() + part * w.count();
      for (std::int64_t i = begin; i < end; ++i) to[i] += of_part[i];
    }
  });
}

}  // namespace tapedeck::cpu
