// Compiled once for each instruction set, with TAPEDECK_MICRO_ISA naming the namespace.
#include <tapedeck/ops/micro/kernels.h>

namespace tapedeck::micro::TAPEDECK_MICRO_ISA {

namespace {
#include <tapedeck/ops/micro/vector.inl>

#include <tapedeck/ops/micro/outer.inl>
#include <tapedeck/ops/micro/rows.inl>
#include <tapedeck/ops/micro/transpose.inl>
}  // namespace

template <class T>
constexpr Kernels<T> kKernels = {
    kLanes<T>, kMaxVectors, {0, kTileRows<1>, kTileRows<2>, kTileRows<3>, kTileRows<4>},
    rows<T>,   outer<T>,    transpose<T>};

extern const Kernels<float> kernels32 = kKernels<float>;
extern const Kernels<double> kernels64 = kKernels<double>;

}  // namespace tapedeck::micro::TAPEDECK_MICRO_ISA
