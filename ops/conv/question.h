// Answers about convolutions that take long to find, remembered: a step asks the same of each layer, again
// and again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include <tapedeck/ops/conv_transpose2d_geometry.h>

namespace tapedeck {

/// A geometry and what else an answer depends on.
class ConvQuestion {
 public:
  template <class... Numbers>
  explicit ConvQuestion(const ConvTranspose2dGeometry& g, Numbers... more)
      : numbers_{g.n,
                 g.ci,
                 g.co,
                 g.groups,
                 g.h.in,
                 g.h.out,
                 g.h.kernel,
                 g.h.stride,
                 g.h.padding,
                 g.h.dilation,
                 g.w.in,
                 g.w.out,
                 g.w.kernel,
                 g.w.stride,
                 g.w.padding,
                 g.w.dilation,
                 static_cast<std::int64_t>(more)...} {
    static_assert(sizeof...(more) <= kMore);
  }
  friend bool operator==(const ConvQuestion&, const ConvQuestion&) = default;

  struct Hash {
    std::size_t operator()(const ConvQuestion& question) const {
      std::uint64_t hash = 0;
      for (const std::int64_t n : question.numbers_) {
        hash = (hash ^ static_cast<std::uint64_t>(n)) * 0x9e3779b97f4a7c15;
        hash ^= hash >> 32;
      }
      return static_cast<std::size_t>(hash);
    }
  };

 private:
  static constexpr std::size_t kMore = 8;
  std::array<std::int64_t, 16 + kMore> numbers_;
};

/// find(), or what it was when this thread asked `find` that question before; until it asks the next one.
template <class Find>
const auto& remembered(const ConvQuestion& question, Find find) {
  constexpr std::size_t kMost = 512;  // at up to 3 KB each
  thread_local std::unordered_map<ConvQuestion, decltype(find()), ConvQuestion::Hash> known;
  if (const auto found = known.find(question); found != known.end()) return found->second;
  if (known.size() == kMost) known.clear();
  return known[question] = find();
}

}  // namespace tapedeck
