// The CPU's reduction loop: any dimensions, either layout, one order of addition.
//
// With the dimensions in memory order and neighbours of a kind merged, x is
//   [outer dimensions, kept or reduced] [R reduced rows] [C kept columns]     R and C may be 1,
// and per outer index R rows of C columns follow one another. A task takes one index of the outer kept
// dimensions, a tile of columns and a chunk of the rows (of all the outer reduced indices), and sums into
// lanes: narrow columns are repeated until there are about kLanes, so that lane i takes the elements
// i, i + lanes, i + 2*lanes, ... of a run. Lanes are folded pairwise, then chunks in their order.
//
// All sizes follow from the shape alone, so the result does not depend on the number of threads. Sums of
// floats are formed in float64, and a chunk and its lanes keep float64 sums short.
#pragma once

#include <algorithm>
#include <bit>
#include <vector>

#include <tapedeck/ops/staging.h>
#include <tapedeck/ops/strided.h>

namespace tapedeck::cpu {

template <class T, class Policy, class Finish>
class ReduceLoop {
 public:
  ReduceLoop(const Tensor& x, const Tensor& out, const Policy& policy, const double* centers,
             const Finish& finish)
      : x_(x.data<T>()), policy_(policy), centers_(centers), finish_(finish) {
    const auto loop = StridedLoop<2>::over(x.shape(), {&x, &out});
    int rank = loop.rank;
    if (loop.strides[1][rank - 1] != 0) {
      columns_ = loop.sizes[--rank];
      column_stride_ = loop.strides[1][rank];
    }
    if (rank > 0 && loop.strides[1][rank - 1] == 0) run_rows_ = loop.sizes[--rank];
    for (int d = 0; d < rank; ++d) {
      Dims& dims = loop.strides[1][d] == 0 ? reduced_ : kept_;
      dims.add(loop.sizes[d], loop.strides[0][d], loop.strides[1][d]);
    }
    rows_ = reduced_.count * run_rows_;
    tile_ = std::min(columns_, kTile);
    tiles_ = (columns_ + tile_ - 1) / tile_;
    const auto repeats = static_cast<std::uint64_t>(std::min(run_rows_, kLanes / tile_));
    repeats_ = static_cast<std::int64_t>(std::bit_floor(std::max<std::uint64_t>(1, repeats)));
    chunk_rows_ = rows_;
    if (kept_.count * tiles_ < kEnoughTasks) {
      chunk_rows_ = std::min(rows_, kChunk / tile_);
    }
    chunks_ = (rows_ + chunk_rows_ - 1) / chunk_rows_;
  }

  void run() const {
    const std::int64_t groups = kept_.count * tiles_;
    std::vector<Total> partial(static_cast<std::size_t>(chunks_ > 1 ? groups * chunks_ * tile_ : 0));
    const std::int64_t grain = std::max<std::int64_t>(1, kGrain / (chunk_rows_ * tile_));
    parallel_for(groups * chunks_, grain, [&](std::int64_t begin, std::int64_t end) {
      Total totals[kTile];
      for (std::int64_t task = begin; task < end; ++task) {
        const Place place = locate(task / chunks_);
        const std::int64_t first = task % chunks_ * chunk_rows_;
        sum_rows(place, first, std::min(rows_, first + chunk_rows_), totals);
        if (chunks_ == 1) {
          for (std::int64_t c = 0; c < place.width; ++c) finish_(place.out + c * column_stride_, totals[c]);
        } else {
          std::copy_n(totals, place.width, partial.data() + task * tile_);
        }
      }
    });
    if (chunks_ == 1) return;
    for (std::int64_t group = 0; group < groups; ++group) {
      const Place place = locate(group);
      Total* totals = partial.data() + group * chunks_ * tile_;
      for (std::int64_t k = 1; k < chunks_; ++k) merge(totals, totals + k * tile_, place.width);
      for (std::int64_t c = 0; c < place.width; ++c) finish_(place.out + c * column_stride_, totals[c]);
    }
  }

 private:
  using Total = typename Policy::Total;
  using Value = compute_t<T>;

  static constexpr std::int64_t kLanes = 64;
  static constexpr std::int64_t kTile = 512;        // columns of a task
  static constexpr std::int64_t kChunk = 1 << 15;   // elements of a task when rows are split
  static constexpr std::int64_t kEnoughTasks = 64;  // from here on rows are not split
  static constexpr std::int64_t kGrain = 1 << 15;

  /// Some of x's outer dimensions.
  struct Dims {
    int rank = 0;
    std::int64_t count = 1;
    std::int64_t sizes[Shape::kMaxRank], x_strides[Shape::kMaxRank], out_strides[Shape::kMaxRank];

