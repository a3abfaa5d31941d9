// How it works: the calling thread writes the job, raises each needed worker's counter and runs the first
// share itself. A worker waits for its own counter, so only as many are woken as have a share. Shares that
// their workers have not begun when the caller has done its own, the caller runs, too: on a machine with
// other work a worker may have no core for milliseconds.
//
// Who waits looks for kSpin before it sleeps, since the next job is mostly near: to wake a thread takes 20 to
// 40 us, and where jobs are short Linux often puts it behind its waker, on the same core, though others are
// idle (a forward of 0.5 ms by two threads took 0.9). But with other programs on the machine, waiting threads
// take the time of those that work; so who finds that it was not running while it looked sleeps at once for
// the next kBusy.
#include <tapedeck/core/parallel.h>

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tapedeck/core/error.h>

namespace tapedeck {

namespace {

constexpr int kMaxThreads = 1024;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

thread_local bool inside = false;  // this thread runs a body already

/// Share i of n is the i-th nearly equal part.
struct Job {
  std::int64_t count = 0;
  int shares = 0;
  void (*body)(void*, std::int64_t, std::int64_t) = nullptr;
  void* state = nullptr;
};

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kGone = std::chrono::microseconds(200);  // between two looks: another program ran
constexpr auto kBusy = std::chrono::milliseconds(100);

/// Returns when `value` is not `seen` any more.
void wait_while(const std::atomic<std::uint32_t>& value, std::uint32_t seen) {
  static thread_local Clock::time_point busy_until;
  Clock::time_point last = Clock::now();
  for (const auto end = last + kSpin; last < end && last >= busy_until;) {
    for (int i = 0; i < 16; ++i) {
      if (value.load(std::memory_order_acquire) != seen) return;
      pause();
    }
    const auto now = Clock::now();
    if (now - last > kGone) busy_until = now + kBusy;
    last = now;
  }
  value.wait(seen);
}

/// Where a worker woke up on the core of its caller, it moves to another one: Linux leaves it there for long.
void step_aside(int cpu_of_caller) {
  cpu_set_t all;
  if (sched_getcpu() != cpu_of_caller || sched_getaffinity(0, sizeof all, &all) != 0) return;
  cpu_set_t others = all;
  CPU_CLR(static_cast<std::size_t>(cpu_of_caller), &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
    (void)sched_setaffinity(0, sizeof all, &all);
}

/// What the threads of a pool share. They are detached and hold it alive, so that nothing waits for them:
/// neither at the end of the program nor when another pool takes over.
struct Team {
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> jobs = 0;   // given to this worker so far,
    std::atomic<std::uint32_t> begun = 0;  // and of these shares that it or the caller began

    /// Whether the share after `before` others is now the calling thread's to run.
    bool begin(std::uint32_t before) { return begun.compare_exchange_strong(before, before + 1); }
  };

  explicit Team(int threads) : counters(static_cast<std::size_t>(threads)) {}

  void run_share(int i) {
    const std::int64_t each = job.count / job.shares, rest = job.count % job.shares;
    const std::int64_t begin = i * each + std::min<std::int64_t>(i, rest);
    inside = true;
    try {
      job.body(job.state, begin, begin + each + (i < rest ? 1 : 0));
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error || i < error_share) {  // of several the first share's, as without threads
        error = std::current_exception();
        error_share = i;
      }
    }
    inside = false;
  }

  void work(int i) {
    Counter& mine = counters[static_cast<std::size_t>(i)];
    for (;;) {
      const std::uint32_t before = mine.begun;
      wait_while(mine.jobs, before);
      if (stop) return;
      step_aside(cpu_of_caller);
      if (!mine.begin(before)) continue;
      run_share(i);
      if (pending.fetch_sub(1) == 1) pending.notify_one();
    }
  }

  void wake(int i) {
    auto& jobs = counters[static_cast<std::size_t>(i)].jobs;
    jobs.fetch_add(1);
    jobs.notify_one();
  }

