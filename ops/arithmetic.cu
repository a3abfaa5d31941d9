#include <tapedeck/ops/arithmetic.h>

#include <tapedeck/ops/arithmetic_formulas.h>
#include <tapedeck/ops/map.cuh>

namespace tapedeck::cu {

void arithmetic(Arithmetic kind, const Tensor& a, const Tensor& b, const Tensor& out) {
  switch (kind) {
    case Arithmetic::add:
      return map_any("add", formula::Plus{}, out, a, b);
    case Arithmetic::sub:
      return map_any("sub", formula::Minus{}, out, a, b);
    case Arithmetic::mul:
      return map_any("mul", formula::Times{}, out, a, b);
    case Arithmetic::div:
      return map_floating("div", formula::Over{}, out, a, b);
    case Arithmetic::minimum:
      return map_any("minimum", formula::Smaller{}, out, a, b);
    case Arithmetic::maximum:
      return map_any("maximum", formula::Larger{}, out, a, b);
    case Arithmetic::above:
      return map_floating("maximum", formula::Above{}, out, a, b);
    case Arithmetic::pow:
      return map_floating("pow", formula::Power{}, out, a, b);
  }
}

void affine(const Tensor& x, double scale, double shift, const Tensor& out) {
  map_any("affine", formula::ScaleShift{scale, shift}, out, x);
}

}  // namespace tapedeck::cu
