#include <tapedeck/nn/data/device_loader.h>

#include <utility>

namespace tapedeck::data {

namespace {

/// The first rows of `place`, which is made larger if need be; undefined for an undefined `source`.
Tensor room_for(const Tensor& source, Tensor& place, Device device) {
  if (!source.defined()) return {};
  const std::int64_t rows = source.size(0);
  if (!place.defined() || place.size(0) < rows || place.shape().with(0, rows) != source.shape()) {
    place = Tensor::empty(source.shape(), {source.dtype(), device, source.layout()});
  }
  return place.slice(0, rows);
}

}  // namespace

DeviceLoader::DeviceLoader(DataLoader& loader, Device device)
    : loader_(loader), device_(device), copies_(CopyStream::make(device)) {}

DeviceLoader::~DeviceLoader() {
  try {
    if (copies_ != nullptr) copies_->join();  // before the places are given back
  } catch (...) {
  }
}

/// Queues the copy of the loader's next batch, if there is one, to the place that is not in use.
void DeviceLoader::fetch() {
  fetched_.reset();
  if (*source_ == std::default_sentinel) return;
  const Batch& batch = **source_;
  Batch& place = places_[place_];
  place_ = 1 - place_;
  fetched_ =
      Batch{room_for(batch.images, place.images, device_), room_for(batch.indices, place.indices, device_),
            room_for(batch.labels, place.labels, device_)};
  copies_->copy(batch.images, fetched_->images);
  copies_->copy(batch.indices, fetched_->indices);
  if (batch.labels.defined()) copies_->copy(batch.labels, fetched_->labels);
}

/// Makes the next batch current; false at the end.
bool DeviceLoader::next() {
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  if (copies_ == nullptr) {
    if (current_) ++*source_;
    current_.reset();
    if (*source_ != std::default_sentinel) current_ = std::move(**source_);
  } else {
    copies_->join();
    current_ = std::exchange(fetched_, std::nullopt);
    try {
      if (current_) ++*source_;
      fetch();
    } catch (...) {  // it belongs to the batch after this one
      error_ = std::current_exception();
    }
  }
  if (current_) ++position_;
  return current_.has_value();
}

void DeviceLoader::seek(std::int64_t epoch, std::int64_t position) {
  loader_.seek(epoch, position);
  epoch_ = epoch;
  position_ = position;
}

DeviceLoader::Iterator DeviceLoader::begin() {
  source_.reset();  // ends the loop before this one
  current_.reset();
  error_ = nullptr;
  source_.emplace(loader_.begin());
  epoch_ = loader_.epoch();
  const bool any = *source_ != std::default_sentinel;
  position_ = loader_.position() - (any ? 1 : 0);
  if (copies_ != nullptr) fetch();
  Iterator iterator(this);
  ++iterator;
  return iterator;
}

}  // namespace tapedeck::data
