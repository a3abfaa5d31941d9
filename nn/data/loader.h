// The data loader: batches of a dataset, epoch after epoch, made ahead of time by threads.
//
//   DataLoader loader(Sprites({.count = 2000}), {.batch_size = 64, .shuffle = true, .seed = 1});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     for (const Batch& batch : loader) step(batch.images, batch.indices);
//   }
#pragma once

#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include <tapedeck/nn/data/dataset.h>

namespace tapedeck::data {

struct Batch {
  Tensor images;   ///< float32 [b,c,h,w]
  Tensor indices;  ///< int64 [b], of the images in the dataset
  Tensor labels;   ///< int64 [b], or undefined when the dataset has none
};

struct DataLoaderOptions {
  std::int64_t batch_size = 32;
  bool shuffle = false;  ///< a new order each epoch, which depends on (seed, epoch) only
  std::uint64_t seed = 0;
  int workers = 1;         ///< threads that make batches; 0: the caller's makes them
  int prefetch = 4;        ///< batches that are made ahead, at most
  bool drop_last = false;  ///< leave out a last batch that is not full
  bool pinned = false;     ///< batches lie in memory that GPUs copy from directly (core/copy_stream.h)
};

/// Order and content of the batches do not depend on the number of workers. What a dataset throws
/// reaches the loop in place of the batch that it belongs to. A loop may be left at any time.
class DataLoader {
 public:
  class Iterator;

  /// Throws Error when an option is out of range.
  explicit DataLoader(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options = {});
  template <std::derived_from<Dataset> D>
  explicit DataLoader(D dataset, const DataLoaderOptions& options = {})
      : DataLoader(std::make_shared<const D>(std::move(dataset)), options) {}

  const Dataset& dataset() const { return *dataset_; }
  /// Batches an epoch.
  std::int64_t size() const;

  /// Where the loop stands: epoch and the batches of it that were handed out. A loop that is started
  /// after `seek(epoch(), position())` goes on with the batch after them; without seek() each loop is
  /// a new epoch.
  std::int64_t epoch() const { return epoch_; }
  std::int64_t position() const { return position_; }
  /// Throws Error unless epoch >= 0 and 0 <= position <= size().
  void seek(std::int64_t epoch, std::int64_t position = 0);

  /// The rest of the epoch that seek() named, or the next one. One loop runs at a time; it must end
  /// before the loader does.
  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  std::int64_t epoch_ = 0, position_ = 0;
  bool started_ = false;  // a loop has run (epoch_, position_)
};

/// An input iterator over the batches of one epoch.
class DataLoader::Iterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  Batch& operator*() const;
  Batch* operator->() const { return &**this; }
  Iterator& operator++();
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const;

 private:
  friend class DataLoader;
  class Epoch;
  Iterator(DataLoader* loader, std::unique_ptr<Epoch> epoch);

  DataLoader* loader_;
  std::unique_ptr<Epoch> epoch_;
};

/// The order of `count` elements in an epoch: a permutation that depends on nothing else.
std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed, std::int64_t epoch);

}  // namespace tapedeck::data
