// Products of matrices on tensor cores, for long sums and few results: of float32, to its accuracy or in
// TF32, and of 16 bits along k; results are float32.
//
//   global --cp.async--> stages: tile_m + tile_n lines of 32 of k --ldmatrix or loads--> registers, split in
//   two TF32 parts --mma.sync, three products--> sums of both halves of a stage's k, added through shared
//   memory --> the result; or a part of it for each split of k, and a second kernel adds parts in their order
//
// cuBLASLt does not share batched products along k, and at float32's accuracy has no tensor cores. On an H200
// (us, cuBLASLt before): 6 products of 96 x 64, 16384 of k: 36 (514); 2 of 32 x 168, 16384: 15 (288); 128 x
// 192, 65536: 67 (116); 128 x 100, 8192: 10.6 (15.8); 16 x 96, 112: 5 (52, of 264 splits). Of large ones 49
// to 53 TFLOP/s are as many as cuBLASLt's, and short sums (dcgan1 forward, 100 of k: 8.7) no faster.
//
// What mattered: half of k for each of two warps (128 x 100, 8192 of k: 12.2 to 10.2 us; 128 x 8192, 100 of
// k: 11.4 to 8.7; but large products had 57 TFLOP/s, now 53); splits of few stages (128 x 400, 784 of k: 10.5
// to 7.3 us). Six stages are no faster, and leave room for fewer blocks. What bounds large
// products was not measured.
#include <tapedeck/ops/matmul_tiles.cuh>

#include <type_traits>

#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::load_matrices;
using conv_gemm::shared_address;
using matmul_tiles::kDepth;
using matmul_tiles::kStages;
using matmul_tiles::Plan;
using matmul_tiles::Stage;

constexpr int kTileThreads = matmul_tiles::kThreads;

/// In words of 4 bytes.
struct Operand {
  const std::uint32_t* data;
  BatchSteps step;
  int rows, line;  // line: words between lines, of k or of rows
  int words;       // that are copied at once: lines begin at their multiples
};

/// What becomes of a sum.
struct Finish {
  const float* bias;
  float beta;
  bool relu;
  __device__ __forceinline__ float operator()(float sum, const float* held, int column) const {
    if (beta != 0) sum += beta * *held;
    if (bias != nullptr) sum += bias[column];
    return relu && sum < 0 ? 0.0f : sum;
  }
};

struct Arguments {
  Operand a, b;
  float* to;
  BatchSteps step_to;
  int inner, n, m, k, tiles_n, split_depth;
  bool is_whole;  // one split
  bool by_pairs;  // of results, which begin at multiples of 8 bytes
  Finish finish;
};

/// 16, 8 or 4 bytes from global to shared memory, or zeros.
template <int kWords>
__device__ __forceinline__ void copy_or_clear(unsigned shared, const std::uint32_t* from, bool copies) {
  const int bytes = copies ? kWords * 4 : 0;
  if constexpr (kWords == 4) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(from), "n"(kWords * 4),
                 "r"(bytes)
                 : "memory");
  }
}

/// Until all but the last kGroups groups of copies have come.
template <int kGroups>
__device__ __forceinline__ void wait_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

/// Brings an operand's lines from `row` and `k` on, zeros beyond its rows and from `end` of k on.
template <int kRows, bool kAlongK>
struct Loader {
  using S = Stage<kRows, kAlongK>;
  const Operand& of;
  const std::uint32_t* data;
  int row, end;

  __device__ __forceinline__ void bring(int k, unsigned shared) const {
    if (of.words == 4) {
      bring_by<4>(k, shared);
    } else if (of.words == 2) {
      bring_by<2>(k, shared);
    } else {
      bring_by<1>(k, shared);
    }
  }

