#include <tapedeck/ops/unary.h>

#include <tapedeck/ops/unary_formulas.h>
#include <tapedeck/ops/map.cuh>

namespace tapedeck::cu {

void unary(const UnaryCall& call, const Tensor& x, const Tensor& out) {
  formula::visit(call, [&]<class F>(const F& f) {
    if constexpr (formula::takes_integers<F>) {
      map_any("unary", formula::Value<F>{f}, out, x);
    } else {
      map_floating("unary", formula::Value<F>{f}, out, x);
    }
  });
}

void unary_gradient(const UnaryCall& call, const Tensor& saved, const Tensor& gy, const Tensor& gx) {
  formula::visit(call, [&]<class F>(const F& f) {
    map_floating("unary_gradient", formula::Gradient<F>{f}, gx, saved, gy);
  });
}

}  // namespace tapedeck::cu
