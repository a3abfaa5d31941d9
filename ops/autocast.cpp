#include <tapedeck/ops/autocast.h>

#include <tapedeck/ops/elementwise.h>

namespace tapedeck {

namespace {

thread_local DType products = DType::float32;

bool is_half(const Variable& x) {
  return x.defined() && is_floating(x.dtype()) && size_of(x.dtype()) == 2;
}

}  // namespace

Autocast::Autocast(DType dtype) : outer_(products) {
  check(is_floating(dtype) && dtype != DType::float64, "autocast: dtype ", dtype,
        " is not legal; legal are bfloat16, float16 and float32");
  products = dtype;
}

Autocast::~Autocast() {
  products = outer_;
}

DType Autocast::dtype() {
  return products;
}

Variable detail::lowered(const Variable& x) {
  const bool casts = products != DType::float32 && x.defined() && x.dtype() == DType::float32;
  return casts ? cast(x, products) : x;
}

Variable detail::widened(const Variable& x) {
  return products != DType::float32 && is_half(x) ? cast(x, DType::float32) : x;
}

std::pair<Variable, Variable> detail::promoted(const Variable& a, const Variable& b) {
  if (products == DType::float32 || !a.defined() || !b.defined() || a.dtype() == b.dtype()) return {a, b};
  return {is_floating(b.dtype()) ? widened(a) : a, is_floating(a.dtype()) ? widened(b) : b};
}

}  // namespace tapedeck
