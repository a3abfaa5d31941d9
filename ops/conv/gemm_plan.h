// The convolution family as matrix products: sizes, phases and places, for kernels and their host side.
//
// Both directions, conv_transpose2d (from x to y) and conv2d (from y to x), are one product for each group
// and each phase (conv2d has one phase):
//   to[m, n] = bias[n] + sum over k of A[m, k] * B[k, n]
// m: results of the phase, (image, row, column); n: channels of `to`; k: (tap of the phase, channel of
// `from`), channels in vectors of kVectorBytes, those of one tap padded with zeros to whole vectors. A is
// gathered from `from`; B is the weight, packed for each call so that a tile is one contiguous block:
//   packed[group][phase][chunk of kVectors vectors][n, padded][vector][element].
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include <tapedeck/core/host_device.h>
#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck::conv_gemm {

inline constexpr int kVectorBytes = 16;      // what one instruction moves
inline constexpr int kVectors = 8;           // of a row of a tile: 128 bytes
inline constexpr int kMaxPhases = 8;         // of an axis
inline constexpr int kOutside = -(1 << 30);  // a position that no tap brings inside

/// How many of `size` make up `all`.
inline std::int64_t count(std::int64_t all, std::int64_t size) {
  return (all + size - 1) / size;
}

/// Division by a constant of numbers from 0 to 2^31 - 1.
struct Divider {
  std::uint32_t divisor = 1, multiplier = 0, shift = 0;

  Divider() : Divider(1) {}
  explicit Divider(std::int64_t d) : divisor(static_cast<std::uint32_t>(d)) {
    while ((std::uint64_t{1} << shift) < divisor) ++shift;
    shift += 31;
    multiplier = static_cast<std::uint32_t>(((std::uint64_t{1} << shift) + divisor - 1) / divisor);
  }
  TAPEDECK_HD int divide(int n) const {
    return static_cast<int>((static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * multiplier) >>
                            shift);
  }
  TAPEDECK_HD int modulo(int n, int quotient) const { return n - quotient * static_cast<int>(divisor); }
};

/// One axis of a phase. Result m is at to + m*to_step; its tap j, the kernel's tap + j*tap_step, reads
/// from + m*from_step + j*tap_from_step where that is inside.
struct PhaseAxis {
  int count = 0, to = 0, to_step = 1;
  int taps = 0, from = 0, from_step = 1, tap_from_step = 1;
  int tap = 0, tap_step = 1;
};

struct PhaseAxes {
  /// Of a phase that has the most.
  int most_taps() const {
    int most = 0;
    for (int i = 0; i < count; ++i) most = std::max(most, phase[i].taps);
    return most;
  }

  PhaseAxis phase[kMaxPhases];
  int count = 0;
};

/// The phases of an axis that have results. At most kMaxPhases, see fits().
inline PhaseAxes transposed_phases(ConvAxis a) {
  // A single input has no use for a stride, but gives each tap a phase of its own if it is large.
  const std::int64_t reach = a.dilation * (a.kernel - 1) + 1;
  if (a.in == 1 && reach <= kMaxPhases) a.stride = reach;
  PhaseAxes all;
  for (std::int64_t r = 0; r < a.stride; ++r) {
    const std::int64_t q = a.q_begin(r), count = a.q_end(r) - q, k = a.first_tap(r);
    if (count <= 0) continue;
    PhaseAxis& p = all.phase[all.count++];
    p.count = static_cast<int>(count);
    p.to = static_cast<int>(a.output_at(q, r));
    p.to_step = static_cast<int>(a.stride);
    p.taps = static_cast<int>(a.taps(r));
    p.from = static_cast<int>(q - a.delta(k));
    p.tap_from_step = static_cast<int>(-a.input_step());
    p.tap = static_cast<int>(k);
    p.tap_step = static_cast<int>(a.tap_step());
  }
  return all;
}

