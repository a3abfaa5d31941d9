// How boxes are cut into tiles, in a few numbers: what the autotuner (autotune.h) measures beyond algorithms,
// and what a file of its choices names.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <tapedeck/core/error.h>

namespace tapedeck {

/// Numbers that tell a tiling from all others of a call; what they mean, box_choice.h and box_grad_plan.h
/// say. Without numbers: the one that is estimated to be the fastest.
class ConvTiling {
 public:
  ConvTiling() = default;
  /// Up to nine numbers, from 0 to 999.
  ConvTiling(std::initializer_list<int> numbers) {
    for (const int number : numbers) {
      check(size_ < kMost && number >= 0 && number < 1000, "tiling: number ", number, " does not fit");
      numbers_[size_++] = static_cast<std::int16_t>(number);
    }
  }
  /// What to_string() returned. Throws Error for another text.
  static ConvTiling parse(std::string_view text) {
    ConvTiling t;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find('.', begin), text.size());
      int number = 0;
      bool legal = end > begin && end - begin < 4 && t.size_ < kMost;
      for (std::size_t i = begin; legal && i < end; ++i) {
        legal = text[i] >= '0' && text[i] <= '9';
        number = number * 10 + (text[i] - '0');
      }
      check(legal, "tiling \"", text, "\" is not legal; legal are up to ", kMost,
            " whole numbers below 1000 between points");
      t.numbers_[t.size_++] = static_cast<std::int16_t>(number);
      begin = end + 1;
    }
    return t;
  }

  bool exists() const { return size_ > 0; }
  int operator[](std::size_t i) const { return numbers_[i]; }
  std::string to_string() const {
    std::string text;
    for (std::size_t i = 0; i < size_; ++i) {
      if (i > 0) text += '.';
      text += std::to_string(numbers_[i]);
    }
    return text;
  }
  /// Two numbers that tell it from others (question.h).
  std::array<std::int64_t, 2> code() const {
    std::array<std::int64_t, 2> code{};
    for (std::size_t i = 0; i < size_; ++i) code[i % 2] = code[i % 2] * 1024 + numbers_[i] + 1;
    return code;
  }
  friend bool operator==(const ConvTiling&, const ConvTiling&) = default;

 private:
  static constexpr std::size_t kMost = 9;
  std::array<std::int16_t, kMost> numbers_{};
  std::size_t size_ = 0;
};

}  // namespace tapedeck
