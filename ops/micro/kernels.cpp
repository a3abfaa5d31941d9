// Compiled once for each instruction set, with TAPEDECK_MICRO_ISA naming the namespace.
#include <tapedeck/ops/micro/kernels.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace tapedeck::micro::TAPEDECK_MICRO_ISA {

namespace {
#include <tapedeck/ops/micro/vector.inl>

#include <tapedeck/ops/micro/apart.inl>
#include <tapedeck/ops/micro/outer.inl>
#include <tapedeck/ops/micro/products.inl>
#include <tapedeck/ops/micro/rows.inl>
#include <tapedeck/ops/micro/transpose.inl>

#include <tapedeck/ops/micro/dots.inl>
#include <tapedeck/ops/micro/strided.inl>

#include <tapedeck/ops/micro/planes.inl>

#include <tapedeck/ops/micro/stream.inl>

#include <tapedeck/ops/micro/winograd.inl>

#include <tapedeck/ops/micro/pairs.inl>
}  // namespace

template <class T>
constexpr Kernels<T> kKernels = {
    .lanes = kLanes<T>,
    .max_vectors = kMaxVectors,
    .tile_rows = {0, kTileRows<1>, kTileRows<2>, kTileRows<3>, kTileRows<4>},
#if !defined(TAPEDECK_SMALL)
    .apart_rows = {0, kTileRowsApart<1>, kTileRowsApart<2>, kTileRowsApart<3>, kTileRowsApart<4>},
#endif
    .max_dots = kMaxDots<T>,
    .plane_rows = kPlaneRows,
    .plane_slack = kLanes<T>* kPlaneVectors<1>,
    .max_stream_step = kMaxStreamStep,
#if defined(TAPEDECK_SMALL)
    .queue_elements = 0,
#else
    .queue_elements = kQueueElements<T>,
#endif
    .rows = rows<T>,
    .dots = dots<T>,
    .products = products<T>,
    .outer = outer<T>,
    .product_sums = product_sums<T>,
#if defined(TAPEDECK_SMALL)
    .rows_apart = nullptr,
    .outer_apart = nullptr,
    .unfold = nullptr,
#else
    .rows_apart = rows_apart<T>,
    .outer_apart = outer_apart<T>,
    .unfold = unfold<T>,
#endif
    .transpose = transpose<T>,
    .correlate = correlate<T>,
#if defined(TAPEDECK_SMALL)
    .pair_rows = nullptr,
#else
    .pair_rows = pair_rows<T>,
#endif
    .pixel_sums = pixel_sums<T>,
    .split = split<T>,
    .join = join<T>,
    .rectify = rectify<T>,
    .winograd = winograd_of<T>(),
#if defined(TAPEDECK_MICRO_PAIRS)
    .spread_pairs = sizeof(T) == sizeof(float) ? spread_any_pairs : nullptr,
    .gather_pairs = sizeof(T) == sizeof(float) ? gather_any_pairs : nullptr,
    .pair_sums = sizeof(T) == sizeof(float) ? any_pair_sums : nullptr,
    .stream = sizeof(T) == sizeof(float) ? stream : nullptr,
#else
    .spread_pairs = nullptr,
    .gather_pairs = nullptr,
    .pair_sums = nullptr,
    .stream = nullptr,
#endif
#if defined(TAPEDECK_SMALL)
    .stream_row = nullptr,
    .write_rows = nullptr,
#else
    .stream_row = stream_row<T>,
    .write_rows = write_rows<T>,
#endif
};

extern const Kernels<float> kernels32 = kKernels<float>;
#if !defined(TAPEDECK_SMALL) || !defined(__AVX2__)  // a build for size has float64 for any CPU only (isa.cpp)
extern const Kernels<double> kernels64 = kKernels<double>;
#endif

}  // namespace tapedeck::micro::TAPEDECK_MICRO_ISA