inline PhaseAxes plain_phases(const ConvAxis& a) {
  PhaseAxes all;
  all.count = 1;
  PhaseAxis& p = all.phase[0];
  p.count = static_cast<int>(a.in);
  p.taps = static_cast<int>(a.kernel);
  p.from = static_cast<int>(-a.padding);
  p.from_step = static_cast<int>(a.stride);
  p.tap_from_step = static_cast<int>(a.dilation);
  return all;
}

/// Whether positions and the elements of an image fit 32-bit arithmetic, and phases their table.
inline bool positions_fit(const ConvTranspose2dGeometry& g) {
  const std::int64_t limit = 1 << 28;
  for (const ConvAxis* a : {&g.h, &g.w}) {
    if (a->stride > kMaxPhases || a->in > limit || a->out > limit || a->kernel > limit ||
        a->padding > limit || a->dilation > limit || a->kernel * a->dilation > limit ||
        a->in * a->stride > limit) {
      return false;
    }
  }
  const std::int64_t most = std::numeric_limits<std::int32_t>::max();
  const std::int64_t x_plane = g.h.in * g.w.in, y_plane = g.h.out * g.w.out;
  const auto below = [](std::int64_t a, std::int64_t b) { return b == 0 || a <= most / b; };
  return below(x_plane, g.ci) && below(y_plane, g.co) && below(x_plane, g.n) && below(y_plane, g.n) &&
         below(g.h.kernel * g.w.kernel * g.group_co(), g.ci) && below(g.h.kernel * g.w.kernel, g.ci) &&
         below(g.h.kernel * g.w.kernel, g.co);
}
/// Whether also groups fit an axis of a grid, which most kernels have for them.
inline bool fits(const ConvTranspose2dGeometry& g) {
  return positions_fit(g) && g.groups < 65536;
}

/// Elements between neighbours of a tensor of images.
struct ImageStrides {
  ImageStrides() = default;
  ImageStrides(std::int64_t image, int channel, int row, int column)
      : n(image), c(channel), h(row), w(column) {}
  explicit ImageStrides(const std::vector<std::int64_t>& s)
      : ImageStrides(s[0], static_cast<int>(s[1]), static_cast<int>(s[2]), static_cast<int>(s[3])) {}

  std::int64_t n = 0;
  int c = 0, h = 0, w = 0;
};

/// A product of either direction, for kernels.
struct Plan {
  Plan() = default;
  /// `element_bytes` of the type that tiles hold.
  Plan(const ConvTranspose2dGeometry& g, bool transposed, int element_bytes)
      : n(static_cast<int>(g.n)),
        groups(static_cast<int>(g.groups)),
        from_channels(static_cast<int>(transposed ? g.group_ci() : g.group_co())),
        to_channels(static_cast<int>(transposed ? g.group_co() : g.group_ci())),
        from_h(static_cast<int>(transposed ? g.h.in : g.h.out)),
        from_w(static_cast<int>(transposed ? g.w.in : g.w.out)),
        kernel_h(static_cast<int>(g.h.kernel)),
        kernel_w(static_cast<int>(g.w.kernel)),
        is_transposed(transposed),
        vector(kVectorBytes / element_bytes),
        tap_vectors(Divider((from_channels + vector - 1) / vector)),
        h(transposed ? transposed_phases(g.h) : plain_phases(g.h)),
        w(transposed ? transposed_phases(g.w) : plain_phases(g.w)) {
    for (int j = 0; j < w.count; ++j) taps_w[j] = Divider(w.phase[j].taps > 0 ? w.phase[j].taps : 1);
    for (int i = 0; i < h.count; ++i) {
      for (int j = 0; j < w.count; ++j) {
        chunk_begin[i * w.count + j] = chunks;
        chunks += phase_chunks(i, j);
      }
    }
  }

