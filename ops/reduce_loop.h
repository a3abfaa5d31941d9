// The CPU's reduction loop: any dimensions, either layout, one order of addition.
//
// With the dimensions in memory order and neighbours of a kind merged, x is
//   [outer dimensions, kept or reduced] [R reduced rows] [C kept columns]     R and C may be 1,
// and per outer index R rows of C columns follow one another. A task takes one index of the outer kept
// dimensions, a tile of columns and a chunk of the rows (of all the outer reduced indices), and sums into
// lanes: narrow columns are repeated until there are about kLanes, so that lane i takes the elements
// i, i + lanes, i + 2*lanes, ... of a run. Lanes are folded pairwise, then chunks in their order. Short
// rows (C = 1) are summed one element after the other, several rows at a time.
//
// All sizes follow from the shape alone, so the result does not depend on the number of threads. Sums of
// floats are formed in float64, and a chunk and its lanes keep float64 sums short.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include <tapedeck/ops/staging.h>
#include <tapedeck/ops/strided.h>

namespace tapedeck::cpu {

/// How a reduction is divided: what does not depend on types.
struct ReducePlan {
  static constexpr std::int64_t kLanes = 64;
  static constexpr std::int64_t kTile = kStageBlock;  // columns of a task
  static constexpr std::int64_t kChunk = 1 << 15;     // elements of a task when rows are split
  static constexpr std::int64_t kLongRun = 1024;      // elements of a run that may be a task of its own
  static constexpr std::int64_t kEnoughTasks = 64;    // from here on rows are not split for threads
  static constexpr std::int64_t kShortLine = 64;

  /// Some of x's outer dimensions.
  struct Dims {
    int rank = 0;
    std::int64_t count = 1;
    Strides sizes{}, x_strides{}, out_strides{};

    void add(std::int64_t size, std::int64_t x_stride, std::int64_t out_stride);
    /// Adds the offsets of index `i` in x and in out.
    void locate(std::int64_t i, std::int64_t& x, std::int64_t& out) const;
  };

  /// The first element of a tile in x and in out, and how many columns it has.
  struct Place {
    std::int64_t x = 0, out = 0, width = 0;
  };

  /// x must have elements; `out` has x's rank, and size 1 where reduced.
  ReducePlan(const Tensor& x, const Tensor& out);
  Place locate(std::int64_t group) const;
  /// Whether x is lines of at most kShortLine elements, one for each element of out.
  bool short_lines() const {
    return columns == 1 && reduced.count == 1 && run_rows <= kShortLine && kept.rank == 1;
  }

  Dims kept, reduced;
  std::int64_t columns = 1, column_stride = 0;  // C, and its stride in out
  std::int64_t run_rows = 1, rows = 1;          // R, and all rows
  std::int64_t tile = 1, tiles = 1;             // columns of a task, tasks to cover them
  std::int64_t groups = 1;                      // kept indices * tiles
  std::int64_t repeats = 1;                     // of a tile's columns in the lanes
  std::int64_t chunk_rows = 1, chunks = 1;
};

inline constexpr std::size_t kRowsAtOnce = 4;

/// totals[i % lanes] takes values[i], for i < n.
template <class Policy, class V>
void reduce_run(const Policy& policy, const V* values, std::int64_t n, std::int64_t lanes,
                const double* centers, typename Policy::Total* totals) {
  const auto loop = [=](const V* __restrict from, const double* __restrict center,
                        typename Policy::Total* __restrict total) {
    for (std::int64_t i = 0; i < n; i += lanes) {
      const std::int64_t m = std::min(lanes, n - i);
      for (std::int64_t k = 0; k < m; ++k) total[k] = policy.add(total[k], from[i + k], center[k]);
    }
  };
  if constexpr (std::is_same_v<V, float>) {
    simd([&] { loop(values, centers, totals); });
  } else {
    loop(values, centers, totals);
  }
}

/// totals[i] takes row 0's i, row 1's i, ... in turn, for i < n: as many calls of reduce_run, but it reads
/// several rows at once, which memory answers faster, and touches the totals once.
template <class Policy, class V>
void reduce_rows(const Policy& policy, const std::array<const V*, kRowsAtOnce>& rows, std::int64_t n,
                 const double* centers, typename Policy::Total* totals) {
  const auto loop = [=](const V* __restrict a, const V* __restrict b, const V* __restrict c,
                        const V* __restrict d, const double* __restrict center,
                        typename Policy::Total* __restrict total) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto ab = policy.add(policy.add(total[i], a[i], center[i]), b[i], center[i]);
      total[i] = policy.add(policy.add(ab, c[i], center[i]), d[i], center[i]);
    }
  };
  if constexpr (std::is_same_v<V, float>) {
    simd([&] { loop(rows[0], rows[1], rows[2], rows[3], centers, totals); });
  } else {
    loop(rows[0], rows[1], rows[2], rows[3], centers, totals);
  }
}

