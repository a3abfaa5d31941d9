// A block of threads multiplies: C[BM, BN] = the sum over k of A[BM, k] * B[BN, k], in chunks of 128 bytes of
// k.
//
// Shared memory holds two chunks of A and of B, rows of 128 bytes that are 144 apart, so that eight threads
// which read or write 16 bytes each of neighbouring rows meet 32 different banks. While a chunk is
// multiplied, loaders bring the next one. What multiplies is a Math: tensor cores (mma.sync, which sm_80 and
// later have; rows of 32 bytes are one step of k for 32-bit and 16-bit types alike) or fused multiply-adds.
// Sums of a chunk are added to the result's in float32 where `kFlush`: tensor cores truncate what they add,
// so that long sums in them lose digits.
#pragma once

#include <tapedeck/ops/conv/gemm_plan.h>
#include <tapedeck/core/launch.cuh>

namespace tapedeck::cu::conv_gemm {

using namespace tapedeck::conv_gemm;

inline constexpr int kChunkBytes = kVectors * kVectorBytes, kRowBytes = kChunkBytes + kVectorBytes;

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

/// Four matrices of 8 rows of 16 bytes; thread l gives the address of row l % 8 of matrix l / 8, and gets
/// the 4 bytes l % 4 of row l / 4 of each.
__device__ __forceinline__ void load_matrices(unsigned address, std::uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// 16 bytes from global to shared memory, until wait_async().
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}
__device__ __forceinline__ void wait_async() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ float round_to_tf32(float x) {
  std::uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// What tensor cores do with a step of 32 bytes of k: `kParts` products of parts of the operands. prepare()
// is what an element becomes in shared memory. Tensors have Values.

/// Float32 operands rounded to 10 bits of mantissa.
struct Tf32 {
  using Element = float;
  using Value = float;
  static constexpr int kParts = 1, kOperandParts = 1;
  static constexpr bool kScaled = false;
  __device__ static float prepare(float x) { return round_to_tf32(x); }
  __device__ static void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                  std::uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

/// The accuracy of float32: each operand is a sum of two TF32 numbers, and the product of the smaller ones is
/// left out. The larger is the operand cut off, which keeps infinities and NaN (but an infinity times a
/// number of no smaller part is NaN); the smaller one is rounded when tensor cores cut it off, as they do.
struct Tf32x3 : Tf32 {
  static constexpr int kParts = 3;
  __device__ static float prepare(float x) { return x; }
  __device__ static void split(std::uint32_t x, std::uint32_t& large, std::uint32_t& small) {
    large = x & 0xffffe000u;
    small = __float_as_uint(__uint_as_float(x) - __uint_as_float(large)) + 0x1000u;
  }
};

template <class T>
struct Half {
  using Element = T;
  using Value = T;
  static constexpr int kParts = 1, kOperandParts = 1;
  static constexpr bool kScaled = false;
  __device__ static T prepare(T x) { return x; }
  __device__ static void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                  std::uint32_t b1) {
    if constexpr (std::is_same_v<T, bfloat16>) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
          "{%0,%1,%2,%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
          "{%0,%1,%2,%3};"
          : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }
};

/// Fused multiply-adds in the type itself.
template <class T>
struct Simt {
  using Element = T;
  static constexpr int kParts = 0;
  __device__ static T prepare(T x) { return x; }
};

/// Sums of a tile of BM x BN in the registers of a block, by warps of WM x WN.
template <class Math, int BM, int BN, int WM, int WN, bool kFlush>
class Sums {
 public:
  using Result = float;
  static constexpr int kThreads = BM / WM * (BN / WN) * 32;

  /// Adds the products of a chunk.
  __device__ void add(const char* a, const char* b) {
    if constexpr (kFlush) {
      Tiles part = {};
      add_to(part, a, b);
#pragma unroll
      for (int i = 0; i < kM; ++i)
#pragma unroll
        for (int j = 0; j < kN; ++j)
#pragma unroll
          for (int k = 0; k < 4; ++k) sum_[i][j][k] += part[i][j][k];
    } else {
      add_to(sum_, a, b);
    }
  }

  /// f(row, column, sum) for each of this thread's.
  template <class F>
  __device__ void for_each(F f) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp % (BM / WM) * WM + lane / 4, column = warp / (BM / WM) * WN + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int j = 0; j < kN; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) f(row + i * 16 + k / 2 * 8, column + j * 8 + k % 2, sum_[i][j][k]);
  }

 private:
  static constexpr int kM = WM / 16, kN = WN / 8;
  static_assert(kN % 2 == 0);
  using Tiles = float[kM][kN][4];

