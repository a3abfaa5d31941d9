// The convolution family on planes (nchw): results of a phase, row after row, are one correlation at unit
// stride.
//
// Both directions are, on each axis,
//   result m*to_step + r  =  sum over the taps k of result phase r of from[(m + shift(k))*from_step +
//   phase(k)]
// with to_step = stride, from_step = 1 for the transposed direction and the reverse for the plain one
// (ConvAxis has the relation). So the tensor that is read is copied by bands of rows, split into its phases:
// planes[channel][phase h][phase w][row][pitch], where rows and columns outside of it are zeros. All phases
// of results share the pitch, which holds the reach of every tap: a tap of a band is one offset. Where it
// costs little the pitch is whole vectors, so that all rows are aligned alike: an unaligned load that misses
// the nearest cache takes twice as long. Such rows are computed one by one if that is fewer vectors, all
// others as one; what vectors compute between the rows of results is thrown away.
//
// The zeros are multiplied: a weight that is not finite makes results NaN whose windows hang over the border.
#pragma once

#include <vector>

#include <tapedeck/core/tensor.h>
#include <tapedeck/ops/conv/ahead.h>
#include <tapedeck/ops/conv/plan.h>
#include <tapedeck/ops/micro/kernels.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

struct PlaneTap {
  std::int64_t tap, plane, shift;
};

/// A phase of `from`, and the least and the largest shift of the taps that read it.
struct Plane {
  std::int64_t phase, first, last;
};

/// Results m*to_step + phase, m < count, read element m + shift of a plane.
struct PlanePhase {
  std::int64_t count;
  std::vector<PlaneTap> taps;
};

struct PlaneAxis {
  PlaneAxis(const ConvAxis& axis, Direction direction);

  std::int64_t from, to;  // sizes
  std::int64_t from_step, to_step;
  std::vector<Plane> planes;         // that any tap reads
  std::vector<PlanePhase> phases;    // to_step of them
  std::int64_t count = 0;            // most results of a phase
  std::int64_t first = 0, last = 0;  // shifts
};

/// How a band of a tensor [n,c,h,w] is copied to planes.
struct PlaneBand {
  /// For bands of `rows` results of each phase, and vectors of so many lanes.
  PlaneBand(const PlaneAxis& h, const PlaneAxis& w, std::int64_t rows, std::int64_t lanes);

  const PlaneAxis& h;
  const PlaneAxis& w;
  std::int64_t rows;  // of results
  std::int64_t lanes;
  std::int64_t pitch;                     // elements of a row; its last are the next row's left border, too
  std::int64_t lead;                      // zeros before the first row: its left border, in whole vectors
  std::int64_t all_rows = 0;              // of the planes of h
  std::int64_t channel = 0;               // elements
  std::vector<std::int64_t> rows_before;  // of a plane of h: rows of those before it

  std::int64_t in_vectors(std::int64_t n) const { return (n + lanes - 1) / lanes * lanes; }
  /// Whether rows of so many elements are computed one by one: where that is fewer vectors, and enough of
  /// them in a row for the sums of a tile not to wait for each other.
  bool can_be_runs(std::int64_t elements_of_row) const {
    const std::int64_t row = in_vectors(w.count);
    return elements_of_row % lanes == 0 && row < elements_of_row && row >= 4 * lanes;
  }
  /// How kernels go over so many rows of results: runs, and pixels of each.
  struct Runs {
    std::int64_t count, runs;
  };
  Runs runs(std::int64_t row_count) const {
    return can_be_runs(pitch) ? Runs{in_vectors(w.count), row_count}
                              : Runs{(row_count - 1) * pitch + w.count, 1};
  }
  std::int64_t rows_of(const Plane& plane) const { return rows + plane.last - plane.first; }
  /// Where tap (kh, kw) of results begins.
  std::int64_t offset(const PlaneTap& kh, const PlaneTap& kw) const {
    const Plane& plane = h.planes[static_cast<std::size_t>(kh.plane)];
    const std::int64_t row =
        rows_before[static_cast<std::size_t>(kh.plane)] * static_cast<std::int64_t>(w.planes.size()) +
        kw.plane * rows_of(plane) + kh.shift - plane.first;
    return lead + row * pitch + kw.shift;
  }
  /// Elements that so many channels take, and that vectors may reach beyond.
  template <class T>
  std::int64_t elements(std::int64_t channels) const {
    return lead + channels * channel + pitch + micro::kernels<T>().plane_slack;
  }