 private:
  template <int kWords>
  __device__ __forceinline__ void bring_by(int k, unsigned shared) const {
    using Share = typename S::template Share<kWords>;
    const Share mine(static_cast<int>(threadIdx.x));
    const bool is_inside = mine.at < (kAlongK ? end - k : of.rows - row);
    const int lines = is_inside ? (kAlongK ? of.rows - row : end - k) - mine.line : 0;
    // Beyond the last line nothing is read, whatever the address.
    const std::int64_t first = kAlongK ? row : k;
    const std::uint32_t* from = data + ((first + mine.line) * of.line + (kAlongK ? k : row) + mine.at);
    shared += mine.word() * 4;
#pragma unroll 8
    for (int n = 0; n < S::kLines; n += Share::kLinesAtOnce) {
      copy_or_clear<kWords>(shared + n * S::kPitch * 4, from, n < lines);
      from += std::int64_t{of.line} * Share::kLinesAtOnce;
    }
  }
};

/// Math: as in conv/gemm_tile.cuh, of which a step of k is 8 words.
template <class Math, int BM, int BN, bool kAAlongK, bool kBAlongK>
struct TileKernel {
  using A = Stage<BM, kAAlongK>;
  using B = Stage<BN, kBAlongK>;
  static constexpr int kStageBytes = (A::kWords + B::kWords) * 4, kSharedBytes = kStages * kStageBytes;
  static constexpr int kM = 2, kN = 4;  // of a warp's tile, in blocks of 16 and 8
  using Sums = float[kM][kN][4];

  __device__ static void run(const Arguments& call, unsigned shared) {
    const int tile_m = static_cast<int>(blockIdx.x) / call.tiles_n,
              tile_n = static_cast<int>(blockIdx.x) - tile_m * call.tiles_n;
    const int begin = static_cast<int>(blockIdx.y) * call.split_depth,
              end = min(call.k, begin + call.split_depth);
    const int matrix = static_cast<int>(blockIdx.z);
    const Loader<BM, kAAlongK> a{call.a, call.a.data + call.a.step.at(matrix, call.inner), tile_m * BM, end};
    const Loader<BN, kBAlongK> b{call.b, call.b.data + call.b.step.at(matrix, call.inner), tile_n * BN, end};
    const int depth = (end - begin + kDepth - 1) / kDepth;
    const auto bring = [&](int i) {
      if (i < depth) {
        const unsigned stage = shared + i % kStages * kStageBytes;
        a.bring(begin + i * kDepth, stage);
        b.bring(begin + i * kDepth, stage + A::kWords * 4);
      }
      asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int i = 0; i < kStages; ++i) bring(i);
    Sums sums = {};
    for (int i = 0; i < depth; ++i) {
      if (i == 0) {
        wait_but<kStages - 1>();
      } else {
        wait_but<kStages - 2>();
      }
      __syncthreads();
      if (i > 0) bring(i + kStages - 1);
      add(sums, shared + i % kStages * kStageBytes);
    }
    write(call, sums_of_both(sums, shared), tile_m * BM, tile_n * BN);
  }

 private:
  /// Where a warp's tile is, and which half of k it has: of its rows, when both have been added.
  struct Place {
    int lane = static_cast<int>(threadIdx.x) % 32,
        tile = static_cast<int>(threadIdx.x) / 32 % matmul_tiles::kTiles,
        half = static_cast<int>(threadIdx.x) / (32 * matmul_tiles::kTiles);
    int row = tile % (BM / 32) * 32, column = tile / (BM / 32) * 32;
  };

