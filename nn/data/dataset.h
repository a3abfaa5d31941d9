// Datasets: numbered images.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <tapedeck/core/tensor.h>

namespace tapedeck::data {

/// Images of one size, numbered from 0. A dataset of one's own defines size(), image_shape() and
/// read(); all of them are called from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;
  /// [c,h,w].
  virtual Shape image_shape() const = 0;
  /// Writes image i, 0 <= i < size(), to `out`: c*h*w values in row-major order, in [0,1].
  virtual void read(std::int64_t i, std::span<float> out) const = 0;
  /// The class of image i; all images of a dataset have one, or none has.
  virtual std::optional<std::int64_t> label(std::int64_t i) const;

  /// Image i as float32 [c,h,w]. Throws Error when i is out of range.
  Tensor get(std::int64_t i) const;
};

/// Images that are in memory.
class TensorDataset : public Dataset {
 public:
  /// `images` [n,c,h,w] on any device: floating, taken as they are, or uint8, divided by 255.
  /// `labels` [n] int64, or undefined. Throws Error for other shapes and types. Shares the bytes of
  /// row-major CPU tensors.
  explicit TensorDataset(const Tensor& images, const Tensor& labels = {});

  std::int64_t size() const override { return images_.size(0); }
  Shape image_shape() const override { return images_.shape().without(0); }
  void read(std::int64_t i, std::span<float> out) const override;
  std::optional<std::int64_t> label(std::int64_t i) const override;

  const Tensor& images() const { return images_; }
  const Tensor& labels() const { return labels_; }

 private:
  Tensor images_, labels_;
};

/// The images of `dataset`, read once, on all threads, and kept in memory as float32: the same values
/// at the price of 4 bytes each.
TensorDataset in_memory(const Dataset& dataset);

}  // namespace tapedeck::data
