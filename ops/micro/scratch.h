// Working memory of the CPU kernels.
#pragma once

#include <tapedeck/core/tensor.h>

namespace tapedeck::cpu {

/// Uninitialised elements from the CPU's allocator.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::int64_t count = 0) : tensor_(Tensor::empty({count}, {dtype_of<T>})) {}
  T* data() const { return tensor_.template data<T>(); }

 private:
  Tensor tensor_;
};

}  // namespace tapedeck::cpu
