#include <tapedeck/core/tensor.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <tapedeck/core/activity.h>
#include <tapedeck/core/backend.h>

namespace tapedeck {

namespace {
/// Tells the allocator what the bytes are for.
class ShapeScope {
 public:
  explicit ShapeScope(const Shape& shape) { detail::activity.shape = &shape; }
  ~ShapeScope() { detail::activity.shape = nullptr; }
  ShapeScope(const ShapeScope&) = delete;
  ShapeScope& operator=(const ShapeScope&) = delete;
};
}  // namespace

std::string to_string(Layout layout) {
  return layout == Layout::nchw ? "nchw" : "nhwc";
}

Storage::Storage(std::size_t bytes, const Context& context)
    : device_(context.device()),
      stream_(context.stream()),
      allocator_(&context.allocator()),
      bytes_(bytes),
      data_(allocator_->allocate(bytes, stream_)) {}

Storage::~Storage() {
  if (data_ != nullptr) allocator_->deallocate(data_, bytes_, stream_);
}

void Storage::record_use() const {
  const Stream stream = Context::current(device_).stream();
  if (stream != stream_) allocator_->record_stream(data_, stream);
}

void Storage::set_largest(std::shared_ptr<unsigned> words, std::uint64_t capture) {
  largest_ = std::move(words);
  capture_ = capture;
  knows_ = true;
}

std::shared_ptr<unsigned> Storage::largest(std::uint64_t capture) const {
  const bool known = knows_.load(std::memory_order_relaxed) && capture_ == capture;
  return known && Context::current(device_).stream() == stream_ ? largest_ : nullptr;
}

std::shared_ptr<void> Storage::companion(std::shared_ptr<void> (*make)()) {
  const std::lock_guard lock(companion_mutex_);
  if (!companion_) companion_ = make();
  return companion_;
}

Tensor Tensor::empty(const Shape& shape, const TensorOptions& options) {
  check(options.layout == Layout::nchw || shape.rank() == 4, "tensor: layout nhwc needs rank 4, not ", shape);
  std::size_t bytes = 0;
  check(!__builtin_mul_overflow(static_cast<std::size_t>(shape.count()), size_of(options.dtype), &bytes),
        "tensor: the bytes of ", shape, " ", options.dtype, " do not fit 64 bits");
  Tensor tensor;
  const ShapeScope scope(shape);
  tensor.storage_ = std::make_shared<Storage>(bytes, Context::current(options.device));
  tensor.shape_ = shape;
  tensor.dtype_ = options.dtype;
  tensor.layout_ = options.layout;
  return tensor;
}

Tensor Tensor::full(const Shape& shape, double value, const TensorOptions& options) {
  Tensor tensor = empty(shape, options);
  tensor.fill_(value);
  return tensor;
}

std::vector<std::int64_t> Tensor::strides() const {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(rank()));
  if (layout_ == Layout::nhwc) {
    const std::int64_t c = size(1), h = size(2), w = size(3);
    return {h * w * c, 1, w * c, c};
  }
  std::int64_t stride = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    strides[static_cast<std::size_t>(i)] = stride;
    stride *= size(i);
  }
  return strides;
}

void* Tensor::raw() const {
  check(defined(), "tensor: the tensor is undefined");
  if (storage_->device().is_cuda()) storage_->record_use();
  storage_->forget();
  return static_cast<std::byte*>(storage_->data()) + offset_;
}

const void* Tensor::read() const {
  check(defined(), "tensor: the tensor is undefined");
  if (storage_->device().is_cuda()) storage_->record_use();
  return static_cast<const std::byte*>(storage_->data()) + offset_;
}

void Tensor::set_largest(std::shared_ptr<unsigned> words, std::uint64_t capture) const {
  check(defined() && dtype_ == DType::float32 && bytes() == storage_->bytes(),
        "tensor: a largest magnitude is of all elements of a float32 tensor's storage");
  storage_->set_largest(std::move(words), capture);
}

std::shared_ptr<unsigned> Tensor::largest(std::uint64_t capture) const {
  return defined() && bytes() == storage_->bytes() ? storage_->largest(capture) : nullptr;
}

