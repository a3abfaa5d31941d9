// Products of two matrices that are too small to keep a GPU busy: what they take is the time until the first
// operands come, and until the last sums are written.
//
// A thread block has 64 x 64 of c and brings chunks of k, 128 bytes of each row of a and column of b, four at
// a time to a ring in shared memory, by asynchronous copies: of up to 128 numbers all there is at once. They
// lie there as in memory, rows of k or rows of m or n, and are multiplied by tensor cores (mma.sync) in
// either order. Where there are fewer tiles of c than multiprocessors, blocks share k, and parts of sums are
// added in order by a second kernel. At float32's accuracy operands are two TF32 numbers each, as in
// conv/gemm_tile.cuh, and sums of two steps are added in float32.
//
//   operand along k:  [64 rows][128 bytes of k, 16 apart from the next row's]
//   operand across:   [chunk of k][64 elements, 16 bytes apart, or of float32 32]
//
// so that what a warp reads at once meets different banks: ldmatrix, transposing of 16 bits across; of
// float32 across words of (k, m) as (t, g).
#include <tapedeck/ops/small_matmul.cuh>

#include <numeric>

#include <tapedeck/core/precision.h>
#include <tapedeck/ops/rectifier.h>
#include <tapedeck/core/launch_kernel.cuh>
#include <tapedeck/ops/conv/gemm.cuh>

namespace tapedeck::cu {

namespace {

using conv_gemm::Half;
using conv_gemm::load_matrices;
using conv_gemm::shared_address;
using conv_gemm::Tf32;
using conv_gemm::Tf32x3;
using small_matmul::kChunkBytes;
using small_matmul::kTile;
using small_matmul::Plan;

constexpr int kBlock = 128, kStages = 4;
constexpr int kWarpTile = 32;                  // rows and columns of a warp, of which a block has 2 x 2
constexpr int kPitch = kChunkBytes + 16;       // between rows in shared memory
constexpr int kOperandBytes = kTile * kPitch;  // of a stage, in either order
constexpr int kStageBytes = 2 * kOperandBytes;
constexpr int kPartLanes = 32, kPartSlices = 8;

/// An operand in global memory: of a, m, and of b, n goes across k.
struct Operand {
  const char* data;
  std::int64_t pitch;   // bytes between rows, of k or across
  std::int64_t across;  // m or n
  int copy;             // bytes that are copied at once: 16, 8 or 4
};

struct Arguments {
  Operand a, b;
  Reader<float> bias;           // or null data
  void* out;                    // or parts of sums, [split][m][n]
  std::int64_t m, n, k, split;  // split: elements of k of each
  bool is_float;                // out
  Rectifier rectifier;
};

__device__ __forceinline__ void load_transposed(unsigned address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// kBytes, of which `exist` are copied, and zeros follow.
template <int kBytes>
__device__ __forceinline__ void bring(unsigned to, const char* from, int exist) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exist) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(exist)
                 : "memory");
  }
}

/// A chunk of an operand: of k from `begin` on, up to `end`, and of what goes across from `first` on.
template <class T, bool kAlong, int kBytes>
__device__ __forceinline__ void bring_chunk(const Operand& x, unsigned to, std::int64_t first,
                                            std::int64_t begin, std::int64_t end) {
  constexpr int kSize = sizeof(T), kRowBytes = kAlong ? kChunkBytes : kTile * kSize,
                kRows = kTile * kChunkBytes / kRowBytes, kOfRow = kRowBytes / kBytes,
                kRowPitch = kRowBytes + (kRowBytes == kChunkBytes ? 16 : 32);
  static_assert(kRows * kRowPitch <= kOperandBytes);
  const std::int64_t rows = kAlong ? x.across - first : end - begin,
                     bytes = (kAlong ? end - begin : x.across - first) * kSize;
  const char* const from = x.data + (kAlong ? first : begin) * x.pitch + (kAlong ? begin : first) * kSize;
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kOfRow; i += kBlock) {
    const int row = i / kOfRow, at = i % kOfRow * kBytes;
    const auto exist =
        row < rows ? static_cast<int>(::min(::max(bytes - at, std::int64_t{0}), std::int64_t{kBytes})) : 0;
    bring<kBytes>(to + row * kRowPitch + at, exist > 0 ? from + row * x.pitch + at : x.data, exist);
  }
}
template <class T, bool kAlong>
__device__ __forceinline__ void bring_chunk(const Operand& x, unsigned to, std::int64_t first,
                                            std::int64_t begin, std::int64_t end) {
  if (x.copy == 16) {
    bring_chunk<T, kAlong, 16>(x, to, first, begin, end);
  } else if (x.copy == 8) {
    bring_chunk<T, kAlong, 8>(x, to, first, begin, end);
  } else {
    bring_chunk<T, kAlong, 4>(x, to, first, begin, end);
  }
}

