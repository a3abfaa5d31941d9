#include <tapedeck/ops/elementwise.h>

#include <tapedeck/ops/arithmetic_formulas.h>
#include <tapedeck/ops/map.cuh>

namespace tapedeck::cu {

using formula::Compared;

void compare(Comparison kind, const Tensor& a, const Tensor& b, const Tensor& out) {
  switch (kind) {
    case Comparison::eq:
      return map_any("eq", Compared<Comparison::eq>{}, out, a, b);
    case Comparison::ne:
      return map_any("ne", Compared<Comparison::ne>{}, out, a, b);
    case Comparison::lt:
      return map_any("lt", Compared<Comparison::lt>{}, out, a, b);
    case Comparison::le:
      return map_any("le", Compared<Comparison::le>{}, out, a, b);
    case Comparison::gt:
      return map_any("gt", Compared<Comparison::lt>{}, out, b, a);
    case Comparison::ge:
      return map_any("ge", Compared<Comparison::le>{}, out, b, a);
  }
}

namespace {

/// Elements are only moved, so that any type of their size will do.
template <class Bits>
void where_bits(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  const auto* const chosen = condition.data<std::uint8_t>();
  const auto *const left = static_cast<const Bits*>(a.raw()), *const right =
                                                                  static_cast<const Bits*>(b.raw());
  auto* const to = static_cast<Bits*>(out.raw());
  const auto loop = StridedLoop<4>::over(out.shape(), {&out, &condition, &a, &b});
  for_each("where", out.device(), out.count(), [=] __device__(std::int64_t i) {
    std::int64_t at[4];
    locate(loop, i, at);
    to[at[0]] = chosen[at[1]] ? left[at[2]] : right[at[3]];
  });
}

}  // namespace

void where(const Tensor& condition, const Tensor& a, const Tensor& b, const Tensor& out) {
  switch (size_of(out.dtype())) {
    case 8:
      return where_bits<std::uint64_t>(condition, a, b, out);
    case 4:
      return where_bits<std::uint32_t>(condition, a, b, out);
    case 2:
      return where_bits<std::uint16_t>(condition, a, b, out);
    default:
      return where_bits<std::uint8_t>(condition, a, b, out);
  }
}

}  // namespace tapedeck::cu
