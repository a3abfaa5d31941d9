// Optimizer steps: all tensors of a call in one launch. A block takes a piece of one tensor; which tensors
// there are travels with the launch, so that nothing is copied to the GPU and a graph can hold the call.
#include <tapedeck/ops/optimizer_step.h>

#include <algorithm>
#include <cmath>

#include <tapedeck/ops/optimizer_formulas.h>
#include <tapedeck/core/launch.cuh>
#include <tapedeck/core/launch_kernel.cuh>

namespace tapedeck::cu {

namespace {

constexpr std::int64_t kPiece = kThreads * kVector;  // elements of a block
constexpr int kTensors = 64;                         // of a launch

/// A list of tensors with kArrays arrays each.
template <int kArrays>
struct TensorList {
  void* arrays[kArrays][kTensors];
  std::int64_t counts[kTensors];
  int first_block[kTensors + 1];
  int tensors = 0;

  TensorList() { first_block[0] = 0; }
  int blocks() const { return first_block[tensors]; }

  struct Piece {
    int tensor;
    std::int64_t begin, end;
  };
  /// What a block works on.
  __device__ Piece piece(int block) const {
    int low = 0, high = tensors - 1;  // the last tensor that begins at or before this block
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_block[middle] <= block) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const std::int64_t begin = (block - first_block[low]) * kPiece;
    return {low, begin, ::min(counts[low], begin + kPiece)};
  }
};

/// Calls launch(list, first) for lists that cover all tensors; `first` is the number of blocks of the lists
/// before. arrays(i) are the kArrays addresses of tensor i.
template <int kArrays, class Arrays, class Launch>
void for_each_list(const Tensors& tensors, const Arrays& arrays, const Launch& launch) {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < tensors.size();) {
    TensorList<kArrays> list;
    for (; i < tensors.size() && list.tensors < kTensors; ++i) {
      const std::int64_t count = tensors[i].count(), blocks = ceil_div(count, kPiece);
      if (blocks == 0) continue;
      if (list.blocks() + blocks > 0x7fffffff) break;
      const auto addresses = arrays(i);
      for (int k = 0; k < kArrays; ++k) list.arrays[k][list.tensors] = addresses[static_cast<std::size_t>(k)];
      list.counts[list.tensors] = count;
      list.first_block[list.tensors + 1] = list.blocks() + static_cast<int>(blocks);
      ++list.tensors;
    }
    if (list.tensors > 0) launch(list, first);
    first += list.blocks();
  }
}

/// The number of blocks of all lists.
std::int64_t count_pieces(const Tensors& tensors) {
  std::int64_t pieces = 0;
  for (const Tensor& tensor : tensors) pieces += ceil_div(tensor.count(), kPiece);
  return pieces;
}

/// values[j] = array[i + j] for j < n, where array is of type T: one load if it may be.
template <class T, class A>
__device__ __forceinline__ void load(const void* array, std::int64_t i, int n, A (&values)[kVector]) {
  const T* const from = static_cast<const T*>(array) + i;
  if (n == kVector && reinterpret_cast<std::uintptr_t>(from) % sizeof(Pack<T, kVector>) == 0) {
    const auto pack = *reinterpret_cast<const Pack<T, kVector>*>(from);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = convert<A>(pack.values[j]);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (j < n) values[j] = convert<A>(from[j]);
    }
  }
}

template <class T, class A>
__device__ __forceinline__ void store(void* array, std::int64_t i, int n, const A (&values)[kVector]) {
  T* const to = static_cast<T*>(array) + i;
  if (n == kVector && reinterpret_cast<std::uintptr_t>(to) % sizeof(Pack<T, kVector>) == 0) {
    Pack<T, kVector> pack;
#pragma unroll
    for (int j = 0; j < kVector; ++j) pack.values[j] = convert<T>(values[j]);
    *reinterpret_cast<Pack<T, kVector>*>(to) = pack;
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (j < n) to[j] = convert<T>(values[j]);
    }
  }
}

/// Calls f(i, n) for a piece's vectors of this thread.
template <class P, class F>
__device__ __forceinline__ void for_each_vector(const P& piece, const F& f) {
  for (std::int64_t i = piece.begin + threadIdx.x * kVector; i < piece.end; i += kThreads * kVector) {
    f(i, static_cast<int>(::min(piece.end - i, std::int64_t{kVector})));
  }
}

// ---- optimizers ----

/// Arrays: counter, rule. Counts this step, and makes each parameter's rule once: bias corrections are powers
/// in float64.
template <class Rule, class Settings>
__global__ void __launch_bounds__(kTensors)
    begin_kernel(const __grid_constant__ TensorList<2> list, Settings settings, const double* live,
                 const std::uint8_t* skip) {
  await_previous();
  if (skip != nullptr && *skip != 0) return;
  const int i = static_cast<int>(threadIdx.x);
  if (i >= list.tensors) return;
  if (live != nullptr) formula::set_live(settings, live);
  new (list.arrays[1][i])
      Rule(settings, static_cast<double>(++*static_cast<std::int64_t*>(list.arrays[0][i])));
}

