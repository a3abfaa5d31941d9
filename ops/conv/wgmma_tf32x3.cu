// Products of float32 matrices to float32's accuracy on Hopper's tensor cores.
#include <tapedeck/ops/conv/wgmma_choice.cuh>

namespace tapedeck::cu::conv_gemm {

template bool wgmma_map<Tf32x3>(const ConvTranspose2dGeometry&, bool, const Tensor&, const Tensor&,
                                const Tensor&, const Tensor&, double, bool, const Prologue&);
template void wgmma_weight_grad<Tf32x3>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                        const Tensor&, const Prologue&);

}  // namespace tapedeck::cu::conv_gemm
