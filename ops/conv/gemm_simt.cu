// Products of float64 and float32 matrices by fused multiply-adds.
#include <tapedeck/ops/conv/gemm_map.cuh>
#include <tapedeck/ops/conv/gemm_weight_grad.cuh>

namespace tapedeck::cu::conv_gemm {

template void map<Simt<double>>(const ConvTranspose2dGeometry&, bool, const Tensor&, const Tensor&,
                                const Tensor&, const Tensor&);
template void weight_grad<Simt<double>>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                        const Tensor&);
template void map<Simt<float>>(const ConvTranspose2dGeometry&, bool, const Tensor&, const Tensor&,
                               const Tensor&, const Tensor&);
template void weight_grad<Simt<float>>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                       const Tensor&);

}  // namespace tapedeck::cu::conv_gemm
