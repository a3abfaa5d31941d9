// Products of bfloat16 matrices, on tensor cores.
#include <tapedeck/ops/conv/gemm_map.cuh>
#include <tapedeck/ops/conv/gemm_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

template void map<Half<bfloat16>>(const ConvTranspose2dGeometry&, bool, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&);
template void weight_grad<Half<bfloat16>>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                          const Tensor&);

}  // namespace tapedeck::cu::conv_gemm