  /// Half of the rows of a tile's sums, of both halves of k.
  struct Finished {
    float sums[kN][4];
  };
  __device__ static __forceinline__ Finished sums_of_both(const Sums& sums, unsigned shared) {
    const Place place;
    const auto at = [&](int half, int i) {
      return shared + (((half * matmul_tiles::kTiles + place.tile) * kN * 4 + i) * 32 + place.lane) * 4;
    };
    Finished result;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        result.sums[j][e] = place.half == 0 ? sums[0][j][e] : sums[1][j][e];
        store(at(place.half, j * 4 + e), place.half == 0 ? sums[1][j][e] : sums[0][j][e]);
      }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kN; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) result.sums[j][e] += __uint_as_float(load(at(1 - place.half, j * 4 + e)));
    return result;
  }

  __device__ static __forceinline__ void write(const Arguments& call, const Finished& finished, int first_row,
                                               int first_column) {
    const Place place;
    const int row = first_row + place.row + place.half * 16 + place.lane / 4,
              column = first_column + place.column + place.lane % 4 * 2;
    const int matrix = static_cast<int>(blockIdx.z);
    float* const to = call.to + (call.is_whole ? call.step_to.at(matrix, call.inner)
                                               : (std::int64_t{matrix} * gridDim.y + blockIdx.y) *
                                                     std::int64_t{call.m} * call.n);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = row + i * 8;
      if (r >= call.m) break;
      float* const line = to + std::int64_t{r} * call.n;
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        const int c = column + j * 8;
        float2 sum = {finished.sums[j][i * 2], finished.sums[j][i * 2 + 1]};
        if (call.is_whole) {
          if (c < call.n) sum.x = call.finish(sum.x, line + c, c);
          if (c + 1 < call.n) sum.y = call.finish(sum.y, line + c + 1, c + 1);
        }
        if (call.by_pairs) {
          if (c < call.n) *reinterpret_cast<float2*>(line + c) = sum;
        } else {
          if (c < call.n) line[c] = sum.x;
          if (c + 1 < call.n) line[c + 1] = sum.y;
        }
      }
    }
  }

  /// sums += the products of a stage. Tensor cores cut off what they add, so at float32's accuracy the sums
  /// of stages are added by others.
  __device__ static __forceinline__ void add(Sums& sums, unsigned stage) {
    if constexpr (Math::kParts == 3) {
      Sums of_stage = {};
      add_products(of_stage, stage);
#pragma unroll
      for (int i = 0; i < kM; ++i)
#pragma unroll
        for (int j = 0; j < kN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j][e] += of_stage[i][j][e];
    } else {
      add_products(sums, stage);
    }
  }
  __device__ static __forceinline__ void add_products(Sums& sums, unsigned stage) {
    const Place place;
#pragma unroll
    for (int step = 0; step < kDepth / 2; step += 8) {
      const int k = place.half * (kDepth / 2) + step;
      std::uint32_t x[kM][4], y[kN][2];
#pragma unroll
      for (int i = 0; i < kM; ++i) load_a(stage, place.row + i * 16, k, place.lane, x[i]);
#pragma unroll
      for (int j = 0; j < kN; j += 2)
        load_b(stage + A::kWords * 4, place.column + j * 8, k, place.lane, y[j], y[j + 1]);
      if constexpr (Math::kParts == 3) {
        std::uint32_t small_x[kM][4], small_y[kN][2];
        for_each(x, [&](int i, int e) { Math::split(x[i][e], x[i][e], small_x[i][e]); });
        for_each(y, [&](int j, int e) { Math::split(y[j][e], y[j][e], small_y[j][e]); });
        multiply(sums, small_x, y);
        multiply(sums, x, small_y);
      } else if constexpr (std::is_same_v<typename Math::Element, float>) {
        const auto round = [](std::uint32_t& word) {
          word = __float_as_uint(Math::prepare(__uint_as_float(word)));
        };
        for_each(x, [&](int i, int e) { round(x[i][e]); });
        for_each(y, [&](int j, int e) { round(y[j][e]); });
      }
      multiply(sums, x, y);
    }
  }
  template <int kBlocks, int kWords, class F>
  __device__ static __forceinline__ void for_each(const std::uint32_t (&)[kBlocks][kWords], const F& f) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
#pragma unroll
      for (int e = 0; e < kWords; ++e) f(i, e);
  }
  __device__ static __forceinline__ void multiply(Sums& to, const std::uint32_t (&x)[kM][4],
                                                  const std::uint32_t (&y)[kN][2]) {
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int j = 0; j < kN; ++j) Math::multiply(to[i][j], x[i], y[j][0], y[j][1]);
  }

  static __device__ __forceinline__ void store(unsigned shared, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(x) : "memory");
  }
  static __device__ __forceinline__ std::uint32_t load(unsigned shared) {
    std::uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
    return x;
  }
  /// Rows l / 4 and l / 4 + 8 of a block of 16 from `row` on, k of l % 4 and l % 4 + 4 behind `k`.
  static __device__ __forceinline__ void load_a(unsigned stage, int row, int k, int lane,
                                                std::uint32_t (&x)[4]) {
    if constexpr (kAAlongK) {
      load_matrices(stage + A::word_of(row + lane % 16, k + lane / 16 * 4) * 4, x);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        x[e] = load(stage + A::word_of(row + lane / 4 + e % 2 * 8, k + lane % 4 + e / 2 * 4) * 4);
    }
  }
  /// Columns l / 4 of two blocks of 8, k as of A.
  static __device__ __forceinline__ void load_b(unsigned stage, int column, int k, int lane,
                                                std::uint32_t (&first)[2], std::uint32_t (&second)[2]) {
    if constexpr (kBAlongK) {
      std::uint32_t y[4];
      load_matrices(stage + B::word_of(column + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 4) * 4, y);
      first[0] = y[0], first[1] = y[1], second[0] = y[2], second[1] = y[3];
    } else {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        first[e] = load(stage + B::word_of(column + lane / 4, k + lane % 4 + e * 4) * 4);
        second[e] = load(stage + B::word_of(column + 8 + lane / 4, k + lane % 4 + e * 4) * 4);
      }
    }
  }
};

