#include <tapedeck/ops/resample.h>

#include <algorithm>

#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu {

namespace {

/// The most inputs that an output reads, or, transposed, the most outputs that read an input.
std::int64_t most_taps(const ResampleAxis& axis, bool transposed) {
  std::int64_t most = 1, begin = 0;  // begin: the first output that reads what output o reads first
  for (std::int64_t o = 0; o < axis.out; ++o) {
    const auto taps = axis.taps(o);
    while (axis.taps(begin).first + axis.taps(begin).count <= taps.first) ++begin;
    most = std::max(most, transposed ? o - begin + 1 : taps.count);
  }
  return most;
}

/// An axis as a table in device memory: result q reads first[q], first[q] + 1, ..., count[q] of them, with
/// weights weight[q * most], .... Inputs that read an output, as outputs that read an input, are neighbours.
template <class V>
struct TapTable {
  std::int64_t results, most;
  Workspace<std::int64_t> first, count;
  Workspace<V> weight;

  TapTable(Device device, const ResampleAxis& axis, bool transposed)
      : results(transposed ? axis.in : axis.out),
        most(most_taps(axis, transposed)),
        first(device, results),
        count(device, results),
        weight(device, results * most) {}
};

template <class V>
void fill_table(const TapTable<V>& table, Device device, const ResampleAxis& axis, bool transposed) {
  std::int64_t *const first = table.first.data(), *const count = table.count.data();
  V* const weight = table.weight.data();
  const std::int64_t most = table.most;
  for_each("resample", device, table.results, [=] __device__(std::int64_t q) {
    if (!transposed) {
      const auto taps = axis.taps(q);
      first[q] = taps.first;
      count[q] = taps.count;
      for (std::int64_t k = 0; k < taps.count; ++k) weight[q * most + k] = static_cast<V>(axis.weight(q, k));
      return;
    }
    // The outputs that read input q: neither end of what they read ever moves back.
    std::int64_t low = 0, high = axis.out;
    while (low < high) {
      const std::int64_t o = (low + high) / 2;
      const auto taps = axis.taps(o);
      if (taps.first + taps.count <= q) {
        low = o + 1;
      } else {
        high = o;
      }
    }
    std::int64_t o = low;
    for (; o < axis.out && axis.taps(o).first <= q; ++o) {
      weight[q * most + o - low] = static_cast<V>(axis.weight(o, q - axis.taps(o).first));
    }
    first[q] = low;
    count[q] = o - low;
  });
}

template <class V>
void resample_of(const Tensor& x, const ResampleAxis& h, const ResampleAxis& w, bool transposed,
                 const Tensor& y) {
  const TapTable<V> rows(x.device(), h, transposed), columns(x.device(), w, transposed);
  fill_table(rows, x.device(), h, transposed);
  fill_table(columns, x.device(), w, transposed);
  const std::int64_t *const row_first = rows.first.data(), *const row_count = rows.count.data();
  const std::int64_t *const column_first = columns.first.data(), *const column_count = columns.count.data();
  const V *const row_weight = rows.weight.data(), *const column_weight = columns.weight.data();
  const std::int64_t most_rows = rows.most, most_columns = columns.most;
  const std::int64_t inner = x.layout() == Layout::nhwc ? x.size(1) : 1;
  const std::int64_t in_h = x.size(2), in_w = x.size(3), out_h = y.size(2), out_w = y.size(3);
  const Reader<V> in(x);
  const Writer<V> out(y);
  for_each("resample", x.device(), y.count(), [=] __device__(std::int64_t i) {
    const std::int64_t c = i % inner, q = i / inner % out_w, p = i / inner / out_w % out_h;
    const std::int64_t plane = i / inner / out_w / out_h * in_h;
    V sum = 0;
    for (std::int64_t b = 0; b < column_count[q]; ++b) {
      V column = 0;
      for (std::int64_t a = 0; a < row_count[p]; ++a) {
        const std::int64_t pixel = (plane + row_first[p] + a) * in_w + column_first[q] + b;
        column += in[pixel * inner + c] * row_weight[p * most_rows + a];
      }
      sum += column * column_weight[q * most_columns + b];
    }
    out.write(i, sum);
  });
}

}  // namespace

void resample(const Tensor& x, const ResampleAxis& h, const ResampleAxis& w, bool transposed,
              const Tensor& y) {
  if (x.dtype() == DType::float64) return resample_of<double>(x, h, w, transposed, y);
  resample_of<float>(x, h, w, transposed, y);
}

}  // namespace tapedeck::cu
