// What a kernel asks memory for while it computes (micro::Ahead): the lines that are read next or written
// soon.
//
// Processors drop requests that come all at once, so they have to be spread evenly over the work at hand.
#pragma once

#include <algorithm>
#include <vector>

#include <tapedeck/ops/micro/kernels.h>

namespace tapedeck::cpu {

/// Appends the lines of `count` elements from `first` on.
template <class T>
void append_lines(const T* first, std::int64_t count, std::vector<const void*>& to) {
  constexpr std::uintptr_t kLine = 64;
  if (count <= 0) return;
  const auto begin = reinterpret_cast<std::uintptr_t>(first),
             end = begin + static_cast<std::uintptr_t>(count) * sizeof(T);
  const std::size_t before = to.size(), lines = (end - 1) / kLine - begin / kLine + 1;
  to.resize(before + lines);
  const void** next = to.data() + before;
  for (std::size_t i = 0; i < lines; ++i)
    next[i] = reinterpret_cast<const char*>(first) - begin % kLine + i * kLine;
}

/// Lines of memory, dealt to the calls of kernels in proportion to their work. Each thread has one, whose
/// memory stays for the next convolution.
class Dealer {
 public:
  static Dealer& of_this_thread() {
    static thread_local Dealer dealer;
    return dealer;
  }
  /// Begins with no lines, for calls that have `work` in all. The lines are for the caller to append.
  std::vector<const void*>& begin(double work) {
    lines_.clear();
    dealt_ = 0;
    done_ = 0;
    work_ = std::max(work, 1.0);
    return lines_;
  }
  micro::Ahead deal(double work) {
    done_ += work;
    const auto all = static_cast<double>(lines_.size());
    const auto until = std::min(static_cast<std::int64_t>(lines_.size()),
                                static_cast<std::int64_t>(all * done_ / work_) + 1);
    const micro::Ahead ahead{lines_.data() + dealt_, until - dealt_};
    dealt_ = until;
    return ahead;
  }

 private:
  std::vector<const void*> lines_;
  std::int64_t dealt_ = 0;
  double done_ = 0, work_ = 1;
};

}  // namespace tapedeck::cpu