template <class K>
__global__ void __launch_bounds__(kTileThreads, 2)
    multiply_tiles_kernel(const __grid_constant__ Arguments call) {
  extern __shared__ uint4 tiles_memory[];
  await_previous();
  K::run(call, shared_address(tiles_memory));
}

struct SumArguments {
  const float* parts;
  float* to;
  BatchSteps step_to;
  int inner, splits, n;
  std::int64_t of_matrix;  // elements
  Finish finish;
};

constexpr int kSlices = 8, kSumLanes = 32;

/// kSlices threads share the parts of an element, so that many loads are under way; their sums are added in
/// order.
template <int kWords>
__global__ void __launch_bounds__(kSlices* kSumLanes)
    add_splits_kernel(const __grid_constant__ SumArguments call) {
  __shared__ float sums[kSlices][kSumLanes * kWords];
  const int lane = static_cast<int>(threadIdx.x) % kSumLanes,
            slice = static_cast<int>(threadIdx.x) / kSumLanes;
  const std::int64_t i = (std::int64_t{blockIdx.x} * kSumLanes + lane) * kWords;
  const int matrix = static_cast<int>(blockIdx.y);
  using Words = Pack<float, kWords>;
  await_previous();
  Words sum{};
  if (i < call.of_matrix) {
    const float* const parts = call.parts + std::int64_t{matrix} * call.splits * call.of_matrix + i;
#pragma unroll 8
    for (int s = slice; s < call.splits; s += kSlices) {
      const Words part = *reinterpret_cast<const Words*>(parts + s * call.of_matrix);
#pragma unroll
      for (int e = 0; e < kWords; ++e) sum.values[e] += part.values[e];
    }
  }
  *reinterpret_cast<Words*>(&sums[slice][lane * kWords]) = sum;
  __syncthreads();
  if (slice > 0 || i >= call.of_matrix) return;
  Words* const to = reinterpret_cast<Words*>(call.to + call.step_to.at(matrix, call.inner) + i);
  const Words held = call.finish.beta != 0 ? *to : Words{};
#pragma unroll
  for (int k = 1; k < kSlices; ++k)
#pragma unroll
    for (int e = 0; e < kWords; ++e) sum.values[e] += sums[k][lane * kWords + e];
#pragma unroll
  for (int e = 0; e < kWords; ++e)
    sum.values[e] = call.finish(sum.values[e], &held.values[e], static_cast<int>((i + e) % call.n));
  *to = sum;
}

/// The most words at a time that lines of matrices allow.
int words_of(const void* data, const BatchSteps& step, std::int64_t line) {
  const auto all = static_cast<std::uint64_t>(step.of_inner | step.of_calls | line) |
                   reinterpret_cast<std::uintptr_t>(data) / 4;
  return all % 4 == 0 ? 4 : all % 2 == 0 ? 2 : 1;
}

