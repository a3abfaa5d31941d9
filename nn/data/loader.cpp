#include <tapedeck/nn/data/loader.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <numeric>
#include <optional>
#include <stop_token>
#include <thread>

#include <tapedeck/core/copy_stream.h>
#include <tapedeck/core/random.h>

namespace tapedeck::data {

std::vector<std::int64_t> shuffled(std::int64_t count, std::uint64_t seed, std::int64_t epoch) {
  constexpr std::uint64_t kStream = 0x7368756666000000u;  // apart from draws of the same seed elsewhere
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::uint64_t i = order.size(); i > 1; --i) {
    const Philox random = Philox::at(seed, i, kStream + static_cast<std::uint64_t>(epoch));
    const std::uint64_t bits = (std::uint64_t{random.words[1]} << 32) | random.words[0];
    // A bias of i / 2^64 at most.
    const auto j = static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits) * i) >> 64);
    std::swap(order[i - 1], order[j]);
  }
  return order;
}

/// The batches of one epoch. Workers take the next number, at most `prefetch` beyond what was handed
/// out, and put what they made into slot number % prefetch, where next() waits for it.
class DataLoader::Iterator::Epoch {
 public:
  Epoch(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options, std::int64_t epoch,
        std::int64_t first, std::int64_t batches)
      : dataset_(std::move(dataset)),
        options_(options),
        labelled_(dataset_->size() > 0 && dataset_->label(0).has_value()),
        batches_(batches),
        taken_(first),
        handed_(first),
        slots_(static_cast<std::size_t>(options.prefetch)) {
    if (options.shuffle) order_ = shuffled(dataset_->size(), options.seed, epoch);
    const auto workers = std::min<std::int64_t>(options.workers, batches - first);
    for (std::int64_t i = 0; i < workers; ++i) {
      workers_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  ~Epoch() {
    for (auto& worker : workers_) worker.request_stop();  // all of them, before the first is waited for
  }

  /// Makes the next batch current(); false at the end.
  bool next() {
    current_ = {};
    if (handed_ == batches_) return false;
    if (workers_.empty()) {
      current_ = make(handed_++, {});
      return true;
    }
    std::unique_lock lock(mutex_);
    Slot& slot = slots_[static_cast<std::size_t>(handed_ % options_.prefetch)];
    ready_.wait(lock, [&] { return slot.batch || slot.error; });
    if (slot.error) std::rethrow_exception(slot.error);
    current_ = std::move(*slot.batch);
    slot.batch.reset();
    ++handed_;
    room_.notify_one();
    return true;
  }

  Batch& current() { return current_; }
  /// How many batches of the epoch were handed out.
  std::int64_t handed() const { return handed_; }

 private:
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
  };

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
      const bool free =
          room_.wait(lock, stop, [&] { return taken_ == batches_ || taken_ < handed_ + options_.prefetch; });
      if (!free || stop.stop_requested() || taken_ == batches_) return;
      const std::int64_t number = taken_++;
      lock.unlock();
      Slot made;
      try {
        made.batch = make(number, stop);
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      if (made.error) taken_ = batches_;  // nobody will ask for what comes after
      slots_[static_cast<std::size_t>(number % options_.prefetch)] = std::move(made);
      ready_.notify_one();
    }
  }

  Batch make(std::int64_t number, const std::stop_token& stop) const {
    const std::int64_t begin = number * options_.batch_size;
    const std::int64_t count = std::min(options_.batch_size, dataset_->size() - begin);
    const Shape image = dataset_->image_shape();
    const ContextScope memory(options_.pinned ? pinned_context() : Context::current(Device{}));
    Batch batch;
    batch.images = Tensor::empty({count, image[0], image[1], image[2]});
    batch.indices = Tensor::empty({count}, {.dtype = DType::int64});
    if (labelled_) batch.labels = Tensor::empty({count}, {.dtype = DType::int64});
    for (std::int64_t k = 0; k < count && !stop.stop_requested(); ++k) {
      const std::int64_t i = order_.empty() ? begin + k : order_[static_cast<std::size_t>(begin + k)];
      dataset_->read(
          i, {batch.images.data<float>() + k * image.count(), static_cast<std::size_t>(image.count())});
      batch.indices.data<std::int64_t>()[k] = i;
      if (labelled_) batch.labels.data<std::int64_t>()[k] = dataset_->label(i).value();
    }
    return batch;
  }

  const std::shared_ptr<const Dataset> dataset_;
  const DataLoaderOptions options_;
  const bool labelled_;
  const std::int64_t batches_;
  std::vector<std::int64_t> order_;
  Batch current_;

  std::mutex mutex_;                  // guards what follows, except for the threads
  std::condition_variable_any room_;  // a batch was handed out, or stop
  std::condition_variable ready_;     // a slot was filled
  std::int64_t taken_, handed_;
  std::vector<Slot> slots_;
  std::vector<std::jthread> workers_;  // last: they end before anything that they use
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, const DataLoaderOptions& options)
    : dataset_(std::move(dataset)), options_(options) {
  check(dataset_ != nullptr, "data_loader: the dataset is null");
  check(options.batch_size >= 1, "data_loader: batch_size ", options.batch_size,
        " is not legal; legal is 1 or more");
  check(options.workers >= 0, "data_loader: workers ", options.workers, " is not legal; legal is 0 or more");
  check(options.prefetch >= 1, "data_loader: prefetch ", options.prefetch,
        " is not legal; legal is 1 or more");
}

std::int64_t DataLoader::size() const {
  const std::int64_t full = dataset_->size() / options_.batch_size;
  const bool rest = dataset_->size() % options_.batch_size != 0;
  return full + (rest && !options_.drop_last ? 1 : 0);
}

void DataLoader::seek(std::int64_t epoch, std::int64_t position) {
  check(epoch >= 0, "data_loader: epoch ", epoch, " is not legal; legal is 0 or more");
  check(position >= 0 && position <= size(), "data_loader: position ", position,
        " is not legal; legal is 0 to ", size());
  epoch_ = epoch;
  position_ = position;
  started_ = false;
}

DataLoader::Iterator DataLoader::begin() {
  if (started_) {
    ++epoch_;
    position_ = 0;
  }
  started_ = true;
  Iterator iterator(this, std::make_unique<Iterator::Epoch>(dataset_, options_, epoch_, position_, size()));
  ++iterator;
  return iterator;
}

DataLoader::Iterator::Iterator(DataLoader* loader, std::unique_ptr<Epoch> epoch)
    : loader_(loader), epoch_(std::move(epoch)) {}
DataLoader::Iterator::Iterator(Iterator&&) noexcept = default;
DataLoader::Iterator& DataLoader::Iterator::operator=(Iterator&&) noexcept = default;
DataLoader::Iterator::~Iterator() = default;

Batch& DataLoader::Iterator::operator*() const {
  return epoch_->current();
}

DataLoader::Iterator& DataLoader::Iterator::operator++() {
  if (epoch_->next()) {
    loader_->position_ = epoch_->handed();
  } else {
    epoch_.reset();
  }
  return *this;
}

bool DataLoader::Iterator::operator==(std::default_sentinel_t) const {
  return epoch_ == nullptr;
}

}  // namespace tapedeck::data