/// What a warp multiplies of 16 rows or columns from `first` on, in a step of 32 bytes of k. Of b, whose
/// matrices are 8 columns wide, two of them: words 0 and 1, and 2 and 3.
template <class T, bool kAlong, bool kIsB>
__device__ __forceinline__ void load(unsigned operand, int first, int step, std::uint32_t (&words)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Matrices: of a by halves of rows and then of k, of b the other way round.
  const int second = kIsB ? lane / 16 : lane / 8 % 2, second_k = kIsB ? lane / 8 % 2 : lane / 16;
  if constexpr (kAlong) {
    load_matrices(operand + (first + second * 8 + lane % 8) * kPitch + step * 32 + second_k * 16, words);
  } else if constexpr (sizeof(T) == 2) {
    load_transposed(operand + (step * 16 + second_k * 8 + lane % 8) * kPitch + (first + second * 8) * 2,
                    words);
  } else {
    constexpr int kRowPitch = kTile * 4 + 32;
    const unsigned at = operand + (step * 8 + lane % 4) * kRowPitch + (first + lane / 4) * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int of_across = kIsB ? i / 2 : i % 2, of_k = kIsB ? i % 2 : i / 2;
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(words[i])
                   : "r"(at + of_k * 4 * kRowPitch + of_across * 8 * 4)
                   : "memory");
    }
  }
}

/// Operands as tensor cores take them: at float32's accuracy the larger and the smaller part.
template <class Math>
__device__ __forceinline__ void prepare(std::uint32_t (&words)[4], std::uint32_t (&small)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (Math::kParts == 3) {
      Math::split(words[i], words[i], small[i]);
    } else if constexpr (sizeof(typename Math::Element) == 4) {
      words[i] = __float_as_uint(Math::prepare(__uint_as_float(words[i])));
    }
  }
}

