// Matrix products.
#pragma once

#include <tapedeck/core/op.h>

namespace tapedeck {

/// The matrix product by PyTorch's rules: [...,m,k] times [...,k,n] is [...,m,n] where the leading sizes
/// broadcast; a vector a is [1,k], a vector b is [k,1], and that dimension is absent from the result. Throws
/// Error for scalars, sizes that do not fit, and different dtypes or devices.
Variable matmul(const Variable& a, const Variable& b);

/// x times the transpose of weight, plus bias: x [...,in], weight [out,in], bias [out] or undefined; the
/// result is [...,out]. Negative results are multiplied by `negative_slope`, 0 or more: as leaky_relu()
/// behind it would, or relu() where it is 0.
Variable linear(const Variable& x, const Variable& weight, const Variable& bias = {},
                double negative_slope = 1);

/// How a matrix takes part in a product.
enum class Transpose : std::uint8_t { no, yes };

namespace cpu {
/// out = a times b, plus bias [n] in every row if it is defined, rectified. out is [...,m,n] and row-major
/// like the rest; a is [...,m,k], or [...,k,m] if transposed, b likewise, with leading sizes that broadcast
/// to out's. k may be 0.
void matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& bias,
            const Tensor& out, double negative_slope = 1);
}  // namespace cpu
namespace cu {
/// The same; but of a and b of 16 bits, out may be float32.
void matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& bias,
            const Tensor& out, double negative_slope = 1);
/// out += a times b. Of 16 bits it may be rounded twice; but of a and b of 16 bits, out may be float32.
void add_matmul(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& out);
/// The bytes that a product of tensors of these shapes and types takes beside them.
std::int64_t matmul_workspace(Device device, DType dtype, const Shape& a, Transpose ta, const Shape& b,
                              Transpose tb, DType product, const Shape& out, bool has_bias);
}  // namespace cu

}  // namespace tapedeck
