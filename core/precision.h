// Float32 precision: a policy, not a surprise.
#pragma once

namespace tapedeck {

/// How products of float32 tensors may be computed.
enum class Precision {
  highest,  ///< float32 accuracy, relative to the largest elements of an operand (ops/conv/scaled_half.cuh)
  high,     ///< operands with TF32's 11 bits, float32 sums
  medium,   ///< bfloat16 operands, float32 sums
};

/// Sets the policy of the process. The default is `highest`; the CPU always computes at `highest`.
void set_float32_precision(Precision precision);
Precision float32_precision();

}  // namespace tapedeck
