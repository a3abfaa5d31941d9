// CUDA's reduction loop: any dimensions, any layout, one order of addition.
//
// A reduction is a loop over kept indices, each with an element of the result, and a loop over reduced
// ones. What is innermost in memory is read in vectors of kVector neighbours: a thread then has one total
// for each of them, of its own result (`Columns`: the innermost dimension is kept) or of one result.
//
// A block's threads are lanes of results times lanes of terms. Lane l takes the terms l, l + lanes, ...;
// lanes are folded pairwise. Where there are few results the terms are also split into chunks, one a block,
// and a second kernel folds the chunks' totals in the same way. All numbers follow from the shape and the
// type alone, so the bits are the same in every run and on every GPU.
//
// What a multiprocessor's blocks read at once bounds large tensors: with three blocks of 256 threads in place
// of two, an H200 takes 323 for 384 us to rectify a gradient of 411 MB and to add it up by channels.
//
// A `Reduction` is an object that kernels take by value:
//   Value, Total, Center              types
//   read(at, n, step, packed, values) the elements at, at + step, ... (n <= kVector of them) of what is
//                                     reduced; with `packed`, n is kVector and they are one aligned vector
//   center(out)                       what add() needs to know of a result, by its place
//   start(), add(total, value, center), merge(total, total)
//   finish(out, total)                stores a result at its place
// and maybe, for whole vectors of numbers that are stored as they are computed with (most calls, and a
// fraction of the instructions):
//   is_plain()                        whether what it reads is
//   plain()                           itself with that known when it is compiled
#pragma once

#include <algorithm>
#include <bit>

#include <tapedeck/ops/map.cuh>

namespace tapedeck::cu {

/// A reader of what is stored as it is computed with, known when it is compiled.
template <class V>
__device__ __forceinline__ Reader<V> plain(const Reader<V>& x) {
  Reader<V> known;
  known.data = x.data;
  known.dtype = dtype_of<V>;
  return known;
}
template <class V>
bool is_plain(const Reader<V>& x) {
  return x.dtype == dtype_of<V>;
}

/// How a reduction is divided: what does not depend on types.
struct ReducePlan {
  StridedLoop<2> kept;                           // strides of the elements, and of the results
  StridedLoop<1> reduced;                        // strides of the elements
  bool columns = false;                          // whether the innermost dimension is kept
  bool packed = false;                           // whether each vector is aligned and whole
  std::int64_t results = 1, result_vectors = 1;  // the latter are results unless `columns`
  std::int64_t terms = 1;                        // vectors unless `columns`
  std::int64_t inner_vectors = 1;                // of the innermost dimension
  int term_lanes = 1;
  std::int64_t chunk = 1, chunks = 1;  // terms of a block