/// Arrays: parameter, gradient, rule, slots.
template <class T, class Rule, int kSlots, std::size_t... k>
__device__ __forceinline__ void update_piece(const TensorList<3 + kSlots>& list, std::index_sequence<k...>) {
  using A = accumulate_t<T>;
  const auto piece = list.piece(static_cast<int>(blockIdx.x));
  const Rule rule = *static_cast<const Rule*>(list.arrays[2][piece.tensor]);
  for_each_vector(piece, [&](std::int64_t i, int n) {
    A w[kVector], g[kVector], slots[kSlots + 1][kVector];
    load<T>(list.arrays[0][piece.tensor], i, n, w);
    load<T>(list.arrays[1][piece.tensor], i, n, g);
    (load<A>(list.arrays[3 + k][piece.tensor], i, n, slots[k]), ...);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (j < n) w[j] = rule(w[j], g[j], slots[k][j]...);
    }
    store<T>(list.arrays[0][piece.tensor], i, n, w);
    (store<A>(list.arrays[3 + k][piece.tensor], i, n, slots[k]), ...);
  });
}

template <class T, class Rule, int kSlots>
__global__ void __launch_bounds__(kThreads)
    update_kernel(const __grid_constant__ TensorList<3 + kSlots> list, const std::uint8_t* skip) {
  await_previous();
  if (skip != nullptr && *skip != 0) return;
  update_piece<T, Rule, kSlots>(list, std::make_index_sequence<kSlots>());
}

template <class Settings>
void update(const char* op, const OptimizerBatch& batch, const Settings& settings) {
  const Device device = batch.parameters[0].device();
  const double* const live = batch.live.defined() ? batch.live.data<double>() : nullptr;
  const std::uint8_t* const skip = batch.skip.defined() ? batch.skip.data<std::uint8_t>() : nullptr;
  visit_floating(op, batch.parameters[0].dtype(), [&]<class T>() {
    formula::visit_rule<accumulate_t<T>>(settings, batch.slots.size(), [&]<class Rule, std::size_t kSlots>() {
      const Workspace<Rule> rules(device, static_cast<std::int64_t>(batch.steps.size()));
      const auto counters = [&](std::size_t i) {
        return std::array<void*, 2>{batch.steps[i].raw(), rules.data() + i};
      };
      for_each_list<2>(batch.steps, counters, [&](const auto& list, std::int64_t) {
        launch_kernel(op, device, begin_kernel<Rule, Settings>, 1, kTensors, list, settings, live, skip);
      });
      const auto arrays = [&](std::size_t i) {
        std::array<void*, 3 + kSlots> all{batch.parameters[i].raw(), batch.gradients[i].raw(),
                                          rules.data() + i};
        for (int k = 0; k < static_cast<int>(kSlots); ++k) all[3 + k] = batch.slots[k][i].raw();
        return all;
      };
      for_each_list<3 + kSlots>(batch.parameters, arrays, [&](const auto& list, std::int64_t) {
        launch_kernel(op, device, update_kernel<T, Rule, static_cast<int>(kSlots)>,
                      static_cast<unsigned>(list.blocks()), kThreads, list, skip);
      });
    });
  });
}

// ---- norm, clipping, averages ----