  void run(const Job& next) {
    const std::lock_guard one_at_a_time(run_mutex);
    job = next;
    cpu_of_caller = sched_getcpu();
    error = nullptr;
    pending = static_cast<std::uint32_t>(job.shares - 1);
    for (int i = 1; i < job.shares; ++i) wake(i);
    run_share(0);
    for (int i = 1; i < job.shares; ++i) {
      Counter& of_worker = counters[static_cast<std::size_t>(i)];
      if (!of_worker.begin(of_worker.jobs - 1)) continue;
      run_share(i);
      --pending;
    }
    for (std::uint32_t left; (left = pending.load()) != 0;) wait_while(pending, left);
    if (error) std::rethrow_exception(std::exchange(error, nullptr));
  }

  std::vector<Counter> counters;  // by worker; the caller's, number 0, is unused
  std::atomic<std::uint32_t> pending = 0;
  std::atomic<bool> stop = false;
  Job job;
  std::atomic<int> cpu_of_caller = -1;
  std::mutex run_mutex, error_mutex;
  std::exception_ptr error;
  int error_share = 0;
};

class Pool {
 public:
  explicit Pool(int threads) : team_(std::make_shared<Team>(threads)) {
    try {
      for (; started_ < threads; ++started_) {
        std::thread([team = team_, i = started_] { team->work(i); }).detach();
      }
    } catch (const std::system_error& error) {
      stop();
      throw Error(concat("threads: ", threads, " could not be started: ", error.what()));
    }
  }
  ~Pool() { stop(); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return started_; }
  void run(const Job& job) { team_->run(job); }

 private:
  void stop() {
    team_->stop = true;
    for (int i = 1; i < started_; ++i) team_->wake(i);
  }

  std::shared_ptr<Team> team_;
  int started_ = 1;  // the caller is one
};

int default_threads() {
  const char* text = std::getenv("TAPEDECK_NUM_THREADS");
  if (text == nullptr)
    return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMaxThreads);
  int count = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, code] = std::from_chars(text, end, count);
  check(code == std::errc() && stop == end && count >= 1 && count <= kMaxThreads, "TAPEDECK_NUM_THREADS: \"",
        text, "\" is not a number of threads; legal is 1 to ", kMaxThreads);
  return count;
}

/// The pool of the process: made at first use, replaced by set_num_threads(), and never destroyed, so
/// that it serves static destructors, too.
struct Process {
  std::mutex mutex;
  std::shared_ptr<Pool> pool;
  std::vector<std::shared_ptr<Pool>> of_parents;
};

Process& process() {
  static Process* const process = [] {
    static auto* const made = new Process;
    // A child process has none of the threads, so it starts with no pool. Its parent's is left as it is:
    // locks in it may be held by threads that the child does not have.
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] {
                     made->of_parents.push_back(std::move(made->pool));
                     made->mutex.unlock();
                   });
    return made;
  }();
  return *process;
}

std::shared_ptr<Pool> pool() {
  const std::lock_guard lock(process().mutex);
  auto& pool = process().pool;
  if (!pool) pool = std::make_shared<Pool>(default_threads());
  return pool;
}

}  // namespace

void set_num_threads(int count) {
  check(count >= 1 && count <= kMaxThreads, "set_num_threads: count ", count, " is not legal; legal is 1 to ",
        kMaxThreads);
  auto fresh = std::make_shared<Pool>(count);
  const std::lock_guard lock(process().mutex);
  process().pool.swap(fresh);
}

int num_threads() {
  return pool()->threads();
}

void detail::parallel_for(std::int64_t count, std::int64_t grain,
                          void (*body)(void*, std::int64_t, std::int64_t), void* state) {
  if (count <= 0) return;
  if (inside || count <= grain) return body(state, 0, count);
  const auto threads = pool();
  const std::int64_t useful = grain <= 1 ? count : count / grain + (count % grain != 0);
  const int shares = static_cast<int>(std::min<std::int64_t>(threads->threads(), useful));
  if (shares <= 1) return body(state, 0, count);
  threads->run({count, shares, body, state});
}

}  // namespace tapedeck