  /// Whether steps between terms need no division.
  __host__ __device__ bool steps_simply() const { return reduced.rank <= (columns ? 1 : 2); }
};

/// Blocks of `Value`s of so many bytes that a multiprocessor has at once: as many registers as a thread may
/// have. (Three of pairs of float32 spill some, and where they do not, sums of a batch normalisation's
/// gradient took as long.)
template <class Value>
inline constexpr int kReduceBlocks = sizeof(Value) <= 4   ? 3
                                     : sizeof(Value) <= 8 ? 2
                                                          : 1;

inline constexpr std::int64_t kMultiprocessors = 132;  // of an H100: results do not depend on the device

/// How many chunks of terms keep a GPU busy, where so many blocks are needed for each: those of which no wave
/// of blocks, so many at once, is mostly empty.
inline std::int64_t best_chunks(std::int64_t blocks, std::int64_t at_once) {
  std::int64_t best = 1;
  double most = 0;  // the busy share of all waves
  for (std::int64_t waves = 1; waves <= 4 && most < 0.9; ++waves) {
    const std::int64_t chunks = at_once * waves / blocks;
    const double share = static_cast<double>(blocks * chunks) / static_cast<double>(at_once * waves);
    if (share > most) best = chunks, most = share;
  }
  return best;
}

/// Divides a reduction. `aligned`: whether element 0 of everything that is read starts a vector. `each`:
/// blocks that a multiprocessor has at once.
inline ReducePlan plan_reduction(const StridedLoop<2>& kept, const StridedLoop<1>& reduced, bool aligned,
                                 int each) {
  ReducePlan plan{kept, reduced};
  const std::int64_t rows = reduced.count();
  plan.results = kept.count();
  plan.columns = kept.strides[0][kept.rank - 1] == 1 && kept.sizes[kept.rank - 1] > 1;
  const std::int64_t inner =
      std::max<std::int64_t>(1, plan.columns ? kept.sizes[kept.rank - 1] : reduced.sizes[reduced.rank - 1]);
  plan.packed = aligned && inner % kVector == 0 &&
                (plan.columns ? kept.strides[0][kept.rank - 1] : reduced.strides[0][reduced.rank - 1]) == 1;
  for (int d = 0; d < kept.rank; ++d) {
    plan.packed = plan.packed && (kept.strides[0][d] % kVector == 0 || (plan.columns && d == kept.rank - 1) ||
                                  kept.sizes[d] == 1);
  }
  for (int d = 0; d < reduced.rank; ++d) {
    plan.packed = plan.packed && (reduced.strides[0][d] % kVector == 0 ||
                                  (!plan.columns && d == reduced.rank - 1) || reduced.sizes[d] == 1);
  }
  plan.inner_vectors = ceil_div(inner, kVector);
  plan.result_vectors = plan.columns ? plan.results / inner * plan.inner_vectors : plan.results;
  plan.terms = plan.columns ? rows : rows / inner * plan.inner_vectors;
  const auto power_of_two = [](std::int64_t n) {
    return static_cast<int>(
        std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(n, 1, kThreads))));
  };
  // Neighbouring threads read neighbours: across results if these are, else across terms.
  plan.term_lanes = power_of_two(plan.terms);
  if (plan.columns)
    plan.term_lanes = std::min(plan.term_lanes, kThreads / std::min(32, power_of_two(plan.result_vectors)));
  std::int64_t blocks = ceil_div(plan.result_vectors, kThreads / plan.term_lanes);
  // Many blocks start and fold in turns: then rather more terms a lane, as long as few multiprocessors idle.
  if (!plan.columns && blocks > 2 * kMultiprocessors) {
    for (; plan.term_lanes > 32 && blocks > kMultiprocessors * 7 / 4; blocks = ceil_div(blocks, 2))
      plan.term_lanes /= 2;
  }
  // Chunks have a second kernel, which costs more than a few terms: not where most of the GPU is busy anyway.
  const std::int64_t least = blocks > kMultiprocessors / 2 ? 16 : 1,
                     most = std::max<std::int64_t>(1, ceil_div(plan.terms, plan.term_lanes * least));
  plan.chunks = std::min(best_chunks(std::max<std::int64_t>(blocks, 1), each * kMultiprocessors), most);
  plan.chunk = std::max<std::int64_t>(1, ceil_div(plan.terms, plan.chunks));
  plan.chunks = std::max<std::int64_t>(1, ceil_div(plan.terms, plan.chunk));
  return plan;
}

/// Terms of a thread that are read at once.
inline constexpr int kTermsAhead = 4;

/// Folds the totals of a block's term lanes, pairwise, into those of lane 0. `totals` has one for each
/// thread; the lanes of a result are `stride` threads apart.
template <class Reduction>
__device__ __forceinline__ void fold_lanes(const Reduction& r, typename Reduction::Total* totals, int lane,
                                           int lanes, int stride) {
  for (int half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
      totals[threadIdx.x] = r.merge(totals[threadIdx.x], totals[threadIdx.x + half * stride]);
    }
  }
}

/// Where result i begins, in elements and results.
template <bool kColumns>
__device__ __forceinline__ void locate_result(const ReducePlan& plan, std::int64_t i, std::int64_t (&at)[2],
                                              int& n) {
  if constexpr (kColumns) {
    const std::int64_t row = i / plan.inner_vectors, column = (i - row * plan.inner_vectors) * kVector;
    const std::int64_t inner = plan.kept.sizes[plan.kept.rank - 1];
    locate(plan.kept, row * inner + column, at);
    n = inner - column < kVector ? static_cast<int>(inner - column) : kVector;
  } else {
    locate(plan.kept, i, at);
    n = 1;
  }
}