  TAPEDECK_HD int phases() const { return h.count * w.count; }
  TAPEDECK_HD int taps(int i, int j) const { return h.phase[i].taps * w.phase[j].taps; }
  TAPEDECK_HD int phase_chunks(int i, int j) const {
    return (taps(i, j) * static_cast<int>(tap_vectors.divisor) + kVectors - 1) / kVectors;
  }
  /// Results of a phase.
  TAPEDECK_HD int rows(int i, int j) const { return n * h.phase[i].count * w.phase[j].count; }
  int most_rows() const {
    int most = 0;
    for (int i = 0; i < phases(); ++i) {
      const int r = rows(i / w.count, i % w.count);
      most = r > most ? r : most;
    }
    return most;
  }

  int most_chunks() const {
    int most = 0;
    for (int i = 0; i < phases(); ++i) {
      const int c = phase_chunks(i / w.count, i % w.count);
      most = c > most ? c : most;
    }
    return most;
  }

  /// Vectors of `packed` of one group, where n is padded to `padded_n`.
  TAPEDECK_HD std::int64_t packed_vectors(int padded_n) const {
    return static_cast<std::int64_t>(chunks) * padded_n * kVectors;
  }
  /// Whether some vectors of `packed` are not those of a weight.
  bool packed_has_holes(int padded_n) const {
    if (padded_n != to_channels) return true;
    for (int i = 0; i < phases(); ++i) {
      if (taps(i / w.count, i % w.count) * static_cast<int>(tap_vectors.divisor) % kVectors != 0) return true;
    }
    return false;
  }
  /// The chunk of a group, and the vector in it, that has channels [vector*v, ...) of `from` at a tap; {-1,
  /// 0} if no result sees it.
  struct Place {
    int chunk, vector;
  };
  TAPEDECK_HD Place place_of(int kh, int kw, int v) const {
    const int i = phase_of(h, kh), j = phase_of(w, kw);
    if (i < 0 || j < 0) return {-1, 0};
    const int jh = kh / h.phase[i].tap_step, jw = kw / w.phase[j].tap_step;
    const int at = (jh * w.phase[j].taps + jw) * static_cast<int>(tap_vectors.divisor) + v;
    return {chunk_begin[i * w.count + j] + at / kVectors, at % kVectors};
  }
  /// The same as the place in a group's `packed`, or -1; m is the channel of `to`.
  TAPEDECK_HD std::int64_t packed_vector(int kh, int kw, int v, int m, int padded_n) const {
    const Place at = place_of(kh, kw, v);
    if (at.chunk < 0) return -1;
    return (static_cast<std::int64_t>(at.chunk) * padded_n + m) * kVectors + at.vector;
  }
  /// The element of the weight of channel c of `from`, m of `to` of a group.
  TAPEDECK_HD std::int64_t weight_index(int group, int c, int m, int kh, int kw) const {
    const int far = is_transposed ? c : m, near = is_transposed ? m : c;
    const int all_far = is_transposed ? from_channels : to_channels,
              all_near = is_transposed ? to_channels : from_channels;
    const std::int64_t row = static_cast<std::int64_t>(group) * all_far + far;
    return weight_is_last ? ((row * kernel_h + kh) * kernel_w + kw) * all_near + near
                          : ((row * all_near + near) * kernel_h + kh) * kernel_w + kw;
  }

  int n = 0, groups = 1, from_channels = 0, to_channels = 0;  // channels of a group
  int from_h = 0, from_w = 0, kernel_h = 0, kernel_w = 0;
  bool is_transposed = false;
  bool weight_is_last = false;  // has its channels last
  int vector = 4;               // elements
  Divider tap_vectors;          // by the vectors of a tap
  PhaseAxes h, w;
  Divider taps_w[kMaxPhases];  // by the taps of w's phases
  int chunks = 0, chunk_begin[kMaxPhases * kMaxPhases] = {};
  ImageStrides from, to;