  /// Copies `channels` channels from `first` on of image n for results from row `row` on. What lies outside
  /// of the columns is not written: it must be zeros from the beginning.
  template <class T>
  void load(const Tensor& from, std::int64_t n, std::int64_t first, std::int64_t channels, std::int64_t row,
            T* to) const;
  /// The lines of memory that the same load would read, for kernels to ask for while they compute what was
  /// loaded before: otherwise memory and the multipliers would leave each other idle in turn.
  template <class T>
  void lines(const Tensor& from, std::int64_t n, std::int64_t first, std::int64_t channels, std::int64_t row,
             LineList& to) const;
};

/// The planes of a band once more for each tap of a row of the kernel, without columns between the rows:
/// [channel][phase h][tap][row][count]. Results of unit step then have no gaps either and are computed where
/// they belong, or read from there. Worth it for few channels that meet many.
struct DenseBand {
  explicit DenseBand(const PlaneBand& band);

  /// Whether it costs less than the gaps of `others` channels that so many channels meet.
  static bool is_worth_it(const PlaneAxis& h, const PlaneAxis& w, std::int64_t channels, std::int64_t others);

  const PlaneBand& band;
  const std::vector<PlaneTap>& taps;
  std::int64_t channel;  // elements

  /// Where tap (kh, taps[kw]) of results begins.
  std::int64_t offset(const PlaneTap& kh, std::int64_t kw) const;
  template <class T>
  void load(const T* planes, std::int64_t channels, T* to) const;
};

/// How a band is copied for minimal filtering F(2,3) along h: where three taps read neighbouring rows d, two
/// rows of results are
///   to[0] = (d0 - d2)*w0 + a + b
///   to[1] = a - b - (d1 - d3)*w2        a = (d1 + d2)*(w0 + w1 + w2)/2, b = (d2 - d1)*(w0 - w1 + w2)/2
/// four products instead of six. Of each pair of rows there is what is multiplied in a, in b, for the first
/// and for the second row alone: [channel][pair][part][pitch].
///
/// Sums of infinities are NaN, in all results of a pair that see them; of finite numbers, sums may be
/// infinite where a plain sum of products is not.
///
/// Winograd, "Arithmetic Complexity of Computations" (1980); Lavin and Gray, "Fast Algorithms for
/// Convolutional Neural Networks" (2015).
struct PairBand {
  static constexpr std::int64_t kParts = 4;

  explicit PairBand(const PlaneBand& band);

  /// Whether rows of results have taps like that, in one phase only, and enough of them for so many channels
  /// that meet `others`.
  static bool is_worth_it(const PlaneAxis& h, const PlaneAxis& w, std::int64_t channels, std::int64_t others);
  /// The taps of rows of results, by the rows that they read.
  static std::vector<PlaneTap> taps(const PlaneAxis& h);
  /// What their weights become in a part. (In float64: rounded once.)
  static double weight(std::int64_t part, double w0, double w1, double w2) {
    return part == 0 ? (w0 + w1 + w2) / 2 : part == 1 ? (w0 - w1 + w2) / 2 : part == 2 ? w0 : -w2;
  }

  const PlaneBand& band;
  std::int64_t pairs;
  std::int64_t channel;  // elements

  /// Where tap kw of the first part of the first pair begins.
  std::int64_t offset(const PlaneTap& kw) const { return band.lead + kw.shift; }
  template <class T>
  std::int64_t elements(std::int64_t channels) const {
    return band.lead + channels * channel + band.pitch + micro::kernels<T>().plane_slack;
  }
  /// As PlaneBand::load().
  template <class T>
  void load(const Tensor& from, std::int64_t n, std::int64_t first, std::int64_t channels, std::int64_t row,
            T* to) const;
};

}  // namespace tapedeck::cpu