/// The terms of a lane, one after the other: where each begins and how many elements it has. kPlain: all
/// steps are simple, and vectors whole.
template <bool kColumns, bool kPlain>
class TermWalk {
 public:
  /// `at`: where the result's elements begin; `results`: how many a vector of columns has.
  __device__ TermWalk(const ReducePlan& plan, std::int64_t at, int results, std::int64_t term)
      : plan_(plan), at_(at), term_(term), results_(results) {
    const StridedLoop<1>& loop = plan.reduced;
    simple_ = kPlain || plan.steps_simply();
    if constexpr (kColumns) {
      jump_ = plan.term_lanes * loop.strides[0][0];
    } else {
      // The next term is some rows on, and some vectors: without a division for each.
      const std::int64_t row = loop.rank == 2 ? loop.strides[0][0] : 0,
                         step = kVector * loop.strides[0][loop.rank - 1];
      const auto lanes = static_cast<std::uint32_t>(plan.term_lanes);
      const std::uint32_t rows =
          plan.inner_vectors > lanes ? 0 : lanes / static_cast<std::uint32_t>(plan.inner_vectors);
      vectors_ = lanes - rows * plan.inner_vectors;
      jump_ = rows * row + vectors_ * step;
      wrap_ = row - plan.inner_vectors * step;
    }
    place();
  }
  __device__ std::int64_t from() const { return from_; }
  __device__ int count() const {
    if constexpr (kColumns) return results_;
    if constexpr (kPlain) return kVector;
    const std::int64_t left = plan_.reduced.sizes[plan_.reduced.rank - 1] - vector_ * kVector;
    return left < kVector ? static_cast<int>(left) : kVector;
  }
  __device__ void advance() {
    term_ += plan_.term_lanes;
    if (!simple_) return place();
    from_ += jump_;
    if constexpr (!kColumns) {
      vector_ += vectors_;
      if (vector_ < plan_.inner_vectors) return;
      vector_ -= plan_.inner_vectors;
      from_ += wrap_;
    }
  }

 private:
  __device__ void place() {
    const StridedLoop<1>& loop = plan_.reduced;
    std::int64_t from[1] = {at_}, row = term_;
    if constexpr (!kColumns) {
      row = term_ >> 32 == 0
                ? static_cast<std::uint32_t>(term_) / static_cast<std::uint32_t>(plan_.inner_vectors)
                : term_ / plan_.inner_vectors;
      vector_ = term_ - row * plan_.inner_vectors;
      from[0] += vector_ * kVector * loop.strides[0][loop.rank - 1];
    }
    const int outer = kColumns ? loop.rank : loop.rank - 1;
    if (row >> 32 == 0) {
      add_place(loop, outer, static_cast<std::uint32_t>(row), from);
    } else {
      add_place(loop, outer, row, from);
    }
    from_ = from[0];
  }

  const ReducePlan& plan_;
  std::int64_t at_, term_, from_ = 0;
  std::int64_t vector_ = 0, vectors_ = 0, jump_ = 0, wrap_ = 0;
  int results_;
  bool simple_;
};