/// totals[i] takes the elements of line i of n, in their order.
template <class Policy, class V>
void reduce_lines(const Policy& policy, const V* values, std::int64_t n, std::int64_t length,
                  const double* centers, typename Policy::Total* totals) {
  constexpr std::int64_t kLines = 8;  // at a time, so that additions need not wait for each other
  std::int64_t line = 0;
  for (; line + kLines <= n; line += kLines) {
    const V* from = values + line * length;
    typename Policy::Total total[kLines];
    std::copy_n(totals + line, kLines, total);
    for (std::int64_t k = 0; k < length; ++k) {
      for (std::int64_t i = 0; i < kLines; ++i) {
        total[i] = policy.add(total[i], from[i * length + k], centers[line + i]);
      }
    }
    std::copy_n(total, kLines, totals + line);
  }
  for (; line < n; ++line) {
    for (std::int64_t k = 0; k < length; ++k) {
      totals[line] = policy.add(totals[line], values[line * length + k], centers[line]);
    }
  }
}

template <class V, class Policy>
class ReduceLoop {
 public:
  using Total = typename Policy::Total;

  ReduceLoop(const Tensor& x, const Tensor& out, const Policy& policy, const double* centers)
      : plan_(x, out), x_(x), policy_(policy), centers_(centers) {}