double Tensor::item() const {
  check(defined() && count() == 1, "item: the tensor has ", defined() ? count() : 0, " elements; legal is 1");
  return to_vector<double>()[0];
}

Tensor Tensor::reshape(std::span<const std::int64_t> sizes) const {
  std::vector<std::int64_t> resolved(sizes.begin(), sizes.end());
  const auto unknown = std::find(resolved.begin(), resolved.end(), -1);
  if (unknown != resolved.end()) {
    check(std::find(unknown + 1, resolved.end(), -1) == resolved.end(), "reshape: only one size may be -1");
    *unknown = 1;
    const std::int64_t known = Shape(std::span<const std::int64_t>(resolved)).count();
    check(known > 0 && count() % known == 0, "reshape: ", shape_, " has ", count(), " elements, which ",
          known, " does not divide");
    *unknown = count() / known;
  }
  const Shape shape{std::span<const std::int64_t>(resolved)};
  check(shape.count() == count(), "reshape: ", shape_, " has ", count(), " elements but ", shape, " has ",
        shape.count());
  if (shape == shape_) return *this;
  Tensor view = to(Layout::nchw);
  view.shape_ = shape;
  return view;
}

Tensor Tensor::flat() const {
  Tensor view = *this;
  view.shape_ = {count()};
  view.layout_ = Layout::nchw;
  return view;
}

Tensor Tensor::slice(std::int64_t begin, std::int64_t end) const {
  check(rank() >= 1 && 0 <= begin && begin <= end && end <= size(0), "slice: rows ", begin, " to ", end,
        " are out of range for ", shape_);
  Tensor view = *this;
  const std::size_t row = size(0) == 0 ? 0 : bytes() / static_cast<std::size_t>(size(0));
  view.offset_ += static_cast<std::size_t>(begin) * row;
  view.shape_ = shape_.with(0, end - begin);
  return view;
}

Tensor Tensor::clone() const {
  Tensor copy = empty_like(*this);
  copy.copy_(*this);
  return copy;
}

Tensor Tensor::to(Device device) const {
  if (device == this->device()) return *this;
  Tensor copy = empty(shape_, {dtype_, device, layout_});
  copy.copy_(*this);
  return copy;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor copy = empty(shape_, {dtype, device(), layout_});
  copy.copy_(*this);
  return copy;
}

Tensor Tensor::to(Layout layout) const {
  if (layout == layout_) return *this;
  if (rank() == 4 && (size(1) == 1 || size(2) * size(3) == 1)) {  // the same order of elements
    Tensor view = *this;
    view.layout_ = layout;
    return view;
  }
  Tensor copy = empty(shape_, {dtype_, device(), layout});
  copy.copy_(*this);
  return copy;
}

void Tensor::copy_(const Tensor& source) const {
  check(defined() && source.defined(), "copy_: a tensor is undefined");
  check(source.shape_ == shape_, "copy_: source has shape ", source.shape_, " but this tensor has ", shape_);
  bump_version();
  const Device where = source.device().is_cuda() ? source.device() : device();
  if (count() > 0) TAPEDECK_KERNEL(where, copy)(source, *this);
}

void Tensor::fill_(double value) const {
  bump_version();
  if (count() > 0) TAPEDECK_KERNEL(device(), fill)(*this, value);
}

std::string to_string(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return concat(tensor.dtype(), " ", tensor.shape(), tensor.layout() == Layout::nhwc ? " nhwc" : "", " on ",
                tensor.device());
}

Tensor detail::tensor_from_bytes(const void* data, std::size_t count, const Shape& shape, DType dtype) {
  check(static_cast<std::int64_t>(count) == shape.count(), "tensor: ", count, " values do not fill ", shape);
  Tensor tensor = Tensor::empty(shape, {.dtype = dtype});
  if (count > 0) std::memcpy(tensor.raw(), data, tensor.bytes());
  return tensor;
}

void detail::copy_to_host(const Tensor& tensor, void* out) {
  if (tensor.count() == 0) return;
  const Tensor host = tensor.to(Layout::nchw).to(Device{});
  std::memcpy(out, host.read(), host.bytes());
}

}  // namespace tapedeck