template <class Math, bool kAlongA, bool kAlongB>
__global__ void __launch_bounds__(kBlock, 3) small_matmul_kernel(const __grid_constant__ Arguments call) {
  using T = typename Math::Element;
  constexpr int kChunk = kChunkBytes / static_cast<int>(sizeof(T)), kM = kWarpTile / 16, kN = kWarpTile / 8;
  extern __shared__ uint4 memory[];
  const unsigned shared = shared_address(memory);
  const std::int64_t row = std::int64_t{blockIdx.y} * kTile, column = std::int64_t{blockIdx.x} * kTile,
                     begin = blockIdx.z * call.split, end = ::min(begin + call.split, call.k);
  const auto chunks = static_cast<int>((end - begin + kChunk - 1) / kChunk);
  await_previous();
  const auto bring = [&](int c) {
    if (c < chunks) {
      const unsigned to = shared + c % kStages * kStageBytes;
      const std::int64_t from = begin + std::int64_t{c} * kChunk;
      bring_chunk<T, kAlongA>(call.a, to, row, from, end);
      bring_chunk<T, kAlongB>(call.b, to + kOperandBytes, column, from, end);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
#pragma unroll 1
  for (int c = 0; c < kStages - 1; ++c) bring(c);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32,
            first_m = warp / 2 * kWarpTile, first_n = warp % 2 * kWarpTile;
  float sums[kM][kN][4] = {};
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();  // the chunk is there, and all are done with the one before
    bring(c + kStages - 1);
    const unsigned a = shared + c % kStages * kStageBytes, b = a + kOperandBytes;
#pragma unroll
    for (int pair = 0; pair < kChunkBytes / 64; ++pair) {
      float part[kM][kN][4] = {};
      float(&to)[kM][kN][4] = Math::kParts == 3 ? part : sums;
#pragma unroll
      for (int s = pair * 2; s < pair * 2 + 2; ++s) {
        std::uint32_t x[kM][4], y[kN / 2][4], small_x[kM][4], small_y[kN / 2][4];
#pragma unroll
        for (int i = 0; i < kM; ++i) {
          load<T, kAlongA, false>(a, first_m + i * 16, s, x[i]);
          prepare<Math>(x[i], small_x[i]);
        }
#pragma unroll
        for (int j = 0; j < kN / 2; ++j) {
          load<T, kAlongB, true>(b, first_n + j * 16, s, y[j]);
          prepare<Math>(y[j], small_y[j]);
        }
#pragma unroll
        for (int i = 0; i < kM; ++i)
#pragma unroll
          for (int j = 0; j < kN; ++j) {
            const int w = j % 2 * 2;
            if constexpr (Math::kParts == 3) {
              Math::multiply(to[i][j], small_x[i], y[j / 2][w], y[j / 2][w + 1]);
              Math::multiply(to[i][j], x[i], small_y[j / 2][w], small_y[j / 2][w + 1]);
            }
            Math::multiply(to[i][j], x[i], y[j / 2][w], y[j / 2][w + 1]);
          }
      }
      if constexpr (Math::kParts == 3) {
#pragma unroll
        for (int i = 0; i < kM; ++i)
#pragma unroll
          for (int j = 0; j < kN; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) sums[i][j][e] += part[i][j][e];
      }
    }
  }

  const bool whole = gridDim.z == 1, pairs = call.n % 2 == 0;
  const std::int64_t base = whole ? 0 : blockIdx.z * call.m * call.n;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    const std::int64_t n = column + first_n + j * 8 + lane % 4 * 2;
    if (n >= call.n) continue;
    const bool two = n + 1 < call.n;
    float bias[2] = {};
    if (whole && call.bias.data != nullptr) {
      bias[0] = call.bias[n];
      if (two) bias[1] = call.bias[n + 1];
    }
#pragma unroll
    for (int i = 0; i < kM * 2; ++i) {
      const std::int64_t m = row + first_m + i * 8 + lane / 4;
      if (m >= call.m) continue;
      float values[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        values[e] = sums[i / 2][j][i % 2 * 2 + e];
        if (whole) values[e] = call.rectifier.value(values[e] + bias[e]);
      }
      const auto store = [&]<class R>(R* out) {
        R* const at = out + base + m * call.n + n;
        if (pairs) {
          *reinterpret_cast<Pack<R, 2>*>(at) = {convert<R>(values[0]), convert<R>(values[1])};
        } else {
          at[0] = convert<R>(values[0]);
          if (two) at[1] = convert<R>(values[1]);
        }
      };
      if (call.is_float) {
        store(static_cast<float*>(call.out));
      } else {
        store(static_cast<T*>(call.out));
      }
    }
  }
}

/// Adds parts of sums in order. kPartSlices threads share those of an element.
__global__ void __launch_bounds__(kPartLanes* kPartSlices)
    add_products_kernel(const float* parts, std::int64_t splits, std::int64_t count, std::int64_t columns,
                        const Reader<float> bias, const Writer<float> out, Rectifier rectifier) {
  __shared__ float sums[kPartSlices][kPartLanes];
  const int lane = static_cast<int>(threadIdx.x) % kPartLanes,
            slice = static_cast<int>(threadIdx.x) / kPartLanes;
  const std::int64_t i = std::int64_t{blockIdx.x} * kPartLanes + lane;
  await_previous();
  float sum = 0;
  if (i < count) {
#pragma unroll 8
    for (std::int64_t s = slice; s < splits; s += kPartSlices) sum += parts[s * count + i];
  }
  sums[slice][lane] = sum;
  __syncthreads();
  if (slice > 0 || i >= count) return;
#pragma unroll
  for (int s = 1; s < kPartSlices; ++s) sum += sums[s][lane];
  if (bias.data != nullptr) sum += bias[i % columns];
  out.write(i, rectifier.value(sum));
}

