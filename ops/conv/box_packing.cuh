// Packs weights for the kernels over boxes, as box_packing.h says.
//
// Weights go from registers to where they are packed. With shared memory between, as before, 512 to 512
// channels of 3x3 in 32 images of 7x7 took 33 us in bfloat16 and 70 in float32 on an H200, now 28 and 60; 88
// layers, most of few weights, take 0.97 to 1 of the time on average, by pass, precision and layout. Of
// 16-bit weights, vectors of four taps took up to 1.1 times as long as single ones. One kernel that packs and
// copies images, blocks that pack first, took 0.95 to 1.07 times as long as two.
#pragma once

#include <tapedeck/ops/conv/box_packing.h>
#include <tapedeck/ops/conv/preparations.cuh>
#include <tapedeck/ops/conv/scaled_half.cuh>

namespace tapedeck::cu::conv_gemm {

/// What a kernel that packs is told.
struct PackArguments {
  BoxPacking packing;
  const void* w;
  const unsigned* largest;  // of scaled halves
  uint4* packed;
  bool beside;  // preparations.cuh
};
static_assert(sizeof(PackArguments) <= 4096);

/// Elements of a vector, as Math has them: of each part.
template <class Math, int kElements>
__device__ __forceinline__ void vectors_of(const typename Math::Value (&values)[kElements], float scale,
                                           uint4 (&parts)[Math::kOperandParts]) {
  constexpr int kParts = Math::kOperandParts;
  if constexpr (Math::kScaled) {
    std::uint32_t words[kParts][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float2 x{values[2 * k] * scale, values[2 * k + 1] * scale};
      words[0][k] = pair_of_halves(x);
      if constexpr (kParts == 2) {
        const float2 first = floats_of_halves(words[0][k]);
        x.x -= first.x, x.y -= first.y;
        words[1][k] = pair_of_halves({isfinite(x.x) ? x.x : 0.0f, isfinite(x.y) ? x.y : 0.0f});
      }
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      parts[part] = make_uint4(words[part][0], words[part][1], words[part][2], words[part][3]);
  } else {
    Pack<typename Math::Element, kElements> vector;
#pragma unroll
    for (int e = 0; e < kElements; ++e) vector.values[e] = Math::prepare(values[e]);
    parts[0] = __builtin_bit_cast(uint4, vector);
  }
}

/// kNear, kOrder: of the packing.
template <class Math, int kNear, WeightOrder kOrder>
__global__ void __launch_bounds__(kThreads)
    pack_box_weights_kernel(const __grid_constant__ PackArguments call) {
  using Value = typename Math::Value;
  constexpr int kElements = kVectorBytes / sizeof(typename Math::Element), kParts = Math::kOperandParts,
                kOfVector = kVectorBytes / sizeof(Value);
  constexpr bool kOfFrom = kOrder == WeightOrder::from;
  constexpr int kResults = kOfFrom ? 1 : kNear;
  const BoxPacking& p = call.packing;
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const BoxPacking::Share share = p.share(thread);
  int weights[kResults];
#pragma unroll
  for (int r = 0; r < kResults; ++r) weights[r] = p.weight(share, r);
  const auto* const from = static_cast<const Value*>(call.w) + p.source(share);
  const bool exists = thread < p.threads && share.channel < p.plan.to_channels;
  begin_preparation(call.beside);
  // Threads of a warp read the same sectors if they read single weights: of many these come once, after a
  // fence, which empties the multiprocessor's own cache of what was there before.
  constexpr std::int64_t kMany = 1 << 17;
  const bool is_near = kNear == 1 && !kOfFrom && p.threads >= kMany;
  if (is_near) __threadfence();
  const auto load = [&](const auto* at) { return is_near ? *at : load_fresh(at); };
  float scale = 1;
  if constexpr (Math::kScaled) scale = scale_of(max(load_fresh(call.largest), load_fresh(call.largest + 1)));
  Value values[kResults][kElements];
  if constexpr (kOfFrom && kNear > 1) {
    using Vector = Pack<Value, kOfVector>;
#pragma unroll
    for (int i = 0; i < kElements; i += kOfVector) {
      const Vector some = exists && share.from + i < p.plan.from_channels
                              ? load(reinterpret_cast<const Vector*>(from + i))
                              : Vector{};
#pragma unroll
      for (int e = 0; e < kOfVector; ++e) values[0][i + e] = some.values[e];
    }
  } else {
    using Near = Pack<Value, kResults>;
    const int next = p.next_from(), step = next * p.strides.from;
    Near some[kElements];
#pragma unroll
    for (int e = 0; e < kElements; ++e)
      some[e] = exists && share.from + e * next < p.plan.from_channels
                    ? load(reinterpret_cast<const Near*>(from + e * step))
                    : Near{};
#pragma unroll
    for (int e = 0; e < kElements; ++e)
#pragma unroll
      for (int r = 0; r < kResults; ++r) values[r][e] = some[e].values[r];
  }
#pragma unroll
  for (int r = 0; r < kResults; ++r) {
    if (thread >= p.threads || weights[r] < 0) continue;
    uint4 parts[kParts];
    vectors_of<Math>(values[r], scale, parts);
#pragma unroll
    for (int part = 0; part < kParts; ++part) call.packed[p.place(share, r, weights[r], part)] = parts[part];
  }
  end_preparation(call.beside);
}

/// Queues that. `w`: the weight; `packed`: packed_box_bytes().
template <class Math>
void pack_box_weights(const BoxPacking& packing, const Tensor& w, const unsigned* largest, uint4* packed,
                      Preparations& preparations) {
  constexpr int kMost = kVectorBytes / sizeof(typename Math::Value);
  const PackArguments call{packing, w.read(), largest, packed, preparations.next_is_beside()};
  const auto pack = [&]<int kNear, WeightOrder kOrder>() {
    if (packing.near != kNear || packing.order != kOrder) return;
    launch_kernel("conv: pack", w.device(), pack_box_weights_kernel<Math, kNear, kOrder>,
                  grid_size("conv", ceil_div(packing.threads, kThreads)), kThreads, call);
  };
  const auto pack_any = [&]<WeightOrder kOrder>() {
    pack.template operator()<kMost, kOrder>();
    pack.template operator()<1, kOrder>();
  };
  pack_any.template operator()<WeightOrder::taps>();
  pack_any.template operator()<WeightOrder::to>();
  pack_any.template operator()<WeightOrder::from>();
}

}  // namespace tapedeck::cu::conv_gemm