  __device__ static void add_to(Tiles& to, const char* a, const char* b) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // Matrices of A: rows 0-7 and 8-15 of the first 16 bytes, then of the second. Of B: both halves of
    // channels 0-7, then of 8-15.
    const unsigned a_row =
        shared_address(a) + (warp % (BM / WM) * WM + lane % 16) * kRowBytes + lane / 16 * 16;
    const unsigned b_row = shared_address(b) +
                           (warp / (BM / WM) * WN + lane / 16 * 8 + lane % 8) * kRowBytes + lane / 8 % 2 * 16;
#pragma unroll
    for (int step = 0; step < kChunkBytes / 32; ++step) {
      std::uint32_t x[kM][4], y[kN / 2][4];
#pragma unroll
      for (int i = 0; i < kM; ++i) load_matrices(a_row + i * 16 * kRowBytes + step * 32, x[i]);
#pragma unroll
      for (int j = 0; j < kN / 2; ++j) load_matrices(b_row + j * 16 * kRowBytes + step * 32, y[j]);
      if constexpr (Math::kParts == 1) {
        multiply(to, x, y);
      } else {
        std::uint32_t large_x[kM][4], small_x[kM][4], large_y[kN / 2][4], small_y[kN / 2][4];
#pragma unroll
        for (int i = 0; i < kM; ++i)
#pragma unroll
          for (int k = 0; k < 4; ++k) Math::split(x[i][k], large_x[i][k], small_x[i][k]);
#pragma unroll
        for (int j = 0; j < kN / 2; ++j)
#pragma unroll
          for (int k = 0; k < 4; ++k) Math::split(y[j][k], large_y[j][k], small_y[j][k]);
        multiply(to, small_x, large_y);
        multiply(to, large_x, small_y);
        multiply(to, large_x, large_y);
      }
    }
  }

  __device__ static void multiply(Tiles& to, const std::uint32_t (&x)[kM][4],
                                  const std::uint32_t (&y)[kN / 2][4]) {
#pragma unroll
    for (int i = 0; i < kM; ++i)
#pragma unroll
      for (int j = 0; j < kN; ++j)
        Math::multiply(to[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
  }

  Tiles sum_ = {};
};

/// The same without tensor cores: thread (ty, tx) of BM/WM x BN/WN has rows ty + i*BM/WM and columns
/// tx + j*BN/WN.
template <class T, int BM, int BN, int WM, int WN, bool kFlush>
class Sums<Simt<T>, BM, BN, WM, WN, kFlush> {
 public:
  using Result = T;
  static constexpr int kY = BM / WM, kX = BN / WN, kThreads = kY * kX;

  __device__ void add(const char* a, const char* b) {
    const char* a_row = a + threadIdx.x / kX * kRowBytes;
    const char* b_row = b + threadIdx.x % kX * kRowBytes;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      Vector x[WM];
#pragma unroll
      for (int i = 0; i < WM; ++i)
        x[i] = *reinterpret_cast<const Vector*>(a_row + i * kY * kRowBytes + v * 16);
#pragma unroll
      for (int j = 0; j < WN; ++j) {
        const Vector y = *reinterpret_cast<const Vector*>(b_row + j * kX * kRowBytes + v * 16);
#pragma unroll
        for (int k = 0; k < kCount; ++k)
#pragma unroll
          for (int i = 0; i < WM; ++i) sum_[i][j] += x[i].values[k] * y.values[k];
      }
    }
  }

  template <class F>
  __device__ void for_each(F f) const {
#pragma unroll
    for (int i = 0; i < WM; ++i)
#pragma unroll
      for (int j = 0; j < WN; ++j) f(threadIdx.x / kX + i * kY, threadIdx.x % kX + j * kX, sum_[i][j]);
  }

 private:
  static constexpr int kCount = kVectorBytes / sizeof(T);
  using Vector = Pack<T, kCount>;

  T sum_[WM][WN] = {};
};

/// Bytes of the two chunks of A and B.
template <int BM, int BN>
inline constexpr int kStageBytes = (BM + BN) * kRowBytes;

/// sums += the products of `chunks` chunks. A loader's issue(c, stage) starts to bring chunk c, and
/// commit(stage) ends it, before the barrier that follows. prepare(c) runs between barriers, ahead of
/// issue(c) by at least one.
template <int BM, int BN, class S, class A, class B, class P>
__device__ __forceinline__ void multiply_chunks(S& sums, A& a, B& b, int chunks, char* shared, P prepare) {
  if (chunks <= 0) return;
  const auto a_stage = [&](int c) { return shared + c % 2 * kStageBytes<BM, BN>; };
  const auto b_stage = [&](int c) { return shared + c % 2 * kStageBytes<BM, BN> + BM * kRowBytes; };
  prepare(0);
  prepare(1);
  __syncthreads();
  a.issue(0, a_stage(0));
  b.issue(0, b_stage(0));
  a.commit(a_stage(0));
  b.commit(b_stage(0));
  wait_async();
  __syncthreads();
  for (int c = 0; c < chunks; ++c) {
    const bool more = c + 1 < chunks;
    if (more) {
      a.issue(c + 1, a_stage(c + 1));
      b.issue(c + 1, b_stage(c + 1));
    }
    prepare(c + 2);
    sums.add(a_stage(c), b_stage(c));
    if (more) {
      a.commit(a_stage(c + 1));
      b.commit(b_stage(c + 1));
    }
    wait_async();
    __syncthreads();
  }
}

}  // namespace tapedeck::cu::conv_gemm
