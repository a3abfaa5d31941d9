// Batches on a device, copied there ahead of time.
//
//   DataLoader loader(dataset, {.batch_size = 128, .shuffle = true, .pinned = true});
//   DeviceLoader batches(loader, device("cuda"));
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (const Batch& batch : batches) step(batch.images, batch.indices);
//   }
#pragma once

#include <array>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>

#include <tapedeck/core/copy_stream.h>
#include <tapedeck/nn/data/loader.h>

namespace tapedeck::data {

/// While one batch is worked on, the next is copied on a stream of its own, into the other of two places; if
/// the loader's batches are pinned, the CPU waits for none of it. A batch is there until the iterator goes
/// on: work on it that was queued before then is done first. On the CPU batches are the loader's own.
class DeviceLoader {
 public:
  class Iterator;

  /// `loader` must outlive it, and is not to be iterated by others meanwhile.
  DeviceLoader(DataLoader& loader, Device device);
  /// What was queued on the batches is done first.
  ~DeviceLoader();
  DeviceLoader(const DeviceLoader&) = delete;
  DeviceLoader& operator=(const DeviceLoader&) = delete;

  std::int64_t size() const { return loader_.size(); }
  /// Where the loop stands, as DataLoader's: it does not count what was only copied.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t position() const { return position_; }
  void seek(std::int64_t epoch, std::int64_t position = 0);

  /// The rest of the epoch that seek() named, or the next one. One loop runs at a time.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  void fetch();
  bool next();

  DataLoader& loader_;
  Device device_;
  std::unique_ptr<CopyStream> copies_;          // null on the CPU
  std::optional<DataLoader::Iterator> source_;  // at the batch after the one that was fetched last
  std::array<Batch, 2> places_;                 // as large as the largest batch so far
  std::optional<Batch> fetched_, current_;
  std::exception_ptr error_;  // of the batch after the current one
  std::size_t place_ = 0;     // where the next batch goes
  std::int64_t epoch_ = 0, position_ = 0;
};

/// An input iterator over the batches of one epoch.
class DeviceLoader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  explicit Iterator(DeviceLoader* loader) : loader_(loader) {}
  Batch& operator*() const { return *loader_->current_; }
  Batch* operator->() const { return &**this; }
  Iterator& operator++() {
    if (!loader_->next()) loader_ = nullptr;
    return *this;
  }
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return loader_ == nullptr; }

 private:
  DeviceLoader* loader_;
};

}  // namespace tapedeck::data