/// The block's total of each thread's number, in thread 0.
__device__ double block_total(double value) {
  __shared__ double shared[kThreads];
  shared[threadIdx.x] = value;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  return shared[0];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    square_sum_kernel(const __grid_constant__ TensorList<1> list, double* sums) {
  await_previous();
  const auto piece = list.piece(static_cast<int>(blockIdx.x));
  double sum = 0;
  for_each_vector(piece, [&](std::int64_t i, int n) {
    double x[kVector];
    load<T>(list.arrays[0][piece.tensor], i, n, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (j < n) sum += x[j] * x[j];
    }
  });
  sum = block_total(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    norm_kernel(const double* sums, std::int64_t count, double* norm) {
  await_previous();
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += sums[i];
  sum = block_total(sum);
  if (threadIdx.x == 0) *norm = sqrt(sum);
}

/// Arrays: x, out.
template <class T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(const __grid_constant__ TensorList<2> list, const double* norm, double max_norm) {
  await_previous();
  using A = accumulate_t<T>;
  const auto piece = list.piece(static_cast<int>(blockIdx.x));
  const double ratio = max_norm / (*norm + 1e-6);
  const A factor = static_cast<A>(ratio > 1 ? 1 : ratio);  // a NaN stays one
  for_each_vector(piece, [&](std::int64_t i, int n) {
    A x[kVector];
    load<T>(list.arrays[0][piece.tensor], i, n, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j) x[j] *= factor;
    store<T>(list.arrays[1][piece.tensor], i, n, x);
  });
}

/// Arrays: average, value.
template <class T>
__global__ void __launch_bounds__(kThreads)
    average_kernel(const __grid_constant__ TensorList<2> list, double fixed_decay, const double* live_decay) {
  await_previous();
  using A = accumulate_t<T>;
  const auto piece = list.piece(static_cast<int>(blockIdx.x));
  const double decay = live_decay != nullptr ? *live_decay : fixed_decay;
  const A keep = static_cast<A>(decay), take = static_cast<A>(1 - decay);
  for_each_vector(piece, [&](std::int64_t i, int n) {
    A average[kVector], value[kVector];
    load<A>(list.arrays[0][piece.tensor], i, n, average);
    load<T>(list.arrays[1][piece.tensor], i, n, value);
#pragma unroll
    for (int j = 0; j < kVector; ++j) average[j] = keep * average[j] + take * value[j];
    store<A>(list.arrays[0][piece.tensor], i, n, average);
  });
}

/// Arrays: gradient, out. All that see an overflow write the same.
template <class T>
__global__ void __launch_bounds__(kThreads)
    unscale_kernel(const __grid_constant__ TensorList<2> list, const float* scale, std::uint8_t* overflow) {
  await_previous();
  using A = accumulate_t<T>;
  const auto piece = list.piece(static_cast<int>(blockIdx.x));
  const A factor = 1 / static_cast<A>(*scale);
  bool finite = true;
  for_each_vector(piece, [&](std::int64_t i, int n) {
    A x[kVector] = {};
    load<T>(list.arrays[0][piece.tensor], i, n, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      x[j] *= factor;
      finite = finite && isfinite(x[j]);
    }
    store<T>(list.arrays[1][piece.tensor], i, n, x);
  });
  if (!finite) *overflow = 1;
}

__global__ void update_scale_kernel(float* scale, std::int64_t* updates, std::uint8_t* overflow,
                                    double growth, double backoff, std::int64_t interval) {
  await_previous();
  formula::update_scale(*scale, *updates, *overflow, growth, backoff, interval);
}

/// Launches a kernel on pairs of tensors of one dtype.
template <class Launch>
void for_each_pair(const Tensors& a, const Tensors& b, const Launch& launch) {
  for_each_list<2>(
      a,
      [&](std::size_t i) {
        return std::array{a[i].raw(), b[i].raw()};
      },
      [&](const TensorList<2>& list, std::int64_t) { launch(list); });
}

}  // namespace

void sgd(const OptimizerBatch& batch, const SgdSettings& settings) {
  update("sgd", batch, settings);
}
void adam(const OptimizerBatch& batch, const AdamSettings& settings) {
  update("adam", batch, settings);
}
void rmsprop(const OptimizerBatch& batch, const RmspropSettings& settings) {
  update("rmsprop", batch, settings);
}

void global_norm(const Tensors& xs, const Tensor& out) {
  const std::int64_t pieces = count_pieces(xs);
  const Workspace<double> sums(out.device(), pieces);
  if (pieces > 0) {
    visit_floating("global_norm", xs[0].dtype(), [&]<class T>() {
      for_each_list<1>(
          xs, [&](std::size_t i) { return std::array{xs[i].raw()}; },
          [&](const TensorList<1>& list, std::int64_t first) {
            launch_kernel("global_norm", out.device(), square_sum_kernel<T>,
                          static_cast<unsigned>(list.blocks()), kThreads, list, sums.data() + first);
          });
    });
  }
  launch_kernel("global_norm", out.device(), norm_kernel, 1, kThreads, sums.data(), pieces,
                out.data<double>());
}

void scale_to_norm(const Tensors& xs, const Tensor& norm, double max_norm, const Tensors& out) {
  if (xs.empty()) return;
  visit_floating("scale_to_norm", xs[0].dtype(), [&]<class T>() {
    for_each_pair(xs, out, [&](const TensorList<2>& list) {
      launch_kernel("scale_to_norm", norm.device(), scale_kernel<T>, static_cast<unsigned>(list.blocks()),
                    kThreads, list, norm.data<double>(), max_norm);
    });
  });
}

void update_averages(const Tensors& averages, const Tensors& values, double decay, const Tensor& live_decay) {
  const Device device = values[0].device();
  const double* const live = live_decay.defined() ? live_decay.data<double>() : nullptr;
  visit_floating("update_averages", values[0].dtype(), [&]<class T>() {
    for_each_pair(averages, values, [&](const TensorList<2>& list) {
      launch_kernel("update_averages", device, average_kernel<T>, static_cast<unsigned>(list.blocks()),
                    kThreads, list, decay, live);
    });
  });
}

void unscale(const Tensors& gradients, const LossScale& loss, const Tensors& out) {
  visit_floating("unscale", gradients[0].dtype(), [&]<class T>() {
    for_each_pair(gradients, out, [&](const TensorList<2>& list) {
      launch_kernel("unscale", loss.scale.device(), unscale_kernel<T>, static_cast<unsigned>(list.blocks()),
                    kThreads, list, loss.scale.data<float>(), loss.overflow.data<std::uint8_t>());
    });
  });
}

void update_scale(const LossScale& loss, double growth, double backoff, std::int64_t interval) {
  launch_kernel("update_scale", loss.scale.device(), update_scale_kernel, 1, 1, loss.scale.data<float>(),
                loss.growth.data<std::int64_t>(), loss.overflow.data<std::uint8_t>(), growth, backoff,
                interval);
}

}  // namespace tapedeck::cu