 private:
  TAPEDECK_HD static int phase_of(const PhaseAxes& a, int k) {
    for (int i = 0; i < a.count; ++i) {
      const PhaseAxis& p = a.phase[i];
      if (p.taps > 0 && k % p.tap_step == p.tap) return i;
    }
    return -1;
  }
};

/// What a thread packs: vector v of a group's channels of `from`, for channel m of `to` and a tap.
struct PackedWeight {
  int group, m, v, kh, kw;
};
/// How many there are of a plan.
inline std::int64_t packed_weights(const Plan& p) {
  return static_cast<std::int64_t>(p.groups) * p.tap_vectors.divisor * p.to_channels * p.kernel_h *
         p.kernel_w;
}
/// In an order in which neighbours are neighbouring weights.
TAPEDECK_HD inline PackedWeight packed_weight(const Plan& p, std::int64_t i) {
  const unsigned taps = p.kernel_h * p.kernel_w, vectors = p.tap_vectors.divisor, channels = p.to_channels;
  const unsigned inner = p.is_transposed ? channels : vectors, outer = p.is_transposed ? vectors : channels;
  const unsigned group_count = taps * inner * outer;
  const int group = static_cast<int>(i / group_count);
  const unsigned at = static_cast<unsigned>(i - static_cast<std::int64_t>(group) * group_count);
  const unsigned near = p.weight_is_last ? at % inner : at / taps % inner, far = at / (taps * inner),
                 tap = p.weight_is_last ? at / inner % taps : at % taps;
  const int kh = static_cast<int>(tap) / p.kernel_w;
  return {group, static_cast<int>(p.is_transposed ? near : far),
          static_cast<int>(p.is_transposed ? far : near), kh, static_cast<int>(tap) - kh * p.kernel_w};
}

/// Where a result's window begins in `from`, and the result in `to`. Row m of phase (i, j).
struct Row {
  std::int64_t from = 0, to = -1;  // of the image; of the result, -1 for none
  int h = kOutside, w = kOutside;
};
TAPEDECK_HD inline Row row_of(const Plan& p, int i, int j, std::int64_t m) {
  Row row;
  if (m >= p.rows(i, j)) return row;
  const PhaseAxis &h = p.h.phase[i], &w = p.w.phase[j];
  const int image = static_cast<int>(m) / (h.count * w.count);
  const int pixel = static_cast<int>(m) - image * (h.count * w.count);
  const int a = pixel / w.count, b = pixel - a * w.count;
  row.from = image * p.from.n;
  row.to = image * p.to.n + static_cast<std::int64_t>(h.to + a * h.to_step) * p.to.h +
           static_cast<std::int64_t>(w.to + b * w.to_step) * p.to.w;
  row.h = h.from + a * h.from_step;
  row.w = w.from + b * w.from_step;
  return row;
}

/// What vector `at` of K is in phase (i, j), for a row whose window begins at (h, w): the offset of its first
/// channel in the image, or -1 where the tap is outside; `channel` is the first channel.
struct Source {
  int offset, channel;
};
TAPEDECK_HD inline Source source_of(const Plan& p, int i, int j, int row_h, int row_w, int at) {
  const PhaseAxis &h = p.h.phase[i], &w = p.w.phase[j];
  const int tap = p.tap_vectors.divide(at), jh = p.taps_w[j].divide(tap);
  const int channel = p.tap_vectors.modulo(at, tap) * p.vector, jw = p.taps_w[j].modulo(tap, jh);
  const int y = row_h + jh * h.tap_from_step, x = row_w + jw * w.tap_from_step;
  const bool inside = jh < h.taps && static_cast<unsigned>(y) < static_cast<unsigned>(p.from_h) &&
                      static_cast<unsigned>(x) < static_cast<unsigned>(p.from_w);
  return {inside ? y * p.from.h + x * p.from.w + channel * p.from.c : -1, channel};
}

}  // namespace tapedeck::conv_gemm
