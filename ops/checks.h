// Checks that many ops share, with one text each.
#pragma once

#include <string_view>
#include <vector>

#include <tapedeck/core/tensor.h>

namespace tapedeck {

/// Throws Error unless `tensor` is defined.
inline void check_defined(std::string_view op, std::string_view name, const Tensor& tensor) {
  check(tensor.defined(), op, ": ", name, " is undefined");
}

/// Throws Error unless both tensors are defined and of one dtype on one device.
inline void check_same_kind(std::string_view op, std::string_view name_a, const Tensor& a,
                            std::string_view name_b, const Tensor& b) {
  check_defined(op, name_a, a);
  check_defined(op, name_b, b);
  check(a.dtype() == b.dtype(), op, ": ", name_a, " is ", a.dtype(), " but ", name_b, " is ", b.dtype());
  check(a.device() == b.device(), op, ": ", name_a, " is on ", a.device(), " but ", name_b, " is on ",
        b.device());
}

/// The same for what belongs to the channels of x, which may be float32 where x is of a half type.
inline void check_parameter_kind(std::string_view op, const Tensor& x, std::string_view name,
                                 const Tensor& parameter) {
  const bool wide = parameter.defined() && parameter.dtype() == DType::float32 && size_of(x.dtype()) == 2;
  if (!wide) return check_same_kind(op, "x", x, name, parameter);
  check(x.device() == parameter.device(), op, ": x is on ", x.device(), " but ", name, " is on ",
        parameter.device());
}

/// Throws Error unless `tensor` is of a floating type.
inline void check_floating(std::string_view op, std::string_view name, const Tensor& tensor) {
  check(is_floating(tensor.dtype()), op, ": ", name, " is ", tensor.dtype(),
        "; legal are the floating types");
}

/// The layout of a result of shape `shape`: nhwc if an operand of that shape is.
inline Layout broadcast_layout(const Shape& shape, const std::vector<Tensor>& operands) {
  for (const Tensor& x : operands) {
    if (x.shape() == shape && x.layout() == Layout::nhwc) return Layout::nhwc;
  }
  return Layout::nchw;
}

}  // namespace tapedeck