/// partial[chunk * results + result] receives the totals, or, without `partial`, finish() does.
template <class Reduction, bool kColumns, bool kPlain>
__global__ void __launch_bounds__(kThreads, kReduceBlocks<typename Reduction::Value>)
    reduce_kernel(const __grid_constant__ ReducePlan plan, const __grid_constant__ Reduction given,
                  typename Reduction::Total* partial) {
  using Total = typename Reduction::Total;
  const Reduction r = [&given] {
    if constexpr (kPlain) {
      return given.plain();
    } else {
      return given;
    }
  }();
  __shared__ Total shared[kThreads];
  await_previous();
  const int lanes = plan.term_lanes, result_lanes = kThreads / lanes;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = kColumns ? thread / result_lanes : thread % lanes;
  const std::int64_t i =
      std::int64_t{blockIdx.x} * result_lanes + (kColumns ? thread % result_lanes : thread / lanes);
  const bool exists = i < plan.result_vectors;
  std::int64_t at[2] = {};
  int results = 0;
  if (exists) locate_result<kColumns>(plan, i, at, results);
  const std::int64_t result_step = kColumns ? plan.kept.strides[1][plan.kept.rank - 1] : 0;

  Total totals[kVector];
  typename Reduction::Center centers[kVector];
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    totals[j] = r.start();
    if (exists) centers[j] = r.center(at[1] + (j < results ? j : 0) * result_step);
  }
  const std::int64_t begin = blockIdx.y * plan.chunk + lane;
  const std::int64_t end = exists ? ::min(plan.terms, (blockIdx.y + 1) * plan.chunk) : 0;
  const std::int64_t step = kColumns ? 1 : plan.reduced.strides[0][plan.reduced.rank - 1];
  TermWalk<kColumns, kPlain> walk(plan, at[0], results, begin);
  // Several terms are read before the first is added, so that a thread waits for memory less often. Beyond
  // the last one the first of them is read again, so that nothing branches.
  for (std::int64_t first_term = begin; first_term < end; first_term += kTermsAhead * lanes) {
    typename Reduction::Value values[kTermsAhead][kVector];
    const std::int64_t first_from = walk.from();
    const int first_count = walk.count();
    int counts[kTermsAhead];
#pragma unroll
    for (int a = 0; a < kTermsAhead; ++a) {
      const bool is_term = first_term + a * lanes < end;
      counts[a] = is_term ? walk.count() : 0;
      r.read(is_term ? walk.from() : first_from,
             kPlain    ? kVector
             : is_term ? counts[a]
                       : first_count,
             step, kPlain || plan.packed, values[a]);
      walk.advance();
    }
#pragma unroll
    for (int a = 0; a < kTermsAhead; ++a) {
      if (counts[a] == 0) continue;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (kPlain || j < counts[a]) totals[j] = r.add(totals[j], values[a][j], centers[kColumns ? j : 0]);
      }
    }
  }

  const std::int64_t first_result = kColumns ? i / plan.inner_vectors * plan.kept.sizes[plan.kept.rank - 1] +
                                                   i % plan.inner_vectors * kVector
                                             : i;
  const auto store = [&](int j, const Total& total) {
    if (partial != nullptr) {
      partial[blockIdx.y * plan.results + first_result + j] = total;
    } else {
      r.finish(at[1] + j * result_step, total);
    }
  };
  if constexpr (kColumns) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      shared[thread] = totals[j];
      fold_lanes(r, shared, lane, lanes, result_lanes);
      if (lane == 0 && j < results) store(j, shared[thread]);
      __syncthreads();
    }
  } else {
    shared[thread] = r.merge(r.merge(totals[0], totals[2]), r.merge(totals[1], totals[3]));
    fold_lanes(r, shared, lane, lanes, 1);
    if (lane == 0 && exists) store(0, shared[thread]);
  }
}

/// Folds the chunks' totals.
template <class Reduction>
__global__ void __launch_bounds__(kThreads)
    fold_kernel(const __grid_constant__ ReducePlan plan, const __grid_constant__ Reduction r,
                const typename Reduction::Total* partial, int lanes) {
  using Total = typename Reduction::Total;
  __shared__ Total shared[kThreads];
  await_previous();
  const int result_lanes = kThreads / lanes, thread = static_cast<int>(threadIdx.x);
  const int lane = thread / result_lanes;
  const std::int64_t i = std::int64_t{blockIdx.x} * result_lanes + thread % result_lanes;
  Total total = r.start();
  for (std::int64_t chunk = lane; i < plan.results && chunk < plan.chunks; chunk += lanes) {
    total = r.merge(total, partial[chunk * plan.results + i]);
  }
  shared[thread] = total;
  fold_lanes(r, shared, lane, lanes, result_lanes);
  if (lane == 0 && i < plan.results) {
    std::int64_t at[2];
    locate(plan.kept, i, at);
    r.finish(at[1], shared[thread]);
  }
}

/// Runs a reduction; there are results. `aligned` as in plan_reduction().
template <class Reduction>
void reduce(const char* op, Device device, const StridedLoop<2>& kept, const StridedLoop<1>& reduced,
            bool aligned, const Reduction& r) {
  using Total = typename Reduction::Total;
  const ReducePlan plan = plan_reduction(kept, reduced, aligned, kReduceBlocks<typename Reduction::Value>);
  const Workspace<Total> partial(device, plan.chunks > 1 ? plan.chunks * plan.results : 0);
  const dim3 grid(grid_size(op, ceil_div(plan.result_vectors, kThreads / plan.term_lanes)),
                  static_cast<unsigned>(plan.chunks));
  const auto run = [&]<bool kPlain>() {
    launch_kernel(
        op, device,
        plan.columns ? reduce_kernel<Reduction, true, kPlain> : reduce_kernel<Reduction, false, kPlain>, grid,
        kThreads, plan, r, partial.data());
  };
  bool plain = false;
  if constexpr (requires { r.is_plain(); }) {
    plain = plan.packed && plan.steps_simply() && r.is_plain();
    if (plain) run.template operator()<true>();
  }
  if (!plain) run.template operator()<false>();
  if (plan.chunks == 1) return;
  const auto lanes = static_cast<int>(
      kThreads / std::bit_ceil(static_cast<std::uint64_t>(std::min<std::int64_t>(plan.results, kThreads))));
  launch_kernel(op, device, fold_kernel<Reduction>, grid_size(op, ceil_div(plan.results, kThreads / lanes)),
                kThreads, plan, r, partial.data(), lanes);
}

