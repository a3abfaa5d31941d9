// Tensors: dense bytes with a shape, an element type and a layout.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tapedeck/core/context.h>
#include <tapedeck/core/device.h>
#include <tapedeck/core/dtype.h>
#include <tapedeck/core/error.h>
#include <tapedeck/core/shape.h>

namespace tapedeck {

/// The order of a tensor's elements in memory. The shape is always the logical one, [n,c,h,w] for
/// images; `nhwc` stores the channels of a pixel together (PyTorch's channels_last) and is for rank 4
/// only. Every other tensor is row-major, which for rank 4 is `nchw`.
enum class Layout : std::uint8_t { nchw, nhwc };

std::string to_string(Layout layout);

/// Bytes of one device, given back to their allocator by the destructor.
class Storage {
 public:
  Storage(std::size_t bytes, const Context& context);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  /// The calling thread is about to queue work that uses the bytes on its current stream.
  void record_use() const;
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  /// How often bump_version() was called. Any thread may call both.
  std::uint64_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }

  /// Where the largest magnitude of float32 elements is on the device: two words, whose maximum has its bits
  /// (ops/largest.cuh); of statistics, what bounds the results that they are for (ops/prologue.h). Said once,
  /// by who made them and before anybody else has them; `capture`: of a CUDA graph, 0 outside.
  void set_largest(std::shared_ptr<unsigned> words, std::uint64_t capture);
  /// That, unless forget() was called since, on the storage's own stream; else null. What was said outside of
  /// a capture is not known inside, and the other way round: graphs write tensors without a word.
  std::shared_ptr<unsigned> largest(std::uint64_t capture) const;
  /// The bytes may be written from now on. Any thread may call it.
  void forget() {
    if (knows_.load(std::memory_order_relaxed)) knows_.store(false, std::memory_order_relaxed);
  }

  /// What goes with the bytes and dies with the storage; the first who asks makes it. One type for all
  /// storages (ops/micro/made_of.h). Any thread may call it.
  std::shared_ptr<void> companion(std::shared_ptr<void> (*make)());

 private:
  std::atomic<std::uint64_t> version_ = 0;
  Device device_;
  Stream stream_;
  Allocator* allocator_;
  std::size_t bytes_;
  void* data_;
  std::shared_ptr<unsigned> largest_;
  std::uint64_t capture_ = 0;  // in which largest_ was set
  std::atomic<bool> knows_ = false;
  std::mutex companion_mutex_;
  std::shared_ptr<void> companion_;
};

/// What a new tensor is made of, besides its shape.
struct TensorOptions {
  DType dtype = DType::float32;
  Device device = {};
  Layout layout = Layout::nchw;
};

/// A handle on dense bytes. Copies share the bytes; clone() does not. A default-constructed tensor is
/// undefined: it has no bytes and stands for "none".
class Tensor {
 public:
  Tensor() = default;

