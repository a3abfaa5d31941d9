#include <tapedeck/nn/data/dataset.h>

#include <tapedeck/core/convert.h>
#include <tapedeck/core/parallel.h>

namespace tapedeck::data {

std::optional<std::int64_t> Dataset::label(std::int64_t) const {
  return std::nullopt;
}

Tensor Dataset::get(std::int64_t i) const {
  check(i >= 0 && i < size(), "dataset: index ", i, " is out of range; legal is 0 to ", size() - 1);
  Tensor image = Tensor::empty(image_shape());
  read(i, {image.data<float>(), static_cast<std::size_t>(image.count())});
  return image;
}

TensorDataset::TensorDataset(const Tensor& images, const Tensor& labels) {
  check(images.defined() && images.rank() == 4, "dataset: images are ", images, "; legal is [n,c,h,w]");
  check(images.dtype() != DType::int64, "dataset: images are int64; legal is a floating type or uint8");
  if (labels.defined()) {
    check(labels.dtype() == DType::int64 && labels.shape() == Shape{images.size(0)}, "dataset: labels are ",
          labels, " for images ", images.shape(), "; legal is int64 [", images.size(0), "]");
    labels_ = labels.to(Device{});
  }
  images_ = images.to(Layout::nchw).to(Device{});
}

void TensorDataset::read(std::int64_t i, std::span<float> out) const {
  visit(images_.dtype(), [&]<class T>() {
    const T* in = images_.data<T>() + i * static_cast<std::int64_t>(out.size());
    for (std::size_t k = 0; k < out.size(); ++k) {
      if constexpr (std::is_same_v<T, std::uint8_t>) {
        out[k] = static_cast<float>(in[k]) / 255.0f;
      } else {
        out[k] = convert<float>(in[k]);
      }
    }
  });
}

std::optional<std::int64_t> TensorDataset::label(std::int64_t i) const {
  if (!labels_.defined()) return std::nullopt;
  return labels_.data<std::int64_t>()[i];
}

TensorDataset in_memory(const Dataset& dataset) {
  const std::int64_t n = dataset.size();
  const Shape image = dataset.image_shape();
  const Tensor images = Tensor::empty({n, image[0], image[1], image[2]});
  const bool labelled = n > 0 && dataset.label(0).has_value();
  const Tensor labels = labelled ? Tensor::empty({n}, {.dtype = DType::int64}) : Tensor();
  parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      dataset.read(i, {images.data<float>() + i * image.count(), static_cast<std::size_t>(image.count())});
      if (labelled) labels.data<std::int64_t>()[i] = dataset.label(i).value();
    }
  });
  return TensorDataset(images, labels);
}

}  // namespace tapedeck::data