/// values[j] = x[at + j * step] for j < n; with `packed` as one vector.
template <class V>
__device__ __forceinline__ void read_run(const Reader<V>& x, std::int64_t at, int n, std::int64_t step,
                                         bool packed, V (&values)[kVector]) {
  if (packed) return x.read(at, values);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (j < n) values[j] = x[at + j * step];
  }
}

/// A reduction of one tensor by one of the CPU's policies (ops/reduce_policies.h), which `Finish` stores.
template <class V, class Policy, class Finish>
struct PolicyReduction {
  using Value = V;
  using Total = typename Policy::Total;
  using Center = double;

  Reader<V> x;
  const double* centers;  // null unless the policy is centered
  Policy policy;
  Finish store;

  bool is_plain() const requires std::same_as<V, float> { return cu::is_plain(x); }
  __device__ PolicyReduction plain() const { return {cu::plain(x), centers, policy, store}; }

  __device__ void read(std::int64_t at, int n, std::int64_t step, bool packed, V (&values)[kVector]) const {
    read_run(x, at, n, step, packed, values);
  }
  __device__ double center(std::int64_t out) const {
    if constexpr (Policy::kCentered) return centers[out];
    return 0;
  }
  __device__ Total start() const { return policy.start(); }
  __device__ Total add(Total total, V value, double center) const { return policy.add(total, value, center); }
  __device__ Total merge(Total a, Total b) const { return policy.merge(a, b); }
  __device__ void finish(std::int64_t out, Total total) const { store(out, total); }
};

inline Strides strides_of(const Tensor& x) {
  Strides strides{};
  const auto own = x.strides();
  std::copy(own.begin(), own.end(), strides.begin());
  return strides;
}

/// The two loops of a reduction of x to `out`, which has x's rank, and size 1 where reduced.
struct ReduceLoops {
  StridedLoop<2> kept;
  StridedLoop<1> reduced;

  ReduceLoops(const Tensor& x, const Tensor& out) {
    kept = StridedLoop<2>::over(out.shape(), {strides_of(x), strides_of(out)});
    Shape rest = x.shape();
    for (int d = 0; d < x.rank(); ++d) rest = out.size(d) == 1 ? rest : rest.with(d, 1);
    reduced = StridedLoop<1>::over(rest, {strides_of(x)});
  }
};

/// store(i, total of the elements of x that stand for element i of out); `out` as above. V is x's compute
/// type.
template <class V, class Policy, class Finish>
void reduce(const char* op, const Tensor& x, const Tensor& out, const Policy& policy, const Finish& store,
            const double* centers = nullptr) {
  const ReduceLoops loops(x, out);
  reduce(op, x.device(), loops.kept, loops.reduced, is_aligned(x.read(), size_of(x.dtype())),
         PolicyReduction<V, Policy, Finish>{Reader<V>(x), centers, policy, store});
}

/// The same for a floating x.
template <class Policy, class Finish>
void reduce_floating(const char* op, const Tensor& x, const Tensor& out, const Policy& policy,
                     const Finish& store, const double* centers = nullptr) {
  if (x.dtype() == DType::float64) {
    reduce<double>(op, x, out, policy, store, centers);
  } else {
    reduce<float>(op, x, out, policy, store, centers);
  }
}

/// out[i] = total * scale, of a floating dtype.
struct StoreScaled {
  Writer<double> wide;
  Writer<float> narrow;  // for the other floating types
  double scale;

  StoreScaled(const Tensor& out, double s) : wide(out), narrow(out), scale(s) {}
  __device__ void operator()(std::int64_t i, double total) const {
    if (wide.dtype == DType::float64) {
      wide.write(i, total * scale);
    } else {
      narrow.write(i, static_cast<float>(total * scale));
    }
  }
};

}  // namespace tapedeck::cu
