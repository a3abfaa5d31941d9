// Working memory of the CPU kernels.
#pragma once

#include <utility>

#include <tapedeck/core/tensor.h>

namespace tapedeck::cpu {

/// Uninitialised elements from the CPU's allocator.
template <class T>
class Scratch {
 public:
  explicit Scratch(std::int64_t count = 0) : tensor_(Tensor::empty({count}, {dtype_of<T>})) {}
  /// The elements of `tensor`, whose memory it shares.
  explicit Scratch(Tensor tensor) : tensor_(std::move(tensor)) {}

  T* data() const { return tensor_.template data<T>(); }
  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
};

}  // namespace tapedeck::cpu
