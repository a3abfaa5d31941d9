#include <tapedeck/core/parallel.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <tapedeck/core/error.h>

namespace tapedeck {

namespace {

thread_local bool inside = false;  // this thread runs a body already

/// Threads that wait for a job and run their share of it: share i of n is the i-th nearly equal part.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    start_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void run(std::int64_t count, int shares, void (*body)(void*, std::int64_t, std::int64_t), void* state) {
    std::lock_guard one_job(job_mutex_);
    {
      std::lock_guard lock(mutex_);
      job_ = {count, shares, body, state};
      pending_ = threads() - 1;
      error_ = nullptr;
      ++generation_;
    }
    start_.notify_all();
    share(job_, 0);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  struct Job {
    std::int64_t count = 0;
    int shares = 0;
    void (*body)(void*, std::int64_t, std::int64_t) = nullptr;
    void* state = nullptr;
  };

  void share(const Job& job, int i) {
    if (i >= job.shares) return;
    const std::int64_t each = job.count / job.shares, rest = job.count % job.shares;
    const std::int64_t begin = i * each + std::min<std::int64_t>(i, rest);
    inside = true;
    try {
      job.body(job.state, begin, begin + each + (i < rest ? 1 : 0));
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    inside = false;
  }

  void work(int i) {
    std::uint64_t seen = 0;
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        start_.wait(lock, [&] { return stop_ || generation_ != seen; });
        if (stop_) return;
        seen = generation_;
        job = job_;
      }
      share(job, i);
      std::lock_guard lock(mutex_);
      if (--pending_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex job_mutex_, mutex_;
  std::condition_variable start_, done_;
  Job job_;
  std::exception_ptr error_;
  std::uint64_t generation_ = 0;
  int pending_ = 0;
  bool stop_ = false;
};

int default_threads() {
  if (const char* text = std::getenv("TAPEDECK_NUM_THREADS")) {
    const int count = std::atoi(text);
    check(count >= 1, "TAPEDECK_NUM_THREADS: \"", text, "\" is not a number of threads; legal is 1 or more");
    return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::mutex pool_mutex;
std::shared_ptr<Pool> current_pool;  // made at first use, replaced by set_num_threads

std::shared_ptr<Pool> pool() {
  std::lock_guard lock(pool_mutex);
  if (!current_pool) current_pool = std::make_shared<Pool>(default_threads());
  return current_pool;
}

}  // namespace

void set_num_threads(int count) {
  check(count >= 1, "set_num_threads: count ", count, " is not legal; legal is 1 or more");
  auto fresh = std::make_shared<Pool>(count);
  std::lock_guard lock(pool_mutex);
  current_pool.swap(fresh);
}

int num_threads() {
  return pool()->threads();
}

void detail::parallel_for(std::int64_t count, std::int64_t grain,
                          void (*body)(void*, std::int64_t, std::int64_t), void* state) {
  if (count <= 0) return;
  if (inside || count <= grain) {
    body(state, 0, count);
    return;
  }
  const auto threads = pool();
  const std::int64_t useful =
      (count + std::max<std::int64_t>(grain, 1) - 1) / std::max<std::int64_t>(grain, 1);
  const int shares = static_cast<int>(std::min<std::int64_t>(threads->threads(), useful));
  if (shares <= 1) {
    body(state, 0, count);
    return;
  }
  threads->run(count, shares, body, state);
}

}  // namespace tapedeck
