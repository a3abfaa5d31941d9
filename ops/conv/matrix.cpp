// What matrix.h describes; nothing is packed but panels of the matrices.
#include <algorithm>

#include <tapedeck/ops/conv/fast.h>
#include <tapedeck/ops/gemm.h>
#include <tapedeck/ops/micro/scratch.h>

namespace tapedeck::cpu {

template <class T>
void matrix(const ConvTranspose2dGeometry& g, Direction direction, const Tensor& from, const Tensor& w,
            const Tensor& bias, const Tensor& to, double negative_slope) {
  const std::int64_t taps = g.h.kernel * g.w.kernel, m = g.co * taps;
  if (direction == Direction::plain) {
    gemm<T>(g.n, g.ci, m, {from.data<T>(), m, false}, {w.data<T>(), m, true},
            bias.defined() ? bias.data<T>() : nullptr, to.data<T>(), g.ci, negative_slope);
    return;
  }
  const Scratch<T> spread(bias.defined() ? m : 0);
  for (std::int64_t c = 0; bias.defined() && c < g.co; ++c)
    std::fill_n(spread.data() + c * taps, taps, bias.data<T>()[c]);
  gemm<T>(g.n, m, g.ci, {from.data<T>(), g.ci, false}, {w.data<T>(), m, false},
          bias.defined() ? spread.data() : nullptr, to.data<T>(), m, negative_slope);
}

template <class T>
void matrix_weight_grad(const ConvTranspose2dGeometry& g, const Tensor& x, const Tensor& y, const Tensor& w) {
  const std::int64_t m = g.co * g.h.kernel * g.w.kernel;
  gemm<T>(g.ci, m, g.n, {x.data<T>(), g.ci, true}, {y.data<T>(), m, false}, nullptr, w.data<T>(), m);
}

template void matrix<float>(const ConvTranspose2dGeometry&, Direction, const Tensor&, const Tensor&,
                            const Tensor&, const Tensor&, double);
template void matrix<double>(const ConvTranspose2dGeometry&, Direction, const Tensor&, const Tensor&,
                             const Tensor&, const Tensor&, double);
template void matrix_weight_grad<float>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                        const Tensor&);
template void matrix_weight_grad<double>(const ConvTranspose2dGeometry&, const Tensor&, const Tensor&,
                                         const Tensor&);

}  // namespace tapedeck::cpu
