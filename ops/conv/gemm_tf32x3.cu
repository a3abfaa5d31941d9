// Products of float32 matrices to float32's accuracy, on tensor cores.
#include <tapedeck/ops/conv/gemm_map.cuh>
#include <tapedeck/ops/conv/gemm_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

template void map<Tf32x3>(const ConvTranspose2dGeometry&, bool, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&);
template void weight_grad<Tf32x3>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                  const Tensor&);

}  // namespace tapedeck::cu::conv_gemm