template <class Math, bool kAAlongK, bool kBAlongK>
void launch(Device device, const Plan& plan, std::int64_t batch, const Arguments& call) {
  const dim3 grid(grid_size("matmul", plan.tiles_m * plan.tiles_n), static_cast<unsigned>(plan.splits),
                  static_cast<unsigned>(batch));
  const auto of_tile = [&]<int BM, int BN>() {
    using K = TileKernel<Math, BM, BN, kAAlongK, kBAlongK>;
    conv_gemm::allow_shared_memory(multiply_tiles_kernel<K>, K::kSharedBytes);
    launch_kernel_with_shared("matmul", device, multiply_tiles_kernel<K>, grid, kTileThreads, K::kSharedBytes,
                              call);
  };
  switch (plan.tile_m) {
    case 32:
      return of_tile.template operator()<32, 128>();
    case 64:
      return of_tile.template operator()<64, 64>();
    default:
      return of_tile.template operator()<128, 32>();
  }
}
template <class Math>
void launch_in_order(Device device, const Plan& plan, const TiledProduct& p, const Arguments& call) {
  if (p.transposed_a)
    return p.transposed_b ? launch<Math, false, true>(device, plan, p.sizes.batch, call)
                          : launch<Math, false, false>(device, plan, p.sizes.batch, call);
  return p.transposed_b ? launch<Math, true, true>(device, plan, p.sizes.batch, call)
                        : launch<Math, true, false>(device, plan, p.sizes.batch, call);
}

}  // namespace

std::int64_t tiles_workspace(const matmul_tiles::Sizes& sizes) {
  const Plan plan(sizes);
  return plan.splits == 1 ? 0 : plan.splits * sizes.batch * sizes.m * sizes.n * std::int64_t{sizeof(float)};
}

void multiply_tiles(Device device, const TiledProduct& p) {
  const DeviceScope scope(device);  // of what kernels may have, too
  const Plan plan(p.sizes);
  const auto narrow = [](std::int64_t i) { return static_cast<int>(i); };
  const auto operand = [&](const void* data, const BatchSteps& step, std::int64_t rows, bool along_k) {
    const std::int64_t line = along_k ? p.sizes.k : rows;
    return Operand{static_cast<const std::uint32_t*>(data), step, narrow(rows), narrow(line),
                   words_of(data, step, line)};
  };
  Arguments call{};
  call.a = operand(p.a, p.step_a, p.sizes.m, !p.transposed_a);
  call.b = operand(p.b, p.step_b, p.sizes.n, p.transposed_b);
  call.m = narrow(p.sizes.m), call.n = narrow(p.sizes.n), call.k = narrow(p.sizes.k);
  call.tiles_n = narrow(plan.tiles_n), call.split_depth = narrow(plan.split_depth);
  call.is_whole = plan.splits == 1;
  call.finish = {p.bias, p.beta, p.relu};
  const Workspace<float> parts(device, tiles_workspace(p.sizes) / std::int64_t{sizeof(float)});
  call.to = call.is_whole ? p.to : parts.data(), call.step_to = p.step_to, call.inner = narrow(p.inner);
  call.by_pairs = p.sizes.n % 2 == 0 && reinterpret_cast<std::uintptr_t>(call.to) % 8 == 0;
  switch (p.math) {
    case TileMath::float32:
      launch_in_order<conv_gemm::Tf32x3>(device, plan, p, call);
      break;
    case TileMath::tf32:
      launch_in_order<conv_gemm::Tf32>(device, plan, p, call);
      break;
    case TileMath::bfloat16:
      launch<conv_gemm::Half<bfloat16>, true, true>(device, plan, p.sizes.batch, call);
      break;
    case TileMath::float16:
      launch<conv_gemm::Half<float16>, true, true>(device, plan, p.sizes.batch, call);
  }
  if (call.is_whole) return;
  const SumArguments sum{
      parts.data(),          p.to,       p.step_to, call.inner, narrow(plan.splits), call.n,
      p.sizes.m * p.sizes.n, call.finish};
  const auto add = [&]<int kWords>() {
    launch_kernel("matmul: sum of splits", device, add_splits_kernel<kWords>,
                  dim3(grid_size("matmul", ceil_div(sum.of_matrix, kSumLanes * kWords)),
                       static_cast<unsigned>(p.sizes.batch)),
                  kSlices * kSumLanes, sum);
  };
  words_of(p.to, p.step_to, sum.of_matrix) == 4 ? add.template operator()<4>() : add.template operator()<1>();
}

}  // namespace tapedeck::cu
