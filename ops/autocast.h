// Mixed precision: products in a half type, all else as precise as before.
//
//   Tape tape;
//   Variable loss;
//   {
//     const Autocast half(DType::bfloat16);
//     loss = nn::mse_loss(model(x), target);
//   }
//   tape.backward(loss);
//
// Parameters stay float32: what a product needs of them is cast when it runs, and the way back casts their
// gradients. float16's small range also needs optim::GradScaler.
#pragma once

#include <cstdint>
#include <utility>

#include <tapedeck/core/variable.h>

namespace tapedeck {

/// Until the scope ends, on this thread:
/// - linear, matmul and the convolutions cast float32 inputs to `dtype`;
/// - losses, softmax, sums, means and variances cast inputs of half types to float32;
/// - arithmetic of two floating types is done in the wider one;
/// - everything else runs in the type of its input; norms of half inputs take float32 parameters.
/// `float32` switches an outer scope off; tapes do so while they are walked. Throws Error for float64 and
/// integers.
class Autocast {
 public:
  explicit Autocast(DType dtype);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

  /// What products are cast to on this thread; float32 outside of every scope.
  static DType dtype();

 private:
  DType outer_;
};

namespace detail {
/// x as a product takes it, as a reduction takes it, and two operands of arithmetic.
Variable lowered(const Variable& x);
Variable widened(const Variable& x);
std::pair<Variable, Variable> promoted(const Variable& a, const Variable& b);
}  // namespace detail

}  // namespace tapedeck
