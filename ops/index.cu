// Selection by index, and its gradients without atomics: what is added is sorted by its destination, stably,
// and one thread then adds what belongs together, in the order of the index.
#include <tapedeck/ops/index.h>

#include <algorithm>
#include <bit>
#include <limits>

#include <cub/device/device_radix_sort.cuh>

#include <tapedeck/ops/axis.h>
#include <tapedeck/ops/map.cuh>

namespace tapedeck::cu {

namespace {

/// What stands where an index is out of range: NaN, or 0 for integers.
template <class T>
__device__ T nothing() {
  if constexpr (std::is_integral_v<T>) {
    return 0;
  } else {
    return convert<T>(std::numeric_limits<float>::quiet_NaN());
  }
}

template <class T>
void select(const Tensor& x, const Axis& from, const Tensor& index, const Axis& to, const Tensor& out) {
  const std::int64_t* const rows = index.data<std::int64_t>();
  const T* const in = x.data<T>();
  T* const y = out.data<T>();
  for_each("index_select", x.device(), out.count(), [=] __device__(std::int64_t i) {
    const std::int64_t c = i % to.inner, line = i / to.inner, row = rows[line % to.size];
    const bool legal = row >= 0 && row < from.size;
    y[i] = legal ? in[(line / to.size * from.size + row) * from.inner + c] : nothing<T>();
  });
}

template <class T>
void gather_of(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  const auto strides = [](const Tensor& tensor) {
    Strides own{};
    std::ranges::copy(tensor.strides(), own.begin());
    return own;
  };
  Strides base = strides(x);
  const std::int64_t step = base[dim], size = x.size(dim);
  base[dim] = 0;
  const auto loop = StridedLoop<3>::over(out.shape(), {strides(out), strides(index), base});
  const std::int64_t* const rows = index.data<std::int64_t>();
  const T* const in = x.data<T>();
  T* const y = out.data<T>();
  for_each("gather", x.device(), out.count(), [=] __device__(std::int64_t i) {
    std::int64_t at[3];
    locate(loop, i, at);
    const std::int64_t row = rows[at[1]];
    y[at[0]] = row >= 0 && row < size ? in[at[2] + row * step] : nothing<T>();
  });
}

template <class F>
struct NumberKeys {
  F key;
  std::int64_t *keys, *numbers;
  __device__ void operator()(std::int64_t i) const {
    keys[i] = key(i);
    numbers[i] = i;
  }
};

/// Numbers 0, 1, ..., count - 1 in the order of their keys, equal ones in their own order.
class SortedByKey {
 public:
  /// Keys are from 0 to `largest`; they are made by key(i) in a kernel.
  template <class F>
  SortedByKey(const char* op, Device device, std::int64_t count, std::int64_t largest, const F& key)
      : keys_(device, count), numbers_(device, count) {
    const Workspace<std::int64_t> keys(device, count), numbers(device, count);
    std::int64_t *const to_keys = keys.data(), *const to_numbers = numbers.data();
    for_each(op, device, count, NumberKeys<F>{key, to_keys, to_numbers});
    const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(largest)));
    std::size_t bytes = 0;
    const DeviceScope scope(device);
    const auto sort = [&](void* scratch) {
      check_cuda(
          cub::DeviceRadixSort::SortPairs(scratch, bytes, to_keys, keys_.data(), to_numbers, numbers_.data(),
                                          count, 0, std::max(bits, 1), stream_of(device)),
          op);
    };
    sort(nullptr);  // asks for the size of its scratch
    const Workspace<std::uint8_t> scratch(device, static_cast<std::int64_t>(bytes));
    sort(scratch.data());
  }

  const std::int64_t* keys() const { return keys_.data(); }
  const std::int64_t* numbers() const { return numbers_.data(); }

 private:
  Workspace<std::int64_t> keys_, numbers_;
};