/// The most bytes that are copied at once of rows that begin so far apart; less than 4: odd elements.
int copy_of(const Matrix& x, int element_bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(x.data);
  return static_cast<int>(
      std::gcd(std::gcd(at, static_cast<std::uintptr_t>(x.columns * element_bytes)), 16u));
}

Operand operand_of(const Matrix& x, bool along, int element_bytes) {
  return {static_cast<const char*>(x.data), x.columns * element_bytes, along ? x.rows : x.columns,
          copy_of(x, element_bytes)};
}

template <class F>
void visit_math(DType dtype, const F& f) {
  if (dtype == DType::bfloat16) return f.template operator()<Half<bfloat16>>();
  if (dtype == DType::float16) return f.template operator()<Half<float16>>();
  if (float32_precision() == Precision::highest) return f.template operator()<Tf32x3>();
  f.template operator()<Tf32>();
}

}  // namespace

std::optional<Plan> small_matmul_plan(DType factors, const Matrix& a, const Matrix& b) {
  const auto bytes = static_cast<int>(size_of(factors));
  const bool plain = a.transpose == Transpose::no;
  const std::int64_t m = plain ? a.rows : a.columns, k = plain ? a.columns : a.rows,
                     n = b.transpose == Transpose::no ? b.columns : b.rows;
  const int parts = factors == DType::float32 && float32_precision() == Precision::highest ? 3 : 1;
  constexpr std::int64_t kMostTiles = 65535;  // of a grid's second dimension
  if (!is_floating(factors) || bytes > 4 || m * n * k == 0 || !small_matmul::is_small(m, n, k, parts))
    return {};
  if (std::min(copy_of(a, bytes), copy_of(b, bytes)) < 4 || m > kMostTiles * kTile) return {};
  return Plan(m, n, k, bytes);
}

void small_matmul(const Plan& plan, DType factors, const Matrix& a, const Matrix& b, const Tensor& bias,
                  void* out, DType product, Device device, double negative_slope) {
  const auto bytes = static_cast<int>(size_of(factors));
  const bool along_a = a.transpose == Transpose::no, along_b = b.transpose == Transpose::yes;
  const Workspace<float> parts(device, plan.parts());
  Arguments call{};
  call.a = operand_of(a, along_a, bytes), call.b = operand_of(b, along_b, bytes);
  if (bias.defined()) call.bias = Reader<float>(bias);
  call.m = plan.m, call.n = plan.n, call.k = plan.k, call.split = plan.split_chunks * plan.chunk;
  call.rectifier.negative_slope = negative_slope;
  const bool whole = plan.splits == 1;
  call.out = whole ? out : parts.data();
  call.is_float = !whole || product == DType::float32;
  visit_math(factors, [&]<class Math>() {
    const auto launch = [&]<bool kAlongA, bool kAlongB>() {
      const auto kernel = small_matmul_kernel<Math, kAlongA, kAlongB>;
      conv_gemm::allow_shared_memory(kernel, kStages * kStageBytes);
      const dim3 grid(grid_size("matmul", ceil_div(plan.n, kTile)),
                      static_cast<unsigned>(ceil_div(plan.m, kTile)), static_cast<unsigned>(plan.splits));
      launch_kernel_with_shared("matmul", device, kernel, grid, kBlock, kStages * kStageBytes, call);
    };
    if (along_a) {
      along_b ? launch.template operator()<true, true>() : launch.template operator()<true, false>();
    } else {
      along_b ? launch.template operator()<false, true>() : launch.template operator()<false, false>();
    }
  });
  if (whole) return;
  Writer<float> writer;
  writer.data = out, writer.dtype = product;
  const std::int64_t count = plan.m * plan.n;
  launch_kernel("matmul: sum of parts", device, add_products_kernel,
                grid_size("matmul", ceil_div(count, kPartLanes)), kPartLanes * kPartSlices, parts.data(),
                plan.splits, count, plan.n, call.bias, writer, call.rectifier);
}

}  // namespace tapedeck::cu