  void run(Total* results) const {
    const ReducePlan& p = plan_;
    if (p.short_lines()) return run_lines(results);
    const std::int64_t grain = std::max<std::int64_t>(1, ReducePlan::kChunk / (p.chunk_rows * p.tile));
    std::vector<Total> partial(p.chunks > 1 ? p.chunks * p.groups * p.tile : 0);
    parallel_for(p.chunks * p.groups, grain, [&](std::int64_t begin, std::int64_t end) {
      Total totals[ReducePlan::kTile];
      std::int64_t chunk = begin / p.groups, group = begin % p.groups;
      for (std::int64_t task = begin; task < end; ++task) {
        const ReducePlan::Place place = p.locate(group);
        const std::int64_t first = chunk * p.chunk_rows;
        sum_rows(place, first, std::min(p.rows, first + p.chunk_rows), totals);
        if (p.chunks == 1) {
          store(place, totals, results);
        } else {
          std::copy_n(totals, place.width, partial.data() + task * p.tile);
        }
        if (++group == p.groups) {
          group = 0;
          ++chunk;
        }
      }
    });
    if (p.chunks == 1) return;
    parallel_for(p.groups, std::max<std::int64_t>(1, ReducePlan::kChunk / (p.chunks * p.tile)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t group = begin; group < end; ++group) {
                     const ReducePlan::Place place = p.locate(group);
                     Total* totals = partial.data() + group * p.tile;
                     for (std::int64_t k = 1; k < p.chunks; ++k) {
                       merge(totals, totals + k * p.groups * p.tile, place.width);
                     }
                     store(place, totals, results);
                   }
                 });
  }

 private:
  void store(const ReducePlan::Place& place, const Total* totals, Total* results) const {
    for (std::int64_t c = 0; c < place.width; ++c) results[place.out + c * plan_.column_stride] = totals[c];
  }

  void merge(Total* into, const Total* from, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) into[i] = policy_.merge(into[i], from[i]);
  }

  /// totals[c] = the total of rows [begin, end) of column c of the tile.
  void sum_rows(const ReducePlan::Place& place, std::int64_t begin, std::int64_t end, Total* totals) const {
    const ReducePlan& p = plan_;
    const std::int64_t lanes = p.repeats * place.width;
    double centers[ReducePlan::kTile];
    std::fill_n(totals, lanes, policy_.start());
    for (std::int64_t i = 0; Policy::kCentered && i < lanes; ++i) {
      centers[i] = centers_[place.out + i % place.width * p.column_stride];
    }
    std::int64_t run = begin == 0 ? 0 : begin / p.run_rows, within = begin - run * p.run_rows;
    for (std::int64_t row = begin; row < end; ++run, within = 0) {
      const std::int64_t n = std::min(p.run_rows - within, end - row);
      std::int64_t at = place.x + within * p.columns, unused = 0;
      p.reduced.locate(run, at, unused);
      if (place.width == p.columns) {
        add_run(at, n * p.columns, lanes, centers, totals);
      } else {
        add_rows(at, n, place.width, centers, totals);
      }
      row += n;
    }
    for (std::int64_t half = p.repeats / 2; half > 0; half /= 2) {
      merge(totals, totals + half * place.width, half * place.width);
    }
  }

  void run_lines(Total* results) const {
    const std::int64_t length = plan_.run_rows, stride = plan_.kept.out_strides[0];
    parallel_for(plan_.groups, ReducePlan::kChunk / length, [&](std::int64_t begin, std::int64_t end) {
      V buffer[kStageBlock];
      double centers[kStageBlock];
      Total totals[kStageBlock];
      for (std::int64_t line = begin; line < end;) {
        const std::int64_t n = std::min(kStageBlock / length, end - line);
        for (std::int64_t i = 0; Policy::kCentered && i < n; ++i) centers[i] = centers_[(line + i) * stride];
        std::fill_n(totals, n, policy_.start());
        reduce_lines(policy_, x_.read(line * length, n * length, buffer), n, length, centers, totals);
        for (std::int64_t i = 0; i < n; ++i) results[(line + i) * stride] = totals[i];
        line += n;
      }
    });
  }

  void add_run(std::int64_t at, std::int64_t n, std::int64_t lanes, const double* centers,
               Total* totals) const {
    V buffer[kStageBlock];
    const std::int64_t most = x_.in_place() ? n : kStageBlock / lanes * lanes;
    for (std::int64_t done = 0; done < n; done += most) {
      const std::int64_t count = std::min(most, n - done);
      reduce_run(policy_, x_.read(at + done, count, buffer), count, lanes, centers, totals);
    }
  }

  /// totals[i] takes element i of n rows.
  void add_rows(std::int64_t at, std::int64_t n, std::int64_t width, const double* centers,
                Total* totals) const {
    V buffer[kRowsAtOnce][kStageBlock];
    std::int64_t row = 0;
    for (; row + std::int64_t{kRowsAtOnce} <= n; row += kRowsAtOnce) {
      std::array<const V*, kRowsAtOnce> rows;
      for (std::size_t k = 0; k < kRowsAtOnce; ++k) {
        rows[k] = x_.read(at + (row + k) * plan_.columns, width, buffer[k]);
      }
      reduce_rows(policy_, rows, width, centers, totals);
    }
    for (; row < n; ++row) add_run(at + row * plan_.columns, width, width, centers, totals);
  }

  ReducePlan plan_;
  StagedReader<V> x_;
  const Policy& policy_;
  const double* centers_;
};

/// For each element of `out`, in memory order, the total of the elements of x that it stands for. `out` has
/// x's rank, and size 1 where reduced; V is x's compute type. For policies see ops/reduce_policies.h; the
/// center of element i of out is centers[i], which may be null for a policy that uses none.
template <class V, class Policy>
std::vector<typename Policy::Total> reduce_loop(const Tensor& x, const Tensor& out, const Policy& policy,
                                                const double* centers = nullptr) {
  std::vector<typename Policy::Total> results(out.count(), policy.start());
  if (x.count() > 0) ReduceLoop<V, Policy>(x, out, policy, centers).run(results.data());
  return results;
}

/// out[i] = totals[i] * scale.
inline void store_totals(const std::vector<double>& totals, double scale, const Tensor& out) {
  visit_floating("reduce", out.dtype(), [&]<class T>() {
    T* to = out.data<T>();
    parallel_for(out.count(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = convert<T>(totals[i] * scale);
    });
  });
}

}  // namespace tapedeck::cpu