/// The row of an index, or `size` for one that is out of range.
struct RowKey {
  const std::int64_t* rows;
  std::int64_t size;
  __device__ std::int64_t operator()(std::int64_t j) const {
    return rows[j] >= 0 && rows[j] < size ? rows[j] : size;
  }
};

template <class T>
void add_rows(const Tensor& x, const Axis& from, const SortedByKey& sorted, const Axis& to,
              const Tensor& out) {
  using A = accumulate_t<T>;
  const std::int64_t *const rows = sorted.keys(), *const sources = sorted.numbers();
  const T* const in = x.data<T>();
  T* const y = out.data<T>();
  for_each("index_add", x.device(), x.count(), [=] __device__(std::int64_t i) {
    const std::int64_t c = i % from.inner, line = i / from.inner, first = line % from.size,
                       o = line / from.size;
    const std::int64_t row = rows[first];
    if (row == to.size || (first > 0 && rows[first - 1] == row)) return;  // another thread adds it
    A sum = 0;
    for (std::int64_t k = first; k < from.size && rows[k] == row; ++k) {
      sum = static_cast<A>(sum + convert<A>(in[(o * from.size + sources[k]) * from.inner + c]));
    }
    y[(o * to.size + row) * to.inner + c] = convert<T>(sum);
  });
}

/// Where element i of x, counted in row-major order, goes in out; out.count() for an index out of range.
struct PlaceKey {
  StridedLoop<2> loop;  // over x's shape, row-major: of x itself, and of out without `dim`
  const std::int64_t* rows;
  std::int64_t size, step, none;
  __device__ std::int64_t operator()(std::int64_t i) const {
    std::int64_t at[2];
    locate(loop, i, at);
    return rows[i] >= 0 && rows[i] < size ? at[1] + rows[i] * step : none;
  }
};

template <class T>
void add_elements(const Tensor& x, const SortedByKey& sorted, const Tensor& out) {
  using A = accumulate_t<T>;
  const std::int64_t *const places = sorted.keys(), *const sources = sorted.numbers();
  const std::int64_t count = x.count(), none = out.count();
  const T* const in = x.data<T>();
  T* const y = out.data<T>();
  for_each("scatter_add", x.device(), count, [=] __device__(std::int64_t first) {
    const std::int64_t place = places[first];
    if (place == none || (first > 0 && places[first - 1] == place)) return;  // another thread adds it
    A sum = 0;
    for (std::int64_t k = first; k < count && places[k] == place; ++k) {
      sum = static_cast<A>(sum + convert<A>(in[sources[k]]));
    }
    y[place] = convert<T>(sum);
  });
}

}  // namespace

void index_select(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  const Axis from = Axis::of(x, dim), to = Axis::of(out, dim);
  visit(x.dtype(), [&]<class T>() { select<T>(x, from, index, to, out); });
}

void index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  fill(out, 0);
  if (x.count() == 0) return;
  const Axis from = Axis::of(x, dim), to = Axis::of(out, dim);
  const SortedByKey sorted("index_add", x.device(), from.size, to.size,
                           RowKey{index.data<std::int64_t>(), to.size});
  visit(x.dtype(), [&]<class T>() { add_rows<T>(x, from, sorted, to, out); });
}

void gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  visit(x.dtype(), [&]<class T>() { gather_of<T>(x, dim, index, out); });
}

void scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& out) {
  fill(out, 0);
  if (x.count() == 0) return;
  const Tensor in = x.to(Layout::nchw);  // as the index is
  Strides own{}, to{};
  std::ranges::copy(in.strides(), own.begin());
  std::ranges::copy(out.strides(), to.begin());
  const std::int64_t step = to[dim];
  to[dim] = 0;
  const SortedByKey sorted("scatter_add", x.device(), x.count(), out.count(),
                           PlaceKey{StridedLoop<2>::over(in.shape(), {own, to}), index.data<std::int64_t>(),
                                    out.size(dim), step, out.count()});
  visit(x.dtype(), [&]<class T>() { add_elements<T>(in, sorted, out); });
}

}  // namespace tapedeck::cu