  /// A tensor of uninitialised elements. Throws Error for `nhwc` with a rank other than 4.
  static Tensor empty(const Shape& shape, const TensorOptions& options = {});
  static Tensor full(const Shape& shape, double value, const TensorOptions& options = {});
  static Tensor zeros(const Shape& shape, const TensorOptions& options = {}) {
    return full(shape, 0, options);
  }
  static Tensor ones(const Shape& shape, const TensorOptions& options = {}) {
    return full(shape, 1, options);
  }
  /// A row-major CPU tensor with a copy of `values`. Throws Error when the counts differ.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape);
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  /// An uninitialised tensor of this one's shape, dtype, device and layout.
  static Tensor empty_like(const Tensor& other) { return empty(other.shape(), other.options()); }
  static Tensor zeros_like(const Tensor& other) { return zeros(other.shape(), other.options()); }

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  std::int64_t size(int dim) const { return shape_[dim]; }
  std::int64_t count() const { return shape_.count(); }
  std::size_t bytes() const { return static_cast<std::size_t>(count()) * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  Layout layout() const { return layout_; }
  Device device() const { return storage_ ? storage_->device() : Device{}; }
  TensorOptions options() const { return {dtype_, device(), layout_}; }

  /// Elements between neighbours along each dimension of the shape, by layout.
  std::vector<std::int64_t> strides() const;

  /// The first element, which who has the pointer may write, for work on the calling thread's current stream
  /// of the device: when the tensor is of another stream its memory is not used again before that work is
  /// done, too. Ask for it anew where the current context has changed. Throws Error when T is not the
  /// tensor's type.
  template <class T>
  T* data() const {
    check(dtype_of<T> == dtype_, "tensor: data<", dtype_of<T>, "> of a ", dtype_, " tensor");
    return static_cast<T*>(raw());
  }
  void* raw() const;
  /// The same for who only reads: what the library knows of the elements stays true.
  const void* read() const;

  /// The value of a tensor of one element, converted; waits for the device. Throws Error for others.
  double item() const;
  /// All elements in logical (row-major) order, converted; waits for the device.
  template <class T>
  std::vector<T> to_vector() const;

  /// The same elements in another shape; one size may be -1. Shares the bytes when they are
  /// row-major, else copies. Throws Error when the counts differ.
  Tensor reshape(std::span<const std::int64_t> sizes) const;
  Tensor reshape(std::initializer_list<std::int64_t> sizes) const {
    return reshape(std::span(sizes.begin(), sizes.size()));
  }
  Tensor reshape(const Shape& shape) const { return reshape(std::span(shape.begin(), shape.end())); }
  /// The same bytes as one dimension, in the order that they have in memory.
  Tensor flat() const;
  /// Rows [begin, end) of the leading dimension; shares the bytes.
  Tensor slice(std::int64_t begin, std::int64_t end) const;

  Tensor clone() const;
  /// This tensor, or a converted copy if it is not there or not so already.
  Tensor to(Device device) const;
  Tensor to(DType dtype) const;
  Tensor to(Layout layout) const;

  /// Overwrites the elements with those of `source`, of equal shape; converts dtype, layout and device.
  void copy_(const Tensor& source) const;
  void fill_(double value) const;

  /// How often elements of this tensor's storage were overwritten, so that a tape can tell whether what it
  /// saved is still the same: by copy_(), fill_(), random numbers and optimizers. Who writes through data()
  /// or raw() to a tensor that is in use calls bump_version(). 0 for an undefined tensor.
  std::uint64_t version() const { return storage_ ? storage_->version() : 0; }
  void bump_version() const {
    if (storage_) storage_->bump_version();
  }

  /// Storage::set_largest() and largest(), for handles on all of its bytes.
  void set_largest(std::shared_ptr<unsigned> words, std::uint64_t capture) const;
  std::shared_ptr<unsigned> largest(std::uint64_t capture) const;

  /// Storage::companion().
  std::shared_ptr<void> companion(std::shared_ptr<void> (*make)()) const { return storage_->companion(make); }

  /// Whether both handles share their storage.
  bool shares_storage(const Tensor& other) const { return storage_ == other.storage_; }

 private:
  std::shared_ptr<Storage> storage_;
  std::size_t offset_ = 0;  // bytes
  Shape shape_;
  DType dtype_ = DType::float32;
  Layout layout_ = Layout::nchw;
};

/// "float32 [2,16,7,5] nhwc on cpu", for messages.
std::string to_string(const Tensor& tensor);

namespace detail {
Tensor tensor_from_bytes(const void* data, std::size_t count, const Shape& shape, DType dtype);
void copy_to_host(const Tensor& tensor, void* out);  // row-major, same dtype
}  // namespace detail

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape) {
  return detail::tensor_from_bytes(values.data(), values.size(), shape, dtype_of<T>);
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  std::vector<T> values(static_cast<std::size_t>(count()));
  detail::copy_to_host(to(dtype_of<T>), values.data());
  return values;
}

namespace cpu {
/// out[i] = in[i] with conversion of dtype and layout; equal shapes.
void copy(const Tensor& in, const Tensor& out);
void fill(const Tensor& out, double value);
}  // namespace cpu
namespace cu {
void copy(const Tensor& in, const Tensor& out);
void fill(const Tensor& out, double value);
}  // namespace cu

}  // namespace tapedeck