    void add(std::int64_t size, std::int64_t x_stride, std::int64_t out_stride) {
      count *= size;
      sizes[rank] = size;
      x_strides[rank] = x_stride;
      out_strides[rank++] = out_stride;
    }
    /// Adds the offsets of index `i` in x and in out.
    void locate(std::int64_t i, std::int64_t& x, std::int64_t& out) const {
      for (int d = rank - 1; d >= 0; --d) {
        const std::int64_t at = d == 0 ? i : i % sizes[d];
        if (d > 0) i /= sizes[d];
        x += at * x_strides[d];
        out += at * out_strides[d];
      }
    }
  };

  /// The first element of a tile in x and in out, and how many columns it has.
  struct Place {
    std::int64_t x = 0, out = 0, width = 0;
  };

  Place locate(std::int64_t group) const {
    const std::int64_t column = group % tiles_ * tile_;
    Place place{column, column * column_stride_, std::min(tile_, columns_ - column)};
    kept_.locate(group / tiles_, place.x, place.out);
    return place;
  }

  void merge(Total* into, const Total* from, std::int64_t n) const {
    for (std::int64_t i = 0; i < n; ++i) into[i] = policy_.merge(into[i], from[i]);
  }

  /// totals[c] = the total of rows [begin, end) of column c of the tile.
  void sum_rows(const Place& place, std::int64_t begin, std::int64_t end, Total* totals) const {
    const std::int64_t lanes = repeats_ * place.width;
    double centers[kTile];
    std::fill_n(totals, lanes, policy_.start());
    for (std::int64_t i = 0; Policy::kCentered && i < lanes; ++i) {
      centers[i] = centers_[place.out + i % place.width * column_stride_];
    }
    for (std::int64_t row = begin; row < end;) {
      const std::int64_t within = row % run_rows_, n = std::min(run_rows_ - within, end - row);
      std::int64_t at = place.x + within * columns_, unused = 0;
      reduced_.locate(row / run_rows_, at, unused);
      if (place.width == columns_) {
        add_run(x_ + at, n * columns_, lanes, centers, totals);
      } else {
        for (std::int64_t i = 0; i < n; ++i) {
          add_run(x_ + at + i * columns_, place.width, place.width, centers, totals);
        }
      }
      row += n;
    }
    for (std::int64_t half = repeats_ / 2; half > 0; half /= 2) {
      merge(totals, totals + half * place.width, half * place.width);
    }
  }

  /// totals[i % lanes] takes in[i], for i < n.
  void add_run(const T* in, std::int64_t n, std::int64_t lanes, const double* centers, Total* totals) const {
    Value buffer[std::is_same_v<T, Value> ? 1 : kStageBlock];
    const std::int64_t most = std::is_same_v<T, Value> ? n : kStageBlock / lanes * lanes;
    for (std::int64_t done = 0; done < n; done += most) {
      const std::int64_t count = std::min(most, n - done);
      const Value* values = stage(in + done, 1, count, buffer);
      simd([=, this] {
        const Value* __restrict from = values;
        const double* __restrict center = centers;
        Total* __restrict total = totals;
        for (std::int64_t i = 0; i < count; i += lanes) {
          const std::int64_t m = std::min(lanes, count - i);
          for (std::int64_t k = 0; k < m; ++k) total[k] = policy_.add(total[k], from[i + k], center[k]);
        }
      });
    }
  }

  const T* x_;
  const Policy& policy_;
  const double* centers_;
  const Finish& finish_;
  Dims kept_, reduced_;
  std::int64_t columns_ = 1, column_stride_ = 0, run_rows_ = 1, rows_ = 1;
  std::int64_t tile_ = 1, tiles_ = 1, repeats_ = 1, chunk_rows_ = 1, chunks_ = 1;
};

/// Calls `finish(i, total)` for each element i (in memory) of `out`, in parallel, with the total of the
/// elements of x that it stands for. `out` has x's rank, and size 1 where reduced. `Policy` has
///   Total                        the type of a total
///   start()                      the total of nothing
///   add(total, value, center)    value is in x's compute type; center is centers[i]
///   merge(total, total)
///   kCentered                    whether add() uses center; if not, `centers` may be null
template <class T, class Policy, class Finish>
void reduce_loop(const Tensor& x, const Tensor& out, const Policy& policy, const double* centers,
                 const Finish& finish) {
  if (x.count() == 0) {
    for (std::int64_t i = 0; i < out.count(); ++i) finish(i, policy.start());
  } else {
    ReduceLoop<T, Policy, Finish>(x, out, policy, centers, finish).run();
  }
}

}  // namespace tapedeck::cpu
