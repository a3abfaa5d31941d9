#include <tapedeck/ops/reduce_loop.h>

namespace tapedeck::cpu {

void ReducePlan::Dims::add(std::int64_t size, std::int64_t x_stride, std::int64_t out_stride) {
  count *= size;
  sizes[rank] = size;
  x_strides[rank] = x_stride;
  out_strides[rank++] = out_stride;
}

void ReducePlan::Dims::locate(std::int64_t i, std::int64_t& x, std::int64_t& out) const {
  for (int d = rank - 1; d >= 0; --d) {
    const std::int64_t at = d == 0 ? i : i % sizes[d];
    if (d > 0) i /= sizes[d];
    x += at * x_strides[d];
    out += at * out_strides[d];
  }
}

ReducePlan::ReducePlan(const Tensor& x, const Tensor& out) {
  const auto loop = StridedLoop<2>::over(x.shape(), {&x, &out});
  int rank = loop.rank;
  if (loop.strides[1][rank - 1] != 0) {
    columns = loop.sizes[--rank];
    column_stride = loop.strides[1][rank];
  }
  if (rank > 0 && loop.strides[1][rank - 1] == 0) run_rows = loop.sizes[--rank];
  for (int d = 0; d < rank; ++d) {
    (loop.strides[1][d] == 0 ? reduced : kept).add(loop.sizes[d], loop.strides[0][d], loop.strides[1][d]);
  }
  rows = reduced.count * run_rows;
  tile = std::min(columns, kTile);
  tiles = (columns + tile - 1) / tile;
  groups = kept.count * tiles;
  const auto fitting = static_cast<std::uint64_t>(std::min(run_rows, kLanes / tile));
  repeats = static_cast<std::int64_t>(std::bit_floor(std::max<std::uint64_t>(1, fitting)));
  chunk_rows = rows;
  if (reduced.count > 1 && run_rows * tile >= kLongRun && run_rows >= kLongRun / kLanes) {
    chunk_rows = std::min(run_rows, kChunk / tile);  // so that x is walked through as it lies in memory
  } else if (groups < kEnoughTasks) {
    chunk_rows = std::min(rows, kChunk / tile);
  }
  chunks = (rows + chunk_rows - 1) / chunk_rows;
}

ReducePlan::Place ReducePlan::locate(std::int64_t group) const {
  const std::int64_t outer = tiles == 1 ? group : group / tiles, column = (group - outer * tiles) * tile;
  Place place{column, column * column_stride, std::min(tile, columns - column)};
  kept.locate(outer, place.x, place.out);
  return place;
}

}  // namespace tapedeck::cpu
